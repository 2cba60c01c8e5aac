"""Generalised linear models: linear, logistic, softmax and Poisson regression.

Scores are s = x W (+ intercept). With r(s, y) the gradient of the negative log likelihood by the scores, the gradient
of one record is x (outer) r, and its norm |r| ||x||: a clipped sum needs no gradient per record in memory.

| model    | log likelihood of one record      | r        |
|----------|-----------------------------------|----------|
| linear   | -(y - s)^2 / (2 noise_scale^2)    | (s - y) / noise_scale^2 |
| logistic | y s - log(1 + e^s)                | sigmoid(s) - y |
| softmax  | s_y - log sum_k e^(s_k)           | softmax(s) - onehot(y) |
| poisson  | y s - e^s                         | e^s - y  |

With `norm_bound` B, rows longer than B are scaled down to it, record by record, in the likelihood and in predictions:
then |r| B bounds the gradient of every record, and the curvature is bounded as well (`confide.models.convexity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models import priors
from confide.models.model import Data, Kind, Linear, Model
from confide.models.priors import LogPrior, Parameters
from confide.validation import Refused


def _scores(parameters: Parameters, x: jax.Array, norm_bound: float | None) -> jax.Array:
    if norm_bound is not None:
        norms = jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True))
        x = x * jnp.minimum(1.0, norm_bound / jnp.maximum(norms, norm_bound))
    scores = x @ parameters["weights"]
    return scores + parameters["intercept"] if "intercept" in parameters else scores


def _model(
    *,
    name: str,
    kind: Kind,
    dimension: int,
    outputs: tuple[int, ...] = (),
    intercept: bool,
    prior: str | LogPrior,
    prior_scale: float,
    norm_bound: float | None,
    log_likelihood: Callable[[jax.Array, jax.Array], jax.Array],  # of the scores
    residual: Callable[[jax.Array, jax.Array], jax.Array],
    predict: Callable[[jax.Array], jax.Array],
    simulate: Callable[[jax.Array, jax.Array], jax.Array],
    labels: Callable[[np.ndarray], np.ndarray] | None = None,  # which outcomes the model knows; None for all
    **more: Any,
) -> Model:
    dimension = validation.count(dimension=dimension)
    validation.instance(bool, intercept=intercept)
    log_prior = priors.chosen(prior, prior_scale)
    if norm_bound is not None:
        norm_bound = validation.positive(norm_bound=norm_bound)

    def scores(parameters: Parameters, x: jax.Array) -> jax.Array:
        return _scores(parameters, x, norm_bound)

    def start(key: jax.Array, example: Data) -> Parameters:
        parameters = {"weights": jnp.zeros((dimension, *outputs), jnp.float32)}
        return parameters | ({"intercept": jnp.zeros(outputs, jnp.float32)} if intercept else {})

    def check(data: Data) -> None:
        if len(data) != 2:
            raise Refused(f"data holds {len(data)} arrays: give (X, y)")
        x, y = data
        if x.ndim != 2:
            raise Refused(f"X has shape {x.shape}: give a matrix with one row per record")
        if x.shape[1] != dimension:
            raise Refused(f"X has {x.shape[1]} columns but the model has dimension = {dimension}: make them equal")
        if y.ndim != 1:
            raise Refused(f"y has shape {y.shape}: give one number per record")

    settings = {"dimension": dimension, "prior": prior, "prior_scale": prior_scale, "intercept": intercept, **more}
    if norm_bound is not None:
        settings["norm_bound"] = norm_bound
    return Model(
        name=name,
        kind=kind,
        start=start,
        log_prior=log_prior,
        log_likelihood=lambda parameters, x, y: log_likelihood(scores(parameters, x), y),
        predict=lambda parameters, x: predict(scores(parameters, x)),
        simulate=lambda key, parameters, x: simulate(key, scores(parameters, x)),
        check=check,
        admits=None if labels is None else lambda data: labels(data[1]),
        linear=Linear(
            residual=residual,
            log_likelihood=log_likelihood,
            outputs=outputs,
            intercept=intercept,
            norm_bound=norm_bound,
        ),
        disperse=priors.drawn(prior, prior_scale),
        settings=None if callable(prior) else settings,
    )


def known_labels(y: np.ndarray, classes: int) -> np.ndarray:
    """Which outcomes are labels 0 to classes - 1."""
    return (y >= 0) & (y < classes) & (y == np.floor(y))


def linear_regression(
    dimension: int,
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y ~ N(x w, noise_scale^2), with a known noise scale.

    >>> linear_regression(3, prior_scale=2.0).name
    'linear_regression'
    """
    noise_scale = validation.positive(noise_scale=noise_scale)
    variance = noise_scale**2
    return _model(
        name="linear_regression",
        kind="regression",
        dimension=dimension,
        intercept=intercept,
        prior=prior,
        prior_scale=prior_scale,
        norm_bound=norm_bound,
        log_likelihood=lambda s, y: -0.5 * (y - s) ** 2 / variance - 0.5 * jnp.log(2 * jnp.pi * variance),
        residual=lambda s, y: (s - y) / variance,
        predict=lambda s: s,
        simulate=lambda key, s: s + noise_scale * jax.random.normal(key, s.shape, s.dtype),
        noise_scale=noise_scale,
    )


def logistic_regression(
    dimension: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y in {0, 1}, P(y = 1) = sigmoid(x w). `predict` gives the probabilities of both labels."""
    return _model(
        name="logistic_regression",
        kind="classification",
        dimension=dimension,
        intercept=intercept,
        prior=prior,
        prior_scale=prior_scale,
        norm_bound=norm_bound,
        log_likelihood=lambda s, y: y * s - jnp.logaddexp(s, 0.0),
        residual=lambda s, y: jax.nn.sigmoid(s) - y,
        predict=lambda s: jnp.stack([jax.nn.sigmoid(-s), jax.nn.sigmoid(s)], axis=-1),
        simulate=lambda key, s: jax.random.bernoulli(key, jax.nn.sigmoid(s)).astype(jnp.int32),
        labels=lambda y: known_labels(y, 2),
    )


def softmax_regression(
    dimension: int,
    classes: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y in {0, ..., classes - 1}, with one column of weights for each class; the prior makes them identifiable."""
    classes = validation.count(classes=classes)
    if classes < 2:
        raise Refused(f"classes = {classes} leaves nothing to tell apart: give at least 2")

    def log_likelihood(s: jax.Array, y: jax.Array) -> jax.Array:
        return s[..., y.astype(jnp.int32)] - jax.nn.logsumexp(s, axis=-1)

    return _model(
        name="softmax_regression",
        kind="classification",
        dimension=dimension,
        outputs=(classes,),
        intercept=intercept,
        prior=prior,
        prior_scale=prior_scale,
        norm_bound=norm_bound,
        log_likelihood=log_likelihood,
        residual=lambda s, y: jax.nn.softmax(s) - jax.nn.one_hot(y.astype(jnp.int32), classes, dtype=s.dtype),
        predict=jax.nn.softmax,
        simulate=lambda key, s: jax.random.categorical(key, s),
        labels=lambda y: known_labels(y, classes),
        classes=classes,
    )


def poisson_regression(
    dimension: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
    largest_mean: float | None = None,
) -> Model:
    """y a count, Poisson with mean e^(x w).

    With `largest_mean` the mean rises no further than that, and the log likelihood goes on as a straight line: it stays
    concave, and its curvature is bounded.
    """
    bounded: dict[str, Any] = {} if largest_mean is None else {"largest_mean": largest_mean}
    ceiling = None if largest_mean is None else math.log(validation.positive(largest_mean=largest_mean))

    def mean(s: jax.Array) -> jax.Array:
        return jnp.exp(s) if ceiling is None else jnp.exp(jnp.minimum(s, ceiling))

    def log_likelihood(s: jax.Array, y: jax.Array) -> jax.Array:
        beyond = 0.0 if ceiling is None else jnp.maximum(s - ceiling, 0.0)
        return y * s - mean(s) * (1.0 + beyond) - jax.scipy.special.gammaln(y + 1.0)

    return _model(
        name="poisson_regression",
        kind="regression",
        dimension=dimension,
        intercept=intercept,
        prior=prior,
        prior_scale=prior_scale,
        norm_bound=norm_bound,
        log_likelihood=log_likelihood,
        residual=lambda s, y: mean(s) - y,
        predict=mean,
        simulate=lambda key, s: jax.random.poisson(key, mean(s)),
        labels=lambda y: (y >= 0) & (y == np.floor(y)),
        **bounded,
    )
