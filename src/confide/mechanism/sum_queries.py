"""Queries: sums over records with a bound on what each record contributes, and noise. They are computed by
`confide.mechanism.record_sums`; a query itself needs NumPy alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

TINY = 1e-300


@dataclass(frozen=True, kw_only=True, eq=False)
class SumQuery:
    """A sum over records with a bound on each record's contribution and the standard deviation of its noise.

    Fields of subclasses are the public numbers that decide what is computed; noise is bound to all of them.
    """

    bound: float
    deviation: float

    is_matrix: ClassVar[bool] = False

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """One vector per record, before it is cut."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Length of the vectors."""
        raise NotImplementedError

    @property
    def coordinates(self) -> int:
        """How many numbers are released."""
        return count_entries(self.size) if self.is_matrix else self.size

    def digest(self) -> str:
        """A hash of the query: two queries that differ in one bit have different noise."""
        state = hashlib.sha256(type(self).__name__.encode())
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float | np.ndarray):
                state.update(f"{each.name}:{np.shape(value)}".encode())
                state.update(np.ascontiguousarray(value, np.float64).tobytes())
            else:  # a dataclass of numbers, whose text shows every bit of them
                state.update(f"{each.name}:{value!r}".encode())
        return state.hexdigest()


def cut_lengths(rows: np.ndarray, bound: float) -> np.ndarray:
    """Rows shortened to at most this length. A row with a number that is not finite becomes zero."""
    finite = np.all(np.isfinite(rows), axis=1)
    if not finite.all():
        rows = np.where(finite[:, None], rows, 0.0)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return rows * np.minimum(1.0, bound / np.maximum(lengths, TINY))[:, None]


def count_entries(size: int) -> int:
    """Entries of an upper triangle."""
    return size * (size + 1) // 2
