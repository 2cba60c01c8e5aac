"""A run of private regression: the queries of `program.run`, answered by the records one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from confide.data.features import Feature
from confide.inference import checkpoints
from confide.inference.checkpoints import Checkpoint
from confide.inference.regression import program
from confide.inference.regression.declared import make_design
from confide.inference.regression.design import Design, divide
from confide.inference.regression.priors import prior_from_json
from confide.inference.regression.release import (
    FORMAT,
    RegressionRelease,
    name_multipliers,
    pack_answer,
    unpack_answer,
)
from confide.mechanism import noise, record_sums
from confide.mechanism.canaries import Planted
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.oracle import Observations
from confide.mechanism.sum_queries import SumQuery
from confide.models.inputs import Records, as_records

SCORES = "scores"  # with which the names of queries about scores begin, the only ones that canaries are in
TAIL_BINS = 40  # a query about tails has fewer bins for each numeric column


@dataclass
class Answers:
    """The noisy answers so far, in the order of the queries, and what the queries about scores show of canaries."""

    numbers: np.ndarray
    lengths: np.ndarray
    statistics: np.ndarray
    count: int = 0  # answers

    def arrays(self) -> list[np.ndarray]:
        return [self.numbers, self.lengths, self.statistics]

    def last(self, place: int) -> np.ndarray:
        start = int(self.lengths[:place].sum())
        return self.numbers[start : start + int(self.lengths[place])]

    def append(self, answer: np.ndarray) -> None:
        start = int(self.lengths[: self.count].sum())
        self.numbers[start : start + answer.size] = answer
        self.lengths[self.count] = answer.size
        self.count += 1


@dataclass(kw_only=True)
class RegressionJob:
    """A run that was killed goes on after its last answer: the same key and the same records give the same ones."""

    family: str
    features: tuple[Feature, ...]
    outcome: tuple[float, float]
    number: int  # of records, as declared
    constant: int  # place of the intercept among the parameters
    has_column: bool  # whether the rows have a column of ones at that place
    prior: Mapping[str, Any]
    multipliers: np.ndarray  # of vectors, over the bound of a record
    information_multipliers: np.ndarray  # of matrices
    secure: bool
    draws: int
    learns_noise: bool  # whether the model draws a residual scale beside the coefficients
    planted: Planted | None = None  # canaries, where the data have some
    release: RegressionRelease | None = None  # once it has run
    noise_scales: np.ndarray | None = None  # the same, of every draw
    observations: Observations | None = None  # of canaries, the same
    design: Design = field(init=False)

    diagnostics = None
    log_prior = None

    def __post_init__(self) -> None:
        self.design = make_design(self.family, self.features, self.outcome, self.number)

    @property
    def steps(self) -> int:
        return len(self.multipliers) + len(self.information_multipliers)

    @property
    def size(self) -> int:
        """Parameters."""
        return len(self.features) + 1

    @property
    def ran(self) -> RegressionJob:
        return self

    def canary_terms(self) -> tuple[np.ndarray, float]:
        """The noise of every sum that canaries are in, over the bound, and how likely each is in it."""
        names = [share.name for share in divide(self.design) if not share.is_matrix]
        chosen = [place for place, name in enumerate(names) if name.startswith(SCORES)]
        return self.multipliers[chosen], 1.0

    def digest(self) -> str:
        parts = (self.family, self.features, self.outcome, self.constant, sorted(self.prior.items()), self.draws)
        parts = (*parts, self.multipliers.tolist(), self.information_multipliers.tolist(), FORMAT)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def trace_program(self, records: Records) -> str:
        """No function of the user's runs on the records."""
        return ""

    def first_state(self) -> list[np.ndarray]:
        shares, d, numeric = divide(self.design), self.design.size, len(self.design.numeric)
        most = TAIL_BINS * numeric + sum(d * (d + 1) // 2 if s.is_matrix else 2 * self.size + d + 4 for s in shares)
        return [np.zeros(most), np.zeros(len(shares)), np.zeros((4, self.planted.count if self.planted else 0))]

    def execute(
        self,
        data: Records | tuple[np.ndarray, ...],
        key: Any,
        *,
        checkpoint: Path | None = None,
        resumed: Checkpoint | None = None,
        report: Callable[[int], None] | None = None,
        **_: Any,
    ) -> np.ndarray:
        """The draws, (1, draws, parameters). Answers are few, and every one is kept."""
        rows = as_records(data)
        pulls = np.zeros(0) if self.planted is None else self.planted.pulls(rows)
        records = self.without_constant(rows if self.planted is None else self.planted.without_canaries(rows))
        arrays = self.first_state() if resumed is None else [np.array(array) for array in resumed.arrays]
        answers = Answers(arrays[0], arrays[1], arrays[2], 0)
        stored = 0 if resumed is None else resumed.block
        names = [share.name for share in divide(self.design)]

        def ask(name: str, query: SumQuery) -> np.ndarray:
            assert name == names[answers.count], "a query out of its order, whose noise was not planned"
            if answers.count < stored:
                answers.count += 1
                return unpack_answer(query, answers.last(answers.count - 1))
            noisy = self.answer(name, query, records, key, pulls, answers.statistics)
            answers.append(pack_answer(query, noisy))
            if checkpoint is not None and resumed is not None:
                checkpoints.write(checkpoint, resumed._replace(block=answers.count, arrays=answers.arrays()))
            if report is not None:
                report(answers.count)
            return noisy

        multipliers = name_multipliers(self.design, self.multipliers, self.information_multipliers)
        result = program.run(self.design, multipliers, prior_from_json(self.prior), ask)
        self.release = self.make_release(answers.arrays())
        self.release.__dict__["result"] = result  # the same that the release computes from its answers
        if self.planted is not None:
            self.observations = Observations(None, None, answers.statistics[None])
        drawn = self.release.make(self.draws)
        self.noise_scales = drawn.noise_scales if self.learns_noise else None
        return drawn.parameters

    def without_constant(self, records: Records) -> Records:
        """The records without the column of ones, which every query adds by itself."""
        if not self.has_column:
            return records
        x, y = records.arrays
        return records._replace(arrays=(np.delete(x, self.constant, axis=1), y))

    def answer(
        self, name: str, query: SumQuery, records: Records, key: Any, pulls: np.ndarray, statistics: np.ndarray
    ) -> np.ndarray:
        """The noisy answer. Canaries have coordinates behind those of the scores; `statistics` gains what they show."""
        source = noise.separate(key, name)
        if not name.startswith(SCORES) or not pulls.size:
            return record_sums.answer(query, records, source, secure=self.secure)
        noisy = record_sums.answer_with_canaries(query, records, source, pulls)
        assert self.planted is not None
        test = CanaryTest(
            first=query.size,
            apart=1,
            count=pulls.size,
            sampling_probability=1.0,
            clip=query.bound,
            replaced=self.planted.replaced,
        )
        statistics += np.asarray(test.statistics(jnp.asarray(noisy), jnp.asarray(query.deviation)))
        return noisy[: query.size]

    def make_release(self, arrays: list[np.ndarray]) -> RegressionRelease:
        """From the arrays of a state."""
        answers = Answers(arrays[0], arrays[1], arrays[2])
        names = [share.name for share in divide(self.design)]
        return RegressionRelease(
            family=self.family,
            records=self.number,
            features=self.features,
            outcome=self.outcome,
            constant=self.constant,
            prior=self.prior,
            noise_multipliers=self.multipliers,
            information_multipliers=self.information_multipliers,
            answers={name: np.array(answers.last(place)) for place, name in enumerate(names)},
        )
