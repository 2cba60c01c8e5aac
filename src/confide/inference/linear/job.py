"""A run of scoring on a linear model: the questions of `linear.questions`, asked of the records one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from confide.inference import checkpoints
from confide.inference.checkpoints import Checkpoint
from confide.inference.linear import questions
from confide.inference.linear.asking import LinearQuestions, LinearTable
from confide.inference.linear.questions import Frame, NoisePlan
from confide.inference.linear.release import FORMAT, LinearRelease
from confide.inference.loop import use_compilation_cache
from confide.inference.questions import NOTHING_TOLD, Answer, Question, Reply
from confide.mechanism import noise
from confide.mechanism.canaries import Planted
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.linear_sums import Cuts
from confide.mechanism.oracle import Observations
from confide.mechanism.scale import FAR, ScaleAnswers
from confide.models.inputs import Records, as_records


class State(NamedTuple):
    """What was asked and answered so far; the rest is zeros."""

    norms: np.ndarray  # noisy counts of the scale
    outcomes: np.ndarray  # the same
    finer: np.ndarray  # its noisy sum
    informations: np.ndarray  # the first and the last
    places: np.ndarray  # of the sums: coefficients, and the noise scale
    root: np.ndarray
    sums: np.ndarray
    statistics: np.ndarray = NOTHING_TOLD  # of canaries, over the sums so far

    @property
    def scale(self) -> ScaleAnswers:
        return ScaleAnswers(self.norms, float(self.finer[0]), self.outcomes)

    def reply(self, question: Question) -> Reply:
        """The reply to a question that was answered."""
        if question.kind == "noise":
            return Reply(self.places[question.number], self.root, self.sums[question.number])
        root = self.root if question.number else question.root
        return Reply(question.position, root, self.informations[question.number])

    def store(self, question: Question, answer: Answer) -> State:
        """With one more answer."""
        if question.kind == "information":
            self.informations[question.number] = answer.noisy
        else:
            self.places[question.number], self.root[:] = question.position, question.root
            self.sums[question.number] = answer.noisy
        return self._replace(statistics=answer.statistics)


@dataclass(kw_only=True)
class LinearScoringJob:
    """A killed run goes on from its last answer: the same key and the same records give the same ones. Canaries are in
    the sums of scores alone."""

    scale: LinearScaleRelease
    cuts: Cuts
    multipliers: np.ndarray  # noise of each sum over the bound of a record
    information_multipliers: np.ndarray
    secure: bool
    size: int  # parameters
    number: int  # of records, as declared
    intercept: bool
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    prior: str  # of `release.PRIORS`, or another, and then
    log_prior: Callable[[jax.Array], jax.Array] | None  # what it is
    draws: int
    planted: Planted | None = None  # canaries, where the data that it is run on have some
    release: LinearRelease | None = None  # once it has run
    noise_scales: np.ndarray | None = None  # the same, of every draw
    observations: Observations | None = None  # of canaries, the same

    diagnostics = None

    @property
    def steps(self) -> int:
        return len(self.multipliers)

    @property
    def ran(self) -> LinearScoringJob:
        return self

    def canary_terms(self) -> tuple[np.ndarray, float]:
        """What canaries are told by: the noise of every sum over the bound, and how likely each is in it."""
        return self.multipliers, 1.0

    def digest(self) -> str:
        told = (self.scale, self.cuts, self.multipliers.tolist(), self.draws, questions.constants(), FORMAT)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def trace_program(self, records: Records) -> str:
        """Nothing that runs on the records holds functions of the user's but the model, which has a digest."""
        return ""

    def first_state(self) -> list[np.ndarray]:
        square, several = (self.size, self.size), (self.steps, self.size + 1)
        shapes = [self.scale.rows.bins[0], 4 * FAR, 1, (2, *square), several, square, several]
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
        table = LinearTable(whole)
        if self.planted is not None:
            table = LinearTable(self.planted.without_canaries(whole), self.planted.pulls(whole))
        state = State(*(np.array(array) for array in (self.first_state() if resumed is None else resumed.arrays)))
        done = 0 if resumed is None else resumed.block

        def keep(number: int, state: State) -> None:
            if checkpoint is not None and resumed is not None:
                checkpoints.write(checkpoint, resumed._replace(block=number, arrays=list(state)[: len(resumed.arrays)]))
            if report is not None:
                report(min(max(number - 2, 0), self.steps))

        if done == 0:
            answers = self.scale.ask(table.records, noise.separate(key, "scale"))
            assert answers.outcomes is not None
            state.norms[:], state.outcomes[:], state.finer[0] = answers.norms, answers.outcomes, answers.finer
            done = 1
            keep(done, state)
        scale = self.scale.read(state.scale, self.number)
        here = questions.frame(self.number, self.constant, self.prior_scale, scale, self.cuts)
        with jax.enable_x64(True):
            state = self.ask(self.questions(here), table, key, state, done, keep)
        self.release = self.make_release(list(state))
        if self.planted is not None:
            self.observations = Observations(None, None, state.statistics[None])
        drawn = self.release.make(self.draws, self.log_prior)
        self.noise_scales = drawn.noise_scales
        return drawn.parameters

    @property
    def noise(self) -> NoisePlan:
        return NoisePlan(self.multipliers, self.information_multipliers)

    def questions(self, here: Frame) -> LinearQuestions:
        replaced = self.planted is not None and self.planted.replaced
        return LinearQuestions(frame=here, intercept=self.intercept, secure=self.secure, replaced=replaced)

    def ask(
        self,
        asker: LinearQuestions,
        table: LinearTable,
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
                state = state.store(question, asker.ask(table, question, key, state.statistics))
                keep(number, state)
            return state.reply(question)

        questions.ask_questions(asker.frame, self.noise, self.size, put)
        return state

    def make_release(self, arrays: list[np.ndarray]) -> LinearRelease:
        """From the arrays of a state."""
        state = State(*arrays)
        return LinearRelease(
            records=self.number,
            constant=self.constant,
            prior=self.prior,
            prior_scale=self.prior_scale,
            cuts=self.cuts,
            scale=self.scale.rows,
            noise_multipliers=self.multipliers,
            information_multipliers=self.information_multipliers,
            answers=state.scale,
            first_information=state.informations[0],
            last_information=state.informations[1],
            sums=state.sums,
            root=state.root,
            places=state.places,
        )
