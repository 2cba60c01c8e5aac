"""The ledger: a file that knows what has been spent on each dataset, and refuses what would be too much.

A run is charged before it starts. Nothing is ever refunded: a crash after the charge has cost what it cost. Each row
holds the whole event, so that anyone can price the history again from the file alone (`verify`). SQLite gives the
atomicity: a charge reads the history, decides and writes under one write lock, and is on disk before `charge` returns.

No row that is appended can give anything back, and whatever was changed by hand is refused by all that opens the file,
in one line that names the row. `privacy.seals` does that, and says precisely what it cannot see: who may write the file
can cut off its end or write all of it anew, which shows only beside a seal that was kept elsewhere. So guard the file
as you would the data.

What a charge takes of a budget is priced in `shares.py`, for the relation of the dataset's budget. A run is charged to
a dataset of its own relation alone: what it refuses, does and says of itself is then what the price is of.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from confide import validation
from confide.privacy import seals
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.filters import Account, Left
from confide.privacy.seals import Rows, Tampered
from confide.validation import Refused

APPLICATION_ID = 0x636F6E66  # "conf", in the header of the SQLite file
ROUNDING = 1e-9  # of the budget: three charges of a third must fit
REMEDY = "go back to the last copy that opens, and charge again what was charged since"
LEAST = 1e-15  # of the budget: nothing is free


class BudgetExceeded(Refused):
    """The charge does not fit; nothing was charged. `left` is what would have fitted."""

    def __init__(self, message: str, left: Left) -> None:
        super().__init__(message)
        self.left = left

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[str, Left]]:
        """So that it comes back whole from another process."""
        return type(self), (str(self), self.left)


class Charge(NamedTuple):
    receipt: str
    dataset: str
    time: str
    note: str
    event: Event
    share: float
    seal: str = ""  # that it was given in the file; none in a ledger that an earlier version wrote


class Book:
    """A ledger as it stood at one moment, every row and seal of it checked."""

    def __init__(self, rows: Rows) -> None:
        self.head = rows.head
        self.accounts = [
            Account(name, Budget(epsilon=epsilon, delta=delta, neighbours=neighbours), composition)
            for name, epsilon, delta, neighbours, composition, _ in rows.datasets
        ]
        self._rows = rows

    def account(self, dataset: str) -> Account:
        for account in self.accounts:
            if account.name == dataset:
                return account
        raise Refused(f"dataset = {dataset!r} is not in the ledger: enter it with its budget first")

    def spent(self, dataset: str) -> float:
        return math.fsum(row[6] for row in self._rows.charges if row[2] == dataset)

    def left(self, dataset: str) -> Left:
        return self.account(dataset).left(max(0.0, 1 - self.spent(dataset)))

    def history(self, dataset: str) -> list[Charge]:
        name, sealed = self.account(dataset).name, self._rows.sealed()
        found = []
        for row in self._rows.charges:
            _, receipt, charged, time, note, _, share = row
            if charged == name:
                found.append(Charge(receipt, charged, time, note, seals.parse(row), share, sealed.get(receipt, "")))
        return found

    def holds(self, seal: str) -> bool:
        """Whether a seal, of which 16 digits are enough, is in the chain."""
        return len(seal) >= 16 and any(row[3].startswith(seal.lower()) for row in self._rows.seals)

    def next(self, receipt: str) -> int:
        """The number of the next charge; refused where the receipt is another's."""
        if any(row[1] == receipt for row in self._rows.charges):
            raise Refused(f"receipt = {receipt!r} is in the ledger already: the ledger is append-only, give another")
        return len(self._rows.charges) + 1


class Ledger:
    """A ledger file, shared by any number of processes.

    >>> import tempfile
    >>> from confide import events
    >>> ledger = Ledger.create(Path(tempfile.mkdtemp()) / "ledger.db")
    >>> ledger.enter("patients", Budget(epsilon=1.0, delta=1e-5))
    >>> charge = ledger.charge("patients", events.Release(epsilon=0.25), note="a count")
    >>> round(ledger.left("patients").epsilon, 2)
    0.75
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float = 30.0) -> None:
        validation.instance(str | os.PathLike, path=path)
        self.path = Path(path)
        self.timeout = validation.positive(timeout=timeout)
        if not self.path.is_file():
            what = "is not a file" if self.path.exists() else "does not exist"
            raise Refused(f"ledger {str(self.path)!r} {what}: make one with 'confide ledger create'")
        self.book()

    @classmethod
    def create(cls, path: str | os.PathLike[str], timeout: float = 30.0) -> Ledger:
        """A new, empty ledger; an existing file is refused, never overwritten."""
        path = Path(path)
        exists = Refused(f"ledger {str(path)!r} exists: enter a dataset into it, or choose another path")
        if path.exists():
            raise exists
        if not path.parent.is_dir():
            raise Refused(f"ledger {str(path)!r} lies in a folder that does not exist: make the folder first")
        # Made complete under another name and then linked, so that no other process ever sees half a ledger.
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            connection = sqlite3.connect(draft, isolation_level=None)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("BEGIN")
            seals.make(connection)
            connection.execute("COMMIT")
            connection.close()
            os.link(draft, path)
        except FileExistsError:
            raise exists from None
        except (sqlite3.Error, OSError) as error:
            raise Refused(f"ledger {str(path)!r} cannot be made: {error}") from None
        finally:
            draft.unlink(missing_ok=True)
        return cls(path, timeout)

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[tuple[sqlite3.Connection, Rows]]:
        """A transaction with the rows that it begins with, unchecked."""
        connection = None
        try:
            # Read-write wherever allowed, also to read: only so can SQLite undo what a killed process left half done.
            mode = "rw" if write or os.access(self.path, os.W_OK) else "ro"
            address = f"{self.path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(address, uri=True, timeout=self.timeout, isolation_level=None)
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise Refused(f"{str(self.path)!r} is not a confide ledger: give the path of one")
            if write and not os.access(self.path, os.W_OK):
                raise Refused(f"ledger {str(self.path)!r} is read-only: ask its owner for write access")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection, seals.read(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise Refused(self._explained(error)) from None
        except Tampered as found:
            raise Tampered(f"ledger {str(self.path)!r} was changed by hand: {found}; {REMEDY}") from None
        finally:
            if connection is not None:
                connection.close()

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, Book]]:
        with self._transaction(write=True) as (connection, found):
            rows = seals.check(found)
            if rows.format < seals.FORMAT:
                rows = seals.upgrade(connection, rows)
            yield connection, Book(rows)

    def book(self) -> Book:
        """Everything in the ledger at this moment; refused where it was changed by hand."""
        with self._transaction() as (_, rows):
            return Book(seals.check(rows))

    def _explained(self, error: sqlite3.DatabaseError) -> str:
        text = str(error)
        if "locked" in text or "busy" in text:
            return (
                f"ledger {str(self.path)!r} is locked by another process for over {self.timeout:g} s: try again later"
            )
        if "readonly" in text or "read-only" in text:
            return f"ledger {str(self.path)!r} is read-only: ask its owner for write access"
        if "malformed" in text:
            return f"ledger {str(self.path)!r} is damaged ({text}): {REMEDY}"
        if "not a database" in text:
            return f"{str(self.path)!r} is not a confide ledger: give the path of one"
        return f"ledger {str(self.path)!r} cannot be used: {text}"

    def enter(self, dataset: str, budget: Budget, composition: str = "basic") -> None:
        """Enter a dataset with the budget that all charges together may never exceed; it cannot be changed later."""
        name = Account.checked(dataset, budget, composition).name
        row = (name, budget.epsilon, budget.delta, budget.neighbours, composition, _now())
        with self._writing() as (connection, book):
            if any(account.name == name for account in book.accounts):
                raise Refused(f"dataset = {name!r} is in the ledger already: its budget cannot be changed")
            connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?)", row)
            _check_kept(connection, seals.seal(connection, book.head, "dataset", row))

    def charge(self, dataset: str, event: Event, note: str = "", receipt: str | None = None) -> Charge:
        """Charge an event before it happens; raises BudgetExceeded, with nothing charged, when it does not fit.

        A `receipt` that was chosen beforehand cannot be charged twice.
        """
        account = self.account(dataset)
        validation.instance(Event, event=event)
        validation.instance(str, note=note)
        # Priced before the lock is taken: the share of an event does not depend on other charges.
        encoded, share = json.dumps(event.to_json(), allow_nan=False), max(account.share(event), LEAST)
        receipt = receipt or uuid.uuid4().hex
        with self._writing() as (connection, book):
            spent = book.spent(account.name)
            if not spent + share <= 1 + ROUNDING:
                raise _refuse(account, share, account.left(max(0.0, 1 - spent)))
            row = (book.next(receipt), receipt, account.name, _now(), note, encoded, share)
            connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            seal = seals.seal(connection, book.head, "charge", row)
            _check_kept(connection, seal)
        return Charge(*row[1:5], event, share, seal)

    def account(self, dataset: str) -> Account:
        """The budget of one dataset."""
        return self.book().account(dataset)

    def accounts(self) -> list[Account]:
        """All datasets, with their budgets."""
        return self.book().accounts

    def history(self, dataset: str) -> list[Charge]:
        """Every charge, oldest first, with its whole event."""
        return self.book().history(dataset)

    def left(self, dataset: str) -> Left:
        """What a further charge may take."""
        return self.book().left(dataset)

    def find(self, seal: str) -> None:
        """Refused where a seal that was kept elsewhere, whole or its first 16 digits, is not in the ledger any more."""
        validation.instance(str, seal=seal)
        if not self.book().holds(seal):
            raise Refused(
                f"seal = {seal!r} is not in ledger {str(self.path)!r}: rows were cut off or written anew, it is of "
                "another ledger, or has less than 16 digits"
            )

    def verify(self, dataset: str) -> float:
        """Price every charge again from its event: the share spent. Refused if the rows say less, or it is over 1."""
        book = self.book()
        account, total = book.account(dataset), 0.0
        for charge in book.history(dataset):
            try:
                share = account.share(charge.event)
            except Refused as refusal:
                raise Refused(f"charge {charge.receipt} cannot be priced: {refusal}") from None
            if share > charge.share * (1 + 1e-6):
                raise Refused(f"charge {charge.receipt} is entered at {charge.share:.6g} but takes {share:.6g}")
            total += share
        if total > 1 + 1e-6:
            raise Refused(f"dataset = {dataset!r} is overspent: its charges take {total:.6g} of the budget")
        return total


def _check_kept(connection: sqlite3.Connection, seal: str) -> None:
    """Read back, before the transaction ends, that a row is in the file and nothing has swallowed it."""
    if seals.check(seals.read(connection)).head != seal:
        raise seals.Tampered("the ledger does not keep what is written to it: restore it from a copy")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _refuse(account: Account, share: float, left: Left) -> BudgetExceeded:
    return BudgetExceeded(
        f"the charge takes {share:.4%} of the budget of dataset {account.name!r}, which has {left.share:.4%} left: "
        f"epsilon {left.epsilon:.6g}, delta {left.delta:.3g} of ({account.budget.epsilon:g}, {account.budget.delta:g})",
        left,
    )
