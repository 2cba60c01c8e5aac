"""What the estimators share: scaling by public bounds, the paid fit, and scores from the draws."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from confide import validation
from confide.app.estimators.parameters import Parameters
from confide.data.bounds import Bounds, check_bounds
from confide.data.features import read_features
from confide.inference import fitting
from confide.inference.options import Fit, Settings, values
from confide.inference.plans import bounded_clip
from confide.inference.posterior import BATCH, Posterior
from confide.inference.regression import plan as regression
from confide.models import families
from confide.models.family import Family
from confide.models.model import Model, from_family
from confide.privacy.budget import Budget, Guarantee
from confide.samplers import Scoring, default_sampler
from confide.validation import Refused

DOMAIN = (
    "The guarantee is about arrays of numbers, and a list of labels: a record with a feature or a target that is "
    "missing or not finite, or with a label of no declared class, counts as absent."
)
# Whatever in scikit-learn fits clones of what it is given on overlapping parts of the records.
REPEATERS = tuple(
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


class PrivateLinear(BaseEstimator):
    """What the estimators share."""

    posterior_: Posterior
    guarantee_: Guarantee | None
    _family: ClassVar[type[Family]]
    _bounds: Bounds

    def _features(self, X: Any, parameters: Parameters) -> np.ndarray:
        """What `read` gave in double precision, whatever its values are; refused where it is no table."""
        settings: Any = {
            "dtype": np.float64,
            "ensure_all_finite": False,
            "ensure_min_samples": 1 if parameters.records is None else 0,
        }
        return np.asarray(validate_data(self, X, **settings))

    def _fit(
        self,
        parameters: Parameters,
        X: np.ndarray,
        y: np.ndarray,
        known: np.ndarray,
        model: Model,
        assumptions: tuple[str, ...] = (),
    ) -> tuple[np.ndarray, Any]:
        """Spend the budget; the mean slopes and intercept. `known` is which records have a target."""
        bounds = check_bounds(parameters.bounds, "bounds", X.shape[1])
        present = known & np.all(np.isfinite(X), axis=1)
        design = np.where(present[:, None], _design(bounds, X), np.float32(0))
        target = np.where(present, y, 0.0).astype(np.float32)
        records = len(design) if parameters.records is None else validation.count(records=parameters.records)
        budget = Budget(epsilon=parameters.epsilon, delta=parameters.delta, neighbours=parameters.neighbours)
        key, clip = _key(parameters), parameters.clip
        sampler = default_sampler(model) if parameters.sampler is None else parameters.sampler
        served = isinstance(sampler, Scoring) and regression.serves(model)
        if isinstance(sampler, Scoring):
            sampler = replace(sampler, constant=-1)
        elif clip is None and parameters.clipping == "plain":
            clip = bounded_clip(model, budget, records, math.sqrt(design.shape[1]), parameters.chains)
        if served and isinstance(sampler, Scoring) and sampler.features is None:
            sampler = replace(sampler, **self._regression_options(parameters, bounds))
        elif parameters.typical is not None or parameters.column_priors is not None:
            raise Refused("typical and column_priors go with private scoring of two labels, numbers or counts")
        _warn_of_repetition(budget, parameters.ledger is not None)
        options = Fit(
            model,
            (design, target),
            budget,
            sampler,
            key=key,
            ledger=parameters.ledger,
            progress=False,
            verbose=False,
            assumptions=(DOMAIN, *assumptions),
            **values(Settings, parameters) | {"clip": clip, "records": records},
        )
        self.posterior_ = fitting.infer(options, present)
        self.guarantee_ = self.posterior_.guarantee
        self._bounds = bounds
        return bounds.line(self._weights().mean(axis=0))

    def _regression_options(self, parameters: Any, bounds: Bounds) -> dict[str, Any]:
        """What private scoring knows of features and target, both scaled by their bounds, and the prior."""
        count = len(bounds.low)
        typical: list[Any] = [None] * count
        if parameters.typical is not None:
            ends = check_bounds(parameters.typical, "typical", count)
            if np.any(ends.low < bounds.low) or np.any(ends.high > bounds.high):
                raise Refused("typical has a range beyond the bounds of its feature: give ranges within them")
            typical = list(zip(*((end - bounds.middle) / bounds.half for end in ends), strict=True))
        priors = column_priors(parameters.column_priors, count)
        outcome = (-1.0, 1.0)
        if self._family.kind == "regression":
            target = check_bounds(parameters.target_bounds, "target_bounds", 1)
            counts = self._family.outcome == "count"
            outcome = (float(target.low[0]), float(target.high[0])) if counts else outcome
            priors = [each if counts or each is None else each / float(target.half[0]) for each in priors]
        features = [
            {"kind": "numeric", "typical": range_, "prior": None if prior is None else prior * half}
            for range_, prior, half in zip(typical, priors, bounds.half.tolist(), strict=True)
        ]
        known: dict[str, Any] = {"features": read_features(features), "outcome": outcome}
        known["prior"] = validation.one_of(("standardised", "encoded"), prior=parameters.prior)
        if parameters.prior_scale is not None:
            known["prior_scale"] = validation.positive(prior_scale=parameters.prior_scale)
        return known

    def _weights(self) -> np.ndarray:
        """Of every draw: (draws, features + 1, ...)."""
        weights = np.asarray(self.posterior_.draws["weights"], np.float64)
        return weights.reshape(-1, *weights.shape[2:])

    def _model(self, parameters: Parameters, dimension: int, known: dict[str, Any]) -> Model:
        bound = None if parameters.clipping == "plain" else math.sqrt(dimension)  # features lie in [-1, 1]
        scale = 1.0 if parameters.prior_scale is None else parameters.prior_scale
        return from_family(families.with_known(self._family, known), dimension, scale, norm_bound=bound)

    def _mean(self, X: Any) -> np.ndarray:
        """What the family predicts, averaged over the posterior."""
        design, model = self._validate(X), self.posterior_.model
        assert model is not None
        assert model.family is not None
        return average(design, self._weights(), model.family.predict)

    def _validate(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return _design(self._bounds, np.asarray(validate_data(self, X, reset=False, dtype=np.float64)))


def _key(parameters: Parameters) -> int | None:
    """What the noise is derived from, or None. Clones share it, and `confide.fit` gives each noise of its own."""
    if parameters.random_state is None:
        return None
    if parameters.noise == "secure":
        raise Refused("noise = 'secure' takes its key from the operating system: leave random_state out")
    if isinstance(parameters.random_state, bool) or not isinstance(parameters.random_state, (int, np.integer)):
        raise Refused("random_state is not a whole number: leave it out, and the operating system draws the key")
    return int(parameters.random_state)


@contextmanager
def as_before(estimator: BaseEstimator) -> Iterator[None]:
    """A fit that is refused leaves what an earlier one found as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def column_priors(given: Any, count: int) -> list[float | None]:
    """Priors of single coefficients, one for each of `count` features; None where there is none."""
    if given is None:
        return [None] * count
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != count:
        raise Refused(f"column_priors is no list of {count} numbers: give one per feature, None for the usual prior")
    return [None if each is None else validation.positive(column_priors=each) for each in given]


def require(value: Any, name: str, what: str) -> None:
    if value is None:
        raise Refused(f"{name} is missing: nothing is learnt from the data unpaid, so give {what}")


def _design(bounds: Bounds, X: np.ndarray) -> np.ndarray:
    return np.column_stack([bounds.scale(X), np.ones(len(X))]).astype(np.float32)


def average(design: np.ndarray, weights: np.ndarray, link: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
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
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(REPEATERS):
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
