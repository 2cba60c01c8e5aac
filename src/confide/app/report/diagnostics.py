"""What the draws tell about how well the sampler did, in sentences, and what must be known before they are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from confide.app.report.effects import AGREED, ENOUGH, Effect, Group
from confide.inference import summaries
from confide.inference.posterior import Posterior
from confide.models import families

Told = tuple[list[str], list[str]]  # warnings, and everything else
REMEDY = "A longer run needs a larger budget or a smaller clip, not more steps."


def of_draws(posterior: Posterior, groups: list[Group]) -> Told:
    """(what a reader must know before reading intervals, everything else about the sampler)"""
    effects = [effect for group in groups for effect in group.effects]
    summary = summaries.from_json(posterior.plan)
    parts = (
        _exploration(posterior, effects),
        _agreement(posterior, effects),
        (_spread(posterior), summary.remarks()),
        ([warning for warning in (summary.warning(),) if warning], _clipping(posterior.plan)),
    )
    return [line for warnings, _ in parts for line in warnings], [line for _, rest in parts for line in rest]


def _exploration(posterior: Posterior, effects: list[Effect]) -> Told:
    """How many independent draws the coefficients are worth."""
    if not effects or not all(math.isfinite(effect.effective) for effect in effects):
        return [], []
    worst = min(effects, key=lambda effect: effect.effective)
    median = float(np.median([effect.effective for effect in effects]))
    total, few = posterior.chains * posterior.size, sum(effect.effective < ENOUGH for effect in effects)
    sentence = (
        f"Of {total:,} draws, the coefficients are worth {median:,.0f} independent ones at the median and "
        f"{worst.effective:,.0f} at the least ({worst.name}). {REMEDY}"
    )
    warning = (
        f"{few} of {len(effects)} coefficients have not been explored within the budget: their intervals are "
        "too narrow, because one chain cannot show what it has not learnt. Their signs and sizes are rough. "
        "Several chains (--chains 4) begin apart, so that what they have not learnt shows, at a price."
    )
    return [warning] if few and posterior.chains == 1 else [], [sentence]


def _agreement(posterior: Posterior, effects: list[Effect]) -> Told:
    """Whether the chains agree."""
    ratios = [effect.r_hat for effect in effects if effect.r_hat is not None]
    if not ratios:
        if effects and posterior.size > 1:
            return [], ["There is one chain, so R-hat cannot be computed."]
        if effects:
            return [], ["Effective draws and R-hat cannot be computed of single draws."]
        network = "Nothing is computed about the weights of a network: judge it by predictions on other rows."
        return [], [] if "shape" in posterior.plan else [network]
    apart = sum(ratio > AGREED for ratio in ratios)
    warning = (
        f"The chains do not agree on {apart} of {len(ratios)} coefficients: the budget did not suffice to "
        "learn them. Their intervals are wide, since the chains began apart, but with so few chains still "
        "too narrow."
    )
    sentence = f"R-hat over {posterior.chains} chains is at most {max(ratios):.2f}; above {AGREED} they do not agree."
    return [warning] if apart else [], [sentence]


def _spread(posterior: Posterior) -> list[str]:
    """Where the draws have none."""
    if posterior.point:
        return [
            f"{posterior.plan['sampler']} finds points near the mode of the posterior. They have no spread: how far "
            "each coefficient may be from the truth does not show, and what several points differ by is the noise "
            "alone."
        ]
    if posterior.chains * posterior.size > 1:
        return []
    return [
        "There is one draw, and one draw has no interval: each coefficient differs from the posterior mean by as "
        "much as the posterior is wide, which does not show. Further draws would show it, each at its price."
    ]


def _clipping(plan: dict[str, Any]) -> list[str]:
    """What the clip does to records."""
    bound = plan.get("norm_bound")
    if plan.get("clip") is None or bound is None:
        return []
    family = families.BY_NAME.get(plan["model"])
    longest = math.inf if family is None else family.residual_bound * bound
    if plan["clip"] >= longest * (1 - 1e-9):
        return [f"No gradient can be longer than {longest:.3g}, and the clip is {plan['clip']:.3g}: nothing was cut."]
    bent = (
        "labels are hardly touched, but coefficients tend to be larger, and probabilities closer to 0 and 1, "
        "than without a clip"
        if plan.get("labels")
        else "outcomes far from their prediction pull less than they would without a clip"
    )
    return [
        f"Records whose gradient is longer than the clip of {plan['clip']:.3g} count less, which bends the "
        f"posterior: {bent}."
    ]
