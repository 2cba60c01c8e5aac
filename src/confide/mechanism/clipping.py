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
Networks are told by their layers (`ghost_norms`), and all else is differentiated record by record (`per_example`); both
take a batch in microbatches, so that memory is bounded whatever the batch. By how much less than the clip records are
cut, so that rounding cannot carry the sum further, is said in `per_example`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from confide.mechanism.ghost_norms import ghost_norms, microbatch
from confide.mechanism.per_example import (
    CHUNK,
    SMALL,
    TINY,
    Autodiff,
    Batch,
    Limit,
    PerExample,
    Sum,
    once,
    only_finite,
    row_norms,
    see,
)
from confide.models.model import Linear, Model
from confide.models.tapes import Tape

HELD = 2**22  # numbers in the gradients of a microbatch


@contextmanager
def single_precision() -> Iterator[None]:
    """What the model's own functions see."""
    with jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield


def whole_chunks(rows: int) -> int:
    """The number of places that a batch of so many rows is given: whole multiples of 8, or of the chunk."""
    unit = 8 if rows <= SMALL else CHUNK
    return -(-rows // unit) * unit


def _as_it_is(total: Any) -> Any:
    return total


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """The sum of the clipped gradients of a batch, for parameters given as one flat vector."""

    per_example: PerExample
    clip: float  # inf: no clipping, and no sensitivity
    limit: Limit
    typical_batch: int = 0  # what most batches hold, a multiple of 8; the places after it are looked at only if taken
    microbatch: int | None = None  # rows at a time, a multiple of 8; None: all of a small batch
    dropout: bool = False  # whether parts of a record are dropped, by a key of the step

    @property
    def effective_clip(self) -> float:
        """What records are cut to: the clip, less what rounding can add."""
        return self.limit.norm

    def residual_threshold(
        self, data: tuple[jax.Array, ...], present: jax.Array | None = None, norm: jax.Array | None = None
    ) -> jax.Array | None:
        """limit / ||x|| of every row, which linear models need at every step: computed once.

        It is 1 for other models, and 0 where `present` says that the place holds no record. None: all rows are there.
        `norm` is the limit's, where another one is to need no new program.
        """
        if math.isinf(self.clip):
            return None
        found = self.per_example.residual_threshold(data, self.limit.norm if norm is None else norm)
        if present is None:
            return found
        return jnp.where(present, jnp.ones(len(present), jnp.float32) if found is None else found, 0.0)

    @property
    def weighting(self) -> jax.Array | None:
        """What weights are computed with, as an argument of the compiled program."""
        glm = self.per_example
        if math.isinf(self.clip) or not isinstance(glm, GLM) or glm.linear.weighting is None:
            return None
        own = glm.linear.weighting
        return jnp.asarray([self.limit.norm, own.row_bound / self.limit.norm, own.typical], jnp.float32)

    def weighted_by(self, numbers: jax.Array | None) -> ClippedSum:
        """With these numbers (`weighting`) in place of its own."""
        glm = self.per_example
        if numbers is None or not isinstance(glm, GLM):
            return self
        return replace(self, per_example=replace(glm, numbers=numbers))

    def batch(
        self,
        data: tuple[jax.Array, ...],
        threshold: jax.Array | None,
        rows: jax.Array,
        allowed: jax.Array | None = None,
    ) -> Batch:
        """The rows at the given places; a place that is not among the rows stays empty."""
        n = data[0].shape[0]
        places = jnp.minimum(rows, n - 1)
        taken = [array.at[places].get(mode="promise_in_bounds") for array in data]
        ends, cuts = (None if array is None else array[places] for array in (threshold, allowed))
        real = rows < n if ends is None else (rows < n) & (ends > 0)
        return Batch(tuple(taken), real, ends, cuts, rows)

    def over(
        self,
        data: tuple[jax.Array, ...],
        threshold: jax.Array | None,
        rows: jax.Array | None,
        summed: Callable[[Batch], Any],
        allowed: jax.Array | None = None,
        finish: Callable[[Any], Any] = _as_it_is,
    ) -> Any:
        """The sum of `summed` over the batch: at once where it is small, else chunk by chunk.

        `rows` are whole chunks (`whole_chunks`), those that are taken first, or None for all rows of the data.
        `allowed` is what each record's norm is cut to, where that is less than the limit; 0 leaves it out.
        `finish` is applied to the sum of a batch, or, where all rows are taken, to that of each chunk (`over_chunks`).
        """
        n = data[0].shape[0]
        size = whole_chunks(n) if rows is None else rows.shape[0]
        if size > (self.microbatch or SMALL):
            if rows is None:
                return self.over_chunks(data, threshold, summed, allowed, finish)
            return finish(self._over_batch(data, threshold, rows, summed, allowed))
        rows = jnp.arange(size) if rows is None else rows
        if not 0 < self.typical_batch < size:
            return finish(summed(self.batch(data, threshold, rows, allowed)))
        total = summed(self.batch(data, threshold, rows[: self.typical_batch], allowed))
        total = jax.lax.cond(  # batches are in rising order: seldom is any row left
            rows[self.typical_batch] < n,
            lambda: jax.tree.map(
                jnp.add, total, summed(self.batch(data, threshold, rows[self.typical_batch :], allowed))
            ),
            lambda: total,
        )
        return finish(total)

    def over_chunks(
        self,
        data: tuple[jax.Array, ...],
        threshold: jax.Array | None,
        summed: Callable[[Batch], Any],
        allowed: jax.Array | None = None,
        finish: Callable[[Any], Any] = _as_it_is,
    ) -> Any:
        """The sum over all rows, of what `finish` makes of the sum of each chunk.

        A chunk holds a fixed number of places, and the last one is filled up with empty places: what a record
        contributes depends on its row, on its place in the chunk and on public numbers alone. Where `finish` rounds to
        whole numbers, chunks are added without error, so that any order of the chunks, and shards of whole chunks that
        are summed by themselves and then added, give the same numbers.
        """
        n, unit = data[0].shape[0], self.microbatch or CHUNK

        def chunk(index: jax.Array) -> Batch:
            first = index * unit
            if n < unit:
                return self.batch(data, threshold, first + jnp.arange(unit), allowed)
            start = jnp.minimum(first, n - unit)

            def cut(array: jax.Array) -> jax.Array:
                return jax.lax.dynamic_slice_in_dim(array, start, unit)

            def last(array: jax.Array) -> jax.Array:
                return jnp.roll(cut(array), start - first, axis=0)

            def cut_all(array: Any) -> Any:
                if n % unit == 0:
                    return jax.tree.map(cut, array)
                return jax.lax.cond(start == first, lambda: jax.tree.map(cut, array), lambda: jax.tree.map(last, array))

            places = first + jnp.arange(unit)
            taken, ends, cuts = jax.lax.optimization_barrier(cut_all((data, threshold, allowed)))
            real = places < n if ends is None else (places < n) & (ends > 0)
            return Batch(taken, real, ends, cuts, places)

        # How many there are is hidden from the compiler, which would compile a loop of one chunk otherwise.
        chunks = jax.lax.optimization_barrier(jnp.asarray(-(-n // unit)))
        return _add_chunks(chunks, lambda index: finish(summed(chunk(index))))

    def _over_batch(
        self,
        data: tuple[jax.Array, ...],
        threshold: jax.Array | None,
        rows: jax.Array,
        summed: Callable[[Batch], Any],
        allowed: jax.Array | None,
    ) -> Any:
        """The sum over a large random batch, in double precision."""
        n, unit = data[0].shape[0], self.microbatch or CHUNK
        if rows.shape[0] % unit:
            rows = jnp.concatenate([rows, jnp.full(-rows.shape[0] % unit, n, rows.dtype)])

        def chunk(index: jax.Array) -> Batch:
            return self.batch(data, threshold, jax.lax.dynamic_slice_in_dim(rows, index * unit, unit), allowed)

        return _add_chunks(-(-jnp.sum(rows < n) // unit), lambda index: summed(chunk(index)))

    def __call__(
        self, position: jax.Array, batch: Batch, root: jax.Array | None = None, key: jax.Array | None = None
    ) -> Sum:
        """The clipped sum of one batch or chunk, seen through the root; the key is for dropout, and secret."""
        if root is None:
            return self.per_example.total(position, batch, self.limit, key)
        if not math.isinf(self.clip):
            return self.per_example.sum_rows(position, batch, self.limit, root, key)
        total, ignored = self.per_example.total(position, batch, self.limit, key)  # nothing to cut: the sum comes first
        with jax.enable_x64(True):
            root = root.astype(total.dtype)
            return Sum(total * root if root.ndim == 1 else total @ root, ignored)

    def contributions(
        self, position: jax.Array, batch: Batch, root: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """The clipped gradient of every record, shape (rows, parameters); zero for empty places."""
        return self.per_example.rows(position, batch, self.limit, root, key)[0]

    def norms(self, position: jax.Array, batch: Batch, root: jax.Array | None = None) -> jax.Array:
        """The norm of what every record contributes; zero for empty places."""
        if root is None:
            return self.per_example.norms(position, batch, self.limit)
        return row_norms(self.contributions(position, batch, root))


@dataclass(frozen=True)
class GLM(PerExample):
    """A generalised linear model with one score a record: gradients are rows times residuals, and these are cut."""

    linear: Linear
    numbers: jax.Array | None = None  # see `ClippedSum.weighting`

    def residual_threshold(self, data: tuple[jax.Array, ...], norm: Any) -> jax.Array:
        norms = row_norms(data[0])
        if self.linear.intercept:
            norms = jnp.hypot(norms, jnp.ones((), norms.dtype))
        threshold = jnp.float32(norm) / jnp.maximum(norms, TINY)
        return jnp.minimum(threshold, jnp.finfo(jnp.float32).max)  # an infinite one would cut nothing

    def scores(self, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The inputs with their constant, and their scores."""
        inputs, _ = batch.arrays
        if self.linear.intercept:  # first in the flat parameters: "intercept" sorts before "weights"
            inputs = jnp.concatenate([jnp.ones((len(inputs), 1), inputs.dtype), inputs], axis=1)
        weights = position.reshape(inputs.shape[1], *self.linear.outputs)
        return inputs, inputs @ weights

    def residuals(self, position: jax.Array, batch: Batch, limit: Limit) -> tuple[jax.Array, jax.Array]:
        """The inputs with their constant, and the residuals of their scores: by weights where there are any."""
        inputs, scores = self.scores(position, batch)
        return inputs, self.shorten(scores, batch, batch.residual_threshold, limit)

    def shorten(self, scores: jax.Array, batch: Batch, threshold: jax.Array | None, limit: Limit) -> jax.Array:
        """Residuals within the threshold, limit / ||x||, by weights that no outcome decides; plain ones without them.

        Rows longer than the bound count by (bound / ||x||)^2, and ||x|| is limit / threshold.
        """
        linear, labels = self.linear, batch.arrays[1]
        if linear.weighting is None or threshold is None:
            return linear.residual(scores, labels)
        threshold = threshold.astype(scores.dtype)
        _, reach, typical = self.weighting(limit)
        found = linear.bounded(scores, labels, threshold, typical)
        if math.isinf(linear.weighting.row_bound):
            return found
        counts = jnp.minimum(1.0, jnp.square(threshold * reach))
        if linear.marked is not None:
            counts = jnp.where(linear.marked(labels), 1.0, counts)
        return found * counts.reshape(-1, *[1] * (found.ndim - 1))

    def weighting(self, limit: Limit) -> tuple[Any, Any, Any]:
        """The limit, the norm from which on rows count less over it, and the information of a usual record."""
        own = self.linear.weighting
        assert own is not None
        if self.numbers is None:
            return limit.norm, own.row_bound / limit.norm, own.typical
        norm, reach, typical = self.numbers
        return norm, reach, typical

    def measure(self, position: jax.Array, batch: Batch, limit: Limit) -> tuple[jax.Array, jax.Array]:
        """The same, where residuals are measured before they are summed."""
        return self.residuals(position, batch, limit)

    def length(self, residual: jax.Array) -> jax.Array:
        return jnp.abs(residual)

    def cut(self, residual: jax.Array, threshold: jax.Array) -> jax.Array:
        return jnp.clip(residual, -threshold, threshold)

    def total(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> Sum:
        return self.cut_and_sum(*self.measure(position, batch, limit), batch, limit)

    def cut_and_sum(self, inputs: jax.Array, residual: jax.Array, batch: Batch, limit: Limit) -> Sum:
        """Whatever came before, nothing is longer than the threshold: the guarantee rests on this cut alone."""
        finite = jnp.isfinite(self.length(residual)) & batch.real
        residual = jnp.where(finite.reshape(-1, *[1] * len(self.linear.outputs)), residual, 0.0)
        threshold = batch.residual_threshold
        if threshold is not None:
            if batch.allowed is not None:
                threshold = threshold * (batch.allowed / jnp.float32(limit.norm))
            residual = self.cut(residual, threshold)
        return Sum(_product(inputs, residual).ravel(), jnp.sum(batch.real & ~finite))

    def norms(self, position: jax.Array, batch: Batch, limit: Limit) -> jax.Array:
        if batch.residual_threshold is None:
            return super().norms(position, batch, limit)
        residual = self.residuals(position, batch, limit)[1]
        return jnp.where(batch.real, self.cut_norms(residual, batch.residual_threshold, limit), 0.0)

    def cut_norms(self, residual: jax.Array, threshold: jax.Array, limit: Limit) -> jax.Array:
        length = self.length(residual)
        return jnp.minimum(jnp.where(jnp.isfinite(length), length, 0.0) / threshold, 1.0) * jnp.float32(limit.norm)

    def gradients(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> jax.Array:
        inputs, residual = self.residuals(position, batch, limit)
        return _outer(inputs, residual)

    def seen(
        self, position: jax.Array, batch: Batch, limit: Limit, root: jax.Array | None, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """With weights, a record is as long as its row is through the root."""
        if root is None or self.linear.weighting is None or math.isinf(limit.norm):
            return super().seen(position, batch, limit, root, key)
        inputs, scores = self.scores(position, batch)
        rows = see(inputs, root)
        residual = self.shorten(scores, batch, self.weighting(limit)[0] / jnp.maximum(row_norms(rows), TINY), limit)
        return only_finite(_outer(rows, residual), batch)


class MultinomialGLM(GLM):
    """One with several scores a record, whose residuals are cut together: measured first, and so one buffer."""

    def measure(self, position: jax.Array, batch: Batch, limit: Limit) -> tuple[jax.Array, jax.Array]:
        return once(lambda here: self.residuals(here, batch, limit), position)

    def length(self, residual: jax.Array) -> jax.Array:
        return row_norms(residual)

    def cut(self, residual: jax.Array, threshold: jax.Array) -> jax.Array:
        return residual * jnp.minimum(1.0, threshold / jnp.maximum(row_norms(residual), TINY))[:, None]

    def seen(
        self, position: jax.Array, batch: Batch, limit: Limit, root: jax.Array | None, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Through a root residuals and rows do not come apart: a record is as long as the longest that any label would
        have made it, over the longest residual of any label."""
        if root is None or self.linear.weighting is None or math.isinf(limit.norm):
            return PerExample.seen(self, position, batch, limit, root, key)
        if root.shape[0] < position.size:  # the same for all scores
            return super().seen(position, batch, limit, root, key)
        inputs, scores = self.scores(position, batch)
        labels, classes = batch.arrays[1], self.linear.outputs[0]

        def as_if(label: jax.Array) -> tuple[jax.Array, jax.Array]:
            residual = self.linear.residual(scores, jnp.full(len(scores), label).astype(labels.dtype))
            return row_norms(see(_outer(inputs, residual), root)), row_norms(residual)

        norms, residuals = jax.vmap(as_if)(jnp.arange(classes))
        lengths = jnp.max(norms, axis=0) / jnp.maximum(jnp.max(residuals, axis=0), TINY)
        if self.linear.marked is not None:  # a mark pulls along the first score alone
            along = jnp.broadcast_to((jnp.arange(classes) == 0).astype(inputs.dtype), (len(inputs), classes))
            lengths = jnp.where(self.linear.marked(labels), row_norms(see(_outer(inputs, along), root)), lengths)
        residual = self.shorten(scores, batch, self.weighting(limit)[0] / jnp.maximum(lengths, TINY), limit)
        return only_finite(see(_outer(inputs, residual), root), batch)


def _outer(inputs: jax.Array, residual: jax.Array) -> jax.Array:
    return (inputs[:, :, None] * residual.reshape(len(inputs), 1, -1)).reshape(len(inputs), -1)


def _product(inputs: jax.Array, residual: jax.Array) -> jax.Array:
    if len(inputs) <= SMALL:
        return jnp.tensordot(inputs, residual, (0, 0))
    with jax.enable_x64(True):
        return jnp.tensordot(inputs.astype(jnp.float64), residual.astype(jnp.float64), (0, 0))


def _add_chunks(chunks: Any, of: Callable[[jax.Array], Any]) -> Any:
    """The sum over chunks of what is computed of each."""

    def more(index: jax.Array, total: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(lambda so_far, part: so_far + part.astype(so_far.dtype), total, of(index))

    with jax.enable_x64(True):
        zero = jax.tree.map(_wide_zero, jax.eval_shape(of, jnp.asarray(0)))
        count = jnp.asarray(chunks).astype(jnp.int64)
        return jax.lax.fori_loop(jnp.zeros_like(count), count, more, zero)


def _wide_zero(leaf: Any) -> jax.Array:
    """What chunks are added to: whole numbers as they are, all else in double precision."""
    return jnp.zeros(leaf.shape, jnp.float64 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)


def clipped_sum(
    model: Model,
    clip: float,
    unravel: Callable[[jax.Array], Any],
    rows: int,
    typical_batch: int | None = 0,
    size: int = 0,
    example: tuple[Any, ...] = (),
    at_a_time: int | None = None,
    lengths: frozenset[int] = frozenset(),
) -> ClippedSum:
    """The clipped sum of a model whose parameters `unravel` makes from a flat vector, for batches of so many rows.

    Most batches hold `typical_batch` of them, or not many more; None: sums are over all rows and not over batches.
    Layers are looked for where the number of parameters and the shapes of a record (`example`) are given. A microbatch
    is `at_a_time` rows, rounded up to a multiple of 8, or as many as are fast and hold little. Arrays in the model's
    functions with an axis of one of the `lengths` are taken for the table.
    """
    all_places, typical_batch = typical_batch is None, typical_batch or 0
    limit = Limit.of(clip, whole_chunks(rows), all_places=all_places)
    linear, layered = model.linear, model.layered
    if linear is not None:
        if linear.outputs:
            return ClippedSum(per_example=MultinomialGLM(linear), clip=clip, limit=limit)
        return ClippedSum(per_example=GLM(linear), clip=clip, limit=limit, typical_batch=typical_batch)

    def dropped(flat: jax.Array, key: jax.Array, *row: Any) -> jax.Array:
        assert layered is not None
        return layered.log_likelihood(Tape(key=key), unravel(flat), *row)

    found = Autodiff(
        log_likelihood=lambda flat, *row: model.log_likelihood(unravel(flat), *row),
        lengths=lengths,
        dropped=dropped if layered is not None and layered.dropout else None,
    )
    ghosts = None if layered is None or not example else ghost_norms(found, layered, unravel, size, example)
    chunk = None
    if at_a_time is not None:
        chunk = min(-(-at_a_time // 8) * 8, CHUNK)
    elif ghosts is not None:
        chunk = microbatch(ghosts.products, size)
    elif size * SMALL > HELD:
        chunk = max(8, HELD // size // 8 * 8)
    if ghosts is not None:
        found = found.unclipped() if math.isinf(clip) else ghosts
    limit = Limit.of(clip, whole_chunks(rows), chunk, all_places)
    return ClippedSum(per_example=found, clip=clip, limit=limit, microbatch=chunk, dropout=found.dropped is not None)
