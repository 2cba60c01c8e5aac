r"""Random numbers that are rounded exactly: Gaussians on a grid, geometric gaps, and spherical noise.

Floating-point noise has a lattice of its own, and where the lattice shows, an output can be one that the neighbour
never gives. Nothing here has one: every number is a function of *infinitely many* random bits, of which as many are
looked at as are needed to know which whole number it is. All whole numbers have their exact probabilities, however far
out, so there is no mass of impossible outputs to be priced.

**Decided at once.** A 64-bit word stands for an interval of probabilities, which are put through the inverse
distribution in double precision. With e a bound on the error of that (`ERROR`, twelve times what is measured against
multiple precision) and on the width of the interval, the whole number is known if no rounding boundary is within e.

**Finished later.** The others, about one Gaussian in 500,000, get 128 more bits at a time, in multiple precision,
until the interval lies between two boundaries. Where a word is small, the tail, nothing is decided at once.

The **Gaussian** is round(grid Z): a sign, and P[|Z| > z] = (63-bit rank + further bits) / 2^63. The inverse is
Wichura's (1988, algorithm AS 241, PPND16), from the tail probability itself, so that tails keep their digits. The
**gap** before the next chosen record is floor(log u / log(1 - q)), P[gap >= k] = (1 - q)^k. **Spherical** noise has a
density proportional to exp(-||b||): a direction of Gaussians (Box and Muller), and a length that is a sum of as many
exponentials as there are coordinates; interval arithmetic follows all of it, with twice the bits until every
coordinate is decided.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from scipy import special

GRID = 2.0**26  # grid steps in one standard deviation
FINE = 2.0**38  # the same, where only a few numbers are drawn: one in a hundred is not decided at once
ERROR = 2.0**-47  # of the inverse normal distribution in double precision, over 1 + z
LOG_ERROR = 2.0**-48  # of logarithms in double precision, over 1 + their size
MORE = 128  # bits that are looked at next
GUARD = 64  # bits beyond those, in which multiple precision may err
SIGN = np.uint64(2**63)
_MP: Any = mpmath  # its stubs know complex numbers alone

_CENTRE = (  # numerator and denominator, from the constant on
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4),
        *(4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
    ),
)
_MIDDLE = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0),
        *(1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
)
_TAIL = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1),
        *(2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)


def quantile(tail: jax.Array) -> jax.Array:
    """z with P[Z > z] = tail, for tails of at most a half."""
    from_half = 0.5 - tail
    distance = jnp.sqrt(-jnp.log(tail))
    centre = from_half * _ratio(_CENTRE, 0.180625 - from_half * from_half)
    beyond = jnp.where(distance <= 5.0, _ratio(_MIDDLE, distance - 1.6), _ratio(_TAIL, distance - 5.0))
    return jnp.where(from_half <= 0.425, centre, beyond)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: jax.Array) -> jax.Array:
    above, below = (
        functools.reduce(lambda sum, next: sum * x + next, each[-2::-1], jnp.full_like(x, each[-1]))
        for each in coefficients
    )
    return above / below


@jax.jit
def gaussian(words: jax.Array, grid: float = GRID) -> tuple[jax.Array, jax.Array]:
    """Round(grid Z) of 64-bit words, whole numbers in double precision, and which of them are not known yet."""
    rank = (words & jnp.uint64(2**63 - 1)).astype(jnp.int64).astype(jnp.float64)
    z = quantile((rank + 0.5) * 2.0**-64)
    raised = z * grid + 0.5
    # The second part is the width of the word itself: the tail over the density is below 1.26.
    error = grid * (ERROR * (1 + z) + 1 / jnp.maximum(rank, 0.5))
    magnitude = jnp.floor(raised)
    return jnp.where(words >= SIGN, -magnitude, magnitude), jnp.abs(raised - jnp.round(raised)) <= error


@jax.jit
def gap(words: jax.Array, rate: jax.Array, most: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How many records are passed over, at most `most`, for rate = 1 / log(1 - q); and which are not known yet."""
    whole = (words >> jnp.uint64(1)).astype(jnp.int64).astype(jnp.float64)  # signed numbers are converted faster
    logarithm = jnp.log((whole + 0.5) * 2.0**-63)
    passed = logarithm * rate
    small = 2.0**32 * jnp.sqrt(-rate)  # words below it are not decided at once, and the width of others is 1 / small
    error = -rate * (LOG_ERROR * (1 - logarithm) + 1 / small)
    near = jnp.round(passed)
    undecided = (near >= 1) & (jnp.abs(passed - near) <= error) & (passed - error < most)
    return jnp.minimum(passed, most).astype(jnp.int32), undecided | (whole < small)


def finish_gaussian(grid: float, word: int, more: Callable[[int], int]) -> int:
    """Round(grid Z) of a word and as many further bits as it takes."""
    rank, bits = word & (2**63 - 1), 63
    for number in range(10**6):
        rank, bits = (rank << MORE) | more(number), bits + MORE
        # A guess from the logarithm of the tail, for it may be too small for a double; then the proof.
        log_tail = math.log(2 * rank + 1) - (bits + 1) * math.log(2)
        guess = math.floor(-float(special.ndtri_exp(log_tail - math.log(2))) * grid + 0.5)
        for magnitude in (guess, guess - 1, guess + 1):
            if _between(magnitude, grid, rank, bits):
                return -magnitude if word >> 63 else magnitude
    raise AssertionError("random bits that never end in anything")


def _between(magnitude: int, grid: float, rank: int, bits: int) -> bool:
    """Whether P[|Z| > z] in [rank, rank + 1] / 2^bits proves that |Z| rounds to the magnitude."""
    if magnitude < 0:
        return False
    with _MP.workprec(bits + GUARD):
        half, least = _MP.mpf(1) / 2, _MP.ldexp(_MP.mpf(rank), -bits)
        margin = 1 + _MP.ldexp(1, -bits - GUARD // 2)
        outer = _MP.erfc((magnitude + half) / (int(grid) * _MP.sqrt(2)))
        inner = _MP.erfc((magnitude - half) / (int(grid) * _MP.sqrt(2))) if magnitude else _MP.mpf(2)
        most = _MP.ldexp(_MP.mpf(rank + 1), -bits)
        return bool(outer * margin <= least and most * margin <= inner)


def finish_gap(q: float, most: int, word: int, more: Callable[[int], int]) -> int:
    """How many records are passed over, of a word and as many further bits as it takes."""
    word, bits = word >> 1, 63
    for number in range(10**6):
        word, bits = (word << MORE) | more(number), bits + MORE
        with _MP.workprec(bits + GUARD):
            rate = 1 / _MP.log1p(-_MP.mpf(q))
            margin = 1 + _MP.ldexp(1, -bits - GUARD // 2)
            least = _MP.log(_MP.ldexp(_MP.mpf(word + 1), -bits)) * rate / margin
            largest = _MP.log(_MP.ldexp(_MP.mpf(word), -bits)) * rate * margin if word else _MP.inf
            if least >= most:
                return most
            if largest < most + 1 and _MP.floor(least) == _MP.floor(largest):
                return int(_MP.floor(least))
    raise AssertionError("random bits that never end in anything")


def spherical(count: int, drawn: Callable[[int, int], int], grid: float = GRID) -> np.ndarray:
    """Round(grid b) for b in `count` dimensions with a density proportional to exp(-||b||).

    `drawn(number, bits)` are the first bits of a stream of its own for every number.
    """
    context, bits, numbers = _MP.iv, 256, range(2 * -(-count // 2) + count)
    before = context.prec
    try:
        while True:
            context.prec = bits + GUARD
            values = [drawn(number, bits) for number in numbers]
            if all(values):
                with _MP.workprec(bits + GUARD):
                    found = _around_zero([context.mpf([v, v + 1]) / 2**bits for v in values], count, int(grid))
                if found is not None:
                    return np.array(found, np.int64)
            bits *= 2
    finally:
        context.prec = before


def _around_zero(uniform: list[Any], count: int, grid: int) -> list[int] | None:
    """The whole numbers that uniform intervals stand for; None where they do not tell."""
    context, pairs = _MP.iv, -(-count // 2)
    normal = []
    for first, second in zip(uniform[:pairs], uniform[pairs : 2 * pairs], strict=True):
        size, angle = context.sqrt(-2 * context.log(first)), 2 * context.pi * second
        normal += [size * context.cos(angle), size * context.sin(angle)]
    squares: Any = sum((z * z for z in normal[:count]), context.mpf(0))
    length = -sum((context.log(u) for u in uniform[2 * pairs :]), context.mpf(0))
    if not squares.a > 0:
        return None
    ends = [z * length / context.sqrt(squares) * grid + context.mpf(0.5) for z in normal[:count]]
    lower = [int(_MP.floor(_MP.mpf(end.a))) for end in ends]
    upper = [int(_MP.floor(_MP.mpf(end.b))) for end in ends]
    return lower if lower == upper else None
