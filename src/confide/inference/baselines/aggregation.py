"""How teachers are heard: how much noise a budget leaves to their votes, and where it meets them.

**Settings** come from public numbers alone. With mu fixed, votes that are a fraction g of the teachers apart are read
with z = g teachers / (sqrt(2) s) standard deviations, s = sqrt(2 answers) / mu. While z is small a label tells z^2, and
all labels together the same whatever their number; where z is large the answers are right already, and precision is
wasted. Of two labels z = 1 is between; of k, the largest of k - 1 noises is to be passed: z = 1 + Phi^-1(1 - 1/k). So
by default answers = (g teachers mu / (2 z))^2, for g = 3/4. A student wants some hundreds of labels, which takes about
60/mu teachers, twice as many with a check, and a teacher wants 30 records at least.

**The check** is what makes the vote *confident*, and is off by default, for at a small epsilon it does not pay: t must
be well below the number of teachers, and each row that is looked at pays 1/t^2, whether it is answered or not. Give a
threshold where there are thousands of teachers, or where wrong labels are worse than few.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from confide import validation
from confide.mechanism import noise as noises
from confide.privacy.accountants.pate import FigureRelease
from confide.privacy.budget import Guarantee
from confide.privacy.events import NoisyVotes
from confide.validation import Refused

GAP = 0.75  # share of the teachers by which votes are taken to be apart
TEACHERS = 60.0  # over mu
RECORDS = 30  # of a teacher
CHECKING = 1 / 3  # of mu^2, for the checks
FIGURE = 0.05  # of mu^2, for what the votes cost at these records
SPREAD = 0.2  # noise of the checks over the number of teachers, by which their number is chosen


def enough(records: int, mu: float, checked: bool) -> int:
    """How many teachers there are where nobody says."""
    return max(1, min(records // RECORDS, math.ceil((2 if checked else 1) * TEACHERS / mu)))


def plan_votes(
    mu: float,
    teachers: int,
    rows: int,
    answers: int | None = None,
    queries: int | None = None,
    threshold: float | None = None,
    *,
    labels: int = 2,
    figure: bool = False,
) -> NoisyVotes:
    """The event that spends mu; without a threshold every row that is looked at is answered."""
    figure_noise = 1 / (mu * math.sqrt(FIGURE)) if figure else None
    squared = mu**2 * (1 - FIGURE if figure else 1)
    rest = squared if threshold is None else (1 - CHECKING) * squared
    answers = None if answers is None else validation.count(answers=answers)
    queries = None if queries is None else validation.count(queries=queries)
    for name, asked in (("answers", answers), ("queries", queries)):
        if asked is not None and asked > rows:
            raise Refused(f"{name} = {asked} is more than the {rows} public rows: give at most as many, or more rows")
    if threshold is None and queries is not None:
        raise Refused("queries are rows that are looked at before they are answered: give a threshold, or answers")
    if threshold is not None and queries is None:
        affordable = CHECKING * squared * (SPREAD * teachers) ** 2
        queries = min(rows, max(int(affordable), 1 if answers is None else answers))
    most = rows if queries is None else queries
    if answers is None:
        legible = 1 + float(ndtri(1 - 1 / labels))
        worth = (GAP * teachers / (2 * legible)) ** 2 * rest
        if worth < 1:
            raise Refused(
                f"not one answer of {teachers} teachers would rise above the noise at this budget: give more records, "
                "a larger epsilon, or answers"
            )
        answers = min(most, int(worth))
    if answers > most:
        raise Refused(f"answers = {answers} is more than the {most} queries: look at as many rows at least")
    return NoisyVotes(
        answers=answers,
        answer_noise=math.sqrt(2 * answers / rest),
        queries=0 if threshold is None else most,
        check_noise=None if threshold is None else math.sqrt(most / (CHECKING * squared)),
        figure_noise=figure_noise,
    )


def answer(
    votes: np.ndarray, event: NoisyVotes, threshold: float | None, source: Any
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Which rows of the votes are answered, and with which labels; and a source of more noise on the same votes.

    The votes enter the key, so that a number given twice never adds the same noise to other votes. A count that
    changes does so by 1, and the noise is wide enough for both to be rounded to its grid.
    """
    secure = isinstance(source, noises.SecureSource)
    own = (
        source
        if secure
        else noises.own(source, hashlib.sha256(f"{votes.shape} {votes.dtype}".encode() + votes.tobytes()).hexdigest())
    )
    asked = np.ones(len(votes), bool)
    if event.check_noise is not None and threshold is not None:
        largest = votes.max(axis=1).astype(np.float64)
        bar = threshold * int(votes[0].sum())
        checked = noises.wide(event.check_noise, 1.0, 1)
        asked = noises.around(largest, checked, noises.separate(own, "checks")) >= bar
    spread = noises.wide(event.answer_noise, 1.0, 1)
    noisy = noises.around(votes.astype(np.float64), spread, noises.separate(own, "answers"))
    chosen = np.flatnonzero(asked)[: event.answers]
    return chosen, np.argmax(noisy[chosen], axis=1), own


def price_votes(
    votes: np.ndarray, event: NoisyVotes, threshold: float | None, guarantee: Guarantee, source: Any
) -> dict[str, Any]:
    """What the votes cost at these records, released; the promise, which holds as well, where it says less."""
    told = FigureRelease.planned(event, guarantee.delta)
    bar = None if threshold is None else threshold * int(votes[0].sum())
    exact = np.array([told.logarithm(votes, bar)])
    spread = noises.wide(told.scale, told.rate, 1)
    noisy = noises.around(exact, spread, noises.separate(source, "figure"))
    found = told.figure(float(noisy[0]), spread * (1 + 4 / noises.GRID))
    return found._replace(epsilon=min(found.epsilon, guarantee.epsilon)).to_json()
