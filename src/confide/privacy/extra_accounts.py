"""Which accounts a run keeps beside the one that its guarantee rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confide import validation
from confide.validation import Refused

ACCOUNTS = ("dp", "bayesian", "individual")


@dataclass(frozen=True, kw_only=True)
class Individual:
    """Every record pays for its own gradients, and is left out once it has spent the budget.

    Attributes:
        stretch: how many times the budget a record would spend whose every gradient is as long as the clip; such a
            record is left out after that part of the run, while those with shorter gradients go on. 1 leaves nobody
            out. Those who are left out first are those whom the model predicts worst, so keep it near 1.
        histogram: the share of the budget, in squares of mu, that pays for a histogram of what single records have
            spent. It is released with the draws; 0 releases none.
    """

    stretch: float = 1.0
    histogram: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stretch", validation.positive(stretch=self.stretch))
        object.__setattr__(self, "histogram", validation.probability(zero=True, histogram=self.histogram))


@dataclass(frozen=True, kw_only=True)
class Accounts:
    bayesian: bool = False
    individual: Individual | None = None


def accounts(account: Any) -> Accounts:
    """What `account` asks for: names, or an `Individual` in the place of its name.

    >>> accounts(["dp", "bayesian"])
    Accounts(bayesian=True, individual=None)
    """
    if isinstance(account, Accounts):
        return account
    if isinstance(account, str | Individual):
        account = [account]
    if not isinstance(account, Sequence):
        raise Refused(f"account = {account!r} is no list of accounts: give names such as ['dp', 'bayesian']")
    names = [item for item in account if not isinstance(item, Individual)]
    settings = [item for item in account if isinstance(item, Individual)]
    for name in names:
        validation.one_of(ACCOUNTS, account=name)
    if len(settings) + names.count("individual") > 1 or len(set(names)) < len(names):
        raise Refused("account names the same account twice: name each once")
    if "individual" in names:
        settings = [Individual()]
    return Accounts(bayesian="bayesian" in names, individual=settings[0] if settings else None)
