r"""What many guesses about one run prove: tests of a trade-off curve, and of (epsilon, delta).

**The game.** m canaries, each in the data with probability 1/2, independently of everything. From whatever the run
releases an attacker guesses r of them (r fixed beforehand, which of them he chooses freely) and W guesses are right.

**If the run is f-DP** (Dong, Roth and Su 2022), P(A) <= F(Q(A)) with F = 1 - f, concave, for every event A and
neighbours P, Q. Take a set T of numbers and one canary j. Given all others, let A be the outputs for which j is guessed
to be as it is and the number of right guesses among the others is i - 1 with i in T. With j flipped, A is the event
that j is guessed wrongly and W = i - 1. Averaged over j and over who is in (F is concave), with p_i = P(W = i),

    sum_{i in T} (i / m) p_i  <=  F( sum_{i in T} ((r - i + 1) / m) p_{i-1} ).

(Mahloujifar, Melis and Chaudhuri 2024 have this and the recursion below; this derivation and the next are ours.)

**How likely W >= c can be.** For T = {i, i + 1, ...} write R_i for the sum of (l/m) p_l over l >= i, and H_i for that
of ((r-l)/m) p_l; then H_{i-1} >= g(R_i), g the inverse of F. Suppose P(W >= c) = t. The least total probability that
this needs has all of t at c: other ways have more R_c and less H_c, and every continuation that does for them does for
this one. Going down from c, each p_{i-1} is the least that the next constraint asks for: any more of it would serve
better one place lower, where it adds less to R and more to H. If the total exceeds 1, P(W >= c) < t. So the largest t
whose total is at most 1 is a p-value, and it is exact for these constraints.

**If the run is (epsilon, delta)-DP**, the same with F(x) = min(e^epsilon x + delta, 1 - e^-epsilon (1 - delta - x)); or
(Steinke, Nasr and Jagielski 2023, Theorem 5.2), with b(v) = P(Binomial(r, e^epsilon / (1 + e^epsilon)) >= v),

    P(W >= v) <= b(v) + 2 m delta max_i (b(v - i) - b(v)) / i.

Both bound the same probability, so the smaller of the two does. The second is false where it says more than 7/8: with
m = r = 4, epsilon = 0 and delta = 0.05 there is a mechanism with P(W >= 1) = 0.984, and it says 0.963. A linear program
over all mechanisms finds no such case below that, so it is used below 1/2 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

Inverse = Callable[[np.ndarray], np.ndarray]  # g(y): the least false positive rate at a true positive rate of y
POINTS = 33  # parameters tried at once
ROUNDS = 4  # each makes the interval 32 times smaller
HALVINGS = 40


class Guesses(NamedTuple):
    canaries: int
    made: int
    right: int


def gaussian(mu: np.ndarray | float) -> Inverse:
    """Of mu-Gaussian differential privacy."""
    return lambda y: special.ndtr(special.ndtri(np.minimum(y, 1.0)) - mu)


def approximate(epsilon: np.ndarray | float, delta: float) -> Inverse:
    """Of (epsilon, delta)-differential privacy."""
    factor = np.exp(epsilon)
    return lambda y: np.maximum(np.maximum((y - delta) / factor, 1 - delta - factor * (1 - y)), 0.0)


def envelope(epsilons: np.ndarray, deltas: np.ndarray) -> Inverse:
    """Of whatever is (epsilon, delta)-DP at all these points at once; any set of them is a valid claim."""
    factors = np.exp(epsilons)

    def inverse(y: np.ndarray) -> np.ndarray:
        rate = np.asarray(y)[..., None]
        lines = np.maximum((rate - deltas) / factors, 1 - deltas - factors * (1 - rate))
        return np.maximum(lines.max(axis=-1), 0.0)

    return inverse


def excessive(inverse: Inverse, level: np.ndarray | float, guesses: Guesses) -> np.ndarray:
    """Whether P(W >= right) = level would need a total probability above 1; elementwise."""
    m, r, c = guesses
    level = np.atleast_1d(np.asarray(level, np.float64))
    right, wrong = level * (c / m), level * ((r - c) / m)
    total = r / m
    right, wrong = np.broadcast_arrays(right, wrong, inverse(right))[:2]
    for i in range(c, 0, -1):
        needed = np.maximum(inverse(right), wrong)
        right = np.minimum(right + (i - 1) / (r - i + 1) * (needed - wrong), 2.0)  # beyond 1 it is decided
        wrong = needed
        if i % 32 == 0 and np.all(right + wrong > total):
            break
    return right + wrong > total * (1 + 1e-12)


def p_value(inverse: Inverse, guesses: Guesses) -> np.ndarray:
    """The most likely that so many right guesses can be; one for each element of the curve's parameter."""
    size = inverse(np.ones(1)).shape
    low, high = np.full(size, -60.0), np.zeros(size)  # logarithms; below e^-60 nobody asks
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_much = excessive(inverse, np.exp(middle), guesses)
        low, high = np.where(too_much, low, middle), np.where(too_much, middle, high)
    return np.exp(high)


def binomial_p_value(epsilon: np.ndarray | float, delta: np.ndarray | float, guesses: Guesses) -> np.ndarray:
    """Steinke, Nasr and Jagielski's bound on P(W >= right), elementwise."""
    m, r, v = guesses
    epsilon = np.atleast_1d(np.asarray(epsilon, np.float64))[:, None]
    if v == 0:
        return np.ones(len(epsilon))
    tail = special.bdtrc(v - 1, r, special.expit(epsilon[:, 0]))
    if np.all(np.asarray(delta) == 0):
        return tail
    fewer = np.arange(v - 1, -1, -1)
    ways = special.gammaln(r + 1) - special.gammaln(fewer + 1) - special.gammaln(r - fewer + 1)
    chances = np.exp(ways - fewer * np.logaddexp(0, -epsilon) - (r - fewer) * np.logaddexp(0, epsilon))
    below = np.cumsum(chances, axis=1) / np.arange(1, v + 1)
    found = tail + 2 * m * delta * below.max(axis=1)
    return np.where(found < 0.5, found, 1.0)


def largest(rejected: Callable[[np.ndarray], np.ndarray], upper: float = 8.0) -> float:
    """The largest parameter that is rejected, from below; 0 where none is. Whatever is below a rejected one is, too."""
    if not rejected(np.zeros(1))[0]:
        return 0.0
    while rejected(np.array([upper]))[0] and upper < 500:
        upper *= 2
    low, high = 0.0, upper
    for _ in range(ROUNDS):
        tried = np.linspace(low, high, POINTS)
        accepted = np.flatnonzero(~rejected(tried))
        if not accepted.size:
            return high
        if accepted[0] == 0:
            return low
        low, high = float(tried[accepted[0] - 1]), float(tried[accepted[0]])
    return low


def largest_mu(guesses: Guesses, level: float) -> float:
    """The largest mu whose Gaussian differential privacy the guesses refute."""
    return largest(lambda mu: excessive(gaussian(mu), level, guesses))


def largest_epsilon(guesses: Guesses, delta: float, level: float) -> float:
    """The largest epsilon whose (epsilon, delta)-differential privacy the guesses refute."""

    def rejected(epsilons: np.ndarray) -> np.ndarray:
        return excessive(approximate(epsilons, delta), level, guesses) | (
            binomial_p_value(epsilons, delta, guesses) <= level
        )

    return largest(rejected, 16.0)
