"""Summaries of the baselines: one release each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from confide.inference.summaries.runs import Priced

TOLD = (
    *("method", "regularisation", "noise_scale", "output_noise_scale", "tolerance", "gradient_bound", "clip"),
    *("teachers", "queries", "threshold", "check_noise", "answers", "answer_noise", "figure_noise"),
)


@dataclass(frozen=True, kw_only=True)
class ReleaseSummary(Priced):
    """Of one release, priced and charged at once."""

    name: ClassVar[str]
    norm_bound: float | None

    def head(self) -> str:
        return super().head().removesuffix(self.sampler) + self.sampler.replace("_", " ")

    def lines(self) -> list[str]:
        plan = self.to_json()
        shown = [f"{name.replace('_', ' ')} {_short(plan[name])}" for name in TOLD if plan.get(name) is not None]
        return [", ".join(shown)]


@dataclass(frozen=True, kw_only=True)
class MinimumSummary(ReleaseSummary):
    """Of the minimum of a regularised objective."""

    method: str
    clip: float | None
    gradient_bound: float
    regularisation: float
    prior_regularisation: float
    noise_scale: float
    tolerance: float

    def lines(self) -> list[str]:
        raised = self.regularisation / self.prior_regularisation
        weak = f"the prior is too weak: the regularisation is {raised:.3g} times that of the prior"
        return [*super().lines(), *([weak] if raised > 1 + 1e-9 else [])]


@dataclass(frozen=True, kw_only=True)
class OutputSummary(MinimumSummary):
    name: ClassVar[str] = "output_perturbation"


@dataclass(frozen=True, kw_only=True)
class ObjectiveSummary(MinimumSummary):
    name: ClassVar[str] = "objective_perturbation"
    smoothness: float
    output_noise_scale: float | None


@dataclass(frozen=True, kw_only=True)
class StatisticsSummary(ReleaseSummary):
    """Of noisy sufficient statistics."""

    name: ClassVar[str] = "sufficient_statistics_regression"
    method: str
    outcome_bound: float
    residual: str
    noise_scale: float


@dataclass(frozen=True, kw_only=True)
class VotesSummary(ReleaseSummary):
    """Of a student that learnt from noisy votes."""

    name: ClassVar[str] = "pate"
    teachers: int
    queries: int | None
    threshold: float | None
    check_noise: float | None
    answers: int
    answer_noise: float
    figure_noise: float | None
    account: str
    public_rows: int
    steps: int
    batch_size: int
    learning_rate: float
    student: Any
    labelled: Mapping[str, Any] | None = None  # which public rows got which labels
    figure: Mapping[str, Any] | None = None  # what the votes revealed at these records

    def outcome(self) -> list[str]:
        """What came of the vote: public, as it was paid for."""
        rows = [] if self.labelled is None else self.labelled["rows"]
        figure = [] if self.figure is None else [self.figure["sentence"]]
        return [f"labelled {len(rows)} of {self.public_rows} public rows", *figure]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
