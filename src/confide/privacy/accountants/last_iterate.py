"""Releases of the last iterates of noisy contractions, priced by themselves: `privacy.last_iterate` is the theory.

An `events.LastIterates` is exactly Gaussian, so every other accountant takes it as well; this one takes nothing else.
"""

from __future__ import annotations

from confide.privacy.accountants import gdp
from confide.privacy.events import Event, LastIterates, Neighbours
from confide.privacy.last_iterate import hull_mu, last_iterate_mu
from confide.validation import Refused

__all__ = ["epsilon", "hull_mu", "last_iterate_mu", "profile"]


def profile(event: Event, neighbours: Neighbours = "add-remove") -> gdp.GDP:
    if not isinstance(event, LastIterates):
        raise Refused(f"{type(event).__name__} is no release of last iterates: use accountant 'pld'")
    return gdp.profile(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
