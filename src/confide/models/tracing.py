"""A model as programs of flat parameters: how they are laid out, what they may hold and see, and what they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide.models import programs
from confide.models.inputs import Records, hint_at_integers
from confide.models.model import Model
from confide.models.tapes import Tape
from confide.validation import Refused


def unraveller(model: Model, data: tuple[np.ndarray, ...], key: jax.Array) -> tuple[jax.Array, Callable[[Any], Any]]:
    """The flat start, and the way back from flat parameters; the model sees rows of zeros in the data's place."""
    example = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in data)
    return ravel_pytree(model.start(key, example))


def arrange_draws(model: Model, data: tuple[np.ndarray, ...], kept: np.ndarray) -> Any:
    """Flat draws (chains, draws, parameters) as the model reports them."""
    _, unravel = unraveller(model, data, jax.random.key(0))
    chains, draws, size = kept.shape
    every = jax.vmap(lambda flat: model.constrain(unravel(flat)))(kept.reshape(-1, size))
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), every)


class RecordPrograms(NamedTuple):
    """All that a model computes from one record, and from parameters alone, as programs; derivatives included.

    `layered` are the likelihood and its gradient as a tape follows them, with what is dropped of a record.
    """

    likelihood: Any
    likelihood_gradient: Any
    prior: Any
    prior_gradient: Any
    layered: tuple[Any, ...] = ()


def check_likelihood(model: Model, records: Records, flat: jax.Array, unravel: Any) -> None:
    """Refuse a likelihood that is not one number for one record, or in which a record can see another one.

    The programs of the gradients are checked like the others: a derivative rule of the user's may hold a table or see a
    batch where the function itself does not.
    """
    traced = trace_model(model, records.arrays, flat, unravel)
    for program in (traced.likelihood, traced.prior, *traced.layered[:1]):
        if [value.shape for value in program.out_avals] != [()]:
            raise Refused("log_likelihood and log_prior must each give one number: sum over the parts of a record")
    likelihoods = (traced.likelihood, traced.likelihood_gradient, *traced.layered)
    lengths = table_lengths(records)
    for program in (*likelihoods, traced.prior, traced.prior_gradient):
        if shape := programs.holds_table(program, lengths):
            raise Refused(f"the model holds an array of shape {shape}, as long as the data: pass records as arguments")
    for program in likelihoods:
        programs.check(program, "log_likelihood")
    for program in (traced.prior, traced.prior_gradient):
        programs.check(program, "log_prior")


def table_lengths(records: Records) -> frozenset[int]:
    """The lengths of axes by which an array is taken for the table: records, or all their numbers in a row."""
    sizes = {1, *(math.prod(array.shape[1:]) for array in records.arrays)}
    return frozenset(rows * size for rows in (records.number, records.places) for size in sizes if rows > 1)


def trace_model(model: Model, data: tuple[np.ndarray, ...], flat: jax.Array, unravel: Any) -> RecordPrograms:
    """Likelihood and prior of the model with their gradients, as programs of one record."""
    example = _one_record(data)

    def likelihood(flat: jax.Array, *row: Any) -> Any:
        return model.log_likelihood(unravel(flat), *row)

    def prior(flat: jax.Array) -> Any:
        return model.log_prior(unravel(flat))

    with _on_one_record():
        values = jax.make_jaxpr(likelihood)(flat, *example), jax.make_jaxpr(prior)(flat)
        if any([value.shape for value in program.out_avals] != [()] for program in values):
            return RecordPrograms(values[0], values[0], values[1], values[1])
        return RecordPrograms(
            values[0],
            jax.make_jaxpr(jax.value_and_grad(likelihood))(flat, *example),
            values[1],
            jax.make_jaxpr(jax.value_and_grad(prior))(flat),
            _trace_layered(model, example, flat, unravel),
        )


def _trace_layered(model: Model, example: Any, flat: jax.Array, unravel: Any) -> tuple[Any, ...]:
    """The likelihood as a tape follows it, with a key for what is dropped, and its gradient."""
    layered = model.layered
    if layered is None:
        return ()

    def likelihood(flat: jax.Array, key: jax.Array, *row: Any) -> Any:
        return layered.log_likelihood(Tape(key=key if layered.dropout else None), unravel(flat), *row)

    given = (flat, jax.random.key(0), *example)
    return jax.make_jaxpr(likelihood)(*given), jax.make_jaxpr(jax.value_and_grad(likelihood))(*given)


def model_digest(model: Model, data: tuple[np.ndarray, ...]) -> str:
    """What the model computes and where it starts, as text that tells it from any model that computes otherwise."""
    flat, unravel = unraveller(model, data, jax.random.key(0))
    zeros = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in data)
    traced = trace_model(model, data, flat, unravel)
    starts = [jax.make_jaxpr(lambda key: model.start(key, zeros))(jax.random.key(0))]
    if (scatter := model.overdispersed_init) is not None:
        starts.append(jax.make_jaxpr(lambda key, flat: scatter(key, unravel(flat)))(jax.random.key(0), flat))
    return programs.digest(*traced[:-1], *traced.layered, *starts, *_trace_closed_form(model))


def _trace_closed_form(model: Model) -> list[Any]:
    """Of a generalised linear model: the residual, the bounded score, and its loss, for a few records."""
    linear = model.linear
    if linear is None:
        return []
    labels = jnp.zeros(8, jnp.float32)
    scores = jnp.zeros((8, *linear.outputs), jnp.float32)
    traced = [
        jax.make_jaxpr(linear.residual)(scores, labels),
        jax.make_jaxpr(lambda s, y, threshold: linear.bounded(s, y, threshold, 1.0))(scores, labels, labels),
        jax.make_jaxpr(linear.log_likelihood)(scores[0], labels[0]),
    ]
    if linear.bounded_loss is not None:
        traced.append(jax.make_jaxpr(linear.bounded_loss)(scores, labels, labels))
    return traced


def _one_record(data: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in data)


@contextmanager
def _on_one_record() -> Iterator[None]:
    """Refuse in one line what goes wrong in functions of the user's."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = hint_at_integers(text)
        raise Refused(f"the model cannot be evaluated on one record of the data: {text[:200]}{hint}") from None
