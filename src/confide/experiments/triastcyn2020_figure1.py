"""triastcyn2020, Figure 1: epsilon against the number of steps, for gradients with heavy tails.

Norms are drawn from a Weibull distribution with a shape below 1; noise is at a quantile of it, and the clip equals the
noise. The paper gives neither shape nor steps nor delta nor the share of a batch. Ours: shape 0.9, the mild end, 1 to
10,000 steps with 64 samples each, delta 1e-5, and the batches of its Figure 5. The power of Hoelder's inequality is
the number of steps so far.
"""

from __future__ import annotations

import numpy as np

from confide.experiments import triastcyn2020_curves as curves
from confide.experiments.reproduction import Claim, Reproduction
from confide.experiments.triastcyn2020_curves import BOUNDED, PUBLISHED, UNCLIPPED, WORST, Point
from confide.privacy.accountants import bayesian

SHAPE = 0.9
BATCH = 64
SAMPLING = BATCH / 60_000
QUANTILES = (0.05, 0.25, 0.75, 0.95)


def noise_at(quantile: float) -> float:
    return float((-np.log1p(-quantile)) ** (1 / SHAPE))


def run(quick: bool = False) -> Reproduction:
    counts = (1, 6, 30) if quick else (1, 5, 20, 100, 500, 2000, 10_000)
    norms = np.random.default_rng(2020).weibull(SHAPE, (counts[-1], 16 if quick else 64))
    points = []
    for quantile in QUANTILES:
        noise = noise_at(quantile)
        for count in counts:
            found = curves.clipped(norms[:count], noise, noise, SAMPLING)
            found[UNCLIPPED] = curves.unclipped(norms[:count], noise, SAMPLING)
            points += [Point(quantile, method, count, epsilon) for method, epsilon in found.items()]
    return Reproduction(
        name="triastcyn2020-figure1",
        columns=("quantile", "method", "steps", "epsilon"),
        rows=points,
        claims=_claims(points, norms),
        figure=curves.draw(points, "noise at the", "steps", ticks=counts if quick else (1, 10, 100, 1000, 10_000)),
    )


def _claims(points: list[Point], norms: np.ndarray) -> tuple[Claim, ...]:
    last = len(norms)
    at = {(p.quantile, p.method): p.epsilon for p in points if p.horizontal == last}
    ratio = {quantile: at[quantile, UNCLIPPED] / at[quantile, WORST] for quantile in QUANTILES}
    within = {quantile: at[quantile, PUBLISHED] / at[quantile, WORST] for quantile in QUANTILES}
    held = {quantile: at[quantile, BOUNDED] / at[quantile, WORST] for quantile in QUANTILES}
    sizes = (100, 10_000) if last < 1000 else (100, 10_000, 1_000_000)
    growth = [one_step(size) for size in sizes]
    averaged = curves.unclipped(norms / BATCH, noise_at(0.25), SAMPLING)
    after = f"after {last:,} steps"
    return (
        Claim(
            "noise at the 0.25-quantile",
            "the Bayesian accountant matches the moments accountant",
            f"{after} {at[0.25, UNCLIPPED]:.3g} against {at[0.25, WORST]:.3g}, {ratio[0.25]:.3g}-fold; it would be "
            f"{averaged:.3g} if a record moved what is released by a {BATCH}th of its gradient",
            "the power T inside the expectation picks the longest gradient of a step, and without a clip that is many "
            "times the noise. They are alike where distances are taken between means of a batch with and without a "
            "record, and the moments accountant counts a record as if it could move such a mean by the noise",
        ),
        Claim(
            "the growth as noise nears the norms of gradients",
            "decreases dramatically",
            f"{after}, over the moments accountant: "
            + ", ".join(f"{value:.3g}-fold at {quantile:g}" for quantile, value in ratio.items()),
            "it does decrease; it stays above the moments accountant's at all four quantiles",
        ),
        Claim(
            "clipping for the Bayesian accountant",
            "gives the behaviour of Figure 1d",
            f"{after}, over the moments accountant: "
            + ", ".join(f"{within[q]:.3g} ({held[q]:.3g} bounded) at {q:g}" for q in QUANTILES),
            "with the clip it follows the moments accountant at every quantile, because most samples hold a record at "
            "the clip; above 1 where the t-quantile adds more than the average saves",
        ),
        Claim(
            "the number that is estimated",
            "has a mean and a variance",
            "one step, noise at the 0.95-quantile, order 1: cost "
            + ", ".join(f"{cost:.3g} from {size:,} samples" for cost, size in zip(growth, sizes, strict=True)),
            "exp(c d^2) has no mean under a Weibull tail exp(-d^k) with k < 2, whatever c > 0: the estimate is finite, "
            "what it estimates is not, and more samples tend to raise it",
        ),
    )


def one_step(samples: int) -> float:
    """The published cost of one step at order 1."""
    norms = np.random.default_rng(samples).weibull(SHAPE, (1, samples))
    settings = {"noise_scale": noise_at(0.95), "sampling_probability": SAMPLING, "orders": [1]}
    return float(bayesian.costs(norms, **settings)[0, 0])
