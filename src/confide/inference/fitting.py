"""`fit`: from a model, data and a budget to a posterior. `sample`: the same kernels without a guarantee.

The order is the promise: everything is checked and priced, then the ledger is charged, then the records are used.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.inference import canary_requests, checkpoints, loop, messages, plans, summaries
from confide.inference.checkpoints import Checkpoint, CheckpointFile
from confide.inference.options import Fit, takes
from confide.inference.plans import Asked, Planned
from confide.inference.posterior import Canaries, NotPrivateWarning, Posterior
from confide.inference.progress import show_progress
from confide.inference.spend import Account, Key, Paid, Purchase, spend
from confide.inference.summaries.runs import Run, Steps
from confide.mechanism import canaries as planting
from confide.mechanism import noise as noises
from confide.mechanism.canaries import Planted
from confide.mechanism.noise import Noise, SecureSource
from confide.models.inputs import Records, check_data, place_records
from confide.models.model import Model
from confide.privacy import charges
from confide.privacy.budget import MECHANISM, Budget
from confide.privacy.extra_accounts import accounts
from confide.samplers import Sampler, sgld
from confide.validation import Refused


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
    sampler = sgld() if options.sampler is None else options.sampler
    microbatch = None if options.microbatch is None else validation.count(microbatch=options.microbatch)
    options = replace(options, sampler=sampler, microbatch=microbatch)
    account = _check(options)
    checkpoint = checkpoints.open_file(options.checkpoint)
    _check_mechanism(checkpoint, account)
    table = place_records(options.model, options.data, options.records, present)
    planted = _plant(options, table)
    start, key = _keys(options.noise, options.key, None if checkpoint is None else checkpoint.found)
    asked = _plan_options(options)._replace(canaries=planted)
    model, rows = (options.model, table) if planted is None else (planted.model, planted.data)
    planned = plans.make_plan(model, rows, options.budget, sampler, asked, start)
    purchase = _purchase(options, planned, table, planted, key.given)
    paid = spend(purchase, options.budget, account, key, checkpoint, options.verbose)
    return _run(options, planned, planted, paid)


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
    return charges.open_account(options.ledger, options.dataset, budget.neighbours)


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


def _plan_options(options: Fit) -> Asked:
    return Asked(
        options.steps,
        options.batch_size,
        options.clip,
        options.chains,
        options.draws,
        options.burn_in,
        options.noise == "secure",
        accounts(options.account),
        microbatch=options.microbatch,
    )


def _plant(options: Fit, table: Records) -> Planted | None:
    """The model and the data with canaries, where there are to be any."""
    model, count = options.model, canary_requests.number(options.canaries)
    if not count:
        return None
    flat, unravel = plans.unraveller(model, table.arrays, noises.as_key(0))
    plans.check_likelihood(model, table, flat, unravel)  # of the model as it was given
    return planting.plant(model, table, count, flat.size, options.budget.neighbours)


def _purchase(options: Fit, planned: Planned, table: Records, planted: Planted | None, given: bool) -> Purchase[Run]:
    """The run with what is stored and said of it."""
    summary = summaries.from_json(planned.plan)
    assert isinstance(summary, Run)
    assert options.sampler is not None
    summary = replace(
        summary,
        prior_scale=(planned.model.settings or {}).get("prior_scale"),
        canaries=None if planted is None else planted.count,
        arrays=[list(array.shape[1:]) for array in table.arrays],  # public
        microbatch=options.microbatch,
        noise=options.noise,
    )
    arrays, job = planned.data.arrays, planned.job
    return Purchase(
        event=planned.event,
        summary=summary,
        released=planned.released,
        assumptions=messages.assumptions(options.noise, given) + options.assumptions,
        data=(*arrays, planned.data.present),
        details=lambda: {"model": _digest(planned.model, arrays), "work": job.digest()},
        first_state=job.first_state,
        remedy=options.sampler.remedy,
    )


def _run(options: Fit, planned: Planned, planted: Planted | None, paid: Paid[Run]) -> Posterior:
    """What is paid for."""
    job, until, source = planned.job, planned.until, paid.source
    guarantee, summary = paid.guarantee, paid.summary
    inside = noises.coins(source, planted.count) if planted is not None else np.zeros(0, bool)
    data = planned.data if planted is None else planted.with_members(inside)
    spent = None if until is None else lambda step: messages.spent_so_far(until(step), guarantee)
    with show_progress(job.steps, spent, options.progress) as report:
        kept = job.execute(
            data,
            source,
            checkpoint=None if options.checkpoint is None else Path(options.checkpoint),
            resumed=paid.begun,
            every=options.checkpoint_seconds,
            report=report,
        )
    if planned.finish is not None:
        kept = planned.finish(kept, source)
    if planned.histogram is not None:
        assert isinstance(summary, Steps)
        summary = summary.with_histogram(planned.histogram(job.observations, source))
    if accounts(options.account).bayesian:
        guarantee = replace(guarantee, typical=plans.typical(job, guarantee))
        _say(options, messages.typical(guarantee))
    if job.diagnostics is not None:
        _say(options, messages.hidden(job.diagnostics))
    posterior = Posterior(
        draws=_unravel(planned.model, planned.data.arrays, kept),
        guarantee=guarantee,
        plan=summary.to_json(),
        model=planned.model if planted is None else options.model,
        canaries=None if planted is None else _canaries_of(job, inside, planted.replaced),
        diagnostics=job.diagnostics,
    )
    canary_requests.answer(posterior)
    return posterior


def _say(options: Fit, text: str) -> None:
    if options.verbose:
        print(text, file=sys.stderr)


def _canaries_of(job: Any, inside: np.ndarray, replaced: bool) -> Canaries:
    """What the run told of its canaries, and by what it is to be judged: the noise that it was priced for."""
    scores, sums, squares, pulls = np.moveaxis(job.observations.statistics, 1, 0)
    return Canaries(
        inside=inside,
        scores=scores.sum(axis=0),
        sums=sums,
        squares=squares,
        pulls=pulls,
        steps=job.steps,
        spread=float(np.sum(np.square(job.kernel.schedule.noise / job.parameters.clip))),
        sampling_probability=job.parameters.sampling_probability,
        replaced=replaced,
    )


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
    start, (source, _) = _keys("default", key, None)
    asked = Asked(steps, batch_size, None, chains, draws, burn_in)
    job, plan, finish = plans.plain(model, arrays, sampler, asked, start)
    with show_progress(job.steps, None, progress) as report:
        kept = loop.execute(job, arrays, source, report=report)
    kept = kept if finish is None else finish(kept, source)
    plan |= {"noise": "default"}
    return Posterior(draws=_unravel(model, arrays, kept), guarantee=None, plan=plan, model=model)


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


def _digest(model: Model, data: tuple[np.ndarray, ...]) -> list[Any]:
    """What the model computes, as text, with the arrays that it holds and where it starts."""
    flat, unravel = plans.unraveller(model, data, noises.as_key(0))
    programs = [*plans.trace_model(model, data, flat, unravel), *plans.dropping(model, data, flat, unravel)]
    held = [np.asarray(constant).tobytes().hex() for program in programs for constant in plans.constants(program)]
    return [model.name, model.settings, np.asarray(flat).tobytes().hex(), *map(str, programs), *held]


def _unravel(model: Model, data: tuple[np.ndarray, ...], kept: np.ndarray) -> Any:
    """Flat draws (chains, draws, parameters) as the model reports them."""
    _, unravel = plans.unraveller(model, data, noises.as_key(0))
    chains, draws, size = kept.shape
    every = jax.vmap(lambda flat: model.constrain(unravel(flat)))(kept.reshape(-1, size))
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), every)
