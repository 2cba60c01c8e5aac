"""Rows as they are guessed before anybody looks: numeric features uniform within their bounds, categories equally
likely, all of them independent.

Each feature has its strata in an order of its own (a Latin hypercube), so that even few rows have the moments of the
guess; the order is fixed, and so the same question has the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from confide.data.schema import Column, Schema

ROWS, PER_FEATURE, MOST_ROWS = 1024, 24, 4096
MISSING_SHARE = 0.05  # of the values of a column whose missing ones have a feature of their own
SEED = 20150901


class Guess(NamedTuple):
    """Rows with the constant last, and what their columns are called."""

    names: tuple[str, ...]
    rows: np.ndarray
    said: tuple[str, ...]  # what was taken for granted
    levels: tuple[tuple[str, tuple[int, ...]], ...] = ()  # categories, and the columns of their levels


class Belief(NamedTuple):
    """What else may be known of the records beforehand."""

    spread: float | None = None  # standard deviation of numeric features, which then are normal; None: uniform
    correlation: float = 0.0  # of each column with the next one


NOTHING_ELSE = Belief()


def from_features(features: int, belief: Belief = NOTHING_ELSE) -> Guess:
    """Of arrays whose features lie in [-1, 1], and a model with an intercept."""
    count = _count(features)
    columns = [_number(at, belief.spread) for at in _quantiles(features, count, belief.correlation)]
    names = (*(f"feature {i + 1}" for i in range(features)), "intercept")
    said = [f"features {_spread(belief)} on [-1, 1]", _together(belief)]
    return Guess(names, np.column_stack([*columns, np.ones(count)]), tuple(said))


def from_schema(schema: Schema, belief: Belief = NOTHING_ELSE) -> Guess:
    """Of a table, encoded as `confide.data.encoding` encodes it."""
    count = _count(len(schema.features))
    absent = np.random.default_rng(SEED + 2)
    every = zip(schema.inputs, _quantiles(len(schema.inputs), count, belief.correlation), strict=True)
    parts = [_features(column, at, _strata(absent, count), belief.spread) for column, at in every]
    rows = np.concatenate([*parts, np.ones((count, 1))], axis=1)
    if schema.norm_bound is not None:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= np.minimum(1.0, schema.norm_bound / norms)
    kinds = {column.kind for column in schema.inputs}
    said = [f"numeric columns {_spread(belief)} within their bounds"] if "numeric" in kinds else []
    named = any(column.shares for column in schema.inputs)
    equal = "categories as often as the schema says, or equally likely" if named else "categories equally likely"
    said += [equal] if kinds - {"numeric"} else []
    said += [_together(belief)] if len(schema.inputs) > 1 else []
    if any(column.missing == "indicator" for column in schema.inputs):
        said.append(f"{MISSING_SHARE:.0%} of values missing where they have a feature")
    own = [column.name for column in schema.inputs if column.kind == "categorical"]
    return Guess(schema.features, rows, tuple(said), tuple(zip(own, schema.categories, strict=True)))


def _spread(belief: Belief) -> str:
    return "uniform" if belief.spread is None else f"normal with standard deviation {belief.spread:g}, cut"


def _together(belief: Belief) -> str:
    return f"neighbouring columns correlated by {belief.correlation:g}" if belief.correlation else "columns independent"


def _quantiles(columns: int, count: int, correlation: float) -> list[np.ndarray]:
    """Of every column, uniform; those of one and the next are correlated as normal variables."""
    rng = np.random.default_rng(SEED)
    found = [_strata(rng, count) for _ in range(columns)]
    if not correlation:
        return found
    normal = special.ndtri(np.array(found))
    for i in range(1, columns):
        normal[i] = correlation * normal[i - 1] + np.sqrt(1 - correlation**2) * normal[i]
    return list(special.ndtr(normal))


def _number(at: np.ndarray, spread: float | None) -> np.ndarray:
    return 2 * at - 1 if spread is None else np.clip(spread * special.ndtri(at), -1.0, 1.0)


def _count(features: int) -> int:
    return min(max(ROWS, PER_FEATURE * features), MOST_ROWS)


def _strata(rng: np.random.Generator, count: int) -> np.ndarray:
    return (rng.permutation(count) + 0.5) / count


def _features(column: Column, at: np.ndarray, absent: np.ndarray, spread: float | None) -> np.ndarray:
    """Of one column, by quantiles of its values, and of whether they are missing."""
    levels = len(column.labels)
    if column.kind == "numeric":
        own = _number(at, spread)[:, None]
    elif column.kind == "categorical":
        own = np.eye(levels)[_level(column, at)]
    else:
        own = (2 * _level(column, at) / (levels - 1) - 1)[:, None]
    if column.missing != "indicator":
        return own
    missing = absent < MISSING_SHARE
    own[missing] = 0.0
    return np.concatenate([own, missing[:, None]], axis=1)


def _level(column: Column, at: np.ndarray) -> np.ndarray:
    """The number of the label: all are equally likely, unless the schema says otherwise."""
    levels = len(column.labels)
    shares = np.array(column.shares or [1.0] * levels)
    return np.minimum(np.searchsorted(np.cumsum(shares / shares.sum()), at), levels - 1)
