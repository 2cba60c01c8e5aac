"""Test accuracy on Adult of optimisers and of sgld, with default settings, mean of 5 keys.

CONFIDE_DATA=... python benchmarks/baselines.py

The bar: variational inference is within 0.5% of the fit without privacy at epsilon 1. Learning rate and clip of the
optimisers (`DRIFT`, `USUAL`) were chosen on this table and its test rows, those of sgld were not: their differences
say nothing about other tables.
"""

import time
import warnings

import numpy as np

import confide

METHODS = {
    "sgld": confide.sgld(),
    "dp_sgd": confide.dp_sgd(),
    "dp_adam": confide.dp_adam(),
    "dp_adam, corrected": confide.dp_adam(corrected=True),
    "dpvi, mean-field": confide.dpvi(),
    "dpvi, full-rank": confide.dpvi("full-rank"),
}
BUDGETS = [(1.0, 1e-5), (0.1, 1e-4)]
KEYS = range(5)


def main():
    split = confide.data.adult()
    model, data = confide.models.logistic_regression(split.x.shape[1]), (split.x, split.y)

    def told(posterior):
        probabilities = posterior.predict_proba(split.test_x)
        loss = -np.mean(np.log(probabilities[np.arange(len(split.test_y)), split.test_y.astype(int)]))
        return np.mean(np.argmax(probabilities, axis=1) == split.test_y), loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        public, loss = told(confide.sample(model, data, confide.dpvi(), steps=20_000, key=0))
    print(f"not private: accuracy {public:.2%}, log loss {loss:.3f}; always no: {1 - split.test_y.mean():.2%}")
    for epsilon, delta in BUDGETS:
        budget = confide.Budget(epsilon=epsilon, delta=delta)
        for name, sampler in METHODS.items():
            start = time.perf_counter()
            found = np.array([told(confide.fit(model, data, budget, sampler, key=key, verbose=False)) for key in KEYS])
            took = (time.perf_counter() - start) / len(KEYS)
            accuracy, loss = found.mean(axis=0)
            print(
                f"epsilon {epsilon:g}, delta {delta:g}, {name}: accuracy {accuracy:.2%} "
                f"({found[:, 0].min():.2%} to {found[:, 0].max():.2%}), log loss {loss:.3f}, {took:.1f} s a run",
                flush=True,
            )
            if epsilon == 1 and name == "dpvi, mean-field" and accuracy < public - 0.005:
                raise SystemExit(f"the bar of {public - 0.005:.2%} was missed")


if __name__ == "__main__":
    main()
