"""Charging a ledger for a run: which entry, once and before the records are used, and what the plan says of it."""

from __future__ import annotations

from typing import Any, Protocol

from confide.privacy.events import Event, Neighbours
from confide.privacy.ledger import Charge, Ledger
from confide.validation import Refused


class Begun(Protocol):
    """What is kept of a run that can be interrupted: its receipt, and how far it came."""

    @property
    def receipt(self) -> str: ...

    @property
    def block(self) -> int: ...


def open_account(ledger: Any, dataset: str | None, neighbours: Neighbours) -> tuple[Ledger, str] | None:
    """The ledger and the dataset's name in it; None where no ledger is given.

    Refused where the run's relation is not that of the dataset's budget. An event can be priced for either, but a run
    is more than its event: what it drops, refuses, counts and publishes follows from its own relation, and so do the
    guarantee and the plan that it prints. Priced for another relation, the charge would be of a run that was not made.
    """
    if ledger is None:
        if dataset is not None:
            raise Refused(f"dataset = {dataset!r} is given without a ledger: give the ledger that it is entered in")
        return None
    ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    book = ledger.book()
    if dataset is None:
        if len(book.accounts) != 1:
            raise Refused(f"the ledger holds {len(book.accounts)} datasets: name the one that is used with dataset=")
        dataset = book.accounts[0].name
    account = book.account(dataset)
    if account.budget.neighbours != neighbours:
        raise Refused(
            f"the run is for neighbours = {neighbours!r}, but the budget of dataset {account.name!r} is for "
            f"{account.budget.neighbours!r}: run it with that"
        )
    return ledger, account.name


def charge_run(
    ledger: Ledger, dataset: str, event: Event, begun: Begun | None = None, note: str = "confide.fit"
) -> Charge:
    """The charge of the run; one that goes on was charged when it began."""
    if begun is None:
        return ledger.charge(dataset, event, note=note)
    for charge in ledger.history(dataset):
        if charge.receipt == begun.receipt and charge.event == event:
            return charge
    if begun.block > 0:
        raise Refused("the checkpoint's charge is not in this ledger: give the ledger that the run began with")
    return ledger.charge(dataset, event, note=note, receipt=begun.receipt)


def standing(account: tuple[Ledger, str] | None, begun: Begun) -> str:
    """What a run that will not be continued has cost, in words."""
    if account is None:
        return "no ledger was given, so count the whole of its budget as spent"
    ledger, dataset = account
    found = [charge for charge in ledger.history(dataset) if charge.receipt == begun.receipt]
    if not found:
        return f"nothing was charged to {dataset!r} for it"
    return f"its charge to {dataset!r} (receipt {begun.receipt[:8]}, share {found[0].share:.4g}) stays"


def is_paid(ledger: Ledger, dataset: str, begun: Begun | None) -> bool:
    """Whether the run's charge is in the ledger; also where that cannot be found out."""
    try:
        return begun is not None and any(charge.receipt == begun.receipt for charge in ledger.history(dataset))
    except Refused:
        return True


def entry(ledger: Ledger, dataset: str, charge: Charge) -> dict[str, Any]:
    """What the run took from the ledger and what it left, which depends on no record.

    It is published with the run, and so gives the day of the charge alone: the exact times of two events tell how long
    a run took, which can depend on records. The ledger keeps the exact time for its owner.
    """
    account = ledger.account(dataset)
    try:
        left = ledger.left(dataset)._asdict()
    except Refused:  # busy, perhaps: the charge is made, and the run goes on
        left = None
    return {
        "dataset": dataset,
        "receipt": charge.receipt,
        "seal": charge.seal,
        "time": charge.time[:10],
        "budget": account.budget.to_json(),
        "composition": account.composition,
        "share": charge.share,
        "left": left,
    }
