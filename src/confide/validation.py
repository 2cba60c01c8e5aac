"""One-line refusals that name the argument, its value and the remedy.

Every public function validates with these before it computes, charges or writes anything. A refusal
is a `Refused`, so that the command line can print it as one line and let real defects show a traceback.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np


EXTREME = 1e100  # numbers beyond this, or below its inverse, are mistakes; squares of them would overflow
MOST = 10**15  # the largest count
LEAST_NOISE = 1e-6  # the smallest noise multiplier: below, epsilon is above 1e11 and nothing is hidden


class Refused(ValueError):
    """A request that cannot be met: the message says what was wrong and what to do."""

    __module__ = "confide"  # where people import it from


def number(name: str, value: Any) -> float:
    """A finite real number as a float; booleans, strings and missing values are refused."""
    if value is None:
        raise Refused(f"{name} is missing: give a number")
    if isinstance(value, (bool, str, bytes, bytearray)) or type(value).__name__ == "bool":
        raise Refused(f"{name} = {value!r} is not a number: give a finite number")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"{name} = {_short(value)} is not a number: give a finite number") from None
    if not math.isfinite(result):
        raise Refused(f"{name} = {result} is not finite: give a finite number")
    if abs(result) > EXTREME or 0 < abs(result) < 1 / EXTREME:
        raise Refused(f"{name} = {result:g} is out of range: give a number between {1 / EXTREME:g} and {EXTREME:g}")
    return result


def _short(value: Any) -> str:
    """On one line, and short: it may be a whole table."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def positive(**arguments: Any) -> float:
    """The one argument given by name, as a float above zero."""
    ((name, value),) = arguments.items()
    result = number(name, value)
    if result <= 0:
        raise Refused(f"{name} = {result:g} is not positive: give a number above 0")
    return result


def nonnegative(**arguments: Any) -> float:
    """The one argument given by name, as a float of at least zero."""
    ((name, value),) = arguments.items()
    result = number(name, value)
    if result < 0:
        raise Refused(f"{name} = {result:g} is negative: give a number of at least 0")
    return result


def noise(**arguments: Any) -> float:
    """The one argument given by name, as a noise multiplier that hides something."""
    (name,) = arguments
    result = positive(**arguments)
    if result < LEAST_NOISE:
        raise Refused(f"{name} = {result:g} is too little noise to hide anything: give {LEAST_NOISE:g} at least")
    return result


def probability(*, zero: bool = False, one: bool = False, **arguments: Any) -> float:
    """The one argument given by name, as a float in (0, 1); `zero` and `one` admit the ends."""
    ((name, value),) = arguments.items()
    result = number(name, value)
    inside = (result > 0 or (zero and result == 0)) and (result < 1 or (one and result == 1))
    if not inside:
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise Refused(f"{name} = {result:g} is out of range: give a number in {interval}")
    return result


def count(**arguments: Any) -> int:
    """The one argument given by name, as an integer of at least one."""
    ((name, value),) = arguments.items()
    result = number(name, value)
    if not 1 <= result <= MOST or result != math.floor(result):
        raise Refused(f"{name} = {result:g} is not a count: give a whole number from 1 to {MOST:g}")
    try:
        return operator.index(value)
    except TypeError:
        return int(result)


def one_of(choices: Collection[str], **arguments: Any) -> str:
    """The one argument given by name, if it is among the choices."""
    ((name, value),) = arguments.items()
    if not isinstance(value, str) or value not in choices:
        raise Refused(f"{name} = {value!r} is unknown: choose one of {', '.join(map(repr, choices))}")
    return value


def instance(kind: Any, **arguments: Any) -> None:
    """The one argument given by name is of the given kind."""
    ((name, value),) = arguments.items()
    if not isinstance(value, kind):
        raise Refused(
            f"{name} = {str(value)[:60]!r} is not of the kind {getattr(kind, '__name__', kind)}: give one"
            + (", as the function returns when called" if callable(value) and not isinstance(value, type) else "")
        )


def positive_vector(*, upper: float = math.inf, **arguments: Any) -> np.ndarray:
    """The one argument given by name, as a read-only vector of numbers in (0, upper]."""
    import numpy as np

    ((name, value),) = arguments.items()
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise Refused(f"{name} is not a vector of numbers: give one number per step") from None
    if result.ndim != 1 or result.size == 0:
        raise Refused(f"{name} has shape {result.shape}: give a vector with one number per step")
    wrong = np.flatnonzero(~((result >= 1 / EXTREME) & (result <= min(upper, EXTREME))))
    if wrong.size:
        remedy = "above 0" if upper == math.inf else f"in (0, {upper:g}]"
        raise Refused(f"{name}[{wrong[0]}] = {result[wrong[0]]:g} is out of range: give finite numbers {remedy}")
    result.setflags(write=False)
    return result
