"""The program of a private regression, built again for an audit on simulated tables.

The run is planned again from its plan, and its program is run once with the run's own answers, which are public: so
every query is known at the place where the run made it. Each is then asked of tables that hold one record or none, by
the functions of the run. Records that come and go lie in random directions, at all distances, with usual and huge
outcomes; those far out are cut to the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.audits import rebuilding, regression_queries
from confide.audits.rebuilding import source
from confide.audits.regression_queries import NamedQuery
from confide.audits.scoring_tables import HUGE, LENGTHS, Program, Release, Row
from confide.inference import requests, summaries
from confide.inference.options import Options
from confide.inference.plans import scoring
from confide.inference.posterior import Posterior
from confide.inference.regression import row_samples
from confide.inference.regression.job import SCORES, RegressionJob
from confide.inference.regression.release import RegressionRelease
from confide.inference.summaries.regression import RegressionSummary
from confide.mechanism import noise
from confide.models.inputs import Records
from confide.models.model import Model
from confide.privacy import events
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.events.individual import CHANGE
from confide.samplers.scoring import Scoring
from confide.validation import Refused

FAR = 1e6  # spreads from the center, where a record is cut to the bound in every query


@dataclass(frozen=True, kw_only=True)
class RegressionProgram(Program):
    """Its prices are those of the planned event: all queries are vectors or matrices."""

    heard_price: float  # mu^2 of the queries that the program makes

    @property
    def heard(self) -> float:
        return self.heard_price

    def stored(self, multipliers: Any) -> float:
        """mu^2 of what the run stored, by the noise that it says each answer has."""
        vectors, matrices = multipliers[events.GaussianSchedule], multipliers[events.InformationSums]
        assert isinstance(self.job, RegressionJob)
        planned = replace(self.job, multipliers=vectors, information_multipliers=matrices)
        same = np.array_equal(planned.multipliers, self.job.multipliers)
        same = same and np.array_equal(planned.information_multipliers, self.job.information_multipliers)
        return self.event.parts(self.neighbours).squared_mu if same else np.inf


def rebuild(posterior: Posterior, seed: int, generator: np.random.Generator) -> RegressionProgram:
    model, summary = rebuilding.check_model(posterior), summaries.from_json(posterior.plan)
    guarantee, release = posterior.guarantee, posterior.release
    assert isinstance(summary, RegressionSummary)
    assert isinstance(release, RegressionRelease)
    assert guarantee is not None
    stored = requests.options_from_json(posterior.plan.get("request", {}))
    if stored is None or not isinstance(stored["sampler"], Scoring):
        raise Refused("the run does not store what was asked: fit it again to audit it so")
    limits = summary.budget or {}
    budget = Budget(epsilon=limits["epsilon"], delta=limits["delta"], neighbours=guarantee.neighbours)
    secure = summary.noise == "secure"
    crowd = _crowd(model, release, posterior, int(summary.records), generator)
    options = Options(draws=1, noise="secure" if secure else "default")
    plan = scoring.make_plan(model, crowd, budget, stored["sampler"], options, noise.as_key(seed))
    job = plan.job
    assert isinstance(job, RegressionJob)
    first = source(seed, "program", 0, secure)
    queries = regression_queries.list_queries(job, release, job.without_constant(crowd), first)
    return RegressionProgram(
        size=job.size,
        secure=secure,
        scale=plan.event,
        event=plan.event,
        releases=[_to_release(job, named) for named in queries],
        rounding={},
        rows=_candidates(job, release, generator),
        crowd=crowd,
        neighbours=guarantee.neighbours,
        prepare=job.without_constant,
        job=job,
        asking=lambda execution: lambda question: np.zeros(0),
        heard_price=_price(queries, plan.event, guarantee.neighbours),
    )


def _to_release(job: RegressionJob, named: NamedQuery) -> Release:
    query = named.query
    upper = np.triu_indices(query.size)
    deviations: Any = query.deviation
    if query.is_matrix:
        deviations = query.deviation * np.where(upper[0] == upper[1], 1.0, np.sqrt(0.5))
    kind = "information" if query.is_matrix else "scores" if named.name.startswith(SCORES) else "scale"
    change = CHANGE["replace-one"] if query.is_matrix else events.SENSITIVITY["replace-one"]

    def answer(placed: Any, key: Any) -> np.ndarray:
        return regression_queries.answer(job, named, placed.table, key) / deviations

    return Release(kind, query.deviation / query.bound, answer, change)


def _price(queries: list[NamedQuery], event: Event, neighbours: Any) -> float:
    """mu^2 of the queries by the noise that each is to have, less than the event's by what rounding takes."""
    change = {True: CHANGE[neighbours], False: events.SENSITIVITY[neighbours]}
    return float(sum((change[q.is_matrix] * q.bound / q.deviation) ** 2 for _, q in queries))


def _crowd(
    model: Model, release: RegressionRelease, posterior: Posterior, number: int, generator: np.random.Generator
) -> Records:
    """Rows like those that the release describes, with outcomes that the model draws at the posterior mean."""
    assert model.simulate is not None
    assert model.linear is not None
    rows = row_samples.sample_rows(release.result, generator, max(1, number - 1))
    if not model.linear.intercept:
        rows = np.insert(rows, release.constant, 1.0, axis=1)
    mean = jax.tree.map(lambda leaf: np.asarray(leaf).mean(axis=(0, 1)), posterior.draws)
    outcomes = np.asarray(model.simulate(jax.random.key(int(generator.integers(2**31))), mean, jnp.asarray(rows)))
    return rebuilding.in_places((rows.astype(np.float32), outcomes.astype(np.float32)), number)


def _candidates(job: RegressionJob, release: RegressionRelease, generator: np.random.Generator) -> dict[str, Row]:
    """Records that come and go: first two that pull as hard as they can, in opposite ways."""
    location = release.result.frame.location
    low, high = release.outcome

    def row(distance: float, label: float) -> Row:
        features = location.center + distance * location.spread * direction
        if job.has_column:
            features = np.insert(features, release.constant, 1.0)
        return Row(np.clip(features, -1e38, 1e38).astype(np.float32), label)

    direction = _direction(len(location.center), generator)
    rows = {"up": row(FAR, high), "down": row(FAR, low)}
    direction = _direction(len(location.center), generator)
    rows["across"] = row(0.25, low)
    labels = (low, high) if release.design.outcome_kind == "labels" else (low, HUGE, -HUGE)
    for length in LENGTHS:
        for label in labels:
            direction = _direction(len(location.center), generator)
            rows[f"{length:g} {label:g}"] = row(length, label)
    return rows


def _direction(size: int, generator: np.random.Generator) -> np.ndarray:
    direction = generator.normal(size=size)
    return direction / max(float(np.linalg.norm(direction)), 1e-12)
