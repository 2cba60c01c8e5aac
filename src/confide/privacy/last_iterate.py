r"""How much the last of a chain of noisy contractions reveals, where all states before it stay secret.

Step k maps a state by a c_k-Lipschitz function that the record of interest moves by at most s_k, and adds Gaussian
noise of standard deviation nu_k to every coordinate. Whoever sees all states pays sum (s_k / nu_k)^2. Whoever sees the
last alone pays less: later contractions shrink what early steps revealed (Bok, Su and Altschuler 2024).

**The general form.** Let a_k be the part of the displacement that the noise of step k hides and z_k what is left of it:
z_k = c_k z_(k-1) + s_k - a_k, never below zero, and zero in the end. Any such choice proves mu^2 = sum (a_k / nu_k)^2.
With C_k the product of all later contractions, W_k = sum_(j<=k) (C_j nu_j)^2 and S_k = sum_(j<=k) C_j s_j, the sums of
C_j a_j are a path below the points (W_k, S_k) from the origin to the last of them, and the cost is the integral of its
squared slope: least for the lower convex hull, so

    mu^2 = sum over the segments of the hull of (dS)^2 / dW.

**Langevin.** A step h of full-batch Langevin dynamics on a lambda-strongly convex and M-smooth potential with
h <= 2 / (lambda + M) has c = 1 - h lambda, s = h Delta and nu = sqrt(2 h T), with Delta the most that a record moves
the gradient and T the temperature. Then the points lie above the straight line between the ends, whatever the schedule:

    mu = Delta (1 - prod_k (1 - h_k lambda)) / (lambda sqrt(2 T sum_k C_k^2 h_k)).

Only one of the two neighbours' maps needs to be Lipschitz, so M may count the records of the smaller one. The chain
starts at a public point, and the schedule does not look at the records.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from confide import validation
from confide.validation import Refused


def hull_mu(contractions: Any, shifts: Any, noises: Any) -> float:
    """mu of the last state: one Lipschitz constant, one shift and one noise for each step, or a number for all.

    >>> hull_mu([0.5], [2.0], [4.0])  # one step is the Gaussian mechanism
    0.5
    >>> round(hull_mu([1.0, 1.0], [1.0, 1.0], [2.0, 2.0]), 4)  # without contraction it is composition
    0.7071
    """
    lipschitz, moved = _vector(contractions=contractions), _vector(shifts=shifts)
    noise = _vector(noises=noises)
    if np.any(noise == 0):
        raise Refused("noises has a zero: every step needs noise")
    try:
        lipschitz, moved, noise = np.broadcast_arrays(lipschitz, moved, noise)
    except ValueError:
        raise Refused("contractions, shifts and noises differ in length: give one number for each step") from None
    if noise.size == 1:
        return float(moved[0] / noise[0])
    with np.errstate(divide="ignore", over="ignore"):
        logs = np.log(lipschitz), np.log(moved), 2 * np.log(noise)
    return _hull_mu(*(column.tolist() for column in logs))


def _hull_mu(contractions: list[float], heights: list[float], widths: list[float]) -> float:
    """Pool neighbours until the slopes rise: what is left are the segments of the lower convex hull.

    All in logarithms, and each segment in the scale of its own last step, so that no product of many contractions
    vanishes or overflows: pooling two segments that should stay apart would claim too little.
    """
    segments: list[tuple[float, float, float]] = []
    largest = 0.0  # of the logarithms, which are off by so many roundings
    for product, height, width in zip(contractions, heights, widths, strict=True):
        while segments and segments[-1][1] - segments[-1][2] >= product + height - width:
            before, height_before, width_before = segments.pop()
            height = _log_sum(height_before + product, height)
            width = _log_sum(width_before + 2 * product, width)
            product += before
        segments.append((product, height, width))
        largest = max([largest, *(abs(value) for value in segments[-1] if math.isfinite(value))])
    exponents = [2 * height - width for _, height, width in segments]
    if max(exponents) > 700:
        return math.inf
    return math.sqrt(math.fsum(map(math.exp, exponents))) * (1 + 4e-16 * len(widths) * (1 + largest))


def _log_sum(first: float, second: float) -> float:
    """log(e^first + e^second)."""
    low, high = min(first, second), max(first, second)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def last_iterate_mu(step_sizes: Any, strong_convexity: float, sensitivity: float, temperature: float = 1.0) -> float:
    """mu of the last iterate of full-batch Langevin dynamics, theta - h grad U + sqrt(2 h temperature) noise.

    Args:
        step_sizes: h of every step. It multiplies the gradient of the whole potential U = sum_i l_i + ..., so it is the
            library's usual step size divided by the number of records. None may be above 2 / (strong_convexity +
            smoothness), which is for the caller to see to (`events.LastIterates` does).
        strong_convexity: lambda of U, in the same scale; 0 for composition.
        sensitivity: the most that grad U moves between neighbours.

    >>> round(last_iterate_mu([1 / 8141.25] * 10_000, 1.0, 1.0), 4)
    0.7396
    >>> round(last_iterate_mu([1e-3] * 100_000, 4.0, 3.0), 4)  # a long run of small steps: an exact sample
    1.4985
    """
    sizes = _vector(step_sizes=step_sizes)
    convexity = validation.nonnegative(strong_convexity=strong_convexity)
    sensitivity, temperature = (
        validation.nonnegative(sensitivity=sensitivity),
        validation.positive(temperature=temperature),
    )
    if np.any(sizes == 0):
        raise Refused("step_sizes has a zero: give steps above 0")
    if float(np.max(sizes)) * convexity > 1:
        raise Refused(
            f"step_sizes reach {np.max(sizes):g}, above 1 / strong_convexity: such a step does not contract; "
            "make the steps smaller"
        )
    with np.errstate(divide="ignore"):
        logs = np.log1p(-sizes * convexity)
    passed = np.append(np.cumsum(logs[:0:-1])[::-1], 0.0)  # log C_k
    carried = -math.expm1(passed[0] + logs[0]) / convexity if convexity else math.fsum(sizes)
    spread = math.fsum(np.exp(2 * passed) * sizes)
    return sensitivity * carried / math.sqrt(2 * temperature * spread) * (1 + 4e-16 * sizes.size)


def _vector(**named: Any) -> np.ndarray:
    """The numbers as a vector of finite values of at least 0."""
    ((name, given),) = named.items()
    try:
        values = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError):
        raise Refused(f"{name} are not numbers: give one for each step") from None
    if values.ndim != 1 or values.size == 0:
        raise Refused(f"{name} has shape {values.shape}: give one number for each step")
    if not np.all(np.isfinite(values) & (values >= 0)):
        raise Refused(f"{name} has a value that is negative or not finite: give one number for each step")
    return values
