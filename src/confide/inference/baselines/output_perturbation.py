"""Output perturbation: the minimiser itself, with noise as large as one record can move it.

    theta* = argmin sum_i l_i(theta) + (lambda/2) ||theta||^2,      released: theta* + noise

**Sensitivity.** Let l be convex with ||grad l|| <= L. Adding the record l to the sum leaves a gradient of norm at most
L at the old minimum, and lambda-strong convexity puts the new one within L / lambda of it. Replacing a record leaves
two gradients: 2 L / lambda. A solver that stops at a gradient norm of gamma is within gamma / lambda of its minimum,
on either side, so the point that is released moves by at most

    Delta = (L + 2 gamma) / lambda   (add-remove),     twice that bounds replace-one.

No smoothness is assumed, so any convex model will do, softmax regression included.

**Noise.** "gaussian": standard deviation Delta / mu in every coordinate, exactly mu-Gaussian-DP. "laplace": density
proportional to exp(-||b|| / s), s = Delta / epsilon: by the triangle inequality pure epsilon-DP (Chaudhuri, Monteleoni
and Sarwate 2011, Algorithm 1). Its length is Gamma(d) times s, about sqrt(d) times that of the Gaussian.

**The regularisation** of a prior is mostly too weak: noise falls with 1/lambda. Near the minimum, with curvatures h_j
and true coefficients t_j, shrinking costs (1/2) sum h_j lambda^2 t_j^2 / (h_j + lambda)^2 <= (lambda/8) ||t||^2, and
noise of variance v / lambda^2 a coordinate costs (v / (2 lambda^2)) sum h_j <= n beta v / (2 lambda^2), with beta the
curvature of a record. With ||t||^2 = d prior_scale^2, as the prior expects, the sum is least at

    lambda = (8 n beta v / (d prior_scale^2))^(1/3),      never below that of the prior.

Everything in it is public. Use it as a yardstick, or where the loss is not smooth; objective perturbation has far less
noise for the same promise.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from confide import validation
from confide.inference.baselines import release
from confide.inference.baselines.minimum import Objective, minimise, tolerance
from confide.inference.posterior import Posterior
from confide.inference.summaries.releases import OutputSummary
from confide.mechanism import noise as noises
from confide.models import convexity
from confide.models.model import Model
from confide.privacy.accountants.gdp import mu_of_epsilon
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY, Event, GaussianRelease, Release
from confide.privacy.ledger import Ledger
from confide.privacy.significant_digits import round_digits
from confide.validation import Refused

Distribution = Literal["gaussian", "laplace"]
RELEASED = "the perturbed minimum, and anything computed from it"


def output_perturbation(
    model: Model,
    data: Any,
    budget: Budget,
    *,
    noise: Distribution = "gaussian",
    regularisation: float | None = None,
    clip: float | None = None,
    records: int | None = None,
    key: Any = None,
    secure: bool = False,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    verbose: bool = True,
) -> Posterior:
    """One draw: the regularised minimum plus noise. Add-remove and replace-one; the records' number is public.

    Args:
        model: logistic or softmax regression; linear or Poisson regression with a clip.
        data: (X, y), with X within the model's norm bound or in [-1, 1].
        budget: delta above 0 for Gaussian noise; "laplace" noise is pure and takes delta = 0 too.
        noise: "gaussian" or "laplace", the spherical kind.
        regularisation: lambda, the prior's 1/prior_scale^2 included; chosen from public numbers by default.
        clip: the longest gradient of a record; by default what the model itself cannot exceed.
        records: how many there are, as declared: by default the number of rows. What is planned and shown follows it.
        key: a number that the noise is derived from, with the records and all settings; by default the operating
            system's. One that anyone knows or guesses voids the guarantee.
        secure: the bits of the noise from a key of 256 bits of the operating system's, not of 64; takes no key.
        ledger: charged before the records are used; `dataset` names the entry where the ledger has several.
    """
    validation.one_of(("gaussian", "laplace"), noise=noise)
    clip = None if clip is None else validation.positive(clip=clip)
    request = release.convex(release.check(model, data, budget, key, ledger, dataset, records=records, secure=secure))
    event, summary = _plan(request, noise, regularisation, clip)
    spherical = noise == "laplace"
    paid = release.pay(
        request,
        event,
        summary,
        released=RELEASED,
        assumptions=(*((release.SPHERICAL,) if spherical else ()), release.ONE_RECORD),
        verbose=verbose,
    )
    objective = Objective(
        model=request.model,
        data=request.data,
        present=request.table.present,
        clip=clip,
        regularisation=summary.regularisation,
    )
    point = minimise(objective, summary.tolerance, request.size)
    draw = noises.around(point, summary.noise_scale, paid.noise("output"), spherical=spherical)
    arguments = {"noise": noise, "regularisation": regularisation, "clip": clip, "secure": secure}
    return release.posterior(request, paid, draw[None], arguments)


def _plan(
    request: release.Request, noise: Distribution, regularisation: float | None, clip: float | None
) -> tuple[Event, OutputSummary]:
    """What is released, and the noise and the regularisation that the budget pays for."""
    shape, budget = convexity.shape(request.model, clip), request.budget
    factor = SENSITIVITY[budget.neighbours]
    if noise == "gaussian":
        delta = release.needs_delta(budget, "noise='laplace'")
        rate = mu_of_epsilon(budget.epsilon, delta) / factor * (1 - 1e-9)
        variance = 1.0
    else:
        rate, variance = budget.epsilon / factor, request.size + 1.0
    strength = regularisation_of(
        regularisation,
        shape.strong_convexity,
        public_strength(request, shape.smoothness, variance * (shape.gradient_bound / rate) ** 2),
    )
    certified = tolerance(request.model, request.places, clip, strength, request.size)
    moved = (shape.gradient_bound + 2 * certified) / strength
    summary = release.describe(
        OutputSummary,
        request,
        method=noise,
        clip=clip,
        gradient_bound=shape.gradient_bound,
        regularisation=strength,
        prior_regularisation=shape.strong_convexity,
        noise_scale=noises.wide(moved / rate, moved, request.size),
        tolerance=certified,
    )
    return GaussianRelease(mu=rate) if noise == "gaussian" else Release(epsilon=rate), summary


def public_strength(request: release.Request, smoothness: float, variance: float) -> float:
    """Where shrinking and noise cost the same: see above."""
    assert request.model.settings is not None
    expected = request.size * request.model.settings["prior_scale"] ** 2
    return round_digits((8 * request.records * smoothness * variance / expected) ** (1 / 3))


def regularisation_of(given: float | None, prior: float, default: float) -> float:
    """The regularisation that was given, or the default; never below that of the prior."""
    if given is None:
        return max(default, prior)
    given = validation.positive(regularisation=given)
    if given < prior * (1 - 1e-9):
        raise Refused(
            f"regularisation = {given:g} is below the {prior:g} of the prior: give more, or a larger prior_scale"
        )
    return given
