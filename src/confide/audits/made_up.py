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

A program that keeps its promise is called a violation once in a thousand audits at most.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from confide import validation
from confide.audits import gathering, made_up_scoring, power, program, rebuilding
from confide.audits.made_up_result import FORMAT, POWER, MadeUp, judge_pairs, smallest_epsilon
from confide.audits.priced import claim_points, reveals_more
from confide.audits.program import MEANINGS
from confide.audits.verdicts import ALARM
from confide.data import atomic_files
from confide.inference import summaries
from confide.inference.posterior import Posterior
from confide.inference.summaries.linear import LinearScoringSummary
from confide.inference.summaries.scoring import ScoringSummary
from confide.mechanism import noise
from confide.validation import Refused

FILE = "made-up.json"  # in the folder of the run: it may be published


def audit_program(
    posterior: Posterior,
    *,
    confidence: float = 0.95,
    repetitions: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> MadeUp:
    """Run the program of a posterior on made-up tables, and test its noisy sums against its claim.

    Args:
        repetitions: runs on each table; planned from the sizes by default, so that the same seed gives the same result.
        seconds: no further runs are begun after so many.
        seed: by default the operating system's.
        report: told (runs that are done, runs that are planned) from time to time.
    """
    began = time.monotonic()
    confidence = validation.probability(confidence=confidence)
    seed = secrets.randbits(63) if seed is None else int(validation.nonnegative(seed=seed))
    seconds = math.inf if seconds is None else validation.positive(seconds=seconds)
    guarantee = posterior.guarantee
    rebuilding.check_model(posterior)
    assert guarantee is not None
    if isinstance(summaries.from_json(posterior.plan), ScoringSummary | LinearScoringSummary):
        deadline = began + seconds
        return made_up_scoring.audit_scoring(
            posterior, confidence=confidence, repetitions=repetitions, deadline=deadline, seed=seed, report=report
        )
    generator = np.random.default_rng([seed, 1])
    built = rebuilding.rebuild(posterior, noise.derive_key(noise.as_key(seed), "start"), generator, gathering.KEPT)
    blocks, planned = gathering.sizes(built, repetitions)
    told = gathering.gather(built, blocks, planned, seed, generator, began + seconds, report)
    steps = min(built.job.steps, blocks * built.job.block)
    points = claim_points(guarantee, built.planned.spent_after if steps < built.job.steps else None, steps)
    tests = program.p_values(told, points)
    tests["priced"] = float(not reveals_more(built.planned.event, guarantee.event, guarantee.neighbours))
    smallest = power.smallest(told, points, ALARM / len(MEANINGS), POWER)
    smallest |= smallest_epsilon(smallest, guarantee.delta)
    return MadeUp(
        **judge_pairs(guarantee, (told.inside, told.outside), points, confidence),
        p_value=min(1.0, len(MEANINGS) * min(tests.values())),  # those that could not be made count too
        tests=tests,
        steps=steps,
        whole=built.job.steps,
        seed=seed,
        smallest=smallest,
        seen=int(told.plain.size),
        batches=built.job.buffer is not None,
        run=posterior.plan.get("run", ""),
    )


def save(found: MadeUp, folder: str | os.PathLike[str]) -> Path:
    """Write the result into the folder of the run, in the place of an earlier one."""
    path = Path(folder) / FILE
    with atomic_files.write_text(path) as file:
        json.dump(found.to_json(), file, indent=2, allow_nan=False, default=float)
        file.write("\n")
    return path


def load(folder: str | os.PathLike[str], posterior: Posterior) -> dict[str, Any] | None:
    """What `save` wrote, None where it wrote nothing; refused where it is of another run."""
    path = Path(folder) / FILE
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] == FORMAT and record["run"] == posterior.plan.get("run", ""):
            return record
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise Refused(f"{str(path)!r} is not an audit of this run: remove it, and run 'confide audit --made-up' again")
