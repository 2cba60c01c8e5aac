"""Lower bounds on epsilon: against linear programs, mechanisms of known epsilon, and the null."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

import confide
from confide.audits import bounds, many_runs, one_run
from confide.audits.bounds import audit_epsilon
from confide.audits.one_run import Guesses
from confide.privacy import pricing
from confide.validation import Refused

DELTA = 1e-5


def most_likely(epsilon: float, delta: float, guesses: Guesses) -> float:
    """The largest P(W >= right) that the constraints of every tail allow, by a linear program over p_0 ... p_r."""
    m, r, c = guesses
    rows, limits = [], []
    for i in range(1, c + 1):
        right = np.array([l / m if l >= i else 0.0 for l in range(r + 1)])  # noqa: E741
        wrong = np.array([(r - l) / m if l >= i - 1 else 0.0 for l in range(r + 1)])  # noqa: E741
        for slope, offset in ((math.exp(epsilon), delta), (math.exp(-epsilon), 1 - math.exp(-epsilon) * (1 - delta))):
            rows.append(right - slope * wrong)
            limits.append(offset)
    wanted = -(np.arange(r + 1) >= c).astype(float)
    found = optimize.linprog(wanted, rows, limits, np.ones((1, r + 1)), [1.0], bounds=(0, 1))
    return -found.fun


@pytest.mark.parametrize(
    ("epsilon", "delta", "guesses"),
    [
        (0.5, 0.0, Guesses(12, 12, 10)),
        (1.0, 0.0, Guesses(30, 8, 8)),
        (1.0, 0.01, Guesses(30, 10, 9)),
        (2.0, 0.001, Guesses(40, 20, 19)),
        (0.1, 0.02, Guesses(15, 15, 14)),
    ],
)
def test_p_value_is_what_the_constraints_allow(epsilon, delta, guesses):
    found = float(one_run.p_value(one_run.approximate(epsilon, delta), guesses)[0])
    assert found == pytest.approx(most_likely(epsilon, delta, guesses), rel=1e-6)


@pytest.mark.parametrize("right", [10, 15, 19, 20])
def test_p_value_holds_for_randomised_response(right):
    """Every canary answers for itself: as good as pure epsilon allows."""
    epsilon, m = 1.2, 20
    truth = stats.binom.sf(right - 1, m, 1 / (1 + math.exp(-epsilon)))
    guesses = Guesses(m, m, right)
    assert truth <= float(one_run.p_value(one_run.approximate(epsilon, 0.0), guesses)[0]) * (1 + 1e-9)
    assert truth == pytest.approx(one_run.binomial_p_value(epsilon, 0.0, guesses))


def test_p_value_holds_for_a_leak_of_everything():
    """Nothing with probability 1 - delta, all canaries at once else: the worst dependence between guesses."""
    m, delta = 50, 0.02
    truth = delta + (1 - delta) * 0.5**m
    guesses = Guesses(m, m, m)
    assert truth <= float(one_run.p_value(one_run.approximate(1e-12, delta), guesses)[0])
    assert truth <= one_run.binomial_p_value(0.0, delta, guesses)


def test_curves_are_inverses():
    """g is the inverse of F = 1 - f, for the Gaussian curve and for the (epsilon, delta) points on it."""
    mu, rates = 0.8, np.linspace(0.001, 0.999, 50)
    reached = stats.norm.cdf(stats.norm.ppf(rates) + mu)
    assert one_run.gaussian(mu)(reached) == pytest.approx(rates, rel=1e-9)
    profile = confide.accountants.profile(confide.events.gaussian(1 / mu), "add-remove", "pld")
    lower = one_run.envelope(*profile.points())(reached)
    assert np.all(lower <= rates * (1 + 1e-9))  # a claim that allows a little more than the curve
    assert lower == pytest.approx(rates, rel=0.02, abs=1e-4)


def gaussian_scores(generator: np.random.Generator, m: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    inside = generator.random(m) < 0.5
    scores = generator.normal(size=m) + mu * inside
    return scores[inside], scores[~inside]


def allowed(count: int, rate: float, failure: float = 1e-4) -> int:
    """What so many trials may show if the rate is right; a test that says more fails wrongly with this probability."""
    return int(stats.binom.isf(failure, count, rate))


METHODS = [
    pytest.param("one-run", "fixed", marks=pytest.mark.long),
    pytest.param("one-run", "split", marks=pytest.mark.long),
    ("one-run-fdp", "fixed"),
    pytest.param("one-run-fdp", "split", marks=pytest.mark.long),
    pytest.param("clopper-pearson", "fixed", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("method", "thresholds"), METHODS)
def test_null(method, thresholds):
    """1,000 audits of nothing at 95%: at most 5% are above zero, but for an error of 1 in 10,000."""
    generator = np.random.default_rng(11)
    wrong = sum(
        audit_epsilon(*gaussian_scores(generator, 100, 0.0), delta=DELTA, method=method, thresholds=thresholds) > 0
        for _ in range(1000)
    )
    assert wrong <= allowed(1000, 0.05)


@pytest.mark.long
@pytest.mark.parametrize("method", ["one-run", "one-run-fdp"])
def test_null_of_folds(method):
    generator = np.random.default_rng(12)
    wrong = sum(
        audit_epsilon(*gaussian_scores(generator, 80, 0.0), delta=DELTA, method=method, thresholds="folds") > 0
        for _ in range(300)
    )
    assert wrong <= allowed(300, 0.05)


@pytest.mark.long
def test_an_uncorrected_maximum_would_not_pass():
    """The best of many numbers of guesses, each at the full level: what the null test is there to catch."""
    generator = np.random.default_rng(13)
    wrong = 0
    for _ in range(300):
        scores, inside = bounds.join(*gaussian_scores(generator, 120, 0.0), generator)
        wrong += any(
            one_run.largest_epsilon(bounds.guess(scores, inside, made), DELTA, 0.05) > 0 for made in range(6, 121, 3)
        )
    assert wrong > allowed(300, 0.05)


@pytest.mark.long
@pytest.mark.parametrize(("method", "thresholds"), METHODS)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_no_bound_above_the_truth(method, thresholds, epsilon):
    generator = np.random.default_rng(14)
    mu = pricing.gdp_mu(epsilon, DELTA)
    found = [
        audit_epsilon(*gaussian_scores(generator, 300, mu), delta=DELTA, method=method, thresholds=thresholds)
        for _ in range(200)
    ]
    assert sum(bound > epsilon for bound in found) <= allowed(200, 0.05)


@pytest.mark.parametrize(
    ("method", "epsilon", "m", "reference", "repeats"),
    [
        pytest.param("one-run", 4.0, 1000, 1.10, 12, marks=pytest.mark.long),
        ("one-run-fdp", 4.0, 1000, 1.53, 12),
        pytest.param("one-run-fdp", 8.0, 1000, 3.60, 20, marks=pytest.mark.long),
        pytest.param("one-run", 4.0, 10_000, 1.84, 6, marks=pytest.mark.long),
        pytest.param("one-run-fdp", 4.0, 10_000, 2.53, 12, marks=pytest.mark.long),
        pytest.param("one-run-fdp", 8.0, 10_000, 4.65, 8, marks=pytest.mark.long),
    ],
)
def test_at_least_the_reference_values(method, epsilon, m, reference, repeats):
    """Gaussian mechanisms of known epsilon; the references are means for thresholds chosen on a half."""
    generator = np.random.default_rng(15)
    mu = pricing.gdp_mu(epsilon, DELTA)
    found = [audit_epsilon(*gaussian_scores(generator, m, mu), delta=DELTA, method=method) for _ in range(repeats)]
    assert reference <= np.mean(found) < epsilon


def test_clopper_pearson_knows_what_it_should():
    """Half of the largest epsilon that so many runs could show."""
    generator = np.random.default_rng(16)
    members, others = gaussian_scores(generator, 4000, pricing.gdp_mu(4.0, DELTA))
    assert 1.3 < audit_epsilon(members, others, delta=DELTA, method="clopper-pearson") < 4
    assert audit_epsilon(others, members, delta=DELTA, method="clopper-pearson") == 0


def test_ties_tell_nothing():
    """Scores that do not differ, or hardly: no key and no number of canaries may prove anything by their order."""
    generator = np.random.default_rng(17)
    for method in bounds.METHODS:
        for m in (60, 1000, 1369, 1488):
            inside = int(generator.binomial(m, 0.5))
            for key in (0, 1, 24):
                assert audit_epsilon(np.zeros(inside), np.zeros(m - inside), delta=DELTA, method=method, key=key) == 0
    wrong = sum(
        audit_epsilon(*generator.integers(0, 3, (2, 60)).astype(float), delta=DELTA, method="one-run") > 0
        for _ in range(200)
    )
    assert wrong <= allowed(200, 0.05)


def test_perfect_scores_and_infinite_ones():
    bound = audit_epsilon(np.full(500, np.inf), np.full(500, -np.inf), delta=DELTA)
    assert bound > 6
    assert audit_epsilon(np.full(500, np.inf), np.full(500, -np.inf), delta=DELTA, confidence=0.99) < bound
    assert audit_epsilon(np.full(500, -1.0), np.full(500, 1.0), delta=DELTA) == 0


def test_far_more_of_one_side_are_thinned():
    """Membership was no fair coin: always saying 'in' must prove nothing."""
    generator = np.random.default_rng(18)
    found = audit_epsilon(generator.normal(size=2000), generator.normal(size=200), delta=DELTA, method="one-run")
    assert found == 0
    wrong = sum(
        audit_epsilon(
            generator.normal(size=12),
            generator.normal(size=200),
            delta=DELTA,
            method="one-run",
            confidence=0.9,
            key=key,
        )
        > 0
        for key in range(1000)
    )
    assert wrong <= allowed(1000, 0.1)


def test_more_members_than_others_prove_nothing_to_who_guesses_in_alone():
    generator = np.random.default_rng(19)
    wrong = sum(
        audit_epsilon(
            generator.normal(size=275),
            generator.normal(size=200),
            delta=DELTA,
            method="one-run",
            sides="members",
            key=key,
        )
        > 0
        for key in range(100)
    )
    assert wrong <= allowed(100, 0.05)


def test_the_published_formula_is_not_used_where_it_is_false():
    """Outputs that avoid the complement of who is in: total variation delta, and one guess in four is nearly sure."""
    assert most_likely(0.0, 0.05, Guesses(4, 4, 1)) >= 0.984
    assert one_run.binomial_p_value(0.0, 0.05, Guesses(4, 4, 1))[0] == 1


def test_numbers_of_guesses():
    assert bounds.numbers(10_000) == {500: 0.8, 100: 0.1, 2500: 0.1}
    assert sum(bounds.numbers(9).values()) == pytest.approx(1)
    assert max(bounds.numbers(9)) == 9


def test_clopper_pearson_uses_strict_thresholds():
    """An atom at the threshold: counting it as exceeding would be a bound above the truth."""
    assert many_runs.largest_epsilon(np.ones(500), np.ones(500), 0.0, 0.05) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"member_scores": []}, "empty"),
        ({"member_scores": [0.0, math.nan]}, "1 of 2"),
        ({"nonmember_scores": [[1.0]]}, "shape"),
        ({"nonmember_scores": ["a"]}, "numbers"),
        ({"delta": 2.0}, "delta"),
        ({"delta": 0.0}, "one-run"),
        ({"confidence": 1.0}, "confidence"),
        ({"method": "best"}, "method"),
        ({"thresholds": "best"}, "thresholds"),
        ({"sides": "none"}, "sides"),
        ({"sides": "members", "method": "clopper-pearson"}, "both sides"),
        ({"key": -1}, "key"),
    ],
)
def test_refusals(arguments, said):
    given = {"member_scores": [1.0] * 20, "nonmember_scores": [0.0] * 20, "delta": DELTA} | arguments
    with pytest.raises(Refused, match=said) as refusal:
        audit_epsilon(given.pop("member_scores"), given.pop("nonmember_scores"), **given)
    assert "\n" not in str(refusal.value)
