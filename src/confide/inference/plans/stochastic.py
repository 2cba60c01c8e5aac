"""From a model, the shape of the data and a budget to a Job and what it costs: what is not given is planned.

**Step size.** The noise multiplier of every step falls as the square root of the step sizes, so one calibration with
the tight accountant gives the factor by which they may be multiplied. It is never more than `LARGEST` / clip: a step
larger than that does not follow the gradient any more, and a budget that pays for more is better not spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax
import numpy as np

from confide import validation
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans import individual
from confide.inference.plans.estimates import SAMPLES
from confide.inference.plans.plan import Plan
from confide.inference.plans.run_setup import STEPS, build_job, choose_clip, gentle_step, run_setup
from confide.inference.summaries.runs import OptimiserSummary, SamplerSummary, Steps, VariationalSummary
from confide.mechanism import batches, noise
from confide.mechanism.canaries import LONGEST, Planted
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.clipping import whole_chunks
from confide.mechanism.kernel import Kernel, MechanismParameters, gaussian_event, noise_multipliers, rounding_loss
from confide.mechanism.oracle import Observers
from confide.models.inputs import Records, as_records
from confide.models.model import Model
from confide.privacy import calibration, events
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.extra_accounts import Accounts, accounts
from confide.samplers import Sampler
from confide.validation import Refused

Kind = TypeVar("Kind", bound=Steps)
INDIVIDUAL_STEPS = 5000
LEAST_FAILURE = 1e-99  # what a chance of overflow below it is rounded up to: a smaller delta would be refused


def private_job(
    model: Model,
    data: Records | tuple[np.ndarray, ...],
    budget: Budget,
    sampler: Sampler,
    options: Options,
    key: jax.Array,
    beside: Event | None = None,
) -> tuple[Job, Event]:
    """The run that the budget pays for, and its event; `beside` is what the same budget pays for as well."""
    return _private(model, as_records(data), budget, sampler, options, key, beside)[:2]


def _private(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Sampler,
    options: Options,
    key: jax.Array,
    beside: Event | None = None,
    planted: Planted | None = None,
) -> tuple[Job, Event, individual.Binning | None, Sampler]:
    """The run, its event, how a histogram is made of what records spent, if one is, and the sampler as planned."""
    options = replace(options, draws=sampler.keep(options.draws, options.burn_in))
    options = _check_accounts(model, budget, options, records.number)
    chains = validation.count(chains=options.chains)
    steps = validation.count(steps=STEPS if options.steps is None else options.steps)
    setup = run_setup(
        model, records, options, choose_clip(budget, sampler, options, steps, records.number), key, planted
    )
    parameters, own = setup.parameters, records.arrays if planted is None else planted.original
    sampler = replace(sampler, budget=budget).bind(model, own, parameters.n, setup.initial_positions[0])
    buffer, overflowing = _buffer(parameters, steps, chains, budget)
    reserved = 0.0 if overflowing is None else overflowing.parts(budget.neighbours).failure
    left = replace(budget, delta=budget.delta - chains * reserved)
    kept, filtered, share, spare = accounts(options.account), None, None, None
    wanted = kept.individual
    sampler, sizes, final = sampler.trial(parameters, steps)
    if wanted is not None:
        share = individual.share(wanted, left, parameters, _unit(sampler, parameters, sizes), chains)
    if not final:
        spare = share.factor if share is not None else _spare(sampler, parameters, sizes, chains, left, beside)
    sampler, sizes = sampler.calibrate(parameters, sizes, spare)
    kernel = sampler.build(sampler, parameters, sizes)
    if kept != Accounts() and np.any(kernel.schedule.fisher_noise > 0):
        raise Refused(
            f"{sampler.name} releases a second sum, which other accounts than 'dp' do not see: choose another sampler"
        )
    _fits(buffer or parameters.rows, float(np.min(kernel.schedule.noise)) / parameters.clip)
    if share is not None:  # from the noise that will be drawn
        stretch = wanted.stretch if final and wanted is not None else None
        filtered = individual.make_filter(share, stretch, left, parameters, kernel.schedule.noise, chains)
    event = kernel.event() if filtered is None else filtered.event
    if overflowing is not None:
        event = events.compose(event, overflowing)
    if filtered is None and chains > 1:
        event = events.compose(event, repeats=chains)
    observers = Observers(
        samples=SAMPLES if kept.bayesian else 0,
        filter=None if filtered is None else filtered.filter,
        canaries=None if planted is None else _canary_test(planted, parameters, kernel),
    )
    job = build_job(setup, records.arrays, kernel, buffer, options.microbatch, observers)
    return job, event, None if filtered is None else filtered.histogram, sampler


def _buffer(
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
    return buffer, events.Release(epsilon=0.0, delta=max(overflow, LEAST_FAILURE))


def _check_accounts(model: Model, budget: Budget, options: Options, n: int) -> Options:
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


def make_plan(
    model: Model,
    data: Records | tuple[np.ndarray, ...],
    budget: Budget,
    sampler: Sampler,
    options: Options,
    key: jax.Array,
    planted: Planted | None = None,
) -> Plan:
    """The run that the budget pays for; with canaries, where the model and the data have some."""
    records = as_records(data)
    job, event, binning, sampler = _private(model, records, budget, sampler, options, key, planted=planted)
    summary = _summary(model, sampler, job, options.draws)
    wanted, postprocess = accounts(options.account).individual, sampler.postprocess(options.draws)
    if planted is not None:
        postprocess = _append_canaries(postprocess, job.parameters.canary_coordinates)
    if wanted is None:
        return Plan(model, records, job, event, summary, lambda step: spent_after(job, step), postprocess=postprocess)
    summary = replace(summary, individual={"stretch": wanted.stretch, "histogram": wanted.histogram})
    if binning is None:
        return Plan(model, records, job, event, summary, None, postprocess=postprocess)
    return Plan(model, records, job, event, summary, None, event.released(), binning.release, postprocess)


def _append_canaries(
    postprocess: Callable[[np.ndarray, Any], np.ndarray] | None, coordinates: int
) -> Callable[[np.ndarray, Any], np.ndarray]:
    """Draws in the parameters of the model with canaries, whose own stay at 0."""

    def append(kept: np.ndarray, source: Any) -> np.ndarray:
        draws = kept if postprocess is None else postprocess(kept, source)
        return np.concatenate([draws, np.zeros((*draws.shape[:-1], coordinates), draws.dtype)], axis=-1)

    return append


def spent_after(job: Job, step: int) -> Event:
    """The first steps of the run."""
    so_far = type(job.kernel.schedule)(*(column[:step] for column in job.kernel.schedule))
    return events.compose(gaussian_event(job.parameters, so_far), repeats=job.chains)


def describe(kind: type[Kind], model: Model, sampler: Sampler, job: Job, **own: Any) -> Kind:
    """The summary of a run by steps of this kind, with what all of them have."""
    parameters, sizes = job.parameters, job.kernel.schedule.step_size
    common = {
        "model": model.name,
        "records": parameters.n,
        "parameters": parameters.dimension,
        "steps": job.steps,
        "chains": job.chains,
        "batch_size": round(parameters.expected_batch),
        "clip": None if np.isinf(parameters.clip) else parameters.clip,
        "step_size": float(sizes[0]),
        "last_step_size": float(sizes[-1]),
        "burn_in": job.burn_in,
        "thin": job.thin,
        "draws": job.kept,
    }
    return kind.of(sampler.to_json() | common | own)


def _summary(model: Model, sampler: Sampler, job: Job, draws: int | None) -> Steps:
    own = sampler.describe(draws)
    if sampler.optimises:
        return describe(OptimiserSummary if sampler.point else VariationalSummary, model, sampler, job, **own)
    return describe(SamplerSummary, model, sampler, job, diffusion_time=diffusion_time(job), **own)


def diffusion_time(job: Job) -> float:
    return float(job.kernel.schedule.step_size.sum())


def plain_job(model: Model, data: tuple[np.ndarray, ...], sampler: Sampler, options: Options, key: jax.Array) -> Job:
    """The run without clipping and without a guarantee."""
    return plain(model, data, sampler, options, key)[0]


def plain(
    model: Model, data: tuple[np.ndarray, ...], sampler: Sampler, options: Options, key: jax.Array
) -> tuple[Job, Steps, Callable[[np.ndarray, Any], np.ndarray] | None]:
    """The same, with its summary, and how draws are made of what it keeps."""
    kept = replace(options, draws=sampler.keep(options.draws, options.burn_in))
    setup = run_setup(model, as_records(data), kept, math.inf, key)
    parameters, steps = setup.parameters, setup.steps
    sampler = sampler.bind(model, data, parameters.n, setup.initial_positions[0])
    sizes = sampler.gentle_sizes(parameters, steps, lambda: gentle_step(setup, data))
    q = parameters.sampling_probability
    rare = 1e-12 / (steps * len(setup.initial_positions))
    buffer = None if q == 1 else whole_chunks(batches.buffer_size(parameters.n, q, rare))
    job = build_job(setup, data, sampler.build(sampler, parameters, sizes), buffer, options.microbatch)
    return job, _summary(model, sampler, job, options.draws), sampler.postprocess(options.draws)


def _unit(sampler: Sampler, parameters: MechanismParameters, sizes: np.ndarray) -> np.ndarray:
    """Noise multipliers of these step sizes, without what rounding to the grid takes."""
    return noise_multipliers(parameters, sampler.build(sampler, parameters, sizes).schedule, rounded=False)


def _spare(
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
    wanted = noise.multiplier_needed(factor * (np.ones(1) if equal else unit), rounding_loss(parameters, schedule))
    return float(np.min(unit[: wanted.size] / wanted)) ** 2 * (1 - 1e-12)
