"""The attacker's own models: which records each is fitted to, how they are fitted, and what they say of records.

A trainer is a function `train(X, y, subsets, key)`, with labels y from 0 and one row of `subsets` for each model, the
places of the records that it is fitted to, equally many for all. It returns a function from X to probabilities of shape
(models, rows, labels). These models are the attacker's and not private: nothing of them is released.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from confide.audits.losses import Data, check_probabilities, log_odds, probabilities
from confide.validation import Refused

NUMBERS = 2**23  # of probabilities held at once
Predict = Callable[[np.ndarray], np.ndarray]
Trainer = Callable[[np.ndarray, np.ndarray, np.ndarray, int], Predict]


def one_by_one(make: Callable[..., Any]) -> Trainer:
    """A trainer that fits one model after the other.

    Args:
        make: () -> a model with `fit` and `predict_proba`, a scikit-learn class for instance; or (X, y) -> a predictor.
            A `random_state` that is None is drawn from the attack's key.

    >>> from sklearn.linear_model import LogisticRegression
    >>> predict = one_by_one(LogisticRegression)(np.eye(4), np.array([0, 1, 0, 1]), np.array([[0, 1], [2, 3]]), 0)
    >>> predict(np.eye(4)).shape
    (2, 4, 2)
    """
    if not callable(make):
        raise Refused("make is not a function: give () -> model with fit, or (X, y) -> predictor")
    needed = [
        parameter
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is parameter.empty and parameter.kind <= parameter.POSITIONAL_OR_KEYWORD
    ]
    if len(needed) not in (0, 2):
        raise Refused(f"make takes {len(needed)} arguments: give () -> model with fit, or (X, y) -> predictor")

    def fitted(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
        if needed:
            return make(x, y)
        model = make()
        settings = model.get_params() if hasattr(model, "get_params") else {}
        if settings.get("random_state", 0) is None:
            model.set_params(random_state=seed)
        return model.fit(x, y)

    def train(x: np.ndarray, y: np.ndarray, subsets: np.ndarray, key: int) -> Predict:
        seeds = np.random.default_rng(key).integers(2**31, size=len(subsets))
        models = [fitted(x[rows], y[rows], int(seed)) for rows, seed in zip(subsets, seeds, strict=True)]
        count = int(np.max(y)) + 1
        return lambda x: np.stack([_widen(model, x, count) for model in models])

    return train


def trainer(train: Any) -> Trainer:
    """A trainer as it is, or one made of an estimator or its class."""
    if hasattr(train, "fit"):
        if isinstance(train, type):
            return one_by_one(train)
        from sklearn.base import clone

        return one_by_one(lambda: clone(train))
    if not callable(train):
        raise Refused("train is no trainer: give audits.networks(...), audits.one_by_one(...), or an estimator")
    return cast(Trainer, train)


def _widen(model: Any, x: np.ndarray, count: int) -> np.ndarray:
    """A model has not seen every label where its records lack one: it gives that one no probability."""
    found, known = probabilities(model, x), getattr(model, "classes_", None)
    if known is None or len(known) == count:
        return found
    result = np.zeros((len(x), count))
    result[:, np.asarray(known, np.int64)] = found
    return result


def halves(records: int, models: int, rng: np.random.Generator) -> np.ndarray:
    """Places of the records of each model, in pairs of models that share none: every record is in half of the models.

    Of an odd number of records, each pair leaves another one out.
    """
    half, pairs = records // 2, models // 2
    order = rng.permuted(np.tile(np.arange(records), (pairs, 1)), axis=1)
    if records % 2:
        left = rng.permutation(records)[np.arange(pairs) % records]
        order = order[order != left[:, None]].reshape(pairs, records - 1)
    return order.reshape(pairs * 2, half)


def inside(subsets: np.ndarray, records: int) -> np.ndarray:
    """Which models were fitted to which records, shape (models, records)."""
    result = np.zeros((len(subsets), records), bool)
    np.put_along_axis(result, subsets, True, axis=1)
    return result


def said(
    predict: Predict, x: np.ndarray, models: int, function: Callable[[np.ndarray, slice], np.ndarray]
) -> np.ndarray:
    """What a function makes of every model's probabilities of some rows, for all rows: (models, rows, ...)."""
    labels = check_probabilities(predict(x[:1]), (models, 1)).shape[-1]
    step = max(1, NUMBERS // (models * labels))
    parts = [slice(begin, begin + step) for begin in range(0, len(x), step)]
    return np.concatenate(
        [function(check_probabilities(predict(x[part]), (models, len(x[part]))), part) for part in parts], axis=1
    )


def all_log_odds(predict: Predict, x: np.ndarray, y: np.ndarray, models: int) -> np.ndarray:
    """The log odds of every record's label by every model, shape (models, records)."""
    return said(predict, x, models, lambda found, part: log_odds(found, y[part]))


def code_labels(*sides: Data) -> tuple[list[np.ndarray], int]:
    """Labels of all sides as 0, 1, ..., and how many there are."""
    values, codes = np.unique(np.concatenate([y for _, y in sides]), return_inverse=True)
    return np.split(codes, np.cumsum([len(y) for _, y in sides])[:-1]), len(values)


def shadow_count(shadows: Any, least: int) -> int:
    """An even number of shadow models."""
    whole = isinstance(shadows, (int, np.integer)) and not isinstance(shadows, bool)
    if not whole or shadows < least or shadows % 2:
        raise Refused(f"shadows = {shadows!r} is no even number of models: give {least} or more")
    return int(shadows)


def generator(key: Any) -> np.random.Generator:
    """The attacker's randomness: it has nothing to do with privacy."""
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0:
        raise Refused(f"key = {key!r} is not a whole number of at least 0: give one")
    return np.random.default_rng(int(key))
