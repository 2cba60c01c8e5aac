"""How likely it is that a run sees the scale of its records, without which its draws are the prior's.

The scale is bought by histograms (`confide.mechanism.scale`): of the norms of rows in half octaves, and of outcomes, of
numbers in half octaves and of counts in octaves. The highest count of each must stand out of the noise. That is public,
and decides where there are few records and little budget: intervals are then as wide as the prior's, or not, and
nothing lies between.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from confide.inference.power.families import Outcomes

STANDS_OUT = 4.0  # standard deviations of the noise
AVERAGED, LEAST_BIN = 3.0, 0.02  # bins that are averaged: above so much noise, and so much of the highest
SHARE, LARGEST_SHARE, SEEN = 0.01, 0.05, 100.0  # of the square of mu: `inference.plans.weights`
HALVES = np.arange(-24, 41) / 2  # octaves of outcomes; those further out are empty
OCTAVES = 2.0 ** np.arange(24)
MIDDLES = np.append(0.0, 1.5 * OCTAVES[:-1] - 0.5)  # of 0, 1, 2 and 3, 4 to 7, ...


def scale_share(n: float, mu: float, change: float) -> float:
    """The share of the square of mu that buys the scale."""
    return min(LARGEST_SHARE, max(SHARE, (SEEN * change / n / mu) ** 2))


def norm_shares(rows: np.ndarray, longest: float) -> np.ndarray:
    """Of records in every bin of norms, which begin at the longest row, or at a power of two."""
    octaves = np.log2(longest / np.linalg.norm(rows, axis=1))
    return np.unique(np.floor(2 * octaves), return_counts=True)[1] / len(rows)


def outcome_shares(outcomes: Outcomes, scores: np.ndarray, noise_scale: float) -> np.ndarray | None:
    """Of records in every bin of outcomes, where these are looked at."""
    if outcomes.word == "linear":
        ends = np.append(0.0, 2.0**HALVES)
        within = special.ndtr((ends - scores[:, None]) / noise_scale)
        within -= special.ndtr((-ends - scores[:, None]) / noise_scale)
        return np.diff(within.mean(axis=0))
    if not outcomes.counts:
        return None
    below, mean = OCTAVES - 1, np.exp(scores)[:, None]
    if outcomes.dispersion:
        size = 1 / outcomes.dispersion
        until = special.betainc(size, below + 1, size / (size + mean))
    else:
        until = special.pdtr(below, mean)
    return np.diff(np.append(0.0, until.mean(axis=0)))


def usual_count(shares: np.ndarray, n: float, noise: float) -> float:
    """The count that a run will take for usual: the mean over the bins that it sees. Of few records it sees only those
    where most are, and not the long tail above them."""
    counts = n * shares
    kept = counts >= max(AVERAGED * noise, LEAST_BIN * counts.max())
    kept = kept if kept.any() else np.ones_like(kept)
    return float(np.sum(counts[kept] * MIDDLES[kept]) / np.sum(counts[kept]))


def chance_of_standing_out(shares: np.ndarray, n: float, noise: float) -> float:
    return 1.0 - float(np.prod(special.ndtr(STANDS_OUT - n * shares / noise)))


def noise_of_scale(outcomes: Outcomes, n: float, mu: float, change: float) -> float:
    """On every count; replacing a record moves two counts by 1."""
    figures = 3 if outcomes.counts or outcomes.word == "linear" else 2
    return math.sqrt(change * figures / scale_share(n, mu, change)) / mu
