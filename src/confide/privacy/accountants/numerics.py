"""The one root finder: where a falling function crosses zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from scipy.optimize import brentq


def root(function: Callable[[float], float], low: float, high: float, tolerance: float = 0.0) -> float:
    """A zero of `function`, which has opposite signs at `low` and `high`, to `tolerance` or 1e-13 of its value."""
    found: Any = brentq(function, low, high, xtol=max(tolerance, 1e-300), rtol=cast(Any, 1e-13))
    return float(found)
