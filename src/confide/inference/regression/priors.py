"""Normal priors, as a program uses them: on coefficients of standardised columns and the intercept of centered ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from confide.inference.regression.columns import Location
from confide.inference.regression.design import Design
from confide.inference.regression.program import Prior

SLOPE, INTERCEPT = 2.5, 5.0


@dataclass(frozen=True)
class StandardisedPrior:
    """Standard deviations of slopes per standard deviation of a column, as in rstanarm, and of the intercept.

    `columns` are standard deviations of single coefficients of features as they are encoded, by their places. Of a
    level it is that of the difference to the reference level.
    """

    slope: float = SLOPE
    intercept: float = INTERCEPT
    columns: Mapping[int, float] = field(default_factory=dict)

    def __call__(self, design: Design, location: Location, offset: float) -> Prior:
        kept = [j for j in range(len(design.columns)) if j not in location.references]
        unit = location.outcome_spread if design.outcome_kind == "numbers" else 1.0
        slopes = [self.columns[j] * location.spread[j] / unit if j in self.columns else self.slope for j in kept]
        deviations = np.array([*slopes, self.intercept])
        return Prior(np.zeros(len(deviations)), np.diag(deviations**-2.0))


@dataclass(frozen=True)
class RawPrior:
    """The same standard deviation for all coefficients of features as they are encoded, the intercept at 0 included.

    Levels of a category each have a coefficient of their own under this prior; those of the others less that of the
    reference are what is estimated, and the intercept takes up the reference.
    """

    scale: float
    intercept: float | None = None

    def __call__(self, design: Design, location: Location, offset: float) -> Prior:
        kept = [j for j in range(len(design.columns)) if j not in location.references]
        d = len(kept) + 1
        linear = design.outcome_kind == "numbers"
        unit = location.outcome_spread if linear else 1.0
        groups = np.array([design.columns[j].group if design.columns[j].kind == "category" else -1 for j in kept])
        covariance = np.zeros((d, d))
        covariance[:-1, :-1] = np.eye(d - 1) + ((groups[:, None] == groups) & (groups[:, None] >= 0))
        covariance[-1, :-1] = covariance[:-1, -1] = np.where(groups >= 0, -1.0, 0.0)
        intercept = self.scale if self.intercept is None else self.intercept
        covariance[-1, -1] = (intercept / self.scale) ** 2 + len(location.references)
        covariance *= self.scale**2
        change = np.zeros((d, d))  # encoded coefficients over standardised ones
        change[:-1, :-1] = np.diag(unit / location.spread[kept])
        change[-1, -1] = unit
        change[-1, :-1] = -unit * location.center[kept] / location.spread[kept]
        start = np.append(np.zeros(d - 1), unit * offset + (location.outcome_center if linear else 0.0))
        precision = change.T @ np.linalg.solve(covariance, change)
        return Prior(-np.linalg.solve(change, start), (precision + precision.T) / 2)


def prior_from_json(stored: Mapping[str, Any]) -> StandardisedPrior | RawPrior:
    """The prior behind what a release stores of it."""
    if stored["kind"] == "standardised":
        columns = stored.get("columns", [])
        given = {place: float(value) for place, value in enumerate(columns) if value is not None}
        return StandardisedPrior(stored["slope"], stored["intercept"], given)
    return RawPrior(stored["scale"], stored["intercept"])
