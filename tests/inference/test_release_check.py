"""What a run of scoring released is stored, goes with its guarantee, and makes its draws again: `confide verify`."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import xarray

import confide
from confide import Refused, models
from confide.app import cli
from confide.inference import release_check
from helpers.fits import BUDGET, X, Y

pytestmark = pytest.mark.optimised  # about bits


def own_prior(parameters):
    return -0.5 * (parameters["weights"] ** 2).sum() / 0.25


def model(prior):
    return models.logistic_regression(3, prior=own_prior if prior == "own" else prior, prior_scale=0.7)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for prior in ("gaussian", "laplace", "own"):
        found = confide.fit(model(prior), (X, Y), BUDGET, draws=200, key=1, verbose=False)
        found.save(home / prior)
    return home


@pytest.fixture
def folder(folders, tmp_path):
    shutil.copytree(folders / "gaussian", tmp_path / "run")
    return tmp_path / "run"


def call(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["confide", *command])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


@pytest.mark.parametrize("prior", ["gaussian", "laplace"])
def test_draws_are_made_again_bit_for_bit(prior, folders, monkeypatch, capsys):
    found = confide.Posterior.load(folders / prior)
    assert found.release.prior == prior
    assert np.array_equal(found.release.draw(200).astype(np.float32), found.draws["weights"][0])
    code, out, _ = call(["verify", str(folders / prior)], monkeypatch, capsys)
    assert code == 0
    assert "made again from release.json alone, bit for bit." in " ".join(out.split())
    _, out, _ = call(["verify", str(folders / prior), "--json"], monkeypatch, capsys)
    assert json.loads(out)["draws"] == "bit for bit"
    _, out, _ = call(["verify", str(folders / prior / "guarantee.json"), "--json"], monkeypatch, capsys)
    assert "draws" not in json.loads(out)


def test_a_prior_of_ones_own_is_not_stored_and_that_is_said(folders, monkeypatch, capsys):
    stored = confide.Posterior.load(folders / "own")
    assert stored.release.prior == "own"
    with pytest.raises(Refused, match="not stored: give it as log_prior"):
        stored.release.draw(200)
    assert release_check.check(stored) == release_check.NOT_STORED
    code, out, _ = call(["verify", str(folders / "own")], monkeypatch, capsys)
    assert code == 0
    assert "were not made again from release.json: their prior is a function" in " ".join(out.split())
    given = confide.Posterior.load(folders / "own", model=model("own"))
    assert release_check.check(given) == release_check.EXACT


def edit(name, change):
    """What replaces an entry of release.json."""

    def tamper(folder):
        path = folder / "release.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {name: change(record[name])}))

    return tamper


def scaled(by):
    return lambda value: (by * np.array(value)).tolist()


def nudge(folder):
    """One number of one draw, by a tenth."""
    with xarray.open_dataset(folder / "posterior.nc", group="posterior", engine="h5netcdf") as file:
        held = file.load()
    held["weights"][0, 7, 1] += 0.1
    held.to_netcdf(folder / "posterior.nc", group="posterior", engine="h5netcdf", mode="w")


def cheaper(folder):
    """A guarantee of more noise than there is, and so of less epsilon."""
    path = folder / "guarantee.json"
    record = json.loads(path.read_text())
    for event in record["event"]["events"]:
        if event["event"] == "GaussianSchedule":
            event["noise_multipliers"] = scaled(1.1)(event["noise_multipliers"])
    path.write_text(json.dumps(record))


def plan_scale(folder):
    """Another norm in the plan than the noisy counts tell."""
    path = folder / "plan.json"
    record = json.loads(path.read_text())
    record["plan"]["scale"]["norm"] += 1e-9
    path.write_text(json.dumps(record))


TAMPERED = {
    "sums": (edit("sums", scaled(1.01)), "positions[1] does not follow"),
    "last sum": (edit("sums", lambda value: [*value[:-1], scaled(1.01)(value[-1])]), "last_position does not follow"),
    "positions": (edit("positions", scaled(1.1)), "positions[1] does not follow"),
    "last position": (edit("last_position", scaled(1.1)), "last_position does not follow"),
    "root": (edit("root", scaled(1 + 2.0**-14)), "root does not follow"),
    "first information": (edit("first_information", scaled(1.01)), "root does not follow"),
    "last information": (edit("last_information", scaled(1.01)), "are not those that it makes"),
    "noisy counts": (edit("answers", lambda value: value | {"norms": value["norms"][::-1]}), "has clip"),
    "finer sum": (edit("answers", lambda value: value | {"finer": value["finer"] + 5}), "has clip"),
    "bins": (edit("answers", lambda value: value | {"norms": value["norms"][1:]}), "do not fit the histograms"),
    "noise": (edit("noise", scaled(0.5)), "has other noise multipliers"),
    "information noise": (edit("information_multipliers", scaled(0.5)), "has other information multipliers"),
    "fewer sums": (edit("noise", lambda value: value[1:]), "does not hold a posterior"),
    "records": (edit("records", lambda value: value + 1), "has records 501"),
    "prior scale": (edit("prior_scale", lambda value: 2 * value), "has prior scale 1.4"),
    "prior": (edit("prior", lambda value: "laplace"), "has prior laplace"),
    "family": (edit("family", lambda value: {"word": "poisson"}), "has model poisson_regression"),
    "no number": (edit("sums", scaled(float("nan"))), "not finite"),
    "a draw": (nudge, "are not those that it makes"),
    "the price": (cheaper, "guarantee in posterior.nc is not what"),
    "the scale in the plan": (plan_scale, "has scale"),
    "gone": (lambda folder: (folder / "release.json").unlink(), "restore release.json"),
    "no json": (lambda folder: (folder / "release.json").write_text("{"), "does not hold a posterior"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_whoever_tampers_is_found_out_in_one_line(kind, folder, monkeypatch, capsys):
    tamper, said = TAMPERED[kind]
    tamper(folder)
    code, out, err = call(["verify", str(folder)], monkeypatch, capsys)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_the_guarantee_covers_what_is_stored(folders):
    found = confide.Posterior.load(folders / "gaussian")
    assert "release.json" in found.guarantee.released
    assert "noisy sums of the records' information" in found.guarantee.event.released()


def test_other_samplers_have_no_release(tmp_path, monkeypatch, capsys):
    found = confide.fit(model("gaussian"), (X, Y), BUDGET, confide.sgld(), steps=50, key=1, verbose=False)
    assert release_check.check(found) is None
    code, out, _ = call(["verify", str(found.save(tmp_path / "run")), "--json"], monkeypatch, capsys)
    assert code == 0
    assert "draws" not in json.loads(out)


def test_rounding_of_another_processor_is_no_tampering(folders):
    """Draws that are off by a hundred-thousandth of their spread, and not by more."""
    found = confide.Posterior.load(folders / "gaussian")
    spread = np.std(found.draws["weights"], axis=(0, 1))
    found.draws["weights"] = (found.draws["weights"] + 3e-6 * spread).astype(np.float32)
    assert release_check.check(found) == release_check.ROUNDED
    found.draws["weights"] = (found.draws["weights"] + 1e-3 * spread).astype(np.float32)
    with pytest.raises(Refused, match="are not those that it makes"):
        release_check.check(found)


LINEAR = {"linear": (confide.scoring(200), None), "statistics": (confide.sufficient_statistics(200), None)}
LINEAR["statistics given"] = (confide.sufficient_statistics(200), 0.8)
LAPLACE = {"linear": "laplace"}  # statistics are for a Gaussian prior


@pytest.fixture(scope="module")
def linear_folders(tmp_path_factory):
    home, outcomes = tmp_path_factory.mktemp("linear"), (X @ np.array([1.0, -0.5, 0.2])).astype(np.float32)
    for name, (sampler, scale) in LINEAR.items():
        known = models.linear_regression(3, noise_scale=scale, prior=LAPLACE.get(name, "gaussian"), intercept=True)
        found = confide.fit(known, (X, outcomes), replace(BUDGET, epsilon=8.0), sampler, key=1, verbose=False)
        found.save(home / name)
    return home


@pytest.mark.parametrize("name", LINEAR)
def test_draws_of_linear_models_are_made_again_bit_for_bit(name, linear_folders, monkeypatch, capsys):
    found = confide.Posterior.load(linear_folders / name)
    assert ("noise_scale" in found.draws) == (LINEAR[name][1] is None)
    code, out, _ = call(["verify", str(linear_folders / name), "--json"], monkeypatch, capsys)
    assert code == 0
    assert json.loads(out)["draws"] == "bit for bit"


TAMPERED_LINEAR = {
    "sums": ("linear", edit("sums", scaled(1.01)), "places[1] does not follow"),
    "last sum": (
        "linear",
        edit("sums", lambda value: [*value[:-1], scaled(1.01)(value[-1])]),
        "are not those that it makes",
    ),
    "places": ("linear", edit("places", scaled(1 + 2.0**-9)), "places[0] does not follow"),
    "root": ("linear", edit("root", scaled(1 + 2.0**-14)), "root does not follow"),
    "first information": ("linear", edit("first_information", scaled(1.01)), "root does not follow"),
    "last information": ("linear", edit("last_information", scaled(1.01)), "are not those that it makes"),
    "noise": ("linear", edit("noise_multipliers", scaled(0.5)), "has other noise multipliers"),
    "information noise": ("linear", edit("information_multipliers", scaled(0.5)), "has other information multipliers"),
    "noisy counts": ("linear", edit("answers", lambda value: value | {"norms": value["norms"][::-1]}), "has scale"),
    "outcomes": (
        "linear",
        edit("answers", lambda value: value | {"outcomes": value["outcomes"][::-1]}),
        "places[0] does not follow",
    ),
    "cuts": ("linear", edit("cuts", scaled(0.5)), "has other cuts"),
    "prior": ("linear", edit("prior", lambda value: "gaussian"), "has prior gaussian"),
    "no number": ("linear", edit("sums", scaled(float("nan"))), "not finite"),
    "moments": ("statistics", edit("moments", scaled(1.01)), "are not those that it makes"),
    "noise of moments": ("statistics", edit("multiplier", lambda value: value / 2), "has noise multiplier"),
    "bound": ("statistics", edit("norm_bound", lambda value: 0.5), "are not those that it makes"),
    "learnt": ("statistics", edit("noise_scale", lambda value: 1.0), "has learnt False"),
    "given": ("statistics given", edit("noise_scale", lambda value: 0.5), "has noise scale 0.5"),
    "gone": ("statistics", lambda folder: (folder / "release.json").unlink(), "restore release.json"),
}


@pytest.mark.parametrize("kind", TAMPERED_LINEAR)
def test_whoever_tampers_with_linear_models_is_found_out_too(kind, linear_folders, tmp_path, monkeypatch, capsys):
    name, tamper, said = TAMPERED_LINEAR[kind]
    shutil.copytree(linear_folders / name, tmp_path / "run")
    tamper(tmp_path / "run")
    code, out, err = call(["verify", str(tmp_path / "run")], monkeypatch, capsys)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
