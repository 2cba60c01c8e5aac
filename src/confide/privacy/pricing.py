"""Prices by name: `epsilon` and `delta` of Gaussian steps, and the guarantee of any event."""

from __future__ import annotations

import warnings
from typing import Any

from confide import validation
from confide.privacy import accountants, events
from confide.privacy.accountants.profiles import Profile
from confide.privacy.budget import MECHANISM, Guarantee
from confide.privacy.events import EVERY_ITERATE as EVERY_ITERATE
from confide.privacy.events import Event, Neighbours
from confide.validation import Refused


class ApproximateWarning(UserWarning):
    """The number is an approximation that may lie below the truth."""


def _profile(
    noise_multiplier: Any, sampling_probability: Any, steps: int | None, accountant: str, neighbours: Neighbours
) -> Profile:
    event = events.gaussian(noise_multiplier, sampling_probability, steps)
    profile = accountants.profile(event, neighbours, accountant)
    if profile.status == "approximate":
        warnings.warn(
            f"accountant = {accountant!r} is approximate for subsampled steps: use 'pld' for a guarantee",
            ApproximateWarning,
            stacklevel=3,
        )
    return profile


def epsilon(
    *,
    noise_multiplier: Any,
    delta: float,
    sampling_probability: Any = 1.0,
    steps: int | None = None,
    accountant: str = "pld",
    neighbours: Neighbours = "add-remove",
) -> float:
    """The epsilon of Gaussian steps on sums of clipped contributions, each on a Poisson batch.

    Args:
        noise_multiplier: standard deviation of the noise over the clip; a number, or one per step.
        delta: probability that the bound fails.
        sampling_probability: chance of each record to enter a batch; a number, or one per step. 1 is the full batch.
        steps: how many steps; the length of the arrays where arrays are given.
        accountant: "pld" (tight, certified), "moments", "moments-classical", "gdp" or "advanced".
        neighbours: "add-remove" (one record more or less: one clip) or "replace-one" (two clips).

    >>> round(epsilon(noise_multiplier=50.0, steps=1000, delta=1e-5), 5)
    2.59438
    >>> round(epsilon(noise_multiplier=5.0, delta=1e-5, neighbours="replace-one"), 3)
    1.555
    """
    return _profile(noise_multiplier, sampling_probability, steps, accountant, neighbours).epsilon(delta)


def delta(
    *,
    noise_multiplier: Any,
    epsilon: float,
    sampling_probability: Any = 1.0,
    steps: int | None = None,
    accountant: str = "pld",
    neighbours: Neighbours = "add-remove",
) -> float:
    """The delta of Gaussian steps at a given epsilon; arguments as for `confide.epsilon`.

    >>> f"{delta(noise_multiplier=50.0, steps=1000, epsilon=2.59438):.2g}"
    '1e-05'
    """
    return _profile(noise_multiplier, sampling_probability, steps, accountant, neighbours).delta(epsilon)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-Gaussian differential privacy at delta.

    >>> round(gdp_epsilon(0.26805, 1e-5), 3)
    1.0
    """
    from confide.privacy.accountants import gdp

    return gdp.epsilon_of_mu(mu, delta)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian differential privacy is (epsilon, delta)-DP, rounded down to ten digits.

    >>> round(gdp_mu(1.0, 1e-5), 5)
    0.26805
    """
    from confide.privacy.accountants import gdp

    return gdp.mu_of_epsilon(epsilon, delta)


def certified_profile(event: Event, neighbours: Neighbours, accountant: str) -> Profile:
    """The profile by an accountant that never says too little; approximate ones are refused."""
    profile = accountants.profile(event, neighbours, accountant)
    if profile.status == "approximate":
        raise Refused(f"accountant = {accountant!r} is approximate for this event: use 'pld'")
    return profile


_ACCOUNTANT_SENTENCES = {
    "pld": "Epsilon is a certified upper bound: privacy loss distributions, with every numerical error added to delta.",
    "moments": "Epsilon is an upper bound from Renyi moments of the privacy loss.",
    "moments-classical": "Epsilon is an upper bound from the moments of the privacy loss and their classical tail.",
    "gdp": "Epsilon is that of Gaussian differential privacy.",
    "advanced": "Epsilon is an upper bound from advanced composition.",
}
_SETTINGS = (
    "Bounds, clip, number of records, number of steps and all other settings were fixed without looking at the "
    "records, or are public."
)
_DRAWN = (  # as it is said now, and as version 1 of the mechanism said it
    "What is random was drawn from the distribution that is priced, with a secret key that was used once.",
    "The noise was drawn from an ideal Gaussian with a secret key that was used once.",
)


def guarantee(
    event: Event,
    *,
    delta: float,
    neighbours: Neighbours = "add-remove",
    accountant: str = "pld",
    released: str | None = None,
    assumptions: tuple[str, ...] = (),
) -> Guarantee:
    """Price an event and write down everything that the price rests on.

    Approximate prices are refused: a guarantee is an upper bound or nothing. `released` says in words what may be
    published, where the event's own words will not do.
    """
    validation.instance(tuple, assumptions=assumptions)
    spent = certified_profile(event, neighbours, accountant).epsilon(delta)
    if spent == float("inf"):
        remedy = "use 'pld'" if accountant != "pld" else "add noise, take fewer steps or raise delta"
        raise Refused(f"accountant = {accountant!r} certifies no finite epsilon at delta = {delta:g}: {remedy}")
    sentences = (*event.assumptions(), _SETTINGS, _DRAWN[0], _ACCOUNTANT_SENTENCES[accountant], *assumptions)
    return Guarantee(
        epsilon=spent,
        delta=delta,
        neighbours=neighbours,
        event=event,
        accountant=accountant,
        released=event.released() if released is None else released,
        assumptions=sentences,
        mechanism=MECHANISM,
    )


def verify(guarantee: Guarantee) -> float:
    """Price a guarantee's event again; refused when the stated epsilon is below the price.

    A guarantee can be verified from its JSON form. What the price covers is what the event says that it covers
    (`event.released()`), whatever the guarantee's own words are.
    """
    validation.instance(Guarantee, guarantee=guarantee)
    profile = certified_profile(guarantee.event, guarantee.neighbours, guarantee.accountant)
    if guarantee.mechanism > MECHANISM:
        raise Refused(f"mechanism = {guarantee.mechanism} is not known here: verify it with the version that wrote it")
    needed = (*guarantee.event.assumptions(), _SETTINGS, _ACCOUNTANT_SENTENCES[guarantee.accountant])
    if missing := [sentence for sentence in needed if sentence not in guarantee.assumptions]:
        raise Refused(f"assumptions lack a sentence that the price rests on: {missing[0]!r}")
    if not set(_DRAWN) & set(guarantee.assumptions):
        raise Refused(f"assumptions lack a sentence that the price rests on: {_DRAWN[0]!r}")
    spent = profile.epsilon(guarantee.delta)
    if spent > guarantee.epsilon * (1 + 1e-6) + 1e-9:
        raise Refused(
            f"epsilon = {guarantee.epsilon:g} is stated but the event costs {spent:g}: the guarantee does not hold"
        )
    return spent
