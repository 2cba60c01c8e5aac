"""Hybrid runs: the draw that a chain starts from, then its steps, paid for together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans import langevin, posterior_sample, stochastic
from confide.inference.plans.plan import Plan, Run
from confide.inference.posterior import Diagnostics
from confide.inference.summaries.tempered import HybridSummary, LangevinSummary, PosteriorSampleSummary
from confide.mechanism import noise
from confide.models.inputs import Records
from confide.models.model import Model
from confide.privacy import events, pricing
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.significant_digits import round_digits
from confide.samplers.hybrid import Hybrid
from confide.validation import Refused

RELEASED = "the draw that each chain starts from, every iterate after it, and anything computed from them"
FIRST: dict[str, Callable[..., Plan]] = {
    "last iterate": langevin.make_plan,
    "posterior sample": posterior_sample.make_plan,
}


@dataclass(frozen=True, kw_only=True)
class Relay:
    """Two jobs of which the second starts where the first ended. One that had not got to the second begins anew."""

    first: Run
    then: Job

    @property
    def steps(self) -> int:
        return self.first.steps + self.then.steps

    @property
    def diagnostics(self) -> Diagnostics | None:
        return self.first.diagnostics

    @property
    def observations(self) -> None:
        return None

    def digest(self) -> str:
        return self.first.digest() + self.then.digest()

    def trace_program(self, records: Records) -> str:
        return self.first.trace_program(records) + self.then.trace_program(records)

    def first_state(self) -> list[np.ndarray]:
        """Of the first part: where its chains began is kept, so that beginning anew is the same run."""
        return self.first.first_state()

    def execute(self, data: Records, key: Any, *, resumed: Any = None, report: Any = None, **how: Any) -> np.ndarray:
        job, before = self.then, self.first.steps
        if resumed is None or resumed.block == 0:
            starts = self.first.execute(data, noise.separate(key, "first"), resumed=resumed, report=report)
            job = replace(job, initial_positions=starts[:, -1].astype(np.float64))
            if resumed is not None:
                resumed = resumed._replace(arrays=job.first_state())

        def further(step: int) -> None:
            report(before + step)

        return job.execute(data, key, resumed=resumed, report=None if report is None else further, **how)


def make_plan(model: Model, data: Records, budget: Budget, sampler: Hybrid, options: Options, key: jax.Array) -> Plan:
    if budget.delta == 0:
        raise Refused("delta = 0 cannot be met with Gaussian noise: give a budget with delta in (0, 1), such as 1e-6")
    mu = pricing.gdp_mu(budget.epsilon, budget.delta) * math.sqrt(sampler.share)
    share = replace(budget, epsilon=round_digits(pricing.gdp_epsilon(mu, budget.delta), "down"))
    alone = replace(options, steps=None, batch_size=None, draws=1, burn_in=None)
    start = FIRST[sampler.first.kind](model, data, share, sampler.first, alone, key)
    if options.burn_in is None:
        options = replace(options, burn_in=0)
    model, data = start.model, start.data
    assert isinstance(start.summary, LangevinSummary | PosteriorSampleSummary)
    if options.clip is None:  # the start's likelihood, from which it need not move
        options = replace(options, clip=start.summary.clip)
    job, steps = stochastic.private_job(model, data, budget, sampler.then, options, key, beside=start.event)
    relay = Relay(first=start.job, then=job)

    def spent_after(step: int) -> Event:
        if step <= start.job.steps or start.spent_after is None:
            return start.event if start.spent_after is None else start.spent_after(max(step, 1))
        return events.compose(start.event, stochastic.spent_after(job, step - start.job.steps))

    summary = stochastic.describe(
        HybridSummary,
        model,
        sampler.then,
        job,
        then=sampler.then.name,
        first=start.summary.to_json(),
        share=sampler.share,
        diffusion_time=stochastic.diffusion_time(job),
    )
    return Plan(
        model,
        data,
        relay,
        events.compose(start.event, steps),
        replace(summary, sampler=sampler.name),
        spent_after,
        RELEASED,
    )
