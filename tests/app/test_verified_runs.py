"""`confide verify` plans again whatever the command line made, and refuses in one line what cannot be planned again."""

import json
import shlex
import shutil
import sys

import h5netcdf
import numpy as np
import pytest

import confide
from confide import Refused, models
from confide.app import cli
from confide.app.runs import run_files
from confide.inference import requests, verification
from helpers.fits import X, Y
from helpers.patients import SCHEMA, write
from helpers.tiers import tiered

BUDGET = "--epsilon 2 --delta 1e-5 --quiet"
TABLE = f"confide fit patients.csv --schema schema.toml {BUDGET}"
AGES = f"confide fit patients.csv --schema ages.toml {BUDGET}"
IMAGES = f"confide fit images.npz --classes 2 {BUDGET}"
STEPS = "--steps 100 --draws 10"
RUNS = {
    "scoring": f"{TABLE} --draws 20",
    "priors of columns": f"{TABLE} --priors age=0.05 --draws 20",
    "scoring with canaries": f"{TABLE} --canaries 30 --draws 20",
    "softmax": f"{TABLE} --target stage --model softmax --draws 20",
    "linear": f"{AGES} --draws 20",
    "poisson": f"{AGES} --model poisson --draws 20",
    "sgld": f"{TABLE} --sampler sgld {STEPS}",
    "langevin": f"{TABLE} --sampler langevin --steps 100",
    "dpvi": f"{TABLE} --sampler dpvi {STEPS}",
    "images by sgld": f"{IMAGES} --model logistic --sampler sgld {STEPS}",
    "images by mlp": f"{IMAGES} --model mlp --hidden 4 --steps 20 --draws 5",
    "secure noise": f"{TABLE} --noise secure --draws 20",
    "individual": f"{TABLE} --sampler sgld {STEPS} --account individual --stretch 2",
    "histogram": f"{TABLE} --sampler sgld {STEPS} --account individual --stretch 2 --histogram 0.1",
    "canaries": f"{TABLE} --sampler sgld {STEPS} --canaries 30",
}
QUICK = ("scoring", "linear", "poisson", "sgld", "secure noise", "individual", "images by sgld")
QUIET = {"verbose": False, "progress": False, "key": 1}
LIMIT = confide.Budget(epsilon=2.0, delta=1e-5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run of the command line by its name, made once."""
    home, patch = tmp_path_factory.mktemp("home") / "table", pytest.MonkeyPatch()
    write(home, 300)
    (home / "ages.toml").write_text(SCHEMA.replace('"relapse"', '"age"', 1).replace('missing = "indicator"\n', ""))
    y = np.arange(60) % 2
    x = np.random.default_rng(0).integers(0, 150, (60, 8, 8)) + 100 * y[:, None, None]
    np.savez(home / "images.npz", x=x.astype(np.uint8), y=y)
    patch.setenv("CONFIDE_STATE", str(home.parent / "state"))

    def get(name):
        folder = home / name.replace(" ", "-")
        if not folder.exists():
            with pytest.MonkeyPatch.context() as moved:
                moved.chdir(home)
                assert run_command(f"{RUNS[name]} --out {folder.name}") == 0
        return folder

    yield get
    patch.undo()


def run_command(command):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    return stopped.value.code or 0


@pytest.fixture
def copy(folders, tmp_path):
    """A copy of the run of this name, to be changed."""
    return lambda name: shutil.copytree(folders(name), tmp_path / "run")


def edit(folder, change, file="plan.json"):
    """A file of JSON with `change` done to what it holds; of plan.json to the plan."""
    record = json.loads((folder / file).read_text())
    change(record["plan"] if file == "plan.json" else record)
    (folder / file).write_text(json.dumps(record))


def refusal(folder, capsys):
    """What `confide verify` says of the folder, which is one line of text for people."""
    assert run_command(f"confide verify {shlex.quote(str(folder))}") == 2
    said = capsys.readouterr()
    assert said.err.startswith("confide: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize("name", tiered(RUNS, QUICK))
def test_a_run_of_the_command_line_is_planned_again(name, folders, capsys):
    folder = folders(name)
    capsys.readouterr()
    assert run_command(f"confide verify {folder}") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The run was planned again" in said
    assert "the plan, as an option" not in said


def test_numbers_of_numpy_are_stored_as_numbers(tmp_path):
    options = {"draws": np.int64(20), "chains": np.int32(2), "steps": np.int64(100), "burn_in": np.array(50)}
    sampler = confide.sgld(temperature=np.float32(0.5))
    posterior = confide.fit(models.logistic_regression(3), (X, Y), LIMIT, sampler, **options, **QUIET)
    request = json.loads((posterior.save(tmp_path / "run") / "plan.json").read_text())["plan"]["request"]
    assert {name: request[name] for name in options} == {"draws": 20, "chains": 2, "steps": 100, "burn_in": 50}
    assert request["sampler"]["temperature"] == 0.5
    assert verification.verify(confide.Posterior.load(tmp_path / "run")).plan is not None


PLANS = {  # what is done to a plan, and what the refusal names
    "another sampler": (lambda p: p["request"]["sampler"].update(name="hamiltonian"), "no sampler of confide"),
    "a class for a sampler": (lambda p: p["request"]["sampler"].update(name="Sampler"), "no sampler of confide"),
    "a function for draws": (lambda p: p["request"].update(draws="function"), "plan.request.draws"),
    "a function for a temperature": (
        lambda p: p["request"]["sampler"].update(temperature="function"),
        "plan.request.sampler.temperature",
    ),
    "a function for a schedule": (lambda p: p["request"]["sampler"].update(schedule="function"), "plan holds none"),
    "a function for a sampler": (lambda p: p["request"].update(sampler={"name": "function"}), "sampler.name"),
    "no request": (lambda p: p.pop("request"), "plan.request"),
    "no sampler": (lambda p: p["request"].pop("sampler"), "plan.request"),
    "an option that no run has": (lambda p: p["request"].update(sum=3.5), "plan.request.sum"),
    "an argument that no sampler has": (lambda p: p["request"]["sampler"].update(sum=3.5), "sampler.sum"),
    "an option at its default": (lambda p: p["request"].update(chains=1), "plan.request.chains"),
    "other arrays": (lambda p: p.update(arrays=[[7], []]), "planned again"),
    "arrays of no shape": (lambda p: p.update(arrays=3), "arrays|cannot be recomputed"),
    "more of a budget": (lambda p: p["budget"].update(sum=3.5), "plan.budget"),
    "no budget": (lambda p: p.pop("budget"), "plan.budget"),
    "an entry that no plan has": (lambda p: p.update(sum=3.5), "plan.sum"),
    "a calibration": (lambda p: p.update(calibration={"inflation": 1.0, "datasets": 50}), "plan.calibration"),
    "draws that know of the noise": (lambda p: p.update(noise_aware={"chains": 1}), "noise_aware"),
    "a drift": (lambda p: p.update(drift=0.123), "plan.drift"),
    "an individual account": (lambda p: p.update(individual={"stretch": 2.0, "histogram": 0.0}), "plan.individual"),
    "another run": (lambda p: p.update(run="3.14159"), "plan.run"),
    "a ledger": (lambda p: p.update(ledger={"dataset": "patients", "sum": 3.5}), "plan.ledger"),
    "no reason for the model": (lambda p: p.pop("model_reason"), "model_reason"),
    "another reason for the model": (lambda p: p.update(model_reason="the sum is 3.5"), "model_reason"),
}


@pytest.mark.parametrize("change", PLANS)
@pytest.mark.parametrize("run", ["scoring", "sgld"])
def test_a_plan_that_no_run_stores_is_refused_in_one_line(run, change, copy, capsys):
    folder, (alter, named) = copy(run), PLANS[change]
    if change in ("a function for a temperature", "a function for a schedule") and run == "scoring":
        pytest.skip("scoring has neither")
    edit(folder, alter)
    said = refusal(folder, capsys)
    assert any(part in said for part in named.split("|")), said


def test_steps_of_scoring_are_refused(copy, capsys):
    folder = copy("scoring")
    edit(folder, lambda plan: plan["request"].update(steps=26))
    assert "steps" in refusal(folder, capsys)


@pytest.mark.parametrize("value", [0.82399999, 1.5, "0.8", True])
def test_a_correlation_has_three_digits(value, copy, capsys):
    folder = copy("sgld")
    edit(folder, lambda plan: plan.update(lag_one=value))
    assert "lag_one" in refusal(folder, capsys)


def test_a_correlation_is_of_runs_by_steps(copy, capsys):
    folder = copy("scoring")
    edit(folder, lambda plan: plan.update(lag_one=0.824))
    assert "plan.lag_one" in refusal(folder, capsys)


@pytest.mark.parametrize("settings", [None, {"dimension": 8, "sum": 3.5}, {"dimension": 7}, 3])
def test_a_model_without_its_settings_is_refused(settings, copy, capsys):
    folder = copy("scoring")
    record = json.loads((folder / "plan.json").read_text())
    record["model"]["settings"] = settings
    (folder / "plan.json").write_text(json.dumps(record))
    refusal(folder, capsys)


def test_an_unknown_model_is_refused(copy, capsys):
    folder = copy("scoring")
    record = json.loads((folder / "plan.json").read_text())
    record["model"]["name"] = record["plan"]["model"] = "regression"
    (folder / "plan.json").write_text(json.dumps(record))
    assert "no model of confide has that name" in refusal(folder, capsys)


@pytest.mark.parametrize("file", ["plan.json", "guarantee.json", "posterior.nc", "release.json"])
def test_a_folder_without_one_of_its_files_is_refused(file, copy, capsys):
    folder = copy("scoring")
    (folder / file).unlink()
    assert file in refusal(folder, capsys)


@pytest.mark.parametrize(
    "file", ["sums.json", ".hidden", "canaries.json", "trace.json", "made-up-2.json", "images.json"]
)
def test_a_file_that_no_run_writes_is_refused(file, copy, capsys):
    folder = copy("scoring")
    (folder / file).write_text('{"sum": 3.5}')
    refusal(folder, capsys)


@pytest.mark.parametrize("file", ["plan.json", "guarantee.json", "release.json"])
def test_a_key_that_no_run_writes_is_refused(file, copy, capsys):
    folder = copy("scoring")
    record = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(record | {"sum": 3.5}))
    assert f"sum in {file}" in refusal(folder, capsys) or file == "guarantee.json"


def test_a_key_of_canaries_that_no_run_writes_is_refused(copy, capsys):
    folder = copy("canaries")
    edit(folder, lambda record: record.update(sum=3.5), "canaries.json")
    refusal(folder, capsys)


def add_group(file):
    file.create_group("sums").attrs["sum"] = 3.5


def add_group_within(file):
    file["posterior"].create_group("sums")


def add_attribute(file):
    file.attrs["sum"] = 3.5


def add_attribute_within(file):
    file["posterior"].attrs["sum"] = 3.5


def add_attribute_of_draws(file):
    file["posterior/weights"].attrs["sum"] = 3.5


def add_variable(file):
    file["posterior"].create_variable("sums", ("feature",), data=np.arange(8.0))


def add_dimension(file):
    file["posterior"].dimensions["sums"] = 35


def add_long_version(file):
    file["posterior"].attrs["creation_library_version"] = "1" * 100


def change_axis(file):
    file["posterior/draw"][3] = 17


ADDITIONS = (add_group, add_group_within, add_attribute, add_attribute_within, add_attribute_of_draws, add_variable)
ADDITIONS += (add_dimension, add_long_version, change_axis)


@pytest.mark.parametrize("add", ADDITIONS)
def test_what_no_run_writes_into_the_file_of_draws_is_refused(add, copy, capsys):
    folder = copy("sgld")
    with h5netcdf.File(folder / "posterior.nc", "a") as file:
        add(file)
    assert "posterior.nc" in refusal(folder, capsys)


def test_a_schema_that_was_changed_is_refused(copy, capsys):
    folder = copy("scoring")
    text = (folder / "schema.toml").read_text()
    for other in (text + "\n# 3.5\n", text.replace('"female", ', "")):
        assert other != text
        (folder / "schema.toml").write_text(other)
        refusal(folder, capsys)


def test_images_that_were_changed_are_refused(copy, capsys):
    folder = copy("images by sgld")
    for change in ({"shape": [64]}, {"classes": ["0", "2"]}, {"flattened": False}, {"sum": 3.5}):
        text = (folder / "images.json").read_text()
        edit(folder, lambda record, change=change: record.update(change), "images.json")
        refusal(folder, capsys)
        (folder / "images.json").write_text(text)


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, RuntimeError])
def test_whatever_goes_wrong_is_one_line(error, folders, monkeypatch, capsys):
    def fail(*_):
        raise error("first line\nsecond line")

    folder = folders("scoring")
    monkeypatch.setattr(verification, "_check_calibration", fail)
    assert "cannot be recomputed" in refusal(folder, capsys)


@pytest.mark.parametrize("value", [None, "text", [], {}, -1, 1e400, [[["deep"]]]])
@pytest.mark.parametrize("entry", ["records", "steps", "draws", "noise_multipliers", "request", "arrays", "sampler"])
def test_entries_of_another_kind_are_refused_in_one_line(entry, value, copy, capsys):
    folder = copy("scoring")
    edit(folder, lambda plan: plan.update({entry: value}))
    refusal(folder, capsys)


def test_a_request_is_read_as_it_was_stored(folders):
    """And a schedule that is a function is the one thing that excuses it."""
    request = json.loads((folders("sgld") / "plan.json").read_text())["plan"]["request"]
    assert requests.options_from_json(request)["sampler"].name == "sgld"
    posterior = confide.fit(
        models.logistic_regression(3), (X, Y), LIMIT, confide.sgld(schedule=lambda t: 1 / (1 + t)), steps=100, **QUIET
    )
    assert requests.options_from_json(posterior.plan["request"]) is None
    assert verification.verify(posterior).plan is None


def test_why_this_model_stands_in_the_plan_the_report_and_the_json_output(folders, tmp_path, monkeypatch, capsys):
    folder, reason = folders("linear"), "linear: the schema calls `age` numeric; boolean would be logistic"
    assert json.loads((folder / "plan.json").read_text())["plan"]["model_reason"].startswith(reason)
    assert run_command(f"confide report {folder} --out {tmp_path / 'page.html'}") == 0
    assert f"Why this model: {reason}" in (tmp_path / "page.html").read_text()
    monkeypatch.chdir(folder.parent)
    capsys.readouterr()
    assert run_command(f"{RUNS['linear']} --model linear --json --out {tmp_path / 'given'}") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["model"].startswith("linear: --model names it; the schema calls `age` numeric")
    assert "the schema calls" not in captured.err


def test_a_report_and_a_rehearsal_are_said_not_to_be_recomputed(copy, capsys):
    folder = copy("scoring")
    assert run_command(f"confide report {folder}") == 0
    assert "report.html" in " ".join(run_files.verify(folder).sentences())
    (folder / "rehearsal.json").write_text('{"sum": 3.5}')
    with pytest.raises(Refused, match="rehearsal"):
        run_files.verify(folder)
