"""The data as the learning sees it: arrays in single precision, one row per record, checked before any charge."""

from __future__ import annotations

from typing import Any

import numpy as np

from confide import checks
from confide.checks import Refused
from confide.models.model import Model

ROUNDING = 2.0**-22  # entries in single precision are off by 2^-24 of themselves


def checked_data(model: Model, data: Any) -> tuple[np.ndarray, ...]:
    """The arrays of the data in single precision; refused where they are ragged, empty or not finite."""
    checks.instance(Model, model=model)
    if not isinstance(data, (tuple, list)) or not data:
        raise Refused("data is not a tuple of arrays: give (X, y)")
    names = ["X", "y"] if len(data) == 2 else [f"data[{i}]" for i in range(len(data))]
    arrays = []
    for name, column in zip(names, data, strict=True):
        try:
            if isinstance(column, np.ma.MaskedArray) and np.ma.is_masked(column):
                raise Refused(f"{name} has masked entries: remove or impute such records first")
            array = np.asarray(column)
            if array.dtype.kind == "O":
                array = array.astype(np.float64)
            if array.dtype.kind not in "biuf":
                raise TypeError
        except Refused:
            raise
        except (TypeError, ValueError):
            raise Refused(
                f"{name} is ragged or not numeric: give numbers, one row per record, and labels as 0, 1, ..."
            ) from None
        if array.ndim == 0 or array.shape[0] == 0 or array.size == 0:
            raise Refused(f"{name} has shape {array.shape}: give at least one record")
        array = _single(array, whole=array.dtype.kind in "biu" and model.linear is None)
        for first in range(0, len(array), 4096):
            rows = array[first : first + 4096]
            if not np.all(np.isfinite(rows)):
                bad = first + int(np.argwhere(~np.isfinite(rows))[0][0])
                raise Refused(
                    f"{name} is missing, infinite or above 3e38 in row {bad}: remove, impute or rescale first"
                )
        arrays.append(array)
    if len({len(array) for array in arrays}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in zip(names, arrays, strict=True))
        raise Refused(f"the arrays have different numbers of rows ({lengths}): give one row per record in each")
    model.check(tuple(arrays))
    if model.linear is not None and model.linear.norm_bound is not None:
        arrays[0] = within(model.linear.norm_bound, arrays[0])
    return tuple(arrays)


def within(norm_bound: float, x: np.ndarray) -> np.ndarray:
    """The rows, those that are too long scaled down so that their norm is certainly at most the bound."""
    norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))
    if np.all(norms <= norm_bound):
        return x
    with np.errstate(divide="ignore"):
        factors = np.where(norms <= norm_bound, 1.0, norm_bound * (1 - ROUNDING) / norms)
    return (x * factors[:, None]).astype(np.float32)


def _single(array: np.ndarray, whole: bool) -> np.ndarray:
    """In single precision, or as 32-bit integers where whole numbers stay whole and fit."""
    if whole and np.all(np.abs(array.astype(np.float64)) < 2**31):
        return array.astype(np.int32, copy=False)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused as such
        return array.astype(np.float32, copy=False)
