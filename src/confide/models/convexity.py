"""Which models have a convex negative log likelihood, and how steep and how curved it is for one record.

What Langevin's last iterate, a tight posterior sample and the perturbed minimisers are priced by. For rows of norm at
most B (the constant of an intercept counted in) and the gradient of a record cut to `clip`:

| model             | gradient of one record | curvature of one record     |
|-------------------|------------------------|-----------------------------|
| logistic          | B, or clip             | B^2 / 4                     |
| softmax           | sqrt(2) B              | B^2 / 2                     |
| linear            | clip                   | B^2 / noise_scale^2         |
| Poisson           | clip                   | largest_mean B^2            |
| negative binomial | clip                   | B^2 / dispersion + clip B   |

With one score s = x w and a residual r(s) that rises with s, cutting r to +-clip / ||x|| leaves it rising: the clipped
gradient is that of another convex function, no more curved than before. Bounded by weights (`Family.bounded`) the
residual of logistic regression rises too, and bends nothing, but curves by up to B^2 / 2 (`weighted_smoothness`); that
of linear regression is the same as cut. Those of counts need not rise, and are cut by their own length here. With
several scores a cut gradient is no gradient at all, and two points can move apart, so softmax regression takes no clip.
The curvature of a negative binomial grows with the count, but where its gradient is not cut the count is bounded by the
mean (`families.NegativeBinomial`). A Gaussian prior of scale s adds 1 / s^2 of strong convexity; other priors add none
that is known here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from confide import models
from confide.models.inputs import Records, scale_down
from confide.models.model import Model, Weighting
from confide.validation import Refused


class Shape(NamedTuple):
    """Of the negative log likelihood of any one record, and of the prior."""

    gradient_bound: float
    smoothness: float
    strong_convexity: float  # of -log prior


def refusal(model: Model) -> str | None:
    """Why the model does not qualify; None where it does."""
    if model.family is None:
        return (
            f"{model.name} is not known to be convex: use logistic, softmax, linear, Poisson or negative binomial "
            "regression, or sgld()"
        )
    if model.settings is None:
        return "its prior is your own function, whose convexity is not known here: use prior='gaussian'"
    if model.settings["prior"] != "gaussian":
        return f"a {model.settings['prior']} prior is not strongly convex: use prior='gaussian'"
    return model.family.refusal


def check_convex(model: Model) -> Model:
    if reason := refusal(model):
        raise Refused(f"the sampler needs a convex model, and {reason}")
    return model


def prepare_convex(model: Model, records: Records) -> tuple[Model, Records]:
    """A convex model with a norm bound, and the records with every row within it."""
    return prepare_linear(check_convex(model), records)


def prepare_linear(model: Model, records: Records) -> tuple[Model, Records]:
    """A linear model with a norm bound, and the records with every row within it.

    A model without one gets it from the convention that features lie in [-1, 1]: 1 for a classifier, whose labels do
    not change when a row is scaled down, and sqrt(dimension), which holds for every such row, for a regression. A row
    with features beyond it is scaled down as well.
    """
    assert model.linear is not None
    if model.linear.norm_bound is not None:
        return model, records
    if model.settings is None:
        raise Refused("the rows of a model with a prior of your own have no public bound: give it a norm_bound")
    bound = 1.0 if model.kind == "classification" else math.sqrt(model.settings["dimension"])
    bounded = models.rebuilt(model.name, model.settings | {"norm_bound": bound})
    assert bounded is not None
    x, *others = records.arrays
    return bounded, records._replace(arrays=(scale_down(bound, x), *others))


def weigh(model: Model, clipping: str | None) -> Model:
    """The model with bounded scores by weights, where they keep it convex and nobody asked for others."""
    if clipping == "plain" or model.linear is None or model.family is None or not model.family.convex_weights:
        if clipping == "weighted":
            raise Refused(
                f"clipping = 'weighted' is not known to keep {model.name} convex: leave it out, or use sgld()"
            )
        return model
    return replace(model, linear=replace(model.linear, weighting=Weighting()))


def longest(model: Model) -> float:
    """The most that the norm of a row can be, with the constant of the intercept."""
    assert model.linear is not None
    assert model.linear.norm_bound is not None
    return math.hypot(model.linear.norm_bound, 1.0) if model.linear.intercept else model.linear.norm_bound


def shape(model: Model, clip: float | None = None) -> Shape:
    """How steep and how curved a bounded model is; refused where that is not known."""
    family, settings = check_convex(model).family, model.settings
    assert family is not None
    assert settings is not None
    bound, precision = longest(model), 1 / (settings["prior_scale"] * settings["prior_scale"])
    steepest = family.residual_bound * bound
    if clip is None and math.isinf(steepest):
        raise Refused(f"the gradients of {model.name} are unbounded: give a clip")
    if family.outputs and clip is not None and clip < steepest:
        raise Refused(
            f"clipping the gradients of {family.word} regression breaks its convexity: leave clip out, and bound the "
            "rows by norm_bound"
        )
    assert model.linear is not None
    cut = clip is not None and clip < steepest
    steepest = steepest if clip is None else min(steepest, clip)
    smooth = family.weighted_smoothness if cut and model.linear.weighting is not None else family.smoothness
    return Shape(steepest, smooth(bound, steepest), precision)
