"""Generalised linear models: linear, logistic, softmax, Poisson and negative binomial regression.

Scores are s = x W (+ intercept). With r(s, y) the gradient of the negative log likelihood by the scores, the gradient
of one record is x (outer) r, and its norm |r| ||x||: a clipped sum needs no gradient per record in memory. What is
special about each of them is its family's (`confide.models.families`).

With `norm_bound` B, rows longer than B are scaled down to it, record by record, in the likelihood and in predictions:
then |r| B bounds the gradient of every record, and the curvature is bounded as well (`confide.models.convexity`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from confide import validation
from confide.models import priors
from confide.models.families import Gaussian, Logistic, NegativeBinomial, Poisson, Softmax
from confide.models.family import Family
from confide.models.model import Data, Linear, Model
from confide.models.priors import LogPrior, Parameters
from confide.validation import Refused


def _scores(parameters: Parameters, x: jax.Array, norm_bound: float | None) -> jax.Array:
    if norm_bound is not None:
        norms = jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True))
        x = x * jnp.minimum(1.0, norm_bound / jnp.maximum(norms, norm_bound))
    scores = x @ parameters["weights"]
    return scores + parameters["intercept"] if "intercept" in parameters else scores


def regression(
    family: Family,
    dimension: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """The generalised linear model of a family."""
    dimension = validation.count(dimension=dimension)
    validation.instance(bool, intercept=intercept)
    log_prior = priors.chosen(prior, prior_scale)
    if norm_bound is not None:
        norm_bound = validation.positive(norm_bound=norm_bound)
    outputs = family.outputs

    def scores(parameters: Parameters, x: jax.Array) -> jax.Array:
        return _scores(parameters, x, norm_bound)

    def start(key: jax.Array, example: Data) -> Parameters:
        parameters = {"weights": jnp.zeros((dimension, *outputs), jnp.float32)}
        return parameters | ({"intercept": jnp.zeros(outputs, jnp.float32)} if intercept else {})

    settings = {"dimension": dimension, "prior": prior, "prior_scale": prior_scale, "intercept": intercept}
    settings |= family.parameters | ({} if norm_bound is None else {"norm_bound": norm_bound})
    return Model(
        name=family.name,
        kind=family.kind,
        start=start,
        log_prior=log_prior,
        log_likelihood=lambda parameters, x, y: family.log_likelihood(scores(parameters, x), y),
        predict=lambda parameters, x: family.predict(scores(parameters, x)),
        simulate=lambda key, parameters, x: family.simulate(key, scores(parameters, x)),
        check=lambda data: _check(data, dimension),
        admits=lambda data: family.admits(data[1]),
        family=family,
        linear=Linear(
            residual=family.residual,
            log_likelihood=family.log_likelihood,
            outputs=outputs,
            intercept=intercept,
            norm_bound=norm_bound,
        ),
        overdispersed_init=priors.prior_draw(prior, prior_scale),
        settings=None if callable(prior) else settings,
    )


def _check(data: Data, dimension: int) -> None:
    if len(data) != 2:
        raise Refused(f"data holds {len(data)} arrays: give (X, y)")
    x, y = data
    if x.ndim != 2:
        raise Refused(f"X has shape {x.shape}: give a matrix with one row per record")
    if x.shape[1] != dimension:
        raise Refused(f"X has {x.shape[1]} columns but the model has dimension = {dimension}: make them equal")
    if y.ndim != 1:
        raise Refused(f"y has shape {y.shape}: give one number per record")


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
    family = Gaussian(noise_scale)
    return regression(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)


def logistic_regression(
    dimension: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y in {0, 1}, P(y = 1) = sigmoid(x w). `predict` gives the probabilities of both labels."""
    family = Logistic()
    return regression(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)


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
    family = Softmax(classes)
    return regression(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)


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
    family = Poisson(largest_mean)
    return regression(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)


def negative_binomial_regression(
    dimension: int,
    prior_scale: float = 1.0,
    dispersion: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y a count with mean m = e^(x w) and variance m + dispersion m^2 (NB2), with a known dispersion.

    That is `alpha` in statsmodels, and 1 / dispersion is `size` or `theta` in R: the smaller, the nearer to a Poisson.

    >>> negative_binomial_regression(3, dispersion=0.5).settings["dispersion"]
    0.5
    """
    family = NegativeBinomial(dispersion)
    return regression(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)
