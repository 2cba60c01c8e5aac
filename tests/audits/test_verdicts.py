"""The verdict of an audit and the lower bound that goes with it: never at odds, and as seldom wrong as they say."""

import functools
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import confide
from confide.audits import claims, made_up_result, program, repeated, verdicts, wording
from confide.audits.claims import Claim, GuessTest, Pairs
from confide.audits.made_up_result import MadeUp
from confide.audits.scores import Scores
from confide.privacy import accountants, events, pricing

DELTA = 1e-5
GUARANTEES = {
    "gaussian": confide.guarantee(confide.events.gaussian(1.2), delta=DELTA, neighbours="add-remove"),
    "batches": confide.guarantee(confide.events.gaussian(1.0, 0.05, 200), delta=DELTA, neighbours="add-remove"),
    "pure": confide.guarantee(confide.events.Release(epsilon=1.0), delta=0.0, neighbours="add-remove"),
}
CLAIMS = {
    name: Claim(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        profile=accountants.profile(guarantee.event, "add-remove", guarantee.accountant).points(),
    )
    for name, guarantee in GUARANTEES.items()
}


def scores(generator, mu, count):
    """Of canaries, as a mu-GDP mechanism has them."""
    inside = generator.random(count) < 0.5
    drawn = generator.normal(size=count) + mu * inside
    members, others = drawn[inside], drawn[~inside]
    return Scores(members=np.append(members, mu), nonmembers=np.append(others, 0.0), name="made up", confidential=False)


def consistent(audit):
    assert 0 <= audit.general_bound <= audit.bound
    assert (audit.bound > audit.tested) == (audit.verdict == "claim refuted") == audit.claim_refuted
    assert audit.violated == (audit.p_value <= 1 - audit.confidence)
    text = str(audit)
    assert ("the claim is refuted" in text) == audit.claim_refuted
    assert ("VIOLATION" in text) == audit.violated
    if audit.bound:
        shown = float(text.split("epsilon is at least ")[1].split(" ")[0])
        assert shown <= audit.bound
        assert (shown > audit.tested) == audit.claim_refuted


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(GUARANTEES)),
    mu=st.floats(0.0, 4.0),
    count=st.integers(10, 120),
    confidence=st.sampled_from([0.6, 0.95, 0.999]),
    seed=st.integers(0, 2**31),
)
def test_a_bound_is_above_the_claim_exactly_where_the_claim_is_refuted(name, mu, count, confidence, seed):
    """By attacks on records: for guesses at any membership, of any mechanism, at any confidence."""
    found = verdicts.judge(GUARANTEES[name], scores(np.random.default_rng(seed), mu, count), confidence=confidence)
    consistent(found)
    assert not found.violated or found.claim_refuted  # records have tests of the claim alone


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(GUARANTEES)),
    mu=st.floats(0.0, 5.0),
    runs=st.integers(24, 200),
    others=st.floats(-12.0, 0.0),
    number=st.integers(1, 5),
    confidence=st.sampled_from([0.6, 0.95, 0.999]),
    seed=st.integers(0, 2**31),
)
def test_so_it_is_of_made_up_tables_whatever_the_tests_of_the_mechanism_say(
    name, mu, runs, others, number, confidence, seed
):
    consistent(made(name, mu, runs, 10.0**others, number, confidence, seed))


def made(name="gaussian", mu=0.5, runs=100, mechanism=1.0, number=1, confidence=0.999, seed=0):
    """An audit on made-up tables of scores that differ by `mu`, and with this p-value of a test of the mechanism."""
    generator, claim = np.random.default_rng(seed), CLAIMS[name]
    sides = generator.normal(mu, 1.0, runs), generator.normal(0.0, 1.0, runs)
    tests = claims.p_values(program.attacks(*sides, claim.points), claim.points) | {"noise": mechanism}
    ruling = made_up_result.judge_pairs(
        GUARANTEES[name], sides, claim, tests, total=19, confidence=confidence, number=number
    )
    smallest = {"noise": 0.9, "one noise": 0.8, "clip": 1.1}
    more = {"steps": 5, "whole": 5, "seed": seed, "smallest": smallest, "seen": 9, "batches": False, "run": "r"}
    return MadeUp(**ruling, **more)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_and_of_all_audits_of_a_run_together(data):
    """Bounds and p-values of single audits that are consistent, whatever they are."""
    records = []
    for number in range(1, data.draw(st.integers(1, 6)) + 1):
        tested, claim_p = data.draw(st.floats(0.1, 9.0)), 10.0 ** data.draw(st.floats(-8.0, 0.0))
        p_value = claim_p * data.draw(st.sampled_from([1.0, 0.5, 1e-6]))
        refuted = claim_p <= 1 - 0.999
        bound = tested * data.draw(st.floats(1.001, 3.0) if refuted else st.floats(0.0, 1.0))
        records.append(
            template(number)
            | {
                "tested": tested,
                "bound": bound,
                "general_bound": bound / 2,
                "p_value": p_value,
                "claim_p_value": claim_p,
            }
            | {"verdict": wording.verdict(p_value, claim_p, 0.999)}
        )
    together = repeated.combine(records)
    assert together["audits"] == len(records)
    assert (together["bound"] > together["tested"]) == (together["verdict"] == "claim refuted")
    assert together["general_bound"] <= together["bound"]
    severities = [repeated.SEVERITY.index(record["verdict"]) for record in records]
    assert repeated.SEVERITY.index(together["verdict"]) == min(severities)


@functools.cache
def one_record():
    return made(runs=24).to_json()


def template(number):
    return one_record() | {"number": number}


@pytest.mark.parametrize("name", ["gaussian", "batches"])
@pytest.mark.parametrize("mu", [0.3, 2.5], ids=["not refuted", "refuted"])
def test_the_bound_is_the_largest_that_is_rejected_at_the_level_of_the_verdict(name, mu):
    """By hand: some test of the claim rejects a little less, and none rejects a little more."""
    found, generator, level = scores(np.random.default_rng(3), mu, 400), np.random.default_rng(0), 0.05
    audit = verdicts.judge(GUARANTEES[name], found, confidence=1 - level)
    joined = verdicts.bounds.join(found.members, found.nonmembers, generator)
    test, claim = GuessTest.of_scores(*joined), CLAIMS[name]
    assert audit.bound > 0
    assert test.p_value(claim.at(0.999 * audit.bound)) <= level < test.p_value(claim.at(1.001 * audit.bound))
    assert audit.p_value == test.p_value(claim.points)


def test_a_gaussian_claim_has_gaussian_hypotheses():
    """H(e) of a Gaussian release is the Gaussian release with epsilon e, whose profile is known."""
    claim, epsilon = CLAIMS["gaussian"], 2.0
    mu = pricing.gdp_mu(epsilon, DELTA)
    epsilons, deltas = claim.at(epsilon)
    exact = [accountants.gdp.delta_of_mu(mu, max(e, 1e-12)) for e in epsilons]
    np.testing.assert_allclose(deltas, exact, rtol=1e-3, atol=1e-12)  # points of a profile are rounded up a little


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_hypotheses_are_nested_and_the_claim_is_one_of_them(name):
    claim = CLAIMS[name]
    every = [claim.at(epsilon) for epsilon in np.linspace(0.01, 3.0, 30) * claim.epsilon]
    for (e, d), (more_e, more_d) in pairwise(every):
        assert np.all(more_e >= e)
        assert np.all(more_d >= d)
    near = claim.at(claim.epsilon * (1 + 1e-9))
    for part, exact in zip(near, claim.points, strict=True):
        np.testing.assert_allclose(part, exact, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("mu", [0.4, 1 / 1.2], ids=["less than claimed", "all that is claimed"])
def test_bounds_are_wrong_as_seldom_as_they_say(mu):
    """A bound is above the epsilon of a run that reveals mu where this epsilon is rejected: at 80% confidence in 20% of
    300 runs at most, but for 1 in 10,000."""
    generator, claim = np.random.default_rng(11), CLAIMS["gaussian"]
    truth, wrong = claim.at(pricing.gdp_epsilon(mu, DELTA)), 0
    for _ in range(300):
        sides = generator.normal(mu, 1.0, 100), generator.normal(0.0, 1.0, 100)
        attacks = program.attacks(*sides, claim.points)
        wrong += any(test.rejects(truth, 0.2 / len(attacks)) for test in attacks.values())
    assert wrong <= stats.binom.isf(1e-4, 300, 0.2)


def test_shares_of_the_level_add_up_to_one():
    total = sum(made_up_result.share(number) for number in range(1, 1001))
    assert total == pytest.approx(1 - 1 / 1001)


@pytest.mark.parametrize("until", ["violation", "not refuted"])
def test_honest_programs_are_seldom_refuted_however_often_they_are_audited(until):
    """Up to 20 audits of each of 300 programs that reveal all they claim, at 80%: at most 20% are refuted in the end,
    but for 1 in 10,000, whether somebody repeats until one is refuted or until it is not; a refutation does not go
    away."""
    generator, claim, level, runs = np.random.default_rng(12), CLAIMS["gaussian"], 0.2, 60
    inside, outside = generator.normal(1 / 1.2, 1.0, (300, 20, runs)), generator.normal(size=(300, 20, runs))
    pairs = stats.binom.sf(np.sum(inside > outside, axis=-1) - 1, runs, claims.area(*claim.points))
    others = generator.random((300, 20, 3))  # exact tests of the mechanism
    record, lost = template(1) | {"confidence": 1 - level}, 0
    for own, more in zip(pairs, others, strict=True):
        records = []
        for number, tests in enumerate(np.column_stack([own, more]), 1):
            corrected = np.minimum(1.0, len(tests) * tests / made_up_result.share(number))
            p_values = {"p_value": float(corrected.min()), "claim_p_value": float(corrected[0])}
            ruling = wording.verdict(**p_values, confidence=1 - level)
            records.append(record | p_values | {"verdict": ruling, "number": number})
            together = repeated.combine(records)
            if (together["verdict"] in wording.VIOLATIONS) == (until == "violation"):
                break
        lost += together["verdict"] in wording.VIOLATIONS
    assert lost <= stats.binom.isf(1e-4, 300, level)
    assert lost > 0  # the level is used


def test_confidence_and_verdict_are_said_once():
    for found in (made(mu=0.0), made(mu=4.0), made(mechanism=1e-9), made(mechanism=2e-4)):
        text = str(found)
        assert text.count("% confidence epsilon") + text.count("% confidence no lower") == 1
        assert "95% confidence" not in text
        consistent(found)
    assert made(mechanism=1e-9).verdict == "not as priced"
    assert made(mechanism=2e-4).verdict == "suspect"
    assert "this is not the mechanism that was priced" in str(made(mechanism=1e-9))
    assert "one honest run in 20 looks like this" in str(made(mechanism=2e-4))


def test_lower_bounds_are_rounded_down_and_shown_above_the_claim_where_they_are():
    assert wording.rounded_down(1.6789) == "1.67"
    assert wording.rounded_down(0.99999, 1.0) == "0.999"
    assert wording.rounded_down(1.00004, 1.0) == "1.00004"
    assert wording.rounded_down(math.nextafter(1.0, 2), 1.0) == repr(math.nextafter(1.0, 2))


def test_pairs_and_areas_of_a_claim():
    """The area is Phi(mu / sqrt 2) for a Gaussian mechanism; from above, and closely."""
    points = accountants.profile(events.gaussian(1 / 0.8), "add-remove", "pld").points()
    truth = stats.norm.cdf(0.8 / math.sqrt(2))
    assert truth <= claims.area(*points) <= truth + 2e-3
    assert Pairs(100, 60).p_value(points) == pytest.approx(stats.binom.sf(59, 100, claims.area(*points)))
