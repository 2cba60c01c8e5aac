"""Audits as a person meets them: canaries planted by `confide fit`, attacks on a finished run, refusals, exit codes."""

import contextlib
import csv
import io
import json
import shlex
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

import confide
import confide.data.encoding
import confide.data.tables
from confide.app import cli
from confide.app.runs import attack as finished
from confide.app.runs import interrupted, run_folder
from confide.app.runs.run_folder import Request
from confide.inference import checkpoints
from helpers import sabotage
from helpers.patients import HEADER, SCHEMA, rows, write

FIT = "confide fit patients.csv --schema schema.toml --epsilon 4 --delta 1e-5 --sampler sgld --steps 200 --out"
ATTACK = "confide audit run --members members.csv --nonmembers others.csv"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Patients, a run with canaries that is charged for them, and what `confide fit` said of it."""
    home = write(tmp_path_factory.mktemp("audit") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("CONFIDE_STATE", str(home.parent / "state"))
        ledger = confide.Ledger.create("ledger.db")
        ledger.enter("patients", confide.Budget(epsilon=5.0, delta=1e-4))
        code, out, err = called(patch, f"{FIT} run --canaries 200 --ledger ledger.db --json")
    assert code == 0, err
    return home, json.loads(out)


def table(path, lines):
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *lines])


def called(patch, command):
    """In this process, from a fixture of the whole module too."""
    patch.setattr(sys, "argv", shlex.split(command))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy of everything, to be changed at will; nobody is among the members and the others."""
    shutil.copytree(made[0], tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    people = [row[1:] for row in rows()]
    table(Path("members.csv"), list(rows()))
    table(Path("others.csv"), [row for row in rows(300, seed=5) if row[1:] not in people])
    return tmp_path / "home"


@pytest.fixture
def call(home, monkeypatch):
    return lambda command: called(monkeypatch, command)


def test_a_run_with_canaries_is_audited_when_it_ends(made, home):
    record = made[1]
    assert "run/canaries.json" in record["files"]
    assert record["audit"]["canaries"] is True
    assert record["audit"]["claimed"] == record["epsilon"]
    assert record["audit"]["verdict"] in ("not refuted", "suspect")
    plan = json.loads(Path("run/plan.json").read_text())["plan"]
    assert (plan["records"], plan["parameters"], plan["canaries"]) == (300, 8, 200)
    kept = json.loads(Path("run/canaries.json").read_text())
    assert len(kept["inside"]) == len(kept["scores"]) == 200
    assert run_folder.load("run")[0].draws["weights"].shape[-1] == 8  # the canaries' own parameters are not released


def test_audit_prints_the_verdict_of_canaries(call, made):
    code, out, err = call("confide audit run")
    assert (code, err) == (0, "")
    assert "200 canaries were guessed at" in out
    assert "fair coin" in out
    code, out, _ = call("confide audit run --json --confidence 0.8")
    record = json.loads(out)
    assert record["confidence"] == 0.8
    assert record["bound"] >= made[1]["audit"]["bound"]  # of less confidence


def test_a_broken_promise_has_exit_code_three(call, home):
    """Scores that tell every canary, in a run that claims to be private."""
    path = Path("run/canaries.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"scores": (20.0 * np.array(kept["inside"])).tolist()}))
    code, out, _ = call("confide audit run")
    assert code == 3
    assert "VIOLATION" in out
    assert "Do not publish the run" in " ".join(out.split())


def test_a_finished_run_is_attacked_with_rows(call, home):
    with Path("others.csv").open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows(3))
    before = sorted(path.name for path in Path("run").iterdir())
    code, out, err = call(f"{ATTACK} --drop-overlap")
    assert code == 0, err
    assert "do not publish" in err
    assert "Not to be published" in out
    assert "modified entropy" in out
    assert sorted(path.name for path in Path("run").iterdir()) == before
    path = home / "run-audit.json"
    assert out.splitlines()[-1] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    record = json.loads(path.read_text())
    posterior, schema = run_folder.load("run")
    assert record["run"] == posterior.plan["run"]
    one, two = (
        confide.data.encoding.encode_table(schema, confide.data.tables.open_table(name))
        for name in ("members.csv", "others.csv")
    )
    people = {(*x, y) for x, y in zip(one.x.tolist(), one.y.tolist(), strict=True)}
    strangers = {(*x, y) for x, y in zip(two.x.tolist(), two.y.tolist(), strict=True)}

    def alone(side, others):
        keep = [(*x, y) not in others for x, y in zip(side.x.tolist(), side.y.tolist(), strict=True)]
        chances = posterior.predict_proba(side.x[keep])
        return -np.log(chances[np.arange(sum(keep)), side.y[keep].astype(int)])

    by_hand = confide.threshold_attack(alone(one, strangers), alone(two, people))
    found = record["audit"]["scores"]
    assert (found["members"], found["nonmembers"]) == (len(by_hand.members), len(by_hand.nonmembers))
    assert record["dropped"] == len(one.x) + len(two.x) - found["members"] - found["nonmembers"] == 6
    assert found["auc"] == pytest.approx(by_hand.auc, abs=1e-4)
    assert [attack["name"] for attack in record["attacks"]] == [
        f"threshold on the {name}" for name in ("confidence", "entropy", "modified entropy")
    ]
    code, out, _ = call(f"{ATTACK} --drop-overlap --out other.json --json")
    assert json.loads(out)["audit"]["p_value"] == record["audit"]["p_value"]


@pytest.mark.long
def test_rows_that_differ_anyhow_refute_the_claim_and_it_says_so(call, home):
    """Members of whom the outcome is as the stage says, others of whom it is not: no run could have hidden that."""
    said = {"I": "no", "IV": "yes"}
    people = [row for row in rows() if said.get(row[4]) == row[5]]
    table(Path("members.csv"), people)
    table(Path("others.csv"), [[*row[:5], "no" if row[5] == "yes" else "yes"] for row in people])
    code, out, _ = call(f"{ATTACK} --drop-overlap")
    assert code == 3
    assert "VIOLATION" in out
    assert "Or members and others differ in other ways" in " ".join(out.split())


def test_the_verdict_is_printed_when_a_run_ends(made, home, capsys):
    cli.runs._print_files(run_folder.load("run")[0], Path("run"), as_json=False)
    printed = capsys.readouterr().out
    assert "200 canaries were guessed at" in printed
    assert printed.endswith("Next: confide report run\n")


def test_the_program_is_audited_on_made_up_tables(call, home):
    """The result lies in the run, which may be published with it, and the report shows it and says what it can see."""
    code, out, err = call("confide audit run --made-up --repetitions 30 --seed 1")
    assert (code, err) == (0, "")
    assert "no real record was read" in " ".join(out.split())
    assert out.splitlines()[-1] == "run/made-up-1.json"
    record = json.loads(Path("run/made-up-1.json").read_text())
    assert (record["kind"], record["seed"], record["repetitions"]) == ("made-up", 1, 30)
    assert record["verdict"] == "not refuted"
    code, out, _ = call("confide audit run --made-up --repetitions 30 --seed 1")
    assert code == 0
    assert "Audit 1 of this run had this seed and the same result: this one adds nothing" in " ".join(out.split())
    assert not Path("run/made-up-2.json").exists()
    assert "give --confidence 0.999" in call("confide audit run --made-up --confidence 0.9")[2]
    code, out, err = call("confide report run")
    assert code == 0, err
    text = " ".join(Path("run/report.html").read_text().split())
    assert "By canaries" in text
    assert "By made-up tables" in text
    assert text.count("It cannot see") == 2
    assert "what noise the model&#39;s own parameters got" in text
    assert "Not for publication" not in text
    Path("run/made-up-1.json").write_text("{}")
    assert "not an audit of this run" in call("confide report run --out other.html")[2]


@pytest.mark.long
def test_a_program_with_half_its_noise_has_exit_code_three(call, home, monkeypatch):
    """And it keeps it when the program is mended and audited again: all audits of a run are judged together."""
    assert call("confide audit run --made-up --repetitions 30 --seed 1")[0] == 0
    with monkeypatch.context() as patch:
        sabotage.half_the_noise(patch)
        code, out, _ = call("confide audit run --made-up --repetitions 30 --seed 1 --json")
    record = json.loads(out)
    assert (code, record["audits"], record["seeds"]) == (3, 2, [1, 1])
    code, out, _ = call("confide audit run --made-up --repetitions 30 --seed 2")
    assert code == 3
    text = " ".join(out.split())
    assert "3 audits of this run were made on made-up tables (seeds 1, 1, 2)" in text
    assert text.count("VIOLATION") == text.count("% confidence") == 1
    assert [json.loads(Path(f"run/made-up-{k}.json").read_text())["number"] for k in (1, 2, 3)] == [1, 2, 3]
    assert record["verdict"] in ("claim refuted", "not as priced")
    assert record["tests"]["noise"] < 1e-10
    assert call("confide report run")[0] == 0
    page = " ".join(Path("run/report.html").read_text().split())
    assert "Do not publish this run" in page
    assert "over all 3 audits of this kind" in page
    Path("run/made-up-2.json").unlink()
    assert "lacks made-up-2.json" in call("confide report run --out other.html")[2]


def changed(path, old, new, count=-1):
    return lambda: Path(path).write_text(Path(path).read_text().replace(old, new, count))


BAD = {
    "half": (None, "confide audit run --members members.csv", "go together"),
    "no members file": (lambda: Path("members.csv").unlink(), ATTACK, "does not exist"),
    "no others file": (lambda: Path("others.csv").unlink(), ATTACK, "does not exist"),
    "empty": (lambda: Path("others.csv").write_text(""), ATTACK, "is empty"),
    "only a header": (lambda: Path("others.csv").write_text(",".join(HEADER)), ATTACK, "no records"),
    "one file": (None, ATTACK.replace("others", "members"), "are one file"),
    "identical": (lambda: shutil.copy("members.csv", "others.csv"), ATTACK, "all rows of one of"),
    "overlap": (lambda: table(Path("others.csv"), [*rows(5), *rows(300, seed=5)]), ATTACK, "rows of others.csv are in"),
    "one class": (changed("others.csv", ",yes\n", ",no\n"), ATTACK, "column 'relapse' is 'false' in every row"),
    "no target": (changed("members.csv", "relapse", "return", 1), ATTACK, "column 'relapse' of the schema is not in"),
    "too many": (lambda: table(Path("members.csv"), list(rows(305))), ATTACK, "has 305 rows and the run is of"),
    "into the run": (None, f"{ATTACK} --drop-overlap --out run/audit.json", "lies in the run"),
    "existing": (None, f"{ATTACK} --drop-overlap --out patients.csv", "exists"),
    "confidence": (None, f"{ATTACK} --confidence 1.5", "confidence = 1.5 is out of range"),
    "no run": (None, "confide audit nowhere", "does not hold a run"),
    "no canaries": (lambda: Path("run/canaries.json").unlink(), "confide audit run", "another number of canaries"),
    "out of canaries": (None, "confide audit run --out a.json", "--out goes with --members"),
    "made up and rows": (None, f"{ATTACK} --made-up", "reads no rows"),
    "seed alone": (None, "confide audit run --seed 3", "--seed goes with --made-up"),
    "few repetitions": (None, "confide audit run --made-up --repetitions 3", "repetitions = 3 show next to nothing"),
    "out of made up": (None, "confide audit run --made-up --out a.json", "--out goes with --members"),
    "few canaries": (None, f"{FIT} more --canaries 3", "canaries = 3 is out of range"),
    "hidden steps": (None, f"{FIT} more --canaries 100".replace("sgld", "langevin"), "hides its steps"),
    "other accounts": (None, f"{FIT} more --canaries 100 --account individual", "canaries: other accounts than 'dp'"),
    "no audit": (None, "confide report run --audit members.csv", "cannot be read"),
    "absent audit": (None, "confide report run --audit nowhere.json", "cannot be read"),
    "other audit": (
        lambda: Path("a.json").write_text('{"format": 2, "run": "x", "audit": {}, "attacks": []}'),
        "confide report run --audit a.json",
        "is of another run",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_no_trace(name, call, home):
    change, command, said = BAD[name]
    if change is not None:
        change()
    before = sorted(path.name for path in home.rglob("*"))
    if " fit " in command:
        command += " --ledger ledger.db --quiet"
    code, out, err = call(command)
    assert (code, out) == (2, ""), err
    assert err.startswith("confide: ")
    assert err.count("\n") == 1
    assert said in err
    assert sorted(path.name for path in home.rglob("*")) == before
    assert len(confide.Ledger("ledger.db").history("patients")) == 1  # that of the run in the fixture


def test_the_overlap_is_counted_as_the_model_sees_it(call, home):
    """Five patients again under other names, and others who look like one by chance."""
    table(Path("others.csv"), [["x", *row[1:]] for row in rows(5)] + [["y", "33.25", *row[2:]] for row in rows(20)])
    code, _, err = call(ATTACK)
    assert code == 2
    assert "5 of 25 rows of others.csv are in members.csv too" in err


@pytest.mark.long
def test_regressions_have_losses_too(tmp_path, monkeypatch):
    """The density of the outcome in the probability's place; no attack on labels is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    generator = np.random.default_rng(0)
    schema = 'target = "y"\n' + "".join(f'\n[columns.{n}]\nkind = "numeric"\nlow = -1\nhigh = 1\n' for n in "xy")
    for name, count in (("in.csv", 60), ("out.csv", 50)):
        x = generator.uniform(-1, 1, count)
        y = np.clip(0.5 * x + generator.normal(0, 0.2, count), -1, 1)
        Path(name).write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x, y, strict=True)))
    run_folder.fit(
        Request(data="in.csv", schema=schema, out="run", epsilon=2.0, delta=1e-4, sampler="sgld", steps=100, key=1),
        verbose=False,
    )
    found = finished.attack_run("run", "in.csv", "out.csv")
    assert found.shown == ()
    assert len(found.audit.scores.members) == 60
    assert 0.3 < found.audit.scores.auc < 0.7
    assert "NOT TO BE PUBLISHED" in repr(found)


@pytest.mark.long
@pytest.mark.optimised
def test_a_resumed_run_has_the_same_canaries(home, monkeypatch):
    """Stopped between blocks: coins and scores are those of an undisturbed run."""
    asked = {
        "data": str(home / "patients.csv"), "schema": SCHEMA, "out": str(home / "again"), "epsilon": 4.0,
        "delta": 1e-5, "sampler": "sgld", "steps": 1200, "checkpoint_seconds": 1e-9, "key": 11, "canaries": 200,
    }  # fmt: skip
    write_checkpoint = checkpoints.write

    def stopping(path, checkpoint):
        write_checkpoint(path, checkpoint)
        if checkpoint.block == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            run_folder.fit(Request(**asked), verbose=False)
    resumed = interrupted.resume(home / "again", verbose=False)
    whole = run_folder.fit(Request(**asked | {"out": "whole"}), verbose=False)
    assert resumed.canaries is not None
    assert whole.canaries is not None
    assert np.array_equal(resumed.canaries.inside, whole.canaries.inside)
    assert np.array_equal(resumed.canaries.scores, whole.canaries.scores)
    assert np.array_equal(resumed.draws["weights"], whole.draws["weights"])
    kept = run_folder.load("again")[0].canaries
    assert kept is not None
    assert np.array_equal(kept.scores, whole.canaries.scores)
