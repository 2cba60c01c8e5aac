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
    posteriors: list[Any]  # of the fits that have heard of it


current: ContextVar[Request | None] = ContextVar("canaries", default=None)


@contextmanager
def none() -> Iterator[None]:
    """Whatever is fitted inside has no canaries."""
    token = current.set(None)
    try:
        yield
    finally:
        current.reset(token)


@contextmanager
def request(count: int) -> Iterator[list[Any]]:
    """Whatever is fitted inside, in this thread, has so many canaries; the posteriors are in the list."""
    made = Request(check_count(count), [])
    token = current.set(made)
    try:
        yield made.posteriors
    finally:
        current.reset(token)
