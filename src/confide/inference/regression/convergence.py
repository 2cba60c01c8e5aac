r"""Whether the intervals of a release can be relied on, judged from what was released alone.

The limits below were fixed before they were measured. With d coefficients, the posterior covariance C, positions p_t of
the queries and the posterior mean m:

- **records**: the noisy number of records is at least `RECORDS` of the declared number;
- **scale**: the residual scale of numbers is at least `SCALE` of its standard deviations;
- **slope**: the mean diagonal entry of the released slope is at least `SLOPE` standard deviations of its noise;
- **moves**: no late move between positions, and no distance from the last position to m, is above `MOVES` in
  sqrt(move^T C^-1 move / d);
- **answers**: the mean squared distance of late answers from their mean is at most `ANSWERS` times what their noise and
  the doubt about the slope explain;
- **prior**: the median standard deviation of a coefficient is at most `PRIOR` of its prior standard deviation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from confide.inference.regression import draws
from confide.inference.regression.outcomes import Numbers
from confide.inference.regression.results import Result

RECORDS = 0.25
SCALE = 4.0
SLOPE = 3.0
MOVES = 2.0
ANSWERS = 3.0
PRIOR = 0.7


class Convergence(NamedTuple):
    """Whether a release converged, and otherwise one sentence for every limit that it missed."""

    converged: bool
    reasons: tuple[str, ...]


def assess(result: Result) -> Convergence:
    posterior = draws.normal_posterior(result)
    reasons = []
    if result.number + 2 * result.number_error < RECORDS * result.design.number:
        reasons.append(f"only about {result.number:,.0f} of {result.design.number:,} declared records counted")
    if isinstance(result.family, Numbers) and result.scale is not None:
        scale, variance = result.scale
        if scale < SCALE * math.sqrt(variance):
            reasons.append("the residual standard deviation is hidden by the noise")
    d = len(posterior.mean)
    if float(np.mean(np.diag(result.slope.matrix))) < SLOPE * result.slope.noise / math.sqrt(d):
        reasons.append("what was released of the information is hidden by the noise")
    if _furthest_move(result, posterior) > MOVES:
        reasons.append("the last queries were still moving")
    if result.answer_fit > ANSWERS:
        reasons.append("the answers contradict each other by more than their noise")
    if _share_of_prior(result, posterior.covariance) > PRIOR:
        reasons.append("the coefficients are hardly known better than before")
    return Convergence(not reasons, tuple(reasons))


def _furthest_move(result: Result, posterior: draws.Gaussian) -> float:
    """Of the last moves and of the distance from the last position, in posterior standard deviations a coefficient."""
    moves = np.vstack([result.moves, posterior.mean - result.position])
    squares = np.einsum("ti,ti->t", moves, np.linalg.solve(posterior.covariance, moves.T).T)
    return math.sqrt(max(float(squares.max()), 0.0) / len(posterior.mean))


def _share_of_prior(result: Result, covariance: np.ndarray) -> float:
    """The median of posterior over prior standard deviations of standardised coefficients."""
    unwhiten = result.frame.stretch[:, None] * result.frame.whiten
    before = np.diag(unwhiten @ np.linalg.inv(result.prior.precision) @ unwhiten.T)
    return float(np.median(np.sqrt(np.diag(unwhiten @ covariance @ unwhiten.T) / before)))
