"""The privacy profile of a release, delta as a function of epsilon, and all that follows from it."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from confide import validation
from confide.privacy.events import Event, Neighbours, Parts
from confide.validation import Refused

Status = Literal["exact", "upper bound", "approximate"]
LARGEST_MU = 1e30  # of everything that is exactly Gaussian
ROUNDING = 4e-15  # relative: of a product of many chances of survival
LOSS_GAPS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


def _check(parts: Parts) -> Parts:
    """What can be priced; beyond, numbers would overflow before anything was hidden."""
    for name, total in (("steps", parts.steps), ("pure releases", float(parts.epsilon_counts.sum()))):
        if not total <= validation.MOST:
            raise Refused(f"the event has {total:g} {name} in all: give at most {validation.MOST:g}")
    if not parts.squared_mu <= LARGEST_MU**2:
        raise Refused(
            f"the Gaussian releases of the event add up to mu = {math.sqrt(parts.squared_mu):g}, which hides nothing: "
            "add noise"
        )
    return parts


class Profile:
    """What one accountant makes of one event, for one neighbouring relation.

    A theory supplies `_epsilon` and `_delta` for the part of the event that cannot fail outright. The deltas of
    (epsilon, delta) releases are composed here, once for all theories: such a release is dominated by one that
    reveals everything with probability delta and is pure otherwise (Kairouz, Oh and Viswanath 2015).
    """

    status: Status = "upper bound"

    def __init__(self, event: Event, neighbours: Neighbours) -> None:
        self.event = event
        self.parts: Parts = _check(event.parts(neighbours))
        self.neighbours: Neighbours = neighbours

    def _epsilon(self, delta: float) -> float:
        raise TypeError(f"{type(self).__name__} is not an accountant")

    def _delta(self, epsilon: float) -> float:
        raise TypeError(f"{type(self).__name__} is not an accountant")

    def _rough_delta(self, epsilon: float) -> float:
        """An upper bound on `_delta` that may be cheaper, for curves with many points."""
        return min(1.0, max(0.0, self._delta(epsilon)))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that this theory certifies at `delta`; infinite where it certifies none."""
        delta = validation.probability(zero=True, delta=delta)
        if delta == 0:
            if self.parts.needs_delta:
                raise Refused("delta = 0 has no finite epsilon with Gaussian noise: give delta in (0, 1), such as 1e-6")
            return math.fsum(self.parts.epsilons * self.parts.epsilon_counts)
        room = delta - self.parts.failure * (1 + ROUNDING)
        if room <= 0:
            raise Refused(
                f"delta = {delta:g} does not cover the failure probability {self.parts.failure:g} "
                "of the releases in the event: ask for a larger delta"
            )
        return max(0.0, self._epsilon(room / (1 - self.parts.failure)))

    def delta(self, epsilon: float) -> float:
        """The smallest delta that this theory certifies at `epsilon`."""
        epsilon = validation.nonnegative(epsilon=epsilon)
        failure = self.parts.failure
        found = failure + (1 - failure) * min(1.0, max(0.0, self._delta(epsilon)))
        return min(1.0, found * (1 + ROUNDING))

    def loss(self, delta: float) -> float:
        """A privacy loss that is exceeded with probability at most `delta`, which epsilon(delta) is not.

        For t > 0, delta(e) = E (1 - e^(e - L))^+ is at least (1 - e^-t) P(L > e + t), so with e = epsilon at
        delta (1 - e^-t) the loss L exceeds e + t with probability at most delta. The best of a few t; infinite where
        delta hardly covers what may fail outright.
        """
        delta = validation.probability(delta=delta)
        shares = {t: -delta * math.expm1(-t) for t in LOSS_GAPS}
        covered = (t + self.epsilon(share) for t, share in shares.items() if share > self.parts.failure)
        return min(covered, default=math.inf)

    def advantage(self) -> float:
        """True minus false positive rate of the best membership attack: the total variation distance."""
        return self.delta(0.0)

    def attack_success(self) -> float:
        """Share of right guesses of the best attacker when member and non-member are equally likely."""
        return (1 + self.advantage()) / 2

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """(epsilon, delta) at some points that tell the whole curve well; every one of them holds."""
        failure = self.parts.failure
        largest = self.epsilon(max(1e-9, 2 * failure)) if failure < 0.5 else 1.0
        epsilons = np.concatenate([[0.0], np.geomspace(1e-2, 1.0, 47) * max(min(largest, 700.0), 1e-6)])
        return epsilons, np.array([min(1.0, failure + (1 - failure) * self._rough_delta(e)) for e in epsilons])

    def trade_off(self, false_positive_rates: Any) -> np.ndarray:
        """Lower bound on the false negative rate of any attack with the given false positive rates.

        f(a) >= max(1 - delta(e) - e^e a, e^-e (1 - delta(e) - a)) for every epsilon e (Dong, Roth and Su 2022).
        """
        try:
            rates = np.atleast_1d(np.asarray(false_positive_rates, dtype=np.float64))
        except (TypeError, ValueError):
            raise Refused("false_positive_rates are not numbers: give numbers in [0, 1]") from None
        if not np.all((rates >= 0) & (rates <= 1)):
            raise Refused("false_positive_rates are out of range: give numbers in [0, 1]")
        epsilons, deltas = self.points()
        room = 1 - deltas[:, None] - np.exp(epsilons)[:, None] * rates
        mirrored = np.exp(-epsilons)[:, None] * (1 - deltas[:, None] - rates)
        return np.maximum(0.0, np.maximum(room, mirrored).max(axis=0))
