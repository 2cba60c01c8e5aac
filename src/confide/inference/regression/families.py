"""The families of private regression: what kind of outcome each has, and what its coefficients estimate."""

from __future__ import annotations

from typing import NamedTuple

from confide.inference.regression.design import OutcomeKind


class RegressionFamily(NamedTuple):
    model: str  # the name of the model, as plans store it
    outcome_kind: OutcomeKind
    estimand: str


FAMILIES = {
    "logistic": RegressionFamily(
        "logistic_regression", "labels", "the coefficients that maximise the likelihood of a logistic regression"
    ),
    "linear": RegressionFamily("linear_regression", "numbers", "the coefficients of least squares"),
    "poisson": RegressionFamily(
        "poisson_regression", "counts", "the coefficients of the log of the mean (Poisson quasi-likelihood)"
    ),
    "negative-binomial": RegressionFamily(
        "negative_binomial_regression", "counts", "the coefficients of the log of the mean (Poisson quasi-likelihood)"
    ),
}  # by what the command line calls them


def describe_estimand(model: str) -> str:
    """What the coefficients of the model of this name estimate."""
    return next((family.estimand for family in FAMILIES.values() if family.model == model), "the coefficients")
