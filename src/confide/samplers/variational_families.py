"""Families of distributions for `confide.dpvi`, which are drawn from by a function of their parameters and of a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np

from confide.validation import Refused

MOST = 2000  # parameters of a full-rank family, which has half the square of that


class Family(NamedTuple):
    """Distributions that can be drawn from by a function of their parameters phi and of a key.

    `draw(phi, key)` is theta in the model's own flat coordinates, and log q of it.
    """

    name: str
    start: np.ndarray  # phi
    rates: np.ndarray  # of learning each of phi, relative to the mean
    draw: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    mark: str = ""  # a digest of what is not in the name


def gaussian(name: str, centre: np.ndarray, n: int, unit: float = 1.0) -> Family:
    """A family of Gaussians around the starting point; rates are for means in `unit`, the scale of the prior.

    Scales start at n^(-1/4), half way (in logarithms) between a prior of scale 1 and a posterior of n records. The
    entries of U add up, so that each is learnt more slowly by the square root of their number in a row.
    """
    size = centre.size
    below = np.tril_indices(size, -1) if name == "full-rank" else (np.zeros(0, int), np.zeros(0, int))
    if below[0].size and size > MOST:
        raise Refused(f"a full-rank family of {size} parameters is too large: take family='mean-field'")
    start = np.concatenate([centre, np.full(size, math.log(unit) - 0.25 * math.log(n)), np.zeros(below[0].size)])
    rates = np.concatenate([np.ones(size), np.full(size, 1 / unit), np.full(below[0].size, 1 / unit / math.sqrt(size))])

    def draw(phi: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = jax.random.normal(key, (size,), phi.dtype)
        mean, scale, turned = _parts(phi, z)
        theta = mean + scale * turned
        return theta, log_density(jax.lax.stop_gradient(phi), theta)

    def _parts(phi: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        mean, scale = phi[:size], jnp.exp(phi[size : 2 * size])
        return mean, scale, z if not below[0].size else z + factor(phi) @ z

    def factor(phi: jax.Array) -> jax.Array:
        return jnp.zeros((size, size), phi.dtype).at[below].set(phi[2 * size :])

    def log_density(phi: jax.Array, theta: jax.Array) -> jax.Array:
        z = (theta - phi[:size]) / jnp.exp(phi[size : 2 * size])
        if below[0].size:
            whole = factor(phi) + jnp.eye(size, dtype=phi.dtype)
            z = jax.scipy.linalg.solve_triangular(whole, z, lower=True, unit_diagonal=True)
        return -0.5 * jnp.sum(jnp.square(z)) - jnp.sum(phi[size : 2 * size]) - 0.5 * size * math.log(2 * math.pi)

    return Family(name, start, rates, draw)
