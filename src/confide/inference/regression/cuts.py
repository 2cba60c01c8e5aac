"""How wide scores are cut: so wide that their noise costs a stated share of the sampling variance.

With noise of m bounds in all steps together, the sum of scores of n records has a noise of variance (m C)^2 beside a
sampling variance of n E psi^2. C is the cut at which the former is `COST` of the latter, within limits. The bound of a
record's slope matrix is the norm at which the noise of the slope is `SLOPE_COST` of the usual slope in every entry, but
it is at least `LEAST_SLOPE` times the norm of a usual record's slope.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from confide.inference.regression.outcomes import LEAST_CUT, WEIGHTS, Counts, Numbers, Outcomes, TwoLabels
from confide.mechanism.query_grid import round_scale

COST = {TwoLabels: 0.1, Numbers: 0.1}  # of the sampling variance
SLOPE_COST = 0.06  # of a usual entry of the slope
LEAST_SLOPE = 3.0  # norm of a record's slope matrix that is not cut, over that of a usual record
NARROWEST_FOR_LABELS, WANTED_FOR_LABELS, WIDEST_FOR_LABELS = 0.5, 0.8, 4.0  # of a usual record's longest score


class Cut(NamedTuple):
    clip: float  # C
    slope_bound: float


def choose(family: Outcomes, number: float, norm: float, noise: float, slope_noise: float, size: int) -> Cut:
    reach = math.sqrt(COST.get(type(family), 0.0) * number) / (noise * norm)
    slope_reach = SLOPE_COST * number / slope_noise
    if isinstance(family, TwoLabels):
        return choose_for_labels(family, number, norm, noise, slope_noise, family.usual()[0])
    if isinstance(family, Numbers):
        clip = family.scale * norm * float(np.clip(reach, 1.2 * LEAST_CUT, 40.0))
        widest = max(clip / (LEAST_CUT * family.scale * norm), 1.8) * norm
        return _rounded(clip, float(np.clip(slope_reach, LEAST_SLOPE * norm**2, widest**2)))
    return _choose_for_counts(family, number, norm, noise, slope_reach, size)


def choose_for_labels(
    family: TwoLabels, number: float, norm: float, noise: float, slope_noise: float, variance: float
) -> Cut:
    largest = family.usual()[1]
    reach = math.sqrt(COST[TwoLabels] * number * variance) / (noise * norm)
    # Narrow cuts move the estimand where the model is wrong: up to `WANTED_FOR_LABELS` the noise may cost four times as
    # much.
    narrowest = float(np.clip(2 * reach / largest, NARROWEST_FOR_LABELS, WANTED_FOR_LABELS))
    width = float(np.clip(reach / largest, narrowest, WIDEST_FOR_LABELS))
    clip = width * norm * largest
    usual = variance * min(width, 1.0)  # slope of a record
    reach = SLOPE_COST * number / slope_noise
    square = max((1.5 * max(width, 1.0) * norm) ** 2, reach)
    slope_bound = usual * max(LEAST_SLOPE * norm**2, reach)
    return _rounded(clip, min(slope_bound, 0.25 * square, clip * math.sqrt(square) / 2))


def _choose_for_counts(family: Counts, number: float, norm: float, noise: float, slope_reach: float, size: int) -> Cut:
    """The cut with the least sum of variance and squared doubt about what is beyond it."""
    eta = family.nodes()
    best: tuple[float, float, float] | None = None
    for cut in np.exp(family.tables.log_cuts):
        clip = float(cut * norm)
        terms = family.terms(eta, norm, clip)
        slope, variance = float(WEIGHTS @ terms.slope), float(WEIGHTS @ terms.variance)
        level, along = family.truncation(norm, clip)
        noisy = (noise * clip) ** 2 / number
        total = size * (variance + noisy) / (number * slope**2) + level**2 + (1.5 * along * family.spread) ** 2
        if best is None or (total < best[0] and noisy < 3 * variance):
            best = (total, clip, slope)
    assert best is not None
    _, clip, slope = best
    return _rounded(clip, slope * float(np.clip(slope_reach, LEAST_SLOPE * norm**2, 60 * norm**2)))


def _rounded(clip: float, slope_bound: float) -> Cut:
    return Cut(round_scale(clip), round_scale(slope_bound))
