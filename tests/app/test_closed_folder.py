"""Every number in the folder of a run has a class, and whatever follows from something else is recomputed by verify."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import h5netcdf
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import confide
from confide import Refused, baselines, models
from confide.app import report
from confide.app.runs import rehearsals, run_files, run_folder
from confide.app.runs.options import Request
from confide.audits import made_up, repeated
from confide.inference import rehearsal, scoring, verification
from confide.inference.fitting import fit
from confide.mechanism.scale import ScaleRelease
from helpers import patients
from helpers.fits import X, Y, ledger_of
from helpers.leaf_classes import CLASSES, class_of, is_known
from helpers.tiers import tiered

BUDGET = confide.Budget(epsilon=2.0, delta=1e-5)
BOUNDED = models.logistic_regression(3, norm_bound=1.0)
LOGISTIC = models.logistic_regression(3)
QUIET = {"verbose": False, "progress": False, "key": 1}
OUTCOMES = (X @ np.array([1.0, -0.5, 0.2])).astype(np.float32)
COUNTS = np.random.default_rng(4).poisson(np.exp(0.3 * X[:, 0])).astype(np.float32)
SHORT = {"steps": 100, "draws": 10}
ONES = np.insert(np.clip(X, -1, 1), 3, 1.0, axis=1)
FEATURES = [{"kind": "numeric", "typical": [-0.5, 0.5]}, {"kind": "numeric"}, {"kind": "numeric"}]


def scoring_run():
    return confide.fit(LOGISTIC, (X, Y), BUDGET, draws=50, canaries=30, **QUIET)


def standardised_run():
    sampler = confide.scoring(constant=-1, features=FEATURES)
    return confide.fit(models.logistic_regression(4), (ONES, Y), BUDGET, sampler, draws=50, canaries=30, **QUIET)


def own_model():
    return models.from_functions(
        log_prior=lambda theta: -0.5 * jnp.sum(theta**2),
        log_likelihood=lambda theta, x, y: y * (x @ theta) - jnp.logaddexp(0.0, x @ theta),
        start=jnp.zeros(3),
        gradient_bound=3.0**0.5,
    )


def pate_run():
    settings = {"teachers": 20, "answers": 10, "steps": 20, "verbose": False, "key": 1}
    return baselines.pate(LOGISTIC, (X, Y), BUDGET, X[:60], threshold=0.6, account="data-dependent", **settings)


def by_steps(sampler, model=LOGISTIC, **more):
    return lambda: confide.fit(model, (X, Y), BUDGET, sampler, **SHORT | more, **QUIET)


RUNS = {
    "scoring": scoring_run,
    "standardised": standardised_run,
    "learnt noise": lambda: confide.fit(models.linear_regression(3), (X, OUTCOMES), BUDGET, draws=50, **QUIET),
    "counts": lambda: confide.fit(models.poisson_regression(3, intercept=True), (X, COUNTS), BUDGET, draws=50, **QUIET),
    "statistics": lambda: confide.fit(
        models.linear_regression(3), (X, OUTCOMES), BUDGET, confide.sufficient_statistics(50), **QUIET
    ),
    "rehearsed": lambda: confide.fit(LOGISTIC, (X, Y), BUDGET, confide.scoring(50, rehearsals=3), **QUIET),
    "sgld": by_steps(confide.sgld(), canaries=30),
    "individual": by_steps(confide.sgld(), BOUNDED, account=[confide.Individual(histogram=0.1)]),
    "dpvi": by_steps(confide.dpvi()),
    "dp_adam": by_steps(confide.dp_adam(), draws=1),
    "langevin": lambda: confide.fit(BOUNDED, (X, Y), BUDGET, confide.langevin(), **QUIET),
    "hybrid": by_steps(confide.hybrid(), BOUNDED),
    "one draw": lambda: confide.fit(BOUNDED, (X, Y), BUDGET, confide.one_posterior_sample("published"), **QUIET),
    "output perturbation": lambda: baselines.output_perturbation(BOUNDED, (X, Y), BUDGET, key=1, verbose=False),
    "objective perturbation": lambda: baselines.objective_perturbation(BOUNDED, (X, Y), BUDGET, key=1, verbose=False),
    "statistics baseline": lambda: baselines.sufficient_statistics_regression(
        models.linear_regression(3, norm_bound=1.0),
        (X, OUTCOMES),
        BUDGET,
        outcome_bound=3.0,
        draws=20,
        key=1,
        verbose=False,
    ),
    "pate": pate_run,
    "own functions": lambda: confide.fit(own_model(), (X, Y), BUDGET, confide.sgld(), **SHORT, **QUIET),
}
UNPLANNED = ("pate", "own functions")  # whose plan holds what no file does
QUICK = ("scoring", "standardised", "learnt noise", "statistics", "sgld", "langevin", "output perturbation", "pate")
QUICK += ("own functions", "dpvi")


def fit_table(folder):
    """A run of the command line on a table, with an audit on made-up tables, a rehearsal and a report in its folder."""
    home = patients.write(folder.parent / "table-data", 300)
    request = Request(
        data=str(home / "patients.csv"),
        epsilon=2.0,
        delta=1e-5,
        out=str(folder),
        schema=patients.SCHEMA,
        draws=50,
        key=1,
    )
    posterior = run_folder.fit(request, progress=False, verbose=False)
    repeated.save(made_up.audit_program(posterior, repetitions=24, seed=1), folder)
    rehearsals.save(rehearsal.rehearse_run(fit, posterior, 2, 1), folder, posterior)
    report.write(folder)
    return folder


def fit_images(folder):
    y = np.arange(60) % 2
    x = np.random.default_rng(0).integers(0, 150, (60, 8, 8)) + 100 * y[:, None, None]
    path = folder.parent / "images.npz"
    np.savez(path, x=x.astype(np.uint8), y=y)
    settings = {"model": "logistic", "sampler": "sgld", "classes": ("0", "1"), "key": 1}
    request = Request(data=str(path), epsilon=2.0, delta=1e-5, out=str(folder), **settings, **SHORT)
    run_folder.fit(request, progress=False, verbose=False)
    return folder


FROM_FILES = {"table": fit_table, "images": fit_images}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home, made, patch = tmp_path_factory.mktemp("runs"), {}, pytest.MonkeyPatch()
    patch.setenv("CONFIDE_STATE", str(home / "state"))

    def get(name):
        if name not in made:
            folder = home / name
            made[name] = FROM_FILES[name](folder) if name in FROM_FILES else RUNS[name]().save(folder)
        return made[name]

    yield get
    patch.undo()


def leaves(value, route=()):
    if isinstance(value, dict):
        for name, below in value.items():
            yield from leaves(below, (*route, name))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from leaves(below, (*route, place))
    else:
        yield route, value


def moved(value):
    """Another value of the same kind, a little away."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-4) + (1e-4 if value == 0 else 0)
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


def read(file):
    return tomllib.loads(file.read_text()) if file.suffix == ".toml" else json.loads(file.read_text())


@pytest.mark.parametrize("name", tiered([*RUNS, *FROM_FILES], (*QUICK, *FROM_FILES)))
def test_every_leaf_has_a_class_and_a_function_that_changes_is_refused(name, folders, tmp_path):
    """Of an array one entry is changed, at random."""
    folder, rng, accepted = folders(name), np.random.default_rng(0), []
    assert (run_files.verify(folder).plan is None) == (name in UNPLANNED)
    others = {path.name for path in folder.iterdir()} - {"posterior.nc", "report.html"}
    assert others <= {file.split(":")[0] for file in CLASSES}
    for file in sorted(folder / other for other in others):
        found = list(leaves(read(file)))
        unknown = [route for route, _ in found if class_of(file.name, route) is None]
        assert unknown == [], f"leaves of {file.name} without a class"
        if file.suffix == ".toml":  # a file of another form is refused whatever it says
            continue
        arrays = {}
        for route, value in found:
            if class_of(file.name, route) == "function" and is_known(name, file.name, route):
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


def test_a_leaf_without_a_class_is_seen():
    for file in ("plan.json", "release.json", "canaries.json", "guarantee.json", "made-up-1.json", "schema.toml"):
        assert class_of(file, ("sum",)) is None
        assert class_of(file, ("plan", "sum")) is None
    assert class_of("plan.json", ("plan", "scale", "sum")) is None
    assert not any("*" in name for name in CLASSES)


WITH_RELEASES = ("scoring", "standardised", "learnt noise", "counts", "statistics", "rehearsed")


@pytest.mark.parametrize("name", tiered(WITH_RELEASES, QUICK))
def test_draws_that_follow_from_a_release_cannot_be_changed(name, folders, tmp_path):
    shutil.copytree(folders(name), tmp_path / name)
    path = tmp_path / name / "posterior.nc"
    with xarray.open_dataset(path, group="posterior", engine="h5netcdf") as file:
        held = file.load()
    held["weights"][0, 7, 1] += 1e-3
    held.to_netcdf(path, group="posterior", engine="h5netcdf", mode="w")
    with pytest.raises(Refused, match="are not those that it makes"):
        run_files.verify(tmp_path / name)


@pytest.mark.parametrize("name", tiered(["sgld", "langevin", "output perturbation", "dpvi"], QUICK))
def test_other_draws_are_finite_and_as_many_as_the_plan_says(name, folders, tmp_path):
    shutil.copytree(folders(name), tmp_path / name)
    with h5netcdf.File(tmp_path / name / "posterior.nc", "a") as file:
        file["posterior/weights"][0, 0, 1] = np.inf
    with pytest.raises(Refused, match="no finite numbers"):
        run_files.verify(tmp_path / name)


@pytest.mark.parametrize(
    "change", [{"tests": {"pairs": 1.0}}, {"smallest": {"sum": 3.5}}, {"sum": 3.5}, {"scores": {"sum": 1}}]
)
def test_an_audit_that_was_changed_is_refused(change, folders, tmp_path):
    folder = shutil.copytree(folders("table"), tmp_path / "run")
    path = folder / "made-up-1.json"
    record = json.loads(path.read_text())
    for name, value in change.items():
        record[name] = record[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(record))
    with pytest.raises(Refused, match=r"made-up-1\.json"):
        run_files.verify(folder)


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
