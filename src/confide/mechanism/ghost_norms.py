r"""Norms of the gradients of single records, and weighted sums of those gradients, from one pass over a batch.

With P the rows of a layer's product for one record, D the signal that comes back (`confide.models.tapes`), the record's
gradient is P^T D, and of its bias the sum of the rows of D:

| layer                               | norm of P^T D                     | weighted sum over records        |
|-------------------------------------|-----------------------------------|----------------------------------|
| dense: one row p, d                 | \|\|p\|\| \|\|d\|\|               | one product of matrices          |
| convolution: several rows           | of P^T D itself                   | of the same P^T D                |
| the same, with large weights        | sqrt(tr P P^T D D^T), see below   | one product, in double precision |
| parameters that no tape knows       | of the gradient, record by record | of the same gradients            |

A layer is large above `LARGE` weights: then holding P^T D for every record would be most of the memory and time.

**Rounding.** What is weighted in the first, second and last row is what was measured, up to rounding of each entry. A
trace can cancel: it is off by at most (inputs + outputs + rows^2) u \|\|P\|\|^2 \|\|D\|\|^2 in single precision, u its
unit roundoff, which is added to it, so that a record is never taken for shorter than it is; and since the terms of its
sum may be longer than the clip, that is taken in double precision. Norms are of rows scaled by their largest
entry and products of norms, never of squares, so that a tiny P cannot hide a huge D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism.per_example import TINY, Autodiff, Batch, Limit, Sum, column, most, once, row_norms
from confide.models.programs import checked
from confide.models.tapes import Layered, Product, Tape, discover

LARGE = 2**18  # weights of a layer whose gradients are not held
AT_ONCE = 2**20  # numbers that a microbatch should hold, to stay near the processor


class Measurements(NamedTuple):
    """What one pass over a batch tells: per product either its gradients or what they follow from."""

    parts: list[tuple[jax.Array, ...]]
    own: list[jax.Array]  # gradients of the parameters that no product has, record by record
    norms: jax.Array  # of all parameters together


@dataclass(frozen=True, kw_only=True)
class GhostNorms(Autodiff):
    """A network, whose layers tell the norms of the gradients before any gradient is made."""

    layered: Layered
    unravel: Callable[[jax.Array], Any]
    products: tuple[Product, ...]

    @property
    def known(self) -> frozenset[int]:
        return frozenset(place for each in self.products for place in (each.weights, each.bias) if place is not None)

    def total(self, position: jax.Array, batch: Batch, limit: Limit, key: jax.Array | None) -> Sum:
        found = self.measure(position, batch.arrays, self.keys(batch, key))
        finite = jnp.isfinite(found.norms)
        scale = jnp.minimum(1.0, most(batch, limit) / jnp.maximum(found.norms, TINY))
        scale = jnp.where(finite & batch.real, scale, 0.0)
        return Sum(self.weighted_sum(position, found, scale, limit.double), jnp.sum(batch.real & ~finite))

    def norms(self, position: jax.Array, batch: Batch, limit: Limit) -> jax.Array:
        norms = self.measure(position, batch.arrays, None).norms
        return jnp.where(batch.real & jnp.isfinite(norms), jnp.minimum(norms, most(batch, limit)), 0.0)

    def measure(self, position: jax.Array, arrays: tuple[jax.Array, ...], keys: jax.Array | None) -> Measurements:
        (signals, gradients), rows = once(lambda here: self._passed(here, arrays, keys), position)
        parts, norms = [], []
        for each, row, signal in zip(self.products, rows, signals, strict=True):
            part, norm = _measure(each, row, signal)
            parts.append(part)
            norms.append(norm)
        others = [gradients[place] for place in sorted(gradients)]
        norms += [row_norms(gradient.reshape(len(gradient), -1)) for gradient in others]
        return Measurements(parts, others, row_norms(jnp.stack(norms, axis=1)))

    def _passed(self, position: jax.Array, arrays: tuple[jax.Array, ...], keys: jax.Array | None) -> Any:
        """One pass forwards and backwards: ((signals, gradients of all other parameters), what goes into products)."""
        leaves, structure = jax.tree.flatten(self.unravel(position))
        own = {place: leaf for place, leaf in enumerate(leaves) if place not in self.known}

        def loss(
            taps: list[jax.Array], own: dict[int, jax.Array], leaves: list[jax.Array], key: Any, *row: jax.Array
        ) -> Any:
            given: list[jax.Array] = [own.get(place, leaf) for place, leaf in enumerate(leaves)]  # type: ignore[misc]
            tape = Tape(given, leaves, taps, self.known, key)
            return -self.layered.log_likelihood(tape, jax.tree.unflatten(structure, given), *row), tape.rows

        taps = [jnp.zeros((each.rows, each.outputs), position.dtype) for each in self.products]
        of_records = (None, None, None, None if keys is None else 0, *[0] * len(arrays))
        record = checked(jax.grad(loss, argnums=(0, 1), has_aux=True), "log_likelihood", self.lengths)
        return jax.vmap(record, of_records)(taps, own, leaves, keys, *arrays)

    def weighted_sum(self, position: jax.Array, found: Measurements, weights: jax.Array, double: bool) -> jax.Array:
        """The flat sum of the gradients, each with its weight; those of weight 0 may hold anything."""
        leaves = jax.tree.leaves(self.unravel(position))
        kept = weights > 0

        def real(part: jax.Array) -> jax.Array:
            return jnp.where(column(kept, part), part, 0.0)

        sums: dict[int, jax.Array] = {}
        for each, part in zip(self.products, found.parts, strict=True):
            matrix, bias = _sum_layers(each, tuple(map(real, part)), weights, double)
            sums[each.weights] = each.as_leaf(matrix, leaves[each.weights].shape)
            if each.bias is not None:
                sums[each.bias] = bias
        others = [place for place in range(len(leaves)) if place not in self.known]
        for place, gradient in zip(others, found.own, strict=True):
            sums[place] = _times(weights, real(gradient), double)
        with jax.enable_x64(True):
            flat = [sums[place].ravel() for place in range(len(leaves))]
            wide = jnp.result_type(*flat)
            return jnp.concatenate([leaf.astype(wide) for leaf in flat])


def microbatch(products: tuple[Product, ...], size: int) -> int:
    """How many records to take at a time: a multiple of 8 that keeps what is held near the processor."""
    held = sum(each.rows * (each.inputs + each.outputs) for each in products)
    held += sum(each.inputs * each.outputs for each in products if each.rows > 1 and not _large(each))
    known = sum(each.inputs * each.outputs + (each.bias is not None) * each.outputs for each in products)
    return int(np.clip(AT_ONCE // max(1, held + max(0, size - known)) // 8 * 8, 8, 256))


def ghost_norms(
    record: Autodiff, layered: Layered, unravel: Callable[[jax.Array], Any], size: int, example: tuple[Any, ...]
) -> GhostNorms | None:
    """None where no layer is known; `record` differentiates one at a time, and `example` has the shapes of one."""
    parameters = jax.eval_shape(unravel, jax.ShapeDtypeStruct((size,), np.float32))
    products = discover(layered, parameters, example)
    if not products:
        return None
    return GhostNorms(
        log_likelihood=record.log_likelihood,
        lengths=record.lengths,
        dropped=record.dropped,
        layered=layered,
        unravel=unravel,
        products=products,
    )


def _large(each: Product) -> bool:
    size = each.inputs * each.outputs
    return size > LARGE and each.rows * (each.inputs + each.outputs) < size


def _measure(each: Product, rows: jax.Array, signals: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """What the gradients of the layer follow from, and their norms."""
    if each.rows == 1:
        rows, signals = rows[:, 0], signals[:, 0]
        inputs = row_norms(rows)
        if each.bias is not None:
            inputs = jnp.hypot(inputs, jnp.ones((), inputs.dtype))
        return (rows, signals), inputs * row_norms(signals)
    bias = jnp.sum(signals, axis=1)
    if _large(each):
        norms = _trace_norm(each, rows, signals)
        parts = (rows, signals, bias)
    else:
        gradients = jnp.einsum("bti,bto->bio", rows, signals)
        norms = row_norms(gradients.reshape(len(gradients), -1))
        parts = (gradients, bias)
    return parts, norms if each.bias is None else jnp.hypot(norms, row_norms(bias))


def _trace_norm(each: Product, rows: jax.Array, signals: jax.Array) -> jax.Array:
    """sqrt(tr P P^T D D^T) and what it may be off by, of rows and signals scaled to norm 1."""
    sizes = [row_norms(part.reshape(len(part), -1)) for part in (rows, signals)]
    unit = [part / jnp.maximum(size, TINY)[:, None, None] for part, size in zip((rows, signals), sizes, strict=True)]
    left, right = (jnp.einsum("bsi,bti->bst", part, part) for part in unit)
    off = (each.inputs + each.outputs + each.rows**2 + 8) * 2.0**-23
    return sizes[0] * sizes[1] * jnp.sqrt(jnp.maximum(jnp.sum(left * right, axis=(1, 2)), 0.0) + off)


def _sum_layers(
    each: Product, parts: tuple[jax.Array, ...], weights: jax.Array, double: bool
) -> tuple[jax.Array, jax.Array]:
    if each.rows == 1:
        rows, signals = parts
        scaled = weights[:, None] * signals
        return _product(rows, scaled, double), _times(weights, signals, double)
    if _large(each):
        rows, signals, bias = parts
        scaled = (weights[:, None, None] * signals).reshape(-1, each.outputs)
        return _product(rows.reshape(-1, each.inputs), scaled, True), _times(weights, bias, double)
    gradients, bias = parts
    return _times(weights, gradients, double), _times(weights, bias, double)


def _product(left: jax.Array, right: jax.Array, double: bool) -> jax.Array:
    if not double:
        return left.T @ right
    with jax.enable_x64(True):
        return left.astype(jnp.float64).T @ right.astype(jnp.float64)


def _times(weights: jax.Array, values: jax.Array, double: bool) -> jax.Array:
    if not double:
        return jnp.tensordot(weights, values, (0, 0))
    with jax.enable_x64(True):
        return jnp.tensordot(weights.astype(jnp.float64), values.astype(jnp.float64), (0, 0))
