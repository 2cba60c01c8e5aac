"""scikit-learn estimators over `confide.fit`: what one record reveals through a fitted object is bounded.

Bounds and classes are arguments, never looked up in the data. Features are clipped to their bounds and scaled to
[-1, 1], record by record, and a constant joins them for the intercept. A record with a feature or a target that is
missing or not finite, or a label that is none of the declared classes, counts as absent: its place stays, and adds
nothing. X and y are arrays of numbers, and labels of anything; what cannot be read as such is refused, for the record's
own sake, and guarantees are about data that can. A fitted estimator holds the posterior, its
guarantee and what is public, and neither X nor y; only `score` and whatever else reads records again is not covered.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> X = np.column_stack([rng.normal(50, 15, 1000), rng.normal(25, 4, 1000)])
>>> y = np.where(X[:, 0] + rng.normal(0, 5, 1000) > 50, "ill", "well")
>>> model = PrivateLogisticRegression(
...     epsilon=2.0, bounds=([0, 10], [100, 60]), classes=["ill", "well"], random_state=3
... )
>>> model.fit(X, y).score(X, y) > 0.8
True
>>> model.guarantee_.epsilon <= 2.0
True
>>> model.predict([[80, 25], [20, 25]])
array(['ill', 'well'], dtype='<U4')

Every `fit` spends the budget again, and so does every fold of a cross-validation: see `SpendsBudgetWarning`.
"""

from __future__ import annotations

from confide.app.estimators.classifiers import PrivateLogisticRegression, PrivateSoftmaxClassifier
from confide.app.estimators.linear import SpendsBudgetWarning
from confide.app.estimators.regression import (
    PrivateLinearRegression,
    PrivateNegativeBinomialRegression,
    PrivatePoissonRegression,
)

__all__ = [
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateNegativeBinomialRegression",
    "PrivatePoissonRegression",
    "PrivateSoftmaxClassifier",
    "SpendsBudgetWarning",
]
