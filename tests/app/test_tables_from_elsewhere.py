"""Tables as other programs write them, on the command line: nothing is lost without a word.

Of each: what pandas makes of a column once a value is missing, codes for missing values, months for years.
"""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import confide
from confide.app import cli
from confide.app.runs import run_folder

FIT = "confide fit t.csv --schema s.toml --epsilon 4 --delta 1e-4"
SCHEMA = """target = "relapse"

[columns.age]
kind = "numeric"
low = 0
high = 100

[columns.site]
kind = "categorical"
categories = [1, 2, 3]

[columns.relapse]
kind = "boolean"
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A command, and what it prints; its exit code is the last line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")

    def called(command):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return captured.out + captured.err + f"exit {stopped.value.code}\n"

    return called


def table(rows=400):
    """Patients of whom the older ones relapse more often."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, rows)
    return pandas.DataFrame(
        {
            "age": age,
            "site": rng.integers(1, 4, rows),
            "relapse": (rng.random(rows) < 1 / (1 + np.exp(-(age - 55) / 8))).astype(int),
        }
    )


def write(frame, schema=SCHEMA, missing=("relapse", "site", "age")):
    """As pandas writes it, with a missing value in the last rows."""
    for i, name in enumerate(missing):
        frame[name] = frame[name].astype(float)
        frame.loc[len(frame) - 1 - i, name] = np.nan
    frame.to_csv("t.csv", index=False)
    Path("s.toml").write_text(schema)
    return Path("t.csv").read_text()


def fitted(out):
    """The weights of a run with a key that is given."""
    asked = run_folder.Request(data="t.csv", schema=Path("s.toml").read_text(), epsilon=4.0, delta=1e-4, out=out, key=1)
    return np.asarray(run_folder.fit(asked, verbose=False).draws["weights"])


def test_a_table_of_floats_is_fitted_like_one_of_integers(call):
    """Only the records whose value is missing count as absent: the draws are those of a table without a `.0`."""
    text = write(table())
    assert ".0," in text
    assert text.splitlines()[1].endswith((".0", ".0\n"))
    assert "leaves out 3 of 400 records" in call("confide schema check t.csv --schema s.toml")
    floats = fitted("floats")
    Path("t.csv").write_text(re.sub(r"(\d+)\.0\b", r"\1", text))
    assert np.array_equal(floats, fitted("integers"))
    assert floats.mean(axis=(0, 1))[0] > 1  # it learnt that age matters


def test_init_drafts_what_pandas_wrote_as_what_it_is(call):
    write(table())
    said = call("confide schema init t.csv --target relapse --out draft.toml")
    draft = Path("draft.toml").read_text()
    assert re.findall(r'kind = "(\w+)"', draft.replace('# kind = "numeric"', "")) == [
        "numeric",
        "categorical",
        "boolean",
    ]
    assert draft.count("learnt = true") == 2
    assert "relapse  whether it is yes or no everywhere" in said


def test_check_sees_codes_for_missing_and_months_for_years(call):
    frame = table()
    frame.loc[:11, "age"] = -99
    frame["followup"] = frame.index % 240  # months
    write(frame, SCHEMA + '\n[columns.followup]\nkind = "numeric"\nlow = 0\nhigh = 20\n')
    said = call("confide schema check t.csv --schema s.toml")
    assert "-99 to 89, of bounds 0 to 100; 12 below and 0 above; -99 occurs 12 times: a code for 'missing'?" in said
    assert "0 to 239, of bounds 0 to 20; 0 below and " in said
    assert "A fit replaces numbers beyond their bounds by the bound" in said
    assert "not for publication" in said
    assert "exit 0" in said
    assert "exit 1" in call("confide schema check t.csv --schema s.toml --strict")
    found = json.loads(call("confide schema check t.csv --schema s.toml --json").rpartition("exit")[0])
    assert found["columns"]["age"]["sentinels"] == [{"value": -99.0, "times": 12}]
    assert found["columns"]["followup"]["highest"] == 239
    assert (found["left_out"], found["remaining"], found["as_the_schema_says"]) == (3, 397, False)
    Path("s.toml").write_text('missing_values = ["", "-99"]\n' + Path("s.toml").read_text())
    assert "leaves out 15 of 400 records" in call("confide schema check t.csv --schema s.toml")


def test_a_clean_table_passes_the_strict_check(call):
    write(table(), missing=())
    said = call("confide schema check t.csv --schema s.toml --strict")
    assert "All as the schema says." in said
    assert "exit 0" in said


def test_a_target_that_the_schema_calls_numeric_is_said(call):
    write(
        table(),
        SCHEMA.replace('[columns.relapse]\nkind = "boolean"', '[columns.relapse]\nkind = "numeric"\nlow = 0\nhigh = 1'),
    )
    said = call(f"{FIT} --out run")
    assert "linear: the schema calls `relapse` numeric; boolean would be logistic\n" in said
    assert "linear: the schema calls" in call("confide plan --schema s.toml --n 400 --epsilon 1")
    Path("s.toml").write_text(SCHEMA)
    assert "logistic: the schema calls `relapse` boolean (false or true)\n" in call(f"{FIT} --out other")
    assert "softmax: --model names it" in call(f"{FIT} --out third --model softmax")


@pytest.mark.filterwarnings("default::confide.LargeDeltaWarning")
def test_a_large_delta_is_said_however_quiet_the_run_is(call):
    write(table(), missing=())
    for option in ("--quiet", "--json", ""):
        said = call(f"confide fit t.csv --schema s.toml --epsilon 1 --delta 0.1 --out run{option} {option}")
        assert said.count("confide: delta 0.1 is not below 1/n for n = 400 records") == 1
        assert "releases one record in full with probability delta would be allowed" in said
    assert "not below 1/n" not in call("confide fit t.csv --schema s.toml --epsilon 1 --delta 1e-3 --out small --quiet")
    assert "not below 1/n" in call("confide plan --n 400 --epsilon 1 --delta 0.1 --steps 10")


def test_a_large_delta_is_a_warning_of_its_own_in_python():
    frame, budget = table(), confide.Budget(epsilon=1.0, delta=0.01)
    with pytest.warns(confide.LargeDeltaWarning, match="n = 400 records"):
        confide.fit(
            confide.models.logistic_regression(1), (frame[["age"]] / 100, frame["relapse"]), budget, verbose=False
        )
    with pytest.warns(confide.LargeDeltaWarning):
        confide.PrivateLogisticRegression(delta=0.01, bounds=(0, 100), classes=[0, 1]).fit(
            frame[["age"]], frame["relapse"]
        )


def test_blank_predictions_are_counted(call):
    frame = table()
    write(frame)
    call(f"{FIT} --out run")
    frame.drop(columns="relapse").tail(29).to_csv("new.csv", index=False)
    said = call("confide predict run new.csv --out p.csv")
    assert said.startswith(
        "p.csv: 29 predictions with 90% intervals, 2 of them blank: rows with a missing or invalid value."
    )
    assert sum(line.endswith(",,,") for line in Path("p.csv").read_text().splitlines()) == 2
    found = json.loads(call("confide predict run new.csv --out q.csv --json").rpartition("exit")[0])
    assert (found["rows"], found["blank"]) == (29, 2)
    frame.drop(columns="relapse").head(29).to_csv("new.csv", index=False)
    assert call("confide predict run new.csv --out r.csv").startswith("r.csv: 29 predictions with 90% intervals.")
