"""What a model says of records: probabilities, losses, log odds. Any model can be audited, private or not.

A predictor is a confide `Posterior`, anything with scikit-learn's `predict_proba`, or a function from X to one row of
class probabilities for each row of X. The loss of a record is -log p(y | x). Probabilities are floored at 2^-52 (about
2e-16), below which most predictors only round: a loss is at most 36.04, and never infinite.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, cast

import numpy as np

from confide import validation
from confide.validation import Refused

FLOOR = 2.0**-52
TOLERANCE = 1e-3  # of a row's sum; rows are then scaled to sum to 1
ROWS = 4096  # evaluated at once, for every draw
Data = tuple[np.ndarray, np.ndarray]


class OverlapWarning(UserWarning):
    """Nonmembers that are members too were left out."""


def probabilities(predictor: Any, x: Any) -> np.ndarray:
    """The probability of every label for each row of x, in double precision.

    >>> probabilities(lambda x: [[0.25, 0.75] for row in x], [[1.0], [2.0]])
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    function = getattr(predictor, "predict_proba", predictor)
    if not callable(function):
        raise Refused(
            f"the predictor is of the kind {type(predictor).__name__}: give a Posterior, a model with predict_proba, "
            "or a function from X to probabilities"
        )
    given: Any = function(x)
    for method in ("detach", "cpu"):  # of a tensor that is part of a computation, or on another device
        given = getattr(given, method)() if hasattr(given, method) else given
    return check_probabilities(given, (len(x),))


def check_probabilities(given: Any, leading: tuple[int, ...]) -> np.ndarray:
    """Probabilities of shape (*leading, labels), refused where they are none."""
    try:
        result = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise Refused(
            "the predictor gave no array of numbers: it must give one row of probabilities a record"
        ) from None
    if result.shape[:-1] != leading or result.shape[-1] < 2:
        raise Refused(
            f"the predictor gave the shape {result.shape}: it must be {(*leading, 'labels')}, with two labels or more"
        )
    lost = int(np.sum(~np.all(np.isfinite(result), axis=-1)))
    if lost:
        raise Refused(f"the predictor gave probabilities that are not finite for {lost} records: mend it, or drop them")
    if np.min(result) < 0:
        raise Refused(f"the predictor gave a probability of {np.min(result):.4g}: it must give no negative ones")
    sums = np.sum(result, axis=-1)
    worst = float(sums.flat[np.argmax(np.abs(sums - 1))])
    if abs(worst - 1) > TOLERANCE:
        raise Refused(f"the predictor gave a row that sums to {worst:.6g}: it must give probabilities, not scores")
    return result


def log_odds(probabilities: np.ndarray, places: np.ndarray) -> np.ndarray:
    """log p / (1 - p) of the true labels, shape (..., records).

    The probabilities of the other labels are summed, so that a p near 1 keeps its digits.
    """
    index = np.broadcast_to(places, probabilities.shape[:-1])[..., None]
    own = np.take_along_axis(probabilities, index, axis=-1)[..., 0]
    others = probabilities.copy()
    np.put_along_axis(others, index, 0.0, axis=-1)
    return np.log(np.maximum(own, FLOOR)) - np.log(np.maximum(others.sum(axis=-1), FLOOR))


def labels(predictor: Any, y: Any, count: int) -> np.ndarray:
    """The column of each label: by `classes_` where the predictor has them, else labels are 0, 1, ..., count - 1."""
    values, known = np.asarray(y), getattr(predictor, "classes_", None)
    classes = np.arange(count) if known is None else np.asarray(known)
    if values.ndim != 1:
        raise Refused(f"y has shape {values.shape}: give one label for each record")
    if (classes.dtype.kind in "biuf") != (values.dtype.kind in "biuf"):
        raise Refused(f"labels are of the kind {values.dtype} and the predictor's {classes.dtype}: give both alike")
    order = np.argsort(classes)
    places = order[np.clip(np.searchsorted(classes, values, sorter=order), 0, len(classes) - 1)]
    strange = values[classes[places] != values]
    if strange.size:
        raise Refused(
            f"{strange.size} records have labels that the predictor does not know, {strange[0].item()!r} for one: "
            + (f"give whole numbers from 0 to {count - 1}" if known is None else "leave them out, or fit it to them")
        )
    return places


def losses(predictor: Any, x: Any, y: Any) -> np.ndarray:
    """-log p(y | x) of each record, by the averaged prediction of a posterior; a regression has densities in p's place.

    >>> losses(lambda x: [[0.25, 0.75] for row in x], [[1.0], [2.0]], [1, 0]).round(4)
    array([0.2877, 1.3863])
    """
    if kind(predictor) != "classification":
        each = draw_losses(predictor, x, y)
        return mixture_loss(each)
    found = probabilities(predictor, x)
    return np.logaddexp(0.0, -log_odds(found, labels(predictor, check_labels(x, y), found.shape[-1])))


def check_labels(x: Any, y: Any) -> np.ndarray:
    if len(x) != len(y):
        raise Refused(f"X has {len(x)} rows and y {len(y)}: give one label for each row")
    return np.asarray(y)


def kind(predictor: Any) -> str:
    """What is predicted: a posterior's model knows, and every other predictor is a classifier."""
    from confide.inference.posterior import Posterior

    if not isinstance(predictor, Posterior):
        return "classification"
    if predictor.model is None:
        raise Refused("the posterior has no model: give the one that was fitted to Posterior.load(path, model=)")
    return predictor.model.kind


def mixture_loss(each: np.ndarray) -> np.ndarray:
    """-log of the mean over the first axis of exp(-loss): the loss of the averaged prediction."""
    from scipy.special import logsumexp

    return math.log(len(each)) - cast("np.ndarray", logsumexp(-each, axis=0))


def draw_losses(posterior: Any, x: Any, y: Any) -> np.ndarray:
    """The loss of each record under each draw, shape (draws, records), all chains one after the other."""
    import jax
    import jax.numpy as jnp

    from confide.audits.leakage import align
    from confide.inference import plans
    from confide.inference.posterior import Posterior
    from confide.mechanism import noise
    from confide.models.inputs import check_data

    validation.instance(Posterior, posterior=posterior)
    kind(posterior)
    model = posterior.model
    data = check_data(model, (x, y))
    start, unravel = plans.unraveller(model, data, noise.as_key(0))
    draws = align(posterior, model, unravel(start))

    @jax.jit
    def every(draws: Any, rows: tuple[jax.Array, ...]) -> jax.Array:
        def one(draw: Any) -> jax.Array:
            parameters = model.unconstrain(draw)
            return jax.vmap(lambda *row: -model.log_likelihood(parameters, *row))(*rows)

        return jax.lax.map(one, draws)

    size, places = len(data[0]), min(ROWS, len(data[0]))
    result = np.empty((posterior.chains * posterior.size, size))
    for begin in range(0, size, places):
        some = np.arange(begin, begin + places) % size  # the last is filled up: one shape
        part = every(draws, tuple(jnp.asarray(array[some]) for array in data))
        result[:, begin : begin + places] = np.asarray(part)[:, : size - begin]
    lost = int(np.sum(~np.isfinite(result)))
    if lost:
        raise Refused(f"{lost} losses of records under draws are not finite: scale the data, or drop such draws")
    return result


def distinct(members: Any, nonmembers: Any, overlap: str = "refuse") -> tuple[Data, Data]:
    """Both sides as arrays (X, y), refused where an attack on them would say nothing.

    A nonmember that equals a member, in X and y, is both: with overlap = "drop" such records are left out of both
    sides, which would else no longer be drawn alike, and an `OverlapWarning` says how many; else they are refused. Nor
    may a side have one label alone, since an attack could then do no better or worse than to tell labels.

    >>> distinct(([[1.0], [2.0]], [0, 1]), ([[2.0], [3.0], [4.0]], [1, 1, 0]))
    Traceback (most recent call last):
    confide.Refused: 1 of 3 nonmembers are members too: give others, or what distinct(..., overlap="drop") gives
    """
    validation.one_of(("refuse", "drop"), overlap=overlap)
    one, two = side("members", members), side("nonmembers", nonmembers)
    if one[0].shape[1:] != two[0].shape[1:]:
        raise Refused(
            f"a row of members has shape {one[0].shape[1:]} and one of nonmembers {two[0].shape[1:]}: give both alike"
        )
    shared = among(two, one)
    count = int(np.sum(shared))
    if count == len(shared):
        raise Refused(f"all {count} nonmembers are members too: give records that were not fitted")
    if count and overlap == "refuse":
        raise Refused(
            f"{count} of {len(shared)} nonmembers are members too: give others, or what distinct(..., "
            'overlap="drop") gives'
        )
    if count:
        warnings.warn(
            f"{count} of {len(shared)} nonmembers are members too; they were left out of both sides.",
            OverlapWarning,
            stacklevel=2,
        )
        also = among(one, two)
        if np.all(also):
            raise Refused(f"all {len(also)} members are nonmembers too: give members that are not")
        one, two = (one[0][~also], one[1][~also]), (two[0][~shared], two[1][~shared])
    for name, (_, y) in (("members", one), ("nonmembers", two)):
        if len(y) > 1 and np.all(y == y[0]):
            raise Refused(f"all {len(y)} {name} have the label {y[0].item()!r}: give records of at least two labels")
    return one, two


def side(name: str, data: Any) -> Data:
    """Rows of numbers and a label for each."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise Refused(f"{name} is not a pair of arrays: give (X, y)")
    x, y = (np.asarray(array) for array in data)
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise Refused(f"X of {name} has shape {x.shape} and kind {x.dtype}: give one row of numbers for each record")
    if y.ndim != 1 or len(x) != len(y):
        raise Refused(f"{name} has {len(x)} rows in X and shape {y.shape} in y: give one label for each row")
    if not x.size:
        raise Refused(f"{name} has no records: give at least one")
    return x, y


def among(some: Data, others: Data) -> np.ndarray:
    """Which of some records are, in X and y, among others too."""
    x, y = (np.concatenate(pair) for pair in zip(some, others, strict=True))
    rows = np.ascontiguousarray(x.reshape(len(x), -1) + np.zeros((), x.dtype))  # -0 becomes 0
    packed = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    rank = [np.unique(values, return_inverse=True)[1].astype(np.int64) for values in (packed, y)]
    codes = rank[0] * (int(rank[1].max()) + 1) + rank[1]
    return np.isin(codes[: len(some[0])], codes[len(some[0]) :])
