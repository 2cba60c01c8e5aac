"""What noisy sums of bounded scores tell of coefficients, near the truth: the formula of `power.widths`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from confide.inference.power.families import Outcomes
from confide.inference.power.guesses import Guess

REACH, FLOOR, DOUBT = 1.25, 0.05, 0.3  # as `mechanism.scale`, `inference.designs` and `inference.scoring` have them
LEAST_EIGENVALUE = 1e-9  # over the largest, of a direction that rows have


class Setting(NamedTuple):
    """What is public of a run, but for its size and its budget."""

    outcomes: Outcomes
    guess: Guess
    truths: np.ndarray  # (truths, columns) or (truths, columns, classes)
    prior_scale: float
    noise_scale: float  # of a linear model; 1 elsewhere
    change: float  # 1 for add-remove, 2 for replace-one
    longest: float = 2.0**30  # norm at which the bins of the scale begin


class Design(NamedTuple):
    """Rows in a basis of the directions that they have."""

    basis: np.ndarray  # (columns, directions)
    root: np.ndarray  # of every direction; the mean square of ||u|| is 1
    rows: np.ndarray  # z in the basis
    norms: np.ndarray  # ||u||


class Sums(NamedTuple):
    """A record's share of J and V at one truth, in the basis, and the usual information there."""

    slope: np.ndarray
    variance: np.ndarray
    typical: float


def design(rows: np.ndarray, raised: float = 0.0) -> Design:
    """Whitened, but no further than the floor: as the run does it, which knows the directions that no row has.
    Eigenvalues may be raised by the noise that a run sees them with."""
    second = rows.T @ rows / len(rows)
    values, vectors = np.linalg.eigh(second)
    there = values > LEAST_EIGENVALUE * values[-1]
    values, basis = values[there], vectors[:, there]
    held = np.maximum(values, FLOOR * values.mean()) + raised
    root = 1 / np.sqrt(held * np.sum(values / held))
    turned = rows @ basis
    return Design(basis, root, turned, np.sqrt(np.sum((turned * root) ** 2, axis=1)))


def weigh(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of weight z z^T, or of z z^T (x) weight for matrices over the classes."""
    if weights.ndim == 1:
        return rows.T @ (rows * weights[:, None]) / len(rows)
    k = range(weights.shape[1])
    every = np.array([[rows.T @ (rows * weights[:, a, b, None]) for b in k] for a in k]) / len(rows)
    return every.transpose(2, 0, 3, 1).reshape(2 * (rows.shape[1] * len(k),))


def sums(outcomes: Outcomes, here: Design, scores: np.ndarray, clip: float, typical: float = 1.0) -> Sums:
    """At the scores of one truth; the clip is in usual norms of a row, and roots of the usual information."""
    slope, square = outcomes.told(scores, clip * math.sqrt(typical) / here.norms, typical)
    far = np.minimum(1.0, (REACH / here.norms) ** 2).reshape(-1, *(1,) * (slope.ndim - 1))
    return Sums(weigh(here.rows, far * slope), weigh(here.rows, far**2 * square), typical)


def told(here: Design, found: Sums, n: float, variance: float | np.ndarray, classes: int = 1) -> np.ndarray:
    """The precision of the data, of all coefficients; the variance of the noise is that of coordinates of u."""
    turned = np.repeat(here.root**-2.0 * variance, classes)
    total = n * found.variance + np.diag(turned)
    inner = n**2 * found.slope @ np.linalg.solve(total, found.slope)
    return _lift(here, inner, classes)


def _lift(here: Design, inner: np.ndarray, classes: int) -> np.ndarray:
    wide = np.kron(here.basis, np.eye(classes)) if classes > 1 else here.basis
    return wide @ inner @ wide.T


def left_open(second: np.ndarray, noise: float) -> np.ndarray:
    """Variances of what is left open of second moments that were seen with this noise: entries of a kind are shrunk by
    what they are and the noise is, in the mean."""
    eye = np.eye(len(second), dtype=bool)
    variance = np.where(eye, 1.0, 0.5) * noise**2
    away = np.where(eye, second - np.trace(second) / len(second), second) ** 2
    size = np.where(eye, np.mean(away[eye]), np.mean(away[~eye]) if len(second) > 1 else 0.0)
    return variance * size / (size + variance)


def turn(here: Design, variances: np.ndarray) -> np.ndarray:
    """Of entries in coordinates of u."""
    turned = np.square(here.root[:, None] * here.basis.T)
    return turned @ variances @ turned.T


def count_squares(here: Design, known: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """E of the squares of sum_t w_t (theta_t - theta_0), in coordinates of u. As the run counts it: in full what modes
    moved by since, and by `DOUBT` of it what is not known at the last of them."""
    variances = np.array([np.sum((here.basis.T @ each) * here.basis.T, axis=1) for each in known]) / here.root**2
    moved = np.maximum(variances[:-1] - variances[1:], 0.0)
    reached = np.cumsum(weights)
    return reached[: len(moved)] ** 2 @ moved + DOUBT * reached[-1] ** 2 * variances[-1]
