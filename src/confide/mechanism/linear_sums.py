r"""Sums over the records of a linear model: bounded scores of coefficients and noise scale, information, and moments.

What a record adds is computed in double precision, by itself, and cut to its bound by its own length behind all
weights: the guarantee rests on this cut alone. Scores are rounded record by record to the grid of their noise and
summed as integers, so that no error of a sum is in them. Matrices are sums of outer products of one vector a record, of
which the upper triangle is released, entries beside the diagonal times sqrt(2): as a vector it is as long as the matrix
is in Frobenius norm. With secure noise they are rounded record by record as well.

**Places.** Rows go through in chunks of places. A record that is absent has a row of zeros in its place, and what it
adds is set to zero after it was computed. Matrix products round a row by where it stands and by how many there are; so
what a record adds depends on its row, its place and public numbers, and never on whether others are there.

**Rounding.** A cut vector of d numbers is longer than its bound by less than (d + 10) 2^-52 of it: `SLACK` is taken off
the bound. Vectors of matrices are rounded to multiples of 2^-20 of their longest length r, which makes them longer by
at most sqrt(d) 2^-21 r: `_room` is taken off. They are then whole numbers, and so are sums of their products over a
chunk, below 1024 times 2^40 = 2^50, which double precision holds: no error of a sum is in them either, in whatever
order they are added. The matrix of a chunk is rounded once to the grid of the noise, and chunks are added as integers:
other chunks are the same for both neighbours, so that rounding counts once, as `noise.Rounding` allows for, however
many chunks there are. `add_scores`, `add_information` and `add_moments` are such integers: those of shards of whole
chunks, added in any order, are those of all records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from confide.mechanism import grid, noise
from confide.mechanism.canaries import LENGTH
from confide.mechanism.exact_rounding import GRID
from confide.models.inputs import Records

CHUNK = 1024  # rows at a time
BLOCK = 2**21  # numbers that are rounded at a time
SLACK = 2.0**-36
STEPS = 2.0**20  # to which vectors of matrices are rounded, in the longest that there is
REACH = 1.25  # usual norms: longer rows count less
SHARE_OF_SCALE = 0.3  # tau
TINY = 1e-300
NO_CANARIES = np.zeros(0)


class Cuts(NamedTuple):
    """Where residuals are cut, in standard deviations of the noise (`inference.linear.expectations`)."""

    score: float  # k
    square: float  # K

    @property
    def factor(self) -> float:
        """kappa."""
        centre = mean_square(self.square)
        return SHARE_OF_SCALE * self.score / max(centre, self.square**2 - centre)

    @property
    def bound(self) -> float:
        """Of what a record adds to a sum of scores."""
        return self.score * math.hypot(1.0, SHARE_OF_SCALE)

    @property
    def information_bound(self) -> float:
        """Of a record's information in Frobenius norm: that of a row of norm `REACH`."""
        return REACH**2 * math.erf(self.score / REACH / math.sqrt(2))

    @property
    def within(self) -> float:
        """P(|N(0, 1)| < k)."""
        return math.erf(self.score / math.sqrt(2))


def mean_square(cut: float) -> float:
    """E min(N(0, 1)^2, cut^2)."""
    density = math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
    return math.erf(cut / math.sqrt(2)) - 2 * cut * density + cut**2 * math.erfc(cut / math.sqrt(2))


class Place(NamedTuple):
    """Where scores are asked for."""

    root: np.ndarray
    coefficients: np.ndarray
    scale: float


def entries(size: int) -> int:
    """Of an upper triangle."""
    return size * (size + 1) // 2


class Chunk(NamedTuple):
    """Of places, some of which may hold no record."""

    z: np.ndarray  # rows, with the constant first where there is an intercept; zeros where no record is
    y: np.ndarray
    present: np.ndarray

    def mask(self, values: np.ndarray) -> np.ndarray:
        """The values, which are changed: zero where no record is."""
        values[~self.present] = 0.0
        return values


def sum_scores(
    records: Records,
    intercept: bool,
    place: Place,
    cuts: Cuts,
    deviation: float,
    source: Any,
    pulls: np.ndarray = NO_CANARIES,
) -> np.ndarray:
    """The noisy sum of (w psi u, kappa chi), with noise of this standard deviation in every coordinate.

    Behind it comes a coordinate for every canary, which pulls far more than the bound, and is cut as a record is. How
    many there are, and which are in, changes nothing in the coordinates before.
    """
    total = add_scores(records, intercept, place, cuts, deviation)
    planted = cut_lengths(LENGTH * pulls[:, None], cuts.bound * (1 - SLACK))[:, 0]
    total = np.concatenate([total, _whole(planted, deviation)])
    return noise.around_steps(total, deviation, _own(source, *place, *cuts, deviation))


def add_scores(records: Records, intercept: bool, place: Place, cuts: Cuts, deviation: float) -> np.ndarray:
    """The same without its noise and without canaries, in whole grid steps, for all records or a shard of them."""
    total = np.zeros(len(place.root) + 1, np.int64)
    for chunk in _chunks(records, intercept):
        total += np.sum(_whole(chunk.mask(bound_scores(chunk.z, chunk.y, place, cuts)), deviation), axis=0)
    return total


def bound_scores(z: np.ndarray, y: np.ndarray, place: Place, cuts: Cuts) -> np.ndarray:
    """What every record adds."""
    with np.errstate(all="ignore"):
        u = z @ place.root
        norms = np.maximum(np.sqrt(np.einsum("ij,ij->i", u, u)), TINY)
        away = (y - z @ place.coefficients) / place.scale
        cut = np.clip(away, -cuts.score / norms, cuts.score / norms) * np.minimum(1.0, np.square(REACH / norms))
        square = np.minimum(np.square(away), cuts.square**2) - mean_square(cuts.square)
        found = np.concatenate([cut[:, None] * u, cuts.factor * square[:, None]], axis=1)
    return cut_lengths(found, cuts.bound * (1 - SLACK))


def sum_information(
    records: Records, intercept: bool, root: np.ndarray, cuts: Cuts, deviation: float, secure: bool, source: Any
) -> np.ndarray:
    """The noisy sum of erf(k / (||u|| sqrt(2))) w u u^T."""
    total = add_information(records, intercept, root, cuts, deviation, secure)
    return _as_matrix(noise.around_steps(total, deviation, _own(source, root, *cuts, deviation)), len(root))


def add_information(
    records: Records, intercept: bool, root: np.ndarray, cuts: Cuts, deviation: float, secure: bool
) -> np.ndarray:
    """The upper triangle of the same without its noise, in whole grid steps, for all records or a shard of them."""
    longest = math.sqrt(cuts.information_bound)
    bound = longest * (1 - SLACK - _room(len(root)))
    chunks = _chunks(records, intercept)
    halves = (chunk.mask(bound_halves(chunk.z, root, cuts, bound)) for chunk in chunks)
    return add_products(halves, len(root), longest, deviation, secure)


def bound_halves(z: np.ndarray, root: np.ndarray, cuts: Cuts, bound: float) -> np.ndarray:
    """Vectors of every record whose outer products are its information."""
    with np.errstate(all="ignore"):
        u = z @ root
        norms = np.maximum(np.sqrt(np.einsum("ij,ij->i", u, u)), TINY)
        weight = special.erf(cuts.score / norms / math.sqrt(2)) * np.minimum(1.0, np.square(REACH / norms))
        return cut_lengths(u * np.sqrt(weight)[:, None], bound)


def sum_moments(
    records: Records, intercept: bool, norm: float, outcome: float, deviation: float, secure: bool, source: Any
) -> np.ndarray:
    """The noisy sum of v v^T, v = (z / norm, y / outcome) shortened by a weight of the row alone, y then cut to 1."""
    total = add_moments(records, intercept, norm, outcome, deviation, secure)
    size = records.arrays[0].shape[1] + intercept + 1
    return _as_matrix(noise.around_steps(total, deviation, _own(source, norm, outcome, deviation)), size)


def add_moments(
    records: Records, intercept: bool, norm: float, outcome: float, deviation: float, secure: bool
) -> np.ndarray:
    """The upper triangle of the same without its noise, in whole grid steps, for all records or a shard of them."""
    size, longest = records.arrays[0].shape[1] + intercept + 1, math.sqrt(2.0)
    bound = longest * (1 - SLACK - _room(size))
    halves = (
        chunk.mask(bound_moments(chunk.z, chunk.y, norm, outcome, bound)) for chunk in _chunks(records, intercept)
    )
    return add_products(halves, size, longest, deviation, secure)


def bound_moments(z: np.ndarray, y: np.ndarray, norm: float, outcome: float, bound: float) -> np.ndarray:
    """v of every record."""
    with np.errstate(all="ignore"):
        weight = np.minimum(1.0, norm / np.maximum(np.sqrt(np.einsum("ij,ij->i", z, z)), TINY))
        found = np.concatenate([z * (weight / norm)[:, None], np.clip(y * weight / outcome, -1.0, 1.0)[:, None]], 1)
    return cut_lengths(found, bound)


def add_products(halves: Iterator[np.ndarray], size: int, longest: float, deviation: float, secure: bool) -> np.ndarray:
    """The upper triangle of the sum of outer products in whole grid steps, of noise of this standard deviation.

    No vector is longer than `longest`.
    """
    upper = np.triu_indices(size)
    stretch = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    whole, factor = np.zeros(entries(size), np.int64), stretch * (longest / STEPS) ** 2
    for half in halves:
        if secure:
            for few in np.array_split(half, -(-half.shape[0] * entries(size) // BLOCK) or 1):
                whole += np.sum(_whole(few[:, upper[0]] * few[:, upper[1]] * stretch, deviation), axis=0)
        else:
            steps = half * (STEPS / longest)
            np.rint(steps, out=steps)
            whole += _whole((steps.T @ steps)[upper] * factor, deviation)
    return whole


def _as_matrix(triangle: np.ndarray, size: int) -> np.ndarray:
    """The symmetric matrix of an upper triangle whose entries beside the diagonal are times sqrt(2)."""
    upper = np.triu_indices(size)
    found, entry = np.zeros((size, size)), triangle / np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    found[upper] = entry
    found.T[upper] = entry
    return found


def cut_lengths(rows: np.ndarray, bound: float) -> np.ndarray:
    """Rows of at most this length; one that is no number counts as nothing."""
    good = np.all(np.isfinite(rows), axis=1)
    rows = np.where(good[:, None], rows, 0.0)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return rows * np.minimum(1.0, bound / np.maximum(lengths, TINY))[:, None]


def _chunks(records: Records, intercept: bool) -> Iterator[Chunk]:
    """All places, so many at a time."""
    for first in range(0, records.places, CHUNK):
        x, y = (array[first : first + CHUNK] for array in records.arrays)
        rows, outcomes, present = np.ones((len(x), x.shape[1] + intercept)), y.astype(np.float64), records.present
        present = present[first : first + CHUNK]
        rows[:, int(intercept) :] = x
        rows[~present], outcomes[~present] = 0.0, 0.0
        yield Chunk(rows, outcomes, present)


def _whole(contributions: np.ndarray, deviation: float) -> np.ndarray:
    """The nearest whole numbers of grid steps, cut where they are too many to be counted."""
    steps = np.clip(contributions / (deviation / GRID), -grid.FURTHEST, grid.FURTHEST)
    return np.rint(steps).astype(np.int64)


def _room(size: int) -> float:
    """By how much of the longest length rounding can make a vector of so many numbers longer, and a little more."""
    return math.sqrt(size) * 2.0**-20


def _own(source: Any, *question: Any) -> Any:
    """Noise that belongs to the question: another one, by a bit, has other noise, on any machine."""
    told = b"".join(np.asarray(each, np.float64).tobytes() for each in question)
    return noise.separate(source, f"question {hashlib.sha256(told).hexdigest()}")
