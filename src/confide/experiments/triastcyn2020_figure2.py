"""triastcyn2020, Figure 2: distances between the gradients of two records after training, fitted against others.

The paper trains privately and compares distances by a t-test and by Levene's. Here `confide.leakage_test` does, on
pairs that share no record, after the private fits of Table 1 and after its baselines, on several random splits
(`triastcyn2020_learning`). Gradients are not cut: what the clip makes alike would look alike.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import confide
from confide.audits.leakage import COLOURS, LEVEL, Leakage
from confide.experiments import triastcyn2020_learning as learning
from confide.experiments.parts import NOT_KEPT, Parts
from confide.experiments.reproduction import Claim, Reproduction, new_figure
from confide.inference.posterior import NotPrivateWarning

EPSILON = {"MNIST": 2.2, "CIFAR10": 8.0}  # as in Table 1
PRIVATE, PLAIN = "private", "without a guarantee"
BINS = 40
NEXT_TO_ZERO = "half of the distances are next to zero, so that Levene's test, about the median, is the t-test again"


class Compared(NamedTuple):
    """One kind of fit to one dataset: what was found on each split."""

    found: list[Leakage]

    def of(self, quantity: str) -> list[float]:
        return [getattr(one, quantity) for one in self.found]

    def mean(self, quantity: str) -> float:
        return float(np.mean(self.of(quantity)))

    def p_values(self, quantity: str) -> str:
        return ", ".join(f"{value:.2g}" for value in self.of(quantity))

    @property
    def sides(self) -> dict[str, np.ndarray]:
        """Distances of all splits."""
        return {
            "fitted": np.concatenate([one.train_distances for one in self.found]),
            "others": np.concatenate([one.test_distances for one in self.found]),
        }


Found = dict[tuple[str, str], Compared]


def run(quick: bool = False, parts: Parts = NOT_KEPT) -> Reproduction:
    found: Found = {}
    pairs = 200 if quick else 5000
    plans = learning.plans(quick)
    for name in EPSILON:
        for number in range(learning.SPLITS[quick]):
            task = functools.cache(functools.partial(plans[name].task, number))  # read when it is needed first
            for kind in (PRIVATE, PLAIN):
                how = {"effort": plans[name].effort, "longer": plans[name].longer, "pairs": pairs}
                measure = functools.partial(_measure, name, kind, plans[name], task, pairs)
                found.setdefault((name, kind), Compared([])).found.append(
                    _leakage(parts.get(f"{name} {kind} {number}", how, measure))
                )
    return Reproduction(
        name="triastcyn2020-figure2",
        columns=("dataset", "fit", "side", "distance", "density"),
        rows=_histograms(found),
        claims=_claims(found),
        figure=_figure(found),
    )


def _measure(
    name: str, kind: str, plan: learning.Plan, task: Callable[[], learning.Task], pairs: int
) -> dict[str, Any]:
    if kind == PRIVATE:
        posterior = learning.fitted(task(), plan.sampler, plan.effort, EPSILON[name]).posterior
    else:
        posterior = learning.unprotected(task(), plan.baseline, plan.longer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)  # the records are public
        seen = confide.leakage_test(posterior, task().train, task().test, pairs=pairs, clip=math.inf, key=learning.SEED)
    distances = {f"{side}_distances": getattr(seen, f"{side}_distances").tolist() for side in ("train", "test")}
    return {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)} | distances


def _leakage(part: dict[str, Any]) -> Leakage:
    distances: dict[str, Any] = {f"{side}_distances": np.array(part[f"{side}_distances"]) for side in ("train", "test")}
    return Leakage(**part | distances)


def _edges(compared: Compared) -> np.ndarray:
    """Bins, which grow with the distance where the longest are far from the usual ones."""
    both = np.concatenate(list(compared.sides.values()))
    low, middle, high = np.quantile(both, (0.01, 0.5, 0.99))
    if _skewed(compared):
        return np.geomspace(max(low, 1e-3 * middle), max(np.max(both), 2 * middle), BINS + 1)
    return np.linspace(0.0, high, BINS + 1)


def _skewed(compared: Compared) -> bool:
    middle, high = np.quantile(compared.sides["others"], (0.5, 0.99))
    return bool(high > 10 * middle > 0)


def _histograms(found: Found) -> list[tuple[Any, ...]]:
    """Bins that hold any, by their middles."""
    rows = []
    for (name, kind), compared in found.items():
        edges = _edges(compared)
        for side, distances in compared.sides.items():
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
    for (name, kind), compared in found.items():
        splits, tests = len(compared.found), 2 * len(compared.found)
        pairs = zip(compared.of("mean_p"), compared.of("spread_p"), strict=True)
        seen = sum(min(pair) < LEVEL / tests for pair in pairs)
        if not seen:
            why = (
                f"no p-value is below {LEVEL:g} over the number of tests, {tests}: no difference was seen, which is "
                "not to say that there is none"
            )
        elif kind == PLAIN:
            why = (
                f"on {seen} of {splits} splits what is learnt by heart shows: fitted records have shorter gradients, "
                "and so shorter distances"
            )
        else:
            why = (
                f"on {seen} of {splits} splits the fit shows, which its epsilon does not forbid: the splits are "
                "random, and nothing else differs"
            )
        claims.append(
            Claim(
                f"{name}, {kind}",
                "p-values well over 0.05" if kind == PRIVATE else "not in the paper",
                f"on {len(compared.found)} splits: means {compared.mean('train_mean'):.4g} and "
                f"{compared.mean('test_mean'):.4g}, t-test p = {compared.p_values('mean_p')}; standard deviations "
                f"{compared.mean('train_sd'):.4g} and {compared.mean('test_sd'):.4g}, Levene's p = "
                f"{compared.p_values('spread_p')}; the {len(compared.found[0].test_distances):,} pairs a side of a "
                f"split notice a difference of means of "
                f"{compared.mean('detectable') / compared.mean('test_mean'):.1%} four times in five",
                why + (f"; {NEXT_TO_ZERO}" if _skewed(compared) else ""),
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
    for panel, ((name, kind), compared) in zip(panels, found.items(), strict=True):
        edges = _edges(compared).tolist()
        looks = {"fitted": {"alpha": 0.4}, "others": {"histtype": "step", "linewidth": 1.5}}
        for side, distances in compared.sides.items():
            weights = np.full(len(distances), 1 / len(distances))
            panel.hist(distances, edges, weights=weights, color=COLOURS[side], label=side, **looks[side])
        panel.set(
            xlabel="distance of two gradients",
            title=f"{name}, {kind}\nleast p of {len(compared.found)} splits:\nmeans {min(compared.of('mean_p')):.2g}, "
            f"variances {min(compared.of('spread_p')):.2g}",
            xscale="log" if _skewed(compared) else "linear",
        )
        panel.title.set_fontsize(8)
    panels[0].set_ylabel("share of pairs")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=2)
    return figure
