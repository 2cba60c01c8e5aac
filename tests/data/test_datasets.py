"""Datasets: what they hold, where they are looked for, and what happens when they are nowhere."""

import gzip
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from confide import data, validation
from confide.data import schema
from confide.data.datasets import download, images, openml, tables
from confide.data.encoding import encode
from helpers.datasets import needs_data

STAGED = Path(os.environ.get("CONFIDE_DATA") or "/nowhere")


class Server:
    """A real server on this machine, which answers with what it is given."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        pages, asked = self.pages, []
        self.asked = asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                content = pages.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def server():
    running = Server()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A user without datasets, whose cache folder is empty."""
    monkeypatch.delenv("CONFIDE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")  # the servers of these tests are on this machine
    return tmp_path / "cache" / "confide" / "data"


def source(address: str, content: bytes, method: str = "sha256") -> download.Source:
    return download.Source(addresses=(address,), checksum=f"{method}:{hashlib.new(method, content).hexdigest()}")


def place(folder: Path, name: str, file: str, content: bytes) -> Path:
    path = folder / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# Where files are looked for


def test_the_folder_comes_before_the_variable_and_that_before_the_cache(elsewhere, tmp_path, monkeypatch):
    folder, variable = tmp_path / "folder", tmp_path / "variable"
    monkeypatch.setenv("CONFIDE_DATA", str(variable))
    paths = [place(where, "abalone", "abalone.data", b"M") for where in (folder, variable, elsewhere)]
    for path in paths:
        assert download.find("abalone", "abalone.data", folder) == path
        path.unlink()
    assert download.find_held("abalone", ("abalone.data",), folder) is None


def test_the_place_comes_before_the_format(elsewhere, tmp_path):
    place(elsewhere, "cifar10", "labels.npz", b"")
    first = place(tmp_path / "folder", "cifar10", "cifar-10-binary.tar.gz", b"")
    assert download.find_held("cifar10", ("labels.npz", "cifar-10-binary.tar.gz"), tmp_path / "folder") == first


def test_a_folder_that_is_not_there_is_refused(elsewhere, tmp_path, monkeypatch):
    with pytest.raises(validation.Refused, match=r"folder = .* is not a folder"):
        data.adult(tmp_path / "nowhere")
    monkeypatch.setenv("CONFIDE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(validation.Refused, match=r"CONFIDE_DATA = .* is not a folder"):
        data.mnist()


@pytest.mark.parametrize("method", ["sha256", "md5"])
def test_a_file_is_downloaded_once_and_whole(server, elsewhere, monkeypatch, method):
    content = bytes(range(256)) * 9000  # more than two pieces
    server.pages["/file"] = content
    monkeypatch.setitem(download.SOURCES, ("name", "file"), source(f"{server.address}/file", content, method))
    for _ in range(2):
        path = download.find("name", "file")
        assert path == elsewhere / "name" / "file"
        assert path.read_bytes() == content
    assert server.asked == ["/file"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("method", ["sha256", "md5"])
def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, elsewhere, monkeypatch, method):
    server.pages["/file"] = b"forged"
    monkeypatch.setitem(download.SOURCES, ("name", "file"), source(f"{server.address}/file", b"right", method))
    with pytest.raises(validation.Refused, match=f"{method} checksum"):
        download.find("name", "file")
    assert not list((elsewhere / "name").iterdir())


def test_the_second_address_serves_where_the_first_does_not(server, elsewhere):
    server.pages["/good"] = b"right"
    first, second = f"{server.address}/gone", f"{server.address}/good"
    both = download.Source(addresses=(first, second), checksum=source("", b"right").checksum)
    download.download(both, elsewhere / "file")
    assert (elsewhere / "file").read_bytes() == b"right"
    assert server.asked == ["/gone", "/good"]


def test_offline_one_line_says_what_where_and_what_to_do(server, elsewhere, tmp_path, monkeypatch):
    missing = f"{server.address}/gone"
    refused = "http://127.0.0.1:1/file"  # nothing listens there
    both = download.Source(addresses=(missing, refused), checksum="sha256:0")
    monkeypatch.setitem(download.SOURCES, ("mnist", "train-images-idx3-ubyte.gz"), both)
    with pytest.raises(validation.Refused) as refusal:
        data.mnist(tmp_path)
    message = str(refusal.value)
    assert "\n" not in message
    for part in (
        "train-images-idx3-ubyte.gz of the dataset 'mnist'",
        str(tmp_path / "mnist"),
        f"{missing}: HTTP 404",
        f"{refused}: Connection refused",
        f"place it by hand as {elsewhere / 'mnist' / 'train-images-idx3-ubyte.gz'}",
        "CONFIDE_DATA",
    ):
        assert part in message
    assert not elsewhere.exists()


def test_a_server_that_falls_silent_is_given_up(elsewhere):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as deaf:  # accepts, never answers
        silent = download.Source(addresses=(f"http://127.0.0.1:{deaf.server_port}/",), checksum="sha256:0")
        with pytest.raises(download.NotDownloaded, match="timed out"):
            download.download(silent, elsewhere / "file", timeout=0.1)


def test_a_cache_that_cannot_be_written_is_a_reason(server, tmp_path, monkeypatch, elsewhere):
    (tmp_path / "cache").write_text("a file where a folder should be")
    server.pages["/file"] = b"right"
    monkeypatch.setitem(download.SOURCES, ("name", "file"), source(f"{server.address}/file", b"right"))
    with pytest.raises(validation.Refused, match="cannot be written: Not a directory"):
        download.find("name", "file")


def test_idc_says_how_to_get_it(elsewhere):
    with pytest.raises(validation.Refused, match=r"no source serves it to everyone: get .* from Kaggle"):
        data.idc()


def test_every_source_has_an_address_and_a_checksum_of_the_right_length():
    for entry in download.SOURCES.values():
        method, _, digest = entry.checksum.partition(":")
        assert len(digest) == 2 * hashlib.new(method).digest_size
        assert int(digest, 16)
        assert all(address.startswith("http") for address in entry.addresses)


@needs_data
def test_the_checksums_are_those_of_the_files(elsewhere):
    for (name, file), entry in download.SOURCES.items():
        path = STAGED / name / file
        if path.exists():
            method, _, digest = entry.checksum.partition(":")
            assert hashlib.new(method, path.read_bytes()).hexdigest() == digest


# OpenML, where the source of a table does not answer


def openml_pages(server: Server, monkeypatch, name: str, rows: list[list[str]]) -> None:
    """The four pages of OpenML's interface that are asked for, with the records given."""
    number, columns = openml.DATASETS[name], [column.name for column in schema.load(data.schema_path(name)).columns]
    arff, features = [f"@RELATION {name}"], []
    for place_, column in enumerate(columns):
        words = sorted({row[place_] for row in rows} - {"?"})
        numeric = column != columns[-1] and all(word.replace(".", "").isdigit() for word in words)
        kind = "REAL" if numeric else "{" + ",".join(f"'{word}'" for word in words) + "}"
        arff.append(f"@ATTRIBUTE {column} {kind}")
        features.append(
            {
                "index": str(place_),
                "name": column,
                "data_type": "numeric" if numeric else "nominal",
                "is_target": "true" if column == columns[-1] else "false",
                "is_ignore": "false",
                "is_row_identifier": "false",
                "number_of_missing_values": "0",
            }
        )
    cells = (",".join(f"'{cell}'" if " " in cell else cell for cell in row) for row in rows)
    content = "\n".join([*arff, "@DATA", *cells, ""]).encode()
    described = {
        "id": str(number),
        "name": name,
        "version": "1",
        "status": "active",
        "format": "ARFF",
        "description": "",
        "url": f"{server.address}/{name}.arff",
        "md5_checksum": hashlib.md5(content).hexdigest(),
    }
    qualities = [{"name": "NumberOfInstances", "value": str(len(rows))}]
    for path, page in (
        (f"/data/{number}", {"data_set_description": described}),
        (f"/features/{number}", {"data_features": {"feature": features}}),
        (f"/qualities/{number}", {"data_qualities": {"quality": qualities}}),
    ):
        server.pages[path] = json.dumps(page).encode()
    server.pages[f"/{name}.arff"] = content
    interface(monkeypatch, server.address)
    for key in [key for key in download.SOURCES if key[0] == name]:
        monkeypatch.setitem(
            download.SOURCES, key, download.Source(addresses=(f"{server.address}/gone",), checksum="md5:0")
        )


def interface(monkeypatch, address: str) -> None:
    from sklearn.datasets import _openml

    for constant, page in (("_DATA_INFO", "data"), ("_DATA_FEATURES", "features"), ("_DATA_QUALITIES", "qualities")):
        monkeypatch.setattr(_openml, constant, f"{address}/{page}/{{}}")


@needs_data
@pytest.mark.parametrize("name", ["abalone", "german_credit"])
def test_from_openml_comes_the_original_file(server, elsewhere, monkeypatch, name):
    rows = data.table(name, STAGED).rows
    if name == "german_credit":
        words = {
            number - 1: {f"A{number}{code}": word for code, word in enumerate(words, first)}
            for number, first, words in openml._GERMAN
        } | {20: {"1": "good", "2": "bad"}}
        rows = [[words.get(place_, {}).get(cell, cell) for place_, cell in enumerate(row)] for row in rows]
    checksum = download.SOURCES[name, tables.FILES[name]].checksum
    openml_pages(server, monkeypatch, name, rows)
    path = download.find(
        name, tables.FILES[name], otherwise=lambda target: openml.write_file(name, target.name, target)
    )
    assert path.parent == elsewhere / name
    assert f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" == checksum


@needs_data
def test_from_openml_comes_adult_in_its_two_parts(server, elsewhere, monkeypatch):
    """The first records, so that it is quick: OpenML has those of the test file before the others."""
    train, test = (data.table("adult", STAGED, test=part).rows[:200] for part in (False, True))
    monkeypatch.setitem(openml.SHAPES, "adult", (400, 15))
    monkeypatch.setattr(openml, "ADULT_TEST", 200)
    for constant, rows in (("ADULT_RICH", train), ("ADULT_TEST_RICH", test)):
        monkeypatch.setattr(openml, constant, sum(row[-1] == ">50K" for row in rows))
    openml_pages(server, monkeypatch, "adult", test + train)
    assert data.table("adult").rows == train
    assert data.table("adult", test=True).rows == test
    assert any("?" in row for row in test)
    assert (elsewhere / "adult" / "adult.test").read_text().splitlines()[0].endswith("<=50K.")
    assert openml._adult_split(train + test) == (train, test)
    with pytest.raises(download.NotDownloaded, match="cannot be told apart"):
        openml._adult_split(sorted(train + test, key=lambda row: row[-1]))


def test_from_openml_nothing_comes_but_what_is_documented(server, elsewhere, monkeypatch):
    openml_pages(server, monkeypatch, "abalone", [["M", "0.5", "0.5", "0.1", "1", "1", "1", "1", "9"]] * 3)
    with pytest.raises(validation.Refused, match=r"HTTP 404; OpenML dataset 183: it has \(3, 9\) rows and columns"):
        data.abalone()
    server.pages["/data/183"] = b"{}"
    with pytest.raises(validation.Refused, match="OpenML dataset 183: not understood"):
        data.abalone()
    with pytest.raises(download.NotDownloaded, match="'sports car' has no documented code"):
        openml._german_codes([["<0", "6", "all paid", "sports car", *["0"] * 17]])
    assert not elsewhere.exists()


def test_without_openml_the_refusal_names_both_sources(elsewhere, monkeypatch):
    from sklearn.datasets import _openml

    monkeypatch.setattr(_openml.time, "sleep", lambda _: None)
    interface(monkeypatch, "http://127.0.0.1:1")
    closed = download.Source(addresses=("http://127.0.0.1:1/german.data",), checksum="md5:0")
    monkeypatch.setitem(download.SOURCES, ("german_credit", "german.data"), closed)
    with pytest.raises(
        validation.Refused, match=r"german.data: Connection refused; OpenML dataset 31: Connection refused\)"
    ):
        data.german_credit()


# Tables


@needs_data
def test_adult():
    split = data.adult()
    assert split.x.shape == (32_561, 109)
    assert split.test_x.shape == (16_281, 109)
    assert (split.y.sum(), split.test_y.sum()) == (7_841, 3_846)
    assert split.x.min() == 0
    assert split.x.max() == 1
    described = schema.load(data.schema_path("adult"))
    names = described.features
    missing = [int(split.x[:, names.index(f"{name}=(missing)")].sum()) for name in ("workclass", "occupation")]
    assert missing == [1_836, 1_843]
    assert repr(split).startswith("Split(x (32561, 109) float32")
    # The schema gives the same features but for the scale of numbers: [-1, 1] instead of [0, 1].
    some = data.table("adult", test=True)
    some = some._replace(rows=some.rows[:1000])
    encoded = encode(described, some.by_column())
    numeric = np.isin(names, [column.name for column in described.columns if column.kind == "numeric"])
    np.testing.assert_allclose(encoded.x, np.where(numeric, 2 * split.test_x - 1, split.test_x)[:1000], atol=1e-6)
    np.testing.assert_array_equal(encoded.y, split.test_y[:1000])


@needs_data
def test_the_other_tables():
    abalone, rings, german = data.abalone(), data.abalone(count=True), data.german_credit()
    assert abalone.x.shape == (4_177, 11)
    assert (rings.y.min(), rings.y.max(), rings.y[0]) == (1, 29, 15)
    np.testing.assert_allclose(abalone.y, rings.y / 15 - 1, atol=1e-6)
    assert german.x.shape == (1_000, 55)
    assert np.bincount(german.y.astype(int)).tolist() == [700, 300]
    for x in (abalone.x, german.x):
        assert (x.min(), x.max()) == (-1, 1)
    numeric = data.german_credit(numeric=True)
    assert numeric.x.shape == (1_000, 24)
    np.testing.assert_array_equal(numeric.y, german.y)


@needs_data
@pytest.mark.parametrize("name", tables.NAMES)
def test_schemas_describe_the_tables(name):
    """Every column in its order, every value admitted, one number in a hundred beyond its bounds, no feature idle."""
    described, records = schema.load(data.schema_path(name)), data.table(name)
    assert tuple(column.name for column in described.columns) == records.columns
    assert described.target == records.columns[-1]
    assert not described.learnt
    columns = records.by_column()
    encoded = encode(described, columns)
    assert encoded.present.all()
    assert np.isfinite(encoded.x).all()
    for column in described.inputs:
        if column.kind == "numeric":
            numbers = np.array(columns[column.name], float)
            assert np.mean((numbers < column.low) | (numbers > column.high)) < 0.01, column.name
            used = encoded.x[:, described.features.index(column.name)]
            assert np.ptp(used) > 0.3, f"{column.name}: the bounds are too wide to tell records apart"


def test_schemas_are_refused_for_what_is_no_table():
    with pytest.raises(validation.Refused, match="name = 'mnist' is unknown: choose one of 'adult'"):
        data.schema_path("mnist")
    with pytest.raises(validation.Refused, match="'breast_cancer' has no test records"):
        data.table("breast_cancer", test=True)


def test_breast_cancer():
    x, y = data.breast_cancer()
    assert x.shape == (569, 31)
    assert y.sum() == 212  # malignant
    larger = x[y == 1].mean(0) - x[y == 0].mean(0)
    assert larger[schema.load(data.schema_path("breast_cancer")).features.index("worst radius")] > 0.3


@needs_data
def test_records_are_saved_as_the_command_line_reads_them(tmp_path):
    from confide.data.encoding import encode_table
    from confide.data.tables import open_table

    data.table("german_credit").save(tmp_path / "german.csv")
    described = schema.load(data.schema_path("german_credit"))
    encoded = encode_table(described, open_table(tmp_path / "german.csv"))
    np.testing.assert_array_equal(encoded.x, data.german_credit().x)


def test_a_damaged_table_is_refused(elsewhere):
    path = place(elsewhere, "abalone", "abalone.data", b"M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\nM,0.35\n")
    with pytest.raises(validation.Refused, match=r"abalone.data, line 2: 2 values, not 9"):
        data.abalone()
    path.write_bytes(b"\n")
    with pytest.raises(validation.Refused, match="holds no records"):
        data.abalone()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(validation.Refused, match="is not text"):
        data.abalone()
    row = "39, Astronaut, 77516, Bachelors, 13, Divorced, Sales, Wife, White, Male, 0, 0, 40, Cuba, <=50K\n"
    for file in ("adult.data", "adult.test"):
        place(elsewhere, "adult", file, row.encode())
    with pytest.raises(validation.Refused, match="column 'workclass' of adult holds an undocumented value"):
        data.adult()


# Images


@needs_data
def test_mnist():
    split = data.mnist()
    assert split.x.shape == (60_000, 28, 28)
    assert split.test_x.shape == (10_000, 28, 28)
    assert split.x.dtype == np.uint8
    assert split.y.dtype == np.int32
    assert split.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(split.test_y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert split.x.mean() / 255 == pytest.approx(0.1307, abs=5e-5)  # the published mean


def linked(folder: Path, name: str, files: list[str]) -> Path:
    """A folder with some of the staged files."""
    (folder / name).mkdir(parents=True)
    for file in files:
        (folder / name / file).symlink_to(STAGED / name / file)
    return folder


@needs_data
def test_cifar10_from_grids(tmp_path, caplog):
    """The second batch alone keeps its own labels: dogs are browner than ships, and ships bluer."""
    split = data.cifar10(linked(tmp_path, "cifar10", ["labels.npz", "data_batch_2.webp", "test_batch.webp"]))
    assert split.x.shape == split.test_x.shape == (10_000, 32, 32, 3)
    assert split.x.dtype == np.uint8
    assert np.bincount(split.test_y).tolist() == [1000] * 10
    assert split.test_y[:5].tolist() == [3, 8, 8, 0, 6]
    for x, y in ((split.x, split.y), (split.test_x, split.test_y)):
        blue = x[..., 2].mean((1, 2)) - x[..., 0].mean((1, 2), dtype=float)
        assert blue[y == 8].mean() > 5 > -10 > blue[y == 5].mean()
    assert "cifar10: 10,000 of the official 50,000 training rows" in caplog.text


@needs_data
def test_svhn_from_grids(tmp_path, caplog):
    files = ["labels.npz", "train_00000_09999.webp", "test_00000_04999.webp"]
    split = data.svhn(linked(tmp_path, "svhn", files))
    assert split.x.shape == (10_000, 32, 32, 3)
    assert split.test_x.shape == (5_000, 32, 32, 3)
    assert split.y[:5].tolist() == [1, 9, 2, 3, 2]
    assert set(split.y.tolist()) == set(range(10))
    assert np.bincount(split.y).argmax() == 1
    assert 80 < split.x.mean() < 140
    assert "svhn: 10,000 of the official 73,257 training rows and 5,000 of the 26,032" in caplog.text


@needs_data
def test_idc_from_grids(caplog):
    x, y, patients = data.idc()
    assert x.shape == (7_500, 50, 50, 3)
    assert (y.sum(), len(np.unique(patients))) == (2_082, 279)
    assert len(np.unique(patients[y == 1])) == 260
    assert np.bincount(patients).max() == 72
    brightness = x.mean((1, 2, 3))
    assert brightness[y == 1].mean() < brightness[y == 0].mean() - 10  # carcinoma is denser, and stained darker
    assert "7,500 of the official 277,524" in caplog.text


def test_digits():
    x, y = data.digits()
    assert x.shape == (1_797, 8, 8)
    assert x.dtype == np.uint8
    assert (x.min(), x.max()) == (0, 16)
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def pixels(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_in_its_official_form(elsewhere, packed):
    x, y = pixels(12, 32), np.arange(12, dtype=np.uint8) % 10
    records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(12, -1)], axis=1)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    if packed:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for number, name in enumerate(names):
                content = records[2 * number : 2 * number + 2].tobytes()
                entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        place(elsewhere, "cifar10", "cifar-10-binary.tar.gz", stream.getvalue())
    else:
        for number, name in enumerate(names):
            content = records[2 * number : 2 * number + 2].tobytes()
            place(elsewhere, "cifar10/cifar-10-batches-bin", name, content)
    split = data.cifar10()
    np.testing.assert_array_equal(np.concatenate([split.x, split.test_x]), x)
    np.testing.assert_array_equal(np.concatenate([split.y, split.test_y]), y)
    assert len(split.test_y) == 2


def test_svhn_in_its_official_form(elsewhere):
    (elsewhere / "svhn").mkdir(parents=True)
    x, y = pixels(7, 32), np.array([[1], [10], [9], [10], [2], [3], [4]], np.uint8)
    for part, rows in (("train", slice(0, 4)), ("test", slice(4, 7))):
        savemat(elsewhere / "svhn" / f"{part}_32x32.mat", {"X": x[rows].transpose(1, 2, 3, 0), "y": y[rows]})
    split = data.svhn()
    np.testing.assert_array_equal(np.concatenate([split.x, split.test_x]), x)
    assert split.y.tolist() == [1, 0, 9, 0]
    assert split.test_y.tolist() == [2, 3, 4]


def test_idc_in_its_official_form(elsewhere):
    x = pixels(4, 50)
    for number, (patient, label, at, size) in enumerate(
        [(900, 1, 51, 50), (88, 0, 101, 50), (88, 1, 51, 50), (88, 0, 1, 20)]
    ):
        path = elsewhere / f"idc/IDC_regular_ps50_idx5/{patient}/{label}/{patient}_idx5_x{at}_y1_class{label}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[number, :size]).save(path)
    found = data.idc()
    np.testing.assert_array_equal(found.x, x[[2, 1, 0]])  # by patient and place; the one that is cut off is left out
    assert found.y.tolist() == [1, 0, 1]
    assert found.group.tolist() == [88, 88, 900]


def test_mnist_unpacked(elsewhere):
    x, y = pixels(5, 28)[..., 0], np.arange(5, dtype=np.uint8)
    for part in ("train", "t10k"):
        place(
            elsewhere,
            "mnist",
            f"{part}-images-idx3-ubyte",
            b"\0\0\x08\3" + np.array(x.shape, ">u4").tobytes() + x.tobytes(),
        )
        labels = b"\0\0\x08\1" + np.array(y.shape, ">u4").tobytes() + y.tobytes()
        place(elsewhere, "mnist", f"{part}-labels-idx1-ubyte.gz", gzip.compress(labels))
    split = data.mnist()
    np.testing.assert_array_equal(split.x, x)
    np.testing.assert_array_equal(split.test_y, y)


@pytest.mark.parametrize(
    ("read", "file", "content"),
    [
        (data.mnist, "train-images-idx3-ubyte.gz", b"not packed"),
        (data.mnist, "train-images-idx3-ubyte", b"\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0\1"),
        (data.cifar10, "cifar-10-binary.tar.gz", b"no archive"),
        (data.cifar10, "labels.npz", b"no labels"),
        (data.svhn, "train_32x32.mat", b"no matrix, and long enough to have been one" * 9),
        (data.idc, "meta.npz", b""),
    ],
)
def test_damaged_files_are_named(elsewhere, read, file, content):
    place(elsewhere, read.__name__, file, content)
    with pytest.raises(validation.Refused, match=f"{file} is not what its name says: remove it"):
        read()


def test_grids_must_hold_what_their_names_say(elsewhere, tmp_path):
    (elsewhere / "idc").mkdir(parents=True)
    np.savez(elsewhere / "idc" / "meta.npz", y=np.arange(6) % 2, patient=np.arange(6))
    with pytest.raises(validation.Refused, match="has labels and no images"):
        data.idc()
    x = pixels(6, 50)
    grid = x.reshape(2, 3, 50, 50, 3).swapaxes(1, 2).reshape(100, 150, 3)
    Image.fromarray(grid).save(elsewhere / "idc" / "patches_0000_0005.webp", lossless=True)
    np.testing.assert_array_equal(data.idc().x, x)
    (elsewhere / "idc" / "patches_0000_0005.webp").rename(elsewhere / "idc" / "patches_0000_0006.webp")
    with pytest.raises(validation.Refused, match=r"patches_0000_0006.webp is not what its name says"):
        images.idc()
