"""A picture of a forecast: how narrow intervals become with epsilon, and beside it what an attacker gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FEW = 40  # coefficients that have a line each
WIDTHS, ATTACK, GREY = "#1b5e82", "#c2571a", "#8a8a8a"


def draw(found: Any, marked: Sequence[float] = ()) -> Any:
    """Of a `Forecast`: widths on the left and the best attack on the right, over epsilon, some of which are marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

    figure = Figure(figsize=(8.2, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    epsilons = np.array(found.epsilons)
    apart = tuple(f"{each}=" for each in found.differences)
    told = [not (apart and name.startswith(apart)) for name in found.columns]
    told = np.array(told) & np.all(np.array(found.widths) > 0, axis=0)  # reference levels have no interval
    widths = np.concatenate(
        [np.array(found.widths)[:, told], np.reshape(found.difference_widths, (len(epsilons), -1))], 1
    )
    _draw_widths(axes, found, epsilons, widths)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(epsilons[0] * (1 if len(epsilons) > 1 else 0.5), epsilons[-1] * (1 if len(epsilons) > 1 else 2))
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plain)
        axis.set_minor_formatter(NullFormatter())
    axes.set_xticks(_round_numbers(*axes.get_xlim()))
    axes.set_yticks(_round_numbers(*axes.get_ylim()))
    axes.set_xlabel("epsilon")
    axes.set_ylabel("expected width of a 90% interval", color=WIDTHS)
    axes.tick_params(axis="y", colors=WIDTHS)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)

    other = axes.twinx()
    other.plot(epsilons, found.attack_success, color=ATTACK, linewidth=1.8, linestyle=(0, (5, 2)))
    other.set_ylim(0.5, 1.0)
    other.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    other.set_ylabel("the best attack on membership guesses right", color=ATTACK)
    other.tick_params(axis="y", colors=ATTACK)
    _mark(axes, other, found, marked)
    for each in (axes, other):
        each.spines["top"].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, frameon=False, fontsize=9)
    axes.set_title(
        f"{found.model}, {found.n:,} records, {len(found.columns)} coefficients, delta {found.delta:.2g}",
        loc="left", fontsize=11,
    )  # fmt: skip
    return figure


def _draw_widths(axes: Any, found: Any, epsilons: np.ndarray, widths: np.ndarray) -> None:
    low, high = widths.min(axis=1), widths.max(axis=1)
    each = "each, and two levels" if found.differences else "each coefficient"
    style = {"marker": "o"} if len(epsilons) < 3 else {}
    if widths.shape[1] > FEW:
        axes.fill_between(epsilons, low, high, color=WIDTHS, alpha=0.14, linewidth=0, label=each)
    else:
        lines = axes.plot(epsilons, widths, color=WIDTHS, alpha=0.3, linewidth=1.0)
        lines[0].set_label(each)
    axes.plot(epsilons, found.median_widths, color=WIDTHS, linewidth=2.2, label="median", **style)
    free = found.median_width_without_privacy
    axes.axhline(free, color=GREY, linewidth=1.2, linestyle=":", label="median without privacy")
    axes.axhline(found.prior_width, color=GREY, linewidth=1.2, linestyle="--", label="prior")
    axes.set_ylim(0.8 * min(float(low.min()), free), 1.15 * found.prior_width)


def _mark(axes: Any, other: Any, found: Any, marked: Sequence[float]) -> None:
    """Points on both curves at the epsilons that were asked about."""
    for epsilon in marked:
        if epsilon in found.epsilons:
            place = found.epsilons.index(epsilon)
            axes.plot(epsilon, found.median_widths[place], "o", color=WIDTHS, markersize=6)
            other.plot(epsilon, found.attack_success[place], "o", color=ATTACK, markersize=5)


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5 and their tens within."""
    tens = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    return [step * 10.0**ten for ten in tens for step in (1, 2, 5) if low <= step * 10.0**ten <= high]
