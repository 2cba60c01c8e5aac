r"""Private Fisher scoring: a few noisy sums over all records, asked for where they tell most, and draws that know of
their noise.

    scale of the rows -> information at the start -> sums of bounded scores at the mode of what is known -> information

A budget buys one Gaussian release of strength mu, however it is divided: mu^2 = sum_j (sensitivity_j / noise_j)^2. A
chain that wanders spends it on the way. Here it is spent on sums near the truth, in coordinates in which all directions
are told alike, and the draws are those of the posterior given what was released (`confide.inference.noise_aware`).

Formal guarantee: every sum is the Gaussian mechanism on all records, and everything released is what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.data.features import Feature, read_features
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.samplers.sampler import Sampler
from confide.validation import Refused

DRAWS = 2000
PRIOR_SCALE = 2.5  # of coefficients of standardised columns


@dataclass(frozen=True, kw_only=True)
class Scoring(Sampler):
    """The settings of `confide.scoring`."""

    draws: int = DRAWS
    constant: int | None = None
    categories: tuple[tuple[int, ...], ...] = ()
    rehearsals: int = 0
    features: tuple[Feature, ...] | None = None
    outcome: tuple[float, float] | None = None
    prior: str = "standardised"
    prior_scale: float = PRIOR_SCALE

    kind = "scoring"
    learns_noise_scale = True
    remedy = "raise the budget"

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {} if self.constant is None else {"constant": self.constant}
        told |= {"categories": [list(each) for each in self.categories]} if self.categories else {}
        told |= {"rehearsals": self.rehearsals} if self.rehearsals else {}
        if self.features is not None:
            told |= {"features": [feature._asdict() for feature in self.features]}
        return {"sampler": self.name} | told


def scoring(
    draws: int = DRAWS,
    constant: int | None = None,
    categories: Sequence[Sequence[int]] = (),
    *,
    rehearsals: int = 0,
    features: Sequence[Feature | Mapping[str, Any]] | None = None,
    outcome: Sequence[float] | None = None,
    prior: str = "standardised",
    prior_scale: float = PRIOR_SCALE,
) -> Sampler:
    """Private Fisher scoring, for generalised linear models.

    Args:
        draws: independent draws of the posterior given what was released; they cost nothing more.
        constant: the column of X that is 1 for every record, where the model has no intercept of its own: -1 for the
            last one. It is public, and no record is looked at for it.
        categories: the columns of each category, as [[0, 1, 2], [5, 6]]: in every record one of them is 1, and the
            others are 0. (Or as much as a column is in all records, which then is a category by itself.) No record
            tells what the levels of a category have in common apart from the constant, and draws then know that.
            Public as well.
        rehearsals: tables that are made up from what was released, and fitted by the same program. Where its intervals
            hold the made-up truths too seldom, draws are drawn away from their mean by as much (a parametric
            bootstrap, `confide.rehearse`). It costs time and no budget; 50 are usual, 0 is none.
        features: what is public about each column of X beside the constant, as [{"kind": "numeric", "low": 0, "high":
            120}, {"kind": "boolean"}, {"kind": "level", "group": 0}, ...]. Columns are then centred and scaled by what
            they hold, which is bought from the budget, so that wide bounds cost little; intervals do not rest on the
            model's variance. A schema gives them by itself.
        outcome: with features, public bounds of the outcome of a linear or count model.
        prior: with features, "standardised": `prior_scale` is the standard deviation of the coefficient of a column
            that has standard deviation 1; or "encoded": that of the model, on columns as they are in X.
        prior_scale: with the standardised prior; the intercept of centred columns has twice as much.

    >>> scoring().to_json()
    {'sampler': 'scoring'}
    """
    if constant is not None and (isinstance(constant, bool) or not isinstance(constant, int)):
        raise Refused(f"constant = {constant!r} is no column: give its number, or leave it out")
    groups = check_categories(categories)
    if outcome is not None:
        outcome = _check_outcome(outcome)
    if rehearsals:
        rehearsals = validation.count(rehearsals=rehearsals)
    return Scoring(
        name="scoring",
        build=_by_questions,
        draws=validation.count(draws=draws),
        constant=constant,
        categories=groups,
        rehearsals=rehearsals,
        features=None if features is None else read_features(features),
        outcome=outcome,
        prior=validation.one_of(("standardised", "encoded"), prior=prior),
        prior_scale=validation.positive(prior_scale=prior_scale),
    )


def _check_outcome(given: Sequence[float]) -> tuple[float, float]:
    if isinstance(given, str) or len(given) != 2:
        raise Refused("outcome is no pair of numbers: write (low, high)")
    low, high = (validation.number("outcome", value) for value in given)
    if not low < high:
        raise Refused(f"outcome = ({low:g}, {high:g}) has no room: give public bounds")
    return low, high


def check_categories(given: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    try:
        groups = tuple(tuple(each) for each in given)
    except TypeError:
        raise Refused(
            "categories is no list of lists: give the columns of each category, as [[0, 1, 2], [5, 6]]"
        ) from None
    columns = [column for each in groups for column in each]
    if not all(groups) or not all(type(column) is int for column in columns):
        raise Refused("categories has something that is no column: give their numbers, as [[0, 1, 2], [5, 6]]")
    if len(set(columns)) < len(columns):
        raise Refused("categories names a column twice: one belongs to one category at most")
    return groups


def _by_questions(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    raise Refused("scoring() is planned from a budget: use confide.fit")
