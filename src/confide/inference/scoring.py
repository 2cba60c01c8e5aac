r"""Private Fisher scoring: what is asked of the records, question by question, and nothing that sees one.

1. The **scale** of rows (and of counts) is bought: b, the usual norm. Where it does not stand out of its noise, nobody
   knows what sums mean, and the draws are the prior's.
2. The **information** at the start tells second moments of the rows (`inference.moments`), and so a root A in whose
   coordinates u = A z all directions are alike: noise and clip act where the information is equal.
3. **Steps**: each asks for the noisy sum of bounded scores at the mode of what is known so far
   (`inference.noise_aware`), with a budget that grows by `GROWTH`: the last ones are the nearest, and count most.
4. The **information at the end**, in the same coordinates, corrects the moments.

All of it is planned from the declared number of records, the number of parameters and the budget alone. Sums that were
asked for far from the mode count less, by `MISFIT` of what they should be: there the moments have to be right.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from confide.inference import designs, expected_scores, frames, moments, noise_aware
from confide.inference.designs import Doubt, Geometry
from confide.inference.expected_scores import Rows
from confide.inference.frames import Frame, expand
from confide.inference.noise_aware import Told
from confide.inference.questions import Put, Question, Reply
from confide.mechanism import query_grid
from confide.mechanism.query_grid import OnGrid
from confide.mechanism.scale import REACH

SHARES = {
    "start": 0.12,
    "steps": 0.77,
    "end": 0.10,
}  # of what the scale leaves of the square of mu; they are scaled to 1
STEPS, GROWTH = 12, 1.7
MISFIT = 0.1
DOUBT = 0.3  # of the truth's variance about the mode: the sums themselves tell part of what the moments err by
COUNTED = 5  # queries that the likelihood looks at
ROUNDS, ITERATIONS = 3, 4
VERSION = 4  # of how answers are read, which decides where the next question is asked
WAITING = 1e300  # variance of the noise of a sum that was not asked for yet
NOTHING = 1e200  # variance of the noise where the likelihood is to say nothing


def constants() -> tuple[float, ...]:
    """Whatever decides what is asked, beside the plan: a run that was begun with others is not gone on with."""
    return (
        VERSION,
        *SHARES.values(),
        STEPS,
        GROWTH,
        frames.CLIP,
        MISFIT,
        DOUBT,
        COUNTED,
        designs.FLOOR,
        ROUNDS,
        ITERATIONS,
        REACH,
        *query_grid.constants(),
    )


variance = jax.jit(expected_scores.variance, static_argnames="family")
mean_square = jax.jit(expected_scores.mean_square, static_argnames="family")


class NoisePlan(NamedTuple):
    """The noise of all questions, fixed before the first one."""

    multipliers: np.ndarray  # of each sum over the clip
    information_multipliers: np.ndarray  # of both matrices over their bound


def scores_mu(multipliers: np.ndarray) -> float:
    """What one record may reveal by all sums of scores, in Gaussian differential privacy; of one that comes or goes."""
    return float(np.sqrt(np.sum(np.asarray(multipliers) ** -2.0)))


class Replies(NamedTuple):
    """What was asked and answered after the scale was bought."""

    first: Reply
    sums: list[Reply]
    last: Reply


def ask_questions(here: Frame, plan: NoisePlan, put: Put) -> Replies:
    """All questions in their order: the information, the sums, and the information.

    Each question follows from the replies before it and from public numbers alone. A run puts them to its records, and
    `confide verify` to the replies that the run stored (`inference.replay`): both ask the same.
    """
    bound, size = here.information_bound, here.start.size
    spread = query_grid.round_up(bound * plan.information_multipliers)
    start = np.eye(size // here.outputs) / here.clip
    first = put(Question("information", 0, here.start, start, bound, float(spread[0])))
    found = designs.geometry(here, first.noisy, float(spread[0]))
    place, sums = query_grid.round_to(here.start, 2.0**-query_grid.POSITION_BITS), []
    for t, multiplier in enumerate(plan.multipliers):
        grids = (place, found.rounding)
        sums.append(put(Question("noise", t, place.value, found.root, 1.0, float(multiplier), *grids)))
        if t == 0 and not np.array_equal(sums[0].root, found.root):  # the run began on another processor
            found = designs.geometry(here, first.noisy, float(spread[0]), sums[0].root)
        place = next_position(here, found, plan, sums)
    grids = (place, found.rounding)
    last = put(Question("information", 1, place.value, found.root, bound, float(spread[1]), *grids))
    return Replies(first, sums, last)


def next_position(here: Frame, found: Geometry, plan: NoisePlan, sums: list[Reply]) -> OnGrid:
    """The mode of what is known so far, on the grid of positions."""
    steps, done = len(plan.multipliers), len(sums)
    wide = expand(found.root, here.start.size)
    positions, noisy = np.zeros((steps, len(wide))), np.zeros((steps, len(wide)))
    positions[:done] = np.linalg.solve(wide, np.stack([reply.position for reply in sums]).T).T
    noisy[:done] = [reply.noisy for reply in sums]
    waiting = np.where(np.arange(steps) < done, np.square(plan.multipliers), WAITING)
    doubts = [designs.first_doubt(here, found, positions[done - 1])]
    answers = Answers(positions, noisy, waiting)
    _, middle, spread = locate(here, found.root, found.rows, answers, positions[done - 1], doubts)
    inverse = np.linalg.inv(wide)
    precision = inverse.T @ np.linalg.inv(spread) @ inverse
    return query_grid.round_position(wide @ middle, query_grid.conditional_deviations(precision))


class Answers(NamedTuple):
    """Positions in coordinates of the root, noisy sums there, and the variance of their noise."""

    positions: np.ndarray
    sums: np.ndarray
    variances: np.ndarray


def gather(
    here: Frame,
    root: np.ndarray,
    rows: Rows,
    answers: Answers,
    middle: np.ndarray,
    doubts: list[Doubt],
    spread: np.ndarray,
) -> Told:
    """The queries that count, with weights for a truth in the middle, of which it is known with this covariance."""
    size, wide, tables = middle.size, expand(root, middle.size), here.tables
    theta = wide @ middle
    values, vectors = moments.decompose(
        here.number * (wide @ np.asarray(variance(here.family, tables, rows, theta)) @ wide)
    )
    known = Told(
        root, float(here.number), tables, answers.positions, np.ones(1), np.zeros(size), 0.0,
        np.maximum(values, 0.0), vectors, float(mean_square(here.family, tables, rows, theta)),
        designs.turn(here.family, doubts, vectors), np.einsum("ji,jk,ki->i", vectors, spread, vectors),
        wide @ (wide / here.prior_scales[:, None] ** 2),
    )  # fmt: skip
    expected = np.asarray(noise_aware.expect_each(here.family, known, rows, answers.positions, middle))
    total = answers.variances + MISFIT**2 * np.sum(expected**2, axis=1) / size
    taken = np.argsort(total, kind="stable")[:COUNTED]
    away = (answers.positions[taken] - middle) @ vectors
    shares = 1 / total[taken]
    shares = shares / np.sum(shares)
    return known._replace(
        positions=answers.positions[taken],
        shares=shares,
        mean=shares @ answers.sums[taken],
        noise=float(np.sum(shares**2 * total[taken])) if here.seen else NOTHING,
        spread=DOUBT * known.spread + np.square(shares @ away),
    )


def locate(
    here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray, doubts: list[Doubt]
) -> tuple[Told, np.ndarray, np.ndarray]:
    """What is told, with the mode of what is known, where the next question is asked, and its covariance."""
    wide = expand(root, middle.size)
    inverse = np.linalg.inv(wide)
    spread = (inverse * here.prior_scales**2) @ inverse
    told = gather(here, root, rows, answers, middle, doubts, spread)
    for _ in range(ROUNDS):
        found, precision = noise_aware.find_mode(here.family, told, rows, middle, ITERATIONS)
        middle, spread = np.asarray(found), np.linalg.inv(np.asarray(precision))
        told = gather(here, root, rows, answers, middle, doubts, spread)
    return told, middle, spread


def growing(steps: int) -> np.ndarray:
    """Shares of the steps."""
    shares = GROWTH ** np.arange(float(steps))
    return shares / shares.sum()
