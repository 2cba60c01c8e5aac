"""Figures of a cell against its bars. A cell holds if its estimate is in range or within two standard errors, which
are clustered by dataset."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from records import stack
from tables import RealTable

NORMAL_WIDTH, NORMAL_ERROR = 3.2897, math.sqrt(2 / math.pi)  # of a 90% interval and of the mean error, over the sd
WORST_COLUMN, RARE_COVERAGE, WIDEST_COLUMN = 0.70, 0.80, 2.5


class Bar(NamedTuple):
    low: float  # of coverage
    high: float
    ratio: float  # of widths and errors over the ideal


class Cell(NamedTuple):
    name: str
    epsilon: float
    table: RealTable
    coefficients: np.ndarray  # the truth
    predictors: np.ndarray
    deviations: np.ndarray  # of the ideal
    predictor_deviations: np.ndarray


def coverage(hits: np.ndarray) -> tuple[float, float]:
    """Share and standard error of hits, whose rows are datasets."""
    shares = hits.mean(axis=1)
    return float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(len(shares))) if len(shares) > 1 else 1.0


def mark(within: bool | np.bool_) -> str:
    return "" if within else " MISSED"


def show_coverage(label: str, hits: np.ndarray, low: float, high: float = 1.0) -> str:
    if not hits.size:
        return ""
    share, error = coverage(hits)
    return f"{label} {share:.3f}+-{error:.3f}{mark(low - 2 * error <= share <= high + 2 * error)}"


def judge_cell(cell: Cell, lines: list[dict], bar: Bar, information: float) -> list[str]:
    low, high, mean, sd = (stack(lines, "coefficients", name) for name in ("low", "high", "mean", "sd"))
    hits = (low <= cell.coefficients) & (cell.coefficients <= high)
    usual = ~cell.table.is_rare & ~cell.table.is_constant
    rare = cell.table.is_rare & ~cell.table.is_constant
    widths = np.median(high - low, axis=0) / (NORMAL_WIDTH * cell.deviations)
    errors = np.abs(mean - cell.coefficients).mean(axis=0) / (NORMAL_ERROR * cell.deviations)
    people = (stack(lines, "people", "low") <= cell.predictors) & (cell.predictors <= stack(lines, "people", "high"))
    columns = hits.mean(axis=0)
    worst = int(np.argmin(np.where(usual, columns, 2)))
    widest = int(np.argmax(np.where(usual, widths, 0)))
    column_error = math.sqrt(max(columns[worst] * (1 - columns[worst]), 0.05) / len(lines))
    names = [*(cell.table.feature_names[j] for j in cell.table.coefficients), "intercept"]
    scores = np.abs(mean - cell.coefficients) / np.maximum(sd, 1e-300)
    width, error = float(np.median(widths[usual])), float(np.median(errors[usual]))
    need_column = cell.epsilon >= 1
    parts = [
        f"{cell.name:13s} eps {cell.epsilon:<4g} n mu2/d {information:7.1f} fits {len(lines):3d}",
        show_coverage("coef", hits[:, usual], bar.low, bar.high),
        show_coverage("people", people, bar.low, bar.high),
        show_coverage("rare", hits[:, rare], RARE_COVERAGE),
        f"width {width:.2f}{mark(width <= bar.ratio)} error {error:.2f}{mark(error <= bar.ratio * 1.03)}",
        f"worst {columns[worst]:.2f} {names[worst]}"
        + mark(not need_column or columns[worst] + 2 * column_error >= WORST_COLUMN),
        f"widest {widths[widest] / width:.2f} {names[widest]}{mark(widths[widest] <= WIDEST_COLUMN * width)}",
        f"z {scores[:, usual].max():.1f}",
        f"converged {np.mean([line['converged'] for line in lines]):.2f}",
        f"{np.mean([line['seconds'] for line in lines]):.2f}s",
    ]
    return [" | ".join(part.strip() for part in parts if part)]
