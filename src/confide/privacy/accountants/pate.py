r"""What a noisy vote of models costs (Papernot, Song, Mironov, Raghunathan, Talwar and Erlingsson 2018: PATE).

Models ("teachers") learn from disjoint parts of the records and vote on public rows; n_j votes for label j. One record
changes what one teacher says, so it moves one vote of a row from one label to another.

**GNMax** answers argmax_j n_j + N(0, s^2): post-processing of a Gaussian mechanism on the counts, which move by
(+1, -1), of norm sqrt(2). **The confident check** asks before whether max_j n_j + N(0, t^2) reaches a threshold; the
largest count moves by at most 1. Both are exactly Gaussian, and composed they are mu-Gaussian-DP with

    mu^2 = queries / t^2 + 2 answers / s^2.

Which rows are answered depends on the records, so the number of answers is fixed beforehand as a maximum, at which the
labelling stops: the costs along every path then add up to mu^2 at most, and `individual` has the proof that costs which
are chosen as one goes along are no dearer than their sure bound. (Renyi costs a/s^2 and a/(2 t^2), the paper's
Proposition 8, are those of the same Gaussians, and convert to a larger epsilon.)

**At the records at hand** a vote may cost far less: where all agree, one teacher can hardly change the answer. Let P
and P' be the answers' distributions for neighbours, i the winner without noise, q an upper bound of 1 - P(i), namely
q = sum_{j != i} Phi(-(n_i - n_j) / (sqrt(2) s)) (Proposition 7), z = Phi^-1(q) and m = sqrt(2)/s. Then for a > 1

    log sum_o P(o)^a P'(o)^(1-a) <= log( Phi(-z)^a Phi(-z-m)^(1-a) + e^(a(a-1)m^2/2) Phi(z + (a-1)m) )   if q <= 1/2.

Proof. P and P' are post-processing of N(m, 1) and N(0, 1). Let 1 - P(i) = Phi(y), y <= z. *The winner*: the trade-off
of Gaussians gives 1 - P'(i) <= Phi(y + m), hence the first term at y. *The rest*: u^a v^(1-a) is jointly convex and
homogeneous, so the sum over the others is at most the integral of the Gaussians' dP^a dP'^(1-a), weighted by the chance
w(x) of another answer, E_P w = Phi(y). The likelihood ratio rises with x, so the integral is largest where w is the
upper tail, and completing the square gives the second term at y. *The sum rises with y* up to 0: with
r = Phi(-y)/Phi(-y-m), k = e^(-ym-m^2/2) and l = e^(m^2/2-ym), its derivative over the normal density at y is
(a-1) k r^a + l^(a-1) - a r^(a-1), and weighted means give (a-1) k r^a + l^(a-1) >= a r^(a-1) (k l)^((a-1)/a), where
k l = e^(-2ym) >= 1. QED. The paper's Theorem 6 has Hoelder's inequality where this has the Gaussians themselves, and
side conditions besides; this is never above it, and rises with q.

*With the check*: the row is answered with probability Phi(v), v = (n_i - threshold)/t, and with E = a(a-1)/(2 t^2) the
same argument for the tail "answered" bounds the log-moment of both together, C that of the answer, by

    E + log(1 + Phi(v + (a-1)/t) (e^C - 1)).

Rows add up, stopping early only shortens the product of numbers of at least 1, and `answers` times a(a-1)/s^2 bounds
all answers together whatever the votes are.

**The figure is itself private.** Its sum over rows after d teachers changed their votes is at most A(d), the same
formula with n_i + d, and every gap n_i - n_j less 2 d. A neighbour's A(d) is at most A(d+1), so for any rate b

    F = max_{d >= 1} e^(-b (d-1)) A(d)       (between a public floor and ceiling)

changes by a factor of at most e^b when one teacher changes, and F >= A(1) bounds the divergence from these records to
any neighbour *and* back. log F + b r N(0, 1) is Gaussian with mu = 1/r, paid for with the labels; adding b r z, with z
a normal quantile, bounds log F except with a stated probability. (The paper adds noise in proportion to the smooth
sensitivity of the cost. The scale of that noise is private too, so its figure is an estimate and no bound.) What
results is a statement about these records, as they were given to the teachers: beside the promise, which holds for all
records, and never in its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from confide.privacy.events import NoisyVotes
from confide.privacy.events.individual import convert

FLOOR = 1e-6  # of the ceiling: less is not told
MISSED = 0.1  # share of delta for the chance that the figure is below the truth
DOUBLED = math.log(2.0)  # how far above the truth a figure is meant to be
ORDERS = range(2, 257)


def log_wrong(counts: np.ndarray, noise: float, changed: int = 0) -> np.ndarray:
    """log q of every row of counts (rows, labels), after so many teachers changed their votes; at most 0."""
    ordered = np.sort(np.asarray(counts, np.float64), axis=1)
    gaps = ordered[:, -1:] - ordered[:, :-1] - 2 * changed
    return np.minimum(0.0, np.logaddexp.reduce(log_ndtr(-gaps / (math.sqrt(2) * noise)), axis=1))


def answer_log_moment(log_q: Any, noise: float, order: int) -> np.ndarray:
    """(order - 1) times the Renyi divergence of one answer whose winner loses with probability at most q."""
    shift, most = math.sqrt(2) / noise, order * (order - 1) / noise**2
    z = np.clip(ndtri_exp(np.asarray(log_q, np.float64)), -1e10, 0.0)
    winner = order * log_ndtr(-z) - (order - 1) * log_ndtr(-z - shift)
    rest = most + log_ndtr(z + (order - 1) * shift)
    # The two nearly cancel where the noise is large: what they may have lost is added, and `most` is the better bound.
    tails = order * (np.exp(log_ndtr(z)) + np.exp(log_ndtr(z + shift))) + np.exp(np.minimum(rest, 0.0))
    rounding = 4e-15 * (1 + (np.abs(z) + order * shift) ** 2) * tails
    found = np.maximum(0.0, np.logaddexp(winner, rest)) + rounding
    return np.where(np.asarray(log_q) > -math.log(2), most, np.minimum(most, found))


def cost(counts: np.ndarray, event: NoisyVotes, order: int, threshold: float | None = None, changed: int = 0) -> float:
    """A(changed): log-moment of all answers to these counts, without the checks' own part. Private."""
    each = answer_log_moment(log_wrong(counts, event.answer_noise, changed), event.answer_noise, order)
    if event.check_noise is not None and threshold is not None:
        largest = np.minimum(counts.max(axis=1) + changed, counts.sum(axis=1))
        reach = (largest - threshold + order - 1) / event.check_noise
        with np.errstate(divide="ignore"):
            each = np.logaddexp(0.0, log_ndtr(reach) + each + np.log(-np.expm1(-each)))
    return min(math.fsum(each), ceiling(event, order))


def ceiling(event: NoisyVotes, order: int) -> float:
    """What all answers together cost at most, whatever the votes."""
    return event.answers * order * (order - 1) / event.answer_noise**2


def smooth_cost(
    counts: np.ndarray, event: NoisyVotes, order: int, rate: float, threshold: float | None = None
) -> float:
    """F: an upper bound of the cost, here and at every neighbour, whose logarithm one teacher moves by `rate` at most.

    Private.
    """
    most = ceiling(event, order)
    best, changed = FLOOR * most, 1
    while math.exp(-rate * (changed - 1)) * most > best:
        best = max(best, math.exp(-rate * (changed - 1)) * cost(counts, event, order, threshold, changed))
        changed += 1
    return min(best, most)


class Figure(NamedTuple):
    """What the labels revealed at the records at hand, at most: released with noise that was paid for."""

    epsilon: float
    delta: float
    order: int
    log_moment: float

    def to_json(self) -> dict[str, Any]:
        return self._asdict() | {"sentence": self.sentence()}

    def sentence(self) -> str:
        return (
            "At these very records, as they were given to the teachers, what was released reveals no more of any one "
            f"than ({self.epsilon:.4g}, {self.delta:.3g}) would. This holds for no other records, and takes nothing "
            "from the promise, which holds for all."
        )


@dataclass(frozen=True, kw_only=True)
class FigureRelease:
    """How the figure will be released: order and rate, from public numbers alone."""

    event: NoisyVotes
    delta: float
    order: int
    rate: float

    @classmethod
    def planned(cls, event: NoisyVotes, delta: float) -> FigureRelease:
        """The order is that which would be best if the answers cost a tenth of their ceiling."""
        assert event.figure_noise is not None

        def hoped(order: int) -> float:
            known = _known_log_moment(event, order) + 0.1 * ceiling(event, order)
            return convert(order, known, (1 - MISSED) * delta)

        rate = DOUBLED / (event.figure_noise * _quantile(MISSED * delta))
        return cls(event=event, delta=delta, order=min(ORDERS, key=hoped), rate=rate)

    @property
    def scale(self) -> float:
        """Standard deviation of the noise on the logarithm."""
        assert self.event.figure_noise is not None
        return self.rate * self.event.figure_noise

    def logarithm(self, counts: np.ndarray, threshold: float | None) -> float:
        """What the noise is added to. Private."""
        return math.log(smooth_cost(counts, self.event, self.order, self.rate, threshold))

    def figure(self, noisy: float, spread: float | None = None) -> Figure:
        """What a noisy logarithm proves, except with the probability MISSED delta, which is counted in delta.

        `spread` is the standard deviation that the noise was drawn with, where it is a little more than `scale`.
        """
        spread = self.scale if spread is None else spread
        upper = math.exp(min(noisy + spread * _quantile(MISSED * self.delta), 700.0))
        moment = _known_log_moment(self.event, self.order) + min(upper, ceiling(self.event, self.order))
        return Figure(convert(self.order, moment, (1 - MISSED) * self.delta), self.delta, self.order, moment)


def _known_log_moment(event: NoisyVotes, order: int) -> float:
    """The log-moment of the checks and of the figure itself, whatever the votes."""
    squared = 0.0 if event.check_noise is None else event.queries / event.check_noise**2
    if event.figure_noise is not None:
        squared += event.figure_noise**-2.0
    return order * (order - 1) * squared / 2


def _quantile(tail: float) -> float:
    return -float(ndtri_exp(math.log(tail)))
