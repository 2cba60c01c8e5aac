"""A run by steps as far as it is decided before its noise: sizes, clip, starts, what is kept, and the job that runs it.

**Clip.** With mu the budget in Gaussian differential privacy, clip = 3 mu. A run of diffusion time s (the sum of the
step sizes) at clip L costs mu^2 = L^2 s / (2 n), so this clip buys s = 2 n / 9, in which the directions that the data
speaks about have been explored. A larger clip buys less time, and the chain does not arrive; a smaller one bends the
likelihood: records whose gradient is longer than the clip count less, and what is sampled is the posterior of the
clipped likelihood, whose weights are larger than the plain one's. Who knows a bound on the gradients (for logistic
regression the largest norm of a row) and has the budget for it gives that as the clip, and nothing is bent. Features
should be of order one.

**Clip where a bound is known.** Whoever knows the longest possible gradient (rows within a public norm bound) plans
better with `bounded_clip`: half of it cuts few records, so that probabilities stay calibrated, as far as the budget
pays for a diffusion time of 320 at that clip: mu sqrt(n / 160), since s = 2 n (mu / L)^2. On Adult at epsilon 0.5 this
takes the log loss from 0.41 to 0.33, at the same accuracy.

A rich budget is not spent on a long clip: the planned one is at most what `LARGEST` steps can follow for that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import validation
from confide.inference.loop import Job
from confide.inference.options import Options, RunSettings
from confide.mechanism import batches, grid, noise
from confide.mechanism.canaries import Planted
from confide.mechanism.clipping import CHUNK, clipped_sum, whole_chunks
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.mechanism.oracle import Observers
from confide.models import programs
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, table_lengths, unraveller
from confide.privacy import calibration, events
from confide.privacy.budget import Budget
from confide.privacy.extra_accounts import Accounts, accounts
from confide.privacy.significant_digits import round_digits
from confide.samplers import Sampler
from confide.samplers.descent import DRIFT
from confide.samplers.sampler import LARGEST
from confide.validation import Refused

BATCH_SIZE = 256
INDIVIDUAL_STEPS = 5000
STEPS = 10_000
DRAWS = 1000
KEPT = 2**23  # numbers in the draws of all chains, as planned for models with many parameters
FEWEST = 10  # draws that are planned of them all the same
TRAIL, TRAIL_NUMBERS = 256, 2**22  # last iterates that are looked at one by one, and numbers in them
CLIP = 3.0  # times mu
USUAL = 1.5  # clip of optimisers; chosen on Adult
SMALLEST = 1e-12  # clip
LEAST_FAILURE = 1e-99  # what a chance of overflow below it is rounded up to: a smaller delta would be refused
SETTLED = 160  # half the diffusion time in which the directions that the data speaks about settle


class RunSetup(NamedTuple):
    model: Model
    parameters: MechanismParameters
    unravel: Callable[[Any], Any]
    initial_positions: np.ndarray
    steps: int
    burn_in: int
    thin: int
    lengths: frozenset[int]  # of axes by which an array in a function of the model is taken for the table


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
    lengths = table_lengths(records)

    def log_prior(position: jax.Array) -> jax.Array:
        canaries = [jnp.zeros(flat.size - size, jnp.float32)] * (flat.size > size)
        return model.log_prior(unravel(jnp.concatenate([position, *canaries])))

    slope = programs.checked(jax.grad(log_prior), "log_prior", lengths)

    def prior(position: jax.Array) -> jax.Array:
        with jax.enable_x64(False):
            gradient = -slope(position.astype(jnp.float32))
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
    return RunSetup(model, parameters, unravel, np.stack(initial_positions), steps, burn_in, thin, lengths)


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


def check_accounts(model: Model, budget: Budget, options: Options, n: int) -> Options:
    """What the accounts ask for; refused where they cannot be kept."""
    kept = accounts(options.account)
    if kept != Accounts() and model.layered is not None and model.layered.dropout:
        raise Refused("account: a network with dropout keeps the account of 'dp' alone: leave one of them out")
    if kept.bayesian and budget.neighbours != "add-remove":
        raise Refused("account 'bayesian' is for add-remove neighbours: leave it out, or take them")
    if kept.individual is None:
        return options
    return replace(  # everyone's norm is computed at every step, so that full batches are hardly dearer
        options,
        batch_size=n if options.batch_size is None else options.batch_size,
        steps=INDIVIDUAL_STEPS if options.steps is None else options.steps,
    )


def reserve_places(
    parameters: MechanismParameters, steps: int, chains: int, budget: Budget
) -> tuple[int | None, events.Release | None]:
    """Places for a batch, and what it costs one chain that they may not do; None for full batches."""
    q = parameters.sampling_probability
    if q == 1:
        return None, None
    buffer = whole_chunks(batches.fitting_buffer(parameters.rows, q, steps * chains, budget.delta))
    overflow = batches.overflow(parameters.rows, q, buffer, steps)
    if overflow == 0:
        return buffer, None
    return buffer, events.Release(epsilon=0.0, delta=round_digits(max(overflow, LEAST_FAILURE), "up"))


def check_grid(rows: int, buffer: int | None, multiplier: float) -> None:
    """Refuse noise whose grid cannot count sums over all rows, or over a random batch in a buffer."""
    grid.check_grid(buffer or rows, buffer or min(whole_chunks(rows), CHUNK), multiplier)


def build_job(
    setup: RunSetup,
    data: tuple[np.ndarray, ...],
    kernel: Kernel,
    buffer: int | None,
    microbatch: int | None,
    observers: Observers | None = None,
    trail: bool = False,
) -> Job:
    parameters, typical = setup.parameters, None
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
            lengths=setup.lengths,
        ),
        initial_positions=setup.initial_positions,
        burn_in=setup.burn_in,
        thin=setup.thin,
        buffer=buffer,
        observers=observers or Observers(),
        trail=min(TRAIL, setup.steps, TRAIL_NUMBERS // parameters.dimension) if trail else 0,
    )


def gentle_step(setup: RunSetup, data: tuple[np.ndarray, ...]) -> float:
    """A tenth over the mean squared gradient at the start, a fair curvature. It looks at records, as `sample` may."""
    few = max(8, min(1000, 2**24 // setup.parameters.dimension))  # as many gradients are held
    some = tuple(jnp.asarray(array[:few]) for array in data)
    gradient = jax.grad(lambda flat, *row: setup.model.log_likelihood(setup.unravel(flat), *row))
    every = jax.vmap(gradient, (None, *[0] * len(some)))
    found = np.asarray(every(jnp.asarray(setup.initial_positions[0], jnp.float32), *some), np.float64)
    return min(LARGEST, 0.1 / max(float(np.mean(np.sum(found**2, axis=1))), 1e-12))


def choose_clip(budget: Budget, sampler: Sampler, options: Options, steps: int, n: int) -> float:
    """The clip that is given, or the planned one."""
    if options.clip is not None:
        return check_clip(options.clip)
    planned = _usual_clip if sampler.optimises else planned_clip
    planned = planned if accounts(options.account).individual is None else _long_clip
    return check_clip(round_digits(planned(budget, options.chains, steps, n)))


def check_clip(clip: float) -> float:
    clip = validation.positive(clip=clip)
    if not SMALLEST <= clip <= 1 / SMALLEST:
        raise Refused(f"clip = {clip:g} is beyond single precision: scale the data so that gradients are of order one")
    return clip


def planned_clip(budget: Budget, chains: int, steps: int, n: int) -> float:
    """3 mu of one chain's share, but no more than the largest steps can follow for as long as that clip would buy.

    calibrate_noise counts the sensitivity of the neighbouring relation in.
    """
    multiplier = calibration.calibrate_noise(epsilon=budget.epsilon, delta=budget.delta, neighbours=budget.neighbours)
    return min(CLIP / multiplier / math.sqrt(chains), max(1.0, LARGEST * steps * CLIP**2 / (2 * n)))


def _usual_clip(budget: Budget, chains: int, steps: int, n: int) -> float:
    """For optimisers, whose time is DRIFT n mu / clip (`samplers.descent`): one that cuts few gradients of order one.

    It is less where that leaves no time to settle, and at least the clip of the samplers.
    """
    multiplier = calibration.calibrate_noise(epsilon=budget.epsilon, delta=budget.delta, neighbours=budget.neighbours)
    longest = DRIFT * n / (multiplier * math.sqrt(chains)) / (2 * SETTLED)
    return max(planned_clip(budget, chains, steps, n), min(USUAL, longest))


def _long_clip(budget: Budget, chains: int, steps: int, n: int) -> float:
    """For individual accounts, where a long clip costs those alone whose gradients are long: as much as buys four times
    the diffusion time in which the data's directions settle."""
    multiplier = calibration.calibrate_noise(epsilon=budget.epsilon, delta=budget.delta, neighbours=budget.neighbours)
    return max(planned_clip(budget, chains, steps, n), math.sqrt(n / SETTLED / chains) / multiplier / 2)


def bounded_clip(model: Model, budget: Budget, n: int, norm_bound: float, chains: int) -> float | None:
    """The planned clip where no row is longer than `norm_bound`; None: as for any other model.

    |residual| is at most 1 for two labels and sqrt(2) for several; that of a linear model is taken as two standard
    deviations, 2 / noise_scale; of counts nothing is known before.
    """
    residual = None if model.family is None else model.family.planned_residual
    if residual is None or budget.delta == 0:
        return None
    multiplier = calibration.calibrate_noise(epsilon=budget.epsilon, delta=budget.delta, neighbours=budget.neighbours)
    mu = 1 / multiplier / math.sqrt(validation.count(chains=chains))
    return round_digits(min(residual * norm_bound / 2, mu * max(CLIP, math.sqrt(n / SETTLED))))
