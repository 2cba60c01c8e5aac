"""The oracle: all that a step can learn about the records is its answers, noisy sums over the batch of the step.

It is built once for a compiled program, by wrapping layers (`mechanism.layers`) from the inside out. The innermost sums
clipped gradients over the batch, or contributions that are rounded one by one; what is outside of the noise sees noisy
sums alone.

| layer                                         | knows                                                    |
|-----------------------------------------------|----------------------------------------------------------|
| `clipped_sum`, or `rounded_contributions`     | how records are clipped and added up                     |
| `gradient_distances`                          | what records that were picked contribute                 |
| `individual_filter`                           | what every record has spent, and so what it may still add |
| `gaussian`                                    | the noise of the step                                    |
| `canary_scores`, `traced`, `heard_by` a witness | noisy sums alone                                       |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism import grid, noise
from confide.mechanism.canary_scores import CanaryTest, canary_scores
from confide.mechanism.clipping import GLM, ClippedSum, single_precision
from confide.mechanism.gradient_distances import gradient_distances
from confide.mechanism.individual_filter import individual_filter
from confide.mechanism.kernel import FisherQuery, FullBatchStep, Kernel, Query, Schedule, State
from confide.mechanism.layers import Draw, Layer, Observed, Prepared
from confide.mechanism.noise import Rounding
from confide.mechanism.per_example import CHUNK, Batch, column
from confide.mechanism.trace import Traced, traced
from confide.mechanism.witness import Witness, heard_by
from confide.privacy.accountants.individual import Filter


@dataclass(frozen=True, kw_only=True)
class Observers:
    """What is wanted of a run beside its draws: so many distances a step of records picked at random, a filter, scores
    of canaries, sums over what was asked and answered; or, on made-up tables, all that a witness hears."""

    samples: int = 0
    filter: Filter | None = None
    canaries: CanaryTest | None = None
    trace: Traced | None = None
    witness: Witness | None = None

    def __bool__(self) -> bool:
        return self != Observers()


class Observations(NamedTuple):
    """What observers hold of a whole run; private, but for the statistics of canaries and the trace."""

    distances: np.ndarray | None  # (chains, steps, samples)
    spent: np.ndarray | None  # (chains, records)
    statistics: np.ndarray | None = None  # (chains, 4, canaries): see `CanaryTest.statistics`
    trace: np.ndarray | None = None  # (chains, parts, ...): see `Traced`


class Oracle(NamedTuple):
    gradient: Layer
    full_batch_step: Callable[[FullBatchStep, Draw], jax.Array]
    fisher: Callable[[FisherQuery, Draw], jax.Array]

    def answer(self, query: Query | FullBatchStep, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        if isinstance(query, FullBatchStep):
            return self.full_batch_step(query, draw), observed
        return self.gradient(in_single(query), draw, observed)


def build(sums: ClippedSum, rounding: Rounding, observers: Observers, prepared: Prepared) -> Oracle:
    """The oracle of these records, for whoever observes."""
    sums = sums.weighted_by(prepared.weighting)
    if rounding == noise.CONTRIBUTIONS:
        layer = rounded_contributions(sums, prepared)
    else:
        layer = clipped_sum(sums, prepared, rounding)
    add = noise.unrounded if rounding == noise.NONE else noise.add_noise
    if observers.samples:
        layer = gradient_distances(layer, sums, prepared, rounding)
    if observers.filter is not None:
        layer = individual_filter(layer, sums, prepared, rounding)
    layer = gaussian(layer, add)
    if observers.canaries is not None:
        layer = canary_scores(layer, observers.canaries)
    if observers.trace is not None:
        layer = traced(layer, observers.trace)
    if observers.witness is not None:
        layer = heard_by(layer, observers.witness, sums, prepared)
    return Oracle(layer, full_batch_step(sums, prepared), fisher(sums, prepared))


def step(
    kernel: Kernel, oracle: Oracle, state: State, control: Schedule, draw: Draw, observed: Observed
) -> tuple[State, Observed]:
    """One step: the kernel asks, the oracle answers, the kernel moves."""
    t, stage = draw.t, kernel.fisher
    if stage is not None:
        state = jax.lax.cond(
            t < stage.steps,
            lambda: stage.update(state, oracle.fisher(stage.query(state, control, t), draw), control, t),
            lambda: state,
        )
    query, memo = kernel.query(state, control, t, draw.key)
    noisy, observed = oracle.answer(query, draw, observed)
    return kernel.update(state, memo, noisy, control, t), observed


def in_single(query: Query) -> Query:
    """The query as the model's own functions see it; the noise stays in double precision."""
    root = query.preconditioner_root
    return Query(query.position.astype(jnp.float32), query.scale, None if root is None else root.astype(jnp.float32))


def clipped_sum(sums: ClippedSum, prepared: Prepared, rounding: Rounding) -> Layer:
    """The sum over the batch, in whole steps of the grid of its noise where there is a guarantee."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        def found(batch: Batch) -> jax.Array:
            with single_precision():
                return sums(query.position, batch, query.preconditioner_root, draw.masks).total

        def finish(total: jax.Array) -> jax.Array | noise.WholeSteps:
            if draw.rows is None and rounding != noise.NONE:
                return grid.on_grid(total, query.scale)  # of every chunk, and chunks are added as integers
            return grid.round_batch(total, query.scale, rounding)

        total = sums.over(prepared.data, prepared.residual_threshold, draw.rows, found, draw.allowed, finish)
        return total, observed

    return answer


def rounded_contributions(sums: ClippedSum, prepared: Prepared) -> Layer:
    """The sum of what every record contributes, rounded to the grid by itself: an integer, exactly."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        def found(batch: Batch) -> jax.Array:
            with single_precision():
                rows = sums.contributions(query.position, batch, query.preconditioner_root, draw.masks)
            return grid.whole(rows, query.scale)

        return sums.over(prepared.data, prepared.residual_threshold, draw.rows, found, draw.allowed), observed

    return answer


def gaussian(inner: Layer, add: Callable[[jax.Array, Any, jax.Array], jax.Array]) -> Layer:
    """The inner sum with the noise of the step, of the standard deviation that the query names."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        total, observed = inner(query, draw, observed)
        return add(total, query.scale, draw.units), observed

    return answer


def full_batch_step(sums: ClippedSum, prepared: Prepared) -> Callable[[FullBatchStep, Draw], jax.Array]:
    """A step along the sum of all gradients, which is added up in whole numbers on a finer grid than that of the noise.

    Two runs that are compared stand at different positions, so that every chunk is rounded otherwise: the grid is finer
    by `grid.finer` bits, and then the mean is rounded as a whole.
    """
    fine = 2.0 ** grid.finer(-(-prepared.data[0].shape[0] // CHUNK))

    def answer(query: FullBatchStep, draw: Draw) -> jax.Array:
        def found(batch: Batch) -> jax.Array:
            return sum_in_double(sums, query.position, batch)

        scale = query.scale / query.step_size / fine
        total = sums.over(
            prepared.data, prepared.residual_threshold, None, found, None, lambda part: grid.on_grid(part, scale)
        )
        mean = query.position - query.step_size * (query.pull + total.astype(jnp.float64) * (scale / noise.GRID))
        return noise.add_noise(grid.on_grid(mean, query.scale), query.scale, draw.units)

    return answer


def sum_in_double(sums: ClippedSum, position: jax.Array, batch: Batch) -> jax.Array:
    """The clipped sum of one chunk of a linear model, from the scores on in double precision.

    Several scores of a record are not cut: their gradients are bounded by the norm of the rows.
    """
    glm = sums.per_example
    assert isinstance(glm, GLM)
    inputs, labels = (array.astype(jnp.float64) for array in batch.arrays)
    inputs, residual = glm.residuals(position, batch._replace(arrays=(inputs, labels)), sums.limit)
    if batch.residual_threshold is not None and residual.ndim == 1:
        threshold = batch.residual_threshold.astype(jnp.float64)
        residual = jnp.clip(residual, -threshold, threshold)
    residual = jnp.where(column(batch.real, residual), residual, 0.0)
    return jnp.tensordot(inputs, residual, (0, 0)).ravel()


def fisher(sums: ClippedSum, prepared: Prepared) -> Callable[[FisherQuery, Draw], jax.Array]:
    """The sum of the outer products of the clipped gradients, plus symmetric noise.

    A clipped outer product has Frobenius norm at most clip^2. Noise A with independent N(0, scale^2) entries,
    made symmetric as (A + A^T) / 2, is the Gaussian mechanism on the upper triangle in that norm: of variance
    scale^2 on the diagonal, and half of it beside. Each entry has the grid of its own noise, so that rounding by a
    step in each of d (d + 1) / 2 entries is as long as if all were on the diagonal. Gradients are cut to a limit L
    with L (1 + r) <= clip, r the rounding of a sum of so many rows (`mechanism.per_example`), so that L^2 (1 + r), of
    products summed in double precision, is at most clip^2.
    """

    def answer(query: FisherQuery, draw: Draw) -> jax.Array:
        single = query.position.astype(jnp.float32)

        def products(batch: Batch) -> jax.Array:
            with single_precision():
                rows = sums.contributions(single, batch)
            double = rows.astype(jnp.float64)
            return double.T @ double

        size = query.position.size
        upper = np.triu_indices(size)
        if draw.fisher_units is None:  # without a guarantee it is taken as it is
            return sums.over(prepared.data, prepared.residual_threshold, draw.rows, products)
        spread = query.scale * jnp.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))

        def finish(total: jax.Array) -> jax.Array:
            return grid.on_grid(total[upper], spread)

        total = sums.over(prepared.data, prepared.residual_threshold, draw.rows, products, finish=finish)
        noisy = noise.add_noise(total, spread, draw.fisher_units)
        return jnp.zeros((size, size), jnp.float64).at[upper].set(noisy).at[upper[::-1]].set(noisy)

    return answer
