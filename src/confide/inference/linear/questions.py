r"""What is asked of the records of a linear model, question by question, and nothing that sees one.

1. The **scale** of rows and of outcomes is bought: b, the usual norm, and an outcome that four in five are within.
2. The **information** tells second moments of the rows, and so a root A in whose coordinates all directions are alike.
   Of a linear model it depends on no coefficient: erf(k / (||u|| sqrt(2))) w u u^T.
3. **Steps**: each asks for the noisy sum of bounded scores of coefficients and of the noise scale at the mode of what
   is known so far, with a residual scale that allows for what is unknown there, and a budget that grows by `GROWTH`.
4. The **information** once more, in the same coordinates as the scores: it is the slope of their sum.

All of it is planned from the declared number of records, the number of parameters and the budget alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from confide.inference import moments
from confide.inference.linear import likelihood
from confide.inference.linear.likelihood import Rows, Told
from confide.inference.moments import Shrunk
from confide.mechanism.linear_sums import REACH, SHARE_OF_SCALE, Cuts, mean_square

SHARES = {"start": 0.08, "steps": 0.82, "end": 0.10}  # of what the scale leaves of the square of mu
STEPS, GROWTH = 8, 2.2
MISFIT = 0.1
FLOOR = 0.05  # eigenvalue of the second moments below which a direction is whitened no further, over their mean
ITERATIONS = 12
NOTHING = 1e200  # variance of the noise where the likelihood is to say nothing
FURTHEST = 30.0  # logs of a noise scale from its prior: in single precision no outcome tells of less
WAITING = 1e250  # the same, of a sum that was not asked for yet


def constants() -> tuple[float, ...]:
    """Whatever decides what is asked, beside the plan: a run that was begun with others is not gone on with."""
    return (*SHARES.values(), STEPS, GROWTH, MISFIT, FLOOR, FURTHEST, ITERATIONS, REACH, SHARE_OF_SCALE)


class Frame(NamedTuple):
    """What is public before the first question about scores."""

    number: int  # of records, as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    norm: float  # b
    outcome: float  # noise scale to begin with
    seen: bool  # whether the scale is: else nothing that follows tells anything, and draws are the prior's
    cuts: Cuts

    @property
    def spread(self) -> float:
        """The scale of the prior of the noise scale."""
        return self.prior_scale * self.norm


class Geometry(NamedTuple):
    """What the first information tells."""

    root: np.ndarray  # A, symmetric
    shrunk: Shrunk


class Answers(NamedTuple):
    """Positions (A^-1 theta, log sigma), noisy sums there, and the variance of their noise."""

    positions: np.ndarray
    sums: np.ndarray
    variances: np.ndarray


class Corrected(NamedTuple):
    """Rows as the information at the end leaves them: in the mean, and as often as is asked for."""

    mean: Rows
    drawn: Rows  # with a first axis


def growing(steps: int) -> np.ndarray:
    """Shares of the steps."""
    shares = GROWTH ** np.arange(float(steps))
    return shares / shares.sum()


def geometry(here: Frame, noisy: np.ndarray, deviation: float) -> Geometry:
    """From the information of rows over their usual norm, and the standard deviation of its noise."""
    unit = here.number * here.cuts.within / here.norm**2
    variance = (deviation / unit) ** 2
    shrunk = moments.shrink(noisy / unit, variance, here.norm**2, here.constant)
    values, vectors = moments.floor_eigenvalues(shrunk.second, FLOOR)
    root = moments.rebuild(1 / np.sqrt(len(noisy) * values), vectors)
    second = moments.rebuild(*moments.floor_eigenvalues(shrunk.second, 1e-6))
    return Geometry(root, Shrunk(second, shrunk.variances))


def rows_of(here: Frame, root: np.ndarray, second: np.ndarray) -> Rows:
    """From second moments of the rows themselves."""
    found = moments.split(second, here.constant)
    level = 1.0 if here.constant is None else float(second[here.constant, here.constant])
    return Rows(root @ found.mean, root @ found.covariance @ root, np.asarray(max(level, 0.05)))


def second_of(rows: Rows) -> np.ndarray:
    """In coordinates of the root."""
    return rows.level * (rows.covariance + np.outer(rows.mean, rows.mean))


def gather(here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray) -> Told:
    """What is known, with weights for a truth in the middle."""
    size = len(root)
    values, vectors = moments.decompose(second_of(rows))
    told = Told(
        root, float(here.number), answers.positions, np.ones((len(answers.positions), 2)), np.zeros(size + 1),
        np.ones(2), np.maximum(values, 0.0), vectors, root @ root / here.prior_scale**2, here.spread,
        np.array([*here.cuts, here.cuts.factor, mean_square(here.cuts.square)]),
    )  # fmt: skip
    expected = np.asarray(likelihood.expect_positions(told, rows, answers.positions, middle))
    off = np.stack([np.sum(expected[:, :-1] ** 2, axis=1) / size, expected[:, -1] ** 2], axis=1)
    total = answers.variances[:, None] + MISFIT**2 * off
    shares = (1 / total) / np.sum(1 / total, axis=0)
    noise = np.sum(shares**2 * np.minimum(total, WAITING), axis=0)
    sums = np.append(shares[:, 0] @ answers.sums[:, :-1], shares[:, 1] @ answers.sums[:, -1])
    return told._replace(shares=shares, sums=sums, noise=noise if here.seen else np.full(2, NOTHING))


def locate(
    here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mode of what is known, and the precision there."""
    precision = np.eye(len(middle))
    for _ in range(2):
        told = gather(here, root, rows, answers, middle)
        found, curved = likelihood.find_mode(told, rows, middle, ITERATIONS)
        if np.all(np.isfinite(found)) and np.all(np.isfinite(curved)):
            middle, precision = np.asarray(found), np.asarray(curved)
    return middle, precision


def invert_root(precision: np.ndarray) -> np.ndarray:
    """R with R R^T the covariance, which there is whatever rounding left of a precision."""
    sizes = np.sqrt(np.maximum(np.diag(precision), 1e-300))
    scaled = precision / np.outer(sizes, sizes)
    try:
        lower = np.linalg.cholesky(scaled + 1e-10 * np.eye(len(scaled)))
    except np.linalg.LinAlgError:
        lower = np.eye(len(scaled))
    return np.linalg.inv(lower).T / sizes[:, None]


def residual_scale(here: Frame, rows: Rows, middle: np.ndarray, precision: np.ndarray) -> float:
    """The log of what residuals at the mode spread by: noise, and what is not known of the coefficients. Outcomes that
    rows tell exactly would let it fall from step to step: it stays within `FURTHEST` of what the prior says."""
    root, prior = invert_root(precision), math.log(here.spread)
    covariance = root @ root.T
    likely = min(max(float(middle[-1]) - prior, -FURTHEST), FURTHEST)
    unknown = float(np.sum(second_of(rows) * covariance[:-1, :-1])) / here.spread**2
    total = math.exp(2 * likely + min(2 * float(covariance[-1, -1]), 2.0)) + max(unknown, 0.0)
    return prior + min(0.5 * math.log(total), FURTHEST)


def correct(
    here: Frame, found: Geometry, end: tuple[np.ndarray, float], generator: np.random.Generator, count: int
) -> Corrected:
    """Second moments from both informations. In the eigenbasis of the first ones, in coordinates of the root, entries
    of either are taken as independent."""
    root, (noisy, deviation) = found.root, end
    unit = here.number * here.cuts.within
    second = root @ found.shrunk.second @ root
    _, basis = moments.decompose(second)
    turned = np.square(basis.T @ root)
    before = turned @ found.shrunk.variances @ turned.T
    after = np.where(np.eye(len(root)) > 0, 1.0, 0.5) * (deviation / unit) ** 2
    share = before / (before + after)
    centre = basis.T @ second @ basis
    centre = centre + share * (basis.T @ (noisy / unit) @ basis - centre)

    def draw(size_of_noise: float) -> Rows:
        noise = np.triu(generator.standard_normal(root.shape))
        noise = size_of_noise * np.sqrt(share * after) * (noise + np.triu(noise, 1).T)
        held = basis @ moments.rebuild(*moments.floor_eigenvalues(centre + noise, 1e-4)) @ basis.T
        return rows_of(here, root, np.linalg.solve(root, np.linalg.solve(root, held).T))

    mean = draw(0.0)
    every = [draw(1.0) for _ in range(count)]
    return Corrected(mean, Rows(*(np.stack(column) for column in zip(*every, strict=True))))
