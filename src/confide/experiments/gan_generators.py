r"""Generators of digits as companions of a discriminator (`confide.samplers.companions`): an ensemble of them, sampled.

A generator makes an image of public random numbers by two dense layers, with batch norm between them, over images that
are made up and no records. Each of the ensemble has a posterior of its
own (Saatchi and Wilson 2017), N(0, 1) priors and as likelihood the probability by which the discriminator takes its
images for real, counted as `records` images; it is sampled by SGHMC, with friction a and temperature T:

    v' = (1 - a) v - eta ( phi / records - grad mean log p(real | G_phi(z)) ) + N(0, 2 a eta T / records)
    phi' = phi + v'

No record is in it, so that its noise is there for the ensemble, and not for privacy; at T = 0 it is plain descent.
There is no matching of features of real images: that would be a question about records. `labelled` images, where they
are given, are public, and the discriminator learns from all of them at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.models import Model
from confide.models.semi_supervised import log_made_up, log_real
from confide.models.tapes import Tape
from confide.samplers.companions import Companion

PIXELS = 784
ROUNDING = 1e-5  # beside a variance


@dataclass(frozen=True, kw_only=True)
class Generators:
    """The settings of an ensemble."""

    ensemble: int = 2
    latent: int = 32
    hidden: int = 128
    images: int = 32  # of each, at every step
    step_size: float = 0.05
    friction: float = 0.1
    temperature: float = 1.0
    records: int = 60_000
    weight: float = 1.0  # of made-up images in what moves the discriminator, as `unlabelled_weight` is of real ones


def draw_images(weights: Any, key: jax.Array, count: int) -> jax.Array:
    """Images of one generator, as rows of pixels in [0, 1]."""
    latent = jax.random.normal(key, (count, weights[0]["weights"].shape[0]))
    hidden = latent @ weights[0]["weights"]
    hidden = (hidden - jnp.mean(hidden, axis=0)) * jax.lax.rsqrt(jnp.var(hidden, axis=0) + ROUNDING)
    hidden = jax.nn.relu(hidden + weights[0]["bias"])
    return jax.nn.sigmoid(hidden @ weights[1]["weights"] + weights[1]["bias"])


def generators(
    model: Model,
    setting: Generators,
    key: jax.Array,
    labelled: tuple[np.ndarray, np.ndarray] | None = None,
) -> Companion:
    """The ensemble beside a model of `confide.models.semi_supervised`; what is kept of it are its weights."""
    scores = model.scores
    assert scores is not None

    def every(parameters: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: scores(Tape(), parameters, row))(x)

    def loss(state: Any, parameters: Any, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, setting.ensemble)
        made_up = jax.vmap(lambda weights, key: draw_images(weights, key, setting.images))(state["weights"], keys)
        found = -setting.weight * jnp.mean(log_made_up(every(parameters, made_up.reshape(-1, PIXELS))))
        if labelled is None:
            return found
        s = every(parameters, jnp.asarray(labelled[0]))
        of_label = jnp.take_along_axis(s, jnp.asarray(labelled[1])[:, None], axis=1)[:, 0]
        return found + jnp.mean(jax.nn.logsumexp(s, axis=1) - of_label)

    def own(weights: Any, parameters: Any, key: jax.Array) -> jax.Array:
        prior = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(weights)) / 2
        passed = jnp.mean(log_real(every(parameters, draw_images(weights, key, setting.images))))
        return prior / setting.records - passed

    def move(state: Any, parameters: Any, key: jax.Array, t: jax.Array) -> Any:
        first, second = jax.random.split(key)
        keys = jax.random.split(first, setting.ensemble)
        slopes = jax.vmap(jax.grad(own), (0, None, 0))(state["weights"], parameters, keys)
        leaves, structure = jax.tree.flatten(slopes)
        noises = jax.tree.unflatten(
            structure,
            [jax.random.normal(jax.random.fold_in(second, i), leaf.shape) for i, leaf in enumerate(leaves)],
        )
        eta, friction = setting.step_size, setting.friction
        spread = math.sqrt(2 * friction * eta * setting.temperature / setting.records)
        velocity = jax.tree.map(
            lambda v, slope, xi: (1 - friction) * v - eta * slope + spread * xi, state["velocity"], slopes, noises
        )
        return {"weights": jax.tree.map(jnp.add, state["weights"], velocity), "velocity": velocity}

    start = jax.vmap(lambda key: _start(key, setting))(jax.random.split(key, setting.ensemble))
    state = {"weights": start, "velocity": jax.tree.map(jnp.zeros_like, start)}
    return Companion(model=model, start=state, loss=loss, move=move, keep=lambda state: state["weights"])


def _start(key: jax.Array, setting: Generators) -> list[dict[str, jax.Array]]:
    sizes = (setting.latent, setting.hidden, PIXELS)
    return [
        {
            "weights": jax.random.normal(key, (before, after)) * math.sqrt(2 / before),
            "bias": jnp.full(after, -2.0 if after == PIXELS else 0.0),  # most of a digit is black
        }
        for key, before, after in zip(jax.random.split(key), sizes, sizes[1:], strict=False)
    ]
