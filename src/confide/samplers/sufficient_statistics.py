r"""Noisy sufficient statistics of a linear model, and draws that know of their noise.

    scale of rows and outcomes -> the sum of (z, y) (z, y)^T, with noise

One release, whatever is asked of it later: the sums of z z^T, z y and y^2 say all about the coefficients and the noise
scale. Outcomes have to be bounded as a whole, where `confide.scoring` bounds what is left of them: it tells more of the
same budget wherever rows explain outcomes.

Formal guarantee: each release is the Gaussian mechanism on all records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.samplers.sampler import Sampler
from confide.samplers.scoring import DRAWS
from confide.validation import Refused


@dataclass(frozen=True, kw_only=True)
class SufficientStatistics(Sampler):
    """The settings of `confide.sufficient_statistics`."""

    draws: int = DRAWS

    kind = "statistics"
    learns_noise_scale = True
    remedy = "raise the budget"

    def to_json(self) -> dict[str, Any]:
        return {"sampler": self.name}


def sufficient_statistics(draws: int = DRAWS) -> Sampler:
    """Noisy sufficient statistics, for linear models with a Gaussian prior.

    Args:
        draws: independent draws of the posterior given what was released; they cost nothing more.

    >>> sufficient_statistics().to_json()
    {'sampler': 'sufficient_statistics'}
    """
    count = validation.count(draws=draws)
    return SufficientStatistics(name="sufficient_statistics", build=_by_one_release, draws=count)


def _by_one_release(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    raise Refused("sufficient_statistics() is planned from a budget: use confide.fit")
