"""Networks of one record's scores, with priors on all weights: what they share, and the multilayer perceptron.

Classes are told by a softmax of the last layer; a perceptron with one output has a mean with Gaussian noise. Chains
start at random weights of variance 1 / (inputs of the layer), doubled before rectifiers. Nothing is normalised over a
batch: a record's gradient would then depend on the other records, and no clip would bound what one of them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models import layers, priors
from confide.models.families import known_labels
from confide.models.labels import Labels, check_labels
from confide.models.model import Data, Model
from confide.models.priors import LogPrior, Parameters
from confide.models.tapes import Layered, Tape
from confide.validation import Refused

Activation = Literal["tanh", "relu"]
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
TOGETHER = 128  # records that are predicted at a time
Scores = Callable[[Tape, Parameters, jax.Array], jax.Array]


def mlp(
    sizes: Sequence[int],
    activation: Activation = "tanh",
    dropout: float = 0.0,
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    groups: int | None = None,
    classes: Sequence[Any] | None = None,
) -> Model:
    """Dense layers; `sizes` are the columns of X, the units of each hidden layer, and the outputs.

    Several outputs are classes; one output is a mean, with Gaussian noise of `noise_scale`. `classes` are the labels as
    they stand in y; by default 0, 1, ..., and a record with another label counts as absent. `dropout` is the share of
    hidden units that each step leaves out of each record, drawn afresh and by no record. With `groups` the units of
    each hidden layer fall into so many groups, and those of one group have mean 0 and variance 1 in every record
    before they are scaled, shifted and rectified.

    >>> mlp((4, 8, 3)).kind, mlp((4, 8, 1)).kind
    ('classification', 'regression')
    """
    if isinstance(sizes, int) or len(tuple(sizes)) < 2:
        raise Refused(f"sizes = {sizes!r} is no network: give columns of X, hidden units and outputs, as (4, 32, 3)")
    sizes, rate = tuple(validation.count(sizes=size) for size in sizes), share(dropout)
    act = _ACTIVATIONS[validation.one_of(tuple(_ACTIVATIONS), activation=activation)]
    groups = _divisor(groups, sizes[1:-1])

    def start(key: jax.Array, example: Data) -> Parameters:
        keys = jax.random.split(key, len(sizes) - 1)
        gain = 2.0 if activation == "relu" else 1.0
        built = [dense_layer(key, *pair, gain) for key, pair in zip(keys, pairwise(sizes), strict=True)]
        if groups is None:
            return built
        hidden = [layer | {"norm": layers.norm(size)} for layer, size in zip(built, sizes[1:-1], strict=False)]
        return [*hidden, built[-1]]

    def scores(tape: Tape, parameters: Parameters, x: jax.Array) -> jax.Array:
        for layer in parameters[:-1]:
            x = layers.dense(tape, x, layer)
            if groups is not None:
                x = layers.group_norm(x[None, None], layer["norm"], groups)[0, 0]
            x = tape.dropout(act(x), rate)
        return layers.dense(tape, x, parameters[-1])

    settings = {
        "sizes": list(sizes),
        "activation": activation,
        "dropout": rate,
        "prior_scale": prior_scale,
        "noise_scale": validation.positive(noise_scale=noise_scale),
        "prior": prior,
    }
    if groups is not None:
        settings["groups"] = groups
    labels = None if classes is None else check_labels(classes)
    if labels is not None:
        settings["classes"] = list(labels)
    shape, outputs = (sizes[0],), sizes[-1]
    return network("mlp", scores, start, settings, shape=shape, outputs=outputs, dropout=rate > 0, labels=labels)


def _divisor(groups: int | None, hidden: Sequence[int]) -> int | None:
    if groups is None:
        return None
    groups = validation.count(groups=groups)
    for units in hidden:
        if units % groups or units == groups:
            raise Refused(f"groups = {groups}: {units} hidden units do not fall into so many of two units or more")
    return groups


def network(
    name: str,
    scores: Scores,
    start: Callable[[jax.Array, Data], Parameters],
    settings: dict[str, Any],
    *,
    shape: tuple[int, ...],
    outputs: int,
    dropout: bool = False,
    labels: Labels | None = None,
) -> Model:
    """A model from the scores of one record; `labels` are what stands in y for its classes."""
    if labels is not None and len(labels) != outputs:
        raise Refused(f"classes lists {len(labels)} labels for {outputs} outputs: give one for each output")
    variance = settings.get("noise_scale", 1.0) ** 2
    classes = outputs if outputs > 1 else None

    def log_likelihood(tape: Tape, parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        s = scores(tape, parameters, x)
        if classes:
            return s[y.astype(jnp.int32)] - jax.nn.logsumexp(s)
        return -0.5 * (y - s[0]) ** 2 / variance - 0.5 * math.log(2 * math.pi * variance)

    def every(parameters: Parameters, x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda row: scores(Tape(), parameters, row), x, batch_size=TOGETHER)

    def predict(parameters: Parameters, x: jax.Array) -> jax.Array:
        found = every(parameters, x)
        return jax.nn.softmax(found) if classes else found[..., 0]

    def simulate(key: jax.Array, parameters: Parameters, x: jax.Array) -> jax.Array:
        found = every(parameters, x)
        if classes:
            return jax.random.categorical(key, found)
        return found[..., 0] + math.sqrt(variance) * jax.random.normal(key, found.shape[:-1], found.dtype)

    prior = settings["prior"]
    return Model(
        name=name,
        kind="classification" if classes else "regression",
        start=start,
        log_prior=priors.chosen(prior, settings["prior_scale"]),
        log_likelihood=lambda parameters, *row: log_likelihood(Tape(), parameters, *row),
        layered=Layered(log_likelihood=log_likelihood, dropout=dropout),
        scores=scores,
        classes=classes,
        predict=predict,
        simulate=simulate,
        labels=labels,
        check=lambda data: check_shapes(data, shape),
        admits=None if not classes else lambda data: known_labels(data[1], classes),
        settings=None if callable(prior) else settings,
    )


def check_shapes(data: Data, shape: tuple[int, ...]) -> None:
    shapes = [np.shape(array) for array in data]
    wanted = {shape, shape[:-1]} if len(shape) == 3 and shape[-1] == 1 else {shape}
    if len(data) != 2 or shapes[0][1:] not in wanted or len(shapes[1]) != 1:
        what = f"{shape[0]} columns in X" if len(shape) == 1 else f"images of shape {shape}"
        raise Refused(f"data has shapes {shapes}: give (X, y) with {what} and one number per y")


def dense_layer(key: jax.Array, inputs: int, outputs: int, gain: float) -> dict[str, jax.Array]:
    return {
        "weights": layers.start_weights(key, (inputs, outputs), math.sqrt(gain / inputs)),
        "bias": jnp.zeros(outputs, jnp.float32),
    }


def share(dropout: float) -> float:
    if not 0 <= validation.nonnegative(dropout=dropout) < 1:
        raise Refused(f"dropout = {dropout} is out of range: give a share of at least 0 and below 1")
    return float(dropout)
