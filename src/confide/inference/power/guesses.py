"""Rows as they are guessed before anybody looks: numeric features uniform within their bounds, categories equally
likely, all of them independent.

Each feature has its strata in an order of its own (a Latin hypercube), so that even few rows have the moments of the
guess; the order is fixed, and so the same question has the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.data.schema import Column, Schema

ROWS, PER_FEATURE, MOST_ROWS = 1024, 24, 8192
MISSING_SHARE = 0.05  # of the values of a column whose missing ones have a feature of their own
SEED = 20150901


class Guess(NamedTuple):
    """Rows with the constant last, and what their columns are called."""

    names: tuple[str, ...]
    rows: np.ndarray
    said: tuple[str, ...]  # what was taken for granted


def from_features(features: int) -> Guess:
    """Of arrays whose features lie in [-1, 1], and a model with an intercept."""
    rng, count = np.random.default_rng(SEED), _count(features)
    columns = [2 * _strata(rng, count) - 1 for _ in range(features)]
    names = (*(f"feature {i + 1}" for i in range(features)), "intercept")
    return Guess(names, np.column_stack([*columns, np.ones(count)]), ("features independent, uniform on [-1, 1]",))


def from_schema(schema: Schema) -> Guess:
    """Of a table, encoded as `confide.data.encoding` encodes it."""
    rng, count = np.random.default_rng(SEED), _count(len(schema.features))
    parts = [_features(column, _strata(rng, count), _strata(rng, count)) for column in schema.inputs]
    rows = np.concatenate([*parts, np.ones((count, 1))], axis=1)
    if schema.norm_bound is not None:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= np.minimum(1.0, schema.norm_bound / norms)
    kinds = {column.kind for column in schema.inputs}
    said = ["numeric columns uniform within their bounds"] if "numeric" in kinds else []
    said += ["categories equally likely"] if kinds - {"numeric"} else []
    said += ["all columns independent"] if len(schema.inputs) > 1 else []
    if any(column.missing == "indicator" for column in schema.inputs):
        said.append(f"{MISSING_SHARE:.0%} of values missing where they have a feature")
    return Guess(schema.features, rows, tuple(said))


def _count(features: int) -> int:
    return min(max(ROWS, PER_FEATURE * features), MOST_ROWS)


def _strata(rng: np.random.Generator, count: int) -> np.ndarray:
    return (rng.permutation(count) + 0.5) / count


def _features(column: Column, at: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Of one column, by quantiles of its values, and of whether they are missing."""
    levels = len(column.labels)
    if column.kind == "numeric":
        own = (2 * at - 1)[:, None]
    elif column.kind == "categorical":
        own = np.eye(levels)[np.floor(at * levels).astype(np.int64)]
    else:
        own = (2 * np.floor(at * levels) / (levels - 1) - 1)[:, None]
    if column.missing != "indicator":
        return own
    missing = absent < MISSING_SHARE
    own[missing] = 0.0
    return np.concatenate([own, missing[:, None]], axis=1)
