"""Files through the command line: no record decides anything but its own row, nor what is printed or written.

As in `test_neighbours`, a dataset and its neighbours are run up to the mechanism, and all else must be the same, bit
for bit: messages, exit codes and files too. Nothing here is random.
"""

import csv
import functools
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import confide
from confide.privacy import ledger
from helpers.neighbours import FLOATS, OWN, N, Observed, Way, called, cases, same
from helpers.patients import HEADER, SCHEMA
from helpers.patients import rows as patients

RNG = np.random.default_rng(0)

# Tables.

VISITS = '\n[columns.visits]\nkind = "numeric"\nlow = 0\nhigh = 10\n'
TABLE = [[*row[:5], "yes" if i == OWN else "no", i % 7] for i, row in enumerate(patients(N + 1))]
FIT = "confide fit {data} --schema schema.toml --epsilon 1 --delta 1e-5 --out run"
STEPS = "--steps 6 --clip 0.5"
SGLD = f"--sampler sgld {STEPS} --batch-size 8"


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


def table_way(
    options: str = "", schema: str = SCHEMA, names: tuple[str, ...] = (), declared: bool = True, sampler: str = SGLD
) -> Way:
    def run(rows: list[Any], home: Path) -> Observed:
        (home / "schema.toml").write_text(schema + VISITS)
        if "--ledger" in options:
            with pytest.MonkeyPatch.context() as monkeypatch:  # the time is sealed into what follows
                monkeypatch.setattr(ledger, "_now", lambda: "now")
                made = confide.Ledger.create(home / "ledger.db")
                made.enter("patients", confide.Budget(epsilon=2.0, delta=1e-4))
        command = FIT.format(data=written_csv(home, rows))
        return called(f"{command} {f'--records {N}' if declared else ''} {sampler} {options}", home)

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
    "negative binomial table": table_way("--target visits --model negative-binomial", DROPPING, SOME),
    "softmax table": table_way("--target stage", DROPPING, SOME),
    "network": table_way("--model mlp --hidden 4", DROPPING, SOME),
    "bounded table": table_way(schema=f"norm_bound = 1.0\n{DROPPING}", names=SOME),
    "canaries of a table": table_way("--canaries 40", DROPPING, SOME),
    "individual table": table_way("--account individual", DROPPING, SOME),
    "langevin table": table_way(f"--sampler langevin {STEPS} --batch-size 37", DROPPING, SOME, sampler=""),
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


@pytest.mark.parametrize("way", ["dropping table", "parquet", "fractions", "folder of images"])
def test_nobody_is_a_neighbour_of_anybody(way, tmp_path):
    found = (TABLES | PARQUET | IMAGES)[way]
    homes = tmp_path / "nobody", tmp_path / "somebody"
    for home in homes:
        home.mkdir()
    same(found.run([], homes[0]), found.run(found.rows[:1], homes[1]))
