r"""What a run of private scoring asked, asked again of tables that are made up.

The run's program is planned again from its plan (`inference.plans.scoring`) and run once, at the scale that the run
found, which is public. All that it asks is heard (`scoring_questions`): histograms, sums of scores and matrices, with
the noise that each is to have. Then every question is put again, by the very functions of the run, to
tables that hold one record or none: **at the same position** and with the same noise they differ by what the record
adds, and with other noise they are what somebody who looks for this record would see.

Numbers are in units of the noise that was priced. Of a matrix these are its upper triangle, entries beside the diagonal
with 1 / sqrt(2) as much noise, so that lengths are Frobenius norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from confide import samplers
from confide.audits import rebuilding, scoring_questions
from confide.audits.rebuilding import Shape, source
from confide.audits.scoring_publication import Ask, Execution
from confide.inference import summaries
from confide.inference.frames import Frame
from confide.inference.linear.asking import LinearQuestions
from confide.inference.linear.job import LinearScoringJob
from confide.inference.linear.questions import Frame as LinearFrame
from confide.inference.linear.release import LinearRelease
from confide.inference.options import Options
from confide.inference.plans import scoring
from confide.inference.posterior import Posterior
from confide.inference.questions import Question, Questions
from confide.inference.regression.job import RegressionJob
from confide.inference.release import Release as StoredRelease
from confide.inference.scoring_job import ScoringJob
from confide.inference.summaries.linear import LinearScoringSummary
from confide.inference.summaries.runs import RunSummary
from confide.inference.summaries.scoring import ScoringSummary
from confide.mechanism import noise
from confide.mechanism.canaries import DOWN, UP
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.noise import Rounding
from confide.mechanism.scale import REACH, ScaleRelease
from confide.models.inputs import Records
from confide.models.model import Model
from confide.privacy import events
from confide.privacy.budget import Budget
from confide.privacy.events import Event, Neighbours
from confide.privacy.events.individual import CHANGE
from confide.validation import Refused

KINDS = ("scale", "information", "scores")
CHANGES = {  # what replacing a record moves a release by, over what adding one does
    "scale": CHANGE["replace-one"],
    "information": CHANGE["replace-one"],
    "scores": events.SENSITIVITY["replace-one"],
}
LENGTHS = (0.0, 1e-30, 0.1, 1.0, 1e3, 1e10, 1e29)  # of rows that come and go, in usual norms
HUGE = 1e30  # an outcome


class Placed(NamedTuple):
    """A made-up table: as the scale sees it, and as the questions do."""

    records: Records
    table: Any


class Release(NamedTuple):
    """One answer of the program."""

    kind: str
    multiplier: float  # noise over the most that one record adds
    answer: Callable[[Placed, Any], np.ndarray]  # (table, source) -> numbers in units of the noise
    change: float  # what replacing a record moves it by, over what adding one does


class Row(NamedTuple):
    features: np.ndarray
    label: float


@dataclass(frozen=True, kw_only=True)
class Program:
    """The run's program, and what it was heard to ask."""

    size: int  # parameters
    secure: bool
    scale: Event
    event: Event  # as it is planned now
    releases: list[Release]
    rounding: dict[str, tuple[Rounding, int]]  # of sums and matrices: what is rounded, and how many numbers they have
    rows: dict[str, Row]  # records that come and go
    crowd: Records  # ordinary rows, as many as were declared but one; the last place is free
    neighbours: Neighbours
    prepare: Callable[[Records], Any]
    job: ScoringJob | LinearScoringJob | RegressionJob
    asking: Callable[[Execution], Ask]  # puts questions to the table of an execution of the job

    def place(self, rows: dict[int, Row], crowd: bool = False) -> Placed:
        """A table with these rows at their places, and no record at the others, or the crowd."""
        (x, y), present = (array.copy() for array in self.crowd.arrays), self.crowd.present & crowd
        for place, row in rows.items():
            x[place], y[place], present[place] = row.features, row.label, True
        records = Records((x, y), present, self.crowd.number)
        return Placed(records, self.prepare(records))

    @property
    def heard(self) -> float:
        """mu^2 of all that it asked, by the noise that each was to have, with what rounding takes."""
        return sum(self._price(each.kind, each.multiplier) for each in self.releases)

    def stored(self, multipliers: Mapping[type[Event], Any]) -> float:
        """mu^2 of what the run kept of its answers, by the noise that it says each has."""
        priced = {events.GaussianSchedule: "scores", events.InformationSums: "information"}
        sums = sum(self._price(kind, multipliers[event]) for event, kind in priced.items())
        return sums + self.scale.parts(self.neighbours).squared_mu

    def _price(self, kind: str, multipliers: Any) -> float:
        rounding, numbers = self.rounding.get(kind, (noise.NONE, 0))
        change = 1.0 if self.neighbours == "add-remove" else CHANGES[kind]
        return float(np.sum(np.square(change / rounding.worth(np.asarray(multipliers), numbers))))


def rebuild(posterior: Posterior, seed: int, generator: np.random.Generator) -> Program:
    """The program of the run; all that it asks is heard."""
    model, summary = rebuilding.check_model(posterior), summaries.from_json(posterior.plan)
    guarantee, release = posterior.guarantee, posterior.release
    assert isinstance(summary, ScoringSummary | LinearScoringSummary)
    assert guarantee is not None
    if release is None:
        raise Refused("the run has no release.json, which says what it asked: restore it, or fit the run again")
    assert isinstance(release, StoredRelease | LinearRelease)
    own, n, here = summary.budget or {}, int(summary.records), release.frame
    budget = Budget(epsilon=own["epsilon"], delta=own["delta"], neighbours=guarantee.neighbours)
    shapes = tuple(Shape(shape, np.dtype(np.float32)) for shape in ((_columns(model, summary),), ()))
    rows = rebuilding.ordinary(model, shapes, generator, max(1, n - 1))
    marked = rebuilding.mark(model, tuple(np.zeros((1, *each.shape), each.kind) for each in shapes), generator).model
    crowd = rebuilding.in_places((_scale(rows[0], here, model), rows[1].astype(np.float32)), n)
    options = Options(draws=1, noise="secure" if summary.noise == "secure" else "default")
    sampler = samplers.scoring(constant=summary.constant, categories=getattr(summary, "categories", ()))
    plan = scoring.make_plan(marked, crowd, budget, sampler, options, noise.as_key(seed))
    job, secure = plan.job, summary.noise == "secure"
    assert isinstance(job, ScoringJob | LinearScoringJob)
    first = source(seed, "program", 0, secure)
    histograms = scoring_questions.hear_scale(job.scale, crowd, first)
    with jax.enable_x64(True):
        if isinstance(release, LinearRelease):
            assert isinstance(job, LinearScoringJob)
            heard = scoring_questions.hear_linear(job, release, crowd, first)
        else:
            assert isinstance(job, ScoringJob)
            heard = scoring_questions.hear(job, release, marked, crowd, first)
    releases = [*_of_scale(job.scale, histograms, here), *(_of_question(heard.questions, each) for each in heard.asked)]
    return Program(
        size=job.size,
        secure=secure,
        scale=job.scale.event(),
        event=plan.event,
        releases=releases,
        rounding=heard.rounding,
        rows=_candidates(marked, here, shapes, heard.turn, generator),
        crowd=crowd,
        neighbours=guarantee.neighbours,
        prepare=heard.prepare,
        job=job,
        asking=partial(scoring_questions.asking, job, marked),
    )


def _of_scale(scale: ScaleRelease | LinearScaleRelease, names: list[str], here: Frame | LinearFrame) -> list[Release]:
    """Each histogram, and the finer sum about the norm that the run found."""
    rows = scale.rows if isinstance(scale, LinearScaleRelease) else scale

    def norms(placed: Placed, key: Any) -> np.ndarray:
        return rows.count_norms(_octaves(rows, placed), noise.separate(key, "scale"))

    def finer(placed: Placed, key: Any) -> np.ndarray:
        return rows.sum_norms(_octaves(rows, placed), math.log(here.norm), noise.separate(key, "scale"))

    def outcomes(placed: Placed, key: Any) -> np.ndarray:
        there = placed.records.arrays[1][placed.records.present]
        return scale.count_outcomes(there, noise.separate(key, "scale"))

    every = {"norms": norms, "finer": finer, "outcomes": outcomes}

    def release(answer: Callable[[Placed, Any], np.ndarray]) -> Release:
        return Release("scale", rows.noise, lambda placed, key: answer(placed, key) / rows.noise, CHANGES["scale"])

    return [release(every[name]) for name in names]


def _octaves(scale: ScaleRelease, placed: Placed) -> np.ndarray:
    return scale.octaves(placed.records.arrays[0])[placed.records.present]


def _of_question(questions: Questions | LinearQuestions, question: Question) -> Release:
    matrix = question.kind == "information"
    upper = np.triu_indices(len(question.root))
    spread = question.deviation * np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))

    def answer(placed: Placed, key: Any) -> np.ndarray:
        noisy = questions.ask(placed.table, question, key).noisy
        return noisy[upper] / spread if matrix else noisy / question.deviation

    kind = "information" if matrix else "scores"
    return Release(kind, float(question.deviation / question.bound), answer, CHANGES[kind])


def _columns(model: Model, summary: RunSummary) -> int:
    return rebuilding.shapes(summary, model)[0][0]


def _scale(x: np.ndarray, here: Frame | LinearFrame, model: Model, length: float = 1.0) -> np.ndarray:
    """Rows of so many usual norms, with the constant of an intercept as far as it leaves room."""
    assert model.linear is not None
    wanted = math.sqrt(max(0.0, (length * here.norm) ** 2 - model.linear.intercept))
    norms = np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 1e-30)
    return (x / norms * min(wanted, 1e38)).astype(np.float32)


def _candidates(
    model: Model,
    here: Frame | LinearFrame,
    shapes: tuple[Shape, ...],
    turn: np.ndarray,
    generator: np.random.Generator,
) -> dict[str, Row]:
    """Records that come and go: marked ones first, which pull as hard as they can; then of any length and outcome."""
    own, across = _directions(turn, generator)
    longest = REACH * (1 - 1e-6)  # whose information is at its bound, and that still counts whole
    rows = {
        "up": Row(_scale(own, here, model, longest)[0], UP),
        "down": Row(_scale(own, here, model, longest)[0], DOWN),
        "across": Row(_scale(across, here, model, 0.25)[0], DOWN),
    }
    for length in (longest, *LENGTHS):
        for label in _labels(model, shapes):
            direction, _ = _directions(turn, generator)
            rows[f"{length:g} {label:g}"] = Row(_scale(direction, here, model, length)[0], label)
    return rows


def _directions(turn: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two, at right angles where there is room."""
    both = generator.normal(size=(2, len(turn))) @ turn
    if len(turn) > 1:
        both[1] -= both[0] * (both[0] @ both[1]) / (both[0] @ both[0])
    return both[:1].astype(np.float32), both[1:].astype(np.float32)


def _labels(model: Model, shapes: tuple[Shape, ...]) -> list[float]:
    """All of a classifier; else usual and huge outcomes."""
    known = rebuilding.labels(model, shapes)
    if known.size:
        return [float(label) for label in known[:3]]
    assert model.family is not None
    return [0.0, 3.0, HUGE] if model.family.outcome == "count" else [0.0, HUGE, -HUGE]
