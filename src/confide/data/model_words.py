"""What the command line calls the model that goes with a target, and why. It needs no model, and so no JAX."""

from __future__ import annotations

from typing import NamedTuple

from confide.data.schema import Column


class OtherWords(NamedTuple):
    """What the command line calls other models that a target might have had."""

    boolean: str
    counts: str


def explain_word(word: str, target: Column, given: bool, others: OtherWords) -> str:
    """Which model a run on a table fits and why, in one line; all of it is public.

    A schema that calls a 0/1 column numeric is taken at its word, which this shows.

    >>> column = Column(name="cost", kind="numeric", low=0.0, high=1.5)
    >>> explain_word("linear", column, False, OtherWords("probit", "quasi"))
    'linear: the schema calls `cost` numeric; boolean would be probit'
    """
    calls = f"the schema calls `{target.name}` {target.kind}"
    if target.labels:
        listed = " or ".join(target.labels) if len(target.labels) == 2 else f"{len(target.labels)} labels"
        calls += f" ({listed})"
    if given:
        return f"{word}: --model names it; {calls}"
    if target.labels:
        return f"{word}: {calls}"
    ends = [float(target.low or 0), float(target.high or 0)]
    counts = all(end >= 0 and end.is_integer() for end in ends) and ends[1] > 1
    advice = f", and counts have --model {others.counts}" if counts else ""
    return f"{word}: {calls}; boolean would be {others.boolean}{advice}"
