"""What a sampler is before it meets a model: its settings, and how to build its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, Schedule
from confide.privacy import calibration
from confide.privacy.budget import Budget
from confide.validation import Refused

Decay = calibration.Schedule | Callable[[int], Any]  # how step sizes change


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """The settings of a sampler. Made by `confide.sgld` and its siblings.

    Attributes:
        step_size: a number, an optax schedule (step -> step size), or None: planned from the budget.
        schedule: how the step size changes: "fixed", "decreasing" (t^(-1/3)), or an optax schedule that multiplies it.
        temperature: 1 samples the posterior, 1/2 is the algorithm of li2019, 0 is gradient descent (without privacy).
        options: what only this sampler knows.
    """

    name: str
    build: Callable[[Sampler, MechanismParameters, np.ndarray], Kernel]
    step_size: float | Callable[[int], Any] | None = None
    schedule: Decay = "fixed"
    temperature: float = 1.0
    options: dict[str, float] = field(default_factory=dict)
    prescribe: Callable[[Sampler, MechanismParameters, int], np.ndarray] | None = (
        None  # step sizes by a paper's own rule
    )
    budget: Budget | None = None  # what prescribe needs to know

    def __post_init__(self) -> None:
        validation.nonnegative(temperature=self.temperature)
        if self.step_size is not None and not callable(self.step_size):
            validation.positive(**{self.rate: self.step_size})
        if not callable(self.schedule):
            validation.one_of(calibration.SCHEDULES, schedule=self.schedule)

    @property
    def rate(self) -> str:
        """What the step size is called."""
        return "step_size"

    @property
    def gaussian(self) -> bool:
        """Whether its privacy is that of Gaussian noise, which has no delta = 0."""
        return True

    def step_sizes(self, steps: int) -> tuple[np.ndarray, bool]:
        """The step sizes, and whether they are final; else they are to be multiplied by what the budget allows."""
        if callable(self.step_size) and self.schedule != "fixed":
            raise Refused(f"{self.rate} is a schedule already: leave schedule out")
        if callable(self.step_size):
            return _evaluated(self.rate, self.step_size, steps), True
        if callable(self.schedule):
            shape = _evaluated("schedule", self.schedule, steps)
        else:
            shape = np.broadcast_to(calibration.relative_noise(self.schedule, steps), (steps,)) ** -2.0
        return (shape, False) if self.step_size is None else (self.step_size * shape, True)

    def with_step_size(self, step_size: float) -> Sampler:
        return replace(self, step_size=step_size)

    def to_json(self) -> dict[str, Any]:
        """Settings as stored with a posterior; functions of the user's by the word 'function'."""
        settings = {"step_size": self.step_size, "schedule": self.schedule, "temperature": self.temperature}
        return {"sampler": self.name} | {
            k: "function" if callable(v) else v for k, v in (settings | self.options).items()
        }


def _evaluated(name: str, schedule: Callable[[int], Any], steps: int) -> np.ndarray:
    try:
        values = np.asarray(schedule(np.arange(steps)), np.float64)  # type: ignore[arg-type]
        if values.shape not in ((), (steps,)):
            raise TypeError
    except Exception:  # not written for arrays
        try:
            values = np.array([float(schedule(step)) for step in range(steps)], np.float64)
        except Exception as error:
            raise Refused(f"{name} is not a function of the step alone: {str(error).splitlines()[0][:100]}") from None
    values = np.broadcast_to(values, (steps,))
    wrong = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if wrong.size:
        raise Refused(f"{name} is {values[wrong[0]]:g} at step {wrong[0]}: give a schedule above 0 at every step")
    return values


def schedule_of(step_sizes: np.ndarray, noise: np.ndarray, fisher_noise: np.ndarray | None = None) -> Schedule:
    return Schedule(step_sizes, noise, np.zeros_like(noise) if fisher_noise is None else fisher_noise)
