"""From images to a run folder and on: arrays and folders, what is public about them, and what is refused."""

import csv
import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import confide
import confide.app.runs.choices
import confide.data.image_files
import confide.inference.loop
import confide.mechanism.noise
from confide.app import cli, report
from confide.app.report import predictive
from confide.app.runs import run_folder
from confide.app.runs.run_folder import Request
from confide.data import image_schema
from confide.data.image_files import read
from confide.inference.options import Options
from confide.validation import Refused

SIZE = 8
FIT = "fit images.npz --classes 2 --model mlp --hidden 4 --epsilon 1 --delta 1e-5 --steps 20 --out run --quiet"


def images(count=60, seed=0):
    """Dark ones of class 0 and bright ones of class 1."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    return (rng.integers(0, 150, (count, SIZE, SIZE)) + 100 * y[:, None, None]).astype(np.uint8), y


def write_folder(path, count=6, seed=0):
    for i, (image, label) in enumerate(zip(*images(count, seed), strict=True)):
        place = path / ("cat", "dog")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:02}.png")
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    x, y = images()
    np.savez("images.npz", x=x, y=y)
    write_folder(home / "photos")
    return home


@pytest.fixture
def call(folder, monkeypatch, capsys):
    def called(command: str) -> str:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        code = stopped.value.code or 0
        return captured.out if code == 0 else f"{captured.out}{captured.err}[exit {code}]\n"

    return called


@pytest.mark.long
def test_the_whole_way_of_arrays(folder, call):
    """Fitted, verified, predicted for arrays and for a folder, reported; the folder holds no image and no place."""
    assert call(f"confide {FIT}").startswith("run/guarantee.json\nrun/images.json\nrun/plan.json\nrun/posterior.nc\n")
    assert json.loads(Path("run/images.json").read_text()) == {
        "shape": [8, 8, 1],
        "classes": ["0", "1"],
        "flattened": True,
    }
    assert "it holds" in call("confide verify run")
    assert call("confide predict run images.npz --out said.csv") == "said.csv: 60 predictions with 90% intervals.\n"
    with Path("said.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["index", "predicted class", "class=1", "low class=1", "high class=1"]
    assert [row[0] for row in rows] == [str(i) for i in range(60)]
    posterior, described = run_folder.load("run")
    x = images()[0]
    chances = posterior.predict_proba(x.reshape(60, -1).astype(np.float32) / 255)
    assert [row[2] for row in rows] == [f"{chance:.4f}" for chance in chances[:, 1]]
    call("confide predict run photos --out photos.csv")
    assert Path("photos.csv").read_text().splitlines()[1].startswith("cat/00.png,")
    assert call("confide report run --public images.npz") == "run/report.html\n"
    page = Path("run/report.html").read_text()
    assert "The 270 weights of a network mean nothing one by one" in page
    assert "8 x 8 x 1 pixels" in page
    assert "the list of classes are public" in page
    found = call("confide audit run --members images.npz --nonmembers photos")
    assert "every row has a missing value and counts as absent" in found
    made = report.gather(posterior, described)
    assert made.checked
    assert made.groups == []
    assert "8 made-up images" in made.diagnostics[0]
    assert predictive.predict_images(posterior, described).shape == (1, 10, 8)
    content = b"".join(path.read_bytes() for path in Path("run").iterdir())
    assert x[0].tobytes() not in content
    assert str(folder).encode() not in content


def test_classes_are_declared_and_said(folder):
    """A class that nobody has is a class all the same: the model is the same whoever is there."""
    asked = Request(data="images.npz", classes=("a", "b", "c"), out="run", epsilon=1.0, delta=1e-5, model="softmax")
    described, (x, y), present, records = run_folder.prepare(asked)
    assert present.all()
    assert records == 60
    assert described.classes == ("a", "b", "c")
    assert x.shape == (60, 64)
    assert (x.dtype, y.dtype) == (np.float32, np.float32)
    assert float(x.max()) <= 1
    model = confide.app.runs.choices.build_model(described, asked)
    assert model.settings["classes"] == 3
    assert any("classes were declared" in sentence for sentence in described.assumptions(False, False))
    assert described.bound == pytest.approx(np.sqrt(65))


def test_arrays_and_folders_say_the_same(folder):
    """Fractions, bytes and files of the same images are the same numbers, in the order of their names."""
    x, y = images(6)
    np.savez("fractions.npz", images=x[..., None] / 255, labels=y)
    np.savez("bytes.npz", X=x.astype(np.int64), y=y.astype(bool))
    one, two = (read(Path(name), ("cat", "dog")) for name in ("fractions.npz", "bytes.npz"))
    three = read(Path("photos"), ("cat", "dog"))
    assert one.x.shape == (6, 8, 8, 1)
    np.testing.assert_allclose(one.x, two.x, rtol=1e-6)
    order = np.argsort(y, kind="stable")
    assert np.array_equal(three.x, two.x[order])
    assert np.array_equal(three.y, y[order])
    assert three.names[0] == "cat/00.png"
    Path("photos/.hidden").mkdir()
    Path("photos/notes.txt").write_text("of no class")
    Path("photos/cat/.DS_Store").write_bytes(b"")
    assert read(Path("photos"), ("cat", "dog", "bird")).names == three.names
    assert len(read(Path("photos/cat"), None).x) == 3  # to be predicted, without labels


def test_palettes_are_colours_and_others_are_refused(folder):
    place = Path("colours/cat")
    place.mkdir(parents=True)
    colour = np.zeros((4, 4, 3), np.uint8)
    colour[:2] = (255, 0, 0)
    Image.fromarray(colour).convert("P", palette=Image.Palette.ADAPTIVE).save(place / "a.png")
    found = read(Path("colours"), ("cat", "dog"))
    np.testing.assert_array_equal(found.x[0], colour.astype(np.float32) / 255)
    Image.fromarray(np.zeros((4, 4, 4), np.uint8), "RGBA").save(place / "b.png")
    with pytest.raises(Refused, match=r"b.png has mode RGBA"):
        read(Path("colours"), ("cat", "dog"))
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(place / "b.png")
    with pytest.raises(Refused, match=r"b.png has mode I;16.*8-bit"):
        read(Path("colours"), ("cat", "dog"))


def test_pixels_beyond_their_bounds_count_as_the_bounds(folder):
    """Each number by itself, as the type of the array says; one that is missing is 0."""
    x, y = images(6)
    fractions = x / 255
    fractions[1, 0, :4] = np.nan, np.inf, -np.inf, 7.0
    np.savez("fractions.npz", x=fractions, y=y)
    found = read(Path("fractions.npz"), ("cat", "dog"))
    assert found.x[1, 0, :4, 0].tolist() == [0, 1, 0, 1]
    assert found.present.all()
    others = np.delete(found.x, 1, axis=0)
    assert np.array_equal(others[..., 0], np.delete(fractions, 1, axis=0).astype(np.float32))
    for kind in (np.int8, np.int16, np.uint64):
        whole = np.minimum(x, 100).astype(kind)
        whole[2, 0, :2] = np.iinfo(kind).max, np.iinfo(kind).min
        np.savez("whole.npz", x=whole, y=y)
        found = read(Path("whole.npz"), ("cat", "dog"))
        assert found.x[2, 0, :2, 0].tolist() == [np.float32(min(255, np.iinfo(kind).max) / 255), 0]
        assert np.array_equal(found.x[0, ..., 0], np.minimum(x[0], 100).astype(np.float32) / np.float32(255))


def test_images_of_no_declared_class_count_as_absent(folder, call):
    x, y = images(6)
    np.savez("images.npz", x=x, y=np.where(np.arange(6) == 2, 7, y))
    found = read(Path("images.npz"), ("cat", "dog"))
    assert found.present.tolist() == [True, True, False, True, True, True]
    assert not found.x[2].any()
    assert found.y[2] == 0
    some = read(Path("photos"), ("cat", "bird"))
    assert some.present.tolist() == [True] * 3 + [False] * 3
    assert not some.x[3:].any()
    told = call("confide schema check photos --classes cat,bird")
    assert "6 of shape 8 x 8 x 1, 3 of them absent" in told
    assert "dog/01.png" in told
    assert "not for publication" in told


def test_with_a_declared_shape_no_file_refuses_the_others(folder):
    """A file of another shape, or that is no image, is an absent record; nothing else changes."""
    before = read(Path("photos"), ("cat", "dog"), (8, 8, 1))
    resized(folder)
    (folder / "photos/cat/02.png").write_bytes(b"no image")
    after = read(Path("photos"), ("cat", "dog"), (8, 8, 1))
    assert after.names == before.names
    assert after.present.tolist() == [True, False, True, False, True, True]
    assert not after.x[~after.present].any()
    assert np.array_equal(after.x[after.present], before.x[after.present])
    emptied(folder)
    none = read(Path("photos"), ("cat", "dog"), (8, 8, 1), empty=True)
    assert none.x.shape == (0, 8, 8, 1)
    assert (none.x.dtype, none.y.dtype, none.present.dtype) == (np.float32, np.float32, bool)


def renamed(name):
    return lambda own: own.rename(own.parents[1] / name)


def replaced_by(make):
    def change(own):
        own.unlink()
        make(own)

    return change


OTHER_FILES = {
    "another suffix": renamed("cat/02.gif"),
    "no suffix": renamed("cat/02"),
    "folder": replaced_by(lambda own: own.mkdir()),
    "beside the classes": renamed("02.png"),
    "link to another": replaced_by(lambda own: own.symlink_to(own.parents[1] / "dog/01.png")),
    "link to itself": replaced_by(lambda own: own.symlink_to(own)),
    "link to nowhere": replaced_by(lambda own: own.symlink_to(own.parents[1] / "nowhere.png")),
    "pipe": replaced_by(os.mkfifo),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_with_a_declared_shape_whatever_is_no_image_is_absent_by_itself(name, folder):
    before = read(Path("photos"), ("cat", "dog"), (8, 8, 1))
    OTHER_FILES[name](folder / "photos/cat/02.png")
    after = read(Path("photos"), ("cat", "dog"), (8, 8, 1))
    assert len(after.x) == len(before.x) == 6
    assert (~after.present).sum() == 1
    assert not after.x[~after.present].any()
    others = [i for i, own in enumerate(before.names) if own != "cat/02.png"]
    assert np.array_equal(after.x[after.present], before.x[others])
    assert np.array_equal(after.y[after.present], before.y[others])
    assert [own for own, there in zip(after.names, after.present, strict=True) if there] == [
        before.names[i] for i in others
    ]
    with pytest.raises(Refused) as caught:
        read(Path("photos"), ("cat", "dog"))
    assert "\n" not in str(caught.value)


def test_links_to_images_elsewhere_are_images(folder):
    """A folder of links is as good as one of files."""
    before = read(Path("photos"), ("cat", "dog"), (8, 8, 1))
    (folder / "photos").rename(folder / "elsewhere")
    for own in before.names:
        (folder / "photos" / own).parent.mkdir(parents=True, exist_ok=True)
        (folder / "photos" / own).symlink_to(folder / "elsewhere" / own)
    after = read(Path("photos"), ("cat", "dog"), (8, 8, 1))
    assert after.present.all()
    assert np.array_equal(after.x, before.x)


def test_images_of_one_class_are_fitted(folder, call):
    np.savez("images.npz", x=images()[0], y=np.zeros(60, int))
    assert "run/posterior.nc" in call(f"confide {FIT}")
    posterior = run_folder.load("run")[0]
    said = posterior.guarantee.assumptions
    assert any("what belongs to no declared class counts as absent" in sentence for sentence in said)
    assert any("rows in the file" in sentence for sentence in said)


def arrays(**named):
    return lambda home: np.savez(home / "images.npz", **named)


def file(name, content=b"no image"):
    return lambda home: (home / name).write_bytes(content)


def linked(home):
    (home / "photos/cat/twin.png").symlink_to(home / "photos/cat/00.png")


def resized(home):
    Image.fromarray(np.zeros((9, 8), np.uint8)).save(home / "photos/dog/01.png")


def damaged(home):
    np.savez_compressed(home / "images.npz", x=X, y=Y)
    content = bytearray((home / "images.npz").read_bytes())
    content[100:300] = bytes(200)
    (home / "images.npz").write_bytes(content)


def emptied(home):
    for path in (home / "photos").rglob("*.png"):
        path.unlink()


X, Y = images()
PHOTOS = "fit photos --classes cat,dog"
BAD = {
    "no classes": (None, FIT.replace("--classes 2", ""), "images need --classes"),
    "one class declared": (None, FIT.replace("--classes 2", "--classes 1"), "names no two classes"),
    "class twice": (None, FIT.replace("--classes 2", "--classes a,a"), "names 'a' twice"),
    "no labels": (arrays(x=X, target=Y), "", "has no array 'y' for the labels (it has x, target)"),
    "no images": (arrays(pixels=X, y=Y), "", "has no array 'x' for the images (it has pixels, y)"),
    "both": (arrays(x=X, images=X, y=Y), "", "several arrays for the images"),
    "labels as text": (arrays(x=X, y=Y.astype(str)), "", "y holds <U"),
    "labels as fractions": (arrays(x=X, y=Y / 2), "", "y holds float64"),
    "labels of another number": (arrays(x=X, y=Y[1:]), "", "y has shape (59,) for 60 images"),
    "pixels as text": (arrays(x=X.astype(str), y=Y), "", "x holds <U"),
    "pickled": (arrays(x=X.astype(object), y=Y), "", "it holds Python objects"),
    "flat images": (arrays(x=X[0, 0], y=Y), "", "x has shape (8,)"),
    "no npz": (file("images.npz"), "", "images.npz cannot be read"),
    "damaged": (damaged, "", "images.npz cannot be read"),
    "missing": (lambda home: (home / "images.npz").unlink(), "", "images.npz does not exist"),
    "schema": (file("schema.toml", b'[columns.a]\nkind = "boolean"\n'), f"{FIT} --schema schema.toml", "for tables"),
    "linear": (None, FIT.replace("mlp --hidden 4", "linear"), "predicts numbers, and images have classes"),
    "hidden": (None, FIT.replace("mlp", "softmax"), "--hidden goes with --model mlp, not with softmax"),
    "layers": (None, FIT.replace("--hidden 4", "--hidden 4,x"), "--hidden '4,x' is no list of layers"),
    "convolutions": (None, f"{FIT} --convolutions 2", "--convolutions goes with --model cnn, not with mlp"),
    "microbatch": (None, f"{FIT} --microbatch 0", "microbatch = 0"),
    "small images": (None, FIT.replace("mlp --hidden 4", "cnn"), "too small for 2 convolutions"),
    "cnn of rows": (arrays(x=X.reshape(60, 64), y=Y), FIT.replace("mlp --hidden 4", "cnn"), "x has 64 columns"),
    "cnn of a table": (
        file("t.csv", b"a,b\n1,2\n"),
        "fit t.csv --schema s.toml --model cnn",
        "--model cnn needs images",
    ),
    "mixed shapes": (resized, PHOTOS, "photos/dog/01.png has shape (9, 8, 1) and photos/cat/00.png has (8, 8, 1)"),
    "broken image": (file("photos/cat/02.png"), PHOTOS, "photos/cat/02.png cannot be read as an image"),
    "no image": (file("photos/cat/a.txt"), PHOTOS, "photos/cat/a.txt is no image"),
    "classless image": (file("photos/a.png"), PHOTOS, "photos/a.png is in no class"),
    "twice": (linked, PHOTOS, "photos/cat/twin.png is the same file as photos/cat/00.png"),
    "empty folder": (emptied, PHOTOS, "photos holds no images"),
    "empty folder without a shape": (emptied, f"{PHOTOS} --records 6", "--shape must say what they would be"),
    "no shape": (None, f"{PHOTOS} --shape 8", "--shape '8' is no shape"),
    "another shape": (None, f"{FIT} --shape 9x9", "--shape says (9, 9, 1)"),
    "no records": (None, f"{FIT} --records 0", "records = 0"),
}
REST = "--epsilon 1 --delta 1e-5 --steps 20 --out run --quiet"
SCHEMA = 'target = "b"\n[columns.a]\nkind = "numeric"\nlow = 0\nhigh = 9\n[columns.b]\nkind = "boolean"\n'


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_refused_in_one_line_and_leave_no_trace(name, folder, call, tmp_path):
    """Exit code 2, nothing charged, nothing written."""
    change, command, said = BAD[name]
    (folder / "s.toml").write_text(SCHEMA)
    ledger = confide.Ledger.create("ledger.db")
    ledger.enter("people", confide.Budget(epsilon=2.0, delta=1e-4))
    if change is not None:
        change(folder)
    before = sorted(path.name for path in folder.rglob("*"))
    command = command or FIT
    found = call(f"confide {command}{'' if '--out' in command else f' {REST}'} --ledger ledger.db")
    assert found.endswith("[exit 2]\n"), found
    line, _ = found.splitlines()
    assert line.startswith("confide: ")
    assert said in line
    assert sorted(path.name for path in folder.rglob("*")) == before
    assert ledger.history("people") == []
    assert list((tmp_path / "state").glob("runs/*")) == []


def test_images_of_another_shape_are_not_predicted(folder):
    described = image_schema.Pictures(shape=(9, 9, 1), classes=("a", "b"), flattened=False)
    with pytest.raises(Refused, match=r"shape \(8, 8, 1\), and the run is of \(9, 9, 1\)"):
        confide.data.image_files.encode(described, Path("images.npz"))
    assert confide.data.image_files.encode(
        image_schema.Pictures(shape=(8, 8, 1), classes=("a", "b"), flattened=True), Path("images.npz")
    ).x.shape == (60, 64)


@pytest.mark.long
def test_many_parameters_mean_fewer_draws():
    """What is kept stays moderate by itself; whoever asks for more gets it."""
    from confide.inference.plans import run_setup, stochastic

    assert run_setup._thinning(10_000, None, None, 322) == (10_000 - 322 * 15, 15)
    assert run_setup._thinning(10_000, 1000, None, 322) == (5000, 5)
    large = confide.models.mlp((100, 200, 2))
    x, y = np.zeros((4, 100), np.float32), np.array([0.0, 1.0, 0.0, 1.0], np.float32)
    for chains, draws in ((1, 407), (4, 101)):
        job, _ = stochastic.private_job(
            large,
            (x, y),
            confide.Budget(epsilon=1.0, delta=1e-5),
            confide.sgld(),
            Options(steps=2000, chains=chains),
            confide.mechanism.noise.as_key(0),
        )
        assert job.kept == draws
        assert draws == 2**23 // (chains * job.parameters.dimension)


@pytest.mark.long
@pytest.mark.optimised
@pytest.mark.parametrize("model", ["cnn --dropout 0.1 --microbatch 16", "softmax", "mlp --hidden 8,4 --canaries 30"])
def test_digits_go_the_whole_way(model, tmp_path, call):
    """A network of images is fitted, killed by nobody, predicted for, evaluated, attacked and reported."""
    rng = np.random.default_rng(1)
    y = np.arange(400) % 3
    x = rng.integers(0, 60, (400, 16, 16), np.uint8) + (60 * y[:, None, None]).astype(np.uint8)
    np.savez("in.npz", x=x[::2], y=y[::2])
    np.savez("out.npz", x=x[1::2], y=y[1::2])
    common = "--classes dark,grey,bright --epsilon 8 --delta 1e-5 --steps 40 --draws 10 --out run --quiet"
    found = call(f"confide fit in.npz --model {model} {common}")
    assert "run/images.json" in found, found
    assert "200 predictions" in call("confide predict run out.npz --out said.csv")
    assert call("confide report run --public out.npz") == "run/report.html\n"
    assert "AUC" in call("confide audit run --members in.npz --nonmembers out.npz")
    if "canaries" in model:
        assert "canaries" in call("confide audit run")


def interrupted(*arguments, **more):
    raise KeyboardInterrupt


@pytest.mark.long
def test_an_interrupted_run_of_images_goes_on(folder, call):
    """The same draws as without the interruption; not with other images in the file."""
    common = {"data": "images.npz", "classes": ("a", "b"), "model": "mlp", "hidden": (4,), "steps": 20, "key": 3}
    asked = Request(out="run", epsilon=1.0, delta=1e-5, **common)
    whole = run_folder.fit(Request(**vars(asked) | {"out": "whole"}), verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confide.inference.loop, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_folder.fit(asked, verbose=False)
    x, y = images()
    np.savez("images.npz", x=x[::-1], y=y[::-1])
    assert "is of another run" in call("confide resume run --quiet")
    np.savez("images.npz", x=x, y=y)
    assert "run/images.json" in call("confide resume run --quiet")
    assert np.array_equal(run_folder.load("run")[0].draws[0]["weights"], whole.draws[0]["weights"])
