"""Linear regression from noisy sufficient statistics, by inference that knows of the noise.

**Release.** With ||x|| <= B and |y| <= Y (longer rows are scaled down and larger outcomes cut, record by record), let
z = (x/B, y/Y). One Gaussian mechanism releases the matrix sum_i z_i z_i^T: its diagonal, and the entries above it times
sqrt(2), which makes the vector as long as the matrix is in Frobenius norm. A record adds ||z||^2 <= 2, or sqrt(3) where
the last entry, sum y^2, is not needed. Replacing a record moves it by at most sqrt(8): <z z^T, v v^T> = <z, v>^2 >= 0
gives sqrt(4 + 4), attained without the last entry by y and -y. With noise tau in every coordinate this is exactly
Gaussian-DP with mu = sqrt(3)/tau or 2/tau (add-remove), sqrt(8)/tau (replace-one). In the units of the data

    A~ = X^T X + E,  b~ = X^T y + e,   E symmetric, with variance tau_A^2 on and tau_A^2/2 off its diagonal,
    tau_A = tau B^2,  e ~ N(0, tau_b^2 I), tau_b = tau B Y/sqrt(2),  q~ = y^T y + N(0, tau_q^2), tau_q = tau Y^2.

Inference is that of `confide.inference.linear.statistics`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np

from confide import models, validation
from confide.inference.baselines import release
from confide.inference.linear.statistics import Gaussian, Statistics, coefficients, plug_in, residual_scales
from confide.inference.posterior import Posterior
from confide.inference.spend import Paid
from confide.inference.summaries.releases import StatisticsSummary
from confide.mechanism import noise as noises
from confide.mechanism.exact_rounding import GRID
from confide.models import convexity
from confide.models.model import Model
from confide.privacy.accountants.gdp import mu_of_epsilon
from confide.privacy.budget import Budget
from confide.privacy.events import GaussianRelease, Neighbours
from confide.privacy.ledger import Ledger
from confide.validation import Refused

__all__ = [
    "Gaussian",
    "Statistics",
    "coefficients",
    "plug_in",
    "residual_scales",
    "sensitivity",
    "sufficient_statistics_regression",
    "sum_statistics",
    "unpack",
]

Residual = Literal["model", "estimated"]
CHUNK = 4096  # rows summed at a time
UNIT = 2.0**-53


def sensitivity(neighbours: Neighbours, square: bool, records: int) -> float:
    """Of the released vector: with the sum of squared outcomes, or without.

    A record is in one chunk, and the sums of the others are the same for both neighbours. Terms of norm 2 are added up
    in it in double precision, which errs by (chunk + 8) u times the sum of their norms, for both neighbours.
    """
    together = min(records, CHUNK)
    rounding = 4 * UNIT * together * (together + 8)
    return math.sqrt(8.0 if neighbours == "replace-one" else 4.0 if square else 3.0) + rounding


def sum_statistics(x: np.ndarray, y: np.ndarray, norm_bound: float, outcome_bound: float, square: bool) -> np.ndarray:
    """The vector that noise is added to; (..., records, d) and (..., records) give one along each leading axis."""
    return sum(_sum_chunks(x, y, norm_bound, outcome_bound, square), np.zeros(()))


def whole_statistics(
    x: np.ndarray, y: np.ndarray, norm_bound: float, outcome_bound: float, square: bool, scale: float
) -> np.ndarray:
    """The same in grid steps of noise of this standard deviation: each chunk is rounded, and integers are added up."""
    step = scale / GRID
    rounded = (np.rint(part / step).astype(np.int64) for part in _sum_chunks(x, y, norm_bound, outcome_bound, square))
    return sum(rounded, np.zeros((), np.int64))


def _sum_chunks(
    x: np.ndarray, y: np.ndarray, norm_bound: float, outcome_bound: float, square: bool
) -> Iterator[np.ndarray]:
    """The vector of every chunk of places; a place without a record has zeros."""
    size = x.shape[-1] + 1
    upper, lower = np.triu_indices(size)
    stretch = np.where(upper == lower, 1.0, math.sqrt(2.0))
    for first in range(0, x.shape[-2], CHUNK):
        rows = x[..., first : first + CHUNK, :].astype(np.float64) / norm_bound
        outcomes = np.clip(y[..., first : first + CHUNK].astype(np.float64) / outcome_bound, -1.0, 1.0)
        z = np.concatenate([rows, outcomes[..., None]], axis=-1)
        flat = (np.swapaxes(z, -1, -2) @ z)[..., upper, lower] * stretch
        yield flat if square else flat[..., :-1]


def unpack(
    flat: np.ndarray, records: int, scale: float, norm_bound: float, outcome_bound: float, square: bool
) -> Statistics:
    """The statistics from the vector that was released with noise of standard deviation `scale`."""
    flat = flat if square else np.concatenate([flat, np.zeros((*flat.shape[:-1], 1))], axis=-1)
    size = (math.isqrt(8 * flat.shape[-1] + 1) - 1) // 2
    upper, lower = np.triu_indices(size)
    whole = np.zeros((*flat.shape[:-1], size, size))
    whole[..., upper, lower] = flat * np.where(upper == lower, 1.0, math.sqrt(0.5))
    whole[..., lower, upper] = whole[..., upper, lower]
    return Statistics(
        whole[..., :-1, :-1] * norm_bound**2,
        whole[..., :-1, -1] * norm_bound * outcome_bound,
        whole[..., -1, -1] * outcome_bound**2 if square else None,
        records,
        scale * norm_bound**2,
        scale * norm_bound * outcome_bound / math.sqrt(2.0),
        scale * outcome_bound**2,
    )


def sufficient_statistics_regression(
    model: Model,
    data: Any,
    budget: Budget,
    *,
    outcome_bound: float = 1.0,
    residual: Residual = "model",
    draws: int = 1000,
    records: int | None = None,
    key: Any = None,
    secure: bool = False,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    verbose: bool = True,
) -> Posterior:
    """Draws of the posterior of linear regression given noisy statistics. Add-remove and replace-one.

    Args:
        model: `confide.models.linear_regression`, with a Gaussian prior.
        data: (X, y), with X within the model's norm bound or in [-1, 1].
        budget: delta above 0.
        outcome_bound: a public bound on |y|; larger outcomes are cut to it. Noise grows with it.
        residual: "model" trusts the model's noise_scale; "estimated" releases the sum of squared outcomes too, and the
            model of the posterior then has the estimate as its noise_scale.
        draws: any number, for the same price.
        records: how many there are, as declared: by default the number of rows. What is planned and shown follows it.
        key: a number that the noise is derived from, with the records and all settings; by default the operating
            system's. One that anyone knows or guesses voids the guarantee.
        secure: the bits of the noise from a key of 256 bits of the operating system's, not of 64; takes no key.
        ledger: charged before the records are used; `dataset` names the entry where the ledger has several.
    """
    validation.instance(Model, model=model)
    if model.family is None or not model.family.linear_moments:
        raise Refused(f"{model.name} has no sufficient statistics here: give confide.models.linear_regression")
    outcome_bound = validation.positive(outcome_bound=outcome_bound)
    validation.one_of(("model", "estimated"), residual=residual)
    draws, square = validation.count(draws=draws), residual == "estimated"
    request = release.convex(release.check(model, data, budget, key, ledger, dataset, records=records, secure=secure))
    mu = mu_of_epsilon(budget.epsilon, release.needs_delta(budget, "a baseline with spherical noise")) * (1 - 1e-9)
    moved, columns = sensitivity(budget.neighbours, square, request.places), request.size + 1
    summary = release.describe(
        StatisticsSummary,
        request,
        method="noise-aware",
        outcome_bound=outcome_bound,
        residual=residual,
        noise_scale=noises.wide(moved / mu, moved, columns * (columns + 1) // 2),
        draws=draws,
    )
    paid = release.pay(
        request,
        GaussianRelease(mu=mu, neighbours=budget.neighbours),
        summary,
        released="the noisy statistics, every draw, and anything computed from them",
        verbose=verbose,
    )
    found = _release(request, paid, square)
    words = np.asarray(jax.random.key_data(paid.key("draws")))
    drawn, fitted = _draw(found, request.model, outcome_bound, draws, np.random.default_rng(words))
    arguments = {"outcome_bound": outcome_bound, "residual": residual, "draws": draws, "secure": secure}
    return release.posterior(request, paid, drawn, arguments, fitted)


def _release(request: release.Request, paid: Paid[StatisticsSummary], square: bool) -> Statistics:
    """The noisy statistics."""
    (x, y), summary, bound = request.data, paid.summary, convexity.longest(request.model)
    if request.model.linear is not None and request.model.linear.intercept:
        x = np.concatenate([x, request.table.present[:, None].astype(np.float32)], axis=1)  # of nobody nothing
    exact = whole_statistics(x, y, bound, summary.outcome_bound, square, summary.noise_scale)
    flat = noises.around_steps(exact, summary.noise_scale, paid.noise("statistics"))
    return unpack(flat, request.records, summary.noise_scale, bound, summary.outcome_bound, square)


def _draw(
    found: Statistics, model: Model, outcome_bound: float, draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, Model | None]:
    """Draws of the coefficients, and the model with the residual scale that they go with."""
    assert model.settings is not None
    prior_scale, noise_scale = model.settings["prior_scale"], model.settings["noise_scale"]
    standard = generator.normal(size=(draws, found.vector.size))
    if found.square is None:
        given = coefficients(found, noise_scale**2, prior_scale)
        return given.mean + standard @ _root(given.covariance), model
    scales, given, weights = residual_scales(found, prior_scale, outcome_bound)
    taken = generator.choice(scales.size, size=draws, p=weights)
    moved = np.einsum("di,dij->dj", standard, _root(given.covariance)[taken])
    estimate = math.sqrt(float(weights @ scales**2))
    return given.mean[taken] + moved, models.rebuilt(model.name, model.settings | {"noise_scale": estimate})


def _root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric square root."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)
