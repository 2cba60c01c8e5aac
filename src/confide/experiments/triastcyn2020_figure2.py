"""triastcyn2020, Figure 2: distances between the gradients of two records after training, fitted against others.

The paper trains privately and compares distances by a t-test and by Levene's. Here `confide.leakage_test` does, on
pairs that share no record, after the private fits of Table 1 and after its baselines (`triastcyn2020_learning`).
Gradients are not cut: what the clip makes alike would look alike.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

import confide
from confide.audits.leakage import COLOURS, LEVEL, Leakage
from confide.experiments import triastcyn2020_learning as learning
from confide.experiments.reproduction import Claim, Reproduction, new_figure
from confide.inference.posterior import NotPrivateWarning, Posterior

EPSILON = {"MNIST": 2.2, "CIFAR10": 8.0}  # as in Table 1
PRIVATE, PLAIN = "private", "without a guarantee"
BINS = 40
Found = dict[tuple[str, str], Leakage]


def run(quick: bool = False) -> Reproduction:
    found: Found = {}
    halves: dict[str, Leakage] = {}
    pairs = 500 if quick else 5000
    for name, epsilon in EPSILON.items():
        plan = learning.plans(quick)[name]
        task = plan.task(plan.effort.records)
        private = learning.fitted(task, plan.sampler, plan.effort, epsilon).posterior
        plain = learning.unprotected(task, plan.baseline, plan.longer)
        for kind, posterior in ((PRIVATE, private), (PLAIN, plain)):
            found[name, kind] = compared(posterior, task, pairs)
        if name == "CIFAR10":
            halves = _halves(task, plan, epsilon, pairs)
    return Reproduction(
        name="triastcyn2020-figure2",
        columns=("dataset", "fit", "side", "distance", "density"),
        rows=_histograms(found),
        claims=(*_claims(found), _control(halves)),
        figure=_figure(found),
    )


def compared(posterior: Posterior, task: learning.Task, pairs: int) -> Leakage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)  # the records are public
        return confide.leakage_test(posterior, task.train, task.test, pairs=pairs, clip=math.inf, key=learning.SEED)


def _halves(task: learning.Task, plan: learning.Plan, epsilon: float, pairs: int) -> dict[str, Leakage]:
    """A private fit to half of the training records: each half against the test records."""
    half = len(task.train[1]) // 2
    first, second = (tuple(array[part] for array in task.train) for part in (slice(half), slice(half, None)))
    effort = plan.effort._replace(steps=plan.effort.steps // 2)
    fit = learning.fitted(task._replace(train=first), plan.sampler, effort, epsilon).posterior
    return {
        side: compared(fit, task._replace(train=records), pairs)
        for side, records in (("fitted", first), ("not fitted", second))
    }


def _control(halves: dict[str, Leakage]) -> Claim:
    return Claim(
        "CIFAR10: half of the training images fitted, privately",
        "not in the paper",
        "against the test images: "
        + "; ".join(
            f"the half that was {side} has mean {one.train_mean:.4g} (theirs {one.test_mean:.4g}), t-test p = "
            f"{one.mean_p:.2g}, Levene's p = {one.spread_p:.2g}"
            for side, one in halves.items()
        ),
        "the half that was not fitted looks like the test images, so that a difference of the other is the fit's"
        if halves["not fitted"].mean_p >= LEVEL
        else "the half that was not fitted differs as well: the two sets of the authors are not alike",
    )


def _sides(leakage: Leakage) -> dict[str, np.ndarray]:
    return {"fitted": leakage.train_distances, "others": leakage.test_distances}


def _edges(leakage: Leakage) -> np.ndarray:
    """Bins, which grow with the distance where the longest are far from the usual ones."""
    both = np.concatenate(list(_sides(leakage).values()))
    low, middle, high = np.quantile(both, (0.01, 0.5, 0.99))
    if _skewed(leakage):
        return np.geomspace(max(low, 1e-3 * middle), max(np.max(both), 2 * middle), BINS + 1)
    return np.linspace(0.0, high, BINS + 1)


def _skewed(leakage: Leakage) -> bool:
    middle, high = np.quantile(leakage.test_distances, (0.5, 0.99))
    return bool(high > 10 * middle > 0)


def _histograms(found: Found) -> list[tuple[Any, ...]]:
    """Bins that hold any, by their middles."""
    rows = []
    for (name, kind), leakage in found.items():
        edges = _edges(leakage)
        for side, distances in _sides(leakage).items():
            counts, _ = np.histogram(distances, edges)
            density = counts / len(distances) / np.diff(edges)
            middles = (edges[1:] + edges[:-1]) / 2
            rows += [
                (name, kind, side, round(float(middle), 6), float(value))
                for middle, value in zip(middles, density, strict=True)
                if value > 0
            ]
    return rows


def _claims(found: Found) -> tuple[Claim, ...]:
    claims = []
    for (name, kind), leakage in found.items():
        smallest = min(leakage.mean_p, leakage.spread_p)
        if smallest >= LEVEL:
            why = "no difference was seen, which is not to say that there is none"
        elif kind == PLAIN:
            why = "fitted records have shorter gradients, and so shorter distances: what is learnt by heart shows"
        else:
            why = (
                "the fit shows, which its epsilon does not forbid, or the two sets of the authors of the data differ "
                "by themselves: the test alone cannot tell"
            )
        claims.append(
            Claim(
                f"{name}, {kind}",
                "p-values well over 0.05" if kind == PRIVATE else "not in the paper",
                f"means {leakage.train_mean:.4g} and {leakage.test_mean:.4g}, t-test p = {leakage.mean_p:.2g}; "
                f"standard deviations {leakage.train_sd:.4g} and {leakage.test_sd:.4g}, Levene's p = "
                f"{leakage.spread_p:.2g}; {len(leakage.train_distances):,} and {len(leakage.test_distances):,} pairs "
                f"notice a difference of means of {leakage.detectable / leakage.test_mean:.1%} four times in five",
                why,
            )
        )
    return (
        *claims,
        Claim(
            "no correlation with presence in the training set",
            "so the price computed from distances leaks next to nothing",
            "distances are blind to what all gradients have in common: see equal distances in the errata",
            "a p-value above 0.05 is no evidence of absence, and pairs that share records, as all pairs of a set do, "
            "make p-values that mean nothing",
        ),
    )


def _figure(found: Found) -> Any:
    figure, panels = new_figure(len(found), 3.4 * len(found), 3.9)
    for panel, ((name, kind), leakage) in zip(panels, found.items(), strict=True):
        edges = _edges(leakage).tolist()
        looks = {"fitted": {"alpha": 0.4}, "others": {"histtype": "step", "linewidth": 1.5}}
        for side, distances in _sides(leakage).items():
            weights = np.full(len(distances), 1 / len(distances))
            panel.hist(distances, edges, weights=weights, color=COLOURS[side], label=side, **looks[side])
        panel.set(
            xlabel="distance of two gradients",
            title=f"{name}, {kind}\nmeans p = {leakage.mean_p:.2g}, variances p = {leakage.spread_p:.2g}",
            xscale="log" if _skewed(leakage) else "linear",
        )
        panel.title.set_fontsize(8)
    panels[0].set_ylabel("share of pairs")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=2)
    return figure
