"""A run of private scoring: the questions of `inference.scoring`, asked of the records one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import checkpoints, scoring
from confide.inference.checkpoints import Checkpoint
from confide.inference.loop import use_compilation_cache
from confide.inference.release import Release
from confide.inference.scoring import Answers, Frame, Geometry
from confide.mechanism import noise, oracle
from confide.mechanism.clipping import ClippedSum, clipped_sum
from confide.mechanism.information import InformationQuery, entries, release_information
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Observed, Prepared
from confide.mechanism.noise import Rounding
from confide.mechanism.oracle import Observers
from confide.mechanism.scale import Scale, ScaleRelease
from confide.models.family import Family
from confide.models.inputs import Records, as_records
from confide.models.model import Model, Weighting


class State(NamedTuple):
    """What was answered so far; the rest is zeros."""

    scale: np.ndarray  # norm, outcome, and whether they were seen
    first: np.ndarray
    positions: np.ndarray
    sums: np.ndarray
    last: np.ndarray


class Ask(NamedTuple):
    """The two kinds of questions, compiled."""

    score: Callable[..., jax.Array]  # (data, position, root, scale, units)
    information: Callable[..., jax.Array]  # (data, query, units)


@dataclass(kw_only=True)
class ScoringJob:
    """A killed run goes on from its last answer: the same key and the same records give the same ones."""

    model: Model
    family: Family
    unravel: Callable[[Any], Any]
    log_prior: Callable[[jax.Array], jax.Array] | None  # None: normal
    scale: ScaleRelease
    mu: float  # what one record may reveal by its scores
    multipliers: np.ndarray  # noise of each sum over the clip
    information_multipliers: np.ndarray
    rounding: Rounding
    size: int  # parameters
    number: int  # of records, as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    draws: int
    release: Release | None = None  # once it has run

    diagnostics = None
    observations = None

    @property
    def steps(self) -> int:
        return len(self.multipliers)

    @property
    def ran(self) -> ScoringJob:
        return self

    def digest(self) -> str:
        told = (self.scale, self.multipliers.tolist(), self.draws, scoring.constants())
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def first_state(self) -> list[np.ndarray]:
        square, several = (self.size, self.size), (self.steps, self.size)
        return list(State(np.zeros(3), np.zeros(square), np.zeros(several), np.zeros(several), np.zeros(square)))

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
        records = as_records(data)
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
            state = self._ask(here, records, key, state, done, keep)
        self.release = self._told(here, state)
        return self.release.draw(self.draws, self.log_prior).astype(np.float32)[None]

    def _frame(self, scale: Scale) -> Frame:
        settings = self.model.settings or {}
        prior_scale = float(settings.get("prior_scale", 1.0))
        return scoring.frame(self.family, self.number, self.size, self.constant, prior_scale, scale, self.mu)

    def _ask(
        self, here: Frame, records: Records, key: Any, state: State, done: int, keep: Callable[[int, State], None]
    ) -> State:
        """The questions that are left, in their order: the information, the sums, and the information."""
        ask = self._compile(here, records)
        spread = here.information_bound * self.information_multipliers

        def units(purpose: str, number: int, count: int, *question: Any) -> jax.Array:
            """Noise that belongs to the question: another one, by a bit, has other noise, on any machine."""
            told = b"".join(
                np.asarray(each, np.float64).tobytes() for each in (*question, here.row_bound, here.typical)
            )
            own = noise.separate(key, f"{purpose} {number} {hashlib.sha256(told).hexdigest()}")
            return noise.draw_units(own, 0, number, (count,), purpose)

        def information(number: int, position: np.ndarray, root: np.ndarray) -> np.ndarray:
            asked = (position, root, here.information_bound, spread[number])
            drawn = units("information", number, entries(self.size), *asked)
            return np.asarray(ask.information(InformationQuery(*map(jnp.asarray, asked)), drawn))

        if done == 1:
            state = state._replace(first=information(0, here.start, np.eye(self.size) / here.clip))
            keep(2, state)
        found = scoring.geometry(here, state.first, spread[0])
        for t in range(max(done - 2, 0), self.steps):
            position = self._next(here, found, state, t)
            asked = (found.root @ position, found.root, self.multipliers[t])
            state.sums[t] = np.asarray(ask.score(*asked, units("noise", t, self.size, *asked)))
            state.positions[t] = position
            keep(t + 3, state)
        if done < self.steps + 3:
            end = found.root @ self._next(here, found, state, self.steps)
            state = state._replace(last=information(1, end, found.root))
            keep(self.steps + 3, state)
        return state

    def _next(self, here: Frame, found: Geometry, state: State, t: int) -> np.ndarray:
        if t == 0:
            return np.linalg.solve(found.root, here.start)
        waiting = np.where(np.arange(self.steps) < t, np.square(self.multipliers), 1e300)
        answers = Answers(state.positions, state.sums, waiting)
        rows = scoring.rows_of(here, found.shrunk.second)
        return scoring.locate(here, found.root, rows, answers, state.positions[t - 1])

    def _compile(self, here: Frame, records: Records) -> Ask:
        weighting = Weighting(here.row_bound, here.typical)
        assert self.model.linear is not None
        model = replace(self.model, linear=replace(self.model.linear, weighting=weighting))
        sums: ClippedSum = clipped_sum(model, 1.0, self.unravel, records.places)
        arrays = tuple(jax.device_put(array) for array in records.arrays)
        threshold = sums.residual_threshold(arrays, jnp.asarray(records.present), jnp.float32(sums.limit.norm))
        prepared = Prepared(arrays, threshold, None, sums.weighting, None)
        nothing = jax.random.key(0)

        @jax.jit
        def score(prepared: Prepared, position: Any, root: Any, scale: Any, units: Any) -> jax.Array:
            asked = oracle.build(sums, self.rounding, Observers(), prepared)
            draw = Draw(jnp.zeros((), jnp.int32), nothing, None, units, scale)
            return asked.answer(Query(position, scale, root), draw, Observed())[0]

        @jax.jit
        def information(prepared: Prepared, query: InformationQuery, units: Any) -> jax.Array:
            return release_information(sums, prepared, self.family, self.rounding, query, units)

        return Ask(
            lambda *asked: score(prepared, *map(jnp.asarray, asked)), lambda *asked: information(prepared, *asked)
        )

    def _told(self, here: Frame, state: State) -> Release:
        spread = here.information_bound * self.information_multipliers
        found = scoring.geometry(here, state.first, spread[0])
        told = np.ascontiguousarray(state.sums).tobytes()  # they are released: no secret is in the key
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
            positions=state.positions @ found.root,
            sums=state.sums,
            noise=self.multipliers,
            key=int.from_bytes(hashlib.sha256(told).digest()[:4], "little"),
        )
