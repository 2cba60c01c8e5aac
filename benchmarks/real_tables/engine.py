"""The one place where the benchmark calls the engine."""

from __future__ import annotations

import time
import warnings
from typing import NamedTuple

import jax
import numpy as np
from tables import RealTable

from confide.inference.regression import convergence, draws, priors, program
from confide.inference.regression.design import divide, noise_multipliers
from confide.mechanism import record_sums
from confide.models.inputs import Records
from confide.privacy import pricing

DELTA, DRAWS = 1e-5, 1000


class PrivateFit(NamedTuple):
    draws: np.ndarray  # coefficients as contrasts to the table's commonest levels, the intercept last
    converged: bool
    seconds: float
    scale: np.ndarray | None  # draws of the residual standard deviation


def budget(epsilon: float) -> float:
    """mu of Gaussian differential privacy."""
    return pricing.gdp_mu(epsilon, DELTA)


def fit(table: RealTable, epsilon: float, seed: int, reference_table: RealTable | None = None) -> PrivateFit:
    """One private fit under the default prior. Contrasts are to the commonest levels of the reference table."""
    started = time.perf_counter()
    arrays = table.x.astype(np.float32), table.y.astype(np.float32)
    records = Records(arrays, np.ones(len(table.y), bool), len(table.y))
    source = jax.random.key(seed)
    multipliers = noise_multipliers(divide(table.design), budget(epsilon))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = program.run(
            table.design, multipliers, priors.StandardisedPrior(),
            lambda name, query: record_sums.answer(query, records, source),
        )  # fmt: skip
        theta = draws.draw(result, DRAWS, np.random.default_rng(seed))
        coefficients = (reference_table or table).contrasts(draws.to_coefficients(result, theta))
        scale = draws.draw_scale(result, DRAWS, np.random.default_rng(seed + 1))
    return PrivateFit(coefficients, convergence.assess(result).converged, time.perf_counter() - started, scale)
