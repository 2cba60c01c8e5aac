"""A run of private scoring: the questions of `inference.scoring`, asked of the records one after the other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from confide.inference import checkpoints, frames, scoring
from confide.inference.checkpoints import Checkpoint
from confide.inference.frames import Frame
from confide.inference.loop import use_compilation_cache
from confide.inference.questions import NOTHING_TOLD, Answer, Question, Questions, Reply, Table, compile_questions
from confide.inference.release import Release
from confide.inference.row_spaces import RowSpace, row_space
from confide.inference.scoring import NoisePlan
from confide.mechanism import noise
from confide.mechanism.canaries import Planted
from confide.mechanism.noise import Rounding
from confide.mechanism.oracle import Observations
from confide.mechanism.scale import ScaleAnswers, ScaleRelease
from confide.models.family import Family
from confide.models.inputs import Records, as_records
from confide.models.model import Model


class State(NamedTuple):
    """What was asked and answered so far; the rest is zeros."""

    norms: np.ndarray  # noisy counts of the scale
    outcomes: np.ndarray  # the same
    finer: np.ndarray  # its noisy sum
    informations: np.ndarray  # the first and the last
    positions: np.ndarray  # of the sums, and of the last information
    root: np.ndarray
    sums: np.ndarray
    statistics: np.ndarray = NOTHING_TOLD  # of canaries, over the sums so far

    def scale(self, counts: bool) -> ScaleAnswers:
        return ScaleAnswers(self.norms, float(self.finer[0]), self.outcomes if counts else None)

    def reply(self, question: Question) -> Reply:
        """The reply to a question that was answered."""
        if question.kind == "noise":
            return Reply(self.positions[question.number], self.root, self.sums[question.number])
        noisy = self.informations[question.number]
        if question.number == 0:
            return Reply(question.position, question.root, noisy)
        return Reply(self.positions[-1], self.root, noisy)

    def store(self, question: Question, answer: Answer) -> State:
        """With one more answer."""
        last = question.kind == "information"
        if not (last and question.number == 0):
            self.positions[-1 if last else question.number] = question.position
            self.root[:] = question.root
        (self.informations if last else self.sums)[question.number] = answer.noisy
        return self._replace(statistics=answer.statistics)


@dataclass(kw_only=True)
class ScoringJob:
    """A killed run goes on from its last answer: the same key and the same records give the same ones.

    Canaries are in the sums of scores alone: their rows are no records, of which scale and information are asked.
    """

    model: Model
    family: Family
    unravel: Callable[[Any], Any]
    prior: str  # of `release.PRIORS`, or another, and then
    log_prior: Callable[[jax.Array], jax.Array] | None  # what it is
    scale: ScaleRelease
    multipliers: np.ndarray  # noise of each sum over the clip
    information_multipliers: np.ndarray
    rounding: Rounding
    size: int  # parameters
    number: int  # of records, as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    categories: tuple[tuple[int, ...], ...]  # places whose columns add up to it
    draws: int
    planted: Planted | None = None  # canaries, where the data that it is run on have some
    release: Release | None = None  # once it has run
    observations: Observations | None = None  # of canaries, the same

    diagnostics = None

    @property
    def rows(self) -> int:
        """Length of a row with its constant: a matrix of parameters has a column for each score."""
        return self.size // math.prod(self.family.outputs)

    @cached_property
    def space(self) -> RowSpace | None:
        """Where rows are known not to be everywhere."""
        return row_space(self.rows, self.constant, self.categories)

    @property
    def steps(self) -> int:
        return len(self.multipliers)

    @property
    def ran(self) -> ScoringJob:
        return self

    def canary_terms(self) -> tuple[np.ndarray, float]:
        """What canaries are told by: the noise of every sum over the clip, and how likely each is in it."""
        return self.multipliers, 1.0

    @property
    def noise(self) -> NoisePlan:
        return NoisePlan(self.multipliers, self.information_multipliers)

    def digest(self) -> str:
        told = (self.scale, self.multipliers.tolist(), self.draws, scoring.constants())
        told = (*told, self.categories) if self.categories else told
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def trace_program(self, records: Records) -> str:
        """Nothing that runs on the records holds functions of the user's but the model, which has a digest."""
        return ""

    def first_state(self) -> list[np.ndarray]:
        rows = self.rows if self.space is None else self.space.size
        several = (self.steps, self.size // self.rows * rows)
        shapes = [*self.scale.bins, 1, (2, rows, rows), (self.steps + 1, several[1]), (rows, rows), several]
        return [np.zeros(shape) for shape in [*shapes, *([(4, self.planted.count)] if self.planted else [])]]

    def execute(
        self,
        data: Records | tuple[np.ndarray, ...],
        key: Any,
        *,
        checkpoint: Path | None = None,
        resumed: Checkpoint | None = None,
        report: Callable[[int], None] | None = None,
        **_: Any,
    ) -> np.ndarray:
        """The draws, (1, draws, parameters). Answers are few, and every one is kept."""
        use_compilation_cache()
        whole = as_records(data)
        records = whole if self.planted is None else self.planted.without_canaries(whole)
        state = State(*(np.array(array) for array in (self.first_state() if resumed is None else resumed.arrays)))
        done = 0 if resumed is None else resumed.block

        def keep(number: int, state: State) -> None:
            if checkpoint is not None and resumed is not None:
                checkpoints.write(checkpoint, resumed._replace(block=number, arrays=list(state)[: len(resumed.arrays)]))
            if report is not None:
                report(min(max(number - 2, 0), self.steps))

        if done == 0:
            answers = self.scale.ask(records, noise.separate(key, "scale"))
            state.norms[:], state.finer[0] = answers.norms, answers.finer
            if answers.outcomes is not None:
                state.outcomes[:] = answers.outcomes
            done = 1
            keep(done, state)
        here = self.frame(state.scale(self.scale.counts))
        with jax.enable_x64(True):
            questions = compile_questions(
                self.model, self.unravel, here, self.size, self.rounding, records, self.planted
            )
            state = self.ask(questions, questions.prepare(records, whole), key, state, done, keep)
        self.release = self.make_release(list(state))
        if self.planted is not None:
            self.observations = Observations(None, None, state.statistics[None])
        return self.release.draw(self.draws, self.log_prior).astype(np.float32)[None]

    def frame(self, answers: ScaleAnswers) -> Frame:
        """What follows from the noisy outcomes of the scale."""
        scale, mu = self.scale.read(answers, self.number), scoring.scores_mu(self.multipliers)
        settings = self.model.settings or {}
        prior_scale = float(settings.get("prior_scale", 1.0))
        prior, shape = (prior_scale, self.prior == "wide_intercept"), (self.rows, self.size)
        return frames.frame(self.family, self.number, shape, self.constant, prior, scale, mu, self.space)

    def ask(
        self,
        questions: Questions,
        table: Table,
        key: Any,
        state: State,
        done: int,
        keep: Callable[[int, State], None],
    ) -> State:
        """The questions that are left, put to the records; those before have their stored answers."""
        number = 1

        def put(question: Question) -> Reply:
            nonlocal state, number
            number += 1
            if number > done:
                state = state.store(question, questions.ask(table, question, key, state.statistics))
                keep(number, state)
            return state.reply(question)

        scoring.ask_questions(questions.frame, self.noise, put)
        return state

    def make_release(self, arrays: list[np.ndarray]) -> Release:
        """From the arrays of a state."""
        state = State(*arrays)
        return Release(
            family={"word": self.family.word, **self.family.parameters},
            records=self.number,
            constant=self.constant,
            categories=self.categories,
            width=self.rows,
            prior=self.prior,
            prior_scale=float((self.model.settings or {}).get("prior_scale", 1.0)),
            scale=self.scale,
            noise=self.multipliers,
            information_multipliers=self.information_multipliers,
            answers=state.scale(self.scale.counts),
            first_information=state.informations[0],
            last_information=state.informations[1],
            sums=state.sums,
            root=state.root,
            positions=state.positions[:-1],
            last_position=state.positions[-1],
        )
