"""Poisson batches in buffers of fixed size.

Every record enters every batch independently with probability q. Record by record that costs O(n) a step; the gaps
between the chosen records are geometric, so drawing the gaps costs O(q n): with u uniform, floor(log u / log(1 - q))
records are passed over (P[gap >= k] = (1 - q)^k). The gaps are exact (`noise.draw_gaps`): long ones too have
the probability that is priced.

A buffer holds B rows. A draw that overflows it is cut short, and then the batch is not the one that was priced. Of two
neighbouring datasets look at the records that both hold, at most n of them. The price of a step is derived for each
choice of these records separately, and the choice is the same for both datasets, so it also holds on the choices that
leave one place free in every buffer of the run. The others have probability p <= draws * P[Binomial(n, q) >= B], and
whatever happens then, delta grows by at most p, at every epsilon and under any further composition. `overflow` is
that number; it enters the event, and B is chosen so that it is a small part of delta.

All functions see a shard's own number of rows: Poisson sampling factorises over shards.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from scipy import special

from confide.mechanism import noise
from confide.validation import Refused

MOST_ROWS = 2**30  # sums of two row numbers fit 32 bits
OVERFLOW_SHARE = 1e-3  # of delta, at most, goes to overflowing buffers


def tail(n: int, q: float, size: int) -> float:
    """P[Binomial(n, q) > size]."""
    return float(special.betainc(size + 1, n - size, q)) if size < n else 0.0


def buffer_size(n: int, q: float, probability: float) -> int:
    """The smallest buffer that overflows with at most the given probability.

    >>> buffer_size(32_561, 256 / 32_561, 1e-10)
    364
    """
    if not 0 < q < 1:
        raise Refused(f"q = {q:g} is out of range: a full batch needs no buffer")
    low, high = 0, n  # the buffer n never overflows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(n, q, middle) <= probability else (middle, high)
    return high


def overflow(n: int, q: float, size: int, draws: int) -> float:
    """What `draws` batches in buffers of this size add to delta: the chance that one of them leaves no place free."""
    return min(1.0, draws * tail(n, q, size - 1)) if size <= n else 0.0


def fitting_buffer(n: int, q: float, draws: int, delta: float) -> int:
    """The buffer with which overflow takes at most a small share of delta; n + 1 places never overflow."""
    return min(n + 1, buffer_size(n, q, OVERFLOW_SHARE * delta / draws) + 1)


def draw_rows(source: Any, chain: int, block: int, shape: tuple[int, int], q: float, n: int) -> jax.Array:
    """Rows of Poisson batches for a block of steps, of shape (steps, size): see `from_gaps`."""
    steps, size = shape
    return from_gaps(noise.draw_gaps(source, chain, block, (size, steps), q, n), n)


@functools.partial(jax.jit, static_argnums=1)
def from_gaps(gaps: jax.Array, n: int) -> jax.Array:
    """Rows of Poisson batches, shape (steps, size), in rising order, from gaps of at most n, of shape (size, steps).

    n stands for an empty place.
    """
    if n >= MOST_ROWS:
        raise Refused(f"n = {n} is too many rows for one shard: give fewer than {MOST_ROWS}")

    def place(row: jax.Array, gap: jax.Array) -> tuple[jax.Array, jax.Array]:
        row = jnp.minimum(row + gap + 1, n)  # stays at n: no overflow of the integers
        return row, row

    # A scan down the buffer, side by side for all steps: a cumulative sum along each row is seven times slower.
    return jax.lax.scan(place, jnp.full(gaps.shape[1], -1, jnp.int32), gaps)[1].T
