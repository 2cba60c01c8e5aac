"""What noisy sums tell of canaries (`mechanism.canaries`), each of which has coordinates of its own in them.

Scores are computed from the noisy sums alone, so they may be released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.scipy

from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Layer, Observed


@dataclass(frozen=True, kw_only=True)
class CanaryTest:
    """Canaries, each with a coordinate of its own: whether they take part is to be guessed from the noisy sums.

    One that does adds `clip` to its coordinate whenever it is in the batch; one that does not adds nothing, or takes
    `clip` away where it is `replaced`. The score is the log likelihood ratio, summed over the steps: no attack is
    better (Neyman and Pearson). Beside it come the sums by which the mechanism itself is tested. All by the noise that
    is claimed, whatever was drawn.
    """

    first: int  # coordinate of the first canary: the number of the model's parameters
    apart: int  # coordinates from one to the next
    count: int
    sampling_probability: float
    clip: float
    replaced: bool

    def statistics(self, noisy: jax.Array, scale: jax.Array) -> jax.Array:
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


def canary_scores(inner: Layer, test: CanaryTest) -> Layer:
    """The inner answer in the model's own coordinates, after those of the canaries have been scored.

    Gradients of canaries depend on no parameter, so that theirs stay at 0: kernels need not know of them.
    """
    others = test.apart * test.count

    def answer(query: Query, draw: Draw, observed: Observed) -> tuple[jax.Array, Observed]:
        wide = Query(_wide(query.position, others), query.scale, _wide_root(query.preconditioner_root, others))
        noisy, observed = inner(wide, draw, observed)
        assert observed.statistics is not None
        statistics = observed.statistics + test.statistics(noisy, draw.claimed)
        return noisy[: test.first], observed._replace(statistics=statistics)

    return answer


def _wide(position: jax.Array, others: int) -> jax.Array:
    return jnp.concatenate([position, jnp.zeros(others, position.dtype)])


def _wide_root(root: jax.Array | None, others: int) -> jax.Array | None:
    """One along the canaries' coordinates."""
    if root is None:
        return None
    if root.ndim == 1:
        return jnp.concatenate([root, jnp.ones(others, root.dtype)])
    return jax.scipy.linalg.block_diag(root, jnp.eye(others, dtype=root.dtype))
