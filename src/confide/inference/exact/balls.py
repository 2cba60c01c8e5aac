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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

BEYOND = 1e-16  # 1 - F: from there on F is 1
CENTRE = 1e-12


class Ball(NamedTuple):
    """F(r) = e^(-x) sum_k x^(a + k) / Gamma(a + k + 1), with a = d / 2 and x = r^2 / 2."""

    radius: Any
    own: Any  # 1 for the directions of v, 0 for those of u
    powers: Any  # a + k
    constants: Any  # log Gamma(a + k + 1)


def ball(radius: float, own: np.ndarray) -> Ball:
    """As many terms of the series as F needs until it is 1, whatever directions v has."""
    largest = float(special.gammainccinv(own.size / 2, BEYOND))
    terms = math.ceil(largest + 10 * math.sqrt(largest) + 30)
    powers = max(own.size - float(np.sum(own)), 1.0) / 2 + np.arange(terms)
    return Ball(radius, own, powers, special.gammaln(powers + 1))


def inside(coordinates: jax.Array, ball: Ball) -> jax.Array:
    """The point of the ball."""
    v, u = coordinates * ball.own, coordinates * (1 - ball.own)
    length = jnp.maximum(jnp.linalg.norm(u), CENTRE)
    share = jnp.exp(_log_distribution(length, ball.powers, ball.constants) / (2 * ball.powers[0]))
    room = jnp.maximum(jnp.square(ball.radius) - jnp.sum(jnp.square(v)), 0.0)
    return v + jnp.sqrt(room) * share / length * u


def log_volume(coordinates: jax.Array, ball: Ball) -> jax.Array:
    """Of the ball in these coordinates; nothing where v is outside."""
    room = jnp.square(ball.radius) - jnp.sum(jnp.square(coordinates * ball.own))
    others = ball.own.size - jnp.sum(ball.own)
    within = others / 2 * jnp.log(jnp.where(room > 0, room, 1.0))
    return jnp.where(room > 0, within - jnp.sum(jnp.square(coordinates * (1 - ball.own))) / 2, -jnp.inf)


def stretch(length: float, radius: float, dimension: int) -> float:
    """||w|| / ||u|| where ||w|| = length and v = 0."""
    share = (length / radius) ** dimension
    found = math.sqrt(2 * float(special.gammaincinv(dimension / 2, share)))  # zero where the share underflows
    return length / found if found > 0 else radius / math.sqrt(dimension + 2)


@jax.custom_jvp
def _log_distribution(length: jax.Array, powers: jax.Array, constants: jax.Array) -> jax.Array:
    """log F. Terms that a very long u would need are not there, and F is 1."""
    x = jnp.square(length) / 2
    series = jax.nn.logsumexp(powers * jnp.log(x) - constants) - x
    return jnp.where(x < powers[-1] / 2, jnp.minimum(series, 0.0), 0.0)


@_log_distribution.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    length, powers, constants = primals  # all but the length are given, and have no tangent
    found, a = _log_distribution(*primals), powers[0]
    log_density = (2 * a - 1) * jnp.log(length) - jnp.square(length) / 2
    log_density -= (a - 1) * math.log(2) + constants[0] - jnp.log(a)
    return found, jnp.exp(log_density - found) * tangents[0]
