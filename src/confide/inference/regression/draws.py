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
from confide.inference.regression.outcomes import Counts, Numbers, TwoLabels
from confide.inference.regression.program import Result
from confide.inference.regression.slopes import Slopes, change_slopes, solve

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
    posterior, prior = normal_posterior(result), result.prior
    d = len(posterior.mean)
    score_noise = rng.standard_normal((count, d)) @ np.linalg.cholesky(posterior.spread).T
    prior_noise = rng.standard_normal((count, d)) @ np.linalg.cholesky(prior.precision).T
    drawn = slope = Slopes(result.slope.matrix, result.slope.draw_scales(count, rng))
    weights = np.linalg.inv(posterior.spread)
    precision = result.slope.matrix @ weights @ result.slope.matrix + prior.precision
    usual = np.linalg.inv((precision + precision.T) / 2)
    theta = np.tile(posterior.mean, (count, 1))
    for turn in range(1 if isinstance(result.family, Numbers) else ROUNDS):
        # The mode of the posterior where the data and the prior mean are perturbed by their own noise.
        slope = drawn if turn == 0 else change_slopes(result, (theta + result.position) / 2, drawn)
        target = slope.times(np.tile(result.position, (count, 1))) + result.sum + score_noise
        right = slope.times(target @ weights) + prior.precision @ prior.mean + prior_noise
        theta = solve(slope, weights, prior.precision, right, usual, theta)
    shift = rng.standard_normal((count, d)) @ moments.square_root(result.shift_covariance).T
    return theta + result.shift + shift


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


__all__ = ["Counts", "TwoLabels", "draw", "draw_scale", "normal_posterior", "to_coefficients"]
