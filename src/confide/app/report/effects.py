"""What the coefficients of a linear model say: the difference that each column can make, and whether it has settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from confide.data.image_schema import Pictures
from confide.data.schema import Column, Schema
from confide.inference.posterior import Posterior
from confide.inference.settling import AGREED, ENOUGH, Judgement, diagnose
from confide.models import families


class Effect(NamedTuple):
    """The posterior of one coefficient, as the difference that its feature can make."""

    name: str
    meaning: str
    mean: float
    sd: float
    low: float  # 90%
    high: float
    inner_low: float  # 50%
    inner_high: float
    above_zero: float  # posterior probability
    effective: float  # sample size
    r_hat: float | None
    interval: bool = True  # whether low and high are one; quantiles of the draws alone otherwise

    @property
    def settled(self) -> bool:
        return self.sd > 0 and self.effective >= ENOUGH and (self.r_hat is None or self.r_hat <= AGREED)


class Group(NamedTuple):
    """The coefficients of one label; of a model with one score there is one group without a name."""

    name: str
    effects: list[Effect]


def groups(posterior: Posterior, schema: Schema | Pictures, judged: Judgement) -> Iterator[Group]:
    if posterior.plan["model"] not in families.BY_NAME or isinstance(schema, Pictures):
        return  # weights of a network, or of single pixels, mean nothing one by one
    weights = np.asarray(posterior.draws["weights"], np.float64)  # (chains, draws, features, labels?)
    labels = schema.column(schema.target).labels if weights.ndim == 4 else ("",)
    if weights.ndim == 4:  # what all labels share no record tells
        weights = weights - weights.mean(axis=-1, keepdims=True)
    for k, label in enumerate(labels):
        own = _differences(posterior, schema, weights[..., k] if weights.ndim == 4 else weights)
        effective, r_hat = (np.full(own.shape[-1], np.nan), [None] * own.shape[-1])
        if not judged.independent:
            effective, r_hat = diagnose(own)
        meanings = [_meaning(schema, feature) for feature in schema.features]
        rows = zip(schema.features, meanings, np.moveaxis(own, -1, 0), effective, r_hat, strict=True)
        made = [_effect(*row) for row in rows]
        shown = [judged.intervals and (judged.independent or each.settled) for each in made]
        yield Group(label, [each._replace(interval=one) for each, one in zip(made, shown, strict=True)])


def noise_scale(posterior: Posterior, schema: Schema | Pictures) -> str:
    """What was learnt of the noise scale of a linear model, in words; nothing where it was given."""
    draws = posterior.draws.get("noise_scale") if isinstance(posterior.draws, dict) else None
    if draws is None or isinstance(schema, Pictures):
        return ""
    target = schema.column(schema.target)
    unit = (target.high or 0.0) / 2 - (target.low or 0.0) / 2 if target.scale == "linear" else 1.0
    low, middle, high = unit * np.quantile(np.asarray(draws, np.float64), [0.05, 0.5, 0.95])
    scaled = "" if target.scale == "linear" else ", of the target as it was scaled"
    return (
        f"Outcomes spread about what the columns tell with a standard deviation of {middle:.3g} (90% interval "
        f"{low:.3g} to {high:.3g}), which was learnt{scaled}."
    )


def _differences(posterior: Posterior, schema: Schema, weights: np.ndarray) -> np.ndarray:
    """Draws of the difference that each feature can make: (chains, draws, features).

    A number, a level or a yes counts from one end of its range to the other. A category counts against the mean of
    its column's categories, and that mean goes to the intercept: among themselves they only share it.
    """
    made, places, first = weights.copy(), {}, 0
    for column in schema.inputs:
        places[column.name] = first
        if column.kind == "categorical":
            span = slice(first, first + len(column.features))
            mean = weights[..., first : first + len(column.labels)].mean(axis=-1, keepdims=True)
            made[..., span] -= mean
            made[..., -1:] += mean
        else:
            made[..., first] *= 2.0
        first += len(column.features)
    target = schema.column(schema.target)
    if families.outcome(posterior.plan["model"]) == "number" and target.scale == "linear":
        assert target.low is not None
        assert target.high is not None
        made *= (target.high - target.low) / 2
        made[..., -1] += (target.high + target.low) / 2
    return made


def _effect(name: str, meaning: str, draws: np.ndarray, effective: float, r_hat: float | None) -> Effect:
    flat = draws.ravel()
    low, inner_low, inner_high, high = np.quantile(flat, [0.05, 0.25, 0.75, 0.95])
    return Effect(
        name,
        meaning,
        float(flat.mean()),
        float(flat.std()),
        float(low),
        float(high),
        float(inner_low),
        float(inner_high),
        float(np.mean(flat > 0)),
        float(effective),
        r_hat,
    )


def _meaning(schema: Schema, feature: str) -> str:
    """The difference that is meant, in words."""
    column = next((column for column in schema.inputs if feature in column.features), None)
    if column is None:
        return "all else at its middle"
    if column.kind == "categorical":
        return "against the mean of the categories"
    if feature != column.name:
        return "against a value in the middle"
    return f"from {_end(column, 0)} to {_end(column, -1)}"


def _end(column: Column, place: int) -> str:
    if column.kind == "numeric":
        return f"{column.low if place == 0 else column.high:g}{f' {column.unit}' if column.unit and place else ''}"
    return column.labels[place]
