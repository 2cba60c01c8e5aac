"""The mu of a budget, by a few halvings: `confide.gdp_mu` finds the same, and takes a while to import."""

from __future__ import annotations

import math

from scipy.special import log_ndtr

HALVINGS = 60


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian differential privacy is (epsilon, delta)-DP.

    >>> round(mu_of(1.0, 1e-5), 5)
    0.26805
    """
    low, high = 1e-9, math.sqrt(2 * epsilon) + 10.0
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _log_delta(middle, epsilon) <= math.log(delta) else (low, middle)
    return low


def _log_delta(mu: float, epsilon: float) -> float:
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return first + math.log(max(-math.expm1(min(0.0, second - first)), 1e-300))
