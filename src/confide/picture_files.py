"""Images read from an .npz file, or from a folder with a sub-folder for each class.

Pixels are numbers within public bounds: whole numbers from 0 to 255, which are divided by 255, or fractions within
[0, 1]. All images have one shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide.checks import Refused
from confide.pictures import Pictures

X_NAMES, Y_NAMES = ("x", "X", "images"), ("y", "labels")
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
PIECE = 4096  # images that are checked at a time


class Read(NamedTuple):
    """Images, single precision within [0, 1], (records, *shape); their labels, if asked for; and their names."""

    x: np.ndarray
    y: np.ndarray
    names: list[str]
    place: str  # what a name is

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]


def read(path: Path, classes: tuple[str, ...] | None) -> Read:
    """All images of a file or a folder; without `classes` no labels are looked for."""
    if not path.exists():
        raise Refused(f"{path} does not exist: give an .npz file, or a folder of images")
    return _folder(path, classes) if path.is_dir() else _arrays(path, classes)


def encoded(pictures: Pictures, path: Path, labelled: bool = True) -> Read:
    """Images as the model of a run sees them; refused where their shape is not that of the run."""
    found = read(path, pictures.classes if labelled else None)
    if found.shape != pictures.shape:
        raise Refused(f"{path} has images of shape {found.shape}, and the run is of {pictures.shape}: give such images")
    return found._replace(x=seen(pictures, found.x))


def seen(pictures: Pictures, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1) if pictures.flattened else x


def _arrays(path: Path, classes: tuple[str, ...] | None) -> Read:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is one array")
            x = _named(path, file, X_NAMES, "the images")
            y = None if classes is None else _named(path, file, Y_NAMES, "the labels")
    except Refused:
        raise
    except Exception as error:  # whatever NumPy, zip or zlib makes of a broken file
        pickled = "pickle" in str(error)  # which could run anything
        why = "it holds Python objects, or is no .npz file" if pickled else _why(error)
        raise Refused(f"{path} cannot be read: {why}; write it by numpy.savez(path, x=images, y=labels)") from None
    if x.ndim not in (2, 3, 4) or not x.size:
        raise Refused(f"{path}: x has shape {x.shape}: give (n, height, width), with channels or not, or (n, columns)")
    x = _pixels(path, x[..., None] if x.ndim == 3 else x)
    labels = np.zeros(0, np.float32) if y is None else _labels(path, y, len(x), classes or ())
    return Read(x, labels, [str(i) for i in range(len(x))], "index")


def _named(path: Path, file: Any, names: tuple[str, ...], what: str) -> np.ndarray:
    found = [name for name in names if name in file.files]
    if len(found) == 1:
        return file[found[0]]
    there = ", ".join(file.files) or "no arrays"
    problem = f"has several arrays for {what}" if found else f"has no array {names[0]!r} for {what}"
    raise Refused(f"{path} {problem} (it has {there}): name exactly one {' or '.join(names)}")


def _pixels(path: Path, x: np.ndarray) -> np.ndarray:
    """Single precision within [0, 1]; the first image that is not is refused."""
    if x.dtype.kind not in "biuf":
        raise Refused(f"{path}: x holds {x.dtype}: give whole numbers from 0 to 255, or fractions within [0, 1]")
    most = 255 if x.dtype.kind in "iu" else 1
    for first in range(0, 0 if x.dtype == np.uint8 else len(x), PIECE):
        part = x[first : first + PIECE]
        wrong = np.argwhere(~((part >= 0) & (part <= most)))  # nan is neither
        if wrong.size:
            row, value = first + int(wrong[0][0]), part[tuple(wrong[0])]
            kind = "whole numbers must lie from 0 to 255" if most == 255 else "fractions must lie within [0, 1]"
            raise Refused(f"{path}: x[{row}] holds {value:g}: {kind}; repair it, or scale all by a public bound")
    scaled = x.astype(np.float32)
    return np.divide(scaled, np.float32(255), out=scaled) if most == 255 else scaled


def _labels(path: Path, y: np.ndarray, records: int, classes: tuple[str, ...]) -> np.ndarray:
    if y.shape != (records,):
        raise Refused(f"{path}: y has shape {y.shape} for {records} images: give one label for each")
    if y.dtype.kind not in "biu":
        raise Refused(f"{path}: y holds {y.dtype}: give labels as whole numbers, 0 to {len(classes) - 1}")
    wrong = np.flatnonzero((y < 0) | (y >= len(classes)))
    if wrong.size:
        raise Refused(
            f"{path}: y[{wrong[0]}] is {y[wrong[0]]}, and --classes has {len(classes)}: labels are 0 to "
            f"{len(classes) - 1}; declare all classes there can be"
        )
    return y.astype(np.float32)


def _folder(path: Path, classes: tuple[str, ...] | None) -> Read:
    files = list(_files(path, classes))
    if not files:
        inside = "in sub-folders named as the classes" if classes else "in it, or in its sub-folders"
        raise Refused(f"{path} holds no images: put {', '.join(SUFFIXES)} files {inside}")
    whole: dict[Path, Path] = {}
    x, first = np.zeros(0, np.uint8), files[0][0]
    for i, (file, _) in enumerate(files):
        real = file.resolve()
        if real in whole:
            raise Refused(f"{file} is the same file as {whole[real]}: keep one, since one person may count once")
        whole[real] = file
        image = _image(file)
        if i == 0:
            x = np.empty((len(files), *image.shape), np.uint8)
        if image.shape != x.shape[1:]:
            raise Refused(
                f"{file} has shape {image.shape} and {first} has {x.shape[1:]} (height, width, channels): give images "
                "of one shape"
            )
        x[i] = image
    y = np.array([label for _, label in files], np.float32) if classes else np.zeros(0, np.float32)
    return Read(_pixels(path, x), y, [file.relative_to(path).as_posix() for file, _ in files], "file")


def _files(path: Path, classes: tuple[str, ...] | None) -> Iterator[tuple[Path, int]]:
    """Every image with the place of its class, in the order of names; what is hidden is passed over."""
    for entry in _entries(path):
        if not entry.is_dir():
            if entry.suffix.lower() in SUFFIXES and classes is not None:
                raise Refused(f"{entry} is in no class: move it into a sub-folder that is named as its class")
            if entry.suffix.lower() in SUFFIXES:
                yield entry, 0
            continue
        if classes is not None and entry.name not in classes:
            raise Refused(f"{entry} is no class of --classes {','.join(classes)[:80]}: add it there, or move it away")
        for file in _entries(entry):
            if file.suffix.lower() not in SUFFIXES or file.is_dir():
                raise Refused(f"{file} is no image that can be read: move it away, or give {', '.join(SUFFIXES)}")
            yield file, 0 if classes is None else classes.index(entry.name)


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def _image(file: Path) -> np.ndarray:
    """Eight bits a channel, (height, width, 1 or 3)."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as of an image that would fill the memory
            with Image.open(file, formats=[*{*SUFFIXES.values()}]) as image:
                if getattr(image, "n_frames", 1) > 1:
                    raise Refused(f"{file} holds several images: give one in each file")
                if "transparency" in image.info or image.mode not in ("1", "L", "P", "RGB"):
                    raise Refused(f"{file} has mode {image.mode}, or is transparent: save it as 8-bit grey or RGB")
                array = np.asarray(image.convert({"P": "RGB", "1": "L"}.get(image.mode, image.mode)))
    except Refused:
        raise
    except Exception as error:  # whatever a decoder makes of a broken file
        raise Refused(f"{file} cannot be read as an image: {_why(error)}; repair it, or move it away") from None
    return array[..., None] if array.ndim == 2 else array


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0][:120]
