r"""Plans of private regression: how a budget of mu is divided, from public numbers alone.

With shares q_j of mu^2 that add up to 1, query j has noise of Delta_j / (mu sqrt(q_j)) bounds, where Delta_j is what
one record can move its sum by: 1 bound where records come and go, 2 bounds where a vector is replaced, and sqrt(2)
where a matrix is (`events.InformationSums`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from confide import validation
from confide.data.features import Feature
from confide.inference.options import Options
from confide.inference.plans.plan import Plan
from confide.inference.regression.declared import make_design
from confide.inference.regression.design import Share, divide
from confide.inference.regression.families import FAMILIES
from confide.inference.regression.job import TAIL_BINS, RegressionJob
from confide.inference.summaries.regression import RegressionSummary
from confide.inference.summaries.runs import RunSummary
from confide.mechanism import grid, noise, query_grid
from confide.mechanism.canaries import Planted
from confide.mechanism.record_sums import CHUNK
from confide.mechanism.sum_queries import count_entries
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.priors import WIDE
from confide.privacy import events, pricing
from confide.privacy.budget import Budget
from confide.privacy.events.individual import CHANGE
from confide.samplers.scoring import Scoring
from confide.validation import Refused

RELEASED = "the noisy sums of the run (release.json), its draws, and anything computed from them"
MOST, MOST_SECURE = 1000, 200  # parameters
INTERCEPT = 2.0  # standard deviation of the intercept under the standardised prior, over that of a coefficient


def serves(model: Model) -> bool:
    """Whether the engine has the family of a model."""
    return model.family is not None and model.family.word in FAMILIES


def make_plan(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: Scoring,
    options: Options,
    constant: int | None,
    planted: Planted | None = None,
) -> Plan:
    """From public facts alone; what goes with scoring at all was checked before, and canaries change nothing."""
    family, linear = model.family, model.linear
    assert family is not None
    assert linear is not None
    assert sampler.features is not None
    features, secure = sampler.features, options.noise == "secure"
    if constant is None:
        raise Refused("features go with an intercept, and this model has none: give constant=, or intercept=True")
    columns = records.arrays[0].shape[1] - (not linear.intercept)
    if len(features) != columns:
        raise Refused(f"features describes {len(features)} columns, and the rows have {columns} beside the constant")
    if len(features) + 1 > (most := MOST_SECURE if secure else MOST):
        raise Refused(f"scoring holds matrices of {len(features) + 1} x {len(features) + 1}, above {most}: use sgld")
    design = make_design(family.word, features, _outcome_bounds(family.word, sampler), records.number)
    shares = divide(design)
    multipliers = _multipliers(shares, features, budget, secure)
    vectors, matrices = (
        np.array([multipliers[share.name] for share in shares if share.is_matrix == kind]) for kind in (False, True)
    )
    grid.check_grid(records.places, CHUNK, float(min(multipliers.values())))
    job = RegressionJob(
        family=family.word,
        features=features,
        outcome=design.outcome,
        number=records.number,
        constant=constant,
        has_column=not linear.intercept,
        prior=_prior(model, sampler),
        multipliers=vectors,
        information_multipliers=matrices,
        secure=secure,
        draws=validation.count(draws=sampler.draws if options.draws is None else options.draws),
        learns_noise=family.learns_noise,
        planted=planted,
    )
    summary = _summary(model, sampler, job)
    event = _event(job, shares, features)
    return Plan(
        model, records, job, event, summary, None, RELEASED, describe=lambda summary, _: _describe(summary, job)
    )


def _outcome_bounds(family: str, sampler: Scoring) -> tuple[float, float]:
    if FAMILIES[family].outcome_kind == "labels":
        return 0.0, 1.0
    if sampler.outcome is None:
        raise Refused(f"features go with public bounds of the outcome of a {family} model: give outcome=(low, high)")
    return sampler.outcome


def _prior(model: Model, sampler: Scoring) -> dict[str, Any]:
    settings = model.settings or {}
    columns = [feature.prior for feature in sampler.features or ()]
    given = any(prior is not None for prior in columns)
    if sampler.prior == "standardised":
        scales = {"slope": sampler.prior_scale, "intercept": INTERCEPT * sampler.prior_scale}
        return {"kind": "standardised", **scales, **({"columns": columns} if given else {})}
    if given:
        raise Refused("priors of single columns go with prior = 'standardised': leave 'encoded' out, or these")
    if settings.get("prior") not in ("gaussian", "wide_intercept"):
        raise Refused("prior = 'encoded' goes with a model whose prior is 'gaussian' or 'wide_intercept'")
    scale = float(settings["prior_scale"])
    return {"kind": "encoded", "scale": scale, "intercept": scale * (WIDE if settings["prior"] != "gaussian" else 1.0)}


def _rounding(is_matrix: bool, secure: bool) -> noise.Rounding:
    return noise.SUMS if is_matrix and not secure else noise.CONTRIBUTIONS


def _coordinates(share: Share, features: tuple[Feature, ...]) -> int:
    """At most so many numbers are released by a query."""
    if share.is_matrix:
        return count_entries(len(features) + 1)
    return max(TAIL_BINS, 2) * (len(features) + 1) + 4


def _multipliers(shares: list[Share], features: tuple[Feature, ...], budget: Budget, secure: bool) -> dict[str, float]:
    """Noise over the bound of a record, with room for rounding to the grid."""
    mu, multipliers = pricing.gdp_mu(budget.epsilon, budget.delta), {}
    for share in shares:
        change = CHANGE[budget.neighbours] if share.is_matrix else events.SENSITIVITY[budget.neighbours]
        lost = _rounding(share.is_matrix, secure).lost(_coordinates(share, features))
        needed = noise.multiplier_needed(np.array(change / mu / np.sqrt(share.share)), lost)
        multipliers[share.name] = float(query_grid.round_up(needed))
    return multipliers


def _event(job: RegressionJob, shares: list[Share], features: tuple[Feature, ...]) -> events.Event:
    """What all queries reveal, by the noise that the job draws, less what rounding takes."""

    def worth(is_matrix: bool, multipliers: np.ndarray) -> np.ndarray:
        chosen = [share for share in shares if share.is_matrix == is_matrix]
        rounding = _rounding(is_matrix, job.secure)
        return np.array(
            [rounding.worth(m, _coordinates(s, features)) for m, s in zip(multipliers, chosen, strict=True)]
        )

    return events.compose(
        events.InformationSums(noise_multipliers=tuple(worth(True, job.information_multipliers))),
        events.gaussian(worth(False, job.multipliers)),
    )


def _summary(model: Model, sampler: Scoring, job: RegressionJob) -> RegressionSummary:
    facts = {
        "model": model.name,
        "records": job.number,
        "parameters": job.size,
        "chains": 1,
        "draws": job.draws,
        "steps": job.steps,
        "noise_multipliers": job.multipliers.tolist(),
        "information_multipliers": job.information_multipliers.tolist(),
        "prior": dict(job.prior),
    }
    return RegressionSummary.of(sampler.to_json() | facts)


def _describe(summary: RunSummary, job: RegressionJob) -> RunSummary:
    """With what is known once the run is over."""
    assert job.release is not None
    return RegressionSummary.of(summary.to_json() | job.release.describe())
