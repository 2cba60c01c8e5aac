r"""DP-SGD (Abadi et al. 2016) and DP-Adam: the mode of the posterior, as a point.

With h = ( -grad log p(theta) + (sum_i g_i + N(0, (sigma clip)^2)) / q ) / n, the noisy mean gradient of a step:

    DP-SGD    v' = momentum v + h;                        theta' = theta - rate v'
    DP-Adam   m' = b1 m + (1 - b1) h;  V' = b2 V + (1 - b2) h^2;
              theta' = theta - rate (m' / (1 - b1^t)) / sqrt(V' / (1 - b2^t))

Formal guarantee: a step is the Gaussian mechanism on the clipped sum, on a Poisson batch, with noise multiplier sigma:
the least that the budget pays for, whatever the learning rate. Velocity and moments are post-processing of noisy sums,
and every iterate may be released. What is kept is one point: the mean of the second half of the run, or the last
iterate. It has no spread, and it is not a draw from the posterior.

**Second moments.** The noise adds (sigma clip / (q n))^2 to V, so that Adam divides by little else. It is public, and
with `corrected` it is subtracted (Tang, Shpilevskiy and Lecuyer 2024), down to `FLOOR` of itself.

**Part of the weights.** With `updated` below 1 a step moves a random subset of the parameters alone, each with that
probability (triastcyn2020, appendix B.1). Which they are is decided by public randomness, before any record is looked
at; gradients are cut to the clip as they are in that subset, so that the price is the same, and the noise of the other
coordinates is left out.

**Learning rate.** In a direction about which the records say nothing, the noise of N steps adds up to a random walk of
standard deviation rate sqrt(updated N) sigma clip / (q n). The planned rate makes that `DRIFT`; with Adam, which
divides by the noise, it is `DRIFT` / sqrt(N). A direction that they speak about is pulled back and ends nearer, and the
average of many iterates nearer still. `DRIFT` is in scales of the prior where records are weighted. No planned step is
longer than `Sampler.longest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, Query, Schedule, gaussian_event
from confide.privacy.significant_digits import round_digits
from confide.samplers.sampler import Decay, Sampler, schedule_of
from confide.validation import Refused

DRIFT = 0.7  # how far noise alone carries a parameter; chosen on Adult
FLOOR = 0.01  # of the known variance of the noise
TINY = 1e-12  # beside the square root of a second moment


@dataclass(frozen=True, kw_only=True)
class Descent(Sampler):
    """The settings of an optimiser; None is planned from the budget."""

    noise_multiplier: float | None = None
    average: bool = True
    draws: int | None = 1  # kept where nobody asks for more

    optimises = True
    point = True
    remedy = "raise noise_multiplier, take fewer steps, or leave it out"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier is not None:
            validation.positive(noise_multiplier=self.noise_multiplier)

    @property
    def rate(self) -> str:
        return "learning_rate"

    def noise(self, parameters: MechanismParameters, steps: int) -> np.ndarray:
        """Standard deviations on the sums; none without a guarantee."""
        if math.isinf(parameters.clip):
            return np.zeros(steps)
        assert self.noise_multiplier is not None
        return np.full(steps, self.noise_multiplier * parameters.clip)

    def planned_rate(self, parameters: MechanismParameters, steps: int) -> float | None:
        """The learning rate by the formula above; None where there is no noise to plan by."""
        spread = float(self.noise(parameters, 1)[0]) * math.sqrt(self.options.get("updated", 1.0))
        if not spread:
            return None
        wanted = DRIFT * parameters.unit * parameters.expected_batch / (spread * math.sqrt(steps))
        return min(wanted, self.longest(parameters))

    def keep(self, draws: int | None, burn_in: int | None) -> int | None:
        """One, unless more are asked for."""
        if self.average and (draws or 1) > 1:
            raise Refused(f"draws = {draws}: an average is one point; ask for one, or give average=False")
        return self.draws if draws is None else draws

    def trial(self, parameters: MechanismParameters, steps: int) -> tuple[Sampler, np.ndarray, bool]:
        """Its noise is planned, in units of the clip, and not its step sizes."""
        if self.noise_multiplier is not None:
            return self, np.ones(steps), True
        return replace(self, noise_multiplier=1.0), np.ones(steps), False

    def calibrate(
        self, parameters: MechanismParameters, sizes: np.ndarray, spare: float | None
    ) -> tuple[Sampler, np.ndarray]:
        sampler = self if spare is None else replace(self, noise_multiplier=round_digits(1 / math.sqrt(spare), "up"))
        return sampler, sampler.gentle_sizes(parameters, sizes.size, lambda: self.longest(parameters))

    def longest(self, parameters: MechanismParameters) -> float:
        """Half of what is stable; no diffusion time is paid for."""
        if parameters.curvature is None or not parameters.weighted:
            return super().longest(parameters)
        return self.stability / 2 / parameters.curvature

    def rescale(self, parameters: MechanismParameters, sizes: np.ndarray, ratio: float) -> np.ndarray:
        return self.gentle_sizes(parameters, sizes.size, lambda: self.longest(parameters))

    def gentle_sizes(self, parameters: MechanismParameters, steps: int, gentle: Callable[[], float]) -> np.ndarray:
        """What multiplies the direction of each step; `gentle` where nothing is given and none can be planned."""
        sizes, final = self.step_sizes(steps)
        if final:
            return sizes
        planned = self.planned_rate(parameters, steps)
        return sizes * round_digits(gentle() if planned is None else planned)

    def to_json(self) -> dict[str, Any]:
        settings = {
            "learning_rate": self.step_size,
            "schedule": self.schedule,
            "noise_multiplier": self.noise_multiplier,
            "average": self.average,
        }
        point = {"estimate": "point"} if self.point else {}
        named = {name: "function" if callable(value) else value for name, value in settings.items()}
        return {"sampler": self.name, **self.beside(), **named, **self.options, **point}


class Adam(Descent):
    """Its steps do not depend on the size of the noise."""

    def planned_rate(self, parameters: MechanismParameters, steps: int) -> float | None:
        return DRIFT * parameters.unit / math.sqrt(steps)


def dp_sgd(
    learning_rate: float | Callable[[int], Any] | None = None,
    momentum: float = 0.0,
    schedule: Decay = "fixed",
    noise_multiplier: float | None = None,
    average: bool = True,
    updated: float = 1.0,
) -> Sampler:
    """DP-SGD: the mode of the posterior as one point, with the least noise that the budget pays for.

    Args:
        learning_rate: multiplies the mean gradient; a number, a function of the step, or planned.
        momentum: what is kept of the velocity, from 0 to below 1.
        schedule: how the learning rate changes; the noise stays as it is.
        noise_multiplier: noise over clip; one that the budget does not pay for is refused.
        average: keep the mean of the second half of the run, and not the last iterate.
        updated: the share of the parameters that a step moves, drawn anew for each step; below 1 without momentum,
            which would move the others as well.

    >>> dp_sgd(0.5, momentum=0.9).to_json()["momentum"]
    0.9
    """
    momentum = validation.probability(momentum=momentum, zero=True)
    updated = validation.probability(updated=updated, one=True)
    if momentum and updated < 1:
        raise Refused(f"momentum = {momentum:g} moves all parameters, and updated = {updated:g} a part: leave one out")
    return Descent(
        name="dp_sgd",
        build=_heavy_ball,
        step_size=learning_rate,
        schedule=schedule,
        noise_multiplier=noise_multiplier,
        average=bool(average),
        options={"momentum": momentum, "updated": updated},
        stability=2 * (1 + momentum),
    )


def dp_adam(
    learning_rate: float | Callable[[int], Any] | None = None,
    mean_decay: float = 0.9,
    square_decay: float = 0.999,
    corrected: bool = False,
    schedule: Decay = "fixed",
    noise_multiplier: float | None = None,
    average: bool = True,
) -> Sampler:
    """DP-Adam: as `dp_sgd`, with moments of the noisy gradients; `mean_decay` and `square_decay` are b1 and b2.

    With `corrected` the known variance of the noise is taken out of the second moment.

    >>> dp_adam().to_json()["square_decay"]
    0.999
    """
    return Adam(
        name="dp_adam",
        build=_adam,
        step_size=learning_rate,
        schedule=schedule,
        noise_multiplier=noise_multiplier,
        average=bool(average),
        stability=math.inf,  # its steps are as long as its rate, whatever the gradient
        options={
            "mean_decay": validation.probability(mean_decay=mean_decay, zero=True),
            "square_decay": validation.probability(square_decay=square_decay, zero=True),
            "corrected": bool(corrected),
        },
    )


class Moments(NamedTuple):
    """Running means of gradients and of their squares."""

    mean: jax.Array
    square: jax.Array

    def after(
        self, gradient: jax.Array, t: jax.Array, first: float, second: float, known: Any = 0.0
    ) -> tuple[Moments, jax.Array]:
        """The moments once the gradient is counted in, and the direction; `known` variance is taken out."""
        mean = first * self.mean + (1 - first) * gradient
        square = second * self.square + (1 - second) * jnp.square(gradient)
        unbiased = jnp.maximum(square / (1 - second ** (t + 1.0)) - known, FLOOR * known)
        direction = mean / (1 - first ** (t + 1.0)) / (jnp.sqrt(unbiased) + TINY)
        return Moments(mean, square), direction


class HeavyBall(NamedTuple):
    position: jax.Array  # what is kept: an iterate, or the mean of several
    iterate: jax.Array
    velocity: jax.Array


class AdamState(NamedTuple):
    position: jax.Array
    iterate: jax.Array
    moments: Moments


def _heavy_ball(sampler: Sampler, parameters: MechanismParameters, rates: np.ndarray) -> Kernel:
    assert isinstance(sampler, Descent)
    momentum, updated = sampler.options["momentum"], sampler.options["updated"]
    steps, average = rates.size, sampler.average
    schedule = schedule_of(rates, sampler.noise(parameters, steps))

    def init(position: jax.Array) -> HeavyBall:
        return HeavyBall(position, position, jnp.zeros_like(position))

    def query(state: HeavyBall, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, jax.Array | None]:
        moved = None if updated == 1 else subset(updated, parameters.dimension, key)
        return Query(state.iterate, control.noise, moved), moved

    def update(
        state: HeavyBall, moved: jax.Array | None, noisy: jax.Array, control: Schedule, t: jax.Array
    ) -> HeavyBall:
        gradient = parameters.mean_gradient(state.iterate, noisy)
        velocity = momentum * state.velocity + (gradient if moved is None else gradient * moved)
        iterate = state.iterate - control.step_size * velocity
        return HeavyBall(keep_iterate(state.position, iterate, t, steps, average), iterate, velocity)

    return Kernel(init, query, update, schedule, lambda: gaussian_event(parameters, schedule))


def _adam(sampler: Sampler, parameters: MechanismParameters, rates: np.ndarray) -> Kernel:
    assert isinstance(sampler, Descent)
    steps, average, options = rates.size, sampler.average, sampler.options
    schedule = schedule_of(rates, sampler.noise(parameters, steps))

    def init(position: jax.Array) -> AdamState:
        zero = jnp.zeros_like(position)
        return AdamState(position, position, Moments(zero, zero))

    def query(state: AdamState, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, None]:
        return Query(state.iterate, control.noise), None

    def update(state: AdamState, memo: None, noisy: jax.Array, control: Schedule, t: jax.Array) -> AdamState:
        gradient = parameters.mean_gradient(state.iterate, noisy)
        known = jnp.square(control.noise / parameters.expected_batch) if options["corrected"] else 0.0
        moments, direction = state.moments.after(gradient, t, options["mean_decay"], options["square_decay"], known)
        iterate = state.iterate - control.step_size * direction
        return AdamState(keep_iterate(state.position, iterate, t, steps, average), iterate, moments)

    return Kernel(init, query, update, schedule, lambda: gaussian_event(parameters, schedule))


def subset(share: float, dimension: int, key: jax.Array) -> jax.Array:
    """One for the coordinates that a step moves, zero for the others."""
    return jax.random.bernoulli(key, share, (dimension,)).astype(jnp.float64)


def keep_iterate(position: jax.Array, iterate: jax.Array, t: jax.Array, steps: int, average: bool) -> jax.Array:
    """The iterate, or the mean of those since the middle of the run."""
    if not average:
        return iterate
    count = jnp.maximum(t - steps // 2, 0) + 1
    return position + (iterate - position) / count
