"""Named collections of images: pixels as bytes, (rows, height, width) grey or (rows, height, width, 3) in colour.

Each is read in its official form, or from lossless WebP grids: pictures of equal tiles, row by row, named by the
records that they hold, with the labels in an .npz file. Grids may hold a part of the records; the log says how many.
"""

from __future__ import annotations

import gzip
import logging
import math
import os
import re
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from confide.data.datasets import download
from confide.data.datasets.types import Arrays, Grouped, Split
from confide.validation import Refused

log = logging.getLogger(__name__)
_CIFAR_BATCH = 10_000
_CIFAR_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


def mnist(folder: str | os.PathLike[str] | None = None) -> Split:
    """MNIST: handwritten digits, 28 x 28 grey pixels, labels 0 to 9.

    60,000 training and 10,000 test images (LeCun, Cortes and Burges 1998) in the original idx files, packed or not.
    Usually given as CC BY-SA 3.0. Downloaded from a mirror, because the authors' page serves them no longer.
    """
    return Split(
        *(_idx(folder, f"{part}-{kind}-ubyte") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    )


def _idx(folder: str | os.PathLike[str] | None, file: str) -> np.ndarray:
    path = download.find_held("mnist", (f"{file}.gz", file), folder) or download.find("mnist", f"{file}.gz", folder)
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error):
        raise _damage(path) from None
    dimensions = 3 if "images" in file else 1
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise _damage(path)
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    values = np.frombuffer(content, np.uint8, offset=start)
    if math.prod(shape) != values.size:
        raise _damage(path)
    return values.reshape(shape) if dimensions == 3 else values.astype(np.int32)


def cifar10(folder: str | os.PathLike[str] | None = None) -> Split:
    """CIFAR-10: small photographs, 32 x 32 in colour, of ten kinds of things.

    50,000 training and 10,000 test images in the official order (Krizhevsky 2009, who states no licence); 0 to 9 are
    airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck. Read from the official binary version, packed
    or not, or from WebP grids, which may hold the first training batches alone: then there are fewer training rows.
    """
    forms = ("labels.npz", "cifar-10-batches-bin", "cifar-10-binary.tar.gz")
    path = download.find_held("cifar10", forms, folder) or download.find("cifar10", forms[-1], folder)
    if path.name == "labels.npz":
        labels = _labels(path, "y_train", "y_test")
        batches = [name for name in _CIFAR_TRAIN if (path.parent / f"{name}.webp").exists()]
        grids = [
            (path.parent / f"{name}.webp", first, first + _CIFAR_BATCH)
            for name in batches
            for first in [_CIFAR_BATCH * _CIFAR_TRAIN.index(name)]
        ]
        train = _from_grids(path, grids, labels["y_train"], 32)
        test = _from_grids(path, [(path.parent / "test_batch.webp", 0, _CIFAR_BATCH)], labels["y_test"], 32)
    else:
        records = _cifar_records(path)
        train, test = _cifar_arrays(path, records[:-1]), _cifar_arrays(path, records[-1:])
    return _check_whole("cifar10", Split(*train, *test), 50_000, 10_000)


def _cifar_records(path: Path) -> list[bytes]:
    """The five training batches and the test batch, from their folder or from the archive."""
    names = [f"{name}.bin" for name in (*_CIFAR_TRAIN, "test_batch")]
    try:
        if path.is_dir():
            return [(path / name).read_bytes() for name in names]
        with tarfile.open(path) as archive:
            members = [archive.extractfile(f"cifar-10-batches-bin/{name}") for name in names]
            return [member.read() for member in members if member]
    except FileNotFoundError as error:
        raise Refused(f"{error.filename} is missing: unpack the whole archive") from None
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error):
        raise _damage(path) from None


def _cifar_arrays(path: Path, batches: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """A record is its label and then the red, the green and the blue pixels, row by row."""
    content = np.frombuffer(b"".join(batches), np.uint8)
    if not content.size or content.size % (1 + 3 * 32 * 32):
        raise _damage(path)
    records = content.reshape(-1, 1 + 3 * 32 * 32)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), records[:, 0].astype(np.int32)


def svhn(folder: str | os.PathLike[str] | None = None) -> Split:
    """Street View House Numbers, cropped digits: 32 x 32 in colour, labels 0 to 9 (the files write 10 for 0).

    73,257 training and 26,032 test images (Netzer et al. 2011), for non-commercial use only, as their authors say.
    Several digits come from one photograph. Read from the official .mat files, or from WebP grids, which may hold the
    first rows alone.
    """
    path = download.find_held("svhn", ("labels.npz", "train_32x32.mat"), folder)
    if path is not None and path.name == "labels.npz":
        labels = _labels(path, "y_train", "y_test")
        parts = [_from_grids(path, _ranges(path.parent, part), labels[f"y_{part}"], 32) for part in ("train", "test")]
    else:
        parts = [_mat(download.find("svhn", f"{part}_32x32.mat", folder)) for part in ("train", "test")]
    (x, y), (test_x, test_y) = parts
    return _check_whole("svhn", Split(x, y % 10, test_x, test_y % 10), 73_257, 26_032)


def _mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"]
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, zlib.error):
        raise _damage(path) from None
    if pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3) or labels.size != pixels.shape[-1]:
        raise _damage(path)
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels.ravel().astype(np.int32)


def idc(folder: str | os.PathLike[str] | None = None) -> Grouped:
    """Invasive ductal carcinoma: 50 x 50 patches in colour of stained breast tissue; y = 1 where there is carcinoma.

    277,524 patches of 279 patients (Cruz-Roa et al. 2014; Janowczyk and Madabhushi 2016); see the page that you take
    them from for the licence. `group` is the patient's number: one patient gives many patches, so split by patient.
    Rows are ordered by patient. Read from the folder IDC_regular_ps50_idx5 of the official archive, without the patches
    that are cut off at a border, or from WebP grids, which may hold a sample. No source serves it without registration,
    so it is never downloaded.
    """
    path = download.find_held("idc", ("meta.npz", "IDC_regular_ps50_idx5"), folder)
    if path is None:
        looked = ", ".join(str(place / "idc") for place in download.places(folder))
        raise Refused(
            f"the dataset 'idc' is not in {looked}, and no source serves it to everyone: "
            "get 'Breast Histopathology Images' from Kaggle, unpack it, and move its folder "
            f"IDC_regular_ps50_idx5 to {download.cache() / 'idc'}"
        )
    if path.is_dir():
        result = _idc_patches(path)
    else:
        meta = _labels(path, "y", "patient")
        x, y = _from_grids(path, _ranges(path.parent, "patches"), meta["y"], 50)
        result = Grouped(x, y, meta["patient"][: len(y)].astype(np.int32))
    if len(result.y) < 270_000:  # a few patches of the whole are not 50 x 50
        log.warning("idc: %s of the official 277,524 patches are here", f"{len(result.y):,}")
    return result


def _idc_patches(folder: Path) -> Grouped:
    """From files such as 8863/0/8863_idx5_x51_y1251_class0.png: patient, label, place in the slide."""
    found = []
    for path in folder.glob("*/[01]/*.png"):
        if place := re.fullmatch(r"(\d+)_idx5_x(\d+)_y(\d+)_class([01])", path.stem):
            patient, x, y, label = map(int, place.groups())
            found.append((patient, x, y, label, path))
    patches, labels, patients = np.empty((len(found), 50, 50, 3), np.uint8), [], []
    for patient, _, _, label, path in sorted(found):
        pixels = _pixels(path)
        if pixels.shape == (50, 50, 3):
            patches[len(labels)] = pixels
            labels.append(label)
            patients.append(patient)
    if not labels:
        raise Refused(f"{folder} holds no patches: move the folders of the patients into it")
    return Grouped(patches[: len(labels)], np.array(labels, np.int32), np.array(patients, np.int32))


def digits() -> Arrays:
    """Handwritten digits of the UCI repository: 1,797 images of 8 x 8 grey pixels from 0 to 16, labels 0 to 9.

    Its test part (Alpaydin and Kaynak 1998), which ships with scikit-learn. CC BY 4.0 (DOI 10.24432/C50P49).
    """
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    return Arrays(bunch.images.astype(np.uint8), bunch.target.astype(np.int32))


def _ranges(folder: Path, part: str) -> list[tuple[Path, int, int]]:
    """The grids of a part, each with the records that its name says: `train_00000_09999.webp`."""
    named = ((path, re.fullmatch(rf"{part}_(\d+)_(\d+)", path.stem)) for path in sorted(folder.glob(f"{part}_*.webp")))
    return [(path, int(place[1]), int(place[2]) + 1) for path, place in named if place]


def _from_grids(
    where: Path, grids: Iterable[tuple[Path, int, int]], labels: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    tiles, numbers = [], []
    for path, first, end in grids:
        pixels = _pixels(path)
        rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
        cut = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size, 3).swapaxes(1, 2)
        if rows * columns < end - first or end > len(labels):
            raise _damage(path)
        tiles.append(cut.reshape(-1, size, size, 3)[: end - first])
        numbers.append(labels[first:end])
    if not tiles:
        raise Refused(f"{where.parent} has labels and no images: place the WebP files beside {where.name}")
    return np.concatenate(tiles), np.concatenate(numbers).astype(np.int32)


def _pixels(path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        raise Refused(f"{path} is missing: place it there") from None
    except (OSError, ValueError, SyntaxError):
        raise _damage(path) from None


def _labels(path: Path, *names: str) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zlib.error):
        raise _damage(path) from None


def _check_whole(name: str, split: Split, train: int, test: int) -> Split:
    """The split; a part of the dataset is not mistaken for the whole."""
    if (len(split.y), len(split.test_y)) != (train, test):
        log.warning(
            f"{name}: {len(split.y):,} of the official {train:,} training rows "
            f"and {len(split.test_y):,} of the {test:,} test rows are here"
        )
    return split


def _damage(path: Path) -> Refused:
    return Refused(f"{path} is not what its name says: remove it, and get it again")
