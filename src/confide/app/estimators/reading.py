"""Features and labels as scikit-learn's users give them, read record by record: what one holds decides of it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, column_or_1d

from confide.models import inputs
from confide.models.labels import as_objects
from confide.validation import Refused


def read(X: Any) -> Any:
    """X with its entries in double precision, each by itself: NaN where one is missing, infinite beyond the type.

    Arrays of numbers, and what is no array, are left to scikit-learn; a frame stays one, for the names of its columns.
    """
    if isinstance(X, np.ma.MaskedArray):
        return doubles(as_objects(X), "X")
    if hasattr(X, "isna") and hasattr(X, "columns"):  # of pandas: what the types say, and never what there is
        if all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes):
            return X
        return type(X)(doubles(as_objects(X), "X"), columns=X.columns, index=X.index)
    if isinstance(X, (list, tuple)) or getattr(getattr(X, "dtype", None), "kind", "") in tuple("OUST"):
        return doubles(X, "X")
    return X


def doubles(values: Any, name: str) -> np.ndarray:
    try:
        return inputs.doubles(values)
    except ValueError:  # which would say the value
        raise Refused(f"{name} is ragged or not numeric: give numbers, one row per record") from None


def column(values: np.ndarray, rows: Any) -> np.ndarray:
    """A target as one column, one for each of the rows."""
    column = column_or_1d(values, warn=True)
    check_consistent_length(rows, column)
    return column
