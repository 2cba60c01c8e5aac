"""Gaussian differential privacy (Dong, Roth and Su 2022): exact where everything released is Gaussian.

mu-GDP: no harder to attack than telling N(0, 1) from N(mu, 1). Composition adds squares, also when each release is
chosen after seeing the ones before. Full-batch Gaussian steps and one posterior sample are exactly GDP. A pure-epsilon
release is mu-GDP with mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)): the trade-off curve of N(mu, 1) is convex and meets
the two segments of randomised response at their ends. Poisson-subsampled steps are only nearly GDP: the central limit
value mu^2 = sum q^2 (e^(1/sigma^2) - 1) (Bu et al. 2020) is **approximate**, may lie below the truth, and is never
accepted for a guarantee.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from confide import validation
from confide.privacy.accountants.numerics import root
from confide.privacy.accountants.profiles import Profile
from confide.privacy.events import SENSITIVITY, Event, Neighbours
from confide.privacy.significant_digits import FINE_DIGITS, round_digits


def delta_of_mu(mu: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)."""
    return math.exp(min(0.0, _log_delta(validation.positive(mu=mu), epsilon)))


def _log_delta(mu: float, epsilon: float) -> float:
    """log delta, rounded up: the two terms nearly cancel for small mu, so their rounding errors are added.

    An error of 4e-16 of mu itself, a root of a sum of squares, is among them.
    """
    log_first = float(log_ndtr(-epsilon / mu + mu / 2))
    log_second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    slope = abs(epsilon / mu) + mu  # of log_ndtr, whose argument is itself rounded
    rounding = 1e-15 * (2 + abs(log_first) + abs(log_second) + epsilon + slope**2)
    gap = -math.expm1(min(0.0, log_second - log_first) - rounding)
    return log_first + rounding + math.log(gap)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at delta.

    >>> round(epsilon_of_mu(0.26805, 1e-5), 3)
    1.0
    """
    return _epsilon_of_mu(validation.positive(mu=mu), validation.probability(delta=delta))


def _epsilon_of_mu(mu: float, delta: float) -> float:
    target = math.log(delta)
    if _log_delta(mu, 0.0) <= target:
        return 0.0
    high = mu * (mu / 2 + math.sqrt(2 * -target) + 1)
    while _log_delta(mu, high) > target:
        high *= 2
    return root(lambda e: _log_delta(mu, e) - target, 0.0, high) * (1 + 1e-12)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """The largest mu whose GDP is (epsilon, delta)-DP, rounded down to ten digits.

    >>> round(mu_of_epsilon(1.0, 1e-5), 5)
    0.26805
    """
    epsilon = validation.positive(epsilon=epsilon)
    target = math.log(validation.probability(delta=delta))
    high = 1.0
    while _log_delta(high, epsilon) < target:
        high *= 2
    low = high
    while _log_delta(low, epsilon) > target:
        low /= 2
    found = root(lambda m: _log_delta(m, epsilon) - target, low, high) * (1 - 2e-12)  # twice what rounding may raise
    return round_digits(found, "down", FINE_DIGITS)


class GDP(Profile):
    def __init__(self, event: Event, neighbours: Neighbours) -> None:
        super().__init__(event, neighbours)
        sigma, q = self.parts.noise_multipliers, self.parts.sampling_probabilities
        with np.errstate(over="ignore"):
            limit = self.parts.counts @ (q**2 * np.expm1((SENSITIVITY[neighbours] / sigma) ** 2))
        pure = -2 * ndtri_exp(-np.logaddexp(0.0, self.parts.epsilons))  # Phi^-1 of the smaller tail
        squared = self.parts.squared_mu + float(limit) + float(self.parts.epsilon_counts @ pure**2)
        self.mu = math.sqrt(squared)
        if sigma.size:
            self.status = "approximate"
        elif not self.parts.epsilons.size:
            self.status = "exact"

    def _epsilon(self, delta: float) -> float:
        if not math.isfinite(self.mu):
            return math.inf
        return _epsilon_of_mu(self.mu, delta) if self.mu else 0.0

    def _delta(self, epsilon: float) -> float:
        if not math.isfinite(self.mu):
            return 1.0
        return math.exp(min(0.0, _log_delta(self.mu, epsilon))) if self.mu else 0.0


def profile(event: Event, neighbours: Neighbours = "add-remove") -> GDP:
    return GDP(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
