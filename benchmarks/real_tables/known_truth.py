"""Real rows with a known truth: rows are drawn with replacement from a table, and outcomes are simulated from the fit
without privacy under the default prior. How often do 90% intervals hold the truth, and how wide are they?

Counts are simulated twice: as Poisson counts, and (`NAME-nb`) as negative binomial ones with the table's dispersion.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import engine
import numpy as np
import plain
import tables
from judge import Bar, Cell, judge_cell
from records import summarise_draws

import ideal
from confide.models import families

NAMES = (
    "nwtco",
    "hi",
    "males",
    "wages",
    "workinghours",
    "ofp",
    "ofp-nb",
    "doctoraus",
    "doctoraus-nb",
    "adult9",
    "adult",
)
PEOPLE = 40  # whose linear predictors are judged


class Truth(NamedTuple):
    table: tables.RealTable
    coefficients: np.ndarray
    scale: float
    dispersion: float
    bounds: tuple[float, float]
    people: np.ndarray  # rows


@lru_cache(maxsize=2)
def find_truth(name: str) -> Truth:
    table = tables.load(name.removesuffix("-nb"))
    fitted = plain.fit_plain(table, table.y, factor=1.0)
    dispersion = fitted.dispersion if name.endswith("-nb") else 0.0
    bounds = plain.wide_bounds(table.family, table.rows @ fitted.coefficients, fitted.residual_scale, dispersion)
    chosen = np.random.default_rng(7).choice(len(table.y), PEOPLE, replace=False)
    people = table.rows[chosen]
    return Truth(table, fitted.coefficients, fitted.residual_scale, dispersion, bounds, people)


def simulate_table(truth: Truth, index: int) -> tables.RealTable:
    rng = np.random.default_rng([34, index])
    table = truth.table
    picked = rng.integers(0, len(table.y), len(table.y))
    drawn = table.with_outcomes(table.y[picked], truth.bounds, table.x[picked])
    eta = table.rows[picked] @ truth.coefficients
    y = plain.simulate(table.family, eta, truth.scale, truth.dispersion, rng)
    if table.family == "numbers":  # the engine is given outcomes within [-1, 1], as an encoded table has them
        y = to_unit(y, truth.bounds)
        drawn = replace(drawn, design=replace(drawn.design, outcome=(-1.0, 1.0)))
    return replace(drawn, y=y)


def to_unit(y: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    return (2 * y - bounds[0] - bounds[1]) / (bounds[1] - bounds[0])


def from_unit(draws: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Coefficients of outcomes in their unit from those of outcomes within [-1, 1]."""
    moved = draws * (bounds[1] - bounds[0]) / 2
    moved[:, -1] += (bounds[0] + bounds[1]) / 2
    return moved


def measure(name: str, epsilon: float, index: int) -> dict:
    truth = find_truth(name)
    # Contrasts are to the commonest levels of the table, and not of the drawn rows.
    fitted = engine.fit(simulate_table(truth, index), epsilon, index, reference_table=truth.table)
    draws = from_unit(fitted.draws, truth.bounds) if truth.table.family == "numbers" else fitted.draws
    people = draws @ truth.people.T
    return {
        "coefficients": summarise_draws(draws),
        "people": summarise_draws(people),
        "converged": fitted.converged,
        "seconds": fitted.seconds,
    }


@lru_cache(maxsize=40)
def ideal_deviations(name: str, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Of coefficients and of linear predictors, after the best single release."""
    truth = find_truth(name)
    table = truth.table
    known = {"noise_scale": truth.scale, "dispersion": truth.dispersion}
    words = {
        "labels": "logistic",
        "numbers": "linear",
        "counts": "negative-binomial" if truth.dispersion else "poisson",
    }
    family = families.with_known(families.BY_WORD[words[table.family]], known)
    _, precision = plain.prior_precision(table, table.y)
    covariance = ideal.whitened(family, table.rows, truth.coefficients, engine.budget(epsilon), precision)
    return np.sqrt(np.diag(covariance)), np.sqrt(np.einsum("ij,jk,ik->i", truth.people, covariance, truth.people))


def bar(name: str, epsilon: float) -> tuple[float, Bar]:
    """n mu^2 / d, and what a cell has to reach."""
    truth = find_truth(name)
    information = len(truth.table.y) * engine.budget(epsilon) ** 2 / truth.table.rows.shape[1]
    counts = truth.table.family == "counts"
    if information >= 50:
        return information, Bar(0.86, 0.94, 2.0 if counts else 1.3)
    if information >= 10:
        return information, Bar(0.86, 0.94, 2.5 if counts else 1.6)
    return information, Bar(0.82, 1.0, 4.0 if counts else 2.2)


def report(lines: list[dict]) -> list[str]:
    texts = []
    for name in NAMES:
        for epsilon in sorted({line["epsilon"] for line in lines if line["table"] == name}):
            chosen = [line for line in lines if line["table"] == name and line["epsilon"] == epsilon]
            truth, (information, limits) = find_truth(name), bar(name, epsilon)
            deviations, people_deviations = ideal_deviations(name, epsilon)
            cell = Cell(
                name, epsilon, truth.table, truth.coefficients, truth.people @ truth.coefficients, deviations,
                people_deviations,
            )  # fmt: skip
            texts += judge_cell(cell, chosen, limits, information)
    return texts
