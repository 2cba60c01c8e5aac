"""What optimisers need beside the plan of a run by steps: what is kept of it, their q, and what is drawn from that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.inference.plans import guides
from confide.inference.plans.setup import Asked
from confide.mechanism import noise
from confide.mechanism.kernel import MechanismParameters
from confide.mechanism.noise import SecureSource
from confide.models.model import Model
from confide.samplers import Descent, Sampler, Variational
from confide.samplers.variational import gaussian
from confide.validation import Refused

DRAWS = 1000  # from a q, which cost nothing


def asked_of(sampler: Sampler, asked: Asked) -> Asked:
    """How many iterates are kept: one of an optimiser, unless more are asked for."""
    if isinstance(sampler, Variational):
        if asked.burn_in is not None:
            raise Refused("burn_in: dpvi keeps the q that it ends with, and draws from that: leave it out")
        return asked._replace(draws=1)
    if not isinstance(sampler, Descent):
        return asked
    if sampler.average and (asked.draws or 1) > 1:
        raise Refused(f"draws = {asked.draws}: an average is one point; ask for one, or give average=False")
    return asked._replace(draws=sampler.draws if asked.draws is None else asked.draws)


def met(
    sampler: Sampler, model: Model, data: tuple[np.ndarray, ...], parameters: MechanismParameters, start: np.ndarray
) -> Sampler:
    """The sampler with the family of its q, where it has one."""
    if not isinstance(sampler, Variational):
        return sampler
    if sampler.guide is None:
        return sampler.of(gaussian(sampler.wanted, start, parameters.n))
    own = data[:-2] if parameters.canary_rows else data  # without the marks of canaries
    return sampler.of(guides.family(sampler.guide, model, own, parameters.n))


def described(sampler: Sampler, asked: Asked) -> dict[str, Any]:
    """What the plan says of a q; nothing of others."""
    return {"draws": _draws(asked)} if isinstance(sampler, Variational) else {}


def finish(sampler: Sampler, asked: Asked) -> Callable[[np.ndarray, Any], np.ndarray] | None:
    """(what was kept, source of randomness) -> draws; None where what is kept are the draws."""
    if not isinstance(sampler, Variational):
        return None

    def draws(kept: np.ndarray, source: Any) -> np.ndarray:
        own = noise.separate(source, "draws")
        if isinstance(own, SecureSource):
            own = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(own.key[:8], np.uint32)), impl="threefry2x32")
        return sampler.drawn(kept, _draws(asked), own)

    return draws


def _draws(asked: Asked) -> int:
    return DRAWS if asked.draws is None else validation.count(draws=asked.draws)
