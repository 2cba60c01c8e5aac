r"""Tests of the mechanism itself, by what it did to canaries: is its noise what it is priced for?

Guesses at membership are blind to much: at a small epsilon to half the noise, at any to noise that is the same in every
step. But a canary's coordinate is known exactly. With s_t the noise that step t is priced for and c the clip, the noisy
sum there is s_t N(0, 1) + c B_t, where B_t = 1 with probability q for a canary that is in (-1 for one that pulls the
other way, 0 for one that is out), all independent. Over T steps, m canaries and K chains:

| test | statistic | law, if the run is what it says |
|------|-----------|---------------------------------|
| noise | sum of (x / s)^2, too small | at least chi-squared with T m K degrees (a mean only adds): exact |
| pull | sum of x / c over those in, signed, too large | Binomial(T m K, q) + normal: exact |
| steps | sum of x / s over the steps, squared, over those that are out | T chi-squared with m K degrees: exact |
| batches | squared deviation of x / c from T q, over those in | its mean and variance are known; as a Gamma variable |
| chains | products of two chains' deviations | ((K - 1) A - B) / 2, A and B chi-squared: as if deviations were normal |

The first two are one-sided: more noise, or less pull, breaks no promise. The others are two-sided: noise or batches
that are used again are a violation however they come out. "batches" is left out where single batches decide it.

For "chains": with D_k the deviations of one canary, standard normal and independent, the products add up to
((sum of D_k)^2 - sum of D_k^2) / 2. The sum has variance K and is independent of the squares around the mean, so that
this is (K A - (A + B)) / 2 with A chi-squared with 1 degree, B with K - 1; of m canaries with m and m (K - 1).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from confide.inference.posterior import Canaries

LEAST = 1e-20  # of a p-value: what is left out of sums is less
NODES = 1000  # of an integral over a range of 24 standard deviations at most
HEAVY = 0.2  # excess kurtosis of one deviation beyond which the Gamma is no good


def p_values(told: Canaries) -> dict[str, float]:
    """One for each test that can be made."""
    chains, _ = told.sums.shape
    present, sign = _present(told)
    found = {"noise": _noise(told), "pull": _pull(told, present, sign)}
    if np.any(~present):
        found["steps"] = _two_sided(
            stats.chi2(chains * int(np.sum(~present))), float(np.sum(np.square(told.sums[:, ~present])) / told.steps)
        )
    noisy = told.spread
    q, steps = told.sampling_probability, told.steps
    chance = q * (1 - q)
    variance = noisy + steps * chance
    if np.any(present) and steps * chance * (1 - 6 * chance) <= HEAVY * variance**2:
        squares = np.square(sign[present] * told.pulls[:, present] - steps * q) / variance
        excess = steps * chance * (1 - 6 * chance) / variance**2
        shape = squares.size / (2 + excess)
        found["batches"] = _two_sided(stats.gamma(shape, scale=squares.size / shape), float(np.sum(squares)))
    if chains > 1:
        found["chains"] = _between(told, present, sign, variance)
    return found


def _present(told: Canaries) -> tuple[np.ndarray, np.ndarray]:
    """Which canaries pull, and which way."""
    if told.replaced:
        return np.ones(len(told.inside), bool), np.where(told.inside, 1.0, -1.0)
    return told.inside, np.ones(len(told.inside))


def _noise(told: Canaries) -> float:
    return max(LEAST, float(stats.chi2.cdf(np.sum(told.squares), told.steps * told.squares.size)))


def _pull(told: Canaries, present: np.ndarray, sign: np.ndarray) -> float:
    """P(Binomial + normal >= what was seen), summed over the binomial; what it leaves out is added."""
    number = told.sums.shape[0] * int(np.sum(present))
    total = float(np.sum(sign[present] * told.pulls[:, present]))
    sd = math.sqrt(number * told.spread)
    trials, q = number * told.steps, told.sampling_probability
    if q == 1 or not number:
        return float(special.ndtr((trials - total) / sd)) if number else 1.0
    wide = 12 * math.sqrt(trials * q * (1 - q)) + 30
    times = np.arange(max(0, math.floor(trials * q - wide)), min(trials, math.ceil(trials * q + wide)) + 1)
    chances = stats.binom.pmf(times, trials, q)
    return min(1.0, float(np.sum(chances * special.ndtr((times - total) / sd))) + LEAST)


def _between(told: Canaries, present: np.ndarray, sign: np.ndarray, variance: float) -> float:
    expected = np.where(present, sign * told.steps * told.sampling_probability, 0.0)
    deviations = (told.pulls - expected) / np.sqrt(np.where(present, variance, told.spread))
    chains = len(deviations)
    products = (np.square(deviations.sum(axis=0)) - np.square(deviations).sum(axis=0)) / 2
    return max(LEAST, min(1.0, 2 * min(_products(float(np.sum(products)), products.size, chains))))


def _products(seen: float, number: int, chains: int) -> tuple[float, float]:
    """P(((K - 1) A - B) / 2 <= seen), and >=: over the root of B, which is within 12 of its middle but for 1e-30."""
    freedom = number * (chains - 1)
    middle = math.sqrt(freedom)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    low, high = max(0.0, middle - 12), middle + 12
    roots = low + (high - low) * (nodes + 1) / 2
    chances = stats.chi.pdf(roots, freedom) * weights * (high - low) / 2
    bounds = (2 * seen + np.square(roots)) / (chains - 1)
    return (
        float(np.sum(chances * stats.chi2.cdf(bounds, number))),
        float(np.sum(chances * stats.chi2.sf(bounds, number))),
    )


def _two_sided(law: stats.distributions.rv_frozen, seen: float) -> float:
    return min(1.0, max(LEAST, 2 * min(float(law.cdf(seen)), float(law.sf(seen)))))
