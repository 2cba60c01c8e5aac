"""Whether all that a run of private scoring publishes follows from the noisy answers that were priced.

The rebuilt program is executed as the run was, from the first count to the last draw, on two made-up tables of the
run's size that have nothing in common. What each execution publishes is then held against what it may be made of:

| test | what is looked at | has to be |
|------|-------------------|-----------|
| outcomes | noisy counts, matrices and sums that are published | the answers of the table to the published questions |
| functions | positions and roots, by the scale that the noisy counts give | what replaying the noisy answers gives |
| draws | the draws | those that the published answers give |
| options | all other numbers | the same as in the run, whatever the table is |

All four are exact: noise is a function of the key and the question, so that the same question has the same answer, bit
for bit. A program that writes a statistic of the records anywhere there, or uses one in the place of a noisy answer,
differs. Replays are made after both executions, so that a program that remembers its records has those of another table
then.

The noise of the answers themselves is tested in `confide.audits.scoring_tests`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from confide.audits import regression_queries
from confide.inference.linear.job import LinearScoringJob
from confide.inference.linear.release import LinearRelease
from confide.inference.questions import Question, Reply
from confide.inference.regression.job import RegressionJob
from confide.inference.regression.release import RegressionRelease
from confide.inference.release import Release
from confide.inference.replay import replay
from confide.inference.scoring_job import ScoringJob
from confide.mechanism import noise
from confide.models.inputs import Records
from confide.validation import Refused

NOT_OPTIONS = {  # noisy outcomes, what follows from them, and what `confide.rehearse` finds with made-up tables
    "inflation",
    *("answers", "first_information", "sums", "last_information"),
    *("root", "positions", "last_position", "places"),
}
SHORTER = 2.0**-5  # rows of the second table, over those of the first
MEANINGS = {
    "outcomes": "noisy answers are published that the records did not give to the published questions",
    "functions": "a position, root or scale is published that does not follow from the noisy answers before it",
    "draws": "draws are published that do not follow from the noisy answers",
    "options": "a number is published as an option that is not the same for all records",
}
Ask = Callable[[Question], np.ndarray]


AnyJob = ScoringJob | LinearScoringJob | RegressionJob
AnyRelease = Release | LinearRelease | RegressionRelease


class Execution(NamedTuple):
    """What one execution of the program published, and what it was executed on."""

    records: Records
    key: Any
    release: AnyRelease
    drawn: np.ndarray


def second_table(crowd: Records) -> Records:
    """Other rows than the crowd's: shorter, in another order against their outcomes, with one record less."""
    x, y = crowd.arrays
    present = crowd.present.copy()
    if np.sum(present) > 1:
        present[int(np.flatnonzero(present)[0])] = False
    return Records((x * np.asarray(SHORTER, x.dtype), np.roll(y, 1)), present, crowd.number)


def execute(job: AnyJob, records: Records, key: Any) -> Execution:
    drawn = job.execute(records, key)
    assert job.release is not None
    return Execution(records, key, job.release, np.asarray(drawn))


def p_values(
    job: AnyJob,
    executions: list[Execution],
    asking: Callable[[Execution], Ask],
    stored: AnyRelease,
) -> dict[str, float]:
    """0 for a test that fails on any of the executions, else 1; `asking` puts questions to the table of one of them."""
    executions = [each._replace(release=_read_again(each.release)) for each in executions]
    passed = {
        "functions": all(_follows(each.release) for each in executions),
        "outcomes": all(_has_outcomes(job, each, asking(each)) for each in executions),
        "draws": all(_has_draws(job, each) for each in executions),
        "options": all(_options(each.release) == _options(stored) for each in executions),
    }
    return {name: float(holds) for name, holds in passed.items()}


def _read_again(release: AnyRelease) -> AnyRelease:
    """As it is read from its file: nothing that was computed in the execution is kept beside it."""
    return type(release).from_json(release.to_json())


def _follows(release: AnyRelease) -> bool:
    """On the machine of the execution no number may be rounded otherwise."""
    try:
        return replay(release).moved == 0
    except Refused:
        return False


def _has_outcomes(job: AnyJob, one: Execution, ask: Ask) -> bool:
    if isinstance(one.release, RegressionRelease):
        assert isinstance(job, RegressionJob)
        return regression_queries.has_answers(job, one.records, one.key, one.release)
    assert not isinstance(job, RegressionJob)
    release = one.release
    same = [_equal_answers(job.scale.ask(one.records, noise.separate(one.key, "scale")), release.answers)]

    def put(question: Question) -> Reply:
        reply = release.reply(question)
        asked = question._replace(position=reply.position, root=reply.root)
        same.append(np.array_equal(ask(asked), reply.noisy))
        return reply

    release.replay(put)
    return all(same)


def _equal_answers(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) if a is not None else b is None for a, b in zip(one, other, strict=True))


def _has_draws(job: AnyJob, one: Execution) -> bool:
    return np.array_equal(one.drawn, one.release.make(job.draws, job.log_prior).parameters)


def _options(release: AnyRelease) -> dict[str, Any]:
    return {name: value for name, value in release.to_json().items() if name not in NOT_OPTIONS}
