"""Predictions for the rows of a table, and how good they are where the outcomes are known.

Predictions are computed from the posterior and the row alone, so they cost no budget. How good they are is a statistic
of the rows that they are compared on, and no guarantee covers it: for public records, or for whoever holds the rows.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide import validation
from confide.app.runs import run_folder, run_records
from confide.data import atomic_files, encoding, image_files, tables
from confide.data.image_schema import Pictures
from confide.data.schema import Column, Schema
from confide.inference.posterior import Posterior, UnsettledWarning
from confide.models import families
from confide.validation import Refused

BINS = 10  # of predicted probabilities
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of predictive intervals


class Written(NamedTuple):
    """What a file of predictions holds."""

    rows: int
    blank: int  # rows without a prediction, since they lack a value that the schema admits

    def to_text(self, intervals: str) -> str:
        """For the terminal; `intervals` says what is beside the predictions."""
        said = f"{self.rows:,} prediction{'' if self.rows == 1 else 's'}{intervals}"
        rows = "a row" if self.blank == 1 else "rows"
        return f"{said}, {self.blank:,} of them blank: {rows} with a missing or invalid value" if self.blank else said


def predict(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    probability: float = 0.9,
    keep: Sequence[str] = (),
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Written:
    """Write a prediction for every row of a table, or every image.

    A row that would count as absent in a fit gets a blank one. One draw gives no intervals, nor do draws that have
    not settled: see `without_intervals`. The columns in `keep`, such as an identifier, go along.
    """
    validation.probability(probability=probability)
    path, rows, blank = Path(out), -1, 0  # without the header
    if path.exists():
        raise Refused(f"--out {str(path)!r} exists: give the name of a new file, or remove it")
    if run_folder.lies_in(path, Path(folder)):
        raise Refused(f"--out {str(path)!r} lies in the run, which may be published: predictions of people may not")
    posterior, described = run_folder.load(folder)
    level = None if without_intervals(posterior) else probability
    names = _names(described.column(described.target))
    if isinstance(described, Pictures):
        run_records.tables_alone(delimiter, encoding, keep)
        found = _of_pictures(posterior, described, Path(data), level)
    else:
        found = _predict_rows(posterior, described, tables.open_table(data, delimiter, encoding), level, keep)
    with atomic_files.write_text(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in found:
            writer.writerow(row)
            rows += 1
            blank += row[-len(names) :] == [""] * len(names)
    return Written(rows, blank)


def without_intervals(posterior: Posterior) -> str:
    """Why predictions have no intervals; empty where they have."""
    if posterior.point:
        return "points have no intervals"
    if posterior.chains * posterior.size == 1:
        return "one draw gives no intervals"
    return "the draws have not settled, and give no intervals" if posterior.settled is False else ""


def _predict_rows(
    posterior: Posterior, described: Schema, table: tables.Table, probability: float | None, keep: Sequence[str]
) -> Iterator[list[Any]]:
    """The header, then a row for each row of the table."""
    target = described.column(described.target)
    if unknown := [name for name in keep if name not in table.header]:
        raise Refused(f"{table.at(1)}: column {unknown[0]!r} of --keep is not in the file: give one that is")
    names = _names(target)
    yield [table.place, *keep, *names]
    for piece, x, present in encoding.encode_pieces(described, table):
        values = iter(_rows_of(posterior, target, x[present], probability) if present.any() else [])
        for i, line in enumerate(piece.lines):
            own = next(values) if present[i] else [""] * len(names)
            yield [line, *(piece.columns[name][i] for name in keep), *own]


def _of_pictures(
    posterior: Posterior, described: Pictures, data: Path, probability: float | None
) -> Iterator[list[Any]]:
    """The header, then a row for each image."""
    target, found = described.column(described.target), image_files.encode(described, data, labelled=False)
    yield [found.place, *_names(target)]
    for name, row in zip(found.names, _rows_of(posterior, target, found.x, probability), strict=True):
        yield [name, *row]


def _names(target: Column) -> list[str]:
    """The columns of predictions."""
    if not target.labels:
        return [f"{kind} {target.name}" for kind in ("predicted", "low", "high")]
    shown = target.labels[1:] if len(target.labels) == 2 else target.labels
    own = [f"{kind}{target.name}={label}" for label in shown for kind in ("", "low ", "high ")]
    return [f"predicted {target.name}", *own]


def _rows_of(posterior: Posterior, target: Column, x: np.ndarray, probability: float | None) -> list[list[Any]]:
    interval = None if probability is None else posterior.interval(x, probability)
    if not target.labels:
        back = _back(target, count=families.outcome(posterior.plan["model"]) == "count")
        columns = [back(posterior.predict(x))]
        if interval is None:
            return [[f"{value:.6g}", "", ""] for value in columns[0]]
        columns += [back(interval[:, 0]), back(interval[:, 1])]
        return [[f"{value:.6g}" for value in row] for row in zip(*columns, strict=True)]
    chances = posterior.predict_proba(x)
    places = [1] if len(target.labels) == 2 else range(len(target.labels))
    rows = []
    for i, chance in enumerate(chances):
        shown = []
        for k in places:
            ends = ("", "") if interval is None else [f"{end:.4f}" for end in interval[i, k]]
            shown += [f"{chance[k]:.4f}", *ends]
        rows.append([target.labels[int(np.argmax(chance))], *shown])
    return rows


def _back(target: Column, count: bool) -> Callable[[np.ndarray], np.ndarray]:
    """From the scale of the model to the unit of the target; counts are in it already."""
    return (lambda values: values) if count else lambda values: encoding.unscale(target, values)


class Bin(NamedTuple):
    """Some rows: what was said of them, how it turned out, and a 95% interval for that."""

    said: float
    found: float
    low: float
    high: float
    rows: int


class Evaluation(NamedTuple):
    """How good predictions are on rows with known outcomes."""

    rows: int
    scores: dict[str, float]
    calibration: list[Bin]
    remark: str = ""


def evaluate(
    posterior: Posterior,
    described: Schema | Pictures,
    data: str | os.PathLike[str],
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Evaluation:
    """Compare predictions with the outcomes in a table or of images. The result is a statistic of those."""
    target = described.column(described.target)
    count = families.outcome(posterior.plan["model"]) == "count"
    x, y = run_records.records(posterior, described, data, delimiter, encoding)
    return (
        _evaluate_classes(posterior, target, x, y)
        if target.labels
        else _evaluate_numbers(posterior, target, x, y, count)
    )


def _evaluate_classes(posterior: Posterior, target: Column, x: np.ndarray, y: np.ndarray) -> Evaluation:
    chances, labels = posterior.predict_proba(x).astype(np.float64), y.astype(int)
    right = np.argmax(chances, axis=1) == labels
    own = np.clip(chances[np.arange(len(y)), labels], 1e-12, 1.0)
    scores = {
        "accuracy": float(np.mean(right)),
        "share of the most common label": float(np.bincount(labels).max() / len(labels)),
        "log loss": float(-np.mean(np.log(own))),
    }
    squares = np.sum((chances - np.eye(chances.shape[1])[labels]) ** 2, axis=1)
    if len(target.labels) == 2:
        scores["Brier score"] = float(np.mean(squares)) / 2
    else:
        scores["Brier score, summed over labels"] = float(np.mean(squares))
    # Of two labels the second is said to happen; of several, the likeliest is said to be right.
    said, happened = (chances[:, 1], labels == 1) if len(target.labels) == 2 else (chances.max(axis=1), right)
    places = np.minimum((said * BINS).astype(int), BINS - 1)
    groups = [(said[places == place], happened[places == place]) for place in range(BINS)]
    bins = [_bin(float(s.mean()), int(h.sum()), len(h)) for s, h in groups if len(h)]
    return Evaluation(len(y), scores, bins)


def _evaluate_numbers(posterior: Posterior, target: Column, x: np.ndarray, y: np.ndarray, count: bool) -> Evaluation:
    back = _back(target, count)
    outcome, mean = back(y.astype(np.float64)), back(posterior.predict(x).astype(np.float64))
    scores = {
        "root mean squared error": float(np.sqrt(np.mean((outcome - mean) ** 2))),
        "mean absolute error": float(np.mean(np.abs(outcome - mean))),
        "standard deviation of the outcomes": float(np.std(outcome)),
    }
    if posterior.point or posterior.chains * posterior.size == 1:
        return Evaluation(len(y), scores, [], "One draw, or a point, has no intervals to compare with.")
    bins = []
    for level in LEVELS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsettledWarning)  # the remark says so
            interval = posterior.interval(x, level)
        inside = int(np.sum((y >= interval[:, 0]) & (y <= interval[:, 1])))
        bins.append(_bin(level, inside, len(y)))
    remark = ""
    if not count and bins[0].low > bins[0].said:
        remark = "The intervals hold more than they say: the noise scale is too large (--noise-scale)."
    elif not count and bins[0].high < bins[0].said:
        remark = "The intervals hold less than they say: the noise scale is too small (--noise-scale)."
    if remark and posterior.settled is False:
        remark = "The draws have not settled: their quantiles are no intervals, and tell nothing of the noise scale."
    return Evaluation(len(y), scores, bins, remark)


def _bin(said: float, happened: int, rows: int) -> Bin:
    """With Wilson's interval."""
    share, z2 = happened / rows, 1.959963984540054**2
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half = np.sqrt(z2 * (share * (1 - share) / rows + z2 / (4 * rows**2))) / (1 + z2 / rows)
    return Bin(said, share, max(0.0, float(middle - half)), min(1.0, float(middle + half)), rows)
