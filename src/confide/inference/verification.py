"""Everything in a stored run that follows from something else in it, computed again and compared.

| field | what it is | how it is recomputed |
|-------|------------|----------------------|
| the request in the plan | options | |
| number of records, shapes, model | declared facts | |
| the rest of the plan, and the priced event | functions | the run is planned again from these, without records |
| noisy counts, sums, matrices, draws of chains | noisy outcomes of the priced event | |
| clip, step sizes and bounds that follow the scale | functions | from the noisy counts |
| positions and roots of scoring | functions | every question is asked again of the stored answers (`replay`) |
| draws of scoring, of noisy moments and of a trace | functions | they are made again |

What cannot be recomputed is listed in `NOT_RECOMPUTED`, and in docs/security.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from confide.inference import baselines, fitting, rehearsal, release_check, requests
from confide.inference.options import Fit
from confide.inference.plans import Plan, stochastic
from confide.inference.plans.scaled_job import ScaledJob
from confide.inference.posterior import Posterior
from confide.inference.posterior_files import AnyRelease, Canaries
from confide.inference.release_check import NOT_STORED
from confide.inference.summaries.runs import Steps
from confide.mechanism.scale import ScaleAnswers
from confide.models.model import Model
from confide.privacy import pricing
from confide.privacy.budget import Budget, Guarantee
from confide.validation import Refused

BOOKKEEPING = ("ledger", "run", "mechanism")  # of a plan: ids, receipts and versions, in which no record enters
LATER = ("request", "calibration", "noise_aware")  # what is added to a plan once the run is over
SCHEMA = ("target", "features", "labels", "norm_bound")  # what `confide fit` adds of a schema
UNSTORED = ("lag_one", "drift")  # of iterates that are released and not stored
OUTCOMES = ("answers", "first_information", "last_information", "sums", "moments")  # noisy, of a release
ASKED = ("root", "positions", "last_position", "places")  # of a release: `replay` asks for them again
CLOSE = 1e-9  # relative: by more, no rounding of another processor moves a number of a plan
NOT_RECOMPUTED = {
    "draws": "the draws themselves, which are the noisy outcome that was paid for",
    "lag_one": "the least correlation of consecutive iterates, to three digits: the iterates are not stored",
    "drift": "by how much the run still moved, to three digits: the iterates are not stored",
    "scores": "the sums that tell of canaries, which are noisy outcomes like the draws",
    "individual": "the histogram of what records spent, which is a noisy outcome",
    "plan": "the plan, as an option or the model is a function of the user's, which no file holds",
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
        found = []
        if self.plan is not None:
            how = "bit for bit" if self.exact else "but for rounding, as on another processor"
            found.append(
                f"The run was planned again from what was asked, without records: all {self.plan} numbers and words of "
                f"the plan and of the priced event are the same, {how}."
            )
        if self.questions > 1:
            rounded = f"; {self.moved} numbers are one grid step apart, as on another processor" if self.moved else ""
            found.append(
                f"All {self.questions} questions were asked again of the stored noisy answers: every position and the "
                f"root follow from the answers before them{rounded}."
            )
        if self.draws == NOT_STORED:
            found.append(
                "The draws were not made again from release.json: their prior is a function, which is not stored."
            )
        elif self.draws is not None:
            found.append(f"The draws were made again from release.json alone, {self.draws}.")
        if self.not_recomputed:
            listed = "; ".join(NOT_RECOMPUTED[name] for name in self.not_recomputed)
            found.append(f"Not recomputed: {listed}.")
        return found

    def to_json(self) -> dict[str, Any]:
        record = {
            "plan": None if self.plan is None else "bit for bit" if self.exact else "but for rounding",
            "questions": self.questions,
            "rounded": self.moved,
            "not_recomputed": [NOT_RECOMPUTED[name] for name in self.not_recomputed],
        }
        return record if self.draws is None else record | {"draws": self.draws}


def verify(posterior: Posterior) -> Verification:
    """Refused in one line, naming the field, where something that follows is not what is stored."""
    guarantee = posterior.guarantee
    if guarantee is None:
        raise Refused("the run has no guarantee: fit it with confide.fit")
    _check_guarantee(posterior, guarantee)
    plan = _check_plan(posterior, guarantee)
    release = release_check.check_release(posterior)
    _check_calibration(posterior)
    missing = [name for name in UNSTORED if posterior.plan.get(name) is not None]
    missing += ["individual"] if "histogram" in str(posterior.plan.get("individual", "")) else []
    missing += ["scores"] if posterior.canaries is not None else []
    missing += ["draws"] if release is None else []
    missing += ["plan"] if plan is None else []
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
    plan, budget = posterior.plan, posterior.plan.get("budget") or {}
    stated = {"epsilon": guarantee.epsilon, "mechanism": guarantee.mechanism}
    for name, value in stated.items():
        if plan.get(name, value) != value:
            raise _changed(name, plan[name], value)
    for name, value in {"delta": guarantee.delta, "neighbours": guarantee.neighbours}.items():
        if budget.get(name, value) != value:
            raise _changed(f"budget.{name}", budget[name], value)


class Planned(NamedTuple):
    numbers: int
    exact: bool


def _check_plan(posterior: Posterior, guarantee: Guarantee) -> Planned | None:
    """The run planned again from its request, the declared facts and its noisy counts; None where that cannot be."""
    stored, model = posterior.plan, posterior.model
    if model is not None and "baseline" in stored.get("request", {}):
        return _check_baseline(model, stored, guarantee)
    given = requests.options_from_json(stored.get("request", {}))
    if model is None or given is None:
        return None
    purchased = _plan_again(model, stored, given, guarantee)
    if purchased is None:
        return None
    plan, purchase = purchased
    summary: Any = purchase.summary
    if isinstance(plan.job, ScaledJob):
        plan.job.follow(ScaleAnswers.from_json(stored["scale"]["answers"]), int(stored["records"]))
    if isinstance(summary, Steps) and plan.describe is not None:
        summary = stochastic.describe_run(summary, plan.job, None)
    expected = summary.to_json()
    if posterior.release is not None:
        expected |= posterior.release.describe(expected.get("scale", {}))
    expected |= {"budget": stored.get("budget"), "epsilon": pricing.verify(guarantee)}
    own = {"plan": expected, "event": plan.event.to_json(), "released": plan.released}
    skipped = (*BOOKKEEPING, *LATER, *UNSTORED, "individual", *(name for name in SCHEMA if "target" in stored))
    kept = {name: value for name, value in stored.items() if name not in skipped}
    own["plan"] = {name: value for name, value in expected.items() if name not in skipped}
    held = {"plan": kept, "event": guarantee.event.to_json(), "released": guarantee.released}
    if posterior.release is not None:
        own["release"], held["release"] = _release_options(plan.job, posterior.release)
    if posterior.canaries is not None:
        own["canaries"], held["canaries"] = _canary_terms(plan, posterior.canaries, guarantee)
    return _compare(_plain(own), _plain(held))


def _check_baseline(model: Model, stored: Mapping[str, Any], guarantee: Guarantee) -> Planned:
    """The same release of no records: whatever is planned of it is the same, and nothing was spent."""
    given = {name: value for name, value in stored["request"].items() if name != "baseline"}
    arrays = tuple(np.zeros((0, *shape), np.float32) for shape in stored["arrays"])
    make = getattr(baselines, stored["request"]["baseline"])
    made = make(model, arrays, _budget(stored), records=int(stored["records"]), verbose=False, **given)
    own, held = (
        {
            "plan": {name: value for name, value in plan.items() if name not in (*BOOKKEEPING, *LATER)},
            "event": promise.event.to_json(),
            "released": promise.released,
        }
        for plan, promise in ((made.plan, made.guarantee), (stored, guarantee))
    )
    return _compare(_plain(own), _plain(held))


def _budget(stored: Mapping[str, Any]) -> Budget:
    found = stored.get("budget") or {}
    return Budget(epsilon=found["epsilon"], delta=found["delta"], neighbours=found["neighbours"])


def _plan_again(model: Model, stored: Mapping[str, Any], given: dict[str, Any], guarantee: Guarantee) -> Any:
    """With arrays of the declared shapes, whose type is not stored: of those that the model knows, the one whose event
    is the one that was priced, or the last."""
    budget, found = _budget(stored), None
    wanted = guarantee.event.to_json()
    single, whole, size = np.float32, np.int32, len(stored["arrays"])
    for kinds in ([single] * size, [*[single] * (size - 1), whole], [whole] * size):
        arrays = [np.zeros((1, *shape), kind) for shape, kind in zip(stored["arrays"], kinds, strict=True)]
        options = Fit(model, tuple(arrays), budget, records=int(stored["records"]), verbose=False, **given)
        try:
            found = fitting.plan_again(options)
        except Refused:
            continue
        if found[0].event.to_json() == wanted:
            break
    return found


def _release_options(job: Any, release: AnyRelease) -> tuple[dict[str, Any], dict[str, Any]]:
    """What release.json repeats of the options: all but noisy outcomes and what was asked for them."""
    own, held = job.make_release(job.first_state()).to_json(), release.to_json()
    kept = [name for name in held if name not in (*OUTCOMES, *ASKED, "inflation")]
    return {name: own[name] for name in kept}, {name: held[name] for name in kept}


def _check_calibration(posterior: Posterior) -> None:
    """How much further from their mean draws are than the likelihood says: the rehearsals are run again."""
    release, stored = posterior.release, posterior.plan.get("calibration")
    if not isinstance(release, rehearsal.SCORING):
        return
    if stored is None:
        if release.inflation != 1:
            raise _changed("release.inflation", release.inflation, 1)
        return
    if release.inflation != stored["inflation"]:
        raise _changed("release.inflation", release.inflation, stored["inflation"])
    if posterior.model is None:
        return
    plain = replace(posterior, release=replace(release, inflation=1.0))
    plain = replace(plain, draws=release_check.make_draws(plain))
    found = rehearsal.rehearse_run(fitting.fit, plain, stored["datasets"], stored["key"]).to_json()
    own = {"calibration": {name: value for name, value in found.items() if name != "seconds"}}
    held = {"calibration": {name: stored.get(name) for name in own["calibration"]}}
    _compare(_plain(own), _plain(held))


def _canary_terms(plan: Plan, canaries: Canaries, guarantee: Guarantee) -> tuple[dict[str, Any], dict[str, Any]]:
    """What canaries are judged by."""
    job: Any = plan.job
    multipliers, share = job.ran.canary_terms()
    own = {
        "steps": job.steps,
        "spread": float(np.sum(np.square(multipliers))),
        "sampling_probability": share,
        "replaced": guarantee.neighbours == "replace-one",
    }
    return own, {name: getattr(canaries, name) for name in own}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=float))


def _compare(own: Any, stored: Any, path: str = "") -> Planned:
    """How many leaves agree; refused where one does not."""
    if isinstance(own, dict) and isinstance(stored, dict):
        if stray := sorted(set(own) ^ set(stored)):
            name = stray[0]
            raise _changed(f"{path}{name}", stored.get(name, "nothing"), own.get(name, "nothing"))
        parts = [_compare(own[name], stored[name], f"{path}{name}.") for name in own]
    elif isinstance(own, list) and isinstance(stored, list) and len(own) == len(stored):
        parts = [
            _compare(one, other, f"{path}{place}.") for place, (one, other) in enumerate(zip(own, stored, strict=True))
        ]
    elif own == stored:
        return Planned(1, True)
    elif _near(own, stored):
        return Planned(1, False)
    else:
        raise _changed(path.removesuffix("."), stored, own)
    return Planned(sum(part.numbers for part in parts), all(part.exact for part in parts))


def _near(one: Any, other: Any) -> bool:
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return numbers and math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=0.0)


def _changed(name: str, stored: Any, recomputed: Any) -> Refused:
    short = [str(value) if len(str(value)) < 40 else f"{str(value)[:37]}..." for value in (stored, recomputed)]
    return Refused(
        f"{name} is {short[0]} in the folder, and recomputing gives {short[1]}: restore the folder as it was written"
    )
