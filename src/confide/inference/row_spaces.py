r"""Rows of which public relations are known: of the levels of a category one is the constant in every record, and the
others are 0.

With such relations no record tells anything of some directions of the coefficients, and noise must not be taken for
information about them. Rows z lie in a subspace, z = B v, and scores are v (B^T theta): all that scoring asks and
concludes is about B^T theta, and beyond it draws are the prior's. v = M^T z has the constant 1 first, where there is
one, which is then orthogonal to all else; its other coordinates are orthonormal.

The mechanism knows nothing of it: a record is seen through A M^T, embedded by orthonormal columns U among as many
coordinates as it has anyhow, and what is noise alone there is dropped from the answers. A record that does not keep the
relations is bounded like any other.

Second moments S of such rows are known in part as well: S N = 0 for the directions N that no row has, no two levels of
a category occur together, and E x^2 = E x c of a level x and the constant c. All of it is linear in S, and noise of the
same size in Frobenius norm is least where the noisy matrix is projected to what can be (`RowSpace.keep_structure`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PROJECTIONS = 60


class RowSpace(NamedTuple):
    """For rows of length p in a space of dimension r."""

    inward: np.ndarray  # M, (p, r): v = M^T z
    outward: np.ndarray  # B, (p, r): z = B v
    embedding: np.ndarray  # U, (p, r)
    nothing: np.ndarray  # (p, p - r): orthonormal directions that no row has
    constant: int | None  # place of an entry that is the same in all rows, up to their scale
    categories: tuple[tuple[int, ...], ...]  # places of levels

    @property
    def width(self) -> int:
        return len(self.inward)

    @property
    def size(self) -> int:
        return self.inward.shape[1]

    @property
    def shortened(self) -> float:
        """By how much the squared norm of v is below that of z, where there is a constant; 0 elsewhere."""
        return float(np.sum(self.outward[:, 0] ** 2)) - 1.0

    def see(self, root: np.ndarray) -> np.ndarray:
        """What rows are multiplied by from the right to be seen through a symmetric root of the space."""
        return self.inward @ root @ self.embedding.T

    def lift(self, position: np.ndarray) -> np.ndarray:
        """Coefficients of rows whose scores are those of coefficients of the space."""
        return (self.inward @ position.reshape(self.size, -1)).ravel()

    def reduce_sum(self, noisy: np.ndarray) -> np.ndarray:
        return (self.embedding.T @ noisy.reshape(self.width, -1)).ravel()

    def reduce_matrix(self, noisy: np.ndarray) -> np.ndarray:
        return self.embedding.T @ noisy @ self.embedding

    def keep_structure(self, second: np.ndarray) -> np.ndarray:
        """The nearest matrix that second moments of rows can be, by projections in turn (von Neumann)."""
        found, nothing = second.copy(), self.nothing
        apart = np.zeros(found.shape, bool)
        for places in self.categories:
            apart[np.ix_(places, places)] = True
        np.fill_diagonal(apart, False)
        levels = [place for places in self.categories for place in places if place != self.constant]
        for _ in range(PROJECTIONS):
            found[apart] = 0.0
            if self.constant is not None:  # an entry beside the diagonal is there twice
                mean = (found[levels, levels] + 2 * found[levels, self.constant]) / 3
                for place in ((levels, levels), (levels, self.constant), (self.constant, levels)):
                    found[place] = mean
            along = found @ nothing
            half = (along - nothing @ (nothing.T @ along) / 2) @ nothing.T
            found = (found + found.T) / 2 - half - half.T  # symmetric to the last bit: what is not would grow
        return found

    def complete(self, root: np.ndarray, scores: int) -> np.ndarray:
        """All coefficients from those of the space through its root, and as many as no row tells anything of."""
        every = np.concatenate([self.inward @ root, self.nothing], axis=1)
        return np.kron(every, np.eye(scores))


def row_space(width: int, constant: int | None, categories: tuple[tuple[int, ...], ...]) -> RowSpace | None:
    """Of rows whose entries at the places of each category add up to the same; to the one at `constant`, if given,
    which is 1. A category of one place is a constant of any size.

    >>> row_space(4, 0, ((1, 2, 3),)).size
    3
    """
    sums = np.zeros((width, len(categories)))
    for number, places in enumerate(categories):
        sums[list(places), number] = 1.0
    relations = sums[:, 1:] - sums[:, :1]
    if constant is not None:
        relations = sums.copy()
        relations[constant] -= 1.0
    if not relations.shape[1]:
        return None
    nothing = np.linalg.qr(relations)[0]
    shared = sums @ (1 / np.sum(sums, axis=0))  # along it rows of all categories are alike, and so is the constant
    if constant is not None:
        shared[constant] = 1.0
    length = float(shared @ shared)
    alone = [place for place in range(width) if place != constant and not sums[place].any()]
    others = np.concatenate([np.eye(width)[:, alone], *(_contrasts(width, places) for places in categories)], axis=1)
    value = 1.0 if constant is not None else np.sqrt(length)  # of the first coordinate, over what it adds up to
    return RowSpace(
        inward=np.column_stack([shared * value / length, others]),
        outward=np.column_stack([shared / value, others]),
        embedding=np.column_stack([shared / np.sqrt(length), others]),
        nothing=nothing,
        constant=constant if constant is not None else next((each[0] for each in categories if len(each) == 1), None),
        categories=categories,
    )


def _contrasts(width: int, places: tuple[int, ...]) -> np.ndarray:
    """Orthonormal, each of one level and all before it."""
    found = np.zeros((width, len(places) - 1))
    for j in range(1, len(places)):
        found[list(places[:j]), j - 1] = 1.0
        found[places[j], j - 1] = -j
    return found / np.linalg.norm(found, axis=0)
