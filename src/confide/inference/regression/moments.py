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
    mean, left = fit_entries(noisy, np.full(noisy.shape, variance))
    return mean, float(np.mean(left)) if noisy.size else 0.0


def shrink_number(noisy: float, deviation: float, scales: np.ndarray) -> tuple[float, float]:
    """Posterior mean and variance of a number about 0 whose standard deviation is one of `scales`, equally likely."""
    total = np.square(scales) + deviation**2
    log_density = -0.5 * (noisy**2 / total + np.log(total))
    chances = np.exp(log_density - log_density.max())
    chances /= chances.sum()
    kept = np.square(scales) / total
    mean = float(chances @ kept) * noisy
    square = float(chances @ (kept * deviation**2 + (kept * noisy) ** 2))
    return mean, max(square - mean**2, 0.0)


def pair_reach(rarity: np.ndarray) -> np.ndarray:
    """How large the moments of two standardised columns can usually be.

    The standardised column of a level that a share p of the records has is about 1/sqrt(p) there and near 0 elsewhere,
    so that its moment with another column is sqrt(p) times the mean of that column over the level's records."""
    return np.minimum(rarity[:, None], rarity)


class Moments(NamedTuple):
    second: np.ndarray  # the constant comes last
    error: float  # standard deviation of what is left open of an entry


def shrink_moments(noisy: np.ndarray, deviation: float, expected: np.ndarray, rarity: np.ndarray) -> Moments:
    """From noisy second moments, with noise of this standard deviation on the diagonal and 1/sqrt(2) of it elsewhere.
    `expected` holds what is known of entries beside the diagonal, and `rarity` how large they can be (`pair_reach`)."""
    d = len(noisy) - 1
    upper = np.triu_indices(d, 1)
    variance = deviation**2
    constant = float(np.clip(noisy[d, d], 0.3, 1.2)) if deviation < 0.3 else 0.9
    diagonal = np.diag(noisy)[:d]
    level = float(np.clip((diagonal.sum() + 0.8 * variance * 4) / (d + variance * 4), 0.3, 1.5))
    sizes, size_error = shrink_entries(diagonal - level, variance)
    reach = pair_reach(rarity[:d])[upper]
    beside, left = fit_entries((noisy[:d, :d] - expected)[upper] / reach, variance / 2 / reach**2)
    beside, beside_error = reach * beside, float(np.mean(reach**2 * left)) if left.size else 0.0
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


RATIOS = np.geomspace(0.02, 4.0, 240)  # of diagonal entries over their guess, at which their posterior is computed
RATIO_SPREADS = np.array([0.05, 0.2, 0.6, 1.5])  # of log ratios
RATIO_SHARES = np.array([0.5, 0.3, 0.15, 0.05])
MISFIT_SHARES = np.array([0.25, 0.3, 0.3, 0.1, 0.04, 0.01])  # of `ENTRY_SCALES`, for entries over the guess
MISFIT_WEIGHT = 20.0  # entries that these shares count as
ENTRY_LEAST = 0.1  # eigenvalues over those of the diagonal


class MatrixPosterior(NamedTuple):
    """A symmetric matrix R^1/2 (G + g^1/2 E g^1/2) R^1/2 about a guess G with diagonal g.

    R is diagonal: rare levels and columns with long tails have far smaller entries than a guess from normal rows says.
    E has small entries, most of them nearly 0. Both have mixture priors whose shares are fitted to all entries.
    """

    matrix: np.ndarray  # the mean
    variances: np.ndarray  # of entries beside the diagonal
    chances: np.ndarray  # of the `RATIOS` of every diagonal entry
    guess: np.ndarray
    noise: float  # standard deviation of the release, on the diagonal

    @property
    def mean_ratios(self) -> np.ndarray:
        return self.chances @ RATIOS

    def doubt(self, squares: np.ndarray) -> np.ndarray:
        """The covariance of (matrix - mean) v for a vector whose second moments are `squares`, the diagonal apart."""
        return np.diag(self.variances @ np.maximum(np.diag(squares), 0.0))

    def diagonal_doubt(self, squares: np.ndarray) -> np.ndarray:
        """The same of the diagonal."""
        square = np.square(np.diag(self.matrix) / self.mean_ratios)
        variance = square * (self.chances @ RATIOS**2 - self.mean_ratios**2)
        return np.diag(variance * np.maximum(np.diag(squares), 0.0))

    def draw_scales(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws of the roots of the diagonal entries over those of the mean, (count, d)."""
        below, uniform = np.cumsum(self.chances, axis=1), rng.random((count, len(self.chances)))
        columns = [np.searchsorted(row[:-1], draws) for row, draws in zip(below, uniform.T, strict=True)]
        places = np.column_stack(columns)
        return np.sqrt(RATIOS[places] / self.mean_ratios)


def fit_matrix(noisy: np.ndarray, deviation: float, guess: np.ndarray, rarity: np.ndarray) -> MatrixPosterior:
    """The posterior of a matrix that was released with noise of this standard deviation on its diagonal, and 1/sqrt(2)
    of it elsewhere. Entries beside the diagonal have a prior scale that follows from `rarity` (`pair_reach`)."""
    guess = (guess + guess.T) / 2
    usual = np.maximum(np.diag(guess), 3e-3 * np.mean(np.diag(guess)))
    level, level_error = _fit_level(np.diag(noisy), usual, deviation)
    chances = _fit_ratios(np.diag(noisy), level * usual, deviation, level_error)
    ratios = chances @ RATIOS
    roots = np.sqrt(ratios)
    scale = level * np.outer(roots, roots)
    sizes = np.sqrt(level * usual * ratios)
    upper = np.triu_indices(len(usual), 1)
    unit, reach = np.outer(sizes, sizes)[upper], pair_reach(rarity)[upper]
    away = (noisy - scale * guess)[upper] / (unit * reach)
    beside, variance = fit_entries(away, deviation**2 / 2 / (unit * reach) ** 2, MISFIT_SHARES, MISFIT_WEIGHT)
    inner, variances = np.zeros_like(guess), np.zeros_like(guess)
    inner[upper] = reach * beside + (scale * guess)[upper] / unit
    inner = inner + inner.T + np.eye(len(usual))
    variances[upper] = variance * (unit * reach) ** 2
    matrix = sizes[:, None] * floor_eigenvalues(inner, ENTRY_LEAST) * sizes
    return MatrixPosterior(matrix, variances + variances.T, chances, guess, deviation)


def _fit_level(diagonal: np.ndarray, usual: np.ndarray, deviation: float) -> tuple[float, float]:
    """The common factor of the diagonal over its guess, and its standard deviation; about 1 within .3 beforehand."""
    precision = 1 / ((0.3 * usual) ** 2 + deviation**2)
    total = float(np.sum(usual**2 * precision)) + 0.3**-2
    level = (float(np.sum(diagonal * usual * precision)) + 0.3**-2) / total
    return float(np.clip(level, 0.3, 3.0)), total**-0.5


def _fit_ratios(diagonal: np.ndarray, usual: np.ndarray, deviation: float, level_error: float) -> np.ndarray:
    """Chances of the ratios of every diagonal entry."""
    spreads = np.hypot(RATIO_SPREADS, level_error)
    density = np.exp(-0.5 * np.square(np.log(RATIOS) / spreads[:, None]))  # (spreads, ratios)
    density /= density.sum(axis=1, keepdims=True)
    away = (diagonal[:, None] - usual[:, None] * RATIOS) / deviation
    log_likelihood = -0.5 * np.square(away)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    evidence = likelihood @ density.T  # (entries, spreads)
    shares = RATIO_SHARES
    for _ in range(ROUNDS):
        chances = evidence * shares
        chances /= chances.sum(axis=1, keepdims=True)
        shares = (chances.sum(axis=0) + PRIOR_WEIGHT * RATIO_SHARES) / (len(diagonal) + PRIOR_WEIGHT)
    posterior = likelihood * (shares @ density)
    return posterior / posterior.sum(axis=1, keepdims=True)


def fit_entries(
    noisy: np.ndarray, variance: np.ndarray, prior_shares: np.ndarray = ENTRY_SHARES, weight: float = PRIOR_WEIGHT
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and variances of entries about 0 with noise of these variances. The shares of `ENTRY_SCALES` are
    fitted to all entries; the prior shares count as `weight` entries."""
    if not noisy.size:
        return noisy, noisy
    shares, start = prior_shares, weight * prior_shares
    total = ENTRY_SCALES + variance[:, None]
    log_density = -0.5 * noisy[:, None] ** 2 / total - 0.5 * np.log(total)
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    chances = density * shares
    for _ in range(ROUNDS):
        chances = density * shares
        chances /= chances.sum(axis=1, keepdims=True)
        shares = (chances.sum(axis=0) + start) / (noisy.size + weight)
    share = ENTRY_SCALES / total  # of the deviation that is kept
    mean = noisy * np.sum(chances * share, axis=1)
    square = np.sum(chances * (share * variance[:, None] + (share * noisy[:, None]) ** 2), axis=1)
    return mean, np.maximum(square - mean**2, 0.0)
