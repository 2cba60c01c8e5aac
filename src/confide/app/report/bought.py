"""What other budgets would have bought: the place of a run on the curve that `confide plan --schema` draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from confide.data.image_schema import Pictures
from confide.data.schema import Schema
from confide.inference.posterior import Posterior
from confide.inference.power.planning import plan as forecast
from confide.inference.regression import convergence, expectation, row_samples
from confide.inference.regression.priors import prior_from_json
from confide.inference.regression.release import RegressionRelease
from confide.inference.summaries import from_json
from confide.models import families
from confide.privacy import pricing
from confide.privacy.budget import Guarantee

MOST = 60  # features that are forecast while a page is written
ROWS, RUNS = 2048, 3  # of simulated runs


def describe(posterior: Posterior, guarantee: Guarantee, schema: Schema | Pictures) -> str:
    """In a sentence, for runs of scoring on tables; empty for others."""
    plan, release = posterior.plan, posterior.release
    if isinstance(release, RegressionRelease):
        return _describe_regression(release, plan, guarantee)
    family = families.BY_NAME.get(plan["model"])
    told = from_json(plan).independent and plan["sampler"] == "scoring" and family is not None
    if not told or not isinstance(schema, Schema) or len(schema.features) > MOST or plan["records"] < 2:
        return ""
    assert family is not None
    limit = (plan.get("budget") or {}).get("epsilon", guarantee.epsilon)
    found = forecast(
        schema=schema,
        n=plan["records"],
        epsilon=[limit / 2, limit, 2 * limit],
        delta=guarantee.delta,
        model=family.word,
        prior_scale=plan.get("prior_scale"),
        neighbours=guarantee.neighbours,
    )
    half, own, twice = found.median_widths
    attacks = [f"{chance:.1%}" for chance in found.attack_success]
    return (
        f"On tables of this schema and size, half the ε would be expected to make intervals {half / own:.2f} times as "
        f"wide, and twice the ε {twice / own:.2f} times; without privacy they would be "
        f"{found.median_width_without_privacy / own:.2f} times as wide. The best attacker would guess right at most "
        f"{attacks[0]} and {attacks[2]} of the time, instead of {attacks[1]}."
    )


def _describe_regression(release: RegressionRelease, plan: dict[str, Any], guarantee: Guarantee) -> str:
    """By simulated runs on rows and outcomes that look like those that this run described."""
    if not convergence.assess(release.result).converged:
        return "This run released too little about its records to say what other budgets would have bought."
    limit = (plan.get("budget") or {}).get("epsilon", guarantee.epsilon)
    budgets = [pricing.gdp_mu(epsilon, guarantee.delta) for epsilon in (limit / 2, limit, 2 * limit)]
    half, same, double, free = (_median_width(release, mu, guarantee) for mu in (*budgets, math.inf))
    attacks = [f"{float(special.ndtr(mu / 2)):.1%}" for mu in budgets]
    return (
        "Simulated from what this run released about its records: half the \u03b5 would make intervals "
        f"{half / same:.2f} times as wide, twice the \u03b5 {double / same:.2f} times, and without privacy they would "
        f"be {free / same:.2f} times as wide. The best attacker would guess right at most {attacks[0]} and "
        f"{attacks[2]} of the time, instead of {attacks[1]}."
    )


def _median_width(release: RegressionRelease, mu: float, guarantee: Guarantee) -> float:
    """The median standard deviation of coefficients over a few simulated runs."""
    result, deviations = release.result, []
    for seed in range(1 if math.isinf(mu) else RUNS):
        generator = np.random.default_rng([release.key, seed])
        rows = row_samples.sample_rows(result, generator, ROWS).astype(np.float64)
        outcomes = row_samples.sample_outcomes(result, rows, generator)
        simulated = expectation.simulate_run(
            release.design, prior_from_json(release.prior), rows, outcomes, mu, generator,
            neighbours=guarantee.neighbours,
        )  # fmt: skip
        variances = np.diag(expectation.covariance_of_coefficients(simulated))[:-1]
        deviations.append(np.sqrt(np.median(variances[variances > 0])) if np.any(variances > 0) else 1.0)
    return float(np.mean(deviations))
