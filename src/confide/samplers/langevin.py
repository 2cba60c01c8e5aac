r"""Full-batch Langevin dynamics of which only a few iterates are released, by default the last alone.

With l_i the negative log likelihood of a record (clipped), n records and a Gaussian prior of scale s, at temperature T:

    theta' = theta - (eta/n) ( (T/s^2) theta + sum_i grad l_i ) + N(0, 2 eta T / n)

It samples exp(-(1/T) sum_i l_i - ||theta||^2 / (2 s^2)): the prior as it is, the likelihood to the power 1/T.

Formal guarantee: the potential is (T/s^2)-strongly convex and eta/n is at most 2 over the sum of strong convexity and
smoothness, so `privacy.last_iterate` prices the iterates that are released, at every time and without any assumption
about mixing. What the records decide is computed in double precision: the contraction has to hold for the numbers that
are computed, not for the formula alone. Iterates are held within `RADIUS` prior standard deviations, which is a
contraction too and bounds the rounding. Every new position lies on the grid of its noise as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism.kernel import FullBatchStep, Kernel, MechanismParameters, Schedule, langevin_noise
from confide.privacy import calibration
from confide.privacy.events import Event
from confide.samplers.sampler import Decay, Sampler, schedule_of
from confide.samplers.sgld import State
from confide.validation import Refused

RADIUS = 1000.0  # prior standard deviations, times the square root of the number of parameters


@dataclass(frozen=True, kw_only=True)
class Langevin(Sampler):
    """The settings of `confide.langevin`; None is planned from the budget."""

    draws: int = 1
    gap: int | None = None
    temperature: float | None = None  # type: ignore[assignment]

    kind = "last iterate"

    def __post_init__(self) -> None:
        validation.count(draws=self.draws)
        if self.gap is not None:
            validation.count(gap=self.gap)
        if self.temperature is not None:
            validation.positive(temperature=self.temperature)
        if self.step_size is not None and not callable(self.step_size):
            validation.positive(step_size=self.step_size)
        if not callable(self.schedule) and self.schedule not in calibration.SCHEDULES:
            raise Refused(
                f"schedule = {self.schedule!r} is not fixed in advance, and an adaptive one has no guarantee for its "
                f"last iterate: give one of {', '.join(map(repr, calibration.SCHEDULES))}, or a function of the step"
            )


def langevin(
    draws: int = 1,
    *,
    gap: int | None = None,
    temperature: float | None = None,
    step_size: float | Callable[[int], Any] | None = None,
    schedule: Decay = "fixed",
) -> Sampler:
    """Full-batch Langevin dynamics for convex models: one private draw, or a few.

    Args:
        draws: released of each chain, the last iterate and others before it; each is paid for.
        gap: steps between them; by default a tenth of those before the first.
        temperature: the likelihood counts to the power 1 / temperature; planned from the budget, and never below 1.
        step_size: multiplies the mean gradient, as everywhere; by default n / (strong convexity + smoothness).
        schedule: how the step size changes; fixed in advance, so a function of the number of the step alone.

    >>> langevin(draws=3).name
    'langevin'
    """
    return Langevin(
        name="langevin",
        build=_not_by_itself,
        draws=draws,
        gap=gap,
        temperature=temperature,
        step_size=step_size,
        schedule=schedule,
    )


def _not_by_itself(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    raise Refused("langevin() is planned from a budget: use confide.fit, or sgld() for a run without a guarantee")


def kernel(
    parameters: MechanismParameters,
    step_sizes: np.ndarray,
    temperature: float,
    prior_scale: float,
    event: Callable[[], Event],
) -> Kernel:
    """The update rule. The temperature is read off noise and step size, so that another one needs no new program."""
    schedule = schedule_of(step_sizes, langevin_noise(parameters, step_sizes, temperature))
    radius = reach(prior_scale, parameters.dimension)

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[FullBatchStep, None]:
        position = state.position
        position = position * jnp.minimum(1.0, radius / jnp.maximum(jnp.linalg.norm(position), radius))
        precision = jnp.square(control.noise / prior_scale) * control.step_size / (2 * parameters.n)  # T / s^2
        size = control.step_size / parameters.n
        return FullBatchStep(position, precision * position, size, size * control.noise), None

    def update(state: State, memo: None, moved: jax.Array, control: Schedule, t: jax.Array) -> State:
        return State(moved)

    return Kernel(State, query, update, schedule, event)


def reach(prior_scale: float, dimension: int) -> float:
    """No iterate is further from zero than this when the gradient is taken."""
    return RADIUS * prior_scale * math.sqrt(dimension)
