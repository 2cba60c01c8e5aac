r"""How the weights of a plain network move: with a mean gradient, and for a sampler with noise. NOT private.

With the mean gradient g of a batch, the rate eta and n records (the step-size convention of the whole library):

    sgd       theta' = theta - eta (g + theta / (n s^2))
    rmsprop   theta' = theta - eta G (g + theta / (n s^2)),  G = 1 / (1e-5 + sqrt(V)),  V = 0.99 V + 0.01 g^2
    sgld      sgd's + N(0, 2 eta temperature / n)
    psgld     rmsprop's + N(0, 2 eta temperature G / n)   (Li et al. 2016, without the term Gamma)

s is the prior's scale. wu2020 writes sgld with a step e that multiplies the sum over n records: eta = e n / 2. No
gradient is clipped, V sees gradients as they are, and noise is drawn in single precision: nothing here has a guarantee.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Optimiser = Literal["sgd", "rmsprop", "sgld", "psgld"]
DECAY, FLOOR = 0.99, 1e-5  # Li et al. 2016


class State(NamedTuple):
    weights: Any
    squares: Any  # V


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How weights move, given the mean gradient of a batch."""

    optimiser: Optimiser
    prior_scale: float | None = None
    temperature: float = 1.0

    def init(self, weights: Any) -> State:
        return State(weights, jax.tree.map(jnp.zeros_like, weights) if self.preconditioned else None)

    @property
    def preconditioned(self) -> bool:
        return self.optimiser in ("rmsprop", "psgld")

    @property
    def noisy(self) -> bool:
        return self.optimiser in ("sgld", "psgld")

    def step(self, state: State, gradient: Any, rate: jax.Array | float, n: jax.Array | float, key: jax.Array) -> State:
        weights, squares, slope = state.weights, state.squares, gradient
        metric = jax.tree.map(lambda _: jnp.float32(1), weights)
        if self.preconditioned:
            squares = jax.tree.map(lambda v, g: DECAY * v + (1 - DECAY) * g * g, squares, gradient)
            metric = jax.tree.map(lambda v: 1 / (FLOOR + jnp.sqrt(v)), squares)
        if self.prior_scale is not None:
            precision = 1 / (n * self.prior_scale**2)
            slope = jax.tree.map(lambda g, w: g + precision * w, gradient, weights)
        weights = jax.tree.map(lambda w, m, g: w - rate * m * g, weights, metric, slope)
        if self.noisy:
            variance = 2 * rate * self.temperature / n
            weights = jax.tree.map(
                lambda w, m, xi: w + jnp.sqrt(variance * m) * xi, weights, metric, _normals(key, weights)
            )
        return State(weights, squares)


def _normals(key: jax.Array, like: Any) -> Any:
    """Drawn at once: a generator for each leaf would take long to compile."""
    leaves, form = jax.tree.flatten(like)
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    drawn = jnp.split(jax.random.normal(key, (ends[-1],), jnp.float32), ends[:-1])
    return form.unflatten([part.reshape(leaf.shape) for part, leaf in zip(drawn, leaves, strict=True)])
