"""Nothing that happens to a table depends on more than one record, unless it is declared to be public or paid for.

Every way in is run up to the mechanism on a dataset and on its neighbours: with a hostile record in the place of one,
with one record fewer and with one more at the same declared number of records. All but that record's own row must be
the same, bit for bit (see `neighbours`). Nothing here is random: these tests fail if and only if the rule is broken.
"""

import functools
import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import confide
from confide import baselines, models
from helpers.neighbours import FLOATS, OWN, N, Observed, Way, cases, differences, observed, same

BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
RNG = np.random.default_rng(0)
FEATURES = np.round(RNG.uniform(-1, 1, (N + 1, 3)), 3)
FEW = ("2^53 + 2", "nan", "outcome nan", "outcome 7", "one class", "removed", "added")


# Arrays: (features, outcome) of every record. All outcomes but one's own are alike: it can make one class of two.


def hostile(other: float, least: float, *names: str) -> dict[str, tuple[Any, float]]:
    """Each hostile number as a feature and as an outcome."""
    own = FEATURES[OWN].tolist()
    found: dict[str, tuple[Any, float]] = {name: ([own[0], value, own[2]], other) for name, value in FLOATS.items()}
    found |= {f"outcome {name}": (own, value) for name, value in FLOATS.items()}
    found |= {"outcome 2.5": (own, 2.5), "outcome -1": (own, -1.0), "outcome 7": (own, 7.0)}
    found |= {"one class": (own, least), "all at once": ([math.nan, math.inf, 1e308], math.nan)}
    return {name: row for name, row in found.items() if not names or name in names}


def records(other: float, least: float) -> list[tuple[Any, float]]:
    return [(row.tolist(), other if i == OWN else least) for i, row in enumerate(FEATURES)]


def as_arrays(rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row[0] for row in rows], np.float64).reshape(-1, 3), np.array([row[1] for row in rows], np.float64)


def fitted(model: Any, data: Any, **settings: Any) -> Observed:
    given = {
        "sampler": confide.sgld(),
        "steps": 6,
        "batch_size": 8,
        "clip": 0.5,
        "progress": False,
        "records": N,
    } | settings
    return observed(lambda: confide.fit(model, data, BUDGET, **{k: v for k, v in given.items() if v is not None}))


def array_way(
    model: Any, other: float = 1.0, least: float = 0.0, *, names: tuple[str, ...] = (), **settings: Any
) -> Way:
    return Way(
        records(other, least), hostile(other, least, *names), lambda rows: fitted(model, as_arrays(rows), **settings)
    )


def plate(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


LOGISTIC = models.logistic_regression(3)
ARRAYS = {
    "logistic": array_way(LOGISTIC),
    "bounded logistic": array_way(models.logistic_regression(3, intercept=True, norm_bound=1.0)),
    "softmax": array_way(models.softmax_regression(3, 3), 2.0),
    "linear": array_way(models.linear_regression(3)),
    "poisson": array_way(models.poisson_regression(3), 4.0),
    "negative binomial": array_way(models.negative_binomial_regression(3, dispersion=0.5), 4.0),
    "mlp": array_way(models.mlp((3, 4, 2))),
    "functions": array_way(
        models.from_functions(
            log_prior=lambda w: -0.5 * jnp.sum(w**2),
            log_likelihood=lambda w, x, y: -0.5 * (y - x @ w) ** 2,
            start=np.zeros(3, np.float32),
        )
    ),
    "numpyro": array_way(models.from_numpyro(plate, kind="regression")),
}
full: dict[str, Any] = {"batch_size": N, "names": FEW}
planned: dict[str, Any] = {"batch_size": None, "clip": None, "names": FEW}
BOUNDED = models.logistic_regression(3, norm_bound=1.0)
SETTINGS = {
    "full batches": array_way(LOGISTIC, **full),
    "all planned": array_way(LOGISTIC, steps=None, **planned),
    "secure": array_way(LOGISTIC, noise="secure", names=FEW),
    "two chains": array_way(LOGISTIC, chains=2, names=FEW),
    "canaries": array_way(LOGISTIC, canaries=40, names=FEW),
    "canaries of a network": array_way(models.mlp((3, 4, 2)), canaries=40, names=FEW),
    "individual": array_way(LOGISTIC, account=confide.Individual(stretch=2.0), names=FEW),
    "individual histogram": array_way(LOGISTIC, account=confide.Individual(stretch=2.0, histogram=0.1), **full),
    "microbatches": array_way(models.mlp((3, 4, 2), dropout=0.2), microbatch=4, names=FEW),
    "langevin": array_way(BOUNDED, sampler=confide.langevin(), **planned),
    "ops": array_way(BOUNDED, sampler=confide.one_posterior_sample(), steps=None, **planned),
    "published ops": array_way(BOUNDED, sampler=confide.one_posterior_sample("published"), steps=None, **planned),
    "hybrid": array_way(BOUNDED, sampler=confide.hybrid(), **planned),
    "dp_sgd": array_way(LOGISTIC, sampler=confide.dp_sgd(), names=FEW),
    "dp_adam": array_way(LOGISTIC, sampler=confide.dp_adam(), names=FEW),
    "dpvi": array_way(LOGISTIC, sampler=confide.dpvi(), names=FEW),
    "sgfs": array_way(LOGISTIC, sampler=confide.sgfs(), names=FEW),
    "sghmc": array_way(LOGISTIC, sampler=confide.sghmc(), names=FEW),
    "baoab": array_way(LOGISTIC, sampler=confide.baoab(), names=FEW),
    "sgnht": array_way(LOGISTIC, sampler=confide.sgnht(), names=FEW),
    "psgld": array_way(LOGISTIC, sampler=confide.psgld(), names=FEW),
}
HEAVY = (
    "hybrid",
    "all planned",
    "sgnht",
    "sghmc",
    "baoab",
    "psgld",
    "dp_adam",
    "published ops",
    "two chains",
    "full batches",
)


@functools.cache
def base_of_arrays(way: str) -> Observed:
    found = (ARRAYS | SETTINGS | INTEGERS | ESTIMATORS | BASELINES)[way]
    return found.run(found.rows[:N])


@pytest.mark.parametrize(("way", "name"), cases(ARRAYS))
def test_arrays(way, name):
    found = ARRAYS[way]
    same(base_of_arrays(way), found.run(found.neighbour(name)))


@pytest.mark.parametrize(("way", "name"), cases(SETTINGS, long=HEAVY))
def test_arrays_however_they_are_fitted(way, name):
    found = SETTINGS[way]
    same(base_of_arrays(way), found.run(found.neighbour(name)))


# Whole numbers: (one number, another). A list says nothing of its type, an array does.

POISSON = models.from_functions(
    log_prior=lambda w: -0.5 * w**2, log_likelihood=lambda w, x, y: w * x * y - jnp.exp(w * x), start=0.0
)
WHOLE = [(i % 5, i % 3) for i in range(N + 1)]


def integer_way(kind: Any, named: dict[str, tuple[Any, Any]]) -> Way:
    def run(rows: list[Any]) -> Observed:
        columns = [list(column) for column in zip(*rows, strict=True)]
        return fitted(POISSON, tuple(columns if kind is None else [np.array(column, kind) for column in columns]))

    return Way(WHOLE, named, run)


INTEGERS = {
    "64 bits": integer_way(np.int64, {"2^31": (2**31, 0), "2^53 + 1": (1, 2**53 + 1), "least": (-(2**63), 1)}),
    "unsigned": integer_way(np.uint64, {"2^31": (2**31, 0), "2^64 - 1": (2**64 - 1, 0)}),
    "bytes": integer_way(np.int8, {"127": (127, -128)}),
    "lists": integer_way(
        None,
        {
            "2.5": (2.5, 1),
            "2^31": (2**31, 1),
            "2^64": (2**64, 1),
            "10^400": (10**400, 1),
            "nan": (math.nan, 1),
            "none": (None, 1),
            "true": (True, False),
        },
    ),
    "objects": integer_way(object, {"2.5": (2.5, 1), "2^64": (2**64, 1), "10^400": (10**400, 1), "none": (None, 1)}),
}


@pytest.mark.parametrize(("way", "name"), cases(INTEGERS))
def test_whole_numbers(way, name):
    found = INTEGERS[way]
    same(base_of_arrays(way), found.run(found.neighbour(name)))


# Estimators.


def estimator_way(
    build: Any, other: Any, least: Any, outcomes: dict[str, Any], listed: bool = False, **more: Any
) -> Way:
    own = FEATURES[OWN].tolist()
    given = {name: ([own[0], value, own[2]], other) for name, value in FLOATS.items()}
    given |= {f"outcome {name}": (own, value) for name, value in outcomes.items()} | {"one class": (own, least)}

    def run(rows: list[Any]) -> Observed:
        x, y = [row[0] for row in rows], [row[1] for row in rows]
        arrays = (x, y) if listed else (np.array(x, np.float64).reshape(-1, 3), np.array(y, object))
        model = build(bounds=(-1, 1), sampler=confide.sgld(), steps=6, batch_size=8, records=N, **more)
        return observed(lambda: model.fit(*arrays))

    return Way(records(other, least), given, run)


TEXTS = {"unlisted": "dead", "empty": "", "none": None, "number": 3, "nan": math.nan, "list": [1], "truth": True}
WORDS = {"classes": ["ill", "well"]}
ESTIMATORS = {
    "logistic estimator": estimator_way(confide.PrivateLogisticRegression, "ill", "well", TEXTS, **WORDS),
    "softmax estimator": estimator_way(
        confide.PrivateSoftmaxClassifier, 2, 0, FLOATS | {"2.5": 2.5, "text": "2", "huge": 10**400}, classes=[0, 1, 2]
    ),
    "linear estimator": estimator_way(
        confide.PrivateLinearRegression, 1.0, 0.0, FLOATS | {"huge": 10**400}, target_bounds=(0, 5)
    ),
    "count estimator": estimator_way(
        confide.PrivateNegativeBinomialRegression,
        1.0,
        0.0,
        FLOATS | {"2.5": 2.5, "huge": 10**400},
        target_bounds=(0, 5),
    ),
    "linear estimator of lists": estimator_way(
        confide.PrivateLinearRegression, 1, 0, {"2.5": 2.5, "huge": 10**400, "none": None}, True, target_bounds=(0, 5)
    ),
}


@pytest.mark.parametrize(("way", "name"), cases(ESTIMATORS))
def test_estimators(way, name):
    found = ESTIMATORS[way]
    same(base_of_arrays(way), found.run(found.neighbour(name)))


# Baselines.


def baseline_way(release: Any, model: Any, **settings: Any) -> Way:
    declared = {"records": N} if "records" in inspect.signature(release).parameters else {}

    def run(rows: list[Any]) -> Observed:
        return observed(lambda: release(model, as_arrays(rows), **{"budget": BUDGET} | settings | declared))

    return Way(records(1.0, 0.0), hostile(1.0, 0.0, *FEW, "infinite", "denormal", "outcome 2.5"), run)


RICH = confide.Budget(epsilon=20.0, delta=1e-5)
BASELINES = {
    "output perturbation": baseline_way(baselines.output_perturbation, BOUNDED),
    "spherical output perturbation": baseline_way(baselines.output_perturbation, BOUNDED, noise="laplace"),
    "objective perturbation": baseline_way(baselines.objective_perturbation, BOUNDED),
    "published objective perturbation": baseline_way(baselines.objective_perturbation, BOUNDED, method="chaudhuri2011"),
    "sufficient statistics": baseline_way(
        baselines.sufficient_statistics_regression, models.linear_regression(3, norm_bound=1.0), draws=5
    ),
    "residuals": baseline_way(
        baselines.sufficient_statistics_regression, models.linear_regression(3), residual="estimated", draws=5
    ),
    "pate": baseline_way(
        baselines.pate, LOGISTIC, budget=RICH, public=FEATURES[:11], teachers=10, answers=5, steps=2
    ),
}  # fmt: skip


@pytest.mark.parametrize(("way", "name"), cases(BASELINES))
def test_baselines(way, name):
    found = BASELINES[way]
    same(base_of_arrays(way), found.run(found.neighbour(name)))


# Nobody, and one person.


@pytest.mark.parametrize("way", ["logistic", "mlp", "logistic estimator", "linear estimator"])
def test_nobody_is_a_neighbour_of_anybody(way):
    found = (ARRAYS | ESTIMATORS)[way]
    same(found.run([]), found.run(found.rows[:1]))


# That the harness can fail: ways in that let a record decide more than its row.


def mechanism(x: np.ndarray) -> None:
    """A stand-in for any: it is watched."""
    importlib.import_module("confide.baselines.sufficient_statistics").whole_statistics(
        x, np.zeros(len(x)), 1.0, 1.0, False, 1.0
    )


def single(array: np.ndarray) -> np.ndarray:
    """A rule that was in use once: whole numbers stay whole where all of them fit."""
    whole = array.dtype.kind in "iu" and np.all(np.abs(array.astype(np.float64)) < 2**31)
    return array.astype(np.int32 if whole else np.float32)


def refusing(x: np.ndarray) -> np.ndarray:
    if len(np.unique(x[:, 1])) < 2:
        raise confide.Refused("there is nothing to tell apart")
    return x


def printing(x: np.ndarray) -> np.ndarray:
    print(f"{int(np.sum(x[:, 0] > 100))} outliers")
    return x


def saving(x: np.ndarray) -> np.ndarray:
    Path("summary.json").write_text(json.dumps({"largest": float(np.max(x))}))
    return x


LEAKS = {
    "type": (single, "statistics[0]"),
    "scale": (lambda x: x / np.max(np.abs(x)), "rows of statistics"),
    "shape": (lambda x: (x[:, :1] == np.unique(x[:, 0])).astype(np.float32), "statistics[0]"),
    "refusal": (refusing, "refused"),
    "message": (printing, "out"),
    "file": (saving, "file summary.json"),
    "none": (lambda x: x.astype(np.float32), None),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_lets_a_record_decide_more_than_its_row_is_caught(leak, tmp_path, monkeypatch):
    rule, place = LEAKS[leak]

    def seen(row: list[int], name: str) -> Observed:
        home = tmp_path / name
        home.mkdir()
        monkeypatch.chdir(home)
        rows = np.array([[i % 5 + 1, 0] for i in range(N - 1)] + [row], np.int64)
        return observed(lambda: mechanism(rule(rows)), home)

    found = differences(seen([3, 1], "one"), seen([2**40, 0], "other"))
    assert [difference.split(":")[0] for difference in found][:1] == ([] if place is None else [place])
