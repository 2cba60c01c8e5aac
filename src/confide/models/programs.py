"""Programs: functions as JAX traced them, with a digest that tells one from another and a check of what they may do.

The name of a run (`confide.inference.fitting`) has to tell apart any two runs that ask different questions of the
records: two runs with one key and one name draw the same noise, and the difference of their releases would show sums of
records without any. The text that JAX prints of a program does not do this: of `jax.custom_vjp` and `jax.custom_jvp` it
holds the names of the derivative rules and not what they compute, and of arrays their shapes alone. `digest` reads a
program equation by equation: primitives, parameters, nested programs, and all arrays by their bytes. Derivative rules
enter through the programs of the derivatives, in which JAX has applied the rules.

`check` admits what is known to treat a record by itself, and refuses all else: a primitive of the user's own, a
callback (nobody can tell what it computes, or where it writes), a rule for batches (`custom_vmap`, by which records see
each other), a foreign function, a generator of random numbers whose batches share one state.
"""

from __future__ import annotations

import enum
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.extend.core.primitives
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.extend.random import threefry_prng_impl

from confide.validation import Refused

# Primitives that carry programs, each of which JAX batches record by record. Others with a program are refused.
CARRIERS = frozenset(
    {
        *("jit", "closed_call", "call", "remat2", "scan", "while", "cond", "custom_jvp_call", "custom_vjp_call"),
        *("custom_linear_solve", "reduce", "reduce_window", "select_and_scatter", "scatter", "scatter-add"),
        *("scatter-sub", "scatter-mul", "scatter-min", "scatter-max", "sort"),
    }
)
# Primitives that JAX lists as its own, and that see other devices, other records, or a state outside of the program.
# (`empty2`, which derivatives of loops begin with, is not among them: it is compiled to zeros.)
REFUSED = frozenset(
    {
        *("all_gather", "all_to_all", "axis_index", "pmax", "pmin", "ppermute", "psum", "ragged_all_to_all"),
        *("empty", "rng_bit_generator", "rng_uniform", "after_all", "create_token", "get", "swap", "custom_lin"),
    }
)
# Primitives of JAX itself that its public list leaves out.
UNLISTED = frozenset(
    {
        *("split", "stack", "unstack", "tile", "broadcast_to", "zeros_like", "mulhi", "square", "scatter-sub"),
        *("random_wrap", "random_unwrap", "random_clone", "optimization_barrier", "platform_index"),
        *("lu_pivots_to_permutation", "geqrf", "ormqr", "cholesky_update", "symmetric_product", "ragged_dot_general"),
    }
)
# Parameters that hold functions and are left out: derivative rules, which the programs of the derivatives show.
RULES = {
    "custom_jvp_call": {"jvp_jaxpr_fun"},
    "custom_vjp_call": {"fwd_jaxpr_thunk", "bwd", "out_trees"},
    "remat2": {"policy"},  # which intermediate results are kept, and not what is computed
}
THREEFRY: Any = threefry_prng_impl
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Program(NamedTuple):
    """A function of the user's as it was when it was traced. Calling it runs that very program."""

    traced: ClosedJaxpr  # of the leaves of the arguments
    structure: Any  # of the result

    def __call__(self, *arguments: Any) -> Any:
        leaves = jax.extend.core.jaxpr_as_fun(self.traced)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.structure, leaves)


def trace(function: Callable[..., Any], *arguments: Any) -> Program:
    """Trace a function anew; arrays that it holds are copied, so that nothing changes them later."""
    traced, shape = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*arguments)
    held = [array if isinstance(array, jax.Array) else np.array(array) for array in traced.consts]
    return Program(ClosedJaxpr(traced.jaxpr, held), jax.tree.structure(shape))


def checked(function: Callable[..., Any], what: str, lengths: frozenset[int] = frozenset()) -> Callable[..., Any]:
    """The function, looked at whenever a program is traced through it: what was checked is what runs.

    Whoever calls it under `jax.vmap` has the function traced for one record first, and that program is checked and
    batched. A function that computes otherwise when it is traced again is so checked again. It is not to be
    differentiated, since derivative rules inside would be applied behind the check: give the derivative (`jax.grad`).
    Arrays in it with an axis of one of the `lengths` are taken for the table.
    """

    def call(*arguments: Any) -> Any:
        program = trace(function, *arguments)
        if shape := holds_table(program.traced, lengths):
            raise Refused(f"{what} holds an array of shape {shape}, as long as the data: pass records as arguments")
        check(program.traced, what)
        return program(*arguments)

    return call


def checked_value(function: Callable[..., Any], what: str, lengths: frozenset[int] = frozenset()) -> Callable[..., Any]:
    """The same for a number that is differentiated by its first argument alone, by a gradient that is checked too."""

    @jax.custom_vjp
    def value(first: Any, *others: Any) -> Any:
        return checked(function, what, lengths)(first, *others)

    def forward(first: Any, *others: Any) -> tuple[Any, Any]:
        number, gradient = checked(jax.value_and_grad(function), what, lengths)(first, *others)
        return number, (gradient, others)

    def backward(kept: Any, signal: jax.Array) -> tuple[Any, ...]:
        gradient, others = kept
        return (jax.tree.map(lambda leaf: (signal * leaf).astype(leaf.dtype), gradient), *map(no_cotangents, others))

    value.defvjp(forward, backward)
    return value


def no_cotangents(tree: Any) -> Any:
    """Zeros of the types that cotangents of the arrays have: nothing is differentiated by them."""

    def zeros(array: Any) -> Any:
        inexact = jnp.issubdtype(jnp.result_type(array), jnp.inexact)
        return jnp.zeros_like(array) if inexact else np.zeros(np.shape(array), jax.dtypes.float0)

    return jax.tree.map(zeros, tree)


def digest(*programs: Any) -> str:
    """What tells programs from all others that compute something else, as 64 hexadecimal digits.

    >>> one, two, three = (jax.make_jaxpr(lambda x, c=c: c * x)(1.0) for c in (2.0, 2.0, 3.0))
    >>> digest(one) == digest(two), digest(one) == digest(three)
    (True, False)
    """
    writer = _Writer()
    for program in programs:
        writer.value(program.traced if isinstance(program, Program) else program)
    return writer.hash.hexdigest()


def check(program: Any, what: str) -> None:
    """Refuse a program that is more than a function of its arguments, or in which records can see each other."""
    if program.jaxpr.effects:
        raise _refusal(what, "prints, writes, or reads outside of its arguments")
    for equation in equations(program):
        name = equation.primitive.name
        if not _is_admitted(equation.primitive):
            raise _refusal(what, f"uses {name!r}, by which records could see each other or leave the program")
        nested = [value for value in equation.params.values() if _holds_program(value)]
        if nested and name not in CARRIERS:
            raise _refusal(what, f"uses {name!r} with a program inside, which is not known to keep records apart")
        for atom in (*equation.invars, *equation.outvars):
            kind = getattr(atom.aval, "dtype", None)
            if kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key) and "fry" not in str(kind):
                raise _refusal(what, f"draws from {kind}, whose batches share one state: use threefry keys")


def constants(program: Any) -> list[Any]:
    """Every array that a program holds, also inside the programs that it calls."""
    arrays = []
    for item in _nested(program):
        if hasattr(item, "consts"):
            arrays += item.consts
        else:
            atoms = [atom for equation in item.eqns for atom in equation.invars] + list(item.outvars)
            arrays += [atom.val for atom in atoms if isinstance(atom, Literal)]
            arrays += [
                value for equation in item.eqns for value in _leaves(equation.params) if isinstance(value, np.ndarray)
            ]
    return arrays


def holds_table(program: Any, lengths: set[int] | frozenset[int]) -> tuple[int, ...] | None:
    """The shape of an array in the program one of whose axes has one of these lengths; None where there is none."""
    for array in constants(program):
        shape = np.shape(array)
        if lengths & set(shape):
            return shape
    return None


def equations(program: Any) -> list[Any]:
    """Every equation of a program and of the programs that it calls."""
    return [equation for item in _nested(program) if not hasattr(item, "consts") for equation in item.eqns]


def _nested(program: Any) -> Iterator[Any]:
    """The program and all that it calls; one that is closed, and the open one inside of it."""
    queue = [program]
    while queue:
        item = queue.pop()
        yield item
        if hasattr(item, "consts"):
            queue.append(item.jaxpr)
        else:
            queue += [value for equation in item.eqns for value in _leaves(equation.params) if _is_program(value)]


def _leaves(value: Any) -> Iterator[Any]:
    """What parameters hold, through tuples, lists and dictionaries; the generator of random keys as one value."""
    if isinstance(value, type(THREEFRY)):
        yield value
        return
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_program(value: Any) -> bool:
    return isinstance(value, (ClosedJaxpr, Jaxpr))


def _holds_program(value: Any) -> bool:
    return any(_is_program(leaf) or (_is_function(leaf) and leaf is not THREEFRY) for leaf in _leaves(value))


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, np.dtype)) and not _is_program(value)


@cache
def _is_admitted(primitive: Any) -> bool:
    """Whether the primitive is JAX's own, the very object, and keeps records apart."""
    if primitive.name in REFUSED:
        return False
    if any(value is primitive for value in vars(jax.extend.core.primitives).values()):
        return True
    internal = [module for name, module in list(sys.modules.items()) if name.startswith("jax._src.")]
    own = any(value is primitive for module in internal for value in list(vars(module).values()))
    return own and primitive.name in UNLISTED | CARRIERS


def _refusal(what: str, why: str) -> Refused:
    return Refused(
        f"{what} {why}: write it in plain JAX, without callbacks, printing, foreign functions or rules for batches"
    )


class _Writer:
    """Writes values into a hash so that different values write different bytes."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def text(self, *parts: Any) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            self.hash.update(len(data).to_bytes(8, "little") + data)

    def value(self, value: Any) -> None:
        """Any parameter of an equation."""
        if isinstance(value, ClosedJaxpr):
            self.text("closed", len(value.consts))
            for array in value.consts:
                self.array(array)
            self.program(value.jaxpr)
        elif isinstance(value, Jaxpr):
            self.program(value)
        elif value is THREEFRY:
            self.text("threefry")
        elif isinstance(value, (tuple, list)):
            self.text("sequence", len(value))
            for item in value:
                self.value(item)
        elif isinstance(value, dict):
            self.text("dictionary", len(value))
            for name in sorted(value, key=str):
                self.text(name)
                self.value(value[name])
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
            self.array(value)
        elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum, np.dtype)):
            self.text(type(value).__name__, repr(value))
        else:
            self.other(value)

    def other(self, value: Any) -> None:
        """What JAX describes by its text: dimension numbers, shardings, trees, types."""
        text = repr(value)
        if _is_function(value) and not hasattr(type(value), "__dataclass_fields__") and ADDRESS.search(text):
            raise Refused(
                f"a program holds the function {ADDRESS.sub('', text)[:80]}, and nobody can tell what it computes: "
                "write it in plain JAX"
            )
        self.text(type(value).__name__, ADDRESS.sub("", text))

    def array(self, array: Any) -> None:
        kind = getattr(array, "dtype", None)
        if kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key):
            self.text("key", str(kind))
            array = jax.random.key_data(array)
        array = np.asarray(array)
        self.text("array", array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())

    def program(self, program: Jaxpr) -> None:
        numbers: dict[Any, int] = {}

        def atom(item: Any) -> None:
            if isinstance(item, Literal):
                self.text("literal", item.aval)
                self.array(item.val)
            else:
                self.text(numbers.setdefault(item, len(numbers)), item.aval)

        self.text("program", len(program.constvars), len(program.invars), len(program.eqns), len(program.outvars))
        for variable in (*program.constvars, *program.invars):
            atom(variable)
        for equation in program.eqns:
            name = equation.primitive.name
            self.text(name, len(equation.invars), len(equation.outvars))
            for item in equation.invars:
                atom(item)
            skipped = RULES.get(name, set())
            self.value({key: value for key, value in equation.params.items() if key not in skipped})
            for item in equation.outvars:
                atom(item)
        for item in program.outvars:
            atom(item)
