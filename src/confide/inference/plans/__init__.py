"""From a model, the data, a budget and a sampler to a run and what it costs; one file for each kind of run."""

from collections.abc import Callable

from confide.inference.plans import hybrid, langevin, linear, posterior_sample, scoring, stochastic
from confide.inference.plans.estimates import typical
from confide.inference.plans.plan import Plan, Run
from confide.inference.plans.run_setup import DRAWS, STEPS, bounded_clip
from confide.inference.plans.stochastic import plain, plain_job, private_job
from confide.models.tracing import check_likelihood, model_digest, trace_model, unraveller

__all__ = [
    "DRAWS",
    "PLANNERS",
    "STEPS",
    "Plan",
    "Run",
    "bounded_clip",
    "check_likelihood",
    "model_digest",
    "plain",
    "plain_job",
    "private_job",
    "trace_model",
    "typical",
    "unraveller",
]

PLANNERS: dict[str, Callable[..., Plan]] = {  # by what is released: (model, records, budget, sampler, options, key)
    "steps": stochastic.make_plan,
    "last iterate": langevin.make_plan,
    "posterior sample": posterior_sample.make_plan,
    "hybrid": hybrid.make_plan,
    "scoring": scoring.make_plan,
    "statistics": linear.plan_statistics,
}
