"""Every kernel: the contract, the exact limits, and the posterior that it is known to have."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

import confide
from confide import Refused, events
from confide.inference import plans
from confide.inference.options import Options
from confide.mechanism import noise, oracle
from confide.mechanism.layers import Draw, Observed
from helpers.contracts import BUDGET, SAMPLERS, job_of, keeps_its_promise

SIX = {
    "baoab": confide.baoab,
    "sgld": confide.sgld,
    "psgld": confide.psgld,
    "sghmc": confide.sghmc,
    "sgnht": confide.sgnht,
    "sgfs": confide.sgfs,
}


SELDOM = ("sgld cold", "sgld decreasing", "sghmc with batch noise", "sgfs", "dp_sgd in part", "dp_adam")


@pytest.mark.processor
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SELDOM else []) for name in SAMPLERS]
)
def test_what_is_drawn_is_what_is_priced(name):
    job, event = job_of(SAMPLERS[name])
    assert keeps_its_promise(job, event)


@pytest.mark.parametrize(
    "name",
    [
        *("sgld", "sgnht", "wang2015_sgld", "dp_sgd", "dpvi"),
        *[
            pytest.param(name, marks=pytest.mark.long)
            for name in ("psgld", "sghmc", "baoab", "sgfs", "dp_sgd in part", "dp_adam")
        ],
    ],
)
def test_half_the_noise_is_caught(name, monkeypatch):
    """The sabotage: sums get half the noise that their kernel asked for."""
    honest = noise.add_noise
    monkeypatch.setattr(noise, "add_noise", lambda total, scale, units: honest(total, scale, units // 2))
    job, event = job_of(SAMPLERS[name], steps=16)
    assert not keeps_its_promise(job, event)


@pytest.mark.long
def test_half_the_noise_in_the_fisher_information_alone_is_caught(monkeypatch):
    honest = noise.draw_units

    def drawn(source, chain, block, shape, purpose="noise"):
        found = honest(source, chain, block, shape, purpose)
        return found // 2 if purpose == "fisher" else found

    monkeypatch.setattr(noise, "draw_units", drawn)
    assert not keeps_its_promise(*job_of(SAMPLERS["sgfs"]))


def test_a_kernel_that_asks_for_less_than_it_prices_is_caught():
    job, event = job_of(SAMPLERS["sgld"])
    meek = job.kernel._replace(schedule=job.kernel.schedule._replace(noise=job.kernel.schedule.noise * 0.9))
    object.__setattr__(job, "kernel", meek)
    assert not keeps_its_promise(job, event)


@pytest.mark.parametrize("kind", ["secure", "full batch", "secure full batch"])
def test_the_promise_in_other_modes(kind):
    job, event = job_of(SAMPLERS["sgld"], secure="secure" in kind, batch_size=300 if "full" in kind else 60)
    assert keeps_its_promise(job, event)
    assert (job.buffer is None) == ("full" in kind)


def test_half_the_secure_noise_is_caught(monkeypatch):
    honest = noise.draw_units
    monkeypatch.setattr(noise, "draw_units", lambda *arguments: honest(*arguments) // 2)
    assert not keeps_its_promise(*job_of(SAMPLERS["sgld"], secure=True))


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_budget_is_met_and_spent(name, neighbours):
    budget = confide.Budget(epsilon=0.3, delta=1e-5, neighbours=neighbours)
    _, event = job_of(SAMPLERS[name], budget=budget, steps=300)
    spent = confide.guarantee(event, delta=1e-5, neighbours=neighbours).epsilon
    assert spent <= 0.3 * (1 + 1e-9)
    assert name == "wang2015_sgld" or spent > 0.299


def test_chains_cost_as_many_times_and_the_event_says_so():
    job, event = job_of(SAMPLERS["sgld"], chains=3)
    alone, _ = job_of(SAMPLERS["sgld"].with_step_size(float(job.kernel.schedule.step_size[0])))
    parts, single = event.parts("add-remove"), alone.kernel.event().parts("add-remove")
    assert parts.steps == 3 * single.steps == 3 * 8
    assert np.allclose(parts.noise_multipliers, single.noise_multipliers)
    assert confide.guarantee(event, delta=1e-5).epsilon <= BUDGET.epsilon


def test_the_noise_multiplier_is_the_formula():
    job, _ = job_of(confide.sgld(step_size=0.01))
    found = job.kernel.event().parts("add-remove").noise_multipliers
    assert np.allclose(found, 0.2 * np.sqrt(2 * 300 / 0.01) / 0.5)


def test_wang2015_takes_the_larger_of_two_noises_and_passes_at_alpha():
    steps, alpha = 400, 0.25
    job, _ = job_of(confide.wang2015_sgld(alpha=alpha), steps=steps)
    controls, q, clip, n = job.kernel.schedule, 0.2, 0.5, 300
    logs = np.log(2.5 * steps / BUDGET.delta) * np.log(2 / BUDGET.delta)
    theirs = controls.step_size / n
    variance = np.maximum(128 * steps * clip**2 / BUDGET.epsilon**2 * logs * theirs**2, theirs)
    on_parameters = controls.noise * controls.step_size / (q * n)
    assert np.allclose(on_parameters**2, variance)
    proper = np.isclose(on_parameters**2, theirs, rtol=1e-9, atol=0)
    assert np.array_equal(np.flatnonzero(proper) + 1, np.arange(int(alpha * steps), steps + 1))


@pytest.mark.parametrize(
    "schedule",
    [optax.cosine_decay_schedule(0.02, 50, alpha=0.1), pytest.param(lambda t: 0.01 / (1 + t), marks=pytest.mark.long)],
)
def test_any_schedule_of_step_sizes(schedule):
    job, event = job_of(confide.sgld(step_size=schedule))
    assert np.allclose(job.kernel.schedule.step_size, [float(schedule(t)) for t in range(8)])
    assert keeps_its_promise(job, event)
    scaled, event = job_of(confide.sgld(schedule=schedule))
    ratio = scaled.kernel.schedule.step_size / job.kernel.schedule.step_size
    assert np.allclose(ratio, ratio[0])
    assert confide.guarantee(event, delta=1e-5).epsilon <= 1.0


def test_a_schedule_that_goes_negative_is_refused():
    with pytest.raises(Refused, match=r"step_size is -0.00025[0-9]* at step 20"):
        job_of(confide.sgld(step_size=optax.linear_schedule(0.02, -0.0205, 40)), steps=40)


# The exact limits.


def plain(sampler, model, data, steps=50, chains=1, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        return confide.sample(model, data, sampler, steps=steps, key=0, burn_in=0, chains=chains, **more)


def test_without_noise_and_clip_it_is_gradient_descent():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    y = x @ [1.0, 2.0, -1.0]
    found = plain(confide.sgld(0.1, temperature=0.0), confide.models.linear_regression(3), (x, y), batch_size=30)
    position = np.zeros(3)
    for step in range(50):
        position = position - 0.1 * (position + x.T @ (x @ position - y)) / 30
        np.testing.assert_allclose(found.draws["weights"][0, step], position, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SIX)
def test_temperature_zero_is_deterministic(name):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(30, 3)), rng.normal(size=30)
    model = confide.models.linear_regression(3)
    sampler = SIX[name](0.05, temperature=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        one, two = (confide.sample(model, data, sampler, steps=60, batch_size=30, key=k) for k in (1, 2))
    assert np.array_equal(one.draws["weights"], two.draws["weights"])


# The posterior that is known: a conjugate mean, and Bayesian linear regression.

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 2)) @ np.array([[1.0, 0.4], [0.0, 0.7]])
Y = X @ [0.5, -1.0] + RNG.normal(size=40)
TARGETS = {
    "linear regression": (
        confide.models.linear_regression(2),
        (X, Y),
        np.linalg.solve(X.T @ X + np.eye(2), X.T @ Y),
        np.linalg.inv(X.T @ X + np.eye(2)),
    ),
    "conjugate mean": (
        confide.models.from_functions(
            log_prior=lambda m: -0.5 * jnp.sum(m**2),
            log_likelihood=lambda m, x: -0.5 * jnp.sum((x - m) ** 2),
            start=np.zeros(2),
        ),
        (X,),
        X.sum(axis=0) / 41,
        np.eye(2) / 41,
    ),
}
CHAINS, STEPS = 48, 6000
STEP_SIZES = {"sgld": 0.05, "psgld": 0.05, "sghmc": 0.002, "baoab": 0.002, "sgnht": 0.002, "sgfs": 0.05}


@pytest.mark.optimised
@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=[pytest.mark.long] if "linear" in name else []) for name in TARGETS],
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name != "sgld" else []) for name in SIX]
)
def test_the_long_run_is_the_posterior(name, target):
    """Mean and covariance against the exact ones, with standard errors from independent chains.

    Each of the 5 moments is off by more than 5.5 standard errors (47 degrees of freedom) about once in 6e5 runs, so
    one of the 12 cases fails by chance about once in 1e4. The discretisation's own bias, of order eta, is allowed for
    as 2% of the covariance.
    """
    model, data, mean, covariance = TARGETS[target]
    n = len(data[0])
    found = plain(SIX[name](STEP_SIZES[name]), model, data, steps=STEPS, chains=CHAINS, batch_size=n, draws=STEPS)
    draws = np.asarray(jax.tree.leaves(found.draws)[0], np.float64)[:, STEPS // 4 :]
    assert draws.shape == (CHAINS, STEPS - STEPS // 4, 2)
    means = draws.mean(axis=1)
    error = means.std(axis=0, ddof=1) / np.sqrt(CHAINS)
    assert np.all(np.abs(means.mean(axis=0) - mean) < 5.5 * error)
    centred = draws - mean
    products = np.einsum("cti,ctj->cij", centred, centred) / draws.shape[1]
    error = products.std(axis=0, ddof=1) / np.sqrt(CHAINS)
    assert np.all(np.abs(products.mean(axis=0) - covariance) < 5.5 * error + 0.02 * np.abs(covariance).max())
    assert np.all(error < 0.06 * np.abs(covariance).max())  # the test can tell


def stationary(sampler_of, step_size, frozen=None):
    """The exact stationary covariance of a kernel on the linear model: state' = A state + B noise, by its Jacobian."""
    model, data, mean, _ = TARGETS["linear regression"]
    sampler = sampler_of(step_size)
    data = tuple(np.asarray(array, np.float32) for array in data)
    job = plans.plain_job(model, data, sampler, Options(steps=1, batch_size=len(X)), jax.random.key(0))
    with jax.enable_x64(True):
        arrays = tuple(jnp.asarray(array) for array in data)
        control = type(job.kernel.schedule)(*(column[0] for column in job.kernel.schedule))
        prepared = job.prepared(arrays)
        asked = oracle.build(job.gradient_sum, job.parameters.rounding, job.observers, prepared)
        start = job.kernel.init(jnp.asarray(mean))

        def move(vector, standard, control):
            state = start._replace(position=vector[:2])
            if "momentum" in start._fields:
                state = state._replace(momentum=vector[2:])
            t, key = jnp.asarray(10**9), jax.random.key(0)
            draw = Draw(t=t, key=key, rows=None, units=standard * noise.GRID, claimed=control.noise)
            moved, _ = oracle.step(job.kernel, asked, state, control, draw, Observed())
            return jnp.concatenate([moved.position, getattr(moved, "momentum", jnp.zeros(0))])

        size = 4 if "momentum" in start._fields else 2
        at = jnp.concatenate([jnp.asarray(mean), jnp.zeros(size - 2)])
        a, b = jax.jit(jax.jacfwd(move, (0, 1)))(at, jnp.zeros(2), control)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return scipy.linalg.solve_discrete_lyapunov(a, b @ b.T)[:2, :2]


@pytest.mark.parametrize("name", ["sgld", "psgld", "sgfs", "sghmc"])
def test_the_bias_falls_with_the_step_size_at_its_order(name):
    """Order 1 in eta: halving the step halves the error of the stationary covariance, down to exactness."""
    exact = TARGETS["linear regression"][3]
    sizes = (0.08, 0.04, 0.02) if name != "sghmc" else (8e-4, 4e-4, 2e-4)
    options = {"friction": 0.9} if name == "sghmc" else {}
    errors = [
        np.linalg.norm(stationary(lambda size: SIX[name](size, **options), size) - exact) / np.linalg.norm(exact)
        for size in sizes
    ]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert errors[-1] < 0.02
    assert np.all(np.abs(orders - 1) < 0.1), (errors, orders)


@pytest.mark.parametrize("friction", [0.1, 0.5, 1.0])
def test_baoab_has_the_variance_that_is_derived(friction):
    """At steps that are not small: along every direction, of curvature k, 1 + (a / (2 - a))^2 eta k / (4 - eta k)."""
    step = 1.5
    curvatures, directions = np.linalg.eigh(np.linalg.inv(TARGETS["linear regression"][3]))
    steps = step * curvatures / len(X)
    assert 1.5 < steps.max() < 4
    factors = 1 + (friction / (2 - friction)) ** 2 * steps / (4 - steps)
    expected = (directions * factors / curvatures) @ directions.T
    found = stationary(lambda size: confide.baoab(size, friction=friction), step)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    if friction == 1:
        np.testing.assert_allclose(found, stationary(confide.sgld, step / 2), rtol=1e-4, atol=1e-6)
    if friction == 0.1:  # the same noise, and hundreds of times the error
        other = stationary(lambda size: confide.sghmc(size, friction=2 * friction / (2 - friction)), step)
        exact = TARGETS["linear regression"][3]
        assert np.linalg.norm(other - exact) > 200 * np.linalg.norm(found - exact)


def test_baoab_is_priced_by_the_noise_of_its_kicks():
    job, event = job_of(confide.baoab(step_size=0.01, friction=0.3), steps=16)
    found = job.kernel.event().parts("add-remove").noise_multipliers
    assert np.allclose(found, 0.2 * np.sqrt(4 * 0.3 / 1.7 * 300 / 0.01) / 0.5)
    assert keeps_its_promise(job, event)


@pytest.mark.long
@pytest.mark.optimised
def test_the_thermostat_finds_the_friction_that_batches_need():
    """With noisy batches SGHMC runs hot; SGNHT raises its friction and keeps the temperature."""
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(400, 2)),)
    model = TARGETS["conjugate mean"][0]
    spread = {}
    for name in ("sghmc", "sgnht"):
        sampler = SIX[name](0.02, friction=0.05)
        found = plain(sampler, model, data, steps=10_000, batch_size=80, chains=8, draws=10_000)
        draws = np.asarray(found.draws)[:, 3000:]
        spread[name] = (draws - data[0].sum(axis=0) / 401).var() * 401
    assert spread["sghmc"] > 1.5
    assert abs(spread["sgnht"] - 1) < 0.25
