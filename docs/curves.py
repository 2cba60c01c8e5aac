"""The picture of "Choosing epsilon": what an epsilon buys of three tables, and what it gives away.

python docs/curves.py       # writes docs/curves.png
"""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

import confide

TABLES = (("a ward", 500, 5), ("a registry", 5_000, 10), ("a survey", 50_000, 20))  # name, records, features
EPSILONS = np.geomspace(0.1, 10, 41)
DELTA = 1e-5
WIDTHS, ATTACK, GREY = "#1b5e82", "#c2571a", "#8a8a8a"


def draw():
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(1, len(TABLES), sharey=True)
    for place, (axes, (name, n, features)) in enumerate(zip(every, TABLES, strict=True)):
        found = confide.plan(features=features, n=n, epsilon=EPSILONS.tolist(), delta=DELTA)
        axes.plot(EPSILONS, found.median_widths, color=WIDTHS, linewidth=2.2, label="expected width")
        axes.axhline(found.median_width_without_privacy, color=GREY, linestyle=":", label="without privacy")
        axes.axhline(found.prior_width, color=GREY, linestyle="--", label="prior")
        axes.set(xscale="log", yscale="log", ylim=(0.05, 5.0), xlabel="epsilon")
        axes.set_title(f"{name}: {n:,} records, {features} features", fontsize=10, loc="left")
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
        for axis, ticks in ((axes.xaxis, (0.1, 0.3, 1, 3, 10)), (axes.yaxis, (0.05, 0.1, 0.2, 0.5, 1, 2, 5))):
            axis.set_ticks(ticks)
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        other = axes.twinx()
        label = "best attack guesses right"
        other.plot(EPSILONS, found.attack_success, color=ATTACK, linestyle=(0, (5, 2)), linewidth=1.8, label=label)
        other.set_ylim(0.5, 1.0)
        other.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        other.tick_params(axis="y", colors=ATTACK, labelright=place == len(TABLES) - 1)
        for each in (axes, other):
            each.spines["top"].set_visible(False)
    every[0].set_ylabel("width of a 90% interval", color=WIDTHS)
    other.set_ylabel("best attack on membership guesses right", color=ATTACK)
    lines = [*every[0].get_lines(), *other.get_lines()]
    figure.legend(lines, [each.get_label() for each in lines], loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    draw().savefig(Path(__file__).parent / "curves.png", dpi=130)
