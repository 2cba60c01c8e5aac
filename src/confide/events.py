"""What a release reveals: the vocabulary that samplers write and accountants read.

An event holds what is necessary and sufficient to price a release, and nothing else; its meaning never
changes. dp-accounting's vocabulary lacks a schedule held in arrays (it wants T objects), a Gaussian-DP
release and an (epsilon, delta) release, so the events here are our own, convertible by `to_dp_accounting`.

A **noise multiplier** is the standard deviation of the noise over the clip, the largest norm that one
record can contribute. Adding or removing a record moves a sum by one clip, replacing a record by two;
an event is written once and priced for either relation.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from confide import checks
from confide.checks import Refused

Neighbours = Literal["add-remove", "replace-one"]
NEIGHBOURS: tuple[Neighbours, ...] = ("add-remove", "replace-one")
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


def _parts(
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


_GAUSSIAN = (
    "Gaussian noise of the stated multiple of the clip was added to the sum of the clipped contributions, "
    "and nothing else about the records left the computation.",
)
_POISSON = (
    "Every record entered every batch independently with the stated sampling probability (Poisson sampling), "
    "and which records a batch held stayed secret.",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianSteps(Event):
    """`steps` equal Gaussian steps on a sum of clipped contributions, each on a Poisson batch.

    With `sampling_probability` 1 a step uses every record and is not subsampled.

    >>> GaussianSteps(noise_multiplier=2.0, sampling_probability=0.01, steps=100).to_json()["steps"]
    100
    """

    noise_multiplier: float
    sampling_probability: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checks.positive(noise_multiplier=self.noise_multiplier))
        q = checks.probability(one=True, sampling_probability=self.sampling_probability)
        object.__setattr__(self, "sampling_probability", q)
        object.__setattr__(self, "steps", checks.count(steps=self.steps))

    def parts(self, neighbours: Neighbours) -> Parts:
        if self.sampling_probability == 1.0:
            return _parts(squared_mu=self.steps * (SENSITIVITY[neighbours] / self.noise_multiplier) ** 2)
        return _parts([self.noise_multiplier], [self.sampling_probability], [self.steps])

    def fields(self) -> dict[str, Any]:
        return {
            "noise_multiplier": self.noise_multiplier,
            "sampling_probability": self.sampling_probability,
            "steps": self.steps,
        }

    def assumptions(self) -> tuple[str, ...]:
        return _GAUSSIAN + (_POISSON if self.sampling_probability < 1 else ())

    def summary(self) -> str:
        return f"{self.steps} Gaussian steps, noise {self.noise_multiplier:.4g}, q {self.sampling_probability:.4g}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_probability < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, event)
        return dp_accounting.SelfComposedDpEvent(event, self.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianSchedule(Event):
    """Gaussian steps that differ from one another, held in arrays: one noise multiplier per step.

    `sampling_probabilities` is a number for all steps or one number per step.
    """

    noise_multipliers: np.ndarray
    sampling_probabilities: np.ndarray | float = 1.0

    def __post_init__(self) -> None:
        sigma = checks.positive_vector(noise_multipliers=self.noise_multipliers)
        q: Any = self.sampling_probabilities
        if np.ndim(q) == 0:
            q = checks.probability(one=True, sampling_probabilities=q)
        else:
            q = checks.positive_vector(sampling_probabilities=q, upper=1.0)
            if q.size != sigma.size:
                raise Refused(
                    f"noise_multipliers has {sigma.size} steps and sampling_probabilities {q.size}: "
                    "give arrays of equal length, or one number for all steps"
                )
        object.__setattr__(self, "noise_multipliers", sigma)
        object.__setattr__(self, "sampling_probabilities", q)

    def parts(self, neighbours: Neighbours) -> Parts:
        sigma = self.noise_multipliers
        q = np.broadcast_to(np.asarray(self.sampling_probabilities, dtype=np.float64), sigma.shape)
        full = q == 1.0
        squared_mu = math.fsum((SENSITIVITY[neighbours] / sigma[full]) ** 2)
        kinds, counts = tally(q[~full], sigma[~full], np.ones(int((~full).sum())))
        return _parts(np.imag(kinds), np.real(kinds), counts, squared_mu)

    def fields(self) -> dict[str, Any]:
        return {
            "noise_multipliers": self.noise_multipliers.tolist(),
            "sampling_probabilities": np.asarray(self.sampling_probabilities).tolist(),
        }

    def assumptions(self) -> tuple[str, ...]:
        return _GAUSSIAN + (_POISSON if np.min(self.sampling_probabilities) < 1 else ())

    def summary(self) -> str:
        sigma = self.noise_multipliers
        return f"{sigma.size} Gaussian steps, noise {sigma.min():.4g} to {sigma.max():.4g}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        q = np.broadcast_to(self.sampling_probabilities, self.noise_multipliers.shape)
        steps = [
            GaussianSteps(noise_multiplier=s, sampling_probability=p).to_dp_accounting().event
            for s, p in zip(self.noise_multipliers, q, strict=True)
        ]
        return dp_accounting.ComposedDpEvent(steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianRelease(Event):
    """A release that is mu-Gaussian-DP for the stated neighbouring relation (Dong, Roth and Su 2022)."""

    mu: float
    neighbours: Neighbours = "add-remove"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", checks.positive(mu=self.mu))
        checks.one_of(NEIGHBOURS, neighbours=self.neighbours)

    def parts(self, neighbours: Neighbours) -> Parts:
        return _parts(squared_mu=(self.mu * _group_size(self, neighbours)) ** 2)

    def fields(self) -> dict[str, Any]:
        return {"mu": self.mu, "neighbours": self.neighbours}

    def assumptions(self) -> tuple[str, ...]:
        return (f"A release is Gaussian-DP with mu = {self.mu:.6g} for {self.neighbours} neighbours, as declared.",)

    def summary(self) -> str:
        return f"Gaussian-DP release, mu {self.mu:.4g}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        return dp_accounting.GaussianDpEvent(1.0 / self.mu)


@dataclass(frozen=True, kw_only=True, eq=False)
class Release(Event):
    """A release that is (epsilon, delta)-DP for the stated neighbouring relation; pure at delta = 0.

    `epsilon` = 0 with a positive delta stands for an event of probability delta that reveals everything,
    such as the overflow of a batch buffer.
    """

    epsilon: float
    delta: float = 0.0
    neighbours: Neighbours = "add-remove"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.nonnegative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", checks.probability(zero=True, delta=self.delta))
        checks.one_of(NEIGHBOURS, neighbours=self.neighbours)
        if self.epsilon == 0 and self.delta == 0:
            raise Refused("epsilon = 0 and delta = 0 reveal nothing: leave the release out")

    def parts(self, neighbours: Neighbours) -> Parts:
        size = _group_size(self, neighbours)
        # Group privacy: size steps of (epsilon, delta) give delta (1 + e^epsilon) for size = 2.
        failure = self.delta if size == 1 else self.delta * (1 + math.exp(min(self.epsilon, 700.0)))
        return _parts(epsilons=[size * self.epsilon] if self.epsilon else [], failure=min(1.0, failure))

    def fields(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "delta": self.delta, "neighbours": self.neighbours}

    def assumptions(self) -> tuple[str, ...]:
        if self.epsilon == 0:
            return (f"With probability at most {self.delta:.3g} more is revealed than stated, as declared.",)
        return (
            f"A release is ({self.epsilon:.6g}, {self.delta:.3g})-DP for {self.neighbours} neighbours, as declared.",
        )

    def summary(self) -> str:
        return f"release of epsilon {self.epsilon:.4g}" + (f", delta {self.delta:.3g}" if self.delta else "")

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        if self.delta:
            return super().to_dp_accounting()
        # Randomised response dominates every pure-epsilon release; dp-accounting prices it for replace-one alone.
        return dp_accounting.RandomizedResponseDpEvent(2.0 / (1.0 + math.exp(self.epsilon)), 2)


def _group_size(event: GaussianRelease | Release, neighbours: Neighbours) -> int:
    """How many neighbours of the event's relation lie between two neighbours of the relation asked for."""
    if event.neighbours == neighbours:
        return 1
    if neighbours == "replace-one":  # remove one record, then add the other
        return 2
    raise Refused(
        f"neighbours = 'add-remove' cannot be derived from a {type(event).__name__} declared for 'replace-one': "
        "declare it for 'add-remove', or ask for 'replace-one'"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Composition(Event):
    """Several events on the same data, the whole list `repeats` times over."""

    events: tuple[Event, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        checks.instance(tuple | list, events=self.events)
        events = tuple(self.events)
        if not events:
            raise Refused("events is empty: compose at least one event")
        for event in events:
            if not isinstance(event, Event):
                raise Refused(f"events holds {event!r}, which is not an event of confide.events")
        object.__setattr__(self, "events", events)
        object.__setattr__(self, "repeats", checks.count(repeats=self.repeats))

    def parts(self, neighbours: Neighbours) -> Parts:
        parts = [event.parts(neighbours) for event in self.events]
        joined = [np.concatenate(column) for column in zip(*[p[:3] for p in parts], strict=True)]
        kinds, counts = tally(joined[1], joined[0], joined[2])
        epsilons, epsilon_counts = tally(
            np.concatenate([p.epsilons for p in parts]), 0.0, np.concatenate([p.epsilon_counts for p in parts])
        )
        survival = math.fsum(math.log1p(-p.failure) if p.failure < 1 else -math.inf for p in parts)
        return Parts(
            np.imag(kinds),
            np.real(kinds),
            self.repeats * counts,
            self.repeats * math.fsum(p.squared_mu for p in parts),
            np.real(epsilons),
            self.repeats * epsilon_counts,
            -math.expm1(self.repeats * survival),
        )

    def fields(self) -> dict[str, Any]:
        return {"events": [event.to_json() for event in self.events], "repeats": self.repeats}

    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sentence for event in self.events for sentence in event.assumptions()))

    def summary(self) -> str:
        listed = "; ".join(event.summary() for event in self.events)
        return listed if self.repeats == 1 else f"{self.repeats} times: {listed}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        composed = dp_accounting.ComposedDpEvent([event.to_dp_accounting() for event in self.events])
        return dp_accounting.SelfComposedDpEvent(composed, self.repeats)


_EVENTS = {kind.__name__: kind for kind in (GaussianSteps, GaussianSchedule, GaussianRelease, Release, Composition)}


def from_json(record: Any) -> Event:
    """The event that `to_json` wrote.

    >>> from_json({"event": "Release", "epsilon": 1.0}) == Release(epsilon=1.0)
    True
    """
    if not isinstance(record, dict) or str(record.get("event")) not in _EVENTS:
        raise Refused(f"event = {str(record)[:60]!r} is not an event: one of {', '.join(_EVENTS)} is expected")
    fields = {key: value for key, value in record.items() if key != "event"}
    if record["event"] == "Composition":
        checks.instance(list, events=fields.get("events"))
        fields["events"] = tuple(from_json(event) for event in fields["events"])
    try:
        return _EVENTS[record["event"]](**fields)
    except TypeError as error:
        raise Refused(f"event {record['event']} has the wrong fields: {error}") from None


def gaussian(noise_multiplier: Any, sampling_probability: Any = 1.0, steps: int | None = None) -> Event:
    """Equal steps from scalars, a schedule from arrays of length `steps`."""
    if np.ndim(noise_multiplier) == 0 and np.ndim(sampling_probability) == 0:
        return GaussianSteps(
            noise_multiplier=noise_multiplier,
            sampling_probability=sampling_probability,
            steps=1 if steps is None else steps,
        )
    if np.ndim(noise_multiplier) == 0:
        scalar = checks.positive(noise_multiplier=noise_multiplier)
        noise_multiplier = np.full(np.shape(sampling_probability), scalar)
    event = GaussianSchedule(noise_multipliers=noise_multiplier, sampling_probabilities=sampling_probability)
    if steps is not None and checks.count(steps=steps) != event.noise_multipliers.size:
        raise Refused(
            f"steps = {steps} but {event.noise_multipliers.size} values were given: "
            "give arrays of length steps, or leave steps out"
        )
    return event


def compose(*events: Event, repeats: int = 1) -> Event:
    """One event for several on the same data."""
    return events[0] if len(events) == 1 and repeats == 1 else Composition(events=events, repeats=repeats)
