"""One file per theory; each takes an event and returns its privacy profile.

`pld` is tight and certified, `moments` is the papers' (with a classical and a Renyi tail), `gdp` is exact for Gaussian
releases and approximate for subsampled ones, `advanced` is wang2015's. `profile` below picks one by name. `bayesian`,
which takes distances, estimates what a run reveals of typical people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confide import validation
from confide.privacy.events import NEIGHBOURS, Event, Neighbours

if TYPE_CHECKING:
    from confide.privacy.accountants.profiles import Profile

NAMES = ("pld", "moments", "moments-classical", "gdp", "advanced")


def profile(event: Event, neighbours: Neighbours = "add-remove", accountant: str = "pld") -> Profile:
    """The privacy profile of an event: `.epsilon(delta)`, `.delta(epsilon)`, `.trade_off(...)`, `.advantage()`."""
    validation.instance(Event, event=event)
    validation.one_of(NAMES, accountant=accountant)
    validation.one_of(NEIGHBOURS, neighbours=neighbours)
    if accountant == "pld":
        from confide.privacy.accountants import pld

        return pld.profile(event, neighbours)
    if accountant == "gdp":
        from confide.privacy.accountants import gdp

        return gdp.profile(event, neighbours)
    if accountant == "advanced":
        from confide.privacy.accountants import advanced

        return advanced.profile(event, neighbours)
    from confide.privacy.accountants import moments

    return moments.profile(event, neighbours, "classical" if accountant == "moments-classical" else "renyi")
