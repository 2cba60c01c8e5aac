"""Queries about standardised rows z = (x, 1) W: second moments, norms, scores, their slope and their second moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from confide.inference.regression.outcomes import Counts, Numbers, Outcomes
from confide.mechanism.sum_queries import SumQuery

SCALE_REACH = 4.0  # residual scales at which |residual| is cut where the scale is learnt


@dataclass(frozen=True, kw_only=True, eq=False)
class RowQuery(SumQuery):
    standardise: np.ndarray  # W, (columns + 1, coefficients)

    @property
    def size(self) -> int:
        return self.standardise.shape[1]

    def rows(self, x: np.ndarray) -> np.ndarray:
        return x @ self.standardise[:-1] + self.standardise[-1]


def row_norms(z: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("ij,ij->i", z, z))


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentQuery(RowQuery):
    """The sum of min(1, bound / ||z||^2) z z^T."""

    is_matrix: ClassVar[bool] = True

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.rows(x)  # cutting ||z|| to sqrt(bound) is this weight


@dataclass(frozen=True, kw_only=True, eq=False)
class NormQuery(RowQuery):
    """The sum of min(1, ||z|| / furthest)."""

    furthest: float

    @property
    def size(self) -> int:
        return 1

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.minimum(row_norms(self.rows(x)) / self.furthest, 1.0)[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeQuery(RowQuery):
    """A query at a position. Outcomes are (y - outcome_center) / outcome_spread."""

    family: Outcomes
    position: np.ndarray
    clip: float  # of scores
    slope_bound: float  # of the norm of a record's slope matrix
    outcome_center: float
    outcome_spread: float

    def score_vectors(self, x: np.ndarray, y: np.ndarray):
        """Rows, outcomes, linear predictors, score terms and weights of records.

        Weights keep scores within the clip and slopes within their bound. The slope of a count grows with its mean, and
        weights that fall with the mean would move the estimand where the model of the mean is wrong: slopes of counts
        are cut without a weight, which makes the slope too small, and intervals too wide, in directions of such rows.
        """
        z = self.rows(x)
        norms = np.maximum(row_norms(z), 1e-9)
        eta = z @ self.position + self.family.offset
        terms = self.family.terms(eta, norms, self.clip)
        y = (y - self.outcome_center) / self.outcome_spread
        weights = np.minimum(1.0, self.clip / (terms.largest * norms))
        if not isinstance(self.family, Counts):
            slope = 1.0 if isinstance(self.family, Numbers) else np.maximum(terms.slope, 1e-9)
            weights = np.minimum(weights, self.slope_bound / (slope * norms**2))
        return z, y, eta, terms, weights


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreQuery(OutcomeQuery):
    """The sum of w psi z, and of one number about the residual scale or the dispersion, between -1 and 1."""

    scale_bound: float  # what that number is multiplied by; 0 where there is none

    @property
    def size(self) -> int:
        return self.standardise.shape[1] + (1 if self.scale_bound else 0)

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        z, y, eta, terms, weights = self.score_vectors(x, y)
        psi = self.family.score(y, eta, terms)
        scores = z * (weights * psi)[:, None]
        if not self.scale_bound:
            return scores
        lengths = np.maximum(row_norms(scores), 1e-300)
        scores *= np.minimum(1.0, self.clip / lengths)[:, None]
        if isinstance(self.family, Numbers):
            number = np.minimum(np.abs(y - eta) / (SCALE_REACH * self.family.scale), 1.0)
        else:
            assert isinstance(self.family, Counts)
            number = self.family.squares(y, eta) - self.family.expected_squares(eta)
        return np.concatenate([scores, self.scale_bound * number[:, None]], axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SlopeQuery(OutcomeQuery):
    """The sum of w psi' z z^T, minus the derivative of the sum of scores."""

    is_matrix: ClassVar[bool] = True

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        z, y, eta, terms, weights = self.score_vectors(x, y)
        return z * np.sqrt(weights * self.family.observed_slope(y, eta, terms))[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class VarianceQuery(OutcomeQuery):
    """The sum of (w psi)^2 z z^T, the second moment of the scores."""

    is_matrix: ClassVar[bool] = True

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        z, y, eta, terms, weights = self.score_vectors(x, y)
        return z * (weights * self.family.score(y, eta, terms))[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeTailQuery(OutcomeQuery):
    """One number about outcomes beyond the cut: what cuts bend, by which the posterior is corrected."""

    wide_cut: float  # of numbers; counts use twice their cut
    near_cut: float

    @property
    def size(self) -> int:
        return 1

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        _, y, eta, terms, _ = self.score_vectors(x, y)
        if isinstance(self.family, Numbers):
            away = y - eta
            beyond = np.clip(away, -self.wide_cut, self.wide_cut) - np.clip(away, -self.near_cut, self.near_cut)
            return beyond[:, None]
        assert isinstance(self.family, Counts)
        wide = np.minimum(self.family.furthest, 2 * terms.cut)
        weights = np.minimum(1.0, self.bound / np.maximum(wide - terms.cut, 1e-9))
        table = self.family.tables
        expected = table.read(table.beyond, eta, terms.cut) - table.read(table.beyond, eta, wide)
        beyond = np.clip(y - table.mean_counts(eta) - terms.cut, 0.0, wide - terms.cut)
        return (weights * (beyond - np.clip(expected, 0.0, wide - terms.cut)))[:, None]
