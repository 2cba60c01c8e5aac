"""`audit_epsilon`: from scores to a lower bound on epsilon that is wrong at most as often as it says.

| method | what is proved, at the stated confidence | the scores come from |
|--------|------------------------------------------|----------------------|
| "one-run" | no epsilon below the bound holds at delta, whatever the mechanism | one run, many canaries |
| "one-run-fdp" | the same if the mechanism is Gaussian-DP, as long noisy runs nearly are | one run, many canaries |
| "clopper-pearson" | no epsilon below the bound holds at delta, whatever the mechanism | one canary, many runs |

**How many guesses.** The theorems of one run take the number of guesses r for fixed before the run. With
`thresholds="fixed"` it is: r = 5 sqrt(m), half of them "in" for the highest scores and half "out" for the lowest, with
80% of the level, and sqrt(m) and 25 sqrt(m) with 10% each, against few but large leaks and against gross ones. No
canary is spent on choosing, so it is also the strongest. "split" (the choice is made on a random half) and "folds" (on
all folds but one, in turn, and the mean of the p-values doubled, which is valid for any dependence) are what the
literature does. There r depends on the release: for pure epsilon this is exact, for the others it is usual, and the
null holds in simulation, but we know of no proof.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from confide import validation
from confide.audits import many_runs, one_run, pools
from confide.audits.one_run import Guesses
from confide.audits.scores import vector
from confide.privacy import pricing
from confide.validation import Refused

Method = Literal["one-run", "one-run-fdp", "clopper-pearson"]
METHODS: tuple[Method, ...] = ("one-run", "one-run-fdp", "clopper-pearson")
Thresholds = Literal["fixed", "split", "folds"]
SHARES = {5.0: 0.8, 1.0: 0.1, 25.0: 0.1}  # guesses over sqrt(m), and their shares of the level
FOLDS = 4
FEWEST = 8  # canaries, below which nothing can be said at the usual levels
UNLIKELY = 6.0  # standard deviations from as many in as out, beyond which membership was not a fair coin
UNEVEN = 2.0  # the same where only "in" is guessed, which is right more often the more are in


def audit_epsilon(
    member_scores: Any,
    nonmember_scores: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    method: Method = "one-run-fdp",
    thresholds: Thresholds = "fixed",
    sides: Literal["both", "members"] = "both",
    key: int = 0,
) -> float:
    """A lower bound on epsilon at `delta` that exceeds the truth with probability 1 - confidence at most.

    Args:
        member_scores: of canaries that were in; higher looks more like a member.
        nonmember_scores: of canaries that were not. For one run each canary is in with probability 1/2, independently;
            where one side is far larger it was not so, and a random part of both is used.
        delta: of the guarantee that is audited.
        method: see `confide.audits.bounds`.
        thresholds: "fixed", or as the literature does "split" or "folds"; for "clopper-pearson" always fixed.
        sides: "members" guesses "in" alone, for scores that say nothing about who was out.
        key: decides parts and folds; do not look for the best. Ties are broken against the auditor.

    >>> generator = np.random.default_rng(0)
    >>> members, others = generator.normal(1.5, 1, 500), generator.normal(0, 1, 500)
    >>> audit_epsilon(members, others, delta=1e-5) > audit_epsilon(members, others, delta=1e-5, method="one-run") > 2
    True
    """
    delta = validation.probability(zero=True, delta=delta)
    level = 1 - validation.probability(confidence=confidence)
    validation.one_of(METHODS, method=method)
    validation.one_of(("fixed", "split", "folds"), thresholds=thresholds)
    validation.one_of(("both", "members"), sides=sides)
    members, nonmembers = vector("member_scores", member_scores), vector("nonmember_scores", nonmember_scores)
    generator = pools.generator(key)
    if method == "clopper-pearson":
        if thresholds != "fixed" or sides != "both":
            raise Refused(
                "method 'clopper-pearson' has fixed thresholds and both sides: leave thresholds and sides out"
            )
        return many_runs.largest_epsilon(members, nonmembers, delta, level)
    if delta == 0 and method == "one-run-fdp":
        raise Refused("delta = 0: Gaussian-DP has no finite epsilon there: give a delta above 0, or take 'one-run'")
    scores, inside = join(members, nonmembers, generator, UNLIKELY if sides == "both" else UNEVEN)
    if len(scores) < FEWEST:
        return 0.0
    if thresholds != "fixed":
        order = generator.permutation(len(scores))
        scores, inside = scores[order], inside[order]
    bounded = {"fixed": _fixed_bound, "split": _split, "folds": _folds}[thresholds]
    found = bounded(scores, inside, level, Test(method, delta), sides == "both")
    return pricing.gdp_epsilon(found, delta) if method == "one-run-fdp" and found > 0 else found


class Test:
    """One of the tests of `one_run`, by the parameter that it rejects: mu, or epsilon."""

    def __init__(self, method: Method, delta: float) -> None:
        self.gaussian, self.delta = method == "one-run-fdp", delta

    def largest(self, guesses: Guesses, level: float) -> float:
        if self.gaussian:
            return one_run.largest_mu(guesses, level)
        return one_run.largest_epsilon(guesses, self.delta, level)

    def p_values(self, parameters: np.ndarray, guesses: Guesses) -> np.ndarray:
        if self.gaussian:
            return one_run.p_value(one_run.gaussian(parameters), guesses)
        return np.minimum(
            one_run.p_value(one_run.approximate(parameters, self.delta), guesses),
            one_run.binomial_p_value(parameters, self.delta, guesses),
        )


def join(
    members: np.ndarray, nonmembers: np.ndarray, generator: np.random.Generator, most: float = UNLIKELY
) -> tuple[Any, Any]:
    """All scores, and who is in. Where membership was no fair coin, a random part for which it is one.

    Exactly as many of one side as of the other would not be: right guesses would then come in twos.
    """
    sizes = len(members), len(nonmembers)
    if abs(sizes[0] - sizes[1]) > most * math.sqrt(sum(sizes)):
        fewest = min(sizes)
        total = max(2, math.floor(2 * fewest - 3 * math.sqrt(2 * fewest)))
        inside = min(int(generator.binomial(total, 0.5)), fewest)
        outside = min(total - inside, fewest)
        members, nonmembers = generator.permutation(members)[:inside], generator.permutation(nonmembers)[:outside]
    scores = np.concatenate([members, nonmembers])
    return scores, np.arange(len(scores)) < len(members)


def guess(scores: np.ndarray, inside: np.ndarray, made: int, both: bool = True) -> Guesses:
    """The highest are guessed to be in, the lowest to be out.

    Among equal scores those are guessed that make the guesses wrong: no order that is fixed before the coins does
    worse, so that ties cannot tell who is in.
    """
    made = min(made, len(scores))
    low = made // 2 if both else 0
    order = np.lexsort((~inside, scores))  # members first: last among those guessed "in", first among those "out"
    right = np.sum(inside[order[len(scores) - (made - low) :]]) + np.sum(~inside[order[:low]])
    return Guesses(len(scores), made, int(right))


def numbers(canaries: int) -> dict[int, float]:
    """How many guesses are made, and which share of the level each number has."""
    shares: dict[int, float] = {}
    for factor, share in SHARES.items():
        made = min(canaries, max(2, round(factor * math.sqrt(canaries))))
        shares[made] = shares.get(made, 0.0) + share
    return shares


def _fixed_bound(scores: np.ndarray, inside: np.ndarray, level: float, test: Test, both: bool) -> float:
    return max(
        test.largest(guess(scores, inside, made, both), share * level) for made, share in numbers(len(scores)).items()
    )


def _split(scores: np.ndarray, inside: np.ndarray, level: float, test: Test, both: bool) -> float:
    half = len(scores) // 2
    share = _best(scores[:half], inside[:half], level, test, both)
    rest = guess(scores[half:], inside[half:], max(2, round(share * (len(scores) - half))), both)
    return test.largest(rest, level)


def _folds(scores: np.ndarray, inside: np.ndarray, level: float, test: Test, both: bool) -> float:
    """The p-value of each fold is valid; twice their mean is, too (Ruschendorf 1982)."""
    fold = np.arange(len(scores)) % FOLDS
    found = []
    for k in range(FOLDS):
        share = _best(scores[fold != k], inside[fold != k], level, test, both)
        here = scores[fold == k], inside[fold == k]
        found.append(guess(*here, max(2, round(share * len(here[0]))), both))
    return one_run.largest(
        lambda parameters: 2 * np.mean([test.p_values(parameters, guesses) for guesses in found], axis=0) <= level
    )


def _best(scores: np.ndarray, inside: np.ndarray, level: float, test: Test, both: bool) -> float:
    """The share of guesses that would have given the largest bound here."""
    made = np.unique(np.geomspace(min(10, len(scores)), len(scores), 8).round().astype(int))

    def bound(count: int) -> float:
        return test.largest(guess(scores, inside, count, both), level)

    return float(max(made.tolist(), key=bound)) / len(scores)
