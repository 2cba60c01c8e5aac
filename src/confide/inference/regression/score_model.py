r"""What answers say about the coefficients while queries are asked.

An answer at a position p is g = J (theta - p) + noise. It is carried to another position q by J (q - p), with J at the
midpoint. J is the slope of normal rows with the released second moments, corrected by the last released slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from confide.inference.regression import cuts, moments
from confide.inference.regression.cuts import Cut
from confide.inference.regression.design import combine
from confide.inference.regression.outcomes import Counts, Numbers, Outcomes, TwoLabels
from confide.inference.regression.results import Answer, Frame, Prior, State
from confide.mechanism.query_grid import round_scale

MISFIT, LEAST_MISFIT = 0.1, 0.02  # relative error of entries of the slope, before it was released and at the least
CURVATURE = 0.3  # relative error of the slope at midpoints, per unit of distance
WORKING_SPREADS = np.geomspace(0.05, 8, 14)  # of the linear predictor
WORKING_INTERCEPT = 5.0


class MeanAnswer(NamedTuple):
    """The weighted mean of all answers at one position, the variance of its noise, and how well answers agree."""

    sum: np.ndarray
    variance: float
    fit: float  # mean squared distance of late answers from the mean, over their variances


@dataclass
class ScoreModel:
    """The working approximation: slopes of normal rows, corrected by what was released of the slope."""

    frame: Frame
    prior: Prior
    number: float
    multipliers: dict[str, float]

    def cut(self, family: Outcomes, variance: float | None = None) -> Cut:
        """How wide scores are cut; `variance` is that of labels at the current position."""
        noise = math.sqrt(1 / 0.9) * combine(self.multipliers, "scores")
        slope_noise, norm = self.multipliers["slope"], self.frame.norm
        if variance is not None and isinstance(family, TwoLabels):
            return cuts.choose_for_labels(family, self.number, norm, noise, slope_noise, variance)
        return cuts.choose(family, self.number, norm, noise, slope_noise, len(self.frame.whiten))

    def with_predictor(self, family: Counts, position: np.ndarray) -> Counts:
        """Counts that know the mean and spread of the linear predictor at a position, rounded as queries are."""
        center, spread = moments.predictor(self.frame.rows, position, family.offset)
        return replace(family, center=round_scale(center), spread=round_scale(max(spread, 0.1)))

    def expected(self, position: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        return moments.expected_matrices(self.frame.rows, position, state.family, state.cut.clip, self.frame.norm)

    def slope(self, position: np.ndarray, state: State) -> tuple[np.ndarray, float]:
        """The slope, with the correction that was learnt, and the ratio of variance to slope."""
        expected, variance = self.expected(position, state)
        ratio = float(np.trace(variance) / np.trace(expected))
        if state.relative is None:
            return expected, ratio
        root = moments.square_root(expected, 1e-3 * float(np.trace(expected)) / len(expected))
        return root @ state.relative @ root, ratio

    def correct(self, released: moments.MatrixPosterior, state: State) -> None:
        """Keep a released slope, and its ratio to the expected one between roots of the latter."""
        expected, _ = self.expected(state.position, state)
        inverse = np.linalg.inv(moments.square_root(expected, 1e-3 * float(np.trace(expected)) / len(expected)))
        state.relative, state.released = inverse @ released.matrix @ inverse, released

    def mean_answer(self, position: np.ndarray, state: State) -> MeanAnswer:
        """The weighted mean of all answers, each carried to the position. An answer from far away counts less."""
        slope, _ = self.slope(position, state)
        level = float(np.trace(slope)) / len(position)
        sums, variances = [], []
        for answer in state.answers:
            sums.append(self._carry(answer, position, state))
            variances.append(answer.variance + self._doubt(position - answer.position, slope, level, state))
        weights = 1 / np.array(variances)
        mean = weights @ np.array(sums) / weights.sum()
        late = slice(len(sums) // 2, None)
        squares = np.mean(np.square(np.array(sums) - mean), axis=1)[late] * weights[late]
        freedom = max(1 - float(weights[late].sum() / weights.sum()) / len(squares), 0.1)
        return MeanAnswer(mean, float(1 / weights.sum()), float(np.mean(squares)) / freedom)

    def _carry(self, answer: Answer, position: np.ndarray, state: State) -> np.ndarray:
        away = position - answer.position
        if float(away @ away) <= 1e-12:
            return answer.sum
        return answer.sum - self.slope((answer.position + position) / 2, state)[0] @ away

    def _doubt(self, away: np.ndarray, slope: np.ndarray, level: float, state: State) -> float:
        """The mean variance of a coordinate of the error of the slope times `away`: what is not known of the slope, and
        that it changes along the way."""
        square = float(away @ away)
        curvature = 0.0 if isinstance(state.family, Numbers) else (CURVATURE * level * square) ** 2 / len(away)
        if state.released is None:
            return level * float(away @ slope @ away) * MISFIT**2 + curvature
        squares = np.diag(np.square(away))
        doubt = state.released.doubt(squares) + state.released.diagonal_doubt(squares)
        scale = float(np.trace(slope) / np.trace(state.released.matrix))
        return scale**2 * float(np.trace(doubt)) / len(away) + (LEAST_MISFIT * level) ** 2 * square + curvature

    def aim(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Where the next query is asked, and the precision of what is known there: the posterior mean under a prior
        that learns how far the linear predictor spreads. Under the vague prior of the coefficients the noise in many of
        them would take positions far out, where slopes are others.

        The working prior is N(0, t^2 / d) in whitened coordinates, so that the linear predictor has the spread t,
        beside a free intercept; t has a log-normal prior about .7, and its posterior follows from the marginal
        likelihood.
        """
        d = len(state.position)
        answer = self.mean_answer(state.position, state)
        slope, ratio = self.slope(state.position, state)
        weighted = np.linalg.solve(ratio * slope + answer.variance * np.eye(d), slope)
        information = slope @ weighted
        right = weighted.T @ (slope @ state.position + answer.sum) + self.prior.precision @ self.prior.mean
        intercept = np.linalg.solve(self.frame.whiten, np.eye(d)[-1])
        free = WORKING_INTERCEPT**2 * np.outer(intercept, intercept)
        means, covariances, logs = [], [], []
        for spread in WORKING_SPREADS:
            prior = np.linalg.inv(spread**2 / d * np.eye(d) + free) + self.prior.precision
            precision = (information + information.T) / 2 + prior
            covariances.append(np.linalg.inv(precision))
            means.append(covariances[-1] @ right)
            log = 0.5 * (np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1] + means[-1] @ right)
            logs.append(log - 0.5 * (math.log(spread / 0.7) / 1.2) ** 2)
        chances = np.exp(np.array(logs) - max(logs))
        chances /= chances.sum()
        target = chances @ np.array(means)
        away = np.array(means) - target
        covariance = np.einsum("t,tij->ij", chances, np.array(covariances)) + (away.T * chances) @ away
        return target, np.linalg.inv(covariance)

    def judge_last_move(self, state: State) -> None:
        """Compare the change of the last two answers with the slope between them, and adapt the radius."""
        if len(state.answers) < 2:
            return
        last, new = state.answers[-2:]
        move = new.position - last.position
        slope, _ = self.slope((last.position + new.position) / 2, state)
        root = moments.square_root(slope, 1e-6 * float(np.trace(slope)) / len(slope))
        along = root @ move
        square = float(along @ along)
        if square < 1e-12:
            return
        inverse = np.linalg.inv(root)
        rest = inverse @ (last.sum - new.sum) - along
        misfit = float(along @ rest) / square
        noise = (last.variance + new.variance) * float(np.sum(np.square(inverse @ along))) / square**2
        weak = math.sqrt(float(np.sum(np.square(inverse))) * last.variance / square)
        if misfit > 0.5 + 2 * math.sqrt(noise) + weak:
            state.radius = max(0.5 * state.radius, 0.1)
        elif abs(misfit) < 0.25 + math.sqrt(noise):
            state.radius = min(1.4 * state.radius, 1.0)
