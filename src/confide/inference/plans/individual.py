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

from confide.mechanism import noise as noises
from confide.mechanism.kernel import MechanismParameters
from confide.mechanism.oracle import Observations
from confide.privacy import events, pricing
from confide.privacy.accountants import individual, moments
from confide.privacy.accountants.individual import Filter
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY, Event, SpendingHistogram
from confide.privacy.events.individual import CHANGE, affordable
from confide.privacy.extra_accounts import Individual
from confide.privacy.significant_digits import round_digits
from confide.validation import Refused

ROUNDING = 1e-9  # relative: of sums of costs in double precision
COST_DIGITS = 10  # of what a record can spend: fewer would be more than the margins of the plan
MARGIN = 1e-9  # relative: of ratios, so that none is beyond the table
ORDERS = range(2, 129)
LEFT = 1 - 1e-6  # of delta goes to the filter of Poisson batches


class Binning(NamedTuple):
    """How a histogram of what records spent is made, once they have."""

    filter: Filter
    budget: Budget
    noise: float  # standard deviation on every count
    delta: float  # at which costs are epsilons
    beside: float  # what the histogram itself costs every record

    def release(self, observations: Observations | None, source: Any) -> individual.Histogram:
        """The counts with noise, of what records have spent in all chains."""
        assert observations is not None
        assert observations.spent is not None
        counts = individual.count_records(
            observations.spent.sum(axis=0) + self.beside, self.filter, self.budget, self.delta
        )
        noisy = noises.noisy_counts(counts, self.noise, noises.separate(source, "histogram"))
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


def _grid(parameters: MechanismParameters) -> float:
    """What rounding to the grid of the noise adds to the ratio of a norm to the noise."""
    return parameters.rounding.lost(parameters.coordinates)


def share(
    settings: Individual, budget: Budget, parameters: MechanismParameters, multipliers: np.ndarray, chains: int
) -> Share:
    """For noise multipliers of unit step sizes; `budget` is what is left for steps and histogram."""
    if parameters.sampling_probability < 1:
        return _subsampled_share(settings, budget, multipliers, parameters.sampling_probability, chains)
    mu = pricing.gdp_mu(budget.epsilon, budget.delta)
    share = mu / SENSITIVITY[budget.neighbours]
    limit = share * share * (1 - settings.histogram) / chains * (1 - ROUNDING)
    target, factor = settings.stretch * limit * (1 - 4 * ROUNDING), 1.0
    for _ in range(5):  # at once where nothing is added to the ratios
        factor *= target / math.fsum((math.sqrt(factor) / multipliers + _grid(parameters)) ** 2)
    return Share(limit, None, budget.delta, round_digits(factor, "down"), mu * math.sqrt(settings.histogram))


def make_filter(
    found: Share, stretch: float | None, budget: Budget, parameters: MechanismParameters, noise: np.ndarray, chains: int
) -> Filtered:
    """The filter of a run whose steps add noise of these standard deviations, and the event of it all.

    Where the steps were not planned for it, a `stretch` that they go beyond is refused.
    """
    q = parameters.sampling_probability
    ratios = (parameters.clip / noise + _grid(parameters)) * (1 + MARGIN)
    filter = Filter(limit=found.limit, order=found.order, sampling_probability=q, largest=float(ratios.max()))
    worst = round_digits(math.fsum(filter.costs(ratios)) * (1 + ROUNDING), "up", COST_DIGITS)
    if stretch is not None and worst > stretch * found.limit * (1 + 1e-6):
        raise Refused(
            f"with these step sizes the longest gradients would spend {worst / found.limit:.3g} times the budget: "
            "lower them, leave step_size out, or give as much stretch and have people left out"
        )
    # Where nobody can spend it all, nobody is said to, and nobody is left out.
    filter = replace(filter, limit=min(found.limit, worst), worst=worst if worst > found.limit else 0.0)
    event = filter.event(noise.size, found.delta)
    event = event if chains == 1 else events.compose(event, repeats=chains)
    if not found.histogram_mu:
        return Filtered(filter, event, None)
    counted = SpendingHistogram(noise=CHANGE[budget.neighbours] / found.histogram_mu)
    spread = noises.wide(counted.noise, 1.0, 1)  # each count that changes does so by 1
    own = (found.histogram_mu / SENSITIVITY[budget.neighbours]) ** 2
    return Filtered(filter, events.compose(event, counted), Binning(filter, budget, spread, found.delta, own))


def _subsampled_share(settings: Individual, budget: Budget, multipliers: np.ndarray, q: float, chains: int) -> Share:
    """With the order for which the steps may be longest."""
    if budget.neighbours != "add-remove":
        raise Refused(
            "individual accounts of Poisson batches are for add-remove neighbours: take full batches, or add-remove"
        )
    if chains > 1:
        raise Refused("individual accounts of Poisson batches are for one chain: take full batches, or one chain")
    if settings.histogram:
        raise Refused("a histogram of what records spent goes with full batches: leave batch_size or histogram out")
    epsilon, delta = budget.epsilon, budget.delta * LEFT
    if max(affordable(order, epsilon, delta) for order in ORDERS) <= 0:
        raise Refused(
            f"epsilon = {epsilon:g} is too little for individual accounts of Poisson batches: take full batches"
        )

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
    limit = round_digits(affordable(order, epsilon, delta) * (1 - ROUNDING), "down")
    return Share(limit, order, delta, low, 0.0)


def _room(order: int, epsilon: float, delta: float, spent: float) -> float:
    limit = affordable(order, epsilon, delta)
    return 1 - spent / limit if limit > 0 else -math.inf
