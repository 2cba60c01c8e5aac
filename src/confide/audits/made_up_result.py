"""`MadeUp`: what an audit on made-up tables (`confide.audits.made_up`) found, and what it would have found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from confide.audits import bounds, program, verdicts
from confide.audits.program import CLAIM, MEANINGS
from confide.audits.scores import Scores
from confide.audits.verdicts import ALARM, Audit, Pairs
from confide.privacy import pricing
from confide.privacy.budget import Guarantee

FORMAT = 1
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

    meanings: ClassVar[Mapping[str, str]] = MEANINGS  # of the tests

    @property
    def claim_refuted(self) -> bool:
        """Whether the claim itself is refuted, and not only that the program is the one that was priced."""
        return len(self.meanings) * min(self.tests[name] for name in CLAIM) <= ALARM

    def __repr__(self) -> str:
        return f"<MadeUp: {self.verdict}, claimed epsilon {self.claimed:.4g}, lower bound {self.bound:.3g}>"

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language."""
        return (
            f"Claimed: epsilon {self.claimed:.4g} at delta {self.delta:.3g}. {self._course()}",
            f"At {100 * self.confidence:.4g}% confidence epsilon is at least {self.bound:.3g} if the mechanism is "
            f"Gaussian-DP, and at least {self.general_bound:.3g} whatever it is.",
            self._judgement(),
            self._reach(),
            "This is the program as it was built again from the run's settings, on tables that are made up: it cannot "
            "see what is wrong with the run's own records, key or machine. It hears the noisy sums, and takes draws to "
            "be made of them alone.",
        )

    def _course(self) -> str:
        part = "all" if self.steps == self.whole else f"the first {self.steps:,} of"
        return (
            f"The program of the run took {part} its {self.whole:,} steps {self.repetitions:,} times on each of "
            f"several made-up tables, with one record and without it (seed {self.seed}); no real record was read."
        )

    def _judgement(self) -> str:
        why = self.meanings[min(self.tests, key=self.tests.__getitem__)]
        likely = f"a probability of {self.p_value:.2g} at most" if self.p_value > verdicts.LEAST else "no probability"
        if self.violated and self.claim_refuted:
            found = f"what was claimed does not hold: {why}, which has {likely} otherwise"
            return f"VIOLATION: {found}. Do not publish the run."
        if self.violated:
            found = f"the program is not the one that was priced: {why}, which has {likely} otherwise"
            return f"VIOLATION: {found}. Do not publish the run."
        if self.verdict == "suspect":
            return (
                f"SUSPECT: {why}, which has {likely} if the program is the one that was priced, and one honest program "
                f"in {1 / (1 - self.confidence):.0f} looks like this. Audit it again, once, with another seed."
            )
        return f"The claim is not refuted (p = {self.p_value:.2g}), which does not prove it."

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
        more = ("repetitions", "steps", "whole", "seed", "smallest", "seen", "batches", "run")
        *_, sentence, reach, assumption = self.sentences()
        return super().to_json() | {
            "format": FORMAT,
            "kind": "made-up",
            "sentence": f"{sentence} {reach}",
            "assumption": assumption,
            **{name: getattr(self, name) for name in more},
        }


def judge_pairs(
    guarantee: Guarantee,
    sides: tuple[np.ndarray, np.ndarray],
    points: tuple[np.ndarray, np.ndarray],
    confidence: float,
) -> dict[str, Any]:
    """What scores of runs with a record and of others without it prove, beside the tests."""
    inside, outside = sides
    number, delta, level = min(map(len, sides)), guarantee.delta, 1 - confidence
    pairs = Pairs(number, int(np.sum(inside[:number] > outside[:number])))
    expected = Pairs(number, math.floor(number * verdicts.area(*points)))
    return {
        "claimed": guarantee.epsilon,
        "delta": delta,
        "confidence": confidence,
        "bound": pairs.bound(delta, level) if delta else 0.0,
        "general_bound": bounds.audit_epsilon(
            inside, outside, delta=delta, confidence=confidence, method="clopper-pearson"
        ),
        "independent_bound": None,
        "reach": expected.bound(delta, level) if delta else 0.0,
        "scores": Scores(members=inside, nonmembers=outside, name="made-up tables", confidential=False),
        "canaries": False,
        "guessed": len(inside) + len(outside),
        "repetitions": len(inside),
    }


def smallest_epsilon(smallest: Mapping[str, float], delta: float) -> dict[str, float]:
    """Of a Gaussian mechanism with the smallest area that would have been seen."""
    if delta == 0 or smallest.get("area", 0.0) <= 0.5:
        return {}
    return {"epsilon": pricing.gdp_epsilon(math.sqrt(2) * float(special.ndtri(smallest["area"])), delta)}
