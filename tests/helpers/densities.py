"""Exact densities in one dimension, by quadrature: what releases really reveal, whatever any formula says.

A density lives on a grid. A step maps it and adds Gaussian noise, which is a matrix of Gaussian densities; sums over a
grid finer than the noise are accurate far beyond what is asked here, except at kinks, where they are off by the square
of the spacing. What the best attacker gets, the positive part of P - e^epsilon Q, is summed on a finer grid.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

POINTS = 301


def normal(y, mean, deviation):
    return np.exp(-0.5 * ((y - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


def kernel(maps, noises, start, end):
    """Densities at `end` (rows) of what begins at `start` (columns), after all steps; `end` is an even grid."""
    grid = np.linspace(end[0], end[-1], POINTS)
    density, spacing = None, grid[1] - grid[0]
    for index, (step, noise) in enumerate(zip(maps, noises, strict=True)):
        here = start if density is None else grid
        there = end if index == len(noises) - 1 else grid
        moved = normal(there[:, None], step(here)[None, :], noise)
        density = moved if density is None else moved @ density * spacing
    assert density is not None
    return density


def last_density(maps, noises, start, end):
    return kernel(maps, noises, np.array([start]), end)[:, 0]


def delta(p, q, epsilon, cell):
    """The hockey-stick divergence of two densities on a grid, the worse of both directions."""
    factor = math.exp(epsilon)
    return max(np.maximum(0, p - factor * q).sum(), np.maximum(0, q - factor * p).sum()) * cell


def gradient(records, clip=math.inf):
    """Of the negative log likelihood of a logistic regression on one feature, residuals cut to clip / |x|."""
    x, y = np.asarray(records, float).reshape(-1, 2).T

    def summed(theta):
        reach = clip / np.maximum(np.abs(x), 1e-300)
        return np.clip(expit(np.multiply.outer(theta, x)) - y, -reach, reach) @ x

    return summed


def langevin(slope, convexity, sizes):
    """The maps of full-batch Langevin dynamics, one for each step."""
    return [lambda theta, h=h: theta - h * (slope(theta) + convexity * theta) for h in sizes]


def posterior(slope, convexity, power, grid):
    """exp(-power sum l_i - convexity theta^2 / 2), normalised; l_i integrated from its slope."""
    values = slope(grid)
    loss = np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2)]) * (grid[1] - grid[0])
    log = -power * loss - convexity * grid**2 / 2
    density = np.exp(log - log.max())
    return density / (density.sum() * (grid[1] - grid[0]))
