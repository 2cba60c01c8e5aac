"""Log prior densities over a pytree of parameters: independent Gaussian or Laplace, or the user's own function.

Where outcomes are rare or counts large, the intercept lies far out, and a prior that is as narrow as that of the other
coefficients pulls it back: "wide_intercept" is for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from confide import validation
from confide.validation import Refused

WIDE = 5.0  # prior scale of an intercept, over that of the other coefficients
Parameters = Any
LogPrior = Callable[[Parameters], jax.Array]


def gaussian(scale: float = 1.0) -> LogPrior:
    """Independent N(0, scale^2).

    >>> round(float(gaussian(2.0)(jnp.zeros(1))), 4)
    -1.6121
    """
    scale = validation.positive(prior_scale=scale)
    constant = math.log(scale) + 0.5 * math.log(2 * math.pi)
    return _independent(lambda leaf: jnp.sum(-0.5 * (leaf / scale) ** 2 - constant))


def laplace(scale: float = 1.0) -> LogPrior:
    """Independent Laplace(0, scale); its gradient is taken as 0 at 0."""
    scale = validation.positive(prior_scale=scale)
    constant = math.log(2 * scale)
    return _independent(lambda leaf: jnp.sum(-jnp.abs(leaf) / scale - constant))


def wide_intercept(scale: float = 1.0) -> LogPrior:
    """Independent N(0, scale^2), and an intercept of five times the scale.

    >>> round(float(wide_intercept()({"weights": jnp.zeros(1), "intercept": jnp.zeros(())})), 4)
    -3.4473
    """
    own, wide = gaussian(scale), gaussian(WIDE * scale)

    def log_prior(parameters: Parameters) -> jax.Array:
        others = {name: leaf for name, leaf in parameters.items() if name != "intercept"}
        return own(others) + wide(parameters["intercept"])

    return log_prior


def _independent(log_density: Callable[[jax.Array], jax.Array]) -> LogPrior:
    def log_prior(parameters: Parameters) -> jax.Array:
        return sum((log_density(leaf) for leaf in jax.tree.leaves(parameters)), start=jnp.zeros(()))

    return log_prior


KINDS = {"gaussian": gaussian, "laplace": laplace, "wide_intercept": wide_intercept}


def chosen(prior: str | LogPrior, scale: float) -> LogPrior:
    """A prior by name and scale, or the function given."""
    if callable(prior):
        return prior
    if not isinstance(prior, str) or prior not in KINDS:
        raise Refused(f"prior = {prior!r} is unknown: choose one of {', '.join(map(repr, KINDS))}, or give a function")
    return KINDS[prior](scale)


def prior_draw(prior: str | LogPrior, scale: float) -> Callable[[jax.Array, Parameters], Parameters] | None:
    """(key, parameters of the right shapes) -> a draw from the prior; None where it is the user's own function."""
    known = {"gaussian": jax.random.normal, "laplace": jax.random.laplace, "wide_intercept": jax.random.normal}
    draws = known.get(prior if isinstance(prior, str) else "")
    if draws is None:
        return None

    def draw(key: jax.Array, parameters: Parameters) -> Parameters:
        leaves, structure = jax.tree.flatten(parameters)
        keys = jax.random.split(key, len(leaves))
        pairs = zip(keys, leaves, strict=True)
        return jax.tree.unflatten(structure, [scale * draws(key, leaf.shape, leaf.dtype) for key, leaf in pairs])

    return draw
