"""triastcyn2020, Figure 4: noise against epsilon, clipped for differential privacy and not for the Bayesian accountant.

C is a quantile of the norms; noise is sigma times C, and C is the clip for differential privacy. Gradients are those of
Figure 3. Without a clip the bounded estimator is not defined.
"""

from __future__ import annotations

import numpy as np

from confide.experiments import triastcyn2020_curves as curves
from confide.experiments.reproduction import Claim, Reproduction
from confide.experiments.triastcyn2020_curves import UNCLIPPED, WORST, Point

QUANTILES = (0.05, 0.5, 0.95)
SAMPLING = 1024 / 60_000


def run(quick: bool = False) -> Reproduction:
    found = curves.against_noise(quick, QUANTILES, _measure)
    return Reproduction(
        name="triastcyn2020-figure4",
        columns=("quantile", "method", "sigma", "epsilon"),
        rows=found.points,
        claims=_claims(*found),
        figure=found.draw("noise at the", "sigma (noise over C)"),
    )


def _measure(norms: np.ndarray, level: float, sigma: float) -> dict[str, float]:
    return {
        WORST: curves.everybody(len(norms), sigma, SAMPLING),
        UNCLIPPED: curves.unclipped(norms, sigma * level, SAMPLING),
    }


def _claims(points: list[Point], norms: np.ndarray, source: str) -> tuple[Claim, ...]:
    epsilon = {(p.quantile, p.method, p.horizontal): p.epsilon for p in points}
    sigmas = sorted({p.horizontal for p in points})
    ratios = {q: [epsilon[q, UNCLIPPED, s] / epsilon[q, WORST, s] for s in sigmas] for q in QUANTILES}
    longest = {q: norms.max() / np.quantile(norms, q) for q in QUANTILES}
    return (
        Claim(
            "BDP without clipping against DP with it",
            "less consistent behaviour",
            "epsilon of BDP over that of DP: "
            + ", ".join(f"{max(r):.3g} to {min(r):.3g} at {q:g}" for q, r in ratios.items()),
            "true: the longest gradient is "
            + ", ".join(f"{value:.3g}" for value in longest.values())
            + " times C, and with the power T inside it decides",
        ),
        Claim(
            "noise for the same epsilon, not clipped",
            "may need a more thorough search",
            f"below DP at {sum(r < 1 for rows in ratios.values() for r in rows)} of "
            f"{sum(map(len, ratios.values()))} points",
            "of the sampled gradients of a step some are longer than C, so a step seldom costs less than with the clip",
        ),
        Claim("gradients", '"real data"', source, "softmax regression along a private run's path"),
    )
