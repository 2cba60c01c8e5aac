"""Test accuracy and log loss on Adult of `confide.fit` with default settings, mean of 5 runs: what a budget buys.

CONFIDE_DATA=... python benchmarks/adult.py [--runs 5] [--sampler scoring]

The rows are given in three scalings, without a declared bound, and the prior is the same in the original units: a
normal of scale 1 for features as `confide.data.adult` scales them. Nothing was chosen by looking at the test rows.
"""

import argparse
import time
import warnings

import numpy as np

import confide

DELTA = 1e-4
SCALINGS = {"as they are": 1.0, "times sqrt 14": 14**0.5, "over sqrt 14": 14**-0.5}
BARS = {0.5: (0.846, 0.340), 0.1: (0.841, 0.360), 0.05: (0.832, 0.380)}


def score(posterior, x, y):
    """Accuracy and log loss of the posterior's mean probability."""
    probability = np.clip(posterior.predict_proba(x)[:, 1], 1e-12, 1 - 1e-12)
    loss = -np.mean(np.log(np.where(y == 1, probability, 1 - probability)))
    return np.mean((probability > 0.5) == y), loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sampler", default="scoring")
    asked = parser.parse_args()
    split, known = confide.data.adult(), {}
    if asked.sampler == "scoring":  # what the schema knows: levels of each category add up to the constant
        schema = confide.data.schema.load(confide.data.schema_path("adult")).with_target()
        known["categories"] = [*schema.categories, [split.x.shape[1] - 1]]
    sampler = getattr(confide, asked.sampler)(**known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        plain = confide.models.logistic_regression(split.x.shape[1])
        public = confide.sample(plain, (split.x, split.y), confide.sgld(1.0), steps=50_000)
    accuracy, loss = score(public, split.test_x, split.test_y)
    print(f"not private: {accuracy:.2%}, log loss {loss:.3f}; always no: {1 - split.test_y.mean():.2%}", flush=True)
    missed = []
    for epsilon, (least, most) in BARS.items():
        budget = confide.Budget(epsilon=epsilon, delta=DELTA)
        for name, factor in SCALINGS.items():
            start = time.perf_counter()
            model = confide.models.logistic_regression(split.x.shape[1], prior_scale=1 / factor)
            found = []
            for key in range(asked.runs):
                fitted = confide.fit(model, (factor * split.x, split.y), budget, sampler, key=key, verbose=False)
                found.append(score(fitted, factor * split.test_x, split.test_y))
            accuracy, loss = np.mean(found, axis=0)
            took, spread = (time.perf_counter() - start) / asked.runs, np.std(found, axis=0)
            print(
                f"epsilon {epsilon:g}, {name}: {accuracy:.2%} +- {spread[0]:.2%} (at least {least:.1%}), log loss "
                f"{loss:.3f} +- {spread[1]:.3f} (at most {most:.3f}), {took:.1f} s a run",
                flush=True,
            )
            missed += [(epsilon, name)] if accuracy < least or loss > most else []
    if missed:
        raise SystemExit(f"a bar was missed: {missed}")


if __name__ == "__main__":
    main()
