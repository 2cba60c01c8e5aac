"""What was claimed of a program, and whether the program as it is built again reveals more."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from confide.audits.claims import Claim
from confide.privacy import accountants
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event, Neighbours

SAME = 1e-6  # relative, of what may be computed a little differently


def priced_claim(guarantee: Guarantee, until: Callable[[int], Event] | None, steps: int) -> Claim:
    """What is claimed: of the whole run, or of its first steps where `until` prices those."""
    event = guarantee.event if until is None else until(steps)
    profile = accountants.profile(event, guarantee.neighbours, guarantee.accountant)
    epsilon = guarantee.epsilon if until is None else profile.epsilon(guarantee.delta)
    return Claim(epsilon=epsilon, delta=guarantee.delta, profile=profile.points())


def reveals_more(built: Event, priced: Event, neighbours: Neighbours) -> bool:
    """Whether some step of the program as it is built now has no step of its own that was priced for at least as much.

    Both are sums of Gaussian steps; what may overflow is not looked at, since canaries change it. Steps are given away
    in the order of their sampling probabilities, largest first, so that what was priced for one serves all later ones
    too; each takes the largest noise that is not above its own, which leaves the most to the others.
    """
    one, two = built.parts(neighbours), priced.parts(neighbours)
    if one.squared_mu > two.squared_mu * (1 + SAME):
        return True
    mine, theirs = (sorted(zip(parts[1], parts[0], parts[2], strict=True), reverse=True) for parts in (one, two))
    noises: list[float] = []  # of the priced steps that can be given away, with their numbers
    numbers: list[float] = []
    for q, noise_multiplier, count in mine:
        while theirs and theirs[0][0] >= q * (1 - SAME):
            _, other, number = theirs.pop(0)
            place = bisect.bisect(noises, other)
            noises.insert(place, other)
            numbers.insert(place, number)
        while count > 0:
            place = bisect.bisect(noises, noise_multiplier * (1 + SAME)) - 1
            if place < 0:
                return True
            taken = min(count, numbers[place])
            count, numbers[place] = count - taken, numbers[place] - taken
            if not numbers[place]:
                del noises[place], numbers[place]
    return False
