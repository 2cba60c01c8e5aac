"""One posterior sample: priced as it is drawn, drawn from what is priced, and silent about the rest."""

import copy
import itertools
import math
import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import confide
import confide.inference.fitting
from confide import Budget, Refused, events, models
from confide.app import report
from confide.app.runs import predictions, run_folder
from confide.data import encoding, schema, tables
from confide.inference import loop
from confide.inference.exact import metropolis, targets
from confide.inference.options import Fit, Options
from confide.inference.plans import posterior_sample
from confide.inference.plans.posterior_sample import affordable_mu
from confide.mechanism import noise
from confide.models import convexity, programs
from confide.models.inputs import as_records
from confide.privacy.accountants import profile
from helpers.fits import BUDGET, ledger_of
from helpers.patients import SCHEMA, write

RNG = np.random.default_rng(7)
X = np.clip(RNG.normal(size=(60, 3)), -2, 2).astype(np.float32) / 4
Y = (RNG.random(60) < 1 / (1 + np.exp(-X @ [4.0, -2.0, 1.0]))).astype(np.float32)
MODEL = models.logistic_regression(3, norm_bound=1.0)
PURE = Budget(epsilon=1.0, delta=0.0)
ops = confide.one_posterior_sample
RARE = 1e-4  # chance that a statistical test fails though all is well
SHORT = {"warmup": 100, "samples": 200}  # whole blocks


def fit(sampler=None, budget=BUDGET, model=MODEL, data=(X, Y), **more):
    settings = {"verbose": False, "progress": False} | more
    return confide.fit(model, data, budget, sampler or ops(**SHORT), **settings)


def planned(sampler, budget=BUDGET, model=MODEL, data=(X, Y), **asked):
    return posterior_sample.make_plan(model, as_records(data), budget, sampler, Options(**asked), noise.as_key(0))


def price(event, budget):
    return profile(event, budget.neighbours, "pld").epsilon(budget.delta)


# What it costs


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("draws", [1, 3])
def test_tight_power_is_the_largest_that_the_budget_pays_for(neighbours, draws):
    budget = replace(BUDGET, neighbours=neighbours)
    model = models.logistic_regression(3, prior_scale=2.0, norm_bound=1.0)
    plan = planned(ops(draws=draws), budget, model, clip=0.8)
    sensitivity = 0.8 * (2 if neighbours == "replace-one" else 1)
    power = confide.gdp_mu(1.0, 1e-5) / (sensitivity * 2.0 * math.sqrt(draws))
    assert plan.summary.likelihood_power == pytest.approx(power, rel=1e-9)
    assert price(plan.event, budget) == pytest.approx(1.0, rel=1e-9)
    assert plan.event == events.PosteriorSample(
        gradient_bound=0.8, strong_convexity=0.25, likelihood_power=plan.summary.likelihood_power, draws=draws
    )


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_planned_clip_doubles_the_power_until_that_is_one(neighbours):
    """clip = min(B, max(B / 2, what the budget pays for in full))."""
    for epsilon in (0.1, 3.0, 8.0, 50.0):
        budget = Budget(epsilon=epsilon, delta=1e-5, neighbours=neighbours)
        found = planned(ops(), budget)
        mu = confide.gdp_mu(epsilon, 1e-5) / (2 if neighbours == "replace-one" else 1)
        clip = min(1.0, max(0.5, mu))
        assert found.event.gradient_bound == pytest.approx(clip)
        assert found.summary.clip == (None if clip == 1.0 else pytest.approx(clip))
        assert found.summary.likelihood_power == pytest.approx(min(1.0, mu / clip))
        assert price(found.event, budget) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_published_power_is_that_of_algorithm_1(neighbours):
    """wang2015: rho = min(1, epsilon / (4 B)), for either relation."""
    budget = Budget(epsilon=1.0, delta=0.0, neighbours=neighbours)
    found = planned(ops("published", radius=2.0), budget)
    bound = math.log(1 + math.exp(2.0))
    assert found.summary.log_likelihood_bound == pytest.approx(bound)
    assert found.summary.likelihood_power == pytest.approx(1 / (4 * bound))
    assert price(found.event, budget) == pytest.approx(1.0, rel=1e-9)
    assert planned(ops("published", draws=2), budget).summary.likelihood_power == pytest.approx(
        1 / (8 * math.log(1 + math.exp(math.sqrt(3.0))))
    )
    assert planned(ops("published", log_likelihood_bound=0.1), budget).summary.likelihood_power == 1.0


def test_declared_distance_is_counted_in_delta():
    exact, declared = affordable_mu(BUDGET, 1, 0.0), affordable_mu(BUDGET, 1, 1e-6)
    assert 0.5 * exact < declared < 0.99 * exact
    found = planned(ops(total_variation=1e-6))
    assert price(found.event, BUDGET) == pytest.approx(1.0, rel=1e-6)
    assert found.event.parts("add-remove").failure > 2e-6
    with pytest.raises(Refused, match=r"does not fit into delta = 1e-05"):
        planned(ops(total_variation=5e-6))
    with pytest.raises(Refused, match=r"does not fit into delta = 0"):
        planned(ops("published", total_variation=1e-9), PURE)
    assert price(planned(ops("published", total_variation=1e-6)).event, BUDGET) <= 1.0
    for wrong in (1.0, 1.5, -0.1, math.nan):
        with pytest.raises(Refused, match="total_variation"):
            ops(total_variation=wrong)


def test_own_power_is_taken_where_it_is_paid_for():
    assert planned(ops(likelihood_power=0.01)).event.likelihood_power == 0.01
    with pytest.raises(Refused, match=r"likelihood_power = 0.9 costs epsilon"):
        planned(ops(likelihood_power=0.9))


# What the draws reveal, from exact densities


GRID = np.linspace(-12, 12, 6001)


def densities(target, records):
    """Of a one-dimensional target, on the grid, for records (x, y); a row of zeros says nothing."""
    rows = np.array([*records, *[(0.0, 0.0)] * (4 - len(records))], np.float32)
    arrays = target.arrays((rows[:, :1], rows[:, 1]))
    with jax.enable_x64(True):
        values = np.asarray(jax.vmap(lambda theta: target.log_density(theta[None], arrays))(jnp.asarray(GRID)))
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def true_delta(p, q, epsilon):
    return max(float(np.sum(np.maximum(a - math.exp(epsilon) * b, 0))) for a, b in ((p, q), (q, p)))


WORST = [(1.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (0.5, 1.0)]  # records (x, y)


def pairs(target, neighbours):
    """Densities of neighbours, small datasets in which one record decides most."""
    for size in (0, 3):
        base = [(1.0, 1.0)] * size
        without, with_one = densities(target, base), [densities(target, [*base, one]) for one in WORST]
        yield from ((without, found) for found in with_one)
        if neighbours == "replace-one":
            yield from itertools.combinations(with_one, 2)


@pytest.mark.parametrize("clip", [None, 0.4])
def test_tight_claim_holds_for_exact_densities(clip):
    model = models.logistic_regression(1, norm_bound=1.0, prior_scale=1.5)
    for neighbours, power in itertools.product(("add-remove", "replace-one"), (0.3, 1.0)):
        event = events.PosteriorSample(
            gradient_bound=convexity.shape(model, clip).gradient_bound,
            strong_convexity=1 / 1.5**2,
            likelihood_power=power,
        )
        claimed, worst = profile(event, neighbours, "pld"), 0.0
        for p, q in pairs(targets.convex(model, power, clip), neighbours):
            for epsilon in (0.1, 0.5, 1.0, 2.0):
                truth, claim = true_delta(p, q, epsilon), claimed.delta(epsilon)
                assert truth <= claim + 1e-9
                worst = max(worst, truth / claim)
        assert worst > 0.1  # the claim is not idle


def test_published_claim_holds_for_exact_densities():
    """In the ball, and with a cut; at rho = 1, where it costs 4 B."""
    model = models.logistic_regression(1, norm_bound=1.0)
    _, unravel = posterior_sample._unravel_in_double(model, (np.zeros((1, 1)), np.zeros(1)))
    for bound, radius in ((math.log(1 + math.e), 1.0), (0.5, math.inf)):
        inside, worst = np.abs(GRID) <= radius, 0.0
        for both in pairs(targets.bounded_target(model, unravel, 1, 1.0, bound, None), "replace-one"):
            p, q = (density[inside] / density[inside].sum() for density in both)
            loss = float(np.max(np.abs(np.log(p) - np.log(q))))
            assert loss <= 4 * bound
            worst = max(worst, loss / (4 * bound))
        assert worst > 0.2


# What is enforced


HUGE = (1e6, 1e12, 1e17, 1.5 * 2.0**62, 1.23e23, 3e38)
NUMBERS = (0.0, 0.3, -1.0, 1e3, *HUGE, *(-y for y in HUGE))
COUNTED = (0.0, 1.0, 2.0, 40.0, 1e3, *HUGE)
STEEPEST = {  # a model, and outcomes of one record
    "logistic": (models.logistic_regression(1, norm_bound=1.0), (0.0, 1.0)),
    "logistic, intercept": (models.logistic_regression(1, norm_bound=1.0, intercept=True), (0.0, 1.0)),
    "softmax": (models.softmax_regression(1, 3, norm_bound=1.0), (0.0, 1.0, 2.0)),
    "linear": (models.linear_regression(1, norm_bound=1.0), NUMBERS),
    "linear, intercept": (models.linear_regression(1, norm_bound=1.0, intercept=True), NUMBERS),
    "linear, noise 0.37": (models.linear_regression(1, noise_scale=0.37, norm_bound=1.0), NUMBERS),
    "linear, noise 1e-3": (models.linear_regression(1, noise_scale=1e-3, norm_bound=1.0), NUMBERS),
    "poisson": (models.poisson_regression(1, largest_mean=8.0, norm_bound=1.0), COUNTED),
    "poisson up to 1e15": (models.poisson_regression(1, largest_mean=1e15, norm_bound=1.0), (*COUNTED, 1e15)),
    "negative binomial": (models.negative_binomial_regression(1, norm_bound=1.0), COUNTED),
    "dispersion 1e-6": (models.negative_binomial_regression(1, dispersion=1e-6, norm_bound=1.0), COUNTED),
    "dispersion 1e6": (models.negative_binomial_regression(1, dispersion=1e6, norm_bound=1.0), COUNTED),
}
PLACES = np.unique([*np.linspace(-1e5, 1e5, 2001), *np.linspace(-60, 60, 2001), *np.linspace(-0.1, 0.1, 301)])
NEAR = np.array([sign * step for step in (0, 1e-16, 1e-15, 1e-13, 1e-9, 1e-5, 1e-2) for sign in (-1, 1)])


def steepest_excess(thetas, values, slope):
    """By how much the values increase or decrease between two places by more than the slope allows."""
    rises = (sign * values - slope * thetas for sign in (-1, 1))
    return max(float(np.max(rise - np.minimum.accumulate(rise))) for rise in rises)


@pytest.mark.parametrize("clipping", [None, "plain"])
@pytest.mark.parametrize("name", STEEPEST)
def test_rounding_makes_no_staircase_of_what_one_record_adds(name, clipping):
    """What a record adds to the log density is Lipschitz in floating point too, whatever its row and outcome.

    Its log likelihood can be so large that rounding moves it in jumps; the price knows of the gradient alone.
    """
    model, outcomes = STEEPEST[name]
    model, slope = convexity.weigh(model, clipping), 0.27  # power times gradient bound, at epsilon 1
    intercept, several = model.linear.intercept, math.prod(model.linear.outputs)
    direction = np.array([1.0, -1.0, 0.0] if several > 1 else [1.0] * (1 + intercept))
    direction /= np.linalg.norm(direction)
    for clip in (None,) if several > 1 else (1e-6, 0.3, 30.0):
        target = targets.convex(model, slope / convexity.shape(model, clip).gradient_bound, clip)
        every = jax.jit(jax.vmap(target.log_density, (0, None)))
        for x, y in itertools.product((1.0, -0.7, 1e-3, 1e-6, 1e-12, 1e-34, 1e-38), outcomes):
            arrays = target.arrays((np.array([[x]], np.float32), np.array([y], np.float32)))
            arrays |= {"precision": 0.0}  # the prior, whose rounding is not the record's
            score = float(direction @ np.r_[[1.0] * intercept, [x] * several]) or x
            kinks = [float(arrays[end][0]) / score for end in ("low", "high") if end in arrays]
            near = [np.clip(np.nan_to_num(kink), -9e4, 9e4) * (1 + NEAR) for kink in (*kinks, 0.0, 0.0)[:2]]
            thetas = np.sort(np.concatenate([PLACES, *near]))
            with jax.enable_x64(True):
                places = jnp.asarray(thetas[:, None] * direction)
                values = [np.asarray(every(places, arrays))]
                if x in (1.0, 1e-12):
                    values.append(np.asarray(jax.vmap(target.log_density, (0, None))(places, arrays)))
            for found in values:
                assert steepest_excess(thetas, found, slope) <= 1e-9, (clip, x, y)


@pytest.mark.filterwarnings("ignore::confide.ExactnessWarning")
def test_an_outcome_of_1e18_does_not_decide_a_draw():
    """The posterior of 1,926 records is about N(516, 1), and one more record moves it by 0.27 at most.

    Numbers of the size of its outcome lie 1024 apart: a loss that was a difference of two such numbers kept every draw
    below 512, at a claimed epsilon of 1.
    """
    x, y = np.ones((1927, 1)), np.append(np.full(1926, 1e4), -1.5 * 2.0**62)
    model, sampler = models.linear_regression(1, norm_bound=1.0), ops(**SHORT)
    draws = fit(sampler, BUDGET, model, (x, y), records=1926, key=3).draws
    assert 512 < float(np.ravel(draws["weights"])[0]) < 520


@pytest.mark.long
def test_no_record_moves_a_clipped_density_by_more_than_the_clip():
    """Its gradient is the clipped residual, so the value is its integral; and it stays concave."""
    rng = np.random.default_rng(3)
    cases = [
        (models.logistic_regression(2, norm_bound=2.0, intercept=True), 0.7, (0.0, 1.0)),
        (models.linear_regression(2, norm_bound=2.0, noise_scale=0.5), 0.7, (-1.0, 2.0)),
        (models.poisson_regression(2, norm_bound=2.0, largest_mean=8.0), 0.7, (0.0, 5.0)),
        (models.negative_binomial_regression(2, dispersion=0.5, norm_bound=2.0), 0.7, (0.0, 5.0)),
    ]
    for model, clip, outcomes in cases:
        target, size = targets.convex(model, 1.0, clip), 2 + model.linear.intercept
        for outcome in outcomes:
            data = (rng.normal(size=(1, 2)).astype(np.float32), np.array([outcome], np.float32))
            arrays = target.arrays(data)
            with jax.enable_x64(True):
                likelihood = lambda flat: target.log_density(flat, arrays) + jnp.sum(flat**2) / 2  # noqa: B023, E731
                places = jnp.asarray(rng.normal(size=(200, size)) * 5)
                steps = jnp.asarray(rng.normal(size=(200, size)))
                gradients = jax.vmap(jax.grad(likelihood))(places)
                assert np.max(np.linalg.norm(gradients, axis=1)) <= clip * (1 + 1e-12)
                assert np.max(np.linalg.norm(gradients, axis=1)) > 0.99 * clip
                values = [np.asarray(jax.vmap(likelihood)(places + t * steps)) for t in (-1.0, 0.0, 1.0)]
                flat = np.asarray(model.linear.residual(arrays["inputs"].T @ np.asarray(places).T, outcome)).T
                gradients = np.asarray(gradients)
            assert np.all(values[1] >= (values[0] + values[2]) / 2 - 1e-9)
            plain = -flat * arrays["inputs"].T
            short = np.linalg.norm(plain, axis=1) <= clip
            assert np.any(short)
            np.testing.assert_allclose(gradients[short], plain[short], rtol=1e-9, atol=1e-12)


def test_a_record_of_huge_loss_counts_as_the_bound():
    """Also one whose log likelihood is not a number."""
    own = models.from_functions(
        log_prior=lambda m: -0.5 * m**2, log_likelihood=lambda m, x: jnp.log(x) * m**4, start=0.0
    )
    _, unravel = posterior_sample._unravel_in_double(own, (np.ones(1),))
    target = targets.bounded_target(own, unravel, 1, 0.25, 3.0, None)
    with jax.enable_x64(True):
        at = jnp.asarray([2.0])

        def value(*records):
            return float(target.log_density(at, target.arrays((np.array(records, np.float32),))))

        base = value(1.0)
        assert value(1.0, 1e-30) == pytest.approx(base - 0.25 * 3)
        assert value(1.0, 1e30) == pytest.approx(base + 0.25 * 3)
        assert value(1.0, -1.0) == pytest.approx(base - 0.25 * 3)  # the logarithm of a negative number


def states(model, sampler, data, budget=BUDGET, number=400, seed=0):
    """All states of many chains, through the same code as a fit."""
    found = planned(replace(sampler, hidden_chains=number), budget, model, data)
    job = found.job
    with jax.enable_x64(True):
        arrays, frame = targets.frame(job.model, job.target, job.target.arrays(found.data))
        starts = job._starts(found.data.arrays, arrays, frame, noise.as_key(seed))
    return metropolis.run(job.target, arrays, frame, starts, job.chains, noise.as_key(seed + 1)), found


@pytest.fixture(scope="module")
def in_a_ball():
    data = (X[:, :2] * 2, Y)
    return states(
        models.logistic_regression(2, norm_bound=1.0), ops("published", radius=1.5, warmup=90, samples=10), data, PURE
    )


@pytest.mark.long
def test_parameters_never_leave_the_ball(in_a_ball):
    found = np.linalg.norm(in_a_ball[0], axis=2)
    assert found.shape == (400, 10)
    assert found.max() <= 1.5 * (1 + 1e-12)
    assert found.max() > 1.49


# Whether the draws are from what is priced


def kolmogorov(draws, grid, density):
    """The p-value of draws against a density on a grid."""
    cumulative = np.cumsum(density) / np.sum(density)
    return stats.kstest(draws, lambda at: np.interp(at, grid, cumulative)).pvalue


@pytest.mark.long
def test_draws_in_a_ball_have_the_exact_distribution(in_a_ball):
    """Two parameters, by quadrature over the disc; along an axis, and in norm."""
    found, plan = in_a_ball
    rho, (x, y) = plan.summary.likelihood_power, plan.data.arrays
    side = np.linspace(-1.5, 1.5, 301)
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    scores = points @ x.T.astype(np.float64)
    whole = (scores * y - np.logaddexp(scores, 0)).sum(axis=-1) - np.sum(points**2, axis=-1) / 2
    density = np.where(np.sum(points**2, axis=-1) <= 1.5**2, np.exp(rho * (whole - whole.max())), 0.0)
    last = found[:, -1]
    for axis in (0, 1):
        assert kolmogorov(last[:, axis], side, density.sum(axis=1 - axis)) > RARE / 3
    norms = np.linalg.norm(points, axis=-1).ravel()
    order = np.argsort(norms)
    assert kolmogorov(np.linalg.norm(last, axis=1), norms[order], density.ravel()[order]) > RARE / 3


@pytest.mark.parametrize(
    ("algorithm", "route"),
    [
        ("elliptical", "clipped"),
        ("elliptical", "ball"),
        ("nuts", "clipped"),
        ("mala", "clipped"),
        ("mala", "cut"),
        ("nuts", "cut"),
    ],
)
@pytest.mark.long
def test_draws_have_the_exact_distribution_in_one_dimension(algorithm, route):
    """Against quadrature, 400 independent chains; a distribution a fifth too narrow is told apart."""
    x = np.linspace(0.2, 1.0, 20).astype(np.float32)[:, None]
    y = (np.arange(20) % 4 > 0).astype(np.float32)
    sampler = ops(warmup=90, samples=10, algorithm=algorithm)
    model = models.logistic_regression(1, norm_bound=1.0)
    if route == "cut":
        sampler = replace(sampler, bound="published", log_likelihood_bound=0.6, likelihood_power=1.0)
        model = models.from_functions(
            log_prior=lambda w: -0.5 * w**2,
            log_likelihood=lambda w, x, y: y * x[0] * w - jnp.logaddexp(x[0] * w, 0.0),
            start=0.0,
        )
    elif route == "ball":
        sampler = replace(sampler, bound="published", radius=1.0, likelihood_power=1.0)
    found, plan = states(model, sampler, (x, y), Budget(epsilon=20.0, delta=1e-5), seed=11)
    rows, rho, scores = plan.data.arrays[0].astype(np.float64), plan.summary.likelihood_power, GRID[:, None]
    scores = GRID[:, None] * rows.T
    each = scores * y - np.logaddexp(scores, 0)
    if route == "cut":
        each = np.clip(each, -0.6, 0.6)
    elif route == "clipped":
        assert rho == 1.0  # the posterior itself
    whole = rho * each.sum(axis=1) - GRID**2 / 2
    density = np.exp(whole - whole.max()) * (np.abs(GRID) <= 1.0 if route == "ball" else 1.0)
    last = found[:, -1, 0]
    assert kolmogorov(last, GRID, density) > RARE
    middle = np.sum(GRID * density) / np.sum(density)
    narrow = last if route == "ball" else middle + (last - middle) * 0.8  # a wrong spread is seen
    if route != "ball":
        assert kolmogorov(narrow, GRID, density) < 0.05


@pytest.mark.long
def test_wang2015_propositions_1_and_2():
    """At rho = 1 the estimator is consistent, with twice the asymptotic variance of the best one.

    Records of one-hot rows are 40 independent datasets that share a run but no parameter, half of them of 5 records
    and half of 20; in five runs 100 of each size. For 4 draws of each the mean of (a + b)^2 over a hundred datasets, a
    the data's error and b the draw's, has standard deviation sqrt(3.5 / 100).
    """
    truth, sizes = 0.4, np.repeat([5, 20], 20)
    x = np.repeat(np.eye(40, dtype=np.float32), sizes, axis=0)
    model = models.linear_regression(40, prior_scale=2.0, noise_scale=0.5)
    sampler = ops("published", log_likelihood_bound=20.0, draws=4, warmup=200, samples=800)
    ratios = []
    for key in range(5):
        y = np.random.default_rng(key).normal(truth, 0.5, len(x)).astype(np.float32)
        posterior = fit(sampler, Budget(epsilon=320.0, delta=0.0), model, (x, y), key=key)
        assert posterior.plan["likelihood_power"] == pytest.approx(1.0)
        ratios.append(np.mean((posterior.draws["weights"][0] - truth) ** 2, axis=0) * sizes / 0.5**2)  # to the best
    small, large = np.mean(ratios, axis=0).reshape(2, 20).mean(axis=1)
    rare = stats.norm.isf(RARE / 4) * math.sqrt(3.5 / 100)
    assert small == pytest.approx(2.0, abs=rare)  # for n and 4 n: the variance falls as 1 / n
    assert large == pytest.approx(2.0, abs=rare)


# A run


@pytest.fixture(scope="module")
def posterior():
    return fit(key=3)


def test_a_draw_with_its_guarantee(posterior):
    assert posterior.draws["weights"].shape == (1, 1, 3)
    assert posterior.guarantee.epsilon == pytest.approx(1.0)
    assert any("no diagnostic can prove" in sentence for sentence in posterior.guarantee.assumptions)
    assert "stay secret" in posterior.guarantee.released
    assert confide.verify(posterior.guarantee) <= 1.0
    assert posterior.predict_proba(X).shape == (60, 2)
    with pytest.raises(Refused, match="one draw has no interval"):
        posterior.interval(X)
    assert list(posterior.summary().columns) == ["mean"]


@pytest.mark.long
def test_the_key_decides_with_the_records_and_the_settings(posterior):
    def draw(**more):
        return fit(key=3, **more).draws["weights"]

    drawn = posterior.draws["weights"]
    assert np.array_equal(draw(), drawn)
    other = Y.copy()
    other[0] = 1 - other[0]
    assert not np.any(draw(data=(X, other)) == drawn)
    assert not np.any(draw(budget=replace(BUDGET, epsilon=0.9)) == drawn)


def test_diagnostics_stay_with_the_analyst(posterior, tmp_path, capsys):
    found = posterior.diagnostics
    assert 0.99 < found.r_hat < 1.05
    assert found.effective > 100
    texts = [repr(posterior), str(posterior)]
    folder = posterior.save(tmp_path / "run")
    contents = b"".join(path.read_bytes() for path in folder.iterdir()) + pickle.dumps(posterior)
    for value in found:
        assert repr(value).encode() not in contents
        assert not any(f"{value:.3g}" in text for text in texts)
    assert b"diagnos" not in b"".join(path.read_bytes() for path in folder.glob("*.json")).replace(
        b"no diagnostic", b""
    )
    for other in (pickle.loads(pickle.dumps(posterior)), copy.copy(posterior), confide.Posterior.load(folder)):
        assert other.diagnostics is None
        assert np.array_equal(other.draws["weights"], posterior.draws["weights"])
    fit(key=4, verbose=True)
    told = capsys.readouterr().err
    assert (
        "likelihood counts to the power 0.536, as if of 32 records; prior scale 1; scores bounded by weights to 0.5"
        in told
    )
    assert "4 hidden chains of 100 + 200 transitions (elliptical)" in told
    assert "R-hat" in told.splitlines()[-1]
    assert "NOT covered by the guarantee" in told.splitlines()[-1]


@pytest.mark.long
def test_chains_that_have_not_met_are_warned_of():
    with pytest.warns(confide.ExactnessWarning, match="no guarantee covers") as caught:
        fit(ops(algorithm="mala", warmup=20, samples=10))
    assert caught[0].filename == __file__


@pytest.mark.long
def test_several_draws_and_both_chains_of_the_release():
    drawn = fit(ops("published", draws=3, **SHORT), PURE, chains=2, key=5)
    assert drawn.draws["weights"].shape == (2, 3, 3)
    assert len(np.unique(drawn.draws["weights"][..., 0])) == 6
    assert drawn.guarantee.epsilon == pytest.approx(1.0)
    assert drawn.guarantee.delta == 0
    assert np.max(np.linalg.norm(drawn.draws["weights"], axis=-1)) <= math.sqrt(3) + 1e-6
    states = np.arange(4 * 100.0).reshape(4, 100, 1)
    assert metropolis.ends(states, 3).ravel().tolist() == [99, 199, 299]
    assert metropolis.ends(states, 6).ravel().tolist() == [99, 199, 299, 399, 49, 149]


@pytest.mark.long
def test_softmax_and_a_hybrid_run():
    y = (np.arange(60) % 3).astype(np.float32)
    drawn = fit(model=models.softmax_regression(3, 3, norm_bound=1.0), data=(X, y))
    assert drawn.draws["weights"].shape == (1, 1, 3, 3)
    both = confide.hybrid(confide.sgld(), ops(**SHORT))
    found = fit(both, steps=50, batch_size=60, draws=10)
    assert found.draws["weights"].shape == (1, 10, 3)
    assert found.guarantee.epsilon <= 1.0 + 1e-6
    assert found.diagnostics is not None


@pytest.mark.long
def test_charged_once_and_resumed_to_the_same_draws(tmp_path):
    ledger, place = ledger_of(tmp_path, epsilon=1.0), tmp_path / "checkpoint"
    settings = {"draws": 1, "verbose": False, "progress": False, "checkpoint": place, "ledger": ledger}
    asked = Fit(MODEL, (X, Y), BUDGET, ops(**SHORT), **settings)
    first = confide.inference.fitting.infer(replace(asked, key=3))
    again = confide.inference.fitting.infer(asked)  # goes on from the end
    assert np.array_equal(first.draws["weights"], again.draws["weights"])
    assert len(ledger.history("patients")) == 1
    with pytest.raises(Refused, match="budget"):
        fit(ledger=ledger)
    assert len(ledger.history("patients")) == 1


def test_programs_hold_no_record():
    found = planned(ops(**SHORT))
    job = found.job
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, targets.frame(job.model, job.target, job.target.arrays(found.data)))
        keys = jnp.stack([noise.as_key(i) for i in range(4)])
        state, tuned = metropolis._begin(job.target, job.chains, given, jnp.zeros((4, 3)), keys)
        program = jax.make_jaxpr(metropolis._advance(job.target, "elliptical"))(given, state, tuned, keys, 0)
    sizes = [np.size(constant) for constant in programs.constants(program)]
    assert max(sizes, default=0) < 3
    assert loop.use_compilation_cache is metropolis.use_compilation_cache


OWN = {"log_prior": lambda w: -0.5 * jnp.sum(w**2), "log_likelihood": lambda w, x, y: y * (x @ w), "start": np.zeros(3)}
REFUSALS = [
    (ops(), {"model": models.mlp((3, 4, 2))}, "mlp is not known to be convex"),
    (ops(), {"model": models.from_functions(**OWN)}, "not known to be convex"),
    (ops(), {"model": models.logistic_regression(3, prior="laplace")}, "laplace prior is not strongly convex"),
    (ops(), {"model": models.softmax_regression(3, 2, norm_bound=1.0), "clip": 0.1}, "breaks its convexity"),
    (ops(), {"budget": PURE}, "delta = 0 cannot be met"),
    (None, {"budget": PURE}, "delta = 0 cannot be met"),
    (ops(), {"noise": "secure"}, "cannot make a Markov chain exact"),
    (ops(), {"steps": 10}, "steps is not for posterior samples"),
    (ops(draws=200, **SHORT), {}, "lie too close together: ask for fewer"),
    (ops("published"), {"model": models.mlp((3, 4, 2))}, "give a log_likelihood_bound"),
    (ops("published"), {"model": models.linear_regression(3)}, "unbounded, since its outcomes are"),
    (ops("published"), {"clip": 1.0}, "clip is not for bound = 'published'"),
    (
        ops("published", algorithm="elliptical", log_likelihood_bound=1.0),
        {"model": models.mlp((3, 4, 2))},
        "use 'nuts'",
    ),
    (
        ops("published"),
        {"model": models.logistic_regression(3, prior=lambda w: -jnp.sum(w["weights"] ** 2), norm_bound=1.0)},
        "give the radius",
    ),
]


@pytest.mark.parametrize(("sampler", "more", "message"), REFUSALS, ids=[message[:30] for _, _, message in REFUSALS])
def test_refused_before_anything_is_charged(tmp_path, sampler, more, message):
    ledger = ledger_of(tmp_path)
    settings = {"model": MODEL, "data": (X, Y), "budget": BUDGET, "verbose": False, "progress": False} | more
    with pytest.raises(Refused, match=message) as refusal:
        confide.fit(sampler=sampler, ledger=ledger, **settings)
    assert "\n" not in str(refusal.value)
    assert not ledger.history("patients")


@pytest.mark.parametrize(
    "settings",
    [
        {"bound": "loose"},
        {"algorithm": "gibbs"},
        {"radius": 1.0},
        {"bound": "published", "radius": 1.0, "log_likelihood_bound": 1.0},
        {"bound": "published", "radius": -1.0},
        {"draws": 0},
        {"hidden_chains": 1},
        {"samples": 5},
        {"warmup": 0},
        {"likelihood_power": 0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(Refused):
        ops(**settings)


def test_not_for_runs_without_a_guarantee():
    with pytest.warns(confide.NotPrivateWarning), pytest.raises(Refused, match="planned from a budget"):
        confide.sample(MODEL, (X, Y), ops())


@pytest.mark.long
def test_report_and_predictions_of_one_draw(tmp_path):
    write(tmp_path)
    described = schema.loads(SCHEMA, "schema").with_target(None)
    x, y, _ = encoding.encode_table(described, tables.open_table(tmp_path / "patients.csv"))
    drawn = fit(ops("published", **SHORT), PURE, models.logistic_regression(x.shape[1]), (x, y))
    drawn = replace(drawn, plan=drawn.plan | run_folder.describe_data(described))
    drawn.save(tmp_path / "run", {run_folder.SCHEMA: described.to_toml()})
    page = report.write(tmp_path / "run", public=tmp_path / "patients.csv").read_text()
    assert "One posterior draw of a logistic regression" in page
    assert "There is one draw: no interval." in page
    assert "nan" not in page.lower().replace("resonan", "")
    assert predictions.predict(tmp_path / "run", tmp_path / "patients.csv", tmp_path / "predicted.csv") == (300, 0)
    assert (tmp_path / "predicted.csv").read_text().splitlines()[1].endswith(",,")


@pytest.mark.filterwarnings("ignore::confide.ExactnessWarning")
@pytest.mark.parametrize("case", ["outcome", "row"])
def test_where_the_likelihood_is_cut_one_record_neither_places_the_chains_nor_ends_the_run(case):
    """A mode of the uncut likelihood would be where one outcome says, and a long row made its curvature singular."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (40, 3)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    model = models.linear_regression(3)
    if case == "outcome":
        y[7] = 1e4
    else:
        model, y, x[7] = models.logistic_regression(3), (y > 0).astype(np.float32), (1e9, -1e9, 1e9)
    sampler = ops("published", log_likelihood_bound=1.0, warmup=50, samples=50)
    found = planned(sampler, model=model, data=(x, y))
    assert found.job.target.ridge is None
    drawn = confide.fit(model, (x, y), BUDGET, sampler, key=1, verbose=False, progress=False)
    assert np.abs(drawn.draws["weights"]).max() < 30
