"""What every kind of run is planned from, and what a plan is: what the user asked for, where chains start, the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from confide.inference.posterior import Diagnostics
from confide.mechanism import noise
from confide.mechanism.canaries import Planted
from confide.mechanism.oracle import Observations
from confide.models.inputs import Records
from confide.models.model import Model
from confide.models.tracing import unraveller
from confide.privacy.accountants.individual import Histogram
from confide.privacy.events import Event
from confide.privacy.extra_accounts import Accounts
from confide.privacy.pricing import EVERY_ITERATE


class Asked(NamedTuple):
    """What the user gave; None is planned."""

    steps: int | None = None
    batch_size: int | None = None
    clip: float | None = None
    chains: int = 1
    draws: int | None = None
    burn_in: int | None = None
    secure: bool = False
    accounts: Accounts = Accounts()
    canaries: Planted | None = None
    microbatch: int | None = None


class Work(Protocol):
    """What `confide.fit` does with a job once it is paid for."""

    @property
    def steps(self) -> int: ...

    @property
    def diagnostics(self) -> Diagnostics | None:
        """Of hidden chains, once they have run."""
        ...

    @property
    def observations(self) -> Observations | None:
        """What was noted about single records, once it has run; private."""
        ...

    def digest(self) -> str:
        """Of whatever decides the run and is neither in its event nor in its plan."""
        ...

    def first_state(self) -> list[np.ndarray]: ...

    def execute(self, data: Records, key: Any, **how: Any) -> np.ndarray:
        """The kept draws, (chains, draws, parameters). `how` are the arguments of `run.execute`."""
        ...


class Planned(NamedTuple):
    """A run, decided and not yet paid for."""

    model: Model  # as it is sampled: a sampler may bound its rows
    data: Records
    job: Work
    event: Event
    plan: dict[str, Any]  # what is stored and printed of it
    until: Callable[[int], Event] | None  # what it would have cost had it ended after so many steps
    released: str = EVERY_ITERATE
    histogram: Callable[[Observations | None, Any], Histogram] | None = (
        None  # (what was noted, source of noise) -> release
    )
    finish: Callable[[np.ndarray, Any], np.ndarray] | None = None  # (what was kept, source) -> draws, where they differ


def start(model: Model, data: tuple[np.ndarray, ...], key: jax.Array, chains: int) -> jax.Array:
    """Where a chain begins. Several begin apart: what they have not learnt then shows as disagreement between them,
    and their draws together are as wide as the prior where the data have not spoken."""
    flat, unravel = unraveller(model, data, key)
    if chains == 1 or model.overdispersed_init is None:
        return flat
    return ravel_pytree(model.overdispersed_init(noise.derive_key(key, "disperse"), unravel(flat)))[0]
