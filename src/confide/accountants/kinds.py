"""Fewer kinds of step: a long schedule replaced by a short one that is provably no more private.

Two facts about a Poisson-subsampled Gaussian step with noise multiplier sigma and sampling probability q:

- *Monotone.* Adding Gaussian noise turns sigma into any larger value, and replacing the output by a fresh one
  from the "record absent" component with probability 1 - q/q' turns q' into any smaller q. Both are
  post-processing, so rounding sigma down and q up can only raise the price, under every accountant.
- *Convex.* The log-moment at an integer order is a log-sum-exp of linear functions of 1/sigma^2 (add-remove),
  so a step is priced from above by the chord between two knots in 1/sigma^2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.events import Parts


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
    pairs, index = np.unique(np.stack([q, sigma]), axis=1, return_inverse=True)
    return Kinds(pairs[1], pairs[0], np.bincount(index.ravel(), counts, minlength=pairs.shape[1]))


def rounded(parts: Parts, most: int) -> Kinds:
    """At most about `most` kinds, by rounding noise down and sampling probability up (monotone)."""
    sigma, q, counts = parts.noise_multipliers, parts.sampling_probabilities, parts.counts
    kinds = _merge(sigma, q, counts)
    if kinds.counts.size <= most:
        return kinds
    # The cheapest fit: one shared relative width for both axes, found by halving.
    low, high = 0.0, np.log(max(sigma.max() / sigma.min(), q.max() / q.min())) + 1.0
    for _ in range(12):
        width = (low + high) / 2
        attempt = _merge(1.0 / _round_up(1.0 / sigma, width), _round_up(q, width), counts)
        low, high = (low, width) if attempt.counts.size <= most else (width, high)
        if attempt.counts.size <= most:
            kinds = attempt
    return kinds


def chorded(parts: Parts, knots: int, most_probabilities: int = 64) -> Kinds:
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
            share = (inverse_variance - grid[left]) / (grid[left + 1] - grid[left])
            weight = np.bincount(left, counts * (1 - share), knots) + np.bincount(left + 1, counts * share, knots)
            inverse_variance, counts = grid, weight
        pieces.append((inverse_variance**-0.5, np.full(counts.size, probability), counts))
    if not pieces:
        return Kinds(*(np.zeros(0),) * 3)
    return Kinds(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
