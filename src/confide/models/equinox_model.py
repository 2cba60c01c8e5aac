"""A network of Equinox as a model: its arrays of real numbers are the parameters, with a prior on each.

The module is called with one record, as Equinox calls modules, and `key=` where it takes one (dropout). Its
`eqx.nn.Linear` and `eqx.nn.Conv2d` layers are followed layer by layer (`confide.models.tapes`); what else it has is
differentiated record by record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models import networks
from confide.models.labels import check_labels
from confide.models.model import Data, Model
from confide.models.priors import LogPrior, Parameters
from confide.models.tapes import Tape
from confide.validation import Refused


def from_equinox(
    module: Any,
    *,
    shape: tuple[int, ...],
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    prior: str | LogPrior = "gaussian",
    classes: Sequence[Any] | None = None,
) -> Model:
    """A model from a module that gives the scores of one record of the given shape: one for each class.

    A single score is a mean with Gaussian noise of `noise_scale`. `classes` are the labels as they stand in y; by
    default 0, 1, ..., and a record with another label counts as absent. Chains start at the module's own values, which
    must not have seen the data.
    """
    try:
        import equinox as eqx
    except ImportError:
        raise Refused("from_equinox needs Equinox: install it, or build the network from confide.models") from None
    if not isinstance(module, eqx.Module) or not callable(module):
        raise Refused(f"module is {type(module).__name__}: give an equinox.Module that is called with one record")
    shape = tuple(validation.count(shape=length) for length in ((shape,) if isinstance(shape, int) else shape))
    _check(module, eqx)
    own, static = eqx.partition(module, eqx.is_inexact_array)
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), own)
    named, structure = jax.tree_util.tree_flatten_with_path(own)
    names = [jax.tree_util.keystr(path).removeprefix(".") for path, _ in named]
    begin = dict(zip(names, [leaf for _, leaf in named], strict=True))
    if not begin:
        raise Refused("the module has no parameters: give one with arrays of real numbers")
    keyed = "key" in inspect.signature(type(module).__call__).parameters
    drops = any(isinstance(part, eqx.nn.Dropout) for part in _parts(module, eqx))
    if drops and not keyed:
        raise Refused("the module has dropout but takes no key: give its __call__ an argument key=None, and pass it on")

    def called(tape: Tape, parameters: Parameters, x: jax.Array, followed: bool) -> jax.Array:
        built = eqx.combine(jax.tree.unflatten(structure, [parameters[name] for name in names]), static)
        built = eqx.nn.inference_mode(built, tape.key is None)
        if followed:
            built = jax.tree.map(
                lambda part: _follow(part, tape, eqx), built, is_leaf=lambda part: _is_product(part, eqx)
            )
        x = jnp.asarray(x, jnp.float32).reshape(shape)
        return jnp.atleast_1d(built(x, key=tape.key) if keyed else built(x))

    outputs, follows = _outputs(lambda x, followed: called(Tape(), begin, x, followed), shape)

    def scores(tape: Tape, parameters: Parameters, x: jax.Array) -> jax.Array:
        return called(tape, parameters, x, follows)

    def start(key: jax.Array, example: Data) -> Parameters:
        return begin

    scale = validation.positive(noise_scale=noise_scale)
    settings = {"prior_scale": prior_scale, "noise_scale": scale, "prior": prior}
    labels = None if classes is None else check_labels(classes)
    network = networks.network
    model = network("from_equinox", scores, start, settings, shape=shape, outputs=outputs, dropout=drops, labels=labels)
    return replace(model, settings=None)  # it holds functions of the user's


def _check(module: Any, eqx: Any) -> None:
    """Refuse what is no function of one record, and what has no gradient."""
    leaves = jax.tree.leaves(module)
    whole = [leaf for leaf in leaves if eqx.is_array(leaf) and not eqx.is_inexact_array(leaf)]
    if any(isinstance(part, eqx.nn.BatchNorm | eqx.nn.StateIndex) for part in _parts(module, eqx)):
        raise Refused(
            "the module has batch statistics or other state, by which records would see each other: use "
            "equinox.nn.GroupNorm or LayerNorm"
        )
    if whole:
        raise Refused(
            f"the module has parameters of whole numbers ({whole[0].dtype}, shape {whole[0].shape}), which have no "
            "gradient: make them static fields or real numbers"
        )
    if any(eqx.is_inexact_array(leaf) and np.issubdtype(leaf.dtype, np.complexfloating) for leaf in leaves):
        raise Refused("the module has complex parameters: split them into real and imaginary parts")


def _outputs(called: Callable[[Any, bool], jax.Array], shape: tuple[int, ...]) -> tuple[int, bool]:
    """How many scores a record has, and whether the layers can be followed on the way to them."""

    def tried(followed: bool) -> tuple[int, ...]:
        return jax.eval_shape(lambda x: called(x, followed), jax.ShapeDtypeStruct(shape, np.float32)).shape

    try:
        found = tried(False)
    except Exception as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Refused(f"the module cannot be called with one record of shape {shape}: {text[:150]}") from None
    if len(found) != 1:
        raise Refused(f"the module gives an array of shape {found} for a record: give one score for each class")
    try:
        return found[0], tried(True) == found
    except Exception:  # it looks inside its layers, or loops over them
        return found[0], False


def _parts(module: Any, eqx: Any) -> list[Any]:
    """Every module inside, and the module itself."""
    found = [module]
    for part in found:  # grows as it goes
        inner = jax.tree.leaves(part, is_leaf=lambda item, part=part: item is not part and isinstance(item, eqx.Module))
        found += [module for module in inner if isinstance(module, eqx.Module)]
    return found


def _is_product(part: Any, eqx: Any) -> bool:
    """A kind of its own may compute something else."""
    return type(part) in (eqx.nn.Linear, eqx.nn.Conv2d)


def _follow(part: Any, tape: Tape, eqx: Any) -> Any:
    """A layer that tells the tape; what it does not know stays as it is."""
    if type(part) is eqx.nn.Linear and "scalar" not in (part.in_features, part.out_features):

        def linear(x: jax.Array, *, key: Any = None) -> jax.Array:
            return tape.product(x, part.weight, part.bias, transposed=True) if x.ndim == 1 else part(x)

        return linear
    if type(part) is eqx.nn.Conv2d and part.groups == 1 and set(part.dilation) == {1}:
        plain = getattr(part, "padding_mode", "ZEROS").upper() == "ZEROS" and not isinstance(part.padding, str)
        if not plain or part.weight is None:
            return part

        def convolution(x: jax.Array, *, key: Any = None) -> jax.Array:
            rows = _patches(x, part.weight.shape[2:], part.stride, part.padding)
            result = tape.product(rows, part.weight, None, transposed=True)
            result = jnp.moveaxis(result, -1, 0)
            return result if part.bias is None else result + part.bias

        return convolution
    return part


def _patches(x: jax.Array, size: Any, stride: Any, padding: Any) -> jax.Array:
    """Of an image with channels first; ordered by channel, row and column."""
    x = jnp.pad(x, ((0, 0), *padding))
    height, width = ((length - part) // step + 1 for length, part, step in zip(x.shape[1:], size, stride, strict=True))
    shifted = [
        x[:, i : i + stride[0] * (height - 1) + 1 : stride[0], j : j + stride[1] * (width - 1) + 1 : stride[1]]
        for i in range(size[0])
        for j in range(size[1])
    ]
    return jnp.moveaxis(jnp.stack(shifted, axis=1), (0, 1), (2, 3)).reshape(height, width, -1)
