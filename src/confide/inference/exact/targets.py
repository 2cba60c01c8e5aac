r"""Densities that one posterior sample is drawn from, as functions of flat parameters and arrays; in double precision.

Every number that depends on the budget or on a record is among the arrays, so that a compiled program holds neither.

- `convex`: power sum_i log p~(d_i | theta) - precision ||theta||^2 / 2, where p~ has its gradient cut to the clip.
  With one score s a record, residual r(s) and reach c = clip / ||x||, the clipped negative log likelihood is the
  integral of r cut to [-c, c] over the scores from 0 to s. It is added up from the parts of that interval where the
  residual is cut below, not cut, and cut above. A difference of the values at s and at 0 would not do: with an outcome
  of 1e18 both are so large that rounding moves their difference in jumps of many c, and a bound on the gradient is what
  the price rests on. Where scores are bounded by weights it is the integral of the bounded score
  (`Family.bounded_loss`), which for linear regression is the cut residual as well.
- `bounded_target`: power (sum_i log p(d_i | theta) cut to [-B, B] + log prior), and nothing outside of the ball. A
  ball is seen through the coordinates of `confide.inference.exact.balls`, in which there is no wall.

`frame` gives a Gaussian like the target (its mode, and the inverse of its curvature there): coordinates in which the
chains move well. It depends on the records, and never leaves the computation; any frame gives the same distribution.
Several scores of a record have none: directions that all of them share are as wide as the prior, which no frame of
single outputs knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.exact import balls
from confide.models import convexity, programs
from confide.models.inputs import Records, as_records
from confide.models.model import Linear, Model
from confide.privacy.significant_digits import FINE_DIGITS, round_digits
from confide.validation import Refused

NEWTON = 25  # steps towards the mode
NEAR = 1e-2  # of log density: near enough to the mode
WALL = 10  # steps towards the precision that a ball amounts to
FURTHEST_REACH = 1e100  # of a residual; the square of an infinite one would be none in a derivative
LARGEST = 2**24  # numbers in the factors of a frame


class Target(NamedTuple):
    log_density: Callable[[jax.Array, Any], jax.Array]  # (coordinates, arrays)
    arrays: Callable[[Records | tuple[Any, ...]], dict[str, Any]]
    ridge: float | None  # precision of the prior, for the frame; None: the model has no frame
    parameters: Callable[[jax.Array, Any], jax.Array] = lambda flat, arrays: flat  # (coordinates, arrays) -> flat


class Frame(NamedTuple):
    """Coordinates = centre + factor z, for each output of the model on its own."""

    centre: Any  # (features, outputs)
    factor: Any  # (outputs, features, features)


def convex(model: Model, power: float, clip: float | None) -> Target:
    """The target of the tight bound: a model and data that `convexity.prepare_convex` made."""
    linear, family, shape = _linear(model), model.family, convexity.shape(model, clip)
    assert family is not None
    cut = clip is not None and clip < family.residual_bound * convexity.longest(model)

    def arrays(data: Records | tuple[Any, ...]) -> dict[str, Any]:
        inputs: dict[str, Any] = _inputs(linear, as_records(data))
        named = inputs | {"power": power, "precision": shape.strong_convexity}
        if cut:
            norms = np.sqrt(np.einsum("ij,ij->j", inputs["inputs"], inputs["inputs"]))
            with np.errstate(divide="ignore"):  # a row of zeros has no gradient, however far its residual reaches
                reach = np.minimum(shape.gradient_bound / norms, FURTHEST_REACH)
            named["reach"] = reach = np.where(inputs["present"], reach, 1.0)
            if linear.weighting is None or linear.bounded_loss is None:
                named["above"] = family.upper_residual(inputs["y"], reach)
                with np.errstate(divide="ignore", invalid="ignore"):
                    named["low"], named["high"] = family.uncut_scores(inputs["y"], reach)
        return named

    def log_density(flat: jax.Array, given: Any) -> jax.Array:
        whole = _log_likelihood(linear, _scores(linear, flat, given["inputs"]), given)
        return given["power"] * whole - given["precision"] / 2 * jnp.sum(jnp.square(flat))

    return Target(log_density, arrays, None if linear.outputs else shape.strong_convexity)


def bounded_target(
    model: Model,
    unravel: Any,
    size: int,
    power: float,
    bound: float,
    radius: float | None,
    cut: bool = False,
    lengths: frozenset[int] = frozenset(),
) -> Target:
    """The target of the published bound; without a radius the parameters are free, and only the cut bounds.

    `cut` says that log likelihoods can be beyond the bound: then there is no frame. Arrays of the model with an axis of
    one of the `lengths` are taken for the table.
    """
    linear = model.linear
    likelihood = programs.checked_value(model.log_likelihood, "log_likelihood", lengths)
    prior = programs.checked_value(lambda flat: model.log_prior(unravel(flat)), "log_prior", lengths)

    def arrays(data: Records | tuple[Any, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {"power": power, "bound": bound}
        records = as_records(data)
        if radius is not None:
            found["ball"] = balls.ball(radius, np.zeros(size))
        if linear is not None:
            return found | _inputs(linear, records)
        double = [np.asarray(a, np.float64 if a.dtype.kind == "f" else a.dtype) for a in records.arrays]
        return found | {"data": tuple(double), "present": records.present}

    def log_density(flat: jax.Array, given: Any) -> jax.Array:
        if linear is not None:
            each = jax.vmap(linear.log_likelihood)(_scores(linear, flat, given["inputs"]), given["y"])
        else:
            rows = given["data"]
            each = jax.vmap(likelihood, (None, *[0] * len(rows)))(unravel(flat), *rows)
        limit = given["bound"]
        each = jnp.clip(jnp.where(jnp.isnan(each), -limit, each), -limit, limit)
        whole = jnp.sum(jnp.where(given["present"], each, 0.0))
        return given["power"] * (whole + prior(flat))

    alone = linear is not None and not linear.outputs
    settings, ridge = model.settings or {}, 0.0 if radius is not None and alone else None
    if alone and settings.get("prior") == "gaussian":
        ridge = power / settings["prior_scale"] ** 2
    if cut:  # the mode of a likelihood that is not cut may lie wherever one record says: chains begin at the prior
        ridge = None
    if radius is None:
        return Target(log_density, arrays, ridge)

    def parameters(coordinates: jax.Array, given: Any) -> jax.Array:
        return _turn(given, balls.inside(coordinates, given["ball"]))

    def seen(coordinates: jax.Array, given: Any) -> jax.Array:
        return log_density(parameters(coordinates, given), given) + balls.log_volume(coordinates, given["ball"])

    return Target(seen, arrays, ridge, parameters)


def trace(model: Model, target: Target, given: dict[str, Any]) -> tuple[Target, str]:
    """The target whose density and gradient are the programs that are traced now, and the digest of both.

    `given` are arrays like those of the run. Whatever becomes of the model's functions, these programs run.
    """
    example = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in given.get("data", ()))
    start = model.start(jax.random.key(0), example)
    flat = jnp.zeros(sum(leaf.size for leaf in jax.tree.leaves(start)), jnp.float64)
    value = programs.trace(target.log_density, flat, given)
    both = programs.trace(jax.value_and_grad(target.log_density), flat, given)

    @jax.custom_vjp
    def log_density(flat: jax.Array, given: Any) -> jax.Array:
        return value(flat, given)

    def forward(flat: jax.Array, given: Any) -> tuple[jax.Array, Any]:
        density, gradient = both(flat, given)
        return density, (gradient, given)

    def backward(kept: Any, cotangent: jax.Array) -> tuple[jax.Array, Any]:
        gradient, given = kept
        return cotangent * gradient, programs.no_cotangents(given)

    log_density.defvjp(forward, backward)
    return target._replace(log_density=log_density), programs.digest(value, both)


def _turn(given: Any, point: jax.Array) -> jax.Array:
    """From the directions that the frame has chosen, one set for each output, to the parameters' own."""
    if "directions" not in given:
        return point
    outputs, features, _ = given["directions"].shape
    return jnp.einsum("kij,jk->ik", given["directions"], point.reshape(features, outputs)).ravel()


def enforce_bound(model: Model, radius: float) -> float:
    """The largest |log likelihood| of a record within the norm bound, for parameters within the radius, rounded up."""
    assert model.family is not None
    largest = model.family.log_likelihood_bound(convexity.longest(model) * radius)
    if math.isfinite(largest):
        return round_digits(largest, "up", FINE_DIGITS)
    raise Refused(
        f"the log likelihood of {model.name} is unbounded, since its outcomes are: give a log_likelihood_bound, and "
        "that of every record is cut to it"
    )


def fits(model: Model, size: int) -> bool:
    """Whether a linear model of so many parameters is small enough for a frame."""
    return size**2 // math.prod(_linear(model).outputs) <= LARGEST


def frame(model: Model, target: Target, given: dict[str, Any]) -> tuple[dict[str, Any], Frame | None]:
    """The arrays, with the directions of a ball where there is one, and the frame, by Newton's method.

    There is none where the model is not linear, or too large.
    """
    linear = model.linear
    if target.ridge is None or linear is None:
        return given, None
    features, outputs = len(given["inputs"]), math.prod(linear.outputs)
    if not fits(model, outputs * features):
        return given, None
    hill, centre = _Hill(linear, given), np.zeros((features, outputs))
    if "ball" in given:
        return _in_ball(hill, target.ridge, given, centre)
    centre, matrices = hill.mode(target.ridge, centre)
    roots = [np.linalg.inv(np.linalg.cholesky(matrix)).T for matrix in matrices]
    return given, Frame(centre, np.stack(roots))


def _in_ball(hill: _Hill, ridge: float, given: dict[str, Any], centre: np.ndarray) -> tuple[dict[str, Any], Frame]:
    """A ball is like a normal prior of the precision that gives E ||theta||^2 what it is in the ball.

    Directions in which the log likelihood curves by more than that keep their own coordinates; in those of the others
    that prior is standard normal, so its scale is their stretch.
    """
    radius, size = given["ball"].radius, centre.size
    precision, room = (size + 2) / radius**2, radius**2 * size / (size + 2)
    for _ in range(WALL):
        centre, matrices = hill.mode(ridge + precision, centre)
        square = float(np.sum(centre**2)) + sum(float(np.trace(np.linalg.inv(matrix))) for matrix in matrices)
        if square > room:
            wanted = precision * square / room
        else:
            wanted = balls.stretch(math.sqrt(square), radius, size) ** -2.0
        if abs(wanted / precision - 1) < 0.01:
            break
        precision = wanted
    centre, matrices = hill.mode(ridge + precision, centre)
    curvature, directions = np.linalg.eigh(matrices)  # (outputs, features), (outputs, features, features)
    curvature, stretch = curvature.T, precision**-0.5
    own = (curvature > 2 * precision).astype(np.float64)
    seen = np.einsum("kij,ik->jk", directions, centre)
    length = float(np.linalg.norm(seen * own))
    if length > 0.9 * radius:
        seen = np.where(own > 0, seen * 0.9 * radius / length, seen)
    scale = np.where(own > 0, 1.0, stretch)
    factor = np.stack([np.diag(column) for column in (1 / np.sqrt(curvature) / scale).T])
    return given | {"ball": balls.ball(radius, own.ravel()), "directions": directions}, Frame(seen / scale, factor)


class _Hill(NamedTuple):
    """The log likelihood of a linear model with a normal prior."""

    linear: Linear
    given: dict[str, Any]

    def mode(self, ridge: float, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where it is highest, from `centre` on, and how it curves there in the parameters of every output."""
        linear, inputs, power = self.linear, self.given["inputs"], self.given["power"]
        features, outputs = centre.shape
        known = {
            name: self.given[name] for name in ("y", "present", "low", "high", "above", "reach") if name in self.given
        }
        height = jax.jit(lambda scores, known: _log_likelihood(linear, scores, known))
        curves = jax.jit(lambda scores, known: _curves(linear, scores, known))

        def value(centre: np.ndarray) -> float:
            found = height(_score(linear, centre, inputs), known)
            return power * float(found) - ridge / 2 * float(np.sum(centre**2))

        def curvature(centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = curves(_score(linear, centre, inputs), known)
            residual, weights = (np.asarray(array).reshape(-1, outputs) for array in found)
            eye = ridge * np.eye(features)
            matrices = [power * (inputs * column) @ inputs.T + eye for column in weights.T]
            return -power * (inputs @ residual) - ridge * centre, np.stack(matrices)

        best = value(centre)
        for _ in range(NEWTON):
            gradient, matrices = curvature(centre)
            step = np.stack([np.linalg.solve(m, g) for m, g in zip(matrices, gradient.T, strict=True)], axis=1)
            size, found = 1.0, value(centre + step)
            while not found >= best and size > 1e-3:
                size /= 2
                found = value(centre + size * step)
            if not found > best:
                break
            gain, centre, best = found - best, centre + size * step, found
            if gain < NEAR:
                break
        return centre, curvature(centre)[1]


def place(frame: Frame | None, z: jax.Array) -> jax.Array:
    """From the coordinates of the frame to the target's."""
    if frame is None:
        return z
    moved = jnp.einsum("kij,jk->ik", frame.factor, z.reshape(frame.centre.shape))
    return (frame.centre + moved).ravel()


def _log_likelihood(linear: Linear, scores: jax.Array, given: Any) -> jax.Array:
    """Of all records; with the gradient cut where the arrays say between which scores it is not."""
    y = given["y"]
    if "low" in given:
        losses = _cut_loss(linear, scores, given)
    elif "reach" in given and linear.bounded_loss is not None:
        losses = linear.bounded_loss(scores, y, given["reach"]) - linear.bounded_loss(0 * scores, y, given["reach"])
    else:
        losses = -jax.vmap(linear.log_likelihood)(scores, y)
    return -jnp.sum(jnp.where(given["present"], losses, 0.0))


def _cut_loss(linear: Linear, scores: jax.Array, given: Any) -> jax.Array:
    """The integral of the cut residual over the scores from 0 to that of each record.

    `below` and `above` are the signed lengths of the parts of that interval where the residual is cut.
    """
    low, high, zero = given["low"], given["high"], jnp.zeros_like(scores)
    below = jnp.where(low > 0, jnp.minimum(scores, low), jnp.minimum(scores - low, 0.0))
    above = jnp.where(high < 0, jnp.maximum(scores, high), jnp.maximum(scores - high, 0.0))
    between = linear.loss_increment(jnp.clip(zero, low, high), jnp.clip(scores, low, high), given["y"])
    return between - given["reach"] * below + given["above"] * above


def _curves(linear: Linear, scores: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
    """Residuals, and the derivative of each by its score; the latter is zero where the gradient is cut."""
    y = given["y"]
    uncut = jnp.clip(scores, given["low"], given["high"]) if "low" in given else scores
    outputs = scores.reshape(len(y), -1).shape[1]

    def residuals(scores: jax.Array) -> jax.Array:
        if "low" not in given and "reach" in given:
            return linear.bounded(scores, y, given["reach"], 1.0)
        return linear.residual(scores, y)

    def diagonal(k: jax.Array) -> jax.Array:
        tangent = (jnp.arange(outputs) == k).astype(scores.dtype) * jnp.ones((len(y), 1), scores.dtype)
        moved = jax.jvp(residuals, (uncut,), (tangent.reshape(uncut.shape),))[1]
        return moved.reshape(len(y), outputs)[:, k]

    weights = jax.vmap(diagonal, out_axes=1)(jnp.arange(outputs)).reshape(uncut.shape)
    present = given["present"].reshape(-1, *[1] * (uncut.ndim - 1))
    slopes = residuals(uncut)
    if "low" in given:
        slopes = jnp.clip(slopes, -given["reach"], given["reach"])
        slopes = jnp.where(scores < uncut, -given["reach"], jnp.where(scores > uncut, given["above"], slopes))
    return jnp.where(present, slopes, 0.0), jnp.where(present & (uncut == scores), weights, 0.0)


def _linear(model: Model) -> Linear:
    assert model.linear is not None
    return model.linear


def _inputs(linear: Linear, records: Records) -> dict[str, Any]:
    """Features by records, the order in which the scores of several chains are one fast product."""
    x = records.arrays[0].T.astype(np.float64)
    if linear.intercept:  # first in the flat parameters: "intercept" sorts before "weights"
        x = np.concatenate([np.ones((1, x.shape[1])), x])
    y = records.arrays[1].astype(np.float64)
    return {"inputs": np.ascontiguousarray(x), "y": y, "present": records.present}


def _scores(linear: Linear, flat: jax.Array, inputs: jax.Array) -> jax.Array:
    weights = flat.reshape(len(inputs), *linear.outputs)
    return jnp.tensordot(weights, inputs, (0, 0)) if not linear.outputs else jnp.tensordot(inputs, weights, (0, 0))


def _score(linear: Linear, centre: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    scores = inputs.T @ centre
    return scores if linear.outputs else scores[:, 0]
