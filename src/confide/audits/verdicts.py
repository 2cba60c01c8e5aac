"""`Audit`: the claim, what an attack proved against it, and the verdict.

**The verdict is a test of the claim itself, at one level**, 1 - confidence. The run's own privacy profile, not a
Gaussian that is near it, is the hypothesis: points (epsilon, delta) of it, all of which it claims at once
(`confide.audits.claims`). These tests share the level equally (Bonferroni):

- as many right guesses as there were (`confide.audits.one_run`), which takes nothing for granted but the profile;
- for canaries also pairs of one that is in and one that is out, in the order of planting. Noise that is independent
  from parameter to parameter, as the mechanism says it is, makes their scores independent, and no score has an
  area under its curve above that of the claim, A = integral of F (F(x) the largest true positive rate at a false
  positive rate of x). So the pairs in which the one that is in scores higher are at most Binomial(pairs, A): exact, and
  much stronger. For records it would be wrong, since one model scores them all;
- for canaries also the tests of the mechanism itself (`confide.audits.mechanism`).

| verdict | what it says | the lower bound on epsilon |
|---------|--------------|----------------------------|
| "claim refuted" | a test of the claim rejects it | above the claim |
| "not as priced" | a test of the mechanism rejects it: the guarantee has no ground | not above the claim |
| "suspect" | no test rejects at the level, and one does at `SUSPECT` | not above the claim |
| "not refuted" | no test rejects | not above the claim |

The bound is the largest epsilon that the tests of the claim reject at the same level, and so has the same confidence;
see `confide.audits.claims` for why it is above the claim if and only if the verdict refutes it.

Canaries of `scoring` are in the noisy sums of scores alone, so that the price of these is the hypothesis, and neither
that of the scale nor of the information of the records, of which they tell nothing (`canary_part`).

At the default confidence a run that keeps its promise is called a violation, of the claim or of the mechanism, once in
a thousand audits at most, since a false alarm is dear and a real violation that small is found by more canaries; it is
called suspect once in twenty at most, and then audited again. "Not refuted" is no proof: `reach` is what a run that
reveals all it claims would show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.audits import bounds, mechanism
from confide.audits.claims import Claim, ClaimTest, GuessTest, LowerBounds, Pairs, largest, lower_bounds, p_values
from confide.audits.scores import Scores
from confide.audits.wording import (
    MEANINGS,
    VIOLATIONS,
    Verdict,
    bound_sentence,
    leading_test,
    suspicion,
    verdict,
    violation,
)
from confide.inference.posterior import Canaries
from confide.privacy import accountants, events, pricing
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        claimed: epsilon of the guarantee, at `delta`.
        confidence: of the verdict and of the lower bounds, which hold together.
        bound: the lower bound on epsilon, if what is revealed has the form of what was priced (the same profile, with
            less noise); 0 where nothing was proved. It is above `tested` if and only if the claim is refuted.
        general_bound: the same whatever the mechanism.
        p_value: how likely what was found is at the most, if the claim holds and the mechanism is as priced: the least
            of `tests` times their number.
        claim_p_value: the same of the tests of the claim alone.
        tests: the p-value of each test.
        reach: about what `bound` would be for a run that reveals all it claims, in the middle.
        scores: of the canaries, or of members and others.
        canaries: whether they were canaries, planted at random: then all this may be published.
        part: epsilon of what was looked at, where that is a part of what was released; it is judged by this.
    """

    claimed: float
    delta: float
    confidence: float
    bound: float
    general_bound: float
    p_value: float
    claim_p_value: float
    tests: dict[str, float]
    reach: float
    scores: Scores
    canaries: bool
    guessed: int  # how many of them the guesses are about: all, unless one side is far larger
    part: float | None = None

    @property
    def tested(self) -> float:
        """The epsilon that the bounds are to be compared with: the claim, or the part of it that was looked at."""
        return self.claimed if self.part is None else self.part

    @property
    def verdict(self) -> Verdict:
        return verdict(self.p_value, self.claim_p_value, self.confidence)

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted, or the mechanism is not the one that was priced."""
        return self.verdict in VIOLATIONS

    @property
    def claim_refuted(self) -> bool:
        return self.verdict == "claim refuted"

    def __repr__(self) -> str:
        if not self.canaries:
            return "<Audit of records, NOT TO BE PUBLISHED; print it to see it>"
        return f"<Audit: {self.verdict}, claimed epsilon {self.claimed:.4g}, lower bound {self.bound:.3g}>"

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language."""
        m = len(self.scores.members) + len(self.scores.nonmembers)
        what = f"{m:,} canaries" if self.canaries else f"{m:,} records"
        if self.guessed < m:
            what = f"A random part of {self.guessed:,} of {what}, about as many members as others,"
        assumed = (
            "Canaries were in or out by a fair coin, so nothing is assumed about the records. What is done to the "
            "model's own parameters alone, or told elsewhere, canaries cannot see."
            if self.canaries
            else "This takes members and others for drawn alike, with membership a fair coin; no code can check that."
        )
        if self.part is not None:
            assumed += (
                f" They are in the sums of scores alone, whose price is epsilon {self.part:.4g}, and judged by that; "
                "scale and information of the records are tested on made-up tables."
            )
        warning = () if self.canaries else ("Not to be published: it was computed from the records, unpaid.",)
        return (
            *warning,
            f"Claimed: epsilon {self.claimed:.4g} at delta {self.delta:.3g}. {what} were guessed at from the release.",
            bound_sentence(self.confidence, self.bound, self.general_bound, self.tested),
            self._judgement(),
            assumed,
        )

    def _judgement(self) -> str:
        why = MEANINGS[leading_test(self.tests, self.verdict)]
        again = "Audit it again, once, with more of them."
        if self.violated:
            publish = "Do not publish the run." if self.canaries else "Or members and others differ in other ways."
            p_value = self.claim_p_value if self.claim_refuted else self.p_value
            return f"{violation(self.verdict, why, p_value)} {publish}"
        if self.verdict == "suspect":
            return suspicion(why, self.p_value, self.confidence, again)
        shown = f"a run that reveals all it claims would have shown a bound of about {self.reach:.2g}"
        if not self.canaries:
            shown += " to the best attack, and this one may be far from it"
        return f"The claim is not refuted (p = {self.p_value:.2g}), which does not prove it: {shown}."

    def to_json(self) -> dict[str, Any]:
        names = ("claimed", "delta", "confidence", "tested", "bound", "general_bound", "p_value", "claim_p_value")
        *_, sentence, assumption = self.sentences()
        return {
            **{name: getattr(self, name) for name in names},
            "tests": self.tests,
            "reach": self.reach,
            "verdict": self.verdict,
            "canaries": self.canaries,
            "part": self.part,
            "sentences": list(self.sentences()),
            "sentence": sentence,
            "assumption": assumption,
            "scores": self.scores.to_json(self.confidence),
        }


def judge(
    guarantee: Guarantee, scores: Scores, *, confidence: float, canaries: Canaries | None = None, key: int = 0
) -> Audit:
    """The claim against the scores, and against all that was told of canaries where they are those."""
    joined, inside = bounds.join(scores.members, scores.nonmembers, np.random.default_rng(key))
    event = guarantee.event if canaries is None else canary_part(guarantee.event)
    profile = accountants.profile(event, guarantee.neighbours, guarantee.accountant)
    part = None if event is guarantee.event else profile.epsilon(guarantee.delta)
    epsilon = guarantee.epsilon if part is None else part
    claim = Claim(epsilon=epsilon, delta=guarantee.delta, profile=profile.points())
    attacks: dict[str, ClaimTest] = {"guesses": GuessTest.of_scores(joined, inside)}
    typical: list[ClaimTest] = []
    if guarantee.delta > 0 and epsilon > 0:
        typical.append(GuessTest.typical(len(joined), pricing.gdp_mu(epsilon, guarantee.delta)))
    tests = p_values(attacks, claim.points)
    if canaries is not None:
        attacks["pairs"] = pairs = Pairs.among(scores.members, scores.nonmembers)
        typical.append(Pairs.typical(pairs.number, claim.points))
        tests = p_values(attacks, claim.points) | mechanism.p_values(canaries)
    ruling = rule(claim, attacks, tests, number=len(tests), confidence=confidence)
    reach = largest_typical(claim, typical, (1 - confidence) / len(tests))
    return Audit(
        claimed=guarantee.epsilon,
        delta=guarantee.delta,
        tests=tests,
        reach=reach,
        scores=scores,
        canaries=canaries is not None,
        guessed=len(joined),
        part=part,
        **ruling,
    )


def rule(
    claim: Claim,
    attacks: dict[str, ClaimTest],
    tests: dict[str, float],
    *,
    number: int,
    confidence: float,
    share: float = 1.0,
) -> dict[str, float]:
    """The p-values and the bounds at one level, of which this audit has a share and each of `number` tests as much."""

    def corrected(p_value: float) -> float:
        return min(1.0, number * p_value / share)

    every, claims = corrected(min(tests.values())), corrected(min(tests[name] for name in attacks))
    refuted = claims <= 1 - confidence
    found: LowerBounds = lower_bounds(claim, attacks.values(), (1 - confidence) * share / number, refuted)
    return {
        "confidence": confidence,
        "bound": found.form,
        "general_bound": found.general,
        "p_value": every,
        "claim_p_value": claims,
    }


def largest_typical(claim: Claim, typical: list[ClaimTest], level: float) -> float:
    """About the bound that a run which reveals all it claims shows; it is at most the claim."""

    def rejected(epsilon: float) -> bool:
        points = claim.at(epsilon)
        return any(test.rejects(points, level) for test in typical)

    return largest(rejected, claim.epsilon, refuted=False)


def canary_part(event: Event) -> Event:
    """What canaries are in: of a run that releases information of the records, the sums of scores alone."""
    if not isinstance(event, events.Composition):
        return event
    if not any(isinstance(each, events.InformationSums) for each in event.events):
        return event
    kept = [each for each in event.events if not isinstance(each, (events.ScaleHistograms, events.InformationSums))]
    return events.compose(*kept, repeats=event.repeats) if kept else event
