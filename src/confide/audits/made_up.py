r"""An audit of the program itself: the run's own steps on tables that are made up, with one record and without it.

Canaries live in coordinates of their own, so they cannot see what is done to the model's: noise that is left out there,
records that are not cut, batches that favour one of them. Here the very program of the run (`rebuilding`) runs many
times on made-up neighbouring tables of the run's size, and the noisy sums are tested against what was priced and
against the privacy profile that was claimed (`program`). No record is read, so nothing is spent, and what is found may
be published.

| table | rows | what it shows |
|-------|------|---------------|
| silent | none contributes | the noise, in every coordinate and direction, between steps, chains and runs |
| one record | one marked row, first, last or anywhere | what one record adds, and when it is in |
| the other one | none, or one that pulls the other way | with the one before: the scores of neighbours |
| halves | a random half of the rows is marked, then the other half | whether any record is in too often |
| plain | rows of the model's own, of every label, some of them huge, without and with the last | what gradients add |

**Where it looks**: one record alone is first, last, and at one place drawn by the seed; every other place is looked at
in the halves, where steps take batches and single records can be counted: one that counts twice there looks like one
that is in twice as often. Noisy sums are kept of the first 2^22 numbers of a run and chain, so of the first steps alone
where there are many parameters.

**What it cannot see**: what is wrong with the run's own records, key or machine, and what happens only to tables unlike
these; a second sum, as `sgfs` has; what is made of the noisy sums, or released beside them. Draws are taken to be
functions of the noisy sums, as the kernels make them by construction: a kernel that looked at records elsewhere would
not be heard.

Private scoring asks few questions and no batches: its program is audited in `confide.audits.made_up_scoring`.

At the default confidence a program that keeps its promise is called a violation once in a thousand runs at most,
however often it is audited (`confide.audits.repeated`).
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable

import numpy as np

from confide import validation
from confide.audits import gathering, made_up_scoring, power, program, rebuilding
from confide.audits.made_up_result import POWER, MadeUp, judge_pairs, share, smallest_epsilon
from confide.audits.priced import priced_claim, reveals_more
from confide.audits.program import MEANINGS
from confide.audits.wording import CONFIDENCE
from confide.inference import summaries
from confide.inference.posterior import Posterior
from confide.inference.summaries.linear import LinearScoringSummary
from confide.inference.summaries.regression import RegressionSummary
from confide.inference.summaries.scoring import ScoringSummary
from confide.mechanism import noise


def audit_program(
    posterior: Posterior,
    *,
    confidence: float = CONFIDENCE,
    repetitions: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    earlier: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> MadeUp:
    """Run the program of a posterior on made-up tables, and test its noisy sums against its claim.

    Args:
        repetitions: runs on each table; planned from the sizes by default, so that the same seed gives the same result.
        seconds: no further runs are begun after so many.
        seed: by default the operating system's.
        earlier: audits of this run on made-up tables that were made before: the level is shared with them.
        report: told (runs that are done, runs that are planned) from time to time.
    """
    began = time.monotonic()
    confidence = validation.probability(confidence=confidence)
    seed = secrets.randbits(63) if seed is None else int(validation.nonnegative(seed=seed))
    number = 1 + int(validation.nonnegative(earlier=earlier))
    seconds = math.inf if seconds is None else validation.positive(seconds=seconds)
    guarantee = posterior.guarantee
    rebuilding.check_model(posterior)
    assert guarantee is not None
    if isinstance(summaries.from_json(posterior.plan), ScoringSummary | LinearScoringSummary | RegressionSummary):
        deadline = began + seconds
        return made_up_scoring.audit_scoring(
            posterior,
            confidence=confidence,
            repetitions=repetitions,
            deadline=deadline,
            seed=seed,
            number=number,
            report=report,
        )
    generator = np.random.default_rng([seed, 1])
    built = rebuilding.rebuild(posterior, noise.derive_key(noise.as_key(seed), "start"), generator, gathering.KEPT)
    blocks, planned = gathering.sizes(built, repetitions)
    told = gathering.gather(built, blocks, planned, seed, generator, began + seconds, report)
    steps = min(built.job.steps, blocks * built.job.block)
    claim = priced_claim(guarantee, built.planned.spent_after if steps < built.job.steps else None, steps)
    tests = program.p_values(told, claim.points)
    tests["priced"] = float(not reveals_more(built.planned.event, guarantee.event, guarantee.neighbours))
    level = (1 - confidence) * share(number) / len(MEANINGS)
    smallest = power.smallest(told, claim.points, level, POWER)
    smallest |= smallest_epsilon(smallest, guarantee.delta)
    sides, sharing = (told.inside, told.outside), {"total": len(MEANINGS), "confidence": confidence, "number": number}
    return MadeUp(
        **judge_pairs(guarantee, sides, claim, tests, **sharing),
        steps=steps,
        whole=built.job.steps,
        seed=seed,
        smallest=smallest,
        seen=int(told.plain.size),
        batches=built.job.buffer is not None,
        run=posterior.plan.get("run", ""),
    )
