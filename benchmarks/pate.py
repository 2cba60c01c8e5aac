"""Test accuracy on Adult of `confide.baselines.pate`, mean of 5 runs: labels by a vote against a fit.

The first 3,000 rows of the training set play the public rows: their labels are not used, and they are not among the
records. CONFIDE_DATA=... python benchmarks/pate.py
"""

import time

import numpy as np

import confide

PUBLIC = 3000


def main():
    split = confide.data.adult()
    model = confide.models.logistic_regression(split.x.shape[1])
    public, data = split.x[:PUBLIC], (split.x[PUBLIC:], split.y[PUBLIC:])
    print(f"always no: {1 - split.test_y.mean():.2%}")
    for epsilon in (0.1, 1.0):
        budget = confide.Budget(epsilon=epsilon, delta=1e-4)
        for name, threshold in (("GNMax", None), ("Confident-GNMax", 0.7)):
            start, found = time.perf_counter(), []
            for _ in range(5):
                student = confide.baselines.pate(model, data, budget, public, threshold=threshold, verbose=False)
                found.append(np.mean(student.predict(split.test_x) == split.test_y))
            plan, took = student.plan, (time.perf_counter() - start) / 5
            print(
                f"epsilon {epsilon:g}, {name}: {np.mean(found):.2%} ({', '.join(f'{value:.2%}' for value in found)}), "
                f"{plan['teachers']} teachers, {plan['answers']} answers at most, {took:.1f} s a run",
                flush=True,
            )


if __name__ == "__main__":
    main()
