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
from confide.mechanism.oracle import Controls, Kernel, Oracle, Setting, gaussian_event, langevin_noise
from confide.samplers.sampler import Sampler, Schedule, controls


class State(NamedTuple):
    position: jax.Array
    squares: jax.Array  # V


def psgld(
    step_size: float | None = None, schedule: Schedule = "fixed", temperature: float = 1.0, regularisation: float = 0.1
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


def build(sampler: Sampler, setting: Setting, step_sizes: np.ndarray) -> Kernel:
    regularisation = sampler.options["regularisation"]
    plan = controls(step_sizes, langevin_noise(setting, step_sizes, sampler.temperature))

    def init(position: jax.Array) -> State:
        return State(position, jnp.zeros_like(position))

    def metric(squares: jax.Array) -> jax.Array:
        roots = jnp.sqrt(jnp.maximum(squares, 0.0))
        inverse = 1 / (regularisation * jnp.mean(roots[: setting.size]) + roots + 1e-30)
        return inverse / jnp.mean(inverse[: setting.size])

    def step(state: State, control: Controls, t: jax.Array, oracle: Oracle) -> State:
        preconditioner = metric(state.squares)
        factor = jnp.sqrt(preconditioner)
        noisy = oracle.gradient(state.position, control.noise, factor) / setting.expected_batch
        gradient = setting.prior(state.position) / setting.n + noisy / factor
        known = jnp.square(control.noise / setting.expected_batch) / preconditioner
        squares = state.squares + (jnp.square(gradient) - known - state.squares) / (t + 1)
        return State(state.position - control.step_size * preconditioner * gradient, squares)

    return Kernel(init, step, lambda: gaussian_event(setting, plan), plan)
