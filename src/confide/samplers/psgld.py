r"""Preconditioned SGLD (Li, Chen, Carlson and Carin 2016), with a preconditioner made of what was already released.

    G = diag of 1 / (lambda mean(s) + s), over its mean;   s = sqrt(max(V, 0))
    theta' = theta - eta G ( -grad log p(theta) / n + sum_i g_i / (q n) ) + N(0, 2 eta temperature G / n)
    V' = V + (h^2 - (known noise of h)^2 - V) / (t + 1)

h is the *noisy* mean gradient that the step has just released, never the raw one, so V is post-processing. Gradients
are clipped in the preconditioned metric, ||G^(1/2) g_i|| <= clip, and the noise is drawn in it: the noise multiplier
is that of SGLD, whatever the state. Two changes to the published preconditioner: the variance of the privacy noise is
subtracted from h^2, without which G would follow the noise and grow without bound; and G is divided by its mean, so
that step size and clip keep the meaning that they have for SGLD.

The curvature term Gamma (the divergence of G) is dropped: V averages over all steps, so G changes by O(1/t) at step
t and Gamma vanishes at that rate.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, Query, Schedule, gaussian_event, langevin_noise
from confide.samplers.sampler import Decay, Sampler, schedule_of


class State(NamedTuple):
    position: jax.Array
    squares: jax.Array  # V


def psgld(
    step_size: float | None = None, schedule: Decay = "fixed", temperature: float = 1.0, regularisation: float = 0.1
) -> Sampler:
    """Preconditioned SGLD; `regularisation` is lambda: a large one gives SGLD."""
    return Sampler(
        name="psgld",
        build=build,
        step_size=step_size,
        schedule=schedule,
        temperature=temperature,
        options={"regularisation": validation.positive(regularisation=regularisation)},
    )


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    regularisation = sampler.options["regularisation"]
    schedule = schedule_of(step_sizes, langevin_noise(parameters, step_sizes, sampler.temperature))

    def init(position: jax.Array) -> State:
        return State(position, jnp.zeros_like(position))

    def metric(squares: jax.Array) -> jax.Array:
        roots = jnp.sqrt(jnp.maximum(squares, 0.0))
        inverse = 1 / (regularisation * jnp.mean(roots) + roots + 1e-30)
        return inverse / jnp.mean(inverse)

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, jax.Array]:
        preconditioner = metric(state.squares)
        return Query(state.position, control.noise, jnp.sqrt(preconditioner)), preconditioner

    def update(state: State, preconditioner: jax.Array, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        mean = noisy / parameters.expected_batch
        gradient = parameters.prior(state.position) / parameters.n + mean / jnp.sqrt(preconditioner)
        known = jnp.square(control.noise / parameters.expected_batch) / preconditioner
        squares = state.squares + (jnp.square(gradient) - known - state.squares) / (t + 1)
        return State(state.position - control.step_size * preconditioner * gradient, squares)

    return Kernel(init, query, update, schedule, lambda: gaussian_event(parameters, schedule))
