"""li2019, Figure 1: the largest step size that keeps a budget, against epsilon.

n = 50,000, T = 10,000, clip 1, delta = 1e-5, epsilon from 0.02 to 1.7. The paper does not state the batch size; it
matters only through the noise multiplier of the first steps (see the claims). Both of the paper's curves, wang2015's
bound, and what the classical moments tail and the tight accountant certify, at the paper's temperature 1/2.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from confide.experiments.colours import BLUE, RED, SKY
from confide.experiments.reproduction import Claim, Reproduction, finish_axes, new_figure
from confide.privacy import step_size_theorems

SETTING: dict[str, Any] = {
    "n": 50_000,
    "steps": 10_000,
    "delta": 1e-5,
    "clip": 1.0,
    "temperature": 0.5,
    "batch_size": 256,
}
COLOURS = {"wang2015": RED, "moments": SKY, "numerical": BLUE}
LABELS = {
    "wang2015": "wang2015, Theorem 4",
    "moments": "moments accountant (li2019's)",
    "numerical": "tight accountant",
}


def curve(method: str, schedule: str, epsilons: np.ndarray) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # side conditions are reported in the claims
        return [step_size_theorems.step_size(method, epsilon=float(e), schedule=schedule, **SETTING) for e in epsilons]  # type: ignore[arg-type]


def run(quick: bool = False) -> Reproduction:
    epsilons = np.geomspace(0.02, 1.7, 3 if quick else 15)
    curves = {("wang2015", "fixed"): curve("wang2015", "fixed", epsilons)}
    for method in ("moments", "numerical"):
        for schedule in ("fixed", "decreasing"):
            curves[method, schedule] = curve(method, schedule, epsilons)
    rows = [
        (method, schedule, float(epsilon), value)
        for (method, schedule), values in curves.items()
        for epsilon, value in zip(epsilons, values, strict=True)
    ]
    return Reproduction(
        name="li2019-figure1",
        columns=("method", "schedule", "epsilon", "step_size"),
        rows=rows,
        claims=_claims(),
        figure=_figure(epsilons, curves),
    )


def _claims() -> tuple[Claim, ...]:
    at = {**SETTING, "epsilon": 0.1}
    theirs = step_size_theorems.wang2015(**{k: at[k] for k in ("n", "steps", "epsilon", "delta", "clip")})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = {
            (method, schedule, temperature): step_size_theorems.step_size(
                method, **{**at, "schedule": schedule, "temperature": temperature}
            )
            for method, schedule, temperature in (
                ("moments", "decreasing", 0.5),
                ("numerical", "decreasing", 0.5),
                ("numerical", "decreasing", 1.0),
                ("numerical", "fixed", 0.5),
                ("numerical", "fixed", 1.0),
            )
        }
    return (
        Claim(
            "wang2015's bound at epsilon 0.1",
            "1.54e-06",
            f"{theirs:.3e}",
            "the paper evaluates log(T/delta) where the theorem has log(2.5 T/delta)",
        ),
        Claim(
            "first step of the decreasing schedule at epsilon 0.1",
            "0.103",
            f"{values['moments', 'decreasing', 0.5]:.3f} (moments), "
            f"{values['numerical', 'decreasing', 0.5]:.3f} (tight)",
            "the constant c_2 is not given; the accountant it is said to come from certifies a third of the claim, "
            "the tight one three quarters",
        ),
        Claim(
            "the same at temperature 1, the posterior itself",
            "not given",
            f"{values['numerical', 'decreasing', 1.0]:.3f}",
            "the paper's noise N(0, step/n) samples at temperature 1/2; the posterior has twice the noise and "
            "so twice the step",
        ),
        Claim(
            "fixed step at epsilon 0.1",
            "not given as a number",
            f"{values['numerical', 'fixed', 0.5]:.4f} at temperature 1/2, {values['numerical', 'fixed', 1.0]:.4f} at 1",
            "tight accountant; what is spent is the sum of the step sizes, so a decreasing schedule may start higher",
        ),
    )


def _figure(epsilons: np.ndarray, curves: dict):
    figure, axes = new_figure(1, 6.4, 4.8)
    for (method, schedule), values in curves.items():
        label = LABELS[method] + ("" if method == "wang2015" else f", {schedule}")
        style = "-" if schedule == "fixed" else "--"
        axes.plot(epsilons, values, style, color=COLOURS[method], label=label, linewidth=2)
    axes.plot([0.1], [0.103], "x", color="black", markersize=9, markeredgewidth=2, label="li2019's claim, decreasing")
    title = "What a privacy budget allows: n = 50,000, T = 10,000, temperature 1/2"
    finish_axes(axes, "epsilon", "largest step size (first step if decreasing)", title)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure
