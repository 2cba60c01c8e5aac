r"""Bounded scores of a linear model and of its noise scale: what they are, how they are cut, and what is expected of
them.

At coefficients theta_t and a noise scale sigma_t a record has the residual e = (y - z theta_t) / sigma_t. With u = A z,
of norm about 1, it adds

    w psi(e) u,  psi(e) = e cut to +-k / ||u||,  w = min(1, (REACH / ||u||)^2),   and   kappa chi(e),
    chi(e) = min(e^2, K^2) - E min(N(0, 1)^2, K^2):

both have mean zero at the truth, whatever the row is, and norm at most k and tau k, so that a record is within
k sqrt(1 + tau^2). k and K are chosen by what is known before: the number of records, of parameters, and the budget.

**Expected** where the truth is (theta_0, sigma_0) and rows are normal with mean m and covariance C (in coordinates of
u, delta = A^-1 (theta_0 - theta_t)): e ~ N(a, rho^2), a = m delta / sigma_t, rho^2 = (delta C delta + sigma_0^2) /
sigma_t^2, and by Stein's identity

    E psi u = m E psi(e) + C delta / sigma_t P(|e| < k),      E chi = E min(e^2, K^2) - E min(N(0, 1)^2, K^2),

all in closed form. Near the truth E psi u is (C + m m^T) P delta / sigma_t, for any rows: the second moments are those
that the released information tells, weighted as the scores are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from confide.mechanism import query_grid
from confide.mechanism.linear_sums import SHARE_OF_SCALE, Cuts, mean_square

Array = Any  # of JAX, or of NumPy
FLAT = 2000.0  # cuts away, from where on a normal is sent to either cut, whatever it is
CUTS = np.exp(np.linspace(math.log(0.05), math.log(3.0), 120))


class Residual(NamedTuple):
    """A normal variable that is cut."""

    inside: Array  # P(|e| < k)
    cut: Array  # E psi
    square: Array  # E psi^2
    fourth: Array  # E psi^4, of one with mean zero


def cut_normal(a: Array, rho: Array, k: Array) -> Residual:
    """Of N(a, rho^2) cut to +-k.

    Of a wide one all but a share of k / rho is cut, and what is left are differences of large numbers, which are wrong
    from some width on, and then below 0. Beyond `FLAT` cuts it is brought nearer: only that share depends on it.
    """
    far = jnp.maximum(1.0, jnp.maximum(jnp.abs(a), rho) / (FLAT * k))
    a, rho = a / far, rho / far
    low, high = (-k - a) / rho, (k - a) / rho
    below, above = 0.5 * special.erfc(jnp.stack([-low, high]) / math.sqrt(2))
    left, right = jnp.exp(-jnp.square(jnp.stack([low, high])) / 2) / math.sqrt(2 * math.pi)
    apart = special.erf(jnp.stack([low, high]) / math.sqrt(2))
    inside, outside = jnp.maximum(0.5 * (apart[1] - apart[0]), 1e-300), above + below
    cut = a * inside + rho * (left - right) + k * (above - below)
    second = (a**2 + rho**2) * inside + 2 * a * rho * (left - right) + rho**2 * (low * left - high * right)
    fourth = rho**4 * (3 * inside - 6 * high * right - 2 * high**3 * right)
    return Residual(inside / far, cut, second + k**2 * outside, fourth + k**4 * outside)


def choose_cuts(number: int, size: int, mu: float) -> Cuts:
    """The cuts that tell most: J^2 / (V + noise) of a usual coefficient, and of the noise scale."""
    tau, ratio = SHARE_OF_SCALE, 1 / (number * mu**2)
    k = CUTS
    inside = np.array([math.erf(each / math.sqrt(2)) for each in k])
    density = np.exp(-(k**2) / 2) / math.sqrt(2 * math.pi)
    square = np.array([mean_square(each) for each in k])
    best = inside**2 / (square + size * ratio * (1 + tau**2) * k**2)
    slope = 2 * (inside - 2 * k * density)
    fourth = 3 * inside - 6 * k * density - 2 * k**3 * density + k**4 * (1 - inside)
    spread = fourth - square**2
    bound = np.maximum(square, k**2 - square)
    other = slope**2 / (spread + ratio * (1 + tau**-2.0) * bound**2)
    return Cuts(*(query_grid.round_scale(float(k[np.argmax(each)])) for each in (best, other)))
