"""From a model, the data, a budget and a sampler to a run and what it costs; one file for each kind of run."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np

from confide.inference.plans import hybrid, langevin, posterior_sample, stochastic
from confide.inference.plans.clips import bounded_clip
from confide.inference.plans.estimates import typical
from confide.inference.plans.run_setup import DRAWS, STEPS
from confide.inference.plans.setup import Asked, Planned, Work
from confide.inference.plans.stochastic import describe, plain, plain_job, private_job
from confide.models.inputs import Records, as_records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, constants, dropping, trace_model, unraveller
from confide.privacy.budget import Budget
from confide.privacy.extra_accounts import Accounts
from confide.samplers import Sampler
from confide.validation import Refused

__all__ = [
    "DRAWS",
    "STEPS",
    "Asked",
    "Planned",
    "Work",
    "bounded_clip",
    "check_likelihood",
    "constants",
    "describe",
    "dropping",
    "make_plan",
    "plain",
    "plain_job",
    "private_job",
    "trace_model",
    "typical",
    "unraveller",
]


def make_plan(
    model: Model,
    data: Records | tuple[np.ndarray, ...],
    budget: Budget,
    sampler: Sampler,
    asked: Asked,
    key: jax.Array,
) -> Planned:
    """The run that the budget pays for."""
    data = as_records(data)
    if asked.accounts != Accounts() and sampler.kind != "steps":
        raise Refused(
            f"account: {sampler.name} keeps the account of 'dp' alone; the others are for samplers that release every "
            "step, such as sgld"
        )
    if asked.canaries is not None and asked.accounts != Accounts():
        raise Refused("canaries: other accounts than 'dp' would take them for people: audit without those accounts")
    if asked.canaries is not None and sampler.kind != "steps":
        raise Refused(
            f"canaries: {sampler.name} hides its steps, from which canaries are told: they are for samplers that "
            "release every step, such as sgld"
        )
    return PLANNERS[sampler.kind](model, data, budget, sampler, asked, key)


PLANNERS: dict[str, Callable[..., Planned]] = {
    "steps": stochastic.make_plan,
    "last iterate": langevin.make_plan,
    "posterior sample": posterior_sample.make_plan,
    "hybrid": functools.partial(hybrid.make_plan, make_plan),
}
