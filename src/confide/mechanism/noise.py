"""The only place where privacy noise is drawn, and where it meets the data.

Noise is a function of (key, chain, block of steps), so a resumed run is the same run and no number is used twice.

**On a grid.** What noise of standard deviation s is added to is first rounded to whole multiples of s / 2^26, and the
noise is a Gaussian *rounded to the grid*, exactly (`exact_rounding`); the sum is one of whole numbers. A whole number
plus a rounded Gaussian is the rounding of (whole number + Gaussian): post-processing of the very mechanism that is
priced. (A discrete Gaussian is as safe to compute, but it is a different mechanism, whose price is only close to the
Gaussian's.) Every whole number can come out whatever the records are, so no output rules out a neighbour.

What rounding costs is said in `mechanism.grid`.

**The default** draws on the device from threefry with its full 64-bit key, and rounds the sum; the error of the sum
itself, in floating point, is allowed for in the clip (`mechanism.clipping`). One release of a baseline takes its bits
from SHAKE-256 of such a key.

**Secure** noise assumes nothing about floating point (Mironov 2012): every record's clipped contribution is rounded by
itself and the sum is exact in integers. Its bits are SHAKE-256 of a 256-bit key from the operating system, the chain,
the block and the purpose: a standard cryptographic generator in Python's own library. ChaCha20 in jax would keep the
draws on the device and cost a page of code that needs its own review; here the bits are made on the host, and a step
takes about three times as long.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism import exact_rounding
from confide.mechanism.exact_rounding import GRID
from confide.validation import Refused

Noise = Literal["default", "secure"]
NOISES: tuple[Noise, ...] = ("default", "secure")
COUNTED = 2.0**51  # steps that double precision is trusted with


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


def derive_key(key: jax.Array, *labels: object) -> jax.Array:
    """A key of its own for each purpose: SHA-256 of the key and the labels. (`fold_in` would be compiled first.)"""
    secret = _secret(key) + repr(labels).encode()
    return as_key(int.from_bytes(hashlib.sha256(secret).digest()[:8], "little"))


def own(source: jax.Array, mark: str) -> jax.Array:
    """The key for this run alone: a number given twice, for other records or other settings, is other noise each time.

    With the same noise, differences of two releases would show records bare.
    """
    secret = _secret(source) + bytes.fromhex(mark)
    return as_key(int.from_bytes(hashlib.sha256(secret).digest()[:8], "little"))


def separate(source: Any, label: str) -> Any:
    """Another source of the same kind, for another part of the run."""
    if isinstance(source, SecureSource):
        return SecureSource(hashlib.sha256(source.key + f"confide part {label}".encode()).digest())
    return derive_key(source, "part", label)


def coins(source: Any, count: int) -> np.ndarray:
    """Fair coins of their own, which share nothing with the noise."""
    if isinstance(source, SecureSource):
        words = source.words("coins", 0, 0, count)
    else:
        words = np.asarray(jax.random.bits(derive_key(source, "coins"), (count,), jnp.uint32))
    return (words & words.dtype.type(1)).astype(bool)


def normals(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard normals in double precision. They have a lattice: nothing that is private may rest on them."""
    return jax.random.normal(key, shape, jnp.float64)


class WholeSteps(NamedTuple):
    """The sum of a batch in grid steps: whole numbers of at most 2^51, which double precision holds exactly.
    Conversions to integers and back would take a twentieth of a small step's time."""

    steps: jax.Array


def add_noise(total: jax.Array | WholeSteps, scale: Any, units: jax.Array) -> jax.Array:
    """The noisy sum, of standard deviation `scale`: a total and noise, both in whole grid steps and added exactly.

    Only here it becomes a floating point number that is not whole.
    """
    if isinstance(total, WholeSteps):
        return (total.steps + units) * (scale / GRID)
    assert jnp.issubdtype(total.dtype, jnp.integer), "a sum that was not rounded to the grid"
    return (total + units.astype(jnp.int64)).astype(jnp.float64) * (scale / GRID)


def unrounded(total: jax.Array, scale: Any, units: jax.Array) -> jax.Array:
    """The noisy sum where nothing is promised, and nothing rounded: it may be beyond the grid."""
    return total.astype(jnp.float64) + scale / GRID * units


@dataclass(frozen=True)
class Rounding:
    """What is rounded to the grid of the noise: `SUMS`, `CONTRIBUTIONS` (secure), or, without a guarantee, `NONE`."""

    moved: float  # steps by which it takes two neighbours apart at most, in each coordinate

    def lost(self, coordinates: int) -> float:
        """By how many standard deviations of the noise rounding adds to what one record moves."""
        return self.moved * math.sqrt(coordinates) / GRID

    def worth(self, multiplier: Any, coordinates: int) -> Any:
        """What a noise multiplier is worth beside the rounding."""
        return multiplier / (1 + multiplier * self.lost(coordinates))


SUMS, CONTRIBUTIONS, NONE = Rounding(2.0), Rounding(1.0), Rounding(0.0)


def multiplier_needed(wanted: np.ndarray, taken: float) -> np.ndarray:
    """The noise multiplier that is worth the one that is wanted, where rounding takes so much (`rounding_loss`)."""
    room = 1 - wanted * taken
    if np.min(room) <= 0.5:
        raise Refused(
            f"the budget asks for noise of {np.max(wanted):.3g} times what one record can move, and rounding to the "
            "grid of such noise would move as much as a record: raise the budget, or take fewer steps or parameters"
        )
    return wanted / room


def wide(scale: float, sensitivity: float, coordinates: int) -> float:
    """The scale to draw with, for noise that is worth `scale` where the point is rounded to the grid before."""
    return sensitivity * float(multiplier_needed(np.array(scale / sensitivity), SUMS.lost(coordinates)))


def around(point: np.ndarray, scale: float, source: Any, *, spherical: bool = False, grid: float = GRID) -> np.ndarray:
    """A point with noise: Gaussian of standard deviation `scale` in every coordinate, or spherical.

    Spherical noise has a density proportional to exp(-||b|| / scale). The point is rounded to the grid of the noise
    first: give a scale of `wide`.
    """
    stream = source if isinstance(source, SecureSource) else SecureSource(_secret(source))
    if spherical:
        units = exact_rounding.spherical(point.size, stream.first, grid).reshape(point.shape)
    else:
        with jax.enable_x64(True):
            units = np.asarray(draw_units(stream, 0, 0, point.shape, grid=grid)).astype(np.int64)
    return (_nearest(point, scale / grid) + units).astype(np.float64) * (scale / grid)


def around_steps(steps: np.ndarray, scale: float, source: Any) -> np.ndarray:
    """Whole numbers of grid steps with Gaussian noise of standard deviation `scale`, which is of whole steps too."""
    step = scale / GRID
    units = np.round(around(np.zeros(steps.shape), scale, source) / step).astype(np.int64)
    return (steps + units).astype(np.float64) * step


def _nearest(point: np.ndarray, step: float) -> np.ndarray:
    """Whole numbers of steps; in fractions where double precision would not do, so that nothing need be cut."""
    found = np.asarray(point, np.float64) / step
    if np.all(np.abs(found) <= COUNTED):
        return np.round(found).astype(np.int64)
    exact = [round(Fraction(value) / Fraction(step)) for value in np.ravel(point).tolist()]
    return np.array(exact, object).reshape(found.shape)


def noisy_counts(counts: np.ndarray, scale: float, source: Any) -> np.ndarray:
    """Counts with noise of standard deviation `scale`, rounded to whole numbers."""
    return np.round(around(counts, scale, source))


def key_of(source: Any, chain: int) -> jax.Array:
    """A key for all that a chain draws beside its batches and its noise."""
    if isinstance(source, SecureSource):
        return as_key(int(source.words("key", chain, 0, 1)[0]))
    return KeyedSource.of(source).key("other", chain)


def draw_units(
    source: Any, chain: int, block: int, shape: tuple[int, ...], purpose: str = "noise", grid: float = GRID
) -> jax.Array:
    """Rounded Gaussians in grid steps."""
    finish = functools.partial(exact_rounding.finish_gaussian, grid)
    return _draw(exact_rounding.gaussian, (grid,), finish, source, purpose, chain, block, shape)


def draw_gaps(source: Any, chain: int, block: int, shape: tuple[int, ...], q: float, most: int) -> jax.Array:
    """How many records are passed over before the next one is chosen, each with probability q; at most `most`."""
    finish = functools.partial(exact_rounding.finish_gap, q, most)
    return _draw(exact_rounding.gap, (1 / math.log1p(-q), float(most)), finish, source, "batches", chain, block, shape)


def _draw(
    rule: Callable[..., tuple[jax.Array, jax.Array]],
    settings: tuple[float, ...],
    finish: Callable[[int, Callable[[int], int]], int],
    source: Any,
    purpose: str,
    chain: int,
    block: int,
    shape: tuple[int, ...],
) -> jax.Array:
    """What a rule makes of 64-bit words of their own for every purpose, chain and block; finished where need be."""
    count = math.prod(shape)
    if isinstance(source, SecureSource):
        words: Any = jnp.asarray(source.words(purpose, chain, block, count))
    else:
        source = KeyedSource.of(source)
        words = source.key(purpose, chain)
    values, some = _apply_rule(rule, shape, words, block, settings)
    if not some:
        return values
    every = _bits(words, block, count)
    _, undecided = rule(every, *settings)
    places = np.flatnonzero(np.asarray(undecided)).tolist()
    stream = source if isinstance(source, SecureSource) else SecureSource(_secret(source.whole))

    def more(place: int, number: int) -> int:
        """128 bits more, for the few words that do not tell enough."""
        return int.from_bytes(stream.words(f"more {purpose} {place} {number}", chain, block, 2).tobytes(), "little")

    drawn = zip(places, np.asarray(every)[places].tolist(), strict=True)
    found = [finish(word, functools.partial(more, place)) for place, word in drawn]
    whole = np.array(values)
    whole.ravel()[places] = found
    return jnp.asarray(whole)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _apply_rule(rule: Any, shape: tuple[int, ...], words: jax.Array, block: Any, settings: Any) -> tuple[Any, Any]:
    values, undecided = rule(_bits(words, block, math.prod(shape)), *settings)
    return values.reshape(shape), jnp.any(undecided)


@functools.partial(jax.jit, static_argnums=2)
def _bits(words: jax.Array, block: Any, count: int) -> jax.Array:
    """Words as they are, or those of a key for the block."""
    keyed = jnp.issubdtype(words.dtype, jax.dtypes.prng_key)
    return jax.random.bits(jax.random.fold_in(words, block), (count,), jnp.uint64) if keyed else words


def _secret(key: jax.Array) -> bytes:
    return np.asarray(jax.random.key_data(key)).tobytes()


class KeyedSource:
    """A threefry key, and those that have been derived from it: deriving one takes as long as a step of a run."""

    def __init__(self, key: jax.Array) -> None:
        self.whole = key
        self._derived: dict[tuple[str, int], jax.Array] = {}

    @staticmethod
    def of(source: Any) -> KeyedSource:
        return source if isinstance(source, KeyedSource) else KeyedSource(source)

    def key(self, purpose: str, chain: int) -> jax.Array:
        if (purpose, chain) not in self._derived:
            self._derived[purpose, chain] = derive_key(self.whole, purpose, "chain", chain)
        return self._derived[purpose, chain]


class SecureSource:
    """Bits of a cryptographic generator: SHAKE-256 of a key, by default one of the operating system."""

    def __init__(self, key: bytes | None = None) -> None:
        self.key = os.urandom(32) if key is None else key

    def words(self, purpose: str, chain: int, block: int, count: int) -> np.ndarray:
        seed = self.key + f"confide {purpose} {chain} {block}".encode()
        return np.frombuffer(hashlib.shake_256(seed).digest(8 * count), "<u8")

    def first(self, number: int, bits: int) -> int:
        """The first bits of a stream of its own for every number."""
        seed = self.key + f"confide stream {number}".encode()
        return int.from_bytes(hashlib.shake_256(seed).digest(bits // 8), "big")
