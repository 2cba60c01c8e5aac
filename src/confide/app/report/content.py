"""What a report says, as data: everything is computed here, and the page only lays it out.

It is computed from what may be published (draws, guarantee, plan, schema, canaries), and, where a table with outcomes
or an audit by records is given, from that, which no guarantee covers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from confide import __version__
from confide.app.report import effects, predictive
from confide.app.report.effects import AGREED, ENOUGH, Group
from confide.app.report.evidence import Evidence, evidence
from confide.app.runs.predictions import Evaluation
from confide.audits import planted
from confide.data.image_schema import Pictures
from confide.data.schema import Column, Schema
from confide.inference import messages, summaries
from confide.inference.posterior import Posterior
from confide.models import families
from confide.privacy.accountants import profile
from confide.privacy.accountants.individual import Histogram
from confide.validation import Refused

PRIORS = (0.01, 0.1, 0.5)
FALSE_ALARMS = (0.001, 0.01, 0.1)


class Odds(NamedTuple):
    """What an attacker thinks before and after the release, at most."""

    before: float
    after: float


class Found(NamedTuple):
    """The largest share of members that an attack can find at a given share of false alarms."""

    false_alarms: float
    found: float


class Bar(NamedTuple):
    """Records whose own epsilon lies between two bounds, and how high a bar is drawn for them."""

    low: float
    high: float
    records: float
    height: float  # of the highest


class Spending(NamedTuple):
    """What single records spent, as a histogram that was paid for."""

    bars: list[Bar]
    noise: float
    half: float  # at most so much was spent by half of the records,
    most: float  # and by nine in ten
    stretch: float


@dataclass(frozen=True, kw_only=True)
class Report:
    title: str
    target: str
    version: str
    epsilon: float
    delta: float
    neighbours: str
    success: float
    factor: float  # e^epsilon
    odds: list[Odds]
    found: list[Found]
    promise: list[str]
    risk: str  # of a large delta; empty otherwise
    assumptions: list[str]
    learnt: list[str]
    link: str  # what the coefficients add to; empty for a network
    outcome: str | None  # what a generalised linear model predicts
    groups: list[Group]
    checked: bool  # whether the draws say how well the sampler did
    plan: dict[str, Any]
    diagnostics: list[str]
    warnings: list[str]
    columns: list[dict[str, Any]]
    ledger: dict[str, Any] | None
    spending: Spending | None
    evaluation: Evaluation | None
    evaluated_on: str  # "", "public" or "held-out"
    evidence: list[Evidence]
    refuted: bool  # by canaries or on made-up tables: then nothing of the run is to be published
    confidential: bool  # whether it shows what no guarantee covers
    classification: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gathered(
    posterior: Posterior,
    schema: Schema | Pictures,
    evaluation: Evaluation | None = None,
    evaluated_on: str = "",
    ledger: dict[str, Any] | None = None,
    audit: dict[str, Any] | None = None,
    made_up: dict[str, Any] | None = None,
) -> Report:
    """Everything that the page shows; `audit` and `made_up` are what the audits of those names wrote."""
    guarantee, plan = posterior.guarantee, posterior.plan
    if guarantee is None:
        raise Refused("the draws have no guarantee, so there is nothing to report: use confide.fit")
    priced = profile(guarantee.event, guarantee.neighbours, guarantee.accountant)
    family = families.BY_NAME.get(plan["model"])
    loss = priced.loss(guarantee.delta) if guarantee.delta > 0 else guarantee.epsilon
    groups = list(effects.groups(posterior, schema))
    warnings, diagnostics = _diagnostics(posterior, groups)
    by_predictions = False
    if isinstance(schema, Pictures) and not posterior.point:
        by_predictions = True
        worries, sentences = predictive.diagnostics(posterior, schema)
        warnings, diagnostics = [*worries, *warnings], [*sentences, *diagnostics]
    audited = [] if posterior.canaries is None else [evidence(planted.audit(posterior).to_json(), priced)]
    if made_up is not None:
        audited.append(evidence(made_up, priced))
    if audit is not None:
        audited.append(evidence(audit["audit"], priced, audit["attacks"]))
    return Report(
        title=f"A private posterior for {schema.target}",
        target=schema.target,
        version=__version__,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        neighbours=guarantee.neighbours,
        success=priced.attack_success(),
        factor=math.exp(min(guarantee.epsilon, 700.0)),
        odds=[Odds(prior, _after(prior, loss)) for prior in PRIORS],
        found=[
            Found(rate, 1 - float(miss))
            for rate, miss in zip(FALSE_ALARMS, priced.trade_off(FALSE_ALARMS), strict=True)
        ],
        promise=list(guarantee.promise()),
        risk=messages.risky(guarantee, plan["records"]),
        assumptions=list(guarantee.assumptions),
        learnt=list(schema.learnt),
        link="" if family is None else family.effect,
        outcome=None if family is None else family.outcome,
        groups=groups,
        checked=bool(groups) or (by_predictions and posterior.size >= 4),
        plan=plan,
        diagnostics=diagnostics,
        warnings=warnings,
        columns=[_column(column, schema) for column in schema.columns],
        ledger=ledger or plan.get("ledger"),
        spending=_spending(plan),
        evaluation=evaluation,
        evaluated_on=evaluated_on,
        evidence=audited,
        refuted=any(found.kind != "records" and found.colour == "bad" for found in audited),
        confidential=evaluated_on == "held-out" or audit is not None,
        classification=bool(schema.column(schema.target).labels),
    )


def _spending(plan: dict[str, Any]) -> Spending | None:
    found = plan.get("individual", {})
    if "counts" not in found:
        return None
    histogram = Histogram(found["edges"], found["counts"], found["noise"])
    counts = [max(0.0, count) for count in histogram.counts]
    highest = max(*counts, 1.0)
    bars = [
        Bar(low, high, count, count / highest)
        for low, high, count in zip(histogram.edges[:-1], histogram.edges[1:], counts, strict=True)
    ]
    return Spending(bars, histogram.noise, histogram.quantile(0.5), histogram.quantile(0.9), found["stretch"])


def _after(prior: float, loss: float) -> float:
    """Bayes' rule with a likelihood ratio that is exceeded with probability delta at most."""
    return prior / (prior + (1 - prior) * math.exp(-loss))


def _diagnostics(posterior: Posterior, groups: list[Group]) -> tuple[list[str], list[str]]:
    """(what a reader must know before reading intervals, everything else about the sampler)"""
    plan, effects = posterior.plan, [effect for group in groups for effect in group.effects]
    sentences, warnings = [], []
    remedy = "A longer run needs a larger budget or a smaller clip, not more steps."
    if effects and all(math.isfinite(effect.effective) for effect in effects):
        worst = min(effects, key=lambda effect: effect.effective)
        median = float(np.median([effect.effective for effect in effects]))
        total = posterior.chains * posterior.size
        sentences.append(
            f"Of {total:,} draws, the coefficients are worth {median:,.0f} independent ones at the median and "
            f"{worst.effective:,.0f} at the least ({worst.name}). {remedy}"
        )
        few = sum(effect.effective < ENOUGH for effect in effects)
        if few and posterior.chains == 1:
            warnings.append(
                f"{few} of {len(effects)} coefficients have not been explored within the budget: their intervals are "
                "too narrow, because one chain cannot show what it has not learnt. Their signs and sizes are rough. "
                "Several chains (--chains 4) begin apart, so that what they have not learnt shows, at a price."
            )
    ratios = [effect.r_hat for effect in effects if effect.r_hat is not None]
    if ratios:
        apart = sum(ratio > AGREED for ratio in ratios)
        sentences.append(
            f"R-hat over {posterior.chains} chains is at most {max(ratios):.2f}; above {AGREED} they do not agree."
        )
        if apart:
            warnings.append(
                f"The chains do not agree on {apart} of {len(ratios)} coefficients: the budget did not suffice to "
                "learn them. Their intervals are wide, since the chains began apart, but with so few chains still "
                "too narrow."
            )
    elif effects and posterior.size > 1:
        sentences.append("There is one chain, so R-hat cannot be computed.")
    elif effects:
        sentences.append("Effective draws and R-hat cannot be computed of single draws.")
    elif "shape" not in plan:
        sentences.append("Nothing is computed about the weights of a network: judge it by predictions on other rows.")
    if posterior.point:
        warnings.append(
            f"{plan['sampler']} finds points near the mode of the posterior. They have no spread: how far each "
            "coefficient may be from the truth does not show, and what several points differ by is the noise alone."
        )
    elif posterior.chains * posterior.size == 1:
        warnings.append(
            "There is one draw, and one draw has no interval: each coefficient differs from the posterior mean by as "
            "much as the posterior is wide, which does not show. Further draws would show it, each at its price."
        )
    summary = summaries.from_json(plan)
    sentences += summary.remarks()
    if little := summary.warning():
        warnings.append(little)
    bound = plan.get("norm_bound")
    if plan.get("clip") is not None and bound is not None:
        family = families.BY_NAME.get(plan["model"])
        longest = math.inf if family is None else family.residual_bound * bound
        if plan["clip"] >= longest * (1 - 1e-9):
            sentences.append(
                f"No gradient can be longer than {longest:.3g}, and the clip is {plan['clip']:.3g}: nothing was cut."
            )
        else:
            bent = (
                "labels are hardly touched, but coefficients tend to be larger, and probabilities closer to 0 and 1, "
                "than without a clip"
                if plan.get("labels")
                else "outcomes far from their prediction pull less than they would without a clip"
            )
            sentences.append(
                f"Records whose gradient is longer than the clip of {plan['clip']:.3g} count less, which bends the "
                f"posterior: {bent}."
            )
    return warnings, sentences


def _column(column: Column, schema: Schema | Pictures) -> dict[str, Any]:
    role = "target" if column.name == schema.target else "not used" if column.kind == "ignore" else "feature"
    if column.kind == "numeric":
        domain = f"{column.low:g} to {column.high:g}{f' {column.unit}' if column.unit else ''}"
        domain += ", on a logarithmic scale" if column.scale == "log" else ""
    else:
        shown = [*column.labels[:8], *(["..."] if len(column.labels) > 8 else [])]
        domain = ", ".join(shown)
    missing = {"refuse": "not allowed", "indicator": "own feature", "drop": "record left out"}[column.missing]
    return {
        "name": column.name,
        "role": role,
        "kind": "" if column.kind == "ignore" else column.kind,
        "domain": domain,
        "missing": "" if column.kind == "ignore" else missing,
        "learnt": column.learnt,
    }
