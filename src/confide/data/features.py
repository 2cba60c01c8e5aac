"""What is public about each feature of an encoded row, beyond its name.

A regression in standardised coordinates (`confide.inference.regression`) needs it: which features are numbers, which
are the levels of one category, between which bounds a number lies, and, where it is declared, in which range about nine
in ten records lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from confide import validation
from confide.data import encoding
from confide.data.schema import Column, Schema, check_typical
from confide.validation import Refused

Kind = Literal["numeric", "boolean", "level", "indicator"]


class Feature(NamedTuple):
    """One feature. Numbers lie within `low` and `high`; booleans are -1 or 1; levels and indicators are 0 or 1."""

    kind: Kind
    group: int = -1  # of a level: the number of its category
    low: float = -1.0
    high: float = 1.0
    typical: tuple[float, float] | None = None  # of a number: the range of about nine in ten records
    prior: float | None = None  # standard deviation of its coefficient, per unit of the feature; None is the usual one


def features_of(schema: Schema, *, scaled_outcome: bool = False) -> tuple[Feature, ...]:
    """The features of a row that `confide.data.encoding` makes, in their order, without the intercept.

    With `scaled_outcome` priors are of coefficients that predict the target as it is encoded, and not in its unit."""
    features: list[Feature] = []
    categories = 0
    outcome_units = units_of(schema.column(schema.target)) if scaled_outcome else 1.0
    for column in schema.inputs:
        prior = None if column.prior is None else column.prior * units_of(column) / outcome_units
        if column.kind == "categorical":
            features += [Feature("level", categories, prior=prior)] * len(column.features)
            categories += 1
            continue
        kind: Kind = "boolean" if column.kind == "boolean" else "numeric"
        features.append(Feature(kind, typical=_typical_range(column), prior=prior))
        if column.missing == "indicator":
            features.append(Feature("indicator"))
    return tuple(features)


def units_of(column: Column) -> float:
    """How many units of the column one unit of its feature is: a coefficient per unit of the column times this is the
    coefficient of the feature. Units of an ordinal column are steps."""
    if column.kind == "categorical":
        return 1.0
    if column.kind == "numeric":
        assert column.low is not None
        assert column.high is not None
        width = column.high - column.low
        return (math.log1p(width) if column.scale == "log" else width) / 2
    return (len(column.labels) - 1) / 2


def _typical_range(column: Column) -> tuple[float, float] | None:
    """The declared range as it is encoded."""
    if column.typical is None:
        return None
    low, high = encoding.scale(column, np.array(column.typical))
    return float(low), float(high)


def read_features(given: Any) -> tuple[Feature, ...]:
    """Features as a user or a file lists them: as `Feature`, or as mappings with the same names."""
    try:
        return tuple(_read_feature(place, entry) for place, entry in enumerate(given))
    except TypeError:
        raise Refused("features is no list: give one entry for each column, as [{'kind': 'numeric'}, ...]") from None


def _read_feature(place: int, entry: Any) -> Feature:
    known = entry._asdict() if isinstance(entry, Feature) else entry
    if not isinstance(known, Mapping) or "kind" not in known:
        kinds = ", ".join(get_args(Kind))
        raise Refused(f"features[{place}] has no kind: write {{'kind': 'numeric'}}, or another of {kinds}")
    if unknown := set(known) - set(Feature._fields):
        raise Refused(f"features[{place}]: {min(unknown)!r} is not known: it may have {', '.join(Feature._fields)}")
    kind: Any = validation.one_of(get_args(Kind), kind=known["kind"])
    low, high = (validation.number(name, known.get(name, end)) for name, end in (("low", -1.0), ("high", 1.0)))
    if not low < high:
        raise Refused(f"features[{place}]: low = {low:g} is not below high = {high:g}: give public bounds")
    typical = known.get("typical")
    if typical is not None:
        typical = check_typical(typical, low, high, f"features[{place}]: ")
    prior = known.get("prior")
    if prior is not None:
        prior = validation.positive(prior=prior)
    return Feature(kind, int(known.get("group", -1)), low, high, typical, prior)
