"""What the noisy sums of a run say together of where they were asked for: sums over its steps, a few parts of the run.

They are computed from positions and noisy sums alone, so they may be released as these may; and their memory does not
grow with the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Layer, Observed

PARTS = 8  # of a run, of equal length


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Sums of u u^T / s^2, with u = (1, position, noisy sum / q) and s the noise of the sum over q, part by part."""

    steps: int
    dimension: int
    sampling_probability: float

    @property
    def parts(self) -> int:
        return min(PARTS, self.steps)

    def zeros(self) -> jax.Array:
        size = 1 + 2 * self.dimension
        return jnp.zeros((self.parts, size, size), jnp.float64)

    def part(self, t: jax.Array) -> jax.Array:
        return t * self.parts // self.steps

    def lengths(self) -> np.ndarray:
        """Steps of each part."""
        ends = -(-np.arange(self.parts + 1) * self.steps // self.parts)
        return np.diff(ends)

    def product(self, position: jax.Array, noisy: jax.Array, scale: jax.Array) -> jax.Array:
        """What one step adds."""
        q = self.sampling_probability
        both = jnp.concatenate([jnp.ones(1), position.astype(jnp.float64), noisy / q])
        return jnp.outer(both, both) / jnp.square(scale / q)


def traced(inner: Layer, trace: Traced) -> Layer:
    """The inner answer, after it was added to the sums; for queries that no preconditioner looks through."""

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        noisy, observed = inner(query, draw, observed)
        assert query.preconditioner_root is None
        assert observed.trace is not None
        added = trace.product(query.position, noisy, draw.claimed)
        return noisy, observed._replace(trace=observed.trace.at[trace.part(draw.t)].add(added))

    return answer
