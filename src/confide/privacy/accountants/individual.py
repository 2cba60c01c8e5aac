"""Individual accounting (Feldman and Zrnic 2021; Koskela, Tobaben and Honkela 2023): a record pays for itself alone.

Given the outputs before it, a step adds Gaussian noise of standard deviation s to a sum, and adding or removing record
i moves that sum by d = ||g_i||, its own clipped gradient at that point: at most the clip, and mostly far less. What a
step costs record i is thus known from what was released before and from the record itself. A **filter** adds up these
costs, and takes the record out, for good, before a step that would carry their sum past the limit. All others go on.
Then the whole run keeps the promise of the limit for every record, however the costs came about:

- *Full batches*: cost (d/s)^2, limit mu^2, mu-Gaussian-DP. Proof: let the costs be completed to mu^2 by one more
  Gaussian step, whose output is thrown away. The log likelihood ratio is then Z - mu^2/2 under one dataset (the mirror
  image under the other), Z the sum of d_t/s_t times independent normals, where every d_t is a function of the outputs
  before. exp(iuZ + u^2/2 sum (d_t/s_t)^2) has expectation 1, and the sum of squares is mu^2 surely: Z is N(0, mu^2).
  Replacing record i by j moves a sum by at most d_i + d_j, and the root of the sum of (d_i + d_j)^2 is at most
  mu + mu: 2 mu.
- *Poisson batches*: cost log E_Q[(P/Q)^a] of a sampled Gaussian at norm d, for one order a that is fixed beforehand, of
  every record at every step, whether or not it was in the batch: which records were is secret, and the discount for
  that is in the price. Adding or removing a record then gives D_a at most limit / (a - 1) (Feldman and Zrnic's filter).
  An order that is chosen afterwards, for each record the best, would not be covered.

In floating point a record can also change how the sum of all others is rounded, as long as it takes part and after: a
little is added to its norm for the one, and kept free of its limit for the other (`mechanism.individual_filter`).

The others' costs are functions of the outputs and of their own records, so record i has no say in who else is left out.
Costs, epsilons of single persons and the number of those left out are functions of the records, and none is released.
A **histogram** of the epsilons is: given the outputs, a record is in one bin of fixed bounds and nowhere else, so that
with Gaussian noise of standard deviation 1/m on every count it is m-Gaussian-DP (sqrt(2) m for replacing a record).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from confide import validation
from confide.privacy.accountants import gdp, moments
from confide.privacy.accountants.profiles import Profile
from confide.privacy.budget import Budget
from confide.privacy.events import Event, GaussianFilter, Neighbours, RenyiFilter
from confide.privacy.events.individual import affordable, convert
from confide.validation import Refused

KNOTS = 2048  # of the table of costs: chords of a convex function, so never too little
BINS = 20


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a record may cost in all, and how a step's cost follows from the ratio of norm to noise.

    `order` None: squares of mu, for full batches. `worst` is what a record would cost whose every contribution is as
    long as the clip, where that is more than the limit, so that someone can be left out; 0 where it is not.
    """

    limit: float
    order: int | None = None
    sampling_probability: float = 1.0
    largest: float = 1.0  # ratio of clip to noise in any step
    worst: float = 0.0

    def __post_init__(self) -> None:
        validation.positive(limit=self.limit)
        validation.positive(largest=self.largest)
        validation.nonnegative(worst=self.worst)
        if (self.order is None) != (self.sampling_probability == 1):
            raise Refused("a filter of squares is for full batches, one of an order for Poisson batches")

    @cached_property
    def table(self) -> np.ndarray:
        """Costs at KNOTS ratios, evenly from 0 to the largest; between two they are taken linear in the square.

        A step's cost is convex in the square, so that is never too little. Rounding is on the safe side as well: ratios
        that are above the largest by rounding are paid for, and a share between two knots that is too low by 1e-12
        falls on a lower knot that was raised by 1e-12 of the upper one.
        """
        ratios = np.linspace(0.0, self.largest, KNOTS)
        if self.order is None:
            return ratios**2
        values = np.zeros(KNOTS)
        q = np.full(KNOTS - 1, self.sampling_probability)
        values[1:] = moments.binomial_log_moment(self.order, (1 - 2e-12) / ratios[1:], q)
        values[1:-1] += 1e-12 * values[2:]
        return values * (1 + 1e-12)

    def costs(self, ratios: np.ndarray) -> np.ndarray:
        """Of one step, of records of these ratios; infinite beyond the largest."""
        ratios = np.asarray(ratios)
        found = np.interp(np.square(ratios), np.square(np.linspace(0.0, self.largest, KNOTS)), self.table)
        return np.where(ratios <= self.largest * (1 + 1e-12), found, math.inf)

    def event(self, steps: int, delta: float = 0.0) -> Event:
        """Of a run that was filtered; `delta` is where a log-moment is turned into an epsilon."""
        if self.order is None:
            return GaussianFilter(mu=math.sqrt(self.limit), steps=steps)
        q = self.sampling_probability
        return RenyiFilter(order=self.order, log_moment=self.limit, delta=delta, sampling_probability=q, steps=steps)

    def spent_at(self, epsilons: np.ndarray, delta: float, neighbours: Neighbours) -> np.ndarray:
        """The costs that are worth these epsilons at delta."""
        if self.order is not None:
            return np.array([affordable(self.order, e, delta) for e in epsilons])
        scale = 1.0 if neighbours == "add-remove" else 2.0
        return np.array([(gdp.mu_of_epsilon(e, delta) / scale) ** 2 if e > 0 else 0.0 for e in epsilons])

    def epsilons(self, spent: np.ndarray, delta: float, neighbours: Neighbours = "add-remove") -> np.ndarray:
        """What single records have spent, as epsilons at delta, to the resolution of a fine table. Private."""
        if self.order is not None:
            return np.array([convert(self.order, s, delta) if s > 0 else 0.0 for s in np.ravel(spent)])
        top = gdp.epsilon_of_mu(math.sqrt(self.limit) * (1 if neighbours == "add-remove" else 2), delta)
        grid = np.concatenate([[0.0], np.geomspace(top * 1e-4, top, 400)])
        return np.interp(np.ravel(spent), self.spent_at(grid, delta, neighbours), grid)


class Histogram(NamedTuple):
    """How many records have which epsilon, with noise that was paid for."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    noise: float  # standard deviation on every count

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges), "counts": list(self.counts), "noise": self.noise}

    def quantile(self, share: float) -> float:
        """An upper edge below which about that share of the records lies: noise adds up to nothing on the average."""
        within = np.cumsum(self.counts)
        return self.edges[1 + int(np.argmax(within >= share * within[-1]))]


def edges(budget: Budget) -> np.ndarray:
    """Bounds of the bins: public."""
    return np.linspace(0.0, budget.epsilon, BINS + 1)


def count_records(spent: np.ndarray, filter: Filter, budget: Budget, delta: float) -> np.ndarray:
    """Records in each bin, without noise: private. Whoever is beyond the last edge is in the last bin."""
    inner = filter.spent_at(edges(budget)[1:-1], delta, budget.neighbours)
    return np.bincount(np.searchsorted(inner, np.ravel(spent), side="left"), minlength=BINS).astype(np.float64)


def profile(event: Event, neighbours: Neighbours = "add-remove") -> Profile:
    if not isinstance(event, (GaussianFilter, RenyiFilter)):
        raise Refused(f"{type(event).__name__} is no filtered run: use accountant 'pld'")
    return gdp.profile(event, neighbours) if isinstance(event, GaussianFilter) else moments.profile(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
