r"""Second moments of standardised rows from their noisy sum, and matrices that are known about a guess.

Entries are shrunk towards those of independent standardised columns. Off-diagonal entries, diagonal entries and the
column of the constant each have a prior that is a mixture of normal distributions of several public scales, whose
shares are fitted to all entries (Stephens 2017), so that few large entries among many small ones are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.inference.regression.outcomes import NODES, WEIGHTS, Outcomes

ENTRY_SCALES = np.square([0.01, 0.03, 0.08, 0.15, 0.3, 0.6])
ENTRY_SHARES = np.array([0.3, 0.2, 0.2, 0.15, 0.1, 0.05])
PRIOR_WEIGHT = 4.0  # entries that the public shares count as
ROUNDS = 30


def eigen(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors, each with its largest entry above 0."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None], axis=0)
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def floor_eigenvalues(matrix: np.ndarray, least: float) -> np.ndarray:
    values, vectors = eigen(matrix)
    return (vectors * np.maximum(values, least)) @ vectors.T


def square_root(matrix: np.ndarray, least: float = 0.0) -> np.ndarray:
    values, vectors = eigen(matrix)
    return (vectors * np.sqrt(np.maximum(values, least))) @ vectors.T


def shrink_entries(noisy: np.ndarray, variance: float) -> tuple[np.ndarray, float]:
    """Posterior means of entries with noise of this variance, and the mean of their posterior variances."""
    if not noisy.size:
        return noisy, 0.0
    shares, start = ENTRY_SHARES, PRIOR_WEIGHT * ENTRY_SHARES
    total = ENTRY_SCALES + variance
    for _ in range(ROUNDS):
        density = -0.5 * noisy[:, None] ** 2 / total - 0.5 * np.log(total) + np.log(shares)
        chances = np.exp(density - density.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        shares = (chances.sum(axis=0) + start) / (noisy.size + PRIOR_WEIGHT)
    kept = ENTRY_SCALES / total
    mean = noisy * (chances @ kept)
    square = chances @ (kept * variance) + (chances @ kept**2) * noisy**2
    return mean, float(np.mean(square - mean**2))


class Moments(NamedTuple):
    second: np.ndarray  # the constant comes last
    error: float  # standard deviation of what is left open of an entry


def shrink_moments(noisy: np.ndarray, deviation: float, expected: np.ndarray) -> Moments:
    """From noisy second moments, with noise of this standard deviation on the diagonal and 1/sqrt(2) of it elsewhere.
    `expected` holds what is known of entries beside the diagonal."""
    d = len(noisy) - 1
    upper = np.triu_indices(d, 1)
    variance = deviation**2
    constant = float(np.clip(noisy[d, d], 0.3, 1.2)) if deviation < 0.3 else 0.9
    diagonal = np.diag(noisy)[:d]
    level = float(np.clip((diagonal.sum() + 0.8 * variance * 4) / (d + variance * 4), 0.3, 1.5))
    sizes, size_error = shrink_entries(diagonal - level, variance)
    beside, beside_error = shrink_entries((noisy[:d, :d] - expected)[upper], variance / 2)
    means, mean_error = shrink_entries(noisy[:d, d], variance / 2)
    second = np.zeros_like(noisy)
    second[upper] = beside + expected[upper]
    second += second.T
    second[np.arange(d), np.arange(d)] = np.maximum(level + sizes, 0.1 * level)
    second[:d, d] = second[d, :d] = means
    second[d, d] = constant
    total = 2 * beside_error * d * (d - 1) / 2 + size_error * d + 2 * mean_error * d + variance
    return Moments(second, float(np.sqrt(max(total, 0.0) / ((d + 1) * (d + 2) / 2))))


class NormalRows(NamedTuple):
    """Rows that are taken as normal: `number` of them, with this mean and covariance; the intercept is in the mean."""

    number: float
    mean: np.ndarray
    covariance: np.ndarray


def predictor(rows: NormalRows, position: np.ndarray, offset: float) -> tuple[float, float]:
    """Mean and standard deviation of the linear predictor."""
    variance = float(position @ rows.covariance @ position)
    return float(rows.mean @ position) + offset, float(np.sqrt(max(variance, 1e-10)))


def expected_matrices(
    rows: NormalRows, position: np.ndarray, family: Outcomes, clip: float, norm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Slope and variance of the sum of scores of normal rows, all of the usual norm, by integrals over eta."""
    center, spread = predictor(rows, position, family.offset)
    terms = family.terms(center + spread * NODES, norm, clip)
    weights = np.minimum(1.0, clip / (terms.largest * norm))
    along = rows.covariance @ position / spread
    matrices = []
    for height in (weights * terms.slope, weights**2 * terms.variance):
        e0, e1, e2 = WEIGHTS @ height, WEIGHTS @ (height * NODES), WEIGHTS @ (height * NODES**2)
        both = np.outer(rows.mean, along)
        matrix = e0 * (rows.covariance + np.outer(rows.mean, rows.mean)) + e1 * (both + both.T)
        matrices.append(rows.number * (matrix + (e2 - e0) * np.outer(along, along)))
    return matrices[0], matrices[1]


class MatrixPosterior(NamedTuple):
    """A symmetric matrix L^1/2 ((1 + a) I + E) L^1/2 in the eigenbasis of a guess, L its eigenvalues.

    a is a common factor and E has independent entries, both of unknown size; the matrix was released with noise.
    """

    basis: np.ndarray
    mean: np.ndarray  # in that basis
    variances: np.ndarray  # of its entries
    factor_variance: float  # of a
    values: np.ndarray  # L
    misfit: float  # standard deviation of the entries of E

    @property
    def matrix(self) -> np.ndarray:
        return self.basis @ self.mean @ self.basis.T

    def doubt(self, squares: np.ndarray) -> np.ndarray:
        """The covariance of (matrix - mean) v for a vector whose second moments are `squares`."""
        inside = np.maximum(np.diag(self.basis.T @ squares @ self.basis), 0.0)
        variance = self.variances @ inside + self.factor_variance * self.values**2 * inside
        return (self.basis * variance) @ self.basis.T


MISFITS = np.geomspace(0.003, 0.5, 24)


def fit_matrix(
    noisy: np.ndarray, deviation: float, guess: np.ndarray, most: float, factor_spread: float = 0.3, least: float = 0.2
) -> MatrixPosterior:
    """The posterior of a released matrix about a guess. `most` is the usual size of its misfit, `factor_spread` that of
    the common factor, and `least` the smallest eigenvalue of the matrix over the guess."""
    values, basis = eigen(guess)
    values = np.maximum(values, 3e-3 * values.mean())
    noise = deviation**2
    scale = np.outer(values, values)
    upper = np.triu_indices(len(values))
    half = np.where(upper[0] == upper[1], 1.0, 0.5)
    away = basis.T @ noisy @ basis - np.diag(values)
    factor, misfit, factor_variance = 0.0, 0.15, 0.0
    for _ in range(3):
        precision = 1 / (misfit**2 * values**2 + noise)
        factor_variance = 1 / (np.sum(values**2 * precision) + 1 / factor_spread**2)
        factor = float(np.sum(np.diag(away) * values * precision) * factor_variance)
        rest = (away - factor * np.diag(values))[upper]
        total = half * (MISFITS[:, None] ** 2 * scale[upper] + noise)
        density = -0.5 * np.sum(rest**2 / total + np.log(total), axis=1) - 0.5 * np.log1p((MISFITS / most) ** 2)
        chances = np.exp(density - density.max())
        chances /= chances.sum()
        misfit = float(chances @ MISFITS)
    kept = np.einsum("t,tij->ij", chances, 1 / (1 + noise / (MISFITS[:, None, None] ** 2 * scale)))
    roots = np.sqrt(values)
    inner = (1 + max(factor, -0.7)) * np.eye(len(values)) + kept * (away - factor * np.diag(values)) / np.outer(
        roots, roots
    )
    mean = roots[:, None] * floor_eigenvalues(inner, least) * roots
    variances = np.where(np.eye(len(values)) > 0, 1.0, 0.5) * kept * noise
    return MatrixPosterior(basis, mean, variances, factor_variance, values, misfit)
