"""Gaussian noise on sums of clipped contributions, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.privacy.events.base import SENSITIVITY, Event, Neighbours, Parts, parts_of, tally
from confide.validation import Refused

GAUSSIAN = (
    "Gaussian noise of the stated multiple of the clip was added to the sum of the clipped contributions, "
    "and nothing else about the records left the computation.",
)
POISSON = (
    "Every record entered every batch independently with the stated sampling probability (Poisson sampling), "
    "and which records a batch held stayed secret.",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianSteps(Event):
    """`steps` equal Gaussian steps on a sum of clipped contributions, each on a Poisson batch.

    With `sampling_probability` 1 a step uses every record and is not subsampled.

    >>> GaussianSteps(noise_multiplier=2.0, sampling_probability=0.01, steps=100).to_json()["steps"]
    100
    """

    noise_multiplier: float
    sampling_probability: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", validation.noise(noise_multiplier=self.noise_multiplier))
        q = validation.probability(one=True, sampling_probability=self.sampling_probability)
        object.__setattr__(self, "sampling_probability", q)
        object.__setattr__(self, "steps", validation.count(steps=self.steps))

    def parts(self, neighbours: Neighbours) -> Parts:
        if self.sampling_probability == 1.0:
            return parts_of(squared_mu=self.steps * (SENSITIVITY[neighbours] / self.noise_multiplier) ** 2)
        return parts_of([self.noise_multiplier], [self.sampling_probability], [self.steps])

    def fields(self) -> dict[str, Any]:
        return {
            "noise_multiplier": self.noise_multiplier,
            "sampling_probability": self.sampling_probability,
            "steps": self.steps,
        }

    def assumptions(self) -> tuple[str, ...]:
        return GAUSSIAN + (POISSON if self.sampling_probability < 1 else ())

    def summary(self) -> str:
        return f"{self.steps} Gaussian steps, noise {self.noise_multiplier:.4g}, q {self.sampling_probability:.4g}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_probability < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, event)
        return dp_accounting.SelfComposedDpEvent(event, self.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianSchedule(Event):
    """Gaussian steps that differ from one another, held in arrays: one noise multiplier per step.

    `sampling_probabilities` is a number for all steps or one number per step.
    """

    noise_multipliers: np.ndarray
    sampling_probabilities: np.ndarray | float = 1.0

    def __post_init__(self) -> None:
        sigma = validation.positive_vector(noise_multipliers=self.noise_multipliers)
        validation.noise(noise_multipliers=sigma.min())
        q: Any = self.sampling_probabilities
        if np.ndim(q) == 0:
            q = validation.probability(one=True, sampling_probabilities=q)
        else:
            q = validation.positive_vector(sampling_probabilities=q, upper=1.0)
            if q.size != sigma.size:
                raise Refused(
                    f"noise_multipliers has {sigma.size} steps and sampling_probabilities {q.size}: "
                    "give arrays of equal length, or one number for all steps"
                )
        object.__setattr__(self, "noise_multipliers", sigma)
        object.__setattr__(self, "sampling_probabilities", q)

    def parts(self, neighbours: Neighbours) -> Parts:
        sigma = self.noise_multipliers
        q = np.broadcast_to(np.asarray(self.sampling_probabilities, dtype=np.float64), sigma.shape)
        full = q == 1.0
        squared_mu = math.fsum((SENSITIVITY[neighbours] / sigma[full]) ** 2)
        kinds, counts = tally(q[~full], sigma[~full], np.ones(int((~full).sum())))
        return parts_of(np.imag(kinds), np.real(kinds), counts, squared_mu)

    def fields(self) -> dict[str, Any]:
        return {
            "noise_multipliers": self.noise_multipliers.tolist(),
            "sampling_probabilities": np.asarray(self.sampling_probabilities).tolist(),
        }

    def assumptions(self) -> tuple[str, ...]:
        return GAUSSIAN + (POISSON if np.min(self.sampling_probabilities) < 1 else ())

    def summary(self) -> str:
        sigma = self.noise_multipliers
        return f"{sigma.size} Gaussian steps, noise {sigma.min():.4g} to {sigma.max():.4g}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        q = np.broadcast_to(self.sampling_probabilities, self.noise_multipliers.shape)
        steps = [
            GaussianSteps(noise_multiplier=s, sampling_probability=p).to_dp_accounting().event
            for s, p in zip(self.noise_multipliers, q, strict=True)
        ]
        return dp_accounting.ComposedDpEvent(steps)
