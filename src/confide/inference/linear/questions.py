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

from confide.inference import designs, moments
from confide.inference.designs import Doubt
from confide.inference.linear import likelihood
from confide.inference.linear.likelihood import Rows, Told
from confide.inference.questions import Put, Question, Reply
from confide.mechanism import query_grid
from confide.mechanism.linear_scale import LinearScale
from confide.mechanism.linear_sums import REACH, SHARE_OF_SCALE, Cuts, mean_square
from confide.mechanism.query_grid import OnGrid
from confide.models.families import Gaussian

SHARES = {"start": 0.08, "steps": 0.82, "end": 0.10}  # of what the scale leaves of the square of mu
STEPS, GROWTH = 8, 2.2
MISFIT, DOUBT = 0.1, 0.3  # as `inference.scoring` has them
FLOOR = 0.05  # eigenvalue of the second moments below which a direction is whitened no further, over their mean
ITERATIONS = 12
VERSION = 2  # of how answers are read, which decides where the next question is asked
LEAST = 1e-4  # residual scale to begin with, over what coefficients from their prior spread outcomes by
NOTHING = 1e200  # variance of the noise where the likelihood is to say nothing
FURTHEST = 30.0  # logs of a noise scale from its prior: in single precision no outcome tells of less
WAITING = 1e250  # the same, of a sum that was not asked for yet


def constants() -> tuple[float, ...]:
    """Whatever decides what is asked, beside the plan: a run that was begun with others is not gone on with."""
    own = (*SHARES.values(), STEPS, GROWTH, MISFIT, DOUBT, FLOOR, FURTHEST, ITERATIONS, REACH, SHARE_OF_SCALE)
    return (VERSION, *own, *query_grid.constants())


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


def frame(number: int, constant: int | None, prior_scale: float, scale: LinearScale, cuts: Cuts) -> Frame:
    """At the scale that was bought."""
    outcome = query_grid.round_scale(max(scale.outcome, LEAST * prior_scale * scale.norm))
    return Frame(number, constant, prior_scale, scale.norm, outcome, scale.seen, cuts)


class Geometry(NamedTuple):
    """What the first information tells."""

    root: np.ndarray  # A, symmetric, on its grid
    rounding: OnGrid  # of the root
    second: np.ndarray  # moments of rows
    doubt: Doubt  # what is left open of them


class Answers(NamedTuple):
    """Positions (A^-1 theta, log sigma), noisy sums there, and the variance of their noise."""

    positions: np.ndarray
    sums: np.ndarray
    variances: np.ndarray


def growing(steps: int) -> np.ndarray:
    """Shares of the steps."""
    shares = GROWTH ** np.arange(float(steps))
    return shares / shares.sum()


class NoisePlan(NamedTuple):
    """The noise of all questions, fixed before the first one."""

    multipliers: np.ndarray  # of each sum over the bound of a record
    information_multipliers: np.ndarray  # the same of both matrices

    def deviations(self, cuts: Cuts) -> np.ndarray:
        """Of every sum."""
        return query_grid.round_up(cuts.bound * self.multipliers)

    def information_deviations(self, cuts: Cuts) -> np.ndarray:
        return query_grid.round_up(cuts.information_bound * self.information_multipliers)


class Replies(NamedTuple):
    """What was asked and answered after the scale was bought."""

    first: Reply
    sums: list[Reply]
    last: Reply


def ask_questions(here: Frame, plan: NoisePlan, size: int, put: Put) -> Replies:
    """All questions in their order: the information, the sums, and the information.

    Each question follows from the replies before it and from public numbers alone. A run puts them to its records, and
    `confide verify` to the replies that the run stored (`inference.replay`): both ask the same.
    """
    nowhere, bounds = np.zeros(0), (here.cuts.bound, here.cuts.information_bound)
    deviations, spread = plan.deviations(here.cuts), plan.information_deviations(here.cuts)
    first = put(Question("information", 0, nowhere, np.eye(size) / here.norm, bounds[1], float(spread[0])))
    found = geometry(here, first.noisy, float(spread[0]))
    place = query_grid.round_to(np.append(np.zeros(size), here.outcome), np.append(np.ones(size), here.outcome))
    likely, sums = math.log(here.outcome), []
    for t, deviation in enumerate(deviations):
        grids = (place, found.rounding)
        sums.append(put(Question("noise", t, place.value, found.root, bounds[0], float(deviation), *grids)))
        if t == 0 and not np.array_equal(sums[0].root, found.root):  # the run began on another processor
            found = geometry(here, first.noisy, float(spread[0]), sums[0].root)
        if t + 1 < len(deviations):
            place, likely = next_place(here, found, plan, sums, likely)
    last = put(Question("information", 1, nowhere, found.root, bounds[1], float(spread[1]), None, found.rounding))
    return Replies(first, sums, last)


def next_place(here: Frame, found: Geometry, plan: NoisePlan, sums: list[Reply], likely: float) -> tuple[OnGrid, float]:
    """Where sums are asked for next, coefficients and noise scale, and the log of the noise scale that is likeliest, in
    steps of 2^-10; the last one is where the mode is looked for."""
    steps, done, inverse = len(plan.multipliers), len(sums), np.linalg.inv(found.root)
    positions, noisy = np.zeros((steps, len(inverse) + 1)), np.zeros((steps, len(inverse) + 1))
    positions[:done] = whiten(found.root, np.stack([reply.position for reply in sums]))
    noisy[:done] = [reply.noisy for reply in sums]
    waiting = np.where(np.arange(steps) < done, np.square(plan.deviations(here.cuts)), WAITING)
    rows = rows_of(here, found.root, found.second)
    answers, begin = Answers(positions, noisy, waiting), np.append(positions[done - 1, :-1], likely)
    _, middle, precision = locate(here, found.root, rows, answers, begin, found.doubt)
    scale = math.exp(residual_scale(here, rows, middle, precision))
    inner = inverse.T @ precision[:-1, :-1] @ inverse
    deviations = np.append(
        query_grid.conditional_deviations(inner), scale * min(query_grid.conditional_deviations(precision)[-1], 1.0)
    )
    place = query_grid.round_position(np.append(found.root @ middle[:-1], scale), deviations)
    return place, float(query_grid.round_to(middle[-1], 2.0**-query_grid.POSITION_BITS).value)


def whiten(root: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Positions (A^-1 theta, log sigma) of places (theta, sigma)."""
    return np.column_stack([np.linalg.solve(root, places[:, :-1].T).T, np.log(places[:, -1])])


def geometry(here: Frame, noisy: np.ndarray, deviation: float, root: np.ndarray | None = None) -> Geometry:
    """From the information of rows over their usual norm, and the standard deviation of its noise. `root` is the one
    that a run took, on whatever processor; None: it follows from the information."""
    unit = here.number * here.cuts.within / here.norm**2
    variance = (deviation / unit) ** 2
    shrunk = moments.shrink(noisy / unit, variance, here.norm**2, here.constant)
    values, vectors = moments.floor_eigenvalues(shrunk.second, FLOOR)
    raised = values + math.sqrt(float(np.max(np.sum(shrunk.variances, axis=1))))
    rounding = query_grid.round_root(moments.rebuild(1 / np.sqrt(raised * np.sum(values / raised)), vectors))
    root = rounding.value if root is None else root
    second = moments.shrink_eigenvalues(shrunk.second, shrunk.variances)
    _, basis = moments.decompose(root @ second @ root)
    turned = np.square(basis.T @ root)
    return Geometry(root, rounding, second, Doubt(turned @ shrunk.variances @ turned.T, basis))


def rows_of(here: Frame, root: np.ndarray, second: np.ndarray) -> Rows:
    """From second moments of the rows themselves."""
    found = moments.split(second, here.constant)
    level = 1.0 if here.constant is None else float(second[here.constant, here.constant])
    return Rows(root @ found.mean, root @ found.covariance @ root, np.asarray(max(level, 0.05)))


def second_of(rows: Rows) -> np.ndarray:
    """In coordinates of the root."""
    return rows.level * (rows.covariance + np.outer(rows.mean, rows.mean))


def gather(
    here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray, doubt: Doubt, spread: np.ndarray
) -> Told:
    """What is known, with weights for a truth in the middle, of whose coefficients it is known with this covariance."""
    size = len(root)
    values, vectors = moments.decompose(second_of(rows))
    told = Told(
        root, float(here.number), answers.positions, np.ones((len(answers.positions), 2)), np.zeros(size + 1),
        np.ones(2), np.maximum(values, 0.0), vectors, np.zeros(size), root @ root / here.prior_scale**2, here.spread,
        np.array([*here.cuts, here.cuts.factor, mean_square(here.cuts.square)]),
    )  # fmt: skip
    asked = (told, rows, answers.positions, middle)
    expected, slopes = (np.asarray(each) for each in likelihood.expect_positions(*asked))
    off = np.stack([np.sum(expected[:, :-1] ** 2, axis=1) / size, expected[:, -1] ** 2], axis=1)
    total = answers.variances[:, None] + MISFIT**2 * off
    shares = (1 / total) / np.sum(1 / total, axis=0)
    noise = np.sum(shares**2 * np.minimum(total, WAITING), axis=0)
    sums = np.append(shares[:, 0] @ answers.sums[:, :-1], shares[:, 1] @ answers.sums[:, -1])
    slopes = shares[:, 0] * slopes
    away = slopes @ (answers.positions[:, :-1] - middle[:-1]) @ vectors
    squares = np.square(away) + DOUBT * np.sum(slopes) ** 2 * np.einsum("ji,jk,ki->i", vectors, spread, vectors)
    return told._replace(
        shares=shares,
        sums=sums,
        noise=noise if here.seen else np.full(2, NOTHING),
        doubt=designs.turn(Gaussian(), [doubt], vectors) @ squares,
    )


class Located(NamedTuple):
    """What is known, its mode, and the precision there."""

    told: Told
    middle: np.ndarray
    precision: np.ndarray


def locate(here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray, doubt: Doubt) -> Located:
    inverse = np.linalg.inv(root)
    precision, spread = np.eye(len(middle)), here.prior_scale**2 * inverse @ inverse
    told = gather(here, root, rows, answers, middle, doubt, spread)
    for _ in range(2):
        found, curved = likelihood.find_mode(told, rows, middle, ITERATIONS)
        if np.all(np.isfinite(found)) and np.all(np.isfinite(curved)):
            middle, precision = np.asarray(found), np.asarray(curved)
            lower = invert_root(precision)[:-1]
            spread = lower @ lower.T
        told = gather(here, root, rows, answers, middle, doubt, spread)
    return Located(told, middle, precision)


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


def correct(here: Frame, found: Geometry, end: tuple[np.ndarray, float]) -> tuple[Rows, Doubt]:
    """Moments from both informations, and what is left open. In the eigenbasis of the first ones, in coordinates of the
    root, entries of either are taken as independent."""
    root, (noisy, deviation), basis = found.root, end, found.doubt.basis
    unit, before = here.number * here.cuts.within, found.doubt.variances
    after = designs.halve(np.full(root.shape, (deviation / unit) ** 2))
    share = before / (before + after)
    centre = basis.T @ root @ found.second @ root @ basis
    centre = centre + share * (basis.T @ (noisy / unit) @ basis - centre)
    held = basis @ moments.shrink_eigenvalues(centre, share * after) @ basis.T
    rows = rows_of(here, root, np.linalg.solve(root, np.linalg.solve(root, held).T))
    return rows, Doubt(share * after, basis)
