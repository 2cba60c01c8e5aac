r"""What a run of private scoring asked, asked again of tables that are made up.

The run's program is planned again from its plan (`inference.plans.scoring`) and run once, on a made-up table of the
run's size, at the scale that the run found, which is public. All that it asks is heard: histograms, sums of scores and
matrices, with the noise that each is to have. Then every question is put again, by the very functions of the run, to
tables that hold one record or none: **at the same position** and with the same noise they differ by what the record
adds, and with other noise they are what somebody who looks for this record would see.

Numbers are in units of the noise that was priced. Of a matrix these are its upper triangle, entries beside the diagonal
with 1 / sqrt(2) as much noise, so that lengths are Frobenius norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import jax
import numpy as np

from confide import samplers
from confide.audits import rebuilding
from confide.audits.rebuilding import Shape, source
from confide.inference import summaries
from confide.inference.frames import Frame
from confide.inference.options import Options
from confide.inference.plans import scoring
from confide.inference.posterior import Posterior
from confide.inference.questions import NOTHING_TOLD, Answer, Question, Questions, Table, compile_questions
from confide.inference.release import Release as StoredRelease
from confide.inference.scoring_job import ScoringJob, State
from confide.inference.summaries.scoring import ScoringSummary
from confide.mechanism import noise
from confide.mechanism.canaries import DOWN, UP
from confide.mechanism.information import entries
from confide.mechanism.scale import REACH, ScaleRelease
from confide.models.inputs import Records
from confide.models.model import Model
from confide.privacy import events
from confide.privacy.budget import Budget
from confide.privacy.events import Event, Neighbours
from confide.privacy.events.individual import CHANGE
from confide.validation import Refused

KINDS = ("scale", "information", "scores")
LENGTHS = (0.0, 1e-30, 0.1, 1.0, 1e3, 1e10, 1e29)  # of rows that come and go, in usual norms
HUGE = 1e30  # an outcome


class Placed(NamedTuple):
    """A made-up table: as the scale sees it, and as the questions do."""

    records: Records
    table: Table


class Release(NamedTuple):
    """One answer of the program."""

    kind: str
    multiplier: float  # noise over the most that one record adds
    change: float  # what replacing a record moves it by, in the same units as adding one
    answer: Callable[[Placed, Any], np.ndarray]  # (table, source) -> numbers in units of the noise


class Row(NamedTuple):
    features: np.ndarray
    label: float


@dataclass(frozen=True, kw_only=True)
class Program:
    """The run's program, and what it was heard to ask."""

    job: ScoringJob
    event: Event  # as it is planned now
    heard: float  # mu^2 of all that it asked, by the noise that each was to have
    releases: list[Release]
    questions: Questions
    model: Model  # that knows marked rows
    shapes: tuple[Shape, ...]
    crowd: Records  # ordinary rows, as many as were declared but one; the last place is free
    neighbours: Neighbours

    @property
    def secure(self) -> bool:
        return self.job.rounding == noise.CONTRIBUTIONS

    def place(self, rows: dict[int, Row], crowd: bool = False) -> Placed:
        """A table with these rows at their places, and no record at the others, or the crowd."""
        (x, y), present = (array.copy() for array in self.crowd.arrays), self.crowd.present & crowd
        for place, row in rows.items():
            x[place], y[place], present[place] = row.features, row.label, True
        records = Records((x, y), present, self.crowd.number)
        return Placed(records, self.questions.prepare(records, records))


def rebuild(posterior: Posterior, seed: int, generator: np.random.Generator) -> Program:
    """The program of the run; all that it asks on a made-up table is heard."""
    model, summary = rebuilding.check_model(posterior), summaries.from_json(posterior.plan)
    guarantee = posterior.guarantee
    assert isinstance(summary, ScoringSummary)
    assert guarantee is not None
    if posterior.release is None:
        raise Refused("the run has no release.json, which says what it asked: restore it, or fit the run again")
    if not isinstance(posterior.release, StoredRelease):
        raise Refused("a run that learnt its noise scale is not asked again on made-up tables: give noise_scale to fit")
    own, n, here = summary.budget or {}, int(summary.records), posterior.release.frame
    budget = Budget(epsilon=own["epsilon"], delta=own["delta"], neighbours=guarantee.neighbours)
    shapes = tuple(Shape(shape, np.dtype(np.float32)) for shape in ((_columns(model, summary),), ()))
    rows = rebuilding.ordinary(model, shapes, generator, max(1, n - 1))
    marked = rebuilding.mark(model, tuple(np.zeros((1, *each.shape), each.kind) for each in shapes), generator).model
    crowd = rebuilding.in_places((_scale(rows[0], here, model), rows[1].astype(np.float32)), n)
    options = Options(draws=1, noise="secure" if summary.noise == "secure" else "default")
    sampler = samplers.scoring(constant=summary.constant, categories=summary.categories)
    plan = scoring.make_plan(marked, crowd, budget, sampler, options, noise.as_key(seed))
    job = plan.job
    assert isinstance(job, ScoringJob)
    with jax.enable_x64(True):
        questions = compile_questions(marked, job.unravel, here, job.size, job.rounding, crowd)
        first = source(seed, "program", 0, summary.noise == "secure")
        asked, histograms = _listen(job, questions, crowd, first)
    releases = [*_of_scale(job.scale, histograms, here), *(_of_question(questions, each) for each in asked)]
    return Program(
        job=job,
        event=plan.event,
        heard=_price(releases, job, guarantee.neighbours),
        releases=releases,
        questions=questions,
        model=marked,
        shapes=shapes,
        crowd=crowd,
        neighbours=guarantee.neighbours,
    )


@dataclass(frozen=True, kw_only=True)
class Listening(Questions):
    """Questions, and all that were asked."""

    asked: list[Question] = field(default_factory=list)

    def ask(self, table: Table, question: Question, key: Any, statistics: np.ndarray = NOTHING_TOLD) -> Answer:
        self.asked.append(question)
        return super().ask(table, question, key, statistics)


@dataclass(frozen=True, kw_only=True)
class ListeningScale(ScaleRelease):
    """The scale, and the names of all that was released of it."""

    asked: list[str] = field(default_factory=list)

    def count_norms(self, octaves: np.ndarray, source: Any) -> np.ndarray:
        self.asked.append("norms")
        return super().count_norms(octaves, source)

    def sum_norms(self, octaves: np.ndarray, norm: float, source: Any) -> np.ndarray:
        self.asked.append("finer")
        return super().sum_norms(octaves, norm, source)

    def count_outcomes(self, outcomes: np.ndarray, source: Any) -> np.ndarray:
        self.asked.append("outcomes")
        return super().count_outcomes(outcomes, source)


def _listen(job: ScoringJob, questions: Questions, crowd: Records, key: Any) -> tuple[list[Question], list[str]]:
    """What the program asks of the crowd, from its scale on."""
    scale = ListeningScale(**{each.name: getattr(job.scale, each.name) for each in fields(job.scale)})
    scale.release(crowd, noise.separate(key, "scale"))
    listening = Listening(**{each.name: getattr(questions, each.name) for each in fields(questions)})
    job.ask(listening, questions.prepare(crowd, crowd), key, State(*job.first_state()), 1, lambda number, state: None)
    return listening.asked, scale.asked


def _of_scale(scale: ScaleRelease, names: list[str], here: Frame) -> list[Release]:
    """Each histogram, and the finer sum about the norm that the run found."""

    def norms(placed: Placed, key: Any) -> np.ndarray:
        return scale.count_norms(_octaves(scale, placed), noise.separate(key, "scale"))

    def finer(placed: Placed, key: Any) -> np.ndarray:
        return scale.sum_norms(_octaves(scale, placed), math.log(here.norm), noise.separate(key, "scale"))

    def outcomes(placed: Placed, key: Any) -> np.ndarray:
        there = placed.records.arrays[1][placed.records.present]
        return scale.count_outcomes(there, noise.separate(key, "scale"))

    every = {"norms": norms, "finer": finer, "outcomes": outcomes}
    change = CHANGE["replace-one"]

    def release(answer: Callable[[Placed, Any], np.ndarray]) -> Release:
        return Release("scale", scale.noise, change, lambda placed, key: answer(placed, key) / scale.noise)

    return [release(every[name]) for name in names]


def _octaves(scale: ScaleRelease, placed: Placed) -> np.ndarray:
    return scale.octaves(placed.records.arrays[0])[placed.records.present]


def _of_question(questions: Questions, question: Question) -> Release:
    matrix = question.kind == "information"
    upper = np.triu_indices(len(question.root))
    spread = question.deviation * np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))

    def answer(placed: Placed, key: Any) -> np.ndarray:
        noisy = questions.ask(placed.table, question, key).noisy
        return noisy[upper] / spread if matrix else noisy / question.deviation

    kind, change = ("information", CHANGE["replace-one"]) if matrix else ("scores", events.SENSITIVITY["replace-one"])
    return Release(kind, float(question.deviation / question.bound), change, answer)


def _price(releases: list[Release], job: ScoringJob, neighbours: Neighbours) -> float:
    """mu^2 of these, with what rounding takes."""
    total = 0.0
    for each in releases:
        worth = each.multiplier
        if each.kind != "scale":
            worth = job.rounding.worth(worth, entries(job.rows) if each.kind == "information" else job.size)
        total += (1.0 if neighbours == "add-remove" else each.change) ** 2 / worth**2
    return total


def _columns(model: Model, summary: ScoringSummary) -> int:
    return rebuilding.shapes(summary, model)[0][0]


def _scale(x: np.ndarray, here: Frame, model: Model, length: float = 1.0) -> np.ndarray:
    """Rows of so many usual norms, with the constant of an intercept as far as it leaves room."""
    assert model.linear is not None
    wanted = math.sqrt(max(0.0, (length * here.norm) ** 2 - model.linear.intercept))
    norms = np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 1e-30)
    return (x / norms * min(wanted, 1e38)).astype(np.float32)


def candidates(built: Program, generator: np.random.Generator) -> dict[str, Row]:
    """Records that come and go: marked ones first, which pull as hard as they can; then of any length and outcome."""
    here, model = built.questions.frame, built.model
    own, across = _directions(built.shapes[0].shape[0], generator)
    longest = REACH * (1 - 1e-6)  # whose information is at its bound, and that still counts whole
    rows = {
        "up": Row(_scale(own, here, model, longest)[0], UP),
        "down": Row(_scale(own, here, model, longest)[0], DOWN),
        "across": Row(_scale(across, here, model, 0.25)[0], DOWN),
    }
    for length in (longest, *LENGTHS):
        for label in _labels(built):
            direction, _ = _directions(built.shapes[0].shape[0], generator)
            rows[f"{length:g} {label:g}"] = Row(_scale(direction, here, model, length)[0], label)
    return rows


def _directions(columns: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two, at right angles where there is room."""
    both = generator.normal(size=(2, columns))
    if columns > 1:
        both[1] -= both[0] * (both[0] @ both[1]) / (both[0] @ both[0])
    return both[:1].astype(np.float32), both[1:].astype(np.float32)


def _labels(built: Program) -> list[float]:
    """All of a classifier; else usual and huge outcomes."""
    known = rebuilding.labels(built.model, built.shapes)
    if known.size:
        return [float(label) for label in known[:3]]
    family = built.model.family
    assert family is not None
    return [0.0, 3.0, HUGE] if family.outcome == "count" else [0.0, HUGE, -HUGE]
