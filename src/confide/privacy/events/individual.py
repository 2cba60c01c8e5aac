"""Runs that a record takes part in as long as its own costs allow: `privacy.accountants.individual` is the theory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from confide import validation
from confide.privacy.events.base import SENSITIVITY, Event, Neighbours, Parts, parts_of
from confide.privacy.events.gaussian import POISSON
from confide.privacy.events.releases import Release
from confide.validation import Refused

_FILTERED = (
    "Gaussian noise was added to the sum of the clipped contributions at every step, and nothing else about the "
    "records left the computation but what is listed here.",
    "What every record cost was added up from its own gradients, and a record was left out of a step that would have "
    "passed the limit, and of all after it; what single records cost, and who was left out, stayed secret.",
)
CHANGE = {"add-remove": 1.0, "replace-one": math.sqrt(2)}  # of counts, in Euclidean norm


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianFilter(Event):
    """Full-batch Gaussian steps of which no record takes part in more than mu^2 of squared norm over noise variance.

    `mu` is that of adding or removing a record; replacing one costs twice as much.
    """

    mu: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", validation.positive(mu=self.mu))
        object.__setattr__(self, "steps", validation.count(steps=self.steps))

    def parts(self, neighbours: Neighbours) -> Parts:
        return parts_of(squared_mu=(self.mu * SENSITIVITY[neighbours]) ** 2)

    def fields(self) -> dict[str, Any]:
        return {"mu": self.mu, "steps": self.steps}

    def assumptions(self) -> tuple[str, ...]:
        return _FILTERED

    def summary(self) -> str:
        return f"{self.steps} Gaussian steps, each record's mu at most {self.mu:.4g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RenyiFilter(Event):
    """Gaussian steps on Poisson batches of which no record takes part in more than a log-moment of one order.

    Adding or removing a record gives a Renyi divergence of that order of at most log_moment / (order - 1) in either
    direction. It is turned into (epsilon, delta) at the stated delta (Canonne, Kamath and Steinke 2020).
    """

    order: int
    log_moment: float
    delta: float
    sampling_probability: float
    steps: int

    def __post_init__(self) -> None:
        if validation.count(order=self.order) < 2:
            raise Refused(f"order = {self.order} is too low: give a whole number from 2")
        object.__setattr__(self, "log_moment", validation.positive(log_moment=self.log_moment))
        object.__setattr__(self, "delta", validation.probability(delta=self.delta))
        q = validation.probability(sampling_probability=self.sampling_probability)
        object.__setattr__(self, "sampling_probability", q)
        object.__setattr__(self, "steps", validation.count(steps=self.steps))

    @property
    def epsilon(self) -> float:
        return convert(self.order, self.log_moment, self.delta)

    def parts(self, neighbours: Neighbours) -> Parts:
        if self.epsilon == 0:
            return Release(epsilon=0.0, delta=self.delta).parts(neighbours)
        return Release(epsilon=self.epsilon, delta=self.delta).parts(neighbours)

    def fields(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "log_moment": self.log_moment,
            "delta": self.delta,
            "sampling_probability": self.sampling_probability,
            "steps": self.steps,
        }

    def assumptions(self) -> tuple[str, ...]:
        return POISSON + _FILTERED

    def summary(self) -> str:
        return f"{self.steps} Gaussian steps, each record's epsilon at most {self.epsilon:.4g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class SpendingHistogram(Event):
    """Counts of records by what they spent, with Gaussian noise of this standard deviation on every count.

    Given what was released before, a record is in one bin and nowhere else.
    """

    noise: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", validation.positive(noise=self.noise))

    def parts(self, neighbours: Neighbours) -> Parts:
        return parts_of(squared_mu=(CHANGE[neighbours] / self.noise) ** 2)

    def fields(self) -> dict[str, Any]:
        return {"noise": self.noise}

    def assumptions(self) -> tuple[str, ...]:
        return (
            "Records were counted by what they had spent, in bins whose bounds are public, and Gaussian noise of "
            f"standard deviation {self.noise:.4g} at least was added to every count.",
        )

    def released(self) -> str:
        return "the histogram of what single records spent"

    def summary(self) -> str:
        return f"histogram of what records spent, noise {self.noise:.4g}"


def convert(order: int, log_moment: float, delta: float) -> float:
    """The epsilon at delta of a log-moment of one order."""
    bound = (log_moment - math.log(delta) - math.log(order)) / (order - 1) + math.log1p(-1 / order)
    return max(0.0, bound)


def affordable(order: int, epsilon: float, delta: float) -> float:
    """The log-moment of one order that is worth epsilon at delta; 0 or less where there is none."""
    return (order - 1) * (epsilon - math.log1p(-1 / order)) + math.log(delta) + math.log(order)
