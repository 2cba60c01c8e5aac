r"""Noisy sums over records, where what a record contributes is cut to a bound. Nothing else sees the records of a run.

Two kinds of queries exist. A **vector query** sums one vector per record, of Euclidean norm at most `bound`. A
**matrix query** sums one outer product h h^T per record, with ||h||^2 at most `bound`, so that the matrix has
Frobenius norm at most `bound`. What a record contributes is computed by the query in double precision and then cut to
the bound by its own length. The guarantee rests on this cut alone, and not on what the query computes.

Independent Gaussian noise of standard deviation `deviation` is added to every coordinate of a vector. A matrix gets
symmetric noise of this standard deviation on its diagonal and of 1/sqrt(2) as much beside it: its upper triangle,
with the entries beside the diagonal multiplied by sqrt(2), is a vector whose norm is the Frobenius norm.

**Places.** Rows are processed in chunks of places. An absent record has a row of zeros in its place, and its
contribution is set to zero after it was computed. So what a record contributes depends on its row, its place and
public numbers, and never on whether other records are present.

**Rounding.** A cut vector of d numbers exceeds its bound by less than (d + 10) 2^-52 of it; `SLACK` is taken off the
bound. Contributions to vector queries are rounded one record at a time to the grid of the noise and summed as
integers. The vectors h of matrix queries are rounded to multiples of 2^-20 of their largest length, which lengthens
them by at most sqrt(d) 2^-21 of it; `room_for_rounding` is taken off. They are then integers, and so are sums of
their products over a chunk, below 1024 times 2^40 = 2^50, which double precision represents exactly. The matrix of a
chunk is rounded once to the grid of the noise, and chunks are added as integers. So a sum does not depend on the
order of chunks, and sums over shards of complete chunks add up to the sum over all records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from confide.mechanism import grid, noise
from confide.mechanism.canaries import LENGTH
from confide.mechanism.exact_rounding import GRID
from confide.mechanism.sum_queries import SumQuery, count_entries, cut_lengths
from confide.models.inputs import Records

CHUNK = 1024  # rows that are processed together
BLOCK = 2**21  # numbers that are rounded together
SLACK = 2.0**-36  # of a bound, for the rounding of lengths
STEPS = 2.0**20  # grid steps in the largest length of a vector h


class Chunk(NamedTuple):
    """Consecutive places, some of which may hold no record."""

    x: np.ndarray  # rows of features; zeros where there is no record
    y: np.ndarray
    present: np.ndarray


def answer(query: SumQuery, records: Records, source: Any, *, secure: bool = False) -> np.ndarray:
    """The noisy sum: a vector, or a symmetric matrix."""
    steps = sum_in_steps(query, records, secure=secure)
    noisy = noise.around_steps(steps, query.deviation, noise.separate(source, f"query {query.digest()}"))
    return to_matrix(noisy, query.size) if query.is_matrix else noisy


def answer_with_canaries(query: SumQuery, records: Records, source: Any, pulls: np.ndarray) -> np.ndarray:
    """The noisy sum of vectors, and behind it a coordinate for every canary.

    A canary pulls by far more than the bound, up (1), down (-1) or not at all (0), and is cut as records are.
    """
    longest = query.bound * (1 - SLACK)
    steps = to_steps(cut_lengths(LENGTH * query.bound * pulls[:, None], longest)[:, 0], query.deviation)
    steps = np.concatenate([sum_in_steps(query, records), steps])
    return noise.around_steps(steps, query.deviation, noise.separate(source, f"query {query.digest()}"))


def sum_in_steps(query: SumQuery, records: Records, *, secure: bool = False) -> np.ndarray:
    """The exact sum, without noise, in integer steps of the grid of the noise."""
    if query.is_matrix:
        longest = math.sqrt(query.bound)
        limit = longest * (1 - SLACK - room_for_rounding(query.size))
        chunks = (_contribute(query, chunk, limit) for chunk in iterate_chunks(records))
        return add_outer_products(chunks, query.size, longest, query.deviation, secure=secure)
    total = np.zeros(query.size, np.int64)
    for chunk in iterate_chunks(records):
        contributions = _contribute(query, chunk, query.bound * (1 - SLACK))
        total += np.sum(to_steps(contributions, query.deviation), axis=0)
    return total


def _contribute(query: SumQuery, chunk: Chunk, limit: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        vectors = cut_lengths(query.vectors(chunk.x, chunk.y), limit)
    vectors[~chunk.present] = 0.0
    return vectors


def iterate_chunks(records: Records) -> Iterator[Chunk]:
    """All places in order, a fixed number at a time."""
    for first in range(0, records.places, CHUNK):
        x, y = (np.asarray(array[first : first + CHUNK], np.float64) for array in records.arrays)
        present = records.present[first : first + CHUNK]
        if not present.all():
            x, y = np.where(present[:, None], x, 0.0), np.where(present, y, 0.0)
        yield Chunk(x, y, present)


def add_outer_products(
    chunks: Iterator[np.ndarray], size: int, longest: float, deviation: float, *, secure: bool
) -> np.ndarray:
    """The upper triangle of the sum of outer products, in integer grid steps. No vector is longer than `longest`."""
    rows, columns = np.triu_indices(size)
    stretch = np.where(rows == columns, 1.0, math.sqrt(2.0))
    total, factor = np.zeros(count_entries(size), np.int64), stretch * (longest / STEPS) ** 2
    for vectors in chunks:
        if secure:
            for part in np.array_split(vectors, -(-vectors.shape[0] * count_entries(size) // BLOCK) or 1):
                total += np.sum(to_steps(part[:, rows] * part[:, columns] * stretch, deviation), axis=0)
        else:
            whole = np.rint(vectors * (STEPS / longest))
            total += to_steps((whole.T @ whole)[rows, columns] * factor, deviation)
    return total


def to_matrix(triangle: np.ndarray, size: int) -> np.ndarray:
    """The symmetric matrix of an upper triangle whose entries beside the diagonal are multiplied by sqrt(2)."""
    rows, columns = np.triu_indices(size)
    matrix, entries = np.zeros((size, size)), triangle / np.where(rows == columns, 1.0, math.sqrt(2.0))
    matrix[rows, columns] = entries
    matrix[columns, rows] = entries
    return matrix


def to_steps(values: np.ndarray, deviation: float) -> np.ndarray:
    """The nearest integers of grid steps, cut where they are too large to be counted."""
    steps = np.clip(values / (deviation / GRID), -grid.FURTHEST, grid.FURTHEST)
    return np.rint(steps).astype(np.int64)


def room_for_rounding(size: int) -> float:
    """The share of the largest length by which rounding can lengthen a vector of so many numbers, and a little more."""
    return math.sqrt(size) * 2.0**-20
