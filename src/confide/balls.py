r"""A ball of radius R as the image of a space without walls, or almost: coordinates for chains that must not leave it.

Some directions, where the records say much, keep their own coordinates v. The d others are u in

    w = sqrt(R^2 - ||v||^2) F(||u||)^(1/d) u / ||u||

with F the distribution function of the norm of d independent standard normals. Then standard normal u are uniform in
what v leaves of the ball, and a density f in the ball is f(v, w) (R^2 - ||v||^2)^(d/2) times the standard normal one
of u. Otherwise a chain in many dimensions, where a ball is all surface, would live in a thin shell at the wall; and
were all directions in u, those of much data would have to follow how long u is.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammainc, gammaln
from scipy import special

SMALLEST = 1e-290  # of F: below it, by the series
TERMS = 64
CENTRE = 1e-12


def inside(coordinates: jax.Array, own: jax.Array, radius: jax.Array) -> jax.Array:
    """The point of the ball; `own` is 1 for the directions of v and 0 for those of u."""
    v, u = coordinates * own, coordinates * (1 - own)
    length = jnp.maximum(jnp.linalg.norm(u), CENTRE)
    share = jnp.exp(_log_share(length, jnp.maximum(own.size - jnp.sum(own), 1.0)))
    room = jnp.maximum(jnp.square(radius) - jnp.sum(jnp.square(v)), 0.0)
    return v + jnp.sqrt(room) * share / length * u


def log_volume(coordinates: jax.Array, own: jax.Array, radius: jax.Array) -> jax.Array:
    """Of the ball in these coordinates; nothing where v is outside."""
    room = jnp.square(radius) - jnp.sum(jnp.square(coordinates * own))
    others = own.size - jnp.sum(own)
    within = others / 2 * jnp.log(jnp.where(room > 0, room, 1.0)) - jnp.sum(jnp.square(coordinates * (1 - own))) / 2
    return jnp.where(room > 0, within, -jnp.inf)


def stretch(length: float, radius: float, dimension: int) -> float:
    """||w|| / ||u|| where ||w|| = length and v = 0."""
    share = (length / radius) ** dimension
    found = math.sqrt(2 * float(special.gammaincinv(dimension / 2, share))) if share > SMALLEST else 0.0
    return length / found if found > 0 else radius / math.sqrt(dimension + 2)


@jax.custom_jvp
def _log_share(length: jax.Array, dimension: jax.Array) -> jax.Array:
    """log F^(1/d)."""
    a, x = dimension / 2, jnp.square(length) / 2
    plain = gammainc(a, x)
    steps = jnp.cumprod(jnp.minimum(x / (a + np.arange(1, TERMS + 1)), 1.0))
    series = a * jnp.log(x) - x - gammaln(a + 1) + jnp.log1p(jnp.sum(steps))
    return jnp.where(plain > SMALLEST, jnp.log(jnp.maximum(plain, SMALLEST)), series) / dimension


@_log_share.defjvp
def _(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    length, dimension = primals  # the dimension is given, and has no tangent
    found = _log_share(length, dimension)
    log_density = (dimension - 1) * jnp.log(length) - jnp.square(length) / 2
    log_density -= (dimension / 2 - 1) * math.log(2) + gammaln(dimension / 2)
    return found, jnp.exp(log_density - dimension * found) / dimension * tangents[0]
