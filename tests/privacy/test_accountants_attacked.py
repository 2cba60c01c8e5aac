"""Prices against lower bounds that share no code with them; `benchmarks/attack_accountants.py` does it 10,000 times."""

import math
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

from confide import accountants, events, validation
from confide.privacy.accountants import gdp, log_moments, moments, schedule_compression
from confide.privacy.accountants.individual import Filter
from confide.privacy.budget import Budget
from confide.privacy.filters import Account
from confide.validation import Refused

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import attack_accountants
import lower_bounds

HUGE = {"sigma": 131.0, "q": 3.3e-8, "steps": 320_000_000_000_000}  # what one step reveals is below 1e-16


def test_no_price_is_below_the_truth():
    """A lower bound is a proof: there is no failure rate, but for errors in the proof itself."""
    found = attack_accountants.run(20, seed=2026)
    assert attack_accountants.violations(found) == []
    near = [finding for finding in found if finding.margin < 0.1]
    assert len(near) > 6  # the bounds have teeth


@pytest.mark.long
def test_no_price_of_two_hundred_is_below_the_truth():
    assert attack_accountants.violations(attack_accountants.run(200, seed=7)) == []


def test_a_price_three_per_cent_too_low_is_caught():
    found = attack_accountants.run(8, seed=2026, scale=attack_accountants.SABOTAGE)
    assert len(attack_accountants.violations(found)) > 2


def test_lower_bounds_are_below_and_near_the_exact_profile():
    for mu, epsilon in ((0.01, 0.02), (1.0, 1.0), (1.0, 5.0), (4.0, 12.0)):
        exact = gdp.delta_of_mu(mu, epsilon)
        for count in (1, 10**6, 10**12):
            kind = lower_bounds.gaussian_kind(math.sqrt(count) / mu, 1.0, count, "remove")
            assert 0.9 * exact < lower_bounds.delta([kind], epsilon) < exact
    pure = attack_accountants.response_proof(1.1, 1)
    for epsilon in (0.3, 0.9):  # all of the mass is on two points: the noise may not reach beyond the window
        assert 0.9 * pure(epsilon) < lower_bounds.delta([lower_bounds.response_kind(1.1, 1)], epsilon) < pure(epsilon)
    exact = attack_accountants.one_step_proof(0.8, 0.2, "replace-one")(1.5)
    assert 0.9 * exact < lower_bounds.delta([lower_bounds.gaussian_kind(0.8, 0.2, 1, "replace")], 1.5) < exact


@pytest.mark.parametrize("epsilon", [0.01, 0.02])
def test_delta_of_very_many_steps(epsilon):
    """Losing what is below 1e-16 of one step made this delta 2.4 times too small."""
    profile = accountants.profile(events.gaussian(HUGE["sigma"], HUGE["q"], HUGE["steps"]), "replace-one")
    kind = lower_bounds.gaussian_kind(HUGE["sigma"], HUGE["q"], HUGE["steps"], "replace")
    truth = lower_bounds.delta([kind], epsilon)
    assert truth > 0.9 * gdp.GDP(profile.event, "replace-one")._delta(epsilon)  # it is nearly Gaussian
    assert truth <= profile.delta(epsilon) <= 10 * truth


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
def test_a_renyi_ledger_is_charged_for_very_many_steps(neighbours):
    account = Account.checked("data", Budget(epsilon=1.0, delta=1e-6, neighbours=neighbours), "renyi")
    order, capacity = account.capacity()
    share = account.share(events.gaussian(HUGE["sigma"], HUGE["q"], HUGE["steps"]))
    side = "remove" if neighbours == "add-remove" else "replace"
    kind = lower_bounds.gaussian_kind(HUGE["sigma"], HUGE["q"], HUGE["steps"], side)
    truth = lower_bounds.log_moment([kind], order) / (order - 1) / capacity
    assert truth <= share <= truth * 1.01


def exact_log_moment(order, sigma, q, replace):
    """In 50 digits, by a rule three times as fine as needed."""
    with mpmath.workdps(50):
        a, s, p = mpmath.mpf(order), mpmath.mpf(sigma), mpmath.mpf(q)
        m, h = 1 / s, min(mpmath.mpf(1), s) / 24
        if replace and q > 0.3:
            h = min(h, s * mpmath.sqrt(75 / a) / 24)
        low, total = -2 * m - 16, mpmath.mpf(0)
        for i in range(int((2 * max(a, 2) * m + 16 - low) / h) + 1):
            z = low + i * h
            top = 1 - p + p * mpmath.exp(m * z - m * m / 2)
            below = 1 - p + p * mpmath.exp(-m * z - m * m / 2) if replace else mpmath.mpf(1)
            ratio = top / below
            total += mpmath.exp(-z * z / 2) * below * (ratio**a - 1 - a * (ratio - 1))
        return mpmath.log1p(total * h / mpmath.sqrt(2 * mpmath.pi))


CORNERS = [
    (1.001, 1.0, 1e-3),
    (2.0, 1e6, 1e-12),
    (3.7, 0.5, 1e-12),
    (64.0, 131.0, 3.3e-8),
    (700.0, 60.0, 0.97),
    (1.5, 0.3, 1 - 1e-9),
    (20_000.0, 1e5, 1e-4),
]


@pytest.mark.parametrize(("order", "sigma", "q"), CORNERS)
@pytest.mark.parametrize("replace", [False, True])
def test_log_moments_are_rounded_up_by_next_to_nothing(order, sigma, q, replace):
    truth = exact_log_moment(order, sigma, q, replace)
    found = {"integrated": log_moments.integrated_log_moment(order, sigma, q, replace)}
    if order == int(order) and not replace:
        found["binomial"] = float(log_moments.binomial_log_moment(int(order), np.array([sigma]), np.array([q]))[0])
    for name, value in found.items():
        assert truth <= mpmath.mpf(value) <= truth * (1 + 1e-8), name


def test_the_bound_for_little_noise_is_no_lower_than_the_rule(monkeypatch):
    for order, sigma, q, replace in ((3.0, 0.3, 0.2, True), (1.4, 0.2, 1e-3, True), (2.6, 0.4, 0.7, False)):
        exact = log_moments.integrated_log_moment(order, sigma, q, replace)
        with monkeypatch.context() as patch:
            patch.setattr(log_moments, "LARGEST_RULE", 0)
            bound = log_moments.integrated_log_moment(order, sigma, q, replace)
        assert exact * (1 - 1e-12) <= bound <= 4 * exact


@pytest.mark.parametrize("epsilon", [1e-14, 1e-9, 1e-3, 1.0, 50.0])
@pytest.mark.parametrize("order", [1.0001, 2.0, 1e5])
def test_pure_log_moments_are_rounded_up_by_next_to_nothing(order, epsilon):
    with mpmath.workdps(80):
        a, e = mpmath.mpf(order), mpmath.mpf(epsilon)
        truth = mpmath.log(mpmath.cosh((a - 0.5) * e) / mpmath.cosh(e / 2))
        assert truth <= mpmath.mpf(float(moments.pure_log_moment(order, epsilon))) <= truth * (1 + 1e-9)


def test_chords_between_knots_are_never_below_the_steps():
    """Knots that nearly coincide, and a moment that grows by e^40 between two of them."""
    for sigma in (np.linspace(1.0, 1.0 + 1e-13, 40), np.linspace(0.2, 3.0, 40)):
        parts = events.gaussian(sigma, 1e-6).parts("add-remove")
        exact = math.fsum(moments.binomial_log_moment(8, sigma, np.full(40, 1e-6)))
        chorded = schedule_compression.chord(parts, 4)
        found = math.fsum(chorded.counts * moments.binomial_log_moment(8, *chorded[:2]))
        assert found >= exact * (1 - 1e-13)


def test_a_filter_charges_no_less_than_a_step_costs():
    """Also where costs grow by orders of magnitude between knots, and beyond the largest ratio by rounding."""
    filter = Filter(limit=1.0, order=60, sampling_probability=1e-4, largest=12.0)
    knots = np.linspace(0.0, 12.0, 2048)[1:]
    ratios = np.concatenate([knots, knots[:-1] * (1 + 2e-16), [12.0 * (1 + 5e-13)]])
    exact = moments.binomial_log_moment(60, 1 / ratios, np.full(ratios.size, 1e-4))
    assert np.all(filter.costs(ratios) >= exact)


@pytest.mark.parametrize("sigma", [1e-7, 1e-20, 1e-100])
@pytest.mark.parametrize("q", [0.1, 1.0])
def test_too_little_noise_is_refused_in_one_line(sigma, q):
    for noise, probability in ((sigma, q), ([1.0, sigma], q)):
        with pytest.raises(Refused, match=r"too little noise to hide anything: give 1e-06 at least$"):
            events.gaussian(noise, probability)


def test_what_cannot_be_priced_is_refused_in_one_line():
    for accountant in accountants.NAMES:
        with pytest.raises(Refused, match="which hides nothing: add noise"):
            accountants.profile(events.GaussianRelease(mu=1e40), accountant=accountant)
        with pytest.raises(Refused, match=r"2e\+15 steps in all: give at most 1e\+15"):
            accountants.profile(
                events.compose(events.gaussian(5.0, 0.1, 2), repeats=validation.MOST), accountant=accountant
            )


@pytest.mark.parametrize("accountant", accountants.NAMES)
@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
def test_corners_of_what_is_accepted_have_a_price(accountant, neighbours):
    corners = [(0.05, 1e-12, 10**15), (1e100, 1e-100, 10**15), (3.0, 1e-100, 1)]
    if accountant != "pld":  # which takes seconds for them
        corners += [(1e-6, 1e-12, 10**15), (1e100, 1 - 1e-16, 3), (1e-6, 0.5, 1)]
    for sigma, q, steps in corners:
        profile = accountants.profile(events.gaussian(sigma, q, steps), neighbours, accountant)
        assert profile.epsilon(1e-9) >= 0
        assert 0 <= profile.delta(1.0) <= 1
    pure = accountants.profile(events.Release(epsilon=1.0), neighbours, accountant)
    assert pure.delta(2000.0) <= 1e-15


@pytest.mark.parametrize(("sigma", "q", "steps", "truth"), [(2e-6, 0.1, 1, 0.1), (1e-6, 1e-3, 100, 0.0952)])
def test_losses_far_beyond_epsilon_are_not_dropped(sigma, q, steps, truth):
    """Whoever is in a batch at all is seen for certain: delta is the chance of that at every epsilon below 1e11."""
    profile = accountants.profile(events.gaussian(sigma, q, steps), "add-remove", "pld")
    assert profile.delta(5.0) >= truth
    assert profile.epsilon(truth / 2) > 1e11
