"""A model as programs of flat parameters: how they are laid out, and what the programs may hold and see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from confide.models.inputs import Records
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


def check_likelihood(model: Model, records: Records, flat: jax.Array, unravel: Any) -> None:
    """One number for one record, without arrays of as many rows as there are records hidden in the functions."""
    data = records.arrays
    likelihood, prior = trace_model(model, data, flat, unravel)
    dropped = dropping(model, data, flat, unravel)
    for outcome in (likelihood, prior, *dropped):
        if [value.shape for value in outcome.out_avals] != [()]:
            raise Refused("log_likelihood and log_prior must each give one number: sum over the parts of a record")
        hidden = [np.shape(constant) for constant in constants(outcome) if records.number in np.shape(constant)]
        if hidden and records.number > 1:
            raise Refused(
                f"the model holds an array of shape {hidden[0]}, as long as the data: pass records as arguments"
            )
    if any(_sees_batches(equation) for program in (likelihood, *dropped) for equation in equations(program)):
        raise Refused(
            "log_likelihood has a rule of its own for batches (custom_vmap or a callback), by which records would see "
            "each other: leave the rule out, or take vmap_method='sequential'"
        )


def trace_model(model: Model, data: tuple[np.ndarray, ...], flat: jax.Array, unravel: Any) -> tuple[Any, Any]:
    """Likelihood and prior of the model as programs."""
    example = tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in data)

    def likelihood(flat: jax.Array, *row: Any) -> Any:
        return model.log_likelihood(unravel(flat), *row)

    def prior(flat: jax.Array) -> Any:
        return model.log_prior(unravel(flat))

    with _on_one_record():
        programs = jax.make_jaxpr(likelihood)(flat, *example), jax.make_jaxpr(prior)(flat)
        if all([value.shape for value in program.out_avals] == [()] for program in programs):
            jax.eval_shape(jax.grad(likelihood), flat, *example)
            jax.eval_shape(jax.grad(prior), flat)
        return programs


def dropping(model: Model, data: tuple[np.ndarray, ...], flat: jax.Array, unravel: Any) -> list[Any]:
    """The likelihood with what it drops of records, as a program; nothing where there is no dropout."""
    layered = model.layered
    if layered is None or not layered.dropout:
        return []
    example = tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in data)

    def likelihood(key: jax.Array, flat: jax.Array, *row: Any) -> Any:
        return layered.log_likelihood(Tape(key=key), unravel(flat), *row)

    with _on_one_record():
        return [jax.make_jaxpr(likelihood)(jax.random.key(0), flat, *example)]


@contextmanager
def _on_one_record() -> Iterator[None]:
    """What goes wrong in functions of the user's is refused in one line."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Refused(f"the model cannot be evaluated on one record of the data: {text[:200]}") from None


def constants(program: Any) -> list[Any]:
    """Every array that a program holds, also inside the programs that it calls."""
    found = []
    for item in _programs(program):
        if hasattr(item, "consts"):
            found += item.consts
        else:
            found += [atom.val for equation in item.eqns for atom in equation.invars if hasattr(atom, "val")]
    return found


def equations(program: Any) -> list[Any]:
    """Every equation of a program and of the programs that it calls."""
    return [equation for item in _programs(program) if not hasattr(item, "consts") for equation in item.eqns]


def _programs(program: Any) -> list[Any]:
    """The program and all that it calls, each that is closed also as the one inside."""
    found, queue = [], [program]
    while queue:
        item = queue.pop()
        if hasattr(item, "consts"):
            found.append(item)
            item = item.jaxpr
        if hasattr(item, "eqns"):
            found.append(item)
            for equation in item.eqns:
                for value in equation.params.values():
                    queue += value if isinstance(value, (tuple, list)) else [value]
    return found


def _sees_batches(equation: Any) -> bool:
    """Whether vmap hands all records to a function of the user's at once."""
    name = equation.primitive.name
    one_by_one = equation.params.get("vmap_method") in ("sequential", "sequential_unrolled")
    return name == "custom_vmap_call" or (name in ("pure_callback", "io_callback") and not one_by_one)
