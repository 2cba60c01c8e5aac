"""Summary of private scoring: a few questions, and draws that know of their noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from confide.inference.summaries.runs import RunSummary


@dataclass(frozen=True, kw_only=True)
class ScoringSummary(RunSummary):
    """Of sums over all records, each asked for once."""

    name: ClassVar[str] = "scoring"
    independent: ClassVar[bool] = True
    noisy_sums: ClassVar[bool] = True
    steps: int
    noise_multipliers: list[float]  # of the sums of scores
    information_multipliers: list[float]
    scale: Mapping[str, Any]
    constant: int | None = None  # column that is 1 for every record
    categories: list[list[int]] = field(default_factory=list)  # columns that add up to it
    clipping: str = "weighted"
    clip: float | None = None  # once it is known

    def lines(self) -> list[str]:
        return [
            f"{self.steps} sums of bounded scores over all records, each where the ones before it point, and the "
            "information of the records before the first and after the last",
            "scores are bounded by weights that no outcome decides: the clip bends nothing",
            f"{self.draws} draws of the posterior given these noisy sums, at no further cost",
        ]

    def warning(self) -> str:
        if self.scale.get("seen", True):
            return ""
        return (
            "The scale of the records did not stand out of its noise: the budget is too small to tell anything, and "
            "the draws are those of the prior."
        )

    def remarks(self) -> list[str]:
        return [
            f"The budget was spent on {self.steps} noisy sums of bounded scores and two of the records' information. "
            "The draws are independent draws of the posterior given these, so that they know of the noise: intervals "
            "are as wide as it makes them.",
            "Approximations: rows are taken as normal with the moments that the released information tells, what its "
            "noise leaves open of them is added to the noise of the sums, and the spread of scores is the model's. "
            "Where the model is wrong, intervals are about the coefficients at which the mean bounded score is zero.",
        ]
