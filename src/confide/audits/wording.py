"""The verdict of an audit from its p-values, and the sentences that all kinds of audits share."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal
from typing import Literal

CONFIDENCE = 0.999  # of the verdict and of the lower bound
SUSPECT = 0.05  # the level at which a run is audited again
LEAST = 1e-15  # of a probability that is told as a number
MEANINGS = {  # what each test finds where it finds something
    "guesses": "guesses at who was in are right too often",
    "pairs": "those that were in score above those that were out too often",
    "noise": "there is less noise than was priced",
    "pull": "canaries pull harder, or are in batches more often, than was priced",
    "steps": "the noise of different steps is not independent",
    "batches": "the batches of different steps are not independent",
    "chains": "the noise or the batches of different chains are not independent",
}
CLAIM = ("guesses", "pairs", "apart")  # the tests of the claim; the others are tests of the mechanism
Verdict = Literal["claim refuted", "not as priced", "suspect", "not refuted"]
VIOLATIONS: tuple[Verdict, ...] = ("claim refuted", "not as priced")


def verdict(p_value: float, claim_p_value: float, confidence: float) -> Verdict:
    level = 1 - confidence
    if claim_p_value <= level:
        return "claim refuted"
    if p_value <= level:
        return "not as priced"
    return "suspect" if p_value <= SUSPECT else "not refuted"


def leading_test(tests: dict[str, float], verdict: Verdict) -> str:
    """The test that the verdict rests on."""
    names = [name for name in tests if name in CLAIM] if verdict == "claim refuted" else list(tests)
    return min(names, key=tests.__getitem__)


def bound_sentence(confidence: float, bound: float, general: float, tested: float) -> str:
    if not bound:
        return f"At {percent(confidence)} confidence no lower bound on epsilon is shown."
    shown = "" if general == bound else f", and at least {rounded_down(general)} whatever its form"
    return (
        f"At {percent(confidence)} confidence epsilon is at least {rounded_down(bound, tested)} if what is revealed "
        f"has the form of what was priced, with less noise{shown}."
    )


def violation(verdict: Verdict, why: str, p_value: float) -> str:
    likely = f"a probability of {p_value:.2g} at most" if p_value > LEAST else "hardly any probability"
    what = "the claim is refuted" if verdict == "claim refuted" else "this is not the mechanism that was priced"
    return f"VIOLATION: {what}: {why}, which has {likely} if the run did what its guarantee rests on."


def suspicion(why: str, p_value: float, confidence: float, again: str) -> str:
    return (
        f"SUSPECT: {why}, which has a probability of {p_value:.2g} at most if the run did what its guarantee rests on. "
        f"That refutes nothing at {percent(confidence)} confidence: one honest run in {1 / SUSPECT:.0f} looks like "
        f"this. {again}"
    )


def percent(confidence: float) -> str:
    return f"{100 * confidence:.6g}%"


def rounded_down(bound: float, tested: float = 0.0) -> str:
    """A lower bound with three digits, rounded down; with more where it is above what was claimed and three hide it."""
    for digits in range(3, 17):
        shown = Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(bound))
        if bound <= tested or not tested or float(shown) > tested:
            return f"{float(shown):.{digits}g}"
    return repr(bound)
