"""Tight accounting by privacy loss distributions: a certified upper bound, the default for guarantees.

dp-accounting's implementation composes equal steps well and T different ones in T convolutions, on a grid that the
caller must choose. This one chooses its grid, composes all steps in one Fourier product, and returns a delta to which
every numerical error has been added:

1. `kinds.py` replaces a long schedule by chords between few kinds of step, which is provably no more private.
2. `pairs.py` puts the loss of each kind on a grid from above. Mass beyond the grid counts as infinite loss.
3. `fourier.py` composes, and bounds truncation, rounding and wrap-around.

This file chooses tilt, window and grid, from a quick look at the cumulants of the total loss. A bad choice makes the
answer loose, never wrong: every bound is computed on the grid itself.

Errors of the transform are about 1e-14 a step, so beyond some 1e12 steps they leave nothing to be claimed. The least of
this delta and that of `moments` is returned, whose errors are relative ones and in its price at any number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.fft import next_fast_len

from confide.privacy.accountants import gdp, moments, schedule_compression
from confide.privacy.accountants.dominating_pairs import GaussianPair, Order, PurePair
from confide.privacy.accountants.fft_composition import Cell, Grid, Table, compose
from confide.privacy.accountants.numerics import root
from confide.privacy.accountants.profiles import Profile
from confide.privacy.events import Event, Neighbours

LEVEL = 20.0  # minus the log of the tilted mass that may lie outside a window
SLACK = 4.0  # log of the loss of precision accepted for a smaller grid
GRID_VARIANCE = 1e-3  # share of the variance of the total loss that the grid may add
SMALLEST_GRID, FIRST_GRID, LARGEST_GRID = 4096, 2**15, 2**20
FEW_KINDS = 16  # of steps, up to which Renyi moments cost next to nothing
WORTH_REFINING = 2e-3  # relative gain for which a grid is made finer
SKETCH_KNOTS = 16
_POSITIVE = 2.0 ** np.arange(-14, 15.25, 0.25)
TILTS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])


class Sketch(NamedTuple):
    """Cumulants of the total loss, log E[e^(tilt * loss)], steps cut at mass e^log_tail: enough to choose a grid by."""

    log_tail: float
    tilts: np.ndarray
    cumulants: np.ndarray
    variances: np.ndarray  # of the tilted total loss
    sizes: np.ndarray  # sum over the steps of the mean of their tilted |loss|
    span: float  # of the loss of the most revealing step

    def grid(self, exponent: np.ndarray, epsilon: float, size: float, most: int) -> tuple[Grid, bool]:
        """The smallest grid around epsilon among the tilts whose Chernoff bound e^exponent is nearly the best.

        Also whether it is as fine as it should be, which more than `most` points may be needed for.
        """
        exponent = np.where(self.tilts >= 0, exponent, math.inf)[:-1]  # the last has no tilt above it
        allowed = np.flatnonzero(exponent <= np.min(exponent) + SLACK)
        grids = [self._grid(int(index), epsilon, size, most) for index in allowed]
        return min(grids, key=lambda g: (g[0].points, g[0].width))

    def _grid(self, index: int, epsilon: float, size: float, most: int) -> tuple[Grid, bool]:
        gaps, rises = self.tilts - self.tilts[index], self.cumulants - self.cumulants[index]
        above, below = gaps > 0, gaps < 0
        tops = (rises[above] + LEVEL) / gaps[above]
        top, bottom = float(tops.min()), min(epsilon, float(((rises[below] + LEVEL) / gaps[below]).max()))
        # Moving mass to the ends of its cell adds up to width^2 / 6 to the variance of each step and half of that to
        # its mean: little against the variance and against the size of the total loss.
        reach = max(abs(top), abs(bottom), 1e-9)
        variance = min(self.variances[index], self.variances[self.tilts == 0.0][0], 2 * reach)
        width = max(math.sqrt(6 * GRID_VARIANCE * variance / size), self.span / LARGEST_GRID, 1e-12 * reach)
        wanted: Any = next_fast_len(int(min(max(float(SMALLEST_GRID), (top - bottom) / width), most)), real=True)
        points = int(wanted)
        fine = (top - bottom) / width <= most
        # Room at both ends for what the grid itself adds: at most width^2 / 4, and width |loss|, to a step's variance.
        width = (top - bottom) / (points - 4)
        margin = 7 * math.sqrt(min(size * width**2 / 4, width * self.sizes[index]))
        bottom, top = bottom - margin, top + margin
        width = max((top - bottom) / (points - 4), self.span / LARGEST_GRID, 1e-12 * reach)
        order_above = float(gaps[above][np.argmin(tops)])
        tilt = float(self.tilts[index])
        floor = -(LEVEL + math.log1p(size)) / tilt if tilt > 0 else -math.inf
        return Grid(tilt, order_above, self.log_tail, floor, bottom, width, points), fine


class PLD(Profile):
    def __init__(self, event: Event, neighbours: Neighbours) -> None:
        super().__init__(event, neighbours)
        self._orders: tuple[Order, ...] = ("remove", "add") if neighbours == "add-remove" else ("replace",)
        self._size = self.parts.steps + float(self.parts.epsilon_counts.sum()) + (self.parts.squared_mu > 0)
        self._chords = list(schedule_compression.chords(self.parts, neighbours))
        self._sketches: dict[tuple[Order, int], Sketch] = {}
        self._tables: dict[tuple[Order, Grid], Table] = {}

    def _sketch(self, order: Order, level: int) -> Sketch:
        if (order, level) not in self._sketches:
            log_tail = level - 12.0 - math.log1p(self._size)
            cumulants, variances, sizes = (np.zeros(TILTS.size) for _ in range(3))
            span = 0.0
            sigma, q, counts = schedule_compression.chord(self.parts, SKETCH_KNOTS)
            steps = [GaussianPair(float(p), 1 / float(s), order) for s, p in zip(sigma, q, strict=True)]
            exact = [(cell.left, float(cell.counts[0])) for cell in self._exact_cells()]
            for pair, count in exact + list(zip(steps, counts.tolist(), strict=True)):
                losses, log_mass = pair.sketch(log_tail)
                span = max(span, float(np.ptp(losses)))
                exponent = log_mass + TILTS[:, None] * losses
                largest = exponent.max(axis=1)
                weight = np.exp(exponent - largest[:, None])
                total = weight.sum(axis=1)
                cumulants += count * (largest + np.log(total))
                variances += count * np.maximum(0.0, weight @ losses**2 / total - (weight @ losses / total) ** 2)
                sizes += count * (weight @ np.abs(losses)) / total
            self._sketches[order, level] = Sketch(log_tail, TILTS, cumulants, variances, sizes, span)
        return self._sketches[order, level]

    def _table(self, order: Order, level: int, epsilon: float, most: int) -> tuple[Table, bool]:
        sketch = self._sketch(order, level)
        grid, fine = sketch.grid(sketch.cumulants - TILTS * epsilon, epsilon, self._size, most)
        if (order, grid) not in self._tables:
            self._tables[order, grid] = compose(self._cells(order), grid)
        return self._tables[order, grid], fine

    def _refined(self, order: Order, level: int, epsilon: float, value: Callable[[Table], float]) -> float:
        """The least value on ever finer grids, until they are as fine as they should be or it no longer matters."""
        best, most = math.inf, min(FIRST_GRID, LARGEST_GRID)
        while True:
            table, fine = self._table(order, level, epsilon, most)
            found = value(table)
            if fine or most >= LARGEST_GRID or found > best * (1 - WORTH_REFINING) - 1e-300:
                return min(best, found)
            best, most = found, min(4 * most, LARGEST_GRID)

    def _exact_cells(self) -> Iterator[Cell]:
        """What needs no subsampled Gaussian: one cell for all Gaussian releases, one for each pure epsilon."""
        one = np.ones(1)
        if self.parts.squared_mu:
            pair = GaussianPair(1.0, math.sqrt(self.parts.squared_mu) * (1 + 1e-15), "remove")
            yield Cell(pair, pair, one, one)
        for epsilon, count in zip(self.parts.epsilons, self.parts.epsilon_counts, strict=True):
            yield Cell(PurePair(float(epsilon)), PurePair(float(epsilon)), one, one * count)

    def _cells(self, order: Order) -> Iterator[Cell]:
        yield from self._exact_cells()
        for chord in self._chords:
            left, right = (GaussianPair(chord.q, 1 / sigma, order) for sigma in (chord.left, chord.right))
            yield Cell(left, right, chord.shares, chord.counts)

    @property
    def _gaussian(self) -> bool:
        return not self.parts.counts.size and not self.parts.epsilons.size

    @property
    def _response(self) -> bool:
        """Whether all there is is one pure release: no worse than randomised response, whose profile is known."""
        return self._size == 1 and self.parts.epsilons.size == 1

    def _ceiling(self, order: Order) -> float:
        """No loss is above this: pure releases are bounded, and so is the gain from a record that was not there."""
        if self.parts.squared_mu or (self.parts.counts.size and order != "add"):
            return math.inf
        steps = -self.parts.counts * np.log1p(-self.parts.sampling_probabilities)
        return math.fsum([*steps, *self.parts.epsilons * self.parts.epsilon_counts]) * (1 + 1e-12)

    def _delta(self, epsilon: float) -> float:
        if self._gaussian:
            return gdp.GDP(self.event, self.neighbours)._delta(epsilon)
        if self._response:  # (e^pure - e^epsilon) / (1 + e^pure)
            pure = float(self.parts.epsilons[0])
            return -math.expm1(epsilon - pure) / (1 + math.exp(-pure)) * (1 + 1e-12) if epsilon < pure else 0.0
        found = max(self._delta_in_order(order, epsilon) for order in self._orders)
        if self.parts.counts.size > FEW_KINDS:
            return found
        return min(found, moments.Moments(self.event, self.neighbours)._delta(epsilon))

    def _rough_delta(self, epsilon: float) -> float:
        if self._gaussian or self._response:
            return self._delta(epsilon)
        return min(1.0, max(self._delta_in_order(order, epsilon, SMALLEST_GRID) for order in self._orders))

    def _delta_in_order(self, order: Order, epsilon: float, most: int | None = None) -> float:
        """delta from the finest grid that pays, or from one of at most `most` points and those already made."""
        if epsilon >= self._ceiling(order):
            return 0.0
        level = -30
        while True:  # cut the steps far enough out for the delta that comes of it
            exponent = self._sketch(order, level).cumulants - TILTS * epsilon
            log_delta = float(np.min(exponent[TILTS >= 0]))
            if log_delta > level - 5 or level <= -700:
                break
            level = max(-700, _level(log_delta - 10))
        if most is None:
            found = self._refined(order, level, epsilon, lambda table: min(1.0, table.delta(epsilon)))
        else:
            found = self._table(order, level, epsilon, most)[0].delta(epsilon)
        return min([found, *(table.delta(epsilon) for (made, _), table in self._tables.items() if made == order)])

    def _epsilon(self, delta: float) -> float:
        if self._gaussian:
            return gdp.GDP(self.event, self.neighbours)._epsilon(delta)
        if self._response:
            pure = float(self.parts.epsilons[0])
            missed = delta * (1 + math.exp(-pure))
            return max(0.0, pure + math.log1p(-missed)) * (1 + 1e-12) if missed < 1 else 0.0
        found = 0.0
        for order in self._orders:
            if self._ceiling(order) > found:
                found = max(found, min(self._ceiling(order), self._epsilon_in_order(order, delta)))
        # Far from the central limit the window may have been a bad choice: the moments are a second opinion.
        expected = found < 1.3 * gdp.GDP(self.event, self.neighbours)._epsilon(delta)
        if found < math.inf and (expected or self.parts.counts.size > FEW_KINDS):
            return found
        return min(found, moments.Moments(self.event, self.neighbours)._epsilon(delta))

    def _epsilon_in_order(self, order: Order, delta: float) -> float:
        level = max(-700, _level(math.log(delta)))
        cumulants = self._sketch(order, level).cumulants
        positive = TILTS > 0
        chernoff = float(np.min((cumulants[positive] - math.log(delta)) / TILTS[positive]))
        return self._refined(order, level, chernoff, lambda table: _invert(table, delta))


def _level(log_delta: float) -> int:
    """log delta rounded down to tens, so that tables are shared."""
    return 10 * math.floor(log_delta / 10)


def _invert(table: Table, delta: float) -> float:
    """The least epsilon, to 1e-7 of the window, at which the table certifies delta."""
    low, high = max(0.0, table.first * table.width), (table.first + table.mass.size) * table.width
    if table.delta(low) <= delta:
        return low
    if table.delta(high) > delta:
        return math.inf
    tolerance = 1e-8 * (high - low)
    found = root(lambda e: math.log(max(table.delta(e), 1e-320) / delta), low, high, tolerance)
    while table.delta(found) > delta:
        found += tolerance
        tolerance *= 2
    return found


def profile(event: Event, neighbours: Neighbours = "add-remove") -> PLD:
    return PLD(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
