r"""Tests of the program of private scoring by what it answered on made-up tables (`confide.audits.scoring_tables`).

As in `confide.audits.program`, all is known of a made-up table, so that the laws are exact. With Z the answers on a
table without a record, in units of the noise that was priced, of Q releases and R repetitions:

| test | what is looked at | law, if the program is the one that was priced |
|------|-------------------|------------------------------------------------|
| noise | sum of Z^2 of every number, too small | chi-squared with R degrees; the least p-value times the numbers |
| every release | the same of every release | chi-squared; the least p-value times Q |
| law, grid, repeats | of sums and matrices | as in `program` |
| directions | the combination of least noise, of sums and of matrices | as in `program`; times two |
| sums | the same for combinations of sums | chi-squared |
| runs | sums and differences of two repetitions | chi-squared |
| scale, information, scores | how far a record moves a release, over what was priced | never above 1 |
| dependence | the noise of an answer with a record less that without it, over what rounding explains | never above 1 |
| priced | mu^2 of all that the program was heard to ask, and of what the run stored, over the event's | never above 1 |
| apart, pairs | whether neighbours are told apart, by the likelihood ratio of all | as in `program` |

Counts are rounded to whole numbers after their noise, which adds to Z^2 and breaks no promise; they are left out of
law, grid and repeats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from confide.audits import claims, program
from confide.audits.claims import area
from confide.audits.scoring_tables import KINDS

MEANINGS = {  # what each test finds where it finds something
    **{name: program.MEANINGS[name] for name in ("apart", "pairs")},
    "priced": "the program, or the run, releases more than was priced",
    "noise": "some number that is released has less noise than was priced",
    "every release": "some sum, matrix or histogram has less noise than was priced",
    "law": "the noise is not Gaussian",
    "grid": "sums and matrices are not on the grid of the noise",
    "repeats": "the same noise is used more than once",
    "directions": "some combination of numbers has less noise than was priced",
    "sums": "the noise of different sums is not independent",
    "runs": "the noise of runs with different keys is not independent",
    "dependence": "the noise depends on whether a record is there",
    "scale": "one record moves the scale by more than was priced",
    "information": "one record moves a sum of information by more than was priced",
    "scores": "one record moves a sum of scores by more than was priced",
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """What was seen."""

    kinds: tuple[str, ...]  # of the releases
    quiet: tuple[np.ndarray, ...]  # (repetitions, numbers) of each: Z
    units: np.ndarray  # some of Z of sums and matrices, times the grid
    moved: dict[str, np.ndarray]  # of each kind: how far releases moved, over what was priced
    dependence: dict[str, float]  # of each kind: how far a record changes the noise, over what rounding explains
    room: float  # the least ratio above 1 that rounding cannot explain
    inside: np.ndarray  # scores
    outside: np.ndarray

    def of(self, kind: str) -> np.ndarray:
        """Z of a kind, (repetitions, 1, releases, numbers)."""
        found = [z for name, z in zip(self.kinds, self.quiet, strict=True) if name == kind]
        return np.stack(found, axis=1)[:, None]


def p_values(told: Told, points: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """One for each test but "priced"; `points` are of the claimed privacy profile."""
    found = claims.p_values(program.attacks(told.inside, told.outside, points), points)
    runs = len(told.quiet[0])
    squares = [np.sum(np.square(z, dtype=np.float64), axis=0) for z in told.quiet]
    single = np.concatenate(squares)
    found["noise"] = min(1.0, single.size * float(np.min(stats.chi2.cdf(single, runs))))
    every = [float(stats.chi2.cdf(np.sum(part), runs * part.size)) for part in squares]
    found["every release"] = min(1.0, len(every) * min(every))
    sums, matrices = told.of("scores"), told.of("information")
    gaussian = np.concatenate([sums.reshape(runs, -1), matrices.reshape(runs, -1)], axis=1)
    found["law"] = program.law(gaussian)
    found["grid"] = float(np.all(np.abs(told.units - np.rint(told.units)) <= program.ON_GRID))
    found["repeats"] = program.repeats(told.units)
    found["directions"] = min(1.0, 2 * min(program.least(sums), program.least(matrices)))
    found["sums"] = program.least(np.swapaxes(sums, 2, 3))
    found["runs"] = program.between(gaussian)
    found["dependence"] = float(all(change <= 1 + 1e-9 for change in told.dependence.values()))
    return found | {kind: float(np.all(told.moved[kind] <= 1)) for kind in KINDS}


def smallest(told: Told, points: tuple[np.ndarray, np.ndarray], level: float, power: float) -> dict[str, float]:
    """What would have been seen with this power: the factor that the noise of any one release of a kind, or of any one
    number, is multiplied by; and the area under the curve of a mechanism that reveals more than it claims."""
    runs, numbers = len(told.quiet[0]), sum(z.shape[1] for z in told.quiet)

    def factor(freedom: int, tests: int) -> float:
        return math.sqrt(stats.chi2.ppf(level / tests, freedom) / stats.chi2.ppf(power, freedom))

    found = {
        kind: min(
            factor(z.size, len(told.kinds)) for name, z in zip(told.kinds, told.quiet, strict=True) if name == kind
        )
        for kind in KINDS
    }
    found["one noise"] = factor(runs, numbers)
    pairs = min(len(told.inside), len(told.outside))
    needed = stats.binom.isf(level, pairs, area(*points)) + 1
    if 0 < needed <= pairs:
        found["area"] = float(special.betaincinv(needed, pairs - needed + 1, power))
    return found
