"""wang2015, Figure 1: test accuracy of private logistic regression against epsilon, on three datasets.

The paper's curves, with its bound for one posterior sample (Theorem 1) and with the tight one, and Langevin dynamics,
which needs no faith in the mixing of a chain. `confide.experiments.wang2015_panels` has datasets and methods.
Accuracies are means, with standard errors, over noise and over what is fresh: records of the synthetic panel, splits
of Abalone, and nothing else of Adult, whose split is its authors'. Two processes share the panels, each of whose points
is a part that is kept.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from confide.data.datasets import Split
from confide.experiments import fits, wang2015_claims, wang2015_panels
from confide.experiments.colours import BLUE, GREEN, ORANGE, PINK, RED, SKY
from confide.experiments.parts import NOT_KEPT, Parts
from confide.experiments.reproduction import Reproduction, new_figure
from confide.experiments.wang2015_claims import Chains, Point, Results
from confide.experiments.wang2015_panels import (
    FULL,
    METHODS,
    QUICK,
    Effort,
    Method,
    Trial,
    measured,
    unprotected,
)
from confide.inference.posterior import Posterior
from confide.validation import Refused

PROCESSES = 2


class Panel(NamedTuple):
    title: str
    split: Callable[[int], Split]
    horizontal: tuple[float, float]  # the axes of the paper
    vertical: tuple[float, float]


PANELS = {
    "synthetic": Panel("Synthetic: two normals", wang2015_panels.synthetic, (-2.5, 2.5), (0.45, 0.75)),
    "abalone": Panel("Abalone", wang2015_panels.abalone, (-5, 3), (0.1, 1.0)),
    "adult": Panel("Adult", wang2015_panels.adult, (-5, 3), (0.5, 0.85)),
}
STYLES: dict[Method, dict[str, str]] = {  # no two alike in print
    "Non-private": {"color": "black", "linestyle": "--"},
    "One-Posterior sample, published": {"color": SKY, "linestyle": "-", "marker": "v"},
    "One-Posterior sample, tight": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "Langevin": {"color": GREEN, "linestyle": "--", "marker": "D"},
    "Objective perturbation": {"color": RED, "linestyle": "-", "marker": "s"},
    "Output perturbation": {"color": ORANGE, "linestyle": "-.", "marker": "^"},
    "Hybrid+DP-SGNHT": {"color": PINK, "linestyle": "-", "marker": "P"},
    "DP-SGNHT alone": {"color": "#7F7F7F", "linestyle": ":", "marker": "x"},
}


def run(quick: bool = False, parts: Parts = NOT_KEPT, efforts: dict[str, Effort] | None = None) -> Reproduction:
    efforts = efforts or (QUICK if quick else FULL)
    if len(efforts) == 1:
        found = [panel(*item, parts) for item in efforts.items()]
    else:
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_begin, initargs=(quick,)) as pool:
            try:
                found = list(pool.map(panel, efforts, efforts.values(), [parts] * len(efforts)))
            except BrokenProcessPool as cause:
                raise Refused(
                    "a process that drew a panel was killed, perhaps for want of memory: run it again"
                ) from cause
    missing = {dataset: reason for one in found for dataset, reason in one.missing.items()}
    points = sorted((p for one in found for p in one.points), key=lambda point: list(PANELS).index(point.dataset))
    means = {key: value for one in found for key, value in one.means.items()}
    constants = {dataset: one.constants[dataset] for dataset in PANELS for one in found if dataset in one.constants}
    results = Results(points, means, [chains for one in found for chains in one.chains], missing, constants)
    return Reproduction(
        name="wang2015-figure1",
        columns=Point._fields,
        rows=results.points,
        claims=wang2015_claims.claims(results),
        figure=_figure(results),
    )


def _begin(quick: bool) -> None:
    """In a process of its own: small programs take longer to optimise than to run."""
    import jax

    jax.config.update("jax_disable_most_optimizations", quick)


def panel(dataset: str, effort: Effort, parts: Parts = NOT_KEPT) -> Results:
    """All curves of one panel; a dataset that is not there is left out."""
    results = Results([], {}, [], {}, {})
    try:
        splits = [fits.limit(PANELS[dataset].split(number), effort.records) for number in range(effort.splits)]
    except Refused as reason:
        results.missing[dataset] = reason
        return results
    shares = [float(np.mean(split.test_y > 0)) for split in splits]
    results.constants[dataset] = float(np.mean([max(share, 1 - share) for share in shares]))
    results.points.append(_point(dataset, "Non-private", math.inf, [[unprotected(split)] for split in splits]))
    for method in METHODS:
        for logarithm in effort.logarithms:
            name, settings = f"{dataset} {method} {logarithm:g}", {"effort": effort._replace(logarithms=())}
            measure = functools.partial(_measure, splits, method, logarithm, effort)
            accuracies, chains = parts.get(name, settings, measure)
            point = _point(dataset, method, math.exp(logarithm), accuracies)
            results.points.append(point)
            results.means[point[:3]] = [float(np.mean(of_split)) for of_split in accuracies]
            results.chains.extend(Chains(*point[:3], *seen) for seen in chains)
    return results


def _measure(splits: list[Split], method: Method, logarithm: float, effort: Effort) -> tuple[Any, list[Any]]:
    """Accuracies of the runs on each split, and what is known of the hidden chains."""
    trials = [Trial(split, math.exp(logarithm), effort, number) for number, split in enumerate(splits)]
    found = [measured(trial, method) for trial in trials]
    posteriors = [posterior for one in found for posterior in one.posteriors if posterior.diagnostics]
    return [list(one.accuracies) for one in found], [_chains(one) for one in posteriors]


def _chains(posterior: Posterior) -> tuple[Any, ...]:
    """The fields of `Chains` after the first three."""
    assert posterior.diagnostics is not None
    plan, seen = posterior.plan, posterior.diagnostics
    return seen.r_hat, seen.effective, plan["parameters"], plan.get("radius"), plan.get("log_likelihood_bound")


def _point(dataset: str, method: Method, epsilon: float, accuracies: list[list[float]]) -> Point:
    runs = [accuracy for of_split in accuracies for accuracy in of_split]
    alone = [float(np.mean(of_split)) for of_split in accuracies] if len(accuracies) > 1 else runs
    _, deviation = fits.mean_and_deviation(alone)
    return Point(dataset, method, epsilon, float(np.mean(runs)), deviation / math.sqrt(len(alone)), len(runs))


def _figure(results: Results) -> Any:
    figure, panels = new_figure(3, 13.0, 5.6)
    for axes, (dataset, shown) in zip(panels, PANELS.items(), strict=True):
        for method, style in STYLES.items():
            points = results.curve(dataset, method)
            if method == "Non-private":
                for point in points:
                    axes.axhline(point.mean, label=method, **style)
            elif points:
                axes.errorbar(
                    [math.log(point.epsilon) for point in points],
                    [point.mean for point in points],
                    [np.nan_to_num(point.standard_error) for point in points],
                    label=method,
                    capsize=2,
                    markersize=5,
                    linewidth=1.5,
                    **style,
                )
        means = [point.mean for point in results.points if point.dataset == dataset] or [shown.vertical[1]]
        axes.set(
            xlim=(shown.horizontal[0] - 0.15, shown.horizontal[1] + 0.15),
            ylim=(min(shown.vertical[0], min(means) - 0.02), max(shown.vertical[1], max(means) + 0.01)),
            xlabel="Privacy loss: log of epsilon",
            ylabel="Test accuracy",
            title=shown.title if dataset in results.datasets else f"{shown.title}: left out, see the claims",
        )
        axes.grid(True, alpha=0.3)
    drawn = next((axes for axes in panels if axes.get_legend_handles_labels()[0]), None)
    if drawn is not None:
        figure.legend(*drawn.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
