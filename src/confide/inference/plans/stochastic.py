"""From a model, the shape of the data and a budget to a Job and what it costs: what is not given is planned.

**Step size.** The noise multiplier of every step falls as the square root of the step sizes, so one calibration with
the tight accountant gives the factor by which they may be multiplied. It is never more than `LARGEST` / clip: a step
larger than that does not follow the gradient any more, and a budget that pays for more is better not spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from confide import validation
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans import individual, weights
from confide.inference.plans.estimates import SAMPLES
from confide.inference.plans.plan import Plan
from confide.inference.plans.run_setup import STEPS, build_job, check_clip, choose_clip, gentle_step, run_setup
from confide.inference.plans.scaled_job import ScaledJob
from confide.inference.plans.sizes import REACH
from confide.inference.summaries.runs import OptimiserSummary, SamplerSummary, Steps, VariationalSummary
from confide.mechanism import batches, noise
from confide.mechanism.canaries import LONGEST, Planted
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.clipping import GLM, whole_chunks
from confide.mechanism.kernel import Kernel, MechanismParameters, gaussian_event, noise_multipliers, rounding_loss
from confide.mechanism.oracle import Observers
from confide.mechanism.scale import Scale
from confide.models import convexity
from confide.models.inputs import Records, as_records
from confide.models.model import Model, Weighting
from confide.models.tracing import unraveller
from confide.privacy import calibration, events
from confide.privacy.budget import Budget
from confide.privacy.events import EVERY_ITERATE, Event
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
    found = _private(model, as_records(data), budget, sampler, options, key, beside, buys=False)
    assert isinstance(found.job, Job)
    return found.job, found.event


class Private(NamedTuple):
    job: Job | ScaledJob
    event: Event
    binning: individual.Binning | None  # how a histogram is made of what records spent, if one is
    sampler: Sampler  # as planned


def _private(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Sampler,
    options: Options,
    key: jax.Array,
    beside: Event | None = None,
    planted: Planted | None = None,
    buys: bool = True,
) -> Private:
    options = replace(options, draws=sampler.keep(options.draws, options.burn_in))
    options = _check_accounts(model, budget, options, records.number)
    chains, kept, n = validation.count(chains=options.chains), accounts(options.account), records.number
    found: weights.Weights | None = None
    if weights.is_weighted(model, options):
        size = _size(model, records, key, planted)
        found = weights.plan_weights(model, budget, sampler, options, n, size, buys and kept == Accounts())
        options = replace(options, steps=found.sizes.steps, batch_size=found.sizes.batch_size)
        model = weights.weigh(model, math.inf if found.row_bound is None else found.row_bound, _typical(model))
    steps = validation.count(steps=STEPS if options.steps is None else options.steps)
    clip = _clip(budget, sampler, options, steps, n, found)
    setup = run_setup(model, records, options, clip, key, planted)
    parameters, own = setup.parameters, records.arrays if planted is None else planted.original
    curved = 0.0
    if found is not None:
        curved = weights.prior_curvature(parameters, setup.initial_positions[0])
        unit = (model.settings or {}).get("prior_scale", 1.0)
        parameters = _with_curvature(parameters, found, curved, unit, options.clip is not None)
    elif model.family is not None and model.linear is not None and model.linear.norm_bound is not None:
        curved = weights.prior_curvature(parameters, setup.initial_positions[0])
        smooth = model.family.smoothness(convexity.longest(model), clip)
        if math.isfinite(smooth):
            parameters = replace(parameters, curvature=smooth + curved / n)
    sampler = replace(sampler, budget=budget).bind(
        model, own, parameters.n, setup.initial_positions[0], parameters.unit
    )
    buffer, overflowing = _buffer(parameters, steps, chains, budget)
    reserved = 0.0 if overflowing is None else overflowing.parts(budget.neighbours).failure
    left = replace(budget, delta=budget.delta - chains * reserved)
    filtered, share, spare = None, None, None
    wanted = kept.individual
    bought = None if found is None or found.release is None else found.release.event()
    if bought is not None:
        beside = bought if beside is None else events.compose(beside, bought)
    sampler, sizes, final = sampler.trial(parameters, steps)
    if found is not None and final and options.clip is None and sampler.prescribe is None and not sampler.optimises:
        whole = replace(parameters, clip=1.0)  # the longest clip that the budget pays for
        spare = _spare(sampler, whole, sizes, chains, left, beside)
        parameters = replace(parameters, clip=check_clip(math.sqrt(spare) * (1 - 1e-9)))
        parameters = _with_curvature(parameters, found, curved, parameters.unit, False)
        spare = None
    if wanted is not None:
        share = individual.share(wanted, left, parameters, _unit(sampler, parameters, sizes), chains)
    if not final:
        spare = share.factor if share is not None else _spare(sampler, parameters, sizes, chains, left, beside)
    sampler, sizes = sampler.calibrate(parameters, sizes, spare)
    if final or sampler.step_size is not None:
        sampler.check_stable(parameters, sizes)
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

    def build(parameters: MechanismParameters, sizes: np.ndarray, weighting: Weighting | None) -> Job:
        kernel = sampler.build(sampler, parameters, sizes)
        observers = Observers(
            samples=SAMPLES if kept.bayesian else 0,
            filter=None if filtered is None else filtered.filter,
            canaries=None if planted is None else _canary_test(planted, parameters, kernel),
        )
        own = model if weighting is None else weights.weigh(model, *astuple(weighting))
        here = setup._replace(model=own, parameters=parameters)
        return build_job(here, records.arrays, kernel, buffer, options.microbatch, observers)

    if found is None:
        job = build(parameters, sizes, None)
    elif found.release is None:
        bound = found.row_bound
        if bound is None:
            bound = weights.stable_row_bound(found.family, sampler, parameters, float(np.max(sizes)), curved)
        job = build(parameters, sizes, Weighting(bound, _typical(model)))
    else:
        planned, least = found, noise_multipliers(parameters, kernel.schedule, rounded=False)

        def at(scale: Scale) -> Job:
            here = weights.scaled(planned, sampler, parameters, sizes, scale, curved, options.clip is not None)
            job = build(*here)
            drawn = noise_multipliers(job.parameters, job.kernel.schedule, rounded=False)
            assert np.all(drawn >= least * (1 - 1e-13)), "less noise than was priced"
            return job

        skipped = None if planted is None else planted.places
        job = ScaledJob(unit=build(parameters, sizes, None), at=at, release=found.release, skipped=skipped)
        assert bought is not None
        event = events.compose(bought, event)
    return Private(job, event, None if filtered is None else filtered.histogram, sampler)


def _clip(
    budget: Budget, sampler: Sampler, options: Options, steps: int, n: int, found: weights.Weights | None
) -> float:
    """The clip that is given, or the planned one: in units of the records, where their scale is to be bought."""
    if found is None or options.clip is not None:
        return choose_clip(budget, sampler, options, steps, n)
    unit = found.sizes.clip * found.family.usual_residual
    if found.release is not None:
        return unit
    if found.row_bound is None or math.isinf(found.row_bound) or found.family.unknown_information:
        return choose_clip(budget, sampler, options, steps, n)
    return check_clip(unit * found.row_bound)


def _with_curvature(
    parameters: MechanismParameters, found: weights.Weights, prior: float, unit: float, given: bool
) -> MechanismParameters:
    """With a bound of the curvature, where the rows have one, or rows and clip are in their own units."""
    parameters = replace(parameters, weighted=True, unit=unit)
    bound = REACH if found.release is not None else found.row_bound
    if bound is None or math.isinf(bound) or (found.release is not None and given):
        return parameters
    steepest = found.family.weighted_smoothness(bound, parameters.clip)
    return replace(parameters, curvature=steepest + (0.0 if found.release is not None else prior / parameters.n))


def _typical(model: Model) -> float:
    assert model.linear is not None
    return 1.0 if model.linear.weighting is None else model.linear.weighting.typical


def _size(model: Model, records: Records, key: jax.Array, planted: Planted | None) -> int:
    """The number of the model's parameters."""
    return unraveller(model, records.arrays, key)[0].size if planted is None else planted.first


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
    unit = job if isinstance(job, Job) else job.unit
    summary = _summary(model, sampler, unit, options.draws)
    if isinstance(job, ScaledJob):
        summary = replace(summary, scale=job.release.to_json(), clip_given=options.clip is not None or None)
    wanted, postprocess = accounts(options.account).individual, sampler.postprocess(options.draws)
    if planted is not None:
        postprocess = _append_canaries(postprocess, unit.parameters.canary_coordinates)
    plan = Plan(
        model,
        records,
        job,
        event,
        summary,
        lambda step: spent_after(job, step),
        postprocess=postprocess,
        describe=lambda summary: _describe_run(summary, job, options.clip is not None),
    )
    if isinstance(job, ScaledJob):
        return plan._replace(released=f"the scale of the records, {EVERY_ITERATE}")
    if wanted is None:
        return plan
    summary = replace(summary, individual={"stretch": wanted.stretch, "histogram": wanted.histogram})
    plan = plan._replace(summary=summary, spent_after=None)
    return plan if binning is None else plan._replace(released=event.released(), histogram=binning.release)


def _describe_run(summary: Any, job: Job | ScaledJob, given: bool) -> Any:
    """The summary with what is known once the run is over: all of it post-processing of what was released."""
    ran = job.ran
    sizes = ran.kernel.schedule.step_size
    if isinstance(job, ScaledJob):
        linear = ran.gradient_sum.per_example
        assert isinstance(linear, GLM)
        weighting = linear.linear.weighting
        assert weighting is not None
        own = {"clip": ran.parameters.clip, "row_bound": weighting.row_bound, "typical": weighting.typical}
        sized = {"step_size": float(sizes[0]), "last_step_size": float(sizes[-1])}
        if isinstance(summary, SamplerSummary):
            sized["diffusion_time"] = diffusion_time(ran)
        assert job.scale is not None
        scale = {**summary.scale, "norm": job.scale.norm}
        summary = replace(summary, **own, **sized, scale=scale | ({"count": job.scale.count} if job.release.counts else {}))
    return replace(summary, lag_one=ran.lag_one)


def _append_canaries(
    postprocess: Callable[[np.ndarray, Any], np.ndarray] | None, coordinates: int
) -> Callable[[np.ndarray, Any], np.ndarray]:
    """Draws in the parameters of the model with canaries, whose own stay at 0."""

    def append(kept: np.ndarray, source: Any) -> np.ndarray:
        draws = kept if postprocess is None else postprocess(kept, source)
        return np.concatenate([draws, np.zeros((*draws.shape[:-1], coordinates), draws.dtype)], axis=-1)

    return append


def spent_after(job: Job | ScaledJob, step: int) -> Event:
    """The first steps of the run, after its scale was bought where it is."""
    unit = job if isinstance(job, Job) else job.unit
    so_far = type(unit.kernel.schedule)(*(column[:step] for column in unit.kernel.schedule))
    steps = events.compose(gaussian_event(unit.parameters, so_far), repeats=unit.chains)
    return steps if isinstance(job, Job) else events.compose(job.release.event(), steps)


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
        **_weighting(job),
    }
    return kind.of(sampler.to_json() | common | own)


def _weighting(job: Job) -> dict[str, Any]:
    """How scores are bounded, where it is by weights."""
    glm = job.gradient_sum.per_example
    if not isinstance(glm, GLM) or glm.linear.weighting is None or math.isinf(job.parameters.clip):
        return {}
    bound = glm.linear.weighting.row_bound
    known = {} if math.isinf(bound) else {"row_bound": bound, "typical": glm.linear.weighting.typical}
    return {"clipping": "weighted", **known}


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
