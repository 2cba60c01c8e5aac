"""Clipped gradient sums: what a step learns about the records, and the most that one record can change it.

The gradient of one record is g_i = -grad log p(d_i | theta). With a factor A (the identity, a diagonal or a matrix)
it is looked at as A^T g_i, scaled down to norm `clip` where it is longer, and summed over the batch. It is a SUM, so

    adding or removing a record moves it by at most clip, replacing one by at most 2 clip.

| record                        | contributes |
|-------------------------------|-------------|
| an empty place of the buffer  | nothing     |
| gradient zero                 | nothing     |
| gradient NaN or infinite      | nothing; counted in `ignored`, which never leaves the computation |
| norm above `clip`             | its direction, with norm `clip` |

Generalised linear models take one pass over the batch and hold no gradient per record: ||g_i|| = |r_i| ||x_i||. All
else is differentiated record by record (vmap). Norms are computed in single precision, so records are cut to
clip (1 - 2^-16), which leaves room for the rounding. Adding up rounds too, by about 1e-7 of the sum: with
`noise="secure"` contributions are whole multiples of a grid, and the sum is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from confide.events import SENSITIVITY, Neighbours
from confide.models.model import Linear, Model

ROUNDING = 2.0**-16  # relative; a norm of 1e5 terms in single precision is better than this


class Sum(NamedTuple):
    total: jax.Array
    ignored: jax.Array  # number of records whose gradient was not finite; private


class Batch(NamedTuple):
    """The rows of a batch and which of them are real."""

    arrays: tuple[jax.Array, ...]
    real: jax.Array
    reach: jax.Array | None  # clip / ||x||, for linear models


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """The sum of the clipped gradients of a batch, for parameters given as one flat vector."""

    log_likelihood: Callable[..., jax.Array]  # (flat parameters, *example)
    linear: Linear | None
    clip: float  # inf: no clipping, and no sensitivity

    def sensitivity(self, neighbours: Neighbours) -> float:
        """The most that the sum moves between neighbouring datasets, in the norm of A^T."""
        return self.clip * SENSITIVITY[neighbours]

    def reach(self, data: tuple[jax.Array, ...]) -> jax.Array | None:
        """clip / ||x|| of every row, which linear models need at every step: computed once."""
        if self.linear is None or math.isinf(self.clip):
            return None
        squares = jnp.sum(jnp.square(data[0]), axis=1) + (1.0 if self.linear.intercept else 0.0)
        return jnp.float32(self.clip * (1 - ROUNDING)) / jnp.sqrt(squares)

    def batch(self, data: tuple[jax.Array, ...], reach: jax.Array | None, rows: jax.Array | None) -> Batch:
        """The rows of one batch; all of them where rows is None."""
        n = data[0].shape[0]
        if rows is None:
            return Batch(data, jnp.ones(n, bool), reach)
        places = jnp.minimum(rows, n - 1)
        taken = [array.at[places].get(mode="promise_in_bounds") for array in data]
        return Batch(tuple(taken), rows < n, None if reach is None else reach[places])

    def __call__(self, position: jax.Array, batch: Batch, factor: jax.Array | None = None) -> Sum:
        """The clipped sum, seen through the factor."""
        if self.linear is None:
            return self._summed(*self._gradients(position, batch), factor)
        inputs, residual = self._residual(position, batch)
        finite = jnp.isfinite(_norms(residual)) & batch.real
        residual = jnp.where(_column(finite, residual), residual, 0.0)
        if not math.isinf(self.clip):
            residual = self._cut(inputs, residual, batch, factor)
        total = jnp.tensordot(inputs, residual, (0, 0)).ravel()
        return Sum(_seen(total[None], factor)[0], jnp.sum(batch.real & ~finite))

    def contributions(self, position: jax.Array, batch: Batch, factor: jax.Array | None = None) -> jax.Array:
        """The clipped gradient of every record, shape (rows, parameters); zero for empty places."""
        gradients, finite = self._gradients(position, batch)
        return self._clipped(_seen(jnp.where(finite[:, None], gradients, 0.0), factor))

    def _clipped(self, gradients: jax.Array) -> jax.Array:
        if math.isinf(self.clip):
            return gradients
        norms = _norms(gradients)
        return jnp.where(jnp.isfinite(norms)[:, None], gradients, 0.0) * self._scales(norms)[:, None]

    def _scales(self, norms: jax.Array) -> jax.Array:
        """min(1, clip / norm); 0 where the norm is beyond single precision."""
        limit = jnp.float32(self.clip * (1 - ROUNDING))
        return jnp.where(jnp.isfinite(norms), jnp.minimum(1.0, limit / jnp.maximum(norms, 1e-30)), 0.0)

    def _summed(self, gradients: jax.Array, finite: jax.Array, factor: jax.Array | None) -> Sum:
        seen = self._clipped(_seen(jnp.where(finite[:, None], gradients, 0.0), factor))
        return Sum(jnp.sum(seen, axis=0), jnp.sum(~finite))

    def _gradients(self, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Gradients of all records, and which are finite; an empty place has gradient zero."""
        if self.linear is not None:
            inputs, residual = self._residual(position, batch)
            gradients = (inputs[:, :, None] * residual.reshape(len(inputs), 1, -1)).reshape(len(inputs), -1)
        else:
            gradients = -jax.vmap(jax.grad(self.log_likelihood), (None, *[0] * len(batch.arrays)))(
                position, *batch.arrays
            )
        gradients = jnp.where(batch.real[:, None], gradients, 0.0)
        return gradients, jnp.isfinite(jnp.sum(jnp.abs(gradients), axis=1))

    def _residual(self, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        assert self.linear is not None
        inputs, labels = batch.arrays
        if self.linear.intercept:  # first in the flat parameters: "intercept" sorts before "weights"
            inputs = jnp.concatenate([jnp.ones((len(inputs), 1), inputs.dtype), inputs], axis=1)
        weights = position.reshape(inputs.shape[1], *self.linear.outputs)
        return inputs, self.linear.residual(inputs @ weights, labels)

    def _cut(self, inputs: jax.Array, residual: jax.Array, batch: Batch, factor: jax.Array | None) -> jax.Array:
        """The residuals, scaled down where |A^T (x outer r)| is above the clip."""
        if factor is None:
            reach = batch.reach
            assert reach is not None
            if residual.ndim == 1:
                return jnp.clip(residual, -reach, reach)
            return residual * jnp.minimum(1.0, reach / jnp.maximum(_norms(residual), 1e-30))[:, None]
        flat = residual.reshape(len(inputs), -1)
        if factor.ndim == 1:
            squares = jnp.square(inputs) @ jnp.square(factor).reshape(inputs.shape[1], -1)
            norms = jnp.sqrt(jnp.sum(squares * jnp.square(flat), axis=1))
        elif residual.ndim == 1:
            norms = jnp.abs(residual) * _norms(inputs @ factor)
        else:
            whole = (inputs[:, :, None] * flat[:, None, :]).reshape(len(inputs), -1)
            norms = _norms(whole @ factor)
        return residual * _column(self._scales(norms), residual)


def _norms(rows: jax.Array) -> jax.Array:
    return jnp.abs(rows) if rows.ndim == 1 else jnp.sqrt(jnp.sum(jnp.square(rows), axis=1))


def _column(values: jax.Array, like: jax.Array) -> jax.Array:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _seen(gradients: jax.Array, factor: jax.Array | None) -> jax.Array:
    if factor is None:
        return gradients
    return gradients * factor if factor.ndim == 1 else gradients @ factor


def clipped_sum(model: Model, clip: float, unravel: Callable[[jax.Array], Any]) -> ClippedSum:
    """The clipped sum of a model whose parameters `unravel` makes from a flat vector."""
    return ClippedSum(
        log_likelihood=lambda flat, *example: model.log_likelihood(unravel(flat), *example),
        linear=model.linear,
        clip=clip,
    )
