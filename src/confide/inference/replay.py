"""The questions of a stored run of scoring, asked again of its stored answers.

A run decides each question from the answers before it by one function (`scoring.ask_questions`, and that of linear
models). Here the same function is answered from release.json in place of the records, and every position and root that
it asks for is held against the one that is stored. A program that wrote anything else there, such as an exact sum of a
column, is refuted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.inference.linear.release import LinearRelease
from confide.inference.questions import Question, Reply
from confide.inference.regression.release import RegressionRelease
from confide.inference.release import Release
from confide.mechanism.query_grid import OnGrid
from confide.validation import Refused


class Compared(NamedTuple):
    """How many positions and roots were compared, and how many numbers of them are one grid step apart."""

    questions: int
    moved: int  # whose value before rounding lies at the middle between two grid points


def replay(release: Release | LinearRelease | RegressionRelease) -> Compared:
    """Refused, naming the field, where a question does not follow from the answers before it.

    A release of a regression stores no question: all of them are computed from its answers."""
    if isinstance(release, RegressionRelease):
        release.result  # noqa: B018  (refused where the answers are not those of its queries)
        return Compared(len(release.answers), 0)
    questions, moved = 0, 0

    def put(question: Question) -> Reply:
        nonlocal questions, moved
        reply = release.reply(question)
        questions += 1
        if question.position_grid is not None:
            moved += _moved(question.position_grid, reply.position, _name(release, question))
        if question.root_grid is not None and (question.kind, question.number) == ("noise", 0):  # one serves all sums
            moved += _moved(question.root_grid, reply.root, "root")
        return reply

    release.replay(put)
    return Compared(questions, moved)


def _name(release: Release | LinearRelease, question: Question) -> str:
    if question.kind == "information":
        return "last_position"
    return f"{'places' if isinstance(release, LinearRelease) else 'positions'}[{question.number}]"


def _moved(asked: OnGrid, stored: np.ndarray, name: str) -> int:
    """How many numbers are rounded to the other side, as another processor may do at the middle of two grid points."""
    if np.array_equal(asked.value, stored):
        return 0
    if not asked.admits(stored):
        raise Refused(
            f"release.json does not go with the rest of the run ({name} does not follow from the noisy answers before "
            "it): restore the folder as it was written"
        )
    return int(np.sum(asked.value != stored))
