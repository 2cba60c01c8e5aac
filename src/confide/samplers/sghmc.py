r"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014), as momentum with friction a.

    v' = (1 - a) v - eta ( -grad log p(theta) / n + sum_i g_i / (q n) ) + N(0, 2 (a - b) eta temperature / n)
    theta' = theta + v'

b is a public bound on the noise of the batches, 0 unless given.

Formal guarantee: noise multiplier q sqrt(2 (a - b) n temperature / eta) / clip; position and momentum are
post-processing of the noisy sums, and every iterate of both may be released.
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
from confide.validation import Refused


class State(NamedTuple):
    position: jax.Array
    momentum: jax.Array


def sghmc(
    step_size: float | None = None,
    schedule: Decay = "fixed",
    temperature: float = 1.0,
    friction: float = 0.1,
    batch_noise: float = 0.0,
) -> Sampler:
    """Stochastic gradient Hamiltonian Monte Carlo; `friction` is a, `batch_noise` the public bound b."""
    friction, batch_noise = (
        validation.probability(friction=friction, one=True),
        validation.nonnegative(batch_noise=batch_noise),
    )
    if batch_noise >= friction:
        raise Refused(f"batch_noise = {batch_noise:g} leaves no noise to draw: give less than friction = {friction:g}")
    return Sampler(
        name="sghmc",
        build=build,
        step_size=step_size,
        schedule=schedule,
        temperature=temperature,
        options={"friction": friction, "batch_noise": batch_noise},
        pace=1 / (friction - batch_noise),
        stability=2 * (2 - friction),
    )


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    friction, injected = sampler.options["friction"], sampler.options["friction"] - sampler.options["batch_noise"]
    schedule = schedule_of(step_sizes, langevin_noise(parameters, step_sizes, sampler.temperature, injected))

    def init(position: jax.Array) -> State:
        return State(position, jnp.zeros_like(position))

    def update(state: State, memo: None, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        drift = parameters.mean_gradient(state.position, noisy)
        momentum = (1 - friction) * state.momentum - control.step_size * drift
        return State(state.position + momentum, momentum)

    return Kernel(init, ask_here, update, schedule, lambda: gaussian_event(parameters, schedule))
