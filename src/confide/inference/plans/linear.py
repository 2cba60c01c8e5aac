r"""Plans for linear models: scoring where the noise scale is learnt, and noisy sufficient statistics.

With shares q_j of mu^2 that add up to 1, question j has noise of Delta_j / (mu sqrt(q_j)), Delta its sensitivity: 1 for
a record that is added or removed, sqrt(2) for a matrix of one that is replaced (`events.InformationSums`), and 2 for
its scores. The scale of rows and outcomes takes as much as for any other run whose scores are weighted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from confide import validation
from confide.inference.linear import questions
from confide.inference.linear.expectations import choose_cuts
from confide.inference.linear.job import LinearScoringJob
from confide.inference.linear.statistics_job import StatisticsJob
from confide.inference.options import Options
from confide.inference.plans.plan import Plan
from confide.inference.plans.weights import scale_release
from confide.inference.release import OWN
from confide.inference.summaries.linear import LinearScoringSummary, MomentsSummary
from confide.inference.summaries.runs import RunSummary
from confide.mechanism import grid, noise, query_grid
from confide.mechanism.canaries import Planted
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.linear_sums import CHUNK, entries
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, unraveller
from confide.privacy import events, pricing
from confide.privacy.budget import Budget
from confide.privacy.events.individual import CHANGE
from confide.samplers import Sampler
from confide.samplers.scoring import Scoring
from confide.samplers.sufficient_statistics import SufficientStatistics
from confide.validation import Refused

SUMS = "the noisy sums of the run (release.json), its draws, and anything computed from them"
FURTHEST = 1e15  # norm that a row may be declared to have, or its inverse
MOST, MOST_SECURE = 1000, 200  # parameters


class Bought(NamedTuple):
    """What is bought of the scale, and what is left of mu."""

    scale: LinearScaleRelease
    left: float


def plan_scoring(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Scoring,
    options: Options,
    constant: int | None,
    key: Any,
    planted: Planted | None = None,
) -> Plan:
    """Of a model whose noise scale is learnt; what goes with scoring at all was checked before, and nothing is planned
    by canaries."""
    flat, unravel = unraveller(model, records.arrays, key)
    check_likelihood(model, records, flat, unravel)
    size, secure = _check_size(int(flat.size), options), options.noise == "secure"
    bought = _buy(model, records, budget)
    shares = np.array(list(questions.SHARES.values()))
    start, steps, end = shares / shares.sum()
    each, both = steps * questions.growing(questions.STEPS), np.array([start, end])
    change = events.SENSITIVITY[budget.neighbours]
    sums = noise.multiplier_needed(change / bought.left / np.sqrt(each), noise.CONTRIBUTIONS.lost(size + 1))
    sums = query_grid.round_up(sums)
    rounding = noise.CONTRIBUTIONS if secure else noise.SUMS
    wanted = CHANGE[budget.neighbours] / bought.left / np.sqrt(both)
    informations = query_grid.round_up(noise.multiplier_needed(wanted, rounding.lost(entries(size))))
    grid.check_grid(records.places, CHUNK, float(min(np.min(sums), np.min(informations))))
    event = events.compose(
        bought.scale.event(),
        events.InformationSums(noise_multipliers=tuple(rounding.worth(informations, entries(size)))),
        events.gaussian(noise.CONTRIBUTIONS.worth(sums, size + 1)),
    )
    settings = model.settings or {}
    prior = settings.get("prior", OWN)
    assert model.linear is not None
    job = LinearScoringJob(
        scale=bought.scale,
        cuts=choose_cuts(records.number, size, bought.left / change * math.sqrt(steps)),
        multipliers=sums,
        information_multipliers=informations,
        secure=secure,
        size=size,
        number=records.number,
        intercept=model.linear.intercept,
        constant=constant,
        prior_scale=float(settings.get("prior_scale", 1.0)),
        prior=prior,
        log_prior=(lambda theta: model.log_prior(unravel(theta))) if prior == OWN else None,
        draws=validation.count(draws=sampler.draws if options.draws is None else options.draws),
        planted=planted,
    )
    told = {
        **_common(model, sampler, job),
        "steps": job.steps,
        "noise_multipliers": sums.tolist(),
        "information_multipliers": informations.tolist(),
        "cuts": list(job.cuts),
    }
    summary = LinearScoringSummary.of(told)
    return Plan(model, records, job, event, summary, None, SUMS, describe=lambda told, _: _describe(told, job))


def plan_statistics(
    model: Model, records: Records, budget: Budget, sampler: Sampler, options: Options, key: jax.Array
) -> Plan:
    """Of any linear model with a normal prior."""
    assert isinstance(sampler, SufficientStatistics)
    family, linear = model.family, model.linear
    if family is None or linear is None or not family.linear_moments:
        raise Refused(f"sufficient_statistics is for linear regression, and this is {model.name}: choose scoring")
    settings = model.settings or {}
    if settings.get("prior") != "gaussian":
        raise Refused("sufficient_statistics is for a Gaussian prior: choose scoring")
    check_options(options, sampler.name)
    check_norm_bound(linear.norm_bound)
    flat, unravel = unraveller(model, records.arrays, key)
    check_likelihood(model, records, flat, unravel)
    size, secure = _check_size(int(flat.size), options, MOST_SECURE), options.noise == "secure"
    bought = _buy(model, records, budget)
    rounding, several = noise.CONTRIBUTIONS if secure else noise.SUMS, entries(size + 1)
    wanted = np.array(CHANGE[budget.neighbours] / bought.left)
    multiplier = query_grid.round_up(noise.multiplier_needed(wanted, rounding.lost(several)))
    grid.check_grid(records.places, CHUNK, float(multiplier))
    worth = (float(rounding.worth(multiplier, several)),)
    event = events.compose(bought.scale.event(), events.InformationSums(noise_multipliers=worth))
    bound = linear.norm_bound
    job = StatisticsJob(
        scale=bought.scale,
        multiplier=float(multiplier),
        secure=secure,
        size=size,
        number=records.number,
        intercept=linear.intercept,
        norm_bound=math.hypot(bound, 1.0) if bound is not None and linear.intercept else bound,
        prior_scale=float(settings["prior_scale"]),
        noise_scale=settings.get("noise_scale"),
        draws=validation.count(draws=sampler.draws if options.draws is None else options.draws),
    )
    told = {
        **_common(model, sampler, job),
        "noise_multiplier": job.multiplier,
        "learnt": job.noise_scale is None,
    }
    summary = MomentsSummary.of(told)
    return Plan(model, records, job, event, summary, None, SUMS, describe=lambda told, _: _describe(told, job))


def check_options(options: Options, name: str) -> None:
    """Refuse what only runs by steps have."""
    given = {
        "batch_size": options.batch_size,
        "steps": options.steps,
        "clip": options.clip,
        "clipping": options.clipping,
        "burn_in": options.burn_in,
        "chains": None if options.chains == 1 else options.chains,
    }
    for option, value in given.items():
        if value is not None:
            raise Refused(
                f"{option} = {value} is not of the sampler {name}, which asks all records a few times: leave it out, "
                "or choose a sampler that takes steps, such as sgld"
            )


def check_norm_bound(bound: float | None) -> None:
    if bound is not None and not 1 / FURTHEST <= bound <= FURTHEST:
        raise Refused(f"norm_bound = {bound:g} is beyond single precision: scale the rows and their bound")


def _check_size(size: int, options: Options, most: int = MOST) -> int:
    most = MOST_SECURE if options.noise == "secure" else most
    if size > most:
        raise Refused(f"matrices of {size} x {size} would be released: use sgld above {most} parameters")
    return size


def _buy(model: Model, records: Records, budget: Budget) -> Bought:
    assert model.family is not None
    assert model.linear is not None
    mu = pricing.gdp_mu(budget.epsilon, budget.delta)
    rows = scale_release(model.family, model.linear, records.number, mu, budget.neighbours, finer=True)
    scale = LinearScaleRelease(
        rows=replace(rows, noise=float(query_grid.round_up(rows.noise * math.sqrt(1.5))))
    )  # three figures in place of two
    return Bought(scale, math.sqrt(mu**2 - scale.event().parts(budget.neighbours).squared_mu))


def _common(model: Model, sampler: Sampler, job: LinearScoringJob | StatisticsJob) -> dict[str, Any]:
    return sampler.to_json() | {
        "model": model.name,
        "records": job.number,
        "parameters": job.size,
        "chains": 1,
        "draws": job.draws,
        "scale": job.scale.to_json(),
    }


def _describe(summary: RunSummary, job: LinearScoringJob | StatisticsJob) -> RunSummary:
    """With what is known once the run is over."""
    assert job.release is not None
    return type(summary).of(summary.to_json() | job.release.describe(summary.to_json()["scale"]))
