r"""Plans of private scoring: how a budget of mu is divided, from public numbers alone.

With shares q_j of mu^2 that add up to 1, question j has noise of Delta_j / (mu sqrt(q_j)), Delta its sensitivity: 1 for
a record that is added or removed, sqrt(2) for the information of one that is replaced (`events.InformationSums`), and 2
for its scores. The scale takes as much as for any other run whose scores are weighted; the rest is divided by
`inference.scoring.SHARES`.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from confide import validation
from confide.inference import scoring
from confide.inference.options import Options
from confide.inference.plans import linear as linear_plans
from confide.inference.plans.plan import Plan
from confide.inference.plans.stochastic import append_canaries
from confide.inference.plans.weights import scale_release
from confide.inference.regression import plan as regression
from confide.inference.release import OWN
from confide.inference.scoring_job import ScoringJob
from confide.inference.summaries.runs import RunSummary
from confide.inference.summaries.scoring import ScoringSummary
from confide.mechanism import grid, noise, query_grid
from confide.mechanism.canaries import Planted
from confide.mechanism.clipping import CHUNK
from confide.mechanism.information import MOST, SEVERAL, entries
from confide.models.family import Family
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, unraveller
from confide.privacy import events, pricing
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.events.individual import CHANGE
from confide.samplers import Sampler
from confide.samplers.scoring import Scoring
from confide.validation import Refused

RELEASED = "the noisy sums of the run (release.json), its draws, and anything computed from them"
MOST_SECURE = 200  # parameters whose products are rounded record by record


def make_plan(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Sampler,
    options: Options,
    key: jax.Array,
    planted: Planted | None = None,
) -> Plan:
    """From the model and the records as they are; canaries are beside them, and nothing is planned by these."""
    assert isinstance(sampler, Scoring)
    _check(model, options)
    assert model.family is not None
    if sampler.features is not None and regression.serves(model):
        constant = _constant(model, sampler.constant)
        plan = regression.make_plan(model, records, budget, sampler, options, constant, planted)
    elif model.family.learns_noise:
        constant = _constant(model, sampler.constant)
        plan = linear_plans.plan_scoring(model, records, budget, sampler, options, constant, key, planted)
    else:
        plan = _plan(model, records, budget, sampler, options, key, planted)
    return plan if planted is None else _among_canaries(plan, planted)


def _plan(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Scoring,
    options: Options,
    key: jax.Array,
    planted: Planted | None,
) -> Plan:
    """Of a family without a noise scale, or with a given one."""
    family, linear = model.family, model.linear
    assert family is not None
    assert linear is not None
    flat, unravel = unraveller(model, records.arrays, key)
    check_likelihood(model, records, flat, unravel)
    size, n = int(flat.size), records.number
    rows = size // math.prod(family.outputs)
    secure = options.noise == "secure"
    _check_sizes(family, size, secure)
    mu = pricing.gdp_mu(budget.epsilon, budget.delta)
    bought = scale_release(family, linear, n, mu, budget.neighbours, finer=True)
    left = math.sqrt(mu**2 - bought.event().parts(budget.neighbours).squared_mu)
    shares = np.array(list(scoring.SHARES.values()))
    start, steps, end = shares / shares.sum()
    rounding = noise.CONTRIBUTIONS if secure else noise.SUMS
    each = steps * scoring.growing(scoring.STEPS)
    change, both = events.SENSITIVITY[budget.neighbours], np.array([start, end])
    sums = query_grid.round_up(noise.multiplier_needed(change / left / np.sqrt(each), rounding.lost(size)))
    wanted = CHANGE[budget.neighbours] / left / np.sqrt(both)
    informations = query_grid.round_up(noise.multiplier_needed(wanted, rounding.lost(entries(rows))))
    grid.check_grid(records.places, CHUNK, float(min(np.min(sums), np.min(informations))))
    settings = model.settings or {}
    prior = settings.get("prior", OWN)
    job = ScoringJob(
        model=model,
        family=family,
        unravel=unravel,
        prior=prior,
        log_prior=(lambda theta: model.log_prior(unravel(theta))) if prior == OWN else None,
        scale=bought,
        multipliers=sums,
        information_multipliers=informations,
        rounding=rounding,
        size=size,
        number=n,
        constant=_constant(model, sampler.constant),
        categories=_categories(model, sampler.categories, sampler.constant),
        draws=validation.count(draws=sampler.draws if options.draws is None else options.draws),
        planted=planted,
    )
    summary = _summary(model, sampler, job)
    event = _event(job)
    return Plan(model, records, job, event, summary, None, RELEASED, describe=lambda told, _: _describe(told, job))


def _event(job: ScoringJob) -> Event:
    """What all questions reveal, by the noise that the job draws, with what rounding takes."""
    worth, triangle = job.rounding.worth, entries(job.rows)
    return events.compose(
        job.scale.event(),
        events.InformationSums(noise_multipliers=tuple(worth(job.information_multipliers, triangle))),
        events.gaussian(worth(job.multipliers, job.size)),
    )


def _among_canaries(plan: Plan, planted: Planted) -> Plan:
    """The same run on a table with canaries, whose draws are in the parameters of both."""
    whole = append_canaries(None, planted.coordinates)
    return plan._replace(model=planted.model, data=planted.data, postprocess=whole)


def _summary(model: Model, sampler: Sampler, job: ScoringJob) -> ScoringSummary:
    own = {
        "model": model.name,
        "records": job.number,
        "parameters": job.size,
        "chains": 1,
        "draws": job.draws,
        "steps": job.steps,
        "noise_multipliers": job.multipliers.tolist(),
        "information_multipliers": job.information_multipliers.tolist(),
        "scale": job.scale.to_json(),
    }
    return ScoringSummary.of(sampler.to_json() | own)


def _describe(summary: RunSummary, job: ScoringJob) -> RunSummary:
    """With what is known once the run is over."""
    assert isinstance(summary, ScoringSummary)
    assert job.release is not None
    return ScoringSummary.of(summary.to_json() | job.release.describe(summary.scale))


def _constant(model: Model, given: int | None) -> int | None:
    """The place of the constant among the parameters: an intercept comes first."""
    linear, columns = model.linear, (model.settings or {}).get("dimension")
    assert linear is not None
    if linear.intercept:
        if given is not None:
            raise Refused(f"constant = {given} beside an intercept would be a second one: leave one of them out")
        return 0
    if given is None or columns is None:
        return given
    if not -columns <= given < columns:
        raise Refused(f"constant = {given} is none of the {columns} columns: count from 0, or from the end with -1")
    return given % columns


def _categories(model: Model, given: tuple[tuple[int, ...], ...], constant: int | None) -> tuple[tuple[int, ...], ...]:
    """Their places among the parameters, of one score."""
    linear, columns = model.linear, (model.settings or {}).get("dimension")
    assert linear is not None
    listed = [column for each in given for column in each]
    if columns is not None and any(not 0 <= column < columns for column in listed):
        raise Refused(f"categories names a column that is none of the {columns}: count from 0")
    if constant is not None and columns is not None and constant % columns in listed:
        raise Refused(f"categories holds the constant, column {constant % columns}: leave it out there")
    return tuple(tuple(column + linear.intercept for column in each) for each in given)


def _check_sizes(family: Family, size: int, secure: bool) -> None:
    most = SEVERAL if family.outputs else MOST
    if size > (most := min(most, MOST_SECURE) if secure else most):
        raise Refused(f"scoring holds matrices of {size} x {size}: choose the sampler sgld above {most} parameters")


def _check(model: Model, options: Options) -> None:
    """Refuse what no data could make right."""
    bound = None if model.linear is None else model.linear.norm_bound
    linear_plans.check_norm_bound(bound)
    if model.family is None or model.linear is None:
        raise Refused(f"scoring is for generalised linear models, and this is {model.name}: choose another sampler")
    linear_plans.check_options(options, "scoring")
