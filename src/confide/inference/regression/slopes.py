r"""Slopes of the scores, one for every draw, and linear systems with them.

The slope of draw k is J_k = l D J D + s U. D is diagonal, with what was drawn of the diagonal of J; l is by how much
the slope of normal rows is larger at the draw than at the last query; and U has rank two: b a a^T, by which the slope
of normal rows bends along the linear predictor, less the same at the last query. s is 1, or as much less as keeps J_k
at least `LEAST` times its first term. No matrix is made of it: a product with J_k takes one product with J for all
draws at once, and systems are solved by conjugate gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.inference.regression.outcomes import NODES, WEIGHTS
from confide.inference.regression.results import Result

LEAST = 0.05
TOLERANCE = 1e-10  # of the right side


class Bend(NamedTuple):
    """U = `size` `along` `along`^T - `old_size` `old_along` `old_along`^T for every draw, times `share`."""

    size: np.ndarray
    along: np.ndarray
    old_size: np.ndarray
    old_along: np.ndarray
    share: np.ndarray

    def times(self, vectors: np.ndarray) -> np.ndarray:
        one = np.einsum("ki,ki->k", self.along, vectors) * self.size
        other = (vectors @ self.old_along) * self.old_size
        product = one[:, None] * self.along - other[:, None] * self.old_along
        return self.share[:, None] * product


class Slopes(NamedTuple):
    matrix: np.ndarray  # J
    scales: np.ndarray  # the diagonals of D, one row a draw
    level: np.ndarray | float = 1.0
    bend: Bend | None = None

    def times(self, vectors: np.ndarray) -> np.ndarray:
        """J_k v_k, one row a draw."""
        level = np.reshape(self.level, (-1, 1))
        product = level * self.scales * ((self.scales * vectors) @ self.matrix)
        return product if self.bend is None else product + self.bend.times(vectors)

    def one(self, place: int) -> np.ndarray:
        """J_k as a matrix."""
        d = len(self.matrix)
        level = float(np.broadcast_to(self.level, len(self.scales))[place])
        chosen = Slopes(self.matrix, np.tile(self.scales[place], (d, 1)), level)
        matrix = chosen.times(np.eye(d))
        if self.bend is None:
            return matrix
        bend = self.bend
        repeated = Bend(
            np.full(d, bend.size[place]), np.tile(bend.along[place], (d, 1)), np.full(d, bend.old_size[place]),
            bend.old_along, np.full(d, bend.share[place]),
        )  # fmt: skip
        return matrix + repeated.times(np.eye(d))


def change_slopes(result: Result, positions: np.ndarray, drawn: Slopes) -> Slopes:
    """The slope at each position: that at the last query, changed as that of normal rows changes."""
    base, other = _shape(result, result.position[None]), _shape(result, positions)
    level = np.clip(other.level / base.level, 0.05, 20.0)
    bend = Bend(other.bend, other.along, level * base.bend[0], base.along[0], np.ones(len(level)))
    return Slopes(drawn.matrix, drawn.scales, level, bend._replace(share=_largest_share(drawn, level, bend)))


def _largest_share(drawn: Slopes, level: np.ndarray, bend: Bend) -> np.ndarray:
    """By the smaller eigenvalue of U over l D J D, which is that of a matrix of two rows."""
    inverse = np.linalg.inv(drawn.matrix)
    one, other = bend.along / drawn.scales, bend.old_along / drawn.scales
    moved_one, moved_other = one @ inverse, other @ inverse
    aa = np.einsum("ki,ki->k", one, moved_one) / level * bend.size
    bb = -np.einsum("ki,ki->k", other, moved_other) / level * bend.old_size
    ab = np.einsum("ki,ki->k", one, moved_other) / level
    determinant = aa * bb + bend.size * bend.old_size * ab**2
    half = (aa + bb) / 2
    least = half - np.sqrt(np.maximum(half**2 - determinant, 0.0))
    return np.minimum(1.0, (1 - LEAST) / np.maximum(-least, 1e-300))


class Shape(NamedTuple):
    """The slope of normal rows is level (S + mean mean^T) + bend along along^T, and terms of first order."""

    level: np.ndarray
    bend: np.ndarray
    along: np.ndarray


def _shape(result: Result, positions: np.ndarray) -> Shape:
    rows, family = result.frame.rows, result.family
    along = positions @ rows.covariance
    spread = np.sqrt(np.maximum(np.einsum("ki,ki->k", along, positions), 1e-10))
    center = positions @ rows.mean + family.offset
    eta = center[:, None] + spread[:, None] * NODES
    terms = family.terms(eta, result.frame.norm, result.cut.clip)
    height = np.minimum(1.0, result.cut.clip / (terms.largest * result.frame.norm)) * terms.slope
    e0, e2 = height @ WEIGHTS, height @ (WEIGHTS * NODES**2)
    return Shape(rows.number * e0, rows.number * (e2 - e0), along / spread[:, None])


def solve(
    slope: Slopes, weights: np.ndarray, precision: np.ndarray, right: np.ndarray, usual: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """x_k with (J_k W J_k + P) x_k = b_k, by conjugate gradients from a start; `usual` is about the inverse.

    Systems that have not converged after a few times as many rounds as unknowns are solved one by one.
    """

    def apply(vectors: np.ndarray) -> np.ndarray:
        return slope.times(slope.times(vectors) @ weights) + vectors @ precision

    x = start.copy()
    rest = right - apply(x)
    moved = rest @ usual
    direction, product = moved.copy(), np.einsum("ki,ki->k", rest, moved)
    goal = TOLERANCE**2 * np.maximum(np.einsum("ki,ki->k", right, right), 1e-300)
    for _ in range(4 * len(precision) + 20):
        if np.all(np.einsum("ki,ki->k", rest, rest) <= goal):
            break
        applied = apply(direction)
        along = np.einsum("ki,ki->k", direction, applied)
        step = np.where(along > 0, product / np.maximum(along, 1e-300), 0.0)
        x += step[:, None] * direction
        rest -= step[:, None] * applied
        moved = rest @ usual
        last, product = product, np.einsum("ki,ki->k", rest, moved)
        direction = moved + np.where(last > 0, product / np.maximum(last, 1e-300), 0.0)[:, None] * direction
    open_ = np.flatnonzero(np.einsum("ki,ki->k", rest, rest) > goal)
    for place in open_:
        matrix = slope.one(int(place))
        x[place] = np.linalg.solve(matrix @ weights @ matrix + precision, right[place])
    return x
