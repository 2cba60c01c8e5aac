"""A companion is post-processing of noisy sums: it changes what is learnt, and neither price nor noise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import confide
from confide import models
from confide.inference import checkpoints, loop, plans
from confide.inference.options import Options
from confide.mechanism import oracle
from confide.mechanism.layers import Observed
from confide.models.semi_supervised import hide_labels, log_made_up, log_real
from confide.models.tapes import Tape
from confide.samplers import companions

MODEL = models.semi_supervised(models.mlp((5, 6, 3)))
BUDGET = confide.Budget(epsilon=3.0, delta=1e-5)
N = 200
RNG = np.random.default_rng(0)
DATA = (RNG.normal(size=(N, 5)).astype(np.float32), hide_labels(RNG.integers(0, 3, N), RNG.random(N) < 0.1))
SAMPLERS = {
    "sgld": confide.sgld(),
    "sghmc": confide.sghmc(),
    "psgld": confide.psgld(),
    "sgnht": confide.sgnht(),
    "dp_sgd": confide.dp_sgd(0.1, momentum=0.5),
    "dp_sgd in part": confide.dp_sgd(0.1, updated=0.4),
    "dp_adam": confide.dp_adam(0.01),
}


def made_up(weights, key):
    return jax.random.normal(key, (8, 2)) @ weights


def scores(parameters, x):
    return jax.vmap(lambda row: MODEL.scores(Tape(), parameters, row))(x)


def loss(state, parameters, key):
    return -jnp.mean(log_made_up(scores(parameters, made_up(state["weights"], key))))


def move(state, parameters, key, t):
    def own(weights):
        return -jnp.mean(log_real(scores(parameters, made_up(weights, key))))

    return {"weights": state["weights"] - 0.1 * jax.grad(own)(state["weights"]), "steps": t + 1}


START = {"weights": np.ones((2, 5), np.float32), "steps": np.int32(0)}
GENERATOR = confide.Companion(model=MODEL, start=START, loss=loss, move=move, keep=lambda state: state["weights"])


def job_of(sampler, data=DATA, **settings):
    given = Options(**{"steps": 8, "batch_size": 60, "clip": 0.5, "draws": 1, "burn_in": 0} | settings)
    return plans.private_job(MODEL, data, BUDGET, sampler, given, jax.random.key(0))


def fit(sampler=None, data=DATA, **settings):
    sampler = confide.accompany(confide.sghmc(), GENERATOR) if sampler is None else sampler
    given = {"steps": 60, "batch_size": 40, "clip": 1.0, "draws": 5, "verbose": False, "progress": False, "key": 1}
    return confide.fit(MODEL, data, BUDGET, sampler, **given | settings)


@pytest.mark.parametrize("name", SAMPLERS)
def test_price_and_noise_are_those_of_the_sampler_alone(name):
    """The same event, the same queries, and the noise in them that the event is written from."""
    alone, event = job_of(SAMPLERS[name])
    beside, its_event = job_of(confide.accompany(SAMPLERS[name], GENERATOR))
    assert its_event.to_json() == event.to_json()
    assert all(map(np.array_equal, beside.kernel.schedule, alone.kernel.schedule))
    with jax.enable_x64(True):
        key, t = jax.random.key(3), jnp.asarray(0)
        control = jax.tree.map(lambda column: jnp.asarray(column[0]), alone.kernel.schedule)
        start = jnp.asarray(alone.initial_positions[0])
        asked, _ = alone.kernel.query(alone.kernel.init(start), control, t, key)
        also, memo = beside.kernel.query(beside.kernel.init(start), control, t, key)
        assert float(also.scale) == float(asked.scale) == float(control.noise)
        assert np.array_equal(also.position, asked.position)
        assert (also.preconditioner_root is None) == (asked.preconditioner_root is None)
        sum_of = jnp.zeros(start.size)
        moved = beside.kernel.update(beside.kernel.init(start), memo, sum_of, control, t)
        still = alone.kernel.update(alone.kernel.init(start), memo[1], sum_of, control, t)
    assert not np.allclose(moved.inner.position, still.position, atol=1e-9)  # the public term counts
    assert not np.allclose(moved.companion["weights"], 1.0)


def test_the_public_term_is_a_gradient_on_the_scale_of_the_mean():
    """One step of plain descent, with and without: they differ by rate times the gradient of the loss."""
    alone, _ = job_of(confide.dp_sgd(0.5, average=False))
    beside, _ = job_of(confide.accompany(confide.dp_sgd(0.5, average=False), GENERATOR))
    with jax.enable_x64(True):
        t, start = jnp.asarray(0), jnp.asarray(alone.initial_positions[0])
        control = jax.tree.map(lambda column: jnp.asarray(column[0]), alone.kernel.schedule)
        noisy, first, second = jnp.asarray(RNG.normal(size=start.size)), alone.kernel.init(start), None
        _, memo = alone.kernel.query(first, control, t, jax.random.key(3))
        plain = alone.kernel.update(first, memo, noisy, control, t)
        second = beside.kernel.init(start)
        _, memo = beside.kernel.query(second, control, t, jax.random.key(3))
        joint = beside.kernel.update(second, memo, noisy, control, t)
    key = jax.random.split(jax.random.fold_in(jax.random.key(3), companions.PUBLIC))[0]
    _, unravel = jax.flatten_util.ravel_pytree(companions.trace(GENERATOR).example)
    pull = jax.grad(lambda flat: loss(START, unravel(flat), key))(jnp.asarray(alone.initial_positions[0], jnp.float32))
    assert np.allclose(plain.iterate - joint.inner.iterate, 0.5 * np.asarray(pull), atol=1e-6)


def test_the_whole_run_follows_from_its_noisy_sums():
    """The run with records is recorded: its noisy sums, and nothing else. From these the kernel of a run on other
    records makes the same model and the same companion, bit for bit."""
    sampler = confide.accompany(confide.sghmc(), GENERATOR)
    job, _ = job_of(sampler)
    other, _ = job_of(sampler, (10 * DATA[0][::-1] + 1, np.zeros_like(DATA[1])))
    heard = []
    with jax.enable_x64(True):
        prepared = job.prepared(tuple(jnp.asarray(array) for array in DATA))
        asked = oracle.build(job.gradient_sum, job.parameters.rounding, job.observers, prepared)
        drawn = jax.jit(job._drawn)(job.randomness(jax.random.key(5), 0), jnp.asarray(0))
        answer = jax.jit(lambda query, draw: asked.answer(query, draw, Observed())[0])

        def run(job, reply):
            state = job.kernel.init(jnp.asarray(job.initial_positions[0]))
            for t in map(jnp.asarray, range(job.steps)):
                control = jax.tree.map(lambda column, t=t: jnp.asarray(column)[t], job.kernel.schedule)
                draw = drawn.of(t, t, control.noise)
                query, memo = job.kernel.query(state, control, t, draw.key)
                state = job.kernel.update(state, memo, reply(query, draw), control, t)
            return state

        def listen(query, draw):
            heard.append(np.asarray(answer(query, draw)))
            return jnp.asarray(heard[-1])

        run_on_records = run(job, listen)
        told = iter(heard)
        again = run(other, lambda query, draw: jnp.asarray(next(told)))
    assert len(heard) == job.steps
    for one, other in zip(jax.tree.leaves(run_on_records), jax.tree.leaves(again), strict=True):
        assert np.array_equal(one, other)
    assert int(again.companion["steps"]) == job.steps


def test_a_posterior_has_the_companion_beside_its_draws(tmp_path):
    posterior = fit(chains=2)
    assert posterior.draws["companion"].shape == (2, 5, 2, 5)
    assert np.all(np.isfinite(posterior.draws["companion"]))
    assert posterior.guarantee.epsilon <= BUDGET.epsilon * (1 + 1e-6)
    assert posterior.guarantee.epsilon == pytest.approx(fit(confide.sghmc(), chains=2).guarantee.epsilon, rel=1e-12)
    assert companions.ASSUMPTION in " ".join(posterior.guarantee.sentences())
    posterior.save(tmp_path / "run")
    loaded = confide.Posterior.load(tmp_path / "run")
    assert np.array_equal(loaded.draws["companion"], posterior.draws["companion"])
    assert np.array_equal(loaded.predict(DATA[0]), posterior.predict(DATA[0]))
    with pytest.raises(confide.Refused, match="companion is not stored"):
        confide.audit(loaded, made_up=True)


def test_killed_and_resumed_is_the_same_run_and_another_companion_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LONGEST_BLOCK", 10)
    whole, path, written = fit(), tmp_path / "run.ckpt", []
    write = checkpoints.write

    def killed(where, checkpoint):
        write(where, checkpoint)
        written.append(checkpoint.block)
        if len(written) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(checkpoint=path, checkpoint_seconds=1e-9)
    assert 0 < written[-1] < 6
    other = replace(GENERATOR, start=START | {"weights": 2 * START["weights"]})
    with pytest.raises(confide.Refused, match="checkpoint"):
        fit(confide.accompany(confide.sghmc(), other), checkpoint=path, key=None)
    resumed = fit(checkpoint=path, key=None)
    for one, two in zip(jax.tree.leaves(resumed.draws), jax.tree.leaves(whole.draws), strict=True):
        assert np.array_equal(one, two)


def test_the_same_key_draws_other_noise_beside_another_companion():
    """Two runs with the same noise at different places would tell the difference of two sums exactly."""
    faster = replace(GENERATOR, move=lambda state, *rest: move(move(state, *rest), *rest) | {"steps": rest[2] + 1})
    twice = replace(GENERATOR, keep=lambda state: 2 * state["weights"])
    elsewhere = replace(GENERATOR, start=START | {"weights": 2 * START["weights"]})
    each = [GENERATOR, faster, twice, elsewhere]
    assert len({companions.trace(one).digest for one in each}) == len(each)
    samplers = (confide.accompany(confide.sgld(), one) for one in each)
    first, *others = (fit(sampler, steps=1, draws=1).draws["network"][0]["weights"] for sampler in samplers)
    assert not any(np.any(first == other) for other in others)


def test_what_is_named_is_what_runs_whatever_becomes_of_the_functions_and_the_start():
    """Else the same key would draw the same noise beside another loss."""
    factor, start = np.array([1.0], np.float32), {name: np.array(value) for name, value in START.items()}
    changing = replace(GENERATOR, start=start, loss=lambda *given: factor[0] * jnp.sum(factor) * loss(*given))
    sampler = confide.accompany(confide.sgld(), changing)
    mark, before = sampler.companion.digest, fit(sampler, steps=10)
    factor[0], start["weights"][:] = 3.0, 5.0
    after = fit(sampler, steps=10)
    assert sampler.companion.digest == mark
    for one, two in zip(jax.tree.leaves(before.draws), jax.tree.leaves(after.draws), strict=True):
        assert np.array_equal(one, two)
    again = confide.accompany(confide.sgld(), changing)
    assert again.companion.digest != mark
    fresh = fit(again, steps=10)
    assert not np.any(fresh.draws["network"][0]["weights"] == before.draws["network"][0]["weights"])


def test_canaries_do_not_refute_a_run_with_a_companion():
    """A true claim is called suspect in one of twenty audits; the seed is fixed.

    Canaries see the noise of the sums, and nothing of what a companion holds.
    """
    found = confide.audit(lambda: fit(steps=100), canaries=100)
    assert found.verdict == "not refuted"


def test_what_a_companion_must_not_hold_or_go_with_is_refused():
    held = jnp.asarray(DATA[0])
    peeks = replace(GENERATOR, loss=lambda state, p, key: loss(state, p, key) + jnp.mean(scores(p, held)))
    kept = replace(GENERATOR, keep=lambda state: held)
    began = replace(GENERATOR, start=START | {"held": DATA[0]}, move=lambda state, *rest: state | move(state, *rest))
    for companion in (peeks, kept, began):
        with pytest.raises(confide.Refused, match="as long as the data"):
            fit(confide.accompany(confide.sghmc(), companion))
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    calls = replace(GENERATOR, loss=lambda *given: loss(*given) + jax.pure_callback(lambda: np.float32(0), shape))
    with pytest.raises(confide.Refused, match="pure_callback"):
        confide.accompany(confide.sghmc(), calls)
    for sampler in (confide.dpvi(), confide.scoring(), confide.langevin()):
        with pytest.raises(confide.Refused, match="no place for it"):
            confide.accompany(sampler, GENERATOR)
    with pytest.raises(confide.Refused, match="second sum"):
        fit(confide.accompany(confide.sgfs(), GENERATOR))
    with pytest.raises(confide.Refused, match="already"):
        confide.accompany(confide.accompany(confide.sgld(), GENERATOR), GENERATOR)
    with pytest.raises(confide.Refused, match="no dictionary"):
        confide.accompany(confide.sgld(), replace(GENERATOR, model=models.mlp((5, 6, 3))))
    with pytest.raises(confide.Refused, match="no single number"):
        confide.accompany(confide.sgld(), replace(GENERATOR, loss=lambda state, p, key: jnp.ones(2)))
    with pytest.raises(confide.Refused, match="shape of its state"):
        confide.accompany(confide.sgld(), replace(GENERATOR, move=lambda state, p, key, t: {"weights": jnp.ones(2)}))
    wider = models.semi_supervised(models.mlp((5, 7, 3)))
    with pytest.raises(confide.Refused, match="another model"):
        fit(
            confide.accompany(
                confide.sgld(),
                replace(
                    GENERATOR, model=wider, loss=lambda s, p, k: jnp.zeros(()), move=lambda state, p, key, t: state
                ),
            )
        )


@pytest.mark.parametrize("with_companion", [False, True])
def test_sghmc_is_dp_sgd_with_momentum(with_companion):
    """Friction a and step size eta, momentum 1 - a and rate eta: the same noise for the same budget, up to the eight
    digits to which plans round step sizes and noise multipliers, and the same iterates from the same answers."""
    dressed = (lambda sampler: confide.accompany(sampler, GENERATOR)) if with_companion else (lambda sampler: sampler)
    one, its_event = job_of(dressed(confide.sghmc(temperature=0.3, friction=0.1)))
    eta = float(one.kernel.schedule.step_size[0])
    other, event = job_of(dressed(confide.dp_sgd(eta, momentum=0.9, average=False)))
    assert np.allclose(one.kernel.schedule.noise, other.kernel.schedule.noise, rtol=2e-7)
    epsilons = [confide.guarantee(each, delta=1e-5).epsilon for each in (its_event, event)]
    assert epsilons[0] == pytest.approx(epsilons[1], rel=3e-7)
    with jax.enable_x64(True):
        positions = []
        for job in (one, other):
            state = job.kernel.init(jnp.asarray(one.initial_positions[0]))
            for t in range(job.steps):
                control = jax.tree.map(lambda column, t=t: jnp.asarray(column[t]), one.kernel.schedule)
                _, memo = job.kernel.query(state, control, jnp.asarray(t), jax.random.key(t))
                noisy = jax.random.normal(jax.random.key(100 + t), (job.parameters.dimension,), jnp.float64)
                state = job.kernel.update(state, memo, noisy, control, jnp.asarray(t))
            positions.append(np.asarray(state.position))
    assert np.allclose(*positions, rtol=1e-9, atol=1e-12)
