"""The estimate for typical people at the end of a run that has noted distances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from confide.inference.loop import Job
from confide.inference.plans.plan import Run
from confide.privacy.accountants import bayesian
from confide.privacy.accountants.bayesian import Typical
from confide.privacy.budget import Guarantee
from confide.validation import Refused

FAILURE = 1e-15  # probability that an estimate of one step falls short
SAMPLES = 8  # distances a step, for the Bayesian account: as many as triastcyn2020 takes, and a multiple of 8


def typical(job: Run, guarantee: Guarantee) -> Typical | None:
    """The estimate for typical people, from the distances that the run has noted; None where they allow none.

    K chains are K times as many steps. What is promised to anybody holds for typical people too. Distances are at most
    the limit that gradients are cut to, a little less than the clip, and are scaled up to the clip, which is what the
    noise is priced for. Nothing is refused here: the run is paid for.
    """
    if not isinstance(job, Job) or job.observations is None or job.observations.distances is None:
        return None
    clip, limit = job.parameters.clip, job.gradient_sum.effective_clip
    distances = np.minimum(job.observations.distances.astype(np.float64) * (clip / limit), clip)
    distances = distances.reshape(-1, job.observers.samples)
    try:
        found = bayesian.typical(
            distances,
            noise_scale=np.tile(job.kernel.schedule.noise, job.chains),
            sampling_probability=job.parameters.sampling_probability,
            clip=clip,
            delta=guarantee.delta,
            failure_probability=min(FAILURE, 1e-3 * guarantee.delta / len(distances)),
        )
    except Refused:
        return None
    capped = {name: min(getattr(found, name), guarantee.epsilon) for name in ("epsilon", "bounded", "worst_case")}
    return replace(found, **capped)


def to_text(found: Typical | None) -> str:
    """For the analyst."""
    if found is None:
        return "  no estimate for typical people: the sampled records were all alike (do not publish this line)"
    head = "An estimate for typical people: no guarantee, and NOT to be published"
    return "\n  ".join([f"  {head}", *found.sentences()])
