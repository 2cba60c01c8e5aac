r"""What bounded scores of each linear family tell, in NumPy alone.

`confide.models.families` has the same for the runs themselves, and needs JAX; a test compares the two. With s the score
of a row, t the bound of its residual, r the residual and psi the bounded one, `told` gives E[psi r | s], the slope of
the mean, and E[psi^2 | s], its variance: one number each, or for several scores a matrix over the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import special

LOGISTIC, SOFTMAX, COUNTS, NEGATIVE_BINOMIAL = "logistic", "softmax", "poisson", "negative-binomial"
MODELS = (LOGISTIC, SOFTMAX, "linear", COUNTS, NEGATIVE_BINOMIAL)
LABELS = (LOGISTIC, SOFTMAX)
GRID, FURTHEST = 80, 8.0  # scores at which counts are summed over
LARGE_COUNT = 20.0  # a mean from which on nothing changes
COUNTED, DISPERSED = 80, 400  # counts that are summed over, of a Poisson and of others
SINGLE_COUNT = 0.1  # least information of usual counts


class Told(NamedTuple):
    slope: np.ndarray
    square: np.ndarray


class Outcomes(NamedTuple):
    """What is needed of a family to say how wide intervals will be."""

    word: str
    effect: str  # what a coefficient adds to
    told: Callable[[np.ndarray, np.ndarray, float], Told]  # of scores, bounds of residuals, and the usual information
    information: Callable[[np.ndarray], np.ndarray]  # Fisher's, without any bound
    usual: Callable[[float], float]  # information of a usual record, by its outcome, where it is not known before
    classes: int = 1  # scores of a record
    counts: bool = False
    dispersion: float = 0.0  # of counts
    labels: bool = False


def outcomes(word: str, classes: int = 2, dispersion: float = 1.0) -> Outcomes:
    """The family of that name; of a linear one the noise scale is 1, and what it really is is a unit."""
    if word == LOGISTIC:
        return Outcomes(word, "log odds", _logistic, _variance, lambda s: 1.0, labels=True)
    if word == SOFTMAX:
        return Outcomes(word, "score", _softmax, _spread, lambda s: 1.0, classes, labels=True)
    if word == "linear":
        return Outcomes(word, "outcome", _linear, np.ones_like, lambda s: 1.0)
    spread = dispersion if word == NEGATIVE_BINOMIAL else 0.0

    def told(s: np.ndarray, t: np.ndarray, typical: float) -> Told:
        return _counts(s, t, typical, spread)

    def usual(count: float) -> float:
        mean = max(count, 1e-4)
        return max(mean / (1 + spread * mean), SINGLE_COUNT)

    def information(s: np.ndarray) -> np.ndarray:
        return np.exp(s) / (1 + spread * np.exp(s))

    return Outcomes(word, "log mean", told, information, usual, counts=True, dispersion=spread)


def _variance(s: np.ndarray) -> np.ndarray:
    return special.expit(s) * special.expit(-s)


def _logistic(s: np.ndarray, t: np.ndarray, typical: float) -> Told:
    variance = _variance(s)
    slope = variance * np.minimum(1.0, t / special.expit(np.abs(s)))
    return Told(slope, slope**2 / np.maximum(variance, 1e-300))


def _spread(s: np.ndarray) -> np.ndarray:
    mean = special.softmax(s, axis=-1)
    return mean[..., None] * np.eye(s.shape[-1]) - mean[..., None] * mean[..., None, :]


def _softmax(s: np.ndarray, t: np.ndarray, typical: float) -> Told:
    mean = special.softmax(s, axis=-1)
    longest = np.sqrt(1 + np.sum(mean**2, axis=-1) - 2 * np.min(mean, axis=-1))
    weight = np.minimum(1.0, t / longest)[..., None, None]
    return Told(weight * _spread(s), weight**2 * _spread(s))


def _linear(s: np.ndarray, t: np.ndarray, typical: float) -> Told:
    slope = special.erf(t / math.sqrt(2))
    density = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    return Told(slope + 0 * s, slope - 2 * t * density + t**2 * special.erfc(t / math.sqrt(2)) + 0 * s)


def _counts(s: np.ndarray, t: np.ndarray, typical: float, dispersion: float) -> Told:
    """By sums over counts at a grid of scores and one bound. Where all scores are cut, and they are cut deep, they are
    proportional to the bound."""
    one = float(np.median(t))
    grid, chance = _chances(dispersion)
    if dispersion * typical < 1:  # from here on counts are weighted down
        bend = min(math.log(typical / (1 - dispersion * typical)), grid[-1])
        place = int(np.searchsorted(grid, bend))
        grid = np.insert(grid, place, bend)
        chance = np.insert(chance, place, _chance(np.array([bend]), dispersion), axis=0)
    mean, y = np.exp(grid)[:, None], np.arange(float(chance.shape[1]))
    psi, rest = _bounded_count(mean, y, one, typical, dispersion), 1 / (1 + dispersion * mean)
    slope = np.sum(chance * psi * (mean - y) * rest, axis=1)
    square = np.sum(chance * psi**2, axis=1)
    longer, held = t / one, np.clip(s, grid[0], grid[-1])
    return Told(longer * np.interp(held, grid, slope), longer**2 * np.interp(held, grid, square))


@cache
def _chances(dispersion: float) -> tuple[np.ndarray, np.ndarray]:
    """A grid of scores, and the probabilities of counts at each."""
    grid = np.linspace(-FURTHEST, math.log(LARGE_COUNT), GRID)
    return grid, _chance(grid, dispersion)


def _chance(scores: np.ndarray, dispersion: float) -> np.ndarray:
    mean, y = np.exp(scores)[:, None], np.arange(float(DISPERSED if dispersion else COUNTED))
    if not dispersion:
        return np.exp(y * np.log(mean) - mean - special.gammaln(y + 1))
    k = 1 / dispersion
    log_chance = special.gammaln(y + k) - special.gammaln(k) - special.gammaln(y + 1) - (y + k) * np.log1p(mean / k)
    return np.exp(log_chance + y * np.log(mean / k))


def _bounded_count(mean: np.ndarray, y: np.ndarray, t: float, typical: float, dispersion: float) -> np.ndarray:
    """m f(y + 1) - y f(y) with f(y) = S / sqrt(S^2 + (y - m)^2), scaled down: see `confide.models.families`."""
    rest = 1 / (1 + dispersion * mean)
    held = t * np.minimum(1.0, np.sqrt(typical / (mean * rest)))
    limit = held / rest / (1.05 + 0.31 * math.sqrt(dispersion))
    width = np.maximum(limit, np.sqrt(1.5 * mean / rest))

    def fall(at: np.ndarray) -> np.ndarray:
        return width / np.sqrt(width**2 + (at - mean) ** 2)

    found = limit / width * (mean * rest * (1 + dispersion * y) * fall(y + 1) - y * fall(y))
    return np.clip(found, -held, held)
