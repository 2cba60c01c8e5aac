r"""How wide intervals of `confide.scoring` are expected to be, and what that would be without privacy.

A run of scoring releases noisy sums of bounded scores, seen through a root A in whose coordinates u = A z all
directions of the rows are alike. Near the truth such a sum tells of the coefficients with the precision

    P_0 + J (V + (c / mu)^2 A^-2)^-1 J,     J = n E[w slope z z^T],    V = n E[w^2 square z z^T],

P_0 of the prior, slope and square the family's (`outcomes`) at residuals bounded by t = c / ||u||, w = min(1,
(REACH / ||u||)^2) of rows that stand far out. mu is what the run spends on the sums that count: the scale, the two
informations and the first steps, whose answers are superseded, take the rest (`spent_on_scores`). No figure here is
fitted to runs; a test compares each with what a run plans. What the formula leaves out: moments of the rows are known
to a run with noise only, and its questions are asked near the truth, and not at it.

Truths are drawn from the prior, and what is told of a coefficient is the median over them.

A linear model whose noise scale is learnt has residuals in units of what they spread by where they are asked for, which
counts what is not known of the coefficients there: its steps are followed one by one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from confide.inference.power import seen
from confide.inference.power.families import Outcomes
from confide.inference.power.guesses import SEED, Guess

CLIP, REACH, FLOOR = 0.1, 1.25, 0.05  # as `inference.frames`, `mechanism.scale` and `inference.designs` have them
SCORING = {"start": 0.12, "steps": 0.77, "end": 0.10}  # `inference.scoring`
GROWTH, STEPS, COUNTED = 1.7, 12, 5
LINEAR = {"start": 0.08, "steps": 0.82, "end": 0.10}  # `inference.linear.questions`
LINEAR_GROWTH, LINEAR_STEPS = 2.2, 8
SHARE_OF_SCALE = 0.3  # `mechanism.linear_sums`
CUTS = np.exp(np.linspace(math.log(0.05), math.log(3.0), 120))  # `inference.linear.expectations`
TRUTHS = (
    (24, 64),
    (80, 16),
    (200, 4),
)  # up to so many parameters so many; 2 beyond: coefficients are averaged over too
LEAST_EIGENVALUE = 1e-9  # over the largest, of a direction that rows have


class Setting(NamedTuple):
    """What is public of a run, but for its size and its budget."""

    outcomes: Outcomes
    guess: Guess
    truths: np.ndarray  # (truths, columns) or (truths, columns, classes)
    prior_scale: float
    noise_scale: float  # of a linear model; 1 elsewhere
    change: float  # 1 for add-remove, 2 for replace-one
    longest: float = 2.0**30  # norm at which the bins of the scale begin


class Design(NamedTuple):
    """Rows in a basis of the directions that they have."""

    basis: np.ndarray  # (columns, directions)
    root: np.ndarray  # of every direction; the mean square of ||u|| is 1
    rows: np.ndarray  # z in the basis
    norms: np.ndarray  # ||u||


class Sums(NamedTuple):
    """A record's share of J and V at one truth, in the basis, and the usual information there."""

    slope: np.ndarray
    variance: np.ndarray
    typical: float


def draw_truths(outcomes: Outcomes, columns: int, prior_scale: float) -> np.ndarray:
    """From the prior, each with its opposite; the same ones every time."""
    half = next((count for most, count in TRUTHS if columns * outcomes.classes <= most), 2) // 2
    shape = (half, columns, outcomes.classes) if outcomes.classes > 1 else (half, columns)
    drawn = prior_scale * np.random.default_rng(SEED + 1).standard_normal(shape)
    return np.concatenate([drawn, -drawn])


def design(rows: np.ndarray) -> Design:
    """Whitened, but no further than the floor: as the run does it, which knows the directions that no row has."""
    second = rows.T @ rows / len(rows)
    values, vectors = np.linalg.eigh(second)
    there = values > LEAST_EIGENVALUE * values[-1]
    values, basis = values[there], vectors[:, there]
    held = np.maximum(values, FLOOR * values.mean())
    root = 1 / np.sqrt(held * np.sum(values / held))
    turned = rows @ basis
    return Design(basis, root, turned, np.sqrt(np.sum((turned * root) ** 2, axis=1)))


def spent_on_scores(outcomes: Outcomes, n: float, mu: float, change: float) -> float:
    """The mu of the sums that count, for one record that is added or removed."""
    scale = seen.scale_share(n, mu, change)
    if outcomes.word == "linear":
        share = LINEAR["steps"] / sum(LINEAR.values())
    else:
        last = (1 - GROWTH**-COUNTED) / (1 - GROWTH**-STEPS)
        share = last * SCORING["steps"] / sum(SCORING.values())
    return mu / change * math.sqrt((1 - scale) * share)


def choose_cut(n: float, size: int, mu: float) -> float:
    """Where a linear run cuts residuals, in standard deviations."""
    inside = special.erf(CUTS / math.sqrt(2))
    density = np.exp(-(CUTS**2) / 2) / math.sqrt(2 * math.pi)
    square = inside - 2 * CUTS * density + CUTS**2 * special.erfc(CUTS / math.sqrt(2))
    return float(CUTS[np.argmax(inside**2 / (square + size / (n * mu**2) * (1 + SHARE_OF_SCALE**2) * CUTS**2))])


def weigh(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of weight z z^T, or of z z^T (x) weight for matrices over the classes."""
    if weights.ndim == 1:
        return rows.T @ (rows * weights[:, None]) / len(rows)
    k = range(weights.shape[1])
    every = np.array([[rows.T @ (rows * weights[:, a, b, None]) for b in k] for a in k]) / len(rows)
    return every.transpose(2, 0, 3, 1).reshape(2 * (rows.shape[1] * len(k),))


def sums(outcomes: Outcomes, here: Design, scores: np.ndarray, clip: float, typical: float = 1.0) -> Sums:
    """At the scores of one truth; the clip is in usual norms of a row, and roots of the usual information."""
    slope, square = outcomes.told(scores, clip * math.sqrt(typical) / here.norms, typical)
    far = np.minimum(1.0, (REACH / here.norms) ** 2).reshape(-1, *(1,) * (slope.ndim - 1))
    return Sums(weigh(here.rows, far * slope), weigh(here.rows, far**2 * square), typical)


def told(here: Design, found: Sums, n: float, noise: float, classes: int) -> np.ndarray:
    """The precision of the data, of all coefficients; `noise` is in every coordinate of u."""
    turned = np.repeat(here.root**-2.0, classes)
    total = n * found.variance + noise**2 * np.diag(turned)
    inner = n**2 * found.slope @ np.linalg.solve(total, found.slope)
    return _lift(here, inner, classes)


def _lift(here: Design, inner: np.ndarray, classes: int) -> np.ndarray:
    wide = np.kron(here.basis, np.eye(classes)) if classes > 1 else here.basis
    return wide @ inner @ wide.T


class Expected:
    """Standard deviations at any number of records and any budget; what does not depend on these is computed once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.here = design(setting.guess.rows)
        self.scores = [setting.guess.rows @ truth for truth in setting.truths]
        self.linear = setting.outcomes.word == "linear"
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
            return self._linear(n, spent_on_scores(setting.outcomes, n, mu, setting.change))[None]
        else:
            spent = spent_on_scores(setting.outcomes, n, mu, setting.change)
            precisions = [
                told(self.here, found, n, CLIP * math.sqrt(found.typical) / spent, setting.outcomes.classes)
                for found in self._sums(n, mu)
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

    def _posterior(self, precision: np.ndarray) -> np.ndarray:
        return np.linalg.inv(precision + np.eye(self.size) / self.setting.prior_scale**2)

    def _linear(self, n: float, spent: float) -> np.ndarray:
        setting, here = self.setting, self.here
        cut = choose_cut(n, here.rows.shape[1], spent)
        found = sums(setting.outcomes, here, self.scores[0], cut)
        second = setting.guess.rows.T @ setting.guess.rows / len(setting.guess.rows)
        bound, shares = cut * math.hypot(1.0, SHARE_OF_SCALE), LINEAR_GROWTH ** np.arange(float(LINEAR_STEPS))
        shares, covariance, slopes = shares / shares.sum(), setting.prior_scale**2 * np.eye(self.size), 0.0
        for step in range(LINEAR_STEPS):
            unit = math.sqrt(setting.noise_scale**2 + float(np.sum(second * covariance)))
            slopes += shares[step] / unit
            so_far = float(np.sum(shares[: step + 1]))
            found_so_far = told(here, found, n, bound / spent / math.sqrt(so_far), 1)
            covariance = self._posterior(found_so_far * (slopes / so_far) ** 2)
        return covariance
