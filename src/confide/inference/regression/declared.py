"""The design of a regression from what is declared: the family, the features and the bounds of the outcome."""

from __future__ import annotations

from confide.data.features import Feature
from confide.inference.regression.design import Column, Design
from confide.inference.regression.families import FAMILIES


def make_design(family: str, features: tuple[Feature, ...], outcome: tuple[float, float], records: int) -> Design:
    columns = tuple(_to_column(feature) for feature in features)
    return Design(outcome_kind=FAMILIES[family].outcome_kind, columns=columns, outcome=outcome, number=records)


def _to_column(feature: Feature) -> Column:
    if feature.kind == "level":
        return Column("category", feature.group)
    return Column(feature.kind, low=feature.low, high=feature.high, typical=feature.typical)
