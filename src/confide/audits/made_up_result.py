"""`MadeUp`: what an audit on made-up tables (`confide.audits.made_up`) found, and what it would have found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from confide.audits import program
from confide.audits.claims import Claim, Pairs
from confide.audits.program import MEANINGS
from confide.audits.scores import Scores
from confide.audits.verdicts import Audit, largest_typical, rule
from confide.audits.wording import VIOLATIONS, Verdict, bound_sentence, leading_test, suspicion, violation
from confide.privacy import pricing
from confide.privacy.budget import Guarantee

FORMAT = 3
PATTERN = "made-up-{}.json"  # in the folder of the run: they may be published
POWER = 0.95


@dataclass(frozen=True, kw_only=True, repr=False)
class MadeUp(Audit):
    """What an audit on made-up tables found; see `Audit`. The scores are of runs with a record and of runs without it.

    Attributes:
        repetitions: runs on each table.
        steps: of the run's steps, so many were run, from the first.
        seed: what all was drawn from.
        smallest: the smallest violations that this audit would have seen in 19 of 20 cases.
        seen: how often a plain row was seen to come in.
        batches: whether a step looks at a batch, and not at all records.
        run: which run it was, as its plan says.
    """

    repetitions: int
    steps: int
    whole: int  # number of steps of the run
    seed: int
    smallest: dict[str, float]
    seen: int
    batches: bool  # whether there are any, and not all records at every step
    run: str
    counts: Mapping[str, Any]  # behind the tests of the claim: above a threshold, and of how many, on both sides; pairs

    number: int = 1  # which audit on made-up tables of this run it is: each has its share of the level

    meanings: ClassVar[Mapping[str, str]] = MEANINGS  # of the tests
    scope: ClassVar[str] = "It hears the noisy sums, and takes draws to be made of them alone."

    def __repr__(self) -> str:
        return f"<MadeUp: {self.verdict}, claimed epsilon {self.claimed:.4g}, lower bound {self.bound:.3g}>"

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language."""
        return (
            f"Claimed: epsilon {self.claimed:.4g} at delta {self.delta:.3g}. {self._course()}",
            bound_sentence(self.confidence, self.bound, self.general_bound, self.tested),
            self._judgement(),
            self._reach(),
            "This is the program as it was built again from the run's settings, on tables that are made up: it cannot "
            f"see what is wrong with the run's own records, key or machine. {self.scope}",
        )

    def _course(self) -> str:
        part = "all" if self.steps == self.whole else f"the first {self.steps:,} of"
        return (
            f"The program of the run took {part} its {self.whole:,} steps {self.repetitions:,} times on each of "
            f"several made-up tables, with one record and without it (seed {self.seed}); no real record was read."
        )

    @property
    def why(self) -> str:
        """What the leading test found."""
        return self.meanings[leading_test(self.tests, self.verdict)]

    def _judgement(self) -> str:
        p_value = self.claim_p_value if self.claim_refuted else self.p_value
        return judgement(self.verdict, self.why, p_value, self.confidence, self.number)

    def _reach(self) -> str:
        """The smallest violations that would have been seen."""
        found = self.smallest
        parts = [
            f"noise below {found['noise']:.3g} of what was priced, or in one parameter below {found['one noise']:.3g}",
            f"a record that, alone at the first place, the last or one other, adds more than {found['clip']:.6g} clips",
        ]
        if found.get("whole", 1.0) < program.FINEST:
            parts.append(f"a record at any place that counts further than {found['whole']:.2g} from whole times")
        if "presence" in found:
            parts.append(f"a record that is in a batch with a probability of {found['presence']:.3g} or more")
        if found.get("always", 1.0) < 0.5:
            parts.append("any one record that is in every batch")
        if "epsilon" in found:
            parts.append(f"a mechanism that reveals an epsilon of {found['epsilon']:.3g} or more")
        seen = f"In {POWER:.0%} of all cases this audit would have seen: {'; '.join(parts)}."
        blind = ""
        if self.batches and "always" not in found:
            blind = " It saw nothing of which other records a batch holds."
        elif not self.batches:
            blind = " Other places it did not look at, since every step takes all records."
        return seen + blind

    def to_json(self) -> dict[str, Any]:
        more = (
            "repetitions",
            "steps",
            "whole",
            "seed",
            "smallest",
            "seen",
            "batches",
            "run",
            "number",
            "why",
            "counts",
        )
        *_, sentence, reach, assumption = self.sentences()
        return super().to_json() | {
            "format": FORMAT,
            "kind": "made-up",
            "sentence": f"{sentence} {reach}",
            "power": reach,
            "assumption": assumption,
            **{name: getattr(self, name) for name in more},
        }


def judgement(verdict: Verdict, why: str, p_value: float, confidence: float, audits: int) -> str:
    """The verdict over so many audits of one run."""
    if verdict in VIOLATIONS:
        return f"{violation(verdict, why, p_value)} Do not publish the run."
    if verdict == "suspect":
        again = (
            "Audit it again with another seed and more repetitions; this audit is kept, and both are judged together."
        )
        return suspicion(
            why, p_value, confidence, again if audits == 1 else "Further audits do not change that it does."
        )
    return f"The claim is not refuted (p = {p_value:.2g}), which does not prove it."


def judge_pairs(
    guarantee: Guarantee,
    sides: tuple[np.ndarray, np.ndarray],
    claim: Claim,
    tests: dict[str, float],
    *,
    total: int,
    confidence: float,
    number: int,
) -> dict[str, Any]:
    """What scores of runs with a record and of others without it prove, with all other tests: `total` with those that
    could not be made, of the audit of this number."""
    inside, outside = sides
    attacks = program.attacks(inside, outside, claim.points)
    ruling = rule(claim, attacks, tests, number=total, confidence=confidence, share=share(number))
    return {
        "claimed": guarantee.epsilon,
        "delta": guarantee.delta,
        "tests": tests,
        **ruling,
        "reach": reach(claim, min(map(len, sides)), confidence, total, number),
        "scores": Scores(members=inside, nonmembers=outside, name="made-up tables", confidential=False),
        "canaries": False,
        "guessed": len(inside) + len(outside),
        "part": None if claim.epsilon == guarantee.epsilon else claim.epsilon,
        "repetitions": len(inside),
        "number": number,
        "counts": {name: list(attack) for name, attack in attacks.items()},  # type: ignore[call-overload]
    }


def reach(claim: Claim, pairs: int, confidence: float, total: int, number: int) -> float:
    """About the bound that a run which reveals all it claims shows in so many pairs of runs."""
    expected = Pairs.typical(pairs, claim.points)
    return largest_typical(claim, [expected], (1 - confidence) * share(number) / total)


def share(number: int) -> float:
    """The part of the level that the audit of this number has: they add up to one, however many there are.

    sum over k of 1 / (k (k + 1)) is 1, since each term is 1 / k - 1 / (k + 1). So an honest run is refuted by any of
    its audits with a probability of the level at most, also for somebody who audits until the claim is refuted.
    """
    return 1 / (number * (number + 1))


def smallest_epsilon(smallest: Mapping[str, float], delta: float) -> dict[str, float]:
    """Of a Gaussian mechanism with the smallest area that would have been seen."""
    if delta == 0 or smallest.get("area", 0.0) <= 0.5:
        return {}
    return {"epsilon": pricing.gdp_epsilon(math.sqrt(2) * float(special.ndtri(smallest["area"])), delta)}
