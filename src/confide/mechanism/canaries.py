r"""Canaries: made-up records whose presence in a run is to be guessed from what the run releases.

Every canary has a parameter of its own that no real record touches, and a gradient along it that is far longer than any
clip. So canaries are orthogonal to each other and to the data, one in a batch moves the sum by exactly what the
guarantee allows, and a clip that does not cut is seen at once. Generalised linear models get one column a canary, and
canaries go through the same closed form as all records; other models get further parameters. Of a network that is told
layer by layer these are layers of every kind that norms are taken of, so that a norm that forgets one of them is seen.

Each is in with probability 1/2. One that is out is a row that contributes nothing: whoever is in, the run sees as many
rows. Where neighbours replace a record, it is a row that pulls the other way.

The run is planned as without canaries: clip, step sizes, noise and sampling probability come from the number of
records, and means over parameters are over the model's own. Canaries have no gradient in those (but for one part in
`LENGTH` along an intercept), so that the posterior and the claim are what they would have been. Rows of canaries are
spread evenly among the others, so that no part of a batch goes without. Private scoring has them in its sums of scores
alone: its scale and its information are those of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models.inputs import Records
from confide.models.model import Data, Linear, Model
from confide.models.priors import Parameters
from confide.models.tapes import Layered, Tape
from confide.privacy.events import Neighbours
from confide.validation import Refused

LENGTH = 2.0**20  # of a canary's gradient before it is clipped
LONGEST = 2.0**10  # a clip that cuts it
UP, DOWN, OUT = 2.0**100, -(2.0**100), 2.0**101  # labels that no record has, in the place of y
LARGEST = 2**28  # numbers in a table with a column for each canary
FEWEST, MOST = 30, 10**6


def check_count(count: int) -> int:
    if not FEWEST <= validation.count(canaries=count) <= MOST:
        raise Refused(f"canaries = {count} is out of range: plant {FEWEST} to {MOST:,}, or none; 1000 are usual")
    return int(count)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A model with parameters for the canaries, after its own, and the data with their rows among all others."""

    model: Model
    data: Records  # as if all canaries were out
    original: Data  # the arrays of the records alone
    count: int
    places: np.ndarray  # rows of the canaries
    first: int  # coordinate of the first canary
    apart: int  # coordinates from one to the next
    replaced: bool

    @property
    def coordinates(self) -> int:
        """Of a linear model: those that the canaries have together."""
        return self.apart * self.count

    def with_members(self, inside: np.ndarray) -> Records:
        """The data with these canaries in."""
        *others, labels = self.data.arrays
        labels = labels.copy()
        labels[self.places] = np.where(inside, UP, DOWN if self.replaced else OUT)
        return self.data._replace(arrays=(*others, labels))

    def pulls(self, whole: Records) -> np.ndarray:
        """Which way every canary pulls: 1 where it is in, else 0, or -1 where it is replaced."""
        return np.asarray(_pull(jnp.asarray(whole.arrays[-1][self.places])), np.float64)

    def without_canaries(self, whole: Records) -> Records:
        """Of a linear model: the records alone, as they were before the canaries."""
        present = np.delete(whole.present, self.places)
        return Records(self.original, present, whole.number)


def plant(model: Model, records: Records, count: int, size: int, neighbours: Neighbours) -> Planted:
    """The model and the data with canaries; `size` is the number of the model's own parameters."""
    linear, rows, data = model.linear, records.places + count, records.arrays
    places = (np.arange(count) * rows + rows // 2) // count
    widened, arrays = _other(model, data, places) if linear is None else _linear(model, linear, data, places)
    return Planted(
        model=widened,
        data=Records(arrays, _spread(records.present, places, True), records.number),
        original=data,
        count=count,
        places=places,
        first=size,
        apart=1 if linear is None else int(np.prod(linear.outputs, dtype=int)),
        replaced=neighbours == "replace-one",
    )


def _spread(array: np.ndarray, places: np.ndarray, filling: float) -> np.ndarray:
    """The array with further rows at the places."""
    result = np.full((len(array) + len(places), *array.shape[1:]), filling, array.dtype)
    result[np.delete(np.arange(len(result)), places)] = array
    return result


def _pull(labels: jax.Array) -> jax.Array:
    """The sign of a canary's gradient; 0 for one that is out."""
    return jnp.where(jnp.abs(labels) == UP, jnp.sign(labels), 0.0)


def _linear(model: Model, linear: Linear, data: Data, places: np.ndarray) -> tuple[Model, Data]:
    (x, y), own, count = data, data[0].shape[1], len(places)
    if (len(x) + count) * (own + count) > LARGEST:
        raise Refused(
            f"{count} canaries need as many columns for {len(x):,} places: plant fewer, or audit with fewer records"
        )
    wide = np.zeros((len(x) + count, own + count), np.float32)
    wide[:, :own] = _spread(x, places, 0.0)
    wide[places, own + np.arange(count)] = LENGTH
    below = np.clip(y.astype(np.float32), -UP / 2, UP / 2)  # where the marks of canaries are not
    labels = _spread(below, places, OUT)

    def log_likelihood(scores: jax.Array, label: jax.Array) -> jax.Array:
        known = jnp.abs(label) < UP
        along = scores[..., 0] if linear.outputs else scores
        return jnp.where(known, linear.log_likelihood(scores, jnp.where(known, label, 0.0)), -_pull(label) * along)

    def narrow(parameters: Parameters) -> Parameters:
        return {**parameters, "weights": parameters["weights"][:own]}

    def widen(parameters: Parameters) -> Parameters:
        weights = parameters["weights"]
        none = jnp.zeros((count, *weights.shape[1:]), weights.dtype)
        return {**parameters, "weights": jnp.concatenate([weights, none])}

    def scores(parameters: Parameters, x: jax.Array) -> jax.Array:
        found = x @ parameters["weights"]
        return found + parameters["intercept"] if linear.intercept else found

    closed = replace(linear.mark(_pull, UP), log_likelihood=log_likelihood)
    widened = _widen(model, data, narrow, widen, lambda parameters, x, y: log_likelihood(scores(parameters, x), y))
    return replace(widened, linear=closed), (wide, labels)


def _other(model: Model, data: Data, places: np.ndarray) -> tuple[Model, Data]:
    count, rows = len(places), len(data[0])
    padded = tuple(_spread(array, places, 0) for array in data)
    which = np.full(rows + count, -1, np.int32)
    which[places] = np.arange(count)
    labels = _spread(np.zeros(rows, np.float32), places, OUT)

    layered = model.layered
    tell, begin = (_alone, jnp.zeros(count, jnp.float32)) if layered is None else (_in_layers, _layers(count))

    def log_likelihood(parameters: Parameters, *row: Any) -> jax.Array:
        *own, place, label = row

        def real() -> jax.Array:
            return model.log_likelihood(parameters[0], *own)

        def canary() -> jax.Array:
            return tell(Tape(), parameters[1], place, label).astype(jax.eval_shape(real).dtype)

        return jax.lax.cond(place < 0, real, canary)  # of two gradients one is taken: the other may be no number

    def layer_by_layer(tape: Tape, parameters: Parameters, *row: Any) -> jax.Array:
        assert layered is not None
        *own, place, label = row
        real = layered.log_likelihood(tape, parameters[0], *own)
        return jnp.where(place < 0, real, tell(tape, parameters[1], place, label))

    def widen(parameters: Parameters) -> Parameters:
        return parameters, begin

    widened = _widen(model, data, lambda parameters: parameters[0], widen, log_likelihood)
    followed = None if layered is None else Layered(log_likelihood=layer_by_layer, dropout=layered.dropout)
    return replace(widened, layered=followed), (*padded, which, labels)


def _alone(tape: Tape, parameters: Parameters, place: jax.Array, label: jax.Array) -> jax.Array:
    return -LENGTH * _pull(label) * parameters[jnp.maximum(place, 0)]


def _layers(count: int) -> Parameters:
    """A fifth of the canaries each: weights and biases of a layer of one row and of one of two, and what is in none."""
    fifth = count // 5
    one = [jnp.zeros((1, fifth), jnp.float32), jnp.zeros(fifth, jnp.float32)]
    return [jnp.zeros(count - 4 * fifth, jnp.float32), *one, *one]


def _in_layers(tape: Tape, parameters: Parameters, place: jax.Array, label: jax.Array) -> jax.Array:
    """Long by their inputs, or, in a bias, by what comes back; the bias beside a weight has one part in `LENGTH`."""
    others, *layers = parameters
    fifth = layers[1].size
    score = LENGTH * jnp.where((place >= 0) & (place < others.size), others[jnp.clip(place, 0, others.size - 1)], 0.0)
    for rows in (1, 2):
        first = others.size + 2 * (rows - 1) * fifth
        in_weights, in_bias = ((place >= start) & (place < start + fifth) for start in (first, first + fifth))
        inputs = jnp.where(in_weights, jnp.full((rows, 1), LENGTH / rows, jnp.float32), 0.0)
        found = tape.product(inputs, layers[2 * rows - 2], layers[2 * rows - 1])[
            :, jnp.maximum(place - first, 0) % fifth
        ]
        score += jnp.sum(found) * jnp.where(in_weights, 1.0, jnp.where(in_bias, LENGTH / rows, 0.0))
    return -_pull(label) * score


def _widen(model: Model, data: Data, narrow: Any, widen: Any, log_likelihood: Any) -> Model:
    """The model in the parameters of both: the canaries' own have a flat prior and start at 0."""
    init = model.overdispersed_init
    example = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in data)
    return replace(
        model,
        start=lambda key, _: widen(model.start(key, example)),
        log_prior=lambda parameters: model.log_prior(narrow(parameters)),
        log_likelihood=log_likelihood,
        overdispersed_init=None if init is None else lambda key, parameters: widen(init(key, narrow(parameters))),
        constrain=lambda parameters: model.constrain(narrow(parameters)),
    )
