"""From a model, the shape of the data and a budget to a Job and what it costs: what is not given is planned.

**Step size.** The noise multiplier of every step falls as the square root of the step sizes, so one calibration with
the tight accountant gives the factor by which they may be multiplied. It is never more than `LARGEST` / clip: a step
larger than that does not follow the gradient any more, and a budget that pays for more is better not spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.inference.loop import Job
from confide.inference.plans import clips, descents, individual
from confide.inference.plans.clips import LARGEST
from confide.inference.plans.estimates import SAMPLES
from confide.inference.plans.setup import Asked, Planned, check_likelihood, start, unraveller
from confide.mechanism import batches, noise
from confide.mechanism.canaries import LONGEST, Planted
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.clipping import clipped_sum, whole_chunks
from confide.mechanism.kernel import Kernel, MechanismParameters, gaussian_event, lost, noise_multipliers
from confide.mechanism.oracle import Observers
from confide.models.inputs import Records, as_records
from confide.models.model import Model
from confide.privacy import calibration, events
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.extra_accounts import Accounts
from confide.samplers import Descent, Sampler
from confide.validation import Refused

BATCH_SIZE = 256
STEPS = 10_000
INDIVIDUAL_STEPS = 5000
DRAWS = 1000
KEPT = 2**23  # numbers in the draws of all chains, as planned for models with many parameters
FEWEST = 10  # draws that are planned of them all the same
LEAST_FAILURE = 1e-99  # what a chance of overflow below it is rounded up to: a smaller delta would be refused
LEAST = 1e-6  # how far all steps together can carry a parameter


class Parts(NamedTuple):
    model: Model
    parameters: MechanismParameters
    unravel: Callable[[Any], Any]
    starts: np.ndarray
    steps: int
    burn_in: int
    thin: int


def private_job(
    model: Model,
    data: Records | tuple[np.ndarray, ...],
    budget: Budget,
    sampler: Sampler,
    asked: Asked,
    key: jax.Array,
    beside: Event | None = None,
) -> tuple[Job, Event]:
    """The run that the budget pays for, and its event; `beside` is what the same budget pays for as well."""
    return _private(model, as_records(data), budget, sampler, asked, key, beside)[:2]


def _private(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Sampler,
    asked: Asked,
    key: jax.Array,
    beside: Event | None = None,
) -> tuple[Job, Event, individual.Binning | None, Sampler]:
    """The run, its event, how a histogram is made of what records spent, if one is, and the sampler as planned."""
    asked = _watched(model, budget, descents.asked_of(sampler, asked), records.number)
    chains = validation.count(chains=asked.chains)
    steps, n = validation.count(steps=STEPS if asked.steps is None else asked.steps), records.number
    planned = clips.usual if isinstance(sampler, Descent) else clips.planned
    planned = planned if asked.accounts.individual is None else clips.long
    clip = clips.checked(planned(budget, chains, steps, n) if asked.clip is None else asked.clip)
    parts, data = _parts(model, records, asked, clip, key), records.arrays
    parameters = parts.parameters
    q, sampler = parameters.sampling_probability, replace(sampler, budget=budget)
    sampler = descents.met(sampler, model, data, parameters, parts.starts[0])
    buffer, overflowing, reserved = None, None, 0.0
    if q < 1:
        buffer = whole_chunks(batches.fitting_buffer(parameters.rows, q, steps * chains, budget.delta))
        overflow = batches.overflow(parameters.rows, q, buffer, steps)
        if overflow > 0:
            overflowing = events.Release(epsilon=0.0, delta=max(overflow, LEAST_FAILURE))
            reserved = overflowing.parts(budget.neighbours).failure
    left = replace(budget, delta=budget.delta - chains * reserved)
    wanted, filtered = asked.accounts.individual, None
    if isinstance(sampler, Descent):  # its noise is planned, in units of the clip, and not its step sizes
        sizes, final = np.ones(steps), sampler.noise_multiplier is not None
        sampler = sampler if final else sampler.with_multiplier(1.0)
    elif sampler.prescribe is not None and sampler.step_size is None:
        sizes, final = sampler.prescribe(sampler, parameters, steps), True
    else:
        sizes, final = sampler.step_sizes(steps)
    share = None
    if wanted is not None:
        share = individual.share(wanted, left, parameters, _unit(sampler, parameters, sizes), chains)
    if isinstance(sampler, Descent):
        if not final:
            spare = share.factor if share is not None else _allowed(sampler, parameters, sizes, chains, left, beside)
            sampler = sampler.with_multiplier(1 / math.sqrt(spare))
        sizes = sampler.learning_rates(parameters, steps, lambda: LARGEST / parameters.clip)
    elif not final and share is not None:
        sizes = sizes * min(share.factor, LARGEST / parameters.clip / float(np.max(sizes)))
    elif not final:
        sizes = sizes * _factor(sampler, parameters, sizes, chains, left, beside)
    kernel = sampler.build(sampler, parameters, sizes)
    if asked.accounts != Accounts() and np.any(kernel.schedule.fisher_noise > 0):
        raise Refused(
            f"{sampler.name} releases a second sum, which other accounts than 'dp' do not see: choose another sampler"
        )
    _fits(buffer or parameters.rows, float(np.min(kernel.schedule.noise)) / parameters.clip)
    if share is not None:  # from the noise that will be drawn
        stretch = wanted.stretch if final and wanted is not None else None
        filtered = individual.filtered(share, stretch, left, parameters, kernel.schedule.noise, chains)
    event = kernel.event() if filtered is None else filtered.event
    if overflowing is not None:
        event = events.compose(event, overflowing)
    if filtered is None and chains > 1:
        event = events.compose(event, repeats=chains)
    observers = Observers(
        samples=SAMPLES if asked.accounts.bayesian else 0,
        filter=None if filtered is None else filtered.filter,
        canaries=None if asked.canaries is None else _canary_test(asked.canaries, parameters, kernel),
    )
    job = _job(parts, data, kernel, buffer, asked.microbatch, observers)
    return job, event, None if filtered is None else filtered.histogram, sampler


def _watched(model: Model, budget: Budget, asked: Asked, n: int) -> Asked:
    """What the accounts ask for; refused where they cannot be kept."""
    accounts = asked.accounts
    if accounts != Accounts() and model.layered is not None and model.layered.dropout:
        raise Refused("account: a network with dropout keeps the account of 'dp' alone: leave one of them out")
    if accounts.bayesian and budget.neighbours != "add-remove":
        raise Refused("account 'bayesian' is for add-remove neighbours: leave it out, or take them")
    if accounts.individual is None:
        return asked
    return asked._replace(  # everyone's norm is computed at every step, so that full batches are hardly dearer
        batch_size=n if asked.batch_size is None else asked.batch_size,
        steps=INDIVIDUAL_STEPS if asked.steps is None else asked.steps,
    )


def _fits(rows: int, multiplier: float) -> None:
    """Sums of so many records are whole numbers of grid steps that can be counted; refused where they are not."""
    if rows > multiplier * noise.FURTHEST / noise.GRID:
        raise Refused(
            f"noise of {multiplier:.2g} times the clip is too little for sums of up to {rows} records, which its grid "
            "cannot count: raise the noise, by a smaller epsilon or step size, or take smaller batches"
        )


def _canary_test(canaries: Planted, parameters: MechanismParameters, kernel: Kernel) -> CanaryTest:
    """How canaries are scored."""
    if np.any(kernel.schedule.fisher_noise > 0):
        raise Refused("canaries: the sampler releases a second sum, which scores do not see: choose another, as sgld")
    if parameters.clip > LONGEST:
        raise Refused(
            f"canaries: clip = {parameters.clip:g} is near the length of their gradients: at most {LONGEST:g}"
        )
    return CanaryTest(
        first=canaries.first,
        apart=canaries.apart,
        count=canaries.count,
        sampling_probability=parameters.sampling_probability,
        clip=parameters.clip,
        replaced=canaries.replaced,
    )


def planned(
    model: Model,
    data: Records | tuple[np.ndarray, ...],
    budget: Budget,
    sampler: Sampler,
    asked: Asked,
    key: jax.Array,
) -> Planned:
    records = as_records(data)
    job, event, binning, sampler = _private(model, records, budget, sampler, asked, key)
    plan = described(model, sampler, job) | descents.described(sampler, asked)
    wanted, finish = asked.accounts.individual, descents.finish(sampler, asked)
    finish = finish if asked.canaries is None else _with_canaries(finish, job.parameters.canary_coordinates)
    if wanted is None:
        return Planned(model, records, job, event, plan, lambda step: until(job, step), finish=finish)
    plan |= {"individual": {"stretch": wanted.stretch, "histogram": wanted.histogram}}
    if binning is None:
        return Planned(model, records, job, event, plan, None, finish=finish)
    return Planned(model, records, job, event, plan, None, event.released(), binning.released, finish)


def _with_canaries(
    finish: Callable[[np.ndarray, Any], np.ndarray] | None, coordinates: int
) -> Callable[[np.ndarray, Any], np.ndarray]:
    """Draws in the parameters of the model with canaries, whose own stay at 0."""

    def finished(kept: np.ndarray, source: Any) -> np.ndarray:
        draws = kept if finish is None else finish(kept, source)
        return np.concatenate([draws, np.zeros((*draws.shape[:-1], coordinates), draws.dtype)], axis=-1)

    return finished


def until(job: Job, step: int) -> Event:
    """The first steps of the run."""
    so_far = type(job.kernel.schedule)(*(column[:step] for column in job.kernel.schedule))
    return events.compose(gaussian_event(job.parameters, so_far), repeats=job.chains)


def described(model: Model, sampler: Sampler, job: Job) -> dict[str, Any]:
    """The plan of a run by steps, as it is stored."""
    parameters, sizes = job.parameters, job.kernel.schedule.step_size
    length = {} if isinstance(sampler, Descent) else {"diffusion_time": float(sizes.sum())}
    return {
        "model": model.name,
        **sampler.to_json(),
        "records": parameters.n,
        "parameters": parameters.dimension,
        "steps": job.steps,
        "chains": job.chains,
        "batch_size": round(parameters.expected_batch),
        "clip": None if np.isinf(parameters.clip) else parameters.clip,
        "step_size": float(sizes[0]),
        "last_step_size": float(sizes[-1]),
        **length,
        "burn_in": job.burn_in,
        "thin": job.thin,
        "draws": job.kept,
    }


def plain_job(model: Model, data: tuple[np.ndarray, ...], sampler: Sampler, asked: Asked, key: jax.Array) -> Job:
    """The run without clipping and without a guarantee."""
    return plain(model, data, sampler, asked, key)[0]


def plain(
    model: Model, data: tuple[np.ndarray, ...], sampler: Sampler, asked: Asked, key: jax.Array
) -> tuple[Job, dict[str, Any], Callable[[np.ndarray, Any], np.ndarray] | None]:
    """The same, with its plan, and how draws are made of what it keeps."""
    parts = _parts(model, as_records(data), descents.asked_of(sampler, asked), math.inf, key)
    parameters, steps = parts.parameters, parts.steps
    sampler = descents.met(sampler, model, data, parameters, parts.starts[0])
    if isinstance(sampler, Descent):
        sizes = sampler.learning_rates(parameters, steps, lambda: _gentle(model, data, parts))
    else:
        sizes, final = sampler.step_sizes(steps)
        if not final:
            sizes = sizes * _gentle(model, data, parts)
    q = parameters.sampling_probability
    rare = 1e-12 / (steps * len(parts.starts))
    buffer = None if q == 1 else whole_chunks(batches.buffer_size(parameters.n, q, rare))
    job = _job(parts, data, sampler.build(sampler, parameters, sizes), buffer, asked.microbatch)
    plan = described(model, sampler, job) | descents.described(sampler, asked)
    return job, plan, descents.finish(sampler, asked)


def _job(
    parts: Parts,
    data: tuple[np.ndarray, ...],
    kernel: Any,
    buffer: int | None,
    microbatch: int | None,
    observers: Observers | None = None,
) -> Job:
    parameters, common = parts.parameters, 0
    if buffer is not None:  # two standard deviations above the mean: one batch in fifty holds more
        expected = parameters.rows * parameters.sampling_probability
        common = whole_chunks(math.ceil(expected + 2 * math.sqrt(expected)))
    return Job(
        kernel=kernel,
        parameters=parameters,
        gradient_sum=clipped_sum(
            parts.model,
            parameters.clip,
            parts.unravel,
            buffer or parameters.rows,
            common,
            size=parameters.coordinates,
            example=tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in data),
            at_a_time=microbatch,
        ),
        starts=parts.starts,
        burn_in=parts.burn_in,
        thin=parts.thin,
        buffer=buffer,
        observers=observers or Observers(),
    )


def _unit(sampler: Sampler, parameters: MechanismParameters, sizes: np.ndarray) -> np.ndarray:
    """Noise multipliers of these step sizes, without what rounding to the grid takes."""
    return noise_multipliers(parameters, sampler.build(sampler, parameters, sizes).schedule, rounded=False)


def _factor(
    sampler: Sampler,
    parameters: MechanismParameters,
    sizes: np.ndarray,
    chains: int,
    budget: Budget,
    beside: Event | None,
) -> float:
    """The largest number that the step sizes may be multiplied by."""
    allowed = _allowed(sampler, parameters, sizes, chains, budget, beside)
    if allowed * float(np.sum(sizes)) * parameters.clip < LEAST:
        largest = allowed * float(np.max(sizes))
        raise Refused(
            f"epsilon = {budget.epsilon:g} pays for step sizes of {largest:.2g} at most, with which nothing is learnt: "
            "raise the budget, lower the clip, or collect more records"
        )
    return min(allowed, LARGEST / parameters.clip / float(np.max(sizes)))


def _allowed(
    sampler: Sampler,
    parameters: MechanismParameters,
    sizes: np.ndarray,
    chains: int,
    budget: Budget,
    beside: Event | None,
) -> float:
    """What the squares of the noise may be divided by."""
    schedule = sampler.build(sampler, parameters, sizes).schedule
    unit = noise_multipliers(parameters, schedule, rounded=False)
    equal = bool(np.all(unit == unit[0]))
    factor = calibration.calibrate_noise(
        epsilon=budget.epsilon,
        delta=budget.delta,
        neighbours=budget.neighbours,
        sampling_probability=parameters.sampling_probability,
        steps=chains * unit.size,
        profile=None if equal else np.tile(unit, chains),
        beside=beside,
    )
    wanted = noise.needed(factor * (np.ones(1) if equal else unit), lost(parameters, schedule))
    return float(np.min(unit[: wanted.size] / wanted)) ** 2 * (1 - 1e-12)


def _gentle(model: Model, data: tuple[np.ndarray, ...], parts: Parts) -> float:
    """A tenth over the mean squared gradient at the start, a fair curvature. It looks at records, as `sample` may."""
    few = max(8, min(1000, 2**24 // parts.parameters.dimension))  # as many gradients are held
    some = tuple(jnp.asarray(array[:few]) for array in data)
    gradient = jax.grad(lambda flat, *row: model.log_likelihood(parts.unravel(flat), *row))
    every = jax.vmap(gradient, (None, *[0] * len(some)))
    found = np.asarray(every(jnp.asarray(parts.starts[0], jnp.float32), *some), np.float64)
    return min(LARGEST, 0.1 / max(float(np.mean(np.sum(found**2, axis=1))), 1e-12))


def _parts(model: Model, records: Records, asked: Asked, clip: float, key: jax.Array) -> Parts:
    n, data = records.number, records.arrays
    n, batch = calibration.sizes(n, min(n, BATCH_SIZE) if asked.batch_size is None else asked.batch_size)
    chains = validation.count(chains=asked.chains)
    steps = validation.count(steps=STEPS if asked.steps is None else asked.steps)
    keys = [noise.derived(key, "chain", chain) for chain in range(chains)]
    flat, unravel = unraveller(model, data, keys[0])
    size = flat.size if asked.canaries is None else asked.canaries.first  # as without canaries
    most = min(DRAWS, max(FEWEST, KEPT // (size * chains)))
    burn_in, thin = _thinning(steps, asked.draws, asked.burn_in, most)
    check_likelihood(model, records, flat, unravel)
    starts = [np.asarray(start(model, data, k, chains), np.float64)[:size] for k in keys]
    rest = jnp.zeros(flat.size - size, jnp.float32)  # of canaries

    def log_prior(own: jax.Array) -> jax.Array:
        return model.log_prior(unravel(jnp.concatenate([own, rest]) if rest.size else own))

    def prior(position: jax.Array) -> jax.Array:
        with jax.enable_x64(False):
            gradient = -jax.grad(log_prior)(position.astype(jnp.float32))
        return gradient.astype(jnp.float64)

    canaries = 0 if asked.canaries is None else asked.canaries.count
    rounding = noise.NONE if math.isinf(clip) else noise.CONTRIBUTIONS if asked.secure else noise.SUMS
    parameters = MechanismParameters(
        n=n,
        capacity=records.places - canaries,
        sampling_probability=batch / n,
        clip=clip,
        dimension=size,
        prior=prior,
        rounding=rounding,
        canary_rows=canaries,
        canary_coordinates=flat.size - size,
    )
    return Parts(model, parameters, unravel, np.stack(starts), steps, burn_in, thin)


def _thinning(steps: int, draws: int | None, burn_in: int | None, most: int) -> tuple[int, int]:
    burn_in = steps // 2 if burn_in is None else int(validation.nonnegative(burn_in=burn_in))
    if burn_in >= steps:
        raise Refused(f"burn_in = {burn_in} leaves no step of {steps}: give a smaller one")
    wanted = min(most, steps - burn_in) if draws is None else validation.count(draws=draws)
    if wanted > steps - burn_in:
        raise Refused(f"draws = {wanted} is above the {steps - burn_in} steps after burn_in: ask for fewer")
    thin = (steps - burn_in) // wanted
    return steps - wanted * thin, thin
