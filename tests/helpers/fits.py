"""What the tests of fit share: small data, a small model, short runs, and a ledger."""

import numpy as np

import confide
from confide.models import logistic_regression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 3)).astype(np.float32)
Y = (RNG.random(500) < 1 / (1 + np.exp(-X @ [2.0, -1.0, 0.5]))).astype(np.float32)
BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
MODEL = logistic_regression(3)


def fit(data=(X, Y), budget=BUDGET, model=MODEL, **more):
    settings = {"sampler": confide.sgld(), "steps": 200, "verbose": False, "progress": False} | more
    return confide.fit(model, data, budget=budget, **settings)


def ledger_of(path, epsilon=1.0):
    ledger = confide.Ledger.create(path / "ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=epsilon, delta=1e-5))
    return ledger
