"""Optimisers and variational inference: exact limits, what is kept, what is said of it, and what is refused."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import confide
from confide import Refused
from confide.inference import loop
from confide.inference import plans as jobs
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.samplers import descent, variational
from confide.samplers import variational_families as families
from confide.samplers.sampler import LARGEST
from helpers.contracts import BUDGET, DATA, job_of
from helpers.fits import MODEL, X, Y, fit
from helpers.tiers import tiered

RNG = np.random.default_rng(3)
INPUTS = RNG.normal(size=(40, 2)) @ np.array([[1.0, 0.4], [0.0, 0.7]])
OUTCOMES = INPUTS @ [0.5, -1.0] + RNG.normal(size=40)
LINE = confide.models.linear_regression(2)
PRECISION = INPUTS.T @ INPUTS + np.eye(2)
LONG = pytest.mark.long
PART = confide.dp_sgd(updated=0.3)
MEAN = np.linalg.solve(PRECISION, INPUTS.T @ OUTCOMES)


def plain(sampler, model=LINE, data=(INPUTS, OUTCOMES), **more):
    settings = {"steps": 60, "batch_size": len(data[0]), "key": 0} | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        return confide.sample(model, data, sampler, **settings)


def followed(optimiser, steps=60):
    """The iterates of an optax optimiser on the same mean gradients, in double precision."""
    path = []
    with jax.enable_x64(True):
        position = jnp.zeros(2)
        state = optimiser.init(position)
        for _ in range(steps):
            gradient = (PRECISION @ position - INPUTS.T @ OUTCOMES) / 40
            change, state = optimiser.update(gradient, state, position)
            position = optax.apply_updates(position, change)
            path.append(np.asarray(position))
    return np.stack(path)


OPTIMISERS = {
    "dp_sgd": (confide.dp_sgd(0.2, average=False), optax.sgd(0.2)),
    "momentum": (confide.dp_sgd(0.05, momentum=0.9, average=False), optax.sgd(0.05, momentum=0.9)),
    "dp_adam": (confide.dp_adam(0.03, average=False), optax.adam(0.03, eps=descent.TINY)),
    "schedule": (
        confide.dp_adam(optax.cosine_decay_schedule(0.1, 80), 0.8, 0.9, average=False),
        optax.adam(optax.cosine_decay_schedule(0.1, 80), 0.8, 0.9, eps=descent.TINY),
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_without_noise_and_clip_it_is_the_optimiser(name):
    sampler, reference = OPTIMISERS[name]
    found = plain(sampler, draws=60, burn_in=0).draws["weights"][0]
    np.testing.assert_allclose(found, followed(reference), rtol=1e-4, atol=1e-5)


def test_the_average_is_of_the_second_half():
    found = plain(confide.dp_sgd(0.2))
    assert found.draws["weights"].shape == (1, 1, 2)
    np.testing.assert_allclose(found.draws["weights"][0, 0], followed(optax.sgd(0.2))[30:].mean(axis=0), rtol=1e-4)


def test_a_part_of_the_parameters_moves():
    """By the plain step, or not at all: 120 chances to move, of which a third to two thirds are taken (4 sd)."""
    found = plain(confide.dp_sgd(0.2, average=False, updated=0.5), draws=60, burn_in=0).draws["weights"][0]
    path = np.concatenate([np.zeros((1, 2)), found]).astype(np.float64)
    wanted = path[:-1] - 0.2 * (path[:-1] @ PRECISION - INPUTS.T @ OUTCOMES) / 40
    still = path[1:] == path[:-1]
    np.testing.assert_allclose(path[1:][~still], wanted[~still], rtol=1e-4, atol=1e-5)
    assert 0.31 < np.mean(still) < 0.69
    assert np.any(still[:, 0] != still[:, 1])


@pytest.mark.long
def test_the_clip_is_for_the_part_that_moves():
    """Long gradients have the length of the clip as seen in the subset, and nothing outside of it."""
    job, _ = job_of(confide.dp_sgd(updated=0.4), clip=0.01, clipping="plain")
    moved = jnp.asarray(np.arange(8) < 3, jnp.float32)
    batch = job.gradient_sum.batch(tuple(map(jnp.asarray, DATA)), None, jnp.arange(40))
    rows = np.asarray(job.gradient_sum.contributions(jnp.zeros(8), batch, moved))
    assert np.all(rows[:, 3:] == 0)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), job.gradient_sum.effective_clip, rtol=1e-5)


def test_the_known_noise_is_taken_out_of_the_second_moment():
    gradient, known = jnp.array([3.0, 0.1]), 4.0
    moments, direction = descent.Moments(jnp.zeros(2), jnp.zeros(2)).after(gradient, jnp.asarray(0), 0.9, 0.999, known)
    assert np.allclose(direction, [3 / np.sqrt(9 - 4), 0.1 / np.sqrt(descent.FLOOR * 4)], rtol=1e-4)
    assert np.allclose(moments.square, 0.001 * gradient**2)


@pytest.mark.optimised
@pytest.mark.parametrize("family", ["mean-field", pytest.param("full-rank", marks=LONG)])
def test_the_gaussian_posterior_is_found(family):
    """Of a linear model q can be exact, and then nothing is left of the randomness of the gradients."""
    found = plain(confide.dpvi(family), steps=8000, draws=40_000)
    draws = np.asarray(found.draws["weights"][0], np.float64)
    covariance = np.linalg.inv(PRECISION) if family == "full-rank" else np.diag(1 / np.diag(PRECISION))
    assert np.all(np.abs(draws.mean(axis=0) - MEAN) < 0.01)
    scale = np.sqrt(np.diag(covariance))
    # 40,000 draws tell a variance to 0.7%: 5% is seven standard errors, and 3% of it is q's.
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 0.05 * np.outer(scale, scale))


@pytest.mark.parametrize("family", variational.FAMILIES)
@pytest.mark.long
def test_draws_and_densities_of_a_family(family):
    """log q by hand, and its gradient at what is drawn with phi held."""
    size = 3
    chosen = families.gaussian(family, np.array([1.0, 2.0, 3.0]), 81)
    phi = jnp.asarray(chosen.start + np.random.default_rng(0).normal(size=chosen.start.size) * 0.1, jnp.float32)
    factor = np.eye(size)
    if family == "full-rank":
        factor[np.tril_indices(size, -1)] = phi[2 * size :]
    factor = np.exp(phi[size : 2 * size])[:, None] * factor
    assert np.allclose(np.exp(chosen.start[size : 2 * size]), 1 / 3)
    theta, log_density = chosen.draw(phi, jax.random.key(1))
    z = jax.random.normal(jax.random.key(1), (size,), jnp.float32)
    assert np.allclose(theta, phi[:size] + factor @ np.asarray(z), rtol=1e-5)
    away = np.asarray(theta - phi[:size])
    expected = -0.5 * away @ np.linalg.solve(factor @ factor.T, away) - np.linalg.slogdet(factor)[1]
    assert log_density == pytest.approx(expected - 1.5 * np.log(2 * np.pi), rel=1e-5)
    by_mean = jax.grad(lambda phi: chosen.draw(phi, jax.random.key(1))[1])(phi)[:size]
    assert np.allclose(by_mean, -np.linalg.solve(factor @ factor.T, away), rtol=1e-4)


# What the budget decides, and what it does not.


@pytest.mark.parametrize("name", ["dp_sgd", "dp_adam", "dpvi"])
def test_the_learning_rate_is_free_and_the_noise_is_not(name):
    sampler = getattr(confide, name)
    (slow, cheap), (fast, same) = (job_of(sampler(learning_rate=rate)) for rate in (0.01, 1.0))
    assert cheap == same
    assert np.all(slow.kernel.schedule.noise == fast.kernel.schedule.noise)
    multiplier = slow.kernel.schedule.noise[0] / slow.parameters.clip
    kept, event = job_of(sampler(noise_multiplier=1.5 * multiplier))
    assert np.allclose(kept.kernel.schedule.noise, 1.5 * multiplier * kept.parameters.clip)
    assert confide.guarantee(event, delta=1e-5).epsilon < 0.75


def test_too_little_noise_is_refused_before_anything_is_charged():
    with pytest.raises(Refused, match=r"costs epsilon .* raise noise_multiplier"):
        fit(sampler=confide.dp_sgd(noise_multiplier=0.5))


@pytest.mark.long
def test_the_planned_rate_lets_noise_carry_a_parameter_so_far():
    """A model without a likelihood: the last iterate is a random walk of standard deviation DRIFT."""
    nothing = confide.models.from_functions(
        log_prior=lambda w: 0.0 * jnp.sum(w), log_likelihood=lambda w, x: 0.0 * jnp.sum(w) * x, start=np.zeros(400)
    )
    samplers = (
        confide.dp_sgd(average=False),
        confide.dp_sgd(average=False, updated=0.3),
        confide.dp_adam(average=False),
    )
    for sampler in samplers:
        found = confide.fit(nothing, (X[:, 0],), BUDGET, sampler, steps=200, batch_size=500, key=1, verbose=False)
        assert np.std(found.draws) == pytest.approx(descent.DRIFT, rel=0.25)  # Adam's first steps are longer
        assert found.plan["step_size"] * found.plan["clip"] <= LARGEST


@pytest.mark.parametrize("name", ["dp_sgd", *[pytest.param(name, marks=LONG) for name in ("dp_adam", "dpvi")]])
@pytest.mark.long
def test_records_pay_for_themselves(name):
    account = ["dp", confide.Individual(stretch=2.0)]
    found = fit(sampler=getattr(confide, name)(), account=account, steps=30, key=2)
    assert found.guarantee.epsilon == pytest.approx(1.0, rel=1e-6)


# What is kept, and what is said of it.


@pytest.mark.long
def test_points_have_no_spread_and_say_so(capsys):
    found = fit(sampler=confide.dp_sgd(), chains=2, key=1, verbose=True)
    said = capsys.readouterr().err
    assert "noise multiplier" in said
    assert "points have no posterior spread" in said
    assert found.draws["weights"].shape == (2, 1, 3)
    assert np.mean(found.predict(X) == Y) > 0.7
    assert list(found.summary().columns) == ["mean"]
    with pytest.raises(Refused, match="dp_sgd finds points, which have no interval"):
        found.interval(X)
    several = fit(sampler=confide.dp_sgd(average=False), draws=4, key=1)
    assert several.size == 4
    with pytest.raises(Refused, match="an average is one point"):
        fit(sampler=confide.dp_sgd(), draws=4)


@pytest.mark.long
def test_draws_from_q_cost_nothing_and_are_those_of_the_key(capsys):
    settings = {"sampler": confide.dpvi(), "chains": 2, "key": 1, "draws": 300}
    found = fit(**settings, verbose=True)
    assert "300 draws of each chain are from q, the mean-field approximation" in capsys.readouterr().err
    assert found.draws["weights"].shape == (2, 300, 3)
    assert found.plan["draws"] == 300
    assert found.guarantee.epsilon == pytest.approx(1.0, rel=1e-3)
    assert np.array_equal(found.draws["weights"], fit(**settings).draws["weights"])
    one, two = found.draws["weights"]
    assert not np.allclose(one - one.mean(axis=0), two - two.mean(axis=0), atol=0.01)
    assert found.interval(X[:5]).shape == (5, 2, 2)
    with pytest.raises(Refused, match="burn_in: dpvi keeps the q"):
        fit(sampler=confide.dpvi(), burn_in=10)


@pytest.mark.long
def test_a_resumed_run_draws_the_same(tmp_path):
    class Stop(Exception):
        pass

    def stop(*arguments):
        raise Stop

    settings = {"sampler": confide.dpvi(), "key": 1, "chains": 2, "draws": 300}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Job, "randomness", stop)
        with pytest.raises(Stop):
            fit(checkpoint=tmp_path / "secret", **settings)
    with pytest.raises(Refused, match="another run"):
        fit(checkpoint=tmp_path / "secret", **settings | {"sampler": confide.dpvi("full-rank")})
    resumed = fit(checkpoint=tmp_path / "secret", **settings)
    assert np.array_equal(resumed.draws["weights"], fit(**settings).draws["weights"])


@pytest.mark.parametrize(
    "sampler",
    [
        confide.dpvi(),
        *[pytest.param(sampler, marks=LONG) for sampler in (confide.dp_adam(), PART)],
    ],
    ids=["dpvi", "dp_adam", "dp_sgd in part"],
)
@pytest.mark.long
def test_secure_noise(sampler):
    found = fit(sampler=sampler, noise="secure", steps=40)
    assert np.all(np.isfinite(found.draws["weights"]))
    assert found.guarantee.epsilon <= 1.0


@pytest.mark.parametrize(
    "honest",
    [
        confide.dpvi(),
        *[pytest.param(sampler, marks=LONG) for sampler in (confide.dp_sgd(), PART)],
    ],
    ids=["dpvi", "dp_sgd", "dp_sgd in part"],
)
@pytest.mark.long
def test_canaries_catch_half_the_noise(honest):

    def build(sampler, setting, sizes):
        kernel = honest.build(sampler, setting, sizes)

        def query(state, control, t, key):
            return kernel.query(state, control._replace(noise=0.5 * control.noise), t, key)

        return kernel._replace(query=query)

    settings = {"canaries": 40, "key": 3, "steps": 400, "batch_size": 100}
    found = fit(sampler=honest, **settings)
    assert found.draws["weights"].shape[2] == 3
    assert not confide.audit(found).violated
    assert confide.audit(fit(sampler=replace(honest, build=build), **settings)).violated


# NumPyro guides.

numpyro = pytest.importorskip("numpyro")
from numpyro import distributions as dist  # noqa: E402
from numpyro.infer import SVI, Trace_ELBO, autoguide  # noqa: E402


def written(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def by_hand(x, y=None):
    centre = numpyro.param("centre", jnp.zeros(2))
    width = numpyro.param("width", jnp.full(2, 0.3), constraint=dist.constraints.positive)
    numpyro.sample("slopes", dist.Normal(centre, width).to_event(1))
    scale = numpyro.param("point", 0.5, constraint=dist.constraints.positive)
    numpyro.sample("scale", dist.Delta(scale))


def guided(guide, model=written, data=None, **more):
    settings = {"steps": 40, "batch_size": 40, "clip": 5.0, "key": 1, "verbose": False} | more
    data = (INPUTS.astype(np.float32), OUTCOMES.astype(np.float32)) if data is None else data
    sampler = confide.dpvi(guide=guide, learning_rate=0.02)
    return confide.fit(confide.models.from_numpyro(model), data, BUDGET, sampler, **settings)


@pytest.mark.long
def test_guides_are_fitted_and_named():
    auto = guided(autoguide.AutoNormal(written))
    assert auto.plan["family"] == "AutoNormal"
    assert auto.draws["slopes"].shape == (1, 1000, 2)
    assert np.all(auto.draws["scale"] > 0)
    assert auto.draws["slopes"].std() > 0.01


@LONG
def test_guides_by_hand_and_with_canaries():
    hand = guided(by_hand)
    assert hand.plan["family"] == "by_hand"
    assert np.ptp(hand.draws["scale"]) == 0  # a point, as the guide says
    again = guided(autoguide.AutoMultivariateNormal(written), canaries=30)
    assert again.draws["slopes"].shape == (1, 1000, 2)


@pytest.mark.long
def test_other_guides_have_other_noise():
    """Under one key, differences of two runs with the same noise would show the records."""

    def wider(x, y=None):
        centre = numpyro.param("centre", jnp.zeros(2))
        numpyro.sample("slopes", dist.Normal(centre, 0.5).to_event(1))
        numpyro.sample("scale", dist.LogNormal(numpyro.param("middle", 0.0), 0.5))

    model, data = confide.models.from_numpyro(written), (np.float32(INPUTS), np.float32(OUTCOMES))
    plans = [
        stochastic.make_plan(
            model, data, BUDGET, confide.dpvi(guide=guide), Options(steps=10), jax.random.key(0)
        ).summary.to_json()
        for guide in (by_hand, wider, by_hand)
    ]
    assert plans[0]["guide"] != plans[1]["guide"]
    assert plans[0] == plans[2]


GUIDES = ("AutoNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal", "AutoDelta")


@pytest.mark.optimised
@pytest.mark.parametrize("kind", tiered(GUIDES, (), GUIDES[1:3]))
def test_guides_find_what_svi_finds(kind):
    data = tuple(jnp.asarray(array, jnp.float32) for array in (INPUTS, OUTCOMES))
    reference = getattr(autoguide, kind)(written)
    found = SVI(written, reference, numpyro.optim.Adam(0.003), Trace_ELBO(10)).run(
        jax.random.key(0), 8000, *data, progress_bar=False
    )
    theirs = reference.sample_posterior(jax.random.key(1), found.params, sample_shape=(20_000,))
    model = confide.models.from_numpyro(written)
    guide = getattr(autoguide, kind)(written)
    ours = plain(confide.dpvi(guide=guide, learning_rate=0.003), model, data, steps=12_000, draws=20_000).draws
    for name, values in theirs.items():
        assert np.allclose(ours[name][0].mean(axis=0), values.mean(axis=0), atol=0.02), name
        assert np.allclose(ours[name][0].std(axis=0), values.std(axis=0), rtol=0.15, atol=1e-3), name


def looks(x, y=None):
    by_hand(x, y)
    numpyro.param("seen", jnp.sum(x))


def remembers(x, y=None):
    numpyro.param("kept", jnp.zeros(2))
    numpyro.sample("slopes", dist.Normal(jnp.asarray(OUTCOMES[:, None] * INPUTS).mean(axis=0), 1.0).to_event(1))
    numpyro.sample("scale", dist.LogNormal(jnp.mean(HELD * jnp.ones(40)), 0.5))


HELD = jnp.asarray(OUTCOMES)


def rough(x, y=None):
    by_hand(x, y)
    numpyro.sample("more", dist.Gamma(1.0, 1.0), infer={"is_auxiliary": True})
    numpyro.sample("other", dist.Bernoulli(0.5), infer={"is_auxiliary": True})


def extra(x, y=None):
    by_hand(x, y)
    numpyro.sample("nobody", dist.Normal(0, 1))


def partial(x, y=None):
    numpyro.sample("slopes", dist.Normal(numpyro.param("centre", jnp.zeros(2)), 1.0).to_event(1))


def narrow(x, y=None):
    numpyro.sample("slopes", dist.Normal(numpyro.param("centre", jnp.zeros(3)), 1.0).to_event(1))
    numpyro.sample("scale", dist.LogNormal(0.0, 1.0))


def idle(x, y=None):
    numpyro.sample("slopes", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("scale", dist.LogNormal(0.0, 1.0))


def observing(x, y=None):
    by_hand(x, y)
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def broken(x, y=None):
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        (looks, "site 'seen' of the guide looks at the records"),
        (remembers, r"holds an array of shape \(40"),
        (rough, "site 'other' of the guide cannot be differentiated through"),
        (extra, "site 'nobody' of the guide is not in the model"),
        (partial, "does not draw 'scale'"),
        (narrow, r"site 'slopes' has shape \(3,\) in the guide and \(2,\)"),
        (idle, "has no parameters"),
        (observing, "site 'y' of the guide is observed"),
        (broken, "does not run on one record: RuntimeError: no such thing"),
    ],
)
def test_guides_that_are_refused(guide, said):
    with pytest.raises(Refused, match=said):
        guided(guide)


@pytest.mark.long
def test_a_guide_that_has_met_records_is_refused():
    used = autoguide.AutoNormal(written)
    numpyro.handlers.seed(used, 0)(INPUTS, OUTCOMES)
    with pytest.raises(Refused, match="has been run before"):
        guided(used)
    with pytest.raises(Refused, match="goes with a model of"):
        fit(sampler=confide.dpvi(guide=by_hand))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: confide.dp_sgd(0.0), "learning_rate = 0 is not positive"),
        (lambda: confide.dp_sgd(momentum=1.0), r"momentum = 1 is out of range: give a number in \[0, 1\)"),
        (lambda: confide.dp_sgd(updated=0.0), r"updated = 0 is out of range: give a number in \(0, 1\]"),
        (lambda: confide.dp_sgd(momentum=0.5, updated=0.1), "momentum = 0.5 moves all parameters"),
        (lambda: confide.dp_sgd(noise_multiplier=0.0), "noise_multiplier = 0 is not positive"),
        (lambda: confide.dp_adam(square_decay=1.0), "square_decay = 1 is out of range"),
        (lambda: confide.dpvi("wide"), "family = 'wide' is unknown"),
        (lambda: confide.dpvi(guide=3), "guide = '3' is not a function"),
        (lambda: confide.dpvi("full-rank", guide=by_hand), "a guide is a family of its own"),
        (lambda: confide.hybrid(confide.dp_sgd()), "then = dp_sgd does not go on from a draw"),
        (lambda: confide.hybrid(first=confide.dpvi()), "first = dpvi is not one private draw"),
        (
            lambda: families.gaussian("full-rank", np.zeros(families.MOST + 1), 10),
            "is too large",
        ),
    ],
)
def test_refusals(call, said):
    with pytest.raises(Refused, match=said):
        call()


def test_the_clip_is_a_usual_one_where_the_budget_pays_for_it():
    def clip(epsilon, n, sampler):
        model, data = confide.models.logistic_regression(2), (np.zeros((n, 2), np.float32), np.zeros(n, np.float32))
        budget = confide.Budget(epsilon=epsilon, delta=1e-5)
        return jobs.private_job(model, data, budget, sampler, Options(), jax.random.key(0))[0].parameters.clip

    assert clip(0.5, 30_000, confide.dp_sgd()) == 1.5
    assert clip(0.5, 30_000, confide.sgld()) < 0.5
    assert clip(0.5, 3000, confide.dp_sgd()) < 1.5  # there would be no time to settle
    assert MODEL.name == "logistic_regression"
