"""A run whose scores are bounded by weights: what is known of its records' scale before it is paid for, and after.

Scores are weighted for every generalised linear model, unless `clipping="plain"` is asked for: `Family.bounded` keeps
them within the clip and bends nothing. What is not given is planned in units of the records (`plans.sizes`), and these
are bought (`mechanism.scale`): noise multipliers, steps and batches are fixed before, and so is the price; clip, step
sizes and the noise itself follow the scale.

| given | clip | rows count less from | bought |
|-------|------|----------------------|--------|
| nothing | planned, times the scale | 1.25 usual norms, or the declared bound | the scale |
| clip | as given; steps are no longer than is stable | the same | the scale |
| step_size | the longest that is paid for | where the step would not be stable, or the declared bound | nothing |

Nothing is bought either where another account than "dp" is kept, which does not see it, or after the first draw of a
hybrid. A clip that is not given is then planned from the declared bound, or as for any other model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.options import Options
from confide.inference.plans.run_setup import RunSetup
from confide.inference.plans.sizes import Sizes, plan_sizes
from confide.mechanism import query_grid
from confide.mechanism.kernel import MechanismParameters
from confide.mechanism.scale import REACH, Scale, ScaleRelease, typical_information
from confide.models import convexity
from confide.models.family import Family
from confide.models.model import Linear, Model, Weighting
from confide.privacy import events, pricing
from confide.privacy.budget import Budget
from confide.privacy.events.individual import CHANGE
from confide.privacy.significant_digits import round_digits
from confide.samplers import Sampler
from confide.validation import Refused

SHARE, LARGEST_SHARE = 0.01, 0.05  # of the square of mu that buys the scale
CURVATURE_DIGITS = 4
SEEN = 10.0  # standard deviations of its noise that a tenth of the records are to have


class Weights(NamedTuple):
    """How the scores of a run are bounded."""

    family: Family
    sizes: Sizes
    release: ScaleRelease | None  # what is bought
    row_bound: float | None  # where it is known before
    typical: float = 1.0  # the same


def is_weighted(model: Model, options: Options) -> bool:
    """Whether scores are bounded by weights; refused where they cannot be."""
    if options.clipping not in (None, "weighted", "plain"):
        raise Refused(f"clipping = {options.clipping!r} is unknown: choose 'weighted' or 'plain', or leave it out")
    if options.clipping == "plain":
        return model.linear is not None and model.linear.weighting is not None
    if options.clipping == "weighted" and model.family is None:
        raise Refused(f"clipping = 'weighted' is for generalised linear models, and this is {model.name}: leave it out")
    return model.family is not None


def plan_weights(
    model: Model, budget: Budget, sampler: Sampler, options: Options, n: int, dimension: int, buys: bool
) -> Weights:
    """From public numbers alone."""
    family, linear = model.family, model.linear
    assert family is not None
    assert linear is not None
    whole = pricing.gdp_mu(budget.epsilon, budget.delta)
    mu = whole / events.SENSITIVITY[budget.neighbours]
    sizes = plan_sizes(family, sampler, n, dimension, mu, options)
    bound = linear.norm_bound
    if bound is not None and linear.intercept:
        bound = math.hypot(bound, 1.0)
    if linear.weighting is not None:
        known = min(linear.weighting.row_bound, math.inf if bound is None else bound)
        return Weights(family, sizes, None, known, linear.weighting.typical)
    if not buys or sampler.step_size is not None:
        return Weights(family, sizes, None, bound)
    return Weights(family, sizes, scale_release(family, linear, n, whole, budget.neighbours), None)


def scale_release(
    family: Family, linear: Linear, n: int, mu: float, neighbours: events.Neighbours, finer: bool = False
) -> ScaleRelease:
    """What is bought of the scale with a budget of mu."""
    counts, bound = family.unknown_information, linear.norm_bound
    if bound is not None and linear.intercept:
        bound = math.hypot(bound, 1.0)
    least = SEEN * 10 / n / (mu / events.SENSITIVITY[neighbours])
    share = min(LARGEST_SHARE, max(SHARE, least * least)) / (1 + counts + finer)
    return ScaleRelease(
        noise=float(query_grid.round_up(CHANGE[neighbours] / mu / math.sqrt(share))),
        intercept=linear.intercept,
        counts=counts,
        norm_bound=bound,
        finer=finer,
    )


def bound_curvature(setup: RunSetup, found: Weights | None, given: bool) -> tuple[MechanismParameters, float]:
    """With a bound of the curvature where the rows have one, and the curvature of the prior."""
    model, parameters = setup.model, setup.parameters
    if found is None and (model.family is None or model.linear is None or model.linear.norm_bound is None):
        return parameters, 0.0
    prior = prior_curvature(parameters, setup.initial_positions[0])
    if found is not None:
        unit = (model.settings or {}).get("prior_scale", 1.0)
        return bound_weighted(replace(parameters, weighted=True, unit=unit), found, prior, given), prior
    assert model.family is not None
    smooth = model.family.smoothness(convexity.longest(model), parameters.clip)
    if math.isinf(smooth):
        return parameters, prior
    return replace(parameters, curvature=smooth + prior / parameters.n), prior


def bound_weighted(parameters: MechanismParameters, found: Weights, prior: float, given: bool) -> MechanismParameters:
    """Where rows, or rows and clip in units of their own, have a bound. The prior has no such units."""
    bought = found.release is not None
    bound = REACH if bought else found.row_bound
    if bound is None or math.isinf(bound) or (bought and given):
        return parameters
    steepest = found.family.weighted_smoothness(bound, parameters.clip, found.typical)
    return replace(parameters, curvature=steepest if bought else steepest + prior / parameters.n)


def weigh(model: Model, row_bound: float, typical: float = 1.0) -> Model:
    """The model with its scores bounded so."""
    assert model.linear is not None
    return replace(model, linear=replace(model.linear, weighting=Weighting(row_bound, typical)))


def usual_score(family: Family, scale: Scale) -> float:
    """The length of a usual score over the one that sizes were planned for."""
    if not family.unknown_information:
        return scale.norm
    return scale.norm * math.sqrt(typical_information(family, scale))


def scaled(
    weights: Weights,
    sampler: Sampler,
    parameters: MechanismParameters,
    step_sizes: np.ndarray,
    scale: Scale,
    prior_curvature: float,
    given: bool,
) -> tuple[MechanismParameters, np.ndarray, Weighting]:
    """The run at a scale, with the noise multipliers that were planned, or more noise: its parameters, its step sizes,
    and how records are weighted. `given` is whether the clip is; then it stays."""
    family, typical = weights.family, typical_information(weights.family, scale)
    bound = REACH * scale.norm
    if weights.release is not None and weights.release.norm_bound is not None:
        bound = min(bound, weights.release.norm_bound)

    def at(clip: float) -> tuple[MechanismParameters, np.ndarray]:
        curvature = family.weighted_smoothness(bound, clip, typical) + prior_curvature / parameters.n
        here = replace(parameters, clip=clip, curvature=curvature)
        return here, sampler.rescale(here, step_sizes, parameters.clip / clip)

    def excess(clip: float) -> float:
        here, sizes = at(clip)
        return float(np.max(sizes)) / sampler.longest(here)

    clip = parameters.clip if given else parameters.clip * usual_score(family, scale)
    if not given and not sampler.optimises and excess(clip) > 1:
        clip = _root(lambda longer: excess(longer) <= 1, clip)
    here, sizes = at(clip)
    return here, sizes / max(1.0, excess(clip)), Weighting(bound, typical)


def useful_clip(
    found: Weights, sampler: Sampler, parameters: MechanismParameters, step: float, prior: float, longest: float
) -> float:
    """A clip for a given step: no longer than the longest gradient, nor than where the step is stable, if it is."""
    bound = found.row_bound
    if bound is None or math.isinf(bound):
        return longest
    longest = min(longest, found.family.residual_bound * bound)

    def stable(clip: float) -> bool:
        here = bound_weighted(replace(parameters, clip=clip), found, prior, given=False)
        return here.curvature is None or step <= sampler.longest(here)

    if stable(longest):
        return longest
    least = _root(lambda inverse: stable(1 / inverse), 1 / longest)
    return 1 / least if stable(1 / least) else longest


def stable_row_bound(
    family: Family, sampler: Sampler, parameters: MechanismParameters, step: float, prior_curvature: float
) -> float:
    """The norm from which on rows must count less, so that a step of this size is stable; infinite where none is."""
    if math.isinf(sampler.stability):
        return math.inf
    room = min(1 / sampler.pace, sampler.stability / 2)
    if sampler.optimises:
        room = sampler.stability / 2
    left = room / step - prior_curvature / parameters.n
    if left <= 0:
        raise Refused(
            f"{sampler.rate} = {step:.4g} is too long for the prior, whose curvature over the number of records is "
            f"{prior_curvature / parameters.n:.3g}: give at most {room * parameters.n / prior_curvature:.4g}"
        )
    least = _root(lambda inverse: family.weighted_smoothness(1 / inverse, parameters.clip) <= left, 1e-12)
    return round_digits(1 / least, "down")


def _root(enough: Callable[[float], bool], least: float) -> float:
    """The least number from `least` on that is enough, to a relative 1e-9."""
    if enough(least):
        return least
    low, high = least, 2 * least
    while not enough(high) and high < 1e30:
        low, high = high, high * 4
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def prior_curvature(parameters: MechanismParameters, start: np.ndarray) -> float:
    """The most that -log prior curves where a chain starts, by a few products with its second derivative.

    Rounded to `CURVATURE_DIGITS`, since the prior is computed in single precision.
    """
    with jax.enable_x64(True):
        here, direction = jnp.asarray(start), jnp.ones(start.size) / math.sqrt(start.size)
        length = 0.0
        for _ in range(8):
            direction = jax.jvp(parameters.prior, (here,), (direction,))[1]
            length = float(jnp.linalg.norm(direction))
            if not math.isfinite(length) or length == 0:
                return 0.0
            direction = direction / length
        return round_digits(length, digits=CURVATURE_DIGITS)
