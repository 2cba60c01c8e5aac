"""Many plain networks at once, for an attacker or for experiments on public data. They are NOT private.

One compiled program trains all of them: a scan over steps, vectorised over networks, which differ in their records, in
where they start and in their batches. Batches are shuffled epochs, as in common practice and in wu2020.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from confide import checks
from confide.audits.optimisers import Optimiser, Rule, State
from confide.checks import Refused
from confide.noise import as_key

Often = Literal["epochs", "steps"]
Weights = list[dict[str, jax.Array]]  # a layer: weights, bias


@dataclass(frozen=True, kw_only=True)
class Settings:
    rule: Rule
    hidden: tuple[int, ...]
    epochs: int
    batch_size: int
    halve_every: int | None
    dropout: float
    ensemble: int
    ensemble_of: Often

    def sizes(self, inputs: int, classes: int) -> tuple[int, ...]:
        return (inputs, *self.hidden, classes)


class Trained(NamedTuple):
    """Networks after training; called with rows, it predicts: (networks, rows, classes) probabilities."""

    settings: Settings
    sizes: tuple[int, ...]
    weights: Weights  # with axes for networks, and for the iterates of an ensemble

    def __call__(self, x: Any) -> np.ndarray:
        return np.exp(self.log_probabilities(x))

    def alone(self, number: int) -> Trained:
        """One of the networks."""
        return self._replace(weights=jax.tree.map(lambda leaf: leaf[number : number + 1], self.weights))

    def log_probabilities(self, x: Any, members: int | None = None) -> np.ndarray:
        """Of the mean prediction of an ensemble, or of its last `members` iterates alone."""
        members = self.settings.ensemble if members is None else checks.count(members=members)
        x = _inputs(x)
        if x.shape[1] != self.sizes[0]:
            raise Refused(f"x has {x.shape[1]} columns, the networks learnt from {self.sizes[0]}: give the same")
        last = jax.tree.map(lambda leaf: leaf[:, -members:], self.weights)
        return np.asarray(_predicted(last, x))


Trainer = Callable[[Any, Any, Any, Any], Callable[[Any], np.ndarray]]


def networks(
    hidden: int | Sequence[int] = (64, 64),
    optimiser: Optimiser = "sgd",
    learning_rate: float = 0.1,
    epochs: int = 30,
    batch_size: int = 32,
    halve_every: int | None = None,
    prior_scale: float | None = None,
    dropout: float = 0.0,
    ensemble: int = 1,
    *,
    ensemble_of: Often = "epochs",
    temperature: float = 1.0,
) -> Callable[[Any, Any, Any, Any], Trained]:
    """A trainer of fully-connected networks with ReLU units: `train(x, y, subsets, key) -> predict`.

    `subsets` has the rows of x that each network learns from, (networks, rows), `predict(x)` returns probabilities,
    (networks, rows, classes). The networks are NOT private.

    Args:
        hidden: widths of the hidden layers; () is softmax regression.
        optimiser: sgd, rmsprop, sgld or psgld.
        learning_rate: multiplies the mean gradient, whatever the optimiser.
        halve_every: halves the rate after so many epochs.
        prior_scale: of a Gaussian prior on all weights; None is no prior. sgld and psgld need one.
        dropout: the share of hidden units that a step leaves out.
        ensemble: predict with the mean output of so many last iterates,
        ensemble_of: taken at the ends of epochs or of steps.
    """
    checks.one_of(get_args(Optimiser), optimiser=optimiser)
    checks.one_of(get_args(Often), ensemble_of=ensemble_of)
    if optimiser in ("sgld", "psgld") and prior_scale is None:
        raise Refused(f"{optimiser} samples a posterior and has no prior: give prior_scale, such as 1.0")
    hidden = (hidden,) if isinstance(hidden, int) else hidden
    settings = Settings(
        rule=Rule(
            optimiser=optimiser,
            prior_scale=None if prior_scale is None else checks.positive(prior_scale=prior_scale),
            temperature=checks.nonnegative(temperature=temperature),
        ),
        hidden=tuple(checks.count(hidden=width) for width in hidden),
        epochs=checks.count(epochs=epochs),
        batch_size=checks.count(batch_size=batch_size),
        halve_every=None if halve_every is None else checks.count(halve_every=halve_every),
        dropout=checks.probability(zero=True, dropout=dropout),
        ensemble=checks.count(ensemble=ensemble),
        ensemble_of=ensemble_of,
    )
    if ensemble_of == "epochs" and settings.ensemble > settings.epochs:
        raise Refused(f"ensemble = {ensemble} is more than the {epochs} epochs: give at most as many")
    return functools.partial(_train, settings, checks.positive(learning_rate=learning_rate))


def _train(settings: Settings, learning_rate: float, x: Any, y: Any, subsets: Any, key: Any) -> Trained:
    """`key` is one for all networks, or an array with one for each."""
    x = _inputs(x)
    labels, rows = np.asarray(y), np.asarray(subsets)
    if labels.shape != x.shape[:1] or np.any(labels != np.floor(labels)) or np.any(labels < 0):
        raise Refused(f"y has shape {labels.shape}: give a class 0, 1, ... for each of the {len(x)} rows of x")
    if rows.ndim != 2 or not rows.size or not np.issubdtype(rows.dtype, np.integer):
        raise Refused(f"subsets has shape {rows.shape}: give row numbers as (networks, rows)")
    if rows.min() < 0 or rows.max() >= len(x):
        raise Refused(f"subsets names rows that x does not have: give numbers from 0 to {len(x) - 1}")
    sizes = settings.sizes(x.shape[1], max(2, int(labels.max()) + 1))
    keys = key if getattr(key, "ndim", 0) else jax.random.split(as_key(key), len(rows))
    if keys.shape != (len(rows),):
        raise Refused(f"key has shape {keys.shape}: give one, or one for each of the {len(rows)} networks")
    y, rows = jnp.asarray(labels, jnp.int32), jnp.asarray(rows, jnp.int32)
    learnt = _all(settings, sizes, jnp.float32(learning_rate), x, y, rows, keys)
    return Trained(settings, sizes, learnt)


def _inputs(x: Any) -> jax.Array:
    x = np.asarray(x, np.float32)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise Refused(f"x has shape {x.shape} or is not finite: give rows of finite numbers")
    return jnp.asarray(x)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all(
    settings: Settings,
    sizes: tuple[int, ...],
    learning_rate: jax.Array,
    x: jax.Array,
    y: jax.Array,
    subsets: jax.Array,
    keys: jax.Array,
) -> Weights:
    """The data are arguments, never closed over: a compilation cache would write them to disk."""
    return jax.vmap(lambda rows, key: _one(settings, sizes, learning_rate, x, y, rows, key))(subsets, keys)


def _one(
    settings: Settings,
    sizes: tuple[int, ...],
    learning_rate: jax.Array,
    x: jax.Array,
    y: jax.Array,
    subset: jax.Array,
    key: jax.Array,
) -> Weights:
    """The last iterates of one network."""
    rule, size = settings.rule, settings.batch_size
    n = len(subset)
    steps = math.ceil(n / size)
    present = (np.arange(steps * size) < n).reshape(steps, size).astype(np.float32)
    shares = present / present.sum(axis=1, keepdims=True)  # the last batch of an epoch may be smaller
    start_key, key = jax.random.split(key)
    start = started(sizes, start_key)

    def keep(kept: Weights, weights: Weights, after: Often) -> Weights:
        if settings.ensemble_of != after:
            return kept
        return jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), kept, weights)

    def epoch(carry: tuple[State, Weights], number: jax.Array) -> tuple[tuple[State, Weights], None]:
        order_key, own = jax.random.split(jax.random.fold_in(key, number))
        order = jnp.pad(jax.random.permutation(order_key, subset), (0, steps * size - n)).reshape(steps, size)
        halved = number // settings.halve_every if settings.halve_every else 0
        rate = learning_rate * 0.5 ** jnp.asarray(halved, jnp.float32)

        def step(carry: tuple[State, Weights], batch: Any) -> tuple[tuple[State, Weights], None]:
            state, kept = carry
            *records, key = batch
            noise_key, dropout_key = jax.random.split(key)
            gradient = jax.grad(_loss)(state.weights, *records, settings.dropout, dropout_key)
            state = rule.step(state, gradient, rate, n, noise_key)
            return (state, keep(kept, state.weights, "steps")), None

        batches = (x[order], y[order], jnp.asarray(shares), jax.random.split(own, steps))
        (state, kept), _ = jax.lax.scan(step, carry, batches)
        return (state, keep(kept, state.weights, "epochs")), None

    kept = jax.tree.map(lambda leaf: jnp.stack([leaf] * settings.ensemble), start)
    (_, kept), _ = jax.lax.scan(epoch, (rule.init(start), kept), jnp.arange(settings.epochs))
    return kept


def started(sizes: tuple[int, ...], key: jax.Array) -> Weights:
    """Weights and biases uniform within 1 / sqrt(inputs of the layer), as PyTorch's layers start."""
    layers = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        drawn = jax.random.uniform(jax.random.fold_in(key, number), (inputs + 1, outputs), jnp.float32, -1, 1)
        drawn = drawn / math.sqrt(inputs)
        layers.append({"weights": drawn[:-1], "bias": drawn[-1]})
    return layers


def _scores(weights: Weights, x: jax.Array, dropout: float = 0.0, key: jax.Array | None = None) -> jax.Array:
    for number, layer in enumerate(weights):
        x = x @ layer["weights"] + layer["bias"]
        if number < len(weights) - 1:
            x = jax.nn.relu(x)
            if dropout and key is not None:
                x = dropped(jax.random.fold_in(key, number), x, dropout)
    return x


def dropped(key: jax.Array, x: jax.Array, share: float) -> jax.Array:
    """A share of the units left out, the others scaled so that the mean stays."""
    return jnp.where(jax.random.bernoulli(key, 1 - share, x.shape), x / (1 - share), jnp.float32(0))


def _loss(weights: Weights, x: jax.Array, y: jax.Array, share: jax.Array, dropout: float, key: jax.Array) -> jax.Array:
    logarithms = jax.nn.log_softmax(_scores(weights, x, dropout, key))
    return -jnp.sum(share * jnp.take_along_axis(logarithms, y[:, None], axis=1)[:, 0])


@jax.jit
def _predicted(weights: Weights, x: jax.Array) -> jax.Array:
    def of_one(iterates: Weights) -> jax.Array:
        each = jax.vmap(lambda weights: jax.nn.log_softmax(_scores(weights, x)))(iterates)
        return jax.nn.logsumexp(each, axis=0) - math.log(len(each))

    return jax.vmap(of_one)(weights)
