"""Inference from noisy sufficient statistics of a linear model, which knows of the noise.

With A~ = X^T X + E, b~ = X^T y + e and q~ = y^T y + noise, E symmetric with variance tau_A^2 on and tau_A^2 / 2 off its
diagonal, e of variance tau_b^2:

**Inference.** y = X theta + N(0, s^2 I), so b~ - A~ theta = X^T(y - X theta) + e - E theta. Given the statistics, with
a flat prior on X^T X, the three parts are independent, and the last has covariance tau_A^2 (||theta||^2 I + theta
theta^T)/2 (Var of its i-th entry: sum_j theta_j^2 tau_A^2/2, and theta_i^2 tau_A^2/2 more from the diagonal):

    b~ - A~ theta ~ N(0, C),     C = s^2 A~ + tau_b^2 I + tau_A^2 (||theta||^2 I + theta theta^T) / 2.

With the prior N(0, p^2 I) and C held, theta is Gaussian with precision P = A~ C^-1 A~ + I/p^2 and mean P^-1 A~ C^-1 b~.
C is evaluated at that mean, iterated to a fixed point. `wide` evaluates it at the expectation of theta theta^T instead,
with the spread of theta: over 500 datasets of 1,000 records at epsilon 0.1 and a known s, 90% intervals then cover 92
to 97%, and 87 to 95% without; where s is estimated they need it (88% with, 86% without, for five coefficients). No step
asks A~ to be positive: the precision is a square plus the prior, so where noise drowns the data the answer is the
prior. In C alone A~ is replaced by its positive part.

**Residual variance.** Known, as the model says; or estimated: s gets a flat prior over a grid of logarithms from Y/300
to Y, weighed by how well it explains b~ and the noisy residual sum of squares

    R = q~ - 2 theta^T b~ + theta^T A~ theta
      ~ N(n s^2, 2 n s^4 + tau_q^2 + 4 tau_b^2 ||theta||^2 + tau_A^2 ||theta||^4),

with R's mean and variance over theta added. A draw takes s from its weights and then theta, so the width of both is in
the draws. The draws are post-processing: their number costs nothing.

Treating noisy statistics as exact (`plug_in`) gives intervals that are far too narrow. At small epsilon the prior has
much weight, as it should: intervals are calibrated where the prior is, and too wide where it is too wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

GRID = 24  # residual scales that are weighed
FINEST = 300.0  # the smallest of them, below the outcome bound
ROUNDS = 100  # of the fixed point, which is near after twenty


class Statistics(NamedTuple):
    """Noisy statistics in the units of the data, of one dataset or of many along leading axes."""

    matrix: np.ndarray  # (..., d, d)
    vector: np.ndarray  # (..., d)
    square: np.ndarray | None  # (...)
    records: int
    matrix_scale: float
    vector_scale: float
    square_scale: float


class Gaussian(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray
    log_evidence: np.ndarray  # of the vector, given the matrix


def coefficients(found: Statistics, variance: np.ndarray | float, prior_scale: float, wide: bool = False) -> Gaussian:
    """The coefficients given the residual variance, which broadcasts against the leading axes."""
    size = found.vector.shape[-1]
    identity = np.eye(size)
    values, vectors = np.linalg.eigh(found.matrix)
    positive = (vectors * np.maximum(values, 0.0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    known = np.asarray(variance)[..., None, None] * positive + found.vector_scale**2 * identity
    matrix = np.broadcast_to(found.matrix, known.shape)
    vector = np.broadcast_to(found.vector, known.shape[:-1])[..., None]
    mean, covariance, spread = np.zeros_like(vector), np.zeros_like(known), known
    for _ in range(ROUNDS):
        moment = mean @ np.swapaxes(mean, -1, -2) + (covariance if wide else 0.0)
        trace = np.trace(moment, axis1=-2, axis2=-1)[..., None, None]
        spread = known + found.matrix_scale**2 * (trace * identity + moment) / 2
        weighed = np.linalg.solve(spread, matrix)
        inverse = np.linalg.inv(matrix @ weighed + identity / prior_scale**2)
        covariance = (inverse + np.swapaxes(inverse, -1, -2)) / 2
        before, mean = mean, covariance @ (np.swapaxes(weighed, -1, -2) @ vector)
        if np.max(np.abs(mean - before)) < 1e-6 * prior_scale:
            break
        mean = (mean + before) / 2
    total = spread + prior_scale**2 * matrix @ matrix
    _, determinant = np.linalg.slogdet(total)
    explained = (np.swapaxes(vector, -1, -2) @ np.linalg.solve(total, vector))[..., 0, 0]
    return Gaussian(mean[..., 0], covariance, -(determinant + explained) / 2)


def residual_scales(found: Statistics, prior_scale: float, outcome_bound: float) -> tuple[np.ndarray, Any, np.ndarray]:
    """A grid of residual scales, the coefficients given each (along a last leading axis), and their weights."""
    scales = np.geomspace(outcome_bound / FINEST, outcome_bound, GRID)
    given, logs = weigh_scales(found, prior_scale, scales)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return scales, given, weights / weights.sum(axis=-1, keepdims=True)


def weigh_scales(found: Statistics, prior_scale: float, scales: np.ndarray) -> tuple[Gaussian, np.ndarray]:
    """The coefficients given each residual scale (along a last leading axis), and its log likelihood."""
    assert found.square is not None
    every = found._replace(matrix=found.matrix[..., None, :, :], vector=found.vector[..., None, :])
    given = coefficients(every, scales**2, prior_scale, wide=True)
    mean, covariance = given.mean[..., None], given.covariance
    slope = every.vector[..., None] - every.matrix @ mean
    moved = every.matrix @ covariance
    crossed = (np.swapaxes(mean, -1, -2) @ (slope + every.vector[..., None]))[..., 0, 0]
    left = found.square[..., None] - crossed + np.trace(moved, axis1=-2, axis2=-1)
    length = np.sum(mean[..., 0] ** 2, axis=-1) + np.trace(covariance, axis1=-2, axis2=-1)
    noise = (
        found.square_scale**2
        + 4 * found.vector_scale**2 * length
        + found.matrix_scale**2 * length**2
        + 4 * (np.swapaxes(slope, -1, -2) @ covariance @ slope)[..., 0, 0]
        + 2 * np.trace(moved @ moved, axis1=-2, axis2=-1)
    )
    width = 2 * found.records * scales**4 + noise
    return given, given.log_evidence - (np.log(width) + (left - found.records * scales**2) ** 2 / width) / 2


def plug_in(found: Statistics, variance: float, prior_scale: float) -> Gaussian:
    """What not to do: the statistics taken for exact."""
    values, vectors = np.linalg.eigh(found.matrix)
    precision = np.maximum(values, 0.0) / variance + prior_scale**-2.0
    covariance = (vectors / precision[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    mean = (covariance @ found.vector[..., None])[..., 0] / variance
    return Gaussian(mean, covariance, np.full(mean.shape[:-1], np.nan))
