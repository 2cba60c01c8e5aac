"""What the draws tell about how well the sampler did, in sentences, and what must be known before they are read."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from confide.app.report.effects import Effect, Group
from confide.inference import summaries
from confide.inference.posterior import Posterior
from confide.inference.settling import AGREED, ENOUGH, LEAST, Judgement, longest_gradient

Told = tuple[list[str], list[str]]  # warnings, and everything else


class Verdict(NamedTuple):
    """On the sampler."""

    colour: str  # "good", "fair" or "bad"
    words: str


def verdict(judged: Judgement, groups: list[Group], warnings: list[str], predicts: bool) -> Verdict:
    """Only draws that have been judged, and passed, are approved; `predicts` says that predictions have been."""
    effects = [effect for group in groups for effect in group.effects]
    hidden = sum(not effect.interval for effect in effects)
    if judged.settled is False:
        if hidden < len(effects):
            return Verdict("fair", f"{hidden} of {len(effects)} coefficients have not settled.")
        return Verdict("bad", "The draws are not the posterior.")
    if warnings:
        return Verdict("fair", "Read the draws with care.")
    if judged.settled:
        return Verdict("good", "The draws are independent." if judged.independent else "Nothing to worry about.")
    return Verdict(
        "fair", "What it predicts has been explored; its weights are not judged." if predicts else "Not checked."
    )


def of_draws(posterior: Posterior, groups: list[Group], judged: Judgement) -> Told:
    """(what a reader must know before reading the draws, beside the judgement; everything else about the sampler)"""
    effects = [effect for group in groups for effect in group.effects]
    summary = summaries.from_json(posterior.plan)
    remarks = [f"{reason.sentence} {reason.advice}" for reason in judged.reasons if judged.settled is None]
    warnings = [warning for warning in (*_spread(posterior, judged), summary.warning()) if warning]
    chains = [] if judged.independent else [_exploration(posterior, effects), _agreement(posterior, effects)]
    told = (*chains, summary.remarks(), remarks)
    return warnings, [line for lines in (*told, _clipping(posterior)) for line in lines]


def _exploration(posterior: Posterior, effects: list[Effect]) -> list[str]:
    """How many independent draws the coefficients are worth."""
    if not effects or not all(math.isfinite(effect.effective) for effect in effects):
        return []
    worst = min(effects, key=lambda effect: effect.effective)
    median = float(np.median([effect.effective for effect in effects]))
    total = posterior.chains * posterior.size
    return [
        f"Of {total:,} draws, the coefficients are worth {median:,.0f} independent ones at the median and "
        f"{worst.effective:,.0f} at the least ({worst.name})."
    ]


def _agreement(posterior: Posterior, effects: list[Effect]) -> list[str]:
    """Whether the chains agree."""
    ratios = [effect.r_hat for effect in effects if effect.r_hat is not None]
    if ratios:
        return [f"R-hat over {posterior.chains} chains is at most {max(ratios):.2f}; above {AGREED} they do not agree."]
    if effects and posterior.size >= LEAST:
        return ["There is one chain, so R-hat cannot be computed."] if posterior.chains == 1 else []
    if effects:
        return ["Effective draws and R-hat cannot be computed of single draws."]
    network = "Nothing is computed about the weights of a network: judge it by predictions on other rows."
    return [] if "shape" in posterior.plan else [network]


def _spread(posterior: Posterior, judged: Judgement) -> list[str]:
    """Where the draws have none."""
    total = posterior.chains * posterior.size
    if judged.independent and total < ENOUGH:
        drawn = "is one draw" if total == 1 else f"are {total} draws"
        return [f"There {drawn}, and fewer than {ENOUGH} have no intervals to speak of. More cost nothing (--draws)."]
    if posterior.point:
        return [
            f"{posterior.plan['sampler']} finds points near the mode of the posterior. They have no spread: how far "
            "each coefficient may be from the truth does not show, and what several points differ by is the noise "
            "alone."
        ]
    if total == 1:
        return [
            "There is one draw, and one draw has no interval: each coefficient differs from the posterior mean by as "
            "much as the posterior is wide, which does not show. Further draws would show it, each at its price."
        ]
    if posterior.size < LEAST:
        each = "one draw" if posterior.size == 1 else f"{posterior.size} draws"
        return [
            f"There is {each} of each chain, from which nothing tells whether it has settled: no interval is shown."
        ]
    return []


def _clipping(posterior: Posterior) -> list[str]:
    """What the clip does to records, where it bends nothing."""
    plan: dict[str, Any] = posterior.plan
    if plan.get("clip") is None:
        return []
    if plan.get("clipping") == "weighted":
        bound = plan.get("row_bound")
        which = "rows that stand far out" if bound is None else f"rows longer than {bound:.3g}"
        return [
            f"No record's score is longer than the clip of {plan['clip']:.3g}: it is bounded by a weight that does not "
            "depend on the outcome, so that nothing is bent where the model is right. Where it is wrong, "
            f"{which} count less than without a clip."
        ]
    longest = longest_gradient(posterior)
    if plan["clip"] >= longest * (1 - 1e-9):
        return [f"No gradient can be longer than {longest:.3g}, and the clip is {plan['clip']:.3g}: nothing was cut."]
    return []
