r"""The information of the records, released: the sum of h_i u_i u_i^T with symmetric noise.

u = A z is the row of a record, with the constant of the intercept, through a public root, and h is about the slope of
its bounded score (`Family.information_weight`), which no outcome decides. The matrix of a record is cut to a bound k in
Frobenius norm, h ||u||^2 <= k, whatever came before: the guarantee rests on this cut alone. Noise S with independent
N(0, s^2) entries made symmetric, (S + S^T) / 2, is the Gaussian mechanism on the upper triangle in that norm, of
variance s^2 on the diagonal and half of it beside. Each entry is rounded to the grid of its own noise.

**Rounding.** u and its norm are of single precision, so that h ||u||^2 is off by less than (d + 10) 2^-23 of itself.
The entries of sqrt(h) u are rounded to multiples of sqrt(k) 2^-20, which adds at most sqrt(d) 2^-20 of k to a matrix.
They are then whole numbers whose products are added up in double precision without error, 512 times 2^40 being below
2^53, in any order and on any processor; every chunk's matrix is rounded once to the grid of the noise, and chunks are
added as whole numbers (`mechanism.noise`). The cut is to k (1 - 2^-10), which is enough for `MOST` parameters and any
number of records. Rows are computed once, into a buffer that is both measured and summed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism import grid, noise
from confide.mechanism.clipping import GLM, ClippedSum, single_precision
from confide.mechanism.layers import Prepared
from confide.mechanism.noise import Rounding
from confide.mechanism.per_example import TINY, Batch, once, row_norms, see
from confide.models.family import Family

MOST = 1000  # parameters
SEVERAL = 300  # of them, where a record has several scores: what is made of noisy sums would take minutes
SLACK = 2.0**-10
STEPS = 2.0**20  # to which rows are rounded, in the longest that there is


class InformationQuery(NamedTuple):
    position: jax.Array
    root: jax.Array
    bound: jax.Array  # of a record's matrix
    scale: jax.Array  # standard deviation of the noise on the diagonal


def entries(size: int) -> int:
    """Of an upper triangle."""
    return size * (size + 1) // 2


def release_information(
    sums: ClippedSum, prepared: Prepared, family: Family, rounding: Rounding, query: InformationQuery, units: jax.Array
) -> jax.Array:
    """The noisy sum over all records; `units` is the noise of the upper triangle in grid steps."""
    sums = sums.weighted_by(prepared.weighting)
    position, root = query.position.astype(jnp.float32), query.root.astype(jnp.float32)
    upper = np.triu_indices(root.shape[0])
    spread = query.scale * jnp.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
    bound = query.bound * (1 - SLACK)

    def seen(batch: Batch) -> jax.Array:
        return halves(sums, family, position, root, bound, batch).astype(jnp.float64)

    def contributions(batch: Batch) -> jax.Array:  # each record by itself
        rows = seen(batch)
        return grid.whole(rows[:, upper[0]] * rows[:, upper[1]], spread)

    def products(batch: Batch) -> jax.Array:
        steps = jnp.round(seen(batch) * (STEPS / jnp.sqrt(query.bound)))
        return steps.T @ steps

    def finish(matrix: jax.Array) -> jax.Array:
        diagonal = jnp.eye(root.shape[0], dtype=bool)
        return grid.on_grid(matrix, query.scale * jnp.where(diagonal, 1.0, math.sqrt(0.5)) * (STEPS**2 / query.bound))

    if rounding == noise.CONTRIBUTIONS:
        total = sums.over(prepared.data, prepared.residual_threshold, None, contributions)
    else:
        total = sums.over(prepared.data, prepared.residual_threshold, None, products, finish=finish)[upper]
    noisy = noise.add_noise(total, spread, units)
    return jnp.zeros(root.shape, jnp.float64).at[upper].set(noisy).at[upper[::-1]].set(noisy)


def halves(
    sums: ClippedSum, family: Family, position: jax.Array, root: jax.Array, bound: jax.Array, batch: Batch
) -> jax.Array:
    """sqrt(h) u of every record, whose outer products are summed; zero for empty places and what is not finite."""
    glm = sums.per_example
    assert isinstance(glm, GLM)

    def see_rows(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        inputs, scores = glm.scores(position, batch)
        return see(inputs, root), scores

    with single_precision():
        rows, scores = once(see_rows, position)
        norms = row_norms(rows)
        limit, reach, typical = glm.weighting(sums.limit)
        threshold = limit / jnp.maximum(norms, TINY)
        weight = family.information_weight(scores, threshold, typical) * jnp.minimum(1.0, jnp.square(threshold * reach))
        most = bound.astype(jnp.float32) / jnp.maximum(jnp.square(norms), TINY)
        good = batch.real & jnp.isfinite(weight) & jnp.isfinite(norms) & jnp.all(jnp.isfinite(rows), axis=1)
        weight = jnp.where(good, jnp.clip(weight, 0.0, most), 0.0)
        return jnp.where(good[:, None], rows, 0.0) * jnp.sqrt(weight)[:, None]
