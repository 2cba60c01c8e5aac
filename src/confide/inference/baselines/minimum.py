"""The minimum of a perturbed objective, with a certificate: no larger gradient than stated, rounding included.

    F(theta) = sum_i l_i(theta) + (lambda/2) ||theta||^2 + <b, theta>        (sums, never means)

F is lambda-strongly convex, so a point where the gradient has norm at most gamma lies within gamma / lambda of the
minimum. What is released rests on that distance, so the solver stops only where the gradient as computed, plus the
most by which rounding can have falsified it, is at most gamma.

**It always stops.** Newton's direction lowers the norm of the gradient itself, for H p = -g gives d||g||^2/dt =
-2 ||g||^2, and so does an inexact one with ||H p + g|| < ||g||. H is at least lambda and bounded, so steps halved until
the norm falls converge from anywhere, in the end quadratically. gamma (`tolerance`) is four times the most that
rounding can do at any place where the minimum can be, so it is never out of reach; where the norm no longer falls, a
gradient step is taken, which contracts F. There is nothing to refuse after the ledger is charged.

**Rounding**, u = 2^-53: adding n terms of norm at most L in chunks of m errs by at most (m + n/m) u n L; scores of p
terms by p u ||x|| ||theta||, which moves n gradients by smoothness times that; the rest by a few u of each term.

Rows go through in chunks, in double precision, so a second table is never in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg

from confide.models import convexity
from confide.models.model import Model
from confide.privacy.significant_digits import round_digits

CHUNK = 1024  # rows at a time
UNIT = 2.0**-53
FEW = 16.0  # roundings of one term: its link, its cut, its product
DENSE = 600  # parameters up to which the matrix of second derivatives is formed
FORCING = 0.1  # conjugate gradients stop at this share of the gradient
MANY_DEVIATIONS = 12.0  # beyond which the length of the noise is never met


class Rows(NamedTuple):
    """Of a chunk, at some parameters: what each row adds to the gradient and to the curvature."""

    x: np.ndarray
    residual: np.ndarray
    weight: np.ndarray  # second derivative by the score; for softmax the probabilities


@dataclass(frozen=True, kw_only=True)
class Objective:
    """sum_i l_i + (regularisation/2) ||theta||^2 + <tilt, theta>, for theta as one flat vector."""

    model: Model
    data: tuple[np.ndarray, ...]
    clip: float | None
    regularisation: float
    tilt: np.ndarray | float = 0.0
    present: np.ndarray | None = None  # which rows hold a record; None: all

    @property
    def outputs(self) -> int:
        return self.model.linear.outputs[0] if self.model.linear and self.model.linear.outputs else 1

    def rows(self, theta: np.ndarray) -> Iterator[Rows]:
        x, y = self.data
        weights = theta.reshape(-1, self.outputs) if self.outputs > 1 else theta
        for first in range(0, len(x), CHUNK):
            chunk = x[first : first + CHUNK].astype(np.float64)
            if self.model.linear is not None and self.model.linear.intercept:
                chunk = np.concatenate([chunk, np.ones((len(chunk), 1))], axis=1)
            scores, outcomes = chunk @ weights, y[first : first + CHUNK]
            assert self.model.family is not None
            residual = self.model.family.residual(scores, outcomes)
            weight = self.model.family.curvature(scores, outcomes)
            if self.clip is not None and self.outputs == 1:
                norms = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
                reach = self.clip / np.maximum(norms, 1e-300)
                weight = np.where(np.abs(residual) < reach, weight, 0.0)
                residual = np.clip(residual, -reach, reach)
            if self.present is not None:
                gone = ~self.present[first : first + CHUNK]
                chunk[gone] = residual[gone] = weight[gone] = 0.0
            yield Rows(chunk, residual, weight)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        total = np.zeros_like(theta)
        for rows in self.rows(theta):
            total += (rows.x.T @ rows.residual).ravel()
        return total + self.regularisation * theta + self.tilt

    def direction(self, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Newton's, exactly where the matrix is small and there is one score, else by conjugate gradients."""
        if theta.size > DENSE or self.outputs > 1:
            return _conjugate(lambda v: self.curved(theta, v), -gradient)
        matrix = self.regularisation * np.eye(theta.size)
        for rows in self.rows(theta):
            matrix += rows.x.T @ (rows.x * rows.weight[:, None])
        try:
            return linalg.cho_solve(linalg.cho_factor(matrix, lower=True), -gradient)
        except linalg.LinAlgError:  # a regularisation that rounding swallows
            return _conjugate(lambda v: self.curved(theta, v), -gradient)

    def curved(self, theta: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """The second derivative times a vector."""
        total = self.regularisation * vector
        for rows in self.rows(theta):
            if self.outputs == 1:
                total = total + rows.x.T @ (rows.weight * (rows.x @ vector))
            else:
                moved = rows.x @ vector.reshape(-1, self.outputs)
                mean = np.sum(rows.weight * moved, axis=1, keepdims=True)
                total = total + (rows.x.T @ (rows.weight * (moved - mean))).ravel()
        return total

    def rounding(self, radius: float) -> float:
        """The most by which the computed gradient can be off at ||theta|| <= radius."""
        return _rounding(self.model, len(self.data[0]), self.clip, self.regularisation, radius, norm(self.tilt))


def minimise(objective: Objective, tolerance: float, size: int) -> np.ndarray:
    """A point whose gradient is certainly no longer than the tolerance."""
    theta = np.zeros(size)
    gradient = objective.gradient(theta)
    shape = convexity.shape(objective.model, objective.clip)
    steepest = 1 / (objective.regularisation + len(objective.data[0]) * shape.smoothness)
    while norm(gradient) + objective.rounding(norm(theta)) > tolerance:
        direction, share = objective.direction(theta, gradient), 1.0
        while True:
            ahead = theta + share * direction
            gradient_ahead = objective.gradient(ahead)
            if norm(gradient_ahead) < norm(gradient):
                break
            share /= 2
            if share < UNIT:  # rounding has the better of Newton: a step that contracts whatever happens
                ahead = theta - steepest * gradient
                gradient_ahead = objective.gradient(ahead)
                break
        theta, gradient = ahead, gradient_ahead
    return theta


def tolerance(
    model: Model, records: int, clip: float | None, regularisation: float, size: int, noise: float = 0.0
) -> float:
    """A public gradient norm that can always be certified: `noise` is the standard deviation of a coordinate of b.

    ||theta|| is at most (n L + ||b||) / lambda at the minimum. Where losses are at least 0 and log(classes) at
    theta = 0, it is also at most (||b|| + sqrt(||b||^2 + 2 lambda n log(classes))) / lambda, as F(theta) <= F(0).
    """
    tilt = noise * (math.sqrt(size) + MANY_DEVIATIONS) * (1.0 + 1.0 / math.sqrt(size))
    radius = (records * convexity.shape(model, clip).gradient_bound + tilt) / regularisation
    assert model.family is not None
    losses = records * model.family.start_loss
    radius = min(radius, (tilt + math.sqrt(tilt**2 + 2 * regularisation * losses)) / regularisation)
    return round_digits(4 * _rounding(model, records, clip, regularisation, radius, tilt), "up")


def _rounding(
    model: Model, records: int, clip: float | None, regularisation: float, radius: float, tilt: float
) -> float:
    shape, longest = convexity.shape(model, clip), convexity.longest(model)
    assert model.linear is not None
    assert model.settings is not None
    columns = model.settings["dimension"] + model.linear.intercept
    outputs = model.linear.outputs[0] if model.linear.outputs else 1
    each = max(shape.gradient_bound, longest, shape.smoothness / longest)  # of the sums, and of means and links
    sums = (CHUNK + math.ceil(records / CHUNK) + FEW) * records * each
    scores = records * shape.smoothness * (columns + FEW) * math.sqrt(outputs) * radius
    return UNIT * (sums + scores + FEW * (regularisation * radius + tilt))


def norm(vector: np.ndarray | float) -> float:
    return float(np.linalg.norm(vector))


def _conjugate(product: Callable[[np.ndarray], np.ndarray], right: np.ndarray) -> np.ndarray:
    """H p = right, until the residual is a tenth: enough for the norm of the gradient to fall."""
    point, residual = np.zeros_like(right), right.copy()
    towards, square = residual.copy(), float(residual @ residual)
    target = FORCING**2 * square
    for _ in range(20 * right.size):
        if square <= target:
            break
        image = product(towards)
        share = square / float(towards @ image)
        point = point + share * towards
        residual = residual - share * image
        square, before = float(residual @ residual), square
        towards = residual + (square / before) * towards
    return point
