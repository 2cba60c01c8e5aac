"""Estimates of an expectation from a sample that are meant to fall short of it with probability gamma only.

All of E exp(T v) for values v >= 0, given as (1/T) times their logarithm: v may be 1 and T 10,000, so nothing leaves
the logarithm before the largest exponent has been taken out.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainccinv, rel_entr, stdtrit

from confide import validation
from confide.validation import Refused

LOWEST = -700.0  # e to it is next to nothing, and less is slow to compute


def _exponentials(values: np.ndarray, largest: np.ndarray, steps: int) -> np.ndarray:
    """exp(T (values - largest)), with axis 1 of the values being the samples."""
    scaled = values - largest[:, None]
    scaled *= steps
    np.maximum(scaled, LOWEST, out=scaled)
    return np.exp(scaled, out=scaled)


def published_bound(values: np.ndarray, steps: int, failure_probability: float) -> np.ndarray:
    """triastcyn2020, equation 14, over axis 1: mean + t-quantile * deviation / sqrt(m - 1).

    The deviation has the divisor m; that is what makes the ratio a t with m - 1 degrees (Oliphant 2006).
    """
    samples = values.shape[1]
    quantile = -float(stdtrit(samples - 1, failure_probability)) / math.sqrt(samples - 1)
    largest = values.max(axis=1)
    scaled = _exponentials(values, largest, steps)
    mean = scaled.mean(axis=1)
    scaled -= mean[:, None]
    deviation = np.sqrt(np.einsum("ijk,ijk->ik", scaled, scaled) / samples)
    return largest + np.log(mean + quantile * deviation) / steps


def bounded_mean(values: np.ndarray, most: np.ndarray, steps: int, failure_probability: float) -> np.ndarray:
    """An upper confidence bound for values of any distribution up to `most`, over axis 1.

    (exp(T v) - 1) / (exp(T most) - 1) lies in [0, 1]; the largest mean that Hoeffding's inequality leaves possible is
    put in its place.
    """
    ceiling = np.maximum(steps * most, 1e-300)
    scaled = _exponentials(values, most, steps)
    if ceiling.min() < 1e-2:  # e^T v - 1 without cancellation
        scaled *= -np.expm1(-steps * values)
        mean = scaled.mean(axis=1)
    else:
        mean = scaled.mean(axis=1) - np.exp(-ceiling)
    span = -np.expm1(-ceiling)
    share = np.clip(mean / span, 0.0, 1.0)
    upper = largest_mean(share, -math.log(failure_probability) / values.shape[1])
    return np.minimum(most, np.logaddexp(0.0, np.log(upper * span) + ceiling) / steps)


def largest_mean(share: np.ndarray, rate: float) -> np.ndarray:
    """The largest u with KL(share || u) <= rate, from above.

    Newton's steps start above the root and, by convexity, stay there.
    """
    absent = 1 - share
    entropy = -rel_entr(share, 1.0) - rel_entr(absent, 1.0)
    # KL(p || u) >= -entropy - (1-p) log(1-u), and >= (u-p)^2 / (2u).
    far = -np.expm1(-(rate + entropy) / np.maximum(absent, 1e-300))
    u = np.minimum(far, share + rate + np.sqrt(rate * (rate + 2 * share)))
    inside = np.flatnonzero((u < 1) & (share > 0))
    p, v, rest = share.flat[inside], u.flat[inside], absent.flat[inside]
    fixed = -entropy.flat[inside] - rate
    for _ in range(20):
        excess = fixed - p * np.log(v) - rest * np.log1p(-v)
        step = np.where(excess > 0, excess * v * (1 - v) / np.maximum(v - p, 1e-300), 0.0)
        v = np.maximum(p, v - step)
        if not (step > 1e-10 * v).any():
            break
    u.flat[inside] = v
    return np.minimum(1.0, u + 1e-9 * u * (1 - u) + 2**-52)


def binary_estimate(ones: int, zeros: int, failure_probability: float) -> float:
    """The share of ones that is exceeded with the failure probability, after a flat prior (triastcyn2020, 4.3.1).

    >>> round(binary_estimate(0, 100, 0.99**101), 12)
    0.01
    """
    counts = [validation.nonnegative(ones=ones), validation.nonnegative(zeros=zeros)]
    gamma = validation.probability(zero=True, one=True, failure_probability=failure_probability)
    if any(count != math.floor(count) for count in counts):
        raise Refused(f"ones = {ones}, zeros = {zeros} are not counts: give whole numbers")
    return float(betainccinv(counts[0] + 1, counts[1] + 1, gamma))
