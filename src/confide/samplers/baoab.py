r"""BAOAB (Leimkuhler and Matthews 2013), private by the noise of its kicks: drift, kick, drift, friction.

    A    theta~ = theta + v / 2
    B    v~ = v - eta ( -grad log p(theta~) / n + sum_i g_i(theta~) / (q n) ) + N(0, 4 a / (2 - a) eta temperature / n)
    A    theta' = theta~ + v~ / 2
    O    v' = (1 - a) v~

theta' is kept: the position in the middle of BAOAB's drift. Two half kicks meet at theta~, so a step asks once.

**Where the noise goes.** BAOAB draws all noise in O: v' = (1 - a) v~ + noise. That leaves the sums bare: from two
positions theta~ and the momentum between them, 2 (theta~' - theta~) - v' is v~, the momentum after the kick. Noise on
the sums is needed, and with that of O beside it the chain would be too hot. So all noise is drawn in the kick, and O
draws none. The step is still a symmetric composition of exact flows (kick with noise, drift, friction), of weak order 2
in the time step sqrt(eta): with gamma = -log(1 - a), 4 a / (2 - a) = 4 tanh(gamma / 2) is the 2 gamma of the dynamics
but for a factor of 1 + O(gamma^2).

**What is exact.** Let the mean negative log posterior have curvature k, lambda = eta k < 4 and c = 1 - a; let the kick
draw noise of variance K, and O of variance W. The recursion is linear. Setting the second moments of (theta', v') equal
to those of (theta, v) gives the stationary variances

    lambda Var(theta~) = W / (1 - c^2) + K (1 + c) / (4 (1 - c) (1 - lambda/4))
    lambda Var(theta') = W (1 - lambda/4) / (1 - c^2) + K ((1 + c)^2 - c lambda) / (4 (1 - c^2) (1 - lambda/4)).

With K = 0 that is BAOAB: exact at theta~, whatever the step. With W = 0 and the K above,

    Var(theta') = temperature / (n k) (1 + (a / (2 - a))^2 lambda / (4 - lambda)).

A friction of 0.1 leaves 1/361 of the error lambda / (4 - lambda), which theta~ has, and about which `sghmc` has for as
much noise; a = 1 is `sgld` with steps of eta / 2. The noise of batches is not in this: it heats the chain.

Formal guarantee: a step is the Gaussian mechanism on the clipped sum at theta~, on a Poisson batch, with noise
multiplier q sqrt((4 a / (2 - a)) n temperature / eta) / clip. Position and momentum are post-processing of the noisy
sums, and every iterate of both may be released.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism.kernel import (
    Kernel,
    MechanismParameters,
    Query,
    Schedule,
    gaussian_event,
    langevin_noise,
)
from confide.samplers.sampler import Decay, Sampler, schedule_of


class State(NamedTuple):
    position: jax.Array
    momentum: jax.Array


def baoab(
    step_size: float | None = None, schedule: Decay = "fixed", temperature: float = 1.0, friction: float = 0.1
) -> Sampler:
    """Underdamped Langevin dynamics by the splitting of BAOAB; `friction` is a, what a step takes of the momentum.

    >>> baoab(friction=0.2).to_json()["friction"]
    0.2
    """
    return Sampler(
        name="baoab",
        build=build,
        step_size=step_size,
        schedule=schedule,
        temperature=temperature,
        options={"friction": validation.probability(friction=friction, one=True)},
        pace=(2 - friction) / (2 * friction),
        stability=4.0,
    )


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    friction = sampler.options["friction"]
    injected = 2 * friction / (2 - friction)
    schedule = schedule_of(step_sizes, langevin_noise(parameters, step_sizes, sampler.temperature, injected))

    def init(position: jax.Array) -> State:
        return State(position, jnp.zeros_like(position))

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, jax.Array]:
        halfway = state.position + state.momentum / 2
        return Query(halfway, control.noise), halfway

    def update(state: State, halfway: jax.Array, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        momentum = state.momentum - control.step_size * parameters.mean_gradient(halfway, noisy)
        return State(halfway + momentum / 2, (1 - friction) * momentum)

    return Kernel(init, query, update, schedule, lambda: gaussian_event(parameters, schedule))
