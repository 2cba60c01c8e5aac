r"""How well a run of scoring is expected to know the coefficients of a linear model, whose noise scale it learns.

Its steps are followed one by one. Residuals are in units of what they spread by where they are asked for, which counts
what is not known of the coefficients there. And the slope of its sums is the second moments S of the rows, which it
knows from noisy information: an error of S adds S_error (theta_t - theta_0) to a sum asked for at theta_t, so that the
variance of a sum grows by D_i = sum_j P_ij E[(theta_t - theta_0)_j^2], P the variances of what is left open of the
entries of S (`inference.linear.questions`). Where columns are correlated, small budgets do not tell the weak directions
of S from none, and D decides.

Posterior means are a martingale: from one with covariance C_s to the next they move by C_s - C_(s+1).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from confide.inference.power import seen
from confide.inference.power.precision import REACH, Setting, count_squares, design, left_open, sums, told, turn

SHARES = {"start": 0.08, "steps": 0.82, "end": 0.10}  # `inference.linear.questions`, as are
GROWTH, STEPS = 2.2, 8
SHARE_OF_SCALE = 0.3  # `mechanism.linear_sums`
CUTS = np.exp(np.linspace(math.log(0.05), math.log(3.0), 120))  # `inference.linear.expectations`


def spent_on(part: str, n: float, mu: float, change: float) -> float:
    """The mu of the scores, or of one of the informations, for one record that is added or removed. Replacing one moves
    a matrix by sqrt(2)."""
    share = SHARES[part] / sum(SHARES.values())
    felt = change if part == "steps" else math.sqrt(change)
    return mu / felt * math.sqrt((1 - seen.scale_share(n, mu, change)) * share)


def choose_cut(n: float, size: int, mu: float) -> float:
    """Where a run cuts residuals, in standard deviations."""
    inside = special.erf(CUTS / math.sqrt(2))
    density = np.exp(-(CUTS**2) / 2) / math.sqrt(2 * math.pi)
    square = inside - 2 * CUTS * density + CUTS**2 * special.erfc(CUTS / math.sqrt(2))
    return float(CUTS[np.argmax(inside**2 / (square + size / (n * mu**2) * (1 + SHARE_OF_SCALE**2) * CUTS**2))])


def noise_of_information(part: str, n: float, mu: float, change: float, cut: float) -> float:
    """Standard deviation on the diagonal of second moments whose trace is 1."""
    bound = REACH**2 * math.erf(cut / REACH / math.sqrt(2))
    return bound / (n * math.erf(cut / math.sqrt(2)) * spent_on(part, n, mu, change))


def covariance(setting: Setting, n: float, mu: float) -> np.ndarray:
    """Of the coefficients."""
    rows, change, prior = setting.guess.rows, setting.change, setting.prior_scale
    second = rows.T @ rows / len(rows)
    spent = spent_on("steps", n, mu, change)
    cut = choose_cut(n, rows.shape[1], spent)
    norm = float(np.trace(second))
    open_ = left_open(second, norm * noise_of_information("start", n, mu, change, cut))
    here = design(rows, math.sqrt(float(np.max(np.sum(open_, axis=1)))))
    before = turn(here, open_)
    after = np.where(np.eye(len(before)) > 0, 1.0, 0.5) * noise_of_information("end", n, mu, change, cut) ** 2
    found = sums(setting.outcomes, here, rows @ setting.truths[0], cut)
    bound, slope = cut * math.hypot(1.0, SHARE_OF_SCALE), n * math.erf(cut / math.sqrt(2))
    shares = GROWTH ** np.arange(float(STEPS))
    shares /= shares.sum()
    known, weights, so_far = [prior**2 * np.eye(rows.shape[1])], np.zeros(STEPS), 0.0
    for step in range(STEPS):
        unit = math.sqrt(setting.noise_scale**2 + float(np.sum(second * known[-1])))
        weights[step], so_far = shares[step] / unit, so_far + shares[step]
        doubts = before if step < STEPS - 1 else before * after / (before + after)
        squares = count_squares(here, known, slope * weights[: step + 1] / so_far)
        noise = (bound / spent) ** 2 / so_far + doubts @ squares
        precision = told(here, found, n, noise) * (np.sum(weights) / so_far) ** 2
        known.append(np.linalg.inv(precision + np.eye(rows.shape[1]) / prior**2))
    return known[-1]
