"""Advanced composition, the accounting of wang2015: kept to compare with, never the tightest.

Theorem 2: a Gaussian step of noise multiplier sigma is (e, d)-DP for e = sqrt(2 log(1.25/d)) / sigma, if e < 1.
Lemma 4: on a random share q of the records it is (2 q e, q d)-DP, if e < 1. Lemma 3: k steps of (e, d) are
(sqrt(2 k log(1/d')) e + k e (exp(e) - 1), k d + d')-DP; with unequal steps, k e^2 and k e (exp(e) - 1) become sums.
Half of delta pays for d', half is shared equally by the Gaussian steps. Where a condition fails, epsilon is infinite:
the theorems then promise nothing. Exactly Gaussian releases are merged into one first.
"""

from __future__ import annotations

import math

import numpy as np

from confide.privacy.accountants.profiles import Profile
from confide.privacy.events import SENSITIVITY, Event, Neighbours


class AdvancedComposition(Profile):
    def __init__(self, event: Event, neighbours: Neighbours) -> None:
        super().__init__(event, neighbours)
        parts, merged = self.parts, int(self.parts.squared_mu > 0)
        sigma = [
            parts.noise_multipliers / SENSITIVITY[neighbours],
            np.full(merged, max(parts.squared_mu, 1e-300) ** -0.5),
        ]
        self._sigma = np.concatenate(sigma)
        self._q = np.concatenate([parts.sampling_probabilities, np.ones(merged)])
        self._counts = np.concatenate([parts.counts, np.ones(merged)])

    def _composed(self, step_delta: float, slack: float) -> float:
        """epsilon when the Gaussian steps share `step_delta`, with `slack` for Lemma 3 (none: they simply add up)."""
        with np.errstate(divide="ignore", over="ignore"):
            own = np.minimum(1.0, step_delta / (self._counts.sum() * self._q)) if self._counts.size else self._q
            each = np.sqrt(2 * np.log(1.25 / own)) / self._sigma  # wang2015, Theorem 2
        if np.any(each >= 1):
            return math.inf
        each = np.where(self._q < 1, 2 * self._q * each, each)  # wang2015, Lemma 4
        each = np.concatenate([each, self.parts.epsilons])
        counts = np.concatenate([self._counts, self.parts.epsilon_counts])
        total = float(counts @ each)
        if slack > 0 and each.max(initial=0.0) < 700:  # wang2015, Lemma 3
            spread = math.sqrt(2 * math.log(1 / slack) * float(counts @ each**2))
            total = min(total, spread + float(counts @ (each * np.expm1(each))))
        return total * (1 + 1e-12)  # what the sums, and the deltas that were shared out, may have lost

    def _epsilon(self, delta: float) -> float:
        if not self._counts.size:
            return self._composed(0.0, delta)
        return min(self._composed(delta / 2, delta / 2), self._composed(delta, 0.0))

    def _delta(self, epsilon: float) -> float:
        low, high = -700.0, 0.0  # log delta: epsilon falls as delta grows
        if self._epsilon(math.exp(low)) <= epsilon:
            return 0.0 if not self._counts.size and self._composed(0.0, 0.0) <= epsilon else math.exp(low)
        if self._epsilon(1 - 1e-12) > epsilon:
            return 1.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if self._epsilon(math.exp(middle)) <= epsilon else (middle, high)
        return math.exp(high)


def profile(event: Event, neighbours: Neighbours = "add-remove") -> AdvancedComposition:
    return AdvancedComposition(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
