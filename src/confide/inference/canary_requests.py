"""How `confide.audit` asks for canaries in a fit that it calls and does not see into, such as that of an estimator.

The one thing that is passed around arguments; nothing below this floor knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from confide.mechanism.canaries import check_count


class Request(NamedTuple):
    number: int
    posteriors: list[Any]  # of the fits that it was heard in


_request: ContextVar[Request | None] = ContextVar("canaries", default=None)


@contextmanager
def request(count: int) -> Iterator[list[Any]]:
    """Whatever is fitted inside, in this thread, has so many canaries; the posteriors are in the list."""
    made = Request(check_count(count), [])
    token = _request.set(made)
    try:
        yield made.posteriors
    finally:
        _request.reset(token)


def number(count: int | None) -> int:
    """How many a fit is to plant, for which it was given `count`; 0 for none."""
    if count is None:
        outside = _request.get()
        return 0 if outside is None else outside.number
    return 0 if isinstance(count, int) and not isinstance(count, bool) and count == 0 else check_count(count)


def answer(posterior: Any) -> None:
    """Note a posterior for whoever asked for the canaries in it."""
    outside = _request.get()
    if outside is not None:
        outside.posteriors.append(posterior)
