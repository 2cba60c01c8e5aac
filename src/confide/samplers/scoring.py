r"""Private Fisher scoring: a few noisy sums over all records, asked for where they tell most, and draws that know of
their noise.

    scale of the rows -> information at the start -> sums of bounded scores at the mode of what is known -> information

A budget buys one Gaussian release of strength mu, however it is divided: mu^2 = sum_j (sensitivity_j / noise_j)^2. A
chain that wanders spends it on the way. Here it is spent on sums near the truth, in coordinates in which all directions
are told alike, and the draws are those of the posterior given what was released (`confide.inference.noise_aware`).

Formal guarantee: every sum is the Gaussian mechanism on all records, and everything released is what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.samplers.sampler import Sampler
from confide.validation import Refused

DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Scoring(Sampler):
    """The settings of `confide.scoring`."""

    draws: int = DRAWS
    constant: int | None = None

    kind = "scoring"
    learns_noise_scale = True
    remedy = "raise the budget"

    def to_json(self) -> dict[str, Any]:
        return {"sampler": self.name} | ({} if self.constant is None else {"constant": self.constant})


def scoring(draws: int = DRAWS, constant: int | None = None) -> Sampler:
    """Private Fisher scoring, for generalised linear models.

    Args:
        draws: independent draws of the posterior given what was released; they cost nothing more.
        constant: the column of X that is 1 for every record, where the model has no intercept of its own: -1 for the
            last one. It is public, and no record is looked at for it.

    >>> scoring().to_json()
    {'sampler': 'scoring'}
    """
    if constant is not None and (isinstance(constant, bool) or not isinstance(constant, int)):
        raise Refused(f"constant = {constant!r} is no column: give its number, or leave it out")
    return Scoring(name="scoring", build=_by_questions, draws=validation.count(draws=draws), constant=constant)


def _by_questions(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    raise Refused("scoring() is planned from a budget: use confide.fit")
