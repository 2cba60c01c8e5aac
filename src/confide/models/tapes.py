r"""What a network tells of its layers while it computes the log likelihood of ONE record.

A dense layer and a convolution are the same thing: rows P (one for a dense layer, the patches of the image for a
convolution) times a matrix W. With the signal D = d loss / d (P W) that comes back, the gradient of the record is

    d loss / d W = P^T D,   d loss / d bias = sum of the rows of D,

so its norm, and its share in a weighted sum of gradients, follow from P and D: no gradient per record is needed, and no
second pass. A layer calls `Tape.product`; the tape notes P and adds a tap, zero, by which D is found.

What a tape knows are parameters that are used **once, in one product, and nowhere else** (`discover`): the tape puts
copies of them in the place of the originals in its products, and asks of the traced program whether the originals are
still used. All other parameters (scales of a group norm, weights that are shared, layers of other kinds) are
differentiated record by record. Weights inside a loop or a vmap of the network's own are such others too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from confide.models.priors import Parameters


class Product(NamedTuple):
    """One layer: places of its weights and bias among the leaves of the parameters, and its shape."""

    weights: int
    bias: int | None
    rows: int
    inputs: int
    outputs: int
    transposed: bool  # the leaf is W^T

    def as_leaf(self, matrix: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """A matrix of the shape of W as the leaf holds it."""
        return (matrix.T if self.transposed else matrix).reshape(shape)


class Tape:
    """Runs along with one evaluation of a network; a bare one, `Tape()`, does nothing but compute."""

    def __init__(
        self,
        leaves: Sequence[jax.Array] = (),
        copies: Sequence[jax.Array] = (),
        taps: Sequence[jax.Array] | None = None,
        known: frozenset[int] | None = None,
        key: jax.Array | None = None,
    ) -> None:
        self.products: list[Product] = []
        self.rows: list[jax.Array] = []
        self.key = key  # of this record in this step, for dropout
        self._places = {id(leaf): place for place, leaf in enumerate(leaves)}
        self._copies, self._taps, self._known = copies, taps, known
        self._level = get_opaque_trace_state() if self._places else None
        self._dropouts = 0

    def product(
        self, rows: jax.Array, weights: jax.Array, bias: jax.Array | None = None, *, transposed: bool = False
    ) -> jax.Array:
        """rows @ W + bias, where rows has shape (..., inputs); W is the leaf `weights` with its first axes joined.

        Where `transposed`, the first axis of the leaf is that of the outputs, and its others are joined.
        """
        place, offset = self._place(weights), None if bias is None else self._place(bias)
        seen = place is not None and (bias is None or offset is not None)
        if not seen or get_opaque_trace_state() != self._level:
            return _times(rows, weights, bias, transposed)
        assert place is not None
        outputs = weights.shape[0] if transposed else weights.shape[-1]
        found = Product(
            weights=place,
            bias=offset,
            rows=math.prod(rows.shape[:-1]),
            inputs=rows.shape[-1],
            outputs=outputs,
            transposed=transposed,
        )
        self.products.append(found)
        self.rows.append(rows.reshape(found.rows, found.inputs))
        result = _times(rows, self._copies[place], None if offset is None else self._copies[offset], transposed)
        if self._taps is None:
            return result
        return result + self._taps[len(self.products) - 1].reshape(result.shape)

    def dropout(self, x: jax.Array, rate: float) -> jax.Array:
        """Entries set to zero with probability `rate`, the others scaled up; nothing where the tape has no key."""
        if self.key is None or rate == 0:
            return x
        self._dropouts += 1
        kept = jax.random.bernoulli(jax.random.fold_in(self.key, self._dropouts), 1 - rate, x.shape)
        return jnp.where(kept, x / (1 - rate), 0.0)

    def _place(self, leaf: jax.Array) -> int | None:
        place = self._places.get(id(leaf))
        return place if place is not None and (self._known is None or place in self._known) else None


def _times(rows: jax.Array, weights: jax.Array, bias: jax.Array | None, transposed: bool) -> jax.Array:
    matrix = weights.reshape(weights.shape[0], -1).T if transposed else weights.reshape(-1, weights.shape[-1])
    result = rows @ matrix
    return result if bias is None else result + bias


@dataclass(frozen=True, kw_only=True)
class Layered:
    """The log likelihood of a record, (tape, parameters, *record), as a tape can follow it."""

    log_likelihood: Callable[..., jax.Array]
    dropout: bool = False  # whether it draws anything from the tape's key


def discover(layered: Layered, parameters: Parameters, example: tuple[Any, ...]) -> tuple[Product, ...]:
    """The products whose parameters are used there and nowhere else; only the shapes of the arguments matter."""
    shapes, structure = jax.tree.flatten(parameters)
    key = jax.random.key(0) if layered.dropout else None  # it may be followed along another way than without
    known: frozenset[int] | None = None
    while True:
        products: list[Product] = []

        def told(leaves: list[Any], copies: list[Any], *row: Any, known: Any = known, products: Any = products) -> Any:
            tape = Tape(leaves, copies, None, known, key)
            value = layered.log_likelihood(tape, jax.tree.unflatten(structure, leaves), *row)
            products += tape.products
            return value

        try:
            program = jax.make_jaxpr(told)(shapes, shapes, *example).jaxpr
        except Exception:  # a network that tapes cannot follow is differentiated as a whole
            return ()
        elsewhere = _used_variables(program, program.invars[: len(shapes)])
        places = [place for each in products for place in (each.weights, each.bias) if place is not None]
        wrong = {place for place in places if place in elsewhere or places.count(place) > 1}
        partners = {p for each in products for p in (each.weights, each.bias) if {each.weights, each.bias} & wrong}
        if not wrong:
            return tuple(products)
        known = frozenset(places) - wrong - partners


def _used_variables(program: Any, variables: list[Any]) -> set[int]:
    """Which of the variables any equation or result of the program reads."""
    read = {id(atom) for equation in program.eqns for atom in equation.invars} | {id(atom) for atom in program.outvars}
    return {place for place, variable in enumerate(variables) if id(variable) in read}
