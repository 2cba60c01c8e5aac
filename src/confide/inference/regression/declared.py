"""The design of a regression from what is declared: the family, the features and the bounds of the outcome."""

from __future__ import annotations

from confide.data.features import Feature
from confide.inference.regression.design import Column, Design, Family

ENGINES: dict[str, Family] = {
    "logistic": "logistic",
    "linear": "linear",
    "poisson": "counts",
    "negative-binomial": "counts",
}  # the kind of outcome, by what the command line calls a family


def make_design(family: str, features: tuple[Feature, ...], outcome: tuple[float, float], records: int) -> Design:
    columns = tuple(_to_column(feature) for feature in features)
    return Design(family=ENGINES[family], columns=columns, outcome=outcome, number=records)


def _to_column(feature: Feature) -> Column:
    if feature.kind == "level":
        return Column("category", feature.group)
    return Column(feature.kind, low=feature.low, high=feature.high, typical=feature.typical)
