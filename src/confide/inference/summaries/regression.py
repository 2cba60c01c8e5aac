"""Summary of private regression in standardised coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from confide.inference.regression.families import describe_estimand
from confide.inference.summaries.runs import RunSummary

FEW = 0.8  # of the declared records: where fewer counted, the summary warns


@dataclass(frozen=True, kw_only=True)
class RegressionSummary(RunSummary):
    """Of a sequence of noisy sums over all records."""

    name: ClassVar[str] = "scoring"
    independent: ClassVar[bool] = True
    noisy_sums: ClassVar[bool] = True
    steps: int  # queries
    noise_multipliers: list[float]  # of sums of vectors
    information_multipliers: list[float]  # of sums of matrices
    prior: Mapping[str, Any]
    features: Any  # what is public about each column
    counted: Mapping[str, float] | None = None  # noisy number of records and its standard error, once it is known
    constant: int | None = None  # column that is 1 for every record
    clipping: str = "weighted"

    def lines(self) -> list[str]:
        prior = (
            f"coefficients of standardised columns have a normal prior of standard deviation {self.prior['slope']:g}"
            if self.prior["kind"] == "standardised"
            else f"encoded coefficients have a normal prior of standard deviation {self.prior['scale']:g}"
        )
        return [
            f"{self.steps} noisy sums over all records: their number, the center and spread of each column, second "
            "moments, bounded scores at successive estimates, and the slope and variance of the scores",
            prior,
            f"{self.draws} draws of the posterior given these sums, at no further cost",
        ]

    def count_sentence(self) -> str:
        """How many records counted; empty before the run."""
        if self.counted is None:
            return ""
        number, error = self.counted["number"], self.counted["error"]
        return f"{number:,.0f} +- {error:,.0f} of {self.records:,} declared records counted."

    def warning(self) -> str:
        if self.counted is None or self.counted["number"] + 2 * self.counted["error"] >= FEW * self.records:
            return ""
        return (
            f"{self.count_sentence()} The others are missing or not admitted by the schema: look for them with "
            "'confide schema check'."
        )

    def remarks(self) -> list[str]:
        return [
            *([self.count_sentence()] if self.counted else []),
            f"The intervals are about {describe_estimand(self.model)}. Their variance is estimated "
            "from the records, with noise, and not taken from the model.",
            f"The budget was spent on {self.steps} noisy sums. The draws are independent draws of the posterior given "
            "these sums, so that intervals include the privacy noise.",
            "Approximations: the posterior is normal given the slope of the scores, and how that slope changes with "
            "the coefficients is computed for normally distributed rows.",
        ]
