"""From a budget to the filter of a run that every record pays for by itself, and the steps that go with it.

With `stretch` k the noise is such that a record whose every gradient is as long as the clip would spend k times the
budget: it leaves after about a k-th of the run, and a record whose gradients are a tenth of the clip stays to its end
unless k is above 100. The filter makes that safe whatever k is; k is public.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from confide import accounting, events
from confide import noise as noises
from confide.accountants import individual, moments
from confide.accountants.individual import Filter
from confide.accounts import Individual
from confide.budget import Budget
from confide.checks import Refused
from confide.events import SENSITIVITY, Event, GaussianRelease
from confide.events.filtered import affordable
from confide.filters import Seen
from confide.kernel import Setting

ROUNDING = 1e-9  # relative: of sums of costs in double precision
MARGIN = 1e-9  # relative: of ratios, so that none is beyond the table
ORDERS = range(2, 129)
LEFT = 1 - 1e-6  # of delta goes to the filter, where nothing else needs any


class Binning(NamedTuple):
    """How a histogram of what records spent is made, once they have."""

    filter: Filter
    budget: Budget
    noise: float  # standard deviation on every count
    delta: float  # at which costs are epsilons
    beside: float  # what the histogram itself costs every record

    def released(self, seen: Seen | None, source: Any) -> individual.Histogram:
        """The counts with noise, of what records have spent in all chains."""
        assert seen is not None
        assert seen.spent is not None
        counts = individual.counted(seen.spent.sum(axis=0) + self.beside, self.filter, self.budget, self.delta)
        noisy = noises.counted(counts, self.noise, noises.separate(source, "histogram"))
        return individual.Histogram(tuple(individual.edges(self.budget).tolist()), tuple(noisy.tolist()), self.noise)


class Share(NamedTuple):
    """What a budget pays for: the limit of every record in each chain, steps of that length, and a histogram."""

    limit: float
    order: int | None
    delta: float
    factor: float  # that unit step sizes are multiplied by
    histogram_mu: float  # 0: none


class Filtered(NamedTuple):
    filter: Filter
    event: Event  # of all chains, with the histogram
    histogram: Binning | None


def share(settings: Individual, budget: Budget, multipliers: np.ndarray, q: float, chains: int) -> Share:
    """For noise multipliers of unit step sizes; `budget` is what is left for steps and histogram."""
    mu = accounting.gdp_mu(budget.epsilon, budget.delta)
    histogram_mu = mu * math.sqrt(settings.histogram)
    if q == 1:
        scale = SENSITIVITY[budget.neighbours]
        limit = (mu / scale) ** 2 * (1 - settings.histogram) / chains * (1 - ROUNDING)
        return Share(limit, None, budget.delta, settings.stretch * limit / math.fsum(multipliers**-2.0), histogram_mu)
    beside = _histogram_event(histogram_mu, budget)
    order, limit, factor, delta = _subsampled(settings, budget, multipliers, q, chains, beside)
    return Share(limit, order, delta, factor, histogram_mu)


def filtered(found: Share, budget: Budget, setting: Setting, noise: np.ndarray, chains: int) -> Filtered:
    """The filter of a run whose steps add noise of these standard deviations, and the event of it all."""
    q = setting.sampling_probability
    grid = math.sqrt(setting.dimension) / (2 * noises.GRID) if setting.secure else 0.0
    ratios = (setting.clip / noise + grid) * (1 + MARGIN)
    filter = Filter(limit=found.limit, order=found.order, sampling_probability=q, largest=float(ratios.max()))
    worst = math.fsum(filter.costs(ratios)) * (1 + ROUNDING)
    filter = replace(filter, limit=min(found.limit, worst))  # where nobody can spend it all, nobody is said to
    event = filter.event(noise.size, found.delta)
    event = event if chains == 1 else events.compose(event, repeats=chains)
    beside = _histogram_event(found.histogram_mu, budget)
    if beside is None:
        return Filtered(filter, event, None)
    spread = individual.RELEASED_CHANGE[budget.neighbours] / found.histogram_mu
    spread *= 1 + noises.COUNT_ROUNDING + 2 * spread / noises.GRID
    own = (found.histogram_mu / SENSITIVITY[budget.neighbours]) ** 2 if found.order is None else 0.0
    return Filtered(filter, events.compose(event, beside), Binning(filter, budget, spread, found.delta, own))


def _histogram_event(mu: float, budget: Budget) -> Event | None:
    return GaussianRelease(mu=mu, neighbours=budget.neighbours) if mu else None


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
