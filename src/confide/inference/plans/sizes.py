r"""How a run whose scores are bounded by weights is sized: clip, steps and batches, from public numbers alone.

Everything is planned in units of the records: rows of usual norm b = 1 and residuals of usual length r
(`Family.usual_residual`). Multiplying the rows and dividing the prior by one number leaves the plan as it is.

**Clip.** Let mu be the budget in Gaussian differential privacy, d the number of parameters, and J and V slope and
variance of the sum of the bounded scores in a usual direction. A chain at temperature 1 spreads by 1 / J about a point
that errs by V / J^2 for the records' own sake, and by 1 / (mu J / c)^2 for the privacy noise that is left in the mean
of a whole run, `KAPPA` = 2 times that in the mean of its second half. What the draws say of themselves is true where

    J = V + KAPPA c^2 / mu^2.

Labels of even chances that are all cut to c have J = n c r b / d and V = n c^2 / d, so that c = r b / (1 + x) with
x = KAPPA d / (n mu^2); other families have c = a r b / (1 + b x), a and b fitted to their own J and V
(`Family.balance`). Cutting deeper would draw wider than need be, cutting less would leave the chain too little time,
2 n (mu / c)^2, and draw too narrow. Where the budget is rich, c rises until the usual direction has settled `SETTLED`
times, and no further than where hardly any score is cut (`Family.longest_clip`): then the chain samples the posterior
itself.

**Steps.** Rows beyond `REACH` b count less (`models.model.Weighting`), so that no record curves more than the family's
`weighted_smoothness` at that norm, and the mean no more than that and the prior's curvature. A step of GENTLE over this
bound is far from the stability limit, where the chain's spread would be off by GENTLE / 2 of the ratio of the real
curvature to the bound. No more than `MOST` steps are planned; then steps are as long as the inverse of the bound, and
after that the clip rises, so that the budget is spent on something.

**Batches.** A Poisson batch of share q adds noise of c^2 v (1 - q) / q to the mean score in a direction that has share
v of the variance, beside 2 / step of the sampler's own. With q = step c^2, or 20 / d of it where d is larger, that
heats a direction with half of the variance, or with ten times the usual share of 1 / d, by a quarter, and a usual one
by a fortieth or less. A pass over the records costs time, so that steps are fewer where all of them would take more
than `WORK` multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from confide.inference.options import Options
from confide.mechanism.scale import REACH
from confide.models.family import Family
from confide.privacy.significant_digits import round_digits
from confide.samplers import Sampler

KAPPA = 2.0
SETTLED = 1000.0  # times that the usual direction relaxes where the budget is rich
GENTLE = 0.25
FEWEST, MOST = 200, 20_000
SMALLEST_BATCH = 256
SHARED = 20.0  # parameters from which on no direction is thought to have half of the variance
WORK = 1e10
OPTIMISER_STEPS, OPTIMISER_BATCH = 10_000, 1000


class Sizes(NamedTuple):
    """In units of the records."""

    clip: float  # in usual lengths of a score
    steps: int
    batch_size: int


def plan_sizes(
    family: Family,
    sampler: Sampler,
    n: int,
    dimension: int,
    mu: float,
    options: Options,
) -> Sizes:
    """For a budget of mu in Gaussian differential privacy; what is given stays."""
    length, long, (short, fall) = family.usual_residual, family.longest_clip, family.balance
    steps, batch_size, chains = options.steps, options.batch_size, options.chains
    strength = n * mu**2  # records times the square of what one of them may reveal
    found = short / (1 + fall * KAPPA * dimension / strength)
    found = round_digits(min(long, max(found, 2 * strength / chains / (dimension * SETTLED))))
    if sampler.optimises:
        steps = OPTIMISER_STEPS if steps is None else steps
        return Sizes(found, steps, min(n, OPTIMISER_BATCH) if batch_size is None else batch_size)

    def time(clip: float) -> float:
        """That the budget pays for."""
        return 2 * sampler.temperature * strength / chains / (clip * length) ** 2

    def curvature(clip: float) -> float:
        return family.weighted_smoothness(REACH, clip * length)

    def batch(clip: float, steps: int) -> int:
        if batch_size is not None:
            return batch_size
        step = min(time(clip) / steps, 1 / curvature(clip))
        wanted = math.ceil(n * step * (min(clip, 1.0) * length) ** 2 * min(1.0, SHARED / dimension))
        return n if 2 * wanted > n else max(wanted, min(n, SMALLEST_BATCH))

    def size(most: int) -> Sizes:
        """With no more steps than these."""
        clip = round_digits(lengthen(lambda clip: time(clip) * curvature(clip), found, long, most))
        planned = max(min(FEWEST, most), min(most, math.ceil(time(clip) * curvature(clip) / GENTLE)))
        planned = planned if steps is None else steps
        return Sizes(clip, planned, batch(clip, planned))

    sized = size(MOST if steps is None else steps)
    for _ in range(2):
        if steps is None and sized.steps * sized.batch_size * dimension > WORK:
            sized = size(max(FEWEST, int(WORK / (sized.batch_size * dimension))))
    return sized


def lengthen(needed: Callable[[float], float], clip: float, longest: float, most: int) -> float:
    """The clip from which on so many of the longest steps are enough, if there is one up to the longest clip."""
    if needed(clip) <= most:
        return clip
    low, high = clip, longest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > most else (low, middle)
    return high
