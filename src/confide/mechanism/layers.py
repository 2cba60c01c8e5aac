"""What a layer of the oracle (`mechanism.oracle`) is: it answers a query, pure and knowing one thing, around another.

A layer takes the query, what was drawn for the step, and what observers hold; it returns its answer, and what they hold
now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from confide.mechanism.kernel import Query


class Prepared(NamedTuple):
    """The data and what is computed once from them: arguments of the compiled program, never constants in it."""

    data: tuple[jax.Array, ...]
    residual_threshold: jax.Array | None  # see `ClippedSum.residual_threshold`
    limits: Any = None  # of an individual filter
    weighting: jax.Array | None = None  # see `ClippedSum.weighting`
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
    """What observers hold of one chain; private, but for the statistics of canaries and the trace."""

    distances: jax.Array | None = None  # (steps, samples), where they are watched
    spent: jax.Array | None = None  # by each record, where there is a filter
    statistics: jax.Array | None = None  # (4, canaries), where there are any
    heard: Any = None  # by a witness, on made-up tables
    trace: jax.Array | None = None  # sums over steps of what was asked and answered, where they are kept


Layer = Callable[[Query, Draw, Observed], tuple[jax.Array, Observed]]
