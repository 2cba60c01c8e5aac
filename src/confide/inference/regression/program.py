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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from confide.inference.regression import columns, cuts, moments
from confide.inference.regression.columns import Ask, Location
from confide.inference.regression.cuts import Cut
from confide.inference.regression.design import SCALE_SHARE, STEPS, Design
from confide.inference.regression.moments import MatrixPosterior, NormalRows
from confide.inference.regression.outcomes import NODES, WEIGHTS, Counts, Numbers, Outcomes, TwoLabels
from confide.inference.regression.queries import (
    SCALE_REACH,
    MomentQuery,
    NormQuery,
    OutcomeTailQuery,
    ScoreQuery,
    SlopeQuery,
    VarianceQuery,
)
from confide.mechanism import query_grid
from confide.mechanism.sum_queries import SumQuery

EARLY = 8  # steps during which cuts follow what is learnt of the scale
MISFIT, LEAST_MISFIT = 0.1, 0.02  # relative error of entries of the slope, before it was released and at the least
CURVATURE = 0.3  # relative error of the slope at midpoints, per unit of distance
WORKING_SPREADS = np.geomspace(0.05, 8, 14)  # of the linear predictor
WORKING_INTERCEPT = 5.0
WIDE_TAIL = 4.0  # cuts, up to which the residuals beyond the cut are averaged
TAIL_SCALES = np.array([0.003, 0.01, 0.03, 0.1, 0.3])  # of that average, in residual scales
TAIL_REST = 0.2  # of it lies further out, more or less
RARE_REACH = 2.5  # standard deviations of other columns by which their mean over a rare level usually differs at most
FLOOR = 0.35  # of eigenvalues of the second moments, over what the noise leaves open


@dataclass(frozen=True, kw_only=True, eq=False)
class CountQuery(SumQuery):
    """The number of records."""

    @property
    def size(self) -> int:
        return 1

    def vectors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.ones((len(x), 1))


class Prior(NamedTuple):
    """Normal, on coefficients of standardised columns; the intercept, which is that of centered columns, comes last."""

    mean: np.ndarray
    precision: np.ndarray


PriorRule = Callable[[Design, Location, float], Prior]  # the last argument is the offset of the linear predictor


class Frame(NamedTuple):
    """What follows from columns and moments: the coordinates of all further queries."""

    location: Location
    kept: tuple[int, ...]  # columns that have a coefficient
    stretch: np.ndarray  # what standardised columns are multiplied by, where a tail reaches far out
    whiten: np.ndarray  # A
    standardise: np.ndarray  # W
    rows: NormalRows
    norm: float  # usual ||z||
    moment_error: float
    rarity: np.ndarray  # of columns, 1 where values are spread over the records


@dataclass
class State:
    """What is known after each step. Positions are in whitened coordinates, relative to the offset."""

    family: Outcomes
    cut: Cut
    position: np.ndarray
    covariance: np.ndarray
    radius: float = 1.0
    relative: np.ndarray | None = None  # slope over the expected one, between roots of the latter
    released: MatrixPosterior | None = None  # the last slope
    answers: list[Answer] = field(default_factory=list)
    scales: list[tuple[float, float]] = field(default_factory=list)  # log of the scale or dispersion, and its variance


class Answer(NamedTuple):
    position: np.ndarray
    sum: np.ndarray
    variance: float  # of the noise


class Result(NamedTuple):
    """All that the posterior is made from."""

    design: Design
    frame: Frame
    prior: Prior  # in whitened coordinates
    family: Outcomes
    cut: Cut
    number: float  # noisy number of records
    number_error: float
    position: np.ndarray  # where the last queries were asked
    sum: np.ndarray  # of scores, referred to that position
    noise: float  # its variance
    slope: MatrixPosterior
    variance: MatrixPosterior
    expected_slope: np.ndarray
    shift: np.ndarray  # by what outcomes beyond the cut say
    shift_covariance: np.ndarray
    scale: tuple[float, float] | None  # log of the residual scale or dispersion, and its variance


def run(design: Design, multipliers: dict[str, float], prior: PriorRule, ask: Ask) -> Result:
    number, number_error = _count(design, multipliers, ask)
    location = columns.locate(design, multipliers, number, ask)
    family = _first_family(design, location)
    frame = _frame(design, location, family, number, multipliers, ask)
    own = prior(design, location, family.offset)
    unwhiten = frame.stretch[:, None] * frame.whiten  # coefficients of standardised columns over positions
    own = Prior(np.linalg.solve(unwhiten, own.mean), unwhiten.T @ own.precision @ unwhiten)
    program = Program(design, multipliers, frame, own, number, ask)
    return program.run(family, number_error)


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
    if design.family == "logistic":
        share = min(max(location.outcome_center, 0.01), 0.99)
        return TwoLabels(query_grid.round_scale(math.log(share / (1 - share)) or 1e-9))
    if design.family == "linear":
        low, high = design.outcome
        reach = max(high - location.outcome_center, location.outcome_center - low)
        return Numbers(furthest=query_grid.round_scale(1.2 * reach / location.outcome_spread))
    return Counts(mean=query_grid.round_scale(max(location.outcome_center, 0.02)), furthest=int(design.outcome[1]))


def _frame(
    design: Design, location: Location, family: Outcomes, number: float, multipliers: dict[str, float], ask: Ask
) -> Frame:
    kept = tuple(j for j in range(len(design.columns)) if j not in location.references)
    center, spread = location.center[list(kept)], location.spread[list(kept)]
    d = len(kept) + 1
    affine = np.zeros((len(design.columns) + 1, d))
    affine[list(kept), np.arange(d - 1)] = 1 / spread
    affine[-1, :-1], affine[-1, -1] = -center / spread, 1.0
    bound = 1.32 * d
    deviation = bound * multipliers["moments"]
    noisy = ask("moments", MomentQuery(bound=bound, deviation=deviation, standardise=affine)) / number
    rarity = _rarity(design, location, kept)
    found = moments.shrink_moments(noisy, deviation / number, _exclusion(design, location, kept), rarity)
    stretch = np.ones(d)
    if not isinstance(family, TwoLabels):
        # A column whose tail reaches far out is shrunk, so that its rows are not down-weighted; it alone pays noise.
        total = _total(multipliers, "scores")
        reach = math.sqrt(0.2 * number / d) / total
        most = max(2.0, math.sqrt(0.02 * number / (multipliers["slope"] * d)))
        reach = float(np.clip(reach / 1.5, 1.2, most)) * math.sqrt(d)
        stretch[:-1] = np.clip(0.8 * reach / location.furthest[list(kept)], 0.3, 1.0)
    second = found.second * np.outer(stretch, stretch)
    least = min(0.3, max(0.01, FLOOR * found.error * math.sqrt(d)))
    values, vectors = moments.eigen(second + np.diag(1 - stretch**2))
    whiten = (vectors * np.maximum(values, least) ** -0.5) @ vectors.T
    # Directions in which no spread stands out of the noise are not taken to be as wide as the floor.
    values = np.maximum(values, 0.3 * least)
    second = moments.floor_eigenvalues((vectors * values) @ vectors.T - 0.999 * np.diag(1 - stretch**2), 0.3 * least)
    standardise = _on_grid((affine * stretch) @ whiten)
    furthest = 3 * math.sqrt(d)
    query = NormQuery(bound=1.0, deviation=multipliers["norm"], standardise=standardise, furthest=furthest)
    norm = furthest * float(ask("norm", query)[0]) / number
    norm = query_grid.round_scale(float(np.clip(norm, 0.6 * math.sqrt(d), 1.6 * math.sqrt(d))))
    share = second[-1, -1]
    mean = second[:, -1] / share
    covariance = second / share - np.outer(mean, mean)
    rows = NormalRows(number * share, whiten @ mean, whiten @ covariance @ whiten)
    return Frame(location, kept, stretch, whiten, standardise, rows, norm, found.error, rarity)


def _exclusion(design: Design, location: Location, kept: tuple[int, ...]) -> np.ndarray:
    """Expected second moments of levels of one category, which exclude each other."""
    expected = np.zeros((len(kept), len(kept)))
    for a, i in enumerate(kept):
        for b, j in enumerate(kept):
            same = design.columns[i].kind == "category" and design.columns[i].group == design.columns[j].group
            if i != j and same:
                expected[a, b] = -0.9 * location.center[i] * location.center[j]
                expected[a, b] /= location.spread[i] * location.spread[j]
    return expected


def _rarity(design: Design, location: Location, kept: tuple[int, ...]) -> np.ndarray:
    """About 2.5 sqrt(p) for a level or a value of a boolean that a share p of the records has, at most 1."""
    factors = {"numeric": np.inf, "boolean": 0.5 * RARE_REACH, "category": RARE_REACH}
    reach = [min(1.0, factors[design.columns[j].kind] * location.spread[j]) for j in kept]
    return np.array([*reach, 1.0])


def _on_grid(matrix: np.ndarray) -> np.ndarray:
    return np.array([query_grid.round_scale(each) for each in matrix.ravel()]).reshape(matrix.shape)


def _total(multipliers: dict[str, float], name: str) -> float:
    """The noise multiplier of all queries of a name together."""
    return sum(each**-2.0 for key, each in multipliers.items() if key.startswith(name)) ** -0.5


@dataclass
class Program:
    """The queries about scores."""

    design: Design
    multipliers: dict[str, float]
    frame: Frame
    prior: Prior
    number: float
    ask: Ask

    def run(self, family: Outcomes, number_error: float) -> Result:
        d = len(self.frame.whiten)
        if isinstance(family, Counts):
            family = self._with_predictor(family, np.zeros(d))
        state = State(family, self._cut(family), np.zeros(d), np.linalg.inv(self.prior.precision))
        for step in range(STEPS):
            if step == STEPS // 2:
                slope = self._ask_slope("middle slope", state)
                state.relative, state.released = self._relative(slope.matrix, state), slope
            self._step(step, state)
        return self._finish(state, number_error)

    # What is known at a position.

    def _cut(self, family: Outcomes) -> Cut:
        """How wide scores are cut."""
        d = len(self.frame.whiten)
        noise = math.sqrt(1 / 0.9) * _total(self.multipliers, "scores")
        return cuts.choose(family, self.number, self.frame.norm, noise, self.multipliers["slope"], d)

    def _with_predictor(self, family: Counts, position: np.ndarray) -> Counts:
        center, spread = moments.predictor(self.frame.rows, position, family.offset)
        return replace(family, center=center, spread=max(spread, 0.1))

    def _expected(self, position: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        return moments.expected_matrices(self.frame.rows, position, state.family, state.cut.clip, self.frame.norm)

    def _slope(self, position: np.ndarray, state: State) -> tuple[np.ndarray, float]:
        """The slope, with the correction that was learnt, and the ratio of variance to slope."""
        expected, variance = self._expected(position, state)
        ratio = float(np.trace(variance) / np.trace(expected))
        if state.relative is None:
            return expected, ratio
        root = moments.square_root(expected, 1e-3 * float(np.trace(expected)) / len(expected))
        return root @ state.relative @ root, ratio

    def _relative(self, slope: np.ndarray, state: State) -> np.ndarray:
        expected, _ = self._expected(state.position, state)
        inverse = np.linalg.inv(moments.square_root(expected, 1e-3 * float(np.trace(expected)) / len(expected)))
        return inverse @ slope @ inverse

    def _refer(self, position: np.ndarray, state: State) -> tuple[np.ndarray, float]:
        """The weighted mean of all answers, each carried to the position by the slope at the midpoint, and its
        variance. An answer from far away counts less."""
        slope, _ = self._slope(position, state)
        d = len(position)
        level = float(np.trace(slope)) / d
        total, weights = np.zeros(d), 0.0
        for answer in state.answers:
            away = position - answer.position
            square = float(away @ away)
            curvature = 0.0 if isinstance(state.family, Numbers) else CURVATURE**2 * square**2 / d
            variance = answer.variance + self._misfit(away, slope, state) + level**2 * curvature
            carried = answer.sum
            if square > 1e-12:
                carried = carried - self._slope((answer.position + position) / 2, state)[0] @ away
            total += carried / variance
            weights += 1 / variance
        return total / weights, 1 / weights

    def _misfit(self, away: np.ndarray, slope: np.ndarray, state: State) -> float:
        """The mean variance of a coordinate of slope error times `away`."""
        d = len(away)
        level = float(np.trace(slope)) / d
        if state.released is None:
            return level * float(away @ slope @ away) * MISFIT**2
        squares = np.diag(np.square(away))
        doubt = state.released.doubt(squares) + state.released.diagonal_doubt(squares)
        scale = float(np.trace(slope) / np.trace(state.released.matrix))
        return scale**2 * float(np.trace(doubt)) / d + (LEAST_MISFIT * level) ** 2 * float(away @ away)

    def _posterior(
        self, slope: np.ndarray, spread: np.ndarray, position: np.ndarray, mean_score: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and precision where the sum of scores at a position has this mean, and `spread` is its covariance."""
        weighted = np.linalg.solve(spread, slope)
        precision = slope @ weighted + self.prior.precision
        right = weighted.T @ (slope @ position + mean_score) + self.prior.precision @ self.prior.mean
        precision = (precision + precision.T) / 2
        return np.linalg.solve(precision, right), precision

    def _aim(
        self, slope: np.ndarray, spread: np.ndarray, position: np.ndarray, mean_score: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the next query is asked: the posterior mean under a prior that learns how far the linear predictor
        spreads. Noise in many coefficients would otherwise take positions far out, where slopes are others."""
        d = len(slope)
        weighted = np.linalg.solve(spread, slope)
        information = slope @ weighted
        information = (information + information.T) / 2
        right = weighted.T @ (slope @ position + mean_score)
        intercept = np.linalg.solve(self.frame.whiten, np.eye(d)[-1])
        free = WORKING_INTERCEPT**2 * np.outer(intercept, intercept)
        found, logs = [], []
        for spread_of_eta in WORKING_SPREADS:
            prior = np.linalg.inv(spread_of_eta**2 / d * np.eye(d) + free) + self.prior.precision
            precision = information + prior
            start = right + self.prior.precision @ self.prior.mean
            mean = np.linalg.solve(precision, start)
            log = 0.5 * (np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1] + mean @ start)
            logs.append(log - 0.5 * (math.log(spread_of_eta / 0.7) / 1.2) ** 2)
            found.append((mean, precision))
        chances = np.exp(np.array(logs) - max(logs))
        chances /= chances.sum()
        target = sum(chance * mean for chance, (mean, _) in zip(chances, found, strict=True))
        covariance = sum(
            chance * (np.linalg.inv(precision) + np.outer(mean - target, mean - target))
            for chance, (mean, precision) in zip(chances, found, strict=True)
        )
        return target, np.linalg.inv(covariance)

    # Queries.

    def _ask_matrix(self, kind: type, name: str, state: State, bound: float) -> tuple[np.ndarray, float]:
        deviation = bound * self.multipliers[name]
        return self.ask(name, kind(bound=bound, deviation=deviation, **self._at(state))), deviation

    def _at(self, state: State) -> dict:
        location = self.frame.location
        numbers = isinstance(state.family, Numbers)
        return {
            "standardise": self.frame.standardise,
            "family": state.family,
            "position": state.position,
            "clip": state.cut.clip,
            "slope_bound": state.cut.slope_bound,
            "outcome_center": location.outcome_center if numbers else 0.0,
            "outcome_spread": location.outcome_spread if numbers else 1.0,
        }

    def _ask_slope(self, name: str, state: State) -> MatrixPosterior:
        noisy, deviation = self._ask_matrix(SlopeQuery, name, state, state.cut.slope_bound)
        guess, _ = self._slope(state.position, state)
        return moments.fit_matrix(noisy, deviation, guess, self.frame.rarity)

    def _step(self, step: int, state: State) -> None:
        multiplier, clip = self.multipliers[f"scores {step}"], state.cut.clip
        learns = state.family.learns_scale
        scale_bound = SCALE_SHARE * clip if learns else 0.0
        bound = math.hypot(clip, scale_bound)
        query = ScoreQuery(bound=bound, deviation=bound * multiplier, scale_bound=scale_bound, **self._at(state))
        answer = self.ask(f"scores {step}", query)
        d = len(state.position)
        state.answers.append(Answer(state.position, answer[:d], query.deviation**2))
        self._judge_last_move(state)
        mean_score, noise = self._refer(state.position, state)
        slope, ratio = self._slope(state.position, state)
        target, precision = self._aim(slope, ratio * slope + noise * np.eye(d), state.position, mean_score)
        move = target - state.position
        far = math.sqrt(max(float(move @ np.linalg.solve(state.covariance, move)), 0.0))
        share = min(1.0, state.radius / max(float(np.linalg.norm(move)), 1e-9), (math.sqrt(d) + 3) / max(far, 1e-9))
        covariance = np.linalg.inv(precision)
        deviations = query_grid.conditional_deviations(precision)
        before = state.position
        state.position = query_grid.round_position(before + share * move, deviations).value
        rest, size = (1 - share) ** 2 * np.outer(move, move), 0.1 * float(np.sum(np.square(share * move))) / d
        state.covariance = covariance + rest + size * np.eye(d)
        if learns:
            number = float(answer[d]) / scale_bound
            self._learn_scale(step, state, number, query.deviation / scale_bound, before)
        if isinstance(state.family, TwoLabels) and step < EARLY:
            center, spread = moments.predictor(self.frame.rows, state.position, state.family.offset)
            terms = state.family.terms(center + spread * NODES, self.frame.norm, clip)
            state.cut = cuts.choose_for_labels(
                state.family, self.number, self.frame.norm, math.sqrt(1 / 0.9) * _total(self.multipliers, "scores"),
                self.multipliers["slope"], float(WEIGHTS @ terms.variance),
            )  # fmt: skip

    def _judge_last_move(self, state: State) -> None:
        """Compare the change of the last two answers with the slope between them, and adapt the radius."""
        if len(state.answers) < 2:
            return
        last, new = state.answers[-2:]
        move = new.position - last.position
        slope, _ = self._slope((last.position + new.position) / 2, state)
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

    def _learn_scale(self, step: int, state: State, number: float, noise: float, before: np.ndarray) -> None:
        family = state.family
        if isinstance(family, Numbers):
            largest = SCALE_REACH * family.scale
            scale = 1.25 * largest * number / self.number
            error = 1.25 * largest * noise / self.number
            state.scales.append((scale, error**2 + 0.57 * family.scale**2 / self.number))
            if step < EARLY + 2:
                gain = 1 / (1 + (error / (0.3 * family.scale)) ** 2)
                new = family.scale + gain * (scale - family.scale)
                new = float(np.clip(new, 0.5 * family.scale, 1.5 * family.scale))
                state.family = replace(family, scale=query_grid.round_scale(new))
                state.cut = self._cut(state.family)
        elif isinstance(family, Counts) and step < EARLY + 3:
            self._learn_dispersion(step, state, family, number, noise, before)

    def _learn_dispersion(
        self, step: int, state: State, family: Counts, number: float, noise: float, before: np.ndarray
    ) -> None:
        """One Kalman step for the log of the dispersion."""
        log_dispersion, variance = state.scales[-1] if state.scales else (math.log(0.5), 1.5**2)
        at = self._with_predictor(family, before)
        squares = at.expected_squares(at.nodes())
        change = (at.with_dispersion(1.1 * family.dispersion).expected_squares(at.nodes()) - squares) / math.log(1.1)
        slope = max(self.number * float(WEIGHTS @ change), 1e-3 * self.number)
        total = noise**2 + 0.3 * self.number * float(WEIGHTS @ squares)
        gain = variance * slope / (variance * slope**2 + total)
        log_dispersion += float(np.clip(gain * number, -0.7, 0.7))
        log_dispersion = float(np.clip(log_dispersion, math.log(0.02), math.log(6.0)))
        variance = max((1 - gain * slope) * variance, 0.0) + (0.3 if step < EARLY - 2 else 0.0)
        state.scales.append((log_dispersion, variance))
        family = family.with_dispersion(query_grid.round_scale(math.exp(log_dispersion)))
        state.family = self._with_predictor(family, state.position)
        if step < EARLY:
            state.cut = self._cut(state.family)

    def _finish(self, state: State, number_error: float) -> Result:
        slope = self._ask_slope("slope", state)
        state.relative, state.released = self._relative(slope.matrix, state), slope
        expected, variance = self._expected(state.position, state)
        ratio = float(np.trace(variance) / np.trace(expected))
        noisy, deviation = self._ask_matrix(VarianceQuery, "variance", state, state.cut.clip**2)
        spread = moments.fit_matrix(noisy, deviation, ratio * slope.matrix, self.frame.rarity)
        mean_score, noise = self._refer(state.position, state)
        shift, covariance = self._ask_outcome_tail(state)
        return Result(
            self.design, self.frame, self.prior, state.family, state.cut, self.number, number_error, state.position,
            mean_score, noise, slope, spread, expected, shift, covariance, self._scale(state),
        )  # fmt: skip

    def _scale(self, state: State) -> tuple[float, float] | None:
        if isinstance(state.family, Numbers):
            late = np.array(state.scales[STEPS // 2 :])
            error = late[:, 1] - 0.57 * state.family.scale**2 / self.number
            mean = float(np.sum(late[:, 0] / error) / np.sum(1 / error))
            return mean, float(1 / np.sum(1 / error)) + 0.57 * state.family.scale**2 / self.number
        return state.scales[-1] if state.scales else None

    def _ask_outcome_tail(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """By how much outcomes beyond the cut move the coefficients, and the covariance of what is not known of it."""
        d = len(state.position)
        family, frame = state.family, self.frame
        none = np.zeros(d), np.zeros((d, d))
        if isinstance(family, TwoLabels):
            return none
        # The intercept alone moves: (0, ..., 0, 1) in standardised coordinates.
        intercept = np.linalg.inv(frame.whiten)[:, -1]
        if isinstance(family, Numbers):
            near = state.cut.clip / frame.norm
            wide = min(WIDE_TAIL * near, family.furthest)
            bound = max(wide - near, 1e-6)
            deviation = bound * self.multipliers["outcome tail"]
            query = OutcomeTailQuery(bound=bound, deviation=deviation, wide_cut=wide, near_cut=near, **self._at(state))
            beyond = float(self.ask("outcome tail", query)[0]) / self.number
            mean, variance = moments.shrink_number(beyond, deviation / self.number, family.scale * TAIL_SCALES)
            rest = 0.0 if wide >= family.furthest else TAIL_REST
            total = (1 + rest) ** 2 * variance + (rest * mean) ** 2
            return (1 + rest) * mean * intercept, total * np.outer(intercept, intercept)
        assert isinstance(family, Counts)
        family = self._with_predictor(family, state.position)
        level, along = family.truncation(frame.norm, state.cut.clip)
        bound = max(state.cut.clip / frame.norm, 3.0)
        deviation = bound * self.multipliers["outcome tail"]
        query = OutcomeTailQuery(bound=bound, deviation=deviation, wide_cut=0.0, near_cut=0.0, **self._at(state))
        beyond = float(self.ask("outcome tail", query)[0])
        eta = family.nodes()
        terms = family.terms(eta, frame.norm, state.cut.clip)
        wide = np.minimum(family.furthest, 2 * terms.cut)
        weights = np.minimum(1.0, bound / np.maximum(wide - terms.cut, 1e-9))
        expected = family.tables.read(family.tables.beyond, eta, terms.cut) - family.tables.read(
            family.tables.beyond, eta, wide
        )
        unit = max(self.number * float(WEIGHTS @ (weights * np.maximum(expected, 0.0))), 1e-3 * self.number)
        prior = 1.5**2
        error = (deviation / unit) ** 2
        kept = prior / (prior + error)
        size = float(np.clip(kept * beyond / unit, -1, 1))
        tilt = along * (state.position - intercept * (family.center - family.offset))
        direction = level * intercept + tilt
        covariance = prior * (1 - kept) * np.outer(direction, direction) + np.outer(tilt, tilt)
        return size * direction, covariance
