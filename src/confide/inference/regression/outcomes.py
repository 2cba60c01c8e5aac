r"""Bounded scores of one outcome family in the linear predictor eta, with their expectation, slope and variance.

A record contributes w psi z to a sum of scores, where z is its standardised row, psi its bounded residual and w a
weight that depends on z alone. Every family knows, for a linear predictor and a row norm,

- `largest`: the largest |psi| over all outcomes, from which w follows,
- `slope`: minus the derivative of E psi by eta at the truth,
- `variance`: E psi^2 at the truth, where the variance is the family's,
- `center`: what is subtracted, so that E psi = 0 at the truth,
- `cut`: where the residual is cut.

The targets are those of the field: the likelihood for two labels, least squares for numbers, and the Poisson
quasi-likelihood for counts, whose variance is free: the residual y - m is cut at k, and what is subtracted is its
expectation under a negative binomial distribution with a dispersion that is learnt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = WEIGHTS / WEIGHTS.sum()  # of a standard normal distribution
LEAST_CUT = 1.5  # residual scales at which a number is cut at the least
CUTS = 16  # at which moments of counts are tabulated
STEEPEST = 30.0  # linear predictors of labels are cut here


class ScoreTerms(NamedTuple):
    """What is known of a bounded score before the outcome is."""

    largest: np.ndarray
    slope: np.ndarray
    variance: np.ndarray
    center: np.ndarray
    cut: np.ndarray


@dataclass(frozen=True)
class TwoLabels:
    """Logistic regression: psi = y - P(y = 1)."""

    offset: float  # linear predictor at a standardised row of zeros, before the first step

    learns_scale = False

    def terms(self, eta: np.ndarray, norms: Any, clip: float) -> ScoreTerms:
        mean = special.expit(np.clip(eta, -STEEPEST, STEEPEST))
        return ScoreTerms(np.maximum(mean, 1 - mean), mean * (1 - mean), mean * (1 - mean), mean, np.ones_like(mean))

    def score(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return y - terms.center

    def observed_slope(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return terms.slope

    def usual(self) -> tuple[float, float]:
        """Variance and largest |psi| at the offset."""
        mean = float(special.expit(self.offset))
        return mean * (1 - mean), max(mean, 1 - mean)


@dataclass(frozen=True)
class Numbers:
    """Linear regression on a standardised outcome: psi is the residual, cut at k times the residual scale.

    Rows with a large norm have a smaller cut, k = clip / (scale norm), down to `LEAST_CUT`, and are down-weighted only
    beyond it (Schweppe's form).
    """

    scale: float = 1.0  # residual standard deviation
    furthest: float = math.inf  # the largest residual that declared bounds allow

    learns_scale = True
    offset = 0.0

    def terms(self, eta: np.ndarray, norms: Any, clip: float) -> ScoreTerms:
        most = max(self.furthest / self.scale, LEAST_CUT)
        k = np.clip(clip / (self.scale * np.maximum(norms, 1e-9)), LEAST_CUT, most) + 0.0 * eta
        beyond = special.ndtr(-k)
        slope = 1 - 2 * beyond
        density = np.exp(-0.5 * k * k) / math.sqrt(2 * math.pi)
        variance = self.scale**2 * (slope - 2 * k * density + 2 * k * k * beyond)
        return ScoreTerms(k * self.scale, slope, variance, eta, k * self.scale)

    def score(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return np.clip(y - eta, -terms.cut, terms.cut)

    def observed_slope(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return (np.abs(y - eta) <= terms.cut).astype(np.float64)


@dataclass(frozen=True)
class CountTables:
    """Moments of the residual y - m cut at k, by (log k, eta), of a negative binomial count y of mean m = exp eta."""

    etas: np.ndarray
    log_cuts: np.ndarray
    means: np.ndarray  # of the cut residual
    variances: np.ndarray  # of the cut residual
    slopes: np.ndarray  # derivative of its expectation by the eta that counts are drawn with
    beyond: np.ndarray  # expected count beyond m + k

    def read(self, table: np.ndarray, eta: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """By linear interpolation in both. What is not finite reads as 0, so that no record stops a run."""
        eta, cut = np.nan_to_num(eta), np.nan_to_num(cut, nan=1.0)
        x = np.clip((eta - self.etas[0]) / (self.etas[1] - self.etas[0]), 0, len(self.etas) - 1.000001)
        first, step = self.log_cuts[0], self.log_cuts[1] - self.log_cuts[0]
        z = np.clip((np.log(cut) - first) / step, 0, len(self.log_cuts) - 1.000001)
        i, h = x.astype(np.int64), z.astype(np.int64)
        fx, fz = x - i, z - h
        low = (1 - fx) * table[h, i] + fx * table[h, i + 1]
        high = (1 - fx) * table[h + 1, i] + fx * table[h + 1, i + 1]
        return (1 - fz) * low + fz * high

    def mean_counts(self, eta: np.ndarray) -> np.ndarray:
        """exp eta within the range of the tables."""
        return np.exp(np.clip(eta, self.etas[0], self.etas[-1]))


def tabulate_counts(dispersion: float, furthest: int, least_cut: float) -> CountTables:
    """Counts above 60 are grouped, with their masses from the distribution function. The derivative of an expectation
    by eta is that of its product with the score of the distribution, (y - m) / (1 + dispersion m)."""
    etas = np.linspace(-6, math.log(furthest) + 0.7, 120)
    log_cuts = np.linspace(math.log(least_cut), math.log(furthest), CUTS)
    small = np.arange(min(furthest, 60) + 1)
    large = np.unique(np.geomspace(60, furthest, 90).astype(np.int64))[1:] if furthest > 60 else np.zeros(0, np.int64)
    ends = np.concatenate([small, large])  # the last count of every group
    values = np.concatenate([small, (large + np.concatenate([[60], large[:-1]]) + 1) / 2])[: len(ends)]
    size, means = 1 / dispersion, np.exp(etas)
    below = special.betainc(size, ends + 1.0, (size / (size + means))[:, None])
    below[:, -1] = 1.0
    masses = np.diff(below, axis=1, prepend=0.0)
    residuals = values - means[:, None]
    score_masses = masses * residuals / (1 + dispersion * means)[:, None]
    first, second, slopes, beyond = np.zeros((4, CUTS, len(etas)))
    for place, cut in enumerate(np.exp(log_cuts)):
        clipped = np.clip(residuals, -cut, cut)
        first[place] = np.einsum("ij,ij->i", clipped, masses)
        second[place] = np.einsum("ij,ij->i", clipped**2, masses)
        slopes[place] = np.einsum("ij,ij->i", clipped, score_masses)
        beyond[place] = np.einsum("ij,ij->i", np.maximum(residuals - cut, 0.0), masses)
    variances = np.maximum(second - first**2, 1e-6)
    return CountTables(etas, log_cuts, first, variances, np.maximum(slopes, 1e-6), beyond)


@dataclass(frozen=True)
class Counts:
    """Poisson quasi-likelihood: psi is the residual y - m cut at k = clip / norm of the row, less its expectation.

    The noise follows k and not the counts themselves: k is a few residual deviations where a cut of y would have to be
    the mean and as much more. `center` and `spread` are the mean and standard deviation of eta over the records, as far
    as they are known.
    """

    mean: float  # of the outcome
    furthest: int  # the declared upper bound
    dispersion: float = 0.5
    center: float = 0.0
    spread: float = 0.3
    tables: CountTables = field(init=False, compare=False, repr=False)

    learns_scale = True

    def __post_init__(self) -> None:
        least = min(max(1.0, math.sqrt(self.mean)), 0.5 * self.furthest)
        object.__setattr__(self, "tables", tabulate_counts(self.dispersion, self.furthest, least))

    @property
    def offset(self) -> float:
        return math.log(self.mean)

    @property
    def wide_cut(self) -> float:
        """Where squares of residuals are cut that the dispersion is learnt from."""
        return min(3 * math.sqrt(self.mean + 0.5 * self.mean**2) + 1, float(self.furthest))

    def terms(self, eta: np.ndarray, norms: Any, clip: float) -> ScoreTerms:
        eta = np.asarray(eta, np.float64)
        cut = np.clip(clip / np.maximum(norms, 1e-9), math.exp(self.tables.log_cuts[0]), self.furthest) + 0.0 * eta
        read = self.tables.read
        center = np.clip(read(self.tables.means, eta, cut), -cut, cut)
        lowest = np.minimum(cut, self.tables.mean_counts(eta))
        largest = np.maximum(cut - center, lowest + center)
        return ScoreTerms(
            largest, read(self.tables.slopes, eta, cut), read(self.tables.variances, eta, cut), center, cut
        )

    def score(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return np.clip(y - self.tables.mean_counts(eta), -terms.cut, terms.cut) - terms.center

    def observed_slope(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return terms.slope

    def nodes(self) -> np.ndarray:
        return self.center + self.spread * NODES

    def squares(self, y: np.ndarray, eta: np.ndarray) -> np.ndarray:
        """Squared residuals over those of the wide cut, between 0 and 1."""
        return np.square(np.minimum(np.abs(y - self.tables.mean_counts(eta)) / self.wide_cut, 1.0))

    def expected_squares(self, eta: np.ndarray) -> np.ndarray:
        cut = np.full(np.shape(eta), self.wide_cut)
        square = self.tables.read(self.tables.means, eta, cut) ** 2 + self.tables.read(self.tables.variances, eta, cut)
        return np.clip(square / self.wide_cut**2, 0.0, 1.0)

    def truncation(self, norm: float, clip: float) -> tuple[float, float]:
        """The expected count beyond the cut over the slope: its level, and its slope along the standardised eta."""
        eta = self.nodes()
        terms = self.terms(eta, norm, clip)
        ratio = self.tables.read(self.tables.beyond, eta, terms.cut) / terms.slope
        weight = WEIGHTS * terms.slope
        weight = weight / weight.sum()
        away = NODES - weight @ NODES
        return float(weight @ ratio), float((weight @ (away * ratio)) / (weight @ away**2)) / self.spread

    def with_dispersion(self, dispersion: float) -> Counts:
        return replace(self, dispersion=dispersion)


Outcomes = TwoLabels | Numbers | Counts
