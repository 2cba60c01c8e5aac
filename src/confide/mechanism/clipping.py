"""Clipped gradient sums: what a step learns about the records, and the most that one record can change it.

The gradient of one record is g_i = -grad log p(d_i | theta). With the root A of a preconditioner (the
identity, a diagonal or a matrix) it is looked at as A^T g_i, scaled down to norm `clip` where it is longer, and summed
over the batch. It is a SUM, so

    adding or removing a record moves it by at most clip, replacing one by at most 2 clip.

| record                        | contributes |
|-------------------------------|-------------|
| an empty place of the buffer  | nothing     |
| gradient zero                 | nothing     |
| gradient NaN or infinite      | nothing; counted in `ignored`, which never leaves the computation |
| norm above `clip`             | its direction, with norm `clip` |

Generalised linear models take one pass over the batch and hold no gradient per record: ||g_i|| = |r_i| ||x_i||.
Networks are told by their layers (`ghost_norms`), and all else is differentiated record by record (vmap); both take
a batch in microbatches, so that memory is bounded whatever the batch.

**Rounding.** In floating point one record can change how all others are rounded, and a long sum can then move by more
than the clip. So records are cut to a little less (`effective_clip`): 2^-16 for the rounding of norms in single
precision, and twice the largest error of a sum. Adding B terms of norm at most c in any order errs by at most B u (B
c), u the unit roundoff. Up to SMALL rows that is below 1% in single precision; larger batches go through in chunks and
are added up in double precision, where it vanishes. Microbatches of m rows that are summed in single precision, and
added up in double, err by at most m u (B c); where that is above ROUNDED, all is double. Norms are computed on scaled
rows, so that they neither overflow nor vanish. And what is measured is what is summed: a compiler may compute a number
anew for each use, and to round it otherwise each time, so that where large numbers cancel, the one that is measured may
be near zero and the one that is summed long. Gradients are therefore computed in a loop of their own, whose results are
buffers (`confide.mechanism.ghost_norms.once`). With one score a record there is no need: its residual is cut where it
is used. A score must not depend on where in the batch a record stands: chunks are whole multiples of 8 rows, which the
processor's matrix products treat alike (a test compares bits). Products of two matrices of other heights it may cut up
otherwise, so a small batch is looked at in two parts, of which the second is seldom taken, for single scores alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism.ghost_norms import TINY, Ghosts, column, ghosts, microbatch, once, row_norms
from confide.models.model import Linear, Model
from confide.models.tapes import Tape
from confide.privacy.events import SENSITIVITY, Neighbours

NORM_ROUNDING = 2.0**-16  # relative; a norm of 1e5 terms in single precision is better than this
SMALL = 400  # rows that are summed in single precision
CHUNK = 512  # rows at a time of a larger batch
HELD = 2**22  # numbers in the gradients of a microbatch
ROUNDED = 0.01  # of the clip: more is not given away to rounding


class Sum(NamedTuple):
    total: jax.Array
    ignored: jax.Array  # number of records whose gradient was not finite; private


class Batch(NamedTuple):
    """The rows of a batch and which of them are real."""

    arrays: tuple[jax.Array, ...]
    real: jax.Array
    reach: jax.Array | None  # limit / ||x||, for linear models; 1 for others
    allowed: jax.Array | None = None  # norm that each record may have, where that is not the same for all
    places: jax.Array | None = None  # among all rows


@contextmanager
def single_precision() -> Iterator[None]:
    """What the model's own functions see."""
    with jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield


def whole_chunks(rows: int) -> int:
    """The number of places that a batch of so many rows is given: whole multiples of 8, or of the chunk."""
    unit = 8 if rows <= SMALL else CHUNK
    return -(-rows // unit) * unit


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """The sum of the clipped gradients of a batch, for parameters given as one flat vector."""

    log_likelihood: Callable[..., jax.Array]  # (flat parameters, *example)
    linear: Linear | None
    clip: float  # inf: no clipping, and no sensitivity
    rows: int  # the most that a batch holds
    typical_batch: int = 0  # what most batches hold, a multiple of 8; the places after it are looked at only if taken
    ghosts: Ghosts | None = None
    microbatch: int | None = None  # rows at a time, a multiple of 8; None: all of a small batch
    dropped: Callable[..., jax.Array] | None = None  # (flat parameters, key of the record, *example), with dropout

    def sensitivity(self, neighbours: Neighbours) -> float:
        """The most that the sum moves between neighbouring datasets, in the norm of A^T."""
        return self.clip * SENSITIVITY[neighbours]

    @property
    def effective_clip(self) -> float:
        """What records are cut to: the clip, less what rounding can add."""
        return self.clip * (1 - NORM_ROUNDING) / (1 + self._sum_rounding)

    @property
    def slack(self) -> float:
        """What adding or removing a record can change in how the sum of all others is rounded."""
        return self.clip * self._sum_rounding

    @property
    def _sum_rounding(self) -> float:
        return self._rounding(2.0**-53 if self._double else 2.0**-24)

    def _rounding(self, unit: float) -> float:
        rows = whole_chunks(self.rows)
        return 2 * unit * rows * (rows if self.microbatch is None else min(rows, self.microbatch))

    @property
    def _double(self) -> bool:
        """Whether the rows of a chunk are added up in double precision."""
        return self.rows > SMALL if self.microbatch is None else self._rounding(2.0**-24) > ROUNDED

    def reach(self, data: tuple[jax.Array, ...], present: jax.Array | None = None) -> jax.Array | None:
        """limit / ||x|| of every row, which linear models need at every step: computed once.

        It is 1 for other models, and 0 where `present` says that the place holds no record. None: all rows are there.
        """
        if math.isinf(self.clip):
            return None
        reach = None if self.linear is None else self._threshold(data, self.linear)
        if present is None:
            return reach
        return jnp.where(present, jnp.ones(len(present), jnp.float32) if reach is None else reach, 0.0)

    def _threshold(self, data: tuple[jax.Array, ...], linear: Linear) -> jax.Array:
        norms = row_norms(data[0])
        if linear.intercept:
            norms = jnp.hypot(norms, jnp.ones((), norms.dtype))
        reach = jnp.float32(self.effective_clip) / jnp.maximum(norms, TINY)
        return jnp.minimum(reach, jnp.finfo(jnp.float32).max)  # an infinite one would cut nothing

    def batch(
        self, data: tuple[jax.Array, ...], reach: jax.Array | None, rows: jax.Array, allowed: jax.Array | None = None
    ) -> Batch:
        """The rows at the given places; a place that is not among the rows stays empty."""
        n = data[0].shape[0]
        places = jnp.minimum(rows, n - 1)
        taken = [array.at[places].get(mode="promise_in_bounds") for array in data]
        ends, cuts = (None if array is None else array[places] for array in (reach, allowed))
        real = rows < n if ends is None else (rows < n) & (ends > 0)
        return Batch(tuple(taken), real, ends, cuts, rows)

    def over(
        self,
        data: tuple[jax.Array, ...],
        reach: jax.Array | None,
        rows: jax.Array | None,
        summed: Callable[[Batch], Any],
        allowed: jax.Array | None = None,
    ) -> Any:
        """The sum of `summed` over the batch: at once where it is small, else chunk by chunk in double precision.

        `rows` are whole chunks (`whole_chunks`), those that are taken first, or None for all rows of the data.
        `allowed` is what each record's norm is cut to, where that is less than the limit; 0 leaves it out.
        """
        n, unit = data[0].shape[0], self.microbatch or CHUNK
        size = whole_chunks(n) if rows is None else rows.shape[0]
        if size <= (self.microbatch or SMALL):
            rows = jnp.arange(size) if rows is None else rows
            if not 0 < self.typical_batch < size:
                return summed(self.batch(data, reach, rows, allowed))
            total = summed(self.batch(data, reach, rows[: self.typical_batch], allowed))
            return jax.lax.cond(  # batches are in rising order: seldom is any row left
                rows[self.typical_batch] < n,
                lambda: jax.tree.map(
                    jnp.add, total, summed(self.batch(data, reach, rows[self.typical_batch :], allowed))
                ),
                lambda: total,
            )
        chunks = -(-n // unit) if rows is None else -(-jnp.sum(rows < n) // unit)
        if rows is not None and size % unit:
            rows = jnp.concatenate([rows, jnp.full(-size % unit, n, rows.dtype)])

        def chunk(index: jax.Array) -> Any:
            first = index * unit
            if rows is not None:
                return self.batch(data, reach, jax.lax.dynamic_slice_in_dim(rows, first, unit), allowed)
            if n < unit:
                return self.batch(data, reach, first + jnp.arange(unit), allowed)
            start = jnp.minimum(first, n - unit)  # the last chunk reaches back, and skips what it has seen

            def cut(array: jax.Array) -> jax.Array:
                return jax.lax.dynamic_slice_in_dim(array, start, unit)

            places = start + jnp.arange(unit)
            ends, cuts = (None if array is None else cut(array) for array in (reach, allowed))
            real = places >= first if ends is None else (places >= first) & (ends > 0)
            return Batch(tuple(map(cut, data)), real, ends, cuts, places)

        def more(index: jax.Array, total: Any) -> Any:
            with jax.enable_x64(True):
                found = summed(chunk(index))
                return jax.tree.map(lambda so_far, part: so_far + part.astype(so_far.dtype), total, found)

        with jax.enable_x64(True):
            zero = jax.tree.map(_wide_zero, jax.eval_shape(summed, chunk(jnp.asarray(0))))
            return jax.lax.fori_loop(0, chunks, more, zero)

    def __call__(
        self, position: jax.Array, batch: Batch, root: jax.Array | None = None, key: jax.Array | None = None
    ) -> Sum:
        """The clipped sum of one batch or chunk, seen through the root; the key is for dropout, and secret."""
        if math.isinf(self.clip) and root is not None:  # nothing to cut: the sum can be taken first
            total, ignored = self(position, batch, None, key)
            with jax.enable_x64(True):
                root = root.astype(total.dtype)
                return Sum(total * root if root.ndim == 1 else total @ root, ignored)
        if self.ghosts is not None and root is None:
            return self._from_layers(self.ghosts, position, batch, key)
        if self.linear is None or root is not None:
            rows, finite = self._rows(position, batch, root, key)
            return Sum(self._added(rows), jnp.sum(~finite))
        return self._summed(*self._measured(position, batch), batch)

    def _from_layers(self, told_by: Ghosts, position: jax.Array, batch: Batch, key: jax.Array | None) -> Sum:
        keys = self._keys(batch, key)
        if math.isinf(self.clip):
            return self._plain(position, batch, keys)
        told = told_by.told(position, batch.arrays, keys)
        finite = jnp.isfinite(told.norms)
        scale = jnp.minimum(1.0, self._most(batch) / jnp.maximum(told.norms, TINY))
        scale = jnp.where(finite & batch.real, scale, 0.0)
        return Sum(told_by.weighted(position, told, scale, self._double), jnp.sum(batch.real & ~finite))

    def _plain(self, position: jax.Array, batch: Batch, keys: jax.Array | None) -> Sum:
        """Without a clip: one gradient of the sum, whose records of no finite loss are left out."""

        def loss(position: jax.Array) -> jax.Array:
            each = -self._every(lambda function: function, position, batch, keys)
            return jnp.sum(jnp.where(batch.real & jnp.isfinite(each), each, 0.0))

        return Sum(jax.grad(loss)(position), jnp.zeros((), jnp.int32))

    def _every(self, of: Callable[..., Any], position: jax.Array, batch: Batch, keys: jax.Array | None) -> jax.Array:
        """A function made of the log likelihood, for every record."""
        if keys is None or self.dropped is None:
            return jax.vmap(of(self.log_likelihood), (None, *[0] * len(batch.arrays)))(position, *batch.arrays)
        return jax.vmap(of(self.dropped), (None, 0, *[0] * len(batch.arrays)))(position, keys, *batch.arrays)

    def _most(self, batch: Batch) -> jax.Array:
        """What the norm of each record is cut to."""
        limit = jnp.asarray(self.effective_clip, jnp.float32)
        return limit if batch.allowed is None else jnp.minimum(limit, batch.allowed)

    def _keys(self, batch: Batch, key: jax.Array | None) -> jax.Array | None:
        """One for each record, of this step."""
        if self.dropped is None or key is None:
            return None
        assert batch.places is not None
        return jax.vmap(jax.random.fold_in, (None, 0))(key, batch.places)

    def beside(
        self,
        position: jax.Array,
        data: tuple[jax.Array, ...],
        reach: jax.Array,
        joined: jax.Array,
        picked: int,
        allowed: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """The clipped sum over a small batch of a linear model, and the norms of other records from the same pass.

        `joined` has the rows of the batch with as many `picked` ones, a multiple of 8, from `splice` on.
        """
        size = self.splice(joined.shape[0] - picked)
        both = self.batch(data, reach, joined[: size + picked], allowed)
        inputs, residual = self._measured(position, both)
        asked = both._replace(real=both.real & (np.arange(size + picked) < size))
        total = self._summed(inputs, residual, asked).total
        assert both.reach is not None
        norms = self._cut_norms(residual[size:], both.reach[size:])
        norms = jnp.where(both.real[size:], norms, jnp.float32(self.effective_clip))  # an empty place: as far as can be
        if size + picked == joined.shape[0]:
            return total, norms
        rest = joined[size + picked :]
        return (
            jax.lax.cond(
                rest[0] < data[0].shape[0],
                lambda: total + self(position, self.batch(data, reach, rest, allowed)).total,
                lambda: total,
            ),
            norms,
        )

    def splice(self, size: int) -> int:
        """How many places of a small batch are always looked at."""
        return self.typical_batch if 0 < self.typical_batch < size else size

    def _summed(self, inputs: jax.Array, residual: jax.Array, batch: Batch) -> Sum:
        finite = jnp.isfinite(row_norms(residual)) & batch.real
        residual = jnp.where(column(finite, residual), residual, 0.0)
        if batch.reach is not None:
            reach = batch.reach
            if batch.allowed is not None:
                reach = reach * (batch.allowed / jnp.float32(self.effective_clip))
            if residual.ndim == 1:
                residual = jnp.clip(residual, -reach, reach)
            else:
                scale = jnp.minimum(1.0, reach / jnp.maximum(row_norms(residual), TINY))
                residual = residual * scale[:, None]
        return Sum(self._product(inputs, residual).ravel(), jnp.sum(batch.real & ~finite))

    def in_double(self, position: jax.Array, batch: Batch) -> jax.Array:
        """The clipped sum of one chunk of a linear model, from the scores on in double precision.

        Several scores of a record are not cut: their gradients are bounded by the norm of the rows.
        """
        assert self.linear is not None
        inputs, labels = (array.astype(jnp.float64) for array in batch.arrays)
        inputs, residual = self._residual(position, batch._replace(arrays=(inputs, labels)))
        if batch.reach is not None and residual.ndim == 1:
            reach = batch.reach.astype(jnp.float64)
            residual = jnp.clip(residual, -reach, reach)
        residual = jnp.where(column(batch.real, residual), residual, 0.0)
        return jnp.tensordot(inputs, residual, (0, 0)).ravel()

    def contributions(
        self, position: jax.Array, batch: Batch, root: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """The clipped gradient of every record, shape (rows, parameters); zero for empty places."""
        return self._rows(position, batch, root, key)[0]

    def told(self, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The same, and which of the gradients are finite."""
        return self._rows(position, batch, None)

    def norms(self, position: jax.Array, batch: Batch, root: jax.Array | None = None) -> jax.Array:
        """The norm of what every record contributes; zero for empty places."""
        if self.ghosts is not None and root is None and not math.isinf(self.clip):
            norms = self.ghosts.told(position, batch.arrays, None).norms
            return jnp.where(batch.real & jnp.isfinite(norms), jnp.minimum(norms, self._most(batch)), 0.0)
        if self.linear is None or root is not None or batch.reach is None:
            return row_norms(self._rows(position, batch, root)[0])
        residual = self._residual(position, batch)[1]
        return jnp.where(batch.real, self._cut_norms(residual, batch.reach), 0.0)

    def _cut_norms(self, residual: jax.Array, reach: jax.Array) -> jax.Array:
        residual = row_norms(residual)
        return jnp.minimum(jnp.where(jnp.isfinite(residual), residual, 0.0) / reach, 1.0) * jnp.float32(
            self.effective_clip
        )

    def every_norm(
        self, position: jax.Array, data: tuple[jax.Array, ...], reach: jax.Array | None, root: jax.Array | None
    ) -> jax.Array:
        """The same for all records, chunk by chunk."""
        n = data[0].shape[0]
        size = min(self.microbatch or CHUNK, whole_chunks(n))

        def more(index: jax.Array, norms: jax.Array) -> jax.Array:
            start = jnp.minimum(index * size, max(0, n - size))
            with single_precision():
                found = self.norms(position, self.batch(data, reach, start + jnp.arange(size, dtype=jnp.int32)), root)
            return jax.lax.dynamic_update_slice_in_dim(norms, found, start, 0)

        return jax.lax.fori_loop(0, -(-n // size), more, jnp.zeros(max(n, size), jnp.float32))[:n]

    def _added(self, rows: jax.Array) -> jax.Array:
        if not self._double:
            return jnp.sum(rows, axis=0)
        with jax.enable_x64(True):
            return jnp.sum(rows.astype(jnp.float64), axis=0)

    def _product(self, inputs: jax.Array, residual: jax.Array) -> jax.Array:
        if len(inputs) <= SMALL:
            return jnp.tensordot(inputs, residual, (0, 0))
        with jax.enable_x64(True):
            return jnp.tensordot(inputs.astype(jnp.float64), residual.astype(jnp.float64), (0, 0))

    def _rows(
        self, position: jax.Array, batch: Batch, root: jax.Array | None, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Clipped gradients of all places, and which are finite; an empty place has gradient zero."""

        def looked_at(position: jax.Array) -> tuple[jax.Array, jax.Array]:
            if self.linear is not None:
                inputs, residual = self._residual(position, batch)
                gradients = (inputs[:, :, None] * residual.reshape(len(inputs), 1, -1)).reshape(len(inputs), -1)
            else:
                gradients = -self._every(jax.grad, position, batch, self._keys(batch, key))
            gradients = jnp.where(batch.real[:, None], gradients, 0.0)
            finite = jnp.all(jnp.isfinite(gradients), axis=1)
            seen = jnp.where(finite[:, None], gradients, 0.0)
            if root is not None:
                seen = seen * root if root.ndim == 1 else seen @ root
            return seen, finite

        seen, finite = once(looked_at, position)
        if math.isinf(self.clip):
            return seen, finite
        norms = row_norms(seen)
        scale = jnp.minimum(1.0, self._most(batch) / jnp.maximum(norms, TINY))
        return jnp.where(jnp.isfinite(norms)[:, None], seen, 0.0) * scale[:, None], finite

    def _measured(self, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The same; several residuals of a record, whose norm is measured before they are summed, as one buffer."""
        assert self.linear is not None
        if not self.linear.outputs:
            return self._residual(position, batch)
        return once(lambda here: self._residual(here, batch), position)

    def _residual(self, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        assert self.linear is not None
        inputs, labels = batch.arrays
        if self.linear.intercept:  # first in the flat parameters: "intercept" sorts before "weights"
            inputs = jnp.concatenate([jnp.ones((len(inputs), 1), inputs.dtype), inputs], axis=1)
        weights = position.reshape(inputs.shape[1], *self.linear.outputs)
        return inputs, self.linear.residual(inputs @ weights, labels)


def _wide_zero(leaf: Any) -> jax.Array:
    """What chunks are added to: whole numbers as they are, all else in double precision."""
    return jnp.zeros(leaf.shape, jnp.float64 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)


def clipped_sum(
    model: Model,
    clip: float,
    unravel: Callable[[jax.Array], Any],
    rows: int,
    typical_batch: int = 0,
    size: int = 0,
    example: tuple[Any, ...] = (),
    at_a_time: int | None = None,
) -> ClippedSum:
    """The clipped sum of a model whose parameters `unravel` makes from a flat vector, for batches of so many rows.

    Layers are looked for where the number of parameters and the shapes of a record (`example`) are given. A microbatch
    is `at_a_time` rows, rounded up to a multiple of 8, or as many as are fast and hold little.
    """
    layered = model.layered
    told_by = ghosts(layered, unravel, size, example) if example else None
    chunk = None
    if model.linear is None and at_a_time is not None:
        chunk = min(-(-at_a_time // 8) * 8, CHUNK)
    elif told_by is not None:
        chunk = microbatch(told_by.products, size)
    elif model.linear is None and size * SMALL > HELD:
        chunk = max(8, HELD // size // 8 * 8)

    def dropped(flat: jax.Array, key: jax.Array, *row: Any) -> jax.Array:
        assert layered is not None
        return layered.log_likelihood(Tape(key=key), unravel(flat), *row)

    return ClippedSum(
        log_likelihood=lambda flat, *row: model.log_likelihood(unravel(flat), *row),
        linear=model.linear,
        clip=clip,
        rows=rows,
        typical_batch=typical_batch if model.linear is not None and not model.linear.outputs else 0,
        ghosts=told_by,
        microbatch=chunk,
        dropped=dropped if layered is not None and layered.dropout else None,
    )
