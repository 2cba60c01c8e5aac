"""What a release reveals: the vocabulary that samplers write and accountants read.

An event holds what is necessary and sufficient to price a release, and nothing else; its meaning never
changes. dp-accounting's vocabulary lacks a schedule held in arrays (it wants T objects), a Gaussian-DP
release and an (epsilon, delta) release, so the events here are our own, convertible by `to_dp_accounting`.

A **noise multiplier** is the standard deviation of the noise over the clip, the largest norm that one
record can contribute. Adding or removing a record moves a sum by one clip, replacing a record by two;
an event is written once and priced for either relation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.privacy.events.base import EVERY_ITERATE, NEIGHBOURS, SENSITIVITY, Event, Neighbours, Parts, tally
from confide.privacy.events.gaussian import GaussianSchedule, GaussianSteps
from confide.privacy.events.individual import GaussianFilter, RenyiFilter, SpendingHistogram
from confide.privacy.events.information import InformationSums
from confide.privacy.events.noisy_votes import NoisyVotes
from confide.privacy.events.posteriors import BoundedPosteriorSample, LastIterates, PosteriorSample
from confide.privacy.events.releases import GaussianRelease, Release
from confide.privacy.events.scale import ScaleHistograms
from confide.validation import Refused

__all__ = [
    "EVERY_ITERATE",
    "NEIGHBOURS",
    "SENSITIVITY",
    "BoundedPosteriorSample",
    "Composition",
    "Event",
    "GaussianFilter",
    "GaussianRelease",
    "GaussianSchedule",
    "GaussianSteps",
    "InformationSums",
    "LastIterates",
    "Neighbours",
    "NoisyVotes",
    "Parts",
    "PosteriorSample",
    "Release",
    "RenyiFilter",
    "ScaleHistograms",
    "SpendingHistogram",
    "compose",
    "from_json",
    "gaussian",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Composition(Event):
    """Several events on the same data, the whole list `repeats` times over."""

    events: tuple[Event, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        validation.instance(tuple | list, events=self.events)
        events = tuple(self.events)
        if not events:
            raise Refused("events is empty: compose at least one event")
        for event in events:
            if not isinstance(event, Event):
                raise Refused(f"events holds {event!r}, which is not an event of confide.events")
        object.__setattr__(self, "events", events)
        object.__setattr__(self, "repeats", validation.count(repeats=self.repeats))

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

    def released(self) -> str:
        return "; ".join(dict.fromkeys(event.released() for event in self.events))

    def summary(self) -> str:
        listed = "; ".join(event.summary() for event in self.events)
        return listed if self.repeats == 1 else f"{self.repeats} times: {listed}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        composed = dp_accounting.ComposedDpEvent([event.to_dp_accounting() for event in self.events])
        return dp_accounting.SelfComposedDpEvent(composed, self.repeats)


_EVENTS = {
    kind.__name__: kind
    for kind in (
        GaussianSteps,
        GaussianSchedule,
        GaussianRelease,
        Release,
        LastIterates,
        PosteriorSample,
        BoundedPosteriorSample,
        GaussianFilter,
        RenyiFilter,
        SpendingHistogram,
        ScaleHistograms,
        InformationSums,
        NoisyVotes,
        Composition,
    )
}


def from_json(record: Any) -> Event:
    """The event that `to_json` wrote.

    >>> from_json({"event": "Release", "epsilon": 1.0}) == Release(epsilon=1.0)
    True
    """
    if not isinstance(record, dict) or str(record.get("event")) not in _EVENTS:
        raise Refused(f"event = {str(record)[:60]!r} is not an event: one of {', '.join(_EVENTS)} is expected")
    fields = {key: value for key, value in record.items() if key != "event"}
    if record["event"] == "Composition":
        validation.instance(list, events=fields.get("events"))
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
        scalar = validation.positive(noise_multiplier=noise_multiplier)
        noise_multiplier = np.full(np.shape(sampling_probability), scalar)
    event = GaussianSchedule(noise_multipliers=noise_multiplier, sampling_probabilities=sampling_probability)
    if steps is not None and validation.count(steps=steps) != event.noise_multipliers.size:
        raise Refused(
            f"steps = {steps} but {event.noise_multipliers.size} values were given: "
            "give arrays of length steps, or leave steps out"
        )
    return event


def compose(*events: Event, repeats: int = 1) -> Event:
    """One event for several on the same data."""
    return events[0] if len(events) == 1 and repeats == 1 else Composition(events=events, repeats=repeats)
