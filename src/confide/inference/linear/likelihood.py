r"""The posterior of coefficients and noise scale given noisy sums of bounded scores (`linear.expectations`).

Released are places (theta_t, sigma_t) and sums of n records there with noise of standard deviation s_t in every
coordinate. All sums near the truth have the same sampling noise, so that what counts is their mean with weights q_t,

    g ~ N(sum_t q_t n E[psi u], n E[psi^2] S + s^2 I + D),    h ~ N(kappa sum_t q_t n E[chi], kappa^2 n Var chi + s^2),

S the second moments of rows, each part with weights and noise of its own, and D what is not known of S, as far as the
queries were away from the truth (`inference.noise_aware`). Where queries follow the data, so do their residuals: a fit
leaves too little of the noise. That is the covariance of the sampling noise of both, n kappa E[psi chi u], by Stein's
identity n kappa S delta / sigma_t E[psi chi e] / E[e^2]. Coordinates are x = (A^-1 theta, log sigma). Nothing is
linearised: the density is sampled (`inference.hamiltonian`).

**Prior of the noise scale**: half a Student's t of 3 degrees of freedom, with the scale `spread` = prior scale of the
coefficients x usual norm of a row, which is what coefficients from their prior spread outcomes by. Proper, weak (nine
in ten within .09 and 3.2 times the scale), and free of the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.linear.expectations import cut_normal

Array = Any  # of JAX, or of NumPy
DEGREES = 3.0
NODES = np.linspace(-6.0, 6.0, 97)  # of a normal variable, which is cut: its kinks are between them
LEAST_LEFT = 0.2  # of the variance of h, once g is known


class Rows(NamedTuple):
    """Moments of rows in coordinates of the root."""

    mean: Array
    covariance: Array
    level: Array  # share of the records that count


class Told(NamedTuple):
    """What the likelihood is made of; positions are (queries, parameters + 1)."""

    root: Array  # A, symmetric
    number: Array  # of records
    positions: Array  # A^-1 theta_t, and log sigma_t
    shares: Array  # q, (queries, 2): for scores, and for the scale
    sums: Array  # g and h
    noise: Array  # s^2 of either
    values: Array  # eigenvalues of S
    vectors: Array
    doubt: Array  # D, on its diagonal in their basis
    precision: Array  # of a normal prior of the same scale: for the mode
    spread: Array  # scale of the prior of sigma
    cuts: Array  # k, K, kappa, and E min(N(0, 1)^2, K^2)


def log_noise_prior(spread: Array, log_scale: Array) -> Array:
    """Of log sigma."""
    away = 2 * (log_scale - jnp.log(spread)) - jnp.log(DEGREES)
    return log_scale - (DEGREES + 1) / 2 * jax.nn.softplus(away)  # which is finite however far away


class Each(NamedTuple):
    """Of one record, at every position."""

    mean: Array  # E of (psi u, kappa chi)
    cut: Array  # root of E psi^2
    spread: Array  # root of Var chi
    slope: Array  # P(|e| < k) / sigma_t: what S times a difference of coefficients is multiplied by
    common: Array  # covariance of both parts of the mean


def expect_each(cuts: Array, rows: Rows, positions: Array, x: Array) -> Each:
    k, square_cut, factor, centre = cuts

    def one(position: Array) -> Each:
        scale = jnp.exp(position[-1])
        delta = (x[:-1] - position[:-1]) / scale
        along = rows.covariance @ delta
        a = rows.mean @ delta
        own = jnp.exp(2 * (x[-1] - position[-1]))
        rho = jnp.sqrt(jnp.maximum(delta @ along, 0.0) + own + 1e-12)
        total = jnp.sqrt(rho**2 + a**2)  # for the spread of squares, in which the mean is hardly felt
        found = cut_normal(
            jnp.stack([a, a, 0 * a]), jnp.stack([rho, rho, total]), jnp.stack([k, square_cut, square_cut])
        )
        score = rows.level * (rows.mean * found.cut[0] + along * found.inside[0])
        spread = found.fourth[2] - found.square[2] ** 2
        return Each(
            jnp.append(score, factor * (found.square[1] - centre)),
            jnp.sqrt(jnp.maximum(found.square[0], 1e-24)),
            jnp.sqrt(jnp.maximum(spread, 1e-12)),
            found.inside[0] / scale,
            factor * rows.level * (rows.mean * a + along) * _common_slope(cuts, rho),
        )

    return jax.vmap(one)(positions)


def _common_slope(cuts: Array, rho: Array) -> Array:
    """E[psi chi e] / E[e^2] of N(0, rho^2)."""
    e = rho * NODES
    product = jnp.clip(e, -cuts[0], cuts[0]) * (jnp.minimum(e**2, cuts[1] ** 2) - cuts[3])
    density = np.exp(-(NODES**2) / 2)
    return (density / density.sum()) @ (product * NODES) / rho


class Expected(NamedTuple):
    """Of (g, h)."""

    mean: Array
    cut: Array  # what S is multiplied by in the variance of g
    spread: Array  # variance of h
    common: Array  # covariance of both


def expect(told: Told, rows: Rows, x: Array) -> Expected:
    every = expect_each(told.cuts, rows, told.positions, x)
    first, second = told.shares[:, 0], told.shares[:, 1]
    return Expected(
        told.number * jnp.append(first @ every.mean[:, :-1], second @ every.mean[:, -1]),
        told.number * (first @ every.cut) ** 2,
        told.number * (told.cuts[2] * (second @ every.spread)) ** 2,
        told.number * (second @ every.common),
    )


def log_likelihood(told: Told, rows: Rows, x: Array) -> Array:
    found = expect(told, rows, x)
    away = told.sums - found.mean
    along, common = told.vectors.T @ away[:-1], told.vectors.T @ found.common
    total, own = found.cut * told.values + told.noise[0] + told.doubt, found.spread + told.noise[1]
    left = jnp.maximum(own - jnp.sum(common**2 / total), LEAST_LEFT * own)
    rest = away[-1] - jnp.sum(common * along / total)
    return -0.5 * (jnp.sum(along**2 / total + jnp.log(total)) + rest**2 / left + jnp.log(left))


@jax.jit
def expect_positions(told: Told, rows: Rows, positions: Array, x: Array) -> tuple[Array, Array]:
    """The mean of every sum, and the slope of its scores."""
    found = expect_each(told.cuts, rows, positions, x)
    return told.number * found.mean, told.number * found.slope


@partial(jax.jit, static_argnames=("steps",))
def find_mode(told: Told, rows: Rows, x: Array, steps: int) -> tuple[Array, Array]:
    """The mode with a normal prior of the coefficients, by damped Gauss-Newton steps, and its precision."""

    def density(x: Array) -> Array:
        phi = x[:-1]
        prior = -0.5 * phi @ told.precision @ phi + log_noise_prior(told.spread, x[-1])
        return log_likelihood(told, rows, x) + prior

    def curve(x: Array) -> Array:
        slope = jax.jacfwd(lambda here: expect(told, rows, here).mean)(x)
        _, cut, spread, _ = expect(told, rows, x)
        inverse = (told.vectors / (cut * told.values + told.noise[0] + told.doubt)) @ told.vectors.T
        block = slope[:-1].T @ inverse @ slope[:-1]
        own = jnp.outer(slope[-1], slope[-1]) / (spread + told.noise[1])
        bend = -jax.grad(jax.grad(partial(log_noise_prior, told.spread)))(x[-1])
        prior = jnp.zeros((x.size, x.size)).at[:-1, :-1].set(told.precision).at[-1, -1].set(bend + 0.05)
        return block + own + prior

    def step(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        x, damping, before = carry
        precision = curve(x)
        damped = precision + damping * jnp.diag(jnp.diag(precision))
        move = jnp.linalg.solve(damped, jax.grad(density)(x))
        move = move / jnp.maximum(1.0, jnp.abs(move[-1]) / 1.5)
        after = density(x + move)
        better = after > before
        damping = jnp.where(better, 0.2 * damping, 8 * damping + 0.1)
        return (jnp.where(better, x + move, x), damping, jnp.where(better, after, before)), None

    (x, _, _), _ = jax.lax.scan(step, (x, jnp.asarray(1e-3), density(x)), None, length=steps)
    return x, curve(x)


def log_density(log_prior: Callable[[Array], Array], told: Told, rows: Rows, x: Array) -> Array:
    """With any prior of the coefficients."""
    prior = log_prior(told.root @ x[:-1]) + log_noise_prior(told.spread, x[-1])
    return log_likelihood(told, rows, x) + prior
