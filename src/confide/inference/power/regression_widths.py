"""Forecasts of a regression on a table: the run itself on guessed rows (`inference.regression.expectation`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from confide.data.features import features_of
from confide.data.schema import Schema
from confide.inference.power.figures import HALF, POWER, WIDTH, Figures
from confide.inference.power.guesses import SEED
from confide.inference.power.precision import Setting
from confide.inference.power.table_guess import RANGE, TableGuess
from confide.inference.regression import expectation
from confide.inference.regression.declared import make_design
from confide.inference.regression.families import FAMILIES
from confide.inference.regression.priors import StandardisedPrior

RUNS = 1  # simulated runs, whose variances are averaged


@dataclass
class ExpectedRegression:
    """Covariances of coefficients at any number of records and any budget."""

    setting: Setting
    schema: Schema
    table: TableGuess
    prior: StandardisedPrior
    results: dict[tuple[float, float], np.ndarray] = field(default_factory=dict)

    @property
    def linear(self) -> bool:
        return self.engine == "numbers"

    @property
    def engine(self) -> str:
        return FAMILIES[self.setting.outcomes.word].outcome_kind

    @property
    def size(self) -> int:
        return self.table.rows.shape[1] + 1

    @property
    def scores(self) -> list[np.ndarray]:
        return [self.table.linear_predictor]

    def covariance(self, number: float, mu: float) -> np.ndarray:
        if (number, mu) not in self.results:
            target = self.schema.column(self.schema.target)
            bounds: Any = (target.low, target.high) if self.engine == "counts" else (-1.0, 1.0)
            bounds = (0.0, 1.0) if self.engine == "labels" else bounds
            word = self.setting.outcomes.word
            design = make_design(word, features_of(self.schema), bounds, max(2, round(number)))
            neighbours: Any = "replace-one" if self.setting.change > 1 else "add-remove"
            covariances = []
            for run in range(1 if math.isinf(mu) else RUNS):
                generator = np.random.default_rng([SEED, run])
                table = (self.table.rows, self.table.outcomes)
                result = expectation.simulate_run(design, self.prior, *table, mu, generator, neighbours=neighbours)
                covariances.append(expectation.covariance_of_coefficients(result))
            self.results[number, mu] = np.mean(covariances, axis=0)
        return self.results[number, mu]

    def figures(self, number: float, mu: float) -> Figures:
        covariance = self.covariance(number, mu)
        deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        effects = np.where(deviations > 0, (HALF + float(special.ndtri(POWER))) * deviations, math.inf)
        told = deviations[:-1][deviations[:-1] > 0]
        accuracy = self._accuracy(covariance) if self.engine == "labels" else None
        median = WIDTH * float(np.median(told)) if told.size else WIDTH * float(deviations[-1])
        nothing = np.zeros(0)
        return Figures(WIDTH * deviations, effects, 1.0, accuracy, nothing, nothing, median)

    def _accuracy(self, covariance: np.ndarray) -> float:
        """How often the posterior mean names the right label, over records and over what the release says."""
        rows = np.column_stack([self.table.rows, np.ones(len(self.table.rows))])
        error = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows, covariance, rows), 1e-300))
        one = special.expit(self.table.linear_predictor)
        right = special.ndtr(self.table.linear_predictor / error)
        return float(np.mean(one * right + (1 - one) * (1 - right)))

    def best_accuracy(self) -> float:
        return float(np.mean(special.expit(np.abs(self.table.linear_predictor))))

    def signal(self) -> float:
        return float(np.std(self.table.linear_predictor))

    def prior_widths(self) -> tuple[float, ...]:
        """Of the 90% interval of each coefficient under the prior, the intercept last."""
        spreads = np.maximum(self.table.rows.std(axis=0), 1e-6)
        unit = float(np.std(self.table.outcomes)) if self.linear else 1.0
        slopes = unit * self.prior.slope / spreads
        for place, deviation in self.prior.columns.items():
            slopes[place] = deviation
        return (*map(float, WIDTH * slopes), WIDTH * unit * self.prior.intercept)

    def ranges(self, widths: np.ndarray) -> tuple[tuple[float, float], ...]:
        """The ends between which the width of each column is expected; equal where its distribution is declared."""
        factors = np.where(np.append(self.table.declared, self.table.declared.all()), 1.0, RANGE)
        return tuple((float(w / f), float(w * f)) for w, f in zip(widths, factors, strict=True))
