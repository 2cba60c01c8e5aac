"""Generalised linear models: linear, logistic, softmax, Poisson and negative binomial regression.

What is special about each of them is its family's (`confide.models.families`), and what they share is of
`confide.models.model.from_family`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confide.models.families import Gaussian, Logistic, NegativeBinomial, Poisson, Softmax
from confide.models.labels import check_labels, count_labels
from confide.models.model import Model, from_family
from confide.models.priors import LogPrior
from confide.validation import Refused


def linear_regression(
    dimension: int,
    prior_scale: float = 1.0,
    noise_scale: float | None = None,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y ~ N(x w, noise_scale^2), with a noise scale that is given, or learnt where it is left out.

    `confide.scoring` and `confide.sufficient_statistics` learn it, from a prior that is half a Student's t of three
    degrees of freedom with the scale prior_scale x usual norm of a row; for other samplers it is then 1.

    >>> linear_regression(3, prior_scale=2.0).name
    'linear_regression'
    """
    family = Gaussian(learnt=True) if noise_scale is None else Gaussian(noise_scale)
    return from_family(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)


def logistic_regression(
    dimension: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
    classes: Sequence[Any] | None = None,
) -> Model:
    """y in {0, 1}, P(y = 1) = sigmoid(x w). `predict` gives the probabilities of both labels.

    `classes` are the two labels as they stand in y, such as (1, 2) or ("no", "yes"), of which the second is in the
    place of 1; by default they are 0 and 1, or truth values. A record with another label counts as absent
    (`confide.outside` shows such rows).

    >>> logistic_regression(3, classes=(1, 2)).labels
    (1, 2)
    """
    labels = None if classes is None else check_labels(classes)
    if labels is not None and len(labels) != 2:
        raise Refused(f"classes lists {len(labels)} labels: give two, or take softmax_regression")
    return from_family(
        Logistic(), dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound, labels=labels
    )


def softmax_regression(
    dimension: int,
    classes: int | Sequence[Any],
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
) -> Model:
    """y in {0, ..., classes - 1}, with one column of weights for each class; the prior makes them identifiable.

    `classes` is their number, or the list of the labels as they stand in y, such as (1, 2, 3) or ("A", "B", "C"). A
    record with another label counts as absent (`confide.outside` shows such rows).
    """
    number, labels = count_labels(classes)
    return from_family(
        Softmax(number), dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound, labels=labels
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
    family = Poisson(largest_mean)
    return from_family(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)


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
    return from_family(family, dimension, prior_scale, prior=prior, intercept=intercept, norm_bound=norm_bound)
