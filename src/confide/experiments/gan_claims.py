"""The cells of `li2019-gan`, its rows, and its claims: what is printed, what is measured, and why they differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from confide.experiments.colours import BLUE, RED
from confide.experiments.reproduction import Claim, Reproduction, new_figure
from confide.privacy import pricing

DELTA = 1e-5
EPSILONS = (0.2, 1.0, 3.0, 10.0)
SUPERVISED, SAME = "large perceptron, labels alone", "perceptron of the private runs, labels alone"
SCATTERING = "softmax regression on scattering features, labels alone"
REFERENCE = "Bayesian GAN with feature matching"
SGHMC, DP_SGD = "SGHMC", "DP-SGD"
EMBEDDING = "mean embedding, all labels"
CLAIMED = {SGHMC: 0.983, DP_SGD: 0.908}  # at (0.2, 1e-5)
NONE = "not in the paper"
LEVEL = 0.05
WHY = {
    REFERENCE: "it looks at real images in the generator's step, and nothing is clipped: no private run may do so",
    SUPERVISED: "what the labelled images tell without any other",
    SAME: "the same by the network of the private runs",
    SCATTERING: "features that were made without any image; with a budget the hundred labelled images are all records "
    "there are, and who is among them is private, while how many they are is not",
    EMBEDDING: "another task, with the labels of all images: sums over thousands, asked for once, drown the noise",
}


class Cell(NamedTuple):
    """One row: how it learns, whose labels are private, and the budget, or None."""

    method: str
    labels: str
    epsilon: float | None

    @property
    def name(self) -> str:
        price = "no privacy" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        return f"{self.method}, {self.labels} labels, {price}"

    @property
    def claimed(self) -> float | None:
        return CLAIMED.get(self.method) if self.epsilon == EPSILONS[0] else None


class Row(NamedTuple):
    """A row of the CSV."""

    method: str
    labels: str
    budget: float | None  # the epsilon that was asked for
    epsilon: float | None
    delta: float | None
    claimed_accuracy: float | None
    accuracy: float
    deviation: float | None
    lowest: float
    highest: float
    temperature: float | None
    largest_bound: float | None  # on epsilon by the audits of all runs
    largest_reach: float | None  # of such a bound where a run reveals all it claims
    least_p_value: float | None
    runs: int


def cells(epsilons: tuple[float, ...]) -> list[Cell]:
    without = [Cell(method, "public", None) for method in (SUPERVISED, SAME, SCATTERING, REFERENCE, SGHMC)]
    private = [
        Cell(method, labels, epsilon)
        for epsilon in epsilons
        for labels in ("public", "private")
        for method in (SGHMC, DP_SGD)
    ]
    beside = [Cell(method, "private", epsilon) for epsilon in epsilons for method in (SCATTERING, EMBEDDING)]
    return [*without, *private, *beside]


def summarise(cell: Cell, found: list[dict[str, Any]]) -> Row:
    """One row of several runs."""

    def every(name: str) -> list[float]:
        return [one[name] for one in found if one.get(name) is not None]

    accuracies = every("accuracy")
    return Row(
        cell.method,
        cell.labels,
        cell.epsilon,
        max(every("epsilon"), default=None),
        None if cell.epsilon is None else DELTA,
        cell.claimed,
        float(np.mean(accuracies)),
        float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        min(accuracies),
        max(accuracies),
        max(every("temperature"), default=None),
        max(every("bound"), default=None),
        max(every("reach"), default=None),
        min(every("p_value"), default=None),
        len(found),
    )


def reproduction(rows: list[Row], pictures: dict[Cell, np.ndarray], more: tuple[Claim, ...] = ()) -> Reproduction:
    return Reproduction(
        name="li2019-gan",
        columns=Row._fields,
        rows=rows,
        claims=(*map(_claim, rows), *_audited(rows), *more),
        figure=_figure(rows, pictures),
    )


def one_release(epsilon: float = EPSILONS[0]) -> tuple[float, float]:
    """mu of the budget, and the noise of one release in clips."""
    mu = pricing.gdp_mu(epsilon, DELTA)
    return mu, 1 / mu


def _claim(row: Row) -> Claim:
    price = "without privacy" if row.budget is None else f"at ({row.budget:g}, {DELTA:g})"
    claimed = NONE if row.claimed_accuracy is None else f"{row.claimed_accuracy:.1%}"
    if row.method == EMBEDDING and row.budget == EPSILONS[0]:
        claimed = "79.1% in a published re-run of DP-MERF"
    spread = "" if row.deviation is None else f" ± {row.deviation:.1%} ({row.runs} runs)"
    return Claim(f"{row.method}, {row.labels} labels, {price}", claimed, f"{row.accuracy:.1%}{spread}", _why(row))


def _audited(rows: list[Row]) -> list[Claim]:
    """What canaries in the private runs found, of all runs together."""
    audited = [row for row in rows if row.least_p_value is not None and row.largest_bound is not None]
    runs = sum(row.runs for row in audited)
    if not runs:
        return []
    least = min(row.least_p_value for row in audited if row.least_p_value is not None)
    above = [row for row in audited if row.largest_bound and row.epsilon and row.largest_bound > row.epsilon]
    refuted = "some claim is refuted" if runs * least < LEVEL else "no claim is refuted"
    found = f"{runs} runs: the least p-value is {least:.2g}, and {refuted} at {LEVEL:g} over the number of runs"
    if above:
        found += f"; in {len(above)} of {len(audited)} rows the largest bound on epsilon is above the claimed one"
    why = (
        "canaries see the noise and the cut of the sums, and nothing of a generator, which sees no record; they tell "
        "little of a small epsilon. A bound from one run is wrong once in twenty, so that the largest of many may be "
        "above"
    )
    return [Claim("private runs, audited by canaries", "no audit", found, why)]


def _why(row: Row) -> str:
    if row.method in WHY:
        return WHY[row.method]
    if row.budget is None:
        return "nothing is cut, and the noise is that of temperature 1: more than at any of these budgets"
    mu, scale = one_release(row.budget)
    budget = f"mu = {mu:.3f}: one release would have noise of {scale:.2g} clips in each coordinate"
    if row.claimed_accuracy is None:
        return budget
    other = (
        "ten labels of a class move a sum by ten clips at the most"
        if row.labels == "private"
        else "generators that see no features of real images make them of little use beside public labels"
    )
    return f"{budget}, and {other}; SGHMC is DP-SGD with momentum, at the same price and noise"


def _figure(rows: list[Row], pictures: dict[Cell, np.ndarray]) -> Any:
    figure, (left, right) = new_figure(2, 13.0, max(3.0, 0.32 * len(rows) + 1.2))
    places = np.arange(len(rows))[::-1]
    spread = [0.0 if row.deviation is None else row.deviation for row in rows]
    left.barh(places, [row.accuracy for row in rows], 0.6, xerr=spread, color=BLUE, label="measured")
    for place, row in zip(places, rows, strict=True):
        if row.claimed_accuracy is not None:
            left.plot([row.claimed_accuracy], [place], "D", color=RED, markersize=5)
        left.text(1.03, place, f"{row.accuracy:.1%}", va="center", fontsize=7)
    left.plot([], [], "D", color=RED, label="claimed")
    names = [Cell(row.method, row.labels, row.budget).name for row in rows]
    left.set_yticks(places, names, fontsize=7)
    left.set(xlabel="test accuracy", xlim=(0, 1.15))
    left.grid(True, axis="x", alpha=0.3)
    left.legend(fontsize=7, loc="lower right")
    right.axis("off")
    if pictures:
        _show(right, pictures)
    return figure


def _show(axes: Any, pictures: dict[Cell, np.ndarray]) -> None:
    """A strip of samples for each cell that has any."""
    count = max(len(images) for images in pictures.values())
    sheet = np.zeros((29 * len(pictures), 28 * count), np.uint8)
    for place, images in enumerate(pictures.values()):
        strip = images.reshape(-1, 28, 28).transpose(1, 0, 2).reshape(28, -1)
        sheet[29 * place : 29 * place + 28, : strip.shape[1]] = strip
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    for place, cell in enumerate(pictures):
        axes.text(-4, 29 * place + 14, cell.name, ha="right", va="center", fontsize=6)
    axes.set_title("samples of the generators", fontsize=8)
