r"""Stochastic gradient Fisher scoring (Ahn, Korattikara and Welling 2012; wang2015, section 4.2): a full-matrix metric.

    C = (F + lambda mean(eigenvalues of F) I)^-1, over its mean eigenvalue
    theta' = theta - eta C ( -grad log p(theta) / n + sum_i g_i / (q n) ) + N(0, 2 eta temperature C / n)

F, the Fisher information of one record, is a mean over the first `adapt` steps of sum_i g_i g_i^T / (q n), step t with
weight t^3 so that the way from the start is forgotten. It needs the records too, so each of these steps releases it
with noise of its own before it releases the gradient, and both sums of the step, over one batch, are priced as one
Gaussian release: 1/sigma^2 = 1/sigma_g^2 + 1/sigma_F^2. Afterwards C stands still, so that no curvature term is
missing. The gradient is clipped in the metric, ||C^(1/2) g_i|| <= clip. Negative eigenvalues, which the noise makes,
count as 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism.kernel import (
    FisherQuery,
    FisherStage,
    Kernel,
    MechanismParameters,
    Query,
    Schedule,
    gaussian_event,
    langevin_noise,
)
from confide.samplers.sampler import Decay, Sampler, schedule_of
from confide.validation import Refused

MOST_PARAMETERS = 1000  # a matrix of noise is drawn, and decomposed, at each of the first steps


class State(NamedTuple):
    position: jax.Array
    fisher: jax.Array
    root: jax.Array  # symmetric square root of C


def sgfs(
    step_size: float | None = None,
    schedule: Decay = "fixed",
    temperature: float = 1.0,
    adapt: int = 100,
    fisher_noise: float = 1.0,
    regularisation: float = 0.01,
) -> Sampler:
    """Stochastic gradient Fisher scoring.

    Args:
        adapt: the number of first steps that estimate the Fisher information.
        fisher_noise: the noise multiplier of the Fisher information over that of the gradient.
        regularisation: lambda; a large one gives SGLD.
    """
    return Sampler(
        name="sgfs",
        build=build,
        step_size=step_size,
        schedule=schedule,
        temperature=temperature,
        options={
            "adapt": validation.count(adapt=adapt),
            "fisher_noise": validation.positive(fisher_noise=fisher_noise),
            "regularisation": validation.positive(regularisation=regularisation),
        },
    )


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    size = parameters.dimension
    if size > MOST_PARAMETERS:
        raise Refused(f"sgfs holds matrices of {size} x {size}: use psgld above {MOST_PARAMETERS} parameters")
    if parameters.secure:
        raise Refused("noise = 'secure' does not cover the Fisher information of sgfs: choose another sampler")
    adapt, regularisation = int(sampler.options["adapt"]), sampler.options["regularisation"]
    gradient_noise = langevin_noise(parameters, step_sizes, sampler.temperature)
    asked = np.arange(step_sizes.size) < adapt
    clip = (
        0.0 if math.isinf(parameters.clip) else parameters.clip
    )  # without a guarantee the information is taken as it is
    fisher_noise = asked * sampler.options["fisher_noise"] * gradient_noise * clip
    schedule = schedule_of(step_sizes, gradient_noise, fisher_noise)

    def init(position: jax.Array) -> State:
        return State(position, jnp.zeros((size, size), position.dtype), jnp.eye(size, dtype=position.dtype))

    def ask_fisher(state: State, control: Schedule, t: jax.Array) -> FisherQuery:
        return FisherQuery(state.position, control.fisher_noise)

    def learn(state: State, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        found = noisy / parameters.expected_batch
        fisher = state.fisher + (found - state.fisher) * 4 / (t + 4)
        values, vectors = jnp.linalg.eigh(fisher)
        values = jnp.maximum(values, 0.0)
        inverse = 1 / (values + regularisation * jnp.mean(values) + 1e-30)
        root = jnp.sqrt(inverse / jnp.mean(inverse))
        return State(state.position, fisher, (vectors * root) @ vectors.T)

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, None]:
        return Query(state.position, control.noise, state.root), None

    def update(state: State, memo: None, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        prior, mean = parameters.prior(state.position) / parameters.n, noisy / parameters.expected_batch
        moved = control.step_size * state.root @ (state.root @ prior + mean)
        return state._replace(position=state.position - moved)

    stage = FisherStage(adapt, ask_fisher, learn)
    return Kernel(init, query, update, schedule, lambda: gaussian_event(parameters, schedule), stage)
