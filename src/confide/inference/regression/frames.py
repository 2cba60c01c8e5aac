"""The coordinates of the queries about scores: standardised columns, whitened by their noisy second moments."""

from __future__ import annotations

import math

import numpy as np

from confide.inference.regression import moments
from confide.inference.regression.columns import Ask, Location
from confide.inference.regression.design import Design, combine
from confide.inference.regression.moments import Moments, NormalRows
from confide.inference.regression.outcomes import Outcomes, TwoLabels
from confide.inference.regression.queries import MomentQuery, NormQuery
from confide.inference.regression.results import Frame
from confide.mechanism import query_grid

FLOOR = 0.35  # of eigenvalues of the second moments, over what the noise leaves open
ROW_FLOOR = 0.3  # of the eigenvalues that rows are taken to have, over that floor
MOMENT_BOUND = 1.32  # squared norm beyond which rows count less for second moments, over the number of coefficients
RARE_REACH = 2.5  # standard deviations of other columns by which their mean over a rare level usually differs at most


def build_frame(
    design: Design, location: Location, family: Outcomes, number: float, multipliers: dict[str, float], ask: Ask
) -> Frame:
    kept = tuple(j for j in range(len(design.columns)) if j not in location.references)
    affine = _standardise(location, kept)
    rarity = _rarity(design, location, kept)
    second = _ask_moments(design, location, kept, affine, rarity, number, multipliers, ask)
    stretch = _stretch(family, location, kept, number, multipliers)
    whiten, rows_second = _whiten(second, stretch)
    standardise = _on_grid((affine * stretch) @ whiten)
    norm = _ask_norm(standardise, number, multipliers, ask)
    share = rows_second[-1, -1]
    mean = rows_second[:, -1] / share
    covariance = rows_second / share - np.outer(mean, mean)
    rows = NormalRows(number * share, whiten @ mean, whiten @ covariance @ whiten)
    return Frame(location, kept, stretch, whiten, standardise, rows, norm, second.error, rarity)


def _standardise(location: Location, kept: tuple[int, ...]) -> np.ndarray:
    """Standardised columns and the constant are (x, 1) times this matrix."""
    center, spread = location.center[list(kept)], location.spread[list(kept)]
    affine = np.zeros((len(location.center) + 1, len(kept) + 1))
    affine[list(kept), np.arange(len(kept))] = 1 / spread
    affine[-1, :-1], affine[-1, -1] = -center / spread, 1.0
    return affine


def _ask_moments(
    design: Design,
    location: Location,
    kept: tuple[int, ...],
    affine: np.ndarray,
    rarity: np.ndarray,
    number: float,
    multipliers: dict[str, float],
    ask: Ask,
) -> Moments:
    bound = MOMENT_BOUND * (len(kept) + 1)
    deviation = bound * multipliers["moments"]
    noisy = ask("moments", MomentQuery(bound=bound, deviation=deviation, standardise=affine)) / number
    return moments.shrink_moments(noisy, deviation / number, _exclusion(design, location, kept), rarity)


def _stretch(
    family: Outcomes, location: Location, kept: tuple[int, ...], number: float, multipliers: dict[str, float]
) -> np.ndarray:
    """What standardised columns are multiplied by. A column whose tail reaches far out is shrunk, so that its rows are
    not down-weighted; it alone pays with noise. Labels are bounded and need none of this."""
    d = len(kept) + 1
    stretch = np.ones(d)
    if isinstance(family, TwoLabels):
        return stretch
    reach = math.sqrt(0.2 * number / d) / combine(multipliers, "scores")
    most = max(2.0, math.sqrt(0.02 * number / (multipliers["slope"] * d)))
    reach = float(np.clip(reach / 1.5, 1.2, most)) * math.sqrt(d)
    stretch[:-1] = np.clip(0.8 * reach / location.furthest[list(kept)], 0.3, 1.0)
    return stretch


def _whiten(moment: Moments, stretch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse root of the second moments of stretched columns, and these moments as rows are taken to have them.

    Stretched columns are completed to a unit second moment before they are whitened, so that they stay shrunk.
    Eigenvalues below what the noise leaves open are raised to it in the root; rows are not taken to be as wide there.
    """
    missing = np.diag(1 - stretch**2)
    least = min(0.3, max(0.01, FLOOR * moment.error * math.sqrt(len(stretch))))
    values, vectors = moments.eigen(moment.second * np.outer(stretch, stretch) + missing)
    whiten = (vectors * np.maximum(values, least) ** -0.5) @ vectors.T
    second = (vectors * np.maximum(values, ROW_FLOOR * least)) @ vectors.T - 0.999 * missing
    return whiten, moments.floor_eigenvalues(second, ROW_FLOOR * least)


def _ask_norm(standardise: np.ndarray, number: float, multipliers: dict[str, float], ask: Ask) -> float:
    """The mean norm of whitened rows, which is near the root of their number of columns."""
    usual = math.sqrt(standardise.shape[1])
    query = NormQuery(bound=1.0, deviation=multipliers["norm"], standardise=standardise, furthest=3 * usual)
    norm = 3 * usual * float(ask("norm", query)[0]) / number
    return query_grid.round_scale(float(np.clip(norm, 0.6 * usual, 1.6 * usual)))


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
    factors = {"numeric": np.inf, "boolean": 0.5 * RARE_REACH, "indicator": RARE_REACH, "category": RARE_REACH}
    reach = [min(1.0, factors[design.columns[j].kind] * location.spread[j]) for j in kept]
    return np.array([*reach, 1.0])


def _on_grid(matrix: np.ndarray) -> np.ndarray:
    return np.array([query_grid.round_scale(value) for value in matrix.ravel()]).reshape(matrix.shape)
