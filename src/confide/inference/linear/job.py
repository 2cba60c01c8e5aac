"""A run of scoring on a linear model: the questions of `linear.questions`, asked of the records one after the other."""

from __future__ import annotations

import hashlib
import math
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
from confide.inference.linear.questions import Answers, Frame, Geometry
from confide.inference.linear.release import FORMAT, LinearRelease
from confide.inference.loop import use_compilation_cache
from confide.inference.questions import NOTHING_TOLD, Question
from confide.inference.release_terms import draws_key
from confide.mechanism import noise
from confide.mechanism.canaries import Planted
from confide.mechanism.linear_scale import LinearScale, LinearScaleRelease
from confide.mechanism.linear_sums import Cuts
from confide.mechanism.oracle import Observations
from confide.models.inputs import Records, as_records

LEAST = 1e-4  # residual scale to begin with, over what coefficients from their prior spread outcomes by


class State(NamedTuple):
    """What was answered so far; the rest is zeros."""

    scale: np.ndarray  # norm, outcome, and whether they were seen
    first: np.ndarray
    positions: np.ndarray  # with the log of the noise scale
    sums: np.ndarray
    modes: np.ndarray  # log of the noise scale that was likeliest there
    last: np.ndarray
    statistics: np.ndarray = NOTHING_TOLD  # of canaries, over the sums so far


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

    def first_state(self) -> list[np.ndarray]:
        square, several = (self.size, self.size), (self.steps, self.size + 1)
        told = () if self.planted is None else ((4, self.planted.count),)
        return [np.zeros(shape) for shape in (3, square, several, several, self.steps, square, *told)]

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
            found = self.scale.release(table.records, noise.separate(key, "scale"))
            state, done = state._replace(scale=np.array(found, np.float64)), 1
            keep(done, state)
        scale = LinearScale(float(state.scale[0]), float(state.scale[1]), bool(state.scale[2]))
        least = LEAST * self.prior_scale * scale.norm
        scale = scale._replace(outcome=max(scale.outcome, least))
        here = Frame(self.number, self.constant, self.prior_scale, *scale, self.cuts)
        with jax.enable_x64(True):
            state = self.ask(self.questions(here), table, key, state, done, keep)
        self.release = self._told(here, state)
        if self.planted is not None:
            self.observations = Observations(None, None, state.statistics[None])
        drawn = self.release.make(self.draws, self.log_prior)
        self.noise_scales = drawn.noise_scales
        return drawn.parameters

    @property
    def spread(self) -> np.ndarray:
        """Standard deviations of the noise in both informations."""
        return self.cuts.information_bound * self.information_multipliers

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
        """The questions that are left, in their order: the information, the sums, and the information."""
        here, nowhere, bounds = asker.frame, np.zeros(0), (self.cuts.bound, self.cuts.information_bound)

        def information(number: int, root: np.ndarray) -> np.ndarray:
            asked = Question("information", number, nowhere, root, bounds[1], float(self.spread[number]))
            return asker.ask(table, asked, key).noisy

        if done == 1:
            state = state._replace(first=information(0, np.eye(self.size) / here.norm))
            keep(2, state)
        found = questions.geometry(here, state.first, float(self.spread[0]))
        for t in range(max(done - 2, 0), self.steps):
            state.positions[t], state.modes[t] = self._next(here, found, state, t)
            place = np.append(found.root @ state.positions[t, :-1], math.exp(state.positions[t, -1]))
            asked = Question("noise", t, place, found.root, bounds[0], float(bounds[0] * self.multipliers[t]))
            state.sums[t], statistics = asker.ask(table, asked, key, state.statistics)
            state = state._replace(statistics=statistics)
            keep(t + 3, state)
        if done < self.steps + 3:
            state = state._replace(last=information(1, found.root))
            keep(self.steps + 3, state)
        return state

    def _next(self, here: Frame, found: Geometry, state: State, t: int) -> tuple[np.ndarray, float]:
        """Where sums are asked for next, and the log of the noise scale that is likeliest."""
        begin = math.log(here.outcome)
        if t == 0:
            return np.append(np.zeros(self.size), begin), begin
        deviations = self.cuts.bound * self.multipliers
        waiting = np.where(np.arange(self.steps) < t, np.square(deviations), questions.WAITING)
        rows = questions.rows_of(here, found.root, found.second)
        middle = np.append(state.positions[t - 1, :-1], state.modes[t - 1])
        answers = Answers(state.positions, state.sums, waiting)
        _, middle, precision = questions.locate(here, found.root, rows, answers, middle, found.doubt)
        return np.append(middle[:-1], questions.residual_scale(here, rows, middle, precision)), float(middle[-1])

    def _told(self, here: Frame, state: State) -> LinearRelease:
        found = questions.geometry(here, state.first, float(self.spread[0]))
        return LinearRelease(
            records=self.number,
            constant=here.constant,
            prior_scale=here.prior_scale,
            norm=here.norm,
            outcome=here.outcome,
            seen=here.seen,
            cuts=(self.cuts.score, self.cuts.square),
            first_information=state.first,
            last_information=state.last,
            information_noise=(float(self.spread[0]), float(self.spread[1])),
            positions=state.positions[:, :-1] @ found.root,
            scales=np.exp(state.positions[:, -1]),
            sums=state.sums,
            noise=self.cuts.bound * self.multipliers,
            key=draws_key(state.sums),
            prior=self.prior,
        )
