"""What other budgets would have bought: the place of a run on the curve that `confide plan --schema` draws."""

from __future__ import annotations

from typing import Any

from confide.data.image_schema import Pictures
from confide.data.schema import Schema
from confide.inference.power.planning import plan as forecast
from confide.inference.summaries import from_json
from confide.models import families
from confide.privacy.budget import Guarantee

MOST = 60  # features that are forecast while a page is written


def describe(plan: dict[str, Any], guarantee: Guarantee, schema: Schema | Pictures) -> str:
    """In a sentence, for runs of scoring on tables; empty for others."""
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
