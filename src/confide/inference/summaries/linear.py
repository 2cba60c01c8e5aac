"""Summaries of linear models whose noise scale is learnt: by scoring, and by noisy sufficient statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from confide.inference.summaries.runs import RunSummary

UNSEEN = (
    "The scale of the records did not stand out of its noise: the budget is too small to tell anything, and the draws "
    "are those of the prior."
)
PRIOR = (
    "The noise scale is learnt. Its prior is half a Student's t of three degrees of freedom, with the scale of the "
    "prior of the coefficients times the usual norm of a row."
)


@dataclass(frozen=True, kw_only=True)
class LinearScoringSummary(RunSummary):
    """Of sums over all records, each asked for once."""

    name: ClassVar[str] = "scoring"
    independent: ClassVar[bool] = True
    noisy_sums: ClassVar[bool] = True
    steps: int
    noise_multipliers: list[float]  # of the sums of scores
    information_multipliers: list[float]
    scale: Mapping[str, Any]
    cuts: list[float]  # of residuals and of their squares, in noise scales
    constant: int | None = None  # column that is 1 for every record
    clipping: str = "weighted"

    def lines(self) -> list[str]:
        return [
            f"{self.steps} sums of bounded scores of coefficients and noise scale over all records, each where the "
            "ones before it point, and the information of the records before the first and after the last",
            "scores are bounded by weights that no outcome decides, and residuals are cut on both sides alike: the "
            "clip bends nothing",
            f"{self.draws} draws of the posterior given these sums, at no further cost; the noise scale is learnt",
        ]

    def remarks(self) -> list[str]:
        return [
            *([] if self.scale.get("seen", True) else [UNSEEN]),
            f"The budget was spent on {self.steps} noisy sums of bounded scores, of coefficients and noise scale, and "
            "two of the records' information. The draws are independent draws of the posterior given these, so that "
            "they know of the noise: intervals are as wide as it makes them.",
            PRIOR,
            "Approximations: rows are taken as normal with the moments that the released information tells, the "
            "information is drawn from its own release, and the spread of scores is the model's. Where the model is "
            "wrong, intervals are about the coefficients at which the mean bounded score is zero; where errors are not "
            "normal, the noise scale is that of their middle.",
        ]


@dataclass(frozen=True, kw_only=True)
class MomentsSummary(RunSummary):
    """Of one noisy matrix of moments."""

    name: ClassVar[str] = "sufficient_statistics"
    independent: ClassVar[bool] = True
    noise_multiplier: float
    scale: Mapping[str, Any]
    learnt: bool  # whether the noise scale is
    clipping: str = "weighted"

    def lines(self) -> list[str]:
        return [
            "the sums of all products of rows and outcomes, with noise, after the scale of both",
            f"{self.draws} draws of the posterior given these, at no further cost"
            + ("; the noise scale is learnt" if self.learnt else ""),
        ]

    def remarks(self) -> list[str]:
        return [
            *([] if self.scale.get("seen", True) else [UNSEEN]),
            "The budget was spent on noisy sums of all products of rows and outcomes. The draws are independent draws "
            "of the posterior given these, so that they know of the noise: intervals are as wide as it makes them.",
            *([PRIOR] if self.learnt else []),
            "Approximations: the noise in the products of rows is taken at the posterior mean of the coefficients, "
            "and outcomes beyond two and a half times the size that most are within are cut.",
        ]
