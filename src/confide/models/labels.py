"""Labels as they stand in an array: which class each of them is, by a list that is declared.

Models count classes from 0. Labels such as 1 and 2, or 'no' and 'yes', are declared by `classes=` of a model or of an
estimator; the record of any other label counts as absent. Each label is read by itself. Numbers are compared as
numbers, so that 1.0 is 1: pandas turns whole numbers into floats once one of them is missing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from confide import validation
from confide.validation import Refused

Labels = tuple[Any, ...]


def check_labels(classes: Any) -> Labels:
    """The declared labels, in the order of the classes that they stand for."""
    if isinstance(classes, (str, bytes)) or not hasattr(classes, "__iter__"):
        raise Refused(f"classes = {classes!r} is not a list of labels: give those that may occur, such as (1, 2)")
    labels = tuple(label.item() if isinstance(label, np.generic) else label for label in classes)
    for label in labels:
        if not isinstance(label, (bool, int, float, str)) or (isinstance(label, float) and not math.isfinite(label)):
            raise Refused(f"classes holds {label!r}, which is no label: give numbers, texts or truth values")
    if len(set(labels)) < len(labels):
        raise Refused("classes lists a label twice: keep one")
    if len(labels) < 2:
        raise Refused(f"classes lists {len(labels)} label, and nothing to tell apart: give at least 2")
    return labels


def count_labels(classes: Any) -> tuple[int, Labels | None]:
    """How many classes there are, and their labels where these are listed: by default they are 0, 1, ..."""
    if isinstance(classes, (bool, int, np.integer)):
        if validation.count(classes=classes) < 2:
            raise Refused(f"classes = {classes} leaves nothing to tell apart: give at least 2")
        return int(classes), None
    labels = check_labels(classes)
    return len(labels), labels


def to_numbers(labels: Labels, column: Any) -> np.ndarray:
    """The number of each entry's class; not a number where its label is none of those.

    >>> to_numbers((1, 2), np.array([1, 2, 3, 2.0])).tolist()
    [0.0, 1.0, nan, 1.0]
    """
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    if isinstance(column, np.ndarray) and not isinstance(column, np.ma.MaskedArray) and kind in "biuf":
        numbers = np.full(column.shape, math.nan)
        for number, label in enumerate(labels):
            if not isinstance(label, str):
                numbers[column == label] = number
        return numbers
    objects = as_objects(column)
    places = {label: number for number, label in enumerate(labels)}
    numbers = [_place(places, entry) for entry in objects.ravel()]
    return np.array(numbers, np.float64).reshape(objects.shape)


def to_labels(labels: Labels | None, numbers: np.ndarray) -> np.ndarray:
    """The labels of classes by their numbers; the numbers where no labels are declared."""
    if labels is None:
        return numbers
    every = np.array(labels, object)
    same = len({type(label) for label in labels}) == 1
    return (np.array(labels) if same else every)[numbers]


def as_objects(column: Any) -> np.ndarray:
    """A target as an array of objects whose shape no record decides.

    A list has one entry for each record, whatever they are: one that is a list of one label is that label.
    """
    if isinstance(column, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(column), math.nan, np.ma.getdata(column).astype(object))
    if hasattr(column, "isna") and hasattr(column, "to_numpy"):  # of pandas
        return np.where(np.asarray(column.isna()), math.nan, column.to_numpy(object))
    if not isinstance(column, (list, tuple)):
        return np.asarray(column, object)
    entries = np.empty(len(column), object)
    for i, entry in enumerate(column):
        entries[i] = _single(entry)
    return entries


def place(places: dict[Any, int], label: Any) -> int:
    """The number of a label's class; -1 where it has none."""
    try:
        return places.get(label, -1)
    except TypeError:  # it cannot be looked up
        return -1


def _place(places: dict[Any, int], label: Any) -> float:
    number = place(places, label)
    return math.nan if number < 0 else number


def _single(entry: Any) -> Any:
    """The only one of a list, or of an array; NaN, which is no label, for another list."""
    if isinstance(entry, (list, tuple)):
        return _single(entry[0]) if len(entry) == 1 else math.nan
    if hasattr(entry, "tolist") and not isinstance(entry, np.generic):
        return _single(entry.tolist())
    return entry
