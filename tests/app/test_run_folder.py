"""From a table to a run folder and on, as a person does it: golden sessions, refusals, killed processes."""

import csv
import dataclasses
import doctest
import json
import re
import shlex
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import confide
import confide.data.encoding
import confide.inference.loop
from confide.app import cli
from confide.app.runs import choices, predictions, run_folder
from confide.app.runs.run_folder import Request
from confide.data import tables
from confide.inference import checkpoints
from helpers.patients import HEADER, SCHEMA, rows, write

SESSIONS = Path(__file__).parent / "sessions"
NEW = "id,age,sex,smoker,stage\nn1,70,female,no,I\nn2,NA,male,yes,IV\nn3,55,unknown,no,III\n"
FIT = (
    "fit patients.csv --schema schema.toml --epsilon 1 --delta 5e-6 --out run --ledger ledger.db --sampler sgld "
    "--steps 500"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Patients, schema, and a place of its own for what runs keep to themselves."""
    home = write(tmp_path / "home")
    (home / "new.csv").write_text(NEW)
    monkeypatch.chdir(home)
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    return home


@pytest.fixture
def call(folder, monkeypatch, capsys):
    def called(command: str) -> str:
        words = shlex.split(command)
        if words[0] == "cat":
            return (folder / words[1]).read_text()
        if words[0] == "ls":
            place = folder / words[1]
            return "".join(f"{p.name}\n" for p in sorted(place.iterdir())) if place.exists() else "[no such folder]\n"
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        code = stopped.value.code or 0
        return captured.out if code == 0 else f"{captured.out}{captured.err}[exit {code}]\n"

    return called


@pytest.mark.parametrize("session", sorted(SESSIONS.glob("*.txt")), ids=lambda path: path.stem)
def test_golden_sessions(session, call):
    """What a person types and reads; three dots stand for anything."""
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS
    for part in session.read_text().split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        found = call(command)
        assert checker.check_output(expected, found, flags), f"$ {command}\n{found}"


def replaced(old, new, count=1):
    return lambda home: (home / "patients.csv").write_text((home / "patients.csv").read_text().replace(old, new, count))


def raw(content):
    return lambda home: (home / "patients.csv").write_bytes(content)


def schemas(old, new):
    return lambda home: (home / "schema.toml").write_text(SCHEMA.replace(old, new, 1))


INDICATED = 'missing = "indicator"'


def strict(column, without="", old="", new=""):
    """The column refuses what it does not admit, as nothing does unless it is asked for."""

    def changed(home):
        replaced(old, new)(home)
        head = f"[columns.{column}]"
        text = SCHEMA.replace(without, "", 1) if without else SCHEMA
        (home / "schema.toml").write_text(text.replace(head, f'{head}\nmissing = "refuse"'))

    return changed


HEAD = ",".join(HEADER)
LATIN = f"{HEAD}\np1,70,m\xe4nnlich,no,I,no\n".encode("latin-1")
BAD = {
    "wrong delimiter": (lambda home: write(home, delimiter=";"), "", "line 1", "the delimiter seems to be a semicolon"),
    "delimiter of two": (None, "--delimiter ;;", "", "not one character"),
    "wrong encoding": (raw(LATIN), "", "line 2", "is not UTF-8 text: give the right --encoding"),
    "unknown encoding": (None, "--encoding klingon", "", "encoding = 'klingon' is unknown"),
    "missing column": (replaced(",stage", ",phase"), "", "line 1", "column 'stage' of the schema is not in the file"),
    "extra column": (schemas("[columns.id]", "[columns.other]"), "", "line 1", "column 'id' is not in the schema"),
    "unseen category": (strict("sex", "other = true"), "", "line 2", "column 'sex': 'diverse' is not a category"),
    "unseen level": (strict("stage", "", ",IV,", ",V,"), "", "line 2", "column 'stage': 'V' is not a category"),
    "unseen truth": (strict("smoker", "", ",yes,", ",maybe,"), "", "line 3", "'maybe' is neither true nor false"),
    "text in numbers": (strict("age", INDICATED, "p3,", "p3,x"), "", "line 5", "column 'age': 'x"),
    "infinite": (strict("age", INDICATED, "p7,NA", "p7,inf"), "", "line 9", "column 'age': 'inf' is not finite"),
    "missing value": (strict("age", INDICATED), "", "line 9", "column 'age': 'NA' is missing"),
    "empty file": (raw(b""), "", "", "is empty"),
    "only a header": (raw(HEAD.encode()), "", "", "no records"),
    "ragged line": (replaced("p2,", "p2,1,"), "", "line 4", "7 values where the header has 6 columns"),
    "open quote": (replaced("p2,", 'p2,"'), "", "line 4", "close the quotation mark"),
    "column twice": (replaced("sex", "age"), "", "line 1", "column 'age' is there twice"),
    "nameless column": (replaced("sex", ""), "", "line 1", "column 3 has no name"),
    "schema column twice": (schemas("[columns.sex]", "[columns.age]"), "", "line 13", "column 'age' is named twice"),
    "no schema": (lambda home: (home / "schema.toml").unlink(), "", "", "cannot be read"),
    "no data": (lambda home: (home / "patients.csv").unlink(), "", "", "does not exist"),
    "no target": (schemas('target = "relapse"', ""), "", "", "names no target"),
    "unknown target": (None, "--target death", "", "column 'death' is not in the schema"),
    "learnt": (schemas('unit = "years"', "learnt = true"), "", "", "learnt = true in age"),
    "model": (None, "--model forest", "", "model = 'forest' is unknown"),
    "model and target": (None, "--model linear", "", "needs a numeric target"),
    "sampler": (None, "--sampler nuts", "", "sampler = 'nuts' is unknown"),
    "epsilon": (None, "--epsilon 0", "", "epsilon = 0 is not positive"),
    "delta": (None, "--delta 0", "", "delta = 0"),
    "dataset": (None, "--dataset doctors", "", "dataset = 'doctors' is not in the ledger"),
    "no ledger": (None, "--ledger nowhere.db", "", "does not exist"),
    "relation": (None, "--neighbours replace-one", "", "the budget of dataset 'patients' is for 'add-remove'"),
    "parent": (None, "--out no/where", "", "its parent must be a folder"),
    "too many chains": (None, "--chains 0", "", "chains = 0"),
    "parquet": (lambda home: (home / "x.parquet").write_bytes(b"PAR1"), "", "", "cannot be read as Parquet"),
    "budget": (None, "--epsilon 3", "", "of the budget of dataset 'patients'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_no_trace(name, folder, call, tmp_path):
    """Exit code 2, the place and the remedy; nothing charged, nothing written."""
    change, options, place, said = BAD[name]
    ledger = confide.Ledger.create("ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=2.0, delta=1e-5))
    if change is not None:
        change(folder)
    before = sorted(path.name for path in folder.iterdir())
    command = FIT.replace("patients.csv", "x.parquet") if name == "parquet" else FIT
    found = call(f"confide {command} {options}")
    assert found.endswith("[exit 2]\n"), found
    lines = found.splitlines()[:-1]
    assert lines[-1].startswith("confide: ")
    assert len([line for line in lines if line.startswith("confide: ")]) == 1
    assert said in lines[-1]
    assert place in lines[-1]
    assert sorted(path.name for path in folder.iterdir()) == before
    assert ledger.history("patients") == []
    assert list((tmp_path / "state").glob("runs/*")) == []


@pytest.mark.parametrize("missing", ["drop", "indicator"])
def test_a_budget_for_replacing_takes_no_run_for_adding_and_removing(missing, folder, call):
    """Refused by public facts alone, before the table is looked at: it need not even exist."""
    ledger = confide.Ledger.create("ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=2.0, delta=1e-5, neighbours="replace-one"))
    (folder / "schema.toml").write_text(SCHEMA.replace('missing = "indicator"', f'missing = "{missing}"'))
    (folder / "patients.csv").unlink()
    said = " ".join(call(f"confide {FIT}").split())
    assert "the run is for neighbours = 'add-remove', but the budget of dataset 'patients' is for 'replace-one'" in said
    assert said.endswith("[exit 2]")
    assert ledger.history("patients") == []


@pytest.mark.long
def test_a_learnt_schema_is_accepted_on_demand_and_said(folder, call):
    call("confide schema init patients.csv --out learnt.toml --target relapse --from-data")
    common = (
        "confide fit patients.csv --schema learnt.toml --epsilon 1 --delta 1e-5 --out run --sampler sgld --steps 100"
    )
    assert "--accept-learnt-schema" in call(common)
    call(f"{common} --accept-learnt-schema")
    guarantee = json.loads((folder / "run" / "guarantee.json").read_text())
    assert any("taken from the records themselves" in sentence for sentence in guarantee["sentences"])
    call("confide report run")
    assert "Not fully private" in (folder / "run" / "report.html").read_text()


def test_a_run_folder_holds_no_record_and_no_key(folder, call):
    call(f"confide {FIT.replace('--ledger ledger.db', '')}")
    call("confide report run")
    content = b"".join(path.read_bytes() for path in (folder / "run").iterdir())
    for row in rows():  # shorter names occur among so many random bytes; these do once in a thousand times
        assert row[0].encode() not in content or len(row[0]) < 4
    assert b"diverse" not in content  # a value that the schema does not list
    assert str(folder).encode() not in content  # nor where the data lie


@pytest.mark.parametrize(
    ("model", "target", "columns"),
    [
        pytest.param("linear", "visits", 3, marks=pytest.mark.long),
        pytest.param("poisson", "visits", 3, marks=pytest.mark.long),
        pytest.param("negative-binomial", "visits", 3, marks=pytest.mark.long),
        pytest.param("softmax", "stage", 1 + 3 * 4, marks=pytest.mark.long),
        pytest.param("mlp", "relapse", 4, marks=pytest.mark.long),
        pytest.param("mlp", "visits", 3, marks=pytest.mark.long),
    ],
)
def test_every_model_goes_the_whole_way(model, target, columns, folder, call):
    """Counts, numbers, several labels and networks: fitted, predicted in their own units, evaluated and reported."""
    header, table = [*HEADER, "visits"], [[*row, i % 7] for i, row in enumerate(rows())]
    with Path("visits.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *table])
    bounds = '\n[columns.visits]\nkind = "numeric"\nlow = 0\nhigh = 10\n'
    Path("schema.toml").write_text(SCHEMA.replace('missing = "indicator"', 'missing = "drop"') + bounds)
    common = f"--schema schema.toml --target {target} --epsilon 5 --delta 1e-5 --sampler sgld --steps 300 --draws 50"
    found = call(f"confide fit visits.csv {common} --model {model} --out run --quiet")
    assert "run/posterior.nc" in found, found
    assert call("confide predict run visits.csv --out said.csv").startswith("said.csv: 300")
    with Path("said.csv").open() as file:
        made = list(csv.reader(file))
    own = made[0][1:]
    assert len(own) == columns
    assert made[8][1:] == [""] * len(own)  # a row that the fit left out has no prediction
    assert made[9][1] != ""
    if target == "visits":
        assert own == ["predicted visits", "low visits", "high visits"]
        assert -15 < float(made[1][1]) < 25
        ends = made[1][2:]  # none where the draws have not settled
        assert ends == ["", ""] or float(ends[0]) <= float(ends[1])
    assert call("confide report run --public visits.csv") == "run/report.html\n"


@pytest.mark.long
def test_predictions_cover_what_they_say(folder):
    """Of a well-specified model without much noise, bins hold what they promise; the scores are those of hand."""
    posterior = run_folder.fit(
        Request(
            data="patients.csv", schema=SCHEMA, out="run", epsilon=20.0, delta=1e-5, sampler="sgld", steps=2000, key=1
        ),
        verbose=False,
    )
    described = run_folder.load("run")[1]
    write(folder / "other", 4000)
    judged = predictions.evaluate(posterior, described, folder / "other" / "patients.csv")
    assert judged.rows == 4000
    assert judged.scores["accuracy"] > judged.scores["share of the most common label"]
    held = sum(part.rows for part in judged.calibration if part.low - 0.12 < part.said < part.high + 0.12)
    assert held > 0.8 * judged.rows
    assert sum(part.rows for part in judged.calibration) == judged.rows
    probabilities = posterior.predict_proba(
        confide.data.encoding.encode_table(described, tables.open_table("patients.csv")).x
    )
    assert np.allclose(probabilities.sum(axis=1), 1)


# Killed.

KILLED = """
    import os, signal, sys
    from confide.app.runs import run_folder
    from confide.inference import checkpoints
    from confide.privacy import ledger
    moment, request = sys.argv[1], run_folder.Request(**eval(sys.argv[2]))
    kill = lambda *arguments, **more: os.kill(os.getpid(), signal.SIGKILL)
    if moment == "before the charge":
        ledger.Ledger.charge = kill
    if moment == "before the end":
        run_folder.end = kill
    if moment == "in the middle":
        write = checkpoints.write
        def counted(path, checkpoint):
            write(path, checkpoint)
            if checkpoint.block == 3:
                kill()
        checkpoints.write = counted
    run_folder.fit(request, verbose=False)
"""


@pytest.mark.optimised
@pytest.mark.long
@pytest.mark.parametrize("moment", ["before the charge", "in the middle", "before the end"])
def test_killed_and_resumed(moment, folder, call, tmp_path):
    """The same draws as an undisturbed run, one charge, and no secret left behind."""
    ledger = confide.Ledger.create("ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=2.0, delta=1e-5))
    asked = {
        "data": str(folder / "patients.csv"), "schema": SCHEMA, "out": str(folder / "run"), "epsilon": 1.0,
        "delta": 5e-6, "sampler": "sgld", "steps": 3000, "ledger": str(folder / "ledger.db"),
        "checkpoint_seconds": 1e-9, "key": 11,
    }  # fmt: skip
    program = [sys.executable, "-c", textwrap.dedent(KILLED), moment, repr(asked)]
    killed = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / "run").exists() == (moment == "before the end")
    (state,) = (tmp_path / "state" / "runs").iterdir()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in state.iterdir())
    if moment != "before the end":
        assert "has begun and not ended" in call(f"confide {FIT}")
        assert "has not ended" in call("confide report run")
    found = call("confide resume run --quiet")
    assert "run/posterior.nc" in found, found
    assert list((tmp_path / "state" / "runs").iterdir()) == []
    assert len(ledger.history("patients")) == 1
    undisturbed = run_folder.fit(Request(**asked | {"out": "whole", "ledger": None}), verbose=False)
    assert np.array_equal(run_folder.load("run")[0].draws["weights"], undisturbed.draws["weights"])
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_a_waiting_run_is_held_by_one_process_and_can_be_given_up(folder, call):
    out = Path("run")
    state = run_folder.begin(out, {"data": "patients.csv"})
    with run_folder.hold(state):
        program = (
            "from confide.app.runs import run_folder; from pathlib import Path\n"
            f"with run_folder.hold(Path({str(state)!r})): pass"
        )
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "another process is working" in other.stderr
    state.chmod(0o755)
    assert "can be read by others" in call("confide resume run")
    assert "given up" in call("confide resume run --discard")
    assert not state.exists()
    assert "no run for 'run' waits" in call("confide resume run --discard")


def interrupted(*arguments, **more):
    raise KeyboardInterrupt


@pytest.mark.long
def test_changed_data_are_not_resumed(folder, call):
    asked = Request(data="patients.csv", schema=SCHEMA, out="run", epsilon=1.0, delta=5e-6, sampler="sgld", steps=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confide.inference.loop, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_folder.fit(asked, verbose=False)
    assert checkpoints.read(run_folder.state_folder(Path("run")) / run_folder.CHECKPOINT) is not None
    before = Path("patients.csv").read_text()
    replaced("p2,", "p2,1")(folder)
    assert "is of another run" in call("confide resume run")
    Path("patients.csv").write_text(before)
    assert "run/posterior.nc" in call("confide resume run --quiet")


CHARGED = """
    import os, signal, sys, time
    from confide.app.runs import run_folder
    from confide.privacy import ledger
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background does not have
    charge = ledger.Ledger.charge
    def interrupted(*arguments, **more):
        charge(*arguments, **more)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    ledger.Ledger.charge = interrupted
    run_folder.fit(run_folder.Request(**eval(sys.argv[1])), verbose=False)
"""


@pytest.mark.long
def test_interrupted_at_the_charge_it_is_not_charged_again(folder, call):
    ledger = confide.Ledger.create("ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=2.0, delta=1e-5))
    asked = {
        "data": "patients.csv", "schema": SCHEMA, "out": "run", "epsilon": 1.0, "delta": 5e-6, "steps": 500,
        "ledger": "ledger.db", "sampler": "sgld",
    }  # fmt: skip
    program = [sys.executable, "-c", textwrap.dedent(CHARGED), repr(asked)]
    stopped = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert "KeyboardInterrupt" in stopped.stderr
    assert len(ledger.history("patients")) == 1
    Path("alias").symlink_to(folder)
    assert "has begun and not ended" in call(f"confide {FIT.replace('--out run', '--out alias/run')}")
    assert "run/posterior.nc" in call("confide resume alias/run --quiet")
    assert len(ledger.history("patients")) == 1


def test_paid_draws_are_not_lost_when_the_output_is_taken(folder, call):
    asked = Request(
        data="patients.csv", schema=SCHEMA, out="run", epsilon=1.0, delta=5e-6, sampler="sgld", steps=500, key=3
    )

    def taken(*arguments, **more):
        Path("run").mkdir()
        (Path("run") / "mine").touch()
        return execute(*arguments, **more)

    execute = confide.inference.loop.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confide.inference.loop, "execute", taken)
        with pytest.raises(confide.Refused, match="exists"):
            run_folder.fit(asked, verbose=False)
    assert "does not hold a run" in call("confide resume run")
    (folder / "run" / "mine").unlink()
    (folder / "run").rmdir()
    run_folder.fit(Request(**vars(asked) | {"out": "another"}), verbose=False)
    Path("another").rename("run")
    assert "is another run's" in call("confide resume run")
    Path("run").rename("another")
    assert "run/posterior.nc" in call("confide resume run --quiet")
    assert np.array_equal(*(run_folder.load(name)[0].draws["weights"] for name in ("run", "another")))


def test_secrets_and_output_lie_apart(folder, call, monkeypatch):
    monkeypatch.setenv("CONFIDE_STATE", str(folder / "run" / "state"))
    assert "must lie apart" in call(f"confide {FIT.replace('--ledger ledger.db', '')}")
    assert not (folder / "run").exists()


@pytest.mark.long
def test_what_is_about_people_stays_out_of_the_run(folder, call):
    """Predictions and held-out reports, also by way of links."""
    run_folder.fit(
        Request(data="patients.csv", schema=SCHEMA, out="run", epsilon=1.0, delta=5e-6, sampler="sgld", steps=200),
        verbose=False,
    )
    before = sorted(path.name for path in Path("run").iterdir())
    assert "lies in the run" in call("confide predict run new.csv --out run/predictions.csv")
    assert "lies in the run" in call("confide report run --held-out patients.csv --out run/report.html")
    Path("out").symlink_to(folder / "run")
    assert "lies in the run" in call("confide report run --held-out patients.csv --out out/report.html")
    (folder / "run" / "link.html").symlink_to(folder / "elsewhere.html")
    assert "lies in the run" in call("confide report run --held-out patients.csv --out run/link.html")
    (folder / "run" / "link.html").unlink()
    assert sorted(path.name for path in Path("run").iterdir()) == before
    assert "exists" in call("confide report run --out patients.csv")


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_records_without_a_value_count_as_absent_and_their_number_is_not_told(neighbours, folder, call):
    Path("schema.toml").write_text(SCHEMA.replace('missing = "indicator"', ""))
    common = FIT.replace("--ledger ledger.db", "")
    found = call(f"confide {common} --neighbours {neighbours}")
    assert "run/posterior.nc" in found
    posterior = run_folder.load("run")[0]
    assert posterior.plan["records"] == 300
    said = posterior.guarantee.assumptions
    assert any("counts as absent; its place is kept" in sentence for sentence in said)
    assert any("tables whose records lie in the schema's domain" in sentence for sentence in said)
    assert not any("is refused" in sentence for sentence in said)
    assert not re.search(r"\b294\b", Path("run/plan.json").read_text() + Path("run/guarantee.json").read_text())


def test_where_a_column_refuses_the_guarantee_says_what_a_run_tells(folder, call):
    strict("stage")(folder)
    call(f"confide {FIT.replace('--ledger ledger.db', '')}")
    said = run_folder.load("run")[0].guarantee.assumptions
    assert any("lacks a value in stage is refused: that a run exists tells" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("table", "options"),
    {
        "one class": (lambda text: text.replace(",yes\n", ",no\n"), ""),
        "nobody left": (lambda text: text.replace(",no\n", ",maybe\n").replace(",yes\n", ",maybe\n"), ""),
        "fewer than declared": (lambda text: text, "--records 310"),
        "nobody": (lambda text: text.splitlines()[0] + "\n", "--records 300"),
    }.values(),
)
def test_no_record_decides_whether_there_is_a_run(table, options, folder, call):
    Path("patients.csv").write_text(table(Path("patients.csv").read_text()))
    found = call(f"confide {FIT.replace('--ledger ledger.db', '')} {options}")
    assert "(1, 5e-06)-differentially private" in found, found
    posterior = run_folder.load("run")[0]
    assert posterior.plan["records"] == (310 if "310" in options else 300)
    assert any(("declared" if options else "rows in the file") in s for s in posterior.guarantee.assumptions)


def test_the_owner_sees_what_a_fit_would_leave_out(folder, call):
    replaced(",IV,", ",V,")(folder)
    found = call("confide schema check patients.csv --schema schema.toml")
    assert "'V' is not a category (line 2)" in found
    assert "age      6 " in found
    assert "leaves out 1 of 300 records" in found
    assert "not for publication, and not counted by any epsilon" in found
    told = json.loads(call("confide schema check patients.csv --schema schema.toml --json"))
    assert told["publishable"] is False
    assert [problem["line"] for problem in told["problems"] if problem["column"] == "stage"] == [2]
    assert "needs --schema" in call("confide schema check patients.csv")
    assert "for images" in call("confide schema check patients.csv --schema schema.toml --shape 8x8")


@pytest.mark.long
def test_a_million_rows(folder, call):
    """Read in pieces and fitted; memory beyond the arrays is a piece."""
    line = ["p,70,female,no,II,no\n", "p,40,male,yes,IV,yes\n"]
    with Path("patients.csv").open("w") as file:
        file.write(",".join(HEADER) + "\n")
        for _ in range(500):
            file.write("".join(line) * 1000)
    found = call(f"confide {FIT.replace('--ledger ledger.db', '').replace('5e-6', '5e-7')} --quiet")  # below 1/n
    assert "run/posterior.nc" in found, found
    assert json.loads(Path("run/plan.json").read_text())["plan"]["records"] == 1_000_000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": "poisson"}, "needs a numeric target"),
        ({"hidden": (4,)}, "--hidden goes"),
        ({"model": "cnn"}, "images"),
    ],
)
def test_what_does_not_go_with_the_target_is_refused_before_the_table_is_read(more, said, folder):
    asked = Request(data="nowhere.csv", schema=SCHEMA, out="run", epsilon=1.0, delta=1e-6)
    with pytest.raises(confide.Refused, match=said):
        run_folder.prepare(dataclasses.replace(asked, **more))
    with pytest.raises(confide.Refused, match="does not exist"):
        run_folder.prepare(asked)


def test_one_draw_by_langevin(folder):
    asked = Request(data="patients.csv", schema=SCHEMA, out="one", epsilon=0.5, delta=1e-6, steps=300)
    posterior = run_folder.fit(dataclasses.replace(asked, sampler="langevin"), verbose=False)
    assert posterior.guarantee is not None
    assert posterior.guarantee.epsilon <= 0.5 * (1 + 1e-9)
    assert confide.verify(confide.Posterior.load("one").guarantee) == pytest.approx(posterior.guarantee.epsilon)
    assert "stayed secret and were deleted" in " ".join(posterior.guarantee.sentences())


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "scoring"),
        ({"draws": 1}, "scoring"),
        ({"target": "visits", "model": "linear"}, "scoring"),
        ({"target": "visits", "model": "poisson"}, "scoring"),
        ({"model": "mlp"}, "sgld"),
        ({"sampler": "sgld"}, "sgld"),
        ({"sampler": "langevin"}, "langevin"),
    ],
)
def test_the_model_decides_which_sampler_is_the_default(more, name):
    """Sizes and budget do not."""
    asked = Request(data="patients.csv", schema=SCHEMA, out="run", epsilon=0.5, delta=1e-6, **more)
    visits = '\n[columns.visits]\nkind = "numeric"\nlow = 0\nhigh = 10\n'
    described = run_folder.schema.loads(SCHEMA + visits, "schema").with_target(asked.target)
    for epsilon, records in ((0.01, 10), (40.0, 10**6)):
        choice = choices.choose(described, asked, confide.Budget(epsilon=epsilon, delta=1e-6), records)
        assert choice.sampler.name == name


@pytest.mark.parametrize("sampler", ["hybrid", "ops", "baoab", "dp_sgd", "dp_adam", "dpvi"])
@pytest.mark.long
def test_other_samplers_by_name(sampler, folder, call):
    command = FIT.replace("--ledger ledger.db", "")
    command = command.replace("sgld", sampler)
    command = command if sampler != "ops" else command.replace("--steps 500", "")
    printed = call(f"confide {command} --json --quiet")
    assert json.loads(printed)["epsilon"] <= 1 + 1e-9
    assert "Stated epsilon" in call("confide verify run")
    assert call("confide report run").strip().endswith("report.html")
    page = Path("run/report.html").read_text()
    assert ("finds points near the mode" in page) == sampler.startswith("dp_")
    assert ("point estimate" in page) == sampler.startswith("dp_")
    assert ("mean-field approximation" in page) == (sampler == "dpvi")
    told = call("confide predict run patients.csv --out told.csv")
    assert ("points have no intervals" in told) == sampler.startswith("dp_")


def test_resume_goes_on_with_langevin(folder, call, monkeypatch):
    """Stopped between blocks, as a kill would: the same choice, the same draws, one charge."""
    write = checkpoints.write

    def stopping(path, checkpoint):
        write(path, checkpoint)
        if checkpoint.block:
            raise KeyboardInterrupt

    confide.Ledger.create("ledger.db").enter("patients", confide.Budget(epsilon=2.0, delta=1e-5))
    command = (
        "confide fit patients.csv --schema schema.toml --epsilon 0.5 --delta 1e-6 --sampler langevin --out run "
        "--steps 1200"
    )
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", stopping)
        assert "exit 130" in call(f"{command} --ledger ledger.db --checkpoint-seconds 0.000001")
    call("confide resume run")
    plan = json.loads((folder / "run" / "plan.json").read_text())["plan"]
    assert plan["sampler"] == "langevin"
    assert len(confide.Ledger("ledger.db").history("patients")) == 1
    assert not list(run_folder.state_folder(Path("run")).parent.glob("*"))
