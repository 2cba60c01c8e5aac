"""What the functions of this folder return. Printing one shows sizes, never records."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from confide.validation import Refused


class Split(NamedTuple):
    """A dataset whose authors split it into training and test records."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    def __repr__(self) -> str:
        return _sizes(self)


class Arrays(NamedTuple):
    """A dataset without an official split."""

    x: np.ndarray
    y: np.ndarray

    def __repr__(self) -> str:
        return _sizes(self)


class Grouped(NamedTuple):
    """A dataset in which several records are one person's: split it, and count neighbours, by `group`."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray

    def __repr__(self) -> str:
        return _sizes(self)


class Records(NamedTuple):
    """The records of a table as text, one list for each, and the names of its columns."""

    columns: tuple[str, ...]
    rows: list[list[str]]

    def __repr__(self) -> str:
        return f"Records({len(self.rows):,} rows of {len(self.columns)} columns)"

    def by_column(self) -> dict[str, list[str]]:
        """The values of each column, as the encoder takes them."""
        return {name: [row[place] for row in self.rows] for place, name in enumerate(self.columns)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """As a CSV file with a header, which `confide fit` reads together with the schema."""
        try:
            with Path(path).open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([self.columns, *self.rows])
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror}") from None


def _sizes(arrays: Split | Arrays | Grouped) -> str:
    described = (f"{name} {array.shape} {array.dtype}" for name, array in zip(arrays._fields, arrays, strict=True))
    return f"{type(arrays).__name__}({', '.join(described)})"
