"""Where the marks of an audit's figures lie: paths for the page, in units of its drawings."""

from __future__ import annotations

import math
from typing import Any

from confide.app.report.evidence import Evidence, lowest

JOINED = 2  # bins of scores in one bar
LEFT, RIGHT, TOP, BOTTOM = 46.0, 292.0, 10.0, 256.0


def curve(shown: Evidence) -> dict[str, Any]:
    """The attack's curve on logarithmic axes, its band, guessing, and what the claim allows."""
    least = lowest(shown.members, shown.others)

    def x(rate: float) -> float:
        return RIGHT + (RIGHT - LEFT) * math.log10(max(rate, least)) / -math.log10(least)

    def y(rate: float) -> float:
        return TOP - (BOTTOM - TOP) * math.log10(max(rate, least)) / -math.log10(least)

    below, above = _steps(shown.rates, shown.low, late=True), _steps(shown.rates, shown.high, late=False)
    decades = [10.0**power for power in range(round(math.log10(least)), 1)]
    return {
        "band": _path([(x(a), y(b)) for a, b in [*above, *reversed(below)]]) + "Z",
        "found": _path([(x(a), y(b)) for a, b in _steps(shown.rates, shown.found, late=True)]),
        "allowed": _path([(x(a), y(b)) for a, b in shown.allowed]),
        "guessing": _path([(x(least), y(least)), (x(1.0), y(1.0))]),
        "ticks": [(round(x(rate), 1), round(y(rate), 1), f"{100 * rate:g}") for rate in decades],
    }


def _steps(rates: list[float], values: list[float], late: bool) -> list[tuple[float, float]]:
    """Between two rates a lower bound is that of the one before, an upper bound that of the one after."""
    points = [(rates[0], values[0])]
    for before, rate, old, new in zip(rates, rates[1:], values, values[1:], strict=False):
        points += [(rate, old) if late else (before, new), (rate, new)]
    return points


def histogram(shown: Evidence, ticks: list[float]) -> dict[str, Any]:
    """Shares of both sides by score: areas that begin and end on the axis."""
    edges = shown.edges[::JOINED]
    sides = {"members": shown.member_counts, "others": shown.other_counts}
    joined = {
        name: [sum(counts[i : i + JOINED]) for i in range(0, len(counts), JOINED)] for name, counts in sides.items()
    }
    shares = {name: [count / max(sum(counts), 1) for count in counts] for name, counts in joined.items()}
    highest = max(max(side) for side in shares.values()) or 1.0

    def x(score: float) -> float:
        return LEFT + (RIGHT - LEFT) * (score - edges[0]) / (edges[-1] - edges[0])

    drawn: dict[str, Any] = {}
    for name, side in shares.items():
        points = [(x(edges[0]), BOTTOM)]
        for low, high, share in zip(edges, edges[1:], side, strict=False):
            height = BOTTOM - (BOTTOM - TOP - 12) * share / highest
            points += [(x(low), height), (x(high), height)]
        drawn[name] = _path([*points, (x(edges[-1]), BOTTOM)])
    inside = [tick for tick in ticks if edges[0] <= tick <= edges[-1]]
    return drawn | {"ticks": [(round(x(tick), 1), tick) for tick in inside], "highest": highest}


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
