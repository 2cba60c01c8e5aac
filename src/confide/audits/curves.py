"""How often an attack is right at every rate of false alarms, and a band that holds all of the true curve at once.

Let R(x) be the supremum of P(member >= t) over the thresholds t with P(nonmember >= t) <= x. Scores of members are
taken for independent draws of one law, those of nonmembers for draws of another, and the two sides for independent.

Let q = inf {t: P(nonmember > t) <= x}. Then P(member > q) <= R(x) <= P(member >= q), for any law, with ties or without.
Of n nonmembers, the number above q is stochastically at most Bin(n, x), the number at or above q at least that. So the
j-th largest is above q with probability at most P(Bin(n, x) >= j), and the i-th largest below q with probability at
most P(Bin(n, x) < i). Take the smallest j and the largest i for which this is at most a: they enclose q, one at
infinity where there is none. Both depend on nonmembers alone; so, given them, the number of members above the upper one
and the number at or above the lower one are binomial, and their one-sided Clopper-Pearson bounds at level a are below
P(member > q) and above P(member >= q). That is four errors at each of G rates: a = (1 - confidence) / (4 G) by the
union bound. R is monotone, so what holds at the rates of the grid holds between them: the lower bound of the rate
before, the upper bound of the one after. R(1) = 1 needs no bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

POINTS = 40


class Roc(NamedTuple):
    """True positive rates at false positive rates, and a band that holds all of the true ones at once."""

    fpr: np.ndarray
    tpr: np.ndarray
    low: np.ndarray
    high: np.ndarray


def grid(nonmembers: int) -> np.ndarray:
    """False positive rates evenly spaced on a logarithmic axis, from one nonmember to all of them."""
    return np.unique(np.append(np.geomspace(1 / nonmembers, 1.0, POINTS)[:-1], 1.0))


def band(members: np.ndarray, nonmembers: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of R on the grid, from scores in ascending order."""
    from scipy import stats

    size, count = len(nonmembers), len(members)
    fpr = grid(size)
    error = (1 - confidence) / (4 * len(fpr))
    largest = np.concatenate([[np.inf], nonmembers[::-1], [-np.inf]])  # the i-th largest, i from 1 to size
    lower = stats.binom.isf(error, size, fpr).astype(np.int64) + 1  # the smallest j with P(Bin >= j) <= error
    upper = stats.binom.ppf(error, size, fpr).astype(np.int64)  # the largest i with P(Bin < i) < error
    most = count - np.searchsorted(members, largest[np.clip(lower, 0, size + 1)], "left")
    least = count - np.searchsorted(members, largest[np.clip(upper, 0, size)], "right")
    low = np.where(least > 0, stats.beta.ppf(error, np.maximum(least, 1), count - least + 1), 0.0)
    high = np.where(most < count, stats.beta.isf(error, most + 1, np.maximum(count - most, 1)), 1.0)
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
    return np.append(low[:-1], 1.0), np.append(high[:-1], 1.0)
