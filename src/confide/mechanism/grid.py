"""Sums in whole steps of the grid of their noise (`mechanism.noise`).

**What rounding costs.** All records are summed chunk by chunk, and every chunk's floating-point sum is rounded once to
whole steps (`clipping.ClippedSum.over`, `linear_sums`); chunks are added as whole numbers, without error. Neighbours
have the same records at the same places, but for one, so that only one chunk differs, and rounding counts once, however
many chunks there are. Dividing by the grid in double precision, by a reciprocal if the compiler likes, errs by at most
2^-52 of at most 2^51 steps, beyond which the sum of a chunk is cut (which takes no two further apart), and rounding by
half a step: together one step in each coordinate, for either neighbour. So d coordinates of sensitivity C move by C + 2
sqrt(d) s / 2^26 at most, and `Rounding.worth`, `multiplier_needed` and `wide` of `mechanism.noise` put that into the
noise. A random batch is added up in floating point over its chunks, and rounded once, as one chunk.

**What is beyond 64 bits** wraps around, in the total and in the noise alike. The result is then a function of the exact
noisy sum, so that nothing is revealed by it; but it is of no use, and `check_grid` refuses a plan that could get there.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from confide.mechanism.exact_rounding import GRID
from confide.mechanism.noise import NONE, Rounding, WholeSteps
from confide.validation import Refused

FURTHEST = 2.0**51  # steps, beyond which the sum of a chunk is cut
TOTAL = 2.0**62  # steps that a sum over all records may have


def on_grid(total: jax.Array, scale: Any) -> jax.Array:
    """The nearest whole number of grid steps, as a 64-bit integer."""
    return whole_steps(total, scale).steps.astype(jnp.int64)


def whole_steps(total: jax.Array, scale: Any) -> WholeSteps:
    """The same in double precision."""
    return WholeSteps(jnp.round(jnp.clip(total.astype(jnp.float64) / (scale / GRID), -FURTHEST, FURTHEST)))


def whole(contributions: jax.Array, scale: Any) -> jax.Array:
    """The exact sum of contributions (rows, parameters), each rounded to the grid, in grid steps."""
    return jnp.sum(on_grid(contributions, scale), axis=0)


def round_batch(total: jax.Array, scale: Any, rounding: Rounding) -> Any:
    """The sum of a random batch in whole grid steps; as it is where nothing is promised."""
    return total if rounding == NONE else whole_steps(total, scale)


def finer(chunks: int) -> int:
    """By how many bits a grid has to be finer for so many chunks, each rounded to it, to be off by an eighth of a step
    together."""
    return math.ceil(math.log2(8 * chunks))


def check_grid(records: int, together: int, multiplier: float, bits: int = 0) -> None:
    """Refuse a plan whose sums, of so many records, and so many of them in a chunk, may not be counted in grid steps.

    The multiplier is the standard deviation of the noise over the most that a record adds; the grid may be finer by
    some bits.
    """
    room = multiplier / GRID / 2.0**bits
    if together > room * FURTHEST or records > room * TOTAL:
        raise Refused(
            f"noise of {multiplier:.2g} times what one record can move is too little for sums of up to {records} "
            "records, which its grid cannot count: raise the noise, by a smaller epsilon or step size, or sum fewer"
        )
