"""Lower bounds on what an event reveals, to hold prices against: no code of the accountants is used here.

For two distributions P and Q of everything that is released, *any* set S gives delta(epsilon) >= P(S) - e^epsilon Q(S).
Here S is "the sum of scores is above c, give or take some Gaussian noise" (a randomised test is a test). The score of a
step is constant on cells of its outcome (which is post-processing), so that the characteristic function of a sum is a
product of finite sums, at any number of steps; the noise makes it vanish, and the chance of S is a short Fourier series
in closed form. In detail:

- A `Kind` is a pair of neighbours' distributions of one release on cells: record in against record out of a
  Poisson-subsampled Gaussian (both ways round), record against another record (means +m and -m), a Gaussian shift,
  randomised response. Each is a real pair of neighbours of a real release, so a bound for it is one for the event.
- Both distributions are tilted by e^(theta score) to where c is in their middle, which makes small chances as precise
  as large ones. Characteristic functions are computed as 1 + (f - 1), so that f^steps loses nothing at 1e15 steps.
- What is not exact is subtracted: the chance of sums beyond the period of the series (Chernoff, on the cells), the
  frequencies left out (the noise bounds them), and rounding, which grows with the root of the steps.

Besides: log-moments on cells, which merging cells can only lower, for what adds up log-moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

REACH = 9.5  # standard deviations of one release's outcome on either side
MOST_CELLS = 1500
NOISE = 0.04  # of the standard deviation of the sum of scores
MOST_FREQUENCIES = 1000
CUT = 25.0  # minus the log of what may lie outside a window or beyond the frequencies
TILTS = 2.0 ** np.arange(-14, 15)


class Kind(NamedTuple):
    """`times` releases: chances of the cells under Q, the excess of P over Q, and their scores."""

    base: np.ndarray
    excess: np.ndarray
    score: np.ndarray
    times: float

    @property
    def chances(self) -> np.ndarray:
        return self.base + self.excess


def _scored(base: np.ndarray, excess: np.ndarray, count: float) -> Kind:
    """The score is log P/Q, of the cells that have a chance under both."""
    kept = (base > 1e-290) & (base + excess > 1e-290)
    base, excess = base[kept], excess[kept]
    ratio = excess / base
    score = np.where(np.abs(ratio) < 0.5, np.log1p(np.clip(ratio, -0.9, 1.0)), np.log((base + excess) / base))
    return Kind(base, excess, score, count)


def _cells(mean: float, edges: np.ndarray) -> np.ndarray:
    """Chances of N(mean, 1) between the edges, each from the nearer tail."""
    lower, upper = ndtr(edges - mean), ndtr(mean - edges)
    return np.where(edges[:-1] > mean, upper[:-1] - upper[1:], lower[1:] - lower[:-1])


def gaussian_kind(sigma: float, q: float, count: float, side: str) -> Kind:
    """A Poisson-subsampled Gaussian step: side "remove", "add" or "replace"."""
    m = 1 / sigma
    low = -REACH - (m if side == "replace" else 0.0)
    width = max(min(0.1, 0.1 / m), (m + REACH - low) / MOST_CELLS)
    edges = np.arange(low, m + REACH + width, width)
    absent, present = _cells(0.0, edges), _cells(m, edges)
    if side == "replace":
        other = _cells(-m, edges)
        return _scored((1 - q) * absent + q * other, q * (present - other), count)
    if side == "remove":
        return _scored(absent, q * (present - absent), count)
    return _scored(absent + q * (present - absent), -q * (present - absent), count)


def shift_kind(mu: float) -> Kind:
    return gaussian_kind(1 / mu, 1.0, 1.0, "remove")


def response_kind(epsilon: float, count: float) -> Kind:
    """Randomised response: likelihood ratios e^epsilon and e^-epsilon."""
    low = 1 / (1 + math.exp(epsilon))
    base = np.array([low, 1 - low])
    apart = math.tanh(epsilon / 2)
    return Kind(base, np.array([apart, -apart]), np.array([epsilon, -epsilon]), count)


@dataclass
class _Tilted:
    """One of the two distributions of the sum of scores, tilted so that `centre` is in its middle if it can be."""

    kinds: list[Kind]
    chances: list[np.ndarray]
    centre: float

    def __post_init__(self) -> None:
        self.theta = 0.0
        if self.slope(0.0)[0] < self.centre:
            high = 1e-12
            while self.slope(high)[0] < self.centre and high < 1e12:
                high *= 4
            if high < 1e12:
                low = 0.0 if high <= 1e-12 else high / 4
                self.theta = float(brentq(lambda t: self.slope(t)[0] - self.centre, low, high, rtol=1e-6))  # type: ignore[arg-type]
        self.log_mass = self.log_moment(self.theta)
        self.mean, self.variance = self.slope(self.theta)
        self.weights = []
        for kind, chance in zip(self.kinds, self.chances, strict=True):
            weight = chance * np.exp(self.theta * kind.score - (self.theta * kind.score).max())
            self.weights.append(weight / weight.sum())

    def log_moment(self, theta: float) -> float:
        """log E e^(theta sum)."""
        total = 0.0
        for kind, chance in zip(self.kinds, self.chances, strict=True):
            exponent = theta * kind.score
            top = float(exponent.max())
            if top < 600:  # the chances add up to 1, whatever their rounded sum is: it would be taken to a large power
                total += kind.times * math.log1p(max(float(chance @ np.expm1(exponent)), -1 + 1e-16))
            else:
                total += kind.times * (top + math.log(float(chance @ np.exp(exponent - top))))
        return total

    def slope(self, theta: float) -> tuple[float, float]:
        """Mean and variance of the tilted sum."""
        mean = variance = 0.0
        for kind, chance in zip(self.kinds, self.chances, strict=True):
            exponent = theta * kind.score
            weight = chance * np.exp(exponent - exponent.max())
            weight /= weight.sum()
            one = float(weight @ kind.score)
            mean += kind.times * one
            variance += kind.times * float(weight @ (kind.score - one) ** 2)
        return mean, variance

    def spread(self) -> float:
        """How far from `centre` the tilted sum may be, but for a chance of e^-CUT on either side."""
        found = []
        for sign in (1.0, -1.0):
            rises = np.array([self.log_moment(self.theta + sign * t) - self.log_mass for t in TILTS / self.scale])
            reach = (rises + CUT) * self.scale / TILTS
            found.append(float(np.min(reach)) - sign * self.centre)
        return max(found)

    @property
    def scale(self) -> float:
        return math.sqrt(self.variance)

    def spectrum(self, noise: float, half: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Frequencies of a series of period 2 half, and log size and angle there of sum + noise less its mean."""
        highest = math.sqrt(2 * CUT) / noise
        frequency = math.pi / half * np.arange(1, math.ceil(highest * half / math.pi) + 1)
        log_size, angle = -((noise * frequency) ** 2) / 2, np.zeros(frequency.size)
        for kind, weight in zip(self.kinds, self.weights, strict=True):
            phase = np.outer(frequency / 2, kind.score - float(weight @ kind.score))
            sine = np.sin(phase)
            real, imaginary = -2 * (sine * sine) @ weight, 2 * (sine * np.cos(phase)) @ weight
            log_size += kind.times * 0.5 * np.log1p(np.maximum(2 * real + real**2 + imaginary**2, -1 + 1e-16))
            angle += kind.times * np.arctan2(imaginary, 1 + real)
        return frequency, log_size, angle

    def chance(self, threshold: float, half: float, spectrum: tuple[np.ndarray, ...]) -> tuple[float, float]:
        """The mean of e^(-theta (sum + noise - threshold)) above the threshold, tilted; and a bound on its error."""
        frequency, log_size, angle = spectrum
        angle = angle - frequency * (threshold - self.mean)
        # The weight e^(-theta s) above the threshold, over half a period, as a Fourier integral.
        slope = self.theta + 1j * frequency
        tail = math.exp(-min(self.theta * half, 700.0))
        above = (1 - tail * np.exp(-1j * frequency * half)) / slope
        first = half if self.theta * half < 1e-9 else -math.expm1(-self.theta * half) / self.theta
        size = np.exp(log_size)
        series = first + 2 * float(np.sum(size * (np.exp(1j * angle) * above).real))
        steps = sum(kind.times for kind in self.kinds)
        total = first + 2 * float(np.sum(size * np.abs(above)))
        error = total / (2 * half) * (1e-12 + 4e-15 * math.sqrt(steps)) + 8 * math.exp(-CUT)
        return series / (2 * half), error


def delta(kinds: list[Kind], epsilon: float) -> float:
    """A lower bound on delta(epsilon) of the releases together; 0 where this finds none."""
    kinds = [kind for kind in kinds if kind.score.size and np.ptp(kind.score) > 0]
    if not kinds:
        return 0.0
    sides = [_Tilted(kinds, [k.chances for k in kinds], epsilon), _Tilted(kinds, [k.base for k in kinds], epsilon)]
    reach, wide = max(side.spread() for side in sides), math.sqrt(2 * CUT)
    noise = max(NOISE * min(side.scale for side in sides), reach * wide / (math.pi * MOST_FREQUENCIES))
    # The noise may reach beyond the sum, and more so tilted.
    half = reach + noise * (wide + noise * max(side.theta for side in sides)) + abs(0.5 * noise)
    if not (0 < noise < math.inf and half > 0):
        return 0.0
    best, spectra = 0.0, [side.spectrum(noise, half) for side in sides]
    for shift in (0.0, 0.5 * noise, -0.5 * noise):
        logs = []
        for sign, side, spectrum in zip((-1.0, 1.0), sides, spectra, strict=True):
            # The noise is tilted as well: e^(theta noise) has the mean e^((theta noise)^2 / 2), and the mean moves.
            theta, threshold = side.theta, epsilon + shift
            value, error = side.chance(threshold - theta * noise**2, half, spectrum)
            value = value + sign * error
            if value <= 0:
                logs.append(-math.inf)
                continue
            logs.append(side.log_mass - theta * threshold + (theta * noise) ** 2 / 2 + math.log(value))
        if logs[0] == -math.inf or logs[0] > 1e-3:
            continue
        first, second = math.exp(logs[0]), math.exp(min(700.0, logs[1] + epsilon))
        best = max(best, first - second)
    return best


def log_moment(kinds: list[Kind], order: float) -> float:
    """A lower bound on log E_Q[(P/Q)^order], all releases together: on cells, terms r^a - 1 - a (r - 1) >= 0."""
    total = 0.0
    for kind in kinds:
        d = kind.excess / kind.base
        small = np.abs(order * d) < 1e-3
        with np.errstate(over="ignore"):
            bend = np.where(
                small,
                order * (order - 1) / 2 * d**2 * (1 + (order - 2) * d / 3),
                np.exp(np.minimum(order * np.log1p(np.maximum(d, -1 + 1e-16)), 600.0)) - 1 - order * d,
            )
        total += kind.times * math.log1p(float(kind.base @ np.maximum(bend, 0.0)))
    return total
