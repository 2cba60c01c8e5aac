"""The ledger with real files, real processes, and real kills."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import confide
from confide import accountants, events
from confide.privacy.budget import Budget
from confide.privacy.events import GaussianRelease, Release
from confide.privacy.filters import COMPOSITIONS
from confide.privacy.ledger import BudgetExceeded, Ledger
from confide.validation import Refused

BUDGET = Budget(epsilon=1.0, delta=1e-5)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    made = Ledger.create(tmp_path / "ledger.db")
    made.enter("patients", BUDGET)
    return made


def test_a_run_calibrated_to_the_budget_fits_exactly_once(ledger):
    sigma = confide.calibrate_noise(epsilon=1.0, delta=1e-5, sampling_probability=0.02, steps=200)
    charge = ledger.charge("patients", events.gaussian(sigma, 0.02, 200), note="the run")
    assert 0.999 < charge.share <= 1
    with pytest.raises(BudgetExceeded):
        ledger.charge("patients", Release(epsilon=1e-3))


def test_runs_calibrated_to_parts_of_the_budget_fit_together(ledger):
    for share in (0.5, 0.3, 0.2):
        sigma = confide.calibrate_noise(epsilon=share, delta=share * 1e-5, sampling_probability=0.02, steps=100)
        assert ledger.charge("patients", events.gaussian(sigma, 0.02, 100)).share <= share * (1 + 1e-9)
    assert ledger.left("patients").share < 1e-3
    assert ledger.verify("patients") <= 1


def test_over_budget_names_what_is_left_and_charges_nothing(ledger):
    ledger.charge("patients", Release(epsilon=0.75))
    left = ledger.left("patients")
    with pytest.raises(BudgetExceeded, match=r"has 25\.0.*left: epsilon 0\.25.* of \(1, 1e-05\)") as caught:
        ledger.charge("patients", Release(epsilon=0.3))
    assert caught.value.left == left
    assert len(ledger.history("patients")) == 1
    sigma = confide.calibrate_noise(epsilon=left.epsilon, delta=left.delta)
    ledger.charge("patients", events.gaussian(sigma))  # what is left is a budget that can be spent


def test_history_is_append_only_and_holds_whole_events(ledger):
    event = events.compose(events.gaussian(np.linspace(20, 40, 30), 0.05), Release(epsilon=0.01))
    charge = ledger.charge("patients", event, note="a schedule")
    (found,) = ledger.history("patients")
    assert found == charge
    assert found.event == event
    connection = sqlite3.connect(ledger.path)
    for statement in ("UPDATE charges SET share = 0", "DELETE FROM charges", "UPDATE datasets SET epsilon = 9"):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_a_forged_row_does_not_verify(ledger):
    connection = sqlite3.connect(ledger.path)
    row = ("x", "patients", "now", "", '{"event": "Release", "epsilon": 0.5}', 0.01)
    connection.execute(
        "INSERT INTO charges (receipt, dataset, time, note, event, share) VALUES (?, ?, ?, ?, ?, ?)", row
    )
    connection.commit()
    connection.close()
    with pytest.raises(Refused, match="is entered at"):
        ledger.verify("patients")


def _charge_until_refused(ledger, event):
    for _ in range(1000):
        try:
            ledger.charge("d", event)
        except BudgetExceeded:
            return
    pytest.fail("a thousand charges were accepted")


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_a_full_ledger_keeps_its_budget_by_the_tight_accountant(tmp_path, composition):
    """Charged with small Gaussian releases until it refuses, the history as a whole stays within the budget."""
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", BUDGET, composition)
    _charge_until_refused(ledger, GaussianRelease(mu=0.04))
    history = ledger.history("d")
    total = accountants.profile(events.compose(*[c.event for c in history])).epsilon(1e-5)
    assert total <= 1.0
    expected = {"basic": 5, "renyi": 36, "gdp": 44}[composition]  # (0.268 / 0.04)^2 = 44.9 for gdp
    assert len(history) >= expected
    assert ledger.verify("d") <= 1


@pytest.mark.parametrize("composition", ["renyi", "gdp"])
def test_failures_have_their_own_share(tmp_path, composition):
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", BUDGET, composition)
    event = events.compose(GaussianRelease(mu=0.01), Release(epsilon=0.0, delta=5e-8))
    assert ledger.charge("d", event).share == pytest.approx(0.5)
    ledger.charge("d", event)
    with pytest.raises(BudgetExceeded):
        ledger.charge("d", event)


def test_subsampled_releases_need_renyi(tmp_path):
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", BUDGET, "gdp")
    with pytest.raises(Refused, match="composition 'renyi'"):
        ledger.charge("d", events.gaussian(10.0, 0.1, 5))
    ledger.enter("e", BUDGET, "renyi")
    ledger.charge("e", events.gaussian(10.0, 0.1, 5))


def test_a_pure_budget(tmp_path):
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", Budget(epsilon=1.0, delta=0.0))
    for _ in range(10):
        ledger.charge("d", Release(epsilon=0.1))
    assert ledger.left("d").epsilon == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(Refused, match="delta = 0, which no Gaussian release can keep"):
        ledger.charge("d", events.gaussian(100.0))
    with pytest.raises(Refused, match="needs a delta above 0"):
        ledger.enter("e", Budget(epsilon=1.0, delta=0.0), "renyi")


def test_replace_one_budget_charges_more(tmp_path):
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", Budget(epsilon=1.0, delta=1e-5, neighbours="replace-one"))
    assert ledger.charge("d", Release(epsilon=0.1)).share > 0.19


@settings(max_examples=20)
@given(st.lists(st.floats(0.01, 0.6), min_size=1, max_size=12))
def test_never_overspent(tmp_path_factory, epsilons):
    ledger = Ledger.create(tmp_path_factory.mktemp("ledger") / "l.db")
    ledger.enter("d", BUDGET)
    spent = 0.0
    for epsilon in epsilons:
        try:
            ledger.charge("d", Release(epsilon=epsilon))
            spent += epsilon
        except BudgetExceeded:
            assert spent + epsilon > 1
    assert spent <= 1 + 1e-9
    assert ledger.verify("d") <= 1 + 1e-9


def _charge_many(path, name, attempts, report):
    ledger = Ledger(path)
    for attempt in range(attempts):
        try:
            ledger.charge("d", Release(epsilon=0.01), note=f"{name}-{attempt}")
            report.put(f"{name}-{attempt}")
        except BudgetExceeded:
            report.put(None)


@pytest.mark.long
def test_eight_processes_never_overspend(tmp_path):
    path = tmp_path / "l.db"
    Ledger.create(path).enter("d", Budget(epsilon=1.0, delta=0.0))
    context = multiprocessing.get_context("spawn")
    report = context.Queue()
    processes = [context.Process(target=_charge_many, args=(path, i, 20, report)) for i in range(8)]
    for process in processes:
        process.start()
    answers = [report.get(timeout=120) for _ in range(160)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    accepted = [answer for answer in answers if answer]
    assert len(accepted) == 100  # 160 tried a hundredth each
    assert sorted(accepted) == sorted(charge.note for charge in Ledger(path).history("d"))
    assert Ledger(path).left("d").share <= 1e-12


CHARGER = """
import sys
from confide.events import Release
from confide.privacy.ledger import Ledger
ledger = Ledger(sys.argv[1])
for i in range(1000):
    ledger.charge("d", Release(epsilon=1e-4), note=str(i))
    print(i, flush=True)
"""


@pytest.mark.long
def test_kill_9_during_charge_loses_and_duplicates_nothing(tmp_path):
    path = tmp_path / "l.db"
    Ledger.create(path).enter("d", Budget(epsilon=1.0, delta=0.0))
    rng = np.random.default_rng(3)
    expected = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", CHARGER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        time.sleep(float(rng.uniform(0.0, 0.15)))
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = 1 + len(process.stdout.read().splitlines())
        process.wait()
        process.stdout.close()
        notes = [int(charge.note) for charge in Ledger(path).history("d")][expected:]
        assert notes == list(range(len(notes)))  # in order, none twice
        assert acknowledged <= len(notes) <= acknowledged + 1  # at most the one that was not yet acknowledged
        expected += len(notes)
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()
    assert Ledger(path).verify("d") == pytest.approx(expected * 1e-4)


def test_a_locked_ledger_says_so(ledger):
    impatient = Ledger(ledger.path, timeout=0.1)
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Refused, match="is locked by another process"):
        impatient.enter("other", BUDGET)
    holder.execute("ROLLBACK")
    holder.close()
    impatient.enter("other", BUDGET)


def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("a budget, of sorts\n" * 100)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(Refused, match="is not a confide ledger"):
            Ledger(path)
        with pytest.raises(Refused, match="exists"):
            Ledger.create(path)
        assert path.read_bytes() == before
    with pytest.raises(Refused, match="does not exist"):
        Ledger(tmp_path / "none.db")
    with pytest.raises(Refused, match="folder that does not exist"):
        Ledger.create(tmp_path / "no" / "l.db")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "other.db"]


def test_a_newer_format_is_refused(ledger):
    connection = sqlite3.connect(ledger.path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Refused, match="has format 99"):
        Ledger(ledger.path)


READER = """
import os, sys
from confide import Refused, accountants  # all that is imported later, while it can still be read
from confide.events import Release
from confide.privacy.ledger import Ledger
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
ledger = Ledger(sys.argv[1])
print(ledger.left("patients").share)
try:
    ledger.charge("patients", Release(epsilon=0.1))
except Refused as refusal:
    print(refusal)
"""


@pytest.mark.long
def test_a_read_only_ledger_can_be_read_but_not_charged():
    """Seen by somebody who may not write, as root may write everything."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        ledger = Ledger.create(path)
        ledger.enter("patients", BUDGET)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, timeout=60)
        Path(folder).chmod(0o755)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "1.0"
        assert "is read-only: ask its owner" in done.stdout.splitlines()[1]
        assert ledger.history("patients") == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ledger: ledger.enter("patients", BUDGET), "is in the ledger already"),
        (lambda ledger: ledger.enter("", BUDGET), "is not a name"),
        (lambda ledger: ledger.enter("x", BUDGET, "pld"), "composition = 'pld' is unknown"),
        (lambda ledger: ledger.charge("nobody", Release(epsilon=0.1)), "'nobody' is not in the ledger"),
        (lambda ledger: ledger.charge("patients", 0.1), "is not of the kind Event"),
        (lambda ledger: ledger.history("nobody"), "'nobody' is not in the ledger"),
    ],
)
def test_nonsense_is_refused(ledger, call, message):
    with pytest.raises(Refused, match=message):
        call(ledger)
    assert ledger.history("patients") == []


def test_a_budget_too_small_for_a_tail_bound_is_refused(tmp_path):
    """Where no Renyi order leaves room, nothing must ever be free."""
    ledger = Ledger.create(tmp_path / "l.db")
    for epsilon, delta in ((1e-3, 1e-10), (1e-4, 1e-5), (3e-4, 1e-6)):
        with pytest.raises(Refused, match="leaves no room"):
            ledger.enter("d", Budget(epsilon=epsilon, delta=delta), "renyi")


def test_a_full_ledger_takes_not_even_crumbs(ledger):
    ledger.charge("patients", Release(epsilon=1.0))
    accepted = 0
    for _ in range(30):
        try:
            ledger.charge("patients", Release(epsilon=9e-10))
            accepted += 1
        except BudgetExceeded:
            pass
    assert accepted <= 1


def test_nothing_is_free_however_small(tmp_path):
    """What would vanish beside all other shares is charged as the least share."""
    ledger = Ledger.create(tmp_path / "l.db")
    ledger.enter("d", Budget(epsilon=10.0, delta=0.0))
    assert ledger.charge("d", Release(epsilon=1e-100)).share == 1e-15


def test_a_receipt_is_charged_once(ledger):
    ledger.charge("patients", Release(epsilon=0.1), receipt="r")
    with pytest.raises(Refused, match="receipt = 'r' is in the ledger already"):
        ledger.charge("patients", Release(epsilon=0.1), receipt="r")
    assert len(ledger.history("patients")) == 1


def test_replacing_a_row_is_refused(ledger):
    ledger.charge("patients", Release(epsilon=0.9))
    connection = sqlite3.connect(ledger.path)
    for statement in (
        "INSERT OR REPLACE INTO charges SELECT id, receipt, dataset, time, note, event, 1e-6 FROM charges",
        "INSERT OR REPLACE INTO datasets SELECT name, 100, delta, neighbours, composition, created FROM datasets",
    ):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            connection.execute(statement)
    connection.close()
