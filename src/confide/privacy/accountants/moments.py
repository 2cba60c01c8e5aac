"""Moments accountant (Abadi et al. 2016; li2019, section 2.2; Mironov 2017).

The log-moment of order a of a step is log E_Q[(P/Q)^a], with Renyi divergence log-moment / (a - 1); log-moments of
composed steps add up, also when each step is chosen after seeing the outputs before it. For a Poisson-subsampled
Gaussian, add-remove, at an integer order it is a finite binomial sum without any numerical integral:

    log sum_k C(a, k) (1-q)^(a-k) q^k exp(k (k-1) / (2 sigma^2)).

For replace-one the worst pair is (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1) (proof in `pairs.py`), whose moment
has no finite sum; the trapezoidal rule, which converges exponentially for it, is used instead. The same rule serves
orders between the integers, which matter where epsilon is large.

Numerical errors are in the price: `log_moments.py` rounds the log-moment of one step up by a bound on its *relative*
error, which adding up steps leaves as it is, chords between knots round up too (`kinds.py`), and the sums and
conversions here add what they may have lost. At orders up to 64 all of it is some 1e-12 of the price.

Two conversions to (epsilon, delta): `tail="classical"`, delta = min_a exp(log-moment(a) - (a-1) epsilon), as in the
papers; and `tail="renyi"`, the tighter one of Canonne, Kamath and Steinke (2020), the default.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import numpy as np

from confide.privacy.accountants import schedule_compression
from confide.privacy.accountants.log_moments import UNIT as UNIT
from confide.privacy.accountants.log_moments import binomial_log_moment as binomial_log_moment
from confide.privacy.accountants.log_moments import integrated_log_moment as integrated_log_moment
from confide.privacy.accountants.log_moments import pure_log_moment as pure_log_moment
from confide.privacy.accountants.profiles import Profile
from confide.privacy.events import Event, Neighbours, Parts

Tail = Literal["renyi", "classical"]

KNOTS = 16  # chords in 1/sigma^2: relative error 3e-6 at 10,000 distinct noise multipliers
ROUNDED = 256  # kinds of step kept for replace-one, where chords are not proven
FRACTIONAL = 8  # orders between the integers are tried up to here
# Every integer to 64, then a fifth more each time: a search narrows in on the best one afterwards.
ORDERS = np.unique(np.concatenate([np.arange(2, 65), np.round(64 * 1.2 ** np.arange(1, 34))]).astype(int))


class Moments(Profile):
    def __init__(self, event: Event, neighbours: Neighbours, tail: Tail = "renyi") -> None:
        super().__init__(event, neighbours)
        self.tail = tail
        self._known: dict[float, float] = {}

    @cached_property
    def _chorded(self) -> schedule_compression.Kinds:
        return schedule_compression.chord(self.parts, KNOTS)

    @cached_property
    def _rounded(self) -> schedule_compression.Kinds:
        return schedule_compression.round_kinds(self.parts, ROUNDED)

    def log_moment(self, order: float) -> float:
        """log-moment of the whole event at any order above 1, never below the truth."""
        if order not in self._known:
            total = self._subsampled(order) + float(exact_log_moment(self.parts, order))
            self._known[order] = total * (1 + 8 * UNIT)
        return self._known[order]

    def _subsampled(self, order: float) -> float:
        if not self.parts.counts.size:
            return 0.0
        if self.neighbours == "add-remove" and order == int(order):
            sigma, q, counts = self._chorded
            return math.fsum(counts * binomial_log_moment(int(order), sigma, q))
        return math.fsum(
            count * integrated_log_moment(order, sigma, q, self.neighbours == "replace-one")
            for sigma, q, count in zip(*self._rounded, strict=True)
        )

    def _best(self, bound) -> float:
        """Least value of `bound(order, log_moment)` over real orders above 1; every order gives a valid bound."""
        return self._best_by_search(bound) if self.parts.counts.size else self._best_in_closed_form(bound)

    def _best_in_closed_form(self, bound) -> float:
        orders = 1 + np.geomspace(1e-3, 1e6, 4000)
        values = bound(orders, exact_log_moment(self.parts, orders))
        best = int(np.argmin(values))
        near = np.linspace(orders[max(0, best - 1)], orders[min(orders.size - 1, best + 1)], 400)
        return float(np.min(bound(near, exact_log_moment(self.parts, near))))

    def _best_by_search(self, bound) -> float:
        def values(orders) -> list[float]:
            return [float(bound(float(order), self.log_moment(order))) for order in orders]

        candidates, found = ORDERS.tolist(), []
        for order in candidates:  # the bound falls and then rises: stop when it has risen well past its least value
            found += values([order])
            if found[-1] > min(found) + 0.5 * abs(min(found)) + 1e-9:
                break
        while True:
            best = int(np.argmin(found))
            low, high = candidates[max(0, best - 1)], candidates[min(len(found) - 1, best + 1)]
            if high - low <= 2:
                break
            candidates = sorted({int(order) for order in np.linspace(low, high, 9)})
            found = values(candidates)
        middle, result = candidates[best], found[best]
        if middle <= FRACTIONAL:  # where whole orders are too coarse
            for width in (2.0, 0.2, 0.02):
                low = max(middle - width / 2, 1 + (middle - 1) / 100)
                near = 1 + np.geomspace(low - 1, middle + width / 2 - 1, 9)
                found = values(near)
                middle, result = near[int(np.argmin(found))], min(result, *found)
        return result

    def _epsilon(self, delta: float) -> float:
        log_delta = math.log(delta)

        def bound(order, log_moment):
            rounding = 4 * UNIT * ((log_moment - log_delta + np.log(order)) / (order - 1) + 2 / order)
            if self.tail == "classical":
                return (log_moment - log_delta) / (order - 1) + rounding
            return (log_moment - log_delta - np.log(order)) / (order - 1) + np.log1p(-1 / order) + rounding

        return self._best(bound)

    def _delta(self, epsilon: float) -> float:
        def bound(order, log_moment):
            rounding = 4 * UNIT * (log_moment + (order - 1) * epsilon + np.log(order) + 2)
            log_delta = log_moment - (order - 1) * epsilon + rounding
            if self.tail == "classical":
                return log_delta
            return log_delta + (order - 1) * np.log1p(-1 / order) - np.log(order)

        return math.exp(min(0.0, self._best(bound))) * (1 + 4 * UNIT)


def exact_log_moment(parts: Parts, order):
    """log-moment of everything that has a closed form at every real order, rounded up."""
    total = order * (order - 1) / 2 * parts.squared_mu * (1 + 16 * UNIT)
    for epsilon, count in zip(parts.epsilons, parts.epsilon_counts, strict=True):
        total = total + count * pure_log_moment(order, epsilon)
    return total


def profile(event: Event, neighbours: Neighbours = "add-remove", tail: Tail = "renyi") -> Moments:
    return Moments(event, neighbours, tail)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove", tail: Tail = "renyi") -> float:
    return profile(event, neighbours, tail).epsilon(delta)
