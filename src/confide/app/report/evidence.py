"""What an audit shows, as data: the claim and lower bounds on one scale, the curve of the attack, and its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from confide.audits import made_up_scoring, program
from confide.audits.wording import MEANINGS, percent
from confide.privacy.accountants.profiles import Profile
from confide.validation import Refused

POINTS = 121  # of the curve that the claim allows
SAID = {
    "not refuted": ("good", "Nothing was found against the claim."),
    "suspect": ("fair", "The claim is in doubt."),
    "not as priced": ("bad", "The run is not the one that was priced."),
    "claim refuted": ("bad", "The claim is refuted."),
}


class Words(NamedTuple):
    """What an audit of one kind is called, and what it can see and what it cannot."""

    title: str
    found: str  # those that an attack is to find
    inside: str
    outside: str
    sees: str
    blind: str


WORDS = {
    "canaries": Words(
        "By canaries",
        "canaries",
        "canaries that were in",
        "canaries that were not",
        "the run itself, as it ran: noise, sampling and clipping on the canaries' own parameters, and between steps "
        "and chains.",
        "how the records themselves were cut and drawn into batches, and what noise the model's own parameters got.",
    ),
    "records": Words(
        "By records",
        "members",
        "rows that were fitted",
        "other rows",
        "whether what the finished run predicts tells rows that were fitted from others, by the attacks shown here.",
        "what a better attack, or one on the weights, would find; worst cases, since these rows are ordinary; and it "
        "takes both kinds of rows for drawn alike.",
    ),
    "made-up": Words(
        "By made-up tables",
        "runs with the record",
        "runs with the record",
        "runs without it, or with the other one",
        "the noisy sums of the run's program on worst-case tables: noise in every parameter, in every step that was "
        "kept and between them, what one record adds at three places, how batches are drawn and that all in them count "
        "whole times, and whether neighbouring tables are told apart more often than the claim allows.",
        "the run itself: its key, its records, its machine, and whatever was done to it beside the settings in its "
        "plan; what is made of the noisy sums, or released beside them; nor what happens only to tables unlike those "
        "that were made up.",
    ),
    "made-up scoring": Words(
        "By made-up tables",
        "runs with the record",
        "runs with the record",
        "runs without it, or with the other one",
        "all that the run's program asks, put again to worst-case tables: the noise of scale, information and sums of "
        "scores, in every number and between them; how far one record of any length and outcome moves each; that "
        "nothing is asked that was not priced, and that all that is published follows from the answers; and whether "
        "neighbouring tables are told apart more often than the claim allows.",
        "the run itself: its key, its records, its machine, and whatever was done to it beside the settings in its "
        "plan; what is released beside release.json and the draws; nor what happens only to tables unlike those that "
        "were made up.",
    ),
}


TESTS = {"made-up": program.MEANINGS, "made-up scoring": made_up_scoring.MEANINGS}  # what they find


class Mark(NamedTuple):
    """One epsilon: what is claimed at most, what was shown at least, or what could have been shown."""

    kind: str  # "claim", "shown" or "reach"
    name: str
    meaning: str
    epsilon: float


class Tested(NamedTuple):
    meaning: str  # what it would have found
    p_value: float


class Attack(NamedTuple):
    name: str
    auc: float
    f1: float | None
    accuracy: float | None
    found: list[float]  # at each of the rates that are told


@dataclass(frozen=True, kw_only=True)
class Evidence:
    kind: str  # of WORDS
    words: Words
    members: int
    others: int
    colour: str  # of the verdict: "good", "fair" or "bad"
    verdict: str
    sentence: str  # of the verdict, in full
    assumed: str
    marks: list[Mark]
    tests: list[Tested]  # what the verdict rests on
    level: str  # the confidence of the verdict and of the bound
    audits: int  # how many audits of this kind were made of the run, and judged together
    rates: list[float]  # false alarms
    found: list[float]
    low: list[float]  # a band that holds the true curve: never above the claim's where the claim is not refuted
    high: list[float]
    allowed: list[tuple[float, float]]  # false alarms, and the most that the claim lets an attack find
    edges: list[float]  # of the scores' bins
    member_counts: list[int]
    other_counts: list[int]
    attacks: list[Attack]
    told: list[float]  # the rates at which attacks are compared, and what is found and allowed there
    found_at: list[float]
    allowed_at: list[float]


def evidence(record: dict[str, Any], priced: Profile, attacks: list[dict[str, Any]] | None = None) -> Evidence:
    """From the JSON form of an audit, and of other attacks that are shown beside it."""
    try:
        return _evidence(record, priced, attacks or [])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused("the audit cannot be read: run 'confide audit' again") from None


def _evidence(record: dict[str, Any], priced: Profile, attacks: list[dict[str, Any]]) -> Evidence:
    scores, kind = record["scores"], record.get("kind", "canaries" if record["canaries"] else "records")
    meanings = TESTS.get(kind, MEANINGS)
    curve, bins = scores["roc"], scores["histogram"]
    colour, verdict = SAID[record["verdict"]]
    sentence, assumed = record["sentence"], record["assumption"]
    members, others = int(scores["members"]), int(scores["nonmembers"])
    rates = np.geomspace(lowest(members, others), 1.0, POINTS)
    told = [float(rate) for rate in scores["tpr_at_fpr"]]
    shown = _numbers(curve["fpr"])
    most = 1 - priced.trade_off([*rates, *told, *shown])
    low = np.array(_numbers(curve["low"]))
    if record["verdict"] != "claim refuted":  # lower, the band still holds the curve
        low = np.minimum(low, most[-len(shown) :])
    return Evidence(
        kind=kind,
        words=WORDS[kind],
        members=members,
        others=others,
        colour=colour,
        verdict=verdict,
        sentence=str(sentence),
        assumed=str(assumed),
        marks=_marks(record, kind),
        tests=[Tested(meanings[name], float(p_value)) for name, p_value in record["tests"].items()],
        level=percent(float(record["confidence"])),
        audits=int(record.get("audits", 1)),
        rates=shown,
        found=_numbers(curve["tpr"]),
        low=low.tolist(),
        high=_numbers(curve["high"]),
        allowed=list(zip(rates.tolist(), most[:POINTS].tolist(), strict=True)),
        edges=_numbers(bins["edges"]),
        member_counts=[int(count) for count in bins["members"]],
        other_counts=[int(count) for count in bins["nonmembers"]],
        attacks=[] if kind != "records" else [_attack(one) for one in (scores, *attacks)],
        told=told,
        found_at=_numbers(scores["tpr_at_fpr"].values()),
        allowed_at=most[POINTS : POINTS + len(told)].tolist(),
    )


def lowest(members: int, others: int) -> float:
    """The power of ten at or below the least rate that so many can show."""
    return 10.0 ** math.floor(math.log10(1 / max(members, others, 10)) + 1e-9)


def _marks(record: dict[str, Any], kind: str) -> list[Mark]:
    """The claim, or the part of it that was looked at, and the lower bound that the verdict goes with."""
    part, delta = record["tested"] != record["claimed"], f"at δ {float(record['delta']):.1g}"
    marks = [
        Mark(
            "claim",
            "Claimed, at most",
            f"{delta}, of the part that was looked at" if part else delta,
            float(record["tested"]),
        ),
        Mark("shown", "Shown, at least", "if it has the form of what was priced", float(record["bound"])),
    ]
    if kind != "records":
        meaning = "about, in the row above, of a run that reveals all it claims"
        marks.append(Mark("reach", "Could have been shown", meaning, float(record["reach"])))
    return marks


def _attack(scores: dict[str, Any]) -> Attack:
    called = [scores.get(name) for name in ("f1", "accuracy")]
    f1, accuracy = (None if value is None else float(value) for value in called)
    found = [float(value) for value in scores["tpr_at_fpr"].values()]
    return Attack(str(scores["name"]), float(scores["auc"]), f1, accuracy, found)


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in values]
