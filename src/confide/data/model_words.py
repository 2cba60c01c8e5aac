"""What the command line calls the model that goes with a target, and why. It needs no model, and so no JAX."""

from __future__ import annotations

from confide.data.schema import Column


def usual_word(labels: int) -> str:
    """The generalised linear model of a target with so many labels; 0 for a number."""
    return "linear" if not labels else "logistic" if labels == 2 else "softmax"


def explain_word(word: str, target: Column, given: bool) -> str:
    """Which model a run on a table fits and why, in one line; all of it is public.

    A schema that calls a 0/1 column numeric is taken at its word, which this shows.

    >>> explain_word("linear", Column(name="relapse", kind="numeric", low=0.0, high=1.5), False)
    'linear: the schema calls `relapse` numeric; boolean would be logistic'
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
    return f"{word}: {calls}; boolean would be {usual_word(2)}{', and counts have --model poisson' if counts else ''}"
