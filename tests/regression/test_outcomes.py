"""Bounded scores: their expectation, slope, variance and bound, against sums and simulation."""

import numpy as np
import pytest

from confide.inference.regression.outcomes import Counts, Numbers, TwoLabels, tabulate_counts

FAMILIES = {
    "labels": (TwoLabels(-0.5), 2.0),
    "numbers": (Numbers(scale=0.7, furthest=9.0), 2.0),
    "counts": (Counts(mean=3.0, furthest=200, dispersion=0.4), 6.0),
}
NORM = 1.3


def outcomes(family, eta, size, rng):
    if isinstance(family, TwoLabels):
        return (rng.random(size) < 1 / (1 + np.exp(-eta))).astype(float)
    if isinstance(family, Numbers):
        return eta + family.scale * rng.standard_normal(size)
    shape = 1 / family.dispersion
    return rng.poisson(rng.gamma(shape, np.exp(eta) / shape, size)).astype(float)


def score(family, y, eta, clip):
    eta = np.full(len(y), eta)
    return family.score(y, eta, family.terms(eta, np.full(len(y), NORM), clip))


@pytest.mark.parametrize("name", FAMILIES)
def test_slope_is_minus_the_derivative_of_the_mean_score(name):
    family, clip = FAMILIES[name]
    y = outcomes(family, 0.8, 400_000, np.random.default_rng(0))
    terms = family.terms(np.array([0.8]), np.array([NORM]), clip)
    derivative = (score(family, y, 0.85, clip).mean() - score(family, y, 0.75, clip).mean()) / 0.1
    assert -derivative == pytest.approx(terms.slope[0], rel=0.03)


@pytest.mark.parametrize("name", FAMILIES)
def test_mean_and_variance_at_the_truth(name):
    family, clip = FAMILIES[name]
    y = outcomes(family, 0.8, 400_000, np.random.default_rng(1))
    psi = score(family, y, 0.8, clip)
    terms = family.terms(np.array([0.8]), np.array([NORM]), clip)
    assert psi.mean() == pytest.approx(0, abs=0.005 * psi.std() + 0.01 * terms.cut[0] * (name == "counts"))
    assert psi.var() == pytest.approx(terms.variance[0], rel=0.03)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_outcome_has_a_larger_score_than_said(name):
    family, clip = FAMILIES[name]
    y = {"labels": np.array([0.0, 1.0]), "numbers": np.linspace(-50, 50, 999)}.get(name, np.arange(201.0))
    for eta in np.linspace(-7, 6, 40):
        psi = score(family, y, eta, clip)
        largest = family.terms(np.array([eta]), np.array([NORM]), clip).largest[0]
        assert np.abs(psi).max() <= largest * (1 + 1e-12)


def test_slope_of_numbers_counts_residuals_that_are_not_cut():
    family, clip = FAMILIES["numbers"]
    y = outcomes(family, 0.0, 200_000, np.random.default_rng(2))
    eta = np.zeros(len(y))
    terms = family.terms(eta, np.full(len(y), NORM), clip)
    assert family.observed_slope(y, eta, terms).mean() == pytest.approx(terms.slope[0], abs=0.005)


def test_counts_beyond_the_cut_against_simulation():
    tables = tabulate_counts(0.5, 100, 2.0)
    rng = np.random.default_rng(3)
    y = rng.poisson(rng.gamma(2, 3.0, 300_000))  # mean 6
    eta, cut = np.array([np.log(6.0)]), np.array([5.0])
    assert tables.read(tables.beyond, eta, cut)[0] == pytest.approx(np.maximum(y - 11, 0).mean(), rel=0.05)


def test_squares_have_their_expectation():
    family = FAMILIES["counts"][0]
    y = outcomes(family, 0.8, 300_000, np.random.default_rng(4))
    eta = np.full(len(y), 0.8)
    assert family.squares(y, eta).mean() == pytest.approx(family.expected_squares(eta[:1])[0], rel=0.02)
