"""What a sampler is before it meets a model: its settings, and how to build its kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, Schedule
from confide.models.model import Data, Model
from confide.privacy import calibration
from confide.privacy.budget import Budget
from confide.privacy.significant_digits import round_digits
from confide.validation import Refused

LARGEST = 1.0  # step size times clip
LEAST = 1e-6  # how far all steps together can carry a parameter

Kind = Literal[  # of run: what of it is released
    "steps", "hybrid", "last iterate", "posterior sample", "scoring", "statistics"
]
Decay = calibration.Schedule | Callable[[int], Any]  # how step sizes change


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """The settings of a sampler. Made by `confide.sgld` and its siblings.

    Attributes:
        step_size: a number, an optax schedule (step -> step size), or None: planned from the budget.
        schedule: how the step size changes: "fixed", "decreasing" (t^(-1/3)), or an optax schedule that multiplies it.
        temperature: 1 samples the posterior, 1/2 is the algorithm of li2019, 0 is gradient descent (without privacy).
        options: what only this sampler knows.
        companion: what moves along with the model and sees no record (`confide.samplers.companions`).
    """

    name: str
    build: Callable[[Sampler, MechanismParameters, np.ndarray], Kernel]
    step_size: float | Callable[[int], Any] | None = None
    schedule: Decay = "fixed"
    temperature: float = 1.0
    options: dict[str, float] = field(default_factory=dict)
    prescribe: Callable[[Sampler, MechanismParameters, int], np.ndarray] | None = None  # a paper's own step sizes
    budget: Budget | None = None  # what prescribe needs to know
    pace: float = 1.0  # diffusion time that a step of size 1 takes, and is paid for
    stability: float = 2.0  # step size times curvature from which on a chain flies apart
    companion: Any = None

    kind: ClassVar[Kind] = "steps"
    optimises: ClassVar[bool] = False  # whether it seeks a point, or a q, and draws the least noise that is paid for
    point: ClassVar[bool] = False  # whether what it keeps are points near the mode
    learns_noise_scale: ClassVar[bool] = False  # of a linear model that leaves it open
    remedy: ClassVar[str] = "lower the step sizes, the clip or the steps, or leave step_size and temperature out"

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
        """The step sizes, and whether they are final; else they are to be multiplied by what the budget allows.

        What a function or a power gives is rounded: its last digits depend on the processor.
        """
        if callable(self.step_size) and self.schedule != "fixed":
            raise Refused(f"{self.rate} is a schedule already: leave schedule out")
        if callable(self.step_size):
            return round_digits(_evaluate(self.rate, self.step_size, steps)), True
        if callable(self.schedule):
            shape = _evaluate("schedule", self.schedule, steps)
        else:
            shape = np.broadcast_to(calibration.relative_noise(self.schedule, steps), (steps,)) ** -2.0
        shape = round_digits(shape)
        return (shape, False) if self.step_size is None else (self.step_size * shape, True)

    def keep(self, draws: int | None, burn_in: int | None) -> int | None:
        """How many iterates are kept, where so many are asked for; None is planned."""
        return draws

    def snapshots(self, steps: int) -> int | None:
        """How many states are kept to see whether it has settled, where that is not seen from the draws."""
        return None

    def drift(self, kept: np.ndarray) -> float | None:
        """By how much it was still moving, from what was kept (chains, snapshots, ...); None where draws tell."""
        return None

    def bind(self, model: Model, data: Data, n: int, start: np.ndarray, unit: float = 1.0) -> Sampler:
        """The sampler for this model, n records of the shapes that `data` has, this start, and parameters in `unit`."""
        return self

    def trial(self, parameters: MechanismParameters, steps: int) -> tuple[Sampler, np.ndarray, bool]:
        """The sampler with a noise that can be priced, its step sizes, and whether both are final (see `calibrate`)."""
        if self.prescribe is not None and self.step_size is None:
            return self, self.prescribe(self, parameters, steps), True
        return self, *self.step_sizes(steps)

    def calibrate(
        self, parameters: MechanismParameters, sizes: np.ndarray, spare: float | None
    ) -> tuple[Sampler, np.ndarray]:
        """The sampler and its step sizes, where the budget lets the squares of the trial's noise be divided by `spare`.

        None where they were final. The squares fall as the step sizes rise.
        """
        if spare is None:
            return self, sizes
        if spare * float(np.sum(sizes)) * parameters.clip < LEAST:
            assert self.budget is not None
            raise Refused(
                f"epsilon = {self.budget.epsilon:g} pays for step sizes of {spare * float(np.max(sizes)):.2g} at most, "
                "with which nothing is learnt: raise the budget, lower the clip, or collect more records"
            )
        return self, sizes * round_digits(min(spare, self.longest(parameters) / float(np.max(sizes))), "down")

    def longest(self, parameters: MechanismParameters) -> float:
        """The longest step that is planned: half of what is stable, where the curvature has a bound; with scores that
        are bounded by weights no more diffusion time than the inverse of that bound; with gradients that are cut by
        their own length `LARGEST` / clip, which the gradient is followed by."""
        curvature = parameters.curvature
        if parameters.weighted and curvature is not None:
            return min(1 / self.pace, self.stability / 2) / curvature
        return min(LARGEST / parameters.clip, math.inf if curvature is None else self.stability / 2 / curvature)

    def check_stable(self, parameters: MechanismParameters, sizes: np.ndarray) -> None:
        """Refuse a step size that was given and is not stable, whatever the records are like."""
        largest, curvature = float(np.max(sizes)), parameters.curvature
        if curvature is not None and largest * curvature > self.stability:
            raise Refused(
                f"{self.rate} = {largest:.4g} is beyond {self.stability / curvature:.4g}, from which on the chain may "
                "fly apart for rows and a prior of these bounds: give a smaller one, or leave it out"
            )

    def rescale(self, parameters: MechanismParameters, sizes: np.ndarray, ratio: float) -> np.ndarray:
        """The step sizes for the same noise multipliers at another clip: `ratio` is the old one over the new one."""
        return sizes * ratio**2

    def gentle_sizes(self, parameters: MechanismParameters, steps: int, gentle: Callable[[], float]) -> np.ndarray:
        """The step sizes of a run without a guarantee; what is not given comes from `gentle`."""
        sizes, final = self.step_sizes(steps)
        return sizes if final else sizes * gentle()

    def describe(self, draws: int | None) -> dict[str, Any]:
        """What a plan says of it beside its settings and what all runs by steps have."""
        return {}

    def postprocess(self, draws: int | None) -> Callable[[np.ndarray, Any], np.ndarray] | None:
        """(what was kept, source of randomness) -> draws; None where what is kept are the draws."""
        return None

    def with_step_size(self, step_size: float) -> Sampler:
        return replace(self, step_size=step_size)

    def to_json(self) -> dict[str, Any]:
        """Settings as stored with a posterior; functions of the user's by the word 'function'."""
        settings = {"step_size": self.step_size, "schedule": self.schedule, "temperature": self.temperature}
        return {"sampler": self.name, **self.beside()} | {
            k: "function" if callable(v) else v for k, v in (settings | self.options).items()
        }

    def beside(self) -> dict[str, Any]:
        """What tells the companion from any other, where there is one."""
        return {} if self.companion is None else {"companion": self.companion.digest}


def _evaluate(name: str, schedule: Callable[[int], Any], steps: int) -> np.ndarray:
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
