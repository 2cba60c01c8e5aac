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
from confide.experiments import fits, wang2015_panels
from confide.experiments.colours import BLUE, GREEN, ORANGE, PINK, RED, SKY
from confide.experiments.parts import NOT_KEPT, Parts
from confide.experiments.reproduction import Claim, Reproduction, left_out, new_figure
from confide.experiments.wang2015_panels import (
    DELTA,
    FULL,
    METHODS,
    QUICK,
    Effort,
    Method,
    Trial,
    measured,
    unprotected,
)
from confide.inference.plans.hidden_chains import AGREED, ENOUGH
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


class Point(NamedTuple):
    """A row of the CSV; errors are those of means of splits, or where there is one split, of runs."""

    dataset: str
    method: Method
    epsilon: float
    mean: float
    standard_error: float
    runs: int


class Chains(NamedTuple):
    """A run whose draws hidden chains end."""

    dataset: str
    method: Method
    epsilon: float
    r_hat: float
    effective: float
    parameters: int
    radius: float | None
    log_likelihood_bound: float | None


class Results(NamedTuple):
    points: list[Point]
    means: dict[tuple[str, Method, float], list[float]]  # of the runs of every split
    chains: list[Chains]
    missing: dict[str, Refused]  # panels, and why
    constants: dict[str, float]  # how often always the same answer is right

    def curve(self, dataset: str, method: Method) -> list[Point]:
        return [point for point in self.points if (point.dataset, point.method) == (dataset, method)]

    @property
    def datasets(self) -> list[str]:
        return [dataset for dataset in PANELS if self.curve(dataset, "Non-private")]


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
    constants = {dataset: share for one in found for dataset, share in one.constants.items()}
    results = Results(points, means, [chains for one in found for chains in one.chains], missing, constants)
    return Reproduction(
        name="wang2015-figure1",
        columns=Point._fields,
        rows=results.points,
        claims=_claims(results),
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


def _claims(results: Results) -> tuple[Claim, ...]:
    missing = [left_out(f"the panel {dataset}", reason) for dataset, reason in results.missing.items()]
    if not results.points:
        return tuple(missing)
    tight, published = "One-Posterior sample, tight", "One-Posterior sample, published"
    levels = [
        f"{results.curve(dataset, 'Non-private')[0].mean:.3f} ({dataset}, where always the same answer has "
        f"{results.constants[dataset]:.3f})"
        for dataset in results.datasets
    ]
    return (
        Claim(
            "accuracy without privacy",
            "not printed; the axes end at 0.75 (synthetic), 1 (abalone) and 0.85 (adult)",
            ", ".join(levels),
            "the paper prints neither its normals nor where it cuts the rings of Abalone; wang2015_panels has ours, by "
            "which hardly anything is to be learnt of shells",
        ),
        Claim(
            "one posterior sample against objective perturbation, in points of accuracy",
            "significantly better",
            f"as published: {_gaps(results, published, 'Objective perturbation')}; "
            f"tight: {_gaps(results, tight, 'Objective perturbation')}",
            "means over all epsilons, plus or minus two standard errors over splits, or over runs of the one split of "
            "adult; the bound of the published sample is enforced "
            "here, and objective perturbation draws what its privacy profile asks for; "
            f"delta = {DELTA:g}, which the paper does not print, and the published sample needs none",
        ),
        Claim(
            "the domain of Theorem 1, epsilon = 4 B",
            "not printed; without a bounded one logistic losses have no bound B",
            _domains(results),
            "the radius is prior scale times sqrt(parameters), rows have norm at most 1, and B = log(1 + e^radius)",
        ),
        Claim(
            "one posterior sample is exact",
            "run long enough to be confident",
            _mixing(results),
            "no diagnostic proves it, and the guarantee says that it is assumed; in a ball whose wall the posterior "
            "leans on chains are slow",
        ),
        Claim(
            "Langevin dynamics against the tight sample, in points",
            "not in the paper",
            _gaps(results, "Langevin", tight),
            "its last iterate is private whether or not the chain has mixed",
        ),
        Claim(
            "the hybrid algorithm against the tight sample, in points",
            "works reasonably well, with a start at half of epsilon",
            _gaps(results, "Hybrid+DP-SGNHT", tight),
            "half of the budget, in squares of mu, pays for its start, the other half for small steps, whose draws "
            "predict together, where the sample is a single draw",
        ),
        Claim(
            "DP-SGNHT alone against output perturbation, in points",
            "often equal or slightly worse",
            _gaps(results, "DP-SGNHT alone", "Output perturbation"),
            "without the smallest epsilon, where it answers the same for all, which is right more often than output "
            f"perturbation is: {_gaps(results, 'DP-SGNHT alone', 'Output perturbation', 1)}. The paper blames "
            "numerical constants; here the tight accountant prices the steps, and their draws predict together",
        ),
        *missing,
    )


def _gaps(results: Results, one: Method, other: Method, first: int = 0) -> str:
    """How much more accurate one method is than another, in points of a percent, for each panel.

    Errors are those of the gap of a split, where there are several, since methods share what a split has.
    """
    parts = []
    for dataset in results.datasets:
        pairs = list(zip(results.curve(dataset, one), results.curve(dataset, other), strict=True))[first:]
        gap = 100 * float(np.mean([a.mean - b.mean for a, b in pairs]))
        gaps = np.mean([np.subtract(results.means[a[:3]], results.means[b[:3]]) for a, b in pairs], axis=0)
        if len(gaps) > 1:
            error = 100 * float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps))
        else:
            error = 100 * math.sqrt(sum(a.standard_error**2 + b.standard_error**2 for a, b in pairs)) / len(pairs)
        spread = "(single runs: error unknown)" if math.isnan(error) else f"± {2 * error:.1f}"
        parts.append(f"{gap:+.1f} {spread} on {dataset}")
    return ", ".join(parts)


def _mixing(results: Results) -> str:
    doubtful = [c for c in results.chains if c.r_hat > AGREED or c.effective < ENOUGH]
    worst = max(results.chains, key=lambda c: c.r_hat)
    return (
        f"{len(doubtful)} of {len(results.chains)} runs have R-hat above {AGREED:g} or an effective sample size below "
        f"{ENOUGH}; the worst R-hat is {worst.r_hat:.2f} ({worst.method} on {worst.dataset} at epsilon "
        f"{worst.epsilon:.2g}, effective sample size {worst.effective:.0f})"
    )


def _domains(results: Results) -> str:
    found = {c.parameters: c for c in results.chains if c.radius is not None}
    return ", ".join(
        f"radius {c.radius:.2f} and B = {c.log_likelihood_bound:.2f} with {c.parameters} parameters"
        for c in found.values()
    )


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
