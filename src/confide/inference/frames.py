"""What is public of a run of private scoring before its first question about scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from confide.inference import expected_scores
from confide.inference.expected_scores import Tables
from confide.inference.row_spaces import RowSpace
from confide.mechanism import query_grid
from confide.mechanism.query_grid import POSITION_BITS
from confide.mechanism.scale import REACH, Scale, typical_information
from confide.models.family import Family
from confide.models.priors import WIDE

CLIP = 0.1  # usual norms times the root of the information of a usual record


class Frame(NamedTuple):
    """What is public before the first question about scores."""

    family: Family
    number: int  # of records, as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    norm: float  # b
    clip: float
    typical: float
    seen: bool  # whether the scale is: else nothing that follows tells anything, and draws are the prior's
    start: np.ndarray
    wide: bool = False  # whether the intercept, which comes first, has a prior of its own
    space: RowSpace | None = None  # of the rows, in whose coordinates everything else is

    @property
    def outputs(self) -> int:
        """Scores of a record."""
        return math.prod(self.family.outputs)

    @property
    def prior_scales(self) -> np.ndarray:
        """Of every parameter."""
        found = np.full(self.start.size, self.prior_scale)
        first = WIDE**2 if self.wide else 1.0
        if self.space is not None:
            first += self.space.shortened
        found[: self.outputs] *= math.sqrt(first)
        return found

    @property
    def row_bound(self) -> float:
        """In units of the clip, in which all sums are asked for."""
        return REACH * self.norm / self.clip

    @property
    def information_bound(self) -> float:
        """Of a record's information, in the same units."""
        bound = self.family.information_bound(REACH * self.norm, self.clip, self.typical) / self.clip**2
        return float(query_grid.round_up(bound))

    @property
    def threshold(self) -> float:
        """Of a usual row."""
        return self.clip / self.norm

    @property
    def tables(self) -> Tables:
        return expected_scores.tables(self.family, self.threshold, self.typical)


def frame(
    family: Family,
    number: int,
    shape: tuple[int, int],
    constant: int | None,
    prior: tuple[float, bool],
    scale: Scale,
    mu: float,
    space: RowSpace | None = None,
) -> Frame:
    """At the scale that was bought. `shape` is the length of a row and the number of parameters, `prior` its scale and
    whether it is wider for the intercept; mu is what one record may reveal by all scores. In coordinates of the space
    the constant comes first."""
    (rows, size), (prior_scale, wide) = shape, prior
    if space is not None:
        size, rows = size // rows * space.size, space.size
        shorter = math.sqrt(max(1 - space.shortened / scale.norm**2, 0.05))
        norm = scale.norm * query_grid.round_scale(shorter)
        scale, constant = scale._replace(norm=norm), None if constant is None else 0
    typical = typical_information(family, scale) if family.unknown_information else family.usual_residual**2
    typical = query_grid.round_scale(typical)
    length = CLIP
    if not family.deep_clip:
        short, fall = family.balance
        length = max(CLIP, short / (1 + fall * rows / (number * mu**2)))
    clip = scale.norm * query_grid.round_scale(length * (math.sqrt(typical) if family.kind == "regression" else 1.0))
    start = np.zeros(size)
    if family.unknown_information and constant is not None:
        start[constant] = query_grid.round_to(math.log(max(scale.outcome, 0.05)), 2.0**-POSITION_BITS).value
    return Frame(family, number, constant, prior_scale, scale.norm, clip, typical, scale.seen, start, wide, space)


def expand(root: np.ndarray, size: int) -> np.ndarray:
    """The root as it acts on all parameters, a matrix of rows by scores that is flattened."""
    return root if len(root) == size else np.kron(root, np.eye(size // len(root)))
