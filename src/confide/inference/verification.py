"""Everything in a stored run that follows from something else in it, computed again and compared.

| field | what it is | how it is recomputed |
|-------|------------|----------------------|
| the request in the plan | options | read and stored again: no option may be there that a run does not store |
| number of records, shapes, model | declared facts | |
| the rest of the plan, and the priced event | functions | the run is planned again from these, without records |
| noisy counts, sums, matrices, draws of chains | noisy outcomes of the priced event | |
| clip, step sizes and bounds that follow the scale | functions | from the noisy counts |
| positions and roots of scoring | functions | every question is asked again of the stored answers (`replay`) |
| draws of scoring, of noisy moments and of a trace | functions | they are made again |

A plan that cannot be made again is refused, unless the run stores that an option, or the model, is a function of the
user's (`stored_plans.check_functions`). What cannot be recomputed is listed in `NOT_RECOMPUTED`, and in
docs/security.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from confide.inference import baselines, fitting, rehearsal, release_check, requests, stored_plans
from confide.inference.comparison import Agreement, as_json, changed, compare
from confide.inference.options import Fit
from confide.inference.plans import Plan, stochastic
from confide.inference.plans.scaled_job import ScaledJob
from confide.inference.posterior import Posterior
from confide.inference.posterior_files import AnyRelease, Canaries
from confide.inference.release_check import NOT_STORED
from confide.inference.requests import RESTORE
from confide.inference.summaries.releases import VotesSummary
from confide.inference.summaries.runs import Steps
from confide.inference.traces import APPROXIMATION
from confide.mechanism.scale import ScaleAnswers
from confide.models.model import Model
from confide.privacy import pricing
from confide.privacy.accountants import individual
from confide.privacy.budget import Budget, Guarantee
from confide.validation import Refused

BOOKKEEPING = ("ledger", "run", "mechanism")  # of a plan: ids, receipts and versions, in which no record enters
UNSTORED = ("lag_one", "drift")  # of iterates that are released and not stored
LATER = ("request", "calibration", "noise_aware")  # entries of a plan that are compared by themselves
OUTCOMES = ("answers", "first_information", "last_information", "sums", "moments")  # noisy, of a release
ASKED = ("root", "positions", "last_position", "places")  # of a release: `replay` asks for them again
NOT_RECOMPUTED = {
    "draws": "the draws themselves, which are the noisy outcome that was paid for",
    "lag_one": "the least correlation of consecutive iterates, to three digits: the iterates are not stored",
    "drift": "by how much the run still moved, to three digits: the iterates are not stored",
    "scores": "the sums that tell of canaries, which are noisy outcomes like the draws",
    "individual": "the histogram of what records spent, which is a noisy outcome",
    "plan": "the plan, as an option or the model is a function of the user's, which no file holds",
    "votes": "the plan of the vote, whose public rows are not stored; its noise is the priced one",
    "noise_aware": "draws that know of the noise: they follow from the trace, the model and a key that is not stored",
    "made_up": "what audits on made-up tables saw: their programs are run again by 'confide audit --made-up'",
    "rehearsal": "rehearsal.json, which 'confide rehearse' writes again",
    "report": "report.html, which 'confide report' writes again from what is verified here",
}


class Verification(NamedTuple):
    """What was recomputed of a run, and compared with what is stored."""

    plan: int | None  # numbers of the plan and the priced event; None: it could not be planned again
    exact: bool  # whether all of them are the same bit for bit
    questions: int  # of scoring, which follow from the noisy answers before them
    moved: int  # numbers in them that are rounded to the other side
    draws: str | None  # how draws are those that the release makes; None where there is none
    not_recomputed: tuple[str, ...]  # of `NOT_RECOMPUTED`

    def sentences(self) -> list[str]:
        """What was recomputed, what was compared, and what cannot be."""
        sentences = []
        if self.plan is not None:
            how = "bit for bit" if self.exact else "but for rounding, as on another processor"
            sentences.append(
                f"The run was planned again from what was asked, without records: all {self.plan} numbers and words of "
                f"the plan and of the priced event are the same, {how}."
            )
        if self.questions > 1:
            rounded = f"; {self.moved} numbers are one grid step apart, as on another processor" if self.moved else ""
            sentences.append(
                f"All {self.questions} questions were asked again of the stored noisy answers: every position and the "
                f"root follow from the answers before them{rounded}."
            )
        if self.draws == NOT_STORED:
            sentences.append(
                "The draws were not made again from release.json: their prior is a function, which is not stored."
            )
        elif self.draws is not None:
            sentences.append(f"The draws were made again from release.json alone, {self.draws}.")
        if self.not_recomputed:
            listed = "; ".join(NOT_RECOMPUTED[name] for name in self.not_recomputed)
            sentences.append(f"Not recomputed: {listed}.")
        return sentences

    def to_json(self) -> dict[str, Any]:
        record = {
            "plan": None if self.plan is None else "bit for bit" if self.exact else "but for rounding",
            "questions": self.questions,
            "rounded": self.moved,
            "not_recomputed": [NOT_RECOMPUTED[name] for name in self.not_recomputed],
        }
        return record if self.draws is None else record | {"draws": self.draws}


def verify(posterior: Posterior, described: Mapping[str, Any] | None = None) -> Verification:
    """Refused in one line, naming the field, where something that follows is not what is stored.

    `described` is what the plan says of the data beside what every run stores, from the schema or from the images."""
    guarantee, stored = posterior.guarantee, posterior.plan
    if guarantee is None:
        raise Refused("the run has no guarantee: fit it with confide.fit")
    _check_guarantee(posterior, guarantee)
    entries: dict[str, Any] = as_json(described or {})
    compare(entries, as_json({name: stored[name] for name in entries if name in stored}), "plan.")
    stored_plans.check_names(stored, entries)
    stored_plans.check_draws(posterior)
    stored_plans.check_trace(posterior, guarantee)
    release = release_check.check_release(posterior)
    plan = _check_plan(posterior, guarantee, tuple(entries))
    _check_calibration(posterior)
    missing = [name for name in UNSTORED if stored.get(name) is not None]
    missing += ["individual"] if "counts" in (stored.get("individual") or {}) else []
    missing += ["scores"] if posterior.canaries is not None else []
    missing += ["noise_aware" if "noise_aware" in stored else "draws"] if release is None else []
    missing += [] if plan is not None else ["votes" if stored.get("sampler") == VotesSummary.name else "plan"]
    return Verification(
        None if plan is None else plan.numbers,
        plan is None or plan.exact,
        0 if release is None else release.questions,
        0 if release is None else release.moved,
        None if release is None else release.draws,
        tuple(missing),
    )


def _check_guarantee(posterior: Posterior, guarantee: Guarantee) -> None:
    """What the plan repeats of the guarantee."""
    plan, budget = posterior.plan, _budget(posterior.plan)
    stated = {"epsilon": guarantee.epsilon, "mechanism": guarantee.mechanism}
    compare(stated, {name: plan[name] for name in stated if name in plan}, "plan.")
    compare(budget.to_json(), as_json(plan["budget"]), "plan.budget.")
    for name, value in {"delta": guarantee.delta, "neighbours": guarantee.neighbours}.items():
        if getattr(budget, name) != value:
            raise changed(f"plan.budget.{name}", getattr(budget, name), value)


def _check_plan(posterior: Posterior, guarantee: Guarantee, described: tuple[str, ...]) -> Agreement | None:
    """The run planned again from its request, the declared facts and its noisy counts; None where that cannot be."""
    stored, model = posterior.plan, posterior.model
    if stored.get("sampler") == VotesSummary.name:
        stored_plans.check_votes(stored, guarantee)
        return None
    request = stored.get("request")
    if isinstance(request, Mapping) and "baseline" in request:
        return _check_baseline(model, stored, guarantee, described)
    given = requests.options_from_json(request)  # type: ignore[arg-type]
    if model is None or given is None:
        stored_plans.check_functions(posterior, given)
        return None
    options, plan, purchase = _plan_again(model, stored, given, guarantee)
    compare(as_json(requests.to_json(options)), as_json(request), "plan.request.")
    expected, held = _plan_entries(posterior, plan, purchase, given), dict(stored)
    expected |= {"budget": stored["budget"], "epsilon": pricing.verify(guarantee)}
    skipped = (*BOOKKEEPING, *LATER, *UNSTORED, *described)
    expected, held = ({name: value for name, value in e.items() if name not in skipped} for e in (expected, held))
    recomputed: dict[str, Any] = {"plan": expected, "event": plan.event.to_json(), "released": plan.released}
    kept: dict[str, Any] = {"plan": held, "event": guarantee.event.to_json(), "released": guarantee.released}
    if posterior.release is not None:
        recomputed["release"], kept["release"] = _release_options(plan.job, posterior.release)
    if posterior.canaries is not None:
        recomputed["canaries"], kept["canaries"] = _canary_terms(plan, posterior.canaries, guarantee)
    return compare(as_json(recomputed), as_json(kept))


def _plan_entries(posterior: Posterior, plan: Plan, purchase: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the plan, with what follows from noisy outcomes once the run is over."""
    stored, summary = posterior.plan, purchase.summary
    if isinstance(plan.job, ScaledJob):
        plan.job.follow(ScaleAnswers.from_json(stored["scale"]["answers"]), int(stored["records"]))
    by_steps = isinstance(summary, Steps) and plan.describe is not None
    drift = by_steps and given["sampler"].snapshots(summary.steps) is not None
    stored_plans.check_diagnostics(stored, by_steps, drift)
    if by_steps:
        job: Any = plan.job
        summary = stochastic.describe_run(summary, job, None)
    entries = summary.to_json()
    if posterior.release is not None:
        entries |= posterior.release.describe(entries.get("scale") or {})
    if plan.histogram is not None:
        counted = {"edges": individual.edges(_budget(stored)).tolist(), "noise": plan.histogram.noise}
        entries["individual"] |= counted | {"counts": stored_plans.check_counts(stored.get("individual"))}
    if "noise_aware" in stored:
        made = {"approximation": APPROXIMATION, "chains": entries["chains"]}
        compare(made, stored["noise_aware"], "plan.noise_aware.")
        entries |= {"chains": 1, "draws": stored["draws"]}
    return entries


def _check_baseline(
    model: Model | None, stored: Mapping[str, Any], guarantee: Guarantee, described: tuple[str, ...]
) -> Agreement:
    """The same release of no records: whatever is planned of it is the same, and nothing was spent."""
    name, given = stored["request"]["baseline"], {k: v for k, v in stored["request"].items() if k != "baseline"}
    if model is None or name not in baselines.__all__ or name == VotesSummary.name:
        raise Refused(f"plan.request.baseline is {name!r}, and the model is none of confide's: {RESTORE}")
    arrays = tuple(np.zeros((0, *shape), np.float32) for shape in stored["arrays"])
    made = getattr(baselines, name)(
        model, arrays, _budget(stored), records=int(stored["records"]), verbose=False, **given
    )
    skipped = (*BOOKKEEPING, *described)
    recomputed, held = (
        {
            "plan": {name: value for name, value in plan.items() if name not in skipped},
            "event": promise.event.to_json(),
            "released": promise.released,
        }
        for plan, promise in ((made.plan, made.guarantee), (stored, guarantee))
    )
    return compare(as_json(recomputed), as_json(held))


def _budget(stored: Mapping[str, Any]) -> Budget:
    budget = stored.get("budget")
    if not isinstance(budget, Mapping) or set(budget) != {"epsilon", "delta", "neighbours"}:
        raise changed("plan.budget", budget, "epsilon, delta and neighbours")
    return Budget(**budget)


def _plan_again(
    model: Model, stored: Mapping[str, Any], given: dict[str, Any], guarantee: Guarantee
) -> tuple[Fit, Plan, Any]:
    """With arrays of the declared shapes, whose type is not stored: of those that the model knows, the one whose event
    is the one that was priced, or the last."""
    budget, planned, reason = _budget(stored), None, None
    wanted = guarantee.event.to_json()
    single, integer, size = np.float32, np.int32, len(stored["arrays"])
    for kinds in ([single] * size, [*[single] * (size - 1), integer], [integer] * size):
        arrays = [np.zeros((1, *shape), kind) for shape, kind in zip(stored["arrays"], kinds, strict=True)]
        options = Fit(model, tuple(arrays), budget, records=int(stored["records"]), verbose=False, **given)
        try:
            planned = (options, *fitting.plan_again(options))
        except Refused as refusal:
            reason = reason or refusal
            continue
        if planned[1].event.to_json() == wanted:
            break
    if planned is None:
        raise Refused(f"the run cannot be planned again from plan.json, since a run of this is refused ({reason})")
    return planned


def _release_options(job: Any, release: AnyRelease) -> tuple[dict[str, Any], dict[str, Any]]:
    """What release.json repeats of the options: all but noisy outcomes and what was asked for them."""
    planned, held = job.make_release(job.first_state()).to_json(), release.to_json()
    kept = [name for name in held if name not in (*OUTCOMES, *ASKED, "inflation")]
    return {name: planned[name] for name in kept}, {name: held[name] for name in kept}


def _check_calibration(posterior: Posterior) -> None:
    """How much further from their mean draws are than the likelihood says: the rehearsals are run again."""
    release, stored = posterior.release, posterior.plan.get("calibration")
    if not isinstance(release, rehearsal.SCORING):
        if stored is not None:
            raise changed("plan.calibration", stored, "nothing")
        return
    rehearsals = posterior.plan.get("request", {}).get("sampler", {}).get("rehearsals", 0)
    inflation = 1 if stored is None else stored["inflation"]
    if (0 if stored is None else stored["datasets"]) != rehearsals:
        raise changed("plan.calibration", stored, f"{rehearsals} rehearsals")
    if release.inflation != inflation:
        raise changed("release.inflation", release.inflation, inflation)
    if stored is None or posterior.model is None:
        return
    plain = replace(posterior, release=replace(release, inflation=1.0))
    plain = replace(plain, draws=release_check.make_draws(plain))
    again = rehearsal.rehearse_run(fitting.fit, plain, stored["datasets"], 0).to_json()
    compare(as_json(again | {"seconds": stored.get("seconds"), "key": 0}), as_json(stored), "plan.calibration.")


def _canary_terms(plan: Plan, canaries: Canaries, guarantee: Guarantee) -> tuple[dict[str, Any], dict[str, Any]]:
    """What canaries are judged by."""
    job: Any = plan.job
    multipliers, share = job.ran.canary_terms()
    terms = {
        "steps": len(multipliers),
        "spread": float(np.sum(np.square(multipliers))),
        "sampling_probability": share,
        "replaced": guarantee.neighbours == "replace-one",
    }
    return terms, {name: getattr(canaries, name) for name in terms}
