r"""The scale of the records, bought before the first step: how long a usual row is, and how large a usual count.

Where nobody declared it, a clip and a step size cannot be planned, and to look would be a release. So it is one: a
histogram of the norms of the rows, with the constant of an intercept, over bins of half an octave, and for counts
another of the outcomes over octaves. One record is in one bin of each: adding or removing it changes one count by 1,
replacing it two counts by 1. Every count gets
Gaussian noise, and the bins that stand out of it are averaged. The bins are public: below a declared bound of the rows
they begin at that bound, so that rows, bound and prior may have any unit; else at powers of two, from 2^-30 to 2^30,
further rows being in the outermost.

**Finer** than half an octave: log2 of every norm over the usual one, cut to +-`CUT`, is summed with the same noise.
A record adds at most .7, and moves it by 1.4 < sqrt(2) where it is replaced: no more than a histogram. What it adds is
rounded to the grid of the noise by itself, and the sum is one of integers, as counts are.

**Places.** Norms are computed of all places, so that those of one record do not depend on whether another is there.
Bins of outcomes are found from the bits of a number alone. What follows, for the places that hold a record, is exact
arithmetic, record by record, and sums of integers, which have no order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from confide.mechanism import noise, query_grid
from confide.mechanism.exact_rounding import GRID
from confide.models.family import Family
from confide.models.inputs import Records
from confide.privacy import events
from confide.privacy.events import Event

FAR = 30  # octaves from 1
BELOW = 10  # octaves below a declared bound
STANDS_OUT = 3.0  # standard deviations of the noise
SEEN = 4.0  # the same, of the highest count: an empty bin of 120 has as much once in 260 times
GAP = 3  # bins from one that stands out to the next
PIECE = 2**16  # rows at a time
CUT = 0.7  # octaves from the usual norm
REACH = 1.25  # usual norms: longer rows count less
LEAST_INFORMATION = 1e-4  # mean of counts: fewer are as few
SINGLE_COUNT = 0.1  # least information of usual counts: where they are rare, one is far from none


class Scale(NamedTuple):
    """Of usual records."""

    norm: float = 1.0  # of a row, with the constant of the intercept
    outcome: float = 1.0  # of outcomes that are counts
    seen: bool = True  # whether it stands out of the noise, or is no more than a guess


class ScaleAnswers(NamedTuple):
    """The noisy outcomes that the scale follows from: all that is released of it."""

    norms: np.ndarray  # noisy counts of rows by their norm
    finer: float | None = None  # noisy sum of octaves above the usual norm
    outcomes: np.ndarray | None = None  # noisy counts of outcomes by their size

    def to_json(self) -> dict[str, Any]:
        outcomes = None if self.outcomes is None else self.outcomes.astype(int).tolist()
        return {"norms": self.norms.astype(int).tolist(), "finer": self.finer, "outcomes": outcomes}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ScaleAnswers:
        norms, outcomes = (
            None if record[name] is None else np.array(record[name], np.float64) for name in ("norms", "outcomes")
        )
        finer = None if record["finer"] is None else float(record["finer"])
        known = [each for each in (norms, outcomes, finer) if each is not None]
        if norms is None or not all(np.all(np.isfinite(each)) and np.ndim(each) < 2 for each in known):
            raise ValueError("the noisy counts of its scale are no numbers")
        return cls(norms, finer, outcomes)


@dataclass(frozen=True, kw_only=True)
class ScaleRelease:
    """What is bought: one histogram or two, with noise of this standard deviation on every count."""

    noise: float
    intercept: bool
    counts: bool  # whether outcomes are counts, and their size is bought as well
    norm_bound: float | None = None  # of a row, with the constant of the intercept
    finer: bool = field(default=False, repr=False)  # whether the norm is bought once more, within its bin

    def event(self) -> Event:
        return events.ScaleHistograms(noise=self.noise, histograms=1 + self.counts + self.finer)

    def to_json(self) -> dict[str, Any]:
        return {"noise": self.noise, "declared": self.norm_bound is not None}

    @property
    def bins(self) -> tuple[int, int]:
        """Of norms, and of counts."""
        return 2 * (BELOW if self.norm_bound is not None else 2 * FAR), FAR + 2

    def release(self, records: Records, source: Any) -> Scale:
        """From the records that are there."""
        return self.read(self.ask(records, source), records.number)

    def ask(self, records: Records, source: Any) -> ScaleAnswers:
        """The noisy outcomes. The sum is asked for about the norm that the counts of norms tell."""
        octaves = self.octaves(records.arrays[0])[records.present]
        norms = self.count_norms(octaves, source)
        finer = float(self.sum_norms(octaves, self.log_norm(norms), source)[0]) if self.finer else None
        if not self.counts:
            return ScaleAnswers(norms, finer)
        return ScaleAnswers(norms, finer, self.count_outcomes(records.arrays[1][records.present], source))

    def read(self, answers: ScaleAnswers, number: int) -> Scale:
        """The scale that noisy outcomes tell, for a declared number of records."""
        self.check(answers)
        norm, least = self.log_norm(answers.norms), SEEN * self.noise
        seen = bool(np.max(answers.norms) > least)
        if answers.finer is not None:
            norm += math.log(2) * answers.finer / number
        norm = self.longest * query_grid.round_scale(math.exp(norm) / self.longest)
        if answers.outcomes is None:
            return Scale(norm, seen=seen)
        middles = np.concatenate(
            [[0.0], 1.5 * 2.0 ** np.arange(self.bins[1] - 1) - 0.5]
        )  # of 0, 1, 2 and 3, 4 to 7, ...
        outcome = query_grid.round_scale(_mean(answers.outcomes, middles, STANDS_OUT * self.noise))
        return Scale(norm, outcome, seen and bool(np.max(answers.outcomes) > least))

    def check(self, answers: ScaleAnswers) -> None:
        """Refuse outcomes that this release cannot have."""
        outcomes = 0 if answers.outcomes is None else answers.outcomes.size
        wanted = (self.bins[0], self.bins[1] if self.counts else 0, self.finer)
        if (answers.norms.size, outcomes, answers.finer is not None) != wanted:
            raise ValueError("the noisy counts of its scale do not fit the histograms that were priced")

    def log_norm(self, norms: np.ndarray) -> float:
        """The logarithm of the usual norm that noisy counts tell: octaves from the longest in steps of 2^-30."""
        octaves = _mean(norms, -(np.arange(self.bins[0]) + 0.5) / 2, STANDS_OUT * self.noise)
        return math.log(self.longest) + math.log(2) * float(query_grid.round_to(octaves, 2.0**-30).value)

    @property
    def longest(self) -> float:
        """The norm at which the bins begin."""
        return self.norm_bound or 2.0**FAR

    @property
    def drawn(self) -> float:
        """The standard deviation that noise is drawn with: each count that changes does so by 1."""
        return noise.wide(self.noise, 1.0, 1)

    def count_norms(self, octaves: np.ndarray, source: Any) -> np.ndarray:
        """How many records are in every bin, with noise."""
        return noise.noisy_counts(self.add_norms(octaves).astype(float), self.drawn, noise.separate(source, "norms"))

    def add_norms(self, octaves: np.ndarray) -> np.ndarray:
        """The counts, of all records or a shard of them."""
        size = self.bins[0]
        return np.bincount(np.clip(np.floor(2 * octaves), 0, size - 1).astype(np.int64), minlength=size)

    def sum_norms(self, octaves: np.ndarray, norm: float, source: Any) -> np.ndarray:
        """Of octaves above the usual norm, whose logarithm is given, cut; with noise."""
        return noise.around_steps(self.add_octaves(octaves, norm), self.drawn, noise.separate(source, "finer"))

    def add_octaves(self, octaves: np.ndarray, norm: float) -> np.ndarray:
        """The sum in grid steps, of all records or a shard of them."""
        away = np.clip(math.log2(self.longest) - norm / math.log(2) - octaves, -CUT, CUT)
        return np.array([np.sum(np.rint(away / (self.drawn / GRID)).astype(np.int64))])

    def count_outcomes(self, outcomes: np.ndarray, source: Any) -> np.ndarray:
        """How many outcomes are in every octave, 0 for 0, with noise."""
        counted = self.add_outcomes(outcomes).astype(float)
        return noise.noisy_counts(counted, self.drawn, noise.separate(source, "counts"))

    def add_outcomes(self, outcomes: np.ndarray) -> np.ndarray:
        """The counts, of all records or a shard of them."""
        size = self.bins[1]
        above = np.frexp(np.maximum(outcomes.astype(np.float64), 0.5))[1]  # floor(log2) + 1
        return np.bincount(np.clip(above, 0, size - 1).astype(np.int64), minlength=size)

    def octaves(self, x: np.ndarray) -> np.ndarray:
        """How far every row is below the longest, in octaves."""
        pieces = [self._octaves(x[i : i + PIECE], self.longest) for i in range(0, len(x), PIECE)]
        return np.concatenate(pieces)

    def _octaves(self, x: np.ndarray, most: float) -> np.ndarray:
        """How far every row is below the longest, in octaves, from 0 to a billion."""
        with np.errstate(all="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64) + float(self.intercept))
            return np.clip(np.nan_to_num(np.log2(most / norms), posinf=1e9, neginf=0.0), 0.0, 1e9)


def typical_information(family: Family, scale: Scale) -> float:
    """Of a usual record, where the family does not know it by itself."""
    if not family.unknown_information:
        return 1.0
    mean = max(scale.outcome, LEAST_INFORMATION)
    variance = float(family.variance(np.array([math.log(mean)]))[0])
    return max(mean**2 / variance, SINGLE_COUNT)


def _mean(counts: np.ndarray, values: np.ndarray, least: float) -> float:
    """The mean value over the bins that stand out, one after the other, where most records are.

    One empty bin in 740 stands out by chance, and would carry the mean off from far away: a gap of more than `GAP` bins
    ends the row. Where none stands out, those about the middle count as they are.
    """
    middle = int(np.argmax(np.convolve(counts, np.ones(2 * GAP + 1), "same")))
    places = np.flatnonzero(counts >= max(least, 0.02 * float(np.max(counts))))
    rows = np.split(places, np.flatnonzero(np.diff(places) > GAP) + 1)
    about = np.arange(max(0, middle - GAP), min(counts.size, middle + GAP + 1))
    near = [row for row in rows if np.any(np.abs(row - middle) <= GAP)]
    kept = max(near, key=lambda row: float(np.sum(counts[row])), default=about)
    weights = np.maximum(counts[kept], 0.0)
    if not np.any(weights > 0):
        return float(values[middle])
    return float(np.sum(weights * values[kept]) / np.sum(weights))
