"""Estimators of labels."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from confide import validation
from confide.app.estimators import reading
from confide.app.estimators.linear import PrivateLinear, as_before, require
from confide.app.estimators.parameters import ClassifierParameters, document, takes
from confide.models import families
from confide.models.labels import as_objects, place
from confide.validation import Refused

FROM_DATA = "from-data"
_UNPAID_CLASSES = (
    "The list of classes was taken from the labels of the records, unpaid: that each of them occurs is revealed."
)


class _PrivateClassifier(ClassifierMixin, PrivateLinear):
    """The label of highest posterior predictive probability, over a public list of classes."""

    classes_: np.ndarray

    @takes(ClassifierParameters)
    def __init__(self, parameters: ClassifierParameters) -> None:
        vars(self).update(vars(parameters))

    def fit(self, X: Any, y: Any) -> Self:
        """Spend the budget on a posterior of the weights. Refused, unspent, where bounds or classes are missing.

        Labels are whatever `classes` lists, such as [0, 1], [1, 2] or ["no", "yes"]; 1.0 is 1. **A record with another
        label, or with a value that is missing, counts as absent, and nothing says so**, since that would tell on it:
        look before you pay, with `numpy.isin(y, classes)`, or with `confide.outside` and a model of
        `confide.models`.
        """
        parameters = ClassifierParameters(**self.get_params(deep=False))
        require(parameters.bounds, "bounds", "(low, high) of every feature")
        require(parameters.classes, "classes", f"the list of labels, or {FROM_DATA!r} to reveal those that occur")
        with as_before(self):
            X = reading.read(X)
            if y is None or isinstance(parameters.classes, str):
                given: Any = {"y": y, "dtype": np.float64, "ensure_all_finite": False}
                _, y = validate_data(self, X, **given)
                check_classification_targets(y)
            labels = self._classes(parameters.classes, y)
            X, own = self._features(X, parameters), reading.column(as_objects(y), X)
            places = {label: place for place, label in enumerate(labels.tolist())}
            found = np.array([place(places, label) for label in own], np.int64)
            unpaid = (_UNPAID_CLASSES,) if isinstance(parameters.classes, str) else ()
            model = self._model(parameters, X.shape[1] + 1, {"classes": len(labels)})
            slopes, intercept = self._fit(parameters, X, found, found >= 0, model, unpaid)
            self.classes_ = labels
            self.coef_, self.intercept_ = np.atleast_2d(slopes.T), np.atleast_1d(intercept)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, averaged over the posterior: columns in the order of `classes_`."""
        return self._mean(X)

    def predict(self, X: Any) -> np.ndarray:
        """The class of highest posterior predictive probability."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second class by the posterior predictive; log probabilities where there are more than two."""
        logarithms = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
        return logarithms[:, 1] - logarithms[:, 0] if len(self.classes_) == 2 else logarithms

    def _classes(self, given: Any, y: np.ndarray) -> np.ndarray:
        if isinstance(given, str):
            validation.one_of((FROM_DATA,), classes=given)
            labels = np.unique(y)
        else:
            try:
                labels = np.unique(np.asarray(given))
            except (TypeError, ValueError):
                raise Refused("classes is not a list of labels of one kind: give all numbers or all texts") from None
        if len(labels) < 2:
            raise Refused(f"there is {len(labels)} class, and nothing to tell apart: give at least 2 in classes=")
        return labels


@document(ClassifierParameters)
class PrivateLogisticRegression(_PrivateClassifier):
    """Bayesian logistic regression of two classes with differential privacy.

    Attributes:
        posterior_, guarantee_: the draws, and what publishing them may reveal.
        coef_, intercept_: posterior means in the units of the features: the mean score is X @ coef_.T + intercept_.
        classes_: the labels, sorted.
    """

    _family = families.Logistic

    def _classes(self, given: Any, y: np.ndarray) -> np.ndarray:
        labels = super()._classes(given, y)
        if len(labels) > 2:
            raise Refused(
                f"Only binary classification is supported. There are {len(labels)} classes: "
                "use PrivateSoftmaxClassifier"
            )
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@document(ClassifierParameters)
class PrivateSoftmaxClassifier(_PrivateClassifier):
    """Bayesian softmax regression of any number of classes with differential privacy.

    Attributes are those of `PrivateLogisticRegression`; there is a row of `coef_` for every class.
    """

    _family = families.Softmax
