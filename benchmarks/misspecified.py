"""Where the model is wrong: do intervals of scoring hold the coefficients that they are about?

    python benchmarks/misspecified.py --datasets 100

Logistic regression, d = 5 uniform features and an intercept, coefficients from the prior N(0, 1), n = 10,000; one label
in ten is a coin's, so that no coefficients give the true probabilities. Scoring asks for weighted scores, whose mean is
zero elsewhere than that of plain ones. Both roots are found for 200,000 rows with the true probabilities in the place
of labels: rows count by 1 / (max(p, 1 - p) ||A z||), A what whitens them, up to twice the usual length (REACH). The
table has coverage of either by 90% intervals, with standard errors clustered by dataset, and the distance between the
roots in posterior standard deviations.
"""

import argparse
import math

import numpy as np

import confide
from confide.inference.frames import CLIP
from confide.mechanism.scale import REACH

D, ROWS, COINS, DELTA = 5, 200_000, 0.1, 1e-5


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def root(z, chances, lengths, weighted):
    """Coefficients at which the mean score of rows is zero, by Newton's method."""
    theta, usual = np.zeros(z.shape[1]), math.sqrt(np.mean(lengths**2))
    for _ in range(50):
        p = sigmoid(z @ theta)
        weight = np.ones(len(z))
        if weighted:
            weight = np.minimum(1.0, CLIP * usual / (np.maximum(p, 1 - p) * lengths))
            weight = weight * np.minimum(1.0, (REACH * usual / lengths) ** 2)
        slope = z.T @ (z * (weight * p * (1 - p))[:, None])
        step = np.linalg.solve(slope, z.T @ (weight * (chances - p)))
        theta = theta + step
        if np.max(np.abs(step)) < 1e-10:
            break
    return theta


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--epsilon", default="0.5,2,8")
    given = parser.parse_args()
    found = {float(each): [] for each in given.epsilon.split(",")}
    for index in range(given.datasets):
        rng = np.random.default_rng([11, index])
        truth = rng.standard_normal(D + 1)
        z = np.column_stack([np.ones(ROWS), rng.uniform(-1, 1, (ROWS, D))])
        chances = COINS / 2 + (1 - COINS) * sigmoid(z @ truth)
        values, vectors = np.linalg.eigh(z.T @ z / ROWS)
        lengths = np.linalg.norm(z @ (vectors / np.sqrt(values)), axis=1)
        roots = [root(z, chances, lengths, weighted) for weighted in (True, False)]
        x = z[: given.n, 1:].astype(np.float32)
        y = (rng.random(given.n) < chances[: given.n]).astype(np.float32)
        for epsilon, kept in found.items():
            posterior = confide.fit(
                confide.models.logistic_regression(D, intercept=True),
                (x, y),
                confide.Budget(epsilon=epsilon, delta=DELTA),
                key=index,
                verbose=False,
                progress=False,
            )
            draws = np.column_stack([posterior.draws["intercept"][0], posterior.draws["weights"][0]])
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            inside = [np.mean((low <= each) & (each <= high)) for each in roots]
            kept.append([*inside, np.mean(np.abs(roots[0] - roots[1]) / draws.std(axis=0))])
    print(f"{'epsilon':>8} {'of the weighted root':>22} {'of the plain root':>20} {'distance, in sd':>16}")
    for epsilon, kept in found.items():
        mean, error = np.mean(kept, axis=0), np.std(kept, axis=0, ddof=1) / math.sqrt(len(kept))
        print(
            f"{epsilon:>8g} {mean[0]:>13.3f} ± {error[0]:.3f} {mean[1]:>12.3f} ± {error[1]:.3f} {mean[2]:>16.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
