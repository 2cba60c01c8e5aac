r"""Posterior samples: which power of the likelihood the budget pays for, and the hidden chains that they end.

**tight.** With mu the budget in Gaussian differential privacy, one of k draws may cost mu / sqrt(k), so the power is
mu / (sqrt(k) Delta s), Delta = G (add-remove) or 2 G (replace-one), and never above 1: then the draw is from the
posterior itself. The clip G is planned as for `langevin` (`default_clip`): half the longest gradient doubles the power
and cuts few records; on Adult at epsilon 1 that is 84.7% of labels right against 84.6% without a clip.

**published.** The power is min(1, epsilon / (4 B k)), as wang2015 prints for k = 1.

A declared distance from an exact sampler is counted in delta; the power is the largest that the accountant certifies
with what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import validation
from confide.inference.exact import metropolis, targets
from confide.inference.exact.metropolis import Chains
from confide.inference.exact.targets import Target
from confide.inference.options import Options
from confide.inference.plans.hidden_chains import SampleJob
from confide.inference.plans.langevin import default_clip
from confide.inference.plans.plan import Plan
from confide.inference.summaries.tempered import PosteriorSampleSummary
from confide.mechanism import noise
from confide.models import convexity
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import check_likelihood, table_lengths, unraveller
from confide.privacy import accountants, pricing
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY, BoundedPosteriorSample, Event, PosteriorSample
from confide.privacy.significant_digits import round_digits
from confide.samplers.posterior_sample import Algorithm, OnePosteriorSample
from confide.validation import Refused

RELEASED = "the released draws and anything computed from them; all other states of the chains stay secret"
LEAST = 1e-3  # of what the budget would pay for, if nothing of delta were reserved: less is no sample of anything
MARGIN = 1 - 1e-12  # of the power, so that its price rounds down
MARGIN_OF_FAILURE = 1e-9  # relative: what prices add to a failure probability for rounding is less
APART = 20  # transitions between two draws of one chain, at least
LONGER, CHEAP = 5, 10**6  # times that chains are longer where a density costs little: records times parameters


def make_plan(
    model: Model,
    records: Records,
    budget: Budget,
    sampler: OnePosteriorSample,
    options: Options,
    key: jax.Array,
) -> Plan:
    for name in ("steps", "batch_size", "burn_in"):
        if getattr(options, name) is not None:
            raise Refused(
                f"{name} is not for posterior samples: leave it out (in Python there are warmup= and samples=)"
            )
    if options.noise == "secure":
        raise Refused("noise = 'secure' cannot make a Markov chain exact: leave it out, or use sgld() or langevin()")
    chains = validation.count(chains=options.chains)
    draws = validation.count(draws=sampler.draws if options.draws is None else options.draws)
    temper = _tight if sampler.bound == "tight" else _published_target
    found = temper(model, records, budget, sampler, options, chains * draws)
    model, records = found.model, found.records
    flat, unravel = unraveller(model, records.arrays, key)
    check_likelihood(model, records, flat, unravel)
    run = _chains(model, found.target, sampler, records.number, flat.size, chains * draws)
    summary = PosteriorSampleSummary(
        model=model.name,
        sampler=sampler.name,
        bound=sampler.bound,
        total_variation=sampler.total_variation,
        records=records.number,
        parameters=flat.size,
        chains=chains,
        draws=draws,
        clip=found.clip,
        radius=found.radius,
        log_likelihood_bound=found.log_likelihood_bound,
        norm_bound=None if model.linear is None else model.linear.norm_bound,
        clipping=_clipping(model, found.clip),
        likelihood_power=found.power,
        algorithm=run.algorithm,
        hidden_chains=run.number,
        warmup=run.warmup,
        samples=run.samples,
        steps=run.warmup + run.samples,
    )
    job = SampleJob(model=model, target=found.target, chains=run, shape=(chains, draws))
    return Plan(model, records, job, found.event, summary, None, RELEASED)


def _clipping(model: Model, clip: float | None) -> str | None:
    """How gradients are cut, where any are: by weights, or by their own length (None)."""
    weighted = clip is not None and model.linear is not None and model.linear.weighting is not None
    return "weighted" if weighted else None


class Tempered(NamedTuple):
    """What is sampled, how much of the likelihood is in it, and by what its price is bounded."""

    model: Model
    records: Records
    target: Target
    event: Event
    power: float
    clip: float | None = None  # of gradients, where any are cut
    log_likelihood_bound: float | None = None
    radius: float | None = None  # that parameters are held in


def _tight(
    model: Model, records: Records, budget: Budget, sampler: OnePosteriorSample, options: Options, total: int
) -> Tempered:
    model, records = convexity.prepare_convex(model, records)
    model = convexity.weigh(model, options.clipping)
    assert model.settings is not None
    affordable = affordable_mu(budget, total, sampler.total_variation) / SENSITIVITY[budget.neighbours]
    affordable /= model.settings["prior_scale"]  # power times clip
    clip = options.clip if options.clip is not None else default_clip(model, affordable)
    shape = convexity.shape(model, None if clip is None else validation.positive(clip=clip))
    power = sampler.likelihood_power or min(1.0, MARGIN * affordable / shape.gradient_bound)
    event = PosteriorSample(
        gradient_bound=shape.gradient_bound,
        strong_convexity=shape.strong_convexity,
        likelihood_power=power,
        draws=total,
        total_variation=sampler.total_variation,
    )
    _check_price(event, budget, sampler)
    assert model.family is not None
    longest = math.inf if model.family.outputs else model.family.residual_bound * convexity.longest(model)
    cut = None if clip is None or clip >= longest else clip
    return Tempered(model, records, targets.convex(model, power, clip), event, power, clip=cut)


def affordable_mu(budget: Budget, draws: int, total_variation: float) -> float:
    """What each draw may cost in Gaussian differential privacy."""
    whole = pricing.gdp_mu(budget.epsilon, budget.delta) / math.sqrt(draws)
    if total_variation == 0:
        return whole

    def fits(mu: float) -> bool:
        event = PosteriorSample(
            gradient_bound=1.0,
            strong_convexity=1.0,
            likelihood_power=mu,
            draws=draws,
            total_variation=total_variation,
        )
        covered = event.parts("add-remove").failure * (1 + MARGIN_OF_FAILURE) < budget.delta
        return covered and accountants.profile(event, "add-remove", "pld").epsilon(budget.delta) <= budget.epsilon

    low, high = 0.0, whole
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low < LEAST * whole:
        raise _distance_too_large(total_variation, budget)
    return round_digits(low, "down")


def _distance_too_large(total_variation: float, budget: Budget) -> Refused:
    return Refused(
        f"total_variation = {total_variation:g} does not fit into delta = {budget.delta:g}, where it counts at least "
        "twice for every draw: lower it, or raise delta"
    )


def _published_target(
    model: Model, records: Records, budget: Budget, sampler: OnePosteriorSample, options: Options, total: int
) -> Tempered:
    if options.clip is not None:
        raise Refused("clip is not for bound = 'published', which bounds the log likelihood: leave it out")
    radius, bound = sampler.radius, sampler.log_likelihood_bound
    if bound is None:
        if model.linear is None:
            raise Refused(
                f"the log likelihood of {model.name} has no known bound: give a log_likelihood_bound, and that of "
                "every record is cut to it"
            )
        model, records = convexity.prepare_linear(model, records)
    size, unravel = _unravel_in_double(model, records.arrays)
    if bound is None:
        if radius is None:
            if model.settings is None:
                raise Refused("a prior of your own has no known scale: give the radius that parameters are held in")
            radius = model.settings["prior_scale"] * math.sqrt(size)
        bound = targets.enforce_bound(model, radius)
    power = sampler.likelihood_power or min(1.0, MARGIN * budget.epsilon / (4 * bound * total))
    event = BoundedPosteriorSample(
        log_likelihood_bound=bound, power=power, draws=total, total_variation=sampler.total_variation
    )
    if sampler.total_variation > 0 and event.parts(budget.neighbours).failure >= budget.delta:
        raise _distance_too_large(sampler.total_variation, budget)
    _check_price(event, budget, sampler)
    target = targets.bounded_target(
        model,
        unravel,
        size,
        power,
        bound,
        radius,
        sampler.log_likelihood_bound is not None,
        table_lengths(records),
    )
    return Tempered(model, records, target, event, power, log_likelihood_bound=bound, radius=radius)


def _check_price(event: Event, budget: Budget, sampler: OnePosteriorSample) -> None:
    if sampler.likelihood_power is None:
        return
    spent = accountants.profile(event, budget.neighbours, "pld").epsilon(budget.delta)
    if spent > budget.epsilon * (1 + 1e-9):
        raise Refused(
            f"likelihood_power = {sampler.likelihood_power:g} costs epsilon {spent:.4g} but the budget is "
            f"{budget.epsilon:g}: lower it, or leave it out"
        )


def _unravel_in_double(model: Model, data: tuple[np.ndarray, ...]) -> tuple[int, Callable[[Any], Any]]:
    """The number of parameters, and the way back from flat ones in double precision."""
    flat, unravel = unraveller(model, data, noise.as_key(0))
    with jax.enable_x64(True):
        tree = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), unravel(flat))
        return flat.size, ravel_pytree(tree)[1]


def _chains(model: Model, target: Target, sampler: OnePosteriorSample, n: int, size: int, total: int) -> Chains:
    framed = target.ridge is not None and targets.fits(model, size)
    algorithm: Algorithm = sampler.algorithm or ("elliptical" if framed else "nuts")
    if algorithm == "elliptical" and not framed:
        raise Refused("algorithm = 'elliptical' is for linear models with a Gaussian prior or a radius: use 'nuts'")
    longer = max(1, min(LONGER, CHEAP // (n * size))) if algorithm == "elliptical" else 1
    warmup, samples = (longer * length for length in metropolis.LENGTHS[algorithm])
    warmup, samples = sampler.warmup or warmup, sampler.samples or samples
    rounds = -(-total // sampler.hidden_chains)
    if rounds > 1 and samples // rounds < APART:
        raise Refused(
            f"{total} draws from {sampler.hidden_chains} hidden chains of {samples} samples lie too close together: "
            f"ask for fewer, or give one_posterior_sample(samples={rounds * APART})"
        )
    return Chains(algorithm, sampler.hidden_chains, warmup, samples)
