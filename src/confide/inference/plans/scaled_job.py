"""A run whose clip, step sizes and noise follow the scale of the records, which it buys first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.loop import Job
from confide.mechanism import noise
from confide.mechanism.kernel import MechanismParameters
from confide.mechanism.oracle import Observations
from confide.mechanism.scale import Scale, ScaleAnswers, ScaleRelease
from confide.models import programs
from confide.models.inputs import Records, as_records


@dataclass(kw_only=True)
class ScaledJob:
    """A killed run that goes on buys nothing anew: the same key and the same records give the same scale."""

    unit: Job  # in units of the records
    at: Callable[[Scale], Job]
    release: ScaleRelease
    skipped: np.ndarray | None = None  # places that hold canaries, and no records
    answers: ScaleAnswers | None = None  # once it is bought: the noisy outcomes,
    scale: Scale | None = None  # the scale that they tell,
    job: Job | None = None  # and the run at that scale

    @property
    def steps(self) -> int:
        return self.unit.steps

    @property
    def diagnostics(self) -> None:
        return None

    @property
    def ran(self) -> Job:
        assert self.job is not None, "nothing has run"
        return self.job

    @property
    def observations(self) -> Observations | None:
        return self.ran.observations

    def digest(self) -> str:
        return self.unit.digest() + repr(self.release)

    def trace_program(self, records: Records) -> str:
        """That of the unit scale. The run at the bought scale differs from it by numbers that follow from the scale:
        the likelihood is the library's, and the gradient of the prior is one program in both."""
        return self.unit.trace_program(records)

    def first_state(self) -> list[np.ndarray]:
        return self.unit.first_state()

    def execute(self, data: Records | tuple[np.ndarray, ...], key: Any, **how: Any) -> np.ndarray:
        records = data = as_records(data)
        if self.skipped is not None:
            arrays = tuple(np.delete(array, self.skipped, axis=0) for array in data.arrays)
            records = Records(arrays, np.delete(data.present, self.skipped), data.number)
        return self.follow(self.release.ask(records, noise.separate(key, "scale")), records.number).execute(
            data, key, **how
        )

    def follow(self, answers: ScaleAnswers, number: int) -> Job:
        """The run at the scale that noisy outcomes tell, of so many records as declared."""
        self.answers, self.scale = answers, self.release.read(answers, number)
        self.job = self.at(self.scale)
        return self.job


def trace_prior(parameters: MechanismParameters) -> MechanismParameters:
    """The parameters with the gradient of the prior as a program, which is traced once.

    Noise follows from the program of the unit scale, and another program is built once the scale is bought. A prior of
    the user's that computes something else when it is traced again would then run under the name of the first.
    """
    with jax.enable_x64(True):
        position = jnp.zeros(parameters.dimension, jnp.float64)
        program = programs.trace(parameters.prior, position)
        traced = replace(parameters, prior=jax.jit(lambda position: program(position)))
        jax.eval_shape(traced.mean_gradient, position, position)
    return traced
