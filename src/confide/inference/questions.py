"""What private scoring asks of the records: sums of bounded scores, and their information. Each question has noise of
its own, which follows from the key and the question: another one, by a bit, has other noise, on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.frames import Frame, expand
from confide.mechanism import noise, oracle
from confide.mechanism.canaries import Planted
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.clipping import ClippedSum, clipped_sum
from confide.mechanism.information import InformationQuery, entries, release_information
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Observed, Prepared
from confide.mechanism.noise import Rounding
from confide.mechanism.oracle import Observers
from confide.mechanism.query_grid import OnGrid
from confide.models.family import Family
from confide.models.inputs import Records
from confide.models.model import Model, Weighting

NOTHING_TOLD = np.zeros((4, 0))  # of no canaries


class Question(NamedTuple):
    kind: Literal["noise", "information"]  # a sum of scores has the first label, as its noise always had
    number: int
    position: np.ndarray
    root: np.ndarray
    bound: float  # of what a record adds, in units of the clip
    deviation: float  # of the noise; of a matrix, on its diagonal
    position_grid: OnGrid | None = None  # where the position follows from answers
    root_grid: OnGrid | None = None  # where the root does


class Reply(NamedTuple):
    """The noisy answer to a question, with the place where it was asked."""

    position: np.ndarray
    root: np.ndarray
    noisy: np.ndarray  # a vector, or a matrix


Put = Callable[[Question], Reply]  # how a question is answered: by the records, or by what a run stored


class Table(NamedTuple):
    """Records on the device, and the same with canaries among them, where there are any."""

    records: Prepared
    whole: Prepared


class Answer(NamedTuple):
    noisy: np.ndarray  # a vector, or a matrix
    statistics: np.ndarray  # of canaries, over all sums so far


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The two kinds of questions, compiled once for all tables of one shape."""

    frame: Frame
    rounding: Rounding
    size: int
    planted: Planted | None
    score: Callable[..., tuple[jax.Array, jax.Array]]
    information: Callable[..., jax.Array]
    prepare: Callable[[Records, Records], Table]

    def ask(self, table: Table, question: Question, key: Any, statistics: np.ndarray = NOTHING_TOLD) -> Answer:
        """The noisy answer, in the coordinates of the question. A table is seen by nothing but these programs."""
        space, position, root = self.frame.space, question.position, question.root
        if space is not None:
            position, root = space.lift(position), space.see(root)
        deviation = jnp.asarray(question.deviation)
        if question.kind == "information":
            query = InformationQuery(jnp.asarray(position), jnp.asarray(root), jnp.asarray(question.bound), deviation)
            units = self._units(question, key, entries(len(root)))
            noisy = np.asarray(self.information(table.records, query, units))
            return Answer(noisy if space is None else space.reduce_matrix(noisy), statistics)
        if self.planted is not None:  # along canaries it is 1, and so it is widened as a whole
            root = expand(root, self.size)
        width = self.size + (0 if self.planted is None else self.planted.coordinates)
        query = Query(jnp.asarray(position), deviation, jnp.asarray(root))
        units = self._units(question, key, width)
        noisy, statistics = map(np.asarray, self.score(table.whole, query, units, jnp.asarray(statistics)))
        return Answer(noisy if space is None else space.reduce_sum(noisy), statistics)

    def _units(self, question: Question, key: Any, count: int) -> jax.Array:
        """Noise in grid steps. It follows from the key and from the question as it is on its grid."""
        every = (*question[2:6], self.frame.row_bound, self.frame.typical)
        whole = b"".join(np.asarray(each, np.float64).tobytes() for each in every)
        own = noise.separate(key, f"{question.kind} {question.number} {hashlib.sha256(whole).hexdigest()}")
        return noise.draw_units(own, 0, question.number, (count,), question.kind)


def compile_questions(
    model: Model,
    unravel: Callable[[Any], Any],
    here: Frame,
    size: int,
    rounding: Rounding,
    records: Records,
    planted: Planted | None = None,
) -> Questions:
    """For tables like these records, and a model of so many parameters; `planted` are the canaries that whole tables
    have among them."""
    own = _sum(model, unravel, records.places)
    wide, observers = own, Observers()
    if planted is not None:  # sums are asked for in units of the clip, and the root is 1 along the canaries
        wide = _sum(planted.model, unravel, planted.data.places)
        told = {name: getattr(planted, name) for name in ("first", "apart", "count", "replaced")}
        observers = Observers(canaries=CanaryTest(**told, sampling_probability=1.0, clip=1.0))
    numbers = (own.limit.norm, here.row_bound / own.limit.norm, here.typical)

    def score(*asked: Any) -> tuple[jax.Array, jax.Array]:
        return _score(wide, rounding, observers, *asked)

    def information(*asked: Any) -> jax.Array:
        return _information(own, here.family, rounding, *asked)

    def prepare(records: Records, whole: Records) -> Table:
        alone = _prepare(own, records, numbers)
        return Table(alone, alone if planted is None else _prepare(wide, whole, numbers))

    return Questions(
        frame=here,
        rounding=rounding,
        size=size,
        planted=planted,
        score=score,
        information=information,
        prepare=prepare,
    )


@partial(jax.jit, static_argnames=("sums", "rounding", "observers"))
def _score(
    sums: ClippedSum,
    rounding: Rounding,
    observers: Observers,
    prepared: Prepared,
    query: Query,
    units: Any,
    statistics: Any,
) -> tuple[jax.Array, jax.Array]:
    asked = oracle.build(sums, rounding, observers, prepared)
    draw = Draw(jnp.zeros((), jnp.int32), jax.random.key(0), None, units, query.scale)
    noisy, observed = asked.answer(query, draw, Observed(statistics=statistics))
    assert observed.statistics is not None
    return noisy, observed.statistics


@partial(jax.jit, static_argnames=("sums", "family", "rounding"))
def _information(
    sums: ClippedSum, family: Family, rounding: Rounding, prepared: Prepared, query: InformationQuery, units: Any
) -> jax.Array:
    return release_information(sums, prepared, family, rounding, query, units)


def _sum(model: Model, unravel: Callable[[Any], Any], places: int) -> ClippedSum:
    """Scores are weighted, and no longer than 1. By which numbers is told by the table, so that one program serves runs
    of any scale."""
    assert model.linear is not None
    weighted = replace(model, linear=replace(model.linear, weighting=Weighting(1.0, 1.0)))
    return clipped_sum(weighted, 1.0, unravel, places, None)


def _prepare(sums: ClippedSum, records: Records, numbers: tuple[float, float, float]) -> Prepared:
    arrays = tuple(jax.device_put(array) for array in records.arrays)
    threshold = sums.residual_threshold(arrays, jnp.asarray(records.present), jnp.float32(sums.limit.norm))
    return Prepared(arrays, threshold, None, jnp.asarray(numbers, jnp.float32), None)
