"""What the figures of triastcyn2020 share: three ways to count what Gaussian steps reveal, gradients, and panels.

delta is 1e-5, for everybody and for typical people alike, and gamma is 1e-15 as in the paper. Neighbours differ by one
record, so a distance is the norm of its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from confide.data import datasets
from confide.experiments.colours import GREEN, RED, SKY
from confide.experiments.reproduction import finish_axes, new_figure
from confide.privacy.accountants import bayesian, bayesian_costs
from confide.validation import Refused

DELTA = 1e-5
STRICT = 1e-10  # the paper's delta_mu: by Markov's inequality, DELTA for all but one person in 100,000
WORST, PUBLISHED, BOUNDED, UNCLIPPED = (
    "DP, moments accountant",
    "BDP, published, clipped",
    "BDP, bounded, clipped",
    "BDP, published, not clipped",
)
STYLES: dict[str, dict[str, Any]] = {  # where curves coincide, all can be seen
    PUBLISHED: {"color": SKY, "linestyle": "-", "linewidth": 4},
    BOUNDED: {"color": RED, "linestyle": "-", "linewidth": 2, "marker": "s"},
    UNCLIPPED: {"color": GREEN, "linestyle": "-", "linewidth": 2, "marker": "^"},
    WORST: {"color": "black", "linestyle": ":", "linewidth": 2},
}


class Point(NamedTuple):
    """A row of the CSV: horizontal is the number of steps, or sigma."""

    quantile: float
    method: str
    horizontal: float
    epsilon: float


def clipped(norms: np.ndarray, clip: float, noise: float, q: float, delta: float = DELTA) -> dict[str, float]:
    """Epsilon in three ways, with gradients cut to the clip; as printed, none is limited by another."""
    names = {WORST: "worst", PUBLISHED: "published", BOUNDED: "bounded"}
    cut = np.minimum(norms, clip)
    setting = bayesian_costs.setting(cut, noise_scale=noise, sampling_probability=q, clip=clip)
    found = bayesian_costs.costs(setting, tuple(names.values()))
    return {name: bayesian.epsilon_of_costs(found[kind], delta=delta) for name, kind in names.items()}


def everybody(steps: int, multiplier: float, q: float) -> float:
    """Epsilon of the moments accountant."""
    setting: dict[str, Any] = {"noise_scale": multiplier, "sampling_probability": q, "clip": 1.0, "delta": DELTA}
    return bayesian.bayesian_epsilon(np.ones((steps, 3)), estimator="worst", **setting)


def unclipped(norms: np.ndarray, noise: float, q: float) -> float:
    return bayesian.bayesian_epsilon(norms, noise_scale=noise, sampling_probability=q, delta=DELTA)


def gradients(steps: int, samples: int) -> tuple[np.ndarray, str]:
    """Norms of single gradients along a run of softmax regression, (steps, samples), and where they come from.

    MNIST, or the digits that ship with scikit-learn where it is not at hand. The run takes batches of 64 and noise of
    one clip, as a private one would; a norm is that of (prediction - label) times that of the image and a constant 1.
    """
    try:
        split = datasets.mnist()
        images, labels, name = split.x.reshape(len(split.x), -1) / np.float32(255), split.y, "MNIST"
    except Refused as reason:
        small = datasets.digits()
        images, labels = small.x.reshape(len(small.x), -1) / np.float32(16), small.y
        name = f"8 x 8 digits, in place of MNIST ({reason})"
    rng = np.random.default_rng(2020)
    weights, norms, clip = np.zeros((images.shape[1], 10)), np.empty((steps, samples)), 1.0
    for step in range(steps):
        chosen = rng.integers(len(images), size=64 + samples)
        rows, errors = images[chosen], np.eye(10)[labels[chosen]]
        scores = rows @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = scores / scores.sum(axis=1, keepdims=True) - errors
        lengths = np.sqrt((errors**2).sum(axis=1) * (1 + (rows**2).sum(axis=1)))
        norms[step] = lengths[64:]
        factors = np.minimum(1.0, clip / lengths[:64])[:, None]
        noise = rng.normal(0.0, clip, weights.shape)
        weights -= 0.5 / 64 * (rows[:64].T @ (errors[:64] * factors) + noise)
    return norms, name


class Noise(NamedTuple):
    """Epsilon against sigma, for gradients of a run on real data."""

    points: list[Point]
    norms: np.ndarray
    source: str

    def draw(self, title: str, horizontal: str) -> Any:
        return draw(self.points, title, horizontal, ticks=(0.5, 1, 2, 4, 8))


def against_noise(
    quick: bool, quantiles: Sequence[float], measure: Callable[[np.ndarray, float, float], dict[str, float]]
) -> Noise:
    """`measure(norms, C, sigma)` tells epsilon by methods; C is a quantile of the norms."""
    norms, source = gradients(*((30, 16) if quick else (1000, 64)))
    points = [
        Point(quantile, method, float(sigma), epsilon)
        for quantile in quantiles
        for sigma in np.geomspace(0.5, 8.0, 3 if quick else 9)
        for method, epsilon in measure(norms, float(np.quantile(norms, quantile)), float(sigma)).items()
    ]
    return Noise(points, norms, source)


def draw(points: Sequence[Point], title: str, horizontal: str, ticks: Sequence[float]) -> Any:
    """A row of panels, one for each quantile, with one legend below."""
    quantiles = sorted({point.quantile for point in points})
    figure, panels = new_figure(len(quantiles), 3.2 * len(quantiles), 3.9)
    for panel, quantile in zip(panels, quantiles, strict=True):
        for method, style in STYLES.items():
            curve = [(p.horizontal, p.epsilon) for p in points if (p.quantile, p.method) == (quantile, method)]
            if curve:
                panel.plot(*zip(*curve, strict=True), label=method, markersize=4, **style)
        finish_axes(panel, horizontal, "", f"{title} {quantile:g}-quantile")
        panel.set_xticks(ticks, [f"{tick:,g}" for tick in ticks], fontsize=8)
        panel.minorticks_off()
    panels[0].set_ylabel("epsilon")
    handles = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=8, loc="outside lower center", ncols=4)
    return figure
