"""Runs on made-up tables, and what is seen of them: see `confide.audits.made_up` for the tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from confide import validation
from confide.audits import rebuilding
from confide.audits.program import Told
from confide.audits.rebuilding import Program, in_places, source
from confide.audits.repetitions import repeat
from confide.inference.loop import Job
from confide.mechanism import exact_rounding
from confide.mechanism.clipping import GLM
from confide.mechanism.witness import Heard
from confide.validation import Refused

WORK = 2.0**34  # about how many operations all runs take together
OVERHEAD = 4000.0  # operations that a step takes whatever its size
TABLES = 8
FEWEST, MOST = 24, 1000  # runs on each table
TOGETHER = 250  # runs at once
HELD = 2**25  # numbers that runs hold together
KEPT = 2**22  # numbers of noisy sums that are kept of one run
QUIET = 2**24  # the same, of all runs on silent tables
ENTIRE = 2**16  # numbers in which noise that is used again is looked for: in the first runs,
SINGLE = 64  # and in each of the others
FEW = 16  # runs on each plain table
SCALES = (1.0, 1e3, 1e6, 0.0)  # of the features of a plain row that comes and goes
LARGE = 1e3  # the same, for a row of each label of a classifier
LABELS = 16  # of more of them, so many are drawn
HUGE = 1e300  # the score of a run that left the numbers
STEADY = 0.9  # clips: marked records that pull less are not counted


def sizes(built: Program, repetitions: int | None) -> tuple[int, int]:
    """How many blocks of steps are run, and how often: decided by sizes alone."""
    job = built.job
    if repetitions is not None:
        repetitions = validation.count(repetitions=repetitions)
        if repetitions < FEWEST:
            raise Refused(f"repetitions = {repetitions} show next to nothing: give {FEWEST} or more")
        return job.blocks, repetitions
    rows = job.buffer or job.parameters.n
    each = job.chains * (rows * job.parameters.dimension * (1.0 if built.marked.linear else 8.0) + OVERHEAD)
    room = WORK / TABLES / each  # steps of all runs on one table
    blocks = int(min(job.blocks, max(1, room // (FEWEST * job.block))))
    return blocks, int(min(MOST, max(FEWEST, room // (blocks * job.block))))


def gather(
    built: Program,
    blocks: int,
    planned: int,
    seed: int,
    generator: np.random.Generator,
    deadline: float,
    report: Callable[[int, int], None] | None = None,
) -> Told:
    """What is seen of `planned` runs on each table, fewer where the deadline has passed."""
    job, n, secure = built.job, built.records, built.job.parameters.secure
    seen, tables = Seen(job=job), _tables(built, generator)
    known = built.marked.table(np.array([1.0, -1.0]))
    at_once, done = _together(job, planned), 0
    while done < planned and (not done or time.monotonic() < deadline):
        alike, others = (
            [source(seed, label, done + i, secure) for i in range(at_once)] for label in ("alike", "others")
        )
        silent = np.asarray(repeat(job, built.table(np.zeros(n)), known, alike, blocks).sums)
        seen.hush(silent)
        for name, weights in tables.items():
            found = repeat(job, built.table(weights), known, others if name == "other" else alike, blocks)
            seen.take(name, found, silent)
        done += at_once
        if report is not None:
            report(min(done, planned), planned)
    layered = built.model.layered
    alike = layered is None or not layered.dropout  # each record has dropped weights of its own
    return seen.told(n, _plain(built, blocks, seed, generator), alike)


def _tables(built: Program, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """The weights of the rows, beside the table that is silent."""
    n, somewhere = built.records, int(generator.integers(built.records))
    witness = built.job.observers.witness
    assert witness is not None
    tables = {
        "somewhere": _one(n, somewhere, 1.0),
        "first": _one(n, 0, 1.0),
        "last": _one(n, n - 1, -1.0),
        "other": _one(n, somewhere, -1.0 if witness.replaced else 0.0),
    }
    if built.job.buffer is not None and n > 1:
        half = np.zeros(n)
        half[generator.permutation(n)[: n // 2]] = 1.0
        tables |= {"half": half, "rest": 1.0 - half}
    return tables


def _one(n: int, place: int, weight: float) -> np.ndarray:
    weights = np.zeros(n)
    weights[place] = weight
    return weights


def _together(job: Job, planned: int) -> int:
    witness = job.observers.witness
    assert witness is not None
    drawn = job.block * max((job.buffer or 1) * 2, job.parameters.dimension)
    held = job.chains * (drawn + 3 * job.steps + witness.observed * job.parameters.dimension)
    return int(min(planned, TOGETHER, max(2, HELD // held)))


@dataclass(kw_only=True)
class Seen:
    """What is kept of the runs, part by part."""

    job: Job
    quiet: list[np.ndarray] = field(default_factory=list)
    units: list[np.ndarray] = field(default_factory=list)
    entire: int = 0  # how many of the units are of runs that are looked at as a whole
    lengths: dict[str, list[np.ndarray]] = field(default_factory=dict)
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    counts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    scores: dict[str, list[np.ndarray]] = field(default_factory=dict)
    weakest: dict[str, float] = field(default_factory=dict)  # the least that a marked record pulled, in clips

    def hush(self, sums: np.ndarray) -> None:
        if not self.quiet or sum(part.size for part in self.quiet) + sums.size <= QUIET:
            self.quiet.append(np.nan_to_num(sums).astype(np.float32))
        for run in sums:
            chosen = run.reshape(-1)[:SINGLE]
            if self.entire < ENTIRE:  # a run of many parameters: some of them, at every step
                chosen = run[..., : max(1, ENTIRE // (run.shape[0] * run.shape[1]))].reshape(-1)[:ENTIRE]
                self.entire += chosen.size
            self.units.append(chosen[np.isfinite(chosen)] * exact_rounding.GRID)

    def take(self, name: str, found: Heard, silent: np.ndarray) -> None:
        """What runs on one table have shown, beside those on the silent one with the same randomness."""
        told = np.asarray(found.statistics)
        if name in ("somewhere", "other"):
            self.scores.setdefault(name, []).append(told[..., 0].sum(axis=(1, 2)))
        if name == "other":
            return
        moved, own = in_clips(self.job, np.asarray(found.sums) - silent), told[:, :, : silent.shape[2], 1]
        self.weakest[name] = min(self.weakest.get(name, math.inf), float(np.min(own)))
        if name in ("half", "rest"):
            exact = np.minimum(moved / np.maximum(own, 1e-9), HUGE)
            moved = np.rint(exact)
            self.parts.setdefault(name, []).append(np.abs(exact - moved))
        (self.counts if name in ("half", "rest") else self.lengths).setdefault(name, []).append(moved)

    def told(self, n: int, plain: np.ndarray, alike: bool) -> Told:
        """`alike` says whether all marked records pull along one direction."""
        parameters = self.job.parameters
        inside, outside = (
            np.nan_to_num(np.concatenate(self.scores[name]), nan=HUGE, posinf=HUGE, neginf=-HUGE)
            for name in ("somewhere", "other")
        )
        return Told(
            quiet=np.concatenate(self.quiet),
            units=np.concatenate(self.units),
            lengths={name: np.concatenate(parts) for name, parts in self.lengths.items()},
            counts=tuple(np.concatenate(parts) for parts in self.counts.values()),
            parts=tuple(np.concatenate(parts) for parts in self.parts.values()) if alike else (),
            halves=(n // 2, n - n // 2) if self.counts else (),
            plain=plain,
            inside=inside,
            outside=outside,
            steady=frozenset(name for name, least in self.weakest.items() if least > STEADY),
            sampling_probability=parameters.sampling_probability,
            multiplier=float(np.max(self.job.kernel.schedule.noise)) / parameters.clip,
        )


def in_clips(job: Job, sums: np.ndarray) -> np.ndarray:
    """The lengths of sums (runs, chains, steps, parameters) that are told in units of the noise; infinite for none."""
    units = (job.kernel.schedule.noise / job.parameters.clip)[: sums.shape[2], None]
    return np.nan_to_num(np.sqrt(np.sum(np.square(sums * units), axis=-1)), nan=math.inf)


def _plain(built: Program, blocks: int, seed: int, generator: np.random.Generator) -> np.ndarray:
    """How long the first differences are, in clips, of runs of the model's own rows with the last one and without.

    Until it is in a batch the two runs are the same, so that what they first differ by is what it adds. Not so at steps
    with a second sum, by which the first is then looked at; those are left out.
    """
    job, n = built.plain, built.records
    if n < 2:
        return np.zeros(0)
    sources = [source(seed, "plain", i, job.parameters.secure) for i in range(FEW)]
    others = rebuilding.ordinary(built.model, built.shapes, generator, n - 1)
    known = tuple(np.repeat(array[:1], 2, axis=0) for array in others)
    without, found = np.asarray(repeat(job, in_places(others, n), known, sources, blocks).sums), []
    drawn = [(scale, None) for scale in SCALES]
    labels = rebuilding.labels(built.model, built.shapes)
    labels = labels if len(labels) <= LABELS else generator.choice(labels, LABELS, replace=False)
    for scale, label in (*drawn, *[(LARGE, label) for label in labels]):
        row = rebuilding.ordinary(built.model, built.shapes, generator, 1)
        if label is not None:
            row = (*row[:-1], np.full_like(row[-1], label))
            scale = _as_far_as_it_counts(job, row)
        row = (*[_scale(array, scale) for array in row[:-1]], row[-1])
        whole = tuple(np.concatenate(pair) for pair in zip(others, row, strict=True))
        moved = in_clips(job, np.asarray(repeat(job, in_places(whole, n), known, sources, blocks).sums) - without)
        moved = moved.reshape(-1, moved.shape[-1])
        first = np.argmax(moved > 0, axis=1)
        lengths = moved[np.arange(len(moved)), first]
        found.append(lengths[(lengths > 0) & (job.kernel.schedule.fisher_noise[first] == 0)])
    return np.concatenate(found)


def _as_far_as_it_counts(job: Job, row: tuple[np.ndarray, ...]) -> float:
    """What makes a row large; where rows that stand far out count less, as long as those that count whole."""
    glm = job.gradient_sum.per_example
    weighting = glm.linear.weighting if isinstance(glm, GLM) else None
    if not isinstance(glm, GLM) or weighting is None or math.isinf(weighting.row_bound):
        return LARGE
    room = math.sqrt(max(0.0, weighting.row_bound**2 - glm.linear.intercept))
    return (1 - 1e-6) * room / max(float(np.linalg.norm(row[0])), 1e-30)


def _scale(array: np.ndarray, scale: float) -> np.ndarray:
    return array if array.dtype.kind in "iu" else (scale * array).astype(array.dtype)
