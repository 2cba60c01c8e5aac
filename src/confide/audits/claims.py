r"""What is claimed, the tests that can refute it, and the lower bound on epsilon at the level of these tests.

**The hypotheses.** The claim is a privacy profile: points (e_i, d_i), all of which it states at once, and the stated
(epsilon, delta). The hypothesis H(e) is a profile of the same form that has epsilon = e at the stated delta: every
point (e_i, d_i) lies on the curve of one Gaussian mechanism, mu_i-GDP, and H(e) has the point of (r mu_i)-GDP at e_i in
its place, with r = mu(e, delta) / mu(epsilon, delta). Noise that is smaller by a factor f makes every mu of a Gaussian
release larger by 1 / f, so that H(e) is what is priced with r times less noise: exactly for Gaussian releases, nearly
so for others. What matters is that H(epsilon) is the claim itself, and that H(e) implies H(e') for e' > e.

Where the deltas of points are zero, of pure epsilon-DP, there is no such mu, and their epsilons are multiplied.

**The bound.** J tests share the level a of the verdict, a / J each (Bonferroni); some of them are tests of the claim.
The claim is refuted where one of these rejects H(epsilon) at a / J. The lower bound is the largest e such that one of
them rejects H(e) at a / J. If H(e0) is true, the bound exceeds e0 only if H(e0) is rejected (H(e) for e > e0 is implied
by H(e0), and its rejection regions are smaller), which happens with probability a at most, for all tests at once. So
the bound has the confidence 1 - a, the same as the verdict, and

    bound > claimed epsilon   if and only if   the claim is refuted.

The search looks above the claim where the verdict refutes it and below where it does not, so that no rounding can make
them differ. The general bound is the same with H(e) = "(e, delta)-DP, whatever else", which H(e) implies, so that it is
never above the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from scipy import special, stats

from confide.audits import bounds, one_run
from confide.audits.one_run import Guesses
from confide.privacy import pricing

Points = tuple[np.ndarray, np.ndarray]  # epsilons and deltas, all of which hold

STEPS = 2000  # of the integral
PURE = 1e-12  # deltas below which a point counts as one of pure epsilon-DP
LARGEST = 500.0  # an epsilon above which no bound is sought
HALVINGS = 20


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A privacy profile, with profiles of the same form that have another epsilon at `delta`."""

    epsilon: float
    delta: float
    profile: Points

    @property
    def points(self) -> Points:
        """The profile with the stated (epsilon, delta)."""
        return np.append(self.profile[0], self.epsilon), np.append(self.profile[1], self.delta)

    @cached_property
    def _mus(self) -> np.ndarray:
        """The Gaussian mechanism of each point; NaN for points of pure epsilon-DP."""
        return np.array([_mu(e, d) for e, d in zip(*self.profile, strict=True)])

    def at(self, epsilon: float) -> Points:
        """The points of H(epsilon)."""
        if epsilon == self.epsilon:
            return self.points
        ratio = (
            epsilon / self.epsilon if self.delta < PURE else _mu(epsilon, self.delta) / _mu(self.epsilon, self.delta)
        )
        epsilons, deltas = (part.copy() for part in self.profile)
        pure = np.isnan(self._mus)
        epsilons[pure] *= ratio
        deltas[~pure] = gdp_deltas(ratio * self._mus[~pure], epsilons[~pure])
        return np.append(epsilons, epsilon), np.append(deltas, self.delta)

    def at_delta_alone(self, epsilon: float) -> Points:
        """The single point (epsilon, delta), whatever the mechanism."""
        return np.array([epsilon]), np.array([self.delta])


def _mu(epsilon: float, delta: float) -> float:
    if delta < PURE:
        return math.nan
    if delta >= 1:
        return math.inf
    return pricing.gdp_mu(epsilon, delta) if epsilon > 0 else 2 * float(special.ndtri((1 + delta) / 2))


def gdp_deltas(mus: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """delta(epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2), elementwise."""
    deltas = np.ones(len(mus))
    finite = np.isfinite(mus)
    mu, e = np.maximum(mus[finite], 1e-300), epsilons[finite]
    first, second = special.ndtr(-e / mu + mu / 2), np.exp(e + special.log_ndtr(-e / mu - mu / 2))
    deltas[finite] = np.clip(first - second, 0.0, 1.0)
    return deltas


class ClaimTest(Protocol):
    """A test that can refute points (epsilon, delta)."""

    def p_value(self, points: Points) -> float: ...

    def rejects(self, points: Points, level: float) -> bool: ...


class GuessTest(NamedTuple):
    """As many right guesses as there were (`confide.audits.one_run`): each number of guesses has its share of the
    level."""

    guesses: tuple[tuple[Guesses, float], ...]

    @classmethod
    def of_scores(cls, scores: np.ndarray, inside: np.ndarray) -> GuessTest:
        shares = bounds.numbers(len(scores))
        return cls(tuple((bounds.guess(scores, inside, made), share) for made, share in shares.items()))

    @classmethod
    def typical(cls, canaries: int, mu: float) -> GuessTest:
        """What a mu-GDP mechanism shows in the middle."""
        shares = bounds.numbers(canaries)
        return cls(tuple((_typical_guesses(canaries, made, mu), share) for made, share in shares.items()))

    def p_value(self, points: Points) -> float:
        claim = one_run.envelope(*points)
        return min(1.0, *(_one_p_value(claim, points, guesses) / share for guesses, share in self.guesses))

    def rejects(self, points: Points, level: float) -> bool:
        claim = one_run.envelope(*points)
        return any(
            bool(one_run.excessive(claim, share * level, guesses)[0]) or _binomial(points, guesses) <= share * level
            for guesses, share in self.guesses
        )


def _one_p_value(claim: one_run.Inverse, points: Points, guesses: Guesses) -> float:
    return min(float(one_run.p_value(claim, guesses)[0]), _binomial(points, guesses))


def _binomial(points: Points, guesses: Guesses) -> float:
    """By each point for itself."""
    return float(np.min(one_run.binomial_p_value(*points, guesses)))


def _typical_guesses(canaries: int, made: int, mu: float) -> Guesses:
    from scipy import optimize

    def surplus(threshold: float) -> float:
        return float(special.ndtr(-threshold) + special.ndtr(mu - threshold)) / 2 - made / canaries / 2

    if made >= canaries:
        right = float(special.ndtr(mu / 2))
    else:
        threshold = float(optimize.brentq(surplus, -10.0, 10.0 + mu))  # type: ignore[arg-type]
        right = float(special.ndtr(mu - threshold)) / (made / canaries)
    return Guesses(canaries, made, math.floor(made * min(right, 1.0)))


class Pairs(NamedTuple):
    """Pairs of a canary that is in and one that is out, and in how many the first scores higher; ties count as not."""

    number: int
    won: int

    @classmethod
    def among(cls, inside: np.ndarray, outside: np.ndarray) -> Pairs:
        """Of scores in the order in which they were planted or run, which says nothing of them."""
        number = min(len(inside), len(outside))
        return cls(number, int(np.sum(inside[:number] > outside[:number])))

    @classmethod
    def typical(cls, number: int, points: Points) -> Pairs:
        return cls(number, math.floor(number * area(*points)))

    def p_value(self, points: Points) -> float:
        return float(stats.binom.sf(self.won - 1, self.number, area(*points)))

    def rejects(self, points: Points, level: float) -> bool:
        return self.p_value(points) <= level


def area(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """The largest area under a receiver operating curve that all these points allow, from above.

    The curve is the least of lines. The integral of each over an interval is its value in the middle times the width,
    and the integral of the least of them is at most the least of their integrals.
    """
    rates = (np.arange(STEPS)[:, None] + 0.5) / STEPS
    factors = np.exp(epsilons)
    lines = np.minimum(deltas + factors * rates, 1 - (1 - deltas - rates) / factors)
    return float(np.mean(np.minimum(lines.min(axis=1), 1.0)))


class LowerBounds(NamedTuple):
    """Lower bounds on epsilon that hold together, with the confidence of the verdict."""

    form: float  # if the mechanism has the form of what was priced
    general: float  # whatever the mechanism


def lower_bounds(claim: Claim, tests: Iterable[ClaimTest], level: float, refuted: bool) -> LowerBounds:
    """The largest epsilon that one of the tests rejects at `level`, on the side of the claim that the verdict has."""
    every = tuple(tests)

    def rejected(points: Callable[[float], Points]) -> Callable[[float], bool]:
        return lambda epsilon: any(test.rejects(points(epsilon), level) for test in every)

    form = largest(rejected(claim.at), claim.epsilon, refuted)
    return LowerBounds(form, largest(rejected(claim.at_delta_alone), form, refuted=False))


def largest(rejected: Callable[[float], bool], claimed: float, refuted: bool) -> float:
    """Above `claimed` where it is refuted, else at most as much; the rejected ones are those below the result."""
    low, high = (claimed, 2 * claimed or 1.0) if refuted else (0.0, claimed)
    if not refuted and not rejected(0.0):
        return 0.0
    if not refuted and rejected(claimed):
        return claimed
    while refuted and high < LARGEST and rejected(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return max(low, math.nextafter(claimed, math.inf)) if refuted else low


def p_values(tests: Mapping[str, ClaimTest], points: Points) -> dict[str, float]:
    return {name: test.p_value(points) for name, test in tests.items()}
