"""Named tables: as records of text with a header, and as arrays encoded by their public schemas alone.

The schemas (`schema_path`) ship with the package; the records do not.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from confide import validation
from confide.data import schema
from confide.data.datasets import download, openml
from confide.data.datasets.types import Arrays, Records, Split
from confide.data.encoding import encode
from confide.validation import Refused

FILES = {"adult": "adult.data", "abalone": "abalone.data", "german_credit": "german.data"}
NAMES = (*FILES, "breast_cancer")


def schema_path(name: str) -> Path:
    """The public schema of a table: the path of its TOML file, which ships with the package."""
    validation.one_of(NAMES, name=name)
    return Path(str(importlib.resources.files("confide.data.datasets") / "schemas" / f"{name}.toml"))


def table(name: str, folder: str | os.PathLike[str] | None = None, *, test: bool = False) -> Records:
    """The records of a table as text, under the names that its schema describes.

    Args:
        name: adult, abalone, german_credit or breast_cancer.
        folder: searched before CONFIDE_DATA and the cache folder.
        test: the test records of adult, which alone has some.
    """
    validation.one_of(NAMES, name=name)
    if test and name != "adult":
        raise Refused(f"the dataset {name!r} has no test records: split it yourself")
    if name == "breast_cancer":
        return _breast_cancer()
    file = "adult.test" if test else FILES[name]
    path = download.find(name, file, folder, otherwise=functools.partial(openml.write_file, name, file))
    columns = tuple(column.name for column in schema.load(schema_path(name)).columns)  # in the order of the file
    rows = _rows(path, len(columns), " " if name == "german_credit" else ",")
    if name == "adult":
        for row in rows:
            row[-1] = row[-1].rstrip(".")  # as the test file ends its labels
    return Records(columns, rows)


def _rows(path: Path, width: int, delimiter: str) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{path} is not text: remove it, and it is downloaded again") from None
    rows = []
    for number, row in enumerate(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), 1):
        cells = [cell.strip() for cell in row if cell.strip() or delimiter != " "]
        if not "".join(cells) or cells[0].startswith("|"):  # an empty line, or a comment
            continue
        if len(cells) != width:
            raise Refused(f"{path}, line {number}: {len(cells)} values, not {width}: is it the original file?")
        rows.append(cells)
    if not rows:
        raise Refused(f"{path} holds no records: remove it, and it is downloaded again")
    return rows


def _breast_cancer() -> Records:
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer()
    columns = (*map(str, bunch.feature_names), "diagnosis")
    diagnoses = [str(bunch.target_names[target]) for target in bunch.target]
    rows = [[*map(repr, row), diagnosis] for row, diagnosis in zip(bunch.data.tolist(), diagnoses, strict=True)]
    return Records(columns, rows)


def _encode(name: str, records: Records, count: bool = False) -> Arrays:
    encoded = encode(schema.load(schema_path(name)).with_target(), records.by_column(), count)
    if not encoded.present.all():
        row = int(np.argmin(encoded.present)) + 1
        raise Refused(f"record {row} of {name} holds an undocumented value: is it the original file?")
    return Arrays(encoded.x, encoded.y)


def abalone(folder: str | os.PathLike[str] | None = None, *, count: bool = False) -> Arrays:
    """UCI Abalone: how many rings does a shell have? Its age is their number and a half.

    4,177 shells measured in Tasmania (Nash et al. 1994), sex and seven measurements, 10 features and a constant. y is
    the number of rings scaled to [-1, 1] by the schema, or with `count` the number itself. CC BY 4.0, from the UCI
    repository (DOI 10.24432/C55C7W).
    """
    return _encode("abalone", table("abalone", folder), count)


def german_credit(folder: str | os.PathLike[str] | None = None, *, numeric: bool = False) -> Arrays:
    """UCI Statlog German Credit: did the borrower turn out a bad risk (y = 1)?

    1,000 loans of a German bank in the 1970s (Hofmann), 700 good and 300 bad, seven numeric and thirteen qualitative
    attributes. Bad loans were oversampled. CC BY 4.0, from the UCI repository (DOI 10.24432/C5NC77).

    With `numeric`, x is the 24 numbers that Strathclyde University made of the attributes (`german.data-numeric`), not
    scaled, which no schema describes: for experiments, not for private fits.
    """
    if not numeric:
        return _encode("german_credit", table("german_credit", folder))
    path = download.find("german_credit", "german.data-numeric", folder)
    rows = _rows(path, 25, " ")
    try:
        values = np.array(rows, dtype=np.float32)
    except ValueError:
        raise Refused(f"{path} holds words: is it the original file?") from None
    return Arrays(values[:, :-1], (values[:, -1] == 2).astype(np.float32))


def breast_cancer() -> Arrays:
    """Breast Cancer Wisconsin (Diagnostic): is the tumour malignant (y = 1)?

    569 fine needle aspirates (Wolberg, Street and Mangasarian 1993), 212 of them malignant; 30 measurements of cell
    nuclei and a constant. The records ship with scikit-learn, where malignant is 0. CC BY 4.0, from the UCI repository
    (DOI 10.24432/C5DW2B).
    """
    return _encode("breast_cancer", _breast_cancer())


def adult(folder: str | os.PathLike[str] | None = None) -> Split:
    """UCI Adult (Census Income): is the yearly income above 50,000 dollars (y = 1)?

    32,561 training and 16,281 test records from the United States census of 1994 (Becker and Kohavi 1996), 7,841 and
    3,846 of them positive; 108 one-hot and scaled features, and a constant. CC BY 4.0, from the UCI repository
    (DOI 10.24432/C5XW20).

    Numbers are scaled to [0, 1] here and to [-1, 1] by the schema; the features are otherwise the same.
    """
    described = schema.load(schema_path("adult"))
    train, test = table("adult", folder), table("adult", folder, test=True)
    return Split(*_adult_arrays(train, described), *_adult_arrays(test, described))


def _adult_arrays(records: Records, described: schema.Schema) -> tuple[np.ndarray, np.ndarray]:
    values = records.by_column()
    parts = [_in_unit_interval(column, values[column.name]) for column in described.with_target().inputs]
    x = np.concatenate([*parts, np.ones((len(records.rows), 1), np.float32)], axis=1)
    return x, np.array([income == ">50K" for income in values["income"]], dtype=np.float32)


def _in_unit_interval(column: schema.Column, values: Sequence[str]) -> np.ndarray:
    try:
        if column.kind == "categorical":
            labels = (*column.labels, "?") if column.missing == "indicator" else column.labels
            numbers = {label: place for place, label in enumerate(labels)}
            return np.eye(len(labels), dtype=np.float32)[[numbers[value] for value in values]]
        assert column.low is not None
        assert column.high is not None
        shifted = np.array(values, dtype=np.float64) - column.low
    except (KeyError, ValueError):
        raise Refused(
            f"column {column.name!r} of adult holds an undocumented value: is it the original file?"
        ) from None
    if column.scale == "log":
        share = np.log1p(shifted) / math.log1p(column.high - column.low)
    else:
        share = shifted / (column.high - column.low)
    return np.clip(share, 0, 1).astype(np.float32)[:, None]
