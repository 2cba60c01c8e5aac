"""Rows and outcomes of a table as they are guessed before anybody looks, for forecasts of a regression.

What the schema declares is used: the typical range of a number, the shares of booleans and categories. Numbers without
a typical range are taken as normal with a standard deviation of `SPREAD` half ranges, booleans as true in `TRUE_SHARE`
of the records, and the levels of a category as falling off like 1, 1/2, 1/3, ... Real columns differ from this by up to
`RANGE` either way, which forecasts show as a range.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from confide.data import encoding
from confide.data.features import features_of
from confide.data.schema import Column, Schema
from confide.inference.power.guesses import MISSING_SHARE, SEED, Belief

ROWS = 1024
SPREAD = 0.25  # of half a range, as the engine takes it before it looks
TRUE_SHARE = 0.2  # of booleans, and of positive outcomes
RANGE = 2.0
SIGNALS = {"labels": 0.7, "counts": 0.4}  # standard deviation of the linear predictor
EXPLAINED = 0.3  # share of the variance of numbers
COUNT_SHARE = 0.05  # mean of counts over their upper bound
DISPERSION = 0.5
TYPICAL_WIDTH = 3.29  # standard deviations between the ends of a typical range


class TableGuess(NamedTuple):
    rows: np.ndarray  # without the constant
    outcomes: np.ndarray
    linear_predictor: np.ndarray
    declared: np.ndarray  # of each feature: whether its distribution is declared
    assumptions: tuple[str, ...]


def guess_table(
    schema: Schema,
    engine: str,
    belief: Belief,
    noise_scale: float | None,
    dispersion: float | None,
    signal: float | None,
) -> TableGuess:
    generator = np.random.default_rng(SEED)
    uniforms = _correlated_uniforms(len(schema.inputs), belief.correlation, generator)
    parts, declared = [], []
    for column, uniform in zip(schema.inputs, uniforms, strict=True):
        features, known = _features(column, uniform, belief, generator)
        parts.append(features)
        declared += [known] * features.shape[1]
    rows = np.concatenate(parts, axis=1)
    assert rows.shape[1] == len(features_of(schema))
    standardised = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-6)
    predictor = standardised @ generator.standard_normal(rows.shape[1])
    predictor /= max(float(predictor.std()), 1e-9)
    target = schema.column(schema.target)
    outcomes, predictor = _outcomes(target, engine, predictor, noise_scale, dispersion, signal, generator)
    return TableGuess(rows, outcomes, predictor, np.array(declared), _assumptions(schema, belief, np.array(declared)))


def _correlated_uniforms(count: int, correlation: float, generator: np.random.Generator) -> list[np.ndarray]:
    normals = generator.standard_normal((count, ROWS))
    for place in range(1, count):
        normals[place] = correlation * normals[place - 1] + np.sqrt(1 - correlation**2) * normals[place]
    return list(special.ndtr(normals))


def _features(
    column: Column, uniform: np.ndarray, belief: Belief, generator: np.random.Generator
) -> tuple[np.ndarray, bool]:
    if column.kind == "numeric":
        center, spread = 0.0, SPREAD if belief.spread is None else belief.spread
        if column.typical is not None:
            low, high = encoding.scale(column, np.array(column.typical))
            center, spread = (low + high) / 2, (high - low) / TYPICAL_WIDTH
        features = np.clip(center + spread * special.ndtri(uniform), -1.0, 1.0)[:, None]
        known = column.typical is not None or belief.spread is not None
    else:
        shares, known = _shares(column), bool(column.shares)
        levels = np.minimum(np.searchsorted(np.cumsum(shares), uniform), len(shares) - 1)
        count = len(column.labels)
        features = np.eye(count)[levels] if column.kind == "categorical" else (2.0 * levels / (count - 1) - 1)[:, None]
    if column.missing != "indicator":
        return features, known
    missing = generator.random(ROWS) < MISSING_SHARE
    features[missing] = 0.0
    return np.concatenate([features, missing[:, None]], axis=1), known


def _shares(column: Column) -> np.ndarray:
    if column.shares:
        return np.array(column.shares) / np.sum(column.shares)
    if column.kind == "boolean":
        return np.array([1 - TRUE_SHARE, TRUE_SHARE])
    weights = 1 / np.arange(1.0, len(column.labels) + 1)
    return weights / weights.sum()


def _outcomes(
    target: Column,
    engine: str,
    predictor: np.ndarray,
    noise_scale: float | None,
    dispersion: float | None,
    signal: float | None,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes with a linear predictor of the usual strength, and this predictor."""
    if engine == "labels":
        share = target.shares[1] if target.shares else TRUE_SHARE
        predictor = SIGNALS[engine] * predictor if signal is None else signal * predictor
        predictor = predictor + special.logit(share)
        return (generator.random(len(predictor)) < special.expit(predictor)).astype(float), predictor
    if engine == "numbers":
        low, high = (-SPREAD * TYPICAL_WIDTH / 2, SPREAD * TYPICAL_WIDTH / 2)
        if target.typical is not None:
            low, high = encoding.scale(target, np.array(target.typical))
        spread = float(high - low) / TYPICAL_WIDTH
        noise = spread * np.sqrt(1 - EXPLAINED) if noise_scale is None else noise_scale
        predictor = predictor * (spread * np.sqrt(EXPLAINED) if signal is None else signal) + float(low + high) / 2
        return predictor + noise * generator.standard_normal(len(predictor)), predictor
    assert target.high is not None
    mean = max(1.0, COUNT_SHARE * target.high) if target.typical is None else max(0.1, 0.4 * sum(target.typical))
    scale = SIGNALS[engine] if signal is None else signal
    predictor = np.log(mean) + scale * predictor - scale**2 / 2
    size = 1 / (DISPERSION if dispersion is None else dispersion)
    counts = generator.negative_binomial(size, size / (size + np.exp(predictor)))
    return np.minimum(counts, target.high).astype(float), predictor


def _assumptions(schema: Schema, belief: Belief, declared: np.ndarray) -> tuple[str, ...]:
    lines = []
    if declared.any():
        lines.append("columns as their typical ranges and shares say")
    if not declared.all():
        lines.append(
            f"numbers without a typical range spread by {SPREAD:g} of half their range, booleans without shares true "
            f"in {TRUE_SHARE:.0%}, levels falling off as 1, 1/2, 1/3"
        )
    lines.append(
        f"neighbouring columns correlated by {belief.correlation:g}" if belief.correlation else "columns independent"
    )
    return tuple(lines)
