"""Matrices given their noisy releases: shrinkage, doubt, and integrals over normal rows."""

import numpy as np
import pytest

from confide.inference.regression import moments
from confide.inference.regression.outcomes import Counts, Numbers, TwoLabels


def symmetric(rng, d, deviation):
    entries = np.triu(rng.standard_normal((d, d)) / np.sqrt(2), 1)
    return deviation * (entries + entries.T + np.diag(rng.standard_normal(d)))


def example(rng, d=12):
    """A guess, and a matrix whose first diagonal entry is far smaller."""
    guess = np.eye(d) + 0.02 * symmetric(rng, d, 1.0)
    truth = np.eye(d) + symmetric(rng, d, 0.05)
    scale = np.ones(d)
    scale[0] = 0.3
    return guess, scale[:, None] * truth * scale


def test_without_noise_the_matrix_is_the_release():
    guess, truth = example(np.random.default_rng(0))
    posterior = moments.fit_matrix(truth, 1e-4, guess, np.ones(len(truth)))
    assert np.allclose(posterior.matrix, truth, atol=0.02)


def test_shrinkage_is_better_than_the_release_and_knows_its_error():
    rng = np.random.default_rng(1)
    errors, noises, doubts = [], [], []
    for _ in range(20):
        guess, truth = example(rng)
        noisy = truth + symmetric(rng, len(truth), 0.2)
        posterior = moments.fit_matrix(noisy, 0.2, guess, np.ones(len(truth)))
        beside = ~np.eye(len(truth), dtype=bool)
        errors.append(np.mean(np.square(posterior.matrix - truth)[beside]))
        noises.append(np.mean(np.square(noisy - truth)[beside]))
        doubts.append(posterior.variances[beside].mean())
    assert np.mean(errors) < 0.4 * np.mean(noises)
    assert 0.4 < np.mean(errors) / np.mean(doubts) < 2


def test_ratios_are_positive_and_small_where_the_release_says_so():
    guess, truth = example(np.random.default_rng(2))
    posterior = moments.fit_matrix(truth, 0.1, guess, np.ones(len(truth)))
    scales = posterior.draw_scales(2000, np.random.default_rng(3))
    assert np.all(scales > 0)
    assert posterior.matrix[0, 0] < 0.3
    assert np.allclose(np.mean(scales**2, axis=0), 1, atol=0.1)


def test_rare_columns_have_small_entries_beside_the_diagonal():
    rng = np.random.default_rng(4)
    noisy = np.eye(10) + symmetric(rng, 10, 0.3)
    plain = moments.fit_matrix(noisy, 0.3, np.eye(10), np.ones(10))
    rare = moments.fit_matrix(noisy, 0.3, np.eye(10), np.append(0.1, np.ones(9)))
    assert np.abs(rare.matrix[0, 1:]).max() < 0.3 * np.abs(plain.matrix[0, 1:]).max()
    assert rare.variances[0, 1:].max() < 0.05 * plain.variances[0, 1:].max()


def test_a_number_far_out_is_hardly_shrunk():
    scales = np.array([0.01, 0.1, 1.0])
    near, far = (moments.shrink_number(value, 0.05, scales) for value in (0.03, 1.0))
    assert abs(near[0]) < 0.02
    assert far[0] == pytest.approx(1.0, rel=0.02)
    assert far[1] == pytest.approx(0.05**2, rel=0.1)


def test_shrunk_moments_are_near_the_truth():
    rng = np.random.default_rng(5)
    truth = np.eye(15)
    truth[0, 1] = truth[1, 0] = 0.7
    noisy = truth + symmetric(rng, 15, 0.15)
    shrunk = moments.shrink_moments(noisy, 0.15, np.zeros((14, 14)), np.ones(15))
    assert np.square(shrunk.second - truth).mean() < 0.5 * np.square(noisy - truth).mean()
    assert shrunk.second[0, 1] > 0.4
    assert 0 < shrunk.error < 0.15


@pytest.mark.parametrize(
    "family", [TwoLabels(-1.0), Numbers(scale=0.5, furthest=20.0), Counts(mean=2.0, furthest=100, dispersion=0.3)]
)
def test_expected_matrices_against_rows(family):
    rng = np.random.default_rng(6)
    mean, covariance = np.array([0.0, 0.2, 1.0]), np.diag([1.0, 0.5, 1e-12])
    z = mean + rng.standard_normal((200_000, 3)) * np.sqrt(np.diag(covariance))
    position, clip, norm = np.array([0.5, -0.4, 0.3]), 3.0, 1.6
    eta = z @ position + family.offset
    terms = family.terms(eta, norm, clip)
    weights = np.minimum(1.0, clip / (terms.largest * norm))
    slope = (z * (weights * terms.slope)[:, None]).T @ z / len(z)
    variance = (z * (weights**2 * terms.variance)[:, None]).T @ z / len(z)
    rows = moments.NormalRows(1.0, mean, covariance)
    expected = moments.expected_matrices(rows, position, family, clip, norm)
    assert np.allclose(expected[0], slope, atol=0.02 * slope.max())
    assert np.allclose(expected[1], variance, atol=0.02 * variance.max())
