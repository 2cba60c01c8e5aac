"""What a fit would make of every column of a table, for the owner of the records: NOT for publication.

A fit says nothing about values: that would be about single records. It counts a value that the schema does not admit as
missing, and replaces a number beyond its bounds by the bound. `check` shows both before a budget is spent, with the
extremes of the numbers, columns that hold one value, numbers that look like a code for "missing", and the records that
would count as absent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from confide.data import encoding
from confide.data.cells import ABSENT, Read, reader_of_numbers, reader_of_places
from confide.data.schema import Column, Schema
from confide.data.tables import Piece, Table

FIRST, DISTINCT = 5, 1000  # values that are listed of each column, and that are counted apart
# What surveys and devices write where there is no number. A -1 or a 9 is too often a number.
SENTINELS = tuple(
    sorted(
        {-float(digit * length) for digit in "6789" for length in (1, 2, 3, 4, 5)}
        | {float(digit * length) for digit in "6789" for length in (2, 3, 4, 5, 6)}
        | {-998.0, 98.0, 998.0, 9998.0, 9999999.0}
    )
)
APART, FAR, OFTEN = 1.0, 0.25, 3  # see `_is_sentinel`


class Problem(NamedTuple):
    """A value that a column does not admit, or that is missing."""

    column: str
    line: int  # of the first record that has it
    what: str
    missing: bool  # as the schema's missing_values say; otherwise it is outside the domain
    times: int  # records that have it


@dataclass(kw_only=True)
class ColumnCheck:
    """What a table holds in one column.

    Attributes:
        missing: values that are empty or listed in the schema's missing_values.
        not_admitted: values outside the domain, which count as missing.
        other: values that no category lists, where the schema has a category for them.
        below, above: numbers beyond the bounds, which a fit replaces by the bound.
        lowest, highest: the extremes of the numbers; None where there are none.
        constant: whether there are values and all of them are one.
        sentinels: numbers that look like a code for "missing", and how often each occurs.
        problems: the values that are missing or not admitted, the most frequent ones that are not admitted first.
    """

    column: str
    kind: str
    policy: str
    missing: int = 0
    not_admitted: int = 0
    other: int = 0
    below: int = 0
    above: int = 0
    lowest: float | None = None
    highest: float | None = None
    constant: bool = False
    sentinels: dict[float, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def faults(self) -> bool:
        """Whether anything is other than the schema says; missing values that it has an indicator for are not."""
        lost = self.missing and self.policy != "indicator"
        return bool(lost or self.not_admitted or self.below or self.above or self.constant or self.sentinels)


class TableCheck(NamedTuple):
    """What a fit would make of a table."""

    records: int
    left_out: int  # records that would count as absent
    shortened: int  # records longer than the schema's norm_bound, which are scaled down to it
    refused: tuple[str, ...]  # columns for whose sake a fit would refuse the table
    columns: tuple[ColumnCheck, ...]

    @property
    def remaining(self) -> int:
        return self.records - self.left_out

    @property
    def faults(self) -> bool:
        return bool(self.left_out or any(column.faults for column in self.columns))


def check(schema: Schema, table: Table) -> TableCheck:
    """Read every value of the used columns as a fit does, and count."""
    encoding.compare(schema.used, schema, table)
    # No column refuses, so that all is counted, and no row is scaled down, so that its norm is seen.
    admitting = {column.name: replace(column, missing="drop" if column.missing == "refuse" else column.missing)
                 for column in schema.columns}  # fmt: skip
    lenient = replace(schema, columns=tuple(admitting.values()), norm_bound=None)
    watches = [_Watch(column, lenient) for column in schema.used]
    records = left_out = shortened = 0
    for piece in table.pieces():
        for watch in watches:
            watch.see(piece)
        encoded = encoding.encode(lenient, piece.columns)
        records += len(encoded.present)
        left_out += int(np.sum(~encoded.present))
        norms = np.linalg.norm(encoded.x.astype(np.float64), axis=1)
        shortened += int(np.sum(norms > schema.norm_bound)) if schema.norm_bound is not None else 0
    columns = tuple(watch.result() for watch in watches)
    refused = tuple(each.column for each in columns if each.policy == "refuse" and each.missing + each.not_admitted)
    return TableCheck(records, left_out, shortened, refused, columns)


class _Watch:
    """Counts what one column holds, piece by piece."""

    def __init__(self, column: Column, schema: Schema) -> None:
        self.column, self.schema = column, schema
        self.numeric = column.kind == "numeric"
        self.read = Read(reader_of_numbers(schema) if self.numeric else reader_of_places(column, schema))
        self.found = ColumnCheck(column=column.name, kind=column.kind, policy=column.missing)
        self.explain = Read(lambda value: encoding.explain(column, value, schema))
        self.problems: dict[tuple[str, bool], Problem] = {}
        self.suspects: Counter[float] = Counter()
        self.ends = (math.inf, -math.inf)  # of the numbers that are no suspects
        self.values: set[float] = set()  # at most two of them

    def see(self, piece: Piece) -> None:
        values = piece.columns[self.column.name]
        read = np.array(self.read.every(values), np.float64)
        lacking = np.isnan(read) if self.numeric else read == ABSENT
        self._list(piece, values, np.flatnonzero(lacking))
        present = read[~lacking]
        self.found.other += int(np.sum(present == len(self.column.categories))) if self.column.other else 0
        if len(self.values) < 2 and len(present):
            self.values |= {float(present.min()), float(present.max())}
        if self.numeric and len(present):
            self._see_numbers(present)

    def _list(self, piece: Piece, values: Sequence[Any], rows: np.ndarray) -> None:
        explained = self.explain.every(values[row] for row in rows)
        for row, (what, _, missing) in zip(rows, explained, strict=True):
            self.found.missing += missing
            self.found.not_admitted += not missing
            key = f"{encoding.quote(values[row])} {what}", missing
            if key in self.problems:
                self.problems[key] = self.problems[key]._replace(times=self.problems[key].times + 1)
            elif len(self.problems) < DISTINCT:
                self.problems[key] = Problem(self.column.name, piece.lines[row], *key, 1)

    def _see_numbers(self, numbers: np.ndarray) -> None:
        found, low, high = self.found, _bound(self.column.low), _bound(self.column.high)
        found.below += int(np.sum(numbers < low))
        found.above += int(np.sum(numbers > high))
        least, most = float(numbers.min()), float(numbers.max())
        found.lowest = least if found.lowest is None else min(found.lowest, least)
        found.highest = most if found.highest is None else max(found.highest, most)
        suspect = np.isin(numbers, SENTINELS)
        self.suspects.update(numbers[suspect].tolist())
        if not suspect.all():
            others = numbers[~suspect]
            self.ends = (min(self.ends[0], float(others.min())), max(self.ends[1], float(others.max())))

    def result(self) -> ColumnCheck:
        ordered = sorted(self.problems.values(), key=lambda each: (each.missing, -each.times, each.line))
        self.found.problems = ordered[:FIRST]
        self.found.constant = len(self.values) == 1
        suspects = sorted(self.suspects.items())
        self.found.sentinels = {number: times for number, times in suspects if self._is_sentinel(number, times)}
        return self.found

    def _is_sentinel(self, number: float, times: int) -> bool:
        """Whether a suspect lies apart from all other numbers: by more than 1, and beyond the bounds, or as the only
        negative one, or by a quarter of the width of the others, or several times."""
        low, high = self.ends
        apart = max(low - number, number - high)
        if low > high or apart <= APART:
            return False
        beyond = number < _bound(self.column.low) or number > _bound(self.column.high)
        return beyond or number < 0 <= low or apart >= FAR * (high - low) or times >= OFTEN


def _bound(end: float | None) -> float:
    assert end is not None
    return end
