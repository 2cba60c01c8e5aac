"""What protects the rows of a ledger file: triggers that refuse bad rows, and a chain of digests over all others.

Every dataset that is entered and every charge gets a seal, the SHA-256 digest of the seal before it and of the whole
row. Whoever opens the file reads all rows and recomputes the chain, some ten microseconds a row.

**Refused by SQLite itself, while the triggers are there**: to change, delete or replace a row; a charge whose share is
not a number above 0 (so that no row that is appended can give anything back, whatever event it holds), or that takes
the sum of a dataset past its budget; a charge to a dataset that is not entered; a row out of order; a budget that is
none.

**Detected at every opening**: a row without a seal, which something else than confide appended; any row, seal, trigger
or table that was changed, removed, reordered or added after someone had taken the triggers away.

**Not detected by the file alone**: that its end was cut off, that it was set back to format 1, or that all of it was
replaced or written anew, by someone who may write it and does as this module does: there is no secret in a seal. The
seal of any charge that was kept elsewhere shows that: runs keep theirs in their plan, `confide report --ledger`
compares it, and so does `confide ledger verify --seal`. What was charged after the last seal that was kept elsewhere
can be cut off unseen. Nor does a seal say that a share is right: `verify` prices every event again.

Format 1 had no seals. Such a file is read as it is, by the same rules for its rows, and is given triggers and seals
in the first transaction that writes to it; no row is touched. What was changed before that cannot be seen by seals.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from confide.privacy import events
from confide.validation import Refused

FORMAT = 2
# Every object but the indexes that SQLite makes of keys, and what ANALYZE finds: a trigger may be called sqlite_ too.
LISTED = """SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL
    AND NOT (name IN ('sqlite_stat1', 'sqlite_stat4') AND sql LIKE 'CREATE TABLE sqlite_stat%')"""
MOST = 1 + 1e-6  # of a budget, in all charges together: more than any rounding of their shares
SAYS = "BEGIN SELECT RAISE(ABORT, '{}'); END"
APPEND_ONLY = SAYS.format("the ledger is append-only")
# As the first version wrote them, then as later ones did: the text is what a file is compared with.
FIRST = (
    """CREATE TABLE datasets (
    name TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL, neighbours TEXT NOT NULL,
    composition TEXT NOT NULL, created TEXT NOT NULL)""",
    """CREATE TABLE charges (
    id INTEGER PRIMARY KEY, receipt TEXT NOT NULL UNIQUE, dataset TEXT NOT NULL REFERENCES datasets (name),
    time TEXT NOT NULL, note TEXT NOT NULL, event TEXT NOT NULL, share REAL NOT NULL)""",
    f"CREATE TRIGGER charges_keep BEFORE UPDATE ON charges {APPEND_ONLY}",
    f"CREATE TRIGGER charges_stay BEFORE DELETE ON charges {APPEND_ONLY}",
    f"CREATE TRIGGER datasets_keep BEFORE UPDATE ON datasets {APPEND_ONLY}",
    f"CREATE TRIGGER datasets_stay BEFORE DELETE ON datasets {APPEND_ONLY}",
)
SECOND = (
    f"""CREATE TRIGGER charges_new BEFORE INSERT ON charges
    WHEN EXISTS (SELECT 1 FROM charges WHERE id = NEW.id OR receipt = NEW.receipt)
    {APPEND_ONLY}""",
    f"""CREATE TRIGGER datasets_new BEFORE INSERT ON datasets WHEN EXISTS (SELECT 1 FROM datasets WHERE name = NEW.name)
    {APPEND_ONLY}""",
)
# Triggers and not CHECKs, which could be added to no table that exists, and which a pragma turns off. They look at a
# row after it was inserted, when it has its id and its types.
THIRD = (
    """CREATE TABLE seals (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL)""",
    f"CREATE TRIGGER seals_keep BEFORE UPDATE ON seals {APPEND_ONLY}",
    f"CREATE TRIGGER seals_stay BEFORE DELETE ON seals {APPEND_ONLY}",
    f"""CREATE TRIGGER seals_new BEFORE INSERT ON seals WHEN EXISTS (SELECT 1 FROM seals WHERE id = NEW.id)
    {APPEND_ONLY}""",
    f"""CREATE TRIGGER seals_next AFTER INSERT ON seals
    WHEN NEW.id <> 1 + COALESCE((SELECT MAX(id) FROM seals WHERE id < NEW.id), 0)
    {APPEND_ONLY}""",
    f"""CREATE TRIGGER charges_next AFTER INSERT ON charges
    WHEN NEW.id <> 1 + COALESCE((SELECT MAX(id) FROM charges WHERE id < NEW.id), 0)
    {APPEND_ONLY}""",
    f"""CREATE TRIGGER charges_sound AFTER INSERT ON charges
    WHEN NOT (typeof(NEW.share) = 'real' AND NEW.share > 0 AND NEW.share <= {MOST!r}
        AND (SELECT SUM(share) FROM charges WHERE dataset = NEW.dataset) <= {MOST!r})
    {SAYS.format("a charge takes a share above 0, and all of them at most the budget")}""",
    f"""CREATE TRIGGER charges_typed AFTER INSERT ON charges
    WHEN NOT (typeof(NEW.receipt) = 'text' AND typeof(NEW.dataset) = 'text' AND typeof(NEW.time) = 'text'
        AND typeof(NEW.note) = 'text' AND typeof(NEW.event) = 'text'
        AND EXISTS (SELECT 1 FROM datasets WHERE name = NEW.dataset))
    {SAYS.format("a charge has a receipt, a time, a note, an event and a dataset that is entered")}""",
    f"""CREATE TRIGGER datasets_sound AFTER INSERT ON datasets
    WHEN NOT (typeof(NEW.name) = 'text' AND trim(NEW.name) <> '' AND typeof(NEW.created) = 'text'
        AND typeof(NEW.epsilon) = 'real' AND NEW.epsilon > 0 AND NEW.epsilon < 9e999
        AND typeof(NEW.delta) = 'real' AND NEW.delta >= 0 AND NEW.delta < 1
        AND NEW.neighbours IN ('add-remove', 'replace-one') AND NEW.composition IN ('basic', 'renyi', 'gdp'))
    {SAYS.format("a dataset has a name, a budget, a relation and a composition")}""",
)


class Tampered(Refused):
    """The file holds what confide did not write."""


class Rows(NamedTuple):
    """The rows of a ledger in order, as they are stored, and the seals of charges; none in a file of format 1."""

    datasets: list[tuple[Any, ...]]  # name, epsilon, delta, neighbours, composition, created
    charges: list[tuple[Any, ...]]  # id, receipt, dataset, time, note, event, share
    seals: list[tuple[Any, ...]]  # id, kind, name, digest
    objects: dict[str, str]
    format: int

    @property
    def head(self) -> str:
        """The last seal, which stands for everything before it."""
        return self.seals[-1][3] if self.seals else ""

    def sealed(self) -> dict[str, str]:
        """The seal of every charge, by its receipt."""
        return {name: digest for _, kind, name, digest in self.seals if kind == "charge"}


def make(connection: sqlite3.Connection) -> None:
    """The tables of a new ledger, in one transaction with whatever else it does."""
    for statement in FIRST + SECOND + THIRD:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def read(connection: sqlite3.Connection) -> Rows:
    """All rows, unchecked, where tables and triggers are confide's; inside a transaction, so that they go together."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 1 <= found <= FORMAT:
        raise Refused(f"the ledger has format {found}, this version reads up to {FORMAT}: update confide")
    listed = connection.execute(LISTED)
    objects = {name: " ".join(str(sql).split()) for name, sql in listed}
    _check_objects(objects, found)
    datasets = "SELECT name, epsilon, delta, neighbours, composition, created FROM datasets ORDER BY name"
    charges = "SELECT id, receipt, dataset, time, note, event, share FROM charges ORDER BY id"
    seals = "SELECT id, kind, name, digest FROM seals ORDER BY id"
    return Rows(
        connection.execute(datasets).fetchall(),
        connection.execute(charges).fetchall(),
        connection.execute(seals).fetchall() if found > 1 else [],
        objects,
        found,
    )


def check(rows: Rows) -> Rows:
    """The same rows; refused where one of them is not as confide wrote it."""
    names = {_check_dataset(row) for row in rows.datasets}
    spent = dict.fromkeys(names, 0.0)
    for place, row in enumerate(rows.charges, 1):
        _check_charge(place, row, spent)
        spent[row[2]] += row[6]
        if spent[row[2]] > MOST:
            raise Tampered(f"{_name(row)} takes the charges to dataset {row[2]!r} past its budget")
    if rows.format == 1:
        for row in rows.charges:
            parse(row)
    else:
        _check_chain(rows)
    return rows


def upgrade(connection: sqlite3.Connection, rows: Rows) -> Rows:
    """Give a ledger of format 1 its triggers and seals, in the transaction that goes on to write; no row changes."""
    for statement in SECOND + THIRD:
        if statement.split()[2] not in rows.objects:
            connection.execute(statement)
    head = ""
    for row in rows.datasets:
        head = seal(connection, head, "dataset", row)
    for row in rows.charges:
        head = seal(connection, head, "charge", row)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    return check(read(connection))


def seal(connection: sqlite3.Connection, head: str, kind: str, row: tuple[Any, ...]) -> str:
    """Seal a row that is being written; the new head of the chain."""
    digest = _digest(head, kind, row)
    name = row[1] if kind == "charge" else row[0]
    connection.execute("INSERT INTO seals (kind, name, digest) VALUES (?, ?, ?)", (kind, name, digest))
    return digest


def parse(row: tuple[Any, ...]) -> events.Event:
    """The event of a charge."""
    try:
        return events.from_json(json.loads(row[5]))
    except (ValueError, RecursionError) as error:  # a refusal is a ValueError
        raise Tampered(f"{_name(row)} holds no event that can be priced: {error}") from None


def _digest(head: str, kind: str, row: tuple[Any, ...]) -> str:
    return hashlib.sha256(json.dumps([head, kind, *row], allow_nan=False).encode()).hexdigest()


@cache
def _expected_parts() -> tuple[dict[str, str], ...]:
    """What a file of each version has besides rows, as SQLite itself writes it down."""
    connection, found = sqlite3.connect(":memory:"), []
    for statements in (FIRST, SECOND, THIRD):
        for statement in statements:
            connection.execute(statement)
        listed = connection.execute(LISTED)
        found.append({name: " ".join(sql.split()) for name, sql in listed})
    connection.close()
    return tuple(found)


def _check_objects(objects: dict[str, str], version: int) -> None:
    first, second, third = _expected_parts()
    least, most = (first, second) if version == 1 else (third, third)
    for name in (*most, *objects):
        if name not in objects and name in least:
            raise Tampered(f"{name!r}, which protects its rows, was removed")
        if name not in most:
            raise Tampered(f"{name!r} was added to it")
        if name in objects and objects[name] != most[name]:
            raise Tampered(f"{name!r}, which protects its rows, was changed")


def _check_dataset(row: tuple[Any, ...]) -> str:
    name, epsilon, delta, neighbours, composition, created = row
    if not (
        _texts((name, neighbours, composition, created))
        and isinstance(epsilon, float)
        and 0 < epsilon < math.inf
        and isinstance(delta, float)
        and 0 <= delta < 1
        and neighbours in events.NEIGHBOURS
        and composition in ("basic", "renyi", "gdp")
    ):
        raise Tampered(f"dataset {name!r} is entered with a budget that is none")
    return name


def _check_charge(place: int, row: tuple[Any, ...], names: Iterable[str]) -> None:
    number, _, dataset, _, _, _, share = row
    if number != place:
        raise Tampered(f"{_name(row)} stands where charge {place} is expected")
    if not (isinstance(share, float) and 0 <= share <= MOST):
        raise Tampered(f"{_name(row)} is entered at {share!r} of the budget, which no charge takes")
    if not _texts(row[1:6]) or dataset not in names:
        raise Tampered(f"{_name(row)} is to no dataset that is entered, or is no charge")


def _check_chain(rows: Rows) -> None:
    datasets = {row[0]: row for row in rows.datasets}
    charges, head = iter(rows.charges), ""
    for place, (number, kind, name, digest) in enumerate(rows.seals, 1):
        row = next(charges, None) if kind == "charge" else datasets.pop(name, None)
        if number != place or row is None:
            raise Tampered(f"the row that seal {number} is of, {kind} {name!r}, was removed")
        if digest != _digest(head, kind, row):
            raise Tampered(f"{_name(row) if kind == 'charge' else f'dataset {name!r}'} was changed after it was sealed")
        head = digest
    for row in charges:
        raise Tampered(f"{_name(row)} is entered at {row[6]:.6g} of the budget without a seal")
    for name in datasets:
        raise Tampered(f"dataset {name!r} is entered without a seal")


def _texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _name(row: tuple[Any, ...]) -> str:
    return f"charge {row[0]} (receipt {row[1]!r})"
