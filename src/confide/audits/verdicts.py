"""`Audit`: the claim, what an attack proved against it, and the verdict.

**The verdict is a test of the claim itself.** The run's own privacy profile, not a Gaussian that is near it, is the
hypothesis: points (epsilon, delta) of it, all of which it claims at once. These tests share the level:

- as many right guesses as there were (`confide.audits.one_run`), which takes nothing for granted but the profile;
- for canaries also pairs of one that is in and one that is out, in the order of planting. Noise that is independent
  from parameter to parameter, as the mechanism says it is, makes their scores independent, and no score has an
  area under its curve above that of the claim, A = integral of F (F(x) the largest true positive rate at a false
  positive rate of x). So the pairs in which the one that is in scores higher are at most Binomial(pairs, A): exact, and
  much stronger. For records it would be wrong, since one model scores them all;
- for canaries also the tests of the mechanism itself (`confide.audits.mechanism`).

Canaries of `scoring` are in the noisy sums of scores alone, so that the price of these is the hypothesis, and neither
that of the scale nor of the information of the records, of which they tell nothing (`canary_part`).

A run that keeps its promise is called a violation once in a thousand audits at most (`ALARM`), since a false alarm is
dear and a real violation that small is found by more canaries; it is called suspect with probability 1 - confidence at
most, and then audited again. "Not refuted" is no proof: `reach` is what a run that reveals all it claims would show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import optimize, special, stats

from confide.audits import bounds, mechanism, one_run
from confide.audits.one_run import Guesses
from confide.audits.scores import Scores
from confide.inference.posterior import Canaries
from confide.privacy import accountants, events, pricing
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event

ALARM = 0.001
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
STEPS = 20_000  # of the integral: it is at most so much too large


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        claimed: epsilon of the guarantee, at `delta`.
        bound: the lower bound on epsilon by one-run f-DP: if the mechanism is Gaussian-DP, as runs of many noisy steps
            nearly are, it holds with the stated confidence. 0 where nothing was proved.
        general_bound: the same whatever the mechanism, by one-run (epsilon, delta)-DP.
        independent_bound: the same as `bound` if, beyond that, noise is independent from parameter to parameter: from
            pairs of canaries. None for records.
        p_value: how likely what was found is at the most, if the claim holds: the least of `tests` times their number.
        tests: the p-value of each test.
        reach: about what `bound` would be for a run that reveals all it claims, in the middle.
        scores: of the canaries, or of members and others.
        canaries: whether they were canaries, planted at random: then all this may be published.
        part: epsilon of what canaries are in, where that is a part of what was released; they are judged by it.
    """

    claimed: float
    delta: float
    confidence: float
    bound: float
    general_bound: float
    independent_bound: float | None
    p_value: float
    tests: dict[str, float]
    reach: float
    scores: Scores
    canaries: bool
    guessed: int  # how many of them the guesses are about: all, unless one side is far larger
    part: float | None = None

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.p_value <= ALARM

    @property
    def verdict(self) -> Literal["violation", "suspect", "not refuted"]:
        if self.violated:
            return "violation"
        return "suspect" if self.p_value <= 1 - self.confidence else "not refuted"

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
        why = MEANINGS[min(self.tests, key=self.tests.__getitem__)]
        likely = f"a probability of {self.p_value:.2g} at most" if self.p_value > LEAST else "hardly any probability"
        if self.violated:
            verdict = f"VIOLATION: {why}, which has {likely} if the run did what its guarantee rests on. " + (
                "Do not publish the run." if self.canaries else "Or members and others differ in other ways."
            )
        elif self.verdict == "suspect":
            verdict = (
                f"SUSPECT: {why}, which has {likely} if the run did what its guarantee rests on, and one honest run in "
                f"{1 / (1 - self.confidence):.0f} looks like this. Audit it again, once, with more of them."
            )
        else:
            shown = f"a run that reveals all it claims would have shown a bound of about {self.reach:.2g}"
            if not self.canaries:
                shown += " to the best attack, and this one may be far from it"
            verdict = f"The claim is not refuted (p = {self.p_value:.2g}), which does not prove it: {shown}."
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
        independent = ""
        if self.independent_bound is not None:
            independent = (
                f" If noise is also independent from parameter to parameter, at least {self.independent_bound:.3g}."
            )
        warning = () if self.canaries else ("Not to be published: it was computed from the records, unpaid.",)
        return (
            *warning,
            f"Claimed: epsilon {self.claimed:.4g} at delta {self.delta:.3g}. {what} were guessed at from the release.",
            f"At {100 * self.confidence:.4g}% confidence epsilon is at least {self.bound:.3g} if the mechanism is "
            f"Gaussian-DP, and at least {self.general_bound:.3g} whatever it is.{independent}",
            verdict,
            assumed,
        )

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("claimed", "delta", "confidence", "bound", "general_bound")}
        *_, sentence, assumption = self.sentences()
        return {
            **told,
            "independent_bound": self.independent_bound,
            "p_value": self.p_value,
            "tests": self.tests,
            "reach": self.reach,
            "verdict": self.verdict,
            "canaries": self.canaries,
            **({} if self.part is None else {"part": self.part}),
            "sentences": list(self.sentences()),
            "sentence": sentence,
            "assumption": assumption,
            "scores": self.scores.to_json(),
        }


def judge(
    guarantee: Guarantee, scores: Scores, *, confidence: float, canaries: Canaries | None = None, key: int = 0
) -> Audit:
    """The claim against the scores, and against all that was told of canaries where they are those."""
    level, delta = 1 - confidence, guarantee.delta
    joined, inside = bounds.join(scores.members, scores.nonmembers, np.random.default_rng(key))

    def found(method: bounds.Method) -> float:
        if delta == 0 and method == "one-run-fdp":
            return 0.0
        return bounds.audit_epsilon(
            scores.members, scores.nonmembers, delta=delta, confidence=confidence, method=method, key=key
        )

    event = guarantee.event if canaries is None else canary_part(guarantee.event)
    profile = accountants.profile(event, guarantee.neighbours, guarantee.accountant)
    part, points = None if event is guarantee.event else profile.epsilon(delta), profile.points()
    claim = one_run.envelope(*points)
    guesses = [
        float(one_run.p_value(claim, bounds.guess(joined, inside, made))[0]) / share
        for made, share in bounds.numbers(len(joined)).items()
    ]
    tests, independent = {"guesses": min(1.0, *guesses)}, None
    if canaries is not None:
        pairs = Pairs.among(scores)
        tests |= {"pairs": pairs.p_value(area(*points)), **mechanism.p_values(canaries)}
        independent = 0.0 if delta == 0 else pairs.bound(delta, level)
    return Audit(
        claimed=guarantee.epsilon,
        delta=delta,
        confidence=confidence,
        bound=found("one-run-fdp"),
        general_bound=found("one-run"),
        independent_bound=independent,
        p_value=min(1.0, len(tests) * min(tests.values())),
        tests=tests,
        reach=reach(guarantee.epsilon if part is None else part, delta, len(joined), level),
        scores=scores,
        canaries=canaries is not None,
        guessed=len(joined),
        part=part,
    )


def canary_part(event: Event) -> Event:
    """What canaries are in: of a run that releases information of the records, the sums of scores alone."""
    if not isinstance(event, events.Composition):
        return event
    if not any(isinstance(each, events.InformationSums) for each in event.events):
        return event
    kept = [each for each in event.events if not isinstance(each, (events.ScaleHistograms, events.InformationSums))]
    return events.compose(*kept, repeats=event.repeats) if kept else event


class Pairs(NamedTuple):
    """Pairs of a canary that is in and one that is out, and in how many the first scores higher; ties count as not."""

    number: int
    won: int

    @classmethod
    def among(cls, scores: Scores) -> Pairs:
        """Of canaries in the order in which they were planted, which says nothing of their scores."""
        number = min(len(scores.members), len(scores.nonmembers))
        return cls(number, int(np.sum(scores.members[:number] > scores.nonmembers[:number])))

    def p_value(self, area: float) -> float:
        return float(stats.binom.sf(self.won - 1, self.number, area))

    def bound(self, delta: float, level: float) -> float:
        """Of a Gaussian mechanism, whose area is Phi(mu / sqrt(2))."""
        lowest = float(stats.beta.ppf(level, self.won, self.number - self.won + 1)) if self.won else 0.0
        return pricing.gdp_epsilon(math.sqrt(2) * float(special.ndtri(lowest)), delta) if lowest > 0.5 else 0.0


def area(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """The largest area under a receiver operating curve that all these points allow, from above."""
    rates = np.linspace(0.0, 1.0, STEPS + 1)[1:, None]  # the curve rises, so right ends are above
    factors = np.exp(epsilons)
    lines = np.minimum(deltas + factors * rates, 1 - (1 - deltas - rates) / factors)
    return float(np.mean(np.minimum(lines.min(axis=1), 1.0)))


def reach(epsilon: float, delta: float, canaries: int, level: float) -> float:
    """About the bound that a Gaussian mechanism of this epsilon shows with so many canaries.

    >>> round(reach(4.0, 1e-5, 1000, 0.05), 1)
    2.2
    """
    if epsilon <= 0 or delta <= 0:
        return 0.0
    mu = pricing.gdp_mu(epsilon, delta)
    made, share = max(bounds.numbers(canaries).items(), key=lambda item: item[1])

    def guessed(threshold: float) -> float:
        return (special.ndtr(-threshold) + special.ndtr(mu - threshold)) / 2 - made / canaries / 2

    if made >= canaries:
        right = float(special.ndtr(mu / 2))
    else:
        threshold = float(optimize.brentq(guessed, -10.0, 10.0 + mu))  # type: ignore[arg-type]
        right = float(special.ndtr(mu - threshold)) / (made / canaries)
    found = one_run.largest_mu(Guesses(canaries, made, math.floor(made * min(right, 1.0))), share * level)
    return pricing.gdp_epsilon(found, delta) if found > 0 else 0.0
