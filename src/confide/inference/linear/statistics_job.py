"""A run that releases sufficient statistics of a linear model: the scale of the records, and one noisy matrix."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from confide.inference import checkpoints
from confide.inference.checkpoints import Checkpoint
from confide.inference.linear.statistics_release import BOUND, OUTCOMES, REACH, StatisticsRelease, row_bound
from confide.mechanism import linear_sums, noise
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.scale import FAR, ScaleAnswers
from confide.models.inputs import Records, as_records


@dataclass(kw_only=True)
class StatisticsJob:
    """A killed run goes on from its last answer: the same key and the same records give the same ones."""

    scale: LinearScaleRelease
    multiplier: float  # noise over the bound of a record
    secure: bool
    size: int  # parameters
    number: int  # of records, as declared
    intercept: bool
    norm_bound: float | None
    prior_scale: float
    noise_scale: float | None  # None: learnt
    draws: int
    release: StatisticsRelease | None = None  # once it has run
    noise_scales: np.ndarray | None = None  # the same, of every draw, where it is learnt

    diagnostics = None
    observations = None
    steps = 1

    @property
    def ran(self) -> StatisticsJob:
        return self

    def digest(self) -> str:
        told = (self.scale, self.multiplier, self.draws, REACH, OUTCOMES)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def trace_program(self, records: Records) -> str:
        """Nothing that runs on the records holds functions of the user's but the model, which has a digest."""
        return ""

    def first_state(self) -> list[np.ndarray]:
        size = self.size + 1
        return [np.zeros(shape) for shape in (self.scale.rows.bins[0], 4 * FAR, 1, (size, size))]

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
        """The draws, (1, draws, parameters)."""
        records = as_records(data)
        state = [np.array(array) for array in (self.first_state() if resumed is None else resumed.arrays)]
        done = 0 if resumed is None else resumed.block

        def keep(number: int) -> None:
            if checkpoint is not None and resumed is not None:
                checkpoints.write(checkpoint, resumed._replace(block=number, arrays=state))

        if done == 0:
            found = self.scale.ask(records, noise.separate(key, "scale"))
            assert found.outcomes is not None
            state[0][:], state[1][:], state[2][0] = found.norms, found.outcomes, found.finer
            keep(1)
        answers = ScaleAnswers(state[0], float(state[2][0]), state[1])
        scale, deviation = self.scale.read(answers, self.number), BOUND * self.multiplier
        if done < 2:
            bounds = (row_bound(scale, self.norm_bound), OUTCOMES * scale.outcome)
            terms = (*bounds, deviation, self.secure, noise.separate(key, "moments"))
            state[3] = linear_sums.sum_moments(records, self.intercept, *terms)
            keep(2)
        if report is not None:
            report(1)
        self.release = self.make_release(state)
        drawn = self.release.make(self.draws)
        self.noise_scales = drawn.noise_scales
        return drawn.parameters

    def make_release(self, arrays: list[np.ndarray]) -> StatisticsRelease:
        """From the arrays of a state."""
        norms, outcomes, finer, moments = arrays
        return StatisticsRelease(
            records=self.number,
            prior_scale=self.prior_scale,
            noise_scale=self.noise_scale,
            norm_bound=self.norm_bound,
            scale=self.scale.rows,
            multiplier=self.multiplier,
            answers=ScaleAnswers(norms, float(finer[0]), outcomes),
            moments=moments,
        )
