"""Audits of one run on made-up tables that were repeated: all are kept, and judged together.

The k-th audit has 1 / (k (k + 1)) of the level (`made_up_result.share`), and these parts add up to one. The claim is
refuted, or the mechanism found not to be as priced, where any of the audits says so at its own part. By the union bound
an honest run is so treated with a probability of the level at most, however many audits there are, whatever they depend
on, and whether somebody repeats them until the claim is refuted or until it is not: a refutation stays. The p-value of
all is the least of p_k / share(k), and the lower bound the largest of theirs, each of which holds at its own part.

What this cannot know: audits whose files were removed, or that were made by calls in Python and not kept, and seeds
that were chosen by what they show.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from confide.audits.made_up_result import FORMAT, PATTERN, MadeUp, judgement
from confide.audits.wording import bound_sentence, verdict
from confide.data import atomic_files
from confide.inference.posterior import Posterior
from confide.validation import Refused

SEVERITY = ("claim refuted", "not as priced", "suspect", "not refuted")


def load(folder: str | os.PathLike[str], posterior: Posterior) -> list[dict[str, Any]]:
    """The audits of this run that are kept in its folder, in the order in which they were made."""
    records: list[dict[str, Any]] = []
    while (path := Path(folder) / PATTERN.format(len(records) + 1)).exists():
        records.append(_read(path, posterior))
    beyond = sorted(path.name for path in Path(folder).glob(PATTERN.format("*")))
    if len(beyond) > len(records):
        raise Refused(f"{str(folder)!r} lacks {PATTERN.format(len(records) + 1)}, an audit of this run: put it back")
    return records


def _read(path: Path, posterior: Posterior) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] == FORMAT and record["run"] == posterior.plan.get("run", ""):
            return record
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise Refused(f"{str(path)!r} is not an audit of this run: restore the file that 'confide audit --made-up' wrote")


def check_confidence(earlier: list[dict[str, Any]], confidence: float) -> None:
    """Audits that are judged together need one level."""
    for record in earlier:
        if record["confidence"] != confidence:
            raise Refused(
                f"earlier audits of this run have the confidence {record['confidence']:g}: give --confidence "
                f"{record['confidence']:g}, since all are judged together"
            )


def same_result(earlier: list[dict[str, Any]], found: MadeUp) -> int | None:
    """The number of an earlier audit with the same seed and the same result, which this one adds nothing to."""
    settings = ("seed", "repetitions", "steps", "tests")
    for record in earlier:
        if all(record[name] == getattr(found, name) for name in settings):
            return record["number"]
    return None


def save(found: MadeUp, folder: str | os.PathLike[str]) -> Path:
    """Write the result into the folder of the run, beside the earlier ones."""
    path = Path(folder) / PATTERN.format(found.number)
    if path.exists():
        raise Refused(f"{str(path)!r} exists: another audit of this run ended meanwhile; audit it again")
    with atomic_files.write_text(path) as file:
        json.dump(found.to_json(), file, indent=2, allow_nan=False, default=float)
        file.write("\n")
    return path


def combine(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """One result of all audits of a run, in the form of a single one; `audits` says how many there are."""
    if not records:
        return None
    leading = min(records, key=lambda record: (SEVERITY.index(record["verdict"]), record["p_value"]))
    p_values = {name: min(record[name] for record in records) for name in ("p_value", "claim_p_value")}
    ruling = verdict(**p_values, confidence=leading["confidence"])
    refuted = ruling == "claim refuted"
    together = (
        leading | p_values | {name: max(record[name] for record in records) for name in ("bound", "general_bound")}
    )
    together |= {
        "audits": len(records),
        "seeds": [record["seed"] for record in records],
        "verdict": ruling,
        "tested": leading["tested"] if refuted else max(record["tested"] for record in records),
    }
    if len(records) > 1:
        together |= _sentences(records, together)
    return together


def _sentences(records: list[dict[str, Any]], together: dict[str, Any]) -> dict[str, Any]:
    seeds, ruling = ", ".join(str(seed) for seed in together["seeds"]), together["verdict"]
    p_value = together["claim_p_value" if ruling == "claim refuted" else "p_value"]
    said = judgement(ruling, together["why"], p_value, together["confidence"], len(records))
    largest = max(records, key=lambda record: record["repetitions"] * record["steps"])
    bound = bound_sentence(together["confidence"], together["bound"], together["general_bound"], together["tested"])
    opening = (
        f"Claimed: epsilon {together['claimed']:.4g} at delta {together['delta']:.3g}. {len(records)} audits of this "
        f"run were made on made-up tables (seeds {seeds}); they share one level and are judged together. No real "
        "record was read."
    )
    power = f"Of the audit with seed {largest['seed']}: {largest['power']}"
    return {
        "sentences": [opening, bound, said, power, together["assumption"]],
        "sentence": f"{said} {power}",
        "power": power,
    }
