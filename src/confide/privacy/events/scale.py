"""Histograms of the records' scale, by which clip and step sizes are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confide import validation
from confide.privacy.events.base import Event, Neighbours, Parts, parts_of
from confide.privacy.events.individual import CHANGE


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaleHistograms(Event):
    """Counts of records by the norm of their row, and perhaps by their outcome, with Gaussian noise of this standard
    deviation on every count. A record is in one bin of each."""

    noise: float
    histograms: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", validation.positive(noise=self.noise))
        object.__setattr__(self, "histograms", validation.count(histograms=self.histograms))

    def parts(self, neighbours: Neighbours) -> Parts:
        return parts_of(squared_mu=self.histograms * (CHANGE[neighbours] / self.noise) ** 2)

    def fields(self) -> dict[str, Any]:
        return {"noise": self.noise, "histograms": self.histograms}

    def assumptions(self) -> tuple[str, ...]:
        return (
            "Records were counted by their scale, in bins whose bounds are public, and Gaussian noise of standard "
            f"deviation {self.noise:.4g} at least was added to every count; clip and step sizes follow these counts, "
            "and the number of steps and all multiples of the noise were fixed before.",
        )

    def released(self) -> str:
        return "the scale of the records"

    def summary(self) -> str:
        return f"scale of the records, noise {self.noise:.4g}"
