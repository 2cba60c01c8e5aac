"""Hamiltonian chains side by side, for a density of few parameters whose middle and spread are known about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
WARMUP, LEAPS = 25, 4
STEP = 0.35  # of a chain with 20 coordinates, in standard deviations
BEGIN = 0.1  # standard deviations from the middle: a chain that begins on a steep side is thrown far out on a flat one
ACCEPTED = 0.8  # share of moves that steps are made longer or shorter for while chains warm up


class Moving(NamedTuple):
    """Where chains are, with the log density there and its slope."""

    x: Array
    height: Array
    slope: Array


def sample(
    density: Callable[[Array, Any], Array], each: Any, middle: tuple[Array, Array], key: Array, draws: int
) -> tuple[Array, Array]:
    """Draws, (draws, chains, coordinates), and the share of moves that were accepted.

    `density(x, each)` has the leaves of `each` without their first axis, which is that of chains; `middle` is the mode
    and a root of the covariance, in whose coordinates chains move.
    """
    centre, spread = middle
    chains, size = jax.tree.leaves(each)[0].shape[0], centre.size
    every = jax.vmap(jax.value_and_grad(lambda x, own: density(centre + spread @ x, own)))

    def move(state: Moving, length: Array, key: Array) -> tuple[Moving, Array]:
        pushes, coins, lengths = jax.random.split(key, 3)
        push = jax.random.normal(pushes, state.x.shape, centre.dtype)
        step = length * (0.7 + 0.6 * jax.random.uniform(lengths, (chains, 1), centre.dtype))

        def leap(_: int, carry: tuple[Moving, Array]) -> tuple[Moving, Array]:
            there, push = carry
            push = push + 0.5 * step * there.slope
            x = there.x + step * push
            there = Moving(x, *every(x, each))
            return there, push + 0.5 * step * there.slope

        there, last = jax.lax.fori_loop(0, LEAPS, leap, (state, push))
        gain = there.height - state.height - 0.5 * (jnp.sum(last**2, axis=1) - jnp.sum(push**2, axis=1))
        taken = jnp.log(jax.random.uniform(coins, (chains,), centre.dtype)) < gain  # never where it is not a number
        kept = [jnp.where(_column(taken, old), new, old) for new, old in zip(there, state, strict=True)]
        return Moving(*kept), taken

    def warm(carry: tuple[Moving, Array], key: Array) -> tuple[tuple[Moving, Array], None]:
        state, length = carry
        state, taken = move(state, length, key)
        return (state, length * jnp.exp(0.5 * (jnp.mean(taken) - ACCEPTED))), None

    def go_on(carry: tuple[Moving, Array], key: Array) -> tuple[tuple[Moving, Array], tuple[Array, Array]]:
        state, length = carry
        state, taken = move(state, length, key)
        return (state, length), (state.x, taken)

    begin, first, second = jax.random.split(key, 3)
    x = BEGIN * jax.random.normal(begin, (chains, size), centre.dtype)
    carry = (Moving(x, *every(x, each)), jnp.asarray(STEP * (20 / size) ** 0.25, centre.dtype))
    carry, _ = jax.lax.scan(warm, carry, jax.random.split(first, WARMUP))
    _, (found, taken) = jax.lax.scan(go_on, carry, jax.random.split(second, draws))
    return centre + found @ spread.T, jnp.mean(taken)


def measure(tried: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of draws, and a root of their covariance, drawn towards its diagonal as far as they are few."""
    covariance = np.cov(tried.T).reshape(tried.shape[1], -1)
    share = min(1.0, 5 * tried.shape[1] / len(tried))
    mixed = (1 - share) * covariance + share * np.diag(np.diag(covariance))
    return tried.mean(axis=0), np.linalg.cholesky(mixed + 1e-9 * np.diag(np.diag(mixed)) + 1e-300 * np.eye(len(mixed)))


def _column(flags: Array, like: Array) -> Array:
    return flags.reshape(-1, *[1] * (like.ndim - 1))
