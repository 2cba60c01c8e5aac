r"""Draws that know of the noise: the posterior of the coefficients given noisy sums of bounded scores.

**Likelihood.** Released are positions theta_t and sums g_t = sum_i psi_i(theta_t) u_i + N(0, s_t^2 I), u = A z. Where
the truth is theta_0, rows are taken as normal with the moments that the released information tells, and the mean of
g_t is K n A E[z w(s_t) (m(s_t) - m(s_0))], s = z theta: (s_t, s_0) are two normal variables, what is expected of the
outcome given s_t has a closed form (`Family.mean_over`), and one integral is left. w = (slope of the bounded score) /
m'. K is near 1: what the information at the end says against these moments. All sums have the same sampling noise,
N(0, V), so that what counts is their mean g with weights q_t,

    g ~ N(K n A sum_t q_t E[...](theta_t, theta_0), V(theta_0) + s^2 I).

**Not linearised.** The information falls where coefficients grow, in every direction at once. A Gaussian at the mode is
too near to zero by the volume that it leaves out: with many coefficients and little budget by a fifth of their length.
So the density is sampled, by Hamiltonian chains that start about the mode; each has its own K and moments, drawn from
what is known of them (a cut: what g says of them is not used). V keeps the shape that it has at the mode, and its size
follows theta_0.

**What is assumed**: the model, rows like normal ones, and that V is the model's. Where the model is wrong, intervals
are about the root of the mean bounded score.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.models.family import Family

Array = Any  # of JAX, or of NumPy
SCORES = np.linspace(-15.0, 15.0, 601)  # that moments of scores are tabulated at
NODES = np.linspace(-4.5, 4.5, 73)  # of an integral over a normal variable
SHARES = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))
CHAINS, WARMUP, LEAPS = 40, 40, 6
STEP = 0.35  # of a chain with 20 coefficients, in standard deviations of the Gaussian at the mode
ACCEPTED = 0.9  # share of moves that steps are made longer or shorter for while chains warm up


class Rows(NamedTuple):
    """Moments of rows, and what the mean score is multiplied by."""

    mean: Array
    covariance: Array
    factor: Array  # K, in coordinates of the root


class Told(NamedTuple):
    """What the likelihood and a normal prior are made of, in coordinates phi of the root: theta = A phi."""

    root: Array  # A, symmetric
    number: Array  # of records
    weights: Array  # w at `SCORES`
    variances: Array  # E psi^2 at `SCORES`
    positions: Array  # (queries, parameters)
    shares: Array  # q of each
    mean: Array  # g
    noise: Array  # s^2
    values: Array  # eigenvalues of V where
    vectors: Array  # it has its shape from
    level: Array  # and its size there
    precision: Array  # of a normal prior of the same scale: for the mode


def expect_score(family: Family, told: Told, rows: Rows, position: Array, truth: Array) -> Array:
    """E[z w(s) (m(s) - m(s_0))]; z is its mean, two directions that s and s_0 tell, and what neither does."""
    mean, covariance, _ = rows
    along, beside = covariance @ position, covariance @ truth
    deviation = jnp.sqrt(jnp.maximum(position @ along, 1e-8))
    shared = (position @ beside) / deviation
    left = jnp.maximum(truth @ beside - shared**2, 1e-10)
    first = along / deviation
    scores = mean @ position + deviation * NODES
    weight = jnp.interp(scores, SCORES, told.weights)
    expected, slope = family.mean_over(mean @ truth + shared * NODES, left)
    score = weight * (family.mean(scores) - expected)
    return (
        mean * (SHARES @ score)
        + first * (SHARES @ (score * NODES))
        - (beside - shared * first) * (SHARES @ (weight * slope))
    )


def expect_sum(family: Family, told: Told, rows: Rows, phi: Array) -> Array:
    """The mean of g where the truth is A phi."""
    truth = told.root @ phi
    every = jax.vmap(lambda position: expect_score(family, told, rows, told.root @ position, truth))(told.positions)
    return rows.factor @ (told.root @ (told.number * (told.shares @ every)))


def weigh_rows(table: Array, rows: Rows, theta: Array) -> Array:
    """E h(s) z z^T for a table of h at `SCORES`."""
    mean, covariance, _ = rows
    along = covariance @ theta
    deviation = jnp.sqrt(jnp.maximum(theta @ along, 1e-10))
    first, values = along / deviation, jnp.interp(mean @ theta + deviation * NODES, SCORES, table)
    e0, e1, e2 = SHARES @ values, SHARES @ (values * NODES), SHARES @ (values * NODES**2)
    cross = jnp.outer(mean, first)
    still = covariance - jnp.outer(first, first)
    return e0 * (jnp.outer(mean, mean) + still) + e1 * (cross + cross.T) + e2 * jnp.outer(first, first)


def mean_over_rows(table: Array, rows: Rows, theta: Array) -> Array:
    """E h(s)."""
    deviation = jnp.sqrt(jnp.maximum(theta @ (rows.covariance @ theta), 1e-10))
    return SHARES @ jnp.interp(rows.mean @ theta + deviation * NODES, SCORES, table)


def log_likelihood(family: Family, told: Told, rows: Rows, phi: Array) -> Array:
    away = told.vectors.T @ (told.mean - expect_sum(family, told, rows, phi))
    size = mean_over_rows(told.variances, rows, told.root @ phi) / told.level
    total = size * told.values + told.noise
    return -0.5 * jnp.sum(away**2 / total) - 0.5 * jnp.sum(jnp.log(total))


@partial(jax.jit, static_argnames=("family",))
def expect_each(family: Family, told: Told, rows: Rows, positions: Array, truth: Array) -> Array:
    """The mean of every g_t, in coordinates of the root."""
    every = jax.vmap(lambda position: expect_score(family, told, rows, told.root @ position, told.root @ truth))
    return told.number * every(positions) @ told.root


@partial(jax.jit, static_argnames=("family", "steps"))
def find_mode(family: Family, told: Told, rows: Rows, phi: Array, steps: int) -> tuple[Array, Array]:
    """The mode of the density with a normal prior and V as it is, by damped Gauss-Newton steps, and its precision."""
    inverse = (told.vectors / (told.values + told.noise)) @ told.vectors.T

    def height(phi: Array) -> Array:
        away = told.mean - expect_sum(family, told, rows, phi)
        return 0.5 * away @ inverse @ away + 0.5 * phi @ told.precision @ phi

    def step(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], Array]:
        phi, damping, before = carry
        slope = jax.jacfwd(lambda here: expect_sum(family, told, rows, here))(phi)
        away = told.mean - expect_sum(family, told, rows, phi)
        precision = told.precision + slope.T @ inverse @ slope
        damped = precision + damping * jnp.diag(jnp.diag(precision))
        moved = phi + jnp.linalg.solve(damped, slope.T @ inverse @ away - told.precision @ phi)
        after = height(moved)
        better = after < before
        damping = jnp.where(better, 0.2 * damping, 8 * damping + 0.1)
        return (jnp.where(better, moved, phi), damping, jnp.where(better, after, before)), precision

    (phi, _, _), precisions = jax.lax.scan(step, (phi, jnp.asarray(1e-3), height(phi)), None, length=steps)
    return phi, precisions[-1]


@partial(jax.jit, static_argnames=("family", "log_prior", "draws"))
def sample(
    family: Family,
    log_prior: Callable[[Array], Array],
    told: Told,
    rows: Rows,
    middle: tuple[Array, Array],
    key: Array,
    draws: int,
) -> tuple[Array, Array]:
    """Draws of phi, (draws, chains, parameters), and the share of moves that were accepted.

    `rows` has a first axis of chains; `middle` is the mode and a root of its covariance, in whose coordinates chains
    move.
    """
    centre, spread = middle
    chains, size = rows.mean.shape[0], centre.size

    def density(x: Array, rows: Rows) -> Array:
        phi = centre + spread @ x
        return log_likelihood(family, told, rows, phi) + log_prior(told.root @ phi)

    every = jax.vmap(jax.value_and_grad(density))

    def move(state: Moving, length: Array, key: Array) -> tuple[Moving, Array]:
        pushes, coins, lengths = jax.random.split(key, 3)
        push = jax.random.normal(pushes, state.x.shape, centre.dtype)
        step = length * (0.7 + 0.6 * jax.random.uniform(lengths, (chains, 1), centre.dtype))

        def leap(_: int, carry: tuple[Moving, Array]) -> tuple[Moving, Array]:
            there, push = carry
            push = push + 0.5 * step * there.slope
            x = there.x + step * push
            there = Moving(x, *every(x, rows))
            return there, push + 0.5 * step * there.slope

        there, last = jax.lax.fori_loop(0, LEAPS, leap, (state, push))
        gain = there.height - state.height - 0.5 * (jnp.sum(last**2, axis=1) - jnp.sum(push**2, axis=1))
        taken = jnp.log(jax.random.uniform(coins, (chains,), centre.dtype)) < gain  # never where it is not a number
        return Moving(*(jnp.where(column(taken, old), new, old) for new, old in zip(there, state, strict=True))), taken

    def warm(carry: tuple[Moving, Array], key: Array) -> tuple[tuple[Moving, Array], None]:
        state, length = carry
        state, taken = move(state, length, key)
        return (state, length * jnp.exp(0.5 * (jnp.mean(taken) - ACCEPTED))), None

    def go_on(carry: tuple[Moving, Array], key: Array) -> tuple[tuple[Moving, Array], tuple[Array, Array]]:
        state, length = carry
        state, taken = move(state, length, key)
        return (state, length), (state.x, taken)

    begin, first, second = jax.random.split(key, 3)
    x = jax.random.normal(begin, (chains, size), centre.dtype)
    carry = (Moving(x, *every(x, rows)), jnp.asarray(STEP * (20 / size) ** 0.25, centre.dtype))
    carry, _ = jax.lax.scan(warm, carry, jax.random.split(first, WARMUP))
    _, (found, taken) = jax.lax.scan(go_on, carry, jax.random.split(second, draws))
    return centre + found @ spread.T, jnp.mean(taken)


class Moving(NamedTuple):
    """Where chains are, with the log density there and its slope."""

    x: Array
    height: Array
    slope: Array


def column(flags: Array, like: Array) -> Array:
    return flags.reshape(-1, *[1] * (like.ndim - 1))
