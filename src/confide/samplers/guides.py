"""A NumPyro guide as a family of distributions for `confide.dpvi`.

The guide is called with rows of zeros in the place of records, so it cannot see one. What it must not do even so is
refused: look at its arguments, hold arrays as long as the data, draw what cannot be differentiated, or have other
variables than the model. Its parameters are learnt on the whole real line.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide.models import programs
from confide.models.model import Model
from confide.samplers.variational_families import Family
from confide.validation import Refused

Sites = dict[str, dict[str, Any]]


def family(guide: Any, model: Model, data: tuple[np.ndarray, ...], records: int) -> Family:
    """What the guide draws, in the model's flat coordinates."""
    if model.name != "from_numpyro":
        raise Refused("a guide goes with a model of confide.models.from_numpyro: leave it out, or build the model so")
    import numpyro
    from numpyro.distributions import constraints
    from numpyro.distributions.transforms import biject_to

    if getattr(guide, "prototype_trace", None) is not None:
        raise Refused("the guide has been run before, perhaps on records: give a new one")

    def traced(fresh: Any, arguments: list[jax.Array], key: Any, values: Any = None) -> Sites:
        handled = numpyro.handlers.seed(fresh, key)
        if values is not None:
            handled = numpyro.handlers.substitute(handled, data=values)
        return numpyro.handlers.trace(handled).get_trace(*arguments)

    zeros, seed = _rows(data, 0), jax.random.key(0)
    own, other = copy.deepcopy(guide), copy.deepcopy(guide)  # a guide may remember what it was first called with
    try:
        sites, told = traced(own, zeros, seed), traced(other, _rows(data, 1), seed)
    except Exception as error:
        text = str(error).strip().splitlines()[0][:150] if str(error).strip() else ""
        raise Refused(f"the guide does not run on one record: {type(error).__name__}: {text}") from None
    latents = _latents(model, data)
    _check(sites, told, latents)
    parameters = {name: site for name, site in sites.items() if site["type"] == "param"}
    bijections = {
        name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in parameters.items()
    }
    start, unravel = ravel_pytree({name: bijections[name].inv(site["value"]) for name, site in parameters.items()})

    def draw(phi: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = {name: bijections[name](value) for name, value in unravel(phi.astype(start.dtype)).items()}
        found = traced(own, zeros, key, values)
        log_density = jnp.zeros((), phi.dtype)
        for site in found.values():
            if site["type"] == "sample":
                log_density += jnp.sum(_log_prob(site))
        drawn = model.unconstrain({name: found[name]["value"] for name in latents})
        volume = jnp.zeros(()) if model.log_volume is None else model.log_volume(drawn)
        return ravel_pytree(drawn)[0].astype(phi.dtype), log_density + volume

    program = jax.make_jaxpr(draw)(start, seed)
    if shape := programs.holds_table(program, {records} - {1}):
        raise Refused(f"the guide holds an array of shape {shape}, as long as the data: {_REMEDY}")
    programs.check(program, "the guide")
    derivative = jax.make_jaxpr(lambda phi, key, *cotangent: jax.vjp(lambda phi: draw(phi, key), phi)[1](cotangent))
    slope = derivative(start, seed, *jax.eval_shape(draw, start, seed))
    mark = programs.digest(program, slope, start)[:16]
    name = type(guide).__name__ if not hasattr(guide, "__name__") else guide.__name__
    return Family(name, np.asarray(start, np.float64), np.ones(start.size), draw, mark)


_REMEDY = "it describes q by its own parameters alone"


def _rows(data: tuple[np.ndarray, ...], value: int) -> list[jax.Array]:
    return [jnp.full((1, *array.shape[1:]), value, array.dtype) for array in data]


def _latents(model: Model, data: tuple[np.ndarray, ...]) -> dict[str, tuple[int, ...]]:
    """The model's variables and their shapes, in the space in which they are reported."""
    start = model.start(jax.random.key(0), tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in data))
    reported = model.constrain(start)
    return {name: np.shape(value) for name, value in reported.items()}


def _same(one: Any, two: Any) -> bool:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    return len(leaves) == len(others) and all(map(np.array_equal, leaves, others))


def _log_prob(site: dict[str, Any]) -> jax.Array:
    """With what came on the way to a transformed value, which is more exact than to go back."""
    between = site.get("intermediates")
    return site["fn"].log_prob(site["value"], between) if between else site["fn"].log_prob(site["value"])


def _check(sites: Sites, told: Sites, latents: dict[str, tuple[int, ...]]) -> None:
    drawn = {name: site for name, site in sites.items() if site["type"] == "sample"}
    for name, site in drawn.items():
        if site["is_observed"]:
            raise Refused(f"site {name!r} of the guide is observed: leave obs= to the model")
        if site["fn"].support.is_discrete or not site["fn"].has_rsample:
            raise Refused(f"site {name!r} of the guide cannot be differentiated through: choose a Gaussian")
        if site.get("scale") not in (None, 1, 1.0):
            raise Refused(f"site {name!r} of the guide is rescaled: leave handlers.scale and subsampling out")
        if name not in latents and not site["infer"].get("is_auxiliary"):
            raise Refused(f"site {name!r} of the guide is not in the model: name it as there, or mark it as auxiliary")
    missing = [name for name in latents if name not in drawn]
    if missing:
        raise Refused(f"the guide does not draw {missing[0]!r}, which the model has: add a site of that name")
    for name, shape in latents.items():
        if np.shape(drawn[name]["value"]) != shape:
            found = np.shape(drawn[name]["value"])
            raise Refused(f"site {name!r} has shape {found} in the guide and {shape} in the model: make them agree")
    if not any(site["type"] == "param" for site in sites.values()):
        raise Refused("the guide has no parameters, so there is nothing to learn: give it some by numpyro.param")
    for name, site in sites.items():
        if site["type"] not in ("param", "sample"):
            continue
        if name not in told or not _same(told[name]["value"], site["value"]):
            raise Refused(f"site {name!r} of the guide looks at the records: {_REMEDY}")
