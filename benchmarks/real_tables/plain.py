"""Fits without privacy: what intervals are judged by, and where simulated outcomes come from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special, stats
from tables import RealTable

SLOPE, INTERCEPT = 2.5, 5.0  # standard deviations of the default prior, in standardised coordinates


class PlainFit(NamedTuple):
    coefficients: np.ndarray  # contrasts to the commonest levels, the intercept last
    deviations: np.ndarray  # by the sandwich formula
    residual_scale: float  # of numbers
    dispersion: float  # of counts, by moments


def prior_precision(table: RealTable, y: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and precision of the default prior in the units of the encoded features, without privacy. Deviations are
    multiplied by `factor`."""
    rows = table.rows[:, :-1]
    center, spread = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-6)
    unit = float(y.std()) if table.family == "numbers" else 1.0
    standardise = np.zeros((len(spread) + 1, len(spread) + 1))
    standardise[:-1, :-1] = np.diag(spread) / unit
    standardise[-1, :-1], standardise[-1, -1] = center / unit, 1 / unit
    precision = np.append(np.full(len(spread), SLOPE), INTERCEPT) ** -2.0 / factor**2
    mean = np.zeros(len(spread) + 1)
    mean[-1] = start(table, y)
    return mean, standardise.T @ (precision[:, None] * standardise)


def start(table: RealTable, y: np.ndarray) -> float:
    mean = float(y.mean())
    return {"numbers": mean, "counts": np.log(max(mean, 1e-3)), "labels": special.logit(mean)}[table.family]


def fit_plain(table: RealTable, y: np.ndarray, factor: float = 1e3, rows: np.ndarray | None = None) -> PlainFit:
    """The maximum of the posterior whose prior deviations are `factor` times the default ones: 1 is the default prior,
    and 1,000 is hardly a prior."""
    rows = table.rows if rows is None else rows
    prior_mean, precision = prior_precision(table, y, factor)
    theta = prior_mean.copy()
    for _ in range(100):
        mean, slope = means(table.family, rows @ theta)
        hessian = (rows * slope[:, None]).T @ rows + scaled_precision(table, y, rows, precision)
        gradient = rows.T @ (y - mean) - scaled_precision(table, y, rows, precision) @ (theta - prior_mean)
        step = np.linalg.lstsq(hessian, gradient, rcond=1e-13)[0]
        change = np.max(np.abs(rows @ step))
        theta = theta + step * min(1.0, 2 / max(change, 1e-12)) if table.family != "numbers" else theta + step
        if change < 1e-9:
            break
    mean, slope = means(table.family, rows @ theta)
    inverse = np.linalg.pinv((rows * slope[:, None]).T @ rows + scaled_precision(table, y, rows, precision))
    residual = y - mean
    sandwich = inverse @ ((rows * residual[:, None] ** 2).T @ rows) @ inverse
    scale = float(np.sqrt(residual @ residual / (len(y) - rows.shape[1])))
    dispersion = float(np.sum((residual**2 - mean) * mean**2) / np.sum(mean**4)) if table.family == "counts" else 0.0
    return PlainFit(theta, np.sqrt(np.diag(sandwich)), scale, max(dispersion, 0.0))


def scaled_precision(table: RealTable, y: np.ndarray, rows: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The prior's precision on the scale of unweighted squares: a linear model leaves its residual variance out."""
    if table.family != "numbers":
        return precision
    best = np.linalg.lstsq(rows, y, rcond=None)[0]
    return precision * float(np.mean(np.square(y - rows @ best)))


def means(family: str, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of outcomes and their slope along the linear predictor."""
    if family == "numbers":
        return eta, np.ones_like(eta)
    if family == "counts":
        mean = np.exp(np.clip(eta, -30, 20))
        return mean, mean
    mean = special.expit(eta)
    return mean, mean * (1 - mean)


def simulate(family: str, eta: np.ndarray, scale: float, dispersion: float, rng: np.random.Generator) -> np.ndarray:
    if family == "numbers":
        return eta + scale * rng.standard_normal(len(eta))
    mean = means(family, eta)[0]
    if family == "labels":
        return (rng.random(len(eta)) < mean).astype(float)
    if dispersion == 0:
        return rng.poisson(mean).astype(float)
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean)).rvs(random_state=rng).astype(float)


def wide_bounds(family: str, eta: np.ndarray, scale: float, dispersion: float) -> tuple[float, float]:
    """Bounds of outcomes that simulated ones practically never reach."""
    if family == "labels":
        return 0.0, 1.0
    if family == "numbers":
        return float(eta.min() - 6 * scale), float(eta.max() + 6 * scale)
    largest = float(np.exp(eta.max()))
    tail = stats.poisson(largest) if dispersion == 0 else stats.nbinom(1 / dispersion, 1 / (1 + dispersion * largest))
    return 0.0, float(np.ceil(tail.isf(1e-7)))
