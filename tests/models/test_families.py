"""Every family: derivatives, moments and bounds against its log likelihood; and nobody else knows their names."""

import ast
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import confide
from confide import Refused, models
from confide.models import convexity
from confide.models.families import (
    BY_NAME,
    BY_WORD,
    FAMILIES,
    Gaussian,
    Logistic,
    NegativeBinomial,
    Poisson,
    Softmax,
    with_known,
)
from confide.models.model import from_family

SCORES = np.linspace(-4, 4, 33)
COUNTS = (0.0, 1.0, 5.0, 40.0)
CASES = {
    "logistic": (Logistic(), (0.0, 1.0)),
    "linear": (Gaussian(0.7), (-2.0, 0.0, 3.0)),
    "poisson": (Poisson(), COUNTS),
    "poisson up to 5": (Poisson(5.0), COUNTS),
    "negative binomial": (NegativeBinomial(0.4), COUNTS),
    "dispersed": (NegativeBinomial(5.0), COUNTS),
}
SEVERAL = Softmax(4)


def probabilities(family, s):
    """Outcomes of every score, and their probabilities by the log likelihood."""
    y = np.arange(2.0 if family.outcome == "two labels" else 1500.0)
    with jax.enable_x64(True):
        each = jax.vmap(jax.vmap(family.log_likelihood, (None, 0)), (0, None))(jnp.asarray(s), jnp.asarray(y))
        return y, np.exp(np.asarray(each))


@pytest.mark.parametrize("name", CASES)
def test_residual_and_curvature_are_the_derivatives(name):
    family, outcomes = CASES[name]
    s = SCORES[np.abs(SCORES - math.log(5)) > 1e-3]
    with jax.enable_x64(True):
        first, second = (jax.vmap(f) for f in _derivatives(family))
        for y in outcomes:
            every = jnp.full(s.shape, y)
            np.testing.assert_allclose(family.residual(s, every), first(jnp.asarray(s), every), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(family.curvature(s, y), second(jnp.asarray(s), every), rtol=1e-9, atol=1e-12)


def _derivatives(family):
    def loss(s, y):
        return -family.log_likelihood(s, y)

    return jax.grad(loss), jax.grad(jax.grad(loss))


def test_those_of_several_scores():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for s in rng.normal(size=(5, 4)):
            for y in range(4):
                loss = lambda s, y=y: -SEVERAL.log_likelihood(s, jnp.asarray(y))  # noqa: E731
                found = SEVERAL.residual(s[None], np.array([y]))[0]
                np.testing.assert_allclose(found, jax.grad(loss)(jnp.asarray(s)), atol=1e-12)
                v = SEVERAL.curvature(s[None], np.array([y]))[0]
                np.testing.assert_allclose(np.diag(v) - np.outer(v, v), jax.hessian(loss)(jnp.asarray(s)), atol=1e-12)
                assert np.linalg.norm(found) <= SEVERAL.residual_bound


@pytest.mark.parametrize("family", [*(case[0] for case in CASES.values()), SEVERAL], ids=[*CASES, "softmax"])
def test_arrays_of_numpy_and_of_jax_agree(family):
    rng = np.random.default_rng(1)
    s, y = rng.normal(size=(50, *family.outputs)), rng.integers(0, 2, 50).astype(np.float64)
    for function in (family.mean, family.predict, family.variance, family.information):
        assert isinstance(function(s), np.ndarray)
        np.testing.assert_allclose(function(s), function(jnp.asarray(s, jnp.float32)), rtol=1e-4, atol=1e-6)
    for function in (family.residual, family.curvature):
        assert isinstance(function(s, y), np.ndarray)
        narrow = (jnp.asarray(s, jnp.float32), jnp.asarray(y, jnp.float32))
        np.testing.assert_allclose(function(s, y), function(*narrow), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "poisson", "negative binomial", "dispersed"])
def test_mean_variance_and_information_are_those_of_the_density(name):
    family, s = CASES[name][0], np.linspace(-2, 2, 9)
    y, chance = probabilities(family, s)
    np.testing.assert_allclose(chance.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(chance @ y, family.mean(s), rtol=1e-6)
    np.testing.assert_allclose(chance @ y**2 - (chance @ y) ** 2, family.variance(s), rtol=1e-5)
    squares = np.array([family.residual(np.full(y.size, one), y) ** 2 for one in s])
    np.testing.assert_allclose(np.sum(chance * squares, axis=1), family.information(s), rtol=1e-5)
    curvatures = np.array([family.curvature(np.full(y.size, one), y) for one in s])
    np.testing.assert_allclose(np.sum(chance * curvatures, axis=1), family.information(s), rtol=1e-5)


@pytest.mark.parametrize("dispersion", [0.01, 0.5, 3.0])
def test_the_negative_binomial_is_that_of_scipy(dispersion):
    family, size = NegativeBinomial(dispersion), 1 / dispersion
    for s in (-3.0, 0.0, 2.5):
        y = np.array([0.0, 1.0, 7.0, 300.0])
        exact = stats.nbinom.logpmf(y, size, size / (size + math.exp(s)))
        found = [float(family.log_likelihood(jnp.float32(s), jnp.float32(one))) for one in y]
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)


def test_it_becomes_the_poisson():
    y, s = np.arange(6.0), np.full(6, 0.3)
    near, limit = NegativeBinomial(1e-8), Poisson()
    np.testing.assert_allclose(near.residual(s, y), limit.residual(s, y), atol=1e-6)
    with jax.enable_x64(True):
        for one in y:
            assert near.log_likelihood(0.3, one) == pytest.approx(float(limit.log_likelihood(0.3, one)), abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_scores_and_outcomes_at_any_end_give_finite_residuals(name):
    """In single precision, but for means that overflow: those of an unbounded Poisson."""
    family, outcomes = CASES[name]
    s = jnp.array([-1e4, -200.0, 0.0, 80.0, 200.0, 1e4])
    for y in (*outcomes, 1e30):
        found = np.asarray(family.residual(s, jnp.full(s.shape, y)))
        assert np.all(np.isfinite(found[: 4 if name == "poisson" else None]))


@pytest.mark.parametrize("name", [name for name in CASES if name != "poisson"])
def test_bounds_hold_and_are_nearly_met(name):
    """Gradient and curvature of the clipped loss of a record, whatever its row within the bound and its outcome."""
    family, outcomes = CASES[name]
    bound, clip, s = 2.0, 0.8, np.linspace(-12, 12, 4001)
    shape = convexity.shape(from_family(family, 2, norm_bound=bound), clip)
    steepest = flattest = most = 0.0
    for length in np.linspace(0.05, bound, 40):
        reach = clip / length
        for y in (*outcomes, *((1e3, 1e4) if family.outcome == "count" else ())):
            residual = family.residual(s, np.full(s.shape, y))
            cut = np.clip(residual, -reach, reach) * length
            slopes = np.diff(cut) / (np.diff(s) / length)
            steepest, most = max(steepest, np.abs(cut).max()), max(most, slopes.max())
            flattest = min(flattest, slopes.min())
            low, high, above = (float(ends[0]) for ends in _uncut(family, y, reach))
            inside = (s > low + 1e-9) & (s < high - 1e-9)
            assert np.all(np.abs(residual[inside]) <= reach * (1 + 1e-9))
            np.testing.assert_allclose(cut[s < low - 1e-9], -reach * length, rtol=1e-9)
            np.testing.assert_allclose(cut[s > high + 1e-9], above * length, rtol=1e-9, atol=1e-12)
    assert flattest >= -1e-12  # it stays convex
    assert 0.99 * shape.gradient_bound < steepest <= shape.gradient_bound * (1 + 1e-12)
    assert 0.6 * shape.smoothness < most <= shape.smoothness * (1 + 1e-9)


def _uncut(family, y, reach):
    """Between which scores the residual varies, and the cut residual above."""
    outcome, threshold = np.array([y]), np.array([reach])
    with np.errstate(divide="ignore", invalid="ignore"):
        return *family.uncut_scores(outcome, threshold), family.upper_residual(outcome, threshold)


@pytest.mark.parametrize("name", CASES)
def test_increments_of_the_loss_are_differences_of_the_likelihood(name):
    """Where nothing is large, so that the difference keeps its digits."""
    family, outcomes = CASES[name]
    start, end = (ends.ravel() for ends in np.meshgrid(SCORES[SCORES < 1.6], SCORES[SCORES < 1.6]))
    with jax.enable_x64(True):
        for y in outcomes:
            every = jnp.full(start.shape, y)
            loss = [-jax.vmap(family.log_likelihood)(jnp.asarray(s), every) for s in (start, end)]
            for function in (np.asarray, jnp.asarray):
                found = family.loss_increment(function(start), function(end), function(every))
                np.testing.assert_allclose(found, loss[1] - loss[0], rtol=1e-11, atol=1e-11)
            small = family.loss_increment(start, start + 1e-9, np.asarray(every))
            np.testing.assert_allclose(small / 1e-9, family.residual(start, y), rtol=1e-6, atol=1e-6)


def test_simulated_outcomes_have_the_moments():
    key, size = jax.random.key(0), 40_000
    for family in (Logistic(), Gaussian(0.7), Poisson(), NegativeBinomial(0.5)):
        s = jnp.full(size, 0.8)
        found = np.asarray(family.simulate(key, s), np.float64)
        mean, variance = (float(f(np.array([0.8]))[0]) for f in (family.mean, family.variance))
        assert found.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / size))
        assert found.var() == pytest.approx(variance, rel=0.06)
        assert np.all(family.admits(found))


def test_families_are_values():
    assert NegativeBinomial(0.5) == NegativeBinomial(0.5) != NegativeBinomial(0.6)
    assert len({Poisson(), Poisson(3.0), Poisson(), Logistic(), Softmax(3)}) == 4
    with pytest.raises(AttributeError):
        NegativeBinomial(0.5).dispersion = 2.0  # type: ignore[misc]
    assert with_known(NegativeBinomial, {"dispersion": None, "classes": 3}) == NegativeBinomial(1.0)
    assert with_known(Softmax, {"dispersion": 2.0, "classes": 3}) == Softmax(3)


@pytest.mark.parametrize("dispersion", [0.0, -1.0, math.nan, None, "much"])
def test_a_dispersion_that_makes_no_sense_is_refused(dispersion):
    with pytest.raises(Refused, match="dispersion"):
        models.negative_binomial_regression(2, dispersion=dispersion)


def test_every_family_has_a_constructor_that_rebuilds_it():
    for family in FAMILIES:
        given = with_known(family, {"classes": 3, "dispersion": 0.3, "noise_scale": 0.2, "largest_mean": 4.0})
        model = from_family(given, 2, 0.5, intercept=True, norm_bound=1.5)
        again = models.rebuilt(model.name, model.settings)
        assert again is not None
        assert again.family == given
        assert again.settings == model.settings
        assert family.name in models.__all__


def test_nobody_else_knows_a_family_by_its_name():
    """Names and words of families occur in their module alone; constructors are called by their names."""
    source = Path(confide.__file__).parent
    known = {*BY_NAME, *(BY_WORD.keys() - {"linear"})}  # a linear scale is another thing
    for path in source.rglob("*.py"):
        if path.name in ("families.py", "__init__.py") or "experiments" in path.parts:
            continue
        said = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not known & {text for text in said if isinstance(text, str)}, path
