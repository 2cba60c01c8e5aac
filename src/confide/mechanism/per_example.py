"""The clipped gradients of single records, of any model: each is computed, measured, cut, and added up.

Generalised linear models (`clipping.GLM`) and networks (`ghost_norms`) have shorter ways to the same sum.

**Rounding.** In floating point one record can change how others that are added up with it are rounded, and a long sum
can then move by more than the clip. So records are cut to a little less (`Limit.of`): 2^-16 for the rounding of norms
in single precision, and twice the largest error of the sums that one record takes part in. Adding m terms of norm at
most c errs by at most m u (m c), u the unit roundoff. Up to SMALL rows that is below 1% in single precision; larger
batches go through in chunks of m rows and are added up in double precision, where it vanishes. Microbatches of m rows
are summed in single precision; where their error is above ROUNDED, all is double.

A sum over *all* records is taken chunk by chunk, by place: a record is in one chunk, the sums of the others have the
same bits with it and without it, and each is rounded to whole steps before chunks are added. So only the m terms of its
own chunk count, 2 m u (m c), however many records there are. The rows of a *random batch* move up where one is missing,
so that all of its chunks may be rounded otherwise: with B rows, 2 (m + B / m) u (B c) in double precision, and 2 m u (B
c) for microbatches in single precision, whose sums are added up in double.

And what is measured is what is summed: a compiler may compute a number anew for each use, and round it otherwise each
time, so that where large numbers cancel, the one that is measured may be near zero and the one that is summed long.
Gradients are therefore computed in a loop of their own, whose results are buffers (`once`). With one score
a record there is no need: its residual is cut where it is used.

A score must not depend on where in the batch a record stands: chunks are whole multiples of 8 rows, which the
processor's matrix products treat alike (a test compares bits). Products of two matrices of other heights it may cut up
otherwise, so a small batch is looked at in two parts, of which the second is seldom taken, for single scores alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from confide.models.programs import checked

NORM_ROUNDING = 2.0**-16  # relative; a norm of 1e5 terms in single precision is better than this
SMALL = 400  # rows that are summed in single precision
CHUNK = 512  # rows at a time of a larger batch
ROUNDED = 0.01  # of the clip: more is not given away to rounding
SINGLE, DOUBLE = 2.0**-24, 2.0**-53  # unit roundoffs
TINY = 1e-30  # single precision has nothing to tell below


class Sum(NamedTuple):
    total: jax.Array
    ignored: jax.Array  # number of records whose gradient was not finite; private


class Batch(NamedTuple):
    """The rows of a batch and which of them are real."""

    arrays: tuple[jax.Array, ...]
    real: jax.Array
    residual_threshold: jax.Array | None  # limit / ||x||, for linear models; 1 for others
    allowed: jax.Array | None = None  # norm that each record may have, where that is not the same for all
    places: jax.Array | None = None  # among all rows


class Limit(NamedTuple):
    """What records are cut to, and how what is left of them is added up."""

    norm: float  # the clip, less what rounding can add; infinite: they are not cut
    slack: float  # what adding or removing a record can change in how the sum of all others is rounded
    double: bool  # whether the rows of a chunk are added up in double precision

    @staticmethod
    def of(clip: float, places: int, microbatch: int | None = None, all_places: bool = False) -> Limit:
        """For sums over so many places (`clipping.whole_chunks`), at once, in chunks or in microbatches.

        `all_places` says that they are the places of all records and not those of a random batch.
        """
        chunk = microbatch or (places if places <= SMALL else CHUNK)
        together = min(places, chunk)

        def error(unit: float) -> float:
            if all_places:
                return 2 * unit * together**2
            return 2 * places * (unit * together + DOUBLE * ((places - 1) // chunk))

        double = places > SMALL if microbatch is None else error(SINGLE) > ROUNDED
        added = error(DOUBLE if double else SINGLE)
        return Limit(clip * (1 - NORM_ROUNDING) / (1 + added), clip * added, double)


class PerExample:
    """How the clipped gradients of the records of one batch are found and summed; by itself, from each gradient."""

    def gradients(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> jax.Array:
        """Of every record, shape (rows, parameters)."""
        raise NotImplementedError

    def seen(
        self, position: jax.Array, batch: Batch, limit: Limit, root: jax.Array | None, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """The same through the root of a preconditioner, and which are finite; zero for those that are not."""
        found, finite = only_finite(self.gradients(position, batch, limit, key), batch)
        return found if root is None else see(found, root), finite

    def residual_threshold(self, data: tuple[jax.Array, ...], norm: Any) -> jax.Array | None:
        return None

    def total(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> Sum:
        return self.sum_rows(position, batch, limit, None, key)

    def norms(self, position: jax.Array, batch: Batch, limit: Limit) -> jax.Array:
        return row_norms(self.rows(position, batch, limit)[0])

    def sum_rows(
        self, position: jax.Array, batch: Batch, limit: Limit, root: jax.Array | None, key: jax.Array | None
    ) -> Sum:
        rows, finite = self.rows(position, batch, limit, root, key)
        if not limit.double:
            return Sum(jnp.sum(rows, axis=0), jnp.sum(~finite))
        with jax.enable_x64(True):
            return Sum(jnp.sum(rows.astype(jnp.float64), axis=0), jnp.sum(~finite))

    def rows(
        self,
        position: jax.Array,
        batch: Batch,
        limit: Limit,
        root: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Clipped gradients of all places, and which are finite; an empty place has gradient zero."""

        seen, finite = once(lambda here: self.seen(here, batch, limit, root, key), position)
        if math.isinf(limit.norm):
            return seen, finite
        norms = row_norms(seen)
        scale = jnp.minimum(1.0, most(batch, limit) / jnp.maximum(norms, TINY))
        return jnp.where(jnp.isfinite(norms)[:, None], seen, 0.0) * scale[:, None], finite


@dataclass(frozen=True, kw_only=True)
class Autodiff(PerExample):
    """Of a log likelihood of one record, which is differentiated record by record."""

    log_likelihood: Callable[..., jax.Array]  # (flat parameters, *example)
    lengths: frozenset[int] = frozenset()  # of axes by which an array in a function is taken for the table
    dropped: Callable[..., jax.Array] | None = None  # (flat parameters, key of the record, *example), with dropout

    def gradients(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> jax.Array:
        return -self.every(jax.grad, position, batch, self.keys(batch, key))

    def every(self, of: Callable[..., Any], position: jax.Array, batch: Batch, keys: jax.Array | None) -> jax.Array:
        """A function made of the log likelihood, for every record."""
        if keys is None or self.dropped is None:
            record = checked(of(self.log_likelihood), "log_likelihood", self.lengths)
            return jax.vmap(record, (None, *[0] * len(batch.arrays)))(position, *batch.arrays)
        record = checked(of(self.dropped), "log_likelihood", self.lengths)
        return jax.vmap(record, (None, 0, *[0] * len(batch.arrays)))(position, keys, *batch.arrays)

    def every_value(self, position: jax.Array, batch: Batch, keys: jax.Array | None) -> jax.Array:
        """The log likelihood of every record, to be differentiated; for what no guarantee covers."""
        if keys is None or self.dropped is None:
            return jax.vmap(self.log_likelihood, (None, *[0] * len(batch.arrays)))(position, *batch.arrays)
        return jax.vmap(self.dropped, (None, 0, *[0] * len(batch.arrays)))(position, keys, *batch.arrays)

    def unclipped(self) -> Unclipped:
        return Unclipped(log_likelihood=self.log_likelihood, dropped=self.dropped)

    def keys(self, batch: Batch, key: jax.Array | None) -> jax.Array | None:
        """One for each record, of this step."""
        if self.dropped is None or key is None:
            return None
        assert batch.places is not None
        return jax.vmap(jax.random.fold_in, (None, 0))(key, batch.places)


@dataclass(frozen=True, kw_only=True)
class Unclipped(Autodiff):
    """Without a clip: one gradient of the sum, whose records of no finite loss are left out."""

    def total(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> Sum:
        keys = self.keys(batch, key)

        def loss(position: jax.Array) -> jax.Array:
            each = -self.every_value(position, batch, keys)
            return jnp.sum(jnp.where(batch.real & jnp.isfinite(each), each, 0.0))

        return Sum(jax.grad(loss)(position), jnp.zeros((), jnp.int32))


def most(batch: Batch, limit: Limit) -> jax.Array:
    """What the norm of each record is cut to."""
    norm = jnp.asarray(limit.norm, jnp.float32)
    return norm if batch.allowed is None else jnp.minimum(norm, batch.allowed)


def once(compute: Callable[[jax.Array], Any], position: jax.Array) -> Any:
    """What is computed at a position, as buffers: whoever uses the results uses the very same numbers.

    A compiler may copy cheap arithmetic into each of its uses and contract products and sums otherwise in each, and a
    barrier does not keep it from that on every backend. The results of a loop are buffers. How often this one runs is
    not known when it is compiled (once, unless a parameter is not finite), nor that the position does not change in
    it, so that it is neither unrolled nor are its contents moved out. The position must not be a constant of the
    program, which would tell: in a run it is the state of a chain.
    """
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute, position))
    trips = 1 + (~jnp.isfinite(position.ravel()[0])).astype(jnp.int32)

    def body(number: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        here, _ = carry
        return jnp.where(number < 2, here, here + 1), compute(here)

    return jax.lax.fori_loop(0, trips, body, (position, nothing))[1]


def row_norms(rows: jax.Array) -> jax.Array:
    """Norm of every row, by way of its largest entry: squares would vanish below 1e-19 and overflow above 1e19.

    Infinite above 1e30, where the inverse of the largest entry might be rounded to zero.
    """
    if rows.ndim == 1:
        return jnp.abs(rows)
    largest = jnp.maximum(jnp.max(jnp.abs(rows), axis=1), TINY)
    norms = largest * jnp.sqrt(jnp.sum(jnp.square(rows / largest[:, None]), axis=1))
    return jnp.where(largest < 1 / TINY, norms, jnp.inf)


def only_finite(gradients: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Rows of zeros for empty places and for records whose gradient is not finite, and which are."""
    gradients = jnp.where(batch.real[:, None], gradients, 0.0)
    finite = jnp.all(jnp.isfinite(gradients), axis=1)
    return jnp.where(finite[:, None], gradients, 0.0), finite


def see(gradients: jax.Array, root: jax.Array) -> jax.Array:
    """Rows through the root of a preconditioner, a diagonal or a matrix."""
    return gradients * root if root.ndim == 1 else gradients @ root


def column(values: jax.Array, like: jax.Array) -> jax.Array:
    return values.reshape(-1, *[1] * (like.ndim - 1))
