r"""Bounded scores of one outcome family in the linear predictor eta, with their expectation, slope and variance.

A record contributes w psi z to a sum of scores, where z is its standardised row, psi its bounded residual and w a weight
that depends on z alone. Each family here knows, for a linear predictor and a row norm,

- `largest`: the largest |psi| over all outcomes, from which w follows,
- `slope`: minus the derivative of E psi by eta at the truth,
- `variance`: E psi^2 at the truth, where the variance is the family's,
- `center`: what is subtracted, so that E psi = 0 at the truth,
- `cut`: where the residual or the count is cut.

The targets are those of the field: the likelihood for two labels, least squares for numbers, and the Poisson
quasi-likelihood for counts, whose variance is free: the outcome is cut at K, and what is subtracted is E min(y, K) under
a negative binomial distribution with a dispersion that is learnt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = WEIGHTS / WEIGHTS.sum()  # of a standard normal distribution
LEAST_CUT = 1.5  # residual scales at which a number is cut at the least
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
    """E min(y, K), Var min(y, K) and the slope of the former, by (log K, eta), of negative binomial counts."""

    etas: np.ndarray
    log_cuts: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    slopes: np.ndarray

    def read(self, table: np.ndarray, eta: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """By linear interpolation in both."""
        x = np.clip((eta - self.etas[0]) / (self.etas[1] - self.etas[0]), 0, len(self.etas) - 1.000001)
        z = np.clip(
            (np.log(cut) - self.log_cuts[0]) / (self.log_cuts[1] - self.log_cuts[0]), 0, len(self.log_cuts) - 1.000001
        )
        i, h = x.astype(np.int64), z.astype(np.int64)
        fx, fz = x - i, z - h
        low = (1 - fx) * table[h, i] + fx * table[h, i + 1]
        high = (1 - fx) * table[h + 1, i] + fx * table[h + 1, i + 1]
        return (1 - fz) * low + fz * high


def tabulate_counts(dispersion: float, furthest: int, least_cut: float) -> CountTables:
    """Counts above 60 are grouped, with their masses from the distribution function."""
    etas = np.linspace(-6, math.log(furthest) + 0.7, 120)
    log_cuts = np.linspace(math.log(least_cut), math.log(furthest), 14)
    small = np.arange(min(furthest, 60) + 1)
    large = np.unique(np.geomspace(60, furthest, 90).astype(np.int64))[1:] if furthest > 60 else np.zeros(0, np.int64)
    ends = np.concatenate([small, large])  # the last count of every group
    values = np.concatenate([small, (large + np.concatenate([[60], large[:-1]]) + 1) / 2])[: len(ends)]
    values[-1] = furthest
    size = 1 / dispersion
    chance = size / (size + np.exp(etas))
    below = special.betainc(size, ends + 1.0, chance[:, None])
    below[:, -1] = 1.0
    masses = np.diff(below, axis=1, prepend=0.0)
    cut_values = np.minimum(values, np.exp(log_cuts)[:, None])  # (cuts, groups)
    means = cut_values @ masses.T
    variances = np.maximum(np.square(cut_values) @ masses.T - means**2, 1e-6)
    slopes = np.maximum(np.gradient(means, etas, axis=1), 1e-6)
    return CountTables(etas, log_cuts, means, variances, slopes)


@dataclass(frozen=True)
class Counts:
    """Poisson quasi-likelihood: psi = min(y, K) - E min(y, K), K = clip / norm of the row within [least_cut, furthest].

    `center` and `spread` are the mean and standard deviation of eta over the records, as far as they are known.
    """

    mean: float  # of the outcome
    furthest: int  # the declared upper bound
    dispersion: float = 0.5
    center: float = 0.0
    spread: float = 0.3
    tables: CountTables = field(init=False, compare=False, repr=False)

    learns_scale = True

    def __post_init__(self) -> None:
        deviation = math.sqrt(self.mean + 0.5 * self.mean**2)
        least = min(self.mean + 1.5 * deviation + 0.5, 0.5 * self.furthest)
        object.__setattr__(self, "tables", tabulate_counts(self.dispersion, self.furthest, least))

    @property
    def offset(self) -> float:
        return math.log(self.mean)

    @property
    def least_cut(self) -> float:
        return math.exp(self.tables.log_cuts[0])

    def terms(self, eta: np.ndarray, norms: Any, clip: float) -> ScoreTerms:
        eta = np.asarray(eta, np.float64)
        cut = np.clip(clip / np.maximum(norms, 1e-9), self.least_cut, self.furthest) + 0.0 * eta
        read = self.tables.read
        center = np.minimum(read(self.tables.means, eta, cut), cut)
        return ScoreTerms(cut, read(self.tables.slopes, eta, cut), read(self.tables.variances, eta, cut), center, cut)

    def score(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return np.minimum(y, terms.cut) - terms.center

    def observed_slope(self, y: np.ndarray, eta: np.ndarray, terms: ScoreTerms) -> np.ndarray:
        return terms.slope

    def nodes(self) -> np.ndarray:
        return self.center + self.spread * NODES

    def truncation(self, norm: float, clip: float) -> tuple[float, float]:
        """The expected count beyond the cut over the slope: its level, and its slope along the standardised eta."""
        eta = self.nodes()
        terms = self.terms(eta, norm, clip)
        mean = np.exp(np.clip(eta, self.tables.etas[0], self.tables.etas[-1]))
        ratio = np.maximum(mean - terms.center, 0.0) / terms.slope
        weight = WEIGHTS * terms.slope
        weight = weight / weight.sum()
        away = NODES - weight @ NODES
        return float(weight @ ratio), float((weight @ (away * ratio)) / (weight @ away**2)) / self.spread

    def with_dispersion(self, dispersion: float) -> Counts:
        return replace(self, dispersion=dispersion)


Outcomes = TwoLabels | Numbers | Counts


def normal_tail(k: float) -> float:
    return float(stats.norm.sf(k))
