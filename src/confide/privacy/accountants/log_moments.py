r"""Log-moments of one step, each rounded up by a bound on its own numerical error.

A log-moment is added up over as many as 1e15 steps, so an error of 1e-16 in one of them would be an error of 0.1 in
all. None of the formulas here therefore computes E_Q[(P/Q)^a] = 1 + X, whose small part X would be lost in the 1. They
compute X itself, as a sum of terms none of which is negative, each to a *relative* error; log(1 + X) is concave and 0
at 0, so X (1 + e) in place of X adds at most the share e to it, however small X is and however many steps there are.
Below, u = 2^-53, and an error is added to the logarithm of the term that it belongs to.

**Binomial** (add-remove, whole orders): X = sum_(k>=2) C(a, k) (1-q)^(a-k) q^k (e^(k (k-1) / (2 sigma^2)) - 1).

**Pure releases**: 1 + X = cosh((a - 1/2) e) / cosh(e/2), so X = 2 sinh(a e / 2) sinh((a-1) e / 2) / cosh(e / 2).

**Integrals** (replace-one, and orders between the integers). With r = P/Q and d = r - 1, E_Q[d] = 0, so that

    X = E_Q[phi(r)],    phi(r) = r^a - 1 - a (r - 1) = a (a-1) d^2 I(d),    I(d) = int_0^1 (1-s) (1 + s d)^(a-2) ds,

which is nowhere negative. Where |a log r| <= 1/2 phi comes from its series in t = log r, sum_(n>=2) (a^n - a) t^n / n!,
to n = 16 (the rest is below 1e-17 of it), elsewhere from its definition, whose terms are at most 20 a / (a-1) times
their sum. d is a hyperbolic sine near 0 (replace-one, where it vanishes at z = 0) or q (e^(m y) - 1) (add-remove, at
y = z - m/2 = 0), and the points of the rule are multiples of its step from there: no digit is lost in d.

*The rule.* The trapezoidal rule of step h errs by at most 2 M / (e^(2 pi b / h) - 1), with M the largest integral of
|integrand| along the lines |Im z| = y <= b. Let c = min(1, sigma), b <= c and theta = m b <= 1. With A = 1-q,
B = q e^(m x - m^2/2) and C = q e^(-m x - m^2/2) at z = x + i y, P and Q over N(0) are A + B e^(i theta) and
A + C e^(-i theta) (or 1), and 1 + s d has the numerator A + N, N = s B e^(i theta) + (1-s) C e^(-i theta). For sums of
non-negative numbers with such factors, cos(theta) <= |sum| / (sum of sizes) <= 1, with cos(theta/2) for sums of two.

- *I.* For a < 2, |I(z)| <= I(x) / cos(theta). For a >= 2 and x <= 0, |1 + s d(z)| <= 1 as |N| <= C, so |I(z)| <= 1/2,
  while I(x) >= 1/a. For a >= 2 and x > 0, |1 + s d(z)| <= k (1 + s d(x)) with k = 1 / cos(theta/2) always, and with
  k = 1 if Q = N(0) or q e^(-m^2/2) <= 1-q: the squares of numerator and denominator fall short of those of the sums of
  sizes by shares of at least, and exactly, 2 (1 - cos theta) g(v) at v = N/A and v = C/A, g(v) = v / (1+v)^2, and
  B C <= A^2 makes g(C/A) the smaller.
- *d.* |d(z)|^2 <= (d(x)^2 + w(x)^2 sin(theta)^2) / cos(theta/2)^2 where d = w sinh(m x) (for Q = N(0):
  q^2 (e^(m y) - 1)^2 + q^2 e^(m y) theta^2). The second term is at most as large as the first for |x| >= c (|y| >= c),
  and its integral over |x| < c is at most 2 e^9 times that over (c, 2c): there all factors but the density change by at
  most e^3, and the density by at most e^6.

Together M <= e^(1/2) max(a/2, 2) k^a cos(1)^-2 (2 + 2 e^9) X < 2e5 a k^a X. For k = 1 take b = c and h = c / 12: the
error is below 1e-26 a X. Otherwise k^a <= e^(a theta^2 / 7.5); take b = min(c, sigma sqrt(75/a)), where that is at most
e^10, and h = b / 12: below 1e-22 a X.

*The ends.* For x > 0 the slope of the log-integrand is at most -x + max(a, 2) m (1 + v) + 2/x (2/(x - m/2), v = 0 for
Q = N(0)), where v = min(1, q e^(-m^2/2) / (1-q)) >= C / (A + C), since d' / d is at most m (1 + v) + 1/x, r' / r at
most m (1 + v), and phi grows as a power of d between 2 and a. For x < 0, I(d) lies between 1/a and 1/2, and the rest
grows at most as -|x| + 2 m + 2/|x|. So beyond max(a, 2) m (1 + v) + 14 and -2 m - 14 there is less than a e^-80 X.

**Little noise.** Where the rule would take too many points, Minkowski's inequality, ||x + y||_a <= ||x||_a + ||y||_a,
gives log E <= a log(1 + q (e^((a-1) m^2 / 2) - 1)) for Q = N(0). Q >= (1-q) N(0) adds (a-1) log(1/(1-q)) for
replace-one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import gammaln

UNIT = 2.0**-53
UNDERFLOW = 1e-300  # what a log-moment too small for a float is at most
LARGEST_RULE = 300_000  # points of the trapezoidal rule; beyond, sigma^2 is far below the order
TERMS = np.arange(2, 17)
FACTORIALS = np.array([math.factorial(n) for n in TERMS], dtype=np.float64)


def _log_sum_exp(terms: np.ndarray) -> np.ndarray:
    largest = terms.max(axis=-1)
    with np.errstate(invalid="ignore"):
        found = largest + np.log(np.exp(terms - largest[..., None]).sum(axis=-1))
    return np.where(np.isfinite(largest), found, largest)


def _log_one_plus(log_excess: Any) -> Any:
    """log(1 + e^log_excess), with what the sum and the logarithms round."""
    rounding = UNIT * (64 + 2 * np.where(np.isfinite(log_excess), np.abs(log_excess), 0.0))
    return np.logaddexp(0.0, log_excess + rounding) * (1 + 8 * UNIT) + UNDERFLOW


def binomial_log_moment(order: int, noise_multipliers: np.ndarray, sampling_probabilities: np.ndarray) -> np.ndarray:
    """log E_Q[(P/Q)^order] of each step, add-remove, sampling probabilities below 1; never below the truth."""
    k = np.arange(2, order + 1)
    chosen = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    q = sampling_probabilities[:, None]
    present, absent = k * np.log(q), (order - k) * np.log1p(-q)
    exponent = k * (k - 1) / 2 * noise_multipliers[:, None] ** -2.0
    gain = np.log(-np.expm1(-exponent))
    rounding = 4 * UNIT * (4 * gammaln(order + 1) - present - absent + 4 * exponent - gain + 8)
    return _log_one_plus(_log_sum_exp(chosen + absent + present + exponent + gain + rounding))


def pure_log_moment(order: float | np.ndarray, epsilon: float) -> float | np.ndarray:
    """log-moment of randomised response, which dominates every pure-epsilon release; never below the truth."""

    def log_sinh(half: Any) -> Any:
        return half + np.log(-np.expm1(-2 * half)) - math.log(2)

    log_cosh = epsilon / 2 + math.log1p(math.exp(-epsilon)) - math.log(2)
    left, right = log_sinh(np.asarray(order) * epsilon / 2), log_sinh((np.asarray(order) - 1) * epsilon / 2)
    rounding = 8 * UNIT * (np.abs(left) + np.abs(right) + abs(log_cosh) + np.asarray(order) * epsilon + 4)
    return _log_one_plus(math.log(2) + left + right - log_cosh + rounding)


def integrated_log_moment(order: float, noise_multiplier: float, sampling_probability: float, replace: bool) -> float:
    """log E_Q[(P/Q)^order] at any real order above 1, by the trapezoidal rule; never below the truth.

    With m = 1 / noise multiplier, P = (1-q) N(0, 1) + q N(m, 1), and Q = N(0, 1) or, to `replace`,
    (1-q) N(0, 1) + q N(-m, 1).
    """
    m, q = 1.0 / noise_multiplier, sampling_probability
    strip = min(1.0, noise_multiplier)
    if replace and q * math.exp(-min(m * m, 1400.0) / 2) > 1 - q:
        strip = min(strip, noise_multiplier * math.sqrt(75 / order))
    step, centre = strip / 12, 0.0 if replace else m / 2
    turned = min(1.0, q * math.exp(-min(m * m, 1400.0) / 2) / (1 - q)) if replace else 0.0
    low, high = -2 * m - 14, max(order, 2.0) * m * (1 + turned) + 14
    if (high - low) / step > LARGEST_RULE:
        return _little_noise(order, m, q, replace)
    y = step * np.arange(math.floor((low - centre) / step), math.ceil((high - centre) / step) + 1)
    z = centre + y
    log_ratio, log_q = _log_ratio(y, m, q) if not replace else _log_ratio_replaced(y, m, q)
    scale = -math.log1p(-q) - math.log(q) + m * np.abs(z) + m * m + 4
    rounding = 8 * UNIT * ((order + 4) * scale + z * z + 20 * order / (order - 1))
    terms = _log_bend(log_ratio, order) + log_q - z * z / 2 + math.log(step / math.sqrt(2 * math.pi)) + rounding
    return float(_log_one_plus(_log_sum_exp(terms)))


def _little_noise(order: float, m: float, q: float, replace: bool) -> float:
    """Minkowski's bound; at whole orders the binomial sum is better."""
    exponent = (order - 1) * m * m / 2
    gain = exponent + math.log(-math.expm1(-exponent)) + math.log(q)
    found = order * float(_log_one_plus(gain + 16 * UNIT * (exponent + abs(math.log(q)) + 2)))
    if order == int(order):
        found = min(found, float(binomial_log_moment(int(order), np.array([1 / m]), np.array([q]))[0]))
    return (found - ((order - 1) * math.log1p(-q) if replace else 0.0)) * (1 + 8 * UNIT)


def _log_ratio(y: np.ndarray, m: float, q: float) -> tuple[np.ndarray, np.ndarray | float]:
    """log(P/Q) at y + m/2, and log(Q / N(0, 1)), which is 0."""
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + m * y)
    near = np.abs(log_ratio) < 0.5
    log_ratio[near] = np.log1p(q * np.expm1(m * y[near]))
    return log_ratio, 0.0


def _log_ratio_replaced(z: np.ndarray, m: float, q: float) -> tuple[np.ndarray, np.ndarray]:
    """log(P/Q) and log(Q / N(0, 1))."""
    absent, present = math.log1p(-q), math.log(q) - m * m / 2
    log_q = np.logaddexp(absent, present - m * z)
    log_ratio = np.logaddexp(absent, present + m * z) - log_q
    near = np.abs(log_ratio) < 0.5
    # (P - Q) / Q = 2 q e^(-m^2/2) sinh(m z) / (Q / N(0)); the exponents are joined, as each alone may overflow.
    reach = m * np.abs(z[near])
    size = np.exp(present + reach - log_q[near]) * -np.expm1(-2 * reach)
    log_ratio[near] = np.log1p(np.sign(z[near]) * size)
    return log_ratio, log_q


def _log_bend(t: np.ndarray, order: float) -> np.ndarray:
    """log phi(e^t): of r^order - 1 - order (r - 1)."""
    found = np.empty_like(t)
    scaled = order * t
    near, above = np.abs(scaled) <= 0.5, scaled > 0.5
    coefficients = -order * np.expm1((1 - TERMS) * math.log1p(order - 1)) / FACTORIALS
    with np.errstate(divide="ignore"):
        series = np.polynomial.polynomial.polyval(scaled[near], coefficients)
        found[near] = math.log(order) + 2 * np.log(np.abs(t[near])) + np.log(series)
    up, down = t[above], t[~near & ~above]
    found[above] = order * up + np.log(-np.expm1(-order * up) + order * np.exp((1 - order) * up) * np.expm1(-up))
    found[~near & ~above] = np.log(np.expm1(order * down) - order * np.expm1(down))
    return found
