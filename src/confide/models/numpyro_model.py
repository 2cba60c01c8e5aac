"""A NumPyro model with one data plate, as a Model.

The model function is called with the arrays of one record (as arrays of one row), so the likelihood of a record is a
function of that record alone, whatever the model does with its arguments. What cannot be read that way is refused:
latent variables inside the plate, observations outside it, subsampled plates, plates whose size does not follow the
arguments, discrete latents, `param`, `factor`, rescaled likelihoods, and priors that look at the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models.inputs import hint_at_integers
from confide.models.model import Data, Kind, Model, check_bound, check_dtypes
from confide.models.priors import Parameters
from confide.validation import Refused

REMEDY = "write the likelihood by hand with confide.models.from_functions"


def from_numpyro(
    model: Callable[..., Any],
    *,
    kind: Kind = "other",
    predict: Any = None,
    dtypes: Sequence[str] | None = None,
    gradient_bound: float | None = None,
) -> Model:
    """The model `model(X, y)`, whose observations lie in one `numpyro.plate` over the rows of X and y.

    Latent variables are sampled on the whole real line and reported in their own space. `predict` draws on the
    model itself, called without its last argument (`model(X)` or `model(X, None)`).

    Args:
        kind: "classification" where the observed site is a label with `probs` or `logits`, "regression" for a mean.
        dtypes: "float32" or "int32" for each array of the data; see `confide.models.from_functions`.
        gradient_bound: as for `confide.models.from_functions`, by the parameters on the whole real line.
    """
    types, bound = check_dtypes(dtypes), check_bound(gradient_bound)
    try:
        from numpyro import handlers
    except ImportError:
        raise Refused("numpyro is not installed: install it to use its models") from None
    validation.one_of(("classification", "regression", "other"), kind=kind)
    if not callable(model):
        raise Refused(f"model = {model!r} is not a function: give a NumPyro model")
    sites = _Sites(model, handlers)

    def log_prior(parameters: Parameters) -> jax.Array:
        values = sites.constrain(parameters)
        found = sites.trace(values, _zeros(sites.shapes, 1))
        total = jnp.zeros(())
        for name in sites.bijections:
            total += jnp.sum(found[name]["fn"].log_prob(values[name]))
        return total + sites.log_volume(parameters, values)

    def log_likelihood(parameters: Parameters, *example: jax.Array) -> jax.Array:
        found = sites.trace(sites.constrain(parameters), [array[None] for array in example])
        observed = [jnp.sum(s["fn"].log_prob(s["value"])) for s in found.values() if _is_observed(s)]
        return jnp.sum(jnp.stack(observed))

    def predicted(parameters: Parameters, x: jax.Array) -> jax.Array:
        site = sites.outcome(parameters, x)
        if kind != "classification":
            return site.mean
        probabilities = site.probs
        binary = probabilities.ndim == 1
        return jnp.stack([1 - probabilities, probabilities], axis=-1) if binary else probabilities

    return Model(
        name="from_numpyro",
        kind=kind,
        start=sites.start,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        predict=predict or predicted,
        simulate=lambda key, parameters, x: sites.outcome(parameters, x).sample(key),
        constrain=sites.constrain,
        unconstrain=sites.unconstrain,
        log_volume=lambda parameters: sites.log_volume(parameters, sites.constrain(parameters)),
        dtypes=types,
        gradient_bound=bound,
    )


class _Sites:
    """The sites of a model function, and the bijections of its latent ones from the whole real line."""

    def __init__(self, model: Callable[..., Any], handlers: Any) -> None:
        self.model, self.handlers = model, handlers
        self.shapes: Any = None  # of the arrays of a record, learnt when the chains start
        self._layouts: dict[Any, dict[str, Any]] = {}

    def trace(self, latents: dict[str, Any] | None, arguments: Any, seed: int = 0) -> dict[str, Any]:
        handled = self.handlers.seed(self.model, jax.random.key(seed))
        if latents is not None:
            handled = self.handlers.substitute(handled, data=latents)
        return self.handlers.trace(handled).get_trace(*arguments)

    @property
    def bijections(self) -> dict[str, Any]:
        """Of every latent site: read from a trace on rows of zeros, once for each shape of the data."""
        if self.shapes not in self._layouts:
            self._layouts[self.shapes] = _latents(self.trace, self.shapes)
        return self._layouts[self.shapes]

    def start(self, key: jax.Array, example: Data) -> Parameters:
        self.shapes = tuple((np.shape(array)[1:], jnp.result_type(array).name) for array in example)
        bijections = self.bijections  # what cannot be read is refused here
        sites = self.trace(None, _zeros(self.shapes, 1))
        values = self.unconstrain({name: site["value"] for name, site in sites.items() if name in bijections})
        return jax.tree.map(lambda value: jnp.zeros(value.shape, jnp.float32), values)

    def constrain(self, parameters: Parameters) -> Parameters:
        return {name: self.bijections[name](value) for name, value in parameters.items()}

    def unconstrain(self, parameters: Parameters) -> Parameters:
        return {name: self.bijections[name].inv(jnp.asarray(value)) for name, value in parameters.items()}

    def log_volume(self, parameters: Parameters, values: Parameters) -> jax.Array:
        """By how much the bijections stretch space at the parameters, which they take to the values."""
        pairs = self.bijections.items()
        volumes = [jnp.sum(b.log_abs_det_jacobian(parameters[name], values[name])) for name, b in pairs]
        return jnp.sum(jnp.stack(volumes))

    def outcome(self, parameters: Parameters, x: jax.Array) -> Any:
        """The observed site of model(x) with the latents set."""
        missing = [None] if self.shapes is None else [None] * (len(self.shapes) - 1)
        found = self.trace(parameters, [x, *missing]).values()
        return [s for s in found if s["type"] == "sample" and s["cond_indep_stack"]][-1]["fn"]


def _zeros(shapes: Any, rows: int, value: float = 0.0) -> list[jax.Array]:
    return [jnp.full((rows, *shape), value, dtype) for shape, dtype in shapes]


def _is_observed(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and site["is_observed"]


def _latents(trace: Callable[..., dict[str, Any]], shapes: Any) -> dict[str, Any]:
    """Check that the model can be read one record at a time; the bijections of its latent sites."""
    from numpyro.distributions.transforms import biject_to

    try:
        one, two, other = (
            trace(None, _zeros(shapes, 1)),
            trace(None, _zeros(shapes, 2)),
            trace(None, _zeros(shapes, 1, 1.0)),
        )
    except Refused:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise Refused(f"the NumPyro model does not run on one record: {text}{hint_at_integers(text)}") from None
    plates = [name for name, site in one.items() if site["type"] == "plate"]
    if len(plates) != 1:
        raise Refused(f"the NumPyro model has {len(plates)} plates: put the data, and only the data, in one plate")
    (plate,) = plates
    sizes = [sites[plate]["args"][0] for sites in (one, two)]
    if sizes != [1, 2]:
        raise Refused(f"plate {plate!r} has size {sizes[0]} for one record: take its size from the data's length")
    if one[plate]["args"][1] not in (None, 1):
        raise Refused(f"plate {plate!r} is subsampled: leave subsample_size out, confide draws the batches")
    bijections = {}
    for name, site in one.items():
        if site["type"] == "param":
            raise Refused(f"site {name!r} is a parameter without a prior: sample it, or {REMEDY}")
        if site["type"] != "sample":
            continue
        inside = any(frame.name == plate for frame in site["cond_indep_stack"])
        if site.get("scale") not in (None, 1, 1.0):
            raise Refused(f"site {name!r} is rescaled: leave handlers.scale out, or {REMEDY}")
        if site["is_observed"] and not inside:
            raise Refused(f"site {name!r} is observed outside the plate: move it in, or {REMEDY}")
        if not site["is_observed"] and inside:
            raise Refused(f"site {name!r} is a latent variable of one record: integrate it out, or {REMEDY}")
        if site["is_observed"]:
            continue
        if site["fn"].support.is_discrete:
            raise Refused(f"site {name!r} is discrete: integrate it out, or {REMEDY}")
        if not np.allclose(site["fn"].log_prob(site["value"]), other[name]["fn"].log_prob(site["value"])):
            raise Refused(f"the prior of site {name!r} depends on the data: make it depend on public numbers alone")
        bijections[name] = biject_to(site["fn"].support)
        again = trace(None, _zeros(shapes, 1), seed=1)[name]
        point = jnp.full(jnp.shape(bijections[name].inv(site["value"])), 0.3)
        if not np.allclose(bijections[name](point), biject_to(again["fn"].support)(point)):
            raise Refused(f"the support of site {name!r} depends on another variable: rescale a fixed one, or {REMEDY}")
    if not bijections:
        raise Refused("the NumPyro model has no latent variable: there is nothing to learn")
    if not any(_is_observed(site) for site in one.values()):
        raise Refused("the NumPyro model observes nothing: pass its last argument to numpyro.sample as obs=")
    return bijections
