"""`fit`: from a model, data and a budget to a posterior. `sample`: the same kernels without a guarantee.

The order is the promise: everything is checked and priced, then the ledger is charged, then the records are used.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.inference import canary_requests, checkpoints, loop, plans, rehearsal, requests
from confide.inference.checkpoints import Checkpoint, CheckpointFile
from confide.inference.few_records import warn_of_few_records
from confide.inference.options import Fit, Options, takes
from confide.inference.plans import Plan, estimates, scoring, stochastic
from confide.inference.posterior import Canaries, NotPrivateWarning, Posterior
from confide.inference.posterior_files import AnyRelease
from confide.inference.progress import show_progress
from confide.inference.spend import DOMAIN, GIVEN_KEY, ONE_RECORD, Account, Key, Paid, Purchase, spend
from confide.inference.summaries.runs import RunSummary, Steps
from confide.mechanism import canaries as planting
from confide.mechanism import noise as noises
from confide.mechanism.canaries import Planted
from confide.mechanism.noise import Noise, SecureSource
from confide.models.inputs import Records, check_data, describe_labels, place_records
from confide.models.model import Model, take_noise_as_given
from confide.models.tracing import arrange_draws
from confide.privacy import charges
from confide.privacy.budget import MECHANISM, Budget
from confide.privacy.extra_accounts import Accounts, accounts
from confide.samplers import Sampler, companions, default_sampler, sgld
from confide.validation import Refused

KEYED_BITS = (
    "The bits of noise and batches are those of threefry with a key of 64 bits, and pass for random; noise and batches "
    "follow from them exactly, and the rounding of sums is allowed for in the clip and in the noise."
)


@takes(Fit)
def fit(options: Fit) -> Posterior:
    """Fit a model to sensitive data within a privacy budget.

    What is left out is planned from the budget. The declared number of records, the shape and type of the arrays and
    all arguments are treated as public. A record with a number that is missing or infinite, or with an outcome that the
    model does not know, counts as absent: `confide.outside(model, data)` shows such rows, to you alone.
    """
    posterior = infer(options)
    if options.checkpoint is not None:
        checkpoints.delete(Path(options.checkpoint))
    return posterior


def infer(options: Fit, present: np.ndarray | None = None) -> Posterior:
    """`fit`, with its checkpoint left in place: for callers who delete it when they have stored the posterior.

    `present` says which rows of the data hold a record at all.
    """
    options, request = _complete(options), canary_requests.current.get()
    account, checkpoint = _check(options), checkpoints.open_file(options.checkpoint)
    _check_mechanism(checkpoint, account)
    table = place_records(options.model, options.data, options.records, present)
    planted = _plant(options, table)
    start, key = _keys(options.noise, options.key, None if checkpoint is None else checkpoint.found)
    plan = _plan(options, table, planted, start)
    remarks = describe_labels(options.model) if present is None else ()
    purchase = replace(_purchase(options, plan, table, planted, key.given), remarks=remarks)
    paid = spend(purchase, options.budget, account, key, checkpoint, options.verbose)
    posterior = _run(options, plan, planted, paid)
    warn_of_few_records(posterior.plan)
    if rehearsals := getattr(options.sampler, "rehearsals", 0):
        posterior = rehearsal.calibrate(fit, posterior, rehearsals)
    if request is not None:
        request.posteriors.append(posterior)
    return posterior


def plan_again(options: Fit) -> tuple[Plan, Purchase[RunSummary]]:
    """The plan of a run and what it would buy. Nothing is paid for, and no record is used: one that is given counts as
    absent, as a plan cannot depend on any."""
    with canary_requests.none():
        options = _complete(options)
    _check(options)
    table = place_records(options.model, options.data, options.records, np.zeros(len(options.data[0]), bool))
    planted = _plant(options, table)
    start, key = _keys(options.noise, None, None)
    plan = _plan(options, table, planted, start)
    return plan, _purchase(options, plan, table, planted, key.given)


def _complete(options: Fit) -> Fit:
    """The options with the default sampler, the canaries that an audit asks for, and the model as it is fitted."""
    validation.instance(Model, model=options.model)
    sampler = default_sampler(options.model) if options.sampler is None else options.sampler
    microbatch = None if options.microbatch is None else validation.count(microbatch=options.microbatch)
    request = canary_requests.current.get()
    canaries = request.number if request is not None and options.canaries is None else options.canaries
    if canaries is not None:
        canaries = None if type(canaries) is int and canaries == 0 else planting.check_count(canaries)
    model = options.model if getattr(sampler, "learns_noise_scale", False) else take_noise_as_given(options.model)
    return replace(options, model=model, sampler=sampler, microbatch=microbatch, canaries=canaries)


def _check(options: Fit) -> Account | None:
    """Refuse what no data could make right; the entry in the ledger that will be charged."""
    budget, sampler = options.budget, options.sampler
    validation.instance(Budget, budget=budget)
    validation.instance(Sampler, sampler=sampler)
    assert sampler is not None
    validation.one_of(noises.NOISES, noise=options.noise)
    if sampler.temperature is not None and not sampler.temperature > 0:
        raise Refused("temperature = 0 draws no noise, so it has no guarantee: give a temperature above 0")
    if budget.delta == 0 and sampler.gaussian:
        raise Refused(
            "delta = 0 cannot be met with Gaussian noise: give a budget with delta in (0, 1), such as 1e-6, or take "
            "one_posterior_sample('published')"
        )
    if options.noise == "secure" and options.key is not None:
        raise Refused("noise = 'secure' takes its key from the operating system: leave key out")
    validation.positive(checkpoint_seconds=options.checkpoint_seconds)
    _check_extras(sampler, options)
    return charges.open_account(options.ledger, options.dataset, budget.neighbours)


def _check_extras(sampler: Sampler, options: Fit) -> None:
    """Refuse accounts and canaries of what does not release every step."""
    kept, planted = accounts(options.account) != Accounts(), options.canaries is not None
    if kept and sampler.kind != "steps":
        raise Refused(
            f"account: the sampler {sampler.name} keeps the account of 'dp' alone: leave the others out, or choose one "
            "that releases every step, such as sgld"
        )
    if planted and kept:
        raise Refused("canaries: other accounts than 'dp' would take them for people: audit without those accounts")
    if planted and sampler.kind not in ("steps", "scoring"):
        raise Refused(f"canaries: {sampler.name} hides its steps, from which they are told: choose another, as sgld")


def _check_mechanism(checkpoint: CheckpointFile | None, account: Account | None) -> None:
    """Refuse to go on with noise or sums that are not those that the run began with."""
    if checkpoint is None or checkpoint.found is None or checkpoint.found.mechanism == MECHANISM:
        return
    begun = checkpoint.found
    raise Refused(
        f"checkpoint {str(checkpoint.path)!r} was begun under version {begun.mechanism} of the mechanism, and this is "
        f"version {MECHANISM}, with other noise: {charges.standing(account, begun)}; delete it to start afresh, which "
        "is charged again, or resume it with the version of confide that began it"
    )


def _plant(options: Fit, table: Records) -> Planted | None:
    """The model and the data with canaries, where there are to be any."""
    model, count = options.model, options.canaries
    if count is None:
        return None
    flat, unravel = plans.unraveller(model, table.arrays, noises.as_key(0))
    plans.check_likelihood(model, table, flat, unravel)  # of the model as it was given
    return planting.plant(model, table, count, flat.size, options.budget.neighbours)


def _plan(options: Fit, table: Records, planted: Planted | None, key: jax.Array) -> Plan:
    assert options.sampler is not None
    asked = (options.budget, options.sampler, options, key)
    if planted is not None and options.sampler.kind == "scoring":
        return scoring.make_plan(options.model, table, *asked, planted)
    if planted is not None:
        return stochastic.make_plan(planted.model, planted.data, *asked, planted)
    return plans.PLANNERS[options.sampler.kind](options.model, table, *asked)


def _purchase(options: Fit, plan: Plan, table: Records, planted: Planted | None, given: bool) -> Purchase[RunSummary]:
    """The run with what is stored and said of it."""
    assert options.sampler is not None
    summary = replace(
        plan.summary,
        prior_scale=(plan.model.settings or {}).get("prior_scale"),
        canaries=None if planted is None else planted.count,
        arrays=[list(array.shape[1:]) for array in table.arrays],  # public
        microbatch=options.microbatch,
        noise=options.noise,
    )
    arrays, job = plan.data.arrays, plan.job
    return Purchase(
        event=plan.event,
        summary=summary,
        released=plan.released,
        assumptions=(
            ONE_RECORD,
            DOMAIN,
            *([KEYED_BITS] if options.noise == "default" else []),
            *([GIVEN_KEY] if given else []),
            *([] if options.sampler.companion is None else [companions.ASSUMPTION]),
            *options.assumptions,
        ),
        data=plan.data,
        details=lambda: {
            "model": [plan.model.name, plan.model.settings, plans.model_digest(plan.model, arrays)],
            "work": [job.digest(), job.trace_program(plan.data)],
        },
        first_state=job.first_state,
        remedy=options.sampler.remedy,
    )


def _run(options: Fit, plan: Plan, planted: Planted | None, paid: Paid[RunSummary]) -> Posterior:
    """What is paid for."""
    job, source, guarantee, summary = plan.job, paid.source, paid.guarantee, paid.summary
    inside = noises.coins(source, planted.count) if planted is not None else np.zeros(0, bool)
    data = plan.data if planted is None else planted.with_members(inside)
    bar = show_progress(job.steps, plan.spent_after, guarantee) if _wants_bar(options.progress) else nullcontext()
    with bar as report:
        kept = job.execute(
            data,
            source,
            checkpoint=None if options.checkpoint is None else Path(options.checkpoint),
            resumed=paid.begun,
            every=options.checkpoint_seconds,
            report=report,
        )
    assert options.sampler is not None
    kept, beside = companions.split(options.sampler, job, kept)
    if plan.describe is not None:
        summary = plan.describe(summary, kept)
    if plan.postprocess is not None:
        kept = plan.postprocess(kept, source)
    if plan.histogram is not None:
        assert isinstance(summary, Steps)
        summary = summary.with_histogram(plan.histogram.release(job.observations, source))
    if accounts(options.account).bayesian:
        typical = estimates.typical(job, guarantee)
        guarantee = replace(guarantee, typical=typical)
        _say(options, estimates.to_text(typical))
    if job.diagnostics is not None:
        _say(options, job.diagnostics.to_text())
    draws, scales = arrange_draws(plan.model, plan.data.arrays, kept), getattr(job, "noise_scales", None)
    return Posterior(
        draws=draws | beside if beside else draws if scales is None else draws | {"noise_scale": scales},
        guarantee=guarantee,
        plan=summary.to_json() | {"request": requests.to_json(options)},
        model=plan.model if planted is None else options.model,
        canaries=None if planted is None else Canaries.of(job, inside, planted.replaced),
        release=found if isinstance(found := getattr(job, "release", None), AnyRelease) else None,
        trace=None if plan.trace is None else plan.trace(),
        diagnostics=job.diagnostics,
    )


def _wants_bar(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _say(options: Fit, text: str) -> None:
    if options.verbose:
        print(text, file=sys.stderr)


def sample(
    model: Model,
    data: Any,
    sampler: Sampler | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    chains: int = 1,
    key: Any = None,
    *,
    draws: int | None = None,
    burn_in: int | None = None,
    progress: bool | None = None,
) -> Posterior:
    """The same kernels without clipping and WITHOUT ANY GUARANTEE: to see what privacy costs, on public data."""
    warnings.warn(
        "confide.sample gives NO privacy: neither its draws nor anything computed from them may be published "
        "unless the data may. Use confide.fit for a guarantee.",
        NotPrivateWarning,
        stacklevel=2,
    )
    sampler = sgld() if sampler is None else sampler
    validation.instance(Sampler, sampler=sampler)
    arrays = check_data(model, data)
    model = take_noise_as_given(model)
    start, (source, _) = _keys("default", key, None)
    options = Options(steps, batch_size, chains=chains, draws=draws, burn_in=burn_in)
    job, summary, postprocess = plans.plain(model, arrays, sampler, options, start)
    with show_progress(job.steps) if _wants_bar(progress) else nullcontext() as report:
        kept = loop.execute(job, arrays, source, report=report)
    kept, beside = companions.split(sampler, job, kept)
    kept = kept if postprocess is None else postprocess(kept, source)
    plan = replace(summary, noise="default").to_json()
    found = arrange_draws(model, arrays, kept)
    return Posterior(draws=found | beside if beside else found, guarantee=None, plan=plan, model=model)


def _keys(noise: Noise, key: Any, resumed: Checkpoint | None) -> tuple[jax.Array, Key]:
    """The key of the starting points, and what the run draws from."""
    given = key is not None if resumed is None else resumed.given
    if noise == "secure":
        source = SecureSource(None if resumed is None else resumed.key)
        return noises.as_key(int(source.words("start", 0, 0, 1)[0])), Key(source, given)
    if resumed is None:
        whole = noises.as_key(key)
        return noises.derive_key(whole, "start"), Key(noises.derive_key(whole, "run"), given)
    words = jnp.asarray(np.frombuffer(resumed.key, np.uint32))
    return noises.as_key(0), Key(jax.random.wrap_key_data(words, impl="threefry2x32"), given)
