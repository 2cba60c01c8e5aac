"""From a budget to the filter of a run that every record pays for by itself, and the steps that go with it.

With `stretch` k the noise is such that a record whose every gradient is as long as the clip would spend k times the
budget: it leaves after about a k-th of the run, and a record whose gradients are a tenth of the clip stays to its end
unless k is above 100. The filter makes that safe whatever k is; k is public.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from confide import accounting, events
from confide.accountants import individual, moments
from confide.accountants.individual import Filter
from confide.accounts import Individual
from confide.budget import Budget
from confide.checks import Refused
from confide.events import SENSITIVITY, Event, GaussianRelease
from confide.events.filtered import affordable
from confide.kernel import Setting

ROUNDING = 1e-9  # relative: of sums of costs in double precision
ORDERS = range(2, 129)
LEFT = 1 - 1e-6  # of delta goes to the filter, where nothing else needs any


class Plan(NamedTuple):
    filter: Filter
    factor: float  # that the step sizes are multiplied by
    event: Event  # of all chains, with the histogram
    histogram_noise: float | None


def planned(
    settings: Individual, budget: Budget, setting: Setting, multipliers: np.ndarray, chains: int, fixed: bool
) -> Plan:
    """For noise multipliers of unit step sizes; `budget` is what is left for steps and histogram."""
    steps, q = multipliers.size, setting.sampling_probability
    mu = accounting.gdp_mu(budget.epsilon, budget.delta)
    noise, beside = None, None
    if settings.histogram:
        share = mu * math.sqrt(settings.histogram)
        noise = individual.RELEASED_CHANGE[budget.neighbours] / share
        beside = GaussianRelease(mu=share, neighbours=budget.neighbours)
    if q == 1:
        limit = (mu / SENSITIVITY[budget.neighbours]) ** 2 * (1 - settings.histogram) / chains * (1 - ROUNDING)
        factor = settings.stretch * limit / math.fsum(multipliers**-2.0)
        order, delta = None, 0.0
    else:
        order, limit, factor, delta = _subsampled(settings, budget, multipliers, q, chains, beside)
    factor = 1.0 if fixed else factor
    largest = math.sqrt(factor) / float(np.min(multipliers)) * (1 + 1e-3)  # with what the grid of secure noise adds
    filter = Filter(limit=limit, order=order, sampling_probability=q, largest=largest)
    event = filter.event(steps, delta)
    event = event if chains == 1 else events.compose(event, repeats=chains)
    return Plan(filter, factor, event if beside is None else events.compose(event, beside), noise)


def _subsampled(
    settings: Individual, budget: Budget, multipliers: np.ndarray, q: float, chains: int, beside: Event | None
) -> tuple[int, float, float, float]:
    """(order, limit, factor, delta): the order with which the steps may be longest."""
    if budget.neighbours != "add-remove":
        raise Refused(
            "individual accounts of Poisson batches are for add-remove neighbours: take full batches, or add-remove"
        )
    if chains > 1:
        raise Refused("individual accounts of Poisson batches are for one chain: take full batches, or one chain")
    delta = budget.delta * (LEFT if beside is None else 0.5)
    epsilon = budget.epsilon if beside is None else _left(budget, delta, beside)

    def best(factor: float) -> tuple[float, int]:
        """The most that is left of a limit after the stretched run, over the limit, and its order."""
        profile = moments.profile(events.gaussian(multipliers / math.sqrt(factor), q))
        found = [
            (_room(order, epsilon, delta, profile.log_moment(order) / settings.stretch), order) for order in ORDERS
        ]
        return max(found)

    low, high = 1e-12, 1e-12
    while best(high)[0] > 0:
        low, high = high, high * 16
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if best(middle)[0] > 0 else (low, middle)
    order = best(low)[1]
    return order, affordable(order, epsilon, delta) * (1 - ROUNDING), low, delta


def _room(order: int, epsilon: float, delta: float, spent: float) -> float:
    limit = affordable(order, epsilon, delta)
    return 1 - spent / limit if limit > 0 else -math.inf


def _left(budget: Budget, delta: float, beside: Event) -> float:
    """The epsilon of a filter at delta that the budget pays for beside another release."""
    low, high = 0.0, budget.epsilon
    while high - low > 1e-4 * budget.epsilon:
        middle = (low + high) / 2
        together = events.compose(events.Release(epsilon=middle, delta=delta), beside)
        spent = accounting.certified_profile(together, budget.neighbours, "pld").epsilon(budget.delta)
        low, high = (middle, high) if spent <= budget.epsilon else (low, middle)
    if low == 0:
        raise Refused("the histogram takes the whole budget: give it a smaller share")
    return low
