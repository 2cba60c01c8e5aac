"""ResNet-18 (He et al. 2016) at a chosen width, trained step by step: for Table 2 of wu2020. NOT private.

It has the published stem (7 x 7 by twos, a pool by twos) and eight blocks of two convolutions, and differs in two
things, so that two cores can train it: the width, and group norms in the place of batch norms, which leave no running
averages that an ensemble and an attack would have to be told about. Steps are a loop in Python, each compiled: XLA's
convolutions are several times slower within a scan on a CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.audits.optimisers import Rule, State
from confide.audits.training import drop_units

GROUPS = 4
STAGES, BLOCKS = 4, 2
AT_ONCE = 250  # records predicted by one call
Weights = dict[str, Any]


def started(rng: np.random.Generator, width: int) -> Weights:
    """Weights of variance 2 / inputs (He et al. 2015); the second norm of a block starts at zero, as a shortcut."""

    def kernel(size: int, inputs: int, outputs: int) -> jax.Array:
        scale = math.sqrt(2 / (size * size * inputs))
        return jnp.asarray(rng.normal(0.0, scale, (size, size, inputs, outputs)), jnp.float32)

    def norm(channels: int, scale: float = 1.0) -> Weights:
        return {"scale": jnp.full(channels, scale, jnp.float32), "shift": jnp.zeros(channels, jnp.float32)}

    blocks, inputs = [], width
    for stage in range(STAGES):
        for _ in range(BLOCKS):
            outputs = width * 2**stage
            block = {
                "first": kernel(3, inputs, outputs),
                "first_norm": norm(outputs),
                "second": kernel(3, outputs, outputs),
                "second_norm": norm(outputs, 0.0),
            }
            if inputs != outputs:
                block |= {"shortcut": kernel(1, inputs, outputs), "shortcut_norm": norm(outputs)}
            blocks.append(block)
            inputs = outputs
    last = kernel(1, inputs, 2)[0, 0]
    return {"stem": kernel(7, 3, width), "stem_norm": norm(width), "blocks": blocks, "last": last, "bias": last[0] * 0}


def _convolved(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _normed(x: jax.Array, weights: Weights) -> jax.Array:
    """By first and second moments, in one pass over the pixels: a third faster than by differences from the mean."""

    def of_groups(moments: jax.Array) -> jax.Array:
        means = jnp.mean(moments.reshape(len(x), GROUPS, -1), axis=-1)
        return jnp.repeat(means, x.shape[-1] // GROUPS, axis=-1)

    mean, square = of_groups(jnp.mean(x, axis=(1, 2))), of_groups(jnp.mean(jnp.square(x), axis=(1, 2)))
    scale = weights["scale"] * jax.lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0.0) + 1e-5)
    return x * scale[:, None, None] + (weights["shift"] - mean * scale)[:, None, None]


def _pooled(x: jax.Array) -> jax.Array:
    """The largest of 2 x 2, by slices: the gradient of XLA's own pool is slow on a CPU."""
    odd = x.shape[1] % 2
    x = jnp.pad(x, ((0, 0), (0, odd), (0, odd), (0, 0)))
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def scores(weights: Weights, x: jax.Array, dropout: float = 0.0, key: jax.Array | None = None) -> jax.Array:
    x = _pooled(jax.nn.relu(_normed(_convolved(x, weights["stem"], 2), weights["stem_norm"])))
    for number, block in enumerate(weights["blocks"]):
        stride = 2 if "shortcut" in block else 1
        y = jax.nn.relu(_normed(_convolved(x, block["first"], stride), block["first_norm"]))
        if dropout and key is not None:  # between the convolutions of a block (Zagoruyko and Komodakis 2016)
            y = drop_units(jax.random.fold_in(key, number), y, dropout)
        y = _normed(_convolved(y, block["second"]), block["second_norm"])
        if "shortcut" in block:
            x = _normed(_convolved(x, block["shortcut"], stride), block["shortcut_norm"])
        x = jax.nn.relu(x + y)
    return jnp.mean(x, axis=(1, 2)) @ weights["last"] + weights["bias"]


def _loss(weights: Weights, x: jax.Array, y: jax.Array, dropout: float, key: jax.Array) -> jax.Array:
    logarithms = jax.nn.log_softmax(scores(weights, x, dropout, key))
    return -jnp.mean(jnp.take_along_axis(logarithms, y[:, None], axis=1))


@functools.partial(jax.jit, static_argnums=0)
def _gradient(dropout: float, weights: Weights, x: jax.Array, y: jax.Array, key: jax.Array) -> Weights:
    return jax.grad(_loss)(weights, x, y, dropout, key)


@functools.partial(jax.jit, static_argnums=0)
def _moved(rule: Rule, state: State, gradient: Weights, rate: jax.Array, n: jax.Array, key: jax.Array) -> State:
    return rule.step(state, gradient, rate, n, key)


@jax.jit
def _said(weights: Weights, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(scores(weights, x))


def trained(
    rule: Rule,
    records: tuple[np.ndarray, np.ndarray],
    rates: Sequence[float],
    batch_size: int,
    keep: int,
    seed: int,
    *,
    width: int,
    dropout: float = 0.0,
) -> list[Weights]:
    """The last `keep` iterates at the ends of epochs; `rates` has one for each. What fills no batch is left out."""
    x, y = records
    rng, key = np.random.default_rng(seed), jax.random.key(seed, impl="rbg")  # threefry takes long to compile
    state, kept = rule.init(started(rng, width)), []
    steps = len(y) // batch_size
    for epoch, rate in enumerate(rates):
        for number, rows in enumerate(rng.permutation(len(y))[: steps * batch_size].reshape(steps, batch_size)):
            noise_key, dropout_key = jax.random.split(jax.random.fold_in(key, epoch * steps + number))
            gradient = _gradient(dropout, state.weights, jnp.asarray(x[rows]), jnp.asarray(y[rows]), dropout_key)
            state = _moved(rule, state, gradient, jnp.float32(rate), jnp.float32(len(y)), noise_key)
        kept = [*kept[-(keep - 1) :], state.weights] if keep > 1 else [state.weights]
    return kept


def log_probabilities(iterates: Sequence[Weights], x: np.ndarray) -> np.ndarray:
    """Of each iterate, (iterates, records, classes)."""
    places = range(0, len(x), AT_ONCE)
    return np.stack([np.concatenate([_said(one, _part(x, place)) for place in places])[: len(x)] for one in iterates])


def _part(x: np.ndarray, place: int) -> jax.Array:
    """Always of one size, so that it is compiled once."""
    part = x[place : place + AT_ONCE]
    return jnp.asarray(np.pad(part, ((0, AT_ONCE - len(part)), (0, 0), (0, 0), (0, 0))))
