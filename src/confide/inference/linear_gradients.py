r"""The posterior of the parameters given noisy gradients at known places: linear near the mode, and bent further off.

**Likelihood.** At theta_t the noisy sum over a batch was released; divided by the sampling probability q it is

    g_t = A (theta_t - theta_0) + xi + e_t,   xi ~ N(0, A),   e_t ~ N(0, s_t^2 I + k A),   k = (1 - q) / q.

A is the curvature of what all records say at the truth theta_0 (the prior is not in it), xi their gradient there, the
same at all steps, whose covariance is A by the model's own equality of information; s_t^2 is the known noise, and k A
what Poisson batches add. That positions follow from earlier answers changes nothing: the likelihood of a sequence is
the product of its steps. All of it is a function of sums over u u^T / s_t^2, u = (1, theta_t, g_t).

**theta_0 given A** is Gaussian. With K the sum over steps of (s_t^2 I + k A)^-1 its precision is P + A (A + K^-1)^-1 A,
P of the prior, which is counted once: P + A where the noise is negligible, P where all is noise.

**A** has a likelihood of its own, and is not set to its best fit: A = D C D, C ~ LKJ(c), log c ~ N(log 2 d, 1.5^2), so
that how near C is to the identity is learnt (with a fixed small c and 20 parameters, A would be nearly singular before
anything is known); log diag A is normal about a common level, itself normal about log(n B^2 / d) - 2.5 with a deviation
of 2; B is the declared bound of a gradient and n B^2 the largest trace of A. A chain that stays near the mode tells
little of A and needs little of it. One that comes from far tells much, so that its way is used whole, and not its late
steps alone: these leave A in the dark unless the run is long (intervals two to six times as wide were seen).

**The bend.** Far off, gradients are not linear. At a distance r, n r^2 = (theta - theta_0)^T A (theta - theta_0), which
is the shift of a usual record's score, they are exp(e r / (1 + r)) times the linear ones, e ~ N(0, 1/4): it is learnt
where the way is long, and widens what is told from afar. Near the mode it is nothing.

**Sampling.** theta_0 = (its mean given A) + (root of its covariance given A) v: so there is no funnel between A and
theta_0. The coordinates of A, e and v are sampled by Hamiltonian chains. Where a prior is not Gaussian, coordinates are
those of a Gaussian in its place; the density has the prior as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax.scipy.special import gammaln

from confide.inference import host_chains

Array = Any  # of JAX, or of NumPy
LogPrior = Callable[[Array], Array]
LEVEL, LEVELS, SPREAD = -2.5, 2.0, 1.0  # of log diag A: middle and deviation of the common level, deviation about it
CONCENTRATIONS = 1.5  # deviation of log c, about log 2 d
BEND = 0.5  # standard deviation of e, of the bend


class Parts(NamedTuple):
    """Parts of a trace, along a first axis: sums over its steps t, weighted by 1 / s_t^2."""

    steps: Array
    weight: Array  # sum of the weights
    position: Array  # mean of theta_t
    gradient: Array  # mean of g_t
    positions: Array  # sum of squares about the mean
    crossed: Array  # sum of theta_t g_t^T about the means
    gradients: Array


class Told(NamedTuple):
    """What the density is made of."""

    parts: Parts
    records: Array  # n
    shares: Array  # k / s^2, of as many kinds as there are
    kinds: Array  # which of them a part has
    middle: Array  # of the common level of log diag A
    prior_mean: Array  # of a Gaussian in the prior's place, for coordinates
    prior_precision: Array


class Frame(NamedTuple):
    """Coordinates of theta_0 given A: its mean, and the lower root of its precision, as if nothing were bent."""

    mean: Array
    factor: Array

    def place(self, v: Array) -> Array:
        return self.mean + jax.scipy.linalg.solve_triangular(self.factor.T, v, lower=False)


def gather(moments: np.ndarray, steps: np.ndarray) -> Parts:
    """From sums of u u^T / s^2, u = (1, theta, g), (parts, 1 + 2 d, 1 + 2 d), each over so many steps."""
    d = (moments.shape[-1] - 1) // 2
    weight = moments[:, 0, 0]
    means = moments[:, 0, 1:] / weight[:, None]
    centred = moments[:, 1:, 1:] - weight[:, None, None] * means[:, :, None] * means[:, None, :]
    squares = (centred[:, :d, :d], centred[:, :d, d:], centred[:, d:, d:])
    return Parts(np.asarray(steps, np.float64), weight, means[:, :d], means[:, d:], *squares)


def tell(parts: Parts, records: int, q: float, bound: float, prior: tuple[Array, Array]) -> Told:
    """What is told by parts of a run on so many records, in batches of a share q, with a declared bound of gradients;
    `prior` is the mean and the precision of a Gaussian in the prior's place."""
    size = parts.position.shape[1]
    shares = (1 - q) / q * parts.weight / parts.steps
    rounded = np.array([float(f"{share:.3g}") for share in shares])  # one for all steps of the same noise
    values, kinds = np.unique(rounded, return_inverse=True)
    middle = LEVEL + math.log(records) + 2 * math.log(bound) - math.log(size)
    arrays = (jnp.asarray(each) for each in (float(records), values, kinds.reshape(-1), middle, *prior))
    return Told(Parts(*map(jnp.asarray, parts)), *arrays)


def curvature(middle: Array, own: Array, size: int) -> tuple[Array, Array]:
    """A from coordinates that are free, and the log density of its prior in them (up to a constant).

    Rows of the Cholesky root of C are (x, 1) / |(x, 1)|: LKJ(c) is a multivariate t in each x, of density |(x, 1)|^-f,
    f = d + 2 c - 1. Coordinates are x sqrt(f), of about 1 whatever c is.
    """
    level, apart, near, beside = own[0], own[1 : 1 + size], own[1 + size], own[2 + size :]
    freedom = size - 1 + 2 * 2 * size * jnp.exp(CONCENTRATIONS * near)
    below = jnp.zeros((size, size), own.dtype).at[np.tril_indices(size, -1)].set(beside / jnp.sqrt(freedom))
    below = below + jnp.eye(size)
    lengths = jnp.sqrt(jnp.sum(jnp.square(below), axis=1))
    logs = middle + LEVELS * level + SPREAD * apart
    root = below / lengths[:, None] * jnp.exp(logs / 2)[:, None]
    counts = np.arange(1, size)  # coordinates of the rows
    whole = gammaln(freedom / 2) - gammaln((freedom - counts) / 2) - counts * jnp.log(freedom) / 2
    prior = jnp.sum(whole) - freedom * jnp.sum(jnp.log(lengths))
    return root @ root.T, prior - 0.5 * (level**2 + near**2 + jnp.sum(apart**2))


class Noise(NamedTuple):
    """Of parts, given A."""

    inverse: Array  # s^2 (s^2 I + k A)^-1
    known: Array  # root of L, the precision of what is the same at all steps
    spread: Array  # root of A + L^-1
    height: Array  # log density of what has no mean, by the determinants


def noise_of(told: Told, curved: Array) -> Noise:
    parts, eye = told.parts, jnp.eye(curved.shape[0])
    roots = jnp.linalg.cholesky(eye + told.shares[:, None, None] * curved)
    inverse = jax.vmap(lambda root: jax.scipy.linalg.cho_solve((root, True), eye))(roots)[told.kinds]
    known = jnp.linalg.cholesky(jnp.einsum("k,kij->ij", parts.weight, inverse))
    spread = jnp.linalg.cholesky(curved + jax.scipy.linalg.cho_solve((known, True), eye))
    height = -jnp.sum(parts.steps * _half_log(roots)[told.kinds]) - _half_log(known) - _half_log(spread)
    return Noise(inverse, known, spread, height)


def _half_log(root: Array) -> Array:
    """Half the log determinant of what it is the root of."""
    return jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)


def frame_of(told: Told, curved: Array, noise: Noise) -> Frame:
    """theta_0 given A, where gradients are straight and the prior is Gaussian."""
    parts = told.parts
    away = parts.position @ curved - parts.gradient
    summed = jnp.einsum("k,kij,kj->i", parts.weight, noise.inverse, away)
    r = jax.scipy.linalg.cho_solve((noise.known, True), summed)
    slope = jax.scipy.linalg.solve_triangular(noise.spread, curved, lower=True)
    seen = jax.scipy.linalg.solve_triangular(noise.spread, r, lower=True)
    factor = jnp.linalg.cholesky(told.prior_precision + slope.T @ slope)
    pull = slope.T @ seen + told.prior_precision @ told.prior_mean
    return Frame(jax.scipy.linalg.cho_solve((factor, True), pull), factor)


def log_likelihood(told: Told, curved: Array, noise: Noise, bend: Array, theta: Array) -> Array:
    """Of A, the bend and theta_0, the gradient at the truth integrated out."""
    parts = told.parts
    away = parts.position - theta
    pulls = away @ curved
    far = jnp.sqrt(jnp.sum(away * pulls, axis=1) / told.records + 1e-12)
    bent, more = jnp.exp(bend * far / (1 + far)), bend / (1 + far) ** 2 / (told.records * far)
    slopes = bent[:, None, None] * (curved + more[:, None, None] * pulls[:, :, None] * pulls[:, None, :])
    products = slopes @ parts.crossed
    left = parts.gradients - products - jnp.swapaxes(products, 1, 2) + slopes @ parts.positions @ slopes
    apart = parts.gradient - bent[:, None] * pulls
    weighted = jnp.einsum("k,kij,kj->ki", parts.weight, noise.inverse, apart)
    summed = jnp.sum(weighted, axis=0)
    inside = jax.scipy.linalg.solve_triangular(noise.known, summed, lower=True)
    r = jax.scipy.linalg.solve_triangular(noise.known.T, inside, lower=False)
    seen = jax.scipy.linalg.solve_triangular(noise.spread, r, lower=True)
    squares = jnp.sum(noise.inverse * left) + jnp.sum(apart * weighted) - inside @ inside + seen @ seen
    return noise.height - 0.5 * squares


def density(log_prior: LogPrior, told: Told, x: Array) -> tuple[Array, Array]:
    """Of free coordinates, and theta_0 there."""
    size = told.prior_mean.size
    curved, prior = curvature(told.middle, x[: -size - 1], size)
    noise = noise_of(told, curved)
    frame = frame_of(told, curved, noise)
    theta = frame.place(x[-size:])
    known = log_likelihood(told, curved, noise, BEND * x[-size - 1], theta) - _half_log(frame.factor)
    return known + prior - 0.5 * x[-size - 1] ** 2 + log_prior(theta), theta


@partial(jax.jit, static_argnames=("log_prior",))
def densities(log_prior: LogPrior, told: Told, x: Array) -> tuple[Array, Array, Array]:
    """The log density at several places, its slopes, and theta_0."""
    (heights, thetas), slopes = jax.vmap(jax.value_and_grad(partial(density, log_prior, told), has_aux=True))(x)
    return heights, slopes, thetas


def draw(log_prior: LogPrior, told: Told, draws: int, seed: int) -> np.ndarray:
    """Draws of theta_0, (draws, parameters)."""

    def program(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        height, slope, theta = (np.asarray(each) for each in densities(log_prior, told, jnp.asarray(x)))
        return height, slope, theta

    centre, root = host_chains.climb(program, begin(told))
    found = host_chains.sample(program, centre, root, -(-draws // host_chains.CHAINS), seed)
    return found.reshape(-1, found.shape[-1])[:draws]


def begin(told: Told) -> np.ndarray:
    """Free coordinates to climb from: A diagonal, as the steps tell it where they do."""
    parts, middle = Parts(*map(np.asarray, told.parts)), float(told.middle)
    size, weight = parts.position.shape[1], parts.weight[:, None]
    mean, level = (np.sum(weight * each, axis=0) / np.sum(weight) for each in (parts.position, parts.gradient))
    apart, beside = parts.position - mean, parts.gradient - level
    squares = np.sum(np.diagonal(parts.positions, axis1=1, axis2=2) + weight * apart**2, axis=0)
    products = np.sum(np.diagonal(parts.crossed, axis1=1, axis2=2) + weight * apart * beside, axis=0)
    squares = np.maximum(squares, 1e-300)
    logs = np.log(np.maximum(products / squares, np.minimum(1 / np.sqrt(squares), math.exp(middle))))
    logs = np.clip(logs, middle - 3 * LEVELS, middle + 3 * LEVELS)
    common = float(np.mean(logs))
    own = np.concatenate([[(common - middle) / LEVELS], (logs - common) / SPREAD])
    return np.concatenate([own, np.zeros(1 + size * (size - 1) // 2 + 1 + size)])
