r"""Sums over the records of a linear model: bounded scores of coefficients and noise scale, information, and moments.

What a record adds is computed in double precision, by itself, and cut to its bound by its own length behind all
weights: the guarantee rests on this cut alone. Scores are rounded record by record to the grid of their noise and
summed as integers, so that no error of a sum is in them. Matrices are sums of outer products of one vector a record, in
double precision, of which the upper triangle is released, entries beside the diagonal times sqrt(2): as a vector it is
as long as the matrix is in Frobenius norm. With secure noise they are rounded record by record as well.

**Rounding.** A cut vector of d numbers is longer than its bound by less than (d + 10) 2^-52 of it, and a sum of n
outer products in chunks of c is off by 2 (c + n / c) n 2^-53 bounds for either neighbour: `SLACK` and `_room` are
taken off the bound for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from confide.mechanism import noise
from confide.mechanism.canaries import LENGTH
from confide.mechanism.exact_rounding import GRID
from confide.models.inputs import Records

CHUNK = 4096  # rows at a time
BLOCK = 2**21  # numbers that are rounded at a time
SLACK = 2.0**-36
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
    total = np.zeros(len(place.root) + 1, np.int64)
    for z, y in _chunks(records, intercept):
        total += np.sum(_whole(bound_scores(z, y, place, cuts), deviation), axis=0)
    planted = cut_lengths(LENGTH * pulls[:, None], cuts.bound * (1 - SLACK))[:, 0]
    total = np.concatenate([total, _whole(planted, deviation)])
    return _join(total, deviation, _own(source, *place, *cuts, deviation))


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
    bound = math.sqrt(cuts.information_bound * (1 - SLACK - _room(records.places)))
    halves = (bound_halves(z, root, cuts, bound) for z, _ in _chunks(records, intercept))
    return sum_products(halves, len(root), deviation, secure, _own(source, root, *cuts, deviation))


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
    bound = math.sqrt(2 * (1 - SLACK - _room(records.places)))
    halves = (bound_moments(z, y, norm, outcome, bound) for z, y in _chunks(records, intercept))
    size = records.arrays[0].shape[1] + intercept + 1
    return sum_products(halves, size, deviation, secure, _own(source, norm, outcome, deviation))


def bound_moments(z: np.ndarray, y: np.ndarray, norm: float, outcome: float, bound: float) -> np.ndarray:
    """v of every record."""
    with np.errstate(all="ignore"):
        weight = np.minimum(1.0, norm / np.maximum(np.sqrt(np.einsum("ij,ij->i", z, z)), TINY))
        found = np.concatenate([z * (weight / norm)[:, None], np.clip(y * weight / outcome, -1.0, 1.0)[:, None]], 1)
    return cut_lengths(found, bound)


def sum_products(halves: Iterator[np.ndarray], size: int, deviation: float, secure: bool, source: Any) -> np.ndarray:
    """The noisy sum of outer products, symmetric, with noise of this standard deviation on the diagonal."""
    upper = np.triu_indices(size)
    stretch = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    if secure:
        whole = np.zeros(entries(size), np.int64)
        for half in halves:
            for few in np.array_split(half, -(-half.shape[0] * entries(size) // BLOCK) or 1):
                whole += np.sum(_whole(few[:, upper[0]] * few[:, upper[1]] * stretch, deviation), axis=0)
        noisy = _join(whole, deviation, source)
    else:
        total = np.zeros((size, size))
        for half in halves:
            total += half.T @ half
        noisy = noise.around(total[upper] * stretch, deviation, source)
    found = np.zeros((size, size))
    found[upper] = noisy / stretch
    found.T[upper] = noisy / stretch
    return found


def cut_lengths(rows: np.ndarray, bound: float) -> np.ndarray:
    """Rows of at most this length; one that is no number counts as nothing."""
    good = np.all(np.isfinite(rows), axis=1)
    rows = np.where(good[:, None], rows, 0.0)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return rows * np.minimum(1.0, bound / np.maximum(lengths, TINY))[:, None]


def _chunks(records: Records, intercept: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows with the constant first, and outcomes, of the records that are there."""
    x, y = records.arrays
    for first in range(0, records.places, CHUNK):
        there = records.present[first : first + CHUNK]
        rows = x[first : first + CHUNK][there].astype(np.float64)
        if intercept:
            rows = np.concatenate([np.ones((len(rows), 1)), rows], axis=1)
        yield rows, y[first : first + CHUNK][there].astype(np.float64)


def _join(total: np.ndarray, deviation: float, source: Any) -> np.ndarray:
    """A sum in whole grid steps with its noise, which is of whole steps too."""
    step = deviation / GRID
    units = np.round(noise.around(np.zeros(total.shape), deviation, source) / step).astype(np.int64)
    return (total + units).astype(np.float64) * step


def _whole(contributions: np.ndarray, deviation: float) -> np.ndarray:
    return np.round(contributions / (deviation / GRID)).astype(np.int64)


def _room(places: int) -> float:
    return 2.0**-51 * places * (CHUNK + places / CHUNK)


def _own(source: Any, *question: Any) -> Any:
    """Noise that belongs to the question: another one, by a bit, has other noise, on any machine."""
    told = b"".join(np.asarray(each, np.float64).tobytes() for each in question)
    return noise.separate(source, f"question {hashlib.sha256(told).hexdigest()}")
