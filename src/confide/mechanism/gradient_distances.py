"""How much records that are picked at random contribute to each sum.

Distances become an estimate that no guarantee covers (`confide.privacy.accountants.bayesian`); they are not released.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from confide.mechanism.clipping import SMALL, ClippedSum, single_precision
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Layer, Observed, Prepared


def join(sums: ClippedSum, rows: jax.Array | None, picked: jax.Array) -> jax.Array | None:
    """Batches (steps, rows) with the picked records spliced in, where one pass can do for both; else None."""
    if rows is None or rows.shape[1] > SMALL or sums.linear is None:
        return None
    splice = sums.splice(rows.shape[1])
    return jnp.concatenate([rows[:, :splice], picked, rows[:, splice:]], axis=1)


def gradient_distances(inner: Layer, sums: ClippedSum, prepared: Prepared) -> Layer:
    """The inner sum, which is taken in the same pass as the distances where that can be."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        assert draw.picked is not None
        root = query.preconditioner_root
        if draw.joined is not None and root is None:
            assert prepared.reach is not None
            with single_precision():
                total, found = sums.beside(
                    query.position, prepared.data, prepared.reach, draw.joined, draw.picked.shape[0], draw.allowed
                )
            return total, _note(observed, found, draw.t)
        with single_precision():
            batch = sums.batch(prepared.data, prepared.reach, draw.picked)
            norms = sums.norms(query.position, batch, root)
            found = jnp.where(batch.real, norms, jnp.float32(sums.effective_clip))  # an empty place: as far as can be
        total, observed = inner(query, draw, observed)
        return total, _note(observed, found, draw.t)

    return answer


def _note(observed: Observed, found: jax.Array, t: jax.Array) -> Observed:
    assert observed.distances is not None
    return observed._replace(distances=jax.lax.dynamic_update_index_in_dim(observed.distances, found, t, 0))
