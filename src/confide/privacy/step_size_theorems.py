"""The largest step size that a budget allows, one function per theorem.

One convention everywhere: the step size multiplies the *mean* gradient (li2019's; wang2015's is ours divided by n), and
`temperature` is explicit: a step draws N(0, 2 step_size temperature / n). Both papers draw N(0, step_size / n), which
is temperature 1/2. Their theorems hold at any higher temperature too, as more noise is no less private, and are
returned as published; below 1/2 they are scaled down with the noise.

A decreasing schedule is step_size_t = step_size_1 t^(-1/3), and step_size_1 is what is returned.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

from scipy.special import lambertw

from confide import validation
from confide.privacy import calibration
from confide.privacy.budget import Budget
from confide.privacy.calibration import Schedule
from confide.privacy.events import SENSITIVITY, Neighbours

METHODS = ("wang2015", "li2019", "moments", "numerical")
DEFAULT_BATCH = 256


def wang2015(*, n: int, steps: int, epsilon: float, delta: float, clip: float, temperature: float = 1.0) -> float:
    """wang2015, Theorem 4: advanced composition of subsampled Gaussian steps; the same bound holds for every step.

    >>> f"{wang2015(n=50_000, steps=10_000, epsilon=0.1, delta=1e-5, clip=1.0):.3e}"
    '1.479e-06'
    """
    n, steps = validation.count(n=n), validation.count(steps=steps)
    epsilon, delta, clip = (
        validation.positive(epsilon=epsilon),
        validation.probability(delta=delta),
        validation.positive(clip=clip),
    )
    published = epsilon**2 * n / (128 * clip**2 * steps * math.log(2.5 * steps / delta) * math.log(2 / delta))
    return published * min(1.0, 2 * validation.positive(temperature=temperature))


class Constants(NamedTuple):
    """What li2019 leaves to be found numerically (their section C), and whether its lemma covers the setting."""

    noise_multiplier: float  # of the first step
    constant: float  # c_2 of Theorem 3, or c of Theorem 4
    step_size: float
    uncovered: tuple[str, ...]  # side conditions that fail


def li2019_constants(
    *, n: int, steps: int, epsilon: float, delta: float, clip: float, batch_size: int, schedule: Schedule
) -> Constants:
    """li2019, Theorems 3 and 4, with their constant from the moments accountant and its classical tail.

    The side conditions are those of their Lemma 2, sigma >= 1 and q < 1 / (16 sigma), in terms of the step size:
    step_size <= q^2 n / clip^2 and step_size > 256 q^4 n / clip^2. (The paper prints n / clip^2 and
    q^2 n / (256 clip^2), having lost a factor q^2.) As the constant comes from the exact moments here, the step size is
    certified whether they hold or not; where they fail, the closed form of the lemma would not have been.
    """
    n, batch_size = calibration.sizes(n, batch_size)
    clip, steps, q = validation.positive(clip=clip), validation.count(steps=steps), batch_size / n
    sigma = calibration.calibrate_noise(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=q,
        steps=steps,
        accountant="moments-classical",
        profile=None if schedule == "fixed" else calibration.relative_noise(schedule, steps),
    )
    time = steps if schedule == "fixed" else steps ** (2 / 3)
    constant = sigma * epsilon / (q * math.sqrt(time * math.log(1 / delta)))
    step_size = epsilon**2 * n / (constant**2 * clip**2 * time * math.log(1 / delta))  # li2019, Theorem 3, condition 3
    last = step_size if schedule == "fixed" else step_size * steps ** (-1 / 3)
    uncovered = []
    if step_size > q**2 * n / clip**2:
        uncovered.append(f"the first step has noise multiplier {sigma:.3g}, below 1")
    if last <= 256 * q**4 * n / clip**2:
        uncovered.append(f"the last step has noise multiplier {q * math.sqrt(n / last) / clip:.3g}, above 1/(16 q)")
    return Constants(sigma, constant, step_size, tuple(uncovered))


def li2019(
    *,
    n: int,
    steps: int,
    epsilon: float,
    delta: float,
    clip: float,
    batch_size: int | None = None,
    temperature: float = 1.0,
    schedule: Schedule = "fixed",
) -> float:
    """li2019, Theorem 3 (decreasing) or 4 (fixed). Warns where their side conditions fail."""
    found = li2019_constants(
        n=n,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        batch_size=_batch(n, batch_size),
        schedule=schedule,
    )
    if found.uncovered:
        warnings.warn(f"li2019's side conditions fail: {'; '.join(found.uncovered)}", UserWarning, stacklevel=2)
    return found.step_size * min(1.0, 2 * validation.positive(temperature=temperature))


def _certify(accountant: str):
    def bound(
        *,
        n: int,
        epsilon: float,
        delta: float,
        batch_size: int | None = None,
        neighbours: Neighbours = "add-remove",
        **run: Any,
    ) -> float:
        budget = Budget(epsilon=epsilon, delta=delta, neighbours=neighbours)
        return calibration.calibrate(budget, n=n, batch_size=_batch(n, batch_size), accountant=accountant, **run)

    return bound


moments = _certify("moments-classical")
moments.__doc__ = (
    "The largest step that the moments accountant with its classical tail certifies, without side conditions."
)
numerical = _certify("pld")
numerical.__doc__ = "The largest step that the tight accountant certifies, for any temperature and any schedule."


def _batch(n: int, batch_size: int | None) -> int:
    return min(validation.count(n=n), DEFAULT_BATCH) if batch_size is None else batch_size


def step_size(
    method: str,
    *,
    n: int,
    steps: int,
    epsilon: float,
    delta: float,
    clip: float,
    temperature: float = 1.0,
    batch_size: int | None = None,
    schedule: Schedule = "fixed",
    neighbours: Neighbours = "add-remove",
) -> float:
    """The largest step size that `method` allows for the budget.

    Args:
        method: "wang2015", "li2019" (as published, temperature 1/2), "moments" (classical tail) or "numerical" (tight).
        n: number of records; steps: number of steps; clip: largest norm of one record's gradient.
        batch_size: expected size of a Poisson batch, 256 by default; it hardly matters while the noise stays above
            one clip.
        schedule: "fixed", or "decreasing" as t^(-1/3), where the first step size is returned.
        neighbours: for "replace-one" a record moves the sum by two clips, and the papers' clip is doubled.
    """
    validation.one_of(METHODS, method=method)
    validation.one_of(calibration.SCHEDULES, schedule=schedule)
    budget = Budget(epsilon=epsilon, delta=delta, neighbours=neighbours)
    shared: dict[str, Any] = {"n": n, "steps": steps, "epsilon": epsilon, "delta": delta, "temperature": temperature}
    clip = validation.positive(clip=clip)
    if method in ("moments", "numerical"):
        bound = moments if method == "moments" else numerical
        return bound(**shared, clip=clip, batch_size=batch_size, schedule=schedule, neighbours=neighbours)
    shared["clip"] = clip * SENSITIVITY[budget.neighbours]
    if method == "li2019":
        return li2019(**shared, batch_size=batch_size, schedule=schedule)
    q = _batch(n, batch_size) / n
    if q**2 * steps < epsilon**2 / (32 * math.log(2 / delta)):  # wang2015, Theorem 4, condition on the data passes
        warnings.warn("wang2015's side condition fails: too few passes over the data", UserWarning, stacklevel=2)
    return wang2015(**shared)


def mixing_bound_decreasing(
    *,
    n: int,
    batch_size: int,
    steps: int,
    epsilon: float,
    delta: float,
    clip: float,
    constant: float,
    spread: float = 1.0,
) -> float:
    """li2019, Proposition 5, up to its constant: mean squared error of a posterior average, decreasing steps.

    `constant` is c_2 of Theorem 3 and `spread` is Gamma_M, the variability of the gradients.
    """
    n, batch_size = calibration.sizes(n, batch_size)
    steps = validation.count(steps=steps)
    base = epsilon**2 / (constant**2 * clip**2 * math.log(1 / delta))
    sampling = 2 / 3 * (n / batch_size - 1) * n**2 * spread / steps
    return sampling + 1 / (3 * base) + 2 * base**2 * steps ** (-2 / 3)


def optimal_base_decreasing(steps: int) -> float:
    """epsilon^2 / (c_2^2 clip^2 log(1/delta)) that minimises Proposition 5: of order steps^(2/9)."""
    return (validation.count(steps=steps) ** (2 / 3) / 12) ** (1 / 3)


def mixing_bound_fixed(*, n: int, batch_size: int, steps: int, step_size: float, spread: float = 1.0) -> float:
    """li2019, Proposition 6, up to its constant: mean squared error of a posterior average, fixed steps."""
    n, batch_size = calibration.sizes(n, batch_size)
    steps, step_size = validation.count(steps=steps), validation.positive(step_size=step_size)
    return (n / batch_size - 1) * n**2 * spread / steps + 1 / (steps * step_size) + step_size**2


def optimal_step_fixed(steps: int) -> float:
    """The step size that minimises Proposition 6: of order steps^(-1/3).

    >>> round(optimal_step_fixed(4), 6)
    0.5
    """
    return (2 * validation.count(steps=steps)) ** (-1 / 3)


def generalisation_bound(*, n: int, steps: int, scale: float = 1.0) -> float:
    """li2019, Proposition 7, up to its constant: excess risk of the last sample; `scale` is their A."""
    w = float(lambertw(4 * validation.count(steps=steps) / (5 * validation.positive(scale=scale))).real) ** (1 / 5)
    return w + math.exp(-w) + 1 / validation.count(n=n)
