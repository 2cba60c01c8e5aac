"""Features and labels as scikit-learn's users give them, read record by record: what one holds decides of it alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, column_or_1d

from confide.models import inputs
from confide.validation import Refused


def read(X: Any) -> Any:
    """X with its entries in double precision, each by itself: NaN where one is missing, infinite beyond the type.

    Arrays of numbers, and what is no array, are left to scikit-learn; a frame stays one, for the names of its columns.
    """
    if isinstance(X, np.ma.MaskedArray):
        return doubles(_fill(X), "X")
    if hasattr(X, "isna") and hasattr(X, "columns"):  # of pandas: what the types say, and never what there is
        if all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes):
            return X
        return type(X)(doubles(_pandas_values(X), "X"), columns=X.columns, index=X.index)
    if isinstance(X, (list, tuple)) or getattr(getattr(X, "dtype", None), "kind", "") in tuple("OUST"):
        return doubles(X, "X")
    return X


def labels(y: Any) -> np.ndarray:
    """A target as an array of objects whose shape no record decides.

    A list has one entry for each record, whatever they are: one that is a list of one label is that label.
    """
    if isinstance(y, np.ma.MaskedArray):
        return _fill(y)
    if hasattr(y, "isna") and hasattr(y, "to_numpy"):
        return _pandas_values(y)
    if not isinstance(y, (list, tuple)):
        return np.asarray(y, object)
    column = np.empty(len(y), object)
    for i, entry in enumerate(y):
        column[i] = _single(entry)
    return column


def _single(entry: Any) -> Any:
    """The only one of a list, or of an array; NaN, which is no label, for another list."""
    if isinstance(entry, (list, tuple)):
        return _single(entry[0]) if len(entry) == 1 else math.nan
    if hasattr(entry, "tolist") and not isinstance(entry, np.generic):
        return _single(entry.tolist())
    return entry


def doubles(values: Any, name: str) -> np.ndarray:
    try:
        return inputs.doubles(values)
    except ValueError:  # which would say the value
        raise Refused(f"{name} is ragged or not numeric: give numbers, one row per record") from None


def _fill(array: np.ma.MaskedArray) -> np.ndarray:
    return np.where(np.ma.getmaskarray(array), math.nan, np.ma.getdata(array).astype(object))


def _pandas_values(values: Any) -> np.ndarray:
    """The values in an object of pandas; NaN for those that are missing."""
    return np.where(np.asarray(values.isna()), math.nan, values.to_numpy(object))


def column(values: np.ndarray, rows: Any) -> np.ndarray:
    """A target as one column, one for each of the rows."""
    column = column_or_1d(values, warn=True)
    check_consistent_length(rows, column)
    return column


def place(places: dict[Any, int], label: Any) -> int:
    """The number of a label's class; -1 where it has none."""
    try:
        return places.get(label, -1)
    except TypeError:  # it cannot be looked up
        return -1
