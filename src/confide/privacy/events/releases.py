"""Releases whose privacy is declared: Gaussian, pure, or (epsilon, delta)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from confide import validation
from confide.privacy.events.base import NEIGHBOURS, Event, Neighbours, Parts, parts_of
from confide.validation import Refused

DECLARED = "what was declared, and anything computed from it"


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianRelease(Event):
    """A release that is mu-Gaussian-DP for the stated neighbouring relation (Dong, Roth and Su 2022)."""

    mu: float
    neighbours: Neighbours = "add-remove"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", validation.positive(mu=self.mu))
        validation.one_of(NEIGHBOURS, neighbours=self.neighbours)

    def parts(self, neighbours: Neighbours) -> Parts:
        return parts_of(squared_mu=(self.mu * _group_size(self, neighbours)) ** 2)

    def fields(self) -> dict[str, Any]:
        return {"mu": self.mu, "neighbours": self.neighbours}

    def assumptions(self) -> tuple[str, ...]:
        return (f"A release is Gaussian-DP with mu = {self.mu:.6g} for {self.neighbours} neighbours, as declared.",)

    def released(self) -> str:
        return DECLARED

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
        object.__setattr__(self, "epsilon", validation.nonnegative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validation.probability(zero=True, delta=self.delta))
        validation.one_of(NEIGHBOURS, neighbours=self.neighbours)
        if self.epsilon == 0 and self.delta == 0:
            raise Refused("epsilon = 0 and delta = 0 reveal nothing: leave the release out")

    def parts(self, neighbours: Neighbours) -> Parts:
        size = _group_size(self, neighbours)
        # Group privacy: size steps of (epsilon, delta) give delta (1 + e^epsilon) for size = 2.
        failure = self.delta if size == 1 else self.delta * (1 + math.exp(min(self.epsilon, 700.0)))
        return parts_of(epsilons=[size * self.epsilon] if self.epsilon else [], failure=min(1.0, failure))

    def fields(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "delta": self.delta, "neighbours": self.neighbours}

    def assumptions(self) -> tuple[str, ...]:
        if self.epsilon == 0:
            return (f"With probability at most {self.delta:.3g} more is revealed than stated, as declared.",)
        return (
            f"A release is ({self.epsilon:.6g}, {self.delta:.3g})-DP for {self.neighbours} neighbours, as declared.",
        )

    def released(self) -> str:
        return DECLARED

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
