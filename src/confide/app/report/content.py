"""What a report says, as data: everything is computed here, and the page only lays it out.

It is computed from what may be published (draws, guarantee, plan, schema, canaries), and, where a table with outcomes
or an audit by records is given, from that, which no guarantee covers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from confide import __version__
from confide.app.report import bought, effects, predictive, priors
from confide.app.report.diagnostics import Told, Verdict, of_draws, verdict
from confide.app.report.effects import Group
from confide.app.report.evidence import Evidence, evidence
from confide.app.runs import rehearsals
from confide.app.runs.predictions import Evaluation
from confide.audits import planted
from confide.data.image_schema import Pictures
from confide.data.schema import Column, Schema
from confide.inference import settling
from confide.inference.posterior import Posterior
from confide.inference.settling import Judgement, Reason
from confide.models import families
from confide.privacy.accountants import profile
from confide.privacy.accountants.individual import Histogram
from confide.privacy.large_delta import describe_large_delta
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
    noise_scale: str  # what was learnt of it, in words
    simulated: list[str]  # what rehearsals on made-up tables showed
    prior: str  # in the unit of each column; empty where it is on encoded features
    bought: str  # what half and twice the budget would have bought; empty where that is not known
    settled: bool | None  # whether quantiles of the draws are intervals; None where that cannot be told
    reasons: list[Reason]  # why not
    what: str  # what the draws are instead; empty where they are what they should be
    verdict: Verdict  # on the sampler
    independent: bool  # draws of the posterior given what was released: nothing has to settle
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


def gather(
    posterior: Posterior,
    schema: Schema | Pictures,
    evaluation: Evaluation | None = None,
    evaluated_on: str = "",
    ledger: dict[str, Any] | None = None,
    audit: dict[str, Any] | None = None,
    made_up: dict[str, Any] | None = None,
    rehearsal: dict[str, Any] | None = None,
) -> Report:
    """Everything that the page shows; `audit` and `made_up` are what the audits of those names wrote, `rehearsal` what
    `confide rehearse` did."""
    guarantee, plan = posterior.guarantee, posterior.plan
    if guarantee is None:
        raise Refused("the draws have no guarantee, so there is nothing to report: use confide.fit")
    priced = profile(guarantee.event, guarantee.neighbours, guarantee.accountant)
    family = families.BY_NAME.get(plan["model"])
    judged = settling.judge(posterior)
    groups = list(effects.groups(posterior, schema, judged))
    (warnings, diagnostics), predicted = _diagnose(posterior, schema, groups, judged)
    audited = _audits(posterior, priced, audit, made_up)
    return Report(
        title=_title(schema.target, judged, groups),
        target=schema.target,
        version=__version__,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        neighbours=guarantee.neighbours,
        success=priced.attack_success(),
        factor=math.exp(min(guarantee.epsilon, 700.0)),
        odds=_odds(priced.loss(guarantee.delta) if guarantee.delta > 0 else guarantee.epsilon),
        found=[Found(*each) for each in zip(FALSE_ALARMS, (1 - priced.trade_off(FALSE_ALARMS)).tolist(), strict=True)],
        promise=list(guarantee.promise()),
        risk=describe_large_delta(guarantee.delta, plan["records"]),
        assumptions=list(guarantee.assumptions),
        learnt=list(schema.learnt),
        link="" if family is None else family.effect,
        outcome=None if family is None else family.outcome,
        groups=groups,
        noise_scale=effects.noise_scale(posterior, schema),
        simulated=_simulated(plan, rehearsal),
        prior=priors.describe(posterior, schema),
        bought=bought.describe(posterior, guarantee, schema),
        settled=judged.settled,
        reasons=list(judged.reasons),
        what=judged.draws,
        verdict=verdict(judged, groups, warnings, predicted),
        independent=judged.independent,
        checked=bool(groups) or predicted,
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


def _diagnose(
    posterior: Posterior, schema: Schema | Pictures, groups: list[Group], judged: Judgement
) -> tuple[Told, bool]:
    """What the draws tell, and whether that is by what they predict."""
    warnings, diagnostics = of_draws(posterior, groups, judged)
    if not isinstance(schema, Pictures) or posterior.point or judged.independent:
        return (warnings, diagnostics), False
    worries, sentences = predictive.diagnostics(posterior, schema)
    return ([*worries, *warnings], [*sentences, *diagnostics]), posterior.size >= settling.LEAST


def _title(target: str, judged: Judgement, groups: list[Group]) -> str:
    unread = judged.settled is False and not any(effect.interval for group in groups for effect in group.effects)
    return f"{'Private draws' if unread else 'A private posterior'} for {target}"


def _simulated(plan: dict[str, Any], rehearsal: dict[str, Any] | None) -> list[str]:
    found = [] if rehearsal is None else [rehearsals.describe(rehearsal)]
    if calibrated := plan.get("calibration"):
        found.append(
            f"Draws are {calibrated['inflation']:.3g} times as far from their mean as the sums alone say: on "
            f"{calibrated['datasets']} made-up tables 90% intervals held the truth in {calibrated['coverage']:.1%} of "
            "cases before."
        )
    return found


def _audits(
    posterior: Posterior, priced: Any, audit: dict[str, Any] | None, made_up: dict[str, Any] | None
) -> list[Evidence]:
    """By canaries, on made-up tables and by records, as far as there are any."""
    found = [] if posterior.canaries is None else [evidence(planted.audit(posterior).to_json(), priced)]
    if made_up is not None:
        found.append(evidence(made_up, priced))
    if audit is not None:
        found.append(evidence(audit["audit"], priced, audit["attacks"]))
    return found


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


def _odds(loss: float) -> list[Odds]:
    return [Odds(prior, _after(prior, loss)) for prior in PRIORS]


def _after(prior: float, loss: float) -> float:
    """Bayes' rule with a likelihood ratio that is exceeded with probability delta at most."""
    return prior / (prior + (1 - prior) * math.exp(-loss))


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
