"""What the program of private scoring asks, heard as it asks: histograms, sums of scores and matrices.

A run that learnt its noise scale is heard with its own answers, which are public, so that every question is asked where
the run asked it. Others are heard on a made-up table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from confide.audits.scoring_publication import Ask, Execution
from confide.inference import scoring_job
from confide.inference.linear import job as linear_job
from confide.inference.linear.asking import LinearQuestions, LinearTable
from confide.inference.linear.job import LinearScoringJob
from confide.inference.linear.release import LinearRelease
from confide.inference.questions import NOTHING_TOLD, Answer, Question, Questions, Table, compile_questions
from confide.inference.release import Release
from confide.inference.scoring_job import ScoringJob
from confide.mechanism import noise
from confide.mechanism.information import entries
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.noise import Rounding
from confide.mechanism.scale import ScaleRelease
from confide.models.inputs import Records
from confide.models.model import Model


class Heard(NamedTuple):
    """What was asked, and by what it is asked again."""

    questions: Questions | LinearQuestions
    prepare: Callable[[Records], Any]  # a table as the questions see it
    asked: list[Question]
    rounding: dict[str, tuple[Rounding, int]]  # of sums and matrices: what is rounded, and how many numbers they have
    turn: np.ndarray  # of made-up directions, so that they are those of the rows


@dataclass(frozen=True, kw_only=True)
class Listening(Questions):
    """Questions, and all that were asked."""

    asked: list[Question] = field(default_factory=list)

    def ask(self, table: Table, question: Question, key: Any, statistics: np.ndarray = NOTHING_TOLD) -> Answer:
        self.asked.append(question)
        return super().ask(table, question, key, statistics)


@dataclass(frozen=True, kw_only=True)
class LinearListening(LinearQuestions):
    """The same, with the answers of a run as far as it has them."""

    release: LinearRelease
    asked: list[Question] = field(default_factory=list)

    def ask(self, table: LinearTable, question: Question, key: Any, statistics: np.ndarray = NOTHING_TOLD) -> Answer:
        self.asked.append(question)
        stored = 2 if question.kind == "information" else len(self.release.sums)
        if question.number < stored:
            return Answer(self.release.reply(question).noisy, statistics)
        return super().ask(table, question, key, statistics)


@dataclass(frozen=True, kw_only=True)
class ListeningScale(ScaleRelease):
    """The scale, and the names of all that was released of it."""

    asked: list[str] = field(default_factory=list)

    def count_norms(self, octaves: np.ndarray, source: Any) -> np.ndarray:
        self.asked.append("norms")
        return super().count_norms(octaves, source)

    def sum_norms(self, octaves: np.ndarray, norm: float, source: Any) -> np.ndarray:
        self.asked.append("finer")
        return super().sum_norms(octaves, norm, source)

    def count_outcomes(self, outcomes: np.ndarray, source: Any) -> np.ndarray:
        self.asked.append("outcomes")
        return super().count_outcomes(outcomes, source)


@dataclass(frozen=True, kw_only=True)
class ListeningLinearScale(LinearScaleRelease):
    """The same of a linear model."""

    asked: list[str]

    def count_outcomes(self, outcomes: np.ndarray, source: Any) -> np.ndarray:
        self.asked.append("outcomes")
        return super().count_outcomes(outcomes, source)


def hear_scale(scale: ScaleRelease | LinearScaleRelease, crowd: Records, key: Any) -> list[str]:
    """The names of all that is released of the scale."""
    asked: list[str] = []
    rows = ListeningScale(**_fields(scale.rows if isinstance(scale, LinearScaleRelease) else scale), asked=asked)
    heard = ListeningLinearScale(rows=rows, asked=asked) if isinstance(scale, LinearScaleRelease) else rows
    heard.release(crowd, noise.separate(key, "scale"))
    return asked


def hear(job: ScoringJob, release: Release, model: Model, crowd: Records, key: Any) -> Heard:
    """What is asked of the crowd, at the scale that the run found."""
    questions = compile_questions(model, job.unravel, release.frame, job.size, job.rounding, crowd)
    listening, state = Listening(**_fields(questions)), scoring_job.State(*job.first_state())

    def prepare(records: Records) -> Table:
        return questions.prepare(records, records)

    job.ask(listening, prepare(crowd), key, state, 1, lambda number, state: None)
    rounding = {"information": (job.rounding, entries(job.rows)), "scores": (job.rounding, job.size)}
    columns, asked = crowd.arrays[0].shape[1], listening.asked
    if (space := release.frame.space) is not None:  # answers are on the grid of their noise before they are reduced
        questions = replace(questions, frame=questions.frame._replace(space=None))
        asked = [
            each._replace(
                position=space.lift(each.position), root=space.see(each.root), position_grid=None, root_grid=None
            )
            for each in asked
        ]
    return Heard(questions, prepare, asked, rounding, np.eye(columns))


def hear_linear(job: LinearScoringJob, release: LinearRelease, crowd: Records, key: Any) -> Heard:
    """What is asked of the run's own records, by its own answers."""
    questions = job.questions(release.frame)
    listening = LinearListening(**_fields(questions), release=release)
    state = linear_job.State(*job.first_state())
    job.ask(listening, LinearTable(crowd), key, state, 1, lambda number, state: None)
    matrices = noise.CONTRIBUTIONS if job.secure else noise.SUMS
    rounding = {"information": (matrices, entries(job.size)), "scores": (noise.CONTRIBUTIONS, job.size + 1)}
    back = np.linalg.inv(listening.asked[1].root)[job.intercept :, job.intercept :]
    return Heard(questions, LinearTable, listening.asked, rounding, back)


def asking(job: ScoringJob | LinearScoringJob, model: Model, one: Execution) -> Ask:
    """Puts a question to the table of an execution, with the noise of its key."""
    if isinstance(job, LinearScoringJob):
        assert isinstance(one.release, LinearRelease)
        questions, table = job.questions(one.release.frame), LinearTable(one.records)
    else:
        assert isinstance(one.release, Release)
        frame = one.release.frame
        with jax.enable_x64(True):
            questions = compile_questions(model, job.unravel, frame, job.size, job.rounding, one.records)
            table = questions.prepare(one.records, one.records)

    def ask(question: Question) -> np.ndarray:
        with jax.enable_x64(True):
            return questions.ask(table, question, one.key).noisy  # type: ignore[arg-type]

    return ask


def _fields(given: Any) -> dict[str, Any]:
    return {each.name: getattr(given, each.name) for each in fields(given)}
