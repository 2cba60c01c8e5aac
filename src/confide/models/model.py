"""A model: a log prior, the log likelihood of ONE example, and what can be predicted from parameters.

A record is one row of every array in `data`, usually (X, y). The likelihood of a record may depend on that record
and the parameters alone: this is what bounds one person's influence, so the library calls it one record at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models import priors
from confide.models.family import Family
from confide.models.labels import Labels
from confide.models.priors import LogPrior, Parameters
from confide.models.tapes import Layered
from confide.validation import Refused

Kind = Literal["classification", "regression", "other"]
Data = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Weighting:
    """How records are shortened by weights that no outcome decides, so that nothing is bent (`Family.bounded`).

    A row z, with the constant of the intercept, counts by min(1, (row_bound / ||z||)^2): one that stands far out counts
    less, and where all scores are cut no record is more curved than one of norm `row_bound`.
    """

    row_bound: float = math.inf
    typical: float = 1.0  # information of a usual record, where the family needs one


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The closed form of a generalised linear model: scores = X W, gradient of one record = x (outer) residual.

    `residual(scores, y)` is the gradient of the negative log likelihood by the scores, for many records at once;
    `bounded(scores, y, threshold, typical)` the same within a threshold, unbiased; `log_likelihood(scores, y)` is for
    one record.
    """

    residual: Callable[[jax.Array, jax.Array], jax.Array]
    loss_increment: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # see `Family.loss_increment`
    bounded: Callable[[jax.Array, jax.Array, jax.Array, float], jax.Array]
    log_likelihood: Callable[[jax.Array, jax.Array], jax.Array]
    outputs: tuple[int, ...]  # () for one score a record
    intercept: bool
    norm_bound: float | None = None  # of the rows, without the constant of the intercept
    bounded_loss: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None  # see `Family.bounded_loss`
    weighting: Weighting | None = None  # None: gradients are cut by their own length
    marked: Callable[[jax.Array], jax.Array] | None = None  # (labels) -> which rows are no records but marks of a test

    def mark(self, pull: Callable[[jax.Array], jax.Array], least: float) -> Linear:
        """The same, with further rows whose labels are at least `least` in size: each pulls along the first score by
        `pull` of its label, whatever the parameters are, and however long its row is."""

        def join(found: jax.Array, labels: jax.Array, pulled: jax.Array) -> jax.Array:
            known = jnp.abs(labels) < least
            if self.outputs:
                known, pulled = known[:, None], pulled[:, None] * (jnp.arange(self.outputs[0]) == 0)
            return jnp.where(known, found, pulled)

        def real(labels: jax.Array) -> jax.Array:
            return jnp.where(jnp.abs(labels) < least, labels, 0.0)

        def residual(scores: jax.Array, labels: jax.Array) -> jax.Array:
            return join(self.residual(scores, real(labels)), labels, pull(labels))

        def bounded(scores: jax.Array, labels: jax.Array, threshold: jax.Array, typical: float) -> jax.Array:
            pulled = jnp.clip(pull(labels), -threshold, threshold)
            return join(self.bounded(scores, real(labels), threshold, typical), labels, pulled)

        return replace(self, residual=residual, bounded=bounded, marked=lambda labels: jnp.abs(labels) >= least)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Built by the functions of `confide.models`.

    Attributes:
        start: (key, one-row example arrays) -> starting parameters. It sees the shape of the data, never the data.
        overdispersed_init: (key, starting parameters) -> others, far enough apart for several chains to show whether
            they have met; None where `start` is random already, or nothing is known of the prior.
        log_likelihood: (parameters, *example) -> log density of one record.
        predict: (parameters, X) -> one row of class probabilities (or one mean) for each row of X.
        simulate: (key, parameters, X) -> an outcome for each row of X.
        dtypes: what each array of the data is read as, "float32" or "int32"; None: as single precision, but for images
            of whole numbers (`confide.models.inputs`).
        labels: what stands in the last array for the classes 0, 1, ...; None: their numbers.
        check: (data) -> None; refuses shapes that the model cannot be fitted to.
        admits: (data) -> which rows have an outcome that the model knows; None for all.
        constrain: parameters as they are sampled -> parameters as they are reported.
        unconstrain: the way back.
        log_volume: parameters as they are sampled -> log of what `constrain` stretches volumes by; None for 0.
        family: of a generalised linear model, all that is special about it; None for other models.
        linear: its closed form.
        layered: the same log likelihood as a tape can follow it layer by layer, with dropout where there is any.
        scores: of a network, (tape, parameters, x) -> the scores of one record; None for other models.
        classes: of a network that tells classes apart, how many; None for others.
        gradient_bound: a declared bound on the norm of the gradient of one record's log likelihood, by the parameters
            as they are sampled; None: nothing is known.
        settings: the arguments that rebuild the model by `name`; None where it holds functions of the user's.
    """

    name: str
    kind: Kind
    start: Callable[[jax.Array, Data], Parameters]
    log_prior: LogPrior
    log_likelihood: Callable[..., jax.Array]
    predict: Callable[[Parameters, jax.Array], jax.Array] | None = None
    simulate: Callable[[jax.Array, Parameters, jax.Array], jax.Array] | None = None
    dtypes: tuple[str, ...] | None = None
    labels: Labels | None = None
    check: Callable[[Data], None] = lambda data: None
    admits: Callable[[Data], np.ndarray] | None = None
    constrain: Callable[[Parameters], Parameters] = lambda parameters: parameters
    unconstrain: Callable[[Parameters], Parameters] = lambda parameters: parameters
    log_volume: Callable[[Parameters], jax.Array] | None = None
    family: Family | None = None
    linear: Linear | None = None
    layered: Layered | None = None
    scores: Callable[..., jax.Array] | None = None
    classes: int | None = None
    overdispersed_init: Callable[[jax.Array, Parameters], Parameters] | None = None
    gradient_bound: float | None = None
    settings: dict[str, Any] | None = field(default=None)


def from_family(
    family: Family,
    dimension: int,
    prior_scale: float = 1.0,
    *,
    prior: str | LogPrior = "gaussian",
    intercept: bool = False,
    norm_bound: float | None = None,
    labels: Labels | None = None,
) -> Model:
    """The generalised linear model of a family; `labels` are what stands in y for its classes.

    Scores are s = x W (+ intercept). With r(s, y) the gradient of the negative log likelihood by the scores, the
    gradient of one record is x (outer) r, and its norm |r| ||x||: a clipped sum needs no gradient per record in memory.

    With `norm_bound` B, rows longer than B are scaled down to it, record by record, in the likelihood and in
    predictions: then |r| B bounds the gradient of every record, and the curvature is bounded as well
    (`confide.models.convexity`).
    """
    dimension = validation.count(dimension=dimension)
    validation.instance(bool, intercept=intercept)
    log_prior = priors.chosen(prior, prior_scale)
    if prior == "wide_intercept" and not intercept:
        raise Refused("prior = 'wide_intercept' is for a model with an intercept of its own: give intercept=True")
    if norm_bound is not None:
        norm_bound = validation.positive(norm_bound=norm_bound)
    outputs = family.outputs

    def scores(parameters: Parameters, x: jax.Array) -> jax.Array:
        return _scores(parameters, x, norm_bound)

    def start(key: jax.Array, example: Data) -> Parameters:
        parameters = {"weights": jnp.zeros((dimension, *outputs), jnp.float32)}
        return parameters | ({"intercept": jnp.zeros(outputs, jnp.float32)} if intercept else {})

    settings = {"dimension": dimension, "prior": prior, "prior_scale": prior_scale, "intercept": intercept}
    settings |= family.parameters | ({} if norm_bound is None else {"norm_bound": norm_bound})
    settings |= {} if labels is None else {"classes": list(labels)}
    return Model(
        name=family.name,
        kind=family.kind,
        start=start,
        log_prior=log_prior,
        log_likelihood=lambda p, x, y: family.with_drawn(p).log_likelihood(scores(p, x), y),
        predict=lambda parameters, x: family.predict(scores(parameters, x)),
        simulate=lambda key, p, x: family.with_drawn(p).simulate(key, scores(p, x)),
        labels=labels,
        check=lambda data: _check_shapes(data, dimension),
        admits=lambda data: family.admits(data[1]),
        family=family,
        linear=_close(family, intercept, norm_bound),
        overdispersed_init=priors.prior_draw(prior, prior_scale),
        settings=None if callable(prior) else settings,
    )


def take_noise_as_given(model: Model) -> Model:
    """The model as it is for whatever does not learn a noise scale: with the one that its family names."""
    if not isinstance(model, Model) or model.family is None or not model.family.learns_noise:
        return model
    family = model.family.with_given_noise()
    return replace(model, family=family, settings=model.settings and model.settings | family.parameters)


@cache
def _close(family: Family, intercept: bool, norm_bound: float | None) -> Linear:
    """The closed form. Equal families share one, and so models of such families share compiled programs."""
    return Linear(
        residual=family.residual,
        bounded=family.bounded,
        bounded_loss=family.bounded_loss if family.convex_weights and not family.symmetric_errors else None,
        loss_increment=family.loss_increment,
        log_likelihood=family.log_likelihood,
        outputs=family.outputs,
        intercept=intercept,
        norm_bound=norm_bound,
    )


def _scores(parameters: Parameters, x: jax.Array, norm_bound: float | None) -> jax.Array:
    if norm_bound is not None:
        norms = jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True))
        x = x * jnp.minimum(1.0, norm_bound / jnp.maximum(norms, norm_bound))
    scores = x @ parameters["weights"]
    return scores + parameters["intercept"] if "intercept" in parameters else scores


def _check_shapes(data: Data, dimension: int) -> None:
    if len(data) != 2:
        raise Refused(f"data holds {len(data)} arrays: give (X, y)")
    x, y = data
    if x.ndim != 2:
        raise Refused(f"X has shape {x.shape}: give a matrix with one row per record")
    if x.shape[1] != dimension:
        raise Refused(f"X has {x.shape[1]} columns but the model has dimension = {dimension}: make them equal")
    if y.ndim != 1:
        raise Refused(f"y has shape {y.shape}: give one number per record")


def from_functions(
    *,
    log_prior: LogPrior,
    log_likelihood: Callable[..., jax.Array],
    start: Parameters,
    predict: Callable[[Parameters, jax.Array], jax.Array] | None = None,
    simulate: Callable[[jax.Array, Parameters, jax.Array], jax.Array] | None = None,
    kind: Kind = "other",
    dtypes: Sequence[str] | None = None,
    gradient_bound: float | None = None,
) -> Model:
    """A model from your own functions over any pytree of parameters.

    Args:
        log_prior: parameters -> log density.
        log_likelihood: (parameters, x, y) -> log density of one record; it must not use any other record.
        start: where the chains start; chosen without looking at the data.
        predict: (parameters, X) -> means, or rows of class probabilities where `kind` is "classification".
        simulate: (key, parameters, X) -> outcomes, for posterior predictive intervals.
        dtypes: "float32" or "int32" for each array of the data. Without it all are read as "float32", whatever their
            type: pandas turns whole numbers into floats once one of them is missing, and that record would decide how
            all others are read. Declare "int32" for an index, a label that is looked up, or numbers beyond 2^24, which
            single precision rounds. Arrays of three and more axes that hold integers (images) stay integers.
        gradient_bound: the longest gradient of one record's log likelihood, wherever a chain may come, if you know it
            from the domain of the data. It becomes the clip where none is given, and `Posterior.noise_aware` asks for
            it. Privacy does not rest on it, since longer gradients are cut; intervals do.

    >>> mean = from_functions(
    ...     log_prior=lambda m: -0.5 * m**2,
    ...     log_likelihood=lambda m, x: -0.5 * (x - m) ** 2,
    ...     start=0.0,
    ... )
    >>> float(mean.log_likelihood(1.0, 3.0))
    -2.0
    """
    for name, function in {"log_prior": log_prior, "log_likelihood": log_likelihood}.items():
        if not callable(function):
            raise Refused(f"{name} = {function!r} is not a function: give one of the parameters")
    validation.one_of(("classification", "regression", "other"), kind=kind)
    types, bound = check_dtypes(dtypes), check_bound(gradient_bound)
    try:
        leaves = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(start)]
    except (TypeError, ValueError):
        raise Refused("start is not a pytree of numbers: give the parameters to start from") from None
    if not leaves or not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        raise Refused("start has no parameters, or some that are not finite: give the parameters to start from")

    def fixed(key: jax.Array, example: Data) -> Parameters:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), start)

    return Model(
        name="from_functions",
        kind=kind,
        start=fixed,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        predict=predict,
        simulate=simulate,
        dtypes=types,
        gradient_bound=bound,
    )


def check_bound(gradient_bound: float | None) -> float | None:
    return None if gradient_bound is None else validation.positive(gradient_bound=gradient_bound)


def check_dtypes(dtypes: Sequence[str] | None) -> tuple[str, ...] | None:
    if dtypes is None:
        return None
    if isinstance(dtypes, str):
        raise Refused(f"dtypes = {dtypes!r} is one text: give one for each array, such as ('float32', 'int32')")
    return tuple(validation.one_of(("float32", "int32"), dtypes=each) for each in dtypes)
