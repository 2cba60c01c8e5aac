"""The scale of rows and of outcomes of a linear model, bought before the first sum.

Rows as for any other model (`mechanism.scale`). Outcomes are counted by their size in bins of half an octave, from
2^-30 to 2^30, further ones being in the outermost: a record is in one bin. Of the bins that stand out of the noise, the
one that four in five of their records are within tells how far residuals reach at first. It is no prior of the noise
scale, and nothing else rests on it but where the first question is asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from confide.mechanism import noise
from confide.mechanism.scale import FAR, SEEN, STANDS_OUT, ScaleAnswers, ScaleRelease
from confide.models.inputs import Records
from confide.privacy import events
from confide.privacy.events import Event

WITHIN = 0.8  # share of the outcomes


class LinearScale(NamedTuple):
    norm: float  # of a usual row
    outcome: float  # that most are within
    seen: bool  # whether both stand out of the noise


@dataclass(frozen=True, kw_only=True)
class LinearScaleRelease:
    """What is bought: two figures of rows, and a histogram of outcomes, with the same noise."""

    rows: ScaleRelease

    def event(self) -> Event:
        return events.ScaleHistograms(noise=self.rows.noise, histograms=3)

    def to_json(self) -> dict[str, Any]:
        return self.rows.to_json()

    def release(self, records: Records, source: Any) -> LinearScale:
        return self.read(self.ask(records, source), records.number)

    def ask(self, records: Records, source: Any) -> ScaleAnswers:
        """The noisy outcomes."""
        answers = self.rows.ask(records, noise.separate(source, "rows"))
        return answers._replace(outcomes=self.count_outcomes(records.arrays[1][records.present], source))

    def read(self, answers: ScaleAnswers, number: int) -> LinearScale:
        """The scale that noisy outcomes tell, for a declared number of records."""
        noisy = answers.outcomes
        if noisy is None or noisy.size != 4 * FAR:
            raise ValueError("the noisy counts of its scale do not fit the histograms that were priced")
        usual = self.rows.read(answers._replace(outcomes=None), number)
        least = max(STANDS_OUT * self.rows.noise, 0.02 * float(np.max(noisy)))
        seen = usual.seen and bool(np.max(noisy) > SEEN * self.rows.noise)
        return LinearScale(usual.norm, _within(np.where(noisy >= least, noisy, 0.0)), seen)

    def count_outcomes(self, outcomes: np.ndarray, source: Any) -> np.ndarray:
        """How many outcomes are in every bin, with noise."""
        sizes = np.abs(outcomes.astype(np.float64))
        mantissas, exponents = np.frexp(sizes)  # exact, and the same wherever an outcome stands
        octaves = 2 * (exponents.astype(np.int64) + FAR) - 2 + (mantissas >= math.sqrt(0.5))
        places = np.clip(np.where(sizes > 0, octaves, 0), 0, 4 * FAR - 1)
        counted = np.bincount(places, minlength=4 * FAR).astype(np.float64)
        return noise.noisy_counts(counted, self.rows.drawn, noise.separate(source, "outcomes"))


def _within(counts: np.ndarray) -> float:
    """The upper bound of the first bin below which four in five are; 1 where there is none."""
    total = np.cumsum(counts)
    if not total[-1] > 0:
        return 1.0
    return float(2.0 ** ((int(np.argmax(total >= WITHIN * total[-1])) + 1) / 2 - FAR))
