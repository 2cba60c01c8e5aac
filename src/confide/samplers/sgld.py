r"""Stochastic gradient Langevin dynamics (Welling and Teh 2011), private by its own noise (li2019, wang2015).

    theta' = theta - eta ( -grad log p(theta) / n + sum_i g_i / (q n) ) + N(0, 2 eta temperature / n)

Formal guarantee: a step is the Gaussian mechanism on the clipped sum, on a Poisson batch, with noise multiplier
q sqrt(2 n temperature / eta) / clip. Every iterate may be released.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from confide.mechanism.kernel import (
    Kernel,
    MechanismParameters,
    Query,
    Schedule,
    gaussian_event,
    langevin_noise,
)
from confide.samplers.sampler import Decay, Sampler, schedule_of


class State(NamedTuple):
    position: jax.Array


def sgld(step_size: float | None = None, schedule: Decay = "fixed", temperature: float = 1.0) -> Sampler:
    """Stochastic gradient Langevin dynamics.

    >>> sgld(step_size=0.1, schedule="decreasing").step_sizes(8)[0][-1].round(3)
    np.float64(0.05)
    """
    return Sampler(name="sgld", build=build, step_size=step_size, schedule=schedule, temperature=temperature)


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    noise = langevin_noise(parameters, step_sizes, sampler.temperature)
    return langevin(parameters, schedule_of(step_sizes, noise))


def langevin(parameters: MechanismParameters, schedule: Schedule) -> Kernel:
    """The update rule for any noise of the schedule's."""
    mean_gradient = parameters.mean_gradient

    def update(state: State, memo: None, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        return State(state.position - control.step_size * mean_gradient(state.position, noisy))

    return Kernel(State, ask_here, update, schedule, lambda: gaussian_event(parameters, schedule))


def ask_here(state: Any, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, None]:
    """The query of most kernels: the noisy sum where the chain stands."""
    return Query(state.position, control.noise), None
