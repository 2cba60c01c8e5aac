"""Many plain networks at once, for an attacker or for experiments on public data. They are NOT private.

One compiled program trains all of them for an epoch: a scan over steps, vectorised over networks, which differ in their
records, in where they start and in their batches. Where they start and how an epoch is shuffled are programs of their
own, which all optimisers share, because generators of random numbers take long to compile.
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

from confide import validation
from confide.audits.optimisers import Optimiser, Rule, State
from confide.mechanism.noise import as_key
from confide.validation import Refused

Often = Literal["epochs", "steps"]
Weights = list[dict[str, jax.Array]]  # a layer: weights, bias


@dataclass(frozen=True, kw_only=True)
class Settings:
    rule: Rule
    hidden: tuple[int, ...]
    learning_rate: float
    epochs: int
    batch_size: int
    halve_every: int | None
    dropout: float
    ensemble: int
    ensemble_of: Often


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
        members = self.settings.ensemble if members is None else validation.count(members=members)
        x = _inputs(x)
        if x.shape[1] != self.sizes[0]:
            raise Refused(f"x has {x.shape[1]} columns, the networks learnt from {self.sizes[0]}: give the same")
        last = jax.tree.map(lambda leaf: leaf[:, -members:], self.weights)
        return np.asarray(_predict(last, x))


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
    validation.one_of(get_args(Optimiser), optimiser=optimiser)
    validation.one_of(get_args(Often), ensemble_of=ensemble_of)
    if optimiser in ("sgld", "psgld") and prior_scale is None:
        raise Refused(f"{optimiser} samples a posterior and has no prior: give prior_scale, such as 1.0")
    hidden = (hidden,) if isinstance(hidden, int) else hidden
    settings = Settings(
        rule=Rule(
            optimiser=optimiser,
            prior_scale=None if prior_scale is None else validation.positive(prior_scale=prior_scale),
            temperature=validation.nonnegative(temperature=temperature),
        ),
        hidden=tuple(validation.count(hidden=width) for width in hidden),
        learning_rate=validation.positive(learning_rate=learning_rate),
        epochs=validation.count(epochs=epochs),
        batch_size=validation.count(batch_size=batch_size),
        halve_every=None if halve_every is None else validation.count(halve_every=halve_every),
        dropout=validation.probability(zero=True, dropout=dropout),
        ensemble=validation.count(ensemble=ensemble),
        ensemble_of=ensemble_of,
    )
    if ensemble_of == "epochs" and settings.ensemble > settings.epochs:
        raise Refused(f"ensemble = {ensemble} is more than the {epochs} epochs: give at most as many")
    return functools.partial(_train, settings)


def _train(settings: Settings, x: Any, y: Any, subsets: Any, key: Any) -> Trained:
    """`key` is one for all networks, or an array with one for each."""
    x = _inputs(x)
    labels, rows = np.asarray(y), np.asarray(subsets)
    if labels.shape != x.shape[:1] or np.any(labels != np.floor(labels)) or np.any(labels < 0):
        raise Refused(f"y has shape {labels.shape}: give a class 0, 1, ... for each of the {len(x)} rows of x")
    if rows.ndim != 2 or not rows.size or not np.issubdtype(rows.dtype, np.integer):
        raise Refused(f"subsets has shape {rows.shape}: give row numbers as (networks, rows)")
    if rows.min() < 0 or rows.max() >= len(x):
        raise Refused(f"subsets names rows that x does not have: give numbers from 0 to {len(x) - 1}")
    sizes = (x.shape[1], *settings.hidden, max(2, int(labels.max()) + 1))
    keys = key if getattr(key, "ndim", 0) else jax.random.split(as_key(key), len(rows))
    if keys.shape != (len(rows),):
        raise Refused(f"key has shape {keys.shape}: give one, or one for each of the {len(rows)} networks")
    y, rows = jnp.asarray(labels, jnp.int32), jnp.asarray(rows, jnp.int32)
    return Trained(settings, sizes, _learn(settings, sizes, x, y, rows, keys))


def _learn(
    settings: Settings, sizes: tuple[int, ...], x: jax.Array, y: jax.Array, subsets: jax.Array, keys: jax.Array
) -> Weights:
    """The last iterates of all networks. Data are arguments of what is compiled: a cache writes constants to disk."""
    rule, count = settings.rule, settings.ensemble
    start, keys = _begin(sizes, keys)
    state, latest = rule.init(start), jax.tree.map(lambda leaf: jnp.stack([leaf] * count, 1), start)
    for number in range(settings.epochs):
        batches = _shuffle(settings.batch_size, subsets, keys, number)
        rate = settings.learning_rate * 0.5 ** (number // settings.halve_every if settings.halve_every else 0)
        kept = latest if settings.ensemble_of == "steps" else None
        state, kept = _epoch(rule, settings.dropout, subsets.shape[1], jnp.float32(rate), (x, y), state, kept, batches)
        if settings.ensemble_of == "steps":
            latest = kept
        elif number >= settings.epochs - count:
            latest = jax.tree.map(
                lambda old, new: jnp.concatenate([old[:, 1:], new[:, None]], 1), latest, state.weights
            )
    return latest


def _inputs(x: Any) -> jax.Array:
    x = np.asarray(x, np.float32)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise Refused(f"x has shape {x.shape} or is not finite: give rows of finite numbers")
    return jnp.asarray(x)


@functools.partial(jax.jit, static_argnums=0)
def _begin(sizes: tuple[int, ...], keys: jax.Array) -> tuple[Weights, jax.Array]:
    """Where each network starts, and a key for all else."""

    def one(key: jax.Array) -> tuple[Weights, jax.Array]:
        start_key, key = jax.random.split(key)
        return initial_weights(sizes, start_key), key

    return jax.vmap(one)(keys)


def initial_weights(sizes: tuple[int, ...], key: jax.Array) -> Weights:
    """Weights and biases uniform within 1 / sqrt(inputs of the layer), as PyTorch's layers start."""
    shapes = [(inputs + 1, outputs) for inputs, outputs in itertools.pairwise(sizes)]
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    drawn = jnp.split(jax.random.uniform(key, (ends[-1],), jnp.float32, -1, 1), ends[:-1])
    layers = [part.reshape(shape) / math.sqrt(shape[0] - 1) for part, shape in zip(drawn, shapes, strict=True)]
    return [{"weights": layer[:-1], "bias": layer[-1]} for layer in layers]


@functools.partial(jax.jit, static_argnums=0)
def _shuffle(size: int, subsets: jax.Array, keys: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rows of an epoch's batches, (networks, steps, rows), and a key for each step."""
    n = subsets.shape[1]
    steps = math.ceil(n / size)

    def one(subset: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        order_key, own = jax.random.split(jax.random.fold_in(key, number))
        order = jnp.pad(jax.random.permutation(order_key, subset), (0, steps * size - n))
        return order.reshape(steps, size), jax.random.split(own, steps)

    return jax.vmap(one)(subsets, keys)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _epoch(
    rule: Rule,
    dropout: float,
    n: int,
    rate: jax.Array,
    data: tuple[jax.Array, jax.Array],
    state: State,
    kept: Weights | None,
    batches: tuple[jax.Array, jax.Array],
) -> tuple[State, Weights | None]:
    """All networks after one more epoch; `kept` are iterates at the ends of steps, if these are wanted."""
    (x, y), (order, keys) = data, batches
    present = np.arange(order[0].size).reshape(order[0].shape) < n
    shares = (present / present.sum(axis=1, keepdims=True)).astype(np.float32)  # the last batch may be smaller

    def step(carry: tuple[State, Weights | None], batch: Any) -> tuple[tuple[State, Weights | None], None]:
        state, kept = carry
        *records, key = batch
        noise_key, dropout_key = jax.random.split(key)
        gradient = jax.grad(_loss)(state.weights, *records, dropout, dropout_key)
        state = rule.step(state, gradient, rate, n, noise_key)
        if kept is not None:
            kept = jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), kept, state.weights)
        return (state, kept), None

    def one(state: State, kept: Weights | None, order: jax.Array, keys: jax.Array) -> tuple[State, Weights | None]:
        return jax.lax.scan(step, (state, kept), (x[order], y[order], jnp.asarray(shares), keys))[0]

    return jax.vmap(one)(state, kept, order, keys)


def _scores(weights: Weights, x: jax.Array, dropout: float = 0.0, key: jax.Array | None = None) -> jax.Array:
    for number, layer in enumerate(weights):
        x = x @ layer["weights"] + layer["bias"]
        if number < len(weights) - 1:
            x = jax.nn.relu(x)
            if dropout and key is not None:
                x = drop_units(jax.random.fold_in(key, number), x, dropout)
    return x


def drop_units(key: jax.Array, x: jax.Array, share: float) -> jax.Array:
    """A share of the units left out, the others scaled so that the mean stays."""
    return jnp.where(jax.random.bernoulli(key, 1 - share, x.shape), x / (1 - share), jnp.float32(0))


def _loss(weights: Weights, x: jax.Array, y: jax.Array, share: jax.Array, dropout: float, key: jax.Array) -> jax.Array:
    logarithms = jax.nn.log_softmax(_scores(weights, x, dropout, key))
    return -jnp.sum(share * jnp.take_along_axis(logarithms, y[:, None], axis=1)[:, 0])


@jax.jit
def _predict(weights: Weights, x: jax.Array) -> jax.Array:
    def of_one(iterates: Weights) -> jax.Array:
        each = jax.vmap(lambda weights: jax.nn.log_softmax(_scores(weights, x)))(iterates)
        return jax.nn.logsumexp(each, axis=0) - math.log(len(each))

    return jax.vmap(of_one)(weights)
