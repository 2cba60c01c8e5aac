"""By how much outcomes beyond the cut move the coefficients, from one released number."""

from __future__ import annotations

import numpy as np

from confide.inference.regression import moments
from confide.inference.regression.columns import Ask
from confide.inference.regression.outcomes import WEIGHTS, Counts, Numbers
from confide.inference.regression.queries import OutcomeTailQuery
from confide.inference.regression.results import State
from confide.inference.regression.score_model import ScoreModel

WIDE_TAIL = 4.0  # cuts, up to which the residuals beyond the cut are averaged
TAIL_SCALES = np.array([0.003, 0.01, 0.03, 0.1, 0.3])  # of that average, in residual scales
TAIL_REST = 0.2  # of it lies further out, more or less
COUNT_TAIL = 1.5  # prior standard deviation of the relative error of what is expected beyond the cut of counts


def ask_outcome_tail(arguments: dict, state: State, model: ScoreModel, ask: Ask) -> tuple[np.ndarray, np.ndarray]:
    """The shift of the coefficients, and the covariance of what is not known of it. `arguments` are those of any query
    at the last position."""
    if isinstance(state.family, Numbers):
        return _shift_numbers(arguments, state.family, state, model, ask)
    if isinstance(state.family, Counts):
        return _shift_counts(arguments, state.family, state, model, ask)
    d = len(state.position)
    return np.zeros(d), np.zeros((d, d))


def _intercept(model: ScoreModel) -> np.ndarray:
    """The direction in which the intercept alone moves: (0, ..., 0, 1) in standardised coordinates."""
    return np.linalg.inv(model.frame.whiten)[:, -1]


def _shift_numbers(
    arguments: dict, family: Numbers, state: State, model: ScoreModel, ask: Ask
) -> tuple[np.ndarray, np.ndarray]:
    """Skewed residuals move the intercept by their mean beyond the cut."""
    near = state.cut.clip / model.frame.norm
    wide = min(WIDE_TAIL * near, family.furthest)
    bound = max(wide - near, 1e-6)
    deviation = bound * model.multipliers["outcome tail"]
    query = OutcomeTailQuery(bound=bound, deviation=deviation, wide_cut=wide, near_cut=near, **arguments)
    beyond = float(ask("outcome tail", query)[0]) / model.number
    mean, variance = moments.shrink_number(beyond, deviation / model.number, family.scale * TAIL_SCALES)
    rest = 0.0 if wide >= family.furthest else TAIL_REST
    intercept = _intercept(model)
    total = (1 + rest) ** 2 * variance + (rest * mean) ** 2
    return (1 + rest) * mean * intercept, total * np.outer(intercept, intercept)


def _shift_counts(
    arguments: dict, family: Counts, state: State, model: ScoreModel, ask: Ask
) -> tuple[np.ndarray, np.ndarray]:
    """Where more or less lies beyond the cut than the negative binomial distribution says, the intercept and the
    coefficients along the linear predictor move."""
    norm, clip = model.frame.norm, state.cut.clip
    family = model.with_predictor(family, state.position)
    level, along = family.truncation(norm, clip)
    bound = max(clip / norm, 3.0)
    deviation = bound * model.multipliers["outcome tail"]
    query = OutcomeTailQuery(bound=bound, deviation=deviation, wide_cut=0.0, near_cut=0.0, **arguments)
    beyond = float(ask("outcome tail", query)[0])
    eta = family.nodes()
    cut = family.terms(eta, norm, clip).cut
    wide = np.minimum(family.furthest, 2 * cut)
    weights = np.minimum(1.0, bound / np.maximum(wide - cut, 1e-9))
    read, table = family.tables.read, family.tables.beyond
    expected = np.maximum(read(table, eta, cut) - read(table, eta, wide), 0.0)
    unit = max(model.number * float(WEIGHTS @ (weights * expected)), 1e-3 * model.number)
    kept = COUNT_TAIL**2 / (COUNT_TAIL**2 + (deviation / unit) ** 2)
    size = float(np.clip(kept * beyond / unit, -1, 1))
    intercept = _intercept(model)
    tilt = along * (state.position - intercept * (family.center - family.offset))
    direction = level * intercept + tilt
    covariance = COUNT_TAIL**2 * (1 - kept) * np.outer(direction, direction) + np.outer(tilt, tilt)
    return size * direction, covariance
