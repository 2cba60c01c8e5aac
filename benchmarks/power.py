"""Are intervals as wide as `confide.plan` says beforehand?

    python benchmarks/power.py
    python benchmarks/power.py --families logistic --d 5 --n 500,5000 --epsilon 0.25,1,8 --fits 4 --json found.jsonl

Every cell is fitted with default settings on simulated data: coefficients from the prior, features as `ideal.Cell` has
them, delta 1e-5. A line has the width that was predicted, the median width over coefficients and fits, and the ratio of
the two; then how often the scale was predicted to be seen, and how often it was. Where it is seen in about half of the
runs, widths are either of two very different ones, and no median means much: such a line is marked.

Of correlated features (`--design ar`: correlations of .7, spread by a third) there are three predictions: by default,
with the spread of the features known, and with both known.
"""

import argparse
import json
import time
from types import SimpleNamespace

import numpy as np

import confide
import coverage
import ideal

LIMITS = {"uniform": 0.15, "ar": 0.4}
HALF = (0.2, 0.8)  # chance of seeing the scale that is neither way
KNOWN = {"uniform": [{}], "ar": [{}, {"spread": 1 / 3}, {"spread": 1 / 3, "correlation": 0.7}]}


def measure(cell, epsilon, fits, seed):
    """Widths of so many fits, and how often the scale was seen."""
    given = SimpleNamespace(
        seed=seed, delta=1e-5, neighbours="add-remove", sampler="default", options="{}", chains=None,
        noise_known=False, undeclared=False,
    )  # fmt: skip
    widths = []
    for index in range(fits):
        draws, _, _ = coverage.fitted(cell, given, epsilon, index)
        low, high = np.quantile(draws, coverage.LEVELS, axis=0)
        widths.append(high - low)
    prior = coverage.WIDTH * cell.prior_scale
    return np.array(widths), float(np.mean(np.median(widths, axis=1) < 0.97 * prior))


def compare(cell, epsilon, fits, seed):
    """One line, as a record."""
    start = time.perf_counter()
    widths, seen = measure(cell, epsilon, fits, seed)
    asked = {"model": cell.family, "features": cell.d, "n": cell.n, "epsilon": epsilon, "delta": 1e-5}
    asked |= {"classes": cell.classes} if cell.family == "softmax" else {}
    forecasts = [confide.plan(**asked, prior_scale=cell.prior_scale, **known) for known in KNOWN[cell.design]]
    predicted = [float(np.median(each.widths[0])) for each in forecasts]
    return {
        "family": cell.family,
        "d": cell.d,
        "n": cell.n,
        "design": cell.design,
        "epsilon": epsilon,
        "predicted": predicted,
        "real": float(np.median(widths)),
        "constant": [float(forecasts[0].widths[0][-1]), float(np.median(widths[:, -1]))],
        "seen": [forecasts[0].seen[0], seen],
        "fits": fits,
        "seconds": time.perf_counter() - start,
    }


def show(record):
    ratios = [each / record["real"] for each in record["predicted"]]
    half = HALF[0] < record["seen"][0] < HALF[1]
    off = all(abs(ratio - 1) > LIMITS[record["design"]] for ratio in ratios)
    print(
        f"{record['family']:18} d {record['d']:3} n {record['n']:6} {record['design']:8} "
        f"epsilon {record['epsilon']:5g}: "
        f"predicted {', '.join(f'{each:.4g}' for each in record['predicted'])}, real {record['real']:.4g}, "
        f"ratio {', '.join(f'{each:.2f}' for each in ratios)}; seen {record['seen'][0]:.2f}, {record['seen'][1]:.2f}"
        + (" (either way)" if half else " OFF" if off else ""),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description="Predicted widths against real ones")
    parser.add_argument("--families", default="logistic,poisson,linear")
    parser.add_argument("--d", default="5,20")
    parser.add_argument("--n", default="500,5000,50000")
    parser.add_argument("--epsilon", default="0.25,0.5,1,2,4,8")
    parser.add_argument("--design", choices=list(LIMITS), default="uniform")
    parser.add_argument("--fits", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="append a line for each cell to this file")
    given = parser.parse_args()
    for family in given.families.split(","):
        for d in map(int, given.d.split(",")):
            for n in map(int, given.n.split(",")):
                prior = 0.5 if family in ("poisson", "negative-binomial") else 1.0
                cell = ideal.Cell(family, d, n, given.design, prior_scale=prior)
                for epsilon in map(float, given.epsilon.split(",")):
                    record = compare(cell, epsilon, given.fits, given.seed)
                    show(record)
                    if given.json:
                        with open(given.json, "a") as file:
                            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
