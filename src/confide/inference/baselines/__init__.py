"""Private baselines: one minimum, one set of statistics, or some labels, released with noise.

| baseline | for | promise |
|----------|-----|---------|
| `objective_perturbation` | one score a record: the best of the minima | (epsilon, delta), or pure |
| `output_perturbation` | any convex model, softmax regression too: the simplest proof | Gaussian-DP, or pure |
| `sufficient_statistics_regression` | linear regression: a posterior that allows for the noise | Gaussian-DP |
| `pate` | any classifier, networks too, with public rows that it may label | Gaussian-DP |

All but the third are point estimates: one draw, and no width. Each is priced and charged before the records are used.
"""

from __future__ import annotations

from confide.inference.baselines.objective_perturbation import objective_perturbation
from confide.inference.baselines.output_perturbation import output_perturbation
from confide.inference.baselines.pate import pate
from confide.inference.baselines.sufficient_statistics import sufficient_statistics_regression

__all__ = ["objective_perturbation", "output_perturbation", "pate", "sufficient_statistics_regression"]
