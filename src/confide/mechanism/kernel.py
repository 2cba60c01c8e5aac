"""The one contract: how a chain starts, what it asks of the records, how it moves, and what its steps reveal.

A kernel never sees a record. At each step it asks one question, a value (`query`), and moves by the noisy answer alone
(`update`): **every kernel is post-processing of noisy sums.** One question a step, and none about a single record, are
facts of these types. Answers come from the oracle (`mechanism.oracle`). The standard deviations of the noise are one
array, `schedule.noise`: queries name them and the event is written from it, so what is drawn and what is priced cannot
drift apart.

With the mean gradient multiplied by eta, Langevin noise of variance 2 eta temperature / n on the parameters is noise
of standard deviation q sqrt(2 n temperature / eta) on the sum (`langevin_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from confide.mechanism import noise
from confide.mechanism.noise import Rounding
from confide.privacy import events
from confide.privacy.events import Event
from confide.validation import Refused

State = Any  # a NamedTuple whose first field is `position`, the flat parameters
Memo = Any  # what a query leaves for the update of the same step


class Schedule(NamedTuple):
    """What each step is told: arrays with one number per step, or the numbers of one step."""

    step_size: Any
    noise: Any  # standard deviation on the sum of the gradients
    fisher_noise: Any  # the same for the sum of their outer products; 0 where none is asked for


class Query(NamedTuple):
    """The clipped sum over the batch of A^T g_i plus N(0, scale^2), A the root of a preconditioner, or the identity."""

    position: jax.Array
    scale: jax.Array
    preconditioner_root: jax.Array | None = None  # a diagonal or a matrix


class FullBatchStep(NamedTuple):
    """position - step_size (pull + clipped sum over all records) + N(0, scale^2), in double precision.

    The mean as a whole is rounded to the grid of the noise, so that where it is hidden stays hidden. For linear models.
    """

    position: jax.Array
    pull: jax.Array  # gradient of what is no record's
    step_size: jax.Array
    scale: jax.Array


class FisherQuery(NamedTuple):
    """The sum over the batch of the outer products of clipped gradients, plus symmetric noise: see `oracle.fisher`."""

    position: jax.Array
    scale: jax.Array


class FisherStage(NamedTuple):
    """A second question, which the first steps ask before the other one; both are priced as one Gaussian release."""

    steps: int
    query: Callable[[State, Schedule, jax.Array], FisherQuery]  # (state, this step's schedule, number of step)
    update: Callable[[State, jax.Array, Schedule, jax.Array], State]  # (state, noisy sum, ...)


class Kernel(NamedTuple):
    init: Callable[[jax.Array], State]
    query: Callable[[State, Schedule, jax.Array, jax.Array], tuple[Query | FullBatchStep, Memo]]  # (..., public key)
    update: Callable[[State, Memo, jax.Array, Schedule, jax.Array], State]
    schedule: Schedule
    event: Callable[[], Event]
    fisher: FisherStage | None = None


@dataclass(frozen=True, kw_only=True)
class MechanismParameters:
    """What is public about a run, and all that a kernel is built from."""

    n: int  # the declared number of records
    sampling_probability: float
    clip: float  # inf for a run without a guarantee
    dimension: int  # number of the model's parameters
    prior: Callable[[jax.Array], jax.Array]  # gradient of -log prior at a flat position
    rounding: Rounding = noise.SUMS
    capacity: int | None = None  # places for records: n where it is not given
    canary_rows: int = 0  # rows that are no records
    canary_coordinates: int = 0  # of the sum, beside the model's parameters
    curvature: float | None = None  # the most that the mean negative log posterior curves; None: nothing is known
    weighted: bool = False  # whether scores are bounded by weights, and not cut by their own length
    unit: float = 1.0  # of parameters: the scale of the prior where scores are weighted, so that planning has no unit

    @property
    def rows(self) -> int:
        """What batches are drawn from."""
        return (self.n if self.capacity is None else self.capacity) + self.canary_rows

    @property
    def coordinates(self) -> int:
        """Numbers in a noisy sum."""
        return self.dimension + self.canary_coordinates

    @property
    def secure(self) -> bool:
        """Whether nothing is assumed about floating point."""
        return self.rounding == noise.CONTRIBUTIONS

    @property
    def expected_batch(self) -> float:
        """Of records."""
        return self.n * self.sampling_probability

    @property
    def mean_gradient(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """(position, noisy sum there) -> gradient of the negative log posterior over the number of records."""
        return _mean_gradient(self.prior, self.n, self.expected_batch)


@lru_cache(maxsize=16)
def _mean_gradient(prior: Callable[[jax.Array], jax.Array], n: int, batch: float) -> Callable[..., jax.Array]:
    """A program of its own, so that it is traced once: where a run is planned."""
    return jax.jit(lambda position, noisy: prior(position) / n + noisy / batch)


def langevin_noise(
    parameters: MechanismParameters, step_sizes: np.ndarray, temperature: float, friction: float = 1.0
) -> np.ndarray:
    """q sqrt(2 friction n temperature / eta): the standard deviation on the sum."""
    return parameters.sampling_probability * np.sqrt(2 * friction * parameters.n * temperature / step_sizes)


def noise_multipliers(parameters: MechanismParameters, schedule: Schedule, *, rounded: bool = True) -> np.ndarray:
    """Noise over clip, step by step; both sums of a step are one Gaussian release: 1/s^2 = 1/s_g^2 + 1/s_F^2.

    What rounding to the grid of the noise takes from it is taken, unless they are asked for as they are drawn.
    """
    if math.isinf(parameters.clip):
        raise Refused("a run without clipping has no guarantee: give a clip")
    multipliers = schedule.noise / parameters.clip
    asked, d = schedule.fisher_noise > 0, parameters.coordinates
    fisher = np.where(asked, schedule.fisher_noise, 1.0) / parameters.clip**2
    if rounded:
        multipliers = parameters.rounding.worth(multipliers, d)
        fisher = parameters.rounding.worth(fisher, d * (d + 1) // 2)
    return np.where(asked, 1 / np.sqrt(1 / multipliers**2 + 1 / fisher**2), multipliers)


def rounding_loss(parameters: MechanismParameters, schedule: Schedule) -> float:
    """What rounding takes at most: 1 / (noise multiplier that is priced) - 1 / (noise multiplier that is drawn)."""
    d, both = parameters.coordinates, bool(np.any(schedule.fisher_noise > 0))
    second = parameters.rounding.lost(d * (d + 1) // 2) if both else 0.0
    return math.hypot(parameters.rounding.lost(d), second)


def gaussian_event(parameters: MechanismParameters, schedule: Schedule) -> Event:
    """The event of all steps of one chain."""
    multipliers = noise_multipliers(parameters, schedule)
    if np.all(multipliers == multipliers[0]):
        return events.gaussian(float(multipliers[0]), parameters.sampling_probability, multipliers.size)
    return events.gaussian(multipliers, parameters.sampling_probability)
