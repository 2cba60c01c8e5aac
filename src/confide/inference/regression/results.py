"""What is known during and after the sequence of queries of a private regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from confide.inference.regression.columns import Location
from confide.inference.regression.cuts import Cut
from confide.inference.regression.design import Design
from confide.inference.regression.moments import MatrixPosterior, NormalRows
from confide.inference.regression.outcomes import Outcomes


class Prior(NamedTuple):
    """Normal, on coefficients of standardised columns; the intercept, which is that of centered columns, comes last."""

    mean: np.ndarray
    precision: np.ndarray


PriorRule = Callable[[Design, Location, float], Prior]  # the last argument is the offset of the linear predictor


class Frame(NamedTuple):
    """What follows from columns and moments: the coordinates of all further queries."""

    location: Location
    kept: tuple[int, ...]  # columns that have a coefficient
    stretch: np.ndarray  # what standardised columns are multiplied by, where a tail reaches far out
    whiten: np.ndarray  # A
    standardise: np.ndarray  # W
    rows: NormalRows
    norm: float  # usual ||z||
    moment_error: float
    rarity: np.ndarray  # of columns, 1 where values are spread over the records


class Answer(NamedTuple):
    position: np.ndarray
    sum: np.ndarray
    variance: float  # of the noise


@dataclass
class State:
    """What is known after each step. Positions are in whitened coordinates, relative to the offset."""

    family: Outcomes
    cut: Cut
    position: np.ndarray
    covariance: np.ndarray
    radius: float = 1.0
    relative: np.ndarray | None = None  # slope over the expected one, between roots of the latter
    released: MatrixPosterior | None = None  # the last slope
    answers: list[Answer] = field(default_factory=list)
    scales: list[tuple[float, float]] = field(default_factory=list)  # log of the scale or dispersion, and its variance


class Result(NamedTuple):
    """All that the posterior is made from."""

    design: Design
    frame: Frame
    prior: Prior  # in whitened coordinates
    family: Outcomes
    cut: Cut
    number: float  # noisy number of records
    number_error: float
    position: np.ndarray  # where the last queries were asked
    sum: np.ndarray  # of scores, referred to that position
    noise: float  # its variance
    slope: MatrixPosterior
    variance: MatrixPosterior
    expected_slope: np.ndarray
    shift: np.ndarray  # by what outcomes beyond the cut say
    shift_covariance: np.ndarray
    scale: tuple[float, float] | None  # log of the residual scale or dispersion, and its variance
    moves: np.ndarray  # between the last positions, one row a move
    answer_fit: float  # mean squared distance of late answers from their mean, over what noise and doubt explain
