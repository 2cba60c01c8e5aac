"""The same run on every processor: fingerprints are equal, and a checkpoint goes on elsewhere to the same draws.

Libraries choose their programs by the processor; `helpers.processors` has them choose as on another one, each time in a
process of its own.
"""

import textwrap

import numpy as np
import pytest

from confide.privacy.significant_digits import round_digits
from helpers import processors

FINGERPRINTS = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    import numpy as np
    import confide
    from confide import baselines, models
    from confide.inference import checkpoints
    from helpers import golden_cases as cases
    from helpers.golden_cases import LOGISTIC, X, Y, VALUE, COUNT, CLASS, REPLACE

    class Planned(Exception):
        pass

    original, seen = checkpoints.fingerprint, {}

    def fingerprint(settings, *more):
        seen["settings"] = json.loads(json.dumps(settings, sort_keys=True, default=str))
        seen["fingerprint"] = original(settings, *more)
        raise Planned

    checkpoints.fingerprint = fingerprint
    budget = confide.Budget(epsilon=1.0, delta=1e-5)
    bounded = models.logistic_regression(3, norm_bound=1.5)
    wide = models.linear_regression(3, noise_scale=0.3, norm_bound=1.7)
    half = lambda step: 0.5 * (1 + np.cos(np.pi * step / 600))
    RUNS = {f"{name}, as planned": (LOGISTIC, Y, getattr(confide, name)(), {}) for name in (
        "sgld", "psgld", "sghmc", "sgnht", "baoab", "sgfs", "dp_sgd", "dp_adam", "dpvi", "langevin", "scoring",
        "one_posterior_sample")}
    RUNS |= {
        "decreasing": (LOGISTIC, Y, confide.sgld(schedule="decreasing"), {"batch_size": 40, "steps": 400}),
        "own schedule": (LOGISTIC, Y, confide.sgld(schedule=half), {"steps": 600}),
        "given step": (LOGISTIC, Y, confide.sgld(step_size=0.003), {"steps": 100}),
        "bounded": (bounded, Y, confide.sgld(), {"steps": 100, "chains": 2, "batch_size": 30}),
        "wide": (wide, VALUE, confide.langevin(3), {}),
        "wide sgld": (wide, VALUE, confide.sgld(), {"steps": 100}),
        "wide sample": (wide, VALUE, confide.one_posterior_sample(), {"draws": 2}),
        "published": (bounded, Y, confide.one_posterior_sample("published"), {}),
        "variation": (bounded, Y, confide.one_posterior_sample(total_variation=1e-7), {}),
        "counts": (models.poisson_regression(3, largest_mean=7.3), COUNT, confide.langevin(), {}),
        "hybrid": (bounded, Y, confide.hybrid(confide.sgld(), confide.langevin()), {"steps": 200}),
        "individual": (LOGISTIC, Y, confide.sgld(), {"account": "individual", "batch_size": 40, "steps": 200}),
        "histogram": (LOGISTIC, Y, confide.sgld(), {"account": "individual", "steps": 200}),
        "network": (models.mlp((3, 32, 32, 3)), CLASS, confide.sgld(), {"steps": 100, "batch_size": 40}),
        "network dpvi": (models.mlp((3, 8, 3)), CLASS, confide.dpvi(), {"steps": 100, "chains": 2}),
        "statistics": (models.linear_regression(3, norm_bound=1.7), VALUE, confide.sufficient_statistics(), {}),
    }
    quiet = {"verbose": False, "key": 11}
    data = {"X": X, "y": Y}
    far = 3 * X
    WORK = {name: (lambda model, y, sampler, more: lambda: confide.fit(
        model, (far, y), budget, sampler, progress=False, **more, **quiet))(*case) for name, case in RUNS.items()}
    WORK |= {f"golden {name}": (lambda name: lambda: cases.run(name))(name)
             for name, case in cases.RUNS.items() if case[-1]["key"] is not None}
    WORK |= {f"golden {name}": release for name, release in cases.RELEASES.items()}
    pure, many = confide.Budget(epsilon=1.0, delta=0.0), confide.Budget(epsilon=20.0, delta=1e-5)
    WORK |= {
        "laplace": lambda: baselines.output_perturbation(bounded, (far, Y), pure, noise="laplace", **quiet),
        "kifer": lambda: baselines.objective_perturbation(bounded, (far, Y), budget, method="kifer2012", **quiet),
        "pate": lambda: baselines.pate(LOGISTIC, (X, Y), many, X[:20], teachers=20, answers=5, **quiet),
    }
    found = {}
    for name, work in WORK.items():
        seen.clear()
        try:
            work()
        except Planned:
            pass
        found[name] = dict(seen)
    Path(sys.argv[1], "result.json").write_text(json.dumps(found))
    """
)


def differences(one, other, place=""):
    """Where two records of settings differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            at for key in sorted({*one, *other}) for at in differences(one.get(key), other.get(key), f"{place}/{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [at for i, pair in enumerate(zip(one, other, strict=True)) for at in differences(*pair, f"{place}/{i}")]
    return [] if one == other else [f"{place}: {str(one)[:40]} and {str(other)[:40]}"]


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    return processors.run(FINGERPRINTS, "newest", tmp_path_factory.mktemp("newest"))


@pytest.mark.long
@pytest.mark.parametrize("setting", [name for name in processors.SETTINGS if name != "newest"])
def test_every_kind_of_run_has_the_same_fingerprint_on_every_processor(setting, newest, tmp_path):
    """Noise follows from the fingerprint, and a checkpoint is refused by it."""
    found = processors.run(FINGERPRINTS, setting, tmp_path)
    assert all("fingerprint" in case for case in newest.values()), [n for n, c in newest.items() if not c]
    assert {name: at[:3] for name in newest if (at := differences(newest[name], found[name]))} == {}


RESUMED = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    import numpy as np
    import confide
    from confide import models
    from confide.inference import checkpoints
    from helpers.golden_cases import CLASS, LOGISTIC, X, Y

    class Killed(BaseException):
        pass

    folder, what = Path(sys.argv[1]), sys.argv[2]
    original = checkpoints.write

    def killed(path, checkpoint):
        original(path, checkpoint)
        if checkpoint.block == 1:
            raise Killed

    checkpoints.write = killed if what == "begin" else original
    RUNS = {name: (LOGISTIC, Y, getattr(confide, name)(), {"steps": 1100, "draws": 10})
            for name in ("sgld", "sgfs", "sghmc")}
    RUNS["langevin"] = (LOGISTIC, Y, confide.langevin(), {"steps": 1100})
    RUNS["dpvi"] = (LOGISTIC, Y, confide.dpvi(), {"steps": 1100, "batch_size": 40})
    RUNS["network"] = (models.mlp((3, 4, 3)), CLASS, confide.sgld(), {"steps": 1100, "batch_size": 40, "draws": 10})
    budget, found = confide.Budget(epsilon=1.0, delta=1e-5), {}
    for name, (model, y, sampler, more) in RUNS.items():
        how = more if what == "whole" else more | {"checkpoint": folder / name, "checkpoint_seconds": 1e-9}
        try:
            fitted = confide.fit(model, (X, y), budget, sampler, key=11, verbose=False, progress=False, **how)
            leaves = __import__("jax").tree.leaves(fitted.draws)
            found[name] = np.concatenate([np.asarray(leaf, float).ravel() for leaf in leaves]).tolist()
        except Killed:
            found[name] = None
    (folder / "result.json").write_text(json.dumps(found))
    """
)


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [("newest", "haswell"), ("oldest", "newest")])
def test_a_checkpoint_goes_on_elsewhere_to_the_same_draws(first, second, tmp_path):
    """To 1e-5 of the largest: single precision, in which gradients are computed, rounds at 6e-8, and these chains do
    not magnify that."""
    begun = processors.run(RESUMED, first, tmp_path / "moved", "begin")
    assert not any(begun.values())
    moved = processors.run(RESUMED, second, tmp_path / "moved", "resume")
    whole = processors.run(RESUMED, first, tmp_path / "whole", "whole")
    for name, draws in whole.items():
        assert np.max(np.abs(np.subtract(moved[name], draws))) <= 1e-5 * np.max(np.abs(draws)), name


@pytest.mark.parametrize("digits", [4, 8])
def test_rounded_numbers_lie_on_their_side_and_do_not_feel_the_last_bits(digits):
    values = np.exp(np.random.default_rng(0).uniform(-30, 30, 2000))
    nearest, down, up = (round_digits(values, direction, digits) for direction in ("nearest", "down", "up"))
    unit = 10.0 ** (1 - digits)
    assert np.all(down <= values * (1 + 1e-12))
    assert np.all(up >= values * (1 - 1e-12))
    assert np.all(up - down <= unit * values * (1 + 1e-12))
    assert np.all(np.abs(nearest - values) <= unit * values / 2 * (1 + 1e-12))
    for direction, rounded in (("nearest", nearest), ("down", down), ("up", up)):
        assert np.array_equal(rounded, [round_digits(value, direction, digits) for value in values.tolist()])
        assert np.array_equal(round_digits(rounded, direction, digits), rounded)
        moved = round_digits(values * (1 + 2e-13), direction, digits)
        assert np.mean(moved != rounded) < 0.005  # 2e-13 over 1e-8, and nothing but chance
    short = np.array([0.5, 0.1, 3.0, 1.25e-7, 2.0**20])
    assert np.array_equal(round_digits(np.nextafter(short, 0), "down", 8), short)
    assert np.array_equal(round_digits(np.nextafter(short, np.inf), "up", 8), short)
