"""The prior of private regression in words: what it says of each coefficient in the unit of its column."""

from __future__ import annotations

import numpy as np

from confide.data.features import units_of
from confide.data.image_schema import Pictures
from confide.data.schema import Column, Schema
from confide.inference.posterior import Posterior
from confide.inference.regression.priors import prior_from_json
from confide.inference.regression.release import RegressionRelease


def describe(posterior: Posterior, schema: Schema | Pictures) -> str:
    """One sentence; empty for runs whose prior is on encoded features alone. What the columns hold was bought, so that
    the sentence reveals nothing more."""
    release = posterior.release
    if not isinstance(release, RegressionRelease) or isinstance(schema, Pictures):
        return ""
    if release.prior["kind"] != "standardised":
        return ""
    target = schema.column(schema.target)
    outcome_unit = units_of(target) if release.design.outcome_kind == "numbers" else 1.0
    deviations = encoded_deviations(release)
    parts, place = [], 0
    for column in schema.inputs:
        own = len(column.labels) if column.kind == "categorical" else 1
        chosen = [value for value in deviations[place : place + own] if np.isfinite(value)]
        place += len(column.features)
        if chosen:
            raw = outcome_unit * float(np.median(chosen)) / units_of(column)
            parts.append(f"{column.name} {raw:.3g} {_unit(column)}")
    return (
        "Before the records were seen, coefficients were taken as normal about 0 with these standard deviations: "
        f"{'; '.join(parts)}."
    )


def encoded_deviations(release: RegressionRelease) -> np.ndarray:
    """Prior standard deviations of the coefficients of features as they are encoded; missing for reference levels."""
    frame, design = release.result.frame, release.design
    location, kept = frame.location, list(frame.kept)
    precision = prior_from_json(release.prior)(design, location, release.result.family.offset).precision
    unit = location.outcome_spread if design.outcome_kind == "numbers" else 1.0
    deviations = np.full(len(design.columns), np.nan)
    deviations[kept] = unit * np.diag(precision)[:-1] ** -0.5 / location.spread[kept]
    return deviations


def _unit(column: Column) -> str:
    if column.kind == "numeric":
        unit = column.unit or "unit"
        return f"per unit of log(1 + {column.name} - {column.low:g})" if column.scale == "log" else f"per {unit}"
    if column.kind == "ordinal":
        return "per step"
    return "between its values" if column.kind == "boolean" else "between levels (the median of them)"
