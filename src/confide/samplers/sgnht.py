r"""Stochastic gradient Nose-Hoover thermostat (Ding et al. 2014): the friction adapts to the noise of the batches.

    v' = (1 - alpha) v - eta ( -grad log p(theta) / n + sum_i g_i / (q n) ) + N(0, 2 A eta temperature / n)
    theta' = theta + v'
    alpha' = alpha + ((1 - alpha / 2) v'.v' / r - eta temperature / n) / u^2          (r parameters in units of u)

With friction alpha and the noise above, v has variance (A / alpha) eta temperature / n / (1 - alpha / 2) at rest: the
factor 1 - alpha / 2, which the published rule lacks, makes alpha settle where the temperature is right, at any step.

Formal guarantee: noise multiplier q sqrt(2 A n temperature / eta) / clip. alpha is post-processing of v, so A alone
decides it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism.kernel import (
    Kernel,
    MechanismParameters,
    Schedule,
    gaussian_event,
    langevin_noise,
)
from confide.samplers.sampler import Decay, Sampler, schedule_of
from confide.samplers.sgld import ask_here


class State(NamedTuple):
    position: jax.Array
    momentum: jax.Array
    friction: jax.Array


def sgnht(
    step_size: float | None = None, schedule: Decay = "fixed", temperature: float = 1.0, friction: float = 0.1
) -> Sampler:
    """Stochastic gradient Nose-Hoover thermostat; `friction` is A, where alpha starts."""
    return Sampler(
        name="sgnht",
        build=build,
        step_size=step_size,
        schedule=schedule,
        temperature=temperature,
        options={"friction": validation.probability(friction=friction, one=True)},
        pace=1 / friction,
        stability=2 * (2 - friction),
    )


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    injected = sampler.options["friction"]
    schedule = schedule_of(step_sizes, langevin_noise(parameters, step_sizes, sampler.temperature, injected))

    def init(position: jax.Array) -> State:
        return State(position, jnp.zeros_like(position), jnp.asarray(injected, position.dtype))

    def update(state: State, memo: None, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        drift = parameters.mean_gradient(state.position, noisy)
        momentum = (1 - state.friction) * state.momentum - control.step_size * drift
        wanted = control.step_size * sampler.temperature / parameters.n
        heat = (1 - state.friction / 2) * jnp.mean(jnp.square(momentum)) - wanted
        return State(state.position + momentum, momentum, state.friction + heat / parameters.unit**2)

    return Kernel(init, ask_here, update, schedule, lambda: gaussian_event(parameters, schedule))
