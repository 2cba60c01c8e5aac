"""What plan.json may hold: a closed list of names, and what is known of entries that cannot be planned again.

A run that is planned again has every entry of its plan compared (`verification`). Where an option or the model is a
function of the user's, only names are known, and what the entries repeat of one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import numpy as np

from confide import samplers
from confide.inference import summaries
from confide.inference.comparison import as_json, changed, compare
from confide.inference.linear.release import LinearRelease
from confide.inference.posterior import Posterior
from confide.inference.regression.release import RegressionRelease
from confide.inference.release import PRIORS, Release
from confide.inference.requests import FUNCTION, MAKERS, NAMES, RESTORE
from confide.inference.summaries.releases import VotesSummary
from confide.inference.summaries.runs import Steps
from confide.mechanism.trace import Traced
from confide.privacy.accountants.individual import BINS
from confide.privacy.accountants.pate import MISSED, Figure, FigureRelease, convert
from confide.privacy.budget import Guarantee
from confide.privacy.events import NoisyVotes
from confide.validation import Refused

DIGITS = 3  # of what follows from iterates that are not stored
RUN = ("request", "arrays", "calibration", "noise_aware")  # of any run, beside the fields of its summary
CONDITIONAL = {"scoring": ("constant", "categories", "rehearsals", "features"), "dpvi": ("guide",)}
NESTED = {  # names within entries, in each of which all or some of them are
    "budget": ("epsilon", "delta", "neighbours"),
    "ledger": ("dataset", "receipt", "seal", "time", "budget", "composition", "share", "left"),
    "scale": ("noise", "declared", "norm", "answers", "count", "seen"),
    "individual": ("stretch", "histogram", "edges", "counts", "noise"),
    "noise_aware": ("approximation", "chains"),
    "labelled": ("rows", "labels"),
    "figure": ("epsilon", "delta", "order", "log_moment", "sentence"),
    "calibration": (
        *("datasets", "probability", "coverage", "coverage_error", "inflation", "widths", "errors"),
        *("log_loss", "log_loss_of_the_truth", "seconds", "key"),
    ),
}
REPEATED = ("steps", "batch_size", "chains", "burn_in", "canaries")  # options that a plan repeats as they were given


@cache
def sampler_entries() -> dict[str, set[str]]:
    """Names of the entries of a plan that are settings of a sampler, by the name of the sampler."""
    made = [getattr(samplers, name)() for name in MAKERS]
    return {one.name: {*one.to_json(), *CONDITIONAL.get(one.name, ()), "companion"} for one in made}


def check_names(stored: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Refused where an entry is there that no run of this kind stores; `described` are those that describe the data."""
    summary = summaries.from_json({name: value for name, value in stored.items() if name != "noise_aware"})
    if type(summary) is summaries.Summary:
        raise Refused(f"plan.json is of no run that confide makes: {RESTORE}")
    sampler = stored.get("sampler", "")
    known = {*type(summary).__dataclass_fields__, *RUN, *described} - {"more"}
    known |= sampler_entries().get(sampler, set())
    if sampler == "hybrid":  # with the settings of the sampler that goes on from the first draw
        known |= sampler_entries().get(stored["then"], set())
    named = sampler in sampler_entries() or sampler in summaries.NAMED
    if named and (unknown := sorted(set(stored) - known)):
        raise changed(f"plan.{unknown[0]}", stored[unknown[0]], "nothing")
    for name, inner in NESTED.items():
        entry = stored.get(name)
        if isinstance(entry, Mapping) and (unknown := sorted(set(entry) - set(inner))):
            raise changed(f"plan.{name}.{unknown[0]}", entry[unknown[0]], "nothing")
        if entry is not None and not isinstance(entry, Mapping):
            raise changed(f"plan.{name}", entry, "entries by their names")
    _check_run(stored)


def _check_run(stored: Mapping[str, Any]) -> None:
    """Ids and receipts, in which no record enters: their form is all that is known of them."""
    run = stored.get("run")
    if run is not None and not (isinstance(run, str) and len(run) == 32 and set(run) <= set("0123456789abcdef")):
        raise changed("plan.run", run, "32 hexadecimal digits")
    if (ledger := stored.get("ledger")) is not None and set(ledger) != set(NESTED["ledger"]):
        raise changed("plan.ledger", ledger, ", ".join(NESTED["ledger"]))


def check_draws(posterior: Posterior) -> None:
    """The draws are finite numbers, as many as the plan says; those that know of the noise were made of a trace."""
    if "noise_aware" in posterior.plan and posterior.trace is None:
        raise changed("plan.noise_aware", posterior.plan["noise_aware"], "nothing, without a trace")
    expected = (posterior.plan["chains"], posterior.plan["draws"])
    for leaf in jax.tree.leaves(posterior.draws):
        if np.shape(leaf)[:2] != expected:
            raise changed("posterior.nc", f"{np.shape(leaf)[:2]} chains and draws", expected)
        if np.asarray(leaf).dtype.kind not in "fiu" or not np.all(np.isfinite(leaf)):
            raise Refused(f"posterior.nc holds draws that are no finite numbers: {RESTORE}")


def check_diagnostics(stored: Mapping[str, Any], correlation: bool, drift: bool) -> None:
    """What follows from iterates that are not stored: only where a run has it, and with three digits."""
    allowed = {"lag_one": correlation, "drift": drift}
    for name, low, high in (("lag_one", -1.0, 1.0), ("drift", 0.0, math.inf)):
        value = stored.get(name)
        if value is None:
            continue
        if not allowed[name]:
            raise changed(f"plan.{name}", value, "nothing")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high or float(f"{value:.{DIGITS}g}") != value:
            raise changed(f"plan.{name}", value, f"a number between {low:g} and {high:g} with {DIGITS} digits")


def check_counts(individual: Any) -> list[float]:
    """The noisy counts of a histogram of what records spent."""
    counts: Any = individual.get("counts") if isinstance(individual, Mapping) else None
    numbers = isinstance(counts, list) and all(isinstance(count, (int, float)) for count in counts)
    if not numbers or len(counts) != BINS or not np.all(np.isfinite(counts)):
        raise changed("plan.individual.counts", counts, f"{BINS} noisy counts")
    return counts


def check_functions(posterior: Posterior, given: Mapping[str, Any] | None) -> None:
    """Where a run cannot be planned again, it stores why: the model or an option is a function of the user's.

    `given` are the options, None where one of them is such a function."""
    stored, release, request = posterior.plan, posterior.release, posterior.plan["request"]
    if posterior.model is None:
        prior = release.prior["kind"] if isinstance(release, RegressionRelease) else getattr(release, "prior", None)
        linear = isinstance(release, (Release, LinearRelease)) and prior in PRIORS
        if stored.get("prior_scale") is not None or linear or prior == "encoded":
            raise Refused(f"plan.json holds the model without its settings, which this run has: {RESTORE}")
    sampler, name = request["sampler"], stored.get("sampler")
    makers = {NAMES.get(known, known): known for known in sampler_entries()}
    if sampler["name"] != FUNCTION and makers.get(sampler["name"]) != name:
        raise changed("plan.sampler", name, makers.get(sampler["name"]))
    if sampler["name"] == FUNCTION and name in sampler_entries() and "companion" not in stored:
        raise changed("plan.request.sampler.name", FUNCTION, name)
    if given is None and sampler["name"] != FUNCTION and not _are_marked(stored, sampler):
        raise Refused(f"plan.request.sampler holds a function where the plan holds none: {RESTORE}")
    for option in REPEATED:
        if option in request and stored.get(option) != request[option]:
            raise changed(f"plan.{option}", stored.get(option), request[option])
    check_diagnostics(stored, isinstance(summaries.from_json(stored), Steps), name == "dpvi")
    individual = [entry for entry in request.get("account", ()) if isinstance(entry, Mapping)]
    if stored.get("individual") is not None:
        account = {key: stored["individual"][key] for key in ("stretch", "histogram")}
        compare(as_json(individual), [as_json(account)], "plan.individual.")
        if "counts" in stored["individual"]:
            check_counts(stored["individual"])


def _are_marked(stored: Mapping[str, Any], sampler: Mapping[str, Any]) -> bool:
    """Whether the plan itself says that a schedule or guide is a function; of a step size it holds the numbers."""
    parts = [part for part in sampler.values() if isinstance(part, Mapping)]
    if parts:
        return True
    schedule = (sampler.get("schedule") == FUNCTION) == (stored.get("schedule") == FUNCTION)
    return schedule and (sampler.get("guide") == FUNCTION) == ("guide" in stored)


def check_votes(stored: Mapping[str, Any], guarantee: Guarantee) -> None:
    """What a plan of PATE repeats of the event that was priced, and of itself."""
    event = guarantee.event
    if not isinstance(event, NoisyVotes):
        raise changed("plan.sampler", VotesSummary.name, type(event).__name__)
    priced = event.fields() | {"queries": event.queries or None}
    compare(as_json(priced), {name: stored.get(name) for name in priced}, "plan.")
    labelled, rows = stored.get("labelled") or {}, stored["public_rows"]
    places, labels = labelled.get("rows", []), labelled.get("labels", [])
    if len(places) != len(labels) or len(places) > event.answers or not all(0 <= place < rows for place in places):
        raise changed("plan.labelled", labelled, f"at most {event.answers} of {rows} public rows")
    if (stored["account"] == "data-dependent") != (event.figure_noise is not None):
        raise changed("plan.account", stored["account"], "what was priced")
    if (stored.get("figure") is not None) != (event.figure_noise is not None):
        raise changed("plan.figure", stored.get("figure"), "what was priced")
    if (figure := stored.get("figure")) is not None:
        order = FigureRelease.planned(event, guarantee.delta).order
        spent = min(convert(order, figure["log_moment"], (1 - MISSED) * guarantee.delta), guarantee.epsilon)
        expected = Figure(spent, guarantee.delta, order, figure["log_moment"])
        compare(as_json(expected.to_json()), figure, "plan.figure.")
    if guarantee.released != event.released():
        raise changed("released", guarantee.released, event.released())


def check_trace(posterior: Posterior, guarantee: Guarantee) -> None:
    """What trace.json repeats of the plan and of the priced event; its moments are noisy outcomes."""
    stored, trace = posterior.plan, posterior.trace
    if trace is None:
        return
    if stored.get("gradient_bound") is None:
        raise changed("trace.json", "a trace", "nothing, without a gradient_bound")
    q, chains = trace.sampling_probability, (stored.get("noise_aware") or stored)["chains"]
    priced = _values(guarantee.event.to_json(), "sampling_probability") or [1.0]
    made = Traced(steps=stored["steps"], dimension=stored["parameters"], sampling_probability=q)
    size = 1 + 2 * stored["parameters"]
    expected = {
        "records": stored["records"],
        "gradient_bound": stored["gradient_bound"],
        "lengths": made.lengths().tolist(),
        "moments": [chains, made.parts, size, size],
        "example": [list(shape) for shape in stored["arrays"]],
        "sampling_probability": q if q in priced else priced[0],
    }
    held = {
        "records": trace.records,
        "gradient_bound": trace.gradient_bound,
        "lengths": trace.lengths.tolist(),
        "moments": list(trace.moments.shape),
        "example": [list(shape) for shape, _ in trace.example],
        "sampling_probability": q,
    }
    compare(as_json(expected), as_json(held), "trace.")
    for _, kind in trace.example:
        if kind not in ("float32", "int32"):
            raise changed("trace.example", kind, "float32 or int32")
    if not np.all(np.isfinite(trace.moments)):
        raise changed("trace.moments", "not finite", "finite numbers")


def _values(record: Any, name: str) -> list[Any]:
    """The values of all entries of this name, however deep they lie."""
    if isinstance(record, Mapping):
        inner = [value for entry in record.values() for value in _values(entry, name)]
        return [*([record[name]] if name in record else []), *inner]
    if isinstance(record, (list, tuple)):
        return [value for entry in record for value in _values(entry, name)]
    return []
