"""A small table with a number of wide bounds, a yes/no column and a category, for regressions of every family."""

import numpy as np

from confide import models

ROWS = 300
FEATURES = (
    {"kind": "numeric", "low": -1.0, "high": 1.0},
    {"kind": "numeric", "low": -1.0, "high": 1.0, "typical": [-0.4, 0.4]},
    {"kind": "boolean"},
    {"kind": "level", "group": 0},
    {"kind": "level", "group": 0},
    {"kind": "level", "group": 0},
)
MODELS = {
    "logistic": models.logistic_regression,
    "linear": models.linear_regression,
    "poisson": models.poisson_regression,
}
OUTCOMES = {"logistic": None, "linear": (-1.0, 1.0), "poisson": (0, 30)}


def table(family, rows=ROWS, seed=0):
    """Rows with the constant last, and outcomes."""
    generator = np.random.default_rng(seed)
    numbers = np.clip(generator.normal([-0.8, 0.0], [0.05, 0.25], (rows, 2)), -1, 1)
    smoker = np.where(generator.random((rows, 1)) < 0.3, 1.0, -1.0)
    levels = np.eye(3)[generator.choice(3, rows, p=[0.6, 0.3, 0.1])]
    x = np.concatenate([numbers, smoker, levels, np.ones((rows, 1))], axis=1)
    predictor = 8 * (x[:, 0] + 0.8) + 0.5 * x[:, 1] + 0.4 * x[:, 2] + levels @ [0.0, 0.5, -0.5]
    if family == "logistic":
        y = generator.random(rows) < 1 / (1 + np.exp(-predictor))
    elif family == "linear":
        y = np.clip(0.1 * predictor + 0.1 * generator.standard_normal(rows), -1, 1)
    else:
        y = np.minimum(generator.poisson(np.exp(0.5 * predictor)), 30)
    return x.astype(np.float32), y.astype(np.float32)
