"""The other way round: the epsilon, or the number of people, at which intervals are as narrow as is wished."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from confide.inference.power.figures import WIDTH, figures
from confide.inference.power.regression_widths import ExpectedRegression
from confide.inference.power.strength import mu_of
from confide.inference.power.widths import Expected
from confide.validation import Refused

LEAST_EPSILON, LARGEST_EPSILON, MOST = 1e-3, 100.0, 1e12
PRECISION = 1e-3  # of what is sought
LIKELY = 1.0  # an epsilon by which numbers of people are told where no epsilon is enough


@dataclass(frozen=True)
class Seeker:
    """Of the median width of what data tell by themselves, or of one column's."""

    expected: Expected | ExpectedRegression
    width: float
    column: str | None
    delta: float | None

    def __post_init__(self) -> None:
        names = self.expected.setting.guess.names
        if self.column is not None and self.column not in names:
            some = ", ".join(repr(name) for name in names[:6]) + (", ..." if len(names) > 6 else "")
            raise Refused(f"column = {self.column!r} is none of the coefficients: there are {some}")
        prior = WIDTH * self.expected.setting.prior_scale
        if self.width >= prior:
            raise Refused(
                f"width = {self.width:g} is no narrower than the prior's interval, {prior:.3g}: nothing need be spent"
            )

    @property
    def whose(self) -> str:
        return "the median interval" if self.column is None else f"the interval of {self.column!r}"

    def expect_width(self, n: float, epsilon: float) -> float:
        mu = math.inf if math.isinf(epsilon) else mu_of(epsilon, self.delta or 1 / (10 * n))
        found = figures(self.expected, n, mu)
        if self.column is None:
            return found.median
        return float(found.widths[self.expected.setting.guess.names.index(self.column)])

    def epsilon(self, n: int) -> float:
        """The least epsilon, to three digits, rounded up."""
        if self.expect_width(n, LARGEST_EPSILON) > self.width:
            raise Refused(self._unreached(n))
        found = _least(lambda epsilon: self.expect_width(n, epsilon) <= self.width, LEAST_EPSILON, LARGEST_EPSILON)
        scale = 10.0 ** (2 - math.floor(math.log10(found)))
        return math.ceil(found * scale) / scale

    def number(self, epsilon: float) -> int:
        """The least number of people."""
        if self.expect_width(MOST, epsilon) > self.width:
            raise Refused(
                f"width = {self.width:g} is reached by no number of people: what no data tell, such as what levels of "
                f"a category have in common, keeps {self.whose} at {self.expect_width(MOST, epsilon):.3g}"
            )
        return math.ceil(_least(lambda n: self.expect_width(n, epsilon) <= self.width, 2.0, MOST))

    def _unreached(self, n: int) -> str:
        free = self.expect_width(n, math.inf)
        said = f"width = {self.width:g} is reached by no epsilon: of {n:,} people {self.whose} is {free:.3g}"
        said += " without any privacy"
        if self.expect_width(MOST, LIKELY) > self.width:
            return f"{said}, and no number of people is enough: it holds what no data tell"
        return f"{said}; at epsilon {LIKELY:g} it takes {self.number(LIKELY):,} people"

    def say_epsilon(self, n: int, epsilon: float) -> str:
        return f"Of {n:,} people {self.whose} is expected to be {self.width:g} wide at epsilon {epsilon:.3g}."

    def say_number(self, n: int, epsilon: float) -> str:
        return f"At epsilon {epsilon:g} it takes {n:,} people for {self.whose} to be {self.width:g} wide."


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    """Where it begins to be enough, between these; `high` is."""
    if enough(low):
        return low
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
