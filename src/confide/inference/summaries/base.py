"""What is public about a run, typed: what is stored of it, and what it says of itself.

A field without a default is always stored, be it None; one with a default is stored where it is told. Whatever else a
plan holds, such as a sampler's own options, is in `more`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of anything that has draws; by itself of a run about which nothing is known."""

    point: ClassVar[bool] = False  # whether draws are points near the mode, whose spread says nothing of the posterior
    noisy_sums: ClassVar[bool] = False  # whether all that is released follows from noisy sums, one or two a step
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def needs(cls) -> set[str]:
        """What is always stored."""
        return {each.name for each in _own(cls) if each.default is MISSING}

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Self:
        """From a plan as it is stored."""
        known = {each.name for each in _own(cls)}
        own = {name: value for name, value in plan.items() if name in known}
        return cls(**own, more={name: value for name, value in plan.items() if name not in known})

    def to_json(self) -> dict[str, Any]:
        """The plan, as it is stored and as it enters fingerprints."""
        told = {each.name: getattr(self, each.name) for each in _own(type(self))}
        needed = self.needs()
        return {name: value for name, value in told.items() if name in needed or value is not None} | dict(self.more)

    def lines(self) -> list[str]:
        """What is done, for the terminal."""
        return []

    def unspent(self) -> str:
        """Why the run costs less than the budget."""
        return ""

    def warning(self) -> str:
        """What must be said of the draws before they are read."""
        return ""

    def remarks(self) -> list[str]:
        """What is to be known about how the draws were made, for the report."""
        return []


def _own(kind: type[Summary]) -> list[Any]:
    return [each for each in fields(kind) if each.name != "more"]


@dataclass(frozen=True, kw_only=True)
class Priced(Summary):
    """What every run and every release has."""

    model: str
    sampler: str
    records: int  # as declared
    parameters: int
    chains: int
    draws: int  # of each chain
    noise: str | None = None  # where its bits are from
    mechanism: int | None = None  # its version; None before there were two
    budget: Mapping[str, Any] | None = None
    epsilon: float | None = None
    ledger: Mapping[str, Any] | None = None  # what was taken from it
    run: str | None = None  # the receipt of a run that could be interrupted

    def head(self) -> str:
        """What is fitted to what, and how."""
        return f"{self.model} with {self.parameters} parameters on {self.records} records, by {self.sampler}"
