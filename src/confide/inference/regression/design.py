"""What is public about the rows and outcomes of a regression, and how its budget is divided over queries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["numeric", "boolean", "indicator", "category"]
OutcomeKind = Literal["labels", "numbers", "counts"]  # two labels, numbers, or counts
STEPS, GROWTH = 16, 1.35  # queries of scores, and how much more each may reveal than the one before
COLUMN_STAGES = 3
SCALE_SHARE = 0.15  # bound of the number about the residual scale in a query of scores, over that of the scores


class Column(NamedTuple):
    """One column of the features. Numbers lie within `low` and `high`; booleans are -1 or 1; indicators of missing
    values and levels are 0 or 1."""

    kind: Kind
    group: int = -1  # of levels: which category they belong to
    low: float = -1.0
    high: float = 1.0
    typical: tuple[float, float] | None = None  # the range that about nine in ten records lie in, where it is declared


@dataclass(frozen=True, kw_only=True)
class Design:
    """A regression with an intercept, as far as it is public."""

    outcome_kind: OutcomeKind
    columns: tuple[Column, ...]
    outcome: tuple[float, float]  # bounds
    number: int  # of records, as declared

    @property
    def numeric(self) -> list[int]:
        return [j for j, column in enumerate(self.columns) if column.kind == "numeric"]

    @property
    def two_valued(self) -> list[int]:
        """Booleans and indicators."""
        return [j for j, column in enumerate(self.columns) if column.kind in ("boolean", "indicator")]

    @property
    def categories(self) -> list[list[int]]:
        """Columns of every category."""
        groups = sorted({column.group for column in self.columns if column.kind == "category"})
        return [[j for j, column in enumerate(self.columns) if column.group == group] for group in groups]

    @property
    def size(self) -> int:
        """Coefficients: a level of every category is the reference, and the intercept is one of them."""
        return len(self.columns) - len(self.categories) + 1


class Share(NamedTuple):
    """A query in the order in which queries are asked, and its share of the squared budget."""

    name: str
    share: float
    is_matrix: bool = False


def divide(design: Design) -> list[Share]:
    """All queries and their shares, which add up to 1. They depend on public facts alone."""
    fixed = {"count": 0.004, "norm": 0.004, "columns": 0.05, "tails": 0.01 if design.numeric else 0.0}
    # The error of a noisy matrix, as a multiple of the matrix, grows with its size: large ones get more of the budget.
    large = min(design.size / 100, 1.0)
    matrices = {
        "moments": 0.09 + 0.06 * large, "middle slope": 0.03 + 0.03 * large, "slope": 0.07 + 0.08 * large,
        "variance": 0.03,
    }  # fmt: skip
    tail = {"labels": 0.0, "numbers": 0.01, "counts": 0.03}[design.outcome_kind]
    steps = 1 - sum(fixed.values()) - sum(matrices.values()) - tail
    step_shares = steps * growing(STEPS)
    order = [Share("count", fixed["count"])]
    order += [Share(f"columns {stage}", fixed["columns"] / COLUMN_STAGES) for stage in range(COLUMN_STAGES)]
    order += [Share("tails", fixed["tails"])] if design.numeric else []
    order += [Share("moments", matrices["moments"], True), Share("norm", fixed["norm"])]
    for step in range(STEPS):
        if step == STEPS // 2:
            order.append(Share("middle slope", matrices["middle slope"], True))
        order.append(Share(f"scores {step}", float(step_shares[step])))
    order += [Share("slope", matrices["slope"], True), Share("variance", matrices["variance"], True)]
    return order + ([Share("outcome tail", tail)] if tail else [])


def growing(steps: int) -> np.ndarray:
    shares = GROWTH ** np.arange(float(steps))
    return shares / shares.sum()


def noise_multipliers(
    shares: list[Share], mu: float, *, change: float = 1.0, matrix_change: float = 1.0
) -> dict[str, float]:
    """Standard deviations of the noise over the bound of a record. `change` is how far a vector within a bound of 1 can
    move between neighbours, `matrix_change` the same of a matrix."""
    changes = {False: change, True: matrix_change}
    return {query.name: changes[query.is_matrix] / (mu * math.sqrt(query.share)) for query in shares}


def combine(multipliers: dict[str, float], name: str) -> float:
    """The noise multiplier of all queries whose names start with `name` together."""
    return sum(value**-2.0 for key, value in multipliers.items() if key.startswith(name)) ** -0.5
