"""Summary of draws that know of the noise, made of the trace of a run by steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from confide.inference.summaries.runs import Steps


@dataclass(frozen=True, kw_only=True)
class NoiseAwareSummary(Steps):
    """Of draws that were made of the trace of a run by steps."""

    noisy_sums: ClassVar[bool] = True
    noise_aware: Mapping[str, Any]  # what is approximated, and the chains of the run

    def lines(self) -> list[str]:
        return [
            f"{self.noise_aware['chains']} x {self.steps} steps, {self.batches()}, {self.cut()}",
            f"{self.draws} draws of the posterior given their noisy sums, at no further cost",
        ]

    def remarks(self) -> list[str]:
        return [
            f"The draws are of the posterior given all noisy sums of {self.noise_aware['chains']} x {self.steps} steps "
            f"by {self.sampler}, so that they know of the noise: intervals are as wide as it makes them.",
            f"Approximation: {self.noise_aware['approximation']}. The sum of gradients is taken as linear in the "
            "parameters, with a bend that grows with the distance, and the spread of gradients as the model's. That no "
            f"gradient of a record is longer than {self.gradient_bound:.6g} was declared, and is not checked: privacy "
            "does not rest on it, and intervals do.",
        ]
