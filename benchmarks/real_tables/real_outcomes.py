"""The real outcomes: do intervals hold the fit without privacy (the field's default, hardly a prior)?

`ratio` is the said standard deviation over sqrt(sandwich standard error^2 + mean squared distance to that fit).
"""

from __future__ import annotations

from functools import lru_cache

import engine
import numpy as np
import plain
import tables
from judge import mark
from records import stack, summarise_draws

NAMES = ("nwtco", "hi", "rossi", "males", "wages", "workinghours", "ofp", "doctoraus")
FEWEST = 3 / 8  # of the runs of a table


@lru_cache(maxsize=2)
def load(name: str) -> tuple[tables.RealTable, plain.PlainFit]:
    table = tables.load(name)
    return table, plain.fit_plain(table, table.y)


def measure(name: str, epsilon: float, index: int) -> dict:
    fitted = engine.fit(load(name)[0], epsilon, 1000 + index)
    return {
        "coefficients": summarise_draws(fitted.draws),
        "converged": fitted.converged,
        "seconds": fitted.seconds,
    }


def report(lines: list[dict]) -> list[str]:
    texts, short = [], {}
    for name in NAMES:
        for epsilon in sorted({line["epsilon"] for line in lines if line["table"] == name}):
            chosen = [line for line in lines if line["table"] == name and line["epsilon"] == epsilon]
            table, truth = load(name)
            usual = ~table.is_rare & ~table.is_constant
            low, high, mean, sd = (
                stack(chosen, "coefficients", each)[:, usual] for each in ("low", "high", "mean", "sd")
            )
            target, error = truth.coefficients[usual], truth.deviations[usual]
            shares = ((low <= target) & (target <= high)).mean(axis=0)
            ratios = sd.mean(axis=0) / np.sqrt(error**2 + np.square(mean - target).mean(axis=0))
            names = np.array([*(table.feature_names[j] for j in table.coefficients), "intercept"])[usual]
            short[name, epsilon] = set(names[shares < FEWEST])
            share, ratio = float(shares.mean()), float(np.median(ratios))
            texts.append(
                f"{name:13s} eps {epsilon:<4g} runs {len(chosen):2d} | held {share:.2f}"
                f"{mark(share >= (0.87 if epsilon >= 1 else 0.82))} | ratio {ratio:.2f}{mark(0.75 <= ratio <= 1.4)} "
                f"[{ratios.min():.2f} {names[np.argmin(ratios)]}, "
                f"{ratios.max():.2f} {names[np.argmax(ratios)]}] "
                f"| worst {shares.min():.2f} {names[np.argmin(shares)]} "
                f"| sd/se {np.median(sd.mean(axis=0) / error):.1f} "
                f"| z {np.max(np.abs(mean - target) / sd):.1f} "
                f"| converged {np.mean([line['converged'] for line in chosen]):.2f}"
            )
        both = short.get((name, 1.0), set()) & short.get((name, 4.0), set())
        if both:
            texts.append(f"{name:13s} columns held in fewer than 3 of 8 at epsilon 1 and 4: {', '.join(both)} MISSED")
    return texts
