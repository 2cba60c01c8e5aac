"""Private baselines for convex models: one minimum, or one set of statistics, released with noise.

| baseline | for | promise |
|----------|-----|---------|
| `objective_perturbation` | one score a record: the best of the minima | (epsilon, delta), or pure |
| `output_perturbation` | any convex model, softmax regression too: the simplest proof | Gaussian-DP, or pure |
| `sufficient_statistics_regression` | linear regression: a posterior that allows for the noise | Gaussian-DP |

The first two are point estimates: one draw, and no width. Each is priced and charged before the records are used.
"""

from __future__ import annotations

from confide.baselines.objective_perturbation import objective_perturbation
from confide.baselines.output_perturbation import output_perturbation
from confide.baselines.sufficient_statistics import sufficient_statistics_regression

__all__ = ["objective_perturbation", "output_perturbation", "sufficient_statistics_regression"]
