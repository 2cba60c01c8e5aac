"""What a plan is, and what can be run of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from confide.inference.plans.individual import Binning
from confide.inference.posterior import Diagnostics
from confide.inference.summaries.runs import RunSummary
from confide.inference.traces import Trace
from confide.mechanism.oracle import Observations
from confide.models.inputs import Records
from confide.models.model import Model
from confide.privacy.events import Event
from confide.privacy.pricing import EVERY_ITERATE


class Run(Protocol):
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

    def trace_program(self, records: Records) -> str:
        """Trace the programs that will run on the records and hold functions of the user's, and give their digest."""
        ...

    def first_state(self) -> list[np.ndarray]: ...

    def execute(self, data: Records, key: Any, **how: Any) -> np.ndarray:
        """The kept draws, (chains, draws, parameters). `how` are the arguments of `run.execute`."""
        ...


class Plan(NamedTuple):
    """A run, decided and not yet paid for."""

    model: Model  # as it is sampled: a sampler may bound its rows
    data: Records
    job: Run
    event: Event
    summary: RunSummary  # what is stored and printed of it
    spent_after: Callable[[int], Event] | None  # what it would cost if it ended after so many steps
    released: str = EVERY_ITERATE
    histogram: Binning | None = None  # of what records have spent
    postprocess: Callable[[np.ndarray, Any], np.ndarray] | None = (
        None  # (what was kept, source) -> draws, where they differ
    )
    trace: Callable[[], Trace | None] | None = None  # what its noisy sums tell together, once it has run
    describe: Callable[[RunSummary, np.ndarray], RunSummary] | None = None  # with what is known of it and what it kept
