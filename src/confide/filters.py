"""What a step notes about single records, inside the compiled program: their distances, and what each has spent.

`Watch` says what is wanted, `Notes` is what one step finds. Nothing of it is released by itself: distances become an
estimate that no guarantee covers (`confide.accountants.bayesian`), and what records have spent decides who still takes
part (`confide.accountants.individual`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.accountants.individual import KNOTS, Filter
from confide.gradients import ClippedSum
from confide.noise import GRID

ROUNDING = 2.0**-15  # of norms in single precision, twice: of what is charged and of what is cut to it


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is wanted of a run: so many distances a step, of records picked at random, and a filter."""

    samples: int = 0
    filter: Filter | None = None

    def __bool__(self) -> bool:
        return bool(self.samples) or self.filter is not None


class Limits(NamedTuple):
    """A filter as the compiled program takes it: arguments, so that another budget needs no new program."""

    limit: jax.Array
    spacing: jax.Array  # of the ratios in the table
    table: jax.Array

    def costs(self, ratios: jax.Array) -> jax.Array:
        """Infinite beyond the table, where the last chord would be too little."""
        place = jnp.clip((ratios / self.spacing).astype(jnp.int32), 0, KNOTS - 2)
        low, high = self.table[place], self.table[place + 1]
        share = (jnp.square(ratios / self.spacing) - jnp.square(place)) / (2 * place + 1)
        return jnp.where(ratios <= self.spacing * (KNOTS - 1) * (1 + 1e-12), low + (high - low) * share, jnp.inf)


class Seen(NamedTuple):
    """What a whole run has found; private."""

    distances: np.ndarray | None  # (chains, steps, samples)
    spent: np.ndarray | None  # (chains, records)


@dataclass
class Notes:
    """Of one step, filled while it is traced, when the step asks for its gradient, which it does once."""

    data: tuple[jax.Array, ...]
    reach: jax.Array | None
    picked: jax.Array | None  # rows whose distances are wanted
    joined: jax.Array | None  # the same, spliced into the rows of a small batch
    spent: jax.Array | None
    limits: Limits | None
    secure: bool
    distances: jax.Array | None = None
    seen: bool = False

    def charge(
        self, gradient_sum: ClippedSum, position: jax.Array, scale: jax.Array, factor: jax.Array | None
    ) -> jax.Array | None:
        """Charge every record for what it contributes at this position; the norm that each may have in the sum.

        It is the norm that was charged for, or 0: another program may round a record's gradient otherwise, and where
        large numbers cancel in it, into another gradient. What is added up is cut to what was paid.
        """
        assert not self.seen, "a step that asks twice would be charged once"
        self.seen = True
        if self.limits is None or self.spent is None:
            return None
        norms = gradient_sum.every_norm(position, self.data, self.reach, factor)
        moved = jnp.minimum(norms.astype(jnp.float64) * (1 + ROUNDING) + gradient_sum.slack, gradient_sum.clip)
        if self.secure:  # each record is rounded to the grid of the noise
            moved = moved + scale / GRID * math.sqrt(position.size) / 2
        after = self.spent + self.limits.costs(moved / scale)
        within = after <= self.limits.limit
        self.spent = jnp.where(within, after, self.limits.limit)
        return jnp.where(within, norms, jnp.float32(0))

    def look(self, gradient_sum: ClippedSum, position: jax.Array, factor: jax.Array | None) -> None:
        """Note what the records that were picked contribute at this position."""
        if self.picked is not None:
            with jax.enable_x64(False), jax.default_matmul_precision("highest"):
                batch = gradient_sum.batch(self.data, self.reach, self.picked)
                self.distances = gradient_sum.norms(position, batch, factor)


def limits(filter: Filter | None) -> Limits | None:
    if filter is None:
        return None
    spacing = filter.largest / (KNOTS - 1)
    return Limits(jnp.asarray(filter.limit), jnp.asarray(spacing), jnp.asarray(filter.table))
