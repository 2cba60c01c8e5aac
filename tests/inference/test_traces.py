"""Draws that know of the noise, made of the trace of a run by steps."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import confide
from confide import Refused, models
from confide.inference import linear_gradients, summaries
from confide.inference.traces import Trace
from confide.mechanism import clipping
from confide.mechanism.trace import Traced
from helpers.fits import ledger_of
from helpers.tiers import tiered

LONG = pytest.mark.long
BUDGET = confide.Budget(epsilon=2.0, delta=1e-5)
D = 3


def normal_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def logistic(**more):
    settings = {"gradient_bound": D**0.5} | more
    return models.from_functions(
        log_prior=normal_prior,
        log_likelihood=lambda theta, x, y: y * (x @ theta) - jnp.logaddexp(0.0, x @ theta),
        start=jnp.zeros(D),
        **settings,
    )


MODEL = logistic()


def table(n=600, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=D)
    x = np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, D - 1))]).astype(np.float32)
    return (x, (rng.random(n) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)), truth


def fit(model=MODEL, data=None, **more):
    settings = {"budget": BUDGET, "steps": 200, "key": 1, "verbose": False, "progress": False} | more
    return confide.fit(model, table()[0] if data is None else data, **settings)


@pytest.fixture(scope="module")
def posterior():
    return fit()


# --- The trace -------------------------------------------------------------------------------------------------------


def test_the_sums_are_those_of_the_iterates(posterior):
    """sgld moves by its noisy sums alone, so that they follow from successive iterates, which are all released."""
    steps = 24
    run = fit(steps=steps, draws=steps, burn_in=0)
    eta, trace = run.plan["step_size"], run.trace
    n, q = trace.records, trace.sampling_probability
    after = np.asarray(run.draws, np.float64)[0]
    before = np.concatenate([np.zeros((1, D)), after[:-1]])
    sums = n * (before - after) / eta - before  # less what the prior pulls
    u = np.concatenate([np.ones((steps, 1)), before, sums], axis=1)
    expected = np.einsum("ti,tj->ij", u, u) / (2 * n / eta)
    found = trace.moments.sum(axis=(0, 1))
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-4)  # iterates are kept in single precision
    assert trace.lengths.sum() == steps
    assert q == pytest.approx(256 / n)


@pytest.mark.parametrize("steps", [1, 3, 8, 20, 201])
def test_parts_hold_the_steps_that_they_say(steps):
    traced = Traced(steps=steps, dimension=1, sampling_probability=1.0)
    told = np.bincount([int(traced.part(t)) for t in range(steps)], minlength=traced.parts)
    np.testing.assert_array_equal(told, traced.lengths())


@pytest.mark.parametrize("sampler", [confide.sghmc(), confide.dp_sgd(), confide.dpvi()], ids=lambda s: s.name)
def test_other_samplers_keep_theirs(sampler):
    run = fit(sampler=sampler, steps=40)
    assert run.trace is not None
    assert run.trace.moments.shape == (1, 8, 2 * D + 1, 2 * D + 1)


def test_chains_canaries_and_resumed_runs_keep_theirs(tmp_path):
    both = fit(chains=2, steps=40)
    assert both.trace.moments.shape[0] == 2
    assert both.noise_aware(40).plan["noise_aware"]["chains"] == 2
    assert fit(canaries=30, steps=40).trace.moments.shape[-1] == 2 * D + 1
    again = fit(chains=2, steps=40, checkpoint=tmp_path / "run.ckpt")
    np.testing.assert_array_equal(again.trace.moments, both.trace.moments)


# --- What it costs and looks at --------------------------------------------------------------------------------------


def test_no_record_is_read_and_nothing_is_charged(tmp_path, monkeypatch):
    ledger = ledger_of(tmp_path, epsilon=10.0)
    run = fit(ledger=ledger, dataset="patients")
    charged = ledger.history("patients")

    def forbidden(*_, **__):
        raise AssertionError("a record was asked for")

    monkeypatch.setattr(clipping.ClippedSum, "__call__", forbidden)
    blind = replace(run, model=replace(run.model, log_likelihood=forbidden))
    aware = blind.noise_aware(200)
    assert ledger.history("patients") == charged
    assert aware.guarantee == run.guarantee
    assert "every noisy sum" in run.guarantee.released


def test_what_is_released_without_a_bound_is_what_it_was():
    run = fit(logistic(gradient_bound=None), clip=D**0.5)
    assert run.trace is None
    assert "noisy sum" not in run.guarantee.released
    assert "gradient_bound" not in run.plan


def test_a_declared_bound_is_the_clip_and_bends_nothing(posterior):
    assert posterior.plan["clip"] == pytest.approx(D**0.5)
    assert posterior.plan["gradient_bound"] == pytest.approx(D**0.5)
    reasons = [reason.kind for reason in confide.inference.settling.judge(posterior).reasons]
    assert "bends" not in reasons


# --- The surface -----------------------------------------------------------------------------------------------------


def test_draws_are_a_posterior_that_says_what_it_is(posterior, tmp_path):
    aware = posterior.noise_aware(400, key=3)
    assert (aware.chains, aware.size, aware.settled) == (1, 400, True)
    summary = summaries.from_json(aware.plan)
    assert "linear gradient near the mode" in " ".join(summary.remarks())
    assert aware.to_arviz()["posterior"]["parameters"].shape == (1, 400, D)
    np.testing.assert_array_equal(aware.draws, posterior.noise_aware(400, key=3).draws)
    assert not np.array_equal(aware.draws, posterior.noise_aware(400, key=4).draws)
    posterior.save(tmp_path / "run")
    loaded = confide.Posterior.load(tmp_path / "run", MODEL)
    np.testing.assert_array_equal(loaded.noise_aware(400, key=3).draws, aware.draws)
    aware.save(tmp_path / "aware")
    assert summaries.from_json(confide.Posterior.load(tmp_path / "aware").plan).remarks() == summary.remarks()
    with pytest.raises(Refused, match="model was built from functions"):
        confide.Posterior.load(tmp_path / "run").noise_aware(40)


def test_a_trace_that_does_not_fit_together_is_not_loaded(posterior, tmp_path):
    posterior.save(tmp_path / "run")
    file = tmp_path / "run" / "trace.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "lengths": record["lengths"][1:]}))
    with pytest.raises(Refused, match="do not fit together"):
        confide.Posterior.load(tmp_path / "run")


def test_a_point_has_intervals_of_its_trace():
    """An optimiser's draws are points; those of its trace are not."""
    point = fit(sampler=confide.dp_sgd(), steps=60)
    assert point.point
    assert not point.noise_aware(40).point


def test_numpyro_models_in_their_own_space():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def doses(y=None):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    model = models.from_numpyro(doses, gradient_bound=12.0)  # |y - rate| by log rate
    y = np.random.default_rng(0).poisson(1.5, 800).astype(np.float32)
    aware = fit(model, (y,)).noise_aware(400)
    assert np.all(aware.draws["rate"] > 0)
    low, high = np.quantile(aware.draws["rate"], [0.001, 0.999])
    assert low < 1.5 < high


REFUSED = {
    "has no guarantee": ({"clip": None}, "no noise to know of"),
    "linear": ({"model": "logistic_regression"}, r"confide\.scoring\(\)"),
    "many parameters": ({"parameters": 21}, "more than 20 parameters"),
    "nothing declared": ({"gradient_bound": None}, "give the model a gradient_bound"),
    "clip": ({"clip": 1.0}, "clip = 1 may cut gradients of up to 1.73205"),
    "hidden steps": ({"sampler": "langevin"}, "langevin hides its steps"),
    "individual": ({"individual": {"stretch": 2.0}}, "individual account"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(posterior, case):
    changed, said = REFUSED[case]
    with pytest.raises(Refused, match=said) as error:
        replace(posterior, plan=posterior.plan | changed).noise_aware()
    assert "\n" not in str(error.value)


def test_refusals_of_runs():
    with pytest.raises(Refused, match="may cut gradients"):
        fit(clip=1.0, steps=20).noise_aware()
    with pytest.raises(Refused, match="kept no trace"):
        fit(sampler=confide.psgld(), steps=20).noise_aware()
    with pytest.raises(Refused, match="gradient_bound"):
        logistic(gradient_bound=-1.0)
    with pytest.raises(Refused, match="draws"):
        fit(steps=20).noise_aware(0)


# --- Theory ----------------------------------------------------------------------------------------------------------


def walk(curved, truth, rng, n, steps, eta, q=1.0, unit=1.0):
    """The trace of sgld on records whose sum of gradients is linear, with a prior N(0, unit^2); no code in common."""
    size, root = len(truth), np.linalg.cholesky(curved)
    b = curved @ truth + root @ rng.normal(size=size)
    sd, k, theta = np.sqrt(2 * n / eta), (1 - q) / q, np.zeros(size)
    traced = Traced(steps=steps, dimension=size, sampling_probability=q)
    moments = np.zeros((1, traced.parts, 1 + 2 * size, 1 + 2 * size))
    for t in range(steps):
        g = curved @ theta - b + sd * rng.normal(size=size) + np.sqrt(k) * root @ rng.normal(size=size)
        u = np.concatenate([[1.0], theta, g])
        moments[0, t * traced.parts // steps] += np.outer(u, u) / sd**2
        theta = theta - eta / n * (theta / unit**2 + g)
    return traced.lengths(), moments, b


def draws_of(lengths, moments, n, q, bound, unit, count=400, seed=0):
    with jax.enable_x64(True):
        parts = linear_gradients.gather(moments[0], lengths)
        told = linear_gradients.tell(parts, n, q, bound, (np.zeros(D), np.eye(D) / unit**2))
        return linear_gradients.draw(PRIORS[unit], told, count, seed)


PRIORS = {unit: lambda theta, unit=unit: -0.5 * jnp.sum((theta / unit) ** 2) for unit in (1.0, 8.0)}
CURVED = np.array([[1.0, 0.3, 0.0], [0.3, 0.6, 0.1], [0.0, 0.1, 0.3]])  # of a record


def test_the_likelihood_is_that_of_all_steps_at_once():
    """The joint normal density of all noisy gradients, written down as one, at two curvatures and truths."""
    rng, n, q, steps, eta = np.random.default_rng(2), 50, 0.25, 12, 0.5
    positions, gradients = rng.normal(size=(2, steps, D))
    noise = np.where(np.arange(steps) < 6, 2 * n / eta, 3 * n / eta)  # of two kinds
    u = np.concatenate([np.ones((steps, 1)), positions, 30 * gradients], axis=1)
    products = np.einsum("ti,tj->tij", u, u) / noise[:, None, None]
    moments = products.reshape(4, 3, 2 * D + 1, 2 * D + 1).sum(axis=1)

    def direct(curved, truth):
        shared = np.kron(np.ones((steps, steps)), curved)
        own = np.kron(np.diag(noise), np.eye(D)) + np.kron(np.eye(steps), (1 - q) / q * curved)
        mean = ((positions - truth) @ curved).ravel()
        return stats.multivariate_normal.logpdf(30 * gradients.ravel(), mean, shared + own)

    def found(curved, truth):
        parts = linear_gradients.gather(moments, np.full(4, 3))
        told = linear_gradients.tell(parts, n, q, 2.0, (np.zeros(D), np.eye(D)))
        noise = linear_gradients.noise_of(told, jnp.asarray(curved))
        return float(linear_gradients.log_likelihood(told, jnp.asarray(curved), noise, 0.0, jnp.asarray(truth)))

    with jax.enable_x64(True):
        first, second = (n * CURVED, rng.normal(size=D)), (0.3 * n * CURVED + np.eye(D), rng.normal(size=D))
        assert found(*first) - found(*second) == pytest.approx(direct(*first) - direct(*second), rel=1e-3)


def test_correlations_have_the_density_of_lkj_whatever_its_concentration():
    """In two dimensions, over a grid: the normalising constant of every concentration, and the law of a correlation."""
    grid = np.linspace(-400, 400, 400_001)
    with jax.enable_x64(True):
        heights = jax.jit(
            jax.vmap(
                lambda x, near: linear_gradients.curvature(0.0, jnp.array([0.0, 0.0, 0.0, near, x]), 2)[1], (0, None)
            )
        )
        totals = [np.sum(np.exp(heights(grid, near))) * np.exp(near**2 / 2) for near in (-1.0, 0.0, 1.0)]
        np.testing.assert_allclose(totals, totals[0], rtol=1e-3)
        weights, near = np.exp(np.asarray(heights(grid, 0.0))), 4.0  # c is 2 d
    found = grid / np.sqrt(9.0) / np.sqrt(1 + grid**2 / 9.0)
    law = stats.beta(near, near, loc=-1, scale=2)  # of density (1 - r^2)^(c - 1)
    for level in (0.1, 0.3, 0.8):
        at = law.ppf(level)
        assert np.sum(weights[found < at]) / np.sum(weights) == pytest.approx(level, abs=2e-3)


def test_where_noise_is_negligible_it_is_the_exact_posterior():
    rng, n = np.random.default_rng(5), 2000
    curved = n * CURVED
    lengths, moments, b = walk(curved, rng.normal(size=D), rng, n, steps=4000, eta=1.0)
    found = draws_of(lengths, moments, n, 1.0, 2.0, 1.0, count=2000)
    covariance = np.linalg.inv(curved + np.eye(D))
    deviations = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.mean(axis=0), covariance @ b, atol=0.35 * deviations.max())
    np.testing.assert_allclose(found.std(axis=0), deviations, rtol=0.25)


def test_where_all_is_noise_it_is_the_prior():
    rng, n = np.random.default_rng(6), 20
    lengths, moments, _ = walk(n * CURVED * 1e-3, rng.normal(size=D), rng, n, steps=40, eta=1e-3)
    found = draws_of(lengths, moments, n, 1.0, 1.0, 1.0, count=2000)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=0.25)
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=0.2)


def test_units_change_nothing():
    """Parameters in a unit 8 times as small, gradients and their bound accordingly: the same density of 8 theta."""
    rng, n, q, unit = np.random.default_rng(7), 500, 0.2, 8.0
    lengths, moments, _ = walk(n * CURVED, rng.normal(size=D), rng, n, steps=200, eta=0.1, q=q)
    scaled = np.concatenate([[1.0], np.full(D, unit), np.full(D, 1 / unit)])
    other = moments * np.outer(scaled, scaled) * unit**2  # and noise 8 times as small
    with jax.enable_x64(True):
        found = []
        for sums, length in ((moments, 1.0), (other, unit)):
            parts, prior = linear_gradients.gather(sums[0], lengths), (np.zeros(D), np.eye(D) / length**2)
            told = linear_gradients.tell(parts, n, q, 2.0 / length, prior)
            places = linear_gradients.begin(told) + np.random.default_rng(1).normal(size=(40, 3 * D + 3))
            found.append([np.asarray(each) for each in linear_gradients.densities(PRIORS[length], told, places)])
    (heights, _, thetas), (others, _, scaled_thetas) = found
    np.testing.assert_allclose(scaled_thetas, unit * thetas, rtol=1e-6)
    np.testing.assert_allclose(others - others[0], heights - heights[0], rtol=1e-6, atol=1e-6)


def test_a_prior_that_is_not_gaussian_is_counted_as_it_is():
    """Where nothing was learnt, draws are those of a Laplace prior."""
    rng, n = np.random.default_rng(8), 20
    lengths, moments, _ = walk(n * CURVED * 1e-4, rng.normal(size=D), rng, n, steps=40, eta=1e-3)
    model = replace(MODEL, log_prior=lambda theta: -jnp.sum(jnp.abs(theta)))
    trace = Trace(
        records=n,
        sampling_probability=1.0,
        gradient_bound=0.1,
        lengths=lengths,
        moments=moments,
        example=[([D], "float32"), ([], "float32")],
    )
    found = trace.draw(model, 2000, 0)
    quantiles = stats.laplace.ppf([0.1, 0.5, 0.9])
    np.testing.assert_allclose(np.quantile(found, [0.1, 0.5, 0.9], axis=0).T, np.tile(quantiles, (D, 1)), atol=0.4)


@pytest.mark.optimised
@pytest.mark.parametrize(("eta", "q"), tiered([(1.0, 1.0), (0.2, 0.1)], (), [(1.0, 1.0)]))
def test_intervals_hold_the_truth(eta, q):
    """Of 40 datasets with 3 coefficients each, the count in 90% intervals is binomial, or more: A has no prior's law.

    Coefficients of a dataset count as one (the least favourable): below 31 of 40 has a chance of 1 in 200.
    """
    n, rng, inside, widths = 2000, np.random.default_rng(9), [], []
    curved = n * CURVED / 3
    for seed in range(40):
        truth = rng.normal(size=D)
        lengths, moments, _ = walk(curved, truth, rng, n, steps=1000, eta=eta, q=q)
        found = draws_of(lengths, moments, n, q, 2.0, 1.0, seed=seed)
        low, high = np.quantile(found, [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
        spread = curved + (2 * n / eta * np.eye(D) + (1 - q) / q * curved) / 1000
        ideal = np.sqrt(np.diag(np.linalg.inv(np.eye(D) + curved @ np.linalg.inv(spread) @ curved)))
        widths.append((high - low) / (3.29 * ideal))
    assert 40 * np.mean(inside) >= stats.binom.ppf(0.005, 40, 0.9)
    assert 0.9 < np.median(widths) < 2.0
