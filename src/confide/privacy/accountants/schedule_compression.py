"""Fewer kinds of step: a long schedule replaced by a short one that is provably no more private.

Three facts about a Poisson-subsampled Gaussian step with noise multiplier sigma and sampling probability q:

- *Monotone.* Adding Gaussian noise turns sigma into any larger value, and replacing the output by a fresh one
  from the "record absent" component with probability 1 - q/q' turns q' into any smaller q. Both are
  post-processing, so rounding sigma down and q up can only raise the price, under every accountant.
- *Convex moments.* The log-moment at an integer order is a log-sum-exp of linear functions of 1/sigma^2 (add-remove),
  so a step is priced from above by the chord between two knots in 1/sigma^2.
- *Convex profile.* Let m = 1/sigma and v the total variation distance of two Gaussians one sensitivity apart:
  v = 2 Phi(m/2) - 1 (add-remove) or 2 Phi(m) - 1 (replace-one). For every epsilon, delta is convex in v. So a step
  between two knots is dominated by one that draws, openly, the knot with less noise with the probability that the chord
  in v has there, and the other knot otherwise.
  Proof. Add-remove: for N(m) against N(0), d delta / dv = exp(epsilon/2 - epsilon^2 / (2 m^2)) rises with m; sampling
  maps delta at epsilon to q times delta at log(1 + (e^epsilon - 1) / q), and the other order of the pair to an affine
  function of it. Replace-one: write a = e^epsilon, b = (a-1)(1-q)/q, u = t m where t is the point of equal weighted
  densities, e^u - a e^-u = b e^(m^2/2). Then 2 q^-1 d delta / dv = e^(-u^2 / (2 m^2)) (e^u + a e^-u) =: R, and with
  T = (e^u - a e^-u) / (e^u + a e^-u), x = u/m and y = m T, d log R / dm = (x^2 - x y + y^2) / m >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import erf

from confide.privacy.events import SENSITIVITY, Neighbours, Parts, tally

FINE, COARSE = 16_384, 256  # kinds kept where chords join them, and where sampling probabilities differ too
SPACING = 0.05  # of the knots of a chord, in log sigma


class Kinds(NamedTuple):
    noise_multipliers: np.ndarray
    sampling_probabilities: np.ndarray
    counts: np.ndarray


def _round_up(values: np.ndarray, width: float) -> np.ndarray:
    """Each value raised to the largest one in its cell of relative width `width`."""
    if width == 0:
        return values
    cell = np.floor(np.log(values / values.min()) / width)
    distinct, index = np.unique(cell, return_inverse=True)
    top = np.zeros(distinct.size)
    np.maximum.at(top, index, values)
    return top[index]


def _merge(sigma: np.ndarray, q: np.ndarray, counts: np.ndarray) -> Kinds:
    kinds, sums = tally(q, sigma, counts)
    return Kinds(np.imag(kinds), np.real(kinds), sums)


def round_kinds(parts: Parts, most: int) -> Kinds:
    """At most about `most` kinds, by rounding noise down and sampling probability up (monotone)."""
    sigma, q, counts = parts.noise_multipliers, parts.sampling_probabilities, parts.counts
    kinds = _merge(sigma, q, counts)
    if kinds.counts.size <= most:
        return kinds
    # The cheapest fit: one shared relative width for both axes, found by halving.
    low, high = 0.0, np.log(max(sigma.max() / sigma.min(), q.max() / q.min())) + 1.0
    for _ in range(12):
        width = (low + high) / 2
        attempt = _merge((1 - 4e-16) / _round_up(1.0 / sigma, width), _round_up(q, width), counts)
        low, high = (low, width) if attempt.counts.size <= most else (width, high)
        if attempt.counts.size <= most:
            kinds = attempt
    return kinds


def chord(parts: Parts, knots: int, most_probabilities: int = 64) -> Kinds:
    """At most `knots` kinds for each sampling probability, by chords in 1/sigma^2 (convex, add-remove)."""
    q = parts.sampling_probabilities
    width = 0.0
    while np.unique(_round_up(q, width)).size > most_probabilities:
        width = max(1e-4, 2 * width)
    q = _round_up(q, width)
    pieces = []
    for probability in np.unique(q):
        chosen = q == probability
        inverse_variance, counts = parts.noise_multipliers[chosen] ** -2.0, parts.counts[chosen]
        if np.unique(inverse_variance).size > knots:
            ends = inverse_variance.min(), inverse_variance.max()
            grid = np.geomspace(*ends, knots)
            grid[0], grid[-1] = ends
            left = np.clip(np.searchsorted(grid, inverse_variance, side="right") - 1, 0, knots - 2)
            # Rounding raises the share of the knot with less noise: all of it, where the knots are equal to rounding.
            gap = grid[left + 1] - grid[left]
            share = (inverse_variance - grid[left] + 4e-16 * inverse_variance) / np.maximum(gap, 1e-300) * (1 + 1e-15)
            share = np.minimum(share, 1.0)
            weight = np.bincount(left, counts * (1 - share), knots) + np.bincount(left + 1, counts * share, knots)
            inverse_variance, counts = grid, weight * (1 + 2e-16 * (4 + counts.size))  # sums of so many numbers
        pieces.append((inverse_variance**-0.5, np.full(counts.size, probability), counts))
    if not pieces:
        return Kinds(*(np.zeros(0),) * 3)
    return Kinds(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


class Chord(NamedTuple):
    """Steps between two noise multipliers, left with less noise: each is `left` with its share, else `right`."""

    q: float
    left: float
    right: float
    shares: np.ndarray
    counts: np.ndarray


def chords(parts: Parts, neighbours: Neighbours) -> Iterator[Chord]:
    """All steps, as chords in the total variation distance (convex profile), most noise first."""
    few = np.unique(parts.sampling_probabilities).size <= 8
    sigma, q, counts = round_kinds(parts, FINE if few else COARSE)
    for probability in np.unique(q):
        chosen = q == probability
        yield from _chords_of_one(float(probability), sigma[chosen], counts[chosen], SENSITIVITY[neighbours])


def _chords_of_one(q: float, sigma: np.ndarray, counts: np.ndarray, sensitivity: float) -> Iterator[Chord]:
    knots = 2 + math.ceil(math.log(sigma.max() / sigma.min()) / SPACING)
    if sigma.size <= knots:
        for i in np.argsort(-sigma):
            yield Chord(q, float(sigma[i]), float(sigma[i]), np.ones(1), counts[i : i + 1])
        return
    grid = np.geomspace(sigma.max(), sigma.min(), knots)
    grid[0], grid[-1] = sigma.max(), sigma.min()
    cell = np.clip(np.searchsorted(-grid, -sigma, side="right") - 1, 0, knots - 2)
    for k in np.unique(cell):
        inside = cell == k
        right, left, here = (erf(sensitivity / (s * math.sqrt(8))) for s in (grid[k], grid[k + 1], sigma[inside]))
        # Rounding errors raise the share; where the distances are equal to rounding, it is all on the left.
        share = (here - right + 1e-15) / max(left - right - 1e-15, 1e-300)
        yield Chord(q, float(grid[k + 1]), float(grid[k]), np.clip(share, 0.0, 1.0), counts[inside])
