"""What may be spent, and what a run promises: `Budget` and `Guarantee`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from decimal import ROUND_CEILING, Decimal
from typing import Any, Protocol

from confide import validation
from confide.privacy import events
from confide.privacy.events import NEIGHBOURS, Event, Neighbours
from confide.validation import Refused

_RELATIONS = {
    "add-remove": "Two datasets are neighbours when one holds a single record more than the other; "
    "the number of records is treated as public.",
    "replace-one": "Two datasets are neighbours when they have the same size and differ in a single record.",
}

_QUESTIONS = {
    "add-remove": "Where it is a coin flip whether a given record was used",
    "replace-one": "Where it is a coin flip which of two given records was used",
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be revealed about one record: (epsilon, delta) for a neighbouring relation.

    `delta` = 0 asks for pure differential privacy, which Gaussian noise cannot give.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05, neighbours='add-remove')
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = "add-remove"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validation.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validation.probability(zero=True, delta=self.delta))
        validation.one_of(NEIGHBOURS, neighbours=self.neighbours)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Estimate(Protocol):
    """Something weaker than a promise, in sentences that say so."""

    def sentences(self) -> tuple[str, ...]: ...


# The version of the mechanism: whatever changes the noise that is drawn or the sums that it hides raises it. What was
# begun under another version is never continued; guarantees of all versions load and verify as they were.
MECHANISM = 3


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a release promises, and everything that the promise rests on.

    `event` is the whole release, so that anyone can price it again from the JSON form alone
    (`confide.verify`). `assumptions` are sentences for a reader who is not a programmer. `typical` is an estimate for
    typical people, where one was asked for: it is computed from the records, no promise covers it, and neither JSON
    nor pickles hold it. `print` shows both, apart.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours
    event: Event
    accountant: str
    released: str
    assumptions: tuple[str, ...]
    mechanism: int = 1  # of those who do not say
    typical: Estimate | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "typical": None}

    def __str__(self) -> str:
        lines = ["The guarantee", *self.sentences()]
        if self.typical is not None:
            lines += ["", "An estimate for typical people: no guarantee, and not to be published"]
            lines += self.typical.sentences()
        return "\n".join(lines)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validation.nonnegative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validation.probability(zero=True, delta=self.delta))
        validation.one_of(NEIGHBOURS, neighbours=self.neighbours)
        validation.instance(Event, event=self.event)
        object.__setattr__(self, "mechanism", validation.count(mechanism=self.mechanism))
        for text in (self.accountant, self.released, *self.assumptions):
            validation.instance(str, text=text)
        if isinstance(self.assumptions, str):
            raise Refused("assumptions is one text: give a list of sentences")
        object.__setattr__(self, "assumptions", tuple(self.assumptions))

    @property
    def belief(self) -> float:
        """Largest share of right guesses of someone for whom it was a coin flip.

        (e^epsilon + delta) / (1 + e^epsilon), since no attack finds members with more than e^epsilon times its false
        alarms plus delta.
        """
        return belief(self.epsilon) + self.delta * (1 - belief(self.epsilon))

    def sentences(self) -> tuple[str, ...]:
        """The promise in plain language, then every assumption."""
        return (*self.promise(), *self.assumptions)

    def promise(self) -> tuple[str, ...]:
        """The promise in plain language."""
        return (
            f"The release is ({rounded_up(self.epsilon, 6)}, {rounded_up(self.delta, 3)})-differentially private.",
            _RELATIONS[self.neighbours],
            f"{_QUESTIONS[self.neighbours]}, the release lets nobody guess right with a probability above "
            f"{min(100.0, math.ceil(1000 * self.belief) / 10):.1f}%.",
            f"What may be published: {self.released}.",
        )

    def to_json(self) -> dict[str, Any]:
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "typical"}
        return record | {
            "event": self.event.to_json(),
            "assumptions": list(self.assumptions),
            "sentences": list(self.sentences()),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any] | str) -> Guarantee:
        """The guarantee that `to_json` wrote; the sentences are derived again, not trusted."""
        try:
            loaded: dict[str, Any] = dict(json.loads(record) if isinstance(record, str) else record)
            loaded.pop("sentences", None)
            loaded["event"] = events.from_json(loaded["event"])
            return cls(**loaded)
        except RecursionError:
            raise Refused("guarantee is not in the form that confide writes: its event is nested too deeply") from None
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise Refused(f"guarantee is not in the form that confide writes: {error}") from None


def rounded_up(bound: float, digits: int) -> str:
    """An upper bound in so many digits, never less than it is.

    >>> rounded_up(1.2349e-5, 3), rounded_up(1e-5, 3), rounded_up(0.99999949, 6), rounded_up(0.0, 3)
    ('1.24e-05', '1e-05', '1', '0')
    """
    exact = Decimal(repr(float(bound)))
    if not exact:
        return "0"
    step = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return f"{float(exact.quantize(step, rounding=ROUND_CEILING)):.{digits}g}"


def belief(epsilon: float) -> float:
    """P(A) = 1 / (1 + e^-epsilon): posterior belief of an attacker with a flat prior (triastcyn2020, eq. 1).

    >>> round(belief(2.0), 2)
    0.88
    """
    return 1.0 / (1.0 + math.exp(-validation.nonnegative(epsilon=epsilon)))
