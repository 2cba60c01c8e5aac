import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import confide
from confide import accountants, calibration, events
from confide.privacy.budget import Budget
from confide.validation import Refused


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("accountant", ["pld", "moments", "moments-classical"])
@pytest.mark.parametrize("q", [0.01, 1.0])
def test_noise_spends_exactly_the_budget(q, accountant, neighbours):
    sigma = confide.calibrate_noise(
        epsilon=1.5, delta=1e-6, sampling_probability=q, steps=50, accountant=accountant, neighbours=neighbours
    )
    spent = confide.epsilon(
        noise_multiplier=sigma,
        sampling_probability=q,
        steps=50,
        delta=1e-6,
        accountant=accountant,
        neighbours=neighbours,
    )
    assert 1.5 * (1 - 1e-4) <= spent <= 1.5


@settings(max_examples=15)
@given(st.floats(0.05, 20), st.floats(-25, -3), st.floats(1e-3, 1.0), st.integers(1, 2000))
def test_noise_never_overspends(epsilon, log_delta, q, steps):
    setting = {"delta": math.exp(log_delta), "sampling_probability": q, "steps": steps}
    sigma = confide.calibrate_noise(epsilon=epsilon, **setting)
    assert epsilon * 0.999 <= confide.epsilon(noise_multiplier=sigma, **setting) <= epsilon


def test_peer_value():
    # dp-accounting's PLD: 2.1274
    sigma = confide.calibrate_noise(epsilon=2, delta=1e-5, sampling_probability=0.01, steps=10_000)
    assert math.isclose(sigma, 2.1274, rel_tol=2e-3)


def test_a_profile_of_unequal_steps():
    shape = np.arange(1, 101) ** (1 / 6)
    scale = confide.calibrate_noise(epsilon=1.0, delta=1e-5, sampling_probability=0.05, profile=shape)
    spent = confide.epsilon(noise_multiplier=scale * shape, sampling_probability=0.05, delta=1e-5)
    assert 0.9999 <= spent <= 1.0


def test_steps_are_the_most_that_fit():
    setting = {"noise_multiplier": 3.0, "sampling_probability": 0.02, "delta": 1e-5}
    steps = confide.calibrate_steps(epsilon=1.0, **setting)
    assert confide.epsilon(steps=steps, **setting) <= 1.0 < confide.epsilon(steps=steps + 1, **setting)


@pytest.mark.parametrize("schedule", calibration.SCHEDULES)
@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("free", ["steps", "step_size", "clip", "temperature"])
def test_any_one_setting_free(free, neighbours, schedule):
    budget = Budget(epsilon=0.8, delta=1e-5, neighbours=neighbours)
    setting = {"steps": 60, "step_size": 0.4, "clip": 4.0, "temperature": 1.3}
    setting[free] = None
    value = confide.calibrate(budget, n=5000, batch_size=400, schedule=schedule, **setting)
    setting[free] = value
    sigma = calibration.noise_multiplier(
        n=5000, batch_size=400, **{k: v for k, v in setting.items() if k != "steps"}
    ) * calibration.relative_noise(schedule, setting["steps"])
    event = events.gaussian(sigma, 400 / 5000, setting["steps"])
    spent = accountants.profile(event, neighbours).epsilon(1e-5)
    assert spent <= 0.8
    assert spent >= 0.8 * (0.97 if free == "steps" else 0.9999)


def test_noise_of_a_langevin_step_is_the_formula():
    """The step's own noise, N(0, 2 eta T / n), over what one clipped gradient moves, eta clip / (q n)."""
    n, batch, eta, clip, temperature = 10_000, 200, 0.3, 0.5, 0.5
    moved = eta * clip / batch
    drawn = math.sqrt(2 * eta * temperature / n)
    sigma = calibration.noise_multiplier(step_size=eta, n=n, batch_size=batch, clip=clip, temperature=temperature)
    assert math.isclose(sigma, drawn / moved)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confide.calibrate_noise(epsilon=1.0, delta=0.0), "delta = 0 cannot be met with Gaussian noise"),
        (
            lambda: confide.calibrate_noise(epsilon=1.0, delta=1e-5, sampling_probability=0.1, accountant="gdp"),
            "approximate",
        ),
        (lambda: confide.calibrate_noise(epsilon=-1.0, delta=1e-5), "epsilon = -1"),
        (lambda: confide.calibrate_noise(epsilon=1.0, delta=1e-5, steps=-3), "steps = -3"),
        (lambda: confide.calibrate_noise(epsilon=1.0, delta=1e-5, sampling_probability=2), "sampling_probability = 2"),
        (
            lambda: confide.calibrate_steps(epsilon=0.01, delta=1e-5, noise_multiplier=0.5),
            "does not pay for a single step",
        ),
        (
            lambda: confide.calibrate(Budget(epsilon=1.0, delta=1e-5), n=100, batch_size=200, steps=5, clip=1.0),
            "batch_size = 200 is above n = 100",
        ),
        (
            lambda: confide.calibrate(Budget(epsilon=1.0, delta=1e-5), n=100, batch_size=10, clip=1.0),
            "2 settings are free",
        ),
    ],
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(Refused, match=message):
        call()


@pytest.mark.parametrize("epsilon", [1e10, 1e30])
def test_an_epsilon_that_promises_nothing_is_refused_by_its_own_name(epsilon):
    with pytest.raises(Refused, match=r"epsilon = 1e\+\d+ promises nothing"):
        calibration.calibrate_noise(epsilon=epsilon, delta=1e-5)
