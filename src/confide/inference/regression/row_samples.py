"""Simulated rows that look like the records, as far as the release of a regression describes them.

Rows are a Gaussian copula: normal variables with the correlations that were released, each turned into what its column
holds. Numbers have the released center and spread, cut at their bounds; booleans are 1 where the variable is above the
quantile of their released rate; a category has the level with the largest Gumbel variable shifted by the log of its
released share, so that independent levels have exactly these shares.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from confide.inference.regression import draws
from confide.inference.regression.outcomes import Counts, Numbers
from confide.inference.regression.program import Result

LEAST_RATE = 1e-4


def sample_rows(result: Result, generator: np.random.Generator, number: int) -> np.ndarray:
    """Rows of features, without the constant, (number, features)."""
    design, location = result.design, result.frame.location
    latent = _latent(result, generator, number)
    rows = np.zeros((number, len(design.columns)))
    for place, column in enumerate(design.columns):
        center, spread = location.center[place], location.spread[place]
        if column.kind == "numeric":
            rows[:, place] = np.clip(center + spread * latent[:, place], column.low, column.high)
        elif column.kind == "boolean":
            rate = np.clip((1 + center) / 2, LEAST_RATE, 1 - LEAST_RATE)
            rows[:, place] = np.where(latent[:, place] > special.ndtri(1 - rate), 1.0, -1.0)
        elif column.kind == "indicator":
            rate = np.clip(center, LEAST_RATE, 1 - LEAST_RATE)
            rows[:, place] = latent[:, place] > special.ndtri(1 - rate)
    for group in design.categories:
        rows[:, group] = _levels(location.center[group], latent[:, group])
    return rows.astype(np.float32)


def _latent(result: Result, generator: np.random.Generator, number: int) -> np.ndarray:
    """Standard normal variables, one for each feature, with the released correlations."""
    frame = result.frame
    kept = list(frame.kept)
    inverse = np.linalg.inv(frame.whiten)
    covariance = (inverse @ frame.rows.covariance @ inverse) / np.outer(frame.stretch, frame.stretch)
    covariance = covariance[:-1, :-1]
    deviations = np.sqrt(np.maximum(np.diag(covariance), 1e-6))
    values, vectors = np.linalg.eigh(covariance / np.outer(deviations, deviations))
    latent = generator.standard_normal((number, len(result.design.columns)))
    latent[:, kept] = generator.standard_normal((number, len(kept))) @ (vectors * np.sqrt(np.maximum(values, 1e-6))).T
    return latent


def _levels(rates: np.ndarray, latent: np.ndarray) -> np.ndarray:
    """One level in each row: the variables decide, and shares are about the released ones."""
    shares = np.clip(rates, LEAST_RATE, None)
    chances = shares / shares.sum()
    largest = np.argmax(np.log(chances) - np.log(-np.log(np.clip(special.ndtr(latent), 1e-12, 1 - 1e-12))), axis=1)
    return np.eye(len(rates))[largest]


def sample_outcomes(result: Result, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Outcomes of rows at the posterior mean of the coefficients, with the residual scale or dispersion of the run."""
    position = draws.normal_posterior(result).mean[None]
    coefficients = draws.to_coefficients(result, position + result.shift)[0]
    predictor = rows @ coefficients[:-1] + coefficients[-1]
    family = result.family
    if isinstance(family, Numbers):
        scale = family.scale * result.frame.location.outcome_spread
        return predictor + scale * generator.standard_normal(len(rows))
    if isinstance(family, Counts):
        mean = np.exp(np.clip(predictor, -20, np.log(family.furthest)))
        size = 1 / family.dispersion
        return np.minimum(generator.negative_binomial(size, size / (size + mean)), family.furthest).astype(float)
    return (generator.random(len(rows)) < special.expit(predictor)).astype(float)
