"""Columns clipped to public bounds and scaled to [-1, 1]: what becomes of a record depends on that record alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from confide import validation
from confide.validation import Refused


class Bounds(NamedTuple):
    """The ends between which every column is public knowledge to lie.

    >>> bounds = check_bounds((0, [10, 100]), "bounds", columns=2)
    >>> bounds.scale(np.array([[5.0, 200.0]])).tolist()
    [[0.0, 1.0]]
    """

    low: np.ndarray
    high: np.ndarray

    @property
    def middle(self) -> np.ndarray:
        return (self.low + self.high) / 2

    @property
    def half(self) -> np.ndarray:
        return (self.high - self.low) / 2

    def scale(self, values: np.ndarray) -> np.ndarray:
        return np.clip((np.clip(values, self.low, self.high) - self.middle) / self.half, -1, 1)

    def line(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and intercept by the columns themselves, from those by the scaled columns and a constant."""
        slopes = (weights[:-1].T / self.half).T
        return slopes, weights[-1] - self.middle @ slopes


def check_bounds(bounds: Any, name: str, columns: int) -> Bounds:
    """From (low, high), each a number or one for every column; refused unless finite and low < high."""
    try:
        low, high = (np.array(end, np.float64) for end in bounds)
    except (TypeError, ValueError):
        raise Refused(f"{name} is not a pair (low, high): give two numbers, or two lists of them") from None
    for end in (low, high):
        if end.ndim > 1 or (end.ndim == 1 and end.size != columns):
            raise Refused(f"{name} has an end of shape {end.shape}: give one number, or one for each of {columns}")
    low, high = np.broadcast_to(low, columns).copy(), np.broadcast_to(high, columns).copy()
    if not np.all((np.abs(low) <= validation.EXTREME) & (np.abs(high) <= validation.EXTREME)):
        raise Refused(f"{name} holds numbers that are missing or not finite: give public, finite ends")
    if np.any(wrong := ~(high - low >= 1 / validation.EXTREME)):
        place = int(np.argmax(wrong))
        raise Refused(f"{name} has low = {low[place]:g} and high = {high[place]:g}: give low < high")
    return Bounds(low, high)
