"""Tight accounting by privacy loss distributions: a certified upper bound, the default for guarantees.

dp-accounting's implementation composes equal steps well and T different ones in T convolutions, on a grid that the
caller must choose. This one chooses its grid, composes all steps in one Fourier product, and returns a delta to which
every numerical error has been added:

1. *Kinds.* Steps are rounded, towards less noise, to at most `KINDS` kinds (`kinds.py`).
2. *Grid.* Each kind's loss is put on a grid from above (`pairs.py`). Mass beyond the grid counts as infinite loss.
3. *Tilt.* The mass at loss s is multiplied by e^(tilt s) and normalised, with logarithm of the normaliser K(tilt).
   Composition is unchanged, but the composed distribution now sits around the epsilon of interest, so that errors of
   the Fourier transform, which are of the order 1e-12 of the whole, are 1e-12 of the delta sought, however small.
4. *Window.* The transform works modulo a window outside which, by Chernoff's bound on the moments of the grid itself,
   lies a mass of about e^-20. What lies below the window can only wrap upwards, and is then counted though it need not
   be; what lies above is bounded and added.
5. *Delta.* delta(epsilon) = e^(K - tilt epsilon) sum_{s > epsilon} (1 - e^-(s-epsilon)) e^(-tilt (s-epsilon)) w(s).
   The weight of w(s) is at most tilt^tilt / (1 + tilt)^(1 + tilt), so an error of total variation eta in w adds at
   most e^(K - tilt epsilon) times that times eta.

Error of a transform of length n: at most 16 u log2(n) relative in the Euclidean norm (Higham 2002, section 24.1, with
room to spare; u = 2^-53), and the error of a product is bounded factor by factor in `_compose`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.fft import next_fast_len

from confide.accountants import gdp, kinds
from confide.accountants.pairs import Atoms, GaussianPair, PurePair
from confide.accountants.profiles import Profile
from confide.accountants.roots import root
from confide.events import Event, Neighbours

KINDS = 256  # kinds of step kept of a schedule
LEVEL = 20.0  # minus the log of the tilted mass that may lie outside a window
SLACK = 4.0  # log of the loss of precision accepted for a smaller grid
GRID_VARIANCE = 1e-3  # share of the variance of the total loss that the grid may add
SMALLEST_GRID, LARGEST_GRID = 4096, 2**21
UNIT = 2.0**-53


_POSITIVE = 2.0 ** np.arange(-14, 15.5, 0.5)
TILTS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])
SKETCH_KNOTS = 16


class Grid(NamedTuple):
    tilt: float
    above: float  # the order, beyond the tilt, that bounds the mass above the window
    log_tail: float  # log of the mass cut from either end of a step
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
    infinite: float
    loss_error: float

    def delta(self, epsilon: float) -> float:
        epsilon -= self.loss_error
        tilt, top = self.tilt, (self.first + self.mass.size) * self.width
        log_peak = self.log_scale - tilt * epsilon
        error = self.error if epsilon >= self.first * self.width else 1.0  # below the window nothing is known
        total = error * _largest_weight(tilt)
        start = max(0, math.floor(epsilon / self.width) - self.first + 1)
        stop = min(self.mass.size, start + math.ceil(80.0 / (max(tilt, 1e-9) * self.width)))  # e^-80 from there on
        if start < self.mass.size:
            y = (self.first + np.arange(start, stop)) * self.width - epsilon
            total += float(self.mass[start:stop] @ (-np.expm1(-y) * np.exp(-tilt * y))) + math.exp(-79.0)
        log_delta = log_peak + math.log(total * (1 + 1e-9)) if total > 0 else -math.inf
        above = self.log_scale - tilt * max(top, epsilon) + min(0.0, self.log_above)
        return math.exp(min(0.0, log_delta)) + math.exp(min(0.0, above)) + self.infinite


def _largest_weight(tilt: float) -> float:
    return math.exp(tilt * math.log(tilt / (1 + tilt)) - math.log1p(tilt)) if tilt > 0 else 1.0


class Sketch(NamedTuple):
    """Cumulants of the total loss, log E[e^(tilt * loss)], steps cut at mass e^log_tail: enough to choose a grid by."""

    log_tail: float
    tilts: np.ndarray
    cumulants: np.ndarray
    variances: np.ndarray  # of the tilted total loss
    span: float  # of the loss of the most revealing step

    def grid(self, exponent: np.ndarray, size: float) -> Grid:
        """The smallest grid among the tilts whose Chernoff bound on delta, e^exponent, is nearly the best."""
        exponent = np.where(self.tilts >= 0, exponent, math.inf)[:-1]  # the last has no tilt above it
        allowed = np.flatnonzero(exponent <= np.min(exponent) + SLACK)
        return min((self._grid(int(index), size) for index in allowed), key=lambda grid: grid.points)

    def _grid(self, index: int, size: float) -> Grid:
        gaps, rises = self.tilts - self.tilts[index], self.cumulants - self.cumulants[index]
        above, below = gaps > 0, gaps < 0
        tops = (rises[above] + LEVEL) / gaps[above]
        top, bottom = float(tops.min()), float(((rises[below] + LEVEL) / gaps[below]).max())
        # Moving mass to the ends of its cell adds up to width^2 / 6 to the variance of each step.
        variance = min(self.variances[index], self.variances[self.tilts == 0.0][0])
        width = max(math.sqrt(6 * GRID_VARIANCE * variance / size), self.span / LARGEST_GRID)
        wanted: Any = next_fast_len(
            int(min(max(float(SMALLEST_GRID), (top - bottom) / width), LARGEST_GRID)), real=True
        )
        points = int(wanted)
        width = max((top - bottom) / (points - 4), self.span / LARGEST_GRID)
        return Grid(float(self.tilts[index]), float(gaps[above][np.argmin(tops)]), self.log_tail, bottom, width, points)


class PLD(Profile):
    accountant = "pld"

    def __init__(self, event: Event, neighbours: Neighbours) -> None:
        super().__init__(event, neighbours)
        self._orders = ("remove", "add") if neighbours == "add-remove" else ("replace",)
        self._size = self.parts.steps + float(self.parts.epsilon_counts.sum()) + (self.parts.squared_mu > 0)
        self._kinds = kinds.rounded(self.parts, KINDS)
        self._sketches: dict[tuple[str, int], Sketch] = {}
        self._tables: dict[tuple[str, Grid], Table] = {}

    def _sketch(self, order: str, level: int) -> Sketch:
        if (order, level) not in self._sketches:
            log_tail = level - 12.0 - math.log1p(self._size)
            cumulants, variances, span = np.zeros(TILTS.size), np.zeros(TILTS.size), 0.0
            for pair, count in self._factors(order, kinds.chorded(self.parts, SKETCH_KNOTS)):
                losses, log_mass = pair.sketch(log_tail)
                span = max(span, float(np.ptp(losses)))
                exponent = log_mass + TILTS[:, None] * losses
                largest = exponent.max(axis=1)
                weight = np.exp(exponent - largest[:, None])
                total = weight.sum(axis=1)
                cumulants += count * (largest + np.log(total))
                variances += count * np.maximum(0.0, weight @ losses**2 / total - (weight @ losses / total) ** 2)
            self._sketches[order, level] = Sketch(log_tail, TILTS, cumulants, variances, span)
        return self._sketches[order, level]

    def _table(self, order: str, level: int, exponent: np.ndarray) -> Table:
        grid = self._sketch(order, level).grid(exponent, self._size)
        if (order, grid) not in self._tables:
            self._tables[order, grid] = self._compose(order, grid)
        return self._tables[order, grid]

    def _factors(self, order, steps: kinds.Kinds):
        """Pairs and how often they occur, the most revealing first."""
        sigma, q, counts = steps
        if self.parts.squared_mu:
            yield GaussianPair(1.0, math.sqrt(self.parts.squared_mu), "remove"), 1.0
        for epsilon, count in zip(self.parts.epsilons, self.parts.epsilon_counts, strict=True):
            yield PurePair(float(epsilon)), float(count)
        for i in np.argsort(-counts * (q / sigma) ** 2):
            yield GaussianPair(float(q[i]), 1.0 / float(sigma[i]), order), float(counts[i])

    def _compose(self, order, grid: Grid) -> Table:
        width, points = grid.width, grid.points
        frequencies = points // 2 + 1
        log_size, phase, relative = np.zeros(frequencies), np.zeros(frequencies), np.zeros(frequencies)
        active, centre = frequencies, 0
        log_scale = log_scale_above = infinite = loss_error = rounding = 0.0
        for pair, count in self._factors(order, self._kinds):
            atoms = pair.discretise(width, grid.log_tail)
            log_weight, log_normaliser, mean = _tilted(atoms, width, grid.tilt)
            log_scale += count * log_normaliser
            log_scale_above += count * _tilted(atoms, width, grid.tilt + grid.above)[1]
            infinite += count * atoms.infinite
            loss_error += count * atoms.loss_error
            rounding += count * UNIT * 8 * (4 + abs(log_normaliser) + grid.tilt * abs(atoms.first) * width)
            shift = round(mean)  # centred, so that phases stay small where it matters
            centre += int(count) * (atoms.first + shift)
            weight = np.exp(log_weight)
            weight = np.bincount((np.arange(weight.size) - shift) % points, weight, points)
            factor = np.fft.rfft(weight)[:active]
            error = 16 * UNIT * math.log2(points) * math.sqrt(points) * float(np.linalg.norm(weight))
            size = np.abs(factor) + error
            log, angle = np.log(size), np.angle(factor)
            log_size[:active] += count * log
            phase[:active] += count * angle
            relative[:active] += count * (error / size + 8 * UNIT * (np.abs(log) + np.abs(angle)))
            alive = np.flatnonzero(log_size[:active] > -60.0)
            active = int(alive[-1]) + 1 if alive.size else 1
        # |computed - true| <= 2 |computed| relative, where each factor's size was raised by its own error.
        size = np.exp(log_size[:active])
        spectrum = np.zeros(frequencies, dtype=np.complex128)
        spectrum[:active] = size * np.exp(1j * phase[:active])
        errors = 2 * size * np.minimum(1.0, relative[:active])
        error = math.sqrt(2 * float(errors @ errors)) + math.sqrt(2 * points) * math.exp(-59.0)
        mass = np.fft.irfft(spectrum, points)
        error += 16 * UNIT * math.log2(points) * math.sqrt(points) * float(np.linalg.norm(mass))
        first = math.floor(grid.bottom / width)
        mass = np.maximum(np.roll(mass, (centre - first) % points), 0.0)
        log_scale += rounding
        log_above = log_scale_above - log_scale + 2 * rounding - grid.above * (first + points) * width
        return Table(grid.tilt, log_scale, first, width, mass, error, log_above, infinite, loss_error)

    @property
    def _gaussian(self) -> bool:
        return not self.parts.counts.size and not self.parts.epsilons.size

    @property
    def _pure(self) -> float:
        """No loss is above this."""
        bounded = not self.parts.counts.size and not self.parts.squared_mu
        return math.fsum(self.parts.epsilons * self.parts.epsilon_counts) if bounded else math.inf

    def _delta(self, epsilon: float) -> float:
        if self._gaussian:
            return gdp.delta_of_mu(math.sqrt(self.parts.squared_mu), epsilon) if self.parts.squared_mu else 0.0
        if epsilon >= self._pure:
            return 0.0
        return max(self._delta_in_order(order, epsilon) for order in self._orders)

    def _delta_in_order(self, order: str, epsilon: float) -> float:
        level = -30
        while True:  # cut the steps far enough out for the delta that comes of it
            exponent = self._sketch(order, level).cumulants - TILTS * epsilon
            log_delta = float(np.min(exponent[TILTS >= 0]))
            if log_delta > level - 5 or level <= -700:
                break
            level = max(-700, _level(log_delta - 10))
        self._table(order, level, exponent)
        return min(table.delta(epsilon) for (made, _), table in self._tables.items() if made == order)

    def _epsilon(self, delta: float) -> float:
        if self._gaussian:
            return gdp.epsilon_of_mu(math.sqrt(self.parts.squared_mu), delta) if self.parts.squared_mu else 0.0
        return min(self._pure, max(self._epsilon_in_order(order, delta) for order in self._orders))

    def _epsilon_in_order(self, order: str, delta: float) -> float:
        level = max(-700, _level(math.log(delta)))
        cumulants = self._sketch(order, level).cumulants
        positive = TILTS > 0
        chernoff = float(np.min((cumulants[positive] - math.log(delta)) / TILTS[positive]))
        return _invert(self._table(order, level, cumulants - TILTS * chernoff), delta)


def _level(log_delta: float) -> int:
    """log delta rounded down to tens, so that tables are shared."""
    return 10 * math.floor(log_delta / 10)


def _tilted(atoms: Atoms, width: float, tilt: float) -> tuple[np.ndarray, float, float]:
    """log of the tilted masses, log of their sum before normalising, and their mean position."""
    position = np.arange(atoms.log_mass.size)
    log_weight = atoms.log_mass + tilt * (atoms.first + position) * width
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = float(weight.sum())
    log_normaliser = float(top) + math.log(total)
    return log_weight - log_normaliser, log_normaliser, float(position @ weight) / total


def _invert(table: Table, delta: float) -> float:
    """The least epsilon, to 1e-7 of the window, at which the table certifies delta."""
    low, high = max(0.0, table.first * table.width), (table.first + table.mass.size) * table.width
    if table.delta(low) <= delta:
        return low
    if table.delta(high) > delta:
        return math.inf
    tolerance = 1e-8 * (high - low)
    found = root(lambda e: math.log(table.delta(e) / delta), low, high, tolerance)
    while table.delta(found) > delta:
        found += tolerance
        tolerance *= 2
    return found


def profile(event: Event, neighbours: Neighbours = "add-remove") -> PLD:
    return PLD(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
