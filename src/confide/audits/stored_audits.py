"""An audit on made-up tables that is kept in the folder of a run, held against the run and against itself.

What the audit saw is stored as the p-values of its tests and as the counts behind the two tests of the claim. The
verdict, the p-values of all tests, the lower bounds and every sentence follow from these, and are computed again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from confide.audits import made_up_result, made_up_scoring
from confide.audits.claims import Pairs
from confide.audits.made_up_result import MadeUp, share
from confide.audits.made_up_scoring import MadeUpScoring
from confide.audits.priced import priced_claim
from confide.audits.program import ThresholdTest
from confide.audits.scores import Scores
from confide.audits.verdicts import rule
from confide.audits.wording import CLAIM
from confide.inference.comparison import as_json
from confide.inference.posterior import Posterior
from confide.validation import Refused

CLOSE = 1e-5  # relative: probabilities and bounds on another processor
SMALLEST = ("noise", "one noise", "clip", "whole", "presence", "always", "area", "epsilon", *made_up_scoring.KINDS)
SCORES = ("name", "members", "nonmembers", "auc", "advantage", "tpr_at_fpr", "roc", "histogram")
FOLLOWING = ("bound", "general_bound", "p_value", "claim_p_value")
GIVEN = ("claimed", "delta", "confidence", "tests", "reach", "canaries", "part", *FOLLOWING)
GIVEN += ("repetitions", "steps", "whole", "seed", "smallest", "seen", "batches", "run", "number", "counts")


def check(record: dict[str, Any], posterior: Posterior, number: int) -> None:
    """Refused, naming it, where an entry does not follow from what the audit saw and from the run."""
    file, guarantee = made_up_result.PATTERN.format(number), posterior.guarantee
    assert guarantee is not None
    run = posterior.plan.get("run", "")
    for name, value in {"claimed": guarantee.epsilon, "delta": guarantee.delta, "run": run, "number": number}.items():
        if record.get(name) != value:
            raise _changed(file, name)
    kind = MadeUpScoring if record.get("kind") == "made-up scoring" else MadeUp
    _check_names(record, kind, file)
    steps, whole = record["steps"], record["whole"]
    if record["canaries"] is not False:
        raise _changed(file, "canaries")
    if not 1 <= steps <= whole or (steps < whole if kind is MadeUpScoring else whole != posterior.plan["steps"]):
        raise _changed(file, "steps")
    nobody = Scores(members=np.zeros(1), nonmembers=np.zeros(1), name="made-up tables", confidential=False)
    again = kind(**{name: record[name] for name in GIVEN}, scores=nobody, guessed=2 * record["repetitions"])
    expected = as_json(again.to_json() | {"scores": record["scores"]})
    for name in sorted(set(expected) | set(record)):
        if name not in record or name not in expected or expected[name] != record[name]:
            raise _changed(file, name)
    _check_ruling(record, posterior, kind, file)


def _check_names(record: dict[str, Any], kind: type[MadeUp], file: str) -> None:
    names = {"tests": kind.meanings, "smallest": SMALLEST, "scores": SCORES, "counts": ("apart", "pairs")}
    for entry, known in names.items():
        if unknown := sorted(set(record[entry]) - set(known)):
            raise _changed(file, f"{entry}.{unknown[0]}")
    numbers = [*record["tests"].values(), *record["smallest"].values()]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in numbers):
        raise _changed(file, "tests")
    sides = (record["scores"]["members"], record["scores"]["nonmembers"])
    if sides != (record["repetitions"], record["repetitions"]):
        raise _changed(file, "repetitions")


def _check_ruling(record: dict[str, Any], posterior: Posterior, kind: type[MadeUp], file: str) -> None:
    """The p-values of all tests, and the bounds, from the tests and the counts behind those of the claim."""
    guarantee, tests, confidence = posterior.guarantee, record["tests"], record["confidence"]
    assert guarantee is not None
    total, part = len(kind.meanings), share(record["number"])
    p_values = {
        "p_value": min(1.0, total * min(tests.values()) / part),
        "claim_p_value": min(1.0, total * min(tests[name] for name in CLAIM if name in tests) / part),
    }
    tested = record["claimed"] if record["part"] is None else record["part"]
    if (record["bound"] > tested) != (p_values["claim_p_value"] <= 1 - confidence):
        raise _changed(file, "bound")
    if not 0 <= record["general_bound"] <= record["bound"]:
        raise _changed(file, "general_bound")
    expected: dict[str, float] = p_values
    if record["steps"] == record["whole"]:  # else the first steps were audited, whose price a folder does not hold
        if record["part"] is not None:
            raise _changed(file, "part")
        claim = priced_claim(guarantee, None, 0)
        (inside, outside), pairs = record["counts"]["apart"], record["counts"]["pairs"]
        attacks = {"apart": ThresholdTest(tuple(inside), tuple(outside)), "pairs": Pairs(*pairs)}
        for name, attack in attacks.items():
            if not _are_near(attack.p_value(claim.points), tests[name]):
                raise _changed(file, f"tests.{name}")
        level = {"number": total, "confidence": confidence, "share": part}
        expected |= rule(claim, attacks, tests, **level)  # type: ignore[arg-type]
        expected["reach"] = made_up_result.reach(claim, record["repetitions"], confidence, total, record["number"])
    for name, value in expected.items():
        if not _are_near(value, record[name]):
            raise _changed(file, name)


def _are_near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-15)


def _changed(file: str, name: str) -> Refused:
    return Refused(f"{name} in {file} does not follow from what the audit saw: restore the folder as it was written")
