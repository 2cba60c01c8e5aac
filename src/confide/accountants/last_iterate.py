"""Releases of the last iterates of noisy contractions, priced by themselves: `confide.contractions` is the theory.

An `events.LastIterates` is exactly Gaussian, so every other accountant takes it as well; this one takes nothing else.
"""

from __future__ import annotations

from confide.accountants import gdp
from confide.checks import Refused
from confide.contractions import hull_mu, last_iterate_mu
from confide.events import Event, LastIterates, Neighbours

__all__ = ["epsilon", "hull_mu", "last_iterate_mu", "profile"]


def profile(event: Event, neighbours: Neighbours = "add-remove") -> gdp.GDP:
    if not isinstance(event, LastIterates):
        raise Refused(f"{type(event).__name__} is no release of last iterates: use accountant 'pld'")
    return gdp.profile(event, neighbours)


def epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    return profile(event, neighbours).epsilon(delta)
