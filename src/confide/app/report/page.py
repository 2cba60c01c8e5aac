"""The page: a template and a style, filled in with a `Report`. Everything from the data is escaped."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

from confide.app.report import figures
from confide.app.report.content import Report
from confide.app.report.effects import Effect
from confide.inference.settling import Reason


def render(report: Report) -> str:
    """The whole page as HTML."""
    import jinja2

    home = resources.files("confide.app.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"percent": percent, "number": number, "place": place, "tick": tick}
    template = environment.from_string((home / "page.html").read_text(encoding="utf-8"))
    style = (home / "page.css").read_text(encoding="utf-8")
    return template.render(
        r=report,
        style=style,
        axes=[axis(group.effects) for group in report.groups],
        banded=any(effect.interval for group in report.groups for effect in group.effects),
        reasons=_by_advice(report.reasons),
        ordered=[sorted(group.effects, key=_importance, reverse=True) for group in report.groups],
        curves=[figures.curve(shown) for shown in report.evidence],
        histograms=[
            figures.histogram(shown, scale(*shown.edges[:: len(shown.edges) - 1])["ticks"]) for shown in report.evidence
        ],
        epsilons=[scale(0.0, max(mark.epsilon for mark in shown.marks)) for shown in report.evidence],
    )


def axis(effects: list[Effect]) -> dict[str, Any]:
    """The ends of a scale that holds every interval, or every centre where there is none, and zero; round places."""
    shown = [effect for effect in effects if effect.name != "intercept"] or effects
    shown = [effect for effect in shown if effect.interval] or shown
    ends = [end for effect in shown for end in ((effect.low, effect.high) if effect.interval else (effect.mean,))]
    known = [end for end in ends if math.isfinite(end)]
    return scale(min(0.0, *known, 0.0), max(0.0, *known, 0.0))


def scale(low: float, high: float) -> dict[str, Any]:
    """Round ends, and round places between them."""
    width = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(width))
    step *= next(factor for factor in (0.2, 0.5, 1.0, 2.0) if width / (factor * step) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return {"low": first * step, "high": last * step, "ticks": [k * step for k in range(first, last + 1)]}


def place(value: float, scale: dict[str, Any]) -> str:
    """Where a value lies on a scale, in per cent of its width."""
    share = (value - scale["low"]) / (scale["high"] - scale["low"])
    return f"{100 * min(1.0, max(0.0, share)):.2f}"


def percent(value: float, digits: int = 1) -> str:
    """Never 100% or 0% by rounding alone."""
    shown = f"{100 * value:.{digits}f}%"
    if value < 1 and float(shown[:-1]) == 100:
        return f"over {100 - 10.0**-digits:.{digits}f}%"
    return shown


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001
    size = abs(value)
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.2f}"
    if 0 < size < 0.01:
        text = f"{value:.1g}"
    return text.replace("-", "−")  # noqa: RUF001


def tick(value: float) -> str:
    """A round number on a scale."""
    return f"{round(value, 9) + 0.0:g}".replace("-", "−")  # noqa: RUF001


def _importance(effect: Effect) -> tuple[bool, bool, float]:
    """How far from zero, in standard deviations; then, by size, those without an interval; the intercept goes last."""
    size = abs(effect.mean) / (max(effect.sd, 1e-12) if effect.interval else 1.0)
    return effect.name != "intercept", effect.interval, size


def _by_advice(reasons: list[Reason]) -> list[tuple[str, str]]:
    """What was seen, and what would help: each advice once."""
    seen: dict[str, list[str]] = {}
    for reason in reasons:
        seen.setdefault(reason.advice, []).append(reason.sentence)
    return [(" ".join(sentences), advice) for advice, sentences in seen.items()]
