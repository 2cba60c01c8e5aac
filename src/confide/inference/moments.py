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


class Moments(NamedTuple):
    """Of rows with their constant."""

    mean: np.ndarray
    covariance: np.ndarray


class Shrunk(NamedTuple):
    second: np.ndarray  # S
    kept: float  # the largest factor: how much of the noise is still in it


def keep_share(squares: float, count: int, variance: float, largest: float) -> float:
    """E[tau^2 / (tau^2 + v)] given the sum of squares of so many entries, tau^2 log-uniform up to `largest`."""
    low = 1e-6 * variance + 1e-300
    tau = np.exp(np.linspace(math.log(low), math.log(max(largest, 10 * low)), SCALES))
    total = tau + variance
    log_density = -count / 2 * np.log(total) - squares / 2 / total
    density = np.exp(log_density - log_density.max())
    return float(np.sum(density * tau / total) / np.sum(density))


def shrink(noisy: np.ndarray, variance: float, squared_norm: float, constant: int | None) -> Shrunk:
    """Second moments whose entries have noise of this variance on the diagonal, and half of it beside."""
    if constant is None:
        return _shrink(noisy, variance, squared_norm, 0)
    order = np.argsort(np.arange(len(noisy)) != constant, kind="stable")  # the constant first
    found, back = _shrink(noisy[np.ix_(order, order)], variance, squared_norm, 1), np.argsort(order)
    return Shrunk(found.second[np.ix_(back, back)], found.kept)


def _shrink(noisy: np.ndarray, variance: float, squared_norm: float, first: int) -> Shrunk:
    """With a constant at place 0, or none."""
    features = noisy[first:, first:]
    d = len(features)
    found, kept = np.zeros_like(noisy), [0.02]
    usual = max(squared_norm - first, 0.05 * squared_norm) / max(d, 1)
    if first:
        share = keep_share((noisy[0, 0] - 1) ** 2, 1, variance, 0.1)
        found[0, 0] = max(1 + share * (noisy[0, 0] - 1), 0.5)
        share = keep_share(float(np.sum(noisy[0, 1:] ** 2)), d, variance / 2, usual)
        found[0, 1:] = found[1:, 0] = share * noisy[0, 1:]
        kept.append(share)
    if d:
        diagonal = np.diag(features)
        away = float(diagonal.mean()) - usual
        level = max(usual + keep_share(d * away**2, 1, variance, d * usual**2) * away, 0.05 * usual)
        spread = diagonal - diagonal.mean()
        share = keep_share(float(np.sum(spread**2)), max(d - 1, 1), variance, level**2)
        upper = np.triu_indices(d, 1)
        beside = features[upper]
        other = keep_share(float(np.sum(beside**2)), beside.size, variance / 2, level**2) if beside.size else 0.0
        block = np.zeros((d, d))
        block[upper] = other * beside
        found[first:, first:] = block + block.T + np.diag(level + share * spread)
        kept += [share, other]
    return Shrunk(found, max(kept))


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
