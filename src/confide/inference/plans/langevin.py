r"""Full-batch Langevin runs whose last iterates are released: temperature, clip, steps and price.

**Temperature.** With mu the budget in Gaussian differential privacy, G the gradient bound and s the prior's scale, an
exact draw costs s G / T for a likelihood to the power 1 / T, so T = s G / mu spends the budget: with s = 1, strong
convexity and temperature are both G / mu. A run of finite length costs less (`confide.privacy.last_iterate`), so the
temperature is the lowest that the budget pays for at its length, and never below 1: that is the posterior itself.

**Length.** A direction about which the records say nothing settles at rate T / s^2, and `SETTLED` such times are
enough. With the default step, 1 / (strong convexity + smoothness), that takes about `SETTLED` n m s^2 / T steps, m the
curvature of one record; no more than `MOST` are planned, and a run that stops short is nearer to the prior's mean in
those directions, and cheaper.

**Clip.** Half the longest gradient (of a linear model: one standard deviation of the outcome, of a Poisson model the
square root of the largest mean, times the norm bound) doubles the power of the likelihood and cuts few records; where
the budget pays for a longer one at temperature 1, it is that. Softmax regression has none (`confide.models.convexity`).

**Rounding.** The map that is computed differs from the one that contracts. In double precision with rows of norm B,
positions within R, d parameters and chunks of c rows, a score is off by (d + 2) u B R, a residual by the curvature
times that and 16 u of itself, and the sum by all of that times n and by c u n G; the position by 8 u R. Twice the whole
is added to G: both neighbours are rounded. The sum of every chunk is rounded to a grid so fine that all of them
together are off by an eighth of a step of the next one, and chunks are added as whole numbers. The mean of a step is
rounded to a grid of sqrt(2 h T) / 2^26. Both together move it by at most 9/8 sqrt(d) of that, for either neighbour. It
is cut to a cube of 2^25 sqrt(2 h T) first, which is a contraction; that no chunk is cut is checked when the run is
planned.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from confide import validation
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans.plan import Plan
from confide.inference.plans.run_setup import initial_position
from confide.inference.plans.stochastic import describe, diffusion_time
from confide.inference.summaries.tempered import LangevinSummary
from confide.mechanism import grid, noise
from confide.mechanism.clipping import CHUNK, clipped_sum
from confide.mechanism.kernel import MechanismParameters
from confide.models import convexity
from confide.models.convexity import Shape
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, unraveller
from confide.privacy import events, pricing
from confide.privacy.budget import Budget
from confide.privacy.events import Event, LastIterates
from confide.privacy.significant_digits import round_digits
from confide.samplers.langevin import Langevin, kernel, reach
from confide.validation import Refused

SETTLED = 3.0
FEWEST, MOST = 200, 5000
GAP = 10  # steps before the first release for each between two
COLDEST, HOTTEST = 1.0, 1e12
TOLERANCE = 1e-9  # relative, on the temperature
UNIT = 2.0**-53
LAST = "the released draws, which are single iterates of the run, and anything computed from them"


class Terms(NamedTuple):
    """What is public about a run, and all that its price depends on."""

    n: int
    places: int  # that records can take
    dimension: int
    shape: Shape
    longest: float  # norm of a row
    prior_scale: float


class Course(NamedTuple):
    """The steps of a run at one temperature."""

    sizes: np.ndarray  # that multiply the mean gradient
    gap: int
    event: Event


def make_plan(
    model: Model, records: Records, budget: Budget, sampler: Langevin, options: Options, key: jax.Array
) -> Plan:
    n, chains = records.number, validation.count(chains=options.chains)
    if options.batch_size not in (None, n):
        raise Refused(f"batch_size = {options.batch_size} is not all {n} records, which langevin() uses: leave it out")
    model, records = convexity.prepare_convex(model, records)
    model, data = convexity.weigh(model, options.clipping), records.arrays
    assert model.settings is not None
    scale = model.settings["prior_scale"]
    mu = pricing.gdp_mu(budget.epsilon, budget.delta) / events.SENSITIVITY[budget.neighbours] / math.sqrt(chains)
    clip = options.clip if options.clip is not None else default_clip(model, mu / scale)
    flat, unravel = unraveller(model, data, key)
    check_likelihood(model, records, flat, unravel)
    shape = convexity.shape(model, clip)
    sums = clipped_sum(model, shape.gradient_bound, unravel, records.places, None)
    if model.linear is not None and model.linear.weighting is not None:  # cut a little deeper, scores may be steeper
        deeper = convexity.shape(model, sums.effective_clip * (1 - 2.0**-16))
        shape = shape._replace(smoothness=max(shape.smoothness, deeper.smoothness))
    terms = Terms(n, records.places, flat.size, shape, convexity.longest(model), scale)
    temperature = sampler.temperature or _temperature(terms, sampler, options, budget, chains)
    course = _countable(terms, course_of(terms, sampler, options, temperature), temperature)
    event = course.event if chains == 1 else events.compose(course.event, repeats=chains)
    parameters = MechanismParameters(
        n=n,
        sampling_probability=1.0,
        clip=shape.gradient_bound,
        dimension=flat.size,
        prior=lambda position: position / scale**2,
        rounding=noise.CONTRIBUTIONS if options.noise == "secure" else noise.SUMS,
        capacity=records.places,
    )
    keys = [noise.derive_key(key, "chain", chain) for chain in range(chains)]
    draws = _draws(sampler, options)
    job = Job(
        kernel=kernel(parameters, course.sizes, temperature, scale, lambda: course.event),
        parameters=parameters,
        gradient_sum=sums,
        initial_positions=np.stack([np.asarray(initial_position(model, data, k, chains), np.float64) for k in keys]),
        burn_in=course.sizes.size - draws * course.gap,
        thin=course.gap,
        buffer=None,
    )
    summary = describe(
        LangevinSummary,
        model,
        sampler,
        job,
        temperature=temperature,
        likelihood_power=1 / temperature,
        norm_bound=model.settings["norm_bound"],
        settled=math.fsum(course.sizes) / n * temperature / (scale * scale),
        diffusion_time=diffusion_time(job),
    )

    def spent_after(step: int) -> Event:
        assert isinstance(course.event, LastIterates)
        return events.compose(course.event.until(step), repeats=chains)

    return Plan(model, records, job, event, summary, spent_after, LAST)


def default_clip(model: Model, affordable: float) -> float | None:
    """The planned clip; `affordable` is the longest that the budget pays for at temperature 1."""
    family, bound = model.family, convexity.longest(model)
    assert family is not None
    if family.outputs:  # a cut would break convexity
        return None
    if math.isfinite(steepest := family.residual_bound * bound):
        return min(steepest, max(steepest / 2, affordable))
    usual = family.residual_scale * bound
    return usual * max(1.0, min(2.0, affordable / usual))


def _draws(sampler: Langevin, options: Options) -> int:
    return validation.count(draws=sampler.draws if options.draws is None else options.draws)


def course_of(terms: Terms, sampler: Langevin, options: Options, temperature: float) -> Course:
    """The steps at a temperature: how long, how large, and what they reveal."""
    convex = temperature * terms.shape.strong_convexity
    smooth = convex + terms.places * terms.shape.smoothness
    first, gap, draws = _lengths(sampler, options, (convex + smooth) / convex)
    steps = first + (draws - 1) * gap
    sizes, final = sampler.step_sizes(steps)
    if not final:
        sizes = sizes / float(np.max(sizes)) * terms.n / (convex + smooth)
    smallest = float(np.min(sizes)) / terms.n
    bound = terms.shape.gradient_bound + 2 * rounding(terms, smallest)
    bound += math.sqrt(2 * temperature / smallest) * noise.SUMS.lost(terms.dimension) * 9 / 8
    equal = bool(np.all(sizes == sizes[0]))
    event = LastIterates(
        step_sizes=float(sizes[0]) / terms.n if equal else sizes / terms.n,
        releases=tuple(first + i * gap for i in range(draws)),
        strong_convexity=convex,
        smoothness=smooth,
        gradient_bound=bound,
        temperature=temperature,
    )
    return Course(sizes, gap, event)


def _countable(terms: Terms, course: Course, temperature: float) -> Course:
    """The same, refused where sums of gradients could not be counted on their grid."""
    largest = float(np.max(course.sizes)) / terms.n
    multiplier = math.sqrt(2 * temperature / largest) / terms.shape.gradient_bound
    grid.check_grid(terms.places, CHUNK, multiplier, grid.finer(-(-terms.places // CHUNK)))
    return course


def _lengths(sampler: Langevin, options: Options, condition: float) -> tuple[int, int, int]:
    """Steps before the first release, between two, and how many there are."""
    draws = _draws(sampler, options)
    if options.steps is None:
        first = min(MOST, max(FEWEST, math.ceil(SETTLED * condition)))
        if options.burn_in is not None:
            raise Refused("burn_in is given without steps: give both, or neither")
        return first, sampler.gap or max(1, first // GAP), draws
    steps = validation.count(steps=options.steps)
    gap = sampler.gap or max(1, steps // (GAP + draws - 1))
    if options.burn_in is not None:
        gap = (steps - int(validation.nonnegative(burn_in=options.burn_in))) // draws
    if gap < 1 or steps - (draws - 1) * gap < gap:
        raise Refused(f"steps = {steps} are too few for {draws} draws: give more steps, or ask for fewer draws")
    return steps - (draws - 1) * gap, gap, draws


def rounding(terms: Terms, step: float) -> float:
    """The most that rounding moves the sum of the gradients, with that of the position counted in."""
    radius, bound = reach(terms.prior_scale, terms.dimension), terms.shape.gradient_bound
    scores = terms.shape.smoothness * (terms.dimension + 2) * radius  # curvature B^2 times (d + 2) R
    return UNIT * (terms.places * (scores + (CHUNK + 19) * bound) + 8 * radius / step)


def _temperature(terms: Terms, sampler: Langevin, options: Options, budget: Budget, chains: int) -> float:
    """The lowest temperature, from 1 on, that the budget pays for."""

    def spends(temperature: float) -> float:
        event = course_of(terms, sampler, options, temperature).event
        squared = chains * event.parts(budget.neighbours).squared_mu
        return pricing.gdp_epsilon(math.sqrt(squared), budget.delta)

    if spends(COLDEST) <= budget.epsilon:
        return COLDEST
    low, high = COLDEST, 2 * COLDEST
    while spends(high) > budget.epsilon:
        low, high = high, 2 * high
        if high > HOTTEST:
            raise Refused(f"epsilon = {budget.epsilon:g} leaves nothing of the likelihood: raise the budget")
    while high / low > 1 + TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spends(middle) <= budget.epsilon else (middle, high)
    return round_digits(high, "up")
