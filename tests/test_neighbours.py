"""Nothing that happens to a table depends on more than one record, unless it is declared to be public or paid for.

Every way in is run up to the mechanism on a dataset and on its neighbours: with a hostile record in the place of one,
with one record fewer and with one more at the same declared number of records. All but that record's own row must be
the same, bit for bit (see `neighbours`). Nothing here is random: these tests fail if and only if the rule is broken.
"""

import csv
import functools
import importlib
import inspect
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import confide
from confide import baselines, models
from neighbours import Observed, called, differences, observed
from patients import HEADER, SCHEMA
from patients import rows as patients

N = 37  # unlike any other size in these runs
OWN = 3  # the place of the record that is replaced or removed
BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
RNG = np.random.default_rng(0)
FEATURES = np.round(RNG.uniform(-1, 1, (N + 1, 3)), 3)
FLOATS = {
    "2^31": 2.0**31,
    "2^53 + 2": 2.0**53 + 2,
    "1e39": 1e39,
    "1e308": 1e308,
    "nan": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "minus zero": -0.0,
    "denormal": 5e-324,
}
FEW = ("2^53 + 2", "nan", "outcome nan", "outcome 7", "one class", "removed", "added")


class Way(NamedTuple):
    """A way in: the records, the last of which is one more than there are; hostile ones; and what is done with them."""

    rows: list[Any]
    hostile: dict[str, Any]
    run: Callable[..., Observed]  # of rows; of the folder too, where it takes one

    def neighbour(self, name: str) -> list[Any]:
        rows = list(self.rows[:N])
        if name == "removed":
            return rows[:OWN] + rows[OWN + 1 :]
        if name == "added":
            return list(self.rows)
        rows[OWN] = self.hostile[name]
        return rows


def cases(ways: dict[str, Way], names: tuple[str, ...] | None = None, long: tuple[str, ...] = ()) -> list[Any]:
    """Every way with every neighbour that there is, or with those that are named."""
    return [
        pytest.param(way, name, id=f"{way}-{name}", marks=[pytest.mark.long] * (way in long))
        for way, found in ways.items()
        for name in (*found.hostile, "removed", "added")
        if names is None or name in names
    ]


def same(base: Observed, neighbour: Observed) -> None:
    assert "refused" not in base.shown, base.shown["refused"]
    assert base.rows
    assert differences(base, neighbour) == []


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
    given = {"steps": 6, "batch_size": 8, "clip": 0.5, "progress": False, "records": N} | settings
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
    "sgnht": array_way(LOGISTIC, sampler=confide.sgnht(), names=FEW),
    "psgld": array_way(LOGISTIC, sampler=confide.psgld(), names=FEW),
}
HEAVY = ("hybrid", "all planned", "sgnht", "sghmc", "psgld", "dp_adam", "published ops", "two chains", "full batches")


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
        model = build(bounds=(-1, 1), steps=6, batch_size=8, records=N, **more)
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


# Tables, through the command line: everything printed, every exit code and every file.

VISITS = '\n[columns.visits]\nkind = "numeric"\nlow = 0\nhigh = 10\n'
TABLE = [[*row[:5], "yes" if i == OWN else "no", i % 7] for i, row in enumerate(patients(N + 1))]
FIT = "confide fit {data} --schema schema.toml --epsilon 1 --delta 1e-5 --steps 6 --batch-size 8 --clip 0.5 --out run"


def cell(column: str, value: Any) -> list[Any]:
    row = list(TABLE[OWN])
    row[[*HEADER, "visits"].index(column)] = value
    return row


TEXT_CELLS = {
    "one class": cell("relapse", "no"),
    "age missing": cell("age", "NA"),
    "age empty": cell("age", ""),
    "age a word": cell("age", "old"),
    "age nan": cell("age", "nan"),
    "age infinite": cell("age", "-inf"),
    "age beyond": cell("age", "9007199254740993"),
    "age too long": cell("age", "9" * 5000),
    "age denormal": cell("age", "5e-324"),
    "age in another script": cell("age", "\u0663"),
    "sex unlisted": cell("sex", "unlisted"),
    "sex empty": cell("sex", ""),
    "smoker unlisted": cell("smoker", "maybe"),
    "stage unlisted": cell("stage", "V"),
    "stage missing": cell("stage", "NA"),
    "relapse unlisted": cell("relapse", "perhaps"),
    "relapse missing": cell("relapse", ""),
    "visits 2.5": cell("visits", "2.5"),
    "visits negative": cell("visits", "-3"),
    "visits missing": cell("visits", ""),
    "quoted": cell("sex", 'a "quoted", long\nword'),
    "nul": cell("sex", "\0"),
    "empty everywhere": [""] * 7,
}
SOME = ("one class", "age a word", "relapse missing", "visits 2.5", "empty everywhere")


def written_csv(home: Path, rows: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*HEADER, "visits"], *rows])
    (home / "data.csv").write_text(text.getvalue(), newline="")
    return "data.csv"


def table_way(options: str = "", schema: str = SCHEMA, names: tuple[str, ...] = (), declared: bool = True) -> Way:
    def run(rows: list[Any], home: Path) -> Observed:
        (home / "schema.toml").write_text(schema + VISITS)
        if "--ledger" in options:
            made = confide.Ledger.create(home / "ledger.db")
            made.enter("patients", confide.Budget(epsilon=2.0, delta=1e-4))
        command = FIT.format(data=written_csv(home, rows))
        return called(f"{command} {f'--records {N}' if declared else ''} {options}", home)

    return Way(TABLE, {name: row for name, row in TEXT_CELLS.items() if not names or name in names}, run)


DROPPING = SCHEMA.replace('missing = "indicator"', "").replace("other = true", "")
TABLES = {
    "table": table_way(),
    "dropping table": table_way(schema=DROPPING),
    "replace-one": table_way("--neighbours replace-one", DROPPING, SOME, declared=False),
    "ledger": table_way("--ledger ledger.db", DROPPING, SOME),
    "json": table_way("--json", DROPPING, SOME),
    "linear table": table_way("--target visits", DROPPING, SOME),
    "poisson table": table_way("--target visits --model poisson", DROPPING, SOME),
    "softmax table": table_way("--target stage", DROPPING, SOME),
    "network": table_way("--model mlp --hidden 4", DROPPING, SOME),
    "bounded table": table_way(schema=f"norm_bound = 1.0\n{DROPPING}", names=SOME),
    "canaries of a table": table_way("--canaries 40", DROPPING, SOME),
    "individual table": table_way("--account individual", DROPPING, SOME),
    "langevin table": table_way("--sampler langevin --batch-size 37", DROPPING, SOME),
}


@functools.cache
def base_of_files(way: str, home: Path) -> Observed:
    found = (TABLES | PARQUET | IMAGES)[way]
    place = home / way.replace(" ", "-")
    place.mkdir()
    return found.run(found.rows[:N], place)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return tmp_path_factory.mktemp("bases")


def compared(found: Way, way: str, name: str, places: Path, home: Path) -> None:
    if name in ("removed", "added") and way == "replace-one":
        pytest.skip("neighbours of this relation have the same number of records")
    base = base_of_files(way, places)
    same(base, found.run(found.neighbour(name), home))
    assert base.shown["out"]
    assert any(shown.startswith("file run") for shown in base.shown)


MORE = ("table", "json", "linear table", "softmax table", "bounded table", "individual table", "langevin table")


@pytest.mark.parametrize(("way", "name"), cases(TABLES, long=MORE))
def test_tables(way, name, places, tmp_path):
    compared(TABLES[way], way, name, places, tmp_path)


# Parquet: the types of the columns are the file's, the values are the records'.

TYPES = {
    "id": pyarrow.string(),
    "age": pyarrow.float64(),
    "sex": pyarrow.string(),
    "smoker": pyarrow.bool_(),
    "stage": pyarrow.string(),
    "relapse": pyarrow.string(),
    "visits": pyarrow.int64(),
}
TYPED = [[row[0], float(i), row[2], i % 2 == 0, row[4], row[5], row[6]] for i, row in enumerate(TABLE)]


def typed(column: str, value: Any) -> list[Any]:
    row = list(TYPED[OWN])
    row[list(TYPES).index(column)] = value
    return row


def parquet_way(options: str = "") -> Way:
    def run(rows: list[Any], home: Path) -> Observed:
        (home / "schema.toml").write_text(DROPPING + VISITS)
        columns = zip(*rows, strict=True) if rows else [[] for _ in TYPES]
        arrays = {
            name: pyarrow.array(list(column), kind) for (name, kind), column in zip(TYPES.items(), columns, strict=True)
        }
        pyarrow.parquet.write_table(pyarrow.table(arrays), home / "data.parquet")
        return called(f"{FIT.format(data='data.parquet')} --records {N} {options}", home)

    numbers = {f"age {name}": typed("age", value) for name, value in FLOATS.items()}
    others = {
        "age null": typed("age", None),
        "sex unlisted": typed("sex", "unlisted"),
        "sex null": typed("sex", None),
        "smoker null": typed("smoker", None),
        "relapse null": typed("relapse", None),
        "one class": typed("relapse", "no"),
        "visits 2^53 + 1": typed("visits", 2**53 + 1),
        "visits null": typed("visits", None),
        "null everywhere": [None] * 7,
    }
    return Way(TYPED, numbers | others, run)


PARQUET = {"parquet": parquet_way(), "counts in parquet": parquet_way("--target visits --model poisson")}


@pytest.mark.parametrize(("way", "name"), cases(PARQUET, long=("counts in parquet",)))
def test_parquet(way, name, places, tmp_path):
    compared(PARQUET[way], way, name, places, tmp_path)


# Images: (pixels, label), as arrays, or as files of a folder.

PIXELS = RNG.integers(0, 256, (N + 1, 8, 8))
IMAGE_FIT = (
    f"confide fit {{data}} --classes 2 --model mlp --hidden 4 --epsilon 1 --delta 1e-5 --steps 6 --batch-size 8 "
    f"--clip 0.5 --out run --records {N}"
)


def array_images(kind: Any, named: dict[str, tuple[Any, int]], options: str = "") -> Way:
    scale = 255 if np.dtype(kind).kind == "f" else 1

    def run(rows: list[Any], home: Path) -> Observed:
        x = np.array([np.asarray(row[0], np.float64) / scale for row in rows]).reshape(-1, 8, 8).astype(kind)
        for place, row in enumerate(rows):  # what no double holds, or is not to be scaled
            if len(row) > 2:
                x[place, 0, 0] = row[2]
        np.savez(home / "data.npz", x=x, y=np.array([row[1] for row in rows], np.int64))
        return called(f"{IMAGE_FIT.format(data='data.npz')} {options}", home)

    rows = [(pixels, int(i == OWN)) for i, pixels in enumerate(PIXELS)]
    return Way(
        rows, {"one class": (PIXELS[OWN], 0), "label 9": (PIXELS[OWN], 9), "label -1": (PIXELS[OWN], -1)} | named, run
    )


def file_image(kind: str) -> bytes:
    made = {
        "colours": Image.fromarray(np.zeros((8, 8, 3), np.uint8)),
        "larger": Image.fromarray(np.zeros((9, 8), np.uint8)),
        "transparent": Image.fromarray(np.zeros((8, 8, 4), np.uint8)),
        "deep": Image.fromarray(np.zeros((8, 8), np.uint16)),
    }
    content = io.BytesIO()
    made[kind].save(content, "PNG")
    return content.getvalue()


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def folder_way() -> Way:
    def run(rows: list[Any], home: Path) -> Observed:
        for place, label in ((home / "data", "0"), (home / "data", "1")):
            (place / label).mkdir(parents=True)
        for number, content, label in rows:
            place = home / "data" / str(label)
            place.mkdir(exist_ok=True)
            (place / f"{number:02}.png").write_bytes(content)
        return called(f"{IMAGE_FIT.format(data='data')} --shape 8x8", home)

    rows = [(i, png(pixels), int(i == OWN)) for i, pixels in enumerate(PIXELS)]
    own = rows[OWN]
    named = {kind: (OWN, file_image(kind), 1) for kind in ("colours", "larger", "transparent", "deep")}
    named |= {"no image": (OWN, b"no image", 1), "empty file": (OWN, b"", 1), "cut short": (OWN, own[1][:60], 1)}
    return Way(rows, named | {"one class": (OWN, own[1], 0), "of no class": (OWN, own[1], 7)}, run)


def pixel(*values: Any) -> dict[str, tuple[Any, ...]]:
    return {f"pixel {value}": (PIXELS[OWN], 1, value) for value in values}


IMAGES = {
    "bytes of images": array_images(np.uint8, {}),
    "wide images": array_images(np.int64, pixel(-1, 300, 2**31, 2**53 + 1, -(2**63))),
    "fractions": array_images(np.float64, pixel(*FLOATS.values())),
    "single fractions": array_images(np.float32, pixel(math.nan, math.inf, -0.0, 1e-45, 7.0)),
    "folder of images": folder_way(),
}


@pytest.mark.parametrize(("way", "name"), cases(IMAGES, long=("wide images", "single fractions")))
def test_images(way, name, places, tmp_path):
    compared(IMAGES[way], way, name, places, tmp_path)


# Nobody, and one person.


@pytest.mark.parametrize(
    "way", ["logistic", "mlp", "logistic estimator", "dropping table", "parquet", "fractions", "folder of images"]
)
def test_nobody_is_a_neighbour_of_anybody(way, tmp_path):
    found = (ARRAYS | ESTIMATORS | TABLES | PARQUET | IMAGES)[way]
    seen = []
    for name, rows in (("nobody", []), ("somebody", found.rows[:1])):
        home = tmp_path / name
        home.mkdir()
        seen.append(found.run(rows, home) if "home" in inspect.signature(found.run).parameters else found.run(rows))
    same(*seen)


# That the harness can fail: ways in that let a record decide more than its row.


def mechanism(x: np.ndarray) -> None:
    """A stand-in for any: it is watched."""
    importlib.import_module("confide.baselines.sufficient_statistics").summed(x, np.zeros(len(x)), 1.0, 1.0, False)


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
    "shape": (lambda x: x[np.abs(x[:, 0]) < 2**31], "statistics[0]"),
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
