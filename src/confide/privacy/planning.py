"""A budget turned into the settings of a Langevin run, with what every theory makes of it."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from confide import validation
from confide.privacy import accountants, calibration, events, step_size_theorems
from confide.privacy.accountants.profiles import Status
from confide.privacy.budget import Budget, belief
from confide.privacy.calibration import Schedule
from confide.privacy.events import Neighbours
from confide.privacy.large_delta import warn_of_large_delta
from confide.validation import Refused

RATES = (0.001, 0.01, 0.1)


class Allowed(NamedTuple):
    theory: str
    step_size: float
    remark: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    budget: Budget
    n: int
    batch_size: int
    sampling_probability: float
    steps: int
    clip: float
    temperature: float
    schedule: Schedule
    step_size: float
    noise_multiplier: float
    epsilons: dict[str, float]
    status: dict[str, Status]
    allowed: tuple[Allowed, ...]
    attack_success: float
    belief: float
    trade_off: dict[float, float]  # false positive rate -> least false negative rate
    utility: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "allowed": [row._asdict() for row in self.allowed],
            "trade_off": [{"false_positive_rate": a, "false_negative_rate": b} for a, b in self.trade_off.items()],
        }


def plan(
    *,
    n: int,
    epsilon: float,
    delta: float,
    clip: float = 1.0,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    temperature: float = 1.0,
    schedule: Schedule = "fixed",
    neighbours: Neighbours = "add-remove",
) -> Plan:
    """The largest step size that the budget pays for, and what the papers would have allowed.

    For runs of Langevin steps, as `confide.sgld` takes them. `confide.scoring`, the default of linear models, needs no
    settings but the budget, and spends all of it.
    """
    budget = Budget(epsilon=epsilon, delta=delta, neighbours=neighbours)
    n = validation.count(n=n)
    warn_of_large_delta(delta, n)
    n, batch_size = calibration.sizes(n, min(n, step_size_theorems.DEFAULT_BATCH) if batch_size is None else batch_size)
    clip, temperature = validation.positive(clip=clip), validation.positive(temperature=temperature)
    validation.one_of(calibration.SCHEDULES, schedule=schedule)
    steps = _steps(epochs, steps, n, batch_size)
    shared: dict[str, Any] = {
        "n": n,
        "steps": steps,
        "epsilon": epsilon,
        "delta": delta,
        "clip": clip,
        "temperature": temperature,
        "batch_size": batch_size,
        "schedule": schedule,
        "neighbours": neighbours,
    }
    step_size = step_size_theorems.step_size("numerical", **shared)
    sigma = calibration.noise_multiplier(
        step_size=step_size, n=n, batch_size=batch_size, clip=clip, temperature=temperature
    )
    q = batch_size / n
    event = events.gaussian(sigma * calibration.relative_noise(schedule, steps), q, steps)
    profiles = {name: accountants.profile(event, neighbours, name) for name in accountants.NAMES}
    tight = profiles["pld"]
    return Plan(
        budget=budget,
        n=n,
        batch_size=batch_size,
        sampling_probability=q,
        steps=steps,
        clip=clip,
        temperature=temperature,
        schedule=schedule,
        step_size=step_size,
        noise_multiplier=sigma,
        epsilons={name: profile.epsilon(delta) for name, profile in profiles.items()},
        status={name: profile.status for name, profile in profiles.items()},
        allowed=_allowed_rows(shared, step_size),
        attack_success=tight.attack_success(),
        belief=belief(tight.loss(delta)),
        trade_off=dict(zip(RATES, tight.trade_off(RATES).tolist(), strict=True)),
        utility=_utility(steps, step_size, schedule),
    )


def _steps(epochs: float | None, steps: int | None, n: int, batch_size: int) -> int:
    if (epochs is None) == (steps is None):
        raise Refused("give epochs or steps, and not both: how long the run shall be")
    if epochs is not None:
        return max(1, round(validation.positive(epochs=epochs) * n / batch_size))
    return validation.count(steps=steps)


def _allowed_rows(shared: dict[str, Any], step_size: float) -> tuple[Allowed, ...]:
    rows = [Allowed("tight accountant", step_size, "what confide uses")]
    rows.append(
        Allowed("moments, classical tail", step_size_theorems.step_size("moments", **shared), "same temperature")
    )
    theorem = "3" if shared["schedule"] == "decreasing" else "4"
    for method, name in (("li2019", f"li2019, Theorem {theorem}"), ("wang2015", "wang2015, Theorem 4")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            published = step_size_theorems.step_size(method, **shared)
        remark = "outside its side conditions" if caught else "as published, temperature 1/2"
        rows.append(Allowed(name, published, remark))
    return tuple(rows)


def _utility(steps: int, step_size: float, schedule: Schedule) -> str:
    """li2019, Propositions 5 and 6, as one sentence."""
    if schedule == "decreasing":
        wanted = step_size_theorems.optimal_base_decreasing(steps) / steps ** (2 / 3)
        source = "Proposition 5"
    else:
        wanted = step_size_theorems.optimal_step_fixed(steps)
        source = "Proposition 6"
    ratio = step_size / wanted
    verdict = "about what" if 0.5 < ratio < 2 else "less than" if ratio > 1 else "more than"
    total = step_size * steps if schedule == "fixed" else step_size * 1.5 * steps ** (2 / 3)
    return (
        f"Privacy is spent in the sum of the step sizes, {total:.4g} here: fewer and larger steps of the same sum cost "
        f"about the same. For the mean squared error alone li2019 ({source}, constants aside) would take a step of "
        f"{wanted:.3g}, {verdict} the budget pays for."
    )
