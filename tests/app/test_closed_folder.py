"""Every number in the folder of a run has a class, and whatever follows from something else is recomputed by verify."""

import datetime
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import xarray

import confide
from confide import Refused, baselines, models
from confide.app.runs import run_files
from confide.inference import scoring, verification
from confide.mechanism.scale import ScaleRelease
from helpers.fits import X, Y, ledger_of

BUDGET = confide.Budget(epsilon=2.0, delta=1e-5)
BOUNDED = models.logistic_regression(3, norm_bound=1.0)
QUIET = {"verbose": False, "progress": False, "key": 1}
OUTCOMES = (X @ np.array([1.0, -0.5, 0.2])).astype(np.float32)
COUNTS = np.random.default_rng(4).poisson(np.exp(0.3 * X[:, 0])).astype(np.float32)


def scoring_run():
    return confide.fit(models.logistic_regression(3), (X, Y), BUDGET, draws=50, canaries=30, **QUIET)


RUNS = {
    "scoring": scoring_run,
    "learnt noise": lambda: confide.fit(models.linear_regression(3), (X, OUTCOMES), BUDGET, draws=50, **QUIET),
    "counts": lambda: confide.fit(models.poisson_regression(3, intercept=True), (X, COUNTS), BUDGET, draws=50, **QUIET),
    "statistics": lambda: confide.fit(
        models.linear_regression(3), (X, OUTCOMES), BUDGET, confide.sufficient_statistics(50), **QUIET
    ),
    "sgld": lambda: confide.fit(
        models.logistic_regression(3), (X, Y), BUDGET, confide.sgld(), steps=100, draws=10, canaries=30, **QUIET
    ),
    "individual": lambda: confide.fit(
        BOUNDED, (X, Y), BUDGET, confide.sgld(), steps=100, draws=10, account="individual", **QUIET
    ),
    "dpvi": lambda: confide.fit(
        models.logistic_regression(3), (X, Y), BUDGET, confide.dpvi(), steps=100, draws=10, **QUIET
    ),
    "langevin": lambda: confide.fit(BOUNDED, (X, Y), BUDGET, confide.langevin(), **QUIET),
    "one draw": lambda: confide.fit(BOUNDED, (X, Y), BUDGET, confide.one_posterior_sample("published"), **QUIET),
    "baseline": lambda: baselines.output_perturbation(BOUNDED, (X, Y), BUDGET, key=1, verbose=False),
}
QUICK = ("scoring", "learnt noise", "statistics", "sgld", "langevin", "baseline")

# The class of every leaf; the first pattern that matches counts. `*` stands for whatever is below as well.
CLASSES = {
    "guarantee.json:epsilon": "function",
    "guarantee.json:delta": "function",  # the plan's budget has it too
    "guarantee.json:neighbours": "function",
    "guarantee.json:event.*": "function",
    "guarantee.json:released": "function",
    "guarantee.json:sentences.*": "function",
    "guarantee.json:accountant": "option",
    "guarantee.json:assumptions.*": "option",  # sentences; those of the event are demanded by the price
    "guarantee.json:mechanism": "function",  # the plan has it too
    "plan.json:format": "bookkeeping",
    "plan.json:plan.request.*": "option",
    "plan.json:plan.budget.*": "option",
    "plan.json:plan.records": "declaration",
    "plan.json:plan.arrays.*": "declaration",
    "plan.json:plan.mechanism": "function",
    "plan.json:plan.run": "bookkeeping",
    "plan.json:plan.scale.answers.*": "outcome",
    "plan.json:plan.lag_one": "outcome",
    "plan.json:plan.drift": "outcome",
    "plan.json:plan.individual.*": "outcome",
    "plan.json:plan.*": "function",
    "plan.json:model.*": "declaration",
    "plan.json:variables.*": "function",
    "release.json:format": "bookkeeping",
    "release.json:kind": "bookkeeping",
    "release.json:answers.*": "outcome",
    "release.json:first_information.*": "outcome",
    "release.json:last_information.*": "outcome",
    "release.json:sums.*": "outcome",
    "release.json:moments.*": "outcome",
    "release.json:*": "function",
    "canaries.json:inside.*": "bookkeeping",  # coins
    "canaries.json:scores.*": "outcome",
    "canaries.json:sums.*": "outcome",
    "canaries.json:squares.*": "outcome",
    "canaries.json:pulls.*": "outcome",
    "canaries.json:*": "function",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home, made = tmp_path_factory.mktemp("runs"), {}

    def get(name):
        if name not in made:
            made[name] = RUNS[name]().save(home / name)
        return made[name]

    return get


def leaves(value, route=()):
    if isinstance(value, dict):
        for name, below in value.items():
            yield from leaves(below, (*route, name))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from leaves(below, (*route, place))
    else:
        yield route, value


def class_of(file, route):
    path = f"{file}:{'.'.join(map(str, route))}"
    return next((kind for pattern, kind in CLASSES.items() if fnmatch.fnmatchcase(path, pattern)), None)


def moved(value):
    """Another value of the same kind, a little away."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-6) + (1e-6 if value == 0 else 0)
    return 1 if value is None else f"{value}x"


def put(record, route, value):
    *above, last = route
    for name in above:
        record = record[name]
    record[last] = value


def refused(folder):
    try:
        run_files.verify(folder)
    except Refused as refusal:
        return "\n" not in str(refusal)
    return False


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in RUNS])
def test_every_leaf_has_a_class_and_a_function_that_changes_is_refused(name, folders, tmp_path):
    """Of an array one entry is changed, at random."""
    folder, rng, accepted = folders(name), np.random.default_rng(0), []
    assert run_files.verify(folder).plan is not None
    assert {path.name for path in folder.iterdir()} <= {
        *("posterior.nc", "guarantee.json", "plan.json", "release.json", "canaries.json")
    }
    for file in sorted(folder.glob("*.json")):
        found = list(leaves(json.loads(file.read_text())))
        unknown = [route for route, _ in found if class_of(file.name, route) is None]
        assert unknown == [], f"leaves of {file.name} without a class"
        functions = [(route, value) for route, value in found if class_of(file.name, route) == "function"]
        arrays = {}
        for route, value in functions:
            arrays.setdefault(tuple(part for part in route if isinstance(part, str)), []).append((route, value))
        for entries in arrays.values():
            route, value = entries[rng.integers(len(entries))]
            place = tmp_path / "run"
            shutil.copytree(folder, place)
            record = json.loads(file.read_text())
            put(record, route, moved(value))
            (place / file.name).write_text(json.dumps(record))
            if not refused(place):
                accepted.append(f"{file.name}:{'.'.join(map(str, route))}")
            shutil.rmtree(place)
    assert accepted == []


def test_no_file_tells_how_long_the_run_took(tmp_path):
    """Duration can depend on records: a folder has the day of the charge, and bytes that do not depend on the time."""
    ledger, now = ledger_of(tmp_path, epsilon=4.0), datetime.datetime.now(datetime.UTC)
    posterior = confide.fit(models.logistic_regression(3), (X, Y), BUDGET, draws=20, ledger=ledger, **QUIET)
    first, second = (posterior.save(tmp_path / name) for name in ("first", "second"))
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
        assert not re.search(rb"\d{4}-\d\d-\d\dT", path.read_bytes()), path.name
    day = datetime.date.fromisoformat(posterior.plan["ledger"]["time"])
    assert abs(day - now.date()) <= datetime.timedelta(days=1)
    assert ledger.history("patients")[0].time.startswith(f"{day}T")
    run_files.verify(first)
    with xarray.open_dataset(first / "posterior.nc", group="posterior", engine="h5netcdf") as file:
        held = file.load()
    held.attrs["created_at"] = now.isoformat()
    held.to_netcdf(first / "posterior.nc", group="posterior", engine="h5netcdf", mode="w")
    with pytest.raises(Refused, match=r"created_at in posterior\.nc"):
        run_files.verify(first)


def test_draws_that_follow_from_a_release_cannot_be_changed(folders, tmp_path):
    for name in ("scoring", "learnt noise", "statistics"):
        shutil.copytree(folders(name), tmp_path / name)
        path = tmp_path / name / "posterior.nc"
        with xarray.open_dataset(path, group="posterior", engine="h5netcdf") as file:
            held = file.load()
        held["weights"][0, 7, 1] += 1e-3
        held.to_netcdf(path, group="posterior", engine="h5netcdf", mode="w")
        with pytest.raises(Refused, match="are not those that it makes"):
            run_files.verify(tmp_path / name)


def test_numbers_read_back_to_the_same_bits(folders):
    for name in ("scoring", "sgld"):
        folder = folders(name)
        for file in folder.glob("*.json"):
            text = file.read_text()
            again = json.loads(json.dumps(json.loads(text)))
            assert [value for _, value in leaves(again)] == [value for _, value in leaves(json.loads(text))]
    stored = confide.Posterior.load(folders("scoring")).release
    record = json.loads(json.dumps(stored.to_json()))
    for field in ("sums", "positions", "root", "first_information"):
        assert np.array_equal(np.array(record[field]), getattr(stored, field))


def test_an_exact_sum_in_place_of_a_position_is_refuted(monkeypatch):
    """A program that asks where an exact sum of a column says: its draws follow from its release bit for bit, and its
    positions do not follow from the answers before them."""
    honest, exact = scoring.next_position, float(np.sum(X[:, 1], dtype=np.float64))

    def told(*given):
        found = honest(*given)
        value = found.value.copy()
        value[1] += exact * 1e-3
        return found._replace(value=value)

    with monkeypatch.context() as patch:
        patch.setattr(scoring, "next_position", told)
        posterior = confide.fit(models.logistic_regression(3), (X, Y), BUDGET, draws=50, **QUIET)
    with pytest.raises(Refused, match=r"positions\[1\] does not follow from the noisy answers before it"):
        verification.verify(posterior)


def test_the_exact_norm_in_place_of_the_noisy_one_is_refuted(monkeypatch):
    honest, exact = ScaleRelease.read, float(np.mean(np.linalg.norm(X.astype(np.float64), axis=1)))
    for run in (scoring_run, RUNS["sgld"]):
        with monkeypatch.context() as patch:
            patch.setattr(ScaleRelease, "read", lambda self, *given: honest(self, *given)._replace(norm=exact))
            posterior = run()
            posterior.__dict__["release"].__dict__.pop("frame", None) if posterior.release else None
        with pytest.raises(Refused, match=r"clip|norm|scale|step size"):
            verification.verify(posterior)


@pytest.mark.long
@pytest.mark.optimised  # what is compiled quickly computes otherwise than any processor does for a user
@pytest.mark.parametrize("name", ["scoring", "learnt noise"])
def test_another_processor_recomputes_the_same(name, tmp_path):
    """With the matrix products and vector instructions of another one: all questions are the same, and so is the plan;
    draws are those that are stored but for rounding."""
    folder = RUNS[name]().save(tmp_path / "run")
    other = {
        "OPENBLAS_CORETYPE": "Haswell",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "confide", "verify", str(folder), "--json"]
    result = subprocess.run(command, env=os.environ | other, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["questions"] > 8
    assert record["rounded"] == 0
    assert record["plan"] in ("bit for bit", "but for rounding")
    assert record["draws"].startswith("b")
