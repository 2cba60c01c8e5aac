r"""Tests of a program by what it did on made-up tables: is it the one that was priced, and does it hide what it claims?

All is known of a made-up table, so that each law below is exact, whatever the model. Runs with the same randomness on
two tables are paired: where no record but one contributes, the noisy sums of the two differ by what this record added.
With Z the noisy sums of a table of silent rows in units of the claimed noise, L the lengths of those differences in
clips, q the sampling probability and R runs:

| test | what is looked at | law, if the program is the one that was priced |
|------|-------------------|------------------------------------------------|
| noise | sum of Z^2 in every coordinate, too small | chi-squared; the least p-value times the coordinates |
| every step | the same at every step of every chain | chi-squared; the least p-value times the steps |
| law | how many abs(Z) are above .25, .5, 1, 2, 3, 4 and 5 | Binomial, two-sided; the least p-value times seven |
| grid | Z in grid steps | whole numbers, always |
| repeats | pairs of equal abs(Z) on the grid, among some 2^17 of all runs, chains, steps; too many | Poisson |
| directions | the combination of coordinates with least noise in half of the runs: in the others, too small | same |
| steps, chains | the same for combinations of steps, and of chains | chi-squared |
| runs | sums and differences of two runs with different keys, too small | chi-squared |
| clip | L for a marked record at several places | never above 1 |
| records | the first difference of two runs of the model's own rows, with one of them and without | never above 1 |
| presence | how often a marked record is in, at several places, too often | Binomial |
| halves | how many are in of a random half of the table, and of the other half, too many | Binomial |
| whole | how far from a whole number of records that is | what rounding explains, at most |
| batches | how often few, or some, of several steps hold a record (also of several chains, of two runs) | Binomial |
| sizes | how often the number that is in of a half is near its mean | Binomial |

Combinations are of the first 256 coordinates or steps at most; noise that is used again further apart is for "repeats".
Two independent numbers on the grid (G steps in a standard deviation) are equal up to their sign with a probability of
1 / (sqrt(pi) G), so that N of them have N (N - 1) / (2 sqrt(pi) G) equal pairs in the mean. Pairs that share a number
are dependent, which adds less than a thousandth to the variance at N = 2^17: the rate is taken 1% larger than it is.

A sum of k records, each as long as the clip and all alike, errs by k (k + 1) roundings of single precision at most, and
each record by `grain`: what is further from a whole number is no sum of whole records.

These say whether **the program is the one that was priced**. A program that is not might still be private, by another
proof. Two more tests are of **the claim itself**, and take nothing for granted but that runs have different keys. They
use scores of runs with a record and of others without it (or with another in its place):

| apart | how many score above a threshold, chosen on the first half of the runs | TPR <= F(FPR), by the profile |
| pairs | how often a run with the record scores above one without | at most Binomial(R, area under F) |

For "apart", with x of n above the threshold and y of m, w = max over a of P[Bin(n, F(a)) >= x] P[Bin(m, a) <= y]; a
product of two p-values is below t with probability t (1 - log t) at most, so w (1 - log w) is a p-value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from confide.audits import claims
from confide.audits.claims import ClaimTest, Pairs, Points
from confide.mechanism import exact_rounding

MEANINGS = {  # what each test finds where it finds something
    "apart": "neighbouring tables are told apart more often than the claim allows",
    "pairs": "runs with a record score above runs without it more often than the claim allows",
    "priced": "the program, built again, reveals more than the event that was priced",
    "noise": "some parameter has less noise than was priced",
    "every step": "some step has less noise than was priced",
    "law": "the noise is not Gaussian",
    "grid": "the noisy sums are not on the grid of the noise",
    "repeats": "the same noise is used more than once",
    "directions": "some combination of parameters has less noise than was priced",
    "steps": "the noise of different steps is not independent",
    "chains": "the noise of different chains is not independent",
    "runs": "the noise of runs with different keys is not independent",
    "clip": "one record adds more to a sum than the clip",
    "records": "one row of the model's own adds more to a sum than the clip",
    "presence": "a record is in batches more often than was priced",
    "halves": "some record is in batches more often than was priced",
    "whole": "some record counts other than whole times in a sum",
    "batches": "batches of different steps, chains or runs are not independent",
    "sizes": "records are not in batches independently of each other",
}
ROUNDING = 1e-5  # relative, of a length in clips
GRID = 2.0**-25  # by how much rounding moves two noisy sums apart, in units of the noise
MOST = 256  # coordinates or steps that combinations are made of
LEVELS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)  # in standard deviations: how much of the noise lies beyond them
ON_GRID = 1e-3  # grid steps by which double precision may miss a whole number
DEPENDENT = 1.01  # times the mean number of equal pairs, for those that share a number
UNIT = 2.0**-24  # rounding of single precision
FINEST = 0.25  # rounding of a length above which single records cannot be counted


@dataclass(frozen=True, kw_only=True)
class Told:
    """What was seen; leading axes are runs and chains."""

    quiet: np.ndarray  # (runs, chains, steps, parameters): Z
    units: np.ndarray  # some of Z, times the grid, in double precision
    lengths: dict[str, np.ndarray]  # (runs, chains, steps) for each place: L
    counts: tuple[np.ndarray, ...]  # (runs, chains, steps): how many of each half are in
    parts: tuple[np.ndarray, ...]  # by how much those differ from whole numbers; none where no two records pull alike
    halves: tuple[int, ...]  # their sizes
    plain: np.ndarray  # first differences, in clips
    inside: np.ndarray  # scores
    outside: np.ndarray
    steady: frozenset[str]  # tables on which marked records pulled as hard as they can throughout
    sampling_probability: float
    multiplier: float  # the largest noise over clip

    @property
    def grain(self) -> float:
        """What rounding of the noisy sums may add to a length, in clips."""
        return ROUNDING + GRID * self.multiplier * math.sqrt(self.quiet.shape[-1])

    @property
    def countable(self) -> bool:
        """Whether it can show which marked records are in a batch."""
        return self.sampling_probability < 1 and self.grain < FINEST

    @property
    def present(self) -> dict[str, np.ndarray]:
        """Whether the marked record is in, for each place where that shows at every step."""
        shown = {name: length > 0.5 for name, length in self.lengths.items() if name in self.steady}
        return shown if self.countable else {}

    @property
    def crowded(self) -> bool:
        """Whether it shows at every step how many of either half are in."""
        return self.countable and bool(self.halves) and {"half", "rest"} <= self.steady


def p_values(told: Told, points: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """One for each test that can be made; `points` are of the claimed privacy profile."""
    found = claims.p_values(attacks(told.inside, told.outside, points), points)
    found["noise"] = noise(told.quiet)
    quiet = told.quiet
    found["every step"] = every_step(quiet)
    found["law"] = law(quiet)
    found["grid"] = float(np.all(np.abs(told.units - np.rint(told.units)) <= ON_GRID))
    found["repeats"] = repeats(told.units)
    found["directions"] = least(quiet)
    found["steps"] = least(np.swapaxes(quiet, 2, 3))
    if quiet.shape[1] > 1:
        found["chains"] = least(np.moveaxis(quiet, 1, 3))
    found["runs"] = between(quiet)
    limit = 1 + told.grain
    found["clip"] = float(all(np.all(length <= limit) for length in told.lengths.values()))
    if told.plain.size:
        found["records"] = float(np.all(told.plain <= limit))
    q, present = told.sampling_probability, told.present
    if present:
        every = [float(stats.binom.sf(np.sum(these) - 1, these.size, q)) for these in present.values()]
        found["presence"] = min(1.0, len(every) * min(every))
        found["batches"] = batches(next(iter(present.values())), q)
    if told.crowded:
        every = [
            float(stats.binom.sf(np.sum(count) - 1, count.size * size, q))
            for count, size in zip(told.counts, told.halves, strict=True)
        ]
        found["halves"] = min(1.0, len(every) * min(every))
        every = [size_of(count, size, q) for count, size in zip(told.counts, told.halves, strict=True)]
        found["sizes"] = min(1.0, len(every) * min(every))
        if told.parts:
            found["whole"] = float(
                all(
                    np.all(part <= loose(count, told.grain))
                    for part, count in zip(told.parts, told.counts, strict=True)
                )
            )
    return found


def noise(quiet: np.ndarray) -> float:
    squares = np.sum(np.square(quiet, dtype=np.float64), axis=(0, 1, 2))
    freedom = quiet.size // quiet.shape[-1]
    return min(1.0, squares.size * float(np.min(stats.chi2.cdf(squares, freedom))))


def every_step(quiet: np.ndarray) -> float:
    squares = np.sum(np.square(quiet, dtype=np.float64), axis=(0, 3)).ravel()
    return min(1.0, squares.size * float(np.min(stats.chi2.cdf(squares, quiet.size // squares.size))))


def law(quiet: np.ndarray) -> float:
    sizes = np.abs(quiet)
    every = [two_sided(int(np.sum(sizes > level)), sizes.size, 2 * special.ndtr(-level)) for level in LEVELS]
    return min(1.0, len(every) * min(every))


def repeats(units: np.ndarray) -> float:
    """How many pairs of whole numbers are equal up to their sign."""
    often = np.unique(np.abs(np.rint(units)), return_counts=True)[1]
    pairs, number = int(np.sum(often * (often - 1) // 2)), units.size
    expected = number * (number - 1) / 2 / (math.sqrt(math.pi) * exact_rounding.GRID)
    return float(stats.poisson.sf(pairs - 1, DEPENDENT * expected)) if pairs else 1.0


def loose(count: np.ndarray, grain: float) -> np.ndarray:
    """By how much rounding may keep a sum of so many records from a whole number of them, in records."""
    return (count + 1) * (grain + UNIT * count)


def least(quiet: np.ndarray) -> float:
    """Of the combination along the last axis that has least noise in half of the runs: its noise in the others."""
    half = len(quiet) // 2
    if not half:
        return 1.0
    first, second = (part.reshape(-1, part.shape[-1]) for part in (quiet[:half], quiet[half:]))
    size = min(first.shape[-1], MOST, max(2, len(first) // 4))
    first, second = (part[:, :size].astype(np.float64) for part in (first, second))
    combination = np.linalg.eigh(first.T @ first)[1][:, 0]
    return float(stats.chi2.cdf(np.sum(np.square(second @ combination)), len(second)))


def between(quiet: np.ndarray) -> float:
    half = len(quiet) // 2
    if not half:
        return 1.0
    one, two = quiet[:half].astype(np.float64), quiet[half : 2 * half].astype(np.float64)
    return min(
        1.0, 2 * min(float(stats.chi2.cdf(np.sum(np.square(part)) / 2, part.size)) for part in (one - two, one + two))
    )


def batches(present: np.ndarray, q: float) -> float:
    """(runs, chains, steps): whether a record is in."""
    runs, chains, steps = present.shape
    windows = []
    for width in sorted({2, min(steps, max(2, round(1 / q))), steps}):
        if 2 <= width <= steps:
            whole = present[:, :, : steps // width * width]
            windows.append((whole.reshape(-1, width).sum(axis=1), width))
    if chains > 1:
        windows.append((present.sum(axis=1).ravel(), chains))
    if runs > 1:
        half = runs // 2
        windows.append(((present[:half].astype(int) + present[half : 2 * half]).ravel(), 2))
    found = []
    for counts, width in windows:
        cuts = {0, 1, int(stats.binom.ppf(0.35, width, q)), int(stats.binom.ppf(0.65, width, q))}
        for cut in cuts:
            chance = float(stats.binom.cdf(cut, width, q))
            found.append(two_sided(int(np.sum(counts <= cut)), counts.size, chance))
    return min(1.0, len(found) * min(found))


def size_of(counts: np.ndarray, size: int, q: float) -> float:
    """How often the number of those that are in lies in the middle half of its law."""
    low, high = (float(stats.binom.ppf(level, size, q)) for level in (0.25, 0.75))
    chance = float(stats.binom.cdf(high, size, q) - stats.binom.cdf(low - 1, size, q))
    return two_sided(int(np.sum((counts >= low) & (counts <= high))), counts.size, chance)


def two_sided(seen: int, number: int, chance: float) -> float:
    """Exact, of a binomial variable."""
    law = stats.binom(number, min(1.0, max(0.0, float(chance))))
    return min(1.0, 2 * min(float(law.cdf(seen)), float(law.sf(seen - 1))))


def largest_power(rates: np.ndarray, epsilons: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """F: the largest true positive rate that the claim allows at false positive rates."""
    factors, columns = np.exp(epsilons), np.asarray(rates, np.float64)[:, None]
    lines = np.minimum(deltas + factors * columns, 1 - (1 - deltas - columns) / factors)
    return np.clip(lines.min(axis=1), 0.0, 1.0)


class ThresholdTest(NamedTuple):
    """Of the runs that did not choose the threshold: how many score above it, with a record and without it."""

    inside: tuple[int, int]  # above, of how many
    outside: tuple[int, int]

    @classmethod
    def chosen(cls, inside: np.ndarray, outside: np.ndarray, points: Points) -> ThresholdTest:
        """At the threshold that looks worst for the claim in the first half of the runs."""
        cut = min(len(inside), len(outside)) // 2
        if not cut:
            return cls((0, 0), (0, 0))
        candidates = np.unique(np.concatenate([inside[:cut], outside[:cut]]))
        candidates = candidates[:: max(1, len(candidates) // 200)]
        tried = [(np.mean(inside[:cut] > level), np.mean(outside[:cut] > level)) for level in candidates]
        right, wrong = np.array(tried).T
        room = (cut * wrong + 1) / (cut + 2)
        most = largest_power(room, *points)
        gap = (right - most) / np.sqrt(np.maximum(most * (1 - most), 1 / cut) / cut)
        level = candidates[int(np.argmax(gap))]
        one, two = ((int(np.sum(side[cut:] > level)), len(side) - cut) for side in (inside, outside))
        return cls(one, two)

    def p_value(self, points: Points) -> float:
        return _least_likely(self.inside, self.outside, *points) if self.inside[1] else 1.0

    def rejects(self, points: Points, level: float) -> bool:
        return self.p_value(points) <= level


def attacks(inside: np.ndarray, outside: np.ndarray, points: Points) -> dict[str, ClaimTest]:
    """The tests of the claim, by scores of runs with a record and of runs without it."""
    return {"apart": ThresholdTest.chosen(inside, outside, points), "pairs": Pairs.among(inside, outside)}


def _least_likely(found: tuple[int, int], wrong: tuple[int, int], epsilons: np.ndarray, deltas: np.ndarray) -> float:
    rates = np.unique(np.concatenate([[0.0], np.geomspace(1e-9, 1e-2, 2000), np.linspace(1e-2, 1.0, 4000)]))
    many = stats.binom.sf(found[0] - 1, found[1], largest_power(rates, epsilons, deltas))
    few = stats.binom.cdf(wrong[0], wrong[1], rates)
    most = float(np.max(many[1:] * few[:-1]))  # the first rises along the rates, the second falls
    return min(1.0, most * (1 - math.log(most))) if 0 < most < 1 else float(most >= 1)
