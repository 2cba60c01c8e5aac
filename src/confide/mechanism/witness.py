"""A witness of runs on made-up tables (`confide.audits.made_up`), never of records: it hears every noisy sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from confide.mechanism.clipping import ClippedSum, single_precision
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Layer, Observed, Prepared


class Heard(NamedTuple):
    """What a witness has heard of a run on made-up tables."""

    statistics: jax.Array  # (steps, 3): score, length of the record's contribution, of the one that it is replaced by
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

    def statistics(self, noisy: jax.Array, scale: jax.Array, contributions: jax.Array) -> jax.Array:
        """What one step tells; the contributions are those of the record and, where replaced, of the other one."""
        known = contributions.astype(noisy.dtype)
        squares = jnp.sum(jnp.square(known), axis=1)
        gains = (known @ noisy - squares / 2) / jnp.square(scale)
        q = self.sampling_probability
        ratios = gains if q == 1 else jnp.logaddexp(math.log1p(-q), math.log(q) + gains)
        score = ratios[0] - ratios[1] if self.replaced else ratios[0]
        return jnp.concatenate([score[None], jnp.sqrt(squares) / self.clip])


def heard_by(inner: Layer, witness: Witness, sums: ClippedSum, prepared: Prepared) -> Layer:
    """The inner answer, after the witness has heard it; the last row of its sums takes those that are not kept."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        noisy, observed = inner(query, draw, observed)
        known, so_far = prepared.known, observed.heard
        assert known is not None
        with single_precision():
            both = sums.batch(known, sums.residual_threshold(known), jnp.arange(2, dtype=jnp.int32))
            contributions = sums.contributions(query.position, both, query.preconditioner_root)
        statistics = witness.statistics(noisy, draw.claimed, contributions)
        kept = jnp.minimum(draw.t, so_far.sums.shape[0] - 1)
        heard = Heard(so_far.statistics.at[draw.t].set(statistics), so_far.sums.at[kept].set(noisy / draw.claimed))
        return noisy, observed._replace(heard=heard)

    return answer
