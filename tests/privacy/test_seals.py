"""What a ledger refuses to take, what it shows of having been changed, and what becomes of older ones; real files."""

import contextlib
import json
import multiprocessing
import os
import sqlite3
import sys
import time

import numpy as np
import pytest

import confide
from confide import baselines, events
from confide.app import cli
from confide.privacy import charges, seals
from confide.privacy.budget import Budget
from confide.privacy.events import GaussianRelease, Release
from confide.privacy.ledger import BudgetExceeded, Ledger
from confide.privacy.seals import Tampered
from confide.validation import Refused
from helpers.fits import MODEL, X, Y, fit

BUDGET = Budget(epsilon=1.0, delta=1e-5)
EVENT = '{"event": "Release", "epsilon": 0.5}'
GOOD = {"receipt": "x", "dataset": "patients", "time": "now", "note": "", "event": EVENT, "share": 0.01}


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    made = Ledger.create(tmp_path / "ledger.db")
    made.enter("patients", BUDGET)
    for _ in range(3):
        made.charge("patients", Release(epsilon=0.25))
    return made


def by_hand(path, *statements, values=()):
    """Whatever a person does with sqlite3, foreign keys off as they are by default."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            connection.execute(statement, values)
    finally:
        connection.close()


def appended(path, table="charges", **row):
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    by_hand(path, f"INSERT INTO {table} ({columns}) VALUES ({marks})", values=tuple(row.values()))


FORGED = {
    "negative": {"share": -0.5},
    "a little negative": {"share": -1e-300},
    "nothing": {"share": 0.0},
    "not a number": {"share": float("nan")},
    "infinite": {"share": float("inf")},
    "infinitely negative": {"share": float("-inf")},
    "more than all": {"share": 1.5},
    "more than is left": {"share": 0.3},
    "a word": {"share": "much"},
    "a negative word": {"share": "-0.5x"},
    "a negative number in words": {"share": "-0.5"},
    "bytes": {"share": b"-0.5"},
    "no share": {"share": None},
    "no dataset": {"dataset": "nobody"},
    "bytes for a dataset": {"dataset": b"patients"},
    "bytes for an event": {"event": b"{}"},
    "before all": {"id": -1},
    "at zero": {"id": 0},
    "in the place of another": {"id": 2},
    "after a gap": {"id": 9},
    "at the end of all numbers": {"id": 2**63 - 1},
}


@pytest.mark.parametrize("way", ["INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL"])
@pytest.mark.parametrize("name", FORGED)
def test_no_row_that_gives_back_can_be_appended(name, way, ledger):
    row = GOOD | FORGED[name]
    before, columns, marks = ledger.path.read_bytes(), ", ".join(row), ", ".join("?" * len(row))
    statement = f"{way} INTO charges ({columns}) VALUES ({marks})"
    ignored = way == "INSERT OR IGNORE"  # then a NULL is no error, but no row either
    with contextlib.suppress(sqlite3.Error) if ignored else pytest.raises(sqlite3.Error):
        by_hand(ledger.path, statement, values=tuple(row.values()))
    assert ledger.path.read_bytes() == before
    assert ledger.left("patients").share == pytest.approx(0.25)


DATASETS = {
    "epsilon": -1.0,
    "delta": 1.0,
    "neighbours": "none",
    "composition": "pld",
    "name": "  ",
    "created": b"now",
}


@pytest.mark.parametrize("column", [*DATASETS, "no name", "infinite"])
def test_no_budget_that_is_none_can_be_appended(column, ledger):
    row = {"name": "new", "epsilon": 1.0, "delta": 0.0, "neighbours": "add-remove", "composition": "basic"}
    changed = {"no name": {"name": None}, "infinite": {"epsilon": float("inf")}}
    row |= {"created": "now"} | changed.get(column, {column: DATASETS.get(column)})
    with pytest.raises(sqlite3.Error, match="a dataset has a name"):
        appended(ledger.path, "datasets", **row)
    assert len(ledger.accounts()) == 1


def test_checks_cannot_be_turned_off_by_a_pragma_or_an_upsert(ledger):
    row = tuple((GOOD | {"share": -0.5}).values())
    columns = ", ".join(GOOD)
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA recursive_triggers = OFF")
    with pytest.raises(sqlite3.Error, match="a share above 0"):
        connection.execute(f"INSERT INTO charges ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
    receipt = ledger.history("patients")[0].receipt
    for conflict in ("receipt", "id"):
        with pytest.raises(sqlite3.Error, match="append-only"):
            connection.execute(
                f"INSERT INTO charges (id, {columns}) VALUES (1, ?, ?, ?, ?, ?, ?) "
                f"ON CONFLICT ({conflict}) DO UPDATE SET share = 1e-9",
                (receipt, *row[1:5], 0.01),
            )
    connection.close()


ALONE = {  # what every command that opens the ledger is
    "show": "ledger show {}",
    "show as JSON": "ledger show {} --json",
    "verify": "ledger verify {}",
    "charge": "ledger charge {} --dataset patients --pure-epsilon 0.001",
    "create": "ledger create {} --dataset others --epsilon 1 --delta 0",
    "fit": "fit nowhere.csv --schema schema.toml --epsilon 0.1 --delta 1e-6 --ledger {} --out run",
}
CALLS = {
    "Ledger": lambda ledger: Ledger(ledger.path),
    "left": lambda ledger: ledger.left("patients"),
    "history": lambda ledger: ledger.history("patients"),
    "account": lambda ledger: ledger.account("patients"),
    "accounts": lambda ledger: ledger.accounts(),
    "verify": lambda ledger: ledger.verify("patients"),
    "enter": lambda ledger: ledger.enter("others", BUDGET),
    "charge": lambda ledger: ledger.charge("patients", Release(epsilon=1e-3)),
    "fit": lambda ledger: fit(budget=Budget(epsilon=0.1, delta=1e-6), ledger=ledger),
    "baseline": lambda ledger: baselines.output_perturbation(
        MODEL, (X, Y), Budget(epsilon=0.1, delta=1e-6), ledger=ledger.path, verbose=False
    ),
}


def refused_by_all(ledger, said, monkeypatch, capsys, tmp_path):
    """One line, with the row, from every function and every command; and nothing changes."""
    before = ledger.path.read_bytes()
    for name, call in CALLS.items():
        with pytest.raises(Tampered, match=said) as caught:
            call(ledger)
        assert "\n" not in str(caught.value), name
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text("[columns.a]\nkind = 'boolean'\n")
    for name, command in ALONE.items():
        monkeypatch.setattr(sys, "argv", ["confide", *command.format(ledger.path).split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        assert stopped.value.code == 2, name
        assert printed.out == "", name
        assert "was changed by hand" in " ".join(printed.err.split()), name
    assert ledger.path.read_bytes() == before


def without(trigger, *statements):
    """Take a trigger away, do something, and put it back as it was."""
    text = next(s for s in seals.FIRST + seals.SECOND + seals.THIRD if s.split()[2] == trigger)
    return (f"DROP TRIGGER {trigger}", *statements, text)


CHANGES = {
    "a row without a seal": (
        f"INSERT INTO charges VALUES (4, 'x', 'patients', 'now', '', '{EVENT}', 0.01)",
        r"charge 4 \(receipt 'x'\) is entered at 0.01 of the budget without a seal",
    ),
    "a dataset without a seal": (
        "INSERT INTO datasets VALUES ('new', 9.0, 0.0, 'add-remove', 'basic', 'now')",
        "dataset 'new' is entered without a seal",
    ),
    "a seal without a row": (
        "INSERT INTO seals (kind, name, digest) VALUES ('charge', 'x', 'y')",
        "the row that seal 5 is of, charge 'x', was removed",
    ),
    "a smaller share": (
        without("charges_keep", "UPDATE charges SET share = 1e-6 WHERE id = 2"),
        r"charge 2 \(receipt '.*'\) was changed after it was sealed",
    ),
    "a negative share": (
        without("charges_keep", "UPDATE charges SET share = -1 WHERE id = 2"),
        r"charge 2 \(receipt '.*'\) is entered at -1.0 of the budget, which no charge takes",
    ),
    "a word for a share": (
        without("charges_keep", "UPDATE charges SET share = 'x' WHERE id = 2"),
        "charge 2 .* is entered at 'x' of the budget",
    ),
    "another event": (without("charges_keep", "UPDATE charges SET event = '{}' WHERE id = 1"), "charge 1 .* changed"),
    "another note": (without("charges_keep", "UPDATE charges SET note = 'n' WHERE id = 3"), "charge 3 .* changed"),
    "a row less": (without("charges_stay", "DELETE FROM charges WHERE id = 2"), "charge 3 .* where charge 2 is"),
    "the last row less": (without("charges_stay", "DELETE FROM charges WHERE id = 3"), "seal 4 is of, .* was removed"),
    "a larger budget": (without("datasets_keep", "UPDATE datasets SET epsilon = 9"), "dataset 'patients' was changed"),
    "another relation": (
        without("datasets_keep", "UPDATE datasets SET neighbours = 'replace-one'"),
        "dataset 'patients' was changed",
    ),
    "another seal": (without("seals_keep", "UPDATE seals SET digest = 'x' WHERE id = 2"), "charge 1 .* was changed"),
    "a trigger less": ("DROP TRIGGER charges_sound", "'charges_sound', which protects its rows, was removed"),
    "an old trigger less": ("DROP TRIGGER charges_keep", "'charges_keep', which protects its rows, was removed"),
    "a weaker trigger": (
        ("DROP TRIGGER charges_stay", "CREATE TRIGGER charges_stay BEFORE DELETE ON charges BEGIN SELECT 1; END"),
        "'charges_stay', which protects its rows, was changed",
    ),
    "a trigger more": (
        "CREATE TRIGGER t AFTER INSERT ON datasets BEGIN INSERT INTO datasets VALUES (1, 1, 1, 1, 1, 1); END",
        "'t' was added to it",
    ),
    "a view for a table": (
        ("ALTER TABLE charges RENAME TO kept", "CREATE VIEW charges AS SELECT * FROM kept WHERE id > 1"),
        "'charges.*', which protects its rows, was changed",
    ),
    "no seals": ("DROP TABLE seals", "'seals', which protects its rows, was removed"),
    "the old format": ("PRAGMA user_version = 1", "'seals' was added to it"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_by_hand_is_shown_by_all_that_opens_the_ledger(name, ledger, monkeypatch, capsys, tmp_path):
    done, said = CHANGES[name]
    by_hand(ledger.path, *((done,) if isinstance(done, str) else done))
    refused_by_all(ledger, said, monkeypatch, capsys, tmp_path)


def test_rows_in_another_order_do_not_pass(ledger):
    """Two charges of equal share change places, with everything but the seals."""
    ledger.charge("patients", Release(epsilon=0.1), note="last")
    by_hand(
        ledger.path,
        *without(
            "charges_keep",
            "UPDATE charges SET id = 10 WHERE id = 4",
            "UPDATE charges SET id = 4 WHERE id = 3",
            "UPDATE charges SET id = 3 WHERE id = 10",
        ),
    )
    with pytest.raises(Tampered, match=r"charge 3 .* was changed"):
        ledger.left("patients")


def sealed_by_hand(path, **row):
    """As one who reads the source: the row and a right seal of it."""
    connection = sqlite3.connect(path, isolation_level=None)
    rows = seals.read(connection)
    whole = (len(rows.charges) + 1, *(GOOD | row).values())
    connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", whole)
    seals.seal(connection, rows.head, "charge", whole)
    connection.close()


@pytest.mark.parametrize(
    "event", ["", "{", "[]", "1", '{"event": "Refund"}', '{"event": "Release", "epsilon": -1}', "[" * 100_000]
)
def test_a_sealed_row_with_no_event_is_named_where_events_are_read(event, ledger):
    sealed_by_hand(ledger.path, event=event)
    assert ledger.left("patients").share == pytest.approx(0.24)  # it took something, as every row does
    for call in (ledger.history, ledger.verify):
        with pytest.raises(Tampered, match=r"charge 4 \(receipt 'x'\) holds no event that can be priced"):
            call("patients")


def test_a_sealed_row_that_says_too_little_does_not_verify(ledger):
    sealed_by_hand(ledger.path)
    assert ledger.left("patients").share == pytest.approx(0.24)
    with pytest.raises(Refused, match=r"charge x is entered at 0\.01 but takes 0\.5"):
        ledger.verify("patients")


def test_a_seal_kept_elsewhere_shows_what_was_cut_off(ledger, tmp_path):
    """Cut off with its seal and all triggers put back, the end of a ledger is gone unseen: but for the seal."""
    kept = ledger.book().head
    assert kept == ledger.history("patients")[-1].seal
    ledger.charge("patients", Release(epsilon=0.1))
    for seal in (kept, kept[:16], kept[:16].upper()):
        ledger.find(seal)
    by_hand(ledger.path, *without("charges_stay", "DELETE FROM charges WHERE id >= 3"))
    by_hand(ledger.path, *without("seals_stay", "DELETE FROM seals WHERE id >= 4"))
    assert ledger.left("patients").share == pytest.approx(0.5)  # not detected
    for seal in (kept, kept[:16], kept[:15], "", "0" * 64):
        with pytest.raises(Refused, match="rows were cut off or written anew"):
            ledger.find(seal)


def test_the_command_verifies_and_compares_a_seal(ledger, monkeypatch, capsys):
    def call(options):
        monkeypatch.setattr(sys, "argv", ["confide", "ledger", *options.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, capsys.readouterr()

    code, shown = call(f"show {ledger.path}")
    seal = shown.out.split("Seal ")[1][:16]
    code, verified = call(f"verify {ledger.path} --seal {seal} --json")
    assert code == 0
    assert json.loads(verified.out)["spent"] == {"patients": pytest.approx(0.75)}
    code, verified = call(f"verify {ledger.path} --dataset patients")
    assert "75.0000%" in verified.out
    code, refused = call(f"verify {ledger.path} --seal {'0' * 16}")
    assert code == 2
    assert "rows were cut off" in " ".join(refused.err.split())


# Ledgers of earlier versions.

OLD_ROWS = [
    ("a" * 32, "patients", "2026-01-01T00:00:00.000+00:00", "first", '{"event": "Release", "epsilon": 0.25}', 0.25),
    ("b" * 32, "patients", "2026-01-02T00:00:00.000+00:00", "é", '{"event": "Release", "epsilon": 0.5}', 0.5),
    ("c" * 32, "b", "2026-01-03T00:00:00.000+00:00", "", '{"event": "GaussianRelease", "mu": 0.01}', 0.02),
]


def old(path, statements):
    """As earlier versions wrote it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA application_id = {0x636F6E66}")
    connection.execute("PRAGMA user_version = 1")
    for statement in statements:
        connection.execute(statement)
    for name in ("patients", "b"):
        row = (name, 1.0, 1e-5, "add-remove", "basic", "2026-01-01T00:00:00.000+00:00")
        connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?)", row)
    for row in OLD_ROWS:
        columns = "receipt, dataset, time, note, event, share"
        connection.execute(f"INSERT INTO charges ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()
    return path


def stored(path):
    connection = sqlite3.connect(path)
    found = [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in ("datasets", "charges")]
    connection.close()
    return found


OLD = {"the first": seals.FIRST, "those after it": seals.FIRST + seals.SECOND}


@pytest.mark.parametrize("version", OLD)
def test_an_older_ledger_is_read_as_it_is_and_protected_when_it_is_written(version, tmp_path):
    path = old(tmp_path / "l.db", OLD[version])
    before, rows = path.read_bytes(), stored(path)
    ledger = Ledger(path)
    assert ledger.left("patients").share == pytest.approx(0.25)
    assert ledger.verify("patients") == pytest.approx(0.75)
    assert [charge.seal for charge in ledger.history("patients")] == ["", ""]
    assert path.read_bytes() == before  # to look changes nothing
    with pytest.raises(BudgetExceeded):
        ledger.charge("patients", Release(epsilon=0.5))
    assert path.read_bytes() == before  # nor does a refusal
    ledger.charge("patients", Release(epsilon=0.1), note="new")
    datasets, charged = stored(path)
    assert datasets == rows[0]
    assert charged[:-1] == rows[1]
    assert charged[-1][4] == "new"
    assert all(charge.seal for charge in ledger.history("patients"))
    assert ledger.verify("patients") == pytest.approx(0.85)
    with pytest.raises(sqlite3.Error, match="a share above 0"):
        appended(path, **GOOD | {"share": -0.5})
    new = Ledger.create(tmp_path / "new.db")
    new.enter("d", BUDGET)
    assert seals.read(sqlite3.connect(path)).objects == seals.read(sqlite3.connect(new.path)).objects


OLD_CHANGES = {
    "a refund": ({"share": -0.5}, "charge 4 .*'x'.* is entered at -0.5 of the budget, which no charge takes"),
    "too much": ({"share": 0.5}, "charge 4 .* takes the charges to dataset 'patients' past its budget"),
    "infinite": ({"share": float("inf")}, "charge 4 .* is entered at inf"),
    "a word": ({"share": "x"}, "charge 4 .* is entered at 'x'"),
    "nobody": ({"dataset": "nobody"}, "charge 4 .* is to no dataset that is entered"),
    "no event": ({"event": '{"event": "Refund"}'}, "charge 4 .* holds no event"),
    "a gap": ({"id": 9}, "charge 9 .* stands where charge 4 is expected"),
}


@pytest.mark.parametrize("name", OLD_CHANGES)
def test_a_bad_row_of_an_older_ledger_is_shown_by_all_that_opens_it(name, tmp_path, monkeypatch, capsys):
    path = old(tmp_path / "l.db", seals.FIRST + seals.SECOND)
    ledger = Ledger(path)
    row, said = OLD_CHANGES[name]
    appended(path, **GOOD | row)
    refused_by_all(ledger, said, monkeypatch, capsys, tmp_path)


def test_an_older_ledger_without_its_triggers_is_refused(tmp_path):
    path = old(tmp_path / "l.db", seals.FIRST + seals.SECOND)
    by_hand(path, "DROP TRIGGER charges_keep")
    with pytest.raises(Tampered, match="'charges_keep', which protects its rows, was removed"):
        Ledger(path)


def test_an_older_ledger_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    path = old(tmp_path / "l.db", seals.FIRST)
    access = os.access
    monkeypatch.setattr(os, "access", lambda at, how: access(at, how) and not how & os.W_OK)
    before = path.read_bytes()
    assert Ledger(path).left("patients").share == pytest.approx(0.25)
    with pytest.raises(Refused, match="is read-only"):
        Ledger(path).charge("patients", Release(epsilon=0.1))
    assert path.read_bytes() == before


def test_a_protection_that_fails_halfway_leaves_an_older_ledger_as_it_was(tmp_path, monkeypatch):
    path = old(tmp_path / "l.db", seals.FIRST)
    rows, seal = stored(path), seals.seal

    def broken(connection, head, kind, row):
        if kind == "charge" and row[0] == 2:
            raise KeyboardInterrupt
        return seal(connection, head, kind, row)

    monkeypatch.setattr(seals, "seal", broken)
    with pytest.raises(KeyboardInterrupt):
        Ledger(path).charge("patients", Release(epsilon=0.1))
    monkeypatch.undo()
    assert stored(path) == rows
    assert Ledger(path).book().head == ""
    Ledger(path).charge("patients", Release(epsilon=0.1))
    assert Ledger(path).verify("patients") == pytest.approx(0.85)


def _charge_one(path, name, report):
    Ledger(path).charge("b", GaussianRelease(mu=1e-4), note=name)
    report.put(name)


@pytest.mark.long
def test_an_older_ledger_is_protected_once_by_whoever_is_first(tmp_path):
    path = old(tmp_path / "l.db", seals.FIRST)
    context = multiprocessing.get_context("spawn")
    report = context.Queue()
    processes = [context.Process(target=_charge_one, args=(path, str(i), report)) for i in range(4)]
    for process in processes:
        process.start()
    done = sorted(report.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert sorted(charge.note for charge in Ledger(path).history("b")[1:]) == done == list("0123")


def test_thousands_of_rows_are_checked_in_a_moment(tmp_path):
    """3000 rows in far less than a second: 0.03 s where this was written."""
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", BUDGET)
    event = json.dumps(events.gaussian(10.0, 0.01, 1000).to_json())
    with ledger._writing() as (connection, book):
        head = book.head
        for i in range(1, 3001):
            row = (i, f"{i:032x}", "d", "2026-01-01T00:00:00.000+00:00", "", event, 1e-5)
            connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            head = seals.seal(connection, head, "charge", row)
    begun = time.perf_counter()
    assert ledger.left("d").share == pytest.approx(0.97)
    assert time.perf_counter() - begun < 1


# The relation of a run and that of the budget it is charged to.

RELATIONS = [("add-remove", "replace-one"), ("replace-one", "add-remove")]
RUNS = {
    "fit": lambda **more: fit(**more),
    "optimiser": lambda **more: fit(sampler=confide.dp_sgd(), **more),
    "one posterior sample": lambda **more: fit(sampler=confide.one_posterior_sample(), steps=None, **more),
    "individual": lambda **more: fit(account="individual", batch_size=500, **more),
    "histogram": lambda **more: fit(account=confide.Individual(histogram=0.1), batch_size=500, **more),
    "canaries": lambda **more: fit(canaries=30, **more),
    "output": lambda **more: baselines.output_perturbation(MODEL, (X, Y), verbose=False, **more),
    "objective": lambda **more: baselines.objective_perturbation(MODEL, (X, Y), verbose=False, **more),
    "votes": lambda **more: baselines.pate(MODEL, (X, Y), public=X[:50], verbose=False, **more),
}


@pytest.mark.parametrize(("run", "account"), RELATIONS)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_charged_to_a_budget_of_its_own_relation_alone(name, run, account, tmp_path):
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("patients", Budget(epsilon=5.0, delta=1e-4, neighbours=account))
    with pytest.raises(Refused, match=f"the run is for neighbours = '{run}', but .*'patients' is for '{account}'"):
        RUNS[name](budget=Budget(epsilon=0.5, delta=1e-6, neighbours=run), ledger=ledger)
    assert ledger.history("patients") == []


@pytest.mark.parametrize("relation", events.NEIGHBOURS)
def test_what_a_run_says_it_costs_is_what_it_is_charged(relation, tmp_path):
    """With a budget of the whole account: its own epsilon over the account's is its share."""
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("patients", Budget(epsilon=1.0, delta=1e-5, neighbours=relation))
    posterior = fit(budget=Budget(epsilon=1.0, delta=1e-5, neighbours=relation), ledger=ledger)
    entry = posterior.plan["ledger"]
    assert entry["budget"]["neighbours"] == posterior.guarantee.neighbours == relation
    assert entry["share"] == pytest.approx(posterior.guarantee.epsilon, rel=1e-3)
    assert entry["seal"] == ledger.history("patients")[0].seal
    ledger.find(entry["seal"])


def test_every_event_has_a_price_for_the_relation_it_is_declared_for_or_a_refusal(tmp_path):
    """Two steps of adding or removing lie between datasets that differ in a record; nothing goes the other way."""
    ledger = Ledger.create(tmp_path / "l.db")
    for relation in events.NEIGHBOURS:
        ledger.enter(relation, Budget(epsilon=5.0, delta=1e-4, neighbours=relation))
    for event in (Release(epsilon=0.1), GaussianRelease(mu=0.1)):
        shares = [ledger.charge(relation, event).share for relation in events.NEIGHBOURS]
        assert shares[1] >= 1.9 * shares[0]
    for event in (Release(epsilon=0.1, neighbours="replace-one"), GaussianRelease(mu=0.1, neighbours="replace-one")):
        ledger.charge("replace-one", event)
        with pytest.raises(Refused, match="cannot be derived"):
            ledger.charge("add-remove", event)
    assert len(ledger.history("add-remove")) == 2


def test_the_command_says_for_which_relation_it_charges(tmp_path, monkeypatch, capsys):
    path = tmp_path / "l.db"
    Ledger.create(path).enter("d", Budget(epsilon=1.0, delta=0.0, neighbours="replace-one"))

    def call(options):
        monkeypatch.setattr(sys, "argv", ["confide", "ledger", "charge", str(path), "--dataset", "d", *options.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, capsys.readouterr()

    code, printed = call("--pure-epsilon 0.1 --json")
    assert (code, json.loads(printed.out)["share"]) == (0, pytest.approx(0.1))
    assert json.loads(printed.out)["neighbours"] == "replace-one"
    code, printed = call("--pure-epsilon 0.1 --neighbours add-remove")
    assert code == 0
    assert "Charged 20.0000% of the budget of 'd' (replace-one)" in printed.out
    code, printed = call("--noise-multiplier 10 --neighbours add-remove")
    assert code == 2
    assert "--neighbours goes with" in " ".join(printed.err.split())


def test_no_ledger_needs_no_relation():
    assert charges.open_account(None, None, "replace-one") is None
    assert np.isfinite(fit(budget=Budget(epsilon=1.0, delta=1e-5, neighbours="replace-one")).guarantee.epsilon)


def hidden_trigger(path, table):
    """A trigger with a name that SQLite keeps for itself, which swallows what is inserted."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        name = f"sqlite_free_{table}"
        text = f"CREATE TRIGGER {name} BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END"
        row = ("trigger", name, table, text)
        connection.execute("INSERT INTO sqlite_master(type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, 0, ?)", row)
        version = connection.execute("PRAGMA schema_version").fetchone()[0]
        connection.execute(f"PRAGMA schema_version={version + 1}")
        connection.commit()


@pytest.mark.parametrize("tables", [("charges", "seals"), ("charges",), ("seals",)])
def test_a_trigger_under_a_name_of_sqlite_is_seen(tmp_path, tables):
    ledger = confide.Ledger.create(tmp_path / "ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=1.0, delta=1e-5))
    for table in tables:
        hidden_trigger(ledger.path, table)
    with pytest.raises(seals.Tampered):
        ledger.charge("patients", confide.events.Release(epsilon=0.7))


def test_a_charge_that_the_file_does_not_keep_is_refused(tmp_path, monkeypatch):
    """Whatever swallows it: here the check of triggers is made blind first."""
    ledger = confide.Ledger.create(tmp_path / "ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=1.0, delta=1e-5))
    for table in ("charges", "seals"):
        hidden_trigger(ledger.path, table)
    monkeypatch.setattr(seals, "_check_objects", lambda *_: None)
    with pytest.raises(seals.Tampered, match="does not keep"):
        ledger.charge("patients", confide.events.Release(epsilon=0.7))
