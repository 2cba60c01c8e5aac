"""Objective perturbation: a random slope is added to the objective, and its minimum is released.

    theta = argmin sum_i l_i(theta) + (lambda/2) ||theta||^2 + <b, theta>            (sums, never means)

Curvature of the data damps the noise, which output perturbation cannot use: the best baseline for logistic regression.

**Assumptions.** l_i(theta) = f_i(x_i theta) with one score a record, f_i convex with a Lipschitz derivative; for every
record ||grad l_i|| <= L (gradient bound) and second derivatives <= beta (smoothness); lambda > 0. Then b and theta
determine one another, b = -grad F_D(theta) with F_D the objective without slope, and

    density of theta = nu(-grad F_D(theta)) det(hess F_D(theta)),      nu the density of b.

Let D' hold the record l more than D, grad l = c x/||x|| with |c| <= L, hess l = a x x^T with a ||x||^2 <= beta.

*Determinants.* det(H + a x x^T) / det H = 1 + a x^T H^-1 x lies in [1, 1 + beta/lambda]. Replacing a record removes one
such factor and brings in another, so the ratio is at most 1 + beta/lambda for **both** relations. (The literature's
square of it for replace-one is not needed: compare both datasets with the one that lacks the record.) Hence

    kappa = log(1 + beta/lambda)   of epsilon is spent, and the rest buys the noise.

*Slopes.* For the same theta they differ by g = grad l, ||g|| <= Delta = L (add-remove), or by the difference of two
such gradients, ||g|| <= Delta = 2 L (replace-one).

**chaudhuri2011** (Chaudhuri, Monteleoni and Sarwate, Algorithm 2): nu(b) ~ exp(-||b|| / s). By the triangle inequality
the loss is at most Delta/s + kappa, so s = Delta / (epsilon - kappa) is **pure** epsilon-DP. Where epsilon - kappa
would be below epsilon/2 the regularisation is raised until it is not.

**kifer2012** (Kifer, Smith and Thakurta): b ~ N(0, sigma^2 I). The loss is (-2 <b, g> + ||g||^2) / (2 sigma^2) + log of
the determinants. g depends on theta and so on b; this is why <b, g> may not be called Gaussian in general, and why one
score a record is needed: g = c x/||x|| has a fixed direction, and the loss, convex in c, is largest at c = +-L. With
mu = Delta/sigma and z standard normal it is at most mu |z| + mu^2/2 + kappa, so

    delta(epsilon) <= E (1 - e^(epsilon - loss))^+ = 2 delta_mu(epsilon - kappa)   if epsilon - kappa >= mu^2/2,

delta_mu the profile of the Gaussian mechanism (as in Redberg, Koskela and Wang 2023). For replace-one
g = c u - c' u', u and u' of length one, is largest in the corners: +-L (u - u') or +-L (u + u'). These two directions
are *orthogonal*, with squared lengths w and W - w, W = (2 L)^2. The union of both costs 2 f(w) + 2 f(W - w) where f is
delta_mu as a function of mu^2, and f is convex with f(0) = 0 while (epsilon - kappa)^2 >= mu^4/4 + mu^2 (differentiate:
f' = phi(mu/2 - epsilon/mu) / (2 mu)), so the sum is at most 2 f(W): the same formula with Delta = 2 L. The condition is
imposed for both relations. The published constants, sigma^2 = L^2 (8 log(2/delta) + 4 epsilon) / epsilon^2 at
lambda >= 2 beta/epsilon, draw more noise for the same promise for add-remove neighbours; for replace-one they draw
less, which the bound here does not certify.

**iyengar2019** (approximate minima; the default). Both methods above assume the *exact* minimum, which no solver finds.
Here the solver stops with a certified gradient norm of at most gamma, so its point is within gamma/lambda of the
minimum, and a second noise hides the rest: given theta, the solver's error is a function of the records with
sensitivity 2 gamma/lambda, whatever the relation, so what is released is post-processing of an exact objective
perturbation, followed by a Gaussian mechanism (or, at delta = 0, by spherical noise). HIDING of epsilon and of delta
pay for it; gamma is at the level of rounding, so that noise is invisible. The slope that is drawn is rounded to a grid,
its scale over 2^38: the minimum is that of the slope as it was before, but for half a grid step in each coordinate,
which counts as gamma does.

Softmax regression is refused: the Hessian of one record has a higher rank, and its gradient no fixed direction.

**The regularisation**, if not given: shrinking costs at most (lambda/8) ||t||^2 (see `output_perturbation`), and a
slope of variance v a coordinate at most (v/2) sum h_j / (h_j + lambda)^2 <= d v / (8 lambda). With ||t||^2 =
d prior_scale^2 the sum is least near lambda = sqrt(v) / prior_scale; it is found numerically, as v depends on lambda
through kappa.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy import optimize

from confide import validation
from confide.inference.baselines import release
from confide.inference.baselines.minimum import Objective, minimise, tolerance
from confide.inference.baselines.output_perturbation import RELEASED, regularisation_of
from confide.inference.posterior import Posterior
from confide.inference.summaries.releases import ObjectiveSummary
from confide.mechanism import noise as noises
from confide.mechanism.exact_rounding import FINE
from confide.models import convexity
from confide.models.convexity import Shape
from confide.models.model import Model
from confide.privacy.accountants.gdp import delta_of_mu, mu_of_epsilon
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY, Neighbours, Release
from confide.privacy.ledger import Ledger
from confide.privacy.significant_digits import FINE_DIGITS, round_digits
from confide.validation import Refused

Method = Literal["iyengar2019", "kifer2012", "chaudhuri2011"]
METHODS: tuple[Method, ...] = ("iyengar2019", "kifer2012", "chaudhuri2011")
SEARCHED = 4  # digits of a regularisation that is searched for
HIDING = 0.01  # share of epsilon and delta that hides the solver's error
EXACT = (
    "The minimum of the perturbed objective was found exactly: its gradient was certified to be no longer than the "
    "stated tolerance, and no noise hides what is left of it, nor the grid of the random slope.",
)


def determinant_cost(smoothness: float, regularisation: float) -> float:
    """kappa, what the determinants cost: log(1 + smoothness / regularisation)."""
    return math.log1p(smoothness / regularisation)


def least_regularisation(epsilon: float, smoothness: float) -> float:
    """Where the determinants cost half of epsilon."""
    return round_digits(smoothness / math.expm1(min(epsilon, 200.0) / 2), "up")


def spherical_scale(epsilon: float, regularisation: float, shape: Shape, neighbours: Neighbours) -> float:
    """s of the density exp(-||b|| / s) that is pure epsilon-DP (chaudhuri2011)."""
    sensitivity = SENSITIVITY[neighbours] * shape.gradient_bound
    return sensitivity / (epsilon - determinant_cost(shape.smoothness, regularisation))


def gaussian_scale(epsilon: float, delta: float, regularisation: float, shape: Shape, neighbours: Neighbours) -> float:
    """sigma of the slope that is (epsilon, delta)-DP (kifer2012)."""
    rest = epsilon - determinant_cost(shape.smoothness, regularisation)
    largest = math.sqrt(2 * rest**2 / (1 + math.hypot(1.0, rest)))  # mu^4/4 + mu^2 = rest^2
    mu = min(mu_of_epsilon(rest, delta / 2), largest)
    return SENSITIVITY[neighbours] * shape.gradient_bound / mu


def gaussian_delta(epsilon: float, scale: float, regularisation: float, shape: Shape, neighbours: Neighbours) -> float:
    """delta(epsilon) of a Gaussian slope; 1 where the theorem says nothing."""
    rest = epsilon - determinant_cost(shape.smoothness, regularisation)
    mu = SENSITIVITY[neighbours] * shape.gradient_bound / scale
    if rest < math.sqrt(mu**4 / 4 + mu**2):
        return 1.0
    return min(1.0, 2 * delta_of_mu(mu, rest))


def objective_perturbation(
    model: Model,
    data: Any,
    budget: Budget,
    *,
    method: Method = "iyengar2019",
    regularisation: float | None = None,
    clip: float | None = None,
    records: int | None = None,
    key: Any = None,
    secure: bool = False,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    verbose: bool = True,
) -> Posterior:
    """One draw: the minimum of the objective with a random slope. Add-remove and replace-one.

    Args:
        model: logistic regression; linear, Poisson or negative binomial regression with a clip.
        data: (X, y), with X within the model's norm bound or in [-1, 1].
        budget: at delta = 0 only spherical noise will do: "chaudhuri2011", or "iyengar2019", which then uses it.
        method: "iyengar2019" allows for the solver's error; the other two assume that there is none.
        regularisation: lambda, the prior's 1/prior_scale^2 included; chosen from public numbers by default.
        clip: the longest gradient of a record; by default what the model itself cannot exceed.
        records: how many there are, as declared: by default the number of rows. What is planned and shown follows it.
        key: a number that the noise is derived from, with the records and all settings; by default the operating
            system's. One that anyone knows or guesses voids the guarantee.
        secure: the bits of the noise from a key of 256 bits of the operating system's, not of 64; takes no key.
        ledger: charged before the records are used; `dataset` names the entry where the ledger has several.
    """
    validation.one_of(METHODS, method=method)
    clip = None if clip is None else validation.positive(clip=clip)
    request = release.convex(release.check(model, data, budget, key, ledger, dataset, records=records, secure=secure))
    summary = _plan(request, method, regularisation, clip)
    pure = _pure(method, budget)
    whole = 0.0 if pure else (1 - release.SLACK) * budget.delta  # epsilons and deltas of both noises add up
    hiding, size = summary.output_noise_scale, request.size
    paid = release.pay(
        request,
        Release(epsilon=budget.epsilon, delta=whole, neighbours=budget.neighbours),
        summary,
        released=RELEASED,
        assumptions=(*(() if hiding else EXACT), *((release.SPHERICAL,) if pure else ()), release.ONE_RECORD),
        verbose=verbose,
    )
    objective = Objective(
        model=request.model,
        data=request.data,
        present=request.table.present,
        clip=clip,
        regularisation=summary.regularisation,
        tilt=noises.around(np.zeros(size), summary.noise_scale, paid.noise("slope"), spherical=pure, grid=FINE),
    )
    point = minimise(objective, summary.tolerance, size)
    if hiding:
        point = noises.around(point, hiding, paid.noise("output"), spherical=pure)
    arguments = {"method": method, "regularisation": regularisation, "clip": clip, "secure": secure}
    return release.posterior(request, paid, point[None], arguments)


def _pure(method: Method, budget: Budget) -> bool:
    return method == "chaudhuri2011" or budget.delta == 0


def _plan(
    request: release.Request, method: Method, regularisation: float | None, clip: float | None
) -> ObjectiveSummary:
    """The slope, the regularisation and the noise on the minimum that the budget pays for."""
    family = request.model.family
    if family is not None and family.outputs:
        raise Refused(f"{family.word} regression has several scores a record, for which no price is known: use fit")
    shape, budget, size = convexity.shape(request.model, clip), request.budget, request.size
    if method == "kifer2012":
        release.needs_delta(budget, "method='chaudhuri2011'")
    pure = _pure(method, budget)
    share = 1 - HIDING if method == "iyengar2019" else 1.0
    epsilon, delta = share * budget.epsilon, 0.0 if pure else share * (1 - release.SLACK) * budget.delta

    def scaled(strength: float) -> float:
        if pure:
            return spherical_scale(epsilon, strength, shape, budget.neighbours)
        return gaussian_scale(epsilon, delta, strength, shape, budget.neighbours)

    strength = _strength(request, regularisation, epsilon, shape, scaled, size + 1.0 if pure else 1.0)
    scale = round_digits(scaled(strength), "up", FINE_DIGITS)
    spread = scale * math.sqrt(size + 1.0) if pure else scale
    certified = tolerance(request.model, request.places, clip, strength, size, spread)
    hiding = None
    if method == "iyengar2019":
        left = HIDING * budget.epsilon
        rate = left if pure else mu_of_epsilon(left, HIDING * (1 - release.SLACK) * budget.delta)
        moved = 2 * (certified + scale / FINE * math.sqrt(size)) / strength
        hiding = noises.wide(moved / rate, moved, size) or None
    return release.describe(
        ObjectiveSummary,
        request,
        method=method,
        clip=clip,
        gradient_bound=shape.gradient_bound,
        smoothness=shape.smoothness,
        regularisation=strength,
        prior_regularisation=shape.strong_convexity,
        noise_scale=scale,
        output_noise_scale=hiding,
        tolerance=certified,
    )


def _strength(
    request: release.Request,
    given: float | None,
    epsilon: float,
    shape: Shape,
    scaled: Callable[[float], float],
    variance: float,
) -> float:
    """The regularisation: as given, or where shrinking and noise together cost least."""
    least = max(shape.strong_convexity, least_regularisation(epsilon, shape.smoothness))
    if given is not None:
        given = regularisation_of(given, shape.strong_convexity, least)
        if given < least_regularisation(epsilon, shape.smoothness) * (1 - 1e-9):
            raise Refused(
                f"regularisation = {given:g} is too weak for epsilon = {epsilon:g}: leave it out, or give at least "
                f"{least:.6g}"
            )
        return given
    assert request.model.settings is not None
    expected = request.model.settings["prior_scale"] ** 2

    def cost(logarithm: float) -> float:
        strength = math.exp(logarithm)
        return math.log(variance * scaled(strength) ** 2 / strength + strength * expected)

    found = optimize.minimize_scalar(cost, bounds=(math.log(least), math.log(least) + 20.0), method="bounded")
    best = round_digits(math.exp(float(found.x)), digits=SEARCHED)  # the search stops at 1e-5 of the logarithm
    return best if best > least * (1 + 1e-4) else least
