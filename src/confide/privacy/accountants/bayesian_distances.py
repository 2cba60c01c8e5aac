"""From distances to Renyi divergences, fast: what the Bayesian accountant averages.

A record that moves the noisy sum by d, under noise of standard deviation s and with probability q of being in the
batch, has at the integer order a = lambda + 1 the log-moment (see `moments.py`)

    lambda D_a = log E exp(k (k-1) x / 2),    k ~ Binomial(a, q),    x = d^2 / s^2,

a smooth convex function of x, whose first three derivatives are the cumulants of k (k-1) / 2 under the tilted weights.
So some values of x are worked out exactly and the rest joined by polynomials of degree seven that match the value and
those derivatives. Cells are halved until their middle is right to `TOLERANCE`; the middle then becomes a knot as well,
which leaves a 256th of the error, and a 64th is added. The other direction of the divergence is never larger (Mironov,
Talwar and Zhang 2019, Theorem 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from confide import validation
from confide.validation import Refused

ROUNDING = 1e-6  # distances that near to the clip are at the clip: single precision does no better
FEW = 2048  # distinct distances that are worked out one by one
TOLERANCE = 1e-9  # relative, in the middle of a cell before it is halved for the last time
LARGEST = 1e30  # of x: the noise is then no noise
BLOCK = 2**20  # numbers held at a time
Renyi = Callable[[int, np.ndarray], np.ndarray]


class Family(NamedTuple):
    """log E exp(c_k x) for k ~ Binomial(trials, q): one direction of a divergence, at one order."""

    trials: int
    coefficients: np.ndarray


def left(order: int) -> Family:
    k = np.arange(order + 2)
    return Family(order + 1, k * (k - 1) / 2)


def printed_right(order: int) -> Family:
    """triastcyn2020, Theorem 3: an upper bound on the other direction, by convexity of 1/x."""
    k = np.arange(order + 1)
    return Family(order, k * (k + 1) / 2)


def log_moment(family: Family, sampling_probability: float, x: np.ndarray) -> np.ndarray:
    """The value and three derivatives at each x, stacked."""
    n, c = family.trials, family.coefficients
    if sampling_probability == 1:
        return np.stack([c[n] * x, np.full_like(x, c[n]), np.zeros_like(x), np.zeros_like(x)])
    k = np.arange(n + 1)
    weights = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    weights += (n - k) * math.log1p(-sampling_probability) + k * math.log(sampling_probability)
    exponent = x[:, None] * c
    terms = weights + exponent
    largest = terms.max(axis=1)
    tilted = np.exp(terms - largest[:, None])
    total = tilted.sum(axis=1)
    value = largest + np.log(total)
    # The weights add up to 1, so near 0 log(1 + sum of weight (e^exponent - 1)) keeps the digits.
    small = value < 0.1
    rise = (tilted[small] * -np.expm1(-exponent[small])).sum(axis=1)
    value[small] = np.log1p(rise * np.exp(largest[small]))
    tilted /= total[:, None]
    slope = tilted @ c
    apart = c - slope[:, None]
    tilted *= apart
    tilted *= apart
    return np.stack([value, slope, tilted.sum(axis=1), np.einsum("ik,ik->i", tilted, apart)])


def _basis(t: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Weights of the value and three derivatives at both ends of a cell, at the share t of its width: (..., 8)."""
    weights = np.empty((*t.shape, 8))
    for first, near, sign in ((0, t, 1.0), (4, 1 - t, -1.0)):
        far, scale = (1 - near) ** 2, sign * width
        base = far * far
        weights[..., first] = base * (1 + near * (4 + near * (10 + 20 * near)))
        base = base * near * scale
        weights[..., first + 1] = base * (1 + near * (4 + 10 * near))
        base = base * near * scale
        weights[..., first + 2] = base * (0.5 + 2 * near)
        weights[..., first + 3] = base * near * scale / 6
    return weights


class Table:
    """Values of every family at any x up to the largest; exact where few are asked for."""

    def __init__(self, families: list[Family], sampling_probability: float, x: np.ndarray) -> None:
        self._families, self._q = families, sampling_probability
        distinct = np.unique(x)
        self.exact = distinct.size <= FEW
        if self.exact:
            self._knots, self._values = distinct, self._at(distinct)[:, 0]
        else:
            self._knots, self._values = self._refined(float(distinct[-1]))

    def _at(self, x: np.ndarray) -> np.ndarray:
        """(points, 4, families)"""
        return np.stack([log_moment(f, self._q, x) for f in self._families], axis=-1).transpose(1, 0, 2)

    def _refined(self, largest: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.array([0.0]), np.array([largest])
        known = dict(zip((0.0, largest), self._at(np.array([0.0, largest])), strict=True))
        worst = 0.0
        while low.size:
            middle = (low + high) / 2
            at = self._at(middle)
            known.update(zip(middle.tolist(), at, strict=True))
            ends = np.stack([np.concatenate([known[a], known[b]]) for a, b in zip(low, high, strict=True)])
            guess = np.einsum("ij,ijf->if", _basis(np.full(low.shape, 0.5), high - low), ends)
            wrong = (np.abs(guess - at[:, 0]) / np.maximum(at[:, 0], 1e-300)).max(axis=1)
            again = wrong > TOLERANCE
            worst = max(worst, float(wrong[~again].max(initial=0.0)))
            low, high = (
                np.concatenate([low[again], middle[again]]),
                np.concatenate([middle[again], high[again]]),
            )
        knots = np.array(sorted(known))
        return knots, np.stack([known[knot] for knot in knots.tolist()]) * (1 + worst / 64)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(points, families)"""
        if self.exact:
            return self._values[np.searchsorted(self._knots, x)]
        from scipy.sparse import csr_array

        cell = np.clip(np.searchsorted(self._knots, x) - 1, 0, self._knots.size - 2)
        start = self._knots[cell]
        width = self._knots[cell + 1] - start
        weights = _basis((x - start) / width, width)
        columns = 4 * cell[:, None] + np.arange(8)
        shape = (x.size, 4 * self._knots.size)
        matrix = csr_array((weights.ravel(), columns.ravel(), np.arange(0, 8 * x.size + 1, 8)), shape=shape)
        return matrix @ self._values.reshape(shape[1], -1)


class Block(NamedTuple):
    """lambda D of some orders and steps: values (steps, samples, orders) and, at the clip, most (steps, orders)."""

    orders: slice
    steps: slice
    values: np.ndarray
    most: np.ndarray | None


def gaussian_blocks(
    distances: np.ndarray,
    clip: float | None,
    orders: list[int],
    noise_scale: np.ndarray,
    sampling_probability: float,
    printed: bool,
) -> Iterator[Block]:
    """Everything the estimators need, a few steps at a time."""
    if clip is not None:
        distances = np.concatenate([distances, np.full((len(distances), 1), clip)], axis=1)
    x = (distances / noise_scale[:, None]) ** 2
    if x.max() > LARGEST:
        raise Refused(f"noise_scale = {noise_scale.min():g} is no noise beside a distance of {distances.max():g}")
    families = [left(order) for order in orders] + [printed_right(order) for order in orders if printed]
    table = Table(families, sampling_probability, x)
    steps, samples = x.shape
    height = max(1, BLOCK // (samples * len(families)))
    for start in range(0, steps, height):
        rows = slice(start, min(steps, start + height))
        values = table(x[rows].ravel()).reshape(-1, samples, len(families))
        if printed:
            values = np.maximum(values[..., : len(orders)], values[..., len(orders) :])
        yield _block(slice(0, len(orders)), rows, values, clip)


def renyi_blocks(distances: np.ndarray, clip: float | None, orders: list[int], renyi: Renyi) -> Iterator[Block]:
    """The same for a mechanism of which only the Renyi divergence is known, order by order."""
    if clip is not None:
        distances = np.concatenate([distances, np.full((len(distances), 1), clip)], axis=1)
    for index, order in enumerate(orders):
        values = np.asarray(renyi(order + 1, distances), dtype=np.float64)
        if values.shape != distances.shape:
            raise Refused(f"renyi returned the shape {values.shape}: return one number per distance, {distances.shape}")
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise Refused(f"renyi returned a negative or non-finite number at order {order + 1}: return divergences")
        if clip is not None and (values[:, :-1] > values[:, -1:] * (1 + 1e-9)).any():
            raise Refused(f"renyi is larger below the clip than at it, at order {order + 1}: let it rise with distance")
        yield _block(slice(index, index + 1), slice(0, len(values)), order * values[..., None], clip)


def _block(orders: slice, steps: slice, values: np.ndarray, clip: float | None) -> Block:
    if clip is None:
        return Block(orders, steps, values, None)
    return Block(orders, steps, values[:, :-1], values[:, -1])


def check_distances(distances: Any, clip: float | None) -> np.ndarray:
    """The distances as (steps, samples); those within rounding of the clip are at the clip."""
    try:
        result = np.array(distances, dtype=np.float64)
    except (TypeError, ValueError):
        raise Refused(
            "distances is not a table of numbers: give one row per step, one column per sampled pair"
        ) from None
    if result.ndim != 2 or result.shape[0] == 0:
        raise Refused(f"distances has shape {result.shape}: give one row per step, one column per sampled pair")
    if result.shape[1] < 3:
        raise Refused(f"distances has {result.shape[1]} samples per step: give 3 at least, so that they show a spread")
    if not ((result >= 0) & (result <= validation.EXTREME)).all():
        step = int(np.argmin(((result >= 0) & (result <= validation.EXTREME)).all(axis=1)))
        raise Refused(f"distances of step {step} hold a negative or non-finite number: give distances, 0 or more")
    if clip is not None:
        if (largest := result.max()) > clip * (1 + ROUNDING):
            raise Refused(f"distances reach {largest:g}, above clip = {clip:g}: clip them, or declare the right clip")
        result[result >= clip * (1 - ROUNDING)] = clip
    return result
