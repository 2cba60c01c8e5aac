"""What a private regression is expected to release, before any record is used: the run itself, on simulated rows.

The program of a run is given sums over rows that somebody guesses (`rows` stand for `number` records) with the noise of
the run. What it concludes has the widths that a real run would have if its records were like these rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from confide.inference.regression import draws, program
from confide.inference.regression.design import Design, divide, noise_multipliers
from confide.inference.regression.program import PriorRule, Result
from confide.mechanism.sum_queries import SumQuery, cut_lengths
from confide.privacy.events import SENSITIVITY, Neighbours
from confide.privacy.events.individual import CHANGE

NO_PRIVACY = 1e6  # a budget in Gaussian differential privacy that hides nothing


def simulate_run(
    design: Design,
    prior: PriorRule,
    rows: np.ndarray,
    outcomes: np.ndarray,
    mu: float,
    generator: np.random.Generator,
    *,
    neighbours: Neighbours = "add-remove",
    watch: Callable[[str, SumQuery], None] | None = None,
) -> Result:
    """A run on rows that each stand for `design.number` / len(rows) records; `watch` is called with every query."""
    weight = design.number / len(rows)
    mu = min(mu, NO_PRIVACY)
    changes = {"change": SENSITIVITY[neighbours], "matrix_change": CHANGE[neighbours]}
    multipliers = noise_multipliers(divide(design), mu, **changes)

    def ask(name: str, query: SumQuery) -> np.ndarray:
        if watch is not None:
            watch(name, query)
        longest = np.sqrt(query.bound) if query.is_matrix else query.bound
        vectors = cut_lengths(query.vectors(rows, outcomes), float(longest))
        if not query.is_matrix:
            return weight * vectors.sum(axis=0) + query.deviation * generator.standard_normal(query.size)
        noise = generator.standard_normal((query.size, query.size))
        noise = (np.triu(noise, 1) + np.triu(noise, 1).T) / np.sqrt(2) + np.diag(np.diag(noise))
        return weight * (vectors.T @ vectors) + query.deviation * noise

    return program.run(design, multipliers, prior, ask)


def covariance_of_coefficients(result: Result) -> np.ndarray:
    """Of the coefficients of encoded features, the intercept last; 0 for reference levels."""
    posterior = draws.normal_posterior(result)
    total = posterior.covariance + result.shift_covariance
    unit = draws.to_coefficients(result, np.eye(len(total))) - draws.to_coefficients(result, np.zeros((1, len(total))))
    return unit.T @ total @ unit
