"""From a model, the shape of the data and a budget to a Job and what it costs: what is not given is planned.

**Step size.** The noise multiplier of every step falls as the square root of the step sizes, so one calibration with
the tight accountant gives the factor by which they may be multiplied. It is never more than `Sampler.longest`: a step
longer than that does not follow the gradient any more, and a budget that pays for more is better not spent.

**Scores that are bounded by weights** are planned in units of the records (`plans.weights`): noise multipliers and the
price here, and clip, step sizes and noise once the scale is bought.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import jax
import numpy as np

from confide import validation
from confide.inference import traces
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans import individual, weights
from confide.inference.plans.estimates import SAMPLES
from confide.inference.plans.run_setup import (
    STEPS,
    RunSetup,
    build_job,
    check_accounts,
    check_clip,
    check_grid,
    choose_clip,
    reserve_places,
    run_setup,
)
from confide.inference.plans.scaled_job import ScaledJob, trace_prior
from confide.inference.plans.weights import Weights
from confide.mechanism import noise
from confide.mechanism.canaries import LONGEST, Planted
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.kernel import Kernel, MechanismParameters, noise_multipliers, rounding_loss
from confide.mechanism.oracle import Observers
from confide.mechanism.scale import Scale
from confide.models.inputs import Records
from confide.models.model import Model, Weighting
from confide.models.tracing import unraveller
from confide.privacy import calibration, events
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.extra_accounts import Accounts, accounts
from confide.privacy.significant_digits import round_digits
from confide.samplers import Sampler
from confide.validation import Refused


@dataclass(frozen=True)
class Asked:
    """A run by steps, as it is asked for."""

    model: Model
    records: Records
    budget: Budget
    sampler: Sampler
    options: Options
    key: jax.Array
    planted: Planted | None = None  # canaries, where the model and the data have some
    beside: Event | None = None  # what the same budget pays for as well
    buys: bool = True  # whether the scale of the records may be bought


class Private(NamedTuple):
    job: Job | ScaledJob
    event: Event
    binning: individual.Binning | None  # how a histogram is made of what records spent, if one is
    sampler: Sampler  # as planned


class Draft(NamedTuple):
    """What is decided before the step sizes."""

    asked: Asked  # with all that it left out
    weights: Weights | None  # None: gradients are cut by their own length
    setup: RunSetup
    parameters: MechanismParameters
    prior_curvature: float
    buffer: int | None  # places for a batch; None for full ones
    overflow: events.Release | None  # what it costs one chain that they may not do
    left: Budget  # for the steps of all chains

    @property
    def bought(self) -> Event | None:
        """The release of the scale."""
        return None if self.weights is None or self.weights.release is None else self.weights.release.event()


class Calibrated(NamedTuple):
    sampler: Sampler
    parameters: MechanismParameters
    sizes: np.ndarray
    share: individual.Share | None
    final: bool  # whether noise and step sizes were given


def decide(asked: Asked) -> Private:
    """The run that the budget pays for."""
    draft = _draft(asked)
    asked, chains = draft.asked, draft.asked.options.chains
    sampler, parameters, sizes, share, final = found = _calibrate(draft)
    kernel = sampler.build(sampler, parameters, sizes)
    kept = accounts(asked.options.account)
    if kept != Accounts() and np.any(kernel.schedule.fisher_noise > 0):
        raise Refused(
            f"{sampler.name} releases a second sum, which other accounts than 'dp' do not see: choose another sampler"
        )
    check_grid(parameters.rows, draft.buffer, float(np.min(kernel.schedule.noise)) / parameters.clip)
    filtered = None
    if share is not None:  # from the noise that will be drawn
        stretch = kept.individual.stretch if final and kept.individual is not None else None
        filtered = individual.make_filter(share, stretch, draft.left, parameters, kernel.schedule.noise, chains)
    event = kernel.event() if filtered is None else filtered.event
    if draft.overflow is not None:
        event = events.compose(event, draft.overflow)
    if filtered is None and chains > 1:
        event = events.compose(event, repeats=chains)
    if draft.bought is not None:
        event = events.compose(draft.bought, event)
    job = _job(draft, found, kernel, filtered)
    return Private(job, event, None if filtered is None else filtered.histogram, sampler)


def _draft(asked: Asked) -> Draft:
    sampler, budget, n = asked.sampler, asked.budget, asked.records.number
    options = replace(asked.options, draws=sampler.keep(asked.options.draws, asked.options.burn_in))
    options = check_accounts(asked.model, budget, options, n)
    validation.count(chains=options.chains)
    if options.steps is not None:
        validation.count(steps=options.steps)
    if options.batch_size is not None:
        calibration.sizes(n, options.batch_size)
    asked, found = replace(asked, options=options), None
    if weights.is_weighted(asked.model, options):
        asked, found = _weigh(asked)
    options, model = asked.options, asked.model
    steps = validation.count(steps=STEPS if options.steps is None else options.steps)
    setup = run_setup(model, asked.records, options, _clip(asked, steps, found), asked.key, asked.planted)
    parameters, curved = weights.bound_curvature(setup, found, options.clip is not None)
    buffer, overflow = reserve_places(parameters, steps, options.chains, budget)
    reserved = 0.0 if overflow is None else overflow.parts(budget.neighbours).failure
    left = replace(budget, delta=budget.delta - options.chains * reserved)
    return Draft(asked, found, setup, parameters, curved, buffer, overflow, left)


def _weigh(asked: Asked) -> tuple[Asked, Weights]:
    """With steps and batches as planned, and a model whose scores are weighted."""
    model, options, sampler = asked.model, asked.options, asked.sampler
    records, buys = asked.records, asked.buys and accounts(options.account) == Accounts()
    planted = asked.planted
    size = unraveller(model, records.arrays, asked.key)[0].size if planted is None else planted.first
    found = weights.plan_weights(model, asked.budget, sampler, options, records.number, size, buys)
    steps = found.sizes.steps
    sized = replace(
        options,
        steps=steps,
        batch_size=found.sizes.batch_size,
        draws=sampler.snapshots(steps) or options.draws,
    )
    model = weights.weigh(model, math.inf if found.row_bound is None else found.row_bound, _typical(model))
    return replace(asked, model=model, options=sized), found


def _clip(asked: Asked, steps: int, found: Weights | None) -> float:
    """The clip that is given, or the planned one: in units of the records, where their scale is to be bought."""
    options, bound = asked.options, asked.model.gradient_bound
    if bound is not None and options.clip is None:
        return check_clip(bound)  # nothing is cut
    if found is not None and options.clip is None:
        unit = round_digits(found.sizes.clip * found.family.usual_residual)
        if found.release is not None:
            return unit
        if found.row_bound is not None and math.isfinite(found.row_bound) and not found.family.unknown_information:
            return check_clip(round_digits(unit * found.row_bound))
    return choose_clip(asked.budget, asked.sampler, options, steps, asked.records.number)


def _typical(model: Model) -> float:
    assert model.linear is not None
    return 1.0 if model.linear.weighting is None else model.linear.weighting.typical


def _calibrate(draft: Draft) -> Calibrated:
    """The sampler and its step sizes as the budget pays for them."""
    asked, parameters, start = draft.asked, draft.parameters, draft.setup.initial_positions[0]
    own = asked.records.arrays if asked.planted is None else asked.planted.original
    sampler = replace(asked.sampler, budget=asked.budget).bind(asked.model, own, parameters.n, start, parameters.unit)
    sampler, sizes, final = sampler.trial(parameters, draft.setup.steps)
    given, share, spare = sampler.step_size is not None, None, None
    if draft.weights is not None and given and asked.options.clip is None and not sampler.optimises:
        whole = replace(parameters, clip=1.0)  # the longest clip that the budget pays for
        clip = math.sqrt(_spare(sampler, whole, sizes, draft)) * (1 - 1e-9)
        clip = weights.useful_clip(
            draft.weights, sampler, parameters, float(np.max(sizes)), draft.prior_curvature, clip
        )
        parameters = replace(parameters, clip=check_clip(round_digits(clip, "down")))
        parameters = weights.bound_weighted(parameters, draft.weights, draft.prior_curvature, given=False)
    wanted = accounts(asked.options.account).individual
    if wanted is not None:
        share = individual.share(
            wanted, draft.left, parameters, _unit(sampler, parameters, sizes), asked.options.chains
        )
    if not final:
        spare = share.factor if share is not None else _spare(sampler, parameters, sizes, draft)
    sampler, sizes = sampler.calibrate(parameters, sizes, spare)
    if final or given:
        sampler.check_stable(parameters, sizes)
    return Calibrated(sampler, parameters, sizes, share, final)


def _job(draft: Draft, found: Calibrated, kernel: Kernel, filtered: individual.Filtered | None) -> Job | ScaledJob:
    """What is run: at once, or where its scale is bought."""
    asked, sampler, planted = draft.asked, found.sampler, draft.asked.planted
    kept, model, planned = accounts(asked.options.account), draft.setup.model, draft.weights
    bounded = model.gradient_bound is not None
    known = draft.bought is None or asked.options.clip is not None  # whether the clip is, before the run is paid for

    def build(parameters: MechanismParameters, sizes: np.ndarray, weighting: Weighting | None) -> Job:
        kernel = sampler.build(sampler, parameters, sizes)
        observers = Observers(
            samples=SAMPLES if kept.bayesian else 0,
            filter=None if filtered is None else filtered.filter,
            canaries=None if planted is None else _canary_test(planted, parameters, kernel, known),
            trace=None if filtered is not None or not bounded else traces.observer(model, parameters, kernel),
        )
        own = model if weighting is None else weights.weigh(model, *astuple(weighting))
        here = draft.setup._replace(model=own, parameters=parameters)
        microbatch, trail = asked.options.microbatch, not sampler.optimises
        return build_job(here, asked.records.arrays, kernel, draft.buffer, microbatch, observers, trail=trail)

    if planned is None:
        return build(found.parameters, found.sizes, None)
    curved = draft.prior_curvature
    if planned.release is None:
        bound, longest = planned.row_bound, float(np.max(found.sizes))
        if bound is None:
            bound = weights.stable_row_bound(planned.family, sampler, found.parameters, longest, curved)
        return build(found.parameters, found.sizes, Weighting(bound, _typical(model)))
    parameters = trace_prior(found.parameters)
    least = noise_multipliers(parameters, kernel.schedule, rounded=False)

    def at(scale: Scale) -> Job:
        given = asked.options.clip is not None
        job = build(*weights.scaled(planned, sampler, parameters, found.sizes, scale, curved, given))
        drawn = noise_multipliers(job.parameters, job.kernel.schedule, rounded=False)
        assert np.all(drawn >= least * (1 - 1e-13)), "less noise than was priced"
        return job

    skipped = None if planted is None else planted.places
    unit = build(parameters, found.sizes, None)
    return ScaledJob(unit=unit, at=at, release=planned.release, skipped=skipped)


def _canary_test(canaries: Planted, parameters: MechanismParameters, kernel: Kernel, known: bool) -> CanaryTest:
    """How canaries are scored; `known` is whether the clip was before the run was paid for, which nothing refuses any
    more: one that is near the length of their gradients is then felt as less than it is, and costs the audit power."""
    if np.any(kernel.schedule.fisher_noise > 0):
        raise Refused("canaries: the sampler releases a second sum, which scores do not see: choose another, as sgld")
    if parameters.clip > LONGEST and known:
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


def _unit(sampler: Sampler, parameters: MechanismParameters, sizes: np.ndarray) -> np.ndarray:
    """Noise multipliers of these step sizes, without what rounding to the grid takes."""
    return noise_multipliers(parameters, sampler.build(sampler, parameters, sizes).schedule, rounded=False)


def _spare(
    sampler: Sampler,
    parameters: MechanismParameters,
    sizes: np.ndarray,
    draft: Draft,
) -> float:
    """What the squares of the noise may be divided by."""
    budget, chains = draft.left, draft.asked.options.chains
    others = [event for event in (draft.asked.beside, draft.bought) if event is not None]
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
        beside=events.compose(*others) if others else None,
    )
    wanted = noise.multiplier_needed(factor * (np.ones(1) if equal else unit), rounding_loss(parameters, schedule))
    return float(np.min(unit[: wanted.size] / wanted)) ** 2 * (1 - 1e-12)
