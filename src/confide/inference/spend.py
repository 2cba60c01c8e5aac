"""Paying for a run or a release: one function, and the only way to a key that noise is drawn from.

The order is the promise. Everything is checked and priced, and refused where it costs more than the budget; then the
plan is shown; then a key that was given is bound to the records and all settings by their fingerprint; then the
checkpoint is written, by whose receipt a killed run is charged once, however often it goes on; then the ledger is
charged. Only then are the records used, and nothing is refused any more.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from confide.inference import checkpoints, loop
from confide.inference.checkpoints import Checkpoint, CheckpointFile
from confide.inference.summaries.runs import Priced
from confide.mechanism import noise
from confide.models.inputs import Records
from confide.privacy import charges, pricing
from confide.privacy.budget import MECHANISM, Budget, Guarantee
from confide.privacy.events import Event
from confide.privacy.large_delta import warn_of_large_delta
from confide.privacy.ledger import Ledger
from confide.validation import Refused

S = TypeVar("S", bound=Priced)
ONE_RECORD = "What the model says of one record depends on that record and the parameters alone."
DOMAIN = (
    "The number of records is the declared one, and shapes and types of the arrays are public; a record with a number "
    "that is missing or infinite, or with an outcome that the model does not know, counts as absent."
)
GIVEN_KEY = (
    "The noise was derived from a number that was given by the caller, who kept it secret so that nobody can guess it, "
    "from the records and from all settings."
)
Account = tuple[Ledger, str]  # the ledger, and the name of the dataset in it


@dataclass(frozen=True, kw_only=True)
class Purchase(Generic[S]):
    """A run or a release, decided and not yet paid for."""

    event: Event
    summary: S  # what is stored and printed of it
    released: str
    assumptions: tuple[str, ...]
    data: Records
    details: Callable[[], dict[str, Any]]  # whatever else decides it and is not in its summary
    public: tuple[np.ndarray, ...] = ()  # arrays that it depends on beside the records
    first_state: Callable[[], list[np.ndarray]] = list  # where it begins, for a checkpoint
    remedy: str  # where it costs too much
    what: str = "run"
    note: str = "confide.fit"  # in the ledger
    remarks: tuple[str, ...] = ()  # further lines of the printed plan, which no file holds


class Key(NamedTuple):
    source: Any  # what everything is drawn from: a key, or bits of the operating system's
    given: bool  # whether the caller chose it


@dataclass(frozen=True, kw_only=True)
class Paid(Generic[S]):
    """What may use the records."""

    guarantee: Guarantee
    summary: S
    source: Any
    begun: Checkpoint | None = None

    def key(self, purpose: str) -> jax.Array:
        """For all that is no noise."""
        return noise.key_of(self.noise(purpose), 0)

    def noise(self, purpose: str) -> Any:
        return noise.separate(self.source, purpose)


def spend(
    purchase: Purchase[S],
    budget: Budget,
    account: Account | None,
    key: Key,
    checkpoint: CheckpointFile | None = None,
    verbose: bool = True,
) -> Paid[S]:
    """Price, print, fingerprint, write the checkpoint, charge."""
    guarantee = _price(purchase, budget)
    priced = {"mechanism": MECHANISM, "budget": budget.to_json(), "epsilon": guarantee.epsilon}
    summary = replace(purchase.summary, **priced)
    if verbose:
        print(summary.to_text(guarantee, purchase.remarks), file=sys.stderr)
    warn_of_large_delta(guarantee.delta, summary.records)
    resumed = None if checkpoint is None else checkpoint.found
    mark, source, salt = "", key.source, b""
    if checkpoint is not None or key.given:
        salt = loop.secret(noise.separate(source, "digest of records")) if resumed is None else resumed.salt
        details = {"event": purchase.event.to_json(), **purchase.details()}
        records = checkpoints.digest_records(purchase.data.arrays, purchase.data.present, salt, purchase.public)
        settings = summary.to_json() | details
        settings.pop("epsilon")  # it follows from the event, and its last digits depend on the processor
        mark = checkpoints.fingerprint(settings, records)
        if key.given and resumed is None:
            source = noise.own(source, mark)
    begun = None
    if checkpoint is not None:
        receipt, secret = uuid.uuid4().hex, loop.secret(source)
        begun = checkpoint.begin(
            mark, lambda: Checkpoint(mark, receipt, secret, key.given, 0, purchase.first_state(), salt, MECHANISM)
        )
    if account is not None:
        summary = replace(summary, ledger=_charge(purchase, account, begun, checkpoint))
    if begun is not None:
        summary = replace(summary, run=begun.receipt)
    return Paid(guarantee=guarantee, summary=summary, source=source, begun=begun)


def _price(purchase: Purchase[Any], budget: Budget) -> Guarantee:
    guarantee = pricing.guarantee(
        purchase.event,
        delta=budget.delta,
        neighbours=budget.neighbours,
        released=purchase.released,
        assumptions=purchase.assumptions,
    )
    if guarantee.epsilon > budget.epsilon * (1 + 1e-6):
        raise Refused(
            f"the {purchase.what} costs epsilon {guarantee.epsilon:.6g} but the budget is {budget.epsilon:g}: "
            f"{purchase.remedy}"
        )
    return guarantee


def _charge(
    purchase: Purchase[Any], account: Account, begun: Checkpoint | None, checkpoint: CheckpointFile | None
) -> dict[str, Any]:
    try:
        charge = charges.charge_run(*account, purchase.event, begun, purchase.note)
    except Refused:  # an interruption may have come after the charge: then the checkpoint stays
        if checkpoint is not None and not charges.is_paid(*account, begun):
            checkpoint.abandon()
        raise
    return charges.entry(*account, charge)
