"""Layers of one record, written so that a processor runs them fast: images have shape (height, width, channels).

A convolution is a product of patches with a matrix, because XLA's own convolution is far slower inside a compiled loop
than outside; and a max-pool is a maximum over shifted slices, whose gradient is faster than that of XLA's.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from confide.models.tapes import Tape

GROUP_ROUNDING = 1e-5


def patches(x: jax.Array, size: int, stride: int, padding: int) -> jax.Array:
    """Shape (height', width', size * size * channels), ordered by row, column and channel."""
    if padding:
        x = jnp.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    height, width = ((length - size) // stride + 1 for length in x.shape[:2])
    shifted = [
        x[i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
        for i in range(size)
        for j in range(size)
    ]
    return shifted[0] if size == 1 else jnp.concatenate(shifted, axis=-1)


def convolution(tape: Tape, x: jax.Array, layer: dict[str, jax.Array], stride: int = 1, padding: int = 0) -> jax.Array:
    """`layer["weights"]` has shape (size, size, channels, channels')."""
    weights = layer["weights"]
    return tape.product(patches(x, weights.shape[0], stride, padding), weights, layer.get("bias"))


def dense(tape: Tape, x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    return tape.product(x, layer["weights"], layer.get("bias"))


def max_pool(x: jax.Array, size: int = 2, stride: int = 2) -> jax.Array:
    height, width = ((length - size) // stride + 1 for length in x.shape[:2])
    best = None
    for i in range(size):
        for j in range(size):
            part = x[i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
            best = part if best is None else jnp.maximum(best, part)
    assert best is not None
    return best


def norm(channels: int) -> dict[str, jax.Array]:
    """What a group norm starts with."""
    return {"scale": jnp.ones(channels, jnp.float32), "shift": jnp.zeros(channels, jnp.float32)}


def group_norm(x: jax.Array, layer: dict[str, jax.Array], groups: int) -> jax.Array:
    """Mean 0 and variance 1 within each group of channels of this one image, then scale and shift."""
    height, width, channels = x.shape
    grouped = x.reshape(height * width, groups, channels // groups)
    centred = grouped - jnp.mean(grouped, axis=(0, 2), keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=(0, 2), keepdims=True)
    normal = (centred * jax.lax.rsqrt(variance + GROUP_ROUNDING)).reshape(x.shape)
    return normal * layer["scale"] + layer["shift"]


def start_weights(key: jax.Array, shape: tuple[int, ...], deviation: float) -> jax.Array:
    """Random weights that a network starts from, of mean 0 and this standard deviation; nearly normal.

    Each is a sum of eight random bytes, times one number: whole numbers and one product are the same on every
    processor. `jax.random.normal` differs in its last bits, and the start enters the fingerprint of a run.
    """
    words = jax.random.bits(key, (2, *shape), jnp.uint32)
    each = jnp.stack([(words >> shift) & 0xFF for shift in (0, 8, 16, 24)])
    total = jnp.sum(each.astype(jnp.int32), axis=(0, 1), dtype=jnp.int32)  # from 0 to 2040
    return (total - 1020).astype(jnp.float32) * jnp.float32(deviation / math.sqrt(8 * (256**2 - 1) / 12))
