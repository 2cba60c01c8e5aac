"""Networks for images: convolutions for digits, and a residual network.

Images are numbers within [0, 1], or whole numbers from 0 to 255 that are divided by 255.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from confide import validation
from confide.models import layers, networks
from confide.models.labels import count_labels
from confide.models.model import Data, Model
from confide.models.priors import LogPrior, Parameters
from confide.models.tapes import Tape
from confide.validation import Refused


def cnn(
    shape: Sequence[int] = (28, 28, 1),
    classes: int | Sequence[Any] = 10,
    convolutions: int | None = None,
    dropout: float = 0.0,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
) -> Model:
    """Convolutions with rectifiers and max-pooling, then two dense layers; `shape` is (height, width, channels).

    Two convolutions (16 filters of 8 x 8, 32 of 4 x 4, both with stride 2) are for digits like those of MNIST; four
    (32, 32, 64 and 64 filters of 3 x 3) for colour images like those of SVHN. By default two where there is one
    channel, else four. X has shape (n, height, width, channels), or (n, height, width) where there is one channel.
    `classes` is their number, or the list of the labels as they stand in y.

    >>> import jax
    >>> weights = cnn().start(jax.random.key(0), ())
    >>> sum(leaf.size for leaf in jax.tree.leaves(weights))
    26010
    """
    height, width, channels = _image(shape)
    (classes, labels), rate = count_labels(classes), networks.share(dropout)
    count = (2 if channels == 1 else 4) if convolutions is None else convolutions
    if count not in (2, 4):
        raise Refused(f"convolutions = {convolutions!r} is unknown: choose 2 or 4")
    steps = _TWO if count == 2 else _FOUR
    left = [_side_after(length, steps) for length in (height, width)]
    if min(left) < 1:
        raise Refused(f"shape = {tuple(shape)} is too small for {count} convolutions: give larger images")
    flat = math.prod(left) * steps[-1][0]
    hidden = 32 if count == 2 else 128

    def start(key: jax.Array, example: Data) -> Parameters:
        first, second, last = jax.random.split(key, 3)
        dense = [networks.dense_layer(second, flat, hidden, 2.0), networks.dense_layer(last, hidden, classes, 1.0)]
        return {"convolutions": _filters(first, steps, channels), "dense": dense}

    def scores(tape: Tape, parameters: Parameters, x: jax.Array) -> jax.Array:
        x = _convolve(tape, parameters["convolutions"], steps, _pixels(x, (height, width, channels)))
        x = jax.nn.relu(layers.dense(tape, tape.dropout(x.ravel(), rate), parameters["dense"][0]))
        return layers.dense(tape, tape.dropout(x, rate), parameters["dense"][1])

    settings = {
        "shape": [height, width, channels],
        "classes": classes if labels is None else list(labels),
        "convolutions": count,
        "dropout": rate,
        "prior_scale": prior_scale,
        "prior": prior,
    }
    return networks.network(
        "cnn",
        scores,
        start,
        settings,
        shape=(height, width, channels),
        outputs=classes,
        dropout=rate > 0,
        labels=labels,
    )


# filters, size, stride, padding, and (size, stride) of the pool that follows
_TWO = ((16, 8, 2, 3, (2, 1)), (32, 4, 2, 0, (2, 1)))
_FOUR = ((32, 3, 1, 1, (2, 2)), (32, 3, 1, 1, (2, 2)), (64, 3, 1, 1, (2, 2)), (64, 3, 1, 1, None))


def _side_after(length: int, steps: Any) -> int:
    """How long a side is after all convolutions and pools; 0 where one of them does not fit."""
    for _, size, stride, padding, pool in steps:
        for size, stride, padding in ((size, stride, padding), *([(*pool, 0)] if pool else [])):  # noqa: B020
            length = max(0, (length + 2 * padding - size) // stride + 1) if length else 0
    return length


def _filters(key: jax.Array, steps: Any, channels: int) -> list[dict[str, jax.Array]]:
    found = []
    for key, (filters, size, *_) in zip(jax.random.split(key, len(steps)), steps, strict=True):  # noqa: B020
        found.append(_convolution(key, size, channels, filters) | {"bias": jnp.zeros(filters, jnp.float32)})
        channels = filters
    return found


def _convolve(tape: Tape, parameters: Any, steps: Any, x: jax.Array) -> jax.Array:
    for layer, (_, _, stride, padding, pool) in zip(parameters, steps, strict=True):
        x = jax.nn.relu(layers.convolution(tape, x, layer, stride, padding))
        if pool is not None:
            x = layers.max_pool(x, *pool)
    return x


def resnet18(
    width: int = 64,
    shape: Sequence[int] = (32, 32, 3),
    classes: int | Sequence[Any] = 10,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
) -> Model:
    """A residual network of 18 layers for small images (He et al. 2016), with group norm in the place of batch norm.

    `width` is the number of channels of the first of its four stages; each later one has twice as many, on images of
    half the size. Groups have 8 channels, or all where there are fewer.
    """
    height, wide, channels = _image(shape)
    width, (classes, labels) = validation.count(width=width), count_labels(classes)
    if width % 8 and width not in (1, 2, 4):
        raise Refused(f"width = {width} does not fall into groups: give 1, 2, 4 or a multiple of 8")
    blocks = [  # channels before, channels after, stride
        (width * 2 ** max(0, stage - (place == 0)) if stage else width, width * 2**stage, 1 + (stage > 0 and not place))
        for stage in range(4)
        for place in range(2)
    ]

    def start(key: jax.Array, example: Data) -> Parameters:
        first, last, *keys = jax.random.split(key, 2 + len(blocks))
        stem = {"convolution": _convolution(first, 3, channels, width), "norm": layers.norm(width)}
        built = [_block(key, *block) for key, block in zip(keys, blocks, strict=True)]
        return {"stem": stem, "blocks": built, "dense": networks.dense_layer(last, 8 * width, classes, 1.0)}

    def scores(tape: Tape, parameters: Parameters, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(_normalise(tape, _pixels(x, (height, wide, channels)), parameters["stem"], 1, 1))
        for layer, (_, _, stride) in zip(parameters["blocks"], blocks, strict=True):
            inner = jax.nn.relu(_normalise(tape, x, layer["first"], stride, 1))
            inner = _normalise(tape, inner, layer["second"], 1, 1)
            x = jax.nn.relu(inner + (_normalise(tape, x, layer["across"], stride, 0) if "across" in layer else x))
        return layers.dense(tape, jnp.mean(x, axis=(0, 1)), parameters["dense"])

    settings = {
        "width": width,
        "shape": [height, wide, channels],
        "classes": classes if labels is None else list(labels),
        "prior_scale": prior_scale,
        "prior": prior,
    }
    sides = (height, wide, channels)
    return networks.network("resnet18", scores, start, settings, shape=sides, outputs=classes, labels=labels)


def _block(key: jax.Array, before: int, after: int, stride: int) -> dict[str, Any]:
    first, second, across = jax.random.split(key, 3)
    found = {
        "first": {"convolution": _convolution(first, 3, before, after), "norm": layers.norm(after)},
        "second": {"convolution": _convolution(second, 3, after, after), "norm": layers.norm(after)},
    }
    if stride > 1 or before != after:
        found["across"] = {"convolution": _convolution(across, 1, before, after), "norm": layers.norm(after)}
    return found


def _normalise(tape: Tape, x: jax.Array, part: dict[str, Any], stride: int, padding: int) -> jax.Array:
    x = layers.convolution(tape, x, part["convolution"], stride, padding)
    return layers.group_norm(x, part["norm"], max(1, x.shape[-1] // 8))


def _convolution(key: jax.Array, size: int, before: int, after: int) -> dict[str, jax.Array]:
    shape = (size, size, before, after)
    return {"weights": layers.start_weights(key, shape, math.sqrt(2 / (size * size * before)))}


def _image(shape: Sequence[int]) -> tuple[int, int, int]:
    found = tuple(validation.count(shape=length) for length in shape)
    if len(found) == 2:
        found = (*found, 1)
    if len(found) != 3:
        raise Refused(f"shape = {tuple(shape)} is no image: give (height, width, channels)")
    return found


def _pixels(x: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
    x = x.reshape(shape)
    return x / jnp.float32(255) if jnp.issubdtype(x.dtype, jnp.integer) else x
