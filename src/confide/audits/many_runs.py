r"""What the scores of many runs prove: a lower bound on epsilon from counts of independent runs.

In n runs the canary was in, in others it was not; each run gives one score. If the runs are (epsilon, delta)-DP, then
for every threshold TPR <= e^epsilon FPR + delta, and the same with the roles of both sides swapped, so

    epsilon >= log((TPR - delta) / FPR).

**No half is spent on choosing the threshold.** Let it be the k-th largest score without the canary. The probability
that another such score exceeds it is at most a Beta(k, n - k + 1) variable, whatever the scores' law, which bounds the
FPR from above; and given the threshold, scores with the canary exceed it independently, so that Clopper and Pearson's
interval bounds the TPR from below. Each takes half of the level.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

SHARES = {0.4: 0.8, 0.2: 0.1, 0.65: 0.1}  # exponents of n for k, and their shares of the level


def largest_epsilon(members: np.ndarray, nonmembers: np.ndarray, delta: float, level: float) -> float:
    """The best of both directions and of a few k fixed beforehand, each with its share of the level."""
    best = 0.0
    for inside, outside in ((members, nonmembers), (-nonmembers, -members)):
        ordered = np.sort(outside)
        for exponent, share in SHARES.items():
            k = max(1, round(len(outside) ** exponent))
            best = max(best, _at(inside, ordered, k, delta, share * level / 2))
    return best


def _at(inside: np.ndarray, ordered: np.ndarray, k: int, delta: float, level: float) -> float:
    found = int(np.sum(inside > ordered[-k]))
    highest = float(stats.beta.isf(level / 2, k, len(ordered) - k + 1))
    lowest = float(stats.beta.ppf(level / 2, found, len(inside) - found + 1)) if found else 0.0
    return math.log((lowest - delta) / highest) if lowest > delta and lowest - delta > highest else 0.0
