r"""The scattering transform as a compiled program that takes images one after the other.

    S_0 = x * phi,    S_1 = |x * psi_1| * phi,    S_2 = ||x * psi_1| * psi_2| * phi        (scale of 2 above that of 1)

What a wavelet of scale j finds is kept at every 2^j-th pixel alone: folding a spectrum is exactly that, so the moduli
at these pixels are exact, and only their average is of fewer. The low-pass filter is one matrix for rows and one for
columns, which average and pick the places of the output at once: one in 2^J pixels, symmetric about the middle.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.models.features import wavelets

FLOOR = 1e-7  # added to the mean square of a group, so that rounding in an empty one is not blown up


class Shape(NamedTuple):
    """All that the program depends on; public."""

    rows: int
    columns: int
    colours: int
    order: int
    scales: int
    angles: int
    groups: int
    contrast: bool

    @property
    def channels(self) -> int:
        first, second = self.scales * self.angles, self.angles**2 * self.scales * (self.scales - 1) // 2
        return self.colours * (1 + first + (second if self.order == 2 else 0))

    @property
    def places(self) -> tuple[int, int]:
        """Of the output."""
        return -(-self.rows // 2**self.scales), -(-self.columns // 2**self.scales)

    @property
    def padded(self) -> tuple[int, int]:
        """With a margin of about 2^J pixels on each side."""
        down, right = self.places
        return 2**self.scales * (down + 2), 2**self.scales * (right + 2)

    @property
    def margins(self) -> list[tuple[int, int]]:
        """Pixels before and after the image, along rows and columns."""
        spare = [total - size for total, size in zip(self.padded, (self.rows, self.columns), strict=True)]
        return [(whole // 2, whole - whole // 2) for whole in spare]

    @property
    def size(self) -> int:
        """Of the vector of features."""
        return self.channels * math.prod(self.places)


class Filters(NamedTuple):
    """Arguments of the program: as constants they would be folded through, at length, when it is compiled."""

    first: tuple[np.ndarray, ...]  # by scale: (angles, rows, columns)
    second: tuple[tuple[np.ndarray, ...], ...]  # by scale of what they are applied to, and the larger scales
    averages: tuple[tuple[np.ndarray, np.ndarray], ...]  # by scale: for rows and for columns
    groups: np.ndarray  # (groups, channels): one over the size of its group for each member


@functools.lru_cache(maxsize=4)
def filters(shape: Shape) -> Filters:
    bank, unit = wavelets.bank(*shape.padded, shape.scales, shape.angles), 2**shape.scales
    first = tuple(scale.astype(np.float32) for scale in bank.wavelets)
    second = tuple(
        tuple(_fold(larger, 2**scale).astype(np.float32) * 4**scale for larger in bank.wavelets[scale + 1 :])
        for scale in range(shape.scales - 1)
    )
    averages = tuple(
        (_average(bank.low[0], shape.rows, unit, 2**scale), _average(bank.low[1], shape.columns, unit, 2**scale))
        for scale in range(shape.scales)
    )
    groups = np.zeros((shape.groups, shape.channels), np.float32)
    for number, members in enumerate(np.array_split(np.arange(shape.channels), shape.groups)):
        groups[number, members] = 1 / len(members)
    return Filters(first, second, averages, groups)


def _average(low: np.ndarray, size: int, unit: int, step: int) -> np.ndarray:
    """From every step-th of the padded pixels to the places of the output, one in `unit`."""
    places, padded = -(-size // unit), low.size
    wanted = (padded - size) // 2 + (size - 1 - unit * (places - 1)) / 2 + unit * np.arange(places)
    apart = wanted[:, None] - np.arange(0, padded, step)[None, :]
    waves = np.cos(2 * math.pi * np.fft.fftfreq(padded) * apart[..., None])
    return (waves @ low * step / padded).astype(np.float32)


def _fold(spectrum: Any, step: int) -> Any:
    """The spectrum of every step-th pixel."""
    *some, rows, columns = spectrum.shape
    return spectrum.reshape(*some, step, rows // step, step, columns // step).mean(axis=(-4, -2))


def channels(image: jax.Array, shape: Shape, found: Filters) -> jax.Array:
    """Scattering coefficients (channels, rows, columns) of one image (rows, columns, colours) of floats."""

    def averaged(maps: jax.Array, scale: int) -> jax.Array:
        rows, columns = found.averages[scale]
        return jnp.einsum("pr,...rc,qc->...pq", rows, maps, columns)

    padded = jnp.pad(jnp.moveaxis(image, -1, 0), ((0, 0), *shape.margins), mode="reflect")
    spectrum = jnp.fft.fft2(padded)
    once, twice = [averaged(padded, 0)[:, None]], []
    for scale in range(shape.scales):
        moduli = jnp.abs(jnp.fft.ifft2(_fold(spectrum[:, None] * found.first[scale], 2**scale)))
        once.append(averaged(moduli, scale))
        if shape.order == 1 or scale + 1 == shape.scales:
            continue
        again = jnp.fft.fft2(moduli)[:, :, None]
        for larger, wavelet in enumerate(found.second[scale], start=scale + 1):
            both = jnp.abs(jnp.fft.ifft2(_fold(again * wavelet, 2 ** (larger - scale))))
            twice.append(averaged(both, larger).reshape(shape.colours, -1, *shape.places))
    return jnp.concatenate(once + twice, axis=1).reshape(shape.channels, *shape.places)


def normalise(maps: jax.Array, shape: Shape, found: Filters) -> jax.Array:
    """One row of norm at most 1, of groups of channels with mean 0 and a mean square of at most 1.

    Sums of positive terms err by less than their number in units of the last place, so that much is taken off.
    """
    flat = (_contrast(maps, shape) if shape.contrast else maps).reshape(shape.channels, -1)
    of_group = jnp.sign(found.groups).T
    centred = flat - (of_group @ (found.groups @ jnp.mean(flat, axis=1)))[:, None]
    square = found.groups @ jnp.mean(jnp.square(centred), axis=1)
    scaled = centred * (of_group @ jax.lax.rsqrt(square + FLOOR))[:, None]
    rounding = 2.0**-24 * (16 + shape.channels + flat.shape[1])
    return scaled.ravel() * ((1 - rounding) / math.sqrt(shape.size))


def _contrast(maps: jax.Array, shape: Shape) -> jax.Array:
    """At every place, the coefficients of the same scales less their mean over the angles.

    The mean says how much there is to see at the place, which is much the same for all images of a kind. Whatever
    rows have in common is of no use to tell them apart, and takes up their norm, which the noise is measured by.
    """
    pairs = shape.scales * (shape.scales - 1) // 2 if shape.order == 2 else 0
    sizes = [1] + shape.scales * [shape.angles] + pairs * [shape.angles**2]
    parts = jnp.split(maps.reshape(shape.colours, -1, *shape.places), np.cumsum(sizes)[:-1], axis=1)
    return jnp.concatenate([*parts[:1], *(part - jnp.mean(part, axis=1, keepdims=True) for part in parts[1:])], axis=1)


@functools.partial(jax.jit, static_argnames="shape")
def program(images: jax.Array, count: jax.Array, found: Filters, shape: Shape) -> jax.Array:
    """The features of the first `count` images: each is alone in its turn of the loop, so it does not matter which."""

    def one(i: jax.Array, rows: jax.Array) -> jax.Array:
        return rows.at[i].set(normalise(channels(images[i], shape, found), shape, found))

    with jax.default_matmul_precision("highest"):
        return jax.lax.fori_loop(0, count, one, jnp.zeros((len(images), shape.size), jnp.float32))
