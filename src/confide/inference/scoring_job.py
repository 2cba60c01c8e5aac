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

from confide.inference import checkpoints, designs, frames, scoring
from confide.inference.checkpoints import Checkpoint
from confide.inference.designs import Geometry
from confide.inference.frames import Frame
from confide.inference.loop import use_compilation_cache
from confide.inference.questions import NOTHING_TOLD, Answer, Question, Questions, Table, compile_questions
from confide.inference.release import Release
from confide.inference.release_terms import draws_key
from confide.inference.row_spaces import RowSpace, row_space
from confide.inference.scoring import Answers
from confide.mechanism import noise
from confide.mechanism.canaries import Planted
from confide.mechanism.noise import Rounding
from confide.mechanism.oracle import Observations
from confide.mechanism.scale import Scale, ScaleRelease
from confide.models.family import Family
from confide.models.inputs import Records, as_records
from confide.models.model import Model


class State(NamedTuple):
    """What was answered so far; the rest is zeros."""

    scale: np.ndarray  # norm, outcome, and whether they were seen
    first: np.ndarray
    positions: np.ndarray
    sums: np.ndarray
    last: np.ndarray
    statistics: np.ndarray = NOTHING_TOLD  # of canaries, over the sums so far


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
    mu: float  # what one record may reveal by its scores
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

    def digest(self) -> str:
        told = (self.scale, self.multipliers.tolist(), self.draws, scoring.constants())
        told = (*told, self.categories) if self.categories else told
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def first_state(self) -> list[np.ndarray]:
        rows = self.rows if self.space is None else self.space.size
        square, several = (rows, rows), (self.steps, self.size // self.rows * rows)
        told = () if self.planted is None else (np.zeros((4, self.planted.count)),)
        return [np.zeros(3), np.zeros(square), np.zeros(several), np.zeros(several), np.zeros(square), *told]

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
                checkpoints.write(checkpoint, resumed._replace(block=number, arrays=list(state)))
            if report is not None:
                report(min(max(number - 2, 0), self.steps))

        if done == 0:
            found = self.scale.release(records, noise.separate(key, "scale"))
            state, done = state._replace(scale=np.array(found, np.float64)), 1
            keep(done, state)
        here = self._frame(Scale(float(state.scale[0]), float(state.scale[1]), bool(state.scale[2])))
        with jax.enable_x64(True):
            questions = compile_questions(
                self.model, self.unravel, here, self.size, self.rounding, records, self.planted
            )
            state = self.ask(questions, questions.prepare(records, whole), key, state, done, keep)
        self.release = self._told(here, state)
        if self.planted is not None:
            self.observations = Observations(None, None, state.statistics[None])
        return self.release.draw(self.draws, self.log_prior).astype(np.float32)[None]

    def _frame(self, scale: Scale) -> Frame:
        settings = self.model.settings or {}
        prior_scale = float(settings.get("prior_scale", 1.0))
        prior, shape = (prior_scale, self.prior == "wide_intercept"), (self.rows, self.size)
        return frames.frame(self.family, self.number, shape, self.constant, prior, scale, self.mu, self.space)

    def ask(
        self,
        questions: Questions,
        table: Table,
        key: Any,
        state: State,
        done: int,
        keep: Callable[[int, State], None],
    ) -> State:
        """The questions that are left, in their order: the information, the sums, and the information."""
        here = questions.frame
        spread = here.information_bound * self.information_multipliers

        def information(number: int, position: np.ndarray, root: np.ndarray) -> np.ndarray:
            asked = Question("information", number, position, root, here.information_bound, spread[number])
            return self._ask(questions, table, asked, key, NOTHING_TOLD).noisy

        if done == 1:
            state = state._replace(first=information(0, here.start, np.eye(len(state.first)) / here.clip))
            keep(2, state)
        found = designs.geometry(here, state.first, spread[0])
        wide = frames.expand(found.root, here.start.size)
        for t in range(max(done - 2, 0), self.steps):
            position = self._next(here, found, state, t)
            asked = Question("noise", t, wide @ position, found.root, 1.0, self.multipliers[t])
            state.sums[t], statistics = self._ask(questions, table, asked, key, state.statistics)
            state.positions[t] = position
            state = state._replace(statistics=statistics)
            keep(t + 3, state)
        if done < self.steps + 3:
            end = wide @ self._next(here, found, state, self.steps)
            state = state._replace(last=information(1, end, found.root))
            keep(self.steps + 3, state)
        return state

    def _ask(self, questions: Questions, table: Table, asked: Question, key: Any, statistics: np.ndarray) -> Answer:
        """A question in coordinates of the rows' space."""
        if (space := self.space) is None:
            return questions.ask(table, asked, key, statistics)
        asked = asked._replace(position=space.lift(asked.position), root=space.see(asked.root))
        noisy, statistics = questions.ask(table, asked, key, statistics)
        return Answer(space.reduce_matrix(noisy) if noisy.ndim == 2 else space.reduce_sum(noisy), statistics)

    def _next(self, here: Frame, found: Geometry, state: State, t: int) -> np.ndarray:
        if t == 0:
            return np.linalg.solve(frames.expand(found.root, here.start.size), here.start)
        waiting = np.where(np.arange(self.steps) < t, np.square(self.multipliers), 1e300)
        answers = Answers(state.positions, state.sums, waiting)
        doubts = [designs.first_doubt(here, found, state.positions[t - 1])]
        return scoring.locate(here, found.root, found.rows, answers, state.positions[t - 1], doubts)[1]

    def _told(self, here: Frame, state: State) -> Release:
        spread = here.information_bound * self.information_multipliers
        found = designs.geometry(here, state.first, spread[0])
        return Release(
            family={"word": self.family.word, **self.family.parameters},
            records=self.number,
            constant=here.constant,
            prior_scale=here.prior_scale,
            norm=here.norm,
            clip=here.clip,
            typical=here.typical,
            seen=here.seen,
            start=here.start,
            first_information=state.first,
            last_information=state.last,
            information_noise=(float(spread[0]), float(spread[1])),
            positions=state.positions @ frames.expand(found.root, here.start.size),
            sums=state.sums,
            noise=self.multipliers,
            key=draws_key(state.sums),
            prior=self.prior,
            width=self.rows,
            categories=self.categories,
            place=self.constant,
        )
