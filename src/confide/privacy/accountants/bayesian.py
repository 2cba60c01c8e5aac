"""Bayesian accountant (triastcyn2020): an estimate for people who are like the people in the data.

Differential privacy bounds what a step reveals of anybody; here the record is drawn from a population, and the privacy
loss is averaged over the draw as well. A run of T steps, whose step t reveals D_t(x) of record x (Renyi divergence of
order lambda + 1), has by Hoelder's inequality (their Theorem 1 and Corollary 1)

    epsilon = min over lambda of (sum_t c_t - log delta) / lambda,    c_t = (1/T) log E_x exp(T lambda D_t(x)).

The expectation is not known. Two estimates of it from m sampled pairs per step, each with failure probability gamma:

- *published* (their equation 14): mean + t-quantile * standard deviation / sqrt(m - 1). It supposes normal averages.
  With the power T inside they are as far from that as can be: a sample without any of the few large distances says
  nothing of them, so it may fall short at any gamma (`docs/errata.md`).
- *bounded*: with a clip, Y = exp(T lambda D) lies between 1 and its value at the clip, and for means of m draws in
  [0, 1] the chance of a mean too low with m KL(mean || expectation) > log(1/gamma) is at most gamma (Hoeffding 1963),
  for every distribution. gamma is shared by the orders, because the best of them is picked.

gamma adds up over the steps and is taken from delta. Assumptions: pairs were picked independently at random; a fresh
person's gradients are like those of members; and the path that was taken stands for all others, since D_t depends on
what was released before step t and the sum is not bounded in advance.

Theorem 3 takes the larger of two costs. Its second comes from an inequality that loses the amplification by sampling;
the divergence it bounds never exceeds the first (`distances.py`). So the first alone is the default, and with every
distance at the clip the result is the moments accountant's; `direction="printed"` is the theorem to the letter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.privacy.accountants import bayesian_costs
from confide.privacy.accountants.bayesian_confidence import binary_estimate as binary_estimate
from confide.privacy.accountants.bayesian_costs import ORDERS, Direction, Estimator
from confide.privacy.accountants.bayesian_costs import SpreadWarning as SpreadWarning
from confide.privacy.accountants.bayesian_distances import Renyi
from confide.privacy.budget import belief as belief
from confide.validation import Refused


def costs(distances: Any, *, estimator: Estimator = "published", **settings: Any) -> np.ndarray:
    """c_t of each order and step, (orders, steps); settings as for `bayesian_epsilon`.

    To compose runs, give each the `steps` of all runs together, join the costs along the second axis and ask
    `epsilon_of_costs`.
    """
    return bayesian_costs.costs(bayesian_costs.setting(distances, **settings), (estimator,))[estimator]


def epsilon_of_costs(
    costs: np.ndarray, *, delta: float, failure_probability: float = 1e-15, orders: Iterable[int] = ORDERS
) -> float:
    """Corollary 1 for the costs of all steps, with gamma for each of them taken from delta."""
    costs, picked = np.asarray(costs), bayesian_costs.check_orders(orders)
    if not (np.issubdtype(costs.dtype, np.number) and np.isfinite(costs).all() and (costs >= 0).all()):
        raise Refused("costs hold what is no cost: give finite numbers, 0 or more")
    if costs.ndim != 2 or len(costs) != len(picked):
        raise Refused(f"costs has shape {costs.shape}: give one row for each of the {len(picked)} orders")
    return _least(costs.sum(axis=1), picked, _delta_left(delta, failure_probability, costs.shape[1]))


def _least(sums: np.ndarray, orders: list[int], delta: float) -> float:
    return float(((sums - math.log(delta)) / np.array(orders)).min())


def _delta_left(delta: float, failure_probability: float, steps: int) -> float:
    """What estimating leaves of delta."""
    delta = validation.probability(delta=delta)
    gamma = validation.probability(failure_probability=failure_probability)
    if delta <= steps * gamma:
        raise Refused(
            f"delta = {delta:g} is used up by failure_probability = {gamma:g} at each of {steps} steps: "
            "give a larger delta, or a smaller failure_probability"
        )
    return delta - steps * gamma


def bayesian_epsilon(
    distances: Any,
    *,
    noise_scale: Any = None,
    sampling_probability: float = 1.0,
    delta: float,
    failure_probability: float = 1e-15,
    orders: Iterable[int] = ORDERS,
    estimator: Estimator = "published",
    clip: float | None = None,
    renyi: Renyi | None = None,
    direction: Direction = "both",
) -> float:
    """The epsilon of triastcyn2020, for people drawn from where the pairs were drawn: an estimate, and no guarantee.

    Args:
        distances: (steps, samples), how far one record moves the sum that noise is added to; m pairs at each step. For
            sums of clipped gradients and add-remove neighbours that is the norm of a record's clipped gradient.
        noise_scale: standard deviation of the noise, in the units of the distances; a number, or one per step.
        sampling_probability: chance of each record to enter a batch.
        delta: probability that the bound fails, over the noise, the record and the sampled pairs.
        failure_probability: gamma, of one estimate; it adds up over the steps.
        orders: the lambdas, whole numbers from 1.
        estimator: "published", "bounded" (holds for any distances up to `clip`) or "worst" (all at the clip).
        clip: the largest distance possible, where there is one.
        renyi: for other mechanisms, `renyi(order, distances)` in place of noise and sampling: the larger divergence of
            the two directions; it must rise with the distance where a clip is given.
        direction: "both", or "printed" for Theorem 3 to the letter.

    >>> d = np.random.default_rng(0).uniform(0.0, 0.5, (100, 64))
    >>> setting = dict(noise_scale=5.0, delta=1e-5, clip=1.0)
    >>> [round(bayesian_epsilon(d, estimator=e, **setting), 2) for e in ("published", "bounded", "worst")]
    [4.95, 11.36, 11.76]
    """
    known = bayesian_costs.setting(
        distances,
        noise_scale=noise_scale,
        sampling_probability=sampling_probability,
        failure_probability=failure_probability,
        orders=orders,
        clip=clip,
        renyi=renyi,
        direction=direction,
    )
    remaining = _delta_left(delta, failure_probability, known.steps)
    return _least(bayesian_costs.costs(known, (estimator,))[estimator].sum(axis=1), known.orders, remaining)


def delta(distances: Any, *, epsilon: float, estimator: Estimator = "published", **settings: Any) -> float:
    """delta_mu at a given epsilon (their Theorem 2), with gamma of every step added; settings as above."""
    epsilon = validation.nonnegative(epsilon=epsilon)
    known = bayesian_costs.setting(distances, **settings)
    exponents = bayesian_costs.costs(known, (estimator,))[estimator].sum(axis=1) - np.array(known.orders) * epsilon
    return min(1.0, math.exp(min(0.0, float(exponents.min()))) + known.steps * known.failure_probability)


def percentile_curve(
    distances: Any, percentiles: Any, *, delta: float, estimator: Estimator = "published", **settings: Any
) -> np.ndarray:
    """The epsilon that holds at `delta` for each share of people, 0.99 being all but one in a hundred.

    Markov's inequality (their section 4.4.1): delta is exceeded for a share of people of at most delta_mu / delta.
    """
    shares = [validation.probability(zero=True, percentile=share) for share in np.atleast_1d(percentiles)]
    delta = validation.probability(delta=delta)
    known = bayesian_costs.setting(distances, **settings)
    remaining = [_delta_left((1 - share) * delta, known.failure_probability, known.steps) for share in shares]
    sums = bayesian_costs.costs(known, (estimator,))[estimator].sum(axis=1)
    return np.array([_least(sums, known.orders, left) for left in remaining])


def compose(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """(epsilon, delta) of several releases together: both add up (their Proposition 3)."""
    checked = [
        (validation.nonnegative(epsilon=e), validation.probability(zero=True, one=True, delta=d)) for e, d in pairs
    ]
    return math.fsum(e for e, _ in checked), min(1.0, math.fsum(d for _, d in checked))


def group(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """(epsilon, delta) for a group of people drawn from the population (their Proposition 4).

    delta grows by (e^(k epsilon) - 1) / (e^epsilon - 1), the step before the printed k e^(k epsilon), which is larger.
    """
    epsilon, size = validation.nonnegative(epsilon=epsilon), validation.count(size=size)
    delta = validation.probability(zero=True, one=True, delta=delta)
    total = size * epsilon
    if delta == 0 or total == 0:
        return total, min(1.0, size * delta)
    log_sum = total - epsilon + math.log(-math.expm1(-total)) - math.log(-math.expm1(-epsilon))
    return total, math.exp(min(0.0, math.log(delta) + log_sum))


@dataclass(frozen=True, kw_only=True)
class Typical:
    """What a run reveals of typical people, beside what it reveals of anybody; `budget.belief` is their P(A)."""

    epsilon: float  # the published estimate
    bounded: float  # the estimate that holds at its confidence
    worst_case: float  # the moments accountant's, at the same orders
    delta: float
    failure_probability: float
    steps: int
    samples: int
    alike: int = 0  # steps without a spread, which the published estimate counts at the clip

    def sentences(self) -> tuple[str, ...]:
        """The estimate in plain language, and what it is not."""
        failing = self.steps * self.failure_probability
        return (
            f"For typical people the estimate is epsilon = {self.epsilon:.4g} (published estimator) and "
            f"{self.bounded:.4g} (bounded estimator), where the same bound gives {self.worst_case:.4g} for anybody at "
            f"all, each at delta = {self.delta:.3g}, from {self.samples} sampled records at each of {self.steps} "
            "steps.",
            "It is an estimate for people drawn from the same population as the records, and no guarantee for each "
            "person; the guarantee is the one that holds for anybody.",
            "It is of the steps alone: whatever else is released comes on top.",
            "It is computed from the records and nobody has paid for it, so it must not be published.",
            "The published estimator has no finite-sample validity where tails are heavy: records that are rare and "
            "far out may be missing from the sample, and it then says too little.",
            *(
                [f"The sampled records were all alike at {self.alike} of the steps, which count in full."]
                * (self.alike > 0)
            ),
            f"The bounded estimator holds, except with probability {failing:.2g}, for a record picked at random from "
            "the data, along the path that the run took; for the population only as far as members' gradients are "
            "like those of fresh people.",
        )


def typical(
    distances: Any,
    *,
    noise_scale: Any,
    sampling_probability: float = 1.0,
    clip: float,
    delta: float,
    failure_probability: float = 1e-15,
    orders: Iterable[int] = ORDERS,
) -> Typical:
    """Both estimates and the worst case, from one pass over the distances.

    No estimate exceeds the worst case. A step whose distances are all one number, as the first of a run may well be, is
    counted at the clip; where all steps are like that, nothing can be estimated.
    """
    known = bayesian_costs.setting(
        distances,
        noise_scale=noise_scale,
        sampling_probability=sampling_probability,
        clip=clip,
        failure_probability=failure_probability,
        orders=orders,
    )
    remaining = _delta_left(delta, failure_probability, known.steps)
    alike = bayesian_costs.alike(known)
    found = bayesian_costs.costs(known, ("published", "bounded", "worst"), refuse_alike=bool(alike.all()))
    found["published"][:, alike] = found["worst"][:, alike]
    worst = _least(found["worst"].sum(axis=1), known.orders, delta)
    epsilon, within = (
        min(worst, _least(found[name].sum(axis=1), known.orders, remaining)) for name in ("published", "bounded")
    )
    return Typical(
        epsilon=epsilon,
        bounded=within,
        worst_case=worst,
        delta=delta,
        failure_probability=known.failure_probability,
        steps=known.steps,
        samples=known.distances.shape[1],
        alike=int(alike.sum()),
    )
