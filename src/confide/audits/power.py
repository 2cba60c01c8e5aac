"""What the tests of a program on made-up tables would have seen: a verdict says little without it."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from confide.audits import program
from confide.audits.claims import area


def smallest(told: program.Told, points: tuple[np.ndarray, np.ndarray], level: float, power: float) -> dict[str, float]:
    """What each kind of test would have seen with the stated power, at the level of one of them.

    "noise" is a factor that all noise, "one noise" that of one coordinate is multiplied by; "clip" a length in
    clips; "presence" how often a record is in; "always" the share of a record that is in every batch beside what
    chance puts there, in the units of one record; "whole" how far from whole times a record counts; "mu" that of a
    Gaussian mechanism that reveals more than it claims.
    """
    size = told.quiet.shape[-1]
    freedom = told.quiet.size // size
    critical = stats.chi2.ppf(level / size, freedom)
    found = {
        "noise": math.sqrt(critical / stats.chi2.ppf(_one_of(power, size), freedom)),
        "one noise": math.sqrt(critical / stats.chi2.ppf(power, freedom)),
        "clip": 1 + told.grain,
    }
    q, present = told.sampling_probability, told.present
    if present:
        number = next(iter(present.values())).size
        needed = stats.binom.isf(level / len(present), number, q) + 1
        found["presence"] = float(special.betaincinv(needed, number - needed + 1, power)) if needed <= number else 1.0
    if told.crowded:
        trials = told.counts[0].size
        spread = math.sqrt(told.halves[0] * q * (1 - q) / trials)
        if told.parts:
            found["whole"] = 2 * float(max(np.max(program.loose(count, told.grain)) for count in told.counts))
        found["always"] = (float(stats.norm.isf(level / 2)) + float(stats.norm.isf(1 - power))) * spread / (1 - q)
    number = min(len(told.inside), len(told.outside))
    needed = stats.binom.isf(level, number, area(*points)) + 1
    if 0 < needed <= number:
        found["area"] = float(special.betaincinv(needed, number - needed + 1, power))
    return found


def _one_of(power: float, size: int) -> float:
    """The power that each of several independent tests must have for one of them to speak with the given power."""
    return 1 - (1 - power) ** (1 / size)
