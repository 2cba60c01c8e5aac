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

**What a column does not admit counts as missing**: what is no number or no finite one, a category that is not listed, a
word that is neither true nor false (`confide.data.cells` says how a cell is read). A record that has no value where the
schema says `drop` is absent: its row is all zeros, it is marked, and no other row moves. So no value of a record
decides whether a table can be encoded, nor any shape, unless the schema says `refuse`. `confide.data.table_check` tells
the owner of the records which values these are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from confide.data.cells import ABSENT, UNREADABLE, Read, is_missing, reader_of_numbers, reader_of_places, to_number
from confide.data.schema import Column, Schema
from confide.data.tables import Piece, Table
from confide.validation import Refused

AMONG = 5  # categories that a refusal lists


class Encoded(NamedTuple):
    """One row for each row of the table; those of records that count as absent are zeros."""

    x: np.ndarray  # (rows, features), single precision
    y: np.ndarray  # (rows,), single precision; empty where the table has no target
    present: np.ndarray  # (rows,): False where a record counts as absent


class BadValue(Refused):
    """A value that the schema does not admit, in a row of the piece that is being encoded."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def encode(schema: Schema, columns: Mapping[str, Sequence[Any]], count: bool = False) -> Encoded:
    """Encode some records, given as the values of each column.

    The target is encoded where it is among the columns: as a class number, scaled to [-1, 1], or for a `count` rounded
    and clipped to its bounds.
    """
    parts, gone = [], []
    for column in schema.inputs:
        features, missing = _features(column, columns[column.name], schema)
        parts.append(features)
        if column.missing == "drop":
            gone.append(missing)
    rows = len(parts[0])
    # In the order of rows however many there are: the sums below are then the same for a row in any table.
    x = np.ascontiguousarray(np.concatenate([*parts, np.ones((rows, 1))], axis=1))
    if schema.norm_bound is not None:
        norms = np.sqrt(np.sum(x**2, axis=1, keepdims=True))
        # A little less, so that rounding to single precision stays within.
        x *= np.minimum(1.0, schema.norm_bound * (1 - 1e-6) / norms)
    y = np.zeros(0)
    if schema.target in columns:
        y, missing = _target(schema.column(schema.target), columns[schema.target], schema, count)
        gone.append(missing)
    present = ~np.logical_or.reduce(gone) if gone else np.ones(rows, bool)
    x[~present] = 0.0
    y = np.where(present, y, 0.0) if schema.target in columns else y
    return Encoded(x.astype(np.float32), y.astype(np.float32), present)


def encode_table(schema: Schema, table: Table, *, count: bool = False) -> Encoded:
    """Encode a whole table with its target; refusals name the file, the line and the column."""
    compare(schema.used, schema, table)
    none = encode(schema, {column.name: [] for column in schema.used}, count)  # a table may have no rows
    pieces = [none, *(_encode(schema, table, piece, piece.columns, count) for piece in table.pieces())]
    return Encoded(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


def encode_pieces(schema: Schema, table: Table) -> Iterator[tuple[Piece, np.ndarray, np.ndarray]]:
    """Encode a table piece by piece without its target, which it may lack: (piece, x, which rows are present)."""
    compare(schema.inputs, schema, table)
    for piece in table.pieces():
        inputs = {name: values for name, values in piece.columns.items() if name != schema.target}
        encoded = _encode(schema, table, piece, inputs)
        yield piece, encoded.x, encoded.present


def _encode(
    schema: Schema, table: Table, piece: Piece, columns: Mapping[str, Sequence[Any]], count: bool = False
) -> Encoded:
    try:
        return encode(schema, columns, count)
    except BadValue as bad:
        raise Refused(f"{table.at(piece.lines[bad.row])}, {bad}") from None


def compare(needed: Sequence[Column], schema: Schema, table: Table) -> None:
    """Every column that is needed is in the table, and every column of the table is in the schema."""
    absent = {column.name for column in needed} - set(table.header)
    if missing := [column.name for column in schema.columns if column.name in absent]:
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
        own = scale(column, numbers)[:, None]
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
        return scale(column, numbers), missing
    return np.clip(np.rint(numbers), *_range(column)), missing


def scale(column: Column, numbers: np.ndarray) -> np.ndarray:
    """A numeric column's values in [-1, 1]."""
    low, high = _range(column)
    clipped = np.clip(numbers, low, high)
    if column.scale == "log":
        return np.clip(2.0 * np.log1p(clipped - low) / math.log1p(high - low) - 1.0, -1.0, 1.0)
    return np.clip(2.0 * ((clipped - low) / (high - low)) - 1.0, -1.0, 1.0)


def unscale(column: Column, numbers: np.ndarray) -> np.ndarray:
    """From [-1, 1], or beyond it, back to the unit of the column."""
    (low, high), share = _range(column), (np.asarray(numbers, np.float64) + 1.0) / 2.0
    if column.scale == "log":
        return low + np.expm1(share * math.log1p(high - low))
    return low + share * (high - low)


def _numbers(column: Column, values: Sequence[Any], schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, and which values are none; these have the lower bound, which callers overwrite."""
    numbers = np.array(Read(reader_of_numbers(schema)).every(values), np.float64)
    missing = np.isnan(numbers)
    _refuse_missing(column, values, missing, schema)
    return np.where(missing, _range(column)[0], numbers), missing


def _places(column: Column, values: Sequence[Any], schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """The number of each value's category; that of a missing one is 0, which callers overwrite."""
    places = np.array(Read(reader_of_places(column, schema)).every(values), np.int64)
    missing = places == ABSENT
    _refuse_missing(column, values, missing, schema)
    return np.where(missing, 0, places), missing


def _refuse_missing(column: Column, values: Sequence[Any], missing: np.ndarray, schema: Schema) -> None:
    """Where the schema so wishes: the first value that is missing or not admitted is then told to whoever holds it."""
    if column.missing == "refuse" and missing.any():
        row = int(np.argmax(missing))
        what, remedy, _ = explain(column, values[row], schema)
        raise BadValue(row, f"column {column.name!r}: {quote(values[row])} {what}: {remedy}")


def explain(column: Column, value: Any, schema: Schema) -> tuple[str, str, bool]:
    """What is wrong with a value that is missing or not admitted, what to do, and whether it is merely missing."""
    if is_missing(value, column, schema):
        return "is missing", 'complete it, or set missing = "indicator" or "drop"', True
    if column.kind == "boolean":
        remedy = f"write {column.true[0]} or {column.false[0]}, or list its word in the schema"
        return "is neither true nor false", remedy, False
    if column.kind != "numeric":
        some = ", ".join(column.categories[:AMONG]) + (", ..." if len(column.categories) > AMONG else "")
        remedy = f"list it in the schema (it has {some})"
        remedy += ", or set other = true" if column.kind == "categorical" else ""
        return "is not a category", remedy, False
    remedy = "repair it, or list it in missing_values"
    try:
        to_number(value, schema)
    except UNREADABLE:
        if re.fullmatch(r"-?\d+,\d+", str(value).strip()):
            remedy = 'write decimal = "," into the schema if the comma is a decimal mark'
        return "is not a number", remedy, False
    return "is not finite", remedy, False


def quote(value: Any) -> str:
    if value is None:
        return "the value"
    try:
        shown = " ".join(str(value).split())
    except UNREADABLE:
        return "the value"
    return repr(shown if len(shown) <= 40 else shown[:37] + "...")


def _range(column: Column) -> tuple[float, float]:
    assert column.low is not None
    assert column.high is not None
    return column.low, column.high
