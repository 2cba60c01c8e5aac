"""The only place where privacy noise is drawn, and where it meets the data.

Noise is a function of (key, chain, block of steps), so a resumed run is the same run and no number is used twice.

**The default** draws double-precision normals from threefry with its full 64-bit key. Single-precision normals will
not do: there are 2^23 of them, between -5.4 and 5.2, and one observed coordinate can rule out a neighbour. Sums are
added to in double precision; what is released is rounded to single precision, which hides the spacing of the doubles.

**`noise="secure"`** assumes nothing about floating point (Mironov 2012). Every record's clipped contribution is
rounded to whole multiples of a grid g = (standard deviation) / 2^24, the sum is exact in integers, and the noise is a
Gaussian *rounded to the grid*. A sum of whole numbers plus a rounded Gaussian is the rounding of (sum + Gaussian):
post-processing of the very mechanism that is priced. (A discrete Gaussian is as safe to compute, but it is a
different mechanism, whose price is only close to the Gaussian's.) Rounding a record to the grid moves it by at most
sqrt(d)/2 grid steps, so its sensitivity is clip + g sqrt(d)/2; `secure_multiplier` is the price of that, about one
part in a million.

The rounded Gaussian is exact: 64 random bits are put through the inverse normal distribution in double precision with
a bound on the error, and the few draws (about two in a million) that lie too close to a rounding boundary to decide
are finished with 128 more bits in multiple precision. The bits are SHAKE-256 of a 256-bit key from the operating
system, the chain, the block and the purpose: a standard cryptographic generator in Python's own library. ChaCha20
in jax would keep the draws on the device and cost a page of code that needs its own review; here the draws are made
on the host, and a step takes about three times as long.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from typing import Any, Literal

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from scipy import special

from confide.checks import Refused

Noise = Literal["default", "secure"]
NOISES: tuple[Noise, ...] = ("default", "secure")
GRID = 2.0**24  # grid steps in one standard deviation
COUNT_ROUNDING = 1e-6  # relative: a count of 1 on the grid of secure noise may be off by two steps
UNDECIDED = 2.0**-44  # bound on the relative error of the inverse normal distribution, with a margin of a hundred


def as_key(key: Any) -> jax.Array:
    """A threefry key: from the operating system where it is None, else from an integer or a jax key.

    All 64 bits of an integer count (`jax.random.key` would keep 32).
    """
    if key is None:
        key = secrets.randbits(64)
    if isinstance(key, (bool, float, str, bytes)):
        raise Refused("key is neither an integer nor a jax key: leave it out, and the operating system draws one")
    if isinstance(key, (int, np.integer)):
        if not 0 <= key < 2**64:
            raise Refused(f"key = {key} is out of range: give an integer from 0 to 2^64 - 1, or leave it out")
        words = np.array([int(key) >> 32, int(key) & 0xFFFFFFFF], np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    try:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32), impl="threefry2x32")
    except (AttributeError, TypeError, ValueError):
        raise Refused(
            "key is neither an integer nor a jax key: leave it out, and the operating system draws one"
        ) from None
    if key.shape != () or "threefry2x32" not in str(jax.random.key_impl(key)):
        raise Refused("key is not one threefry key: give jax.random.key(...) or leave it out")
    return key


def derived(key: jax.Array, *labels: object) -> jax.Array:
    """A key of its own for each purpose: SHA-256 of the key and the labels. (`fold_in` would be compiled first.)"""
    secret = np.asarray(jax.random.key_data(key)).tobytes() + repr(labels).encode()
    return as_key(int.from_bytes(hashlib.sha256(secret).digest()[:8], "little"))


def own(source: jax.Array, mark: str) -> jax.Array:
    """The key for this run alone: a number given twice, for other records or other settings, is other noise each time.

    With the same noise, differences of two releases would show records bare.
    """
    secret = np.asarray(jax.random.key_data(source)).tobytes() + bytes.fromhex(mark)
    return as_key(int.from_bytes(hashlib.sha256(secret).digest()[:8], "little"))


def separate(source: Any, label: str) -> Any:
    """Another source of the same kind, for another part of the run."""
    if isinstance(source, SecureSource):
        return SecureSource(hashlib.sha256(source.key + f"confide part {label}".encode()).digest())
    return derived(source, "part", label)


def coins(source: Any, count: int) -> np.ndarray:
    """Fair coins of their own, which share nothing with the noise."""
    if isinstance(source, SecureSource):
        words = source.words("coins", 0, 0, count)
    else:
        words = np.asarray(jax.random.bits(derived(source, "coins"), (count,), jnp.uint32))
    return (words & words.dtype.type(1)).astype(bool)


def normals(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard normals in double precision."""
    return jax.random.normal(key, shape, jnp.float64)


def added(total: jax.Array, scale: jax.Array, standard: jax.Array) -> jax.Array:
    """The noisy sum: standard deviation `scale`."""
    return total.astype(jnp.float64) + scale * standard


def around(point: np.ndarray, scale: float, key: jax.Array, *, spherical: bool = False) -> np.ndarray:
    """A point with noise in double precision: Gaussian of standard deviation `scale` in every coordinate, or spherical.

    Spherical noise has a density proportional to exp(-||b|| / scale): a uniform direction, and a length that is a sum
    of as many exponentials as there are coordinates, which is Gamma distributed.
    """
    with jax.enable_x64(True):
        standard = np.asarray(normals(key, point.shape))
        if spherical:
            lengths = np.asarray(jax.random.exponential(derived(key, "length"), point.shape, jnp.float64))
            standard = standard * (math.fsum(lengths) / math.sqrt(float(standard @ standard)))
    return point + scale * standard


def counted(counts: np.ndarray, scale: float, source: Any) -> np.ndarray:
    """Counts with noise of standard deviation `scale`, rounded to whole numbers."""
    if isinstance(source, SecureSource):
        steps = np.round(counts / (scale / GRID)).astype(np.int64) + source.units(0, 0, counts.shape)
        return np.round(steps * (scale / GRID))
    return np.round(around(counts, scale, source))


def whole(contributions: jax.Array, scale: Any) -> jax.Array:
    """The exact sum of contributions (rows, parameters), each rounded to the grid, in grid steps."""
    steps = jnp.round(contributions.astype(jnp.float64) / (scale / GRID))
    return jnp.sum(steps.astype(jnp.int64), axis=0)


def on_grid(total: jax.Array, scale: Any) -> jax.Array:
    """As a whole number of grid steps: it moves by at most half a step in each coordinate.

    Beyond 2^52 steps it is cut, so that nothing wraps around, and no two points come apart.
    """
    return jnp.clip(jnp.round(total / (scale / GRID)), -(2.0**52), 2.0**52).astype(jnp.int64)


def added_securely(total: jax.Array, scale: Any, units: jax.Array) -> jax.Array:
    """The noisy sum: total and noise in whole grid steps."""
    return (total + units).astype(jnp.float64) * (scale / GRID)


def secure_multiplier(multiplier: np.ndarray | float, dimension: int) -> Any:
    """What the noise multiplier is worth when contributions are rounded: std / (clip + grid sqrt(d) / 2)."""
    return multiplier / (1 + multiplier * math.sqrt(dimension) / (2 * GRID))


class SecureSource:
    """Bits of a cryptographic generator, as Poisson batches and rounded Gaussians."""

    def __init__(self, key: bytes | None = None) -> None:
        self.key = os.urandom(32) if key is None else key

    def words(self, purpose: str, chain: int, block: int, count: int) -> np.ndarray:
        seed = self.key + f"confide {purpose} {chain} {block}".encode()
        return np.frombuffer(hashlib.shake_256(seed).digest(8 * count), "<u8")

    def uniform(self, chain: int, block: int, shape: tuple[int, ...]) -> np.ndarray:
        words = self.words("batches", chain, block, math.prod(shape))
        return (((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)

    def whole(self, chain: int, block: int, shape: tuple[int, ...], below: int) -> np.ndarray:
        """Whole numbers from 0; not for privacy, so that a bias of 2^-32 is none."""
        return (self.words("picked", chain, block, math.prod(shape)) % np.uint64(below)).astype(np.int32).reshape(shape)

    def units(self, chain: int, block: int, shape: tuple[int, ...]) -> np.ndarray:
        count = math.prod(shape)
        words = self.words("noise", chain, block, count)

        def further(place: int) -> int:
            return int.from_bytes(self.words(f"more {place}", chain, block, 2).tobytes(), "little")

        return rounded_gaussian(words, further).reshape(shape)


def rounded_gaussian(words: np.ndarray, further: Any) -> np.ndarray:
    """Round(2^24 Z) for normal Z: one 64-bit word for each, and 128 more bits of `further(place)` where undecided."""
    negative = (words >> np.uint64(63)).astype(bool)
    rank = (words & np.uint64(2**63 - 1)).astype(np.float64)  # P[|Z| > z] = (rank + a uniform) / 2^63
    z = -special.ndtri(np.maximum(rank + 0.5, 0.5) * 2.0**-64)
    scaled = z * GRID
    magnitude = np.floor(scaled + 0.5)
    error = GRID * (
        UNDECIDED * (1 + z) + 1 / np.maximum(rank, 0.5)
    )  # the second: the word's own width, p / density < 1.26
    for place in np.flatnonzero(np.abs(scaled + 0.5 - np.round(scaled + 0.5)) <= 2 * error):
        magnitude[place] = _finished(int(words[place] & np.uint64(2**63 - 1)), further(int(place)))
    return np.where(negative, -magnitude, magnitude).astype(np.int64)


def _finished(rank: int, more: int) -> int:
    with mpmath.workdps(90):
        tail = (mpmath.mpf((rank << 128) + more) + 0.5) / mpmath.mpf(2) ** 191  # P[|Z| > z]
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - tail)
        return int(mpmath.floor(z * int(GRID) + mpmath.mpf(1) / 2))
