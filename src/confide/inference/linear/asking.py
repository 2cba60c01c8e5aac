"""The questions of a run of scoring on a linear model, put to the records, and to the canaries beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from confide.inference.linear.questions import Frame
from confide.inference.questions import NOTHING_TOLD, Answer, Question
from confide.mechanism import linear_sums, noise
from confide.mechanism.canary_scores import CanaryTest
from confide.mechanism.linear_sums import NO_CANARIES, Place
from confide.models.inputs import Records


class LinearTable(NamedTuple):
    records: Records
    pulls: np.ndarray = NO_CANARIES  # 1 where one is in, else 0, or -1 where it is replaced


@dataclass(frozen=True, kw_only=True)
class LinearQuestions:
    """The two kinds of questions. The position of a sum of scores is that of the coefficients and, last, of the noise
    scale; matrices depend on none."""

    frame: Frame
    intercept: bool
    secure: bool
    replaced: bool = False  # whether a canary that is out pulls the other way

    def ask(self, table: LinearTable, question: Question, key: Any, statistics: np.ndarray = NOTHING_TOLD) -> Answer:
        """The noisy answer, and what is told of canaries with it."""
        asked, cuts, deviation = (table.records, self.intercept), self.frame.cuts, float(question.deviation)
        if question.kind == "information":
            source = noise.separate(key, f"information {question.number}")
            terms = (question.root, cuts, deviation, self.secure, source)
            return Answer(linear_sums.sum_information(*asked, *terms), statistics)
        source = noise.separate(key, f"scores {question.number}")
        place = Place(question.root, question.position[:-1], float(question.position[-1]))
        noisy = linear_sums.sum_scores(*asked, place, cuts, deviation, source, table.pulls)
        own = question.position.size
        if not table.pulls.size:
            return Answer(noisy, statistics)
        test = CanaryTest(
            first=own,
            apart=1,
            count=table.pulls.size,
            sampling_probability=1.0,
            clip=cuts.bound,
            replaced=self.replaced,
        )
        told = test.statistics(jnp.asarray(noisy), jnp.asarray(deviation))
        return Answer(noisy[:own], statistics + np.asarray(told))
