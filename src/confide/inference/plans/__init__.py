"""From a model, the data, a budget and a sampler to a run and what it costs; one file for each kind of run."""

from __future__ import annotations

import jax
import numpy as np

from confide.inference.plans import hybrid, langevin, posterior_sample, stochastic
from confide.inference.plans.clips import bounded_clip
from confide.inference.plans.estimates import typical
from confide.inference.plans.setup import (
    Asked,
    Planned,
    Work,
    check_likelihood,
    constants,
    dropping,
    traced,
    unraveller,
)
from confide.inference.plans.stochastic import DRAWS, STEPS, described, plain, plain_job, private_job
from confide.models.inputs import Records, as_records
from confide.models.model import Model
from confide.privacy.budget import Budget
from confide.privacy.extra_accounts import Accounts
from confide.samplers import Hybrid, Langevin, OnePosteriorSample, Sampler
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
    "described",
    "dropping",
    "plain",
    "plain_job",
    "planned",
    "private_job",
    "traced",
    "typical",
    "unraveller",
]


def planned(
    model: Model,
    data: Records | tuple[np.ndarray, ...],
    budget: Budget,
    sampler: Sampler,
    asked: Asked,
    key: jax.Array,
) -> Planned:
    """The run that the budget pays for."""
    data = as_records(data)
    if asked.accounts != Accounts() and isinstance(sampler, Hybrid | Langevin | OnePosteriorSample):
        raise Refused(
            f"account: {sampler.name} keeps the account of 'dp' alone; the others are for samplers that release every "
            "step, such as sgld"
        )
    if asked.canaries is not None and asked.accounts != Accounts():
        raise Refused("canaries: other accounts than 'dp' would take them for people: audit without those accounts")
    if asked.canaries is not None and isinstance(sampler, Hybrid | Langevin | OnePosteriorSample):
        raise Refused(
            f"canaries: {sampler.name} hides its steps, from which canaries are told: they are for samplers that "
            "release every step, such as sgld"
        )
    if isinstance(sampler, Hybrid):
        return hybrid.planned(planned, model, data, budget, sampler, asked, key)
    if isinstance(sampler, Langevin):
        return langevin.planned(model, data, budget, sampler, asked, key)
    if isinstance(sampler, OnePosteriorSample):
        return posterior_sample.planned(model, data, budget, sampler, asked, key)
    return stochastic.planned(model, data, budget, sampler, asked, key)
