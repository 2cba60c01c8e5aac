"""What a step notes about single records, inside the compiled program: their distances, what each has spent, what its
noisy sum tells of canaries, and, on made-up tables, the noisy sum itself.

`Watch` says what is wanted, `Notes` is what one step finds. Distances become an estimate that no guarantee covers
(`confide.privacy.accountants.bayesian`), and what records have spent decides who still takes part
(`privacy.accountants.individual`): neither is released. What is told of canaries (`canaries`) is computed from
the noisy sums alone, and they are. A `Witness` is for runs on made-up tables (`confide.audits.made_up`), never for
records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism import noise
from confide.mechanism.clipping import ClippedSum
from confide.privacy.accountants.individual import KNOTS, Filter

ROUNDING = 2.0**-15  # of norms in single precision, twice: of what is charged and of what is cut to it


@dataclass(frozen=True, kw_only=True)
class Game:
    """Canaries, each with a coordinate of its own: whether they take part is to be guessed from the noisy sums.

    One that does adds `clip` to its coordinate whenever it is in the batch; one that does not adds nothing, or takes
    `clip` away where it is `replaced`. The score is the log likelihood ratio, summed over the steps: no attack is
    better (Neyman and Pearson). Beside it come the sums by which the mechanism itself is tested. All by the noise that
    is claimed, whatever was drawn.
    """

    first: int  # coordinate of the first canary
    apart: int  # coordinates from one to the next
    count: int
    sampling_probability: float
    clip: float
    replaced: bool

    def told(self, noisy: jax.Array, scale: jax.Array) -> jax.Array:
        """What one noisy sum tells of every canary: score, z = sum / noise, z^2, and sum / clip."""
        seen = noisy[self.first : self.first + self.apart * self.count : self.apart]
        score = self._likelihood(seen, scale)
        if self.replaced:
            score = score - self._likelihood(-seen, scale)
        return jnp.stack([score, seen / scale, jnp.square(seen / scale), seen / self.clip])

    def _likelihood(self, seen: jax.Array, scale: jax.Array) -> jax.Array:
        """log of (density with it) / (density with an empty place)."""
        gain = (seen * self.clip - self.clip**2 / 2) / jnp.square(scale)
        q = self.sampling_probability
        return gain if q == 1 else jnp.logaddexp(math.log1p(-q), math.log(q) + gain)


class Heard(NamedTuple):
    """What a witness has heard of a run on made-up tables."""

    told: jax.Array  # (steps, 3): score, length of the record's contribution, of the one that it is replaced by
    sums: jax.Array  # (observed steps, parameters): noisy sums, in units of the noise that is claimed


@dataclass(frozen=True, kw_only=True)
class Witness:
    """Whoever gets every noisy sum of a run, knows one record, and asks whether it was there.

    The score of a step is the log likelihood ratio of its noisy sum with the record against without it, or against the
    one that took its place, where all others contribute nothing. Lengths are in clips.
    """

    sampling_probability: float
    clip: float
    replaced: bool
    observed: int  # first steps whose noisy sums are kept

    def told(self, noisy: jax.Array, scale: jax.Array, contributions: jax.Array) -> jax.Array:
        """What one step tells; the contributions are those of the record and, where replaced, of the other one."""
        known = contributions.astype(noisy.dtype)
        squares = jnp.sum(jnp.square(known), axis=1)
        gains = (known @ noisy - squares / 2) / jnp.square(scale)
        q = self.sampling_probability
        ratios = gains if q == 1 else jnp.logaddexp(math.log1p(-q), math.log(q) + gains)
        score = ratios[0] - ratios[1] if self.replaced else ratios[0]
        return jnp.concatenate([score[None], jnp.sqrt(squares) / self.clip])


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is wanted of a run: so many distances a step of records picked at random, a filter, scores of canaries; or,
    on made-up tables, all that a witness hears."""

    samples: int = 0
    filter: Filter | None = None
    game: Game | None = None
    witness: Witness | None = None

    def __bool__(self) -> bool:
        watched = (self.filter, self.game, self.witness)
        return bool(self.samples) or any(one is not None for one in watched)


class Limits(NamedTuple):
    """A filter as the compiled program takes it: arguments, so that another budget needs no new program."""

    limit: jax.Array
    worst: jax.Array  # see `Filter.worst`
    spacing: jax.Array  # of the ratios in the table
    table: jax.Array

    def costs(self, ratios: jax.Array) -> jax.Array:
        """Infinite beyond the table, where the last chord would be too little."""
        place = jnp.clip((ratios / self.spacing).astype(jnp.int32), 0, KNOTS - 2)
        low, high = self.table[place], self.table[place + 1]
        share = (jnp.square(ratios / self.spacing) - jnp.square(place)) / (2 * place + 1)
        return jnp.where(ratios <= self.spacing * (KNOTS - 1) * (1 + 1e-12), low + (high - low) * share, jnp.inf)


class Seen(NamedTuple):
    """What a whole run has found; private, but for what is told of canaries."""

    distances: np.ndarray | None  # (chains, steps, samples)
    spent: np.ndarray | None  # (chains, records)
    told: np.ndarray | None = None  # (chains, 4, canaries): see `Game.told`


@dataclass(kw_only=True)
class Notes:
    """Of one step, filled while it is traced, when the step asks for its gradient, which it does once."""

    data: tuple[jax.Array, ...]
    reach: jax.Array | None
    picked: jax.Array | None  # rows whose distances are wanted
    joined: jax.Array | None  # the same, spliced into the rows of a small batch
    spent: jax.Array | None
    limits: Limits | None
    secure: bool
    game: Game | None
    claimed: jax.Array  # standard deviation of the noise that this step is priced for
    witness: Witness | None = None
    known: tuple[jax.Array, ...] | None = None  # the records that the witness knows, two rows of each array
    distances: jax.Array | None = None
    told: jax.Array | None = None
    heard: tuple[jax.Array, jax.Array] | None = None
    seen: bool = False

    def charge(
        self, gradient_sum: ClippedSum, position: jax.Array, scale: jax.Array, factor: jax.Array | None
    ) -> jax.Array | None:
        """Charge every record for what it contributes at this position; the norm that each may have in the sum.

        It is the norm that was charged for, or 0: another program may round a record's gradient otherwise, and where
        large numbers cancel in it, into another gradient. What is added up is cut to what was paid.

        **Whoever has left** adds zero, exactly. Where its place stays, present or not, a zero is added there, and no
        floating-point sum is changed by that: nothing is left to charge (a test compares bits). Where the others move
        up into its place, they are grouped otherwise, and their sum may be rounded otherwise, by `slack` at most. What
        that costs in all steps is kept free from the first step on, so that nobody takes part on it: costs are convex
        in the square of the ratio and 0 at 0, so those of slack are at most (slack / clip)^2 of those of the clip.
        """
        assert not self.seen, "a step that asks twice would be charged once"
        self.seen = True
        if self.limits is None or self.spent is None:
            return None
        norms = gradient_sum.every_norm(position, self.data, self.reach, factor)
        moved = jnp.minimum(norms.astype(jnp.float64) * (1 + ROUNDING) + gradient_sum.slack, gradient_sum.clip)
        moved = moved + scale * noise.lost(position.size, self.secure)
        after = self.spent + self.limits.costs(moved / scale)
        reserve = self.limits.worst * (gradient_sum.slack / gradient_sum.clip) ** 2
        within = after <= self.limits.limit - reserve
        self.spent = jnp.where(within, after, self.limits.limit)
        return jnp.where(within, norms, jnp.float32(0))

    def hear(self, noisy: jax.Array, gradient_sum: ClippedSum, position: jax.Array, factor: jax.Array | None) -> None:
        """Note what the noisy sum tells of the canaries, or to a witness."""
        if self.game is not None:
            self.told = self.game.told(noisy, self.claimed)
        if self.witness is not None and self.known is not None:
            with jax.enable_x64(False), jax.default_matmul_precision("highest"):
                rows = jnp.arange(2, dtype=jnp.int32)
                both = gradient_sum.batch(self.known, gradient_sum.reach(self.known), rows)
                contributions = gradient_sum.contributions(position, both, factor)
            self.heard = self.witness.told(noisy, self.claimed, contributions), noisy / self.claimed

    def look(self, gradient_sum: ClippedSum, position: jax.Array, factor: jax.Array | None) -> None:
        """Note what the records that were picked contribute at this position."""
        if self.picked is not None:
            with jax.enable_x64(False), jax.default_matmul_precision("highest"):
                batch = gradient_sum.batch(self.data, self.reach, self.picked)
                norms = gradient_sum.norms(position, batch, factor)
                self.distances = jnp.where(batch.real, norms, jnp.float32(gradient_sum.limit))  # as far as can be


def limits(filter: Filter | None) -> Limits | None:
    if filter is None:
        return None
    spacing = filter.largest / (KNOTS - 1)
    return Limits(*map(jnp.asarray, (filter.limit, filter.worst, spacing, filter.table)))
