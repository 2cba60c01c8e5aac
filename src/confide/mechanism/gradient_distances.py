"""How much records that are picked at random contribute to each sum.

Distances become an estimate that no guarantee covers (`confide.privacy.accountants.bayesian`); they are not released.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism import grid
from confide.mechanism.clipping import GLM, ClippedSum, single_precision
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Layer, Observed, Prepared
from confide.mechanism.noise import Rounding
from confide.mechanism.per_example import SMALL


def join(sums: ClippedSum, rows: jax.Array | None, picked: jax.Array) -> jax.Array | None:
    """Batches (steps, rows) with the picked records spliced in, where one pass can do for both; else None."""
    if rows is None or rows.shape[1] > SMALL or not isinstance(sums.per_example, GLM):
        return None
    end = splice(sums, rows.shape[1])
    return jnp.concatenate([rows[:, :end], picked, rows[:, end:]], axis=1)


def splice(sums: ClippedSum, size: int) -> int:
    """How many places of a small batch are always looked at."""
    return sums.typical_batch if 0 < sums.typical_batch < size else size


def gradient_distances(inner: Layer, sums: ClippedSum, prepared: Prepared, rounding: Rounding) -> Layer:
    """The inner sum, which is taken in the same pass as the distances where that can be."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        assert draw.picked is not None
        root = query.preconditioner_root
        if draw.joined is not None and root is None:
            with single_precision():
                total, found = beside(sums, query.position, prepared, draw.joined, draw.picked.shape[0], draw.allowed)
            return grid.round_batch(total, query.scale, rounding), _note(observed, found, draw.t)
        with single_precision():
            batch = sums.batch(prepared.data, prepared.residual_threshold, draw.picked)
            norms = sums.norms(query.position, batch, root)
            found = jnp.where(batch.real, norms, jnp.float32(sums.effective_clip))  # an empty place: as far as can be
        total, observed = inner(query, draw, observed)
        return total, _note(observed, found, draw.t)

    return answer


def beside(
    sums: ClippedSum,
    position: jax.Array,
    prepared: Prepared,
    joined: jax.Array,
    picked: int,
    allowed: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The clipped sum over a small batch of a linear model, and the norms of other records from the same pass.

    `joined` has the rows of the batch with as many `picked` ones, a multiple of 8, from `splice` on.
    """
    glm, data, threshold = sums.per_example, prepared.data, prepared.residual_threshold
    assert isinstance(glm, GLM)
    size = splice(sums, joined.shape[0] - picked)
    both = sums.batch(data, threshold, joined[: size + picked], allowed)
    inputs, residual = glm.measure(position, both, sums.limit)
    asked = both._replace(real=both.real & (np.arange(size + picked) < size))
    total = glm.cut_and_sum(inputs, residual, asked, sums.limit).total
    assert both.residual_threshold is not None
    norms = glm.cut_norms(residual[size:], both.residual_threshold[size:], sums.limit)
    norms = jnp.where(both.real[size:], norms, jnp.float32(sums.effective_clip))  # an empty place: as far as can be
    if size + picked == joined.shape[0]:
        return total, norms
    rest = joined[size + picked :]
    return (
        jax.lax.cond(
            rest[0] < data[0].shape[0],
            lambda: total + sums(position, sums.batch(data, threshold, rest, allowed)).total,
            lambda: total,
        ),
        norms,
    )


def _note(observed: Observed, found: jax.Array, t: jax.Array) -> Observed:
    assert observed.distances is not None
    return observed._replace(distances=jax.lax.dynamic_update_index_in_dim(observed.distances, found, t, 0))
