r"""DP-SGLD as published (wang2015, Algorithm 2), with the larger of two noises.

In their convention (eta' = eta / n), over M steps, the noise on the parameters has variance

    max( 128 M L^2 / epsilon^2 log(2.5 M / delta) log(2 / delta) eta'^2,  2 temperature eta' )

and their step sizes pass from the first to the second at step alpha M (the "alpha-phase transition"):

    eta'_t = alpha epsilon^2 / (128 L^2 log(2.5 M / delta) log(2 / delta) t).

Their temperature is 1/2. Their batches have a fixed size; ours are Poisson, which is what our accountant prices. The
guarantee is the tight price of the noise that is drawn, far below the epsilon that their Theorem 4 promises.
"""

from __future__ import annotations

import math

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, langevin_noise
from confide.privacy.significant_digits import round_digits
from confide.samplers.sampler import Decay, Sampler, schedule_of
from confide.samplers.sgld import langevin
from confide.validation import Refused


def wang2015_sgld(
    step_size: float | None = None, schedule: Decay = "fixed", temperature: float = 0.5, alpha: float = 0.5
) -> Sampler:
    """wang2015's Algorithm 2. Without a step size, their own: SGLD proper from step alpha M on."""
    return Sampler(
        name="wang2015_sgld",
        build=build,
        step_size=step_size,
        schedule=schedule,
        temperature=temperature,
        options={"alpha": validation.probability(alpha=alpha)},
        prescribe=prescribe,
    )


def _constant(sampler: Sampler, parameters: MechanismParameters, steps: int) -> float:
    """128 L^2 log(2.5 M / delta) log(2 / delta) / epsilon^2."""
    budget = sampler.budget
    if budget is None or math.isinf(parameters.clip):
        raise Refused("wang2015_sgld sets its noise by the budget and the clip: use it with confide.fit")
    logs = math.log(2.5 * steps / budget.delta) * math.log(2 / budget.delta)
    return round_digits(128 * parameters.clip**2 * logs / budget.epsilon**2, "up")


def prescribe(sampler: Sampler, parameters: MechanismParameters, steps: int) -> np.ndarray:
    """Their step sizes, in our convention."""
    t = np.arange(1, steps + 1)
    return parameters.n * sampler.options["alpha"] / (_constant(sampler, parameters, steps) * t)


def build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    steps = step_sizes.size
    proper = langevin_noise(parameters, step_sizes, sampler.temperature)
    burn_in = parameters.sampling_probability * math.sqrt(steps * _constant(sampler, parameters, steps))
    return langevin(parameters, schedule_of(step_sizes, np.maximum(proper, burn_in)))
