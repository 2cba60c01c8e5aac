r"""Draws of the coefficients given the answers of a private regression, and nothing else.

At the last position t the mean of all answers is g = J (theta - t) + xi + e, where xi ~ N(0, V) is the sampling noise
of the scores and e ~ N(0, s^2 I) the noise of the queries. J and V have posteriors given their noisy releases. The mean
of V enters. The diagonal of J is drawn anew for every draw of theta: where little is known of an entry, its coefficient
has long tails. What is left open of the other entries adds the covariance of (J - E J)(theta - t) to the noise. Where
the slope depends on theta, J is taken at the midpoint of t and the draw.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.inference.regression import moments
from confide.inference.regression.outcomes import NODES, WEIGHTS, Counts, Numbers, TwoLabels
from confide.inference.regression.program import Result

ROUNDS = 3  # in which the covariance and what is left open of J settle


class Gaussian(NamedTuple):
    """The normal posterior with J at the last position."""

    mean: np.ndarray
    covariance: np.ndarray
    spread: np.ndarray  # covariance of the mean score


def normal_posterior(result: Result) -> Gaussian:
    slope, prior = result.slope.matrix, result.prior
    d = len(slope)
    known = result.variance.matrix + result.noise * np.eye(d)
    spread, mean, covariance = known, result.position, np.linalg.inv(prior.precision)
    for _ in range(ROUNDS):
        weighted = np.linalg.solve(spread, slope)
        precision = slope @ weighted + prior.precision
        covariance = np.linalg.inv((precision + precision.T) / 2)
        right = weighted.T @ (slope @ result.position + result.sum) + prior.precision @ prior.mean
        mean = covariance @ right
        away = mean - result.position
        squares = covariance + np.outer(away, away)
        spread = known + result.slope.doubt(squares)
    return Gaussian(mean, covariance, spread)


def draw(result: Result, count: int, rng: np.random.Generator) -> np.ndarray:
    """Coefficients in whitened coordinates, (count, coefficients)."""
    posterior = normal_posterior(result)
    d = len(posterior.mean)
    score_noise = rng.standard_normal((count, d)) @ np.linalg.cholesky(posterior.spread).T
    prior_root = np.linalg.cholesky(result.prior.precision)
    prior_noise = rng.standard_normal((count, d)) @ prior_root.T
    scales = result.slope.draw_scales(count, rng)
    slope = drawn = scales[:, :, None] * result.slope.matrix * scales[:, None, :]
    weights = np.linalg.inv(posterior.spread)
    rounds = 1 if isinstance(result.family, Numbers) else 3
    right = result.prior.precision @ result.prior.mean + prior_noise
    theta = np.zeros((count, d))
    for turn in range(rounds):
        # The mode of the posterior where the data and the prior mean are perturbed by their own noise.
        weighted = slope @ weights
        precision = weighted @ slope + result.prior.precision
        target = slope @ result.position + result.sum + score_noise
        total = np.einsum("kij,kj->ki", weighted, target) + right
        theta = np.linalg.solve(precision, total[:, :, None])[:, :, 0]
        if turn + 1 < rounds:
            slope = slopes_at(result, (theta + result.position) / 2, drawn)
    shift = rng.standard_normal((count, d)) @ moments.square_root(result.shift_covariance).T
    return theta + result.shift + shift


def slopes_at(result: Result, positions: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """The slope at each position: that at the last query, changed as that of normal rows changes."""
    base = _shape(result, result.position[None])
    other = _shape(result, positions)
    level = np.clip(other.level / base.level, 0.05, 20.0)
    matrix = level[:, None, None] * slopes
    matrix = matrix + other.bend[:, None, None] * other.along[:, :, None] * other.along[:, None, :]
    old = base.bend[0] * np.outer(base.along[0], base.along[0])
    matrix = matrix - level[:, None, None] * old
    values, vectors = np.linalg.eigh(matrix)
    least = 0.05 * level[:, None] * np.linalg.eigvalsh(slopes)[:, :1]
    return (vectors * np.maximum(values, least)[:, None, :]) @ np.swapaxes(vectors, 1, 2)


class Shape(NamedTuple):
    """The slope of normal rows is level (S + mean mean^T) + bend along along^T, and terms of first order."""

    level: np.ndarray
    bend: np.ndarray
    along: np.ndarray


def _shape(result: Result, positions: np.ndarray) -> Shape:
    rows, family = result.frame.rows, result.family
    along = positions @ rows.covariance
    spread = np.sqrt(np.maximum(np.einsum("ki,ki->k", along, positions), 1e-10))
    center = positions @ rows.mean + family.offset
    eta = center[:, None] + spread[:, None] * NODES
    terms = family.terms(eta, result.frame.norm, result.cut.clip)
    height = np.minimum(1.0, result.cut.clip / (terms.largest * result.frame.norm)) * terms.slope
    e0, e2 = height @ WEIGHTS, height @ (WEIGHTS * NODES**2)
    return Shape(rows.number * e0, rows.number * (e2 - e0), along / spread[:, None])


def to_coefficients(result: Result, theta: np.ndarray) -> np.ndarray:
    """Coefficients of the features as they are encoded, with those of reference levels 0 and the intercept last."""
    frame, location = result.frame, result.frame.location
    standardised = (theta @ frame.whiten) * frame.stretch  # A is symmetric
    standardised[:, -1] += result.family.offset
    kept = list(frame.kept)
    scale = location.outcome_spread if isinstance(result.family, Numbers) else 1.0
    coefficients = np.zeros((len(theta), len(location.center) + 1))
    coefficients[:, kept] = scale * standardised[:, :-1] / location.spread[kept]
    intercept = scale * standardised[:, -1] - coefficients[:, :-1] @ location.center
    coefficients[:, -1] = intercept + (location.outcome_center if isinstance(result.family, Numbers) else 0.0)
    return coefficients


def draw_scale(result: Result, count: int, rng: np.random.Generator) -> np.ndarray | None:
    """The residual standard deviation, in the unit of the outcome; None where there is none."""
    if not isinstance(result.family, Numbers):
        return None
    assert result.scale is not None
    mean, variance = result.scale
    return result.frame.location.outcome_spread * np.abs(mean + np.sqrt(variance) * rng.standard_normal(count))


__all__ = ["Counts", "TwoLabels", "draw", "draw_scale", "normal_posterior", "slopes_at", "to_coefficients"]
