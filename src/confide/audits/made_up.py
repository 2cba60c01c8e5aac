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

A program that keeps its promise is called a violation once in a thousand audits at most.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from confide import validation
from confide.audits import bounds, gathering, power, program, rebuilding, verdicts
from confide.audits.program import CLAIM, MEANINGS
from confide.audits.scores import Scores
from confide.audits.verdicts import ALARM, Audit
from confide.data import atomic_files
from confide.inference.posterior import Posterior
from confide.mechanism import noise
from confide.privacy import accountants, pricing
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event, Neighbours
from confide.validation import Refused

FORMAT = 1
FILE = "made-up.json"  # in the folder of the run: it may be published
POWER = 0.95
SAME = 1e-6  # relative, of what may be computed a little differently


@dataclass(frozen=True, kw_only=True, repr=False)
class MadeUp(Audit):
    """What an audit on made-up tables found; see `Audit`. The scores are of runs with a record and of runs without it.

    Attributes:
        repetitions: runs on each table.
        steps: of the run's steps, so many were run, from the first.
        seed: what all was drawn from.
        smallest: the smallest violations that this audit would have seen in 19 of 20 cases.
        seen: how often a plain row was seen to come in.
        batches: whether a step looks at a batch, and not at all records.
        run: which run it was, as its plan says.
    """

    repetitions: int
    steps: int
    whole: int  # number of steps of the run
    seed: int
    smallest: dict[str, float]
    seen: int
    batches: bool  # whether there are any, and not all records at every step
    run: str

    @property
    def claim_refuted(self) -> bool:
        """Whether the claim itself is refuted, and not only that the program is the one that was priced."""
        return len(MEANINGS) * min(self.tests[name] for name in CLAIM) <= ALARM

    def __repr__(self) -> str:
        return f"<MadeUp: {self.verdict}, claimed epsilon {self.claimed:.4g}, lower bound {self.bound:.3g}>"

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language."""
        part = "all" if self.steps == self.whole else f"the first {self.steps:,} of"
        return (
            f"Claimed: epsilon {self.claimed:.4g} at delta {self.delta:.3g}. The program of the run took {part} its "
            f"{self.whole:,} steps {self.repetitions:,} times on each of several made-up tables, with one record and "
            f"without it (seed {self.seed}); no real record was read.",
            f"At {100 * self.confidence:.4g}% confidence epsilon is at least {self.bound:.3g} if the mechanism is "
            f"Gaussian-DP, and at least {self.general_bound:.3g} whatever it is.",
            self._judgement(),
            self._reach(),
            "This is the program as it was built again from the run's settings, on tables that are made up: it cannot "
            "see what is wrong with the run's own records, key or machine. It hears the noisy sums, and takes draws to "
            "be made of them alone.",
        )

    def _judgement(self) -> str:
        why = MEANINGS[min(self.tests, key=self.tests.__getitem__)]
        likely = f"a probability of {self.p_value:.2g} at most" if self.p_value > verdicts.LEAST else "no probability"
        if self.violated and self.claim_refuted:
            found = f"what was claimed does not hold: {why}, which has {likely} otherwise"
            return f"VIOLATION: {found}. Do not publish the run."
        if self.violated:
            found = f"the program is not the one that was priced: {why}, which has {likely} otherwise"
            return f"VIOLATION: {found}. Do not publish the run."
        if self.verdict == "suspect":
            return (
                f"SUSPECT: {why}, which has {likely} if the program is the one that was priced, and one honest program "
                f"in {1 / (1 - self.confidence):.0f} looks like this. Audit it again, once, with another seed."
            )
        return f"The claim is not refuted (p = {self.p_value:.2g}), which does not prove it."

    def _reach(self) -> str:
        """The smallest violations that would have been seen."""
        found = self.smallest
        parts = [
            f"noise below {found['noise']:.3g} of what was priced, or in one parameter below {found['one noise']:.3g}",
            f"a record that, alone at the first place, the last or one other, adds more than {found['clip']:.6g} clips",
        ]
        if found.get("whole", 1.0) < program.FINEST:
            parts.append(f"a record at any place that counts further than {found['whole']:.2g} from whole times")
        if "presence" in found:
            parts.append(f"a record that is in a batch with a probability of {found['presence']:.3g} or more")
        if found.get("always", 1.0) < 0.5:
            parts.append("any one record that is in every batch")
        if "epsilon" in found:
            parts.append(f"a mechanism that reveals an epsilon of {found['epsilon']:.3g} or more")
        seen = f"In {POWER:.0%} of all cases this audit would have seen: {'; '.join(parts)}."
        blind = ""
        if self.batches and "always" not in found:
            blind = " It saw nothing of which other records a batch holds."
        elif not self.batches:
            blind = " Other places it did not look at, since every step takes all records."
        return seen + blind

    def to_json(self) -> dict[str, Any]:
        more = ("repetitions", "steps", "whole", "seed", "smallest", "seen", "batches", "run")
        *_, sentence, reach, assumption = self.sentences()
        return super().to_json() | {
            "format": FORMAT,
            "kind": "made-up",
            "sentence": f"{sentence} {reach}",
            "assumption": assumption,
            **{name: getattr(self, name) for name in more},
        }


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
    generator = np.random.default_rng([seed, 1])
    built = rebuilding.rebuild(posterior, noise.derive_key(noise.as_key(seed), "start"), generator, gathering.KEPT)
    blocks, planned = gathering.sizes(built, repetitions)
    told = gathering.gather(built, blocks, planned, seed, generator, began + seconds, report)
    steps = min(built.job.steps, blocks * built.job.block)
    points = _claim(guarantee, built.planned.spent_after if steps < built.job.steps else None, steps)
    tests = program.p_values(told, points)
    tests["priced"] = float(not _reveals_more(built.planned.event, guarantee.event, guarantee.neighbours))
    pairs = program.pairs_of(told)
    smallest = power.smallest(told, points, ALARM / len(MEANINGS), POWER)
    if guarantee.delta > 0 and smallest.get("area", 0.0) > 0.5:
        mu = math.sqrt(2) * float(special.ndtri(smallest["area"]))
        smallest["epsilon"] = pricing.gdp_epsilon(mu, guarantee.delta)
    scores = Scores(members=told.inside, nonmembers=told.outside, name="made-up tables", confidential=False)
    level = 1 - confidence
    expected = verdicts.Pairs(pairs.number, math.floor(pairs.number * verdicts.area(*points)))
    return MadeUp(
        claimed=guarantee.epsilon,
        delta=guarantee.delta,
        confidence=confidence,
        bound=pairs.bound(guarantee.delta, level) if guarantee.delta else 0.0,
        general_bound=bounds.audit_epsilon(
            told.inside, told.outside, delta=guarantee.delta, confidence=confidence, method="clopper-pearson"
        ),
        independent_bound=None,
        p_value=min(1.0, len(MEANINGS) * min(tests.values())),  # those that could not be made count too
        tests=tests,
        reach=expected.bound(guarantee.delta, level) if guarantee.delta else 0.0,
        scores=scores,
        canaries=False,
        guessed=len(told.inside) + len(told.outside),
        repetitions=len(told.inside),
        steps=steps,
        whole=built.job.steps,
        seed=seed,
        smallest=smallest,
        seen=int(told.plain.size),
        batches=built.job.buffer is not None,
        run=posterior.plan.get("run", ""),
    )


def _claim(guarantee: Guarantee, until: Callable[[int], Event] | None, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The privacy profile that is claimed: of the whole run, or of its first steps where `until` prices those."""
    event = guarantee.event if until is None else until(steps)
    epsilons, deltas = accountants.profile(event, guarantee.neighbours, guarantee.accountant).points()
    if until is not None:
        return epsilons, deltas
    return np.append(epsilons, guarantee.epsilon), np.append(deltas, guarantee.delta)  # stated, so claimed too


def _reveals_more(built: Event, priced: Event, neighbours: Neighbours) -> bool:
    """Whether some step of the program as it is built now has no step of its own that was priced for at least as much.

    Both are sums of Gaussian steps; what may overflow is not looked at, since canaries change it. Steps are given away
    in the order of their sampling probabilities, largest first, so that what was priced for one serves all later ones
    too; each takes the largest noise that is not above its own, which leaves the most to the others.
    """
    one, two = built.parts(neighbours), priced.parts(neighbours)
    if one.squared_mu > two.squared_mu * (1 + SAME):
        return True
    mine, theirs = (sorted(zip(parts[1], parts[0], parts[2], strict=True), reverse=True) for parts in (one, two))
    noises: list[float] = []  # of the priced steps that can be given away, with their numbers
    numbers: list[float] = []
    for q, noise_multiplier, count in mine:
        while theirs and theirs[0][0] >= q * (1 - SAME):
            _, other, number = theirs.pop(0)
            place = bisect.bisect(noises, other)
            noises.insert(place, other)
            numbers.insert(place, number)
        while count > 0:
            place = bisect.bisect(noises, noise_multiplier * (1 + SAME)) - 1
            if place < 0:
                return True
            taken = min(count, numbers[place])
            count, numbers[place] = count - taken, numbers[place] - taken
            if not numbers[place]:
                del noises[place], numbers[place]
    return False


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
