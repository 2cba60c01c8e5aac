"""The estimator of numbers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from confide import validation
from confide.app.estimators import reading
from confide.app.estimators.linear import PrivateLinear, as_before, require
from confide.app.estimators.parameters import RegressionParameters, documented, takes
from confide.data.bounds import Bounds, checked_bounds
from confide.models.glm import linear_regression

NOISE_SCALE = 0.25  # of a target scaled to [-1, 1]


@documented(RegressionParameters)
class PrivateLinearRegression(RegressorMixin, PrivateLinear):
    """Bayesian linear regression with differential privacy.

    The prior's scale is for features and target scaled to [-1, 1]; attributes are those of `PrivateLogisticRegression`.
    """

    _target: Bounds

    @takes(RegressionParameters)
    def __init__(self, parameters: RegressionParameters) -> None:
        vars(self).update(vars(parameters))

    def fit(self, X: Any, y: Any) -> Self:
        """Spend the budget on a posterior of the weights. Refused, unspent, where bounds are missing."""
        asked = RegressionParameters(**self.get_params(deep=False))
        require(asked.bounds, "bounds", "(low, high) of every feature")
        require(asked.target_bounds, "target_bounds", "(low, high) of the target")
        with as_before(self):
            if y is None:
                without: Any = {"y": y}
                validate_data(self, X, **without)  # which says so
            X = self._features(reading.read(X), asked)
            own = reading.column(reading.doubles(reading.labels(y), "y"), X)
            target = checked_bounds(asked.target_bounds, "target_bounds", 1)
            given = asked.noise_scale
            scale = NOISE_SCALE if given is None else validation.positive(noise_scale=given) / target.half[0]
            model = linear_regression(X.shape[1] + 1, asked.prior_scale, scale)
            slopes, intercept = self._fit(asked, X, target.scaled(own), np.isfinite(own), model)
            self._target = target
            self.coef_, self.intercept_ = target.half * slopes, float(self._unscaled(intercept))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The posterior mean of the target."""
        return self._unscaled(self._validated(X) @ self._weights().mean(axis=0))

    def predict_interval(self, X: Any, probability: float = 0.9) -> np.ndarray:
        """An interval that holds the target with this posterior predictive probability: two numbers for each row."""
        design = self._validated(X)
        return self._unscaled(self.posterior_.interval(design, probability))

    def _unscaled(self, values: Any) -> np.ndarray:
        return self._target.middle[0] + self._target.half[0] * np.asarray(values, np.float64)
