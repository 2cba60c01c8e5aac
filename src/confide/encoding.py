"""From records to arrays: a pure function of the schema and one row, so that one person moves one row and no other.

| kind        | features                                                                        |
|-------------|---------------------------------------------------------------------------------|
| numeric     | clipped to its bounds, then scaled to [-1, 1] (after log(1 + value - low) if so asked) |
| ordinal     | evenly spaced in [-1, 1], in the order of its categories                         |
| boolean     | -1 for false, 1 for true                                                         |
| categorical | one feature for each category, 1 where it is the record's and 0 elsewhere        |

A column whose missing values have an indicator gets one feature more, and is 0 in its others where the value is
missing. A constant 1, the intercept, comes last. Every column adds at most 1 to the squared norm of a row; rows longer
than the schema's `norm_bound` are scaled down to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from confide.checks import Refused
from confide.schema import Column, Schema, text
from confide.tables import Piece, Table

AMONG = 5  # categories that a refusal lists


class Encoded(NamedTuple):
    x: np.ndarray  # (records, features), single precision
    y: np.ndarray  # (records,); empty where the table has no target
    kept: np.ndarray  # (rows of the table,): which rows are records; those with a missing value may be left out


class BadValue(Refused):
    """A value that the schema does not admit, in a row of the piece that is being encoded."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def encode(schema: Schema, columns: Mapping[str, Sequence[Any]], count: bool = False) -> Encoded:
    """Encode some records, given as the values of each column.

    The target is encoded where it is among the columns: as a class number, scaled to [-1, 1], or for a `count` clipped
    to its bounds.
    """
    parts, gone = [], []
    for column in schema.inputs:
        features, missing = _features(column, columns[column.name], schema)
        parts.append(features)
        if column.missing == "drop":
            gone.append(missing)
    rows = len(parts[0])
    x = np.concatenate([*parts, np.ones((rows, 1))], axis=1)
    if schema.norm_bound is not None:
        norms = np.sqrt(np.sum(x**2, axis=1, keepdims=True))
        # A little less, so that rounding to single precision stays within.
        x *= np.minimum(1.0, schema.norm_bound * (1 - 1e-6) / norms)
    y = np.zeros(0)
    if schema.target in columns:
        y, missing = _target(schema.column(schema.target), columns[schema.target], schema, count)
        gone.append(missing)
    kept = ~np.logical_or.reduce(gone) if gone else np.ones(rows, bool)
    return Encoded(x[kept].astype(np.float32), y[kept].astype(np.float32) if len(y) else y, kept)


def encode_table(schema: Schema, table: Table, *, count: bool = False) -> Encoded:
    """Encode a whole table with its target; refusals name the file, the line and the column."""
    _compared(schema, table, {column.name for column in schema.inputs} | {schema.target})
    pieces = [_encoded(schema, table, piece, piece.columns, count) for piece in table.pieces()]
    return Encoded(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


def encoded_pieces(schema: Schema, table: Table) -> Iterator[tuple[Piece, np.ndarray, np.ndarray]]:
    """Encode a table piece by piece without its target, which it may lack: (piece, x, which rows are in x)."""
    _compared(schema, table, {column.name for column in schema.inputs})
    for piece in table.pieces():
        inputs = {name: values for name, values in piece.columns.items() if name != schema.target}
        encoded = _encoded(schema, table, piece, inputs)
        yield piece, encoded.x, encoded.kept


def _encoded(
    schema: Schema, table: Table, piece: Piece, columns: Mapping[str, Sequence[Any]], count: bool = False
) -> Encoded:
    try:
        return encode(schema, columns, count)
    except BadValue as bad:
        raise Refused(f"{table.at(piece.lines[bad.row])}, {bad}") from None


def _compared(schema: Schema, table: Table, needed: set[str]) -> None:
    """Every column that is needed is in the table, and every column of the table is in the schema."""
    if missing := [column.name for column in schema.columns if column.name in needed - set(table.header)]:
        raise Refused(
            f"{table.at(1)}: column {missing[0]!r} of the schema is not in the file: "
            "add it, or describe the file as it is"
        )
    known = {column.name for column in schema.columns}
    if extra := [name for name in table.header if name not in known]:
        raise Refused(
            f"{table.at(1)}: column {extra[0]!r} is not in the schema: describe it there, "
            'with kind = "ignore" if it is not to be used'
        )


def _features(column: Column, values: Sequence[Any], schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """The features of one column, and which of its values are missing."""
    if column.kind == "numeric":
        numbers, missing = _numbers(column, values, schema)
        own = scaled(column, numbers)[:, None]
    else:
        places, missing = _places(column, values, schema)
        if column.kind == "categorical":
            own = np.eye(len(column.labels))[places]
        else:
            own = (2.0 * places / (len(column.labels) - 1) - 1.0)[:, None]
    own[missing] = 0.0
    if column.missing == "indicator":
        own = np.concatenate([own, missing[:, None]], axis=1)
    return own, missing


def _target(column: Column, values: Sequence[Any], schema: Schema, count: bool) -> tuple[np.ndarray, np.ndarray]:
    if column.kind != "numeric":
        places, missing = _places(column, values, schema)
        return places.astype(np.float64), missing
    numbers, missing = _numbers(column, values, schema)
    if not count:
        return scaled(column, numbers), missing
    wrong = np.flatnonzero((numbers != np.floor(numbers)) | (numbers < 0))
    if wrong.size:
        raise BadValue(
            int(wrong[0]),
            f"column {column.name!r}: {_quoted(values[wrong[0]])} is not a count: "
            "give whole numbers of at least 0, or another model",
        )
    return np.clip(numbers, _low(column), _high(column)), missing


def scaled(column: Column, numbers: np.ndarray) -> np.ndarray:
    """A numeric column's values in [-1, 1]."""
    low, high = _low(column), _high(column)
    clipped = np.clip(numbers, low, high)
    if column.scale == "log":
        return np.clip(2.0 * np.log1p(clipped - low) / math.log1p(high - low) - 1.0, -1.0, 1.0)
    return np.clip(2.0 * ((clipped - low) / (high - low)) - 1.0, -1.0, 1.0)


def unscaled(column: Column, numbers: np.ndarray) -> np.ndarray:
    """From [-1, 1], or beyond it, back to the unit of the column."""
    low, high, share = _low(column), _high(column), (np.asarray(numbers, np.float64) + 1.0) / 2.0
    if column.scale == "log":
        return low + np.expm1(share * math.log1p(high - low))
    return low + share * (high - low)


class Read(dict[Any, Any]):
    """Texts as they were read before: a column repeats itself more often than not.

    Texts alone: other values may be equal and yet be written differently (True and 1; an hour that occurs twice).
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def __missing__(self, value: Any) -> Any:
        self[value] = found = self.function(value)
        return found


def _numbers(column: Column, values: Sequence[Any], schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    def number(value: Any) -> float:
        if value is None or text(value) in schema.missing_values:
            return math.nan
        if isinstance(value, str) and not value.isascii():  # Python reads digits of every script
            raise ValueError(value)
        if isinstance(value, str) and "_" in value:  # and 1_000
            raise ValueError(value)
        if isinstance(value, str) and schema.decimal == ",":
            value = value.replace(",", ".")
        return float(value)

    try:
        read = Read(number)
        numbers = np.array([read[v] if type(v) is str else number(v) for v in values], np.float64)
    except (TypeError, ValueError, OverflowError):
        row = next(row for row, value in enumerate(values) if not _holds(number, value))
        remedy = "repair it, or list it in missing_values"
        if re.fullmatch(r"-?\d+,\d+", str(values[row]).strip()):
            remedy = 'write decimal = "," into the schema if the comma is a decimal mark'
        raise _not(column, row, values[row], "is not a number", remedy) from None
    infinite = np.flatnonzero(np.isinf(numbers))
    if infinite.size:
        row = int(infinite[0])
        raise _not(column, row, values[row], "is not finite", "repair it, or list it in missing_values")
    missing = np.isnan(numbers)
    _refuse_missing(column, values, missing)
    return np.where(missing, _low(column), numbers), missing


def _holds(function: Callable[[Any], Any], value: Any) -> bool:
    try:
        function(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _places(column: Column, values: Sequence[Any], schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """The number of each value's category; that of a missing one is 0, which callers overwrite."""
    absent, unknown = -1, -2
    anyhow = (lambda word: word.lower()) if column.kind == "boolean" else (lambda word: word)
    known = dict.fromkeys(("nan", *map(anyhow, schema.missing_values)), absent)
    if column.kind == "boolean":
        known |= {anyhow(word): 1 for word in column.true} | {anyhow(word): 0 for word in column.false}
    else:  # a listed category is never missing
        known |= {category: place for place, category in enumerate(column.categories)}
    elsewhere = len(column.categories) if column.other else unknown

    def place(value: Any) -> int:
        return absent if value is None else known.get(anyhow(text(value)), elsewhere)

    read = Read(place)
    places = np.array([read[value] if type(value) is str else place(value) for value in values])
    wrong = np.flatnonzero(places == unknown)
    if wrong.size:
        row = int(wrong[0])
        if column.kind == "boolean":
            remedy = f"write {column.true[0]} or {column.false[0]}, or list its word in the schema"
        else:
            some = ", ".join(column.categories[:AMONG]) + (", ..." if len(column.categories) > AMONG else "")
            remedy = f"list it in the schema (it has {some})"
            remedy += ", or set other = true" if column.kind == "categorical" else ""
        what = "is neither true nor false" if column.kind == "boolean" else "is not a category"
        raise _not(column, row, values[row], what, remedy)
    missing = places == absent
    _refuse_missing(column, values, missing)
    return np.where(missing, 0, places), missing


def _refuse_missing(column: Column, values: Sequence[Any], missing: np.ndarray) -> None:
    if column.missing == "refuse" and missing.any():
        row = int(np.argmax(missing))
        raise _not(column, row, values[row], "is missing", 'complete it, or set missing = "indicator" or "drop"')


def _not(column: Column, row: int, value: Any, what: str, remedy: str) -> BadValue:
    return BadValue(row, f"column {column.name!r}: {_quoted(value)} {what}: {remedy}")


def _quoted(value: Any) -> str:
    if value is None:
        return "the value"
    shown = " ".join(str(value).split())
    return repr(shown if len(shown) <= 40 else shown[:37] + "...")


def _low(column: Column) -> float:
    assert column.low is not None
    return column.low


def _high(column: Column) -> float:
    assert column.high is not None
    return column.high
