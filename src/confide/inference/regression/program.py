r"""The sequence of queries of a private regression. Each follows from public facts and from the answers before it.

1. The number of records, then where columns are and how far they spread (`columns`), so that everything that follows
   is in standardised coordinates, whatever the declared bounds are.
2. Second moments of standardised rows (`moments`), whose inverse root A whitens them: z = (x, 1) W.
3. Steps: the noisy sum of bounded scores at the posterior mean given all answers so far. A move is at most `radius`
   standard deviations of the linear predictor; the radius shrinks where the slope along the last move was misjudged.
4. The slope of the sum of scores, halfway and at the end, and at the end the second moment of the scores, so that the
   posterior has the variance that the records show and not the model's.
5. For numbers and counts, one number about outcomes beyond the cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from confide.inference.regression import columns, moments, scales, tails
from confide.inference.regression.columns import Ask, Location
from confide.inference.regression.design import SCALE_SHARE, STEPS, Design
from confide.inference.regression.frames import build_frame
from confide.inference.regression.moments import MatrixPosterior
from confide.inference.regression.outcomes import NODES, WEIGHTS, Counts, Numbers, Outcomes, TwoLabels
from confide.inference.regression.queries import ScoreQuery, SlopeQuery, VarianceQuery
from confide.inference.regression.results import Answer, Frame, Prior, PriorRule, Result, State
from confide.inference.regression.score_model import ScoreModel
from confide.mechanism import query_grid
from confide.mechanism.sum_queries import SumQuery

LAST_MOVES = 4  # that a result keeps


@dataclass(frozen=True, kw_only=True, eq=False)
class CountQuery(SumQuery):
    """The number of records."""

    @property
    def size(self) -> int:
        return 1

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.ones((len(x), 1))


def run(design: Design, multipliers: dict[str, float], prior: PriorRule, ask: Ask) -> Result:
    """Ask all queries. `ask(name, query)` returns the noisy answer to a query."""
    number, number_error = _count(design, multipliers, ask)
    location = columns.locate(design, multipliers, number, ask)
    family = _first_family(design, location)
    frame = build_frame(design, location, family, number, multipliers, ask)
    standardised = prior(design, location, family.offset)
    unwhiten = frame.stretch[:, None] * frame.whiten  # coefficients of standardised columns over positions
    whitened = Prior(np.linalg.solve(unwhiten, standardised.mean), unwhiten.T @ standardised.precision @ unwhiten)
    return Program(design, ScoreModel(frame, whitened, number, multipliers), ask).run(family, number_error)


def _count(design: Design, multipliers: dict[str, float], ask: Ask) -> tuple[float, float]:
    """The posterior mean of the number of records, and its standard deviation: nearly all of the declared ones with
    probability .9, else any number of them."""
    noise = multipliers["count"]
    answer = float(ask("count", CountQuery(bound=1.0, deviation=noise))[0])
    grid = np.linspace(0, design.number, 2001)
    chances = np.exp(-0.5 * np.square((answer - grid) / noise) + 0.5 * np.min(np.square((answer - grid) / noise)))
    near = np.exp(-0.5 * np.square((grid - design.number) / (0.02 * design.number)))
    chances = chances * (0.1 / len(grid) + 0.9 * near / near.sum())
    chances /= chances.sum()
    mean = float(chances @ grid)
    return max(mean, 30.0), math.sqrt(float(chances @ np.square(grid - mean)))


def _first_family(design: Design, location: Location) -> Outcomes:
    if design.outcome_kind == "labels":
        share = min(max(location.outcome_center, 0.01), 0.99)
        return TwoLabels(query_grid.round_scale(math.log(share / (1 - share)) or 1e-9))
    if design.outcome_kind == "numbers":
        low, high = design.outcome
        reach = max(high - location.outcome_center, location.outcome_center - low)
        return Numbers(furthest=query_grid.round_scale(1.2 * reach / location.outcome_spread))
    return Counts(mean=query_grid.round_scale(max(location.outcome_center, 0.02)), furthest=int(design.outcome[1]))


@dataclass
class Program:
    """The queries about scores."""

    design: Design
    model: ScoreModel
    ask: Ask

    def run(self, family: Outcomes, number_error: float) -> Result:
        model = self.model
        d = len(model.frame.whiten)
        if isinstance(family, Counts):
            family = model.with_predictor(family, np.zeros(d))
        state = State(family, model.cut(family), np.zeros(d), np.linalg.inv(model.prior.precision))
        for step in range(STEPS):
            if step == STEPS // 2:
                model.correct(self._ask_slope("middle slope", state), state)
            self._step(step, state)
        return self._finish(state, number_error)

    def _arguments(self, state: State) -> dict:
        """What all queries at the current position have in common."""
        location = self.model.frame.location
        numbers = isinstance(state.family, Numbers)
        return {
            "standardise": self.model.frame.standardise,
            "family": state.family,
            "position": state.position,
            "clip": state.cut.clip,
            "slope_bound": state.cut.slope_bound,
            "outcome_center": location.outcome_center if numbers else 0.0,
            "outcome_spread": location.outcome_spread if numbers else 1.0,
        }

    def _ask_matrix(self, kind: type, name: str, state: State, bound: float, guess: np.ndarray) -> MatrixPosterior:
        deviation = bound * self.model.multipliers[name]
        noisy = self.ask(name, kind(bound=bound, deviation=deviation, **self._arguments(state)))
        return moments.fit_matrix(noisy, deviation, guess, self.model.frame.rarity)

    def _ask_slope(self, name: str, state: State) -> MatrixPosterior:
        guess, _ = self.model.slope(state.position, state)
        return self._ask_matrix(SlopeQuery, name, state, state.cut.slope_bound, guess)

    def _step(self, step: int, state: State) -> None:
        """One query of scores, and the move to the next position."""
        clip, d, before = state.cut.clip, len(state.position), state.position
        scale_bound = SCALE_SHARE * clip if state.family.learns_scale else 0.0
        bound = math.hypot(clip, scale_bound)
        deviation = bound * self.model.multipliers[f"scores {step}"]
        query = ScoreQuery(bound=bound, deviation=deviation, scale_bound=scale_bound, **self._arguments(state))
        answer = self.ask(f"scores {step}", query)
        state.answers.append(Answer(state.position, answer[:d], deviation**2))
        self.model.judge_last_move(state)
        self._move(state)
        if scale_bound:
            number, noise = float(answer[d]) / scale_bound, deviation / scale_bound
            scales.learn_scale(step, number, noise, before, state, self.model)
        if isinstance(state.family, TwoLabels) and step < scales.EARLY:
            center, spread = moments.predictor(self.model.frame.rows, state.position, state.family.offset)
            terms = state.family.terms(center + spread * NODES, self.model.frame.norm, clip)
            state.cut = self.model.cut(state.family, float(WEIGHTS @ terms.variance))

    def _move(self, state: State) -> None:
        """To the target, but at most by the radius, and at most as far as what was known before makes credible."""
        target, precision = self.model.aim(state)
        d, before = len(target), state.position
        move = target - before
        far = math.sqrt(max(float(move @ np.linalg.solve(state.covariance, move)), 0.0))
        share = min(1.0, state.radius / max(float(np.linalg.norm(move)), 1e-9), (math.sqrt(d) + 3) / max(far, 1e-9))
        deviations = query_grid.conditional_deviations(precision)
        state.position = query_grid.round_position(before + share * move, deviations).value
        rest, size = (1 - share) ** 2 * np.outer(move, move), 0.1 * float(np.sum(np.square(share * move))) / d
        state.covariance = np.linalg.inv(precision) + rest + size * np.eye(d)

    def _finish(self, state: State, number_error: float) -> Result:
        """The slope, the second moment of the scores and the tail of the outcome at the last position."""
        model = self.model
        slope = self._ask_slope("slope", state)
        model.correct(slope, state)
        expected, variance = model.expected(state.position, state)
        ratio = float(np.trace(variance) / np.trace(expected))
        spread = self._ask_matrix(VarianceQuery, "variance", state, state.cut.clip**2, ratio * slope.matrix)
        answer = model.mean_answer(state.position, state)
        shift, covariance = tails.ask_outcome_tail(self._arguments(state), state, model, self.ask)
        positions = np.array([*(answer.position for answer in state.answers[-LAST_MOVES:]), state.position])
        return Result(
            self.design, model.frame, model.prior, state.family, state.cut, model.number, number_error,
            state.position, answer.sum, answer.variance, slope, spread, expected, shift, covariance,
            scales.last_scale(state, model.number), np.diff(positions, axis=0), answer.fit,
        )  # fmt: skip


__all__ = ["Frame", "Location", "Prior", "PriorRule", "Result", "run"]
