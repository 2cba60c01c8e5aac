r"""Where columns are, and how far they spread: a few noisy sums in stages, whose windows become narrower.

With a = clip((x - m) / h, -1, 1) for a window of middle m and half width h, a stage asks for the sums of a and of
a^2 - 1/2 (the first stage) or |a| - 1/2 over the records, for the outcome and every numeric column whose typical range
is not declared. A pair of these numbers has a squared norm of at most 1.25. The first stage also asks for the sums of
booleans, indicators and levels, times `BINARY`, which add `BINARY`^2 for every boolean, indicator and category.

The mean absolute deviation of a column has a public prior, log-normal about a fifth of its half range. The next window
is four times its 90% posterior quantile, with room for the noise of the middle.

A count of records beyond 4, 8, 16, ... spreads follows. Counts are taken as falling from bin to bin, so that the noise
of a bin far out is no tail by itself. Where they stand out of their noise, the spread grows by what the tail adds to
the variance, and `furthest` says how far out the tail reaches. A tail is at most as heavy as the mean absolute
deviation, which was released before, allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from confide.inference.regression.design import COLUMN_STAGES, Design
from confide.mechanism.query_grid import round_scale
from confide.mechanism.sum_queries import SumQuery

BINARY = 0.6  # what booleans, indicators and levels are multiplied by
LEAST_VARIANCE = 0.03  # of levels and indicators, which are 0 or 1
FIRST_TAIL = 4.0  # spreads
SEEN_TAIL = 2.5  # standard deviations of the noise beyond which counts are a tail
LIKELY_NOISE = 2.0  # standard deviations of it that are taken off the counts of a tail
HEAVIEST_TAIL = 0.4  # share of a tail in the mean absolute deviation, which is .8 spreads in all
PRIOR_MEDIAN, PRIOR_SPREAD = 0.2, 1.2  # of mean absolute deviations, over the half range
DEVIATIONS = np.geomspace(1e-6, 1, 240)  # at which its posterior is computed

Ask = Callable[[str, SumQuery], np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnQuery(SumQuery):
    """Positions and spreads within windows. The last of the windows is the outcome's."""

    numeric: np.ndarray  # places of numeric columns without a declared typical range
    binary: np.ndarray  # places of booleans, indicators and levels, in the first stage
    middle: np.ndarray
    half: np.ndarray
    squares: bool

    @property
    def size(self) -> int:
        return 2 * len(self.middle) + len(self.binary)

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        values = np.column_stack([x[:, self.numeric], y])
        a = np.clip((values - self.middle) / self.half, -1.0, 1.0)
        second = (np.square(a) if self.squares else np.abs(a)) - 0.5
        return np.concatenate([a, second, BINARY * np.clip(x[:, self.binary], -1.0, 1.0)], axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TailQuery(SumQuery):
    """How many records are in each bin of |x - center| / spread, for every numeric column."""

    numeric: np.ndarray
    center: np.ndarray
    spread: np.ndarray
    bins: int

    @property
    def size(self) -> int:
        return len(self.numeric) * self.bins

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        away = np.abs((x[:, self.numeric] - self.center) / self.spread)
        ends = FIRST_TAIL * 2.0 ** np.arange(self.bins + 1)
        inside = (away[:, :, None] > ends[:-1]) & (away[:, :, None] <= ends[1:])
        return inside.reshape(len(x), -1).astype(np.float64)


class Location(NamedTuple):
    """Center and spread of every column and of the outcome, in their own units."""

    center: np.ndarray
    spread: np.ndarray
    outcome_center: float
    outcome_spread: float
    furthest: np.ndarray  # how many spreads out the tail of a column reaches; 1 where none was seen
    references: tuple[int, ...]  # the commonest level of every category by what was released


def locate(design: Design, multipliers: dict[str, float], number: float, ask: Ask) -> Location:
    numeric = np.array([j for j in design.numeric if design.columns[j].typical is None], np.int64)
    binary = [*design.two_valued, *(j for group in design.categories for j in group)]
    low = np.array([*(design.columns[j].low for j in numeric), design.outcome[0]])
    high = np.array([*(design.columns[j].high for j in numeric), design.outcome[1]])
    reach = (high - low) / 2
    middle, half, count = (low + high) / 2, reach.copy(), len(low)
    log_posterior = np.tile(-0.5 * np.square(np.log(DEVIATIONS / PRIOR_MEDIAN) / PRIOR_SPREAD), (count, 1))
    deviation = np.full(count, 0.5)  # mean absolute deviations, over the half range
    rates, rate_noise = np.zeros(len(binary)), 0.0
    chances = np.exp(log_posterior)
    for stage in range(COLUMN_STAGES):
        first = stage == 0
        bound = math.sqrt(1.25 * count + first * BINARY**2 * (len(design.two_valued) + len(design.categories)))
        noise = bound * multipliers[f"columns {stage}"]
        answer = ask(
            f"columns {stage}",
            ColumnQuery(
                bound=bound, deviation=noise, numeric=numeric, binary=np.array(binary if first else [], np.int64),
                middle=middle, half=half, squares=first,
            ),
        )  # fmt: skip
        position, second, error = answer[:count] / number, answer[count : 2 * count] / number + 0.5, noise / number
        window = half / reach
        if first:
            rates, rate_noise = answer[2 * count :] / number / BINARY, error / BINARY
            deviation = 0.8 * np.sqrt(np.maximum(second - position**2, 0) + error * (1 + 2 * np.abs(position)))
        else:
            away = (window * second)[:, None] - DEVIATIONS
            log_posterior -= 0.5 * np.square(away / (window * error)[:, None])
            chances = np.exp(log_posterior - log_posterior.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            deviation = DEVIATIONS[np.minimum(np.sum(np.cumsum(chances, axis=1) < 0.9, axis=1), len(DEVIATIONS) - 1)]
        middle = np.clip(middle + half * position, low, high)
        error = window * error
        factor = 5.0 if first else 4.0
        least = 3 * error if first else 4 * error
        half = reach * np.minimum(window, np.maximum(factor * deviation, least) + 2 * error)
        half = np.array([round_scale(value) for value in half])
        middle = np.array([round_scale(value) for value in middle])
    spreads = 1.25 * reach * np.exp(chances @ np.log(DEVIATIONS))
    center, spread = np.zeros(len(design.columns)), np.ones(len(design.columns))
    center[numeric], spread[numeric] = middle[:-1], spreads[:-1]
    _place_rates(design, binary, rates, rate_noise, center, spread)
    for j, column in enumerate(design.columns):
        if column.typical is not None:
            center[j], spread[j] = np.mean(column.typical), (column.typical[1] - column.typical[0]) / 3.29
    references = tuple(max(group, key=lambda j: center[j]) for group in design.categories)
    location = Location(center, spread, float(middle[-1]), float(spreads[-1]), np.ones(len(center)), references)
    return _widen_by_tails(design, location, multipliers, number, ask) if design.numeric else _rounded(location)


def _place_rates(
    design: Design, binary: list[int], rates: np.ndarray, noise: float, center: np.ndarray, spread: np.ndarray
) -> None:
    """Center and spread of booleans, indicators and levels.

    The variance has a floor where the noise hides the rate, and where a value is rare: the few rows that have it would
    be so far out in standardised coordinates that they counted for little.
    """
    for j, rate in zip(binary, rates, strict=True):
        if design.columns[j].kind == "boolean":
            rate = np.clip(rate, -1.0, 1.0)
            variance = max(1 - rate**2, min(0.5, max(4 * LEAST_VARIANCE, noise)))
        else:
            rate = np.clip(rate, 0.0, 1.0)
            variance = max(rate * (1 - rate), min(0.2, max(LEAST_VARIANCE, 0.6 * noise)))
        center[j], spread[j] = rate, math.sqrt(variance)


def _widen_by_tails(
    design: Design, location: Location, multipliers: dict[str, float], number: float, ask: Ask
) -> Location:
    numeric = np.array(design.numeric, np.int64)
    spread, furthest = location.spread.copy(), location.furthest.copy()
    noise = math.sqrt(len(numeric)) * multipliers["tails"]
    reach = np.array([(design.columns[j].high - design.columns[j].low) / 2 for j in numeric])
    spread[numeric] = np.maximum(spread[numeric], 0.1 * reach * math.sqrt(min(1.0, 2 * noise / number)))
    location = _rounded(location._replace(spread=spread))
    spread = location.spread.copy()
    ends = [
        max(design.columns[j].high - location.center[j], location.center[j] - design.columns[j].low) for j in numeric
    ]
    largest = np.array(ends) / spread[numeric]
    bins = max(1, math.ceil(math.log2(max(float(largest.max()) / FIRST_TAIL, 1.0001))))
    query = TailQuery(
        bound=math.sqrt(len(numeric)), deviation=noise, numeric=numeric, center=location.center[numeric],
        spread=spread[numeric], bins=bins,
    )  # fmt: skip
    counts = ask("tails", query).reshape(len(numeric), bins)
    for place, j in enumerate(numeric):
        square, reach_of_tail = _describe_tail(counts[place], noise, number, float(largest[place]))
        spread[j] *= math.sqrt(square)
        furthest[j] = reach_of_tail / math.sqrt(square)
    return _rounded(location._replace(spread=spread, furthest=furthest))


def _describe_tail(counts: np.ndarray, noise: float, number: float, largest: float) -> tuple[float, float]:
    """By what factor a tail raises the variance, and how many spreads out it reaches; both 1 where none is seen."""
    starts = FIRST_TAIL * 2.0 ** np.arange(len(counts))
    inside = starts < largest
    counts, starts = counts[inside], starts[inside]
    falling, sizes = fit_falling(counts)
    seen = falling > SEEN_TAIL * noise / np.sqrt(sizes)
    if not seen.any():
        hidden = largest > 12 and counts.size > 0 and counts[0] + 1.5 * noise > 0.003 * number
        return 1.0, 10.0 if hidden else 1.0
    shares = np.where(seen, falling - LIKELY_NOISE * noise / np.sqrt(sizes), 0.0) / number
    shares *= min(1.0, HEAVIEST_TAIL / float(shares @ (1.4 * starts)))
    return 1.0 + float(shares @ np.square(1.4 * starts)), min(largest, 4 * float(starts[seen].max()))


def fit_falling(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest sequence that does not rise, by least squares, and of how many values each of its entries is a mean.

    >>> fit_falling(np.array([9.0, 1.0, 4.0, -2.0]))
    (array([ 9. ,  2.5,  2.5, -2. ]), array([1, 2, 2, 1]))
    """
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        mean, size = value, 1
        while means and means[-1] < mean:
            last, count = means.pop(), sizes.pop()
            mean, size = (mean * size + last * count) / (size + count), size + count
        means.append(mean)
        sizes.append(size)
    return np.repeat(means, sizes), np.repeat(sizes, sizes)


def _rounded(location: Location) -> Location:
    """On the coarse public grid of queries, so that every processor asks for the same."""
    return location._replace(
        center=np.array([round_scale(value) for value in location.center]),
        spread=np.array([round_scale(value) for value in location.spread]),
        outcome_center=round_scale(location.outcome_center),
        outcome_spread=round_scale(location.outcome_spread),
    )
