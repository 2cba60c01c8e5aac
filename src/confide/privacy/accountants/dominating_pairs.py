"""Dominating pairs of a Gaussian step, and their privacy loss put on a grid from above.

A pair (P, Q) of distributions of one number z dominates a step when no pair of neighbours is easier to tell apart.
In units of the noise, with m = 1 / noise multiplier and sampling probability q:

- add-remove: P = (1-q) N(0) + q N(m) against Q = N(0), and the same pair in the other order
  (Zhu, Dong and Wang 2022). Both orders are priced.
- replace-one: P = (1-q) N(0) + q N(m) against Q = (1-q) N(0) + q N(-m). Proof: let c and c' be the clipped
  contributions of the record and of its replacement, in clips. For e^epsilon = a >= 1 the hockey-stick divergence is
  sup over sets S of  q N(c)(S) - (a-1)(1-q) N(0)(S) - a q N(c')(S).  Fix p = N(c)(S). By Neyman and Pearson
  N(0)(S) >= Phi(Phi^-1(p) - m) and N(c')(S) >= Phi(Phi^-1(p) - 2m), as ||c|| <= 1 and ||c - c'|| <= 2; and for
  c = 1, c' = -1 a single half-line attains both at once. The pair is its own mirror image, so one order suffices,
  and pairs that dominate step by step dominate the composition (Zhu, Dong and Wang 2022, Theorem 10).

The loss log(P/Q)(z) rises with z in all cases, so a grid of losses is a grid of z. `discretise` cuts the line there
and moves the mass of every cell to the two ends of the cell, keeping its mass under P and under Q. That is the
tightest discretisation from above (Doroshenko et al. 2022): the hockey-stick curve is convex in e^epsilon, and this is
its chord. Rounding errors are pushed to the safe side: masses up, and mass from the lower end of a cell to the upper.

An edge z of a cell is a rounded number, at which the loss is off its grid value by e at most. Losses in a cell from l
to h then lie in [l - e, h + e]. Raised by e they lie in [l, h + 2e], where their chord puts the share
(1 - e^(l-e) Q/P) / (1 - e^-(h-l+2e)) <= (1 - e^l Q/P + 2e) / (1 - e^-(h-l)) on the upper end. So that share on h + 2e,
and the rest on l + 2e, dominates the cell: the share is raised by 2e, and `loss_error` is 2e.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri_exp

NORMAL_CDF_ERROR = 5e-13  # relative, of scipy.special.ndtr, down to probabilities of 1e-300
UNDERFLOW = 1e-300  # what masses too small for a float may add up to


Order = Literal["remove", "add", "replace"]


class Atoms(NamedTuple):
    """A privacy loss on the grid {j * width}: log of the mass under P at first, first + 1, ..."""

    first: int
    log_mass: np.ndarray
    infinite: float  # mass at infinite loss
    loss_error: float  # the true loss of an atom exceeds the grid value by at most this


@dataclass(frozen=True)
class GaussianPair:
    """P against Q for one step, mirrored where needed so that the loss rises with z."""

    q: float
    m: float
    order: Order

    @property
    def components(self) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
        """(weight, mean) of the components of P, and of Q."""
        absent, q, m = ((1.0, 0.0),), self.q, self.m
        if self.order == "remove":
            return ((1 - q, 0.0), (q, m)), absent
        if self.order == "add":
            return absent, ((1 - q, 0.0), (q, -m))
        return ((1 - q, 0.0), (q, m)), ((1 - q, 0.0), (q, -m))

    def loss(self, z: float | np.ndarray) -> np.ndarray:
        p, q = self.components
        return _log_density(p, z) - _log_density(q, z)

    def sketch(self, log_tail: float, step: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
        """Losses at evenly spaced z and the log of their mass under P: a quick look, without certificate."""
        p, _ = self.components
        reach, means = float(-ndtri_exp(log_tail)), [mean for _, mean in p]
        low, high = min(means) - reach, max(means) + reach
        z = np.linspace(low, high, min(20_000, int((high - low) / step) + 2))
        return self.loss(z), _log_density(p, z) - z**2 / 2 + math.log((z[1] - z[0]) / math.sqrt(2 * math.pi))

    def quantile(self, losses: np.ndarray) -> np.ndarray:
        """The z at which the loss takes the given values; infinite beyond its range."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.order == "remove":
                return self._remove_quantile(losses)
            if self.order == "add":
                return -self._remove_quantile(-losses)
            # (1-q) sinh(loss / 2) = q e^(-m^2/2) sinh(m z - loss / 2)
            half = np.abs(losses) / 2
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            log_ratio = np.log1p(-self.q) + log_sinh - math.log(self.q) + self.m**2 / 2
            inner = np.where(log_ratio > 30, log_ratio + math.log(2), np.arcsinh(np.exp(np.minimum(log_ratio, 30.0))))
            return np.sign(losses) * (half + inner) / self.m

    def _remove_quantile(self, losses: np.ndarray) -> np.ndarray:
        # log(e^loss - (1-q)), each branch where it loses no digits; 1-q is exact for q >= 1/2, where losses are lowest.
        absent = 1 - self.q
        difference = np.where(losses < -0.7, np.exp(losses) - absent, np.expm1(np.minimum(losses, 1.0)) + self.q)
        small = np.log(np.maximum(difference, 0.0))
        large = losses + np.log1p(-absent * np.exp(-np.maximum(losses, 0.5)))
        return (np.where(losses < 1.0, small, large) - math.log(self.q)) / self.m + self.m / 2

    def discretise(self, width: float, log_tail: float, floor: float = -math.inf) -> Atoms:
        """The loss on the grid, all but a mass of about e^log_tail at each end; losses below the floor are raised."""
        p, q = self.components
        reach = float(-ndtri_exp(log_tail))
        means = [mean for _, mean in p]
        last = math.ceil(float(self.loss(max(means) + reach)) / width) + 1
        first = min(last - 1, math.floor(max(float(self.loss(min(means) - reach)), floor) / width))
        edges = np.arange(first, last + 1) * width
        z = self.quantile(edges)
        mass_p, error_p, below, beyond = _masses(p, z)
        mass_q, error_q, _, _ = _masses(q, z)
        # Rounding of m z = log(...) - log q + m^2 / 2 in `quantile`, as an error of the loss, whose slope is at most m.
        scale = 8 + 2 * float(np.abs(edges[[0, -1]]).max()) - math.log(self.q) + self.m**2
        loss_error = 8e-16 * scale
        # Share of the cell's mass that goes to its upper end: (1 - e^lower Q/P) / (1 - e^-width), errors upwards.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.exp(edges[:-1]) * (mass_q - error_q) / (mass_p + error_p)
            upper = np.where(np.isfinite(ratio), 1 - ratio + loss_error + 1e-15, 1.0) / -math.expm1(-width)
        upper = np.clip(upper, 0.0, 1.0)
        mass_p = mass_p + error_p
        mass = np.zeros(edges.size)
        mass[0] = below  # rounded up to the first edge
        mass[1:] += mass_p * upper
        mass[:-1] += mass_p * (1 - upper)
        with np.errstate(divide="ignore"):
            log_mass = np.log(mass)
        return Atoms(first, log_mass, beyond + UNDERFLOW, loss_error)


def _log_density(components, z: float | np.ndarray) -> np.ndarray:
    """log density of a mixture relative to N(0, 1)."""
    logs = [math.log(weight) + mean * (z - mean / 2) for weight, mean in components if weight > 0]
    return logs[0] if len(logs) == 1 else np.logaddexp(*logs)


def _masses(components, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Mass between consecutive z under a mixture, a bound on its error, and the mass below and above all."""
    mass, error = np.zeros(z.size - 1), np.zeros(z.size - 1)
    below = beyond = 0.0
    for weight, mean in components:
        lower, upper = ndtr(z - mean), ndtr(mean - z)
        right = z[:-1] > mean  # difference of the smaller tails, for relative precision
        mass += weight * np.where(right, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
        nearer = np.where(right, z[:-1], z[1:])
        nearer = np.where(np.isfinite(nearer), nearer, 0.0)
        relative = NORMAL_CDF_ERROR + 4e-16 * (1 + np.abs(nearer)) * (1 + np.abs(nearer - mean))  # of ndtr, of z - mean
        error += weight * 2 * relative * np.where(right, upper[:-1], lower[1:])
        below += weight * float(lower[0])
        beyond += weight * float(upper[-1])
    return mass, error, below * (1 + NORMAL_CDF_ERROR), beyond * (1 + NORMAL_CDF_ERROR)


@dataclass(frozen=True)
class PurePair:
    """Randomised response, which dominates every pure-epsilon release: losses +epsilon and -epsilon."""

    epsilon: float

    def sketch(self, log_tail: float) -> tuple[np.ndarray, np.ndarray]:
        losses = np.array([self.epsilon, -self.epsilon])
        return losses, losses - np.logaddexp(0.0, losses)

    def discretise(self, width: float, log_tail: float, floor: float = -math.inf) -> Atoms:
        first = math.floor(-self.epsilon / width)
        last = math.ceil(self.epsilon / width) + 1
        mass = np.zeros(last - first + 1)
        loss_error = 1e-15 * (2 + self.epsilon)
        for sign in (-1.0, 1.0):
            loss = sign * self.epsilon
            log_p = loss - np.logaddexp(0.0, loss)
            cell = math.floor(loss / width)
            upper = min(
                1.0, max(0.0, -math.expm1(cell * width - loss) / -math.expm1(-width) + loss_error / -math.expm1(-width))
            )
            mass[cell - first] += math.exp(log_p) * (1 - upper)
            mass[cell - first + 1] += math.exp(log_p) * upper
        with np.errstate(divide="ignore"):
            return Atoms(first, np.log(mass), UNDERFLOW, loss_error)
