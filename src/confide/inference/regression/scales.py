"""The residual scale of numbers and the dispersion of counts, from one number in every query of scores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from confide.inference.regression.design import STEPS
from confide.inference.regression.outcomes import WEIGHTS, Counts, Numbers
from confide.inference.regression.queries import SCALE_REACH
from confide.inference.regression.results import State
from confide.inference.regression.score_model import ScoreModel
from confide.mechanism import query_grid

EARLY = 8  # steps during which cuts follow what is learnt of the scale
SAMPLING = 0.57  # variance of the mean |residual| of a record, over its square
DISPERSION, DISPERSION_SPREAD = 0.5, 1.5  # median of its prior, and the standard deviation of its logarithm


def learn_scale(step: int, number: float, noise: float, position: np.ndarray, state: State, model: ScoreModel) -> None:
    """Use the number that was released with the scores at a position; `noise` is its standard deviation."""
    family = state.family
    if isinstance(family, Numbers):
        _learn_residual_scale(step, number, noise, family, state, model)
    elif isinstance(family, Counts) and step < EARLY + 3:
        _learn_dispersion(step, number, noise, family, position, state, model)


def _learn_residual_scale(
    step: int, number: float, noise: float, family: Numbers, state: State, model: ScoreModel
) -> None:
    largest = SCALE_REACH * family.scale
    scale, error = 1.25 * largest * number / model.number, 1.25 * largest * noise / model.number
    state.scales.append((scale, error**2 + SAMPLING * family.scale**2 / model.number))
    if step < EARLY + 2:
        gain = 1 / (1 + (error / (0.3 * family.scale)) ** 2)
        scale = family.scale + gain * (scale - family.scale)
        scale = float(np.clip(scale, 0.5 * family.scale, 1.5 * family.scale))
        state.family = replace(family, scale=query_grid.round_scale(scale))
        state.cut = model.cut(state.family)


def _learn_dispersion(
    step: int, number: float, noise: float, family: Counts, position: np.ndarray, state: State, model: ScoreModel
) -> None:
    """One Kalman step for the log of the dispersion."""
    log_dispersion, variance = state.scales[-1] if state.scales else (math.log(DISPERSION), DISPERSION_SPREAD**2)
    at = model.with_predictor(family, position)
    squares = at.expected_squares(at.nodes())
    change = (at.with_dispersion(1.1 * family.dispersion).expected_squares(at.nodes()) - squares) / math.log(1.1)
    slope = max(model.number * float(WEIGHTS @ change), 1e-3 * model.number)
    total = noise**2 + 0.3 * model.number * float(WEIGHTS @ squares)
    gain = variance * slope / (variance * slope**2 + total)
    log_dispersion += float(np.clip(gain * number, -0.7, 0.7))
    log_dispersion = float(np.clip(log_dispersion, math.log(0.02), math.log(6.0)))
    variance = max((1 - gain * slope) * variance, 0.0) + (0.3 if step < EARLY - 2 else 0.0)
    state.scales.append((log_dispersion, variance))
    family = family.with_dispersion(query_grid.round_scale(math.exp(log_dispersion)))
    state.family = model.with_predictor(family, state.position)
    if step < EARLY:
        state.cut = model.cut(state.family)


def last_scale(state: State, number: float) -> tuple[float, float] | None:
    """The residual scale, or the log of the dispersion, and its variance."""
    if isinstance(state.family, Numbers):
        late = np.array(state.scales[STEPS // 2 :])
        sampling = SAMPLING * state.family.scale**2 / number
        weights = 1 / (late[:, 1] - sampling)
        return float(late[:, 0] @ weights / weights.sum()), float(1 / weights.sum()) + sampling
    return state.scales[-1] if state.scales else None
