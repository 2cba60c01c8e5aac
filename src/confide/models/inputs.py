"""The data as the learning sees them: arrays with a place for every record that the declared number allows.

**Nothing that happens to a table depends on more than one record**, unless it is declared. So

- the type of an array is declared by the model (`dtypes`), or is single precision, whatever type it is given in: pandas
  turns whole numbers into floats once one of them is missing, and no record may decide how others are read. Integers
  of arrays with three and more axes stay integers: these are pixels, which no data frame holds. Whole numbers that do
  not fit the type are cut to its ends;
- labels are the declared ones (`labels`), or the numbers of the classes, and each is read by itself;
- shapes, limits and plans come from the declared number of records, and never from how many there are: arrays are as
  long as the `capacity` of that number, and `present` says which places hold a record;
- a record with a number that is missing or infinite, or with an outcome that the model does not know, is outside the
  domain, and counts as absent: its place stays, holds zeros, and contributes nothing. To refuse the table for its sake
  would tell everybody that it is there; `outside` tells its owner.

What is refused, before any charge, is what no record alone decides: arrays that are ragged or hold text, shapes that
the model does not take, and more rows than the capacity.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from confide import validation
from confide.models.labels import to_numbers
from confide.models.model import Model
from confide.validation import Refused

SHOWN = 8  # labels in a printed plan: of more, some are left out
ROUNDING = 2.0**-22  # entries in single precision are off by 2^-24 of themselves
PIECE = 4096  # rows that are looked at together


class Records(NamedTuple):
    """The places of a declared number of records."""

    arrays: tuple[np.ndarray, ...]  # each as long as there are places
    present: np.ndarray  # which of the places hold a record; private
    number: int  # as declared

    @property
    def places(self) -> int:
        return len(self.present)


def capacity(number: int) -> int:
    """The most rows that a table of a declared number of records may hold: one more at least, a multiple of 8.

    >>> capacity(100), capacity(104), capacity(32_561)
    (104, 112, 32568)
    """
    return -(-(number + 1) // 8) * 8


def as_records(data: Records | tuple[Any, ...]) -> Records:
    """Arrays as they are, every row of them a record and no place free; what has places keeps them."""
    if isinstance(data, Records):
        return data
    return Records(tuple(data), np.ones(len(data[0]), bool), len(data[0]))


def place_records(model: Model, data: Any, number: int | None = None, present: np.ndarray | None = None) -> Records:
    """The records in their places; `present` tells rows that hold none (whoever reads a table knows them)."""
    arrays, within = _read(model, data)
    rows = len(within)
    if number is None:
        if not rows:
            raise Refused("the data hold none: give at least one record, or declare by records= how many are expected")
        number = rows
    number = validation.count(records=number)
    if rows > capacity(number):
        raise Refused(
            f"the data hold more rows than the {capacity(number)} places for records = {number}: declare more"
        )
    if present is not None:
        if np.shape(present) != (rows,):
            raise Refused(f"present has shape {np.shape(present)} for {rows} rows: give one truth value for each")
        within = within & np.asarray(present, bool)
    records = spread(arrays, within, number)
    bound = None if model.linear is None else model.linear.norm_bound
    if bound is None:
        return records
    return records._replace(arrays=(scale_down(bound, records.arrays[0]), *records.arrays[1:]))


def spread(arrays: tuple[np.ndarray, ...], within: np.ndarray, number: int) -> Records:
    """Rows in the places of a declared number of records, of which those that are not `within` are absent."""
    filled = tuple(_fill(array, within, capacity(number)) for array in arrays)
    return Records(filled, np.concatenate([within, np.zeros(capacity(number) - len(within), bool)]), number)


def check_data(model: Model, data: Any) -> tuple[np.ndarray, ...]:
    """The arrays as they are, for what no guarantee covers: refused where a record is outside the domain."""
    arrays, within = _read(model, data)
    if not len(within):
        raise Refused("the data hold none: give at least one record")
    if not np.all(within):
        raise Refused(
            f"row {int(np.argmin(within))} has a number that is missing or infinite, or an outcome that the model does "
            "not know: remove, impute or recode such records first, or declare its labels by classes="
        )
    bound = None if model.linear is None else model.linear.norm_bound
    return arrays if bound is None else (scale_down(bound, arrays[0]), *arrays[1:])


def outside(model: Model, data: Any) -> np.ndarray:
    """The rows that a fit would count as absent. This is about the records themselves: for their owner alone.

    A fit refuses no table for the sake of a record, since that would tell everybody that it is there: look before you
    pay. Labels that are not the numbers of the classes are declared: see `classes=` of the model.

    >>> import confide
    >>> X, y = np.array([[0.5], [np.nan], [0.1]]), np.array([1, 1, 2])
    >>> outside(confide.models.logistic_regression(1), (X, y)).tolist()
    [1, 2]
    >>> outside(confide.models.logistic_regression(1, classes=(1, 2)), (X, y)).tolist()
    [1]
    """
    return np.flatnonzero(~_read(model, data)[1])


def describe_labels(model: Model) -> tuple[str, ...]:
    """Which labels a model knows, as a line of the printed plan; none for a model without labels.

    >>> import confide
    >>> describe_labels(confide.models.softmax_regression(1, 4))[0].split(";")[0]
    'labels 0, 1, 2 and 3'
    """
    family = model.family
    number = 2 if family is not None and family.outcome == "two labels" else model.classes
    if family is not None and family.outcome == "labels":
        number = family.outputs[0]
    if number is None or model.kind != "classification":
        return ()
    labels = [str(label) for label in (model.labels or range(number))]
    if len(labels) > SHOWN:
        labels = [*labels[: SHOWN - 2], "...", labels[-1]]
    unlabelled = ", or -1 where there is none" if model.name == "semi_supervised" else ""
    return (
        f"labels {', '.join(labels[:-1])} and {labels[-1]}{unlabelled}; any other label counts as absent: declare them "
        "by classes=, look with confide.outside",
    )


def _squared_norms(x: np.ndarray) -> np.ndarray:
    """Of rows, column by column: this order of the sum is the same on every processor, unlike that of `einsum`."""
    total = np.zeros(len(x))
    for column in x.T:
        double = column.astype(np.float64)
        total += double * double
    return total


def scale_down(norm_bound: float, x: np.ndarray) -> np.ndarray:
    """The rows, those that are too long scaled down so that their norm is certainly at most the bound."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(_squared_norms(x))
        if np.all(norms <= norm_bound):  # the same numbers, without a copy
            return x
        factors = np.where(norms <= norm_bound, 1.0, norm_bound * (1 - ROUNDING) / norms)
    return (x * factors[:, None]).astype(np.float32)


def _read(model: Model, data: Any) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The arrays in their declared types, and which rows are within the domain."""
    validation.instance(Model, model=model)
    if not isinstance(data, (tuple, list)) or not data:
        raise Refused("data is not a tuple of arrays: give (X, y)")
    names = ["X", "y"] if len(data) == 2 else [f"data[{i}]" for i in range(len(data))]
    if model.dtypes is not None and len(model.dtypes) != len(data):
        raise Refused(f"data holds {len(data)} arrays, and the model has dtypes for {len(model.dtypes)}: give as many")
    types = model.dtypes or [None] * len(data)
    columns = list(data)
    if model.labels is not None:
        columns[-1] = to_numbers(model.labels, columns[-1])
    keeps_pixels = model.linear is None
    read = [_convert(*column, keeps_pixels) for column in zip(names, columns, types, strict=True)]
    arrays = tuple(array for array, _ in read)
    if len({len(array) for array in arrays}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in zip(names, arrays, strict=True))
        raise Refused(f"the arrays have different numbers of rows ({lengths}): give one row per record in each")
    model.check(arrays)
    within = np.logical_and.reduce([known for _, known in read])
    if model.admits is not None:
        within = within & model.admits(arrays)
    return arrays, within


def reads_integers(declared: str | None, given_as_integers: bool, axes: int, keeps_pixels: bool) -> bool:
    """Whether an array is read as integers: where the model declares it, or where it holds the pixels of images."""
    return declared == "int32" or (declared is None and given_as_integers and axes > 2 and keeps_pixels)


def hint_at_integers(error: str) -> str:
    """What to do about a model that looks something up by numbers that are read in single precision."""
    if "integer" not in error.lower():
        return ""
    return "; arrays are read in single precision: declare dtypes=('float32', 'int32') or such for whole numbers"


def _convert(name: str, column: Any, declared: str | None, keeps_pixels: bool) -> tuple[np.ndarray, np.ndarray]:
    """An array in its declared type, and which of its rows hold nothing but numbers."""
    known = None
    if isinstance(column, np.ma.MaskedArray):
        known = ~_rowwise(np.any, np.ma.getmaskarray(column))
        column = np.ma.getdata(column)
    try:
        array, integers = _numbers(column)
    except (TypeError, ValueError):
        raise _not_numeric(name) from None
    if array.dtype.kind not in "biuf":
        raise _not_numeric(name)
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise Refused(f"{name} has shape {array.shape}: give one row for each record")
    whole = reads_integers(declared, integers, array.ndim, keeps_pixels)
    array = _whole(array) if whole else _single(array)
    finite = np.ones(len(array), bool)
    for first in range(0, 0 if array.dtype.kind == "i" else len(array), PIECE):
        finite[first : first + PIECE] = _rowwise(np.all, np.isfinite(array[first : first + PIECE]))
    if whole:  # what was no number is marked by the least one
        finite = _rowwise(np.all, array != np.iinfo(np.int32).min)
    return array, finite if known is None else finite & known


def _numbers(column: Any) -> tuple[np.ndarray, bool]:
    """The numbers, and whether their type is one of integers: by what the type says, and never by what there is."""
    kind = getattr(column, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind != "O":
        return np.asarray(column), kind.kind in "biu"
    return doubles(column), False


def doubles(column: Any) -> np.ndarray:
    """In double precision, each by itself; an integer that is too large is infinite, and so outside the domain."""
    if hasattr(column, "to_numpy") and hasattr(column, "isna"):  # of pandas
        column = column.astype(object).mask(column.isna(), math.nan).to_numpy(object)
    try:
        return np.asarray(column, np.float64)
    except (OverflowError, TypeError):  # a whole number that no double holds, or a missing value of pandas
        objects = np.asarray(column, object)
        return np.array([_double(value) for value in objects.ravel()], np.float64).reshape(objects.shape)


def _double(value: Any) -> float:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _rowwise(every: Any, truths: np.ndarray) -> np.ndarray:
    return every(truths.reshape(len(truths), -1), axis=1) if len(truths) else np.ones(0, bool)


def _whole(array: np.ndarray) -> np.ndarray:
    """As 32-bit integers: cut to +-(2^31 - 1); the least integer stands for what is no number."""
    most = 2**31 - 1
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            near = np.clip(np.rint(array.astype(np.float64)), -most, most)
        return np.where(np.isnan(near), float(np.iinfo(np.int32).min), near).astype(np.int32)
    if array.dtype.kind == "u" and array.dtype.itemsize >= 4:
        array = np.minimum(array, array.dtype.type(most))
    elif array.dtype.itemsize >= 4:
        array = np.clip(array, array.dtype.type(-most), array.dtype.type(most))
    return array.astype(np.int32, copy=False)


def _single(array: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):  # what does not fit becomes infinite, and is outside the domain
        return array.astype(np.float32, copy=False)


def _fill(array: np.ndarray, within: np.ndarray, places: int) -> np.ndarray:
    """With a row of zeros in every place that holds no record."""
    result = np.zeros((places, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    result[: len(array)][~within] = 0
    return result


def _not_numeric(name: str) -> Refused:
    return Refused(f"{name} is ragged or not numeric: give numbers, one row per record, and labels as 0, 1, ...")
