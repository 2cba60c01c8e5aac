"""Plans of runs by steps: the run that a budget pays for (`plans.private_steps`), and what is said of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax
import numpy as np

from confide.inference import traces
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans.plan import Plan
from confide.inference.plans.private_steps import Asked, decide
from confide.inference.plans.run_setup import build_job, gentle_step, run_setup
from confide.inference.plans.scaled_job import ScaledJob
from confide.inference.summaries.runs import OptimiserSummary, SamplerSummary, Steps, VariationalSummary
from confide.mechanism import batches, noise
from confide.mechanism.canaries import Planted
from confide.mechanism.clipping import GLM, whole_chunks
from confide.mechanism.kernel import gaussian_event
from confide.models.inputs import Records, as_records
from confide.models.model import Model
from confide.privacy import events
from confide.privacy.budget import Budget
from confide.privacy.events import EVERY_ITERATE, Event
from confide.privacy.extra_accounts import accounts
from confide.samplers import Sampler

Kind = TypeVar("Kind", bound=Steps)
DIGITS = 3  # of what cannot be recomputed from what is stored


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
    asked = Asked(model, as_records(data), budget, sampler, options, key, beside=beside, buys=False)
    found = decide(asked)
    assert isinstance(found.job, Job)
    return found.job, found.event


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
    job, event, binning, sampler = decide(Asked(model, records, budget, sampler, options, key, planted=planted))
    unit = job if isinstance(job, Job) else job.unit
    summary = _summary(model, sampler, unit, options.draws)
    if isinstance(job, ScaledJob):
        summary = replace(summary, scale=job.release.to_json(), clip_given=options.clip is not None or None)
    wanted, postprocess = accounts(options.account).individual, sampler.postprocess(options.draws)
    if summary.clipping is not None:
        postprocess = _draw_shift(model, sampler, postprocess)
    if planted is not None:
        postprocess = append_canaries(postprocess, unit.parameters.canary_coordinates)
    plan = Plan(
        model,
        records,
        job,
        event,
        summary,
        lambda step: spent_after(job, step),
        postprocess=postprocess,
        describe=lambda summary, kept: describe_run(summary, job, sampler.drift(kept)),
    )
    if isinstance(job, Job) and job.observers.trace is not None:
        arrays = records.arrays if planted is None else planted.original
        kept = functools.partial(traces.of_run, job, model.gradient_bound, arrays)
        return plan._replace(released=f"every noisy sum and {EVERY_ITERATE}", trace=kept)
    if isinstance(job, ScaledJob):
        return plan._replace(released=f"the scale of the records, and {EVERY_ITERATE}")
    if wanted is None:
        return plan
    summary = replace(summary, individual={"stretch": wanted.stretch, "histogram": wanted.histogram})
    plan = plan._replace(summary=summary, spent_after=None)
    return plan if binning is None else plan._replace(released=event.released(), histogram=binning)


def describe_run(summary: Steps, job: Job | ScaledJob, drift: float | None) -> Steps:
    """The summary with what is known once the run is over: all of it post-processing of what was released.

    The least correlation of iterates and the drift are of iterates that are not stored, and cannot be recomputed: they
    are rounded to `DIGITS` digits, in which little else could be written."""
    ran = job.ran
    sizes = ran.kernel.schedule.step_size
    if isinstance(job, ScaledJob):
        linear = ran.gradient_sum.per_example
        assert isinstance(linear, GLM)
        weighting = linear.linear.weighting
        assert weighting is not None
        own = {"clip": ran.parameters.clip, "row_bound": weighting.row_bound, "information": weighting.typical}
        sized = {"step_size": float(sizes[0]), "last_step_size": float(sizes[-1])}
        if isinstance(summary, SamplerSummary):
            sized["diffusion_time"] = diffusion_time(ran)
        assert job.scale is not None
        assert job.answers is not None
        scale = {**(summary.scale or {}), "norm": job.scale.norm, "answers": job.answers.to_json()}
        summary = replace(
            summary, **own, **sized, scale=scale | ({"count": job.scale.outcome} if job.release.counts else {})
        )
    return replace(summary, lag_one=_short(ran.lag_one), drift=_short(drift))


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _draw_shift(
    model: Model, sampler: Sampler, postprocess: Callable[[np.ndarray, Any], np.ndarray] | None
) -> Callable[[np.ndarray, Any], np.ndarray] | None:
    """Draws of softmax regression with what all classes share drawn from its prior, which is its posterior.

    No record tells it, so that a chain has nothing but the prior to settle by there, which takes as many times longer
    as there are records. Under a normal prior it is independent of all differences; a point has it at the mode.
    """
    family, settings = model.family, model.settings or {}
    if family is None or not family.shared_shift or settings.get("prior") != "gaussian":
        return postprocess
    classes, spread = family.outputs[0], 0.0
    if not sampler.point:
        heat = 1.0 if sampler.optimises else sampler.temperature
        spread = settings["prior_scale"] * math.sqrt(heat / classes)

    def draw(kept: np.ndarray, source: Any) -> np.ndarray:
        draws = kept if postprocess is None else postprocess(kept, source)
        groups = draws.reshape(*draws.shape[:-1], -1, classes)  # the scores of a feature are next to each other
        key = noise.key_of(noise.separate(source, "shift"), 0)
        shift = spread * np.asarray(jax.random.normal(key, (*groups.shape[:-1], 1)))
        return (groups - groups.mean(axis=-1, keepdims=True) + shift).reshape(draws.shape).astype(draws.dtype)

    return draw


def append_canaries(
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
        **({} if model.gradient_bound is None else {"gradient_bound": model.gradient_bound}),
    }
    return kind.of(sampler.to_json() | common | own)


def _weighting(job: Job) -> dict[str, Any]:
    """How scores are bounded, where it is by weights."""
    glm = job.gradient_sum.per_example
    if not isinstance(glm, GLM) or glm.linear.weighting is None or math.isinf(job.parameters.clip):
        return {}
    bound = glm.linear.weighting.row_bound
    known = {} if math.isinf(bound) else {"row_bound": bound, "information": glm.linear.weighting.typical}
    return {"clipping": "weighted", **known}


def _summary(model: Model, sampler: Sampler, job: Job, draws: int | None) -> Steps:
    own = sampler.describe(draws)
    if sampler.optimises:
        return describe(OptimiserSummary if sampler.point else VariationalSummary, model, sampler, job, **own)
    return describe(SamplerSummary, model, sampler, job, diffusion_time=diffusion_time(job), **own)


def diffusion_time(job: Job) -> float:
    return math.fsum(job.kernel.schedule.step_size)


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
