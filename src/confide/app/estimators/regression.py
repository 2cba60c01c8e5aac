"""Estimators of numbers and of counts: each is a family of `confide.models.families` and its parameters.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> X = rng.uniform(0, 10, (2000, 1))
>>> y = rng.negative_binomial(2, 2 / (2 + np.exp(X[:, 0] / 5)))
>>> model = PrivateNegativeBinomialRegression(
...     epsilon=2.0, bounds=(0, 10), target_bounds=(0, 50), dispersion=0.5, random_state=3
... )
>>> low, high = model.fit(X, y).predict([[0.0], [10.0]])
>>> bool(low < 3 < high < 15)
True
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from confide import validation
from confide.app.estimators import reading
from confide.app.estimators.linear import PrivateLinear, as_before, require
from confide.app.estimators.parameters import (
    LinearParameters,
    NegativeBinomialParameters,
    TargetParameters,
    document,
    takes,
)
from confide.data.bounds import Bounds, check_bounds
from confide.models import families
from confide.models.labels import as_objects
from confide.validation import Refused


class _PrivateRegressor(RegressorMixin, PrivateLinear):
    """A target within public bounds, its posterior mean and its intervals.

    A target that is a number is scaled to [-1, 1]; a count is rounded and cut to its bounds, and stays what it is.
    """

    _parameters: ClassVar[type[TargetParameters]] = TargetParameters
    _unit: Bounds  # in which the target is -1 to 1

    def fit(self, X: Any, y: Any) -> Self:
        """Spend the budget on a posterior of the weights. Refused, unspent, where bounds are missing.

        A feature or a target beyond its bounds counts as the bound. **A record with a value that is missing or not
        finite counts as absent, and nothing says so**, since that would tell on it: look before you pay, with
        `numpy.isfinite`, or with `confide.outside` and a model of `confide.models`.
        """
        parameters = self._parameters(**self.get_params(deep=False))
        require(parameters.bounds, "bounds", "(low, high) of every feature")
        require(parameters.target_bounds, "target_bounds", "(low, high) of the target")
        with as_before(self):
            if y is None:
                without: Any = {"y": y}
                validate_data(self, X, **without)  # which says so
            X = self._features(reading.read(X), parameters)
            own = reading.column(reading.doubles(as_objects(y), "y"), X)
            target = check_bounds(parameters.target_bounds, "target_bounds", 1)
            model = self._model(parameters, X.shape[1] + 1, self._known(parameters, target))
            unit, values = target, target.scale(own)
            if self._family.outcome == "count":
                unit, values = check_bounds((-1, 1), "unit", 1), np.clip(np.rint(own), target.low, target.high)
            slopes, intercept = self._fit(parameters, X, values, np.isfinite(own), model)
            self._unit = unit
            self.coef_, self.intercept_ = unit.half * slopes, float(self._unscale(intercept))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The posterior mean of the target."""
        return self._unscale(self._mean(X))

    def predict_interval(self, X: Any, probability: float = 0.9) -> np.ndarray:
        """An interval that holds the target with this posterior predictive probability: two numbers for each row."""
        design = self._validate(X)
        return self._unscale(self.posterior_.interval(design, probability))

    def _unscale(self, values: Any) -> np.ndarray:
        return self._unit.middle[0] + self._unit.half[0] * np.asarray(values, np.float64)

    def _known(self, parameters: Any, target: Bounds) -> dict[str, Any]:
        """The parameters of the family, from the arguments and the bounds of the target."""
        raise NotImplementedError


@document(LinearParameters)
class PrivateLinearRegression(_PrivateRegressor):
    """Bayesian linear regression with differential privacy.

    The prior's scale is for features and target scaled to [-1, 1]; attributes are those of `PrivateLogisticRegression`,
    and `noise_scale_`: the standard deviation of the target about its mean, in its own units, as given or learnt.
    """

    _family = families.Gaussian
    _parameters = LinearParameters

    @takes(LinearParameters)
    def __init__(self, parameters: LinearParameters) -> None:
        vars(self).update(vars(parameters))

    def fit(self, X: Any, y: Any) -> Self:
        """Spend the budget on a posterior of the weights. Refused, unspent, where bounds are missing.

        A feature or a target beyond its bounds counts as the bound. **A record with a value that is missing or not
        finite counts as absent, and nothing says so**, since that would tell on it: look before you pay, with
        `numpy.isfinite`, or with `confide.outside` and a model of `confide.models`.
        """
        super().fit(X, y)
        draws, model = self.posterior_.draws, self.posterior_.model
        known = model.family.parameters if model is not None and model.family is not None else {}
        self.noise_scale_ = float(self._unit.half[0] * np.mean(draws.get("noise_scale", known.get("noise_scale"))))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The posterior mean of the target."""
        return self._unscale(self._validate(X) @ self._weights().mean(axis=0))

    def _known(self, parameters: LinearParameters, target: Bounds) -> dict[str, Any]:
        if parameters.noise_scale is None:
            return {"noise_scale": families.NOISE_SHARE, "learnt": True}
        return {"noise_scale": validation.positive(noise_scale=parameters.noise_scale) / target.half[0]}


class _PrivateCounts(_PrivateRegressor):
    def _known(self, parameters: TargetParameters, target: Bounds) -> dict[str, Any]:
        low, high = float(target.low[0]), float(target.high[0])
        if low < 0 or not (low.is_integer() and high.is_integer()):
            raise Refused(f"target_bounds = ({low:g}, {high:g}) are not of counts: give whole numbers from 0 on")
        return self.get_params(deep=False) | {"largest_mean": high}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@document(TargetParameters)
class PrivatePoissonRegression(_PrivateCounts):
    """Bayesian Poisson regression of counts with differential privacy.

    The mean is e^score, and no more than the upper bound of the target; y is rounded. Attributes are those of
    `PrivateLogisticRegression`; `coef_` and `intercept_` are of the logarithm of the mean.
    """

    _family = families.Poisson

    @takes(TargetParameters)
    def __init__(self, parameters: TargetParameters) -> None:
        vars(self).update(vars(parameters))


@document(NegativeBinomialParameters)
class PrivateNegativeBinomialRegression(_PrivateCounts):
    """Bayesian negative binomial regression of counts with differential privacy.

    The mean is m = e^score, and the variance m + dispersion m^2. Attributes are those of `PrivatePoissonRegression`.
    """

    _family = families.NegativeBinomial
    _parameters = NegativeBinomialParameters

    @takes(NegativeBinomialParameters)
    def __init__(self, parameters: NegativeBinomialParameters) -> None:
        vars(self).update(vars(parameters))
