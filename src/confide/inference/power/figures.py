"""From standard deviations to what people ask for: widths of intervals, effects that are told from none, accuracy."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from confide.inference.power.widths import Expected

PROBABILITY, POWER = 0.9, 0.8  # of the interval, and of excluding 0
HALF = float(special.ndtri((1 + PROBABILITY) / 2))
WIDTH = 2 * HALF
SOME_TRUTHS, SOME_ROWS, DRAWS = 8, 512, 8


class Figures(NamedTuple):
    """At one number of records and one budget."""

    widths: np.ndarray  # of a median run
    effects: np.ndarray  # infinite where none is told from none often enough
    seen: float  # how often the run sees the scale of its records
    accuracy: float | None  # expected; of labels alone
    difference_widths: np.ndarray  # of two levels of each category
    difference_effects: np.ndarray
    median: float  # width of what data tell by themselves: of features, and of differences of levels


def figures(expected: Any, n: float, mu: float) -> Figures:
    """Where the scale is seen less often than not, a median run has the prior's draws."""
    if not isinstance(expected, Expected):
        return expected.figures(n, mu)
    setting, covariances = expected.setting, expected.covariances(n, mu)
    seen = expected.chance_of_scale(n, mu)
    widths, least = _of(np.eye(expected.size), setting.prior_scale, covariances, seen)
    apart = _differences(expected)
    between = _of(apart, math.sqrt(2) * setting.prior_scale, covariances, seen)
    right = accuracy(expected, covariances) if setting.outcomes.labels else None
    if right is not None:
        right = seen * right + (1 - seen) / max(setting.outcomes.classes, 2)
    middle = float(np.median([*widths[told_apart(expected)], *between[0]]))
    return Figures(widths, least, seen, right, *between, middle)


def _of(sums: np.ndarray, prior_scale: float, covariances: np.ndarray, seen: float) -> tuple[np.ndarray, np.ndarray]:
    """Widths and effects of sums of coefficients, which all have this scale a priori."""
    variances = np.sum((sums @ covariances) * sums, axis=2)
    deviations = np.median(np.sqrt(variances), axis=0)
    held = deviations if seen >= 0.5 else np.full_like(deviations, prior_scale)
    return WIDTH * held, effects(deviations, prior_scale, seen)


def _differences(expected: Expected) -> np.ndarray:
    """Of two levels of each category, which data tell, where the levels themselves hold what none do."""
    levels = expected.setting.guess.levels if expected.setting.outcomes.classes == 1 else ()
    found = np.zeros((len(levels), expected.size))
    for row, (_, places) in zip(found, levels, strict=True):
        row[list(places[:2])] = 1.0, -1.0
    return found


def told_apart(expected: Expected) -> list[int]:
    """The coefficients that data tell by themselves: not the constant, and no level of a category."""
    setting = expected.setting
    levels = [place for _, places in setting.guess.levels for place in places if setting.outcomes.classes == 1]
    constant = setting.outcomes.classes
    return [place for place in range(expected.size - constant) if place not in levels]


def effects(deviations: np.ndarray, prior_scale: float, seen: float) -> np.ndarray:
    """The least coefficients whose intervals exclude 0, on their side of it, with probability `POWER`.

    What the release tells of one coefficient, the others having their prior, is N(theta, tau^2) with 1 / tau^2 =
    1 / sd^2 - 1 / prior^2. The posterior mean is sd^2 / tau^2 of that, and the interval excludes 0 where it is above
    `HALF` sd.
    """
    if seen <= POWER:
        return np.full_like(deviations, math.inf)
    told = np.maximum(deviations**-2.0 - prior_scale**-2.0, 0.0)
    with np.errstate(divide="ignore"):
        return HALF / told / deviations + float(special.ndtri(POWER / seen)) / np.sqrt(told)


def accuracy(expected: Expected, covariances: np.ndarray) -> float:
    """How often the posterior mean names the right label, over records, truths and what the release says.

    A posterior of covariance S has taken D = S^-1 - P_0 from the release, so that its mean is N(S D theta, S D S).
    """
    setting = expected.setting
    rows, classes = setting.guess.rows[:SOME_ROWS], setting.outcomes.classes
    rng, found = np.random.default_rng(0), []
    for truth, covariance in list(zip(setting.truths, covariances, strict=True))[: 2 * SOME_TRUTHS]:
        taken = np.eye(len(covariance)) - covariance / setting.prior_scale**2  # S D
        mean, spread = taken @ truth.ravel(), taken @ covariance
        if classes == 1:
            away = rows @ mean / np.sqrt(np.maximum(np.sum((rows @ spread) * rows, axis=1), 1e-300))
            right, one = special.ndtr(away), special.expit(rows @ truth)
            found.append(np.mean(one * right + (1 - one) * (1 - right)))
        else:
            values, vectors = np.linalg.eigh((spread + spread.T) / 2)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            draws = mean + rng.standard_normal((DRAWS, len(mean))) @ root.T
            chances = special.softmax(rows @ truth, axis=1)
            named = [np.argmax(rows @ each.reshape(-1, classes), axis=1) for each in draws]
            found.append(np.mean([chances[np.arange(len(rows)), each].mean() for each in named]))
    return float(np.mean(found))


def best_accuracy(expected: Any) -> float:
    """Of the truth itself."""
    if not isinstance(expected, Expected):
        return expected.best_accuracy()
    setting = expected.setting
    found = []
    for truth in setting.truths[: 2 * SOME_TRUTHS]:
        s = setting.guess.rows[:SOME_ROWS] @ truth
        found.append(np.mean(special.expit(np.abs(s)) if s.ndim == 1 else special.softmax(s, axis=1).max(axis=1)))
    return float(np.mean(found))


def signal(expected: Any) -> float:
    """By how much the true scores of records spread."""
    if not isinstance(expected, Expected):
        return expected.signal()
    return math.sqrt(float(np.mean([np.mean(np.var(s, axis=0)) for s in expected.scores])))
