"""What an oracle is made of: layers that answer a query, each around another, each pure and knowing one thing.

A layer takes the query, what was drawn for the step, and what observers hold; it returns its answer, and what they hold
now. The innermost sums clipped gradients over the batch, or contributions that are rounded one by one; `gaussian` adds
the noise. What is outside of that sees noisy sums alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from confide.mechanism import noise
from confide.mechanism.clipping import Batch, ClippedSum
from confide.mechanism.kernel import Query


class Prepared(NamedTuple):
    """The data and what is computed once from them: arguments of the compiled program, never constants in it."""

    data: tuple[jax.Array, ...]
    reach: jax.Array | None  # see `ClippedSum.reach`
    limits: Any = None  # of an individual filter
    known: tuple[jax.Array, ...] | None = None  # the made-up records that a witness knows, two rows of each array


class Draw(NamedTuple):
    """What is drawn for one step, and what the step is priced for."""

    t: jax.Array  # number of the step
    key: jax.Array  # public, for whatever a kernel draws beside the noise
    rows: jax.Array | None  # of the batch; None for all
    units: jax.Array  # noise, one per coordinate: whole numbers of grid steps
    claimed: jax.Array  # standard deviation of the noise that the step is priced for
    fisher_units: jax.Array | None = None  # noise of a second sum, an upper triangle
    masks: jax.Array | None = None  # key of what is dropped of each record; secret
    picked: jax.Array | None = None  # rows whose distances are wanted
    joined: jax.Array | None = None  # the same, spliced into the rows of a small batch
    allowed: jax.Array | None = None  # norm that each record may have, where a filter says so


class Observed(NamedTuple):
    """What observers hold of one chain; private, but for what is told of canaries."""

    distances: jax.Array | None = None  # (steps, samples), where they are watched
    spent: jax.Array | None = None  # by each record, where there is a filter
    told: jax.Array | None = None  # (4, canaries), where there are any
    heard: Any = None  # by a witness, on made-up tables


Layer = Callable[[Query, Draw, Observed], tuple[jax.Array, Observed]]


@contextmanager
def single_precision() -> Iterator[None]:
    """What the model's own functions see."""
    with jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield


def in_single(query: Query) -> Query:
    """The query as the model's own functions see it; the noise stays in double precision."""
    root = query.preconditioner_root
    return Query(query.position.astype(jnp.float32), query.scale, None if root is None else root.astype(jnp.float32))


def clipped_sum(sums: ClippedSum, prepared: Prepared) -> Layer:
    """The sum over the batch."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        def found(batch: Batch) -> jax.Array:
            with single_precision():
                return sums(query.position, batch, query.preconditioner_root, draw.masks).total

        return sums.over(prepared.data, prepared.reach, draw.rows, found, draw.allowed), observed

    return answer


def rounded_contributions(sums: ClippedSum, prepared: Prepared) -> Layer:
    """The sum of what every record contributes, rounded to the grid by itself: an integer, exactly."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        def found(batch: Batch) -> jax.Array:
            with single_precision():
                rows = sums.contributions(query.position, batch, query.preconditioner_root, draw.masks)
            return noise.whole(rows, query.scale)

        return sums.over(prepared.data, prepared.reach, draw.rows, found, draw.allowed), observed

    return answer


def gaussian(inner: Layer, add: Callable[[jax.Array, Any, jax.Array], jax.Array]) -> Layer:
    """The inner sum with the noise of the step, of the standard deviation that the query names."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        total, observed = inner(query, draw, observed)
        return add(total, query.scale, draw.units), observed

    return answer
