"""A run by steps as far as it is decided before its noise: sizes, starts, what is kept, and the job that runs it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import validation
from confide.inference.loop import Job
from confide.inference.options import RunSettings
from confide.mechanism import noise
from confide.mechanism.canaries import Planted
from confide.mechanism.clipping import clipped_sum, whole_chunks
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.mechanism.oracle import Observers
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, unraveller
from confide.privacy import calibration
from confide.samplers.sampler import LARGEST
from confide.validation import Refused

BATCH_SIZE = 256
STEPS = 10_000
DRAWS = 1000
KEPT = 2**23  # numbers in the draws of all chains, as planned for models with many parameters
FEWEST = 10  # draws that are planned of them all the same


class RunSetup(NamedTuple):
    model: Model
    parameters: MechanismParameters
    unravel: Callable[[Any], Any]
    initial_positions: np.ndarray
    steps: int
    burn_in: int
    thin: int


def run_setup(
    model: Model, records: Records, options: RunSettings, clip: float, key: jax.Array, planted: Planted | None = None
) -> RunSetup:
    n, data = records.number, records.arrays
    n, batch = calibration.sizes(n, min(n, BATCH_SIZE) if options.batch_size is None else options.batch_size)
    chains = validation.count(chains=options.chains)
    steps = validation.count(steps=STEPS if options.steps is None else options.steps)
    keys = [noise.derive_key(key, "chain", chain) for chain in range(chains)]
    flat, unravel = unraveller(model, data, keys[0])
    size = flat.size if planted is None else planted.first  # as without canaries
    most = min(DRAWS, max(FEWEST, KEPT // (size * chains)))
    burn_in, thin = _thinning(steps, options.draws, options.burn_in, most)
    check_likelihood(model, records, flat, unravel)
    initial_positions = [np.asarray(initial_position(model, data, k, chains), np.float64)[:size] for k in keys]
    rest = jnp.zeros(flat.size - size, jnp.float32)  # of canaries

    def log_prior(own: jax.Array) -> jax.Array:
        return model.log_prior(unravel(jnp.concatenate([own, rest]) if rest.size else own))

    def prior(position: jax.Array) -> jax.Array:
        with jax.enable_x64(False):
            gradient = -jax.grad(log_prior)(position.astype(jnp.float32))
        return gradient.astype(jnp.float64)

    canaries = 0 if planted is None else planted.count
    rounding = noise.NONE if math.isinf(clip) else noise.CONTRIBUTIONS if options.noise == "secure" else noise.SUMS
    parameters = MechanismParameters(
        n=n,
        capacity=records.places - canaries,
        sampling_probability=batch / n,
        clip=clip,
        dimension=size,
        prior=jax.jit(prior),
        rounding=rounding,
        canary_rows=canaries,
        canary_coordinates=flat.size - size,
    )
    _check_prior(parameters, initial_positions)
    return RunSetup(model, parameters, unravel, np.stack(initial_positions), steps, burn_in, thin)


def _check_prior(parameters: MechanismParameters, initial_positions: list[np.ndarray]) -> None:
    """A chain that starts where the prior has no gradient would be lost with all that it was charged."""
    with jax.enable_x64(True):
        for start in initial_positions:
            gradient = parameters.mean_gradient(jnp.asarray(start), jnp.zeros(parameters.dimension))
            if not np.all(np.isfinite(gradient)):
                raise Refused(
                    "the gradient of log_prior is not finite where a chain starts: give a start at which it is"
                )


def initial_position(model: Model, data: tuple[np.ndarray, ...], key: jax.Array, chains: int) -> jax.Array:
    """Where a chain begins. Several begin apart: what they have not learnt then shows as disagreement between them,
    and their draws together are as wide as the prior where the data have not spoken."""
    flat, unravel = unraveller(model, data, key)
    if chains == 1 or model.overdispersed_init is None:
        return flat
    return ravel_pytree(model.overdispersed_init(noise.derive_key(key, "disperse"), unravel(flat)))[0]


def _thinning(steps: int, draws: int | None, burn_in: int | None, most: int) -> tuple[int, int]:
    burn_in = steps // 2 if burn_in is None else int(validation.nonnegative(burn_in=burn_in))
    if burn_in >= steps:
        raise Refused(f"burn_in = {burn_in} leaves no step of {steps}: give a smaller one")
    wanted = min(most, steps - burn_in) if draws is None else validation.count(draws=draws)
    if wanted > steps - burn_in:
        raise Refused(f"draws = {wanted} is above the {steps - burn_in} steps after burn_in: ask for fewer")
    thin = (steps - burn_in) // wanted
    return steps - wanted * thin, thin


def build_job(
    setup: RunSetup,
    data: tuple[np.ndarray, ...],
    kernel: Kernel,
    buffer: int | None,
    microbatch: int | None,
    observers: Observers | None = None,
) -> Job:
    parameters, typical = setup.parameters, 0
    if buffer is not None:  # two standard deviations above the mean: one batch in fifty holds more
        expected = parameters.rows * parameters.sampling_probability
        typical = whole_chunks(math.ceil(expected + 2 * math.sqrt(expected)))
    return Job(
        kernel=kernel,
        parameters=parameters,
        gradient_sum=clipped_sum(
            setup.model,
            parameters.clip,
            setup.unravel,
            buffer or parameters.rows,
            typical,
            size=parameters.coordinates,
            example=tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in data),
            at_a_time=microbatch,
        ),
        initial_positions=setup.initial_positions,
        burn_in=setup.burn_in,
        thin=setup.thin,
        buffer=buffer,
        observers=observers or Observers(),
    )


def gentle_step(setup: RunSetup, data: tuple[np.ndarray, ...]) -> float:
    """A tenth over the mean squared gradient at the start, a fair curvature. It looks at records, as `sample` may."""
    few = max(8, min(1000, 2**24 // setup.parameters.dimension))  # as many gradients are held
    some = tuple(jnp.asarray(array[:few]) for array in data)
    gradient = jax.grad(lambda flat, *row: setup.model.log_likelihood(setup.unravel(flat), *row))
    every = jax.vmap(gradient, (None, *[0] * len(some)))
    found = np.asarray(every(jnp.asarray(setup.initial_positions[0], jnp.float32), *some), np.float64)
    return min(LARGEST, 0.1 / max(float(np.mean(np.sum(found**2, axis=1))), 1e-12))
