"""Named datasets as arrays, encoded by their public domain alone: categories and bounds, nothing learnt from rows.

The files are not part of the package; `folder`, or the environment variable CONFIDE_DATA, says where they lie.
"""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from confide.checks import Refused

# From the documentation of the dataset; the last category, "?", stands for a missing value.
_ADULT_CATEGORIES = {
    1: "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?",
    3: "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
    "Doctorate 5th-6th Preschool",
    5: "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    6: "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces ?",
    7: "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    8: "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    9: "Female Male",
    13: "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
    "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
    "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?",
}
_ADULT_BOUNDS = {0: (17, 90), 2: (0, 1_500_000), 4: (1, 16), 12: (1, 99)}
_ADULT_AMOUNTS = {10: 99_999, 11: 4_356}  # money: on a logarithmic scale up to its bound


class Split(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def adult(folder: str | os.PathLike[str] | None = None) -> Split:
    """UCI Adult: is the income above 50,000? 108 one-hot and scaled features, and a constant."""
    place = _folder(folder) / "adult"
    train, test = _adult_rows(place / "adult.data"), _adult_rows(place / "adult.test")
    return Split(*_adult_arrays(train), *_adult_arrays(test))


def _folder(folder: str | os.PathLike[str] | None) -> Path:
    chosen = folder or os.environ.get("CONFIDE_DATA")
    if not chosen or not Path(chosen).is_dir():
        raise Refused(f"folder = {chosen!r} holds no datasets: give a folder, or set CONFIDE_DATA to one")
    return Path(chosen)


def _adult_rows(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="") as file:
            return [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    except OSError as error:
        raise Refused(f"{path.name} cannot be read: {error.strerror}") from None


def _adult_arrays(rows: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    columns = []
    for index in range(14):
        values = [row[index] for row in rows]
        if index in _ADULT_CATEGORIES:
            places = {name: place for place, name in enumerate(_ADULT_CATEGORIES[index].split())}
            columns.append(np.eye(len(places), dtype=np.float32)[[places[value] for value in values]])
            continue
        numbers = np.array(values, dtype=np.float64)
        if index in _ADULT_AMOUNTS:
            numbers = np.log1p(numbers) / math.log1p(_ADULT_AMOUNTS[index])
        else:
            low, high = _ADULT_BOUNDS[index]
            numbers = (numbers - low) / (high - low)
        columns.append(np.clip(numbers, 0, 1).astype(np.float32)[:, None])
    x = np.concatenate([*columns, np.ones((len(rows), 1), np.float32)], axis=1)
    return x, np.array([row[14].startswith(">50K") for row in rows], dtype=np.float32)
