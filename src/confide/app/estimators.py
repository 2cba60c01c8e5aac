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
...     epsilon=2.0, bounds=([0, 10], [100, 60]), classes=["ill", "well"], steps=500, random_state=3
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

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from confide import validation
from confide.data.bounds import Bounds, checked_bounds
from confide.inference import fitting
from confide.inference.plans import Asked, bounded_clip
from confide.inference.posterior import BATCH
from confide.mechanism.noise import Noise
from confide.models import families
from confide.models.family import Family
from confide.models.glm import regression
from confide.models.model import Model
from confide.privacy.budget import Budget
from confide.privacy.events import Neighbours
from confide.privacy.extra_accounts import accounts
from confide.privacy.ledger import Ledger
from confide.samplers import Sampler
from confide.validation import Refused

FROM_DATA = "from-data"
_UNPAID_CLASSES = (
    "The list of classes was taken from the labels of the records, unpaid: that each of them occurs is revealed."
)
_DOMAIN = (
    "The guarantee is about arrays of numbers, and a list of labels: a record with a feature or a target that is "
    "missing or not finite, or with a label of no declared class, counts as absent."
)
# Whatever in scikit-learn fits clones of what it is given on overlapping parts of the records.
_REPEATERS = tuple(
    f"sklearn.{name}"
    for name in (
        "model_selection",
        "ensemble",
        "calibration",
        "multiclass",
        "multioutput",
        "feature_selection",
        "semi_supervised",
        "impute",
    )
)


class SpendsBudgetWarning(UserWarning):
    """Something fits an estimator several times, and every time spends its budget."""


class _PrivateLinear(BaseEstimator):
    """What the estimators share: scaling by public bounds, the paid fit, and scores from the draws."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    bounds: Any
    prior_scale: float
    clip: float | None
    steps: int | None
    batch_size: int | None
    chains: int
    draws: int | None
    burn_in: int | None
    sampler: Sampler | None
    noise: Noise
    ledger: Ledger | str | os.PathLike[str] | None
    dataset: str | None
    random_state: int | None
    records: int | None
    _family: ClassVar[type[Family]]
    _bounds: Bounds

    def _features(self, X: Any) -> np.ndarray:
        """What `_read` gave in double precision, whatever its values are; refused where it is no table."""
        settings: Any = {
            "dtype": np.float64,
            "ensure_all_finite": False,
            "ensure_min_samples": 1 if self.records is None else 0,
        }
        return np.asarray(validate_data(self, X, **settings))

    def _fit(
        self, X: np.ndarray, y: np.ndarray, known: np.ndarray, model: Model, *assumptions: str
    ) -> tuple[np.ndarray, Any]:
        """Spend the budget; the mean slopes and intercept. `known` is which records have a target."""
        bounds = checked_bounds(self.bounds, "bounds", X.shape[1])
        present = known & np.all(np.isfinite(X), axis=1)
        design = np.where(present[:, None], _design(bounds, X), np.float32(0))
        target = np.where(present, y, 0.0).astype(np.float32)
        records = len(design) if self.records is None else validation.count(records=self.records)
        budget = Budget(epsilon=self.epsilon, delta=self.delta, neighbours=self.neighbours)
        key = self._key()
        clip = self.clip
        if clip is None:
            clip = bounded_clip(model, budget, records, math.sqrt(design.shape[1]), self.chains)
        _warn_of_repetition(budget, self.ledger is not None)
        secure = self.noise == "secure"
        self.posterior_ = fitting.completed(
            model,
            (design, target),
            budget,
            self.sampler,
            Asked(self.steps, self.batch_size, clip, self.chains, self.draws, self.burn_in, secure, accounts("dp")),
            key=key,
            ledger=self.ledger,
            dataset=self.dataset,
            noise=self.noise,
            progress=False,
            verbose=False,
            assumptions=(_DOMAIN, *assumptions),
            records=records,
            present=present,
        )
        self.guarantee_ = self.posterior_.guarantee
        self._bounds = bounds
        return bounds.line(self._weights().mean(axis=0))

    def _key(self) -> int | None:
        """What the noise is derived from, or None. Clones share it, and `confide.fit` gives each noise of its own."""
        if self.random_state is None:
            return None
        if self.noise == "secure":
            raise Refused("noise = 'secure' takes its key from the operating system: leave random_state out")
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, (int, np.integer)):
            raise Refused("random_state is not a whole number: leave it out, and the operating system draws the key")
        return int(self.random_state)

    def _weights(self) -> np.ndarray:
        """Of every draw: (draws, features + 1, ...)."""
        weights = np.asarray(self.posterior_.draws["weights"], np.float64)
        return weights.reshape(-1, *weights.shape[2:])

    def _model(self, dimension: int, known: dict[str, Any]) -> Model:
        return regression(families.with_known(self._family, known), dimension, self.prior_scale)

    def _mean(self, X: Any) -> np.ndarray:
        """What the family predicts, averaged over the posterior."""
        design, model = self._validated(X), self.posterior_.model
        assert model is not None
        assert model.family is not None
        return _averaged(design, self._weights(), model.family.predict)

    def _validated(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return _design(self._bounds, np.asarray(validate_data(self, X, reset=False, dtype=np.float64)))


class _PrivateClassifier(ClassifierMixin, _PrivateLinear):
    """The label of highest posterior predictive probability, over a public list of classes."""

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        classes: Any = None,
        neighbours: Neighbours = "add-remove",
        prior_scale: float = 1.0,
        clip: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        chains: int = 1,
        draws: int | None = None,
        burn_in: int | None = None,
        sampler: Sampler | None = None,
        noise: Noise = "default",
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        records: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.classes = classes
        self.neighbours: Neighbours = neighbours
        self.prior_scale = prior_scale
        self.clip = clip
        self.steps = steps
        self.batch_size = batch_size
        self.chains = chains
        self.draws = draws
        self.burn_in = burn_in
        self.sampler = sampler
        self.noise: Noise = noise
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state
        self.records = records

    def fit(self, X: Any, y: Any) -> Self:
        """Spend the budget on a posterior of the weights. Refused, unspent, where bounds or classes are missing."""
        _given(self.bounds, "bounds", "(low, high) of every feature")
        _given(self.classes, "classes", f"the list of labels, or {FROM_DATA!r} to reveal those that occur")
        with _as_before(self):
            X = _read(X)
            if y is None or isinstance(self.classes, str):
                given: Any = {"y": y, "dtype": np.float64, "ensure_all_finite": False}
                _, y = validate_data(self, X, **given)
                check_classification_targets(y)
            labels = self._classes(y)
            X, own = self._features(X), _column(_labels(y), X)
            places = {label: place for place, label in enumerate(labels.tolist())}
            found = np.array([_place(places, label) for label in own], np.int64)
            unpaid = (_UNPAID_CLASSES,) if isinstance(self.classes, str) else ()
            model = self._model(X.shape[1] + 1, {"classes": len(labels)})
            slopes, intercept = self._fit(X, found, found >= 0, model, *unpaid)
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

    def _classes(self, y: np.ndarray) -> np.ndarray:
        if isinstance(self.classes, str):
            validation.one_of((FROM_DATA,), classes=self.classes)
            labels = np.unique(y)
        else:
            try:
                labels = np.unique(np.asarray(self.classes))
            except (TypeError, ValueError):
                raise Refused("classes is not a list of labels of one kind: give all numbers or all texts") from None
        if len(labels) < 2:
            raise Refused(f"there is {len(labels)} class, and nothing to tell apart: give at least 2 in classes=")
        return labels


class PrivateLogisticRegression(_PrivateClassifier):
    """Bayesian logistic regression of two classes with differential privacy.

    Args:
        epsilon, delta, neighbours: the budget of one call of `fit`.
        bounds: (low, high), each a number or one per feature, known without looking at the records.
        classes: the labels that may occur, and a record with another counts as absent; "from-data" reveals those that
            occur, and the guarantee says so.
        prior_scale: standard deviation of the prior of the weights by the features as scaled to [-1, 1].
        ledger, dataset: charged by every `fit`, before the records are used.
        random_state: makes the run repeatable. Whoever knows or guesses it can undo the noise: leave it out to publish.
        records: the declared number of records, which is public; by default the number of rows.
        clip, steps, batch_size, chains, draws, burn_in, sampler, noise: see `confide.fit`.

    Attributes:
        posterior_, guarantee_: the draws, and what publishing them may reveal.
        coef_, intercept_: posterior means in the units of the features: the mean score is X @ coef_.T + intercept_.
        classes_: the labels, sorted.
    """

    _family = families.Logistic

    def _classes(self, y: np.ndarray) -> np.ndarray:
        labels = super()._classes(y)
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


class PrivateSoftmaxClassifier(_PrivateClassifier):
    """Bayesian softmax regression of any number of classes with differential privacy.

    Arguments and attributes are those of `PrivateLogisticRegression`; there is a row of `coef_` for every class.
    """

    _family = families.Softmax


class _PrivateRegressor(RegressorMixin, _PrivateLinear):
    """What regressions share: a target within public bounds, and its posterior mean and intervals.

    A target that is a number is scaled to [-1, 1]; a count is rounded and cut to its bounds, and stays what it is.
    """

    target_bounds: Any
    _unit: Bounds  # in which the target is -1 to 1

    def fit(self, X: Any, y: Any) -> Self:
        """Spend the budget on a posterior of the weights. Refused, unspent, where bounds are missing."""
        _given(self.bounds, "bounds", "(low, high) of every feature")
        _given(self.target_bounds, "target_bounds", "(low, high) of the target")
        with _as_before(self):
            if y is None:
                without: Any = {"y": y}
                validate_data(self, X, **without)  # which says so
            X = self._features(_read(X))
            own = _column(_doubles(_labels(y), "y"), X)
            target = checked_bounds(self.target_bounds, "target_bounds", 1)
            model = self._model(X.shape[1] + 1, self._known(target))
            unit, values = target, target.scaled(own)
            if self._family.outcome == "count":
                unit, values = checked_bounds((-1, 1), "unit", 1), np.clip(np.rint(own), target.low, target.high)
            slopes, intercept = self._fit(X, values, np.isfinite(own), model)
            self._unit = unit
            self.coef_, self.intercept_ = unit.half * slopes, float(self._unscaled(intercept))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The posterior mean of the target."""
        return self._unscaled(self._mean(X))

    def predict_interval(self, X: Any, probability: float = 0.9) -> np.ndarray:
        """An interval that holds the target with this posterior predictive probability: two numbers for each row."""
        design = self._validated(X)
        return self._unscaled(self.posterior_.interval(design, probability))

    def _unscaled(self, values: Any) -> np.ndarray:
        return self._unit.middle[0] + self._unit.half[0] * np.asarray(values, np.float64)

    def _known(self, target: Bounds) -> dict[str, Any]:
        """The parameters of the family, from the arguments and the bounds of the target."""
        raise NotImplementedError


class PrivateLinearRegression(_PrivateRegressor):
    """Bayesian linear regression with differential privacy.

    Args:
        target_bounds: (low, high) of the target, known without looking at the records; y is clipped to it.
        noise_scale: standard deviation of the target about its mean, in its own units; where it is left out, an eighth
            of the width of target_bounds.
        prior_scale: standard deviation of the prior of the weights, with features and target scaled to [-1, 1].

    The other arguments and the attributes are those of `PrivateLogisticRegression`.
    """

    _family = families.Gaussian

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        target_bounds: Any = None,
        noise_scale: float | None = None,
        neighbours: Neighbours = "add-remove",
        prior_scale: float = 1.0,
        clip: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        chains: int = 1,
        draws: int | None = None,
        burn_in: int | None = None,
        sampler: Sampler | None = None,
        noise: Noise = "default",
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        records: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.noise_scale = noise_scale
        self.neighbours: Neighbours = neighbours
        self.prior_scale = prior_scale
        self.clip = clip
        self.steps = steps
        self.batch_size = batch_size
        self.chains = chains
        self.draws = draws
        self.burn_in = burn_in
        self.sampler = sampler
        self.noise: Noise = noise
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state
        self.records = records

    def predict(self, X: Any) -> np.ndarray:
        """The posterior mean of the target."""
        return self._unscaled(self._validated(X) @ self._weights().mean(axis=0))

    def _known(self, target: Bounds) -> dict[str, Any]:
        if self.noise_scale is None:
            return {"noise_scale": families.NOISE_SHARE}
        return {"noise_scale": validation.positive(noise_scale=self.noise_scale) / target.half[0]}


@contextmanager
def _as_before(estimator: BaseEstimator) -> Iterator[None]:
    """A fit that is refused leaves what an earlier one found as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def _read(X: Any) -> Any:
    """X with its entries in double precision, each by itself: NaN where one is missing, infinite beyond the type.

    Arrays of numbers, and what is no array, are left to scikit-learn; a frame stays one, for the names of its columns.
    """
    if isinstance(X, np.ma.MaskedArray):
        return _doubles(_filled(X), "X")
    if hasattr(X, "isna") and hasattr(X, "columns"):  # of pandas: what the types say, and never what there is
        if all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes):
            return X
        return type(X)(_doubles(_unmissed(X), "X"), columns=X.columns, index=X.index)
    if isinstance(X, (list, tuple)) or getattr(getattr(X, "dtype", None), "kind", "") in tuple("OUST"):
        return _doubles(X, "X")
    return X


def _labels(y: Any) -> np.ndarray:
    """A target as an array of objects whose shape no record decides.

    A list has one entry for each record, whatever they are: one that is a list of one label is that label.
    """
    if isinstance(y, np.ma.MaskedArray):
        return _filled(y)
    if hasattr(y, "isna") and hasattr(y, "to_numpy"):
        return _unmissed(y)
    if not isinstance(y, (list, tuple)):
        return np.asarray(y, object)
    column = np.empty(len(y), object)
    for i, entry in enumerate(y):
        column[i] = _single(entry)
    return column


def _single(entry: Any) -> Any:
    """The only one of a list, or of an array; NaN, which is no label, for another list."""
    if isinstance(entry, (list, tuple)):
        return _single(entry[0]) if len(entry) == 1 else math.nan
    if hasattr(entry, "tolist") and not isinstance(entry, np.generic):
        return _single(entry.tolist())
    return entry


def _doubles(values: Any, name: str) -> np.ndarray:
    try:
        try:
            return np.asarray(values, np.float64)
        except (OverflowError, TypeError):  # a whole number that no double holds, or a missing value of pandas
            objects = np.asarray(values, object)
            read = np.fromiter(map(_double, objects.flat), np.float64, objects.size)
            return read.reshape(objects.shape)
    except ValueError:  # which would say the value
        raise Refused(f"{name} is ragged or not numeric: give numbers, one row per record") from None


def _double(value: Any) -> float:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _filled(array: np.ma.MaskedArray) -> np.ndarray:
    return np.where(np.ma.getmaskarray(array), math.nan, np.ma.getdata(array).astype(object))


def _unmissed(values: Any) -> np.ndarray:
    """The values in an object of pandas; NaN for those that are missing."""
    return np.where(np.asarray(values.isna()), math.nan, values.to_numpy(object))


def _column(values: np.ndarray, rows: Any) -> np.ndarray:
    """A target as one column, one for each of the rows."""
    column = column_or_1d(values, warn=True)
    check_consistent_length(rows, column)
    return column


def _place(places: dict[Any, int], label: Any) -> int:
    """The number of a label's class; -1 where it has none."""
    try:
        return places.get(label, -1)
    except TypeError:  # it cannot be looked up
        return -1


def _given(value: Any, name: str, what: str) -> None:
    if value is None:
        raise Refused(f"{name} is missing: nothing is learnt from the data unpaid, so give {what}")


def _design(bounds: Bounds, X: np.ndarray) -> np.ndarray:
    return np.column_stack([bounds.scaled(X), np.ones(len(X))]).astype(np.float32)


def _averaged(design: np.ndarray, weights: np.ndarray, link: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The mean over the draws of link(scores), for a part of the rows at a time.

    In NumPy and double precision: a compiled program for every number of rows would take longer than it saves.
    """
    columns = np.moveaxis(weights, 0, 1).reshape(design.shape[1], -1)
    step = max(1, BATCH // columns.shape[1])
    parts = []
    for first in range(0, len(design), step):
        rows = design[first : first + step]
        scores = (rows @ columns).reshape(len(rows), len(weights), *weights.shape[2:])
        parts.append(link(scores).mean(axis=1))
    return np.concatenate(parts)


def _warn_of_repetition(budget: Budget, charged: bool) -> None:
    """Warn where a search, an ensemble or folds fit clones.

    A clone does not know its siblings, least of all from within another process. Whoever fits them is on the stack.
    """
    frame = sys._getframe()
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(_REPEATERS):
        frame = frame.f_back
    if frame is None:
        return
    where = "charged to the ledger" if charged else "which no ledger counts"
    warnings.warn(
        f"every fold or clone that is fitted spends epsilon = {budget.epsilon:g}, {where}: K of them cost K times as "
        "much, as their records overlap; scores on held-out records are exact, and not private at all",
        SpendsBudgetWarning,
        stacklevel=4,
    )
