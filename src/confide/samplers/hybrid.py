"""Hybrid posterior sampling (wang2015, Algorithm 3): a private draw as the start, then small steps from there.

A chain that starts at a draw from the posterior has no way to go before its iterates are worth keeping, so the steps
may be small from the first one on, and all of them are kept.

Formal guarantee: the draw and the steps are one adaptive composition, priced together. The draw takes `share` of the
budget in squares of mu (Gaussian differential privacy), and the steps are as large as the whole budget allows beside
it. With one half each part is as good as a budget of 1 / sqrt(2) in mu alone would make it, where the paper's
epsilon / 2 for each leaves a half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.samplers.langevin import langevin
from confide.samplers.sampler import Sampler
from confide.samplers.sgnht import sgnht
from confide.validation import Refused


@dataclass(frozen=True, kw_only=True)
class Hybrid(Sampler):
    """The settings of `confide.hybrid`."""

    first: Sampler
    then: Sampler
    share: float

    kind = "hybrid"

    def to_json(self) -> dict[str, Any]:
        return {"sampler": self.name, "first": self.first.name, "then": self.then.name, "share": self.share}


def hybrid(then: Sampler | None = None, first: Sampler | None = None, share: float = 0.5) -> Sampler:
    """A private draw, and a sampler that goes on from it.

    Args:
        then: any sampler that takes steps, such as `sgld()`; `sgnht()` by default, as in the paper.
        first: `langevin()` by default, or `one_posterior_sample()`.
        share: of the budget for the draw, in squares of mu.

    >>> hybrid().to_json()["then"]
    'sgnht'
    """
    then, first = then or sgnht(), first or langevin()
    for name, sampler in {"then": then, "first": first}.items():
        validation.instance(Sampler, **{name: sampler})
    if then.kind != "steps" or then.optimises:
        raise Refused(f"then = {then.name} does not go on from a draw: give a sampler that takes steps, such as sgld()")
    if first.kind not in ("last iterate", "posterior sample"):
        raise Refused(f"first = {first.name} is not one private draw: give langevin() or one_posterior_sample()")
    share = validation.probability(share=share)
    return Hybrid(name="hybrid", build=_in_two_parts, temperature=then.temperature, first=first, then=then, share=share)


def _in_two_parts(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    raise Refused("hybrid() is planned from a budget: use confide.fit, or its parts for a run without a guarantee")
