"""The contract that every accountant keeps, and identities between them."""

import importlib
import itertools
import math
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from confide import accountants, events
from confide.validation import Refused

BOUNDS = ("pld", "moments", "moments-classical", "advanced")  # never below the truth
MIXED = events.compose(
    events.gaussian([3.0, 4.0, 4.0, 5.0], 0.05),
    events.gaussian(8.0, 1.0, 3),
    events.Release(epsilon=0.1),
    events.GaussianRelease(mu=0.05),
)
EVENTS = {
    "full batch": events.gaussian(20.0, 1.0, 10),
    "subsampled": events.gaussian(4.0, 0.02, 100),
    "schedule": events.gaussian(4 * np.arange(1, 21) ** (1 / 6), 0.02),
    "two schedules": events.gaussian(np.linspace(4, 9, 10), np.linspace(0.01, 0.05, 10)),
    "pure": events.Release(epsilon=0.3),
    "last iterates": events.LastIterates(
        step_sizes=0.01, releases=(50, 80), strong_convexity=1.0, smoothness=99.0, gradient_bound=0.3
    ),
    "mixed": MIXED,
}


def price(event, delta=1e-5, neighbours="add-remove", accountant="pld"):
    return accountants.profile(event, neighbours, accountant).epsilon(delta)


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("accountant", accountants.NAMES)
class TestContract:
    def test_epsilon_and_delta_are_inverse(self, accountant, event, neighbours):
        profile = accountants.profile(event, neighbours, accountant)
        epsilon = profile.epsilon(1e-5)
        if math.isinf(epsilon):
            assert accountant == "advanced"
            return
        assert epsilon > 0
        assert profile.delta(epsilon) <= 1e-5 * (1 + 1e-3)
        assert profile.delta(epsilon * 0.97) > 1e-5 or event is EVENTS["pure"]

    def test_delta_falls_with_epsilon_and_epsilon_with_delta(self, accountant, event, neighbours):
        profile = accountants.profile(event, neighbours, accountant)
        deltas = [profile.delta(e) for e in (0.0, 0.01, 0.1, 1.0, 4.0)]
        assert all(a >= b * (1 - 1e-3) for a, b in itertools.pairwise(deltas))
        epsilons = [profile.epsilon(d) for d in (1e-12, 1e-6, 1e-3, 0.3)]
        assert all(a >= b for a, b in itertools.pairwise(epsilons))

    def test_trade_off_is_below_chance_and_convex(self, accountant, event, neighbours):
        rates = np.linspace(0, 1, 21)
        misses = accountants.profile(event, neighbours, accountant).trade_off(rates)
        assert np.all(misses <= 1 - rates + 1e-12)
        assert np.all(np.diff(misses) <= 1e-12)
        assert np.all(np.diff(misses, 2) >= -1e-9)

    def test_composition_of_two_equals_twice_itself(self, accountant, event, neighbours):
        joined = price(events.compose(event, event), 1e-5, neighbours, accountant)
        repeated = price(events.Composition(events=(event,), repeats=2), 1e-5, neighbours, accountant)
        assert joined == repeated or math.isclose(joined, repeated, rel_tol=1e-9)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("accountant", accountants.NAMES)
def test_replacing_costs_more_than_adding(accountant, event):
    assert price(event, 1e-5, "replace-one", accountant) >= price(event, 1e-5, "add-remove", accountant)


@pytest.mark.parametrize("name", ["pld", "moments", "gdp", "advanced"])
def test_every_theory_has_the_one_signature(name):
    theory = importlib.import_module(f"confide.accountants.{name}")
    event = events.gaussian(40.0, 1.0, 3)
    assert theory.epsilon(event, 1e-5, "replace-one") == price(event, 1e-5, "replace-one", name)


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("accountant", accountants.NAMES)
def test_a_constant_schedule_is_equal_steps(accountant, neighbours):
    equal = price(events.gaussian(4.0, 0.02, 100), 1e-5, neighbours, accountant)
    assert price(events.gaussian(np.full(100, 4.0), 0.02), 1e-5, neighbours, accountant) == equal


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_tighter_accountants_say_less(event, neighbours):
    pld, renyi, classical, advanced = (price(event, 1e-5, neighbours, name) for name in BOUNDS)
    assert pld <= renyi * (1 + 2e-3)
    assert renyi <= classical * (1 + 1e-12)
    assert pld <= advanced * (1 + 2e-3)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "best", "lower", "renyi"),
    # dp-accounting's PLD at h = 1e-4, prv-accountant's lower bound (the last: exact), dp-accounting's RDP
    [
        (128 / 60000, 3.48, 7812, 1e-5, 0.1802, 0.1698, 0.2004),
        (0.01, 1.0, 10_000, 1e-5, 6.1877, 6.1774, 6.7128),
        (256 / 32561, 2.0, 2000, 1e-4, 0.5702, 0.5601, 0.6422),
        (1.0, 50.0, 1000, 1e-5, 2.59438, 2.59438, 2.814),
    ],
)
def test_golden_values(q, sigma, steps, delta, best, lower, renyi):
    event = events.gaussian(sigma, q, steps)
    assert lower * (1 - 1e-5) <= price(event, delta) <= best * 1.005
    assert math.isclose(price(event, delta, accountant="moments"), renyi, rel_tol=6e-3)


@pytest.mark.long
def test_ten_thousand_distinct_noise_multipliers():
    event = events.gaussian(np.arange(1, 10_001) ** (1 / 6), 1e-3)
    assert abs(price(event, accountant="moments") - 0.61386449) < 1e-5
    assert 0.081 < price(event) <= 0.0835


def test_full_batch_is_exactly_gaussian():
    event = events.gaussian(50.0, 1.0, 1000)
    profile = accountants.profile(event, "add-remove", "gdp")
    assert profile.status == "exact"
    assert round(profile.epsilon(1e-5), 5) == 2.59438
    assert profile.epsilon(1e-5) == price(event)
    assert accountants.profile(events.gaussian(50.0, 0.5, 10), "add-remove", "gdp").status == "approximate"
    assert accountants.profile(events.Release(epsilon=1.0), "add-remove", "gdp").status == "upper bound"


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.05, 0.01731), (0.1, 0.03252), (0.5, 0.14221), (1, 0.26805), (2, 0.50155)]
)
def test_gaussian_dp_golden_values(epsilon, mu):
    from confide.privacy.accountants import gdp

    assert round(gdp.mu_of_epsilon(epsilon, 1e-5), 5) == mu
    assert math.isclose(gdp.epsilon_of_mu(gdp.mu_of_epsilon(epsilon, 1e-5), 1e-5), epsilon, rel_tol=1e-9)


def test_replace_one_doubles_the_sensitivity():
    assert round(price(events.gaussian(5.0), neighbours="replace-one"), 3) == 1.555
    for name in ("pld", "moments", "gdp"):
        halved = price(events.gaussian(2.5, 1.0, 7), accountant=name)
        assert math.isclose(price(events.gaussian(5.0, 1.0, 7), neighbours="replace-one", accountant=name), halved)


def test_pure_releases_compose_as_randomised_response():
    epsilon, count = 0.1, 50
    exact = 0.0  # sum over the number of truthful answers of the positive part of P - e^epsilon Q
    target = 1.0
    p = 1 / (1 + math.exp(-epsilon))
    for k in range(count + 1):
        ways = math.comb(count, k)
        mass_p, mass_q = ways * p**k * (1 - p) ** (count - k), ways * (1 - p) ** k * p ** (count - k)
        exact += max(0.0, mass_p - math.exp(target) * mass_q)
    event = events.Composition(events=(events.Release(epsilon=epsilon),), repeats=count)
    assert exact <= accountants.profile(event).delta(target) <= exact * 1.01
    assert math.isclose(accountants.profile(event).epsilon(0.0), epsilon * count)


def test_one_pure_release_is_randomised_response_exactly():
    """Against the same release beside a Gaussian one that reveals next to nothing, which goes through the tables."""
    alone = accountants.profile(events.Release(epsilon=1.5))
    beside = accountants.profile(events.compose(events.Release(epsilon=1.5), events.GaussianRelease(mu=1e-7)))
    for delta in (1e-5, 0.1):
        assert alone.epsilon(delta) == pytest.approx(math.log(math.exp(1.5) - delta * (1 + math.exp(1.5))), rel=1e-9)
        assert alone.epsilon(delta) <= beside.epsilon(delta)  # tables are made for small deltas
        assert alone.delta(alone.epsilon(delta)) == pytest.approx(delta, rel=1e-6)
    assert beside.epsilon(1e-5) <= alone.epsilon(1e-5) * 1.001
    assert alone.epsilon(0.9) == 0.0
    assert alone.delta(1.5) < 1e-12


def test_delta_zero_needs_pure_releases():
    with pytest.raises(Refused, match="delta = 0 has no finite epsilon"):
        price(events.gaussian(1.0), delta=0.0)
    assert price(events.Release(epsilon=0.3), delta=0.0) == 0.3


def test_failures_are_paid_from_delta():
    event = events.compose(events.gaussian(4.0, 0.02, 100), events.Release(epsilon=0.0, delta=4e-6))
    alone = events.gaussian(4.0, 0.02, 100)
    assert math.isclose(price(event, 1e-5), price(alone, 6e-6 / (1 - 4e-6)), rel_tol=1e-12)
    assert math.isclose(accountants.profile(event).delta(50.0), 4e-6, rel_tol=1e-6)
    with pytest.raises(Refused, match="does not cover the failure probability"):
        price(event, 4e-6)


def test_attack_numbers_come_from_the_same_profile():
    from scipy.stats import norm

    profile = accountants.profile(events.GaussianRelease(mu=1.0))
    assert math.isclose(profile.advantage(), 2 * norm.cdf(0.5) - 1, rel_tol=1e-9)
    assert math.isclose(profile.attack_success(), norm.cdf(0.5), rel_tol=1e-9)
    rates = np.array([0.001, 0.05, 0.3, 0.7])
    exact = norm.cdf(norm.isf(rates) - 1.0)
    assert np.all(profile.trade_off(rates) <= exact + 1e-12)
    assert np.allclose(profile.trade_off(rates), exact, atol=5e-4)


@settings(max_examples=40)
@given(
    q=st.floats(1e-4, 0.9),
    sigma=st.floats(0.3, 20),
    steps=st.integers(1, 3000),
    log_delta=st.floats(-30, -1),
    accountant=st.sampled_from(("pld", "moments", "moments-classical", "gdp", "advanced")),
    neighbours=st.sampled_from(events.NEIGHBOURS),
    change=st.sampled_from(("noise", "rate", "steps", "delta")),
    factor=st.floats(1.05, 3),
)
def test_monotone_in_every_argument(q, sigma, steps, log_delta, accountant, neighbours, change, factor):
    base = {"sigma": sigma, "q": q, "steps": steps, "log_delta": log_delta}
    worse = dict(base)
    if change == "noise":
        worse["sigma"] = sigma / factor
    elif change == "rate":
        worse["q"] = min(1.0, q * factor)
    elif change == "steps":
        worse["steps"] = math.ceil(steps * factor)
    else:
        worse["log_delta"] = log_delta * factor

    def value(s):
        return price(events.gaussian(s["sigma"], s["q"], s["steps"]), math.exp(s["log_delta"]), neighbours, accountant)

    assume(accountant != "gdp" or worse["q"] < 1.0)  # the central limit is not exact at q = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert value(worse) >= value(base) * (1 - 2e-3) - 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": -1e-5}, "delta = -1e-05 is out of range"),
        ({"delta": 1.0}, "delta = 1 is out of range"),
        ({"delta": math.nan}, "delta = nan is not finite"),
        ({"accountant": "rdp"}, "accountant = 'rdp' is unknown"),
        ({"neighbours": "zero-out"}, "neighbours = 'zero-out' is unknown"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(Refused, match=message):
        price(events.gaussian(1.0), **arguments)


def test_approximate_prices_warn():
    import confide
    from confide.privacy.pricing import ApproximateWarning

    with pytest.warns(ApproximateWarning, match="approximate"):
        confide.epsilon(noise_multiplier=2.0, sampling_probability=0.1, steps=5, delta=1e-5, accountant="gdp")


@pytest.mark.parametrize("accountant", ["pld", "moments", "gdp"])
@pytest.mark.parametrize("sigma", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_a_loss_is_exceeded_with_probability_delta_and_epsilon_more_often(accountant, sigma, delta):
    """The loss of one Gaussian step is N(mu^2 / 2, mu^2)."""
    profile = accountants.profile(events.gaussian(sigma, 1.0, 1), "add-remove", accountant)
    mu = 1 / sigma
    assert scipy.stats.norm.sf((profile.loss(delta) - mu**2 / 2) / mu) <= delta
    assert scipy.stats.norm.sf((profile.epsilon(delta) - mu**2 / 2) / mu) > delta or accountant == "moments"
    exact = mu**2 / 2 - mu * scipy.stats.norm.ppf(delta)
    assert profile.loss(delta) < 1.12 * exact or accountant == "moments"


def test_no_loss_is_certified_where_delta_hardly_covers_what_may_fail():
    event = events.compose(events.gaussian(5.0, 1.0, 1), events.Release(epsilon=0.0, delta=9e-6))
    assert accountants.profile(event, "add-remove", "pld").loss(1e-5) == math.inf
    assert accountants.profile(event, "add-remove", "pld").loss(1e-4) < math.inf
