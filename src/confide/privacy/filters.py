"""What share of a budget a release takes: three ways to add up that stay valid when you look before you spend again.

A share is a number that adds up, and the sum stays valid when every charge is chosen after seeing all outputs before it
(a privacy filter). Which of the three is used is fixed when a dataset is entered:

- `basic`: the share f at which the event is (f epsilon, f delta)-DP, priced tightly by itself; epsilons and deltas add
  up (Rogers, Roth, Ullman and Vadhan 2016). What is left is again a budget. Best for a few large runs; the default.
- `renyi`: the Renyi divergence at one order, fixed in advance from the budget, over the largest one that keeps the
  budget (Feldman and Zrnic 2021). Best for many small runs.
- `gdp`: the square of mu over the largest one, for releases that are exactly Gaussian or pure (Smith and Thakurta 2022;
  Koskela et al. 2023).

Privacy loss distributions of the whole history would be tighter still, but are not known to be valid for charges that
depend on earlier outputs, so they price each charge and never the sum.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from confide import validation
from confide.privacy import accountants
from confide.privacy.accountants import gdp, moments
from confide.privacy.accountants.numerics import root
from confide.privacy.accountants.profiles import Profile
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.validation import Refused

COMPOSITIONS = ("basic", "renyi", "gdp")
FAILURES = 0.01  # share of delta kept for outright failures where the rest of delta belongs to a tail bound


class Left(NamedTuple):
    """What a dataset has left.

    With `basic`, any further release of this (epsilon, delta) is accepted. With `renyi` and `gdp`, epsilon is that of
    the full-batch Gaussian release that would use up the rest, at the delta of the budget.
    """

    share: float  # of the budget, in 0..1
    epsilon: float
    delta: float


class Account(NamedTuple):
    """A dataset in the ledger: its budget, and how charges to it add up."""

    name: str
    budget: Budget
    composition: str

    @classmethod
    def checked(cls, name: Any, budget: Any, composition: Any) -> Account:
        """An account that a ledger can hold."""
        if not isinstance(name, str) or not name.strip():
            raise Refused(f"dataset = {name!r} is not a name: give a non-empty text")
        validation.instance(Budget, budget=budget)
        validation.one_of(COMPOSITIONS, composition=composition)
        if budget.delta == 0 and composition != "basic":
            raise Refused(f"composition = {composition!r} needs a delta above 0: use 'basic' for a pure budget")
        account = cls(name, budget, composition)
        if composition != "basic" and account.capacity()[1] <= 0:
            raise Refused(
                f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g} leaves no room for composition "
                f"{composition!r}: use 'basic', or a larger budget"
            )
        return account

    def capacity(self) -> tuple[int, float]:
        """The Renyi order (1 for `gdp`) and the largest sum of divergences (of squared mus) that keeps the budget."""
        epsilon, delta = self.budget.epsilon, (1 - FAILURES) * self.budget.delta
        if self.composition == "gdp":
            return 1, gdp.mu_of_epsilon(epsilon, delta) ** 2

        def room(order: int) -> float:  # Canonne, Kamath and Steinke 2020, solved for the divergence
            return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)

        # The order that admits the most full-batch Gaussian steps, whose divergence is proportional to the order.
        order = max(range(2, 10_000), key=lambda a: room(a) / a)
        return order, room(order)

    def share(self, event: Event) -> float:
        """What the event takes of the budget; above 1 if it does not fit even an untouched one."""
        parts = event.parts(self.budget.neighbours)
        if self.budget.delta == 0 and parts.needs_delta:
            raise Refused(
                f"dataset {self.name!r} has delta = 0, which no Gaussian release can keep: charge pure releases"
            )
        if self.composition == "basic":
            return _basic_share(accountants.profile(event, self.budget.neighbours), self.budget)
        order, capacity = self.capacity()
        if capacity <= 0:
            raise Refused(f"dataset {self.name!r} has a budget that composition {self.composition!r} cannot keep")
        if self.composition == "gdp":
            profile = gdp.profile(event, self.budget.neighbours)
            if profile.status == "approximate":
                raise Refused(
                    "event is subsampled, so only nearly Gaussian: enter the dataset with composition 'renyi'"
                )
            spent = profile.mu**2
        else:
            spent = moments.profile(event, self.budget.neighbours).log_moment(order) / (order - 1)
        return max(spent / capacity, parts.failure / (FAILURES * self.budget.delta), 1e-15)

    def left(self, share: float) -> Left:
        if self.composition == "basic":
            return Left(share, share * self.budget.epsilon, share * self.budget.delta)
        order, capacity = self.capacity()
        mu = math.sqrt(share * capacity * (1.0 if self.composition == "gdp" else 2 / order))
        return Left(share, gdp.epsilon_of_mu(mu, self.budget.delta) if mu > 0 else 0.0, self.budget.delta)


def _basic_share(profile: Profile, budget: Budget) -> float:
    """The least f at which the release is (f epsilon, f delta)-DP."""
    parts = profile.parts
    if budget.delta == 0 or (not parts.needs_delta and parts.epsilon_counts.sum() == 1):
        return profile.epsilon(0.0) / budget.epsilon
    failure = parts.failure / budget.delta
    if failure >= 1:
        return failure

    def needed(f: float) -> float:  # falls with f; the answer is where it meets f
        return min(profile.epsilon(f * budget.delta) / budget.epsilon, 1e9)

    low = max(needed(1.0), 1e-12, failure * (1 + 1e-9))
    if low > 1:
        return low
    high = min(1.0, needed(low))
    if high <= low:
        return low
    share = root(lambda f: needed(f) - f, low, high, 1e-12)
    return share if needed(share) <= share else min(high, share + 2e-12)
