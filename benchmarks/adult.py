"""Test accuracy on Adult of `confide.fit` with default settings, mean of 5 runs: what a budget buys.

CONFIDE_DATA=... python benchmarks/adult.py
"""

import time
import warnings

import numpy as np

import confide

BARS = {0.5: 0.844, 0.1: 0.835, 0.05: 0.80}


def main():
    split = confide.data.adult()
    model, data = confide.models.logistic_regression(split.x.shape[1]), (split.x, split.y)

    def accuracy(posterior):
        return np.mean(posterior.predict(split.test_x) == split.test_y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        public = confide.sample(model, data, confide.sgld(1.0), steps=50_000)
    print(f"not private: {accuracy(public):.2%}; always no: {1 - split.test_y.mean():.2%}")
    missed = []
    for epsilon, bar in BARS.items():
        start = time.perf_counter()
        budget = confide.Budget(epsilon=epsilon, delta=1e-4)
        found = [accuracy(confide.fit(model, data, budget=budget, verbose=False)) for _ in range(5)]
        took = (time.perf_counter() - start) / 5
        listed = ", ".join(f"{value:.2%}" for value in found)
        print(f"epsilon {epsilon:g}: {np.mean(found):.2%} (bar {bar:.1%}; {listed}), {took:.1f} s a run")
        missed += [epsilon] if np.mean(found) < bar else []
    if missed:
        raise SystemExit(f"a bar was missed at epsilon {missed}")


if __name__ == "__main__":
    main()
