"""A small multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from confide import checks
from confide.checks import Refused
from confide.models import priors
from confide.models.glm import check_classes
from confide.models.model import Data, Model
from confide.models.priors import LogPrior, Parameters


def mlp(
    dimension: int,
    classes: int | None = None,
    hidden: int | Sequence[int] = (32,),
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
) -> Model:
    """Layers of tanh units; `classes` labels at the end, or where it is None one mean with Gaussian noise.

    Chains start at random weights of variance 1 / (inputs of the layer), so that the hidden units differ.
    """
    dimension, noise_scale = checks.count(dimension=dimension), checks.positive(noise_scale=noise_scale)
    if classes is not None and checks.count(classes=classes) < 2:
        raise Refused(f"classes = {classes} leaves nothing to tell apart: give at least 2, or None for regression")
    hidden = (hidden,) if isinstance(hidden, int) else hidden
    hidden = tuple(checks.count(hidden=width) for width in hidden)
    sizes = (dimension, *hidden, classes or 1)
    variance = noise_scale**2

    def start(key: jax.Array, example: Data) -> Parameters:
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            {
                "weights": jax.random.normal(key, (inputs, outputs), jnp.float32) / math.sqrt(inputs),
                "bias": jnp.zeros(outputs, jnp.float32),
            }
            for key, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]

    def scores(parameters: Parameters, x: jax.Array) -> jax.Array:
        for layer in parameters[:-1]:
            x = jnp.tanh(x @ layer["weights"] + layer["bias"])
        x = x @ parameters[-1]["weights"] + parameters[-1]["bias"]
        return x if classes else x[..., 0]

    def log_likelihood(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        s = scores(parameters, x)
        if classes:
            return s[y.astype(jnp.int32)] - jax.nn.logsumexp(s)
        return -0.5 * (y - s) ** 2 / variance - 0.5 * math.log(2 * math.pi * variance)

    def predict(parameters: Parameters, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(scores(parameters, x)) if classes else scores(parameters, x)

    def simulate(key: jax.Array, parameters: Parameters, x: jax.Array) -> jax.Array:
        s = scores(parameters, x)
        return jax.random.categorical(key, s) if classes else s + noise_scale * jax.random.normal(key, s.shape, s.dtype)

    def check(data: Data) -> None:
        shapes = [np.shape(array) for array in data]
        if len(data) != 2 or len(shapes[0]) != 2 or shapes[0][1] != dimension or len(shapes[1]) != 1:
            raise Refused(f"data has shapes {shapes}: give (X, y) with {dimension} columns in X and one number per y")
        if classes:
            check_classes(data[1], classes)

    settings = {
        "dimension": dimension,
        "classes": classes,
        "hidden": list(hidden),
        "prior_scale": prior_scale,
        "noise_scale": noise_scale,
        "prior": prior,
    }
    return Model(
        name="mlp",
        kind="classification" if classes else "regression",
        start=start,
        log_prior=priors.chosen(prior, prior_scale),
        log_likelihood=log_likelihood,
        predict=predict,
        simulate=simulate,
        check=check,
        settings=None if callable(prior) else settings,
    )
