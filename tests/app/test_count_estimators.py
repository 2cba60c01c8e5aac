"""Estimators of counts: scikit-learn's own checks, what they learn, and what they refuse."""

import pickle

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import confide
from app.test_estimators import CHECKED, conforms
from confide import PrivateNegativeBinomialRegression, PrivatePoissonRegression, Refused
from confide.models.families import NegativeBinomial, Poisson

RNG = np.random.default_rng(0)
N = 4000
X = np.column_stack([RNG.uniform(0, 100, N), RNG.uniform(-1, 1, N)])
MEAN = np.exp(X[:, 0] / 50 + 0.5 * X[:, 1])
SPREAD = RNG.negative_binomial(2, 2 / (2 + MEAN)).astype(float)  # dispersion 0.5
SETTINGS = {"epsilon": 8.0, "bounds": ([0, -1], [100, 1]), "target_bounds": (0, 60), "random_state": 7}
SETTINGS |= {"sampler": confide.sgld()}


@pytest.fixture(scope="module", autouse=True)
def little_optimised():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def visits():
    return PrivateNegativeBinomialRegression(dispersion=0.5, steps=1500, batch_size=500, **SETTINGS).fit(X, SPREAD)


LONGER = CHECKED | {"steps": 2000}  # no step is longer than a bound of the curvature allows


@pytest.mark.long
def test_the_poisson_regression_passes_every_check():
    assert len(conforms(PrivatePoissonRegression(target_bounds=(0, 9), **LONGER))) > 45


@pytest.mark.long
def test_the_negative_binomial_regression_passes_every_check():
    assert len(conforms(PrivateNegativeBinomialRegression(target_bounds=(0, 9), dispersion=0.05, **LONGER))) > 45


def test_arguments_are_those_of_the_family(visits):
    assert visits.posterior_.model.family == NegativeBinomial(0.5)
    made = clone(visits)
    assert made.get_params() == visits.get_params()
    assert "dispersion" not in PrivatePoissonRegression().get_params()
    assert made.set_params(dispersion=2.0).dispersion == 2.0
    poisson = PrivatePoissonRegression(steps=20, **SETTINGS).fit(X[:200], SPREAD[:200])
    assert poisson.posterior_.model.family == Poisson(60.0)


def test_coefficients_are_of_the_logarithm_of_the_mean(visits):
    assert confide.verify(visits.guarantee_) <= 8.0
    np.testing.assert_allclose(visits.coef_ * [100, 1], [2.0, 0.5], atol=0.35)
    rows = np.column_stack([X[:, 0] / 50 - 1, X[:, 1], np.ones(N)])
    draws = np.asarray(visits.posterior_.draws["weights"], np.float64).reshape(-1, 3)
    np.testing.assert_allclose(visits.predict(X[:50]), np.exp(rows[:50] @ draws.T).mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(X @ visits.coef_ + visits.intercept_, rows @ draws.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(visits)).predict(X[:5]), visits.predict(X[:5]))


@pytest.mark.long
def test_intervals_know_the_dispersion(visits):
    """A negative binomial's hold what they say; the same posterior read as a Poisson's would be too narrow."""
    low, high = visits.predict_interval(X[:400], probability=0.8).T
    assert np.all(low >= 0)
    assert 0.76 < np.mean((low <= SPREAD[:400]) & (high >= SPREAD[:400])) < 0.93
    assert np.mean(high - low) > 1.3 * np.mean(2 * 1.28 * np.sqrt(MEAN[:400]))


def test_counts_are_rounded_and_cut_to_their_bounds():
    whole = PrivatePoissonRegression(steps=20, **SETTINGS)
    found = whole.fit(X[:50], SPREAD[:50]).coef_
    moved = np.where(SPREAD[:50] == SPREAD[:50].max(), SPREAD[:50], SPREAD[:50] + 0.3)
    assert np.array_equal(found, whole.fit(X[:50], moved).coef_)


BAD = {
    "no bounds": ({"target_bounds": None}, "target_bounds is missing"),
    "below zero": ({"target_bounds": (-1, 5)}, "not of counts"),
    "not whole": ({"target_bounds": (0, 5.5)}, "not of counts"),
    "dispersion": ({"dispersion": 0.0}, "dispersion = 0 is not positive"),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    more, words = BAD[case]
    with pytest.raises(Refused, match=words):
        PrivateNegativeBinomialRegression(**SETTINGS | more).fit(X, SPREAD)


@pytest.mark.filterwarnings("ignore::confide.SpendsBudgetWarning")
def test_folds_work():
    scores = cross_val_score(PrivatePoissonRegression(steps=20, **SETTINGS), X[:300], SPREAD[:300], cv=2)
    assert np.all(np.isfinite(scores))
