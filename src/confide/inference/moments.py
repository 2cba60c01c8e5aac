r"""What noisy information tells of the rows: their second moments, shrunk by the noise that is known.

Where all scores are alike, the information is a multiple of S = E z z^T up to the weights of rows, and its noise is
known, so that entries are shrunk to what a design without structure has: the trace to the squared norm that was bought,
features to mean zero, equal spread and no correlation. Each kind of entry is multiplied by E[tau^2 / (tau^2 + v)], v
the variance of its noise, under a log-uniform scale tau of its own. The place of a constant, if rows have one, is
public: it tells their mean.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

SCALES = 120  # of a log-uniform grid
FITTED, ROUNDS = 2000, 60  # entries that a mixture is fitted to, and how often
SMALLEST = 1e-5  # eigenvalue, over the largest
PRIOR = 2.0  # eigenvalues that a prior of all scales counts as
LEAST = 0.1  # variance of a feature, over their mean


class Moments(NamedTuple):
    """Of rows with their constant."""

    mean: np.ndarray
    covariance: np.ndarray


class Shrunk(NamedTuple):
    second: np.ndarray  # S
    variances: np.ndarray  # of what is left of the noise in its entries


def keep_share(squares: float, count: int, variance: float, largest: float) -> float:
    """E[tau^2 / (tau^2 + v)] given the sum of squares of so many entries, tau^2 log-uniform up to `largest`."""
    low = 1e-6 * variance + 1e-300
    tau = np.exp(np.linspace(math.log(low), math.log(max(largest, 10 * low)), SCALES))
    total = tau + variance
    log_density = -count / 2 * np.log(total) - squares / 2 / total
    density = np.exp(log_density - log_density.max())
    return float(np.sum(density * tau / total) / np.sum(density))


def shrink_each(noisy: np.ndarray, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of entries about 0 that were seen with noise of this variance.

    Their prior is a mixture of normals of many scales, fitted to all of them (Stephens 2017), with a root of their
    number more at 0: few large entries among many small ones stay as they are.
    """
    if not noisy.size:
        return noisy, noisy
    scales = variance * np.concatenate([[0.0], np.geomspace(0.04, 4e4, 16)])
    total = scales + variance

    def weigh(entries: np.ndarray) -> np.ndarray:
        log_density = -0.5 * np.log(total) - 0.5 * entries[:, None] ** 2 / total
        return np.exp(log_density - log_density.max(axis=1, keepdims=True))

    few = np.sort(np.abs(noisy))[np.linspace(0, noisy.size - 1, min(noisy.size, FITTED)).astype(np.int64)]
    density, shares = weigh(few), np.full(scales.size, 1 / scales.size)
    for _ in range(ROUNDS):
        chances = density * shares
        shares = np.mean(chances / chances.sum(axis=1, keepdims=True), axis=0)
        shares[0] += noisy.size**-0.5
        shares /= shares.sum()
    chances = weigh(noisy) * shares
    chances /= chances.sum(axis=1, keepdims=True)
    kept = scales / total
    mean = noisy * (chances @ kept)
    square = noisy**2 * (chances @ kept**2) + variance * (chances @ kept)
    return mean, square - mean**2


def shrink(noisy: np.ndarray, variance: float, squared_norm: float, constant: int | None) -> Shrunk:
    """Second moments whose entries have noise of this variance on the diagonal, and half of it beside."""
    if constant is None:
        return _shrink(noisy, variance, squared_norm, 0)
    order = np.argsort(np.arange(len(noisy)) != constant, kind="stable")  # the constant first
    found, back = _shrink(noisy[np.ix_(order, order)], variance, squared_norm, 1), np.argsort(order)
    return Shrunk(*(each[np.ix_(back, back)] for each in found))


def _shrink(noisy: np.ndarray, variance: float, squared_norm: float, first: int) -> Shrunk:
    """With a constant at place 0, or none."""
    features = noisy[first:, first:]
    d = len(features)
    found, left = np.zeros_like(noisy), np.zeros_like(noisy)
    usual = max(squared_norm - first, 0.05 * squared_norm) / max(d, 1)
    if first:
        share = keep_share((noisy[0, 0] - 1) ** 2, 1, variance, 0.1)
        found[0, 0], left[0, 0] = max(1 + share * (noisy[0, 0] - 1), 0.5), share * variance
        found[0, 1:], left[0, 1:] = shrink_each(noisy[0, 1:], variance / 2)
        found[1:, 0], left[1:, 0] = found[0, 1:], left[0, 1:]
    if d:
        diagonal = np.diag(features)
        away = float(diagonal.mean()) - usual
        level = max(usual + keep_share(d * away**2, 1, variance, d * usual**2) * away, 0.05 * usual)
        spread, unsure = shrink_each(diagonal - diagonal.mean(), variance)
        sizes = np.maximum(level + spread, LEAST * level)
        upper = np.triu_indices(d, 1)
        block, doubt = np.zeros((d, d)), np.zeros((d, d))
        block[upper], doubt[upper] = shrink_each(features[upper], variance / 2)
        found[first:, first:] = block + block.T + np.diag(sizes * level * d / sizes.sum())
        left[first:, first:] = doubt + doubt.T + np.diag(unsure)
    return Shrunk(found, left)


def decompose(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors, each with its largest entry above 0: what is drawn along them depends on signs."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None], axis=0)
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def floor_eigenvalues(matrix: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of at least this share of their mean, and eigenvectors."""
    values, vectors = decompose(matrix)
    least = share * max(float(np.mean(np.maximum(values, 0.0))), 1e-300)
    return np.maximum(values, least), vectors


def shrink_eigenvalues(matrix: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The matrix with each eigenvalue as it is expected to be, after noise of these variances in its entries.

    Their prior is a mixture of all scales that is fitted to them: where some stand out and others are within the noise,
    these may well be nothing, as where columns add up to a constant.
    """
    values, vectors = decompose(matrix)
    turned = np.square(vectors.T)
    noise = np.maximum(np.einsum("ij,jk,ik->i", turned, variances, turned), 1e-300)
    largest = max(float(values[-1]), 1e-300)
    grid = np.exp(np.linspace(math.log(SMALLEST * largest), math.log(4 * largest), SCALES))
    log_density = -0.5 * (values[:, None] - grid) ** 2 / noise[:, None]
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    shares = np.full(grid.size, 1 / grid.size)
    for _ in range(ROUNDS):
        chances = density * shares
        chances /= chances.sum(axis=1, keepdims=True)
        shares = (chances.sum(axis=0) + PRIOR / grid.size) / (len(values) + PRIOR)
    density = density * shares
    found = np.sum(density * grid, axis=1) / np.sum(density, axis=1)
    resolved = noise < (0.02 * values) ** 2  # where the grid is too wide, and changes nothing
    return rebuild(np.where(resolved, values, found), vectors)


def rebuild(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (vectors * values) @ vectors.T


def split(second: np.ndarray, constant: int | None) -> Moments:
    """Mean and covariance behind second moments; without a constant nothing tells the mean, which is taken as 0."""
    if constant is None:
        return Moments(np.zeros(len(second)), rebuild(*floor_eigenvalues(second, 1e-9)))
    scaled = second / max(float(second[constant, constant]), 1e-12)
    mean = scaled[:, constant].copy()
    mean[constant] = 1.0
    covariance = scaled - np.outer(mean, mean)
    covariance[constant], covariance[:, constant] = 0.0, 0.0
    values, vectors = decompose(covariance)
    return Moments(mean, rebuild(np.maximum(values, 0.0), vectors))
