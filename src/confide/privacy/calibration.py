"""The one setting left free that spends a given budget exactly, never more.

Every answer is checked: the price at the returned value is at most the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from confide import validation
from confide.privacy import accountants, events
from confide.privacy.budget import Budget
from confide.privacy.events import Event, Neighbours
from confide.privacy.pricing import certified_profile
from confide.privacy.significant_digits import round_digits
from confide.validation import Refused

Schedule = Literal["fixed", "decreasing"]
SCHEDULES: tuple[Schedule, ...] = ("fixed", "decreasing")
TOLERANCE = 1e-6  # relative, on epsilon
LARGEST_EPSILON = 1e9  # beyond it noise multipliers would be below the least that is priced
MOST_STEPS = {"fixed": 10**12, "decreasing": 10**7}  # a decreasing schedule is held in arrays


def _least(spend: Callable[[float], float], target: float, start: float) -> float:
    """The least noise at which `spend`, which falls with the noise, is at most `target`.

    Secant steps in logarithms inside a bracket: epsilon is nearly proportional to 1 / noise.
    """
    low, high = 0.0, math.inf  # too little noise; enough noise
    cost_low = cost_high = math.nan
    noise = start
    for _ in range(200):
        cost = spend(noise)
        if cost <= target:
            high, cost_high = noise, cost
        else:
            low, cost_low = noise, cost
        if target * (1 - TOLERANCE) <= cost <= target or (low > 0 and high / low < 1 + 1e-10):
            return high
        if low > 0 and high < math.inf:
            if cost_high > 0 and cost_low < math.inf:
                slope = math.log(cost_low / cost_high) / math.log(high / low)
                noise = high * math.exp(-math.log(target * (1 - TOLERANCE / 2) / cost_high) / slope)
                margin = 0.02 * math.log(high / low)
                noise = min(max(noise, low * math.exp(margin)), high * math.exp(-margin))
            else:
                noise = math.sqrt(low * high)
        else:
            ratio = cost / target if 0 < cost < math.inf else (0.1 if cost == 0 else 10.0)
            noise *= min(max(ratio, 1e-3), 1e3) * (1.0 + (1e-4 if cost > target else -1e-4))
    return high


def _check(budget: Budget) -> Budget:
    if budget.delta == 0:
        raise Refused("delta = 0 cannot be met with Gaussian noise: give a budget with delta in (0, 1), such as 1e-6")
    if budget.epsilon > LARGEST_EPSILON:
        raise Refused(f"epsilon = {budget.epsilon:g} promises nothing, and no noise is so little: give a smaller one")
    return budget


def _noise_scale(budget: Budget, event: Callable[[float], Event], accountant: str, start: float) -> float:
    def spend(scale: float) -> float:
        return certified_profile(event(scale), budget.neighbours, accountant).epsilon(budget.delta)

    def roughly(scale: float) -> float:  # quick, and within a few per cent
        return accountants.profile(event(scale), budget.neighbours, "gdp").epsilon(budget.delta)

    noise = _least(spend, budget.epsilon, _least(roughly, budget.epsilon, start))
    if noise == math.inf:
        raise Refused(f"epsilon = {budget.epsilon:g} cannot be met by accountant {accountant!r}: use 'pld'")
    return round_digits(noise, "up")


def calibrate_noise(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: Any = 1.0,
    steps: int | None = None,
    accountant: str = "pld",
    neighbours: Neighbours = "add-remove",
    profile: Any = None,
    beside: Event | None = None,
) -> float:
    """The least noise multiplier with which the steps are (epsilon, delta)-DP, rounded up to eight digits.

    Args:
        profile: relative noise of each step, where steps differ; the answer is the factor to multiply it by.
        beside: another release that the same budget pays for.

    >>> round(calibrate_noise(epsilon=1.0, delta=1e-5), 3)
    3.731
    """
    budget = _check(Budget(epsilon=epsilon, delta=delta, neighbours=neighbours))
    validation.one_of(accountants.NAMES, accountant=accountant)
    shape = 1.0 if profile is None else validation.positive_vector(profile=profile)
    events.gaussian(shape, sampling_probability, steps)  # refuse bad arguments before any work
    count = steps or np.size(shape) if np.ndim(sampling_probability) == 0 else np.size(sampling_probability)
    start = _guess(budget, float(np.mean(sampling_probability)), float(count))
    others = () if beside is None else (beside,)
    if others and certified_profile(events.compose(*others), neighbours, accountant).epsilon(delta) >= epsilon:
        raise Refused("the release beside the steps takes the whole budget: give it a smaller share")

    def event(scale: float) -> Event:
        return events.compose(events.gaussian(scale * shape, sampling_probability, steps), *others)

    return _noise_scale(budget, event, accountant, start)


def calibrate_steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_probability: float = 1.0,
    accountant: str = "pld",
    neighbours: Neighbours = "add-remove",
) -> int:
    """The largest number of equal steps that are (epsilon, delta)-DP; refused when not even one is.

    >>> calibrate_steps(epsilon=2.6, delta=1e-5, noise_multiplier=50.0)
    1003
    """
    budget = _check(Budget(epsilon=epsilon, delta=delta, neighbours=neighbours))
    return _most_steps(
        budget, lambda count: events.gaussian(noise_multiplier, sampling_probability, count), accountant, "fixed"
    )


def _guess(budget: Budget, q: float, steps: float) -> float:
    """Noise multiplier by the central limit: good enough to start from."""
    mu = budget.epsilon / math.sqrt(2 * math.log(1.25 / budget.delta))
    return max(events.SENSITIVITY[budget.neighbours] * q * math.sqrt(steps) / mu, 0.3)


def _most_steps(budget: Budget, event: Callable[[int], Event], accountant: str, schedule: Schedule) -> int:
    """Interpolation search: epsilon grows about as the square root of the steps."""

    def spend(count: int) -> float:
        return certified_profile(event(count), budget.neighbours, accountant).epsilon(budget.delta)

    low, cost_low = 1, spend(1)
    if cost_low > budget.epsilon:
        raise Refused(
            f"epsilon = {budget.epsilon:g} does not pay for a single step: "
            "add noise, lower the sampling probability or raise the budget"
        )
    most, target = MOST_STEPS[schedule], budget.epsilon
    high, cost_high = low, cost_low
    while cost_high <= target:
        low, cost_low = high, cost_high
        if low > most:
            raise Refused(f"more than {most:g} steps fit the budget: fix steps and free another setting")
        growth = (target / cost_low) ** 2 if cost_low > 0 else 16.0
        high = min(max(low + 1, math.ceil(1.02 * low * min(growth, 1e6))), most + 1)
        cost_high = spend(high)
    attempt = 0
    while high - low > 1:
        slope = math.log(cost_high / max(cost_low, 1e-300)) / math.log(high / low)
        meets = low * math.exp(math.log(target / max(cost_low, 1e-300)) / slope)  # where a power law meets the budget
        # The power law and its neighbour close in from both sides; where it keeps missing, halving takes turns with it.
        halve = attempt > 5 and attempt % 3 == 0
        count = (low + high) // 2 if halve else math.floor(meets) + attempt % 2
        count = min(max(count, low + 1), high - 1)
        attempt += 1
        cost = spend(count)
        if cost <= target:
            low, cost_low = count, cost
        else:
            high, cost_high = count, cost
    return low


def noise_multiplier(*, step_size: float, n: int, batch_size: int, clip: float, temperature: float = 1.0) -> float:
    """sigma = q sqrt(2 n temperature / step_size) / clip: what a Langevin step's own noise amounts to.

    The step is theta - step_size * (mean gradient) + N(0, 2 step_size temperature / n); divide by step_size / (q n).
    """
    n, batch_size = sizes(n, batch_size)
    step_size, clip = validation.positive(step_size=step_size), validation.positive(clip=clip)
    return batch_size / n * math.sqrt(2 * n * validation.positive(temperature=temperature) / step_size) / clip


def sizes(n: Any, batch_size: Any) -> tuple[int, int]:
    """n and batch_size, checked against each other."""
    n, batch_size = validation.count(n=n), validation.count(batch_size=batch_size)
    if batch_size > n:
        raise Refused(f"batch_size = {batch_size} is above n = {n}: give a batch size of at most n")
    return n, batch_size


def relative_noise(schedule: Schedule, steps: int) -> np.ndarray | float:
    """sigma_t / sigma_1 of a schedule: step sizes that fall as t^(-1/3) make the noise multiplier rise as t^(1/6)."""
    validation.one_of(SCHEDULES, schedule=schedule)
    steps = validation.count(steps=steps)
    if steps > MOST_STEPS[schedule]:
        raise Refused(f"steps = {steps} is too many for a {schedule} schedule: give at most {MOST_STEPS[schedule]:g}")
    return 1.0 if schedule == "fixed" else np.arange(1, steps + 1) ** (1 / 6)


def calibrate(
    budget: Budget,
    *,
    n: int,
    batch_size: int,
    steps: int | None = None,
    step_size: float | None = None,
    clip: float | None = None,
    temperature: float | None = 1.0,
    schedule: Schedule = "fixed",
    accountant: str = "pld",
) -> float:
    """Of a Langevin run's steps, step size, clip and temperature, give all but one: the one left out is returned.

    It is the value that spends the budget exactly: the largest number of steps, step size (the first one of a
    decreasing schedule) or clip, or the lowest temperature.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> eta = calibrate(budget, n=10_000, batch_size=10_000, steps=100, clip=1.0)
    >>> calibrate(budget, n=10_000, batch_size=10_000, step_size=eta, clip=1.0)
    100
    """
    validation.instance(Budget, budget=budget)
    _check(budget)
    n, batch_size = sizes(n, batch_size)
    q = batch_size / n
    given = {"steps": steps, "step_size": step_size, "clip": clip, "temperature": temperature}
    free = [name for name, value in given.items() if value is None]
    if len(free) != 1:
        raise Refused(
            f"{len(free)} settings are free ({', '.join(free) or 'none'}): leave out exactly one of {', '.join(given)}"
        )
    for name in given.keys() - {"steps", *free}:
        validation.positive(**{name: given[name]})
    if steps is None:
        sigma = noise_multiplier(
            step_size=given["step_size"],
            n=n,
            batch_size=batch_size,
            clip=given["clip"],
            temperature=given["temperature"],
        )

        def event(count: int) -> Event:
            return events.gaussian(sigma * relative_noise(schedule, count), q, count)

        return _most_steps(budget, event, accountant, schedule)
    shape = relative_noise(schedule, steps)
    sigma = calibrate_noise(
        epsilon=budget.epsilon,
        delta=budget.delta,
        neighbours=budget.neighbours,
        sampling_probability=q,
        steps=steps,
        accountant=accountant,
        profile=None if schedule == "fixed" else shape,
    )
    if step_size is None:
        return 2 * n * given["temperature"] * (q / (sigma * given["clip"])) ** 2
    if clip is None:
        return q * math.sqrt(2 * n * given["temperature"] / step_size) / sigma
    return step_size * (sigma * clip / q) ** 2 / (2 * n)
