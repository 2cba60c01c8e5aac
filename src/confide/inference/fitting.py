"""`fit`: from a model, data and a budget to a posterior. `sample`: the same kernels without a guarantee.

The order is the promise: everything is checked and priced, then the ledger is charged, then the records are used.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.inference import canary_requests, checkpoints, loop, messages, plans
from confide.inference.plans import Asked
from confide.inference.posterior import Canaries, NotPrivateWarning, Posterior
from confide.inference.progress import shown
from confide.mechanism import canaries as planting
from confide.mechanism import noise as noises
from confide.mechanism.noise import Noise, SecureSource
from confide.models.inputs import checked_data, placed
from confide.models.model import Model
from confide.privacy import charges, pricing
from confide.privacy.budget import MECHANISM, Budget
from confide.privacy.extra_accounts import accounts
from confide.privacy.ledger import Ledger
from confide.samplers import Sampler, sgld
from confide.validation import Refused


def fit(
    model: Model,
    data: Any,
    budget: Budget,
    sampler: Sampler | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    chains: int = 1,
    key: Any = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    *,
    dataset: str | None = None,
    draws: int | None = None,
    burn_in: int | None = None,
    noise: Noise = "default",
    account: Any = "dp",
    canaries: int | None = None,
    microbatch: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = loop.CHECKPOINT_SECONDS,
    progress: bool | None = None,
    verbose: bool = True,
    assumptions: tuple[str, ...] = (),
    records: int | None = None,
) -> Posterior:
    """Fit a model to sensitive data within a privacy budget.

    What is left out is planned from the budget. The declared number of records, the shape and type of the arrays and
    all arguments are treated as public. A record with a number that is missing or infinite, or with an outcome that the
    model does not know, counts as absent: `confide.outside(model, data)` shows such rows, to you alone.

    Args:
        model: from `confide.models`.
        data: (X, y), arrays with one row per record, scaled by public bounds.
        budget: the most that may be revealed.
        sampler: `confide.sgld()` by default.
        steps: more steps cost time, not privacy: each is made smaller.
        batch_size: the expected size of a batch; the number of records for full batches.
        clip: the most that one record may contribute to a gradient sum.
        chains: K chains cost K times: each step is that much smaller.
        key: a number that the noise is derived from, with the records and all settings; by default the operating
            system's. One that anyone knows or guesses voids the guarantee.
        ledger: charged before the records are used; `dataset` names the entry where the ledger has several.
        records: how many there are, as declared: by default the number of rows. Everything that is planned, printed or
            stored follows it, and the data may hold somewhat fewer or more rows than that, as nobody is told.
        draws: kept from each chain, evenly spaced after `burn_in` steps (half of the run); one point of an optimiser,
            and from the q of `dpvi` as many as are wanted.
        noise: "secure" for a cryptographic generator, and sums of whole numbers.
        account: "dp"; beside it "bayesian" (an estimate for typical people, for your eyes alone, on the guarantee) and
            "individual" (every record pays for itself), or `confide.Individual(...)` with its settings.
        canaries: so many are planted, each with probability 1/2, and `posterior.canaries` holds what the run tells of
            them, for `confide.audit`. The model's own posterior is what it would have been.
        microbatch: so many records of a batch are looked at together, where the model is none of the linear ones: less
            memory for fewer. It does not change the guarantee.
        checkpoint: a file of secrets from which the same call goes on after an interruption.
        progress: a bar on the terminal; by default where there is one.
        verbose: print the plan.
        assumptions: sentences that the guarantee rests on besides its own, for whoever prepared the data.
    """
    if microbatch is not None:
        microbatch = validation.count(microbatch=microbatch)
    asked = Asked(
        steps, batch_size, clip, chains, draws, burn_in, noise == "secure", accounts(account), microbatch=microbatch
    )
    posterior = completed(
        model,
        data,
        budget,
        sampler,
        asked,
        key=key,
        ledger=ledger,
        dataset=dataset,
        noise=noise,
        canaries=canaries,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
        verbose=verbose,
        assumptions=assumptions,
        records=records,
    )
    if checkpoint is not None:
        checkpoints.delete(Path(checkpoint))
    return posterior


def completed(
    model: Model,
    data: Any,
    budget: Budget,
    sampler: Sampler | None,
    asked: Asked,
    *,
    key: Any = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    noise: Noise = "default",
    canaries: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = loop.CHECKPOINT_SECONDS,
    progress: bool | None = None,
    verbose: bool = True,
    assumptions: tuple[str, ...] = (),
    records: int | None = None,
    present: np.ndarray | None = None,
) -> Posterior:
    """`fit`, with its checkpoint left in place: for callers who delete it when they have stored the posterior.

    `present` says which rows of the data hold a record at all.
    """
    validation.instance(Budget, budget=budget)
    sampler = sgld() if sampler is None else sampler
    validation.instance(Sampler, sampler=sampler)
    validation.one_of(noises.NOISES, noise=noise)
    if sampler.temperature is not None and not sampler.temperature > 0:
        raise Refused("temperature = 0 draws no noise, so it has no guarantee: give a temperature above 0")
    if budget.delta == 0 and sampler.gaussian:
        raise Refused(
            "delta = 0 cannot be met with Gaussian noise: give a budget with delta in (0, 1), such as 1e-6, or take "
            "one_posterior_sample('published')"
        )
    if noise == "secure" and key is not None:
        raise Refused("noise = 'secure' takes its key from the operating system: leave key out")
    validation.positive(checkpoint_seconds=checkpoint_seconds)
    account = charges.opened(ledger, dataset, budget.neighbours)
    place = checkpoints.checked_path(checkpoint)
    table = placed(model, data, records, present)
    own, count = model, canary_requests.number(canaries)
    shapes = [list(array.shape[1:]) for array in table.arrays]  # public
    if count:
        flat, unravel = plans.unraveller(model, table.arrays, noises.as_key(0))
        plans.check_likelihood(model, table, flat, unravel)  # of the model as it was given
        planted = planting.planted(model, table, count, flat.size, budget.neighbours)
        model, table, asked = planted.model, planted.data, asked._replace(canaries=planted)
    resumed = None if place is None else checkpoints.read(place)
    if place is not None and resumed is not None:
        _same_mechanism(place, resumed, account)
    start, source = _keys(noise, key, resumed)
    given = key is not None if resumed is None else resumed.given
    planned = plans.planned(model, table, budget, sampler, asked, start)
    model, table, job, event = planned.model, planned.data, planned.job, planned.event
    arrays = table.arrays
    guarantee = pricing.guarantee(
        event,
        delta=budget.delta,
        neighbours=budget.neighbours,
        released=planned.released,
        assumptions=messages.assumed(noise, given) + assumptions,
    )
    if guarantee.epsilon > budget.epsilon * (1 + 1e-6):
        raise Refused(
            f"the run costs epsilon {guarantee.epsilon:.4g} but the budget is {budget.epsilon:g}: {sampler.remedy}"
        )
    settings = model.settings or {}
    scale = {"prior_scale": settings["prior_scale"]} if "prior_scale" in settings else {}
    counted = {"canaries": count} if count else {}
    counted |= {"arrays": shapes} | ({} if asked.microbatch is None else {"microbatch": asked.microbatch})
    plan: dict[str, Any] = (
        planned.plan
        | scale
        | counted
        | {"noise": noise, "mechanism": MECHANISM, "budget": budget.to_json(), "epsilon": guarantee.epsilon}
    )
    if verbose:
        print(messages.printed(plan, guarantee), file=sys.stderr)
    begun, mark = None, ""
    if place is not None or key is not None:
        details = {"event": event.to_json(), "model": _digest(model, arrays), "work": job.digest()}
        mark = checkpoints.fingerprint(plan | details, (*arrays, table.present))
        if key is not None and resumed is None:
            source = noises.own(source, mark)
    if place is not None:
        if resumed is not None and resumed.fingerprint != mark:
            raise Refused(
                f"checkpoint {str(place)!r} is of another run: the records or the settings are not those that it began "
                "with; put them back, or delete it and start afresh, which is charged again"
            )
        begun = resumed or _first(job, source, mark, given)
        try:
            checkpoints.write(place, begun)
        except OSError as error:  # as of a full disk: before the charge
            if resumed is None:  # what was written of it holds the key
                with contextlib.suppress(OSError):
                    checkpoints.delete(place)
            raise Refused(
                f"checkpoint {str(place)!r} cannot be written: {error.strerror}; nothing was charged now"
            ) from None
    if account is not None:
        try:
            charge = charges.made(*account, event, begun)
        except Refused:  # an interruption may have come after the charge: then the checkpoint stays
            if place is not None and resumed is None and not charges.paid(*account, begun):
                checkpoints.delete(place)
            raise
        plan |= {"ledger": charges.entry(*account, charge)}
    if begun is not None:
        plan |= {"run": begun.receipt}
    until = planned.until
    spent = None if until is None else lambda step: messages.spent(until(step), guarantee)
    inside = noises.coins(source, count) if count else np.zeros(0, bool)
    data = table if asked.canaries is None else asked.canaries.with_members(inside)
    with shown(job.steps, spent, progress) as report:
        kept = job.execute(data, source, checkpoint=place, resumed=begun, every=checkpoint_seconds, report=report)
    if planned.finish is not None:
        kept = planned.finish(kept, source)
    if planned.histogram is not None:
        plan["individual"] |= planned.histogram(job.observations, source).to_json()
    if asked.accounts.bayesian:
        guarantee = replace(guarantee, typical=plans.typical(job, guarantee))
        if verbose:
            print(messages.typical(guarantee), file=sys.stderr)
    found = job.diagnostics
    if found is not None and verbose:
        print(messages.hidden(found), file=sys.stderr)
    posterior = Posterior(
        draws=_unravelled(model, arrays, kept),
        guarantee=guarantee,
        plan=plan,
        model=own if count else model,
        canaries=None if asked.canaries is None else _told(job, inside, asked.canaries.replaced),
        diagnostics=found,
    )
    canary_requests.answer(posterior)
    return posterior


def _told(job: Any, inside: np.ndarray, replaced: bool) -> Canaries:
    """What the run told of its canaries, and by what it is to be judged: the noise that it was priced for."""
    scores, sums, squares, pulls = np.moveaxis(job.observations.told, 1, 0)
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


def _first(job: plans.Work, source: Any, mark: str, given: bool) -> checkpoints.Checkpoint:
    """Where a run begins: written before the charge, so that a run is charged once however often it is killed."""
    secret = loop.secret(source)
    return checkpoints.Checkpoint(mark, uuid.uuid4().hex, secret, given, 0, job.first_state(), MECHANISM)


def _same_mechanism(place: Path, begun: checkpoints.Checkpoint, account: tuple[Ledger, str] | None) -> None:
    """Refuse to go on with noise or sums that are not those that the run began with."""
    if begun.mechanism == MECHANISM:
        return
    raise Refused(
        f"checkpoint {str(place)!r} was begun under version {begun.mechanism} of the mechanism, and this is version "
        f"{MECHANISM}, with other noise: {charges.standing(account, begun)}; delete it to start afresh, which is "
        "charged again, or resume it with the version of confide that began it"
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
    arrays = checked_data(model, data)
    start, source = _keys("default", key, None)
    asked = Asked(steps, batch_size, None, chains, draws, burn_in)
    job, plan, finish = plans.plain(model, arrays, sampler, asked, start)
    with shown(job.steps, None, progress) as report:
        kept = loop.execute(job, arrays, source, report=report)
    kept = kept if finish is None else finish(kept, source)
    plan |= {"noise": "default"}
    return Posterior(draws=_unravelled(model, arrays, kept), guarantee=None, plan=plan, model=model)


def _keys(noise: Noise, key: Any, resumed: checkpoints.Checkpoint | None) -> tuple[jax.Array, Any]:
    """The key of the starting points, and what the run draws from."""
    if noise == "secure":
        source = SecureSource(None if resumed is None else resumed.key)
        return noises.as_key(int(source.words("start", 0, 0, 1)[0])), source
    if resumed is None:
        whole = noises.as_key(key)
        return noises.derived(whole, "start"), noises.derived(whole, "run")
    words = np.frombuffer(resumed.key, np.uint32)
    return noises.as_key(0), jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def _digest(model: Model, data: tuple[np.ndarray, ...]) -> list[Any]:
    """What the model computes, as text, with the arrays that it holds and where it starts."""
    flat, unravel = plans.unraveller(model, data, noises.as_key(0))
    programs = [*plans.traced(model, data, flat, unravel), *plans.dropping(model, data, flat, unravel)]
    held = [np.asarray(constant).tobytes().hex() for program in programs for constant in plans.constants(program)]
    return [model.name, model.settings, np.asarray(flat).tobytes().hex(), *map(str, programs), *held]


def _unravelled(model: Model, data: tuple[np.ndarray, ...], kept: np.ndarray) -> Any:
    """Flat draws (chains, draws, parameters) as the model reports them."""
    _, unravel = plans.unraveller(model, data, noises.as_key(0))
    chains, draws, size = kept.shape
    every = jax.vmap(lambda flat: model.constrain(unravel(flat)))(kept.reshape(-1, size))
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), every)
