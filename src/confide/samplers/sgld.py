r"""Stochastic gradient Langevin dynamics (Welling and Teh 2011), private by its own noise (li2019, wang2015).

    theta' = theta - eta ( -grad log p(theta) / n + sum_i g_i / (q n) ) + N(0, 2 eta temperature / n)

Formal guarantee: a step is the Gaussian mechanism on the clipped sum, on a Poisson batch, with noise multiplier
q sqrt(2 n temperature / eta) / clip. Every iterate may be released.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from confide.mechanism.oracle import Controls, Kernel, Oracle, Setting, gaussian_event, langevin_noise
from confide.samplers.sampler import Sampler, Schedule, controls


class State(NamedTuple):
    position: jax.Array


def sgld(step_size: float | None = None, schedule: Schedule = "fixed", temperature: float = 1.0) -> Sampler:
    """Stochastic gradient Langevin dynamics.

    >>> sgld(step_size=0.1, schedule="decreasing").step_sizes(8)[0][-1].round(3)
    np.float64(0.05)
    """
    return Sampler(name="sgld", build=build, step_size=step_size, schedule=schedule, temperature=temperature)


def build(sampler: Sampler, setting: Setting, step_sizes: np.ndarray) -> Kernel:
    return langevin(setting, controls(step_sizes, langevin_noise(setting, step_sizes, sampler.temperature)))


def langevin(setting: Setting, plan: Controls) -> Kernel:
    """The update rule for any noise of the plan's."""

    def step(state: State, control: Controls, t: jax.Array, oracle: Oracle) -> State:
        noisy = oracle.gradient(state.position, control.noise)
        drift = setting.prior(state.position) / setting.n + noisy / setting.expected_batch
        return State(state.position - control.step_size * drift)

    return Kernel(State, step, lambda: gaussian_event(setting, plan), plan)
