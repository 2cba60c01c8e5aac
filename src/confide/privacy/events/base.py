"""What every event has, and what accountants see of it."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import numpy as np

from confide.validation import Refused

Neighbours = Literal["add-remove", "replace-one"]
NEIGHBOURS: tuple[Neighbours, ...] = ("add-remove", "replace-one")
EVERY_ITERATE = "every iterate of the run, thinned or not, and anything computed from them"
SENSITIVITY = {"add-remove": 1.0, "replace-one": 2.0}  # of a sum of clipped contributions, in clips


class Parts(NamedTuple):
    """Any event, flattened for one neighbouring relation: all that an accountant needs to look at."""

    noise_multipliers: np.ndarray  # Poisson-subsampled Gaussian steps, sampling probability below 1,
    sampling_probabilities: np.ndarray  # one row for each distinct kind of step, and
    counts: np.ndarray  # how often it happened
    squared_mu: float  # everything that is exactly Gaussian: mu^2 adds up
    epsilons: np.ndarray  # pure-epsilon releases, one row for each distinct epsilon, and
    epsilon_counts: np.ndarray  # how often it happened
    failure: float  # probability that no bound holds, from the deltas of (epsilon, delta) releases

    @property
    def steps(self) -> float:
        return float(self.counts.sum())

    @property
    def needs_delta(self) -> bool:
        """Whether no epsilon is finite at delta = 0."""
        return bool(self.steps or self.squared_mu or self.failure)


def parts_of(
    sigma: Any = (), q: Any = (), counts: Any = (), squared_mu: float = 0.0, epsilons: Any = (), failure: float = 0.0
) -> Parts:
    sigma, q, counts, epsilons = (np.asarray(v, dtype=np.float64) for v in (sigma, q, counts, epsilons))
    return Parts(sigma, q, counts, squared_mu, epsilons, np.ones_like(epsilons), failure)


def tally(first: np.ndarray, second: np.ndarray | float, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct pairs, as complex numbers (which numpy sorts exactly and fast), and the sum of the counts of each."""
    kinds, index = np.unique(first + 1j * np.asarray(second), return_inverse=True)
    return kinds, np.bincount(index.ravel(), counts, minlength=kinds.size)


class Event:
    """Base of all events: a JSON form, equality by it, and `parts` for the accountants."""

    def parts(self, neighbours: Neighbours) -> Parts:
        raise TypeError(f"{type(self).__name__} does not say what it reveals")

    def fields(self) -> dict[str, Any]:
        raise TypeError(f"{type(self).__name__} has no JSON form")

    def assumptions(self) -> tuple[str, ...]:
        """What the price rests on, in plain sentences."""
        return ()

    def released(self) -> str:
        """What may be published at this price."""
        return EVERY_ITERATE

    def summary(self) -> str:
        """A few words for a table."""
        return type(self).__name__

    def to_dp_accounting(self) -> Any:
        """The same release in dp-accounting's vocabulary."""
        raise Refused(f"{type(self).__name__} has no counterpart in dp-accounting: price it with confide")

    def to_json(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **self.fields()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))
