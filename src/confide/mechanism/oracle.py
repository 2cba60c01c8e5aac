"""The one contract: how a chain starts, how it moves, and what its steps reveal.

A kernel never sees a record. Each step asks the `Oracle` for the clipped gradient sum, with Gaussian noise of a
standard deviation that it names, and moves by what it is told: **every kernel is post-processing of noisy sums.** The
standard deviations are one array, `controls.noise`: the steps draw by it and the event is written from it, so
what is drawn and what is priced cannot drift apart.

With the mean gradient multiplied by eta, Langevin noise of variance 2 eta temperature / n on the parameters is noise
of standard deviation q sqrt(2 n temperature / eta) on the sum (`langevin_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism import noise
from confide.mechanism.clipping import Batch, ClippedSum
from confide.mechanism.observers import Notes
from confide.privacy import events
from confide.privacy.events import Event
from confide.validation import Refused

State = Any  # a NamedTuple whose first field is `position`, the flat parameters


class Controls(NamedTuple):
    """What each step is told: arrays with one number per step, or the numbers of one step."""

    step_size: Any
    noise: Any  # standard deviation on the sum of the gradients
    fisher_noise: Any  # the same for the sum of their outer products; 0 where none is asked for


class Kernel(NamedTuple):
    init: Callable[[jax.Array], State]
    step: Callable[[State, Controls, jax.Array, Oracle], State]  # (state, this step's controls, number of step, oracle)
    event: Callable[[], Event]
    controls: Controls


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is public about a run, and all that a kernel is built from."""

    n: int  # the declared number of records
    sampling_probability: float
    clip: float  # inf for a run without a guarantee
    dimension: int  # number of parameters
    prior: Callable[[jax.Array], jax.Array]  # gradient of -log prior at a flat position
    secure: bool = False
    capacity: int | None = None  # places for records: n where it is not given
    others: int = 0  # rows that are no records: canaries
    own: int | None = None  # how many of the parameters, from the first, are the model's: all unless there are canaries

    @property
    def rows(self) -> int:
        """What batches are drawn from."""
        return (self.n if self.capacity is None else self.capacity) + self.others

    @property
    def size(self) -> int:
        """The number of the model's own parameters."""
        return self.dimension if self.own is None else self.own

    @property
    def expected_batch(self) -> float:
        """Of records."""
        return self.n * self.sampling_probability


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """All that a step can learn about the records: noisy sums over its batch."""

    gradient_sum: ClippedSum
    data: tuple[jax.Array, ...]
    reach: jax.Array | None
    rows: jax.Array | None  # of the batch; None for all
    units: jax.Array  # noise, one per parameter, fresh for this step: whole numbers of grid steps
    fisher_units: jax.Array | None = None  # the same for a second sum, an upper triangle
    key: jax.Array | None = None  # fresh for this step, for whatever is drawn beside the noise
    secure: bool = False
    notes: Notes | None = None  # what is noted about single records, where anything is
    masks: jax.Array | None = None  # key of what this step drops of each record

    def gradient(self, position: jax.Array, scale: jax.Array, factor: jax.Array | None = None) -> jax.Array:
        """The clipped sum of A^T g_i plus N(0, scale^2): the noisy sum as seen through the factor A."""
        noisy = self._noisy(position, scale, factor)
        if self.notes is not None:
            seen = None if factor is None else factor.astype(jnp.float32)
            self.notes.hear(noisy, self.gradient_sum, position.astype(jnp.float32), seen)
        return noisy

    def _noisy(self, position: jax.Array, scale: jax.Array, factor: jax.Array | None) -> jax.Array:
        single, seen = position.astype(jnp.float32), None if factor is None else factor.astype(jnp.float32)
        allowed = None
        if self.notes is not None:
            allowed = self.notes.charge(self.gradient_sum, single, scale, seen)
            both = self._with_distances(single, seen, allowed)
            if both is not None:
                total, self.notes.distances = both
                return self._added(total, scale, self.units)
            self.notes.look(self.gradient_sum, single, seen)
        if self.secure:
            whole = self._over(
                lambda batch: self.gradient_sum.contributions(single, batch, seen, self.masks),
                lambda rows: noise.whole(rows, scale),
                allowed,
            )
            return noise.joined(whole, scale, self.units)
        total = self._over(lambda batch: self.gradient_sum(single, batch, seen, self.masks).total, allowed=allowed)
        return self._added(total, scale, self.units)

    def _added(self, total: jax.Array, scale: jax.Array, units: jax.Array) -> jax.Array:
        """The noisy sum; without a clip nothing is promised, and nothing rounded: the sum may be beyond the grid."""
        if math.isinf(self.gradient_sum.clip):
            return total.astype(jnp.float64) + scale / noise.GRID * units
        return noise.added(total, scale, units)

    def _with_distances(
        self, position: jax.Array, factor: jax.Array | None, allowed: jax.Array | None
    ) -> tuple[jax.Array, jax.Array] | None:
        """The sum of the batch and the distances from one pass, where that can be."""
        notes, sums = self.notes, self.gradient_sum
        if notes is None or notes.joined is None or notes.picked is None or self.reach is None:
            return None
        if sums.linear is None or factor is not None or self.secure:
            return None
        with jax.enable_x64(False), jax.default_matmul_precision("highest"):
            return sums.beside(position, self.data, self.reach, notes.joined, notes.picked.shape[0], allowed)

    def displaced(self, position: jax.Array, mean: Callable[[jax.Array], jax.Array], scale: jax.Array) -> jax.Array:
        """mean(clipped sum over all records at the position) + N(0, scale^2), in double precision; linear models only.

        The mean as a whole is rounded to the grid of the noise, so that where it is hidden stays hidden.
        """
        found = self.gradient_sum.over(
            self.data, self.reach, None, lambda batch: self.gradient_sum.in_double(position, batch)
        )
        return noise.added(mean(found), scale, self.units)

    def fisher(self, position: jax.Array, scale: jax.Array) -> jax.Array:
        """The sum of the outer products of the clipped gradients, plus symmetric noise.

        A clipped outer product has Frobenius norm at most clip^2. Noise A with independent N(0, scale^2) entries,
        made symmetric as (A + A^T) / 2, is the Gaussian mechanism on the upper triangle in that norm: of variance
        scale^2 on the diagonal, and half of it beside. Each entry has the grid of its own noise, so that rounding by a
        step in each of d (d + 1) / 2 entries is as long as if all were on the diagonal. Gradients are cut to a limit L
        with L (1 + r) <= clip, r the rounding of a sum of so many rows (`mechanism.clipping`), so that L^2 (1 + r), of
        products summed in double precision, is at most clip^2.
        """
        single = position.astype(jnp.float32)

        def products(rows: jax.Array) -> jax.Array:
            double = rows.astype(jnp.float64)
            return double.T @ double

        total = self._over(lambda batch: self.gradient_sum.contributions(single, batch), products)
        if self.fisher_units is None:  # without a guarantee it is taken as it is
            return total
        upper = np.triu_indices(total.shape[0])
        spread = scale * jnp.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
        noisy = noise.added(total[upper], spread, self.fisher_units)
        return jnp.zeros_like(total).at[upper].set(noisy).at[upper[::-1]].set(noisy)

    def _over(
        self,
        found: Callable[[Batch], jax.Array],
        then: Callable[[jax.Array], jax.Array] = lambda rows: rows,
        allowed: jax.Array | None = None,
    ) -> jax.Array:
        """The sum over the batch; the model's own functions see single precision alone."""

        def summed(batch: Batch) -> jax.Array:
            with jax.enable_x64(False), jax.default_matmul_precision("highest"):
                rows = found(batch)
            return then(rows)

        return self.gradient_sum.over(self.data, self.reach, self.rows, summed, allowed)


def langevin_noise(setting: Setting, step_sizes: np.ndarray, temperature: float, friction: float = 1.0) -> np.ndarray:
    """q sqrt(2 friction n temperature / eta): the standard deviation on the sum."""
    return setting.sampling_probability * np.sqrt(2 * friction * setting.n * temperature / step_sizes)


def noise_multipliers(setting: Setting, controls: Controls, *, rounded: bool = True) -> np.ndarray:
    """Noise over clip, step by step; both sums of a step are one Gaussian release: 1/s^2 = 1/s_g^2 + 1/s_F^2.

    What rounding to the grid of the noise takes from it is taken, unless they are asked for as they are drawn.
    """
    if math.isinf(setting.clip):
        raise Refused("a run without clipping has no guarantee: give a clip")
    multipliers = controls.noise / setting.clip
    asked, d = controls.fisher_noise > 0, setting.dimension
    fisher = np.where(asked, controls.fisher_noise, 1.0) / setting.clip**2
    if rounded:
        multipliers = noise.worth(multipliers, d, setting.secure)
        fisher = noise.worth(fisher, d * (d + 1) // 2, setting.secure)
    return np.where(asked, 1 / np.sqrt(1 / multipliers**2 + 1 / fisher**2), multipliers)


def lost(setting: Setting, controls: Controls) -> float:
    """What rounding takes at most: 1 / (noise multiplier that is priced) - 1 / (noise multiplier that is drawn)."""
    d, both = setting.dimension, bool(np.any(controls.fisher_noise > 0))
    second = noise.lost(d * (d + 1) // 2, setting.secure) if both else 0.0
    return math.hypot(noise.lost(d, setting.secure), second)


def gaussian_event(setting: Setting, controls: Controls) -> Event:
    """The event of all steps of one chain."""
    multipliers = noise_multipliers(setting, controls)
    if np.all(multipliers == multipliers[0]):
        return events.gaussian(float(multipliers[0]), setting.sampling_probability, multipliers.size)
    return events.gaussian(multipliers, setting.sampling_probability)
