"""`confide rehearse` as a person meets it: of a schema, of a finished run, in its report, and refusals."""

import builtins
import contextlib
import io
import json
import shlex
import sys

import numpy as np
import pytest

from confide.app import cli
from confide.app.runs import rehearsals
from confide.data import schema as schemas
from confide.models import logistic_regression
from helpers.patients import write

FIT = "confide fit patients.csv --schema schema.toml --epsilon 4 --delta 1e-5 --out run"
OF_SCHEMA = "confide rehearse --schema schema.toml --n 400 --epsilon 2 --datasets 3"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Patients and a run on them; the table is gone."""
    home = write(tmp_path_factory.mktemp("rehearsal") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("CONFIDE_STATE", str(home.parent / "state"))
        code, _, err = called(patch, FIT)
    assert code == 0, err
    (home / "patients.csv").unlink()
    return home


@pytest.fixture
def call(home, monkeypatch):
    monkeypatch.chdir(home)
    return lambda command: called(monkeypatch, command)


def called(patch, command):
    patch.setattr(sys, "argv", shlex.split(command))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code or 0, out.getvalue(), err.getvalue()


def test_a_schema_is_rehearsed_without_any_record(call, monkeypatch):
    opened, really = [], builtins.open

    def spy(file, *more, **settings):
        opened.append(str(file))
        return really(file, *more, **settings)

    monkeypatch.setattr(builtins, "open", spy)
    code, out, err = call(f"{OF_SCHEMA} --json")
    assert code == 0, err
    found = json.loads(out)
    assert found["datasets"] == 3
    assert len(found["widths"]) == len(found["features"])
    assert all(np.isfinite(found["widths"]))
    assert not any("patients" in name for name in opened)
    code, text, _ = call(OF_SCHEMA)
    assert code == 0
    assert text.startswith("Simulation, 3 made-up tables")


def test_a_plan_shows_another_sampler_as_made_up_tables_tell(call):
    asked = "confide plan --schema schema.toml --n 400 --epsilon 2,8 --sampler dpvi --datasets 2"
    code, out, err = call(f"{asked} --json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["beside"]["sampler"], found["beside"]["datasets"]) == ("dpvi", 2)
    assert found["beside"]["columns"] == found["columns"]
    widths = np.array(found["beside"]["widths"])
    assert widths.shape == np.shape(found["widths"])
    assert np.all((widths > 0) & (widths < 2 * found["prior_width"]))
    assert np.all(np.array(found["beside"]["coverage"]) <= 1)
    code, text, _ = call(asked)
    assert code == 0
    assert "dpvi, seen on 2 made-up tables" in text
    assert "have no formula" not in text


def test_a_run_is_rehearsed_and_its_report_says_so(call, home):
    code, out, err = call("confide rehearse run --datasets 3")
    assert code == 0, err
    assert out.strip().endswith("rehearsal.json")
    assert json.loads((home / "run" / "rehearsal.json").read_text())["datasets"] == 3
    assert call("confide report run")[0] == 0
    page = (home / "run" / "report.html").read_text()
    assert "<strong>Simulation.</strong> The whole mechanism was run again on 3 made-up tables" in page
    assert call("confide verify run")[0] == 0
    (home / "run" / "rehearsal.json").write_text("{}")
    code, _, err = call("confide report run")
    assert code == 2
    assert "no rehearsal of this run" in err
    (home / "run" / "rehearsal.json").unlink()


def test_a_table_declares_its_categories_and_its_report_says_what_others_would_have_bought(call, home):
    plan = json.loads((home / "run" / "plan.json").read_text())["plan"]
    described = schemas.load(home / "schema.toml").with_target()
    assert plan["categories"] == [list(each) for each in described.categories] != []
    assert call("confide report run")[0] == 0
    page = (home / "run" / "report.html").read_text()
    assert "<strong>Other budgets.</strong> Simulated from what this run released" in page


def test_made_up_audits_of_a_table_with_categories(call):
    code, out, err = call("confide audit run --made-up --repetitions 24 --seed 3 --json")
    assert code == 0, err
    assert json.loads(out)["verdict"] == "not refuted"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("confide rehearse", "--schema is missing"),
        ("confide plan --features 3 --n 400 --epsilon 1 --sampler sgld", "tables of a schema"),
        ("confide plan --n 400 --epsilon 1 --sampler sgld", "tables of a schema"),
        ("confide plan --schema schema.toml --n 400 --epsilon 1 --datasets 3", "--datasets are for a --sampler"),
        ("confide plan --schema schema.toml --n 400 --epsilon 1 --sampler langevin", "no interval"),
        ("confide plan --schema schema.toml --n 400 --width 1 --sampler sgld", "--width is for scoring"),
        ("confide rehearse --schema schema.toml --n 10", "--epsilon is missing"),
        ("confide rehearse run --n 10", "--n goes with --schema"),
        (f"{OF_SCHEMA} --datasets 0", "datasets"),
        (f"{OF_SCHEMA} --model mlp", "scoring fits"),
        (OF_SCHEMA.replace("--n 400", "--n 0"), "n = 0"),
        ("confide rehearse nowhere", "nowhere"),
        ("confide rehearse run --sampler sgld", "--sampler goes with --schema"),
        (f"{OF_SCHEMA} --sampler dp_sgd", "dp_sgd releases a point"),
        (f"{OF_SCHEMA} --sampler langevin", "langevin releases a point or a single draw"),
    ],
)
def test_refusals_in_one_line(call, command, said):
    code, _, err = call(command)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_made_up_tables_have_the_shape_of_the_schema(home):
    described = schemas.load(home / "schema.toml").with_target()
    model = logistic_regression(len(described.features), prior_scale=2.0)
    first, second = rehearsals.tables(described, model, 2000, 2, 5)
    assert first.x.shape == (2000, len(described.features))
    assert np.abs(first.x).max() <= 1
    assert np.all(first.x[:, -1] == 1)
    for places in described.categories:
        assert np.all(first.x[:, list(places)].sum(axis=1) == 1)
        shares = first.x[:, list(places)].mean(axis=0)
        assert shares == pytest.approx(1 / len(places), abs=0.06)  # five standard errors
    assert not np.array_equal(first.truth["weights"], second.truth["weights"])
