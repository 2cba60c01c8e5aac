"""Runs whose results are stored in `golden/version3`, by the code of the day on which they were written.

Every call names its sampler and what it depends on, so that defaults may change. `python -m helpers.golden_cases` (in
`tests`) writes the files of cases that have none, and touches no other: what is stored stays as it was.
"""

import contextlib
import hashlib
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path

import numpy as np

import confide
from confide import baselines, models
from helpers import patients, processors

HOME = Path(__file__).parents[1] / "golden" / "version3"
RNG = np.random.default_rng(7)
X = RNG.uniform(-1, 1, (200, 3)).astype(np.float32)
SCORE = X @ np.array([1.5, -1.0, 0.5], np.float32)
Y = (RNG.random(200) < 1 / (1 + np.exp(-SCORE))).astype(np.float32)
VALUE = (SCORE + RNG.normal(scale=0.5, size=200)).astype(np.float32)
CLASS = RNG.integers(0, 3, 200).astype(np.int32)
COUNT = RNG.poisson(np.exp(0.5 * SCORE)).astype(np.float32)
BUDGET = confide.Budget(epsilon=3.0, delta=1e-5)
REPLACE = confide.Budget(epsilon=3.0, delta=1e-5, neighbours="replace-one")
LOGISTIC = models.logistic_regression(3)
STEPS = {"steps": 1100, "batch_size": 40, "clip": 0.5, "burn_in": 100, "draws": 10, "key": 11}


def own_model():
    import jax.numpy as jnp

    return models.from_functions(
        log_prior=lambda parameters: -0.5 * jnp.sum(parameters["slope"] ** 2),
        log_likelihood=lambda parameters, x, y: -0.5 * (y - x @ parameters["slope"]) ** 2,
        start={"slope": np.zeros(3, np.float32)},
    )


# What is interrupted and resumed: (model, outcome, budget, sampler, settings).
RUNS = {
    "sgld": (LOGISTIC, Y, BUDGET, confide.sgld(), STEPS),
    "sgld-full": (LOGISTIC, Y, BUDGET, confide.sgld(), STEPS | {"batch_size": 200}),
    "sgld-replace-one": (LOGISTIC, Y, REPLACE, confide.sgld(), STEPS),
    "sgld-secure": (LOGISTIC, Y, BUDGET, confide.sgld(), STEPS | {"noise": "secure", "key": None}),
    "sgld-canaries": (LOGISTIC, Y, BUDGET, confide.sgld(), STEPS | {"canaries": 40}),
    "sgld-individual": (LOGISTIC, Y, BUDGET, confide.sgld(), STEPS | {"account": "individual"}),
    "sghmc-chains": (LOGISTIC, Y, BUDGET, confide.sghmc(), STEPS | {"chains": 2}),
    "psgld": (LOGISTIC, Y, BUDGET, confide.psgld(), STEPS),
    "sgnht": (LOGISTIC, Y, BUDGET, confide.sgnht(), STEPS),
    "sgfs": (LOGISTIC, Y, BUDGET, confide.sgfs(), STEPS),
    "wang2015": (LOGISTIC, Y, BUDGET, confide.wang2015_sgld(), STEPS | {"steps": 300, "burn_in": 0, "clip": None}),
    "dp_sgd": (LOGISTIC, Y, BUDGET, confide.dp_sgd(), STEPS | {"burn_in": None, "draws": None}),
    "dp_adam": (LOGISTIC, Y, BUDGET, confide.dp_adam(), STEPS | {"burn_in": None, "draws": None}),
    "dpvi": (LOGISTIC, Y, BUDGET, confide.dpvi(), STEPS | {"burn_in": None}),
    "langevin": (LOGISTIC, Y, BUDGET, confide.langevin(), {"steps": 1100, "key": 11}),
    "posterior-sample": (LOGISTIC, Y, BUDGET, confide.one_posterior_sample(warmup=50, samples=50), {"key": 11}),
    "hybrid": (LOGISTIC, Y, BUDGET, confide.hybrid(confide.sgld()), STEPS | {"steps": 1100}),
    "linear": (models.linear_regression(3, noise_scale=0.5), VALUE, BUDGET, confide.sgld(), STEPS),
    "poisson": (models.poisson_regression(3), COUNT, BUDGET, confide.sgld(), STEPS),
    "softmax": (models.softmax_regression(3, 3), CLASS, BUDGET, confide.sgld(), STEPS),
    "intercept": (models.logistic_regression(3, intercept=True, prior="laplace"), Y, BUDGET, confide.sgld(), STEPS),
    "mlp": (models.mlp((3, 4, 2)), CLASS % 2, BUDGET, confide.sgld(), STEPS),
    "own": (own_model(), VALUE, BUDGET, confide.sgld(), STEPS),
}

RELEASES = {
    "output": lambda: baselines.output_perturbation(LOGISTIC, (X, Y), BUDGET, key=11, verbose=False),
    "objective": lambda: baselines.objective_perturbation(LOGISTIC, (X, Y), BUDGET, key=11, verbose=False),
    "statistics": lambda: baselines.sufficient_statistics_regression(
        models.linear_regression(3, noise_scale=0.5), (X, VALUE), BUDGET, key=11, verbose=False
    ),
}


class Stopped(Exception):
    """A run was interrupted."""


def processor():
    """What the last bit of a draw depends on besides the program: jax, and the processor as libraries see it."""
    jaxlib = importlib.import_module("jaxlib").__version__
    settings = "".join(os.environ.get(name, "") for name in processors.VARIABLES)
    text = platform.machine() + jaxlib + settings
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        text += "".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(name, **more):
    model, outcome, budget, sampler, settings = RUNS[name]
    quiet = {"verbose": False, "progress": False, "clipping": "plain"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.ExactnessWarning)
        return confide.fit(model, (X, outcome), budget, sampler, **settings, **quiet, **more)


def flat(posterior):
    """All that is drawn, by name."""
    leaves = importlib.import_module("jax").tree_util.tree_flatten_with_path(posterior.draws)[0]
    found = {importlib.import_module("jax").tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    if posterior.canaries is not None:
        found |= {"canaries": posterior.canaries.scores, "inside": posterior.canaries.inside}
    return found


SCHEDULES = {
    "one": {"noise_multiplier": 1.3, "steps": 1},
    "many": {"noise_multiplier": 0.9, "sampling_probability": 0.02, "steps": 1000},
    "full": {"noise_multiplier": 50.0, "steps": 1000},
    "varied": {"noise_multiplier": np.linspace(2, 9, 20), "sampling_probability": np.linspace(0.1, 1, 20)},
}
ACCOUNTANTS = ("pld", "moments", "moments-classical", "gdp", "advanced")


def priced():
    """What Gaussian steps cost by every accountant that knows them, and settings that a budget buys."""
    prices = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.ApproximateWarning)
        for neighbours in ("add-remove", "replace-one"):
            for name, schedule in SCHEDULES.items():
                for accountant in ACCOUNTANTS:
                    how = schedule | {"accountant": accountant, "neighbours": neighbours}
                    with contextlib.suppress(confide.Refused):
                        prices[f"{name} {accountant} {neighbours}"] = float(confide.epsilon(delta=1e-6, **how))
    prices["delta"] = confide.delta(epsilon=2.0, **SCHEDULES["many"])
    prices["noise"] = float(confide.calibrate_noise(epsilon=3.0, delta=1e-5, steps=500, sampling_probability=0.02))
    return prices


def write():
    HOME.mkdir(parents=True, exist_ok=True)
    checkpoints = importlib.import_module("confide.inference.checkpoints")
    original = checkpoints.write

    def interrupted(path, checkpoint):
        if checkpoint.block > 1 or (checkpoint.block == 1 and path.name == "posterior-sample"):
            raise Stopped
        original(path, checkpoint)
        if checkpoint.block == 1:
            raise Stopped

    for name in RUNS:
        place = HOME / "runs" / name
        if place.exists():
            continue
        draft = Path(tempfile.mkdtemp()) / name
        checkpoints.write = interrupted
        with contextlib.suppress(Stopped):
            run(name, checkpoint=draft, checkpoint_seconds=1e-9)
        checkpoints.write = original
        assert draft.exists(), name
        content = draft.read_bytes()
        posterior = run(name, checkpoint=draft)
        place.mkdir(parents=True)
        (place / "checkpoint").write_bytes(content)
        np.savez_compressed(place / "draws.npz", processor=processor(), **flat(posterior))
        (place / "guarantee.json").write_text(json.dumps(posterior.guarantee.to_json(), indent=1) + "\n")
        plan = {key: value for key, value in posterior.plan.items() if key != "run"}
        (place / "plan.json").write_text(json.dumps(plan, indent=1, sort_keys=True) + "\n")
        print(name)
    for name, release in RELEASES.items():
        place = HOME / "releases" / name
        if not place.exists():
            posterior = release()
            place.mkdir(parents=True)
            np.savez_compressed(place / "draws.npz", processor=processor(), **flat(posterior))
            (place / "guarantee.json").write_text(json.dumps(posterior.guarantee.to_json(), indent=1) + "\n")
            print(name)
    if not (HOME / "epsilons.json").exists():
        (HOME / "epsilons.json").write_text(json.dumps(priced(), indent=1) + "\n")
        (HOME / "processor").write_text(processor())
    if not (HOME / "ledger").exists():
        write_ledger(HOME / "ledger")
    if not (HOME / "table").exists():
        write_table(HOME / "table")


COMPOSITIONS = ("basic", "renyi", "gdp")


def write_ledger(place):
    """Every composition that the ledger knows, both relations, and events of several kinds."""
    place.mkdir(parents=True)
    ledger = confide.Ledger.create(place / "ledger.db")
    for composition in COMPOSITIONS:
        for neighbours in ("add-remove", "replace-one"):
            name = f"{composition} {neighbours}"
            ledger.enter(name, confide.Budget(epsilon=9.0, delta=1e-4, neighbours=neighbours), composition)
            ledger.charge(name, confide.events.gaussian(20.0), note="release")
            if composition != "gdp":  # which prices no batches
                ledger.charge(name, confide.events.gaussian(4.0, 0.1, 50), note="steps")
    entries = {account.name: ledger.left(account.name).share for account in ledger.accounts()}
    (place / "left.json").write_text(json.dumps(entries, indent=1) + "\n")


TABLE = [
    "--epsilon",
    "2",
    "--delta",
    "1e-5",
    "--sampler",
    "sgld",
    "--steps",
    "1200",
    "--batch-size",
    "60",
    "--clip",
    "1",
]
KILLED = """
    import os, sys
    from confide.inference import checkpoints
    from confide.app.cli import main
    write = checkpoints.write
    def killed(path, checkpoint):
        write(path, checkpoint)
        if checkpoint.block == 1:
            os._exit(9)
    checkpoints.write = killed
    main()
"""


def command(folder, *arguments, program=("-m", "confide")):
    """`confide` in a folder, whose interrupted runs lie in it too."""
    environment = os.environ | {"CONFIDE_STATE": str(folder / "state")}
    return subprocess.run(
        [sys.executable, *program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def write_table(place):
    """A run of a table that was interrupted, and what became of it."""
    folder = Path(tempfile.mkdtemp())
    patients.write(folder, 120)
    killed = ("-c", textwrap.dedent(KILLED))
    fit = ["fit", "patients.csv", "--schema", "schema.toml", "--out", "run", "--checkpoint-seconds", "1e-9", *TABLE]
    assert command(folder, *fit, program=killed).returncode == 9
    (waiting,) = (folder / "state" / "runs").iterdir()
    place.mkdir(parents=True)
    request = (waiting / "request.json").read_text().replace(str(folder), "FOLDER")
    (place / "request.json").write_text(request)
    shutil.copy(waiting / "checkpoint", place / "checkpoint")
    found = command(folder, "resume", "run", "--quiet")
    assert found.returncode == 0, found.stderr
    shutil.copytree(folder / "run", place / "run")
    for name in ("patients.csv", "schema.toml"):
        shutil.copy(folder / name, place / name)
    (place / "processor").write_text(processor())


if __name__ == "__main__":
    write()
