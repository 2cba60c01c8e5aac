r"""What sums of bounded scores are expected to be where rows are normal: integrals over scores, and no record.

A row z has the moments (mean, C). The mean of psi(theta_t) z where the truth is theta_0 is E[z w(s) (m(s) - m(s_0))],
s = z theta_t and s_0 = z theta_0, with w = (slope of the bounded score) / m'. Both are normal. With s = mean + D e, e
standard normal, and F = C theta_t / D,

    z = mean + F e + what s does not tell,   s_0 = mean_0 + (F theta_0) e + rest,

and what the rest adds is, by Stein's identity, -(C theta_0 - F F^T theta_0) E[w m'(s_0)].

**One score a record**: m over the rest has a closed form (`Family.mean_over`), and one integral is left, by equal
steps. **Several** (labels): D is a root of the covariance of the scores' contrasts, for adding one number to all scores
changes nothing; e and the rest are points of a lattice that are normal in every direction, each with its opposite, of
unit covariance. The mean at theta_0 = theta_t is zero point by point, so that what a lattice errs by is a share of what
there is to see.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.stats import qmc

from confide.models.family import Family

Array = Any  # of JAX, or of NumPy
SCORES = np.linspace(-15.0, 15.0, 601)  # that moments of scores are tabulated at
NODES = np.linspace(-4.2, 4.2, 29)  # of an integral over a normal variable
SHARES = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))
POINTS, MANY = 256, 1024  # of a lattice, half of them the opposite of the others
LEAST = 1e-8  # variance of scores


class Rows(NamedTuple):
    """Moments of rows, and what the mean score is multiplied by."""

    mean: Array
    covariance: Array
    factor: Array  # K, in coordinates of the root


class Tables(NamedTuple):
    """At `SCORES`: w, E psi^2, and what the information is weighted by; for one score a record. For several they are
    computed at the threshold."""

    weights: Array
    variances: Array
    information: Array
    threshold: Array


class Places(NamedTuple):
    """What is known of queries before the truth is, one after the other."""

    directions: Array  # F
    weights: Array  # w at the nodes
    means: Array  # m there


@lru_cache(maxsize=16)
def tables(family: Family, threshold: float, typical: float) -> Tables:
    """The same for every question of a run."""
    if family.outputs:
        return Tables(np.zeros(0), np.zeros(0), np.zeros(0), np.asarray(threshold))
    slope, variance = family.score_moments(SCORES, threshold, typical)
    weight = family.information_weight(SCORES, np.asarray(threshold), typical)
    slope = slope / np.maximum(family.slope_of_mean(SCORES), 1e-300)
    return Tables(slope, variance, weight, np.asarray(threshold))


def look(family: Family, told: Tables, rows: Rows, theta: Array) -> Places:
    """At one query."""
    if family.outputs:
        root, scores = spread_scores(family, rows, theta, halves(family)[0])
        directions = rows.covariance @ contrasts(family, theta) @ root
        return Places(directions, family.label_weight(scores, told.threshold), family.mean(scores))
    along = rows.covariance @ theta
    deviation = jnp.sqrt(jnp.maximum(theta @ along, LEAST))
    scores = rows.mean @ theta + deviation * NODES
    return Places(along / deviation, interpolate(scores, told.weights), family.mean(scores))


def expect(family: Family, shares: Array, rows: Rows, places: Places, truth: Array) -> Array:
    """E[z w(s) (m(s) - m(s_0))] over queries with these shares."""
    if family.outputs:
        return _expect_labels(family, shares, rows, places, truth)
    beside = rows.covariance @ truth
    shared = places.directions @ truth
    left = jnp.maximum(truth @ beside - shared**2, 1e-10)
    expected, slope = family.mean_over(rows.mean @ truth + shared[:, None] * NODES, left[:, None])
    score = places.weights * (places.means - expected)
    flat, along, rest = shares * (score @ SHARES), shares * (score @ (SHARES * NODES)), places.weights * slope @ SHARES
    rest = shares * rest
    return rows.mean * jnp.sum(flat) + (along + rest * shared) @ places.directions - beside * jnp.sum(rest)


def _expect_labels(family: Family, shares: Array, rows: Rows, places: Places, truth: Array) -> Array:
    """Points come last, in single precision, which is fast and tells enough; classes before them."""
    points, first = np.concatenate(halves(family), axis=1).T.astype(np.float32), halves(family)[0].T.astype(np.float32)
    apart = contrasts(family, truth)
    beside = rows.covariance @ apart

    def one(share: Array, place: Places) -> tuple[Array, Array, Array]:
        shared = place.directions.T @ apart
        left = apart.T @ beside - shared.T @ shared
        left = jnp.linalg.cholesky(left + LEAST * (1 + jnp.trace(left)) * jnp.eye(left.shape[0]))
        whole = jnp.concatenate([(rows.mean @ apart)[None], shared, left.T]) @ contrast(family).T
        middle, *along = whole.astype(jnp.float32)
        scores = middle[:, None] + sum(each[:, None] * at for each, at in zip(along, points, strict=True))
        mean = jax.nn.softmax(scores, axis=0)
        weights = (place.weights / points.shape[1]).astype(jnp.float32)
        score, weighted = weights * (place.means.T.astype(jnp.float32) - mean), weights * mean
        slope = jnp.diag(jnp.sum(weighted, axis=1)) - jnp.sum(weighted[:, None] * mean, axis=2)
        flat, tilted = jnp.sum(score, axis=1), jnp.sum(first[:, None] * score, axis=2)
        flat, tilted, slope = (share * each.astype(shared.dtype) for each in (flat, tilted, slope))
        slope = contrast(family).T @ slope
        return flat, place.directions @ (tilted + shared @ slope), slope

    flat, along, slope = jax.vmap(one)(shares, places)
    found = jnp.outer(rows.mean, jnp.sum(flat, axis=0)) + jnp.sum(along, axis=0) - beside @ jnp.sum(slope, axis=0)
    return found.reshape(truth.shape)


def mean_square(family: Family, told: Tables, rows: Rows, theta: Array) -> Array:
    """E psi^2, of all scores together."""
    if family.outputs:
        _, scores = spread_scores(family, rows, theta, halves(family)[0])
        mean, weight = family.mean(scores), family.label_weight(scores, told.threshold)
        return jnp.mean(weight**2 * (1 - jnp.sum(mean**2, axis=-1)))
    return SHARES @ interpolate(_scores(rows, theta), told.variances)


def mean_information(family: Family, told: Tables, rows: Rows, theta: Array) -> Array:
    """E h, h what the information is weighted by."""
    if family.outputs:
        return jnp.mean(_label_information(family, told, rows, theta)[1])
    return SHARES @ interpolate(_scores(rows, theta), told.information)


def information(family: Family, told: Tables, rows: Rows, theta: Array) -> Array:
    """E h z z^T."""
    if family.outputs:
        directions, weight = _label_information(family, told, rows, theta)
        return weigh(rows, directions, many(family), weight / len(weight))
    return _weigh_one(rows, theta, told.information)


def variance(family: Family, told: Tables, rows: Rows, theta: Array) -> Array:
    """E psi psi^T (x) z z^T, as a matrix over all parameters."""
    if not family.outputs:
        return _weigh_one(rows, theta, told.variances)
    first = many(family)
    root, scores = spread_scores(family, rows, theta, first)
    directions = rows.covariance @ contrasts(family, theta) @ root
    mean, weight = family.mean(scores), family.label_weight(scores, told.threshold)
    k = mean.shape[1]
    products = jnp.eye(k) * mean[:, :, None] - mean[:, :, None] * mean[:, None, :]
    products = (products * (weight**2 / len(weight))[:, None, None]).reshape(-1, k * k)
    blocks = jax.vmap(lambda each: weigh(rows, directions, first, each), 1)(products)
    p = rows.mean.shape[0]
    return blocks.reshape(k, k, p, p).transpose(2, 0, 3, 1).reshape(p * k, p * k)


def weigh(rows: Rows, directions: Array, nodes: Array, values: Array) -> Array:
    """E h z z^T for z = mean + F e + rest, by values of h at nodes of e, times their shares."""
    mean, covariance, _ = rows
    e0, e1, e2 = jnp.sum(values), values @ nodes, nodes.T @ (nodes * values[:, None])
    cross = jnp.outer(mean, directions @ e1)
    still = covariance - directions @ directions.T
    return e0 * (jnp.outer(mean, mean) + still) + cross + cross.T + directions @ e2 @ directions.T


def _weigh_one(rows: Rows, theta: Array, table: Array) -> Array:
    along = rows.covariance @ theta
    direction = along / jnp.sqrt(jnp.maximum(theta @ along, LEAST))
    values = SHARES * interpolate(_scores(rows, theta), table)
    return weigh(rows, direction[:, None], NODES[:, None], values)


def _scores(rows: Rows, theta: Array) -> Array:
    deviation = jnp.sqrt(jnp.maximum(theta @ (rows.covariance @ theta), LEAST))
    return rows.mean @ theta + deviation * NODES


def interpolate(scores: Array, table: Array) -> Array:
    """What a table at `SCORES` says between them, and at its ends beyond."""
    table = jnp.asarray(table)
    place = jnp.clip((scores - SCORES[0]) / (SCORES[1] - SCORES[0]), 0.0, len(SCORES) - 1.0)
    left = jnp.minimum(place.astype(jnp.int32), len(SCORES) - 2)
    low = table.at[left].get(mode="promise_in_bounds")
    return low + (place - left) * (table.at[left + 1].get(mode="promise_in_bounds") - low)


def _label_information(family: Family, told: Tables, rows: Rows, theta: Array) -> tuple[Array, Array]:
    root, scores = spread_scores(family, rows, theta, many(family))
    directions = rows.covariance @ contrasts(family, theta) @ root
    return directions, family.information_weight(scores, told.threshold)


# Several scores a record.


@cache
def contrast(family: Family) -> np.ndarray:
    """Orthonormal directions of scores that add up to zero, (scores, scores - 1)."""
    k = family.outputs[0]
    return np.linalg.svd(np.eye(k) - 1 / k)[0][:, : k - 1]


def contrasts(family: Family, theta: Array) -> Array:
    return theta.reshape(-1, *family.outputs) @ contrast(family)


def lattice(dimensions: int, points: int) -> np.ndarray:
    """So many points, each with its opposite, whose mean is zero and whose covariance is the identity."""
    raw = stats.norm.ppf(qmc.Sobol(dimensions, scramble=False).random(points // 2) + 1 / points)
    both = np.concatenate([raw, -raw])
    return np.linalg.solve(np.linalg.cholesky(both.T @ both / points), both.T).T


@cache
def halves(family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Points for e, and for the rest."""
    k = family.outputs[0] - 1
    both = lattice(2 * k, POINTS)
    return both[:, :k], both[:, k:]


@cache
def many(family: Family) -> np.ndarray:
    """Points for e alone, for what is computed once."""
    return lattice(family.outputs[0] - 1, MANY)


def spread_scores(family: Family, rows: Rows, theta: Array, points: Array) -> tuple[Array, Array]:
    """The root D^-T of the contrasts' covariance, and all scores at the points."""
    apart = contrasts(family, theta)
    covariance = apart.T @ rows.covariance @ apart
    spread = jnp.linalg.cholesky(covariance + LEAST * (1 + jnp.trace(covariance)) * jnp.eye(covariance.shape[0]))
    scores = (rows.mean @ apart + points @ spread.T) @ contrast(family).T
    return jnp.linalg.inv(spread).T, scores
