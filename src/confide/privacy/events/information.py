"""Sums of positive matrices, one a record, with symmetric Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.privacy.events.base import Event, Neighbours, Parts, parts_of
from confide.privacy.events.individual import CHANGE


@dataclass(frozen=True, kw_only=True, eq=False)
class InformationSums(Event):
    """Sums of one positive semidefinite matrix a record, of Frobenius norm at most a bound, with symmetric Gaussian
    noise of `noise_multipliers` bounds on the diagonal and of 1 / sqrt(2) as much beside it.

    Two such matrices have a product of trace 0 or more, so that their difference is at most sqrt(2) bounds long: that
    is what replacing a record costs, and not 2.
    """

    noise_multipliers: tuple[float, ...]

    def __post_init__(self) -> None:
        found = tuple(validation.noise(noise_multipliers=float(each)) for each in np.ravel(self.noise_multipliers))
        object.__setattr__(self, "noise_multipliers", found)

    def parts(self, neighbours: Neighbours) -> Parts:
        return parts_of(squared_mu=float(np.sum((CHANGE[neighbours] / np.array(self.noise_multipliers)) ** 2)))

    def fields(self) -> dict[str, Any]:
        return {"noise_multipliers": list(self.noise_multipliers)}

    def assumptions(self) -> tuple[str, ...]:
        return (
            "The information of the records was summed, each record's matrix cut to a bound in Frobenius norm, and "
            "symmetric Gaussian noise of the stated multiples of that bound was added to every sum.",
        )

    def released(self) -> str:
        return "noisy sums of the records' information"

    def summary(self) -> str:
        return f"{len(self.noise_multipliers)} sums of information, noise {min(self.noise_multipliers):.4g}"
