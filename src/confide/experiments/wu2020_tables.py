"""What both tables of wu2020 share: its numbers, the threshold attack's and the model's, and their picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from confide.audits.threshold import threshold_attack
from confide.experiments.colours import BLUE, GREEN, ORANGE, PINK, RED, SKY
from confide.experiments.reproduction import new_figure

METHODS = ("SGD", "SGD+", "Dropout", "RMSprop", "SGLD", "SGLD+", "pSGLD", "pSGLD+")
METRICS = ("auc", "f1", "accuracy", "train", "test", "gap")
PAPER = {
    "table1": {
        "SGD": (0.677, 0.685, 0.646, 1.000, 0.734, 0.266),
        "SGD+": (0.677, 0.684, 0.645, 1.000, 0.720, 0.280),
        "Dropout": (0.527, 0.567, 0.527, 0.859, 0.747, 0.112),
        "RMSprop": (0.589, 0.677, 0.627, 0.965, 0.749, 0.216),
        "SGLD": (0.536, 0.598, 0.539, 0.811, 0.736, 0.075),
        "SGLD+": (0.536, 0.564, 0.526, 0.839, 0.751, 0.087),
        "pSGLD": (0.551, 0.600, 0.550, 0.858, 0.753, 0.105),
        "pSGLD+": (0.550, 0.568, 0.539, 0.859, 0.758, 0.101),
    },
    "table2": {
        "SGD": (0.669, 0.716, 0.646, 0.993, 0.823, 0.170),
        "SGD+": (0.665, 0.714, 0.638, 0.998, 0.837, 0.161),
        "Dropout": (0.662, 0.711, 0.634, 0.994, 0.818, 0.176),
        "RMSprop": (0.674, 0.715, 0.652, 0.992, 0.818, 0.174),
        "SGLD": (0.641, 0.669, 0.620, 0.973, 0.817, 0.156),
        "SGLD+": (0.643, 0.658, 0.617, 0.981, 0.825, 0.156),
        "pSGLD": (0.652, 0.697, 0.641, 0.982, 0.824, 0.158),
        "pSGLD+": (0.648, 0.692, 0.640, 0.987, 0.830, 0.157),
    },
}
COLOURS = {"SGD": RED, "Dropout": ORANGE, "RMSprop": PINK, "SGLD": BLUE, "pSGLD": SKY}
OTHER = GREEN  # what the paper has not


class Row(NamedTuple):
    """A method at a learning rate: means over splits, and standard deviations."""

    method: str
    learning_rate: float
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    splits: int

    @property
    def cells(self) -> tuple[Any, ...]:
        pairs = zip(self.means, self.deviations, strict=True)
        return (self.method, self.learning_rate, *(value for pair in pairs for value in pair), self.splits)

    def mean(self, metric: str) -> float:
        return self.means[METRICS.index(metric)]


COLUMNS = (
    "method",
    "learning_rate",
    *(f"{metric}{suffix}" for metric in METRICS for suffix in ("", "_deviation")),
    "splits",
)


def attacked(log_probabilities: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> tuple[float, ...]:
    """METRICS of one model from what it says of all records: the attack says "member" up to the mean training loss."""
    loss = -log_probabilities[np.arange(len(y)), y].astype(np.float64)
    right = np.argmax(log_probabilities, axis=-1) == y
    scores = threshold_attack(loss[train], loss[test])
    accuracies = float(np.mean(right[train])), float(np.mean(right[test]))
    return (scores.auc, scores.f1, scores.accuracy, *accuracies, accuracies[0] - accuracies[1])


def row(method: str, learning_rate: float, found: Sequence[tuple[float, ...]]) -> Row:
    values = np.array(found)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(len(METRICS), math.nan)
    return Row(method, learning_rate, tuple(map(float, values.mean(axis=0))), tuple(map(float, spread)), len(values))


def beside(ours: Row, table: str) -> str:
    """AUC, training and test accuracy of a row, with deviations over splits, and the paper's in brackets."""
    paper = PAPER[table].get(ours.method)
    parts = [
        f"{name} {ours.means[place]:.3f}"
        + ("" if math.isnan(ours.deviations[place]) else f" ± {ours.deviations[place]:.3f}")
        + (f" ({paper[place]:.3f})" if paper else "")
        for name, place in (("AUC", 0), ("train", 3), ("test", 4))
    ]
    return f"{ours.method}: {', '.join(parts)}"


def drawn(rows: Sequence[Row], table: str, title: str, curves: dict[str, list[Row]] | None = None) -> Any:
    """On the left the attack's AUC of each method, ours and the paper's; on the right AUC against test accuracy."""
    figure, (left, right) = new_figure(2, 11.5, 5.0)
    for place, ours in enumerate(rows):
        paper = PAPER[table].get(ours.method)
        style: dict[str, Any] = {"color": _colour(ours.method), "markersize": 8}
        if paper:
            left.plot([paper[0], ours.mean("auc")], [place, place], color="#BBBBBB", linewidth=1, zorder=0)
            left.plot(paper[0], place, "D", fillstyle="none", **style)
            right.plot(paper[4], paper[0], "D", fillstyle="none", **style)
        left.errorbar(ours.mean("auc"), place, xerr=np.nan_to_num(ours.deviations[0]), fmt="o", capsize=3, **style)
        right.plot(ours.mean("test"), ours.mean("auc"), "o", **style)
    for name, points in (curves or {}).items():
        ordered = sorted(points, key=lambda point: point.learning_rate)
        path = [(point.mean("test"), point.mean("auc")) for point in ordered]
        right.plot(*zip(*path, strict=True), "-", color=_colour(name), linewidth=1.5, alpha=0.7)
        right.annotate(
            f"{name}, from slow to fast", path[0], (4, -12), textcoords="offset points", color=_colour(name), fontsize=8
        )
    left.axvline(0.5, color="#666666", linestyle=":", linewidth=1)
    several = ", with standard deviations over splits" if rows[0].splits > 1 else ""
    left.plot([], [], "o", color="#666666", label=f"here{several}")
    left.plot([], [], "D", color="#666666", fillstyle="none", label="wu2020")
    left.set(yticks=range(len(rows)), yticklabels=[ours.method for ours in rows], xlabel="AUC of the threshold attack")
    left.invert_yaxis()
    left.grid(True, axis="x", alpha=0.3)
    left.legend(fontsize=8, loc="best")
    right.set(xlabel="Test accuracy", ylabel="AUC of the threshold attack", title="below and to the right is better")
    right.title.set_fontsize(9)
    right.grid(True, alpha=0.3)
    figure.suptitle(title, fontsize=11)
    return figure


def _colour(method: str) -> str:
    return COLOURS.get(method.split(",")[0].rstrip("+"), OTHER)
