"""The individual filter: every record is charged for what it contributes, and leaves when its budget is spent.

What records have spent decides who still takes part (`privacy.accountants.individual`); it is not released.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from confide.mechanism.clipping import CHUNK, ClippedSum, single_precision, whole_chunks
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Layer, Observed, Prepared
from confide.mechanism.noise import Rounding
from confide.privacy.accountants.individual import KNOTS, Filter

ROUNDING = 2.0**-15  # of norms in single precision, twice: of what is charged and of what is cut to it


class Limits(NamedTuple):
    """A filter as the compiled program takes it: arguments, so that another budget needs no new program."""

    limit: jax.Array
    worst: jax.Array  # see `Filter.worst`
    spacing: jax.Array  # of the ratios in the table
    table: jax.Array

    def costs(self, ratios: jax.Array) -> jax.Array:
        """Infinite beyond the table, where the last chord would be too little."""
        place = jnp.clip((ratios / self.spacing).astype(jnp.int32), 0, KNOTS - 2)
        low, high = self.table[place], self.table[place + 1]
        share = (jnp.square(ratios / self.spacing) - jnp.square(place)) / (2 * place + 1)
        return jnp.where(ratios <= self.spacing * (KNOTS - 1) * (1 + 1e-12), low + (high - low) * share, jnp.inf)


def limits(filter: Filter) -> Limits:
    spacing = filter.largest / (KNOTS - 1)
    return Limits(*map(jnp.asarray, (filter.limit, filter.worst, spacing, filter.table)))


def every_norm(sums: ClippedSum, position: jax.Array, prepared: Prepared, root: jax.Array | None) -> jax.Array:
    """The norm of what every record contributes, chunk by chunk."""
    data, n = prepared.data, prepared.data[0].shape[0]
    size = min(sums.microbatch or CHUNK, whole_chunks(n))

    def more(index: jax.Array, norms: jax.Array) -> jax.Array:
        start = jnp.minimum(index * size, max(0, n - size))
        with single_precision():
            rows = start + jnp.arange(size, dtype=jnp.int32)
            found = sums.norms(position, sums.batch(data, prepared.residual_threshold, rows), root)
        return jax.lax.dynamic_update_slice_in_dim(norms, found, start, 0)

    return jax.lax.fori_loop(0, -(-n // size), more, jnp.zeros(max(n, size), jnp.float32))[:n]


def charge(
    query: Query, spent: jax.Array, sums: ClippedSum, prepared: Prepared, rounding: Rounding
) -> tuple[jax.Array, jax.Array]:
    """Charge every record for what it contributes at this position; the norm that each may have, and what it has spent.

    It is the norm that was charged for, or 0: another program may round a record's gradient otherwise, and where
    large numbers cancel in it, into another gradient. What is added up is cut to what was paid.

    **Whoever has left** adds zero, exactly. Where its place stays, present or not, a zero is added there, and no
    floating-point sum is changed by that: nothing is left to charge (a test compares bits). Where the others move
    up into its place, they are grouped otherwise, and their sum may be rounded otherwise, by `slack` at most. What
    that costs in all steps is kept free from the first step on, so that nobody takes part on it: costs are convex
    in the square of the ratio and 0 at 0, so those of slack are at most (slack / clip)^2 of those of the clip.
    """
    limits = prepared.limits
    norms = every_norm(sums, query.position, prepared, query.preconditioner_root)
    moved = jnp.minimum(norms.astype(jnp.float64) * (1 + ROUNDING) + sums.limit.slack, sums.clip)
    moved = moved + query.scale * rounding.lost(query.position.size)
    after = spent + limits.costs(moved / query.scale)
    reserve = limits.worst * (sums.limit.slack / sums.clip) ** 2
    within = after <= limits.limit - reserve
    return jnp.where(within, norms, jnp.float32(0)), jnp.where(within, after, limits.limit)


def individual_filter(inner: Layer, sums: ClippedSum, prepared: Prepared, rounding: Rounding) -> Layer:
    """The inner answer, of records that are cut to what they have paid."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        assert observed.spent is not None
        allowed, spent = charge(query, observed.spent, sums, prepared, rounding)
        return inner(query, draw._replace(allowed=allowed), observed._replace(spent=spent))

    return answer
