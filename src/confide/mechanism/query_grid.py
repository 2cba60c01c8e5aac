r"""Numbers that decide what is asked of the records, rounded to a coarse public grid before the question is asked.

The last bits of a matrix product, of a logarithm or of an optimisation differ between processors. Noise is derived from
the key and the question, so that a question that differs in one bit has other noise. Positions, roots and scales are
therefore rounded first: another processor asks the same question, and gets the same noise, unless a number lies within
its rounding error of the middle between two grid points. And a position of so few bits has no low-order bits in which
an exact statistic of the records could be written.

* **Positions**: 2^-`POSITION_BITS` conditional standard deviations of the posterior in each coefficient. With d
  coefficients a position moves by at most d 2^-11 and typically by sqrt(d) 2^-12 standard deviations, and the posterior
  conditions on the position that was asked.
* **Roots**: `ROOT_BITS` bits of the largest entry. A root only chooses coordinates, and the likelihood knows it.
* **Norm, clip, usual information**: `SCALE_BITS` significant bits. They are units of what follows.
* **Multiples of the noise, and bounds of a record**: `NOISE_BITS` significant bits, rounded up: there is more noise by
  1e-12 of it at most, and never less.

All steps are powers of two, so that rounded numbers and their multiples are exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

POSITION_BITS = 10
ROOT_BITS = 16
SCALE_BITS = 24
NOISE_BITS = 40
EDGE = 1 / 64  # of a grid step, about the middle between two grid points


class OnGrid(NamedTuple):
    """An array on the grid, with what it was before and the steps of the grid."""

    value: np.ndarray
    exact: np.ndarray
    step: np.ndarray

    def admits(self, other: np.ndarray) -> bool:
        """Whether the other array is what another processor may have rounded to: equal entries, or the second nearest
        grid point where the number before rounding lies within `EDGE` of the middle between both."""
        if np.shape(other) != self.value.shape:
            return False
        whole = np.round(other / self.step) * self.step == other
        return bool(np.all(whole & (np.abs(other - self.exact) <= (0.5 + EDGE) * self.step)))


def round_to(exact: Any, step: Any) -> OnGrid:
    exact, step = np.asarray(exact, np.float64), np.broadcast_to(np.asarray(step, np.float64), np.shape(exact))
    return OnGrid(np.round(exact / step) * step, exact, step)


def power_below(values: Any) -> np.ndarray:
    """The largest power of two that is at most each value; values are above 0."""
    _, exponents = np.frexp(np.maximum(np.asarray(values, np.float64), 1e-290))
    return np.ldexp(1.0, np.clip(exponents - 1, -960, 960))


def round_position(position: np.ndarray, deviations: np.ndarray) -> OnGrid:
    """A position whose entries have these conditional standard deviations in the posterior."""
    return round_to(position, power_below(deviations) * 2.0**-POSITION_BITS)


def round_root(root: np.ndarray) -> OnGrid:
    root = (root + root.T) / 2
    return round_to(root, power_below(np.max(np.abs(root))) * 2.0 ** (1 - ROOT_BITS))


def round_scale(value: float) -> float:
    """To `SCALE_BITS` significant bits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**SCALE_BITS), exponent - SCALE_BITS)


def round_up(values: Any, bits: int = NOISE_BITS) -> np.ndarray:
    """To so many significant bits, and never to less; values are above 0."""
    mantissas, exponents = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(np.ceil(mantissas * 2.0**bits), exponents - bits)


def conditional_deviations(precision: np.ndarray) -> np.ndarray:
    """Of the entries of a normal vector, each given all others."""
    return 1 / np.sqrt(np.maximum(np.diag(precision), 1e-300))


def constants() -> tuple[float, ...]:
    return (POSITION_BITS, ROOT_BITS, SCALE_BITS, NOISE_BITS)
