"""Many plain models, each on records of its own: the teachers of `pate`. They are NOT private, and none is released.

Every record draws its teacher independently of all others, uniformly. A record more or less, or another one in its
place, then changes what ONE teacher sees, and leaves the others as they are: given where the other records went, the
two datasets differ in one teacher's part, whichever it is, and the mixture over where they went is no easier to tell
apart. (Cutting a shuffled table into equal parts would not do: one row more would move the ends of all parts.)

A teacher is a function of its own records, of its number and of public settings: it starts and draws its batches from
a key of its own, takes a fixed number of steps, and divides by its own number of records. All learn in one compiled
program, as many at a time as memory holds: steps of Adam on batches drawn with replacement, at a rate that falls to 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from confide.mechanism import noise as noises
from confide.models.model import Model
from confide.models.programs import checked, checked_value

AT_ONCE = 2**23  # parameters and numbers in a batch, of all teachers that learn at the same time


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """How a model learns: public settings, the same for all teachers."""

    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 0.03


class Parts(NamedTuple):
    """Which rows each teacher has: the first `sizes` entries of its row of `rows`."""

    rows: np.ndarray  # (teachers, most)
    sizes: np.ndarray


def assign(places: int, teachers: int, key: jax.Array) -> np.ndarray:
    """The teacher of whoever takes each place: independent and uniform."""
    return np.asarray(jax.random.randint(key, (places,), 0, teachers))


def partition(assignment: np.ndarray, present: np.ndarray, teachers: int) -> Parts:
    """The rows of every teacher, of the places that hold a record."""
    taken = np.flatnonzero(present)
    sizes = np.bincount(assignment[taken], minlength=teachers)
    order = taken[np.argsort(assignment[taken], kind="stable")]
    mean = len(assignment) / teachers
    most = max(math.ceil(mean + 8 * math.sqrt(mean)) + 16, int(sizes.max()))  # the first: public, and hardly ever less
    rows = np.zeros((teachers, most), np.int32)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows[assignment[order], place] = order
    return Parts(rows, sizes.astype(np.int32))


def teach(model: Model, data: tuple[np.ndarray, ...], parts: Parts, lessons: Lessons, key: jax.Array) -> Any:
    """The parameters of all teachers, along a first axis; one without records stays where the prior is highest."""
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(len(parts.sizes)))
    example = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in data)
    arrays = tuple(jnp.asarray(array) for array in data)
    functions = (model.start, model.log_prior, model.log_likelihood, model.constrain)
    rows, sizes = jnp.asarray(parts.rows), jnp.asarray(parts.sizes)
    with jax.default_matmul_precision("highest"):
        return _teach(functions, lessons, _together(model, lessons, example), example, arrays, rows, sizes, keys)


def _together(model: Model, lessons: Lessons, example: tuple[np.ndarray, ...]) -> int:
    """How many teachers learn at the same time: as many as memory allows, roughly."""
    started = jax.eval_shape(lambda: model.start(noises.as_key(0), example))
    each = sum(leaf.size for leaf in jax.tree.leaves(started)) + lessons.batch_size * sum(a.size for a in example)
    return max(1, AT_ONCE // each)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _teach(
    functions: tuple[Callable[..., Any], ...],
    lessons: Lessons,
    together: int,
    example: tuple[np.ndarray, ...],
    data: tuple[jax.Array, ...],
    rows: jax.Array,
    sizes: jax.Array,
    keys: jax.Array,
) -> Any:
    """Data are arguments of what is compiled: a cache writes constants to disk."""
    start, log_prior, log_likelihood, constrain = functions
    log_likelihood = checked_value(log_likelihood, "log_likelihood")  # teachers learn side by side
    constrain = checked(constrain, "constrain")
    rule = optax.adam(optax.cosine_decay_schedule(lessons.learning_rate, lessons.steps))

    def loss(parameters: Any, batch: tuple[jax.Array, ...], size: jax.Array) -> jax.Array:
        each = jax.vmap(functools.partial(log_likelihood, parameters))(*batch)
        present = (size > 0).astype(jnp.float32)
        return -(present * jnp.mean(each) + log_prior(parameters) / jnp.maximum(size, 1).astype(jnp.float32))

    def one(own: jax.Array, size: jax.Array, key: jax.Array) -> Any:
        start_key, batch_key = jax.random.split(key)
        first = start(start_key, example)

        def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
            parameters, state = carry
            drawn = jax.random.uniform(jax.random.fold_in(batch_key, number), (lessons.batch_size,), jnp.float32)
            place = jnp.minimum((drawn * size.astype(jnp.float32)).astype(jnp.int32), jnp.maximum(size - 1, 0))
            batch = tuple(jnp.where(size > 0, array[own[place]], jnp.zeros((), array.dtype)) for array in data)
            updates, state = rule.update(jax.grad(loss)(parameters, batch, size), state, parameters)
            return (optax.apply_updates(parameters, updates), state), None

        (parameters, _), _ = jax.lax.scan(step, (first, rule.init(first)), jnp.arange(lessons.steps))
        return constrain(parameters)

    if len(sizes) <= together:
        return jax.vmap(one)(rows, sizes, keys)
    return jax.lax.map(lambda teacher: one(*teacher), (rows, sizes, keys), batch_size=together)


def counts(model: Model, parameters: Any, public: np.ndarray) -> np.ndarray:
    """How many teachers vote for each label of each public row, (rows, labels). Private."""
    assert model.predict is not None
    chosen, labels = _votes(model.predict, parameters, jnp.asarray(public))
    return np.stack([np.sum(np.asarray(chosen) == label, axis=0) for label in range(labels.shape[0])], axis=1)


@functools.partial(jax.jit, static_argnums=0)
def _votes(predict: Any, parameters: Any, public: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The label that each teacher gives each row, one teacher at a time; and one number for each label."""
    sample = jax.eval_shape(predict, jax.tree.map(lambda leaf: leaf[0], parameters), public)
    predict = checked(predict, "predict")
    chosen = jax.lax.map(lambda own: jnp.argmax(predict(own, public), axis=-1).astype(jnp.int32), parameters)
    return chosen, jnp.arange(sample.shape[-1])
