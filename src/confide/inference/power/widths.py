r"""How wide intervals of `confide.scoring` are expected to be, and what that would be without privacy.

A run of scoring releases noisy sums of bounded scores, seen through a root A in whose coordinates u = A z all
directions of the rows are alike. Near the truth such a sum tells of the coefficients with the precision

    P_0 + J (V + (c / mu)^2 A^-2)^-1 J,     J = n E[w slope z z^T],    V = n E[w^2 square z z^T],

P_0 of the prior, slope and square the family's (`outcomes`) at residuals bounded by t = c / ||u||, w = min(1,
(REACH / ||u||)^2) of rows that stand far out. mu is what the run spends on the sums that count: the scale, the two
informations and the first steps, whose answers are superseded, take the rest (`spent_on_scores`). No figure here is
fitted to runs; a test compares each with what a run plans. The moments of rows are known to a run with noise only: what
that adds to V is D of `power.linear_steps`, and matters where columns are correlated. What is left out: questions are
asked near the truth, and not at it.

Truths are drawn from the prior, and what is told of a coefficient is the median over them.

A linear model whose noise scale is learnt has steps that differ, and is in `power.linear_steps`.
"""

from __future__ import annotations

import math

import numpy as np

from confide.inference.power import linear_steps, seen
from confide.inference.power.families import Outcomes
from confide.inference.power.guesses import SEED
from confide.inference.power.precision import (
    REACH,
    Setting,
    Sums,
    count_squares,
    design,
    left_open,
    sums,
    told,
    turn,
    weigh,
)

CLIP = 0.1  # as `inference.frames` has it
SCORING = {"start": 0.12, "steps": 0.77, "end": 0.10}  # `inference.scoring`
GROWTH, STEPS, COUNTED = 1.7, 12, 5
TRUTHS = (
    (24, 64),
    (80, 16),
    (200, 4),
)  # up to so many parameters so many; 2 beyond: coefficients are averaged over too


def draw_truths(outcomes: Outcomes, columns: int, prior_scale: float) -> np.ndarray:
    """From the prior, each with its opposite; the same ones every time."""
    half = next((count for most, count in TRUTHS if columns * outcomes.classes <= most), 2) // 2
    shape = (half, columns, outcomes.classes) if outcomes.classes > 1 else (half, columns)
    drawn = prior_scale * np.random.default_rng(SEED + 1).standard_normal(shape)
    return np.concatenate([drawn, -drawn])


def spent_on_scores(n: float, mu: float, change: float) -> float:
    """The mu of the sums that count, for one record that is added or removed."""
    last = (1 - GROWTH**-COUNTED) / (1 - GROWTH**-STEPS)
    share = last * SCORING["steps"] / sum(SCORING.values())
    return mu / change * math.sqrt((1 - seen.scale_share(n, mu, change)) * share)


def noise_of_information(part: str, n: float, mu: float, change: float) -> float:
    """Standard deviation on the diagonal of second moments whose trace is 1, from an information: a row of norm `REACH`
    has `REACH` times the weight of a usual one in it. Replacing a record moves it by sqrt(2)."""
    share = SCORING[part] / sum(SCORING.values())
    return REACH / n * math.sqrt(change) / mu / math.sqrt((1 - seen.scale_share(n, mu, change)) * share)


class Expected:
    """Standard deviations at any number of records and any budget; what does not depend on these is computed once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.here = design(setting.guess.rows)
        self.scores = [setting.guess.rows @ truth for truth in setting.truths]
        self.linear = setting.outcomes.word == "linear"
        self.second = setting.guess.rows.T @ setting.guess.rows / len(setting.guess.rows)
        self.found: dict[tuple[int, float], Sums] = {}
        informations = [weigh(setting.guess.rows, setting.outcomes.information(s)) for s in self.scores]
        self.informations = informations[:1] if self.linear else informations
        self.norms = seen.norm_shares(setting.guess.rows, setting.longest)
        bins = [seen.outcome_shares(setting.outcomes, s, setting.noise_scale) for s in self.scores]
        self.bins = [each for each in bins if each is not None]

    @property
    def size(self) -> int:
        return self.setting.guess.rows.shape[1] * self.setting.outcomes.classes

    def chance_of_scale(self, n: float, mu: float) -> float:
        """That the run sees the scale of its records: otherwise its draws are the prior's."""
        if math.isinf(mu):
            return 1.0
        noise = seen.noise_of_scale(self.setting.outcomes, n, mu, self.setting.change)
        found = seen.chance_of_standing_out(self.norms, n, noise)
        others = [seen.chance_of_standing_out(each, n, noise) for each in self.bins]
        return found * (float(np.mean(others)) if others else 1.0)

    def covariances(self, n: float, mu: float) -> np.ndarray:
        """Of the coefficients, for every truth; without privacy where mu is infinite."""
        setting = self.setting
        if math.isinf(mu):
            precisions = [n * each / setting.noise_scale**2 for each in self.informations]
        elif self.linear:
            return linear_steps.covariance(setting, n, mu)[None]
        else:
            spent = spent_on_scores(n, mu, setting.change)
            every = self._sums(n, mu)
            doubt = self._doubt(every, n, mu, spent) if setting.outcomes.classes == 1 else 0.0
            precisions = [
                told(self.here, found, n, found.typical * (CLIP / spent) ** 2 + doubt, setting.outcomes.classes)
                for found in every
            ]
        return np.array([self._posterior(each) for each in precisions])

    def _sums(self, n: float, mu: float) -> list[Sums]:
        """At every truth, with the information that the run will take for usual."""
        outcomes, typicals = self.setting.outcomes, [1.0] * len(self.scores)
        if outcomes.counts:
            noise = seen.noise_of_scale(outcomes, n, mu, self.setting.change)
            typicals = [outcomes.usual(seen.usual_count(shares, n, noise)) for shares in self.bins]
        for place in zip(range(len(self.scores)), typicals, strict=True):
            if place not in self.found:
                self.found[place] = sums(outcomes, self.here, self.scores[place[0]], CLIP, place[1])
        return [self.found[place] for place in enumerate(typicals)]

    def _doubt(self, every: list[Sums], n: float, mu: float, spent: float) -> np.ndarray:
        """What errors of the second moments, which a run knows from noisy information, add to the variances of its
        sums (`power.linear_steps`), in the mean over truths."""
        here, change, second = self.here, self.setting.change, self.second
        slope, variance = (np.mean([getattr(each, name) for each in every], axis=0) for name in ("slope", "variance"))
        found = Sums(slope, variance, float(np.mean([each.typical for each in every])))
        noises = [noise_of_information(part, n, mu, change) for part in ("start", "end")]
        before = turn(here, left_open(second, float(np.trace(second)) * noises[0]))
        after = np.where(np.eye(len(before)) > 0, 1.0, 0.5) * noises[1] ** 2
        level = n * float(np.trace(slope) / np.trace(second))
        shares = GROWTH ** np.arange(float(STEPS))
        shares /= np.sum(shares[-COUNTED:])
        known, doubt = [self.setting.prior_scale**2 * np.eye(self.size)], np.zeros(len(before))
        for step in range(STEPS):
            first = max(0, step + 1 - COUNTED)
            weights = np.where(np.arange(step + 1) >= first, shares[: step + 1], 0.0)
            so_far = float(np.sum(weights))
            doubts = before if step < STEPS - 1 else before * after / (before + after)
            doubt = doubts @ count_squares(here, known, level * weights / so_far)
            noise = found.typical * (CLIP / spent) ** 2 / so_far
            known.append(self._posterior(told(here, found, n, noise + doubt)))
        return doubt

    def _posterior(self, precision: np.ndarray) -> np.ndarray:
        return np.linalg.inv(precision + np.eye(self.size) / self.setting.prior_scale**2)
