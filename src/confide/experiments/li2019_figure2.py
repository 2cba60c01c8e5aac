"""li2019, Figure 2: how the largest first step depends on the number of records and on the clip.

Top: n = 10^3 .. 10^6 with clip 1. Bottom: clip 0.1 .. 10 with n = 10^4. Both with delta = 1/n, T = n, decreasing
schedule, temperature 1/2; epsilon from 0.02 to 1.7 as in Figure 1.
"""

from __future__ import annotations

import numpy as np

from confide.experiments.colours import BLUE, GREEN, RED, SKY
from confide.experiments.reproduction import Claim, Reproduction, finish_axes, new_figure
from confide.privacy import calibration, pricing, step_size_theorems

RECORDS = (1_000, 10_000, 100_000, 1_000_000)
CLIPS = (0.1, 0.5, 1.0, 10.0)
METHODS = {"moments": "--", "numerical": "-"}
SHADES = (SKY, BLUE, GREEN, RED)


def step(method: str, n: int, clip: float, epsilon: float) -> float:
    return step_size_theorems.step_size(
        method,
        n=n,
        steps=n,
        delta=1 / n,
        clip=clip,
        epsilon=epsilon,
        temperature=0.5,
        batch_size=max(100, n // 100),
        schedule="decreasing",
    )


def run(quick: bool = False) -> Reproduction:
    epsilons = np.geomspace(0.02, 1.7, 3 if quick else 7)
    records = RECORDS[:2] if quick else RECORDS
    settings = [(n, 1.0) for n in records] + [(10_000, clip) for clip in CLIPS if clip != 1.0]
    # The step size is inversely proportional to clip^2 exactly: n alone decides the noise.
    base = {(m, n): np.array([step(m, n, 1.0, float(e)) for e in epsilons]) for m in METHODS for n in records}
    rows = [
        (method, n, clip, float(epsilon), float(value))
        for method in METHODS
        for n, clip in settings
        for epsilon, value in zip(epsilons, base[method, n] / clip**2, strict=True)
    ]
    return Reproduction(
        name="li2019-figure2",
        columns=("method", "n", "clip", "epsilon", "first_step_size"),
        rows=rows,
        claims=_claims(base, epsilons),
        figure=_figure(base, epsilons, records),
    )


def _claims(base: dict, epsilons: np.ndarray) -> tuple[Claim, ...]:
    least, most = min(n for _, n in base), max(n for _, n in base)
    rise = {method: base[method, most] / base[method, least] for method in METHODS}
    growth = {
        method: " and ".join(f"{rise[method][i]:.2g}-fold at epsilon {epsilons[i]:.2g}" for i in (0, -1))
        for method in METHODS
    }
    direct = step("numerical", 10_000, 10.0, float(epsilons[-1]))
    cost = {first: _cost(first) for first in (1e-4, 0.01, 0.1)}
    return (
        Claim(
            "the bound is stable in the number of records",
            "stable",
            f"from n = {least:,} to {most:,} it grows {growth['moments']} by the paper's accountant, "
            f"{growth['numerical']} by the tight one",
            "T = n spends n^(2/3) diffusion time of n: a factor n^(1/3), offset by the smaller delta = 1/n",
        ),
        Claim(
            "the bound is about proportional to 1 / clip",
            "1 / clip",
            f"{base['numerical', 10_000][-1] / direct:.4g}-fold smaller at ten times the clip",
            "the noise multiplier depends on clip^2 times step size alone, so the bound is exactly "
            "proportional to 1 / clip^2, as Theorem 3 has it",
        ),
        Claim(
            "usual step sizes, 1e-4 to 0.1, are private as they are",
            "even when epsilon is small",
            f"n = 10,000, clip 1: epsilon {cost[1e-4]:.2g} for a first step of 1e-4, {cost[0.1]:.2g} for 0.1",
            "true of the first, a fair price for the second; ten times the clip is as a hundred times the step, and "
            f"takes the first to {cost[0.01]:.2g}",
        ),
    )


def _cost(first: float, n: int = 10_000) -> float:
    sigma = calibration.noise_multiplier(step_size=first, n=n, batch_size=100, clip=1.0, temperature=0.5)
    noise = sigma * calibration.relative_noise("decreasing", n)
    return pricing.epsilon(noise_multiplier=noise, sampling_probability=0.01, delta=1 / n)


def _figure(base: dict, epsilons: np.ndarray, records):
    figure, panels = new_figure(2, 10.0, 5.0)
    for method, style in METHODS.items():
        name = {"moments": "moments", "numerical": "tight"}[method]
        for n, colour in zip(records, SHADES, strict=False):
            panels[0].plot(epsilons, base[method, n], style, color=colour, label=f"n = {n:,} ({name})")
        for clip, colour in zip(CLIPS, SHADES, strict=True):
            values = base[method, 10_000] / clip**2
            panels[1].plot(epsilons, values, style, color=colour, label=f"clip = {clip:g} ({name})")
    for panel, title in zip(panels, ("clip 1", "n = 10,000"), strict=True):
        finish_axes(panel, "epsilon", "largest first step size", title)
        panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure
