"""The estimate for typical people at the end of a run that has noted distances."""

from __future__ import annotations

import warnings

import numpy as np

from confide.accountants import bayesian
from confide.accountants.bayesian import Typical
from confide.checks import Refused
from confide.jobs.parts import Work
from confide.run import Job

FAILURE = 1e-15  # probability that an estimate of one step falls short
SAMPLES = 8  # distances a step, for the Bayesian account: as many as triastcyn2020 takes, and a multiple of 8


class NoEstimateWarning(UserWarning):
    """The distances that a run has noted allow no estimate for typical people."""


def typical(job: Work, delta: float) -> Typical | None:
    """The estimate for typical people, from the distances that the run has noted; None where they allow none.

    K chains are K times as many steps. Nothing is refused here: the run is paid for.
    """
    if not isinstance(job, Job) or job.seen is None or job.seen.distances is None:
        return None
    distances = job.seen.distances.reshape(-1, job.watch.samples)
    try:
        return bayesian.typical(
            distances,
            noise_scale=np.tile(job.kernel.controls.noise, job.chains),
            sampling_probability=job.setting.sampling_probability,
            clip=job.gradient_sum.limit,
            delta=delta,
            failure_probability=min(FAILURE, 1e-3 * delta / len(distances)),
        )
    except Refused as reason:
        warnings.warn(f"no estimate for typical people: {reason}", NoEstimateWarning, stacklevel=4)
        return None
