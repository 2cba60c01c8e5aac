"""The ledger: a file that knows what has been spent on each dataset, and refuses what would be too much.

A run is charged before it starts. Nothing is ever refunded: a crash after the charge has cost what it cost. Each row
holds the whole event, so that anyone can price the history again from the file alone (`verify`), and triggers refuse
to change or delete rows; who may write the file could remove them, so guard the file as you would the data. SQLite
gives the atomicity: a charge reads the history, decides and writes under one write lock, and is on disk before
`charge` returns.

What a charge takes of a budget is priced in `shares.py`.
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

from confide import checks, events
from confide.budget import Budget
from confide.checks import Refused
from confide.events import Event
from confide.shares import Account, Left

APPLICATION_ID = 0x636F6E66  # "conf", in the header of the SQLite file
FORMAT = 1
ROUNDING = 1e-9  # of the budget: three charges of a third must fit
SCHEMA = """
CREATE TABLE datasets (
    name TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL, neighbours TEXT NOT NULL,
    composition TEXT NOT NULL, created TEXT NOT NULL);
CREATE TABLE charges (
    id INTEGER PRIMARY KEY, receipt TEXT NOT NULL UNIQUE, dataset TEXT NOT NULL REFERENCES datasets (name),
    time TEXT NOT NULL, note TEXT NOT NULL, event TEXT NOT NULL, share REAL NOT NULL);
CREATE TRIGGER charges_keep BEFORE UPDATE ON charges BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER charges_stay BEFORE DELETE ON charges BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER charges_new BEFORE INSERT ON charges
    WHEN EXISTS (SELECT 1 FROM charges WHERE id = NEW.id OR receipt = NEW.receipt)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER datasets_new BEFORE INSERT ON datasets WHEN EXISTS (SELECT 1 FROM datasets WHERE name = NEW.name)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER datasets_keep BEFORE UPDATE ON datasets BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER datasets_stay BEFORE DELETE ON datasets BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


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


class Ledger:
    """A ledger file, shared by any number of processes.

    >>> import tempfile
    >>> ledger = Ledger.create(Path(tempfile.mkdtemp()) / "ledger.db")
    >>> ledger.enter("patients", Budget(epsilon=1.0, delta=1e-5))
    >>> charge = ledger.charge("patients", events.Release(epsilon=0.25), note="a count")
    >>> round(ledger.left("patients").epsilon, 2)
    0.75
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float = 30.0) -> None:
        checks.instance(str | os.PathLike, path=path)
        self.path = Path(path)
        self.timeout = checks.positive(timeout=timeout)
        if not self.path.is_file():
            what = "is not a file" if self.path.exists() else "does not exist"
            raise Refused(f"ledger {str(self.path)!r} {what}: make one with 'confide ledger create'")
        with self._connection():
            pass

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
            connection = sqlite3.connect(draft)
            connection.executescript(
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; {SCHEMA}"
            )
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
    def _connection(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        connection = None
        try:
            # Read-write wherever allowed, also to read: only so can SQLite undo what a killed process left half done.
            mode = "rw" if write or os.access(self.path, os.W_OK) else "ro"
            address = f"{self.path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(address, uri=True, timeout=self.timeout, isolation_level=None)
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise Refused(f"{str(self.path)!r} is not a confide ledger: give the path of one")
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found != FORMAT:
                raise Refused(
                    f"ledger {str(self.path)!r} has format {found}, this version reads {FORMAT}: update confide"
                )
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            if not write:
                yield connection
                return
            if not os.access(self.path, os.W_OK):
                raise Refused(f"ledger {str(self.path)!r} is read-only: ask its owner for write access")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise Refused(self._explained(error)) from None
        finally:
            if connection is not None:
                connection.close()

    def _explained(self, error: sqlite3.DatabaseError) -> str:
        text = str(error)
        if "locked" in text or "busy" in text:
            return (
                f"ledger {str(self.path)!r} is locked by another process for over {self.timeout:g} s: try again later"
            )
        if "readonly" in text or "read-only" in text:
            return f"ledger {str(self.path)!r} is read-only: ask its owner for write access"
        if "not a database" in text or "malformed" in text:
            return f"{str(self.path)!r} is not a confide ledger: give the path of one"
        return f"ledger {str(self.path)!r} cannot be used: {text}"

    def enter(self, dataset: str, budget: Budget, composition: str = "basic") -> None:
        """Enter a dataset with the budget that all charges together may never exceed; it cannot be changed later."""
        name = Account.checked(dataset, budget, composition).name
        row = (name, budget.epsilon, budget.delta, budget.neighbours, composition, _now())
        with self._connection(write=True) as connection:
            if connection.execute("SELECT 1 FROM datasets WHERE name = ?", (name,)).fetchone():
                raise Refused(f"dataset = {name!r} is in the ledger already: its budget cannot be changed")
            connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?)", row)

    def charge(self, dataset: str, event: Event, note: str = "", receipt: str | None = None) -> Charge:
        """Charge an event before it happens; raises BudgetExceeded, with nothing charged, when it does not fit.

        A `receipt` that was chosen beforehand cannot be charged twice.
        """
        account = self.account(dataset)
        checks.instance(Event, event=event)
        checks.instance(str, note=note)
        # Priced before the lock is taken: the share of an event does not depend on other charges.
        encoded, share = json.dumps(event.to_json(), allow_nan=False), account.share(event)
        with self._connection(write=True) as connection:
            spent = _spent(connection, account.name)
            if not spent + share <= 1 + ROUNDING:
                raise _exceeded(account, share, account.left(max(0.0, 1 - spent)))
            charge = Charge(receipt or uuid.uuid4().hex, account.name, _now(), note, event, share)
            connection.execute(
                "INSERT INTO charges (receipt, dataset, time, note, event, share) VALUES (?, ?, ?, ?, ?, ?)",
                (charge.receipt, charge.dataset, charge.time, charge.note, encoded, share),
            )
        return charge

    def account(self, dataset: str) -> Account:
        """The budget of one dataset."""
        for account in self.accounts():
            if account.name == dataset:
                return account
        raise Refused(f"dataset = {dataset!r} is not in the ledger: enter it with its budget first")

    def accounts(self) -> list[Account]:
        """All datasets, with their budgets."""
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT name, epsilon, delta, neighbours, composition FROM datasets ORDER BY name"
            ).fetchall()
        return [
            Account(name, Budget(epsilon=epsilon, delta=delta, neighbours=neighbours), composition)
            for name, epsilon, delta, neighbours, composition in rows
        ]

    def history(self, dataset: str) -> list[Charge]:
        """Every charge, oldest first, with its whole event."""
        name = self.account(dataset).name
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT receipt, dataset, time, note, event, share FROM charges WHERE dataset = ? ORDER BY id", (name,)
            ).fetchall()
        return [
            Charge(receipt, dataset, time, note, events.from_json(json.loads(event)), share)
            for receipt, dataset, time, note, event, share in rows
        ]

    def left(self, dataset: str) -> Left:
        """What a further charge may take."""
        account = self.account(dataset)
        with self._connection() as connection:
            return account.left(max(0.0, 1 - _spent(connection, account.name)))

    def verify(self, dataset: str) -> float:
        """Price every charge again from its event: the share spent. Refused if the rows say less, or it is over 1."""
        account, total = self.account(dataset), 0.0
        for charge in self.history(dataset):
            share = account.share(charge.event)
            if share > charge.share * (1 + 1e-6):
                raise Refused(f"charge {charge.receipt} is entered at {charge.share:.6g} but takes {share:.6g}")
            total += share
        if total > 1 + 1e-6:
            raise Refused(f"dataset = {dataset!r} is overspent: its charges take {total:.6g} of the budget")
        return total


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _spent(connection: sqlite3.Connection, name: str) -> float:
    return math.fsum(row[0] for row in connection.execute("SELECT share FROM charges WHERE dataset = ?", (name,)))


def _exceeded(account: Account, share: float, left: Left) -> BudgetExceeded:
    return BudgetExceeded(
        f"the charge takes {share:.4%} of the budget of dataset {account.name!r}, which has {left.share:.4%} left: "
        f"epsilon {left.epsilon:.6g}, delta {left.delta:.3g} of ({account.budget.epsilon:g}, {account.budget.delta:g})",
        left,
    )
