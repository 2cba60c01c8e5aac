"""Rounding of the numbers that a plan chooses, so that a run is the same run on every processor.

NumPy, BLAS, SciPy, XLA and the C library choose their programs by the processor. Exponentials, logarithms, powers,
Fourier transforms and long sums then differ in their last bits, and what a plan computes by them differs by up to 2e-13
of itself (the most that was measured, over all samplers, between programs for AVX-512, for AVX2 and for neither). The
noise of a run follows from the fingerprint of the run, so a single bit would be other noise, and a checkpoint from
another machine would be refused.

Each number that a plan computes by such functions (a noise multiplier, a step size, a clip, a power of the likelihood)
is therefore rounded to a few significant decimal digits, and the rounded number is what is used, priced and stored.
Whatever follows from rounded numbers by additions, products, quotients and square roots is the same everywhere, because
IEEE 754 defines these to the last bit; a Python power `x**2` is not among them, and `x * x` is.

`DIGITS` = 8: two processors disagree where a boundary of the rounding lies between their results, which for a
difference of 2e-13 has a chance of 2e-13 / 1e-8, one in 50,000. Rounding adds at most 1e-7 of itself to a noise
multiplier, which is less than the 1e-6 of epsilon that `calibration` leaves over.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Literal, overload

import numpy as np

DIGITS = 8
FINE_DIGITS = 10  # of what has a closed form or one root, computed to 1e-13, and is inverted again to 1e-9
SNAP = 1e-12  # relative distance within which a number counts as the nearest rounded one

Direction = Literal["nearest", "down", "up"]


@overload
def round_digits(value: float, direction: Direction = ..., digits: int = ...) -> float: ...
@overload
def round_digits(value: np.ndarray, direction: Direction = ..., digits: int = ...) -> np.ndarray: ...
def round_digits(
    value: float | np.ndarray, direction: Direction = "nearest", digits: int = DIGITS
) -> float | np.ndarray:
    """A finite number, or each number of an array, rounded to so many significant decimal digits.

    `direction` is the safe one where a price depends on the number: "up" for noise, "down" for what noise hides. A
    number within `SNAP` of a rounded one becomes that one in either direction, so that 0.5, computed as
    0.49999999999999994 on another processor, is 0.5 on both.

    >>> round_digits(2 / 3), round_digits(2 / 3, "down"), round_digits(1 - 1e-16, "down")
    (0.66666667, 0.66666666, 1.0)
    """
    if isinstance(value, np.ndarray):
        different, places = np.unique(value, return_inverse=True)
        rounded = [_round(number, direction, digits) for number in different.tolist()]
        return np.array(rounded, np.float64)[places].reshape(value.shape)
    return _round(float(value), direction, digits)


def _round(value: float, direction: Direction, digits: int) -> float:
    nearest = float(f"{value:.{digits - 1}e}")
    if direction == "nearest" or abs(nearest - value) <= SNAP * abs(value):
        return nearest
    mode = ROUND_CEILING if direction == "up" else ROUND_FLOOR
    return float(Context(prec=digits, rounding=mode).create_decimal(Decimal(value)))
