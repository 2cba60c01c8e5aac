r"""Draws that know of the noise: the posterior of the coefficients given noisy sums of bounded scores.

**Likelihood.** Released are positions theta_t and sums g_t = sum_i psi_i(theta_t) u_i + N(0, s_t^2 I), u = A z. What is
expected of them where the truth is theta_0 is told by `inference.expected_scores`, from the moments of rows that the
released information tells, times K: near 1, what the information at the end says against these moments. All sums have
the same sampling noise, N(0, V), so that what counts is their mean g with weights q_t,

    g ~ N(K n A sum_t q_t E[...](theta_t, theta_0), V(theta_0) + s^2 I + D(theta_0)).

**Doubt.** The moments are known from noisy information alone. A matrix J whose entries have variances P errs by
J (theta_bar - theta_0) with a variance of D_ii = sum_j P_ij (theta_bar - theta_0)_j^2, theta_bar the mean position: the
moments are integrated out, and what is not known of them widens the draws as far as the queries were away. (Bernstein
and Sheldon 2019 do the same for linear models.)

**Not linearised.** The information falls where coefficients grow, in every direction at once. A Gaussian at the mode is
too near to zero by the volume that it leaves out: with many coefficients and little budget by a fifth of their length.
So the density is sampled, by Hamiltonian chains that start about the mode. V keeps the shape that it has at the mode,
in whose eigenbasis D is taken, and its size follows theta_0.

**What is assumed**: the model, rows like normal ones, and that V is the model's. Where the model is wrong, intervals
are about the root of the mean bounded score.

Coefficients of several scores a record are a matrix with a column for each, flattened; the root acts on its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import expected_scores, hamiltonian
from confide.inference.expected_scores import Array, Places, Rows, Tables
from confide.models.family import Family

CHAINS = 20


class Told(NamedTuple):
    """What the likelihood and a normal prior are made of, in coordinates phi of the root: theta = A phi."""

    root: Array  # A, symmetric
    number: Array  # of records
    tables: Tables
    positions: Array  # (queries, parameters)
    shares: Array  # q of each
    mean: Array  # g
    noise: Array  # s^2
    values: Array  # eigenvalues of V where
    vectors: Array  # it has its shape from
    level: Array  # and its size there
    doubt: Array  # P, in the eigenbasis of V
    spread: Array  # squares of theta_bar - theta_0 that are expected, in that basis
    precision: Array  # of a normal prior of the same scale: for the mode


def through(root: Array, phi: Array) -> Array:
    """A phi, whatever scores a record has."""
    if root.shape[0] == phi.shape[0]:
        return root @ phi
    return (root @ phi.reshape(root.shape[0], -1)).reshape(phi.shape)


def look(family: Family, told: Told, rows: Rows) -> Places:
    """What is known of the queries before the truth is."""
    return jax.vmap(lambda position: expected_scores.look(family, told.tables, rows, through(told.root, position)))(
        told.positions
    )


def expect_sum(family: Family, told: Told, rows: Rows, places: Places, phi: Array) -> Array:
    """The mean of g where the truth is A phi."""
    every = expected_scores.expect(family, told.shares, rows, places, through(told.root, phi))
    return through(rows.factor, through(told.root, told.number * every))


def log_likelihood(family: Family, told: Told, rows: Rows, places: Places, phi: Array) -> Array:
    away = told.vectors.T @ (told.mean - expect_sum(family, told, rows, places, phi))
    size = expected_scores.mean_square(family, told.tables, rows, through(told.root, phi)) / told.level
    total = size * told.values + told.noise + told.doubt @ told.spread
    return -0.5 * jnp.sum(away**2 / total) - 0.5 * jnp.sum(jnp.log(total))


@partial(jax.jit, static_argnames=("family",))
def expect_each(family: Family, told: Told, rows: Rows, positions: Array, phi: Array) -> Array:
    """The mean of every g_t, in coordinates of the root."""

    def one(position: Array) -> Array:
        told_here = told._replace(positions=position[None], shares=jnp.ones(1))
        return expect_sum(family, told_here, rows, look(family, told_here, rows), phi)

    return jax.vmap(one)(positions)


@partial(jax.jit, static_argnames=("family", "steps"))
def find_mode(family: Family, told: Told, rows: Rows, phi: Array, steps: int) -> tuple[Array, Array]:
    """The mode of the density with a normal prior and V as it is, by damped Gauss-Newton steps, and its precision."""
    inverse = (told.vectors / (told.values + told.noise + told.doubt @ told.spread)) @ told.vectors.T
    places = look(family, told, rows)

    def expect(phi: Array) -> Array:
        return expect_sum(family, told, rows, places, phi)

    def height(phi: Array) -> Array:
        away = told.mean - expect(phi)
        return 0.5 * away @ inverse @ away + 0.5 * phi @ told.precision @ phi

    def step(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], Array]:
        phi, damping, before = carry
        slope = jax.jacfwd(expect)(phi)
        away = told.mean - expect(phi)
        precision = told.precision + slope.T @ inverse @ slope
        damped = precision + damping * jnp.diag(jnp.diag(precision))
        moved = phi + jnp.linalg.solve(damped, slope.T @ inverse @ away - told.precision @ phi)
        after = height(moved)
        better = after < before
        damping = jnp.where(better, 0.2 * damping, 8 * damping + 0.1)
        return (jnp.where(better, moved, phi), damping, jnp.where(better, after, before)), precision

    (phi, _, _), precisions = jax.lax.scan(step, (phi, jnp.asarray(1e-3), height(phi)), None, length=steps)
    return phi, precisions[-1]


@partial(jax.jit, static_argnames=("family", "log_prior", "chains", "draws"))
def sample(
    family: Family,
    log_prior: Callable[[Array], Array],
    told: tuple[Told, Rows],
    wide: Array,
    middle: tuple[Array, Array],
    key: Array,
    *,
    chains: int,
    draws: int,
) -> tuple[Array, Array]:
    """Draws of phi, (draws, chains, parameters), and the share of moves that were accepted.

    Coefficients are phi times `wide`; the likelihood knows the first ones of phi, and the prior all coefficients.
    `middle` is the mode and a root of its covariance, in whose coordinates chains move.
    """
    (likelihood, rows), known = told, told[0].mean.shape[0]
    places = look(family, likelihood, rows)

    def density(phi: Array, _: Array) -> Array:
        return log_likelihood(family, likelihood, rows, places, phi[:known]) + log_prior(phi @ wide)

    return hamiltonian.sample(density, jnp.zeros(chains), middle, key, draws)


def widen(told: Told, wide: Array, scales: Array, middle: Array, spread: Array) -> tuple[np.ndarray, np.ndarray]:
    """Mode and covariance of all coordinates, of which the likelihood knows the first ones alone."""
    known, size = len(middle), len(wide)
    precision = (wide / scales**2) @ wide.T
    precision[:known, :known] += np.linalg.inv(spread) - told.precision
    return np.concatenate([middle, np.zeros(size - known)]), np.linalg.inv(precision)
