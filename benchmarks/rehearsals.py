"""Is what a rehearsal of a run says about its coverage true of fresh data?

    python benchmarks/rehearsals.py [--truths 10 --datasets 100 --tables 50]

Truths are drawn from the prior, a run is made of each, and rehearsed: tables are made up from what it released, and its
report would say how often intervals held the made-up truths. Of every truth for which that is within .88 to .92, fresh
datasets are drawn, fitted, and the truth itself is looked for: pooled over all truths, it should be held in .86 to .94.
Each truth has a line; standard errors are clustered by dataset.
"""

import argparse
import math
import time
import warnings
from types import SimpleNamespace

import numpy as np

import confide
import coverage
import ideal

SAID, HELD = (0.88, 0.92), (0.86, 0.94)


def fresh(cell, truth, seed, index):
    """Rows and outcomes of that truth."""
    rng = np.random.default_rng([seed, index, 7])
    x = rng.uniform(-1, 1, (cell.n, cell.d)).astype(np.float32)
    y = rng.random(cell.n) < 1 / (1 + np.exp(-ideal.with_constant(x) @ truth))
    return x, y.astype(np.float32)


def fit(cell, data, epsilon, key):
    model = confide.models.logistic_regression(cell.d, intercept=True)
    budget = confide.Budget(epsilon=epsilon, delta=1e-5)
    return confide.fit(model, data, budget=budget, key=key, verbose=False, progress=False)


def holds(posterior, truth):
    parts = [np.asarray(posterior.draws["weights"]), np.asarray(posterior.draws["intercept"])[:, :, None]]
    draws = np.concatenate(parts, axis=2).reshape(-1, truth.size)
    low, high = np.quantile(draws, coverage.LEVELS, axis=0)
    return (low <= truth) & (truth <= high)


def main():
    parser = argparse.ArgumentParser(description="Coverage that a rehearsal says, and coverage of fresh data")
    parser.add_argument("--d", type=int, default=5)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--truths", type=int, default=10)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = SimpleNamespace(**vars(parser.parse_args()))
    warnings.simplefilter("ignore")
    cell = ideal.Cell("logistic", given.d, given.n, "uniform")
    start, pooled, tried = time.time(), [], 0
    while len(pooled) < given.truths:
        truth = np.random.default_rng([given.seed, tried, 3]).standard_normal(given.d + 1)
        said = confide.rehearse(fit(cell, fresh(cell, truth, given.seed, 10**6 + tried), given.epsilon, tried),
                                datasets=given.tables).coverage  # fmt: skip
        tried += 1
        if not SAID[0] <= said <= SAID[1]:
            print(f"truth {tried}: a rehearsal says {said:.3f}, which is left out", flush=True)
            continue
        inside = [
            np.mean(holds(fit(cell, fresh(cell, truth, given.seed, 1000 * tried + i), given.epsilon, i), truth))
            for i in range(given.datasets)
        ]
        pooled.append(inside)
        error = np.std(inside, ddof=1) / math.sqrt(len(inside))
        print(f"truth {tried}: a rehearsal says {said:.3f}, held {np.mean(inside):.3f} ± {error:.3f}", flush=True)
    every = np.ravel(pooled)
    error = np.std(every, ddof=1) / math.sqrt(len(every))
    verdict = "within" if HELD[0] <= np.mean(every) <= HELD[1] else "OUTSIDE"
    print(
        f"pooled: {np.mean(every):.3f} ± {error:.3f}, {verdict} {HELD[0]} to {HELD[1]}; "
        f"{(time.time() - start) / 60:.1f} min"
    )


if __name__ == "__main__":
    main()
