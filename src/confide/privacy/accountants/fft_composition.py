"""Composition of many steps in one Fourier product, with a bound on everything that is not exact.

A step is a `Cell`: with probability `share` the pair `left`, otherwise the pair `right`, and it is known which. Its
privacy loss on the grid is the mixture of the two. Cells with one pair have `left` equal to `right`.

1. *Tilt.* The mass at loss s is multiplied by e^(tilt s) and normalised, with logarithm of the normaliser K(tilt).
   Composition is unchanged, but the composed distribution now sits around the epsilon of interest, so that errors of
   the Fourier transform, which are of the order 1e-12 of the whole, are 1e-12 of the delta sought, however small.
2. *Window.* The transform works modulo a window. What lies below it can only wrap upwards, and is then counted though
   it need not be; what lies above is bounded by Chernoff's inequality on the moments of the grid itself, and added.
3. *Delta.* delta(epsilon) = e^(K - tilt epsilon) sum_{s > epsilon} (1 - e^-(s-epsilon)) e^(-tilt (s-epsilon)) w(s).
   The weight of w(s) is at most tilt^tilt / (1 + tilt)^(1 + tilt), so an error of total variation eta in w adds at
   most e^(K - tilt epsilon) times that times eta.

Error of a transform of length n: at most 16 u log2(n) relative in the Euclidean norm (Higham 2002, section 24.1, with
room to spare; u = 2^-53), and in any one coefficient at most 16 u log2(n) times the sum of the masses, as every input
reaches it by one path of log2(n) butterflies with factors of size 1. In a product, the error is at most
prod (|f| + e) - prod |f| over computed factors f with errors e.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from confide.privacy.accountants.dominating_pairs import Atoms, GaussianPair, PurePair

UNIT = 2.0**-53
NEGLIGIBLE = -60.0  # log of the size of a coefficient that is replaced by zero, and bounded
CHUNK = 2**18  # coefficients handled at once

Pair = GaussianPair | PurePair


class Cell(NamedTuple):
    left: Pair
    right: Pair
    shares: np.ndarray  # one for each kind of step
    counts: np.ndarray


class Grid(NamedTuple):
    tilt: float
    above: float  # the order, beyond the tilt, that bounds the mass above the window
    log_tail: float  # log of the mass cut from either end of a step
    floor: float  # losses of a step below this are raised to it: tilted, they hardly count
    bottom: float
    width: float
    points: int


class Table(NamedTuple):
    """The composed loss, tilted: `mass[i]` at loss (first + i) * width, to be scaled by e^(log_scale - tilt * loss)."""

    tilt: float
    log_scale: float
    first: int
    width: float
    mass: np.ndarray
    error: float  # total variation error of mass
    log_above: float  # log of the tilted mass above the window
    infinite: float  # mass at infinite loss
    loss_error: float  # the true total loss exceeds the grid value by at most this

    def delta(self, epsilon: float) -> float:
        epsilon -= self.loss_error
        tilt, top = self.tilt, (self.first + self.mass.size) * self.width
        error = self.error if epsilon >= self.first * self.width else 1.0  # below the window nothing is known
        total = error * _largest_weight(tilt)
        start = max(0, math.floor(epsilon / self.width) - self.first + 1)
        stop = self.mass.size
        if tilt > 0:  # from there on the weight is below e^-80
            stop = min(stop, start + math.ceil(80.0 / (tilt * self.width)))
        if start < self.mass.size:
            y = (self.first + np.arange(start, stop)) * self.width - epsilon
            total += float(np.sum(self.mass[start:stop] * -np.expm1(-y) * np.exp(-tilt * y))) + math.exp(-79.0)
        log_delta = self.log_scale - tilt * epsilon + math.log(total * (1 + 1e-9)) if total > 0 else -math.inf
        above = self.log_scale - tilt * max(top, epsilon) + min(0.0, self.log_above)
        return math.exp(min(0.0, log_delta)) + math.exp(min(0.0, above)) + self.infinite


def _largest_weight(tilt: float) -> float:
    return math.exp(tilt * math.log(tilt / (1 + tilt)) - math.log1p(tilt)) if tilt > 0 else 1.0


class _Transform(NamedTuple):
    """One pair on the grid: tilted and transformed."""

    log_normaliser: float
    log_normaliser_above: float
    spectrum: np.ndarray
    error: float  # of any coefficient
    rounding: float  # relative error of the normaliser and of the tilted masses
    atoms: Atoms


def _transform(pair: Pair, grid: Grid) -> _Transform:
    atoms = pair.discretise(grid.width, grid.log_tail, grid.floor)
    position = atoms.first + np.arange(atoms.log_mass.size)
    log_weight, log_normaliser = _normalise(atoms.log_mass + grid.tilt * grid.width * position)
    above = _normalise(atoms.log_mass + (grid.tilt + grid.above) * grid.width * position)[1]
    weight = np.bincount(position % grid.points, np.exp(log_weight), grid.points)
    error = 16 * UNIT * math.log2(grid.points) * float(weight.sum())
    reach = grid.width * max(abs(int(position[0])), abs(int(position[-1])))
    rounding = 8 * UNIT * (8 + abs(log_normaliser) + abs(above) + (grid.tilt + grid.above) * reach)
    return _Transform(log_normaliser, above, np.fft.rfft(weight), error, rounding, atoms)


def _normalise(log_weight: np.ndarray) -> tuple[np.ndarray, float]:
    top = float(log_weight.max())
    log_normaliser = top + math.log(float(np.exp(log_weight - top).sum()))
    return log_weight - log_normaliser, log_normaliser


class _Product:
    """Running product of transforms: log size, phase and relative error of every coefficient still worth keeping."""

    def __init__(self, frequencies: int) -> None:
        self.active = frequencies
        self.log_size, self.phase, self.relative = (np.zeros(frequencies) for _ in range(3))

    def multiply(self, left: _Transform, right: _Transform, shares: np.ndarray, counts: np.ndarray) -> None:
        """Multiply by (share * left + (1 - share) * right)^count for every kind; shares are tilted ones."""
        error = max(left.error, right.error)
        largest = np.maximum(np.abs(left.spectrum[: self.active]), np.abs(right.spectrum[: self.active])) + error
        alive = np.flatnonzero(self.log_size[: self.active] + counts.sum() * np.log(largest) > NEGLIGIBLE)
        self.active = int(alive[-1]) + 1 if alive.size else 1
        a, b = left.spectrum[: self.active], right.spectrum[: self.active]
        rows = max(1, CHUNK // self.active)
        for start in range(0, counts.size, rows):
            share, count = shares[start : start + rows, None], counts[start : start + rows]
            factor = b + share * (a - b) if left is not right else a[None, :]
            size = np.abs(factor) + error
            log, angle = np.log(size), np.angle(factor)
            doubt = error / size + 8 * UNIT * (np.abs(log) + np.abs(angle) + 1)
            for total, term in ((self.log_size, log), (self.phase, angle), (self.relative, doubt)):
                total[: self.active] += np.sum(count[:, None] * term, axis=0)

    def inverse(self, points: int) -> tuple[np.ndarray, float]:
        """The composed masses and the total variation of their error."""
        size = np.exp(self.log_size[: self.active])
        spectrum = np.zeros(points // 2 + 1, dtype=np.complex128)
        spectrum[: self.active] = size * np.exp(1j * self.phase[: self.active])
        # Twice, as the size of each factor was raised by its error; the l1 norm is at most sqrt(n) times the l2 norm.
        errors = 2 * size * np.minimum(1.0, self.relative[: self.active])
        error = math.sqrt(2 * float(np.sum(errors * errors))) + math.sqrt(2 * points) * math.exp(NEGLIGIBLE + 1)
        mass = np.fft.irfft(spectrum, points)
        # np.sum and not a BLAS dot, whose threads cost more than they bring at this size.
        return mass, error + 16 * UNIT * math.log2(points) * math.sqrt(points * float(np.sum(mass * mass)))


def compose(cells: Iterable[Cell], grid: Grid) -> Table:
    """All steps of all cells, composed. Cells with many steps and much noise first make the product cheap."""
    product = _Product(grid.points // 2 + 1)
    log_scale = log_scale_above = infinite = loss_error = rounding = 0.0
    known: dict[Pair, _Transform] = {}
    for cell in cells:
        known = {p: known[p] if p in known else _transform(p, grid) for p in (cell.right, cell.left)}
        left, right = known[cell.left], known[cell.right]
        with np.errstate(divide="ignore"):
            log_left, log_right = np.log(cell.shares), np.log1p(-np.minimum(cell.shares, 1.0))
        log_normaliser = np.logaddexp(log_left + left.log_normaliser, log_right + right.log_normaliser)
        above = np.logaddexp(log_left + left.log_normaliser_above, log_right + right.log_normaliser_above)
        total = float(cell.counts.sum())
        log_scale += float(cell.counts @ log_normaliser)
        log_scale_above += float(cell.counts @ above)
        infinite += total * max(left.atoms.infinite, right.atoms.infinite)
        loss_error += total * max(left.atoms.loss_error, right.atoms.loss_error)
        rounding += total * max(left.rounding, right.rounding)
        product.multiply(left, right, np.exp(log_left + left.log_normaliser - log_normaliser), cell.counts)
    mass, error = product.inverse(grid.points)
    first = math.floor(grid.bottom / grid.width)
    mass = np.maximum(np.roll(mass, -first % grid.points), 0.0)
    log_scale += rounding
    log_above = log_scale_above - log_scale + 2 * rounding - grid.above * (first + grid.points) * grid.width
    return Table(grid.tilt, log_scale, first, grid.width, mass, error, log_above, infinite, loss_error)
