"""Images read from an .npz file, or from a folder with a sub-folder for each class.

Pixels are numbers within public bounds: whole numbers from 0 to 255, which are divided by 255, or fractions within
[0, 1]; which of the two is the type that the array has. What is beyond the bounds counts as the bound, and what is no
number as 0. An image that belongs to no declared class counts as absent: its place stays, and is all zeros.

All images have one shape. That of an array is the file's own; that of a folder is declared, and then whatever a
sub-folder holds that cannot be read as such an image (another kind of file, a folder, a link that leads nowhere or to
another image of the folder) counts as absent, and so does an image beside the sub-folders. Where it is not declared it
is that of the first file, and any other is refused: for the record's own sake, and guarantees are then about folders in
which there is none.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide.data.image_schema import Pictures
from confide.validation import Refused

X_NAMES, Y_NAMES = ("x", "X", "images"), ("y", "labels")
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
PIECE = 4096  # images that are checked at a time


class Read(NamedTuple):
    """Images, single precision within [0, 1], (records, *shape); their labels, if asked for; and their names."""

    x: np.ndarray
    y: np.ndarray
    present: np.ndarray  # False where an image counts as absent
    names: list[str]
    place: str  # what a name is

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]


def read(
    path: Path, classes: tuple[str, ...] | None, shape: tuple[int, ...] | None = None, *, empty: bool = False
) -> Read:
    """All images of a file or a folder; without `classes` no labels are looked for, and every image is present.

    `shape` is what was declared. Without any image they are refused unless there may be none (`empty`).
    """
    if not path.exists():
        raise Refused(f"{path} does not exist: give an .npz file, or a folder of images")
    return _folder(path, classes, shape, empty) if path.is_dir() else _arrays(path, classes, shape, empty)


def encode(pictures: Pictures, path: Path, labelled: bool = True) -> Read:
    """Images as the model of a run sees them; refused where their shape is not that of the run."""
    found = read(path, pictures.classes if labelled else None)
    if found.shape != pictures.shape:
        raise Refused(f"{path} has images of shape {found.shape}, and the run is of {pictures.shape}: give such images")
    return found._replace(x=as_model_input(pictures, found.x))


def as_model_input(pictures: Pictures, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), pictures.numbers) if pictures.flattened else x


def _arrays(path: Path, classes: tuple[str, ...] | None, shape: tuple[int, ...] | None, empty: bool) -> Read:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is one array")
            x = _class_numbers(path, file, X_NAMES, "the images")
            y = None if classes is None else _class_numbers(path, file, Y_NAMES, "the labels")
    except Refused:
        raise
    except Exception as error:  # whatever NumPy, zip or zlib makes of a broken file
        pickled = "pickle" in str(error)  # which could run anything
        why = "it holds Python objects, or is no .npz file" if pickled else _why(error)
        raise Refused(f"{path} cannot be read: {why}; write it by numpy.savez(path, x=images, y=labels)") from None
    if x.ndim not in (2, 3, 4) or not math.prod(x.shape[1:]) or not (len(x) or empty):
        raise Refused(f"{path}: x has shape {x.shape}: give (n, height, width), with channels or not, or (n, columns)")
    x = x[..., None] if x.ndim == 3 else x
    if shape is not None and x.shape[1:] != shape:
        raise Refused(
            f"{path}: x has images of shape {x.shape[1:]}, and --shape says {shape}: give the file's, or none"
        )
    x = _pixels(path, x)
    labels, present = np.zeros(0, np.float32), np.ones(len(x), bool)
    if y is not None:
        labels, present = _labels(path, y, len(x), classes or ())
        x[~present] = 0.0
    return Read(x, labels, present, [str(i) for i in range(len(x))], "index")


def _class_numbers(path: Path, file: Any, names: tuple[str, ...], what: str) -> np.ndarray:
    found = [name for name in names if name in file.files]
    if len(found) == 1:
        return file[found[0]]
    there = ", ".join(file.files) or "no arrays"
    problem = f"has several arrays for {what}" if found else f"has no array {names[0]!r} for {what}"
    raise Refused(f"{path} {problem} (it has {there}): name exactly one {' or '.join(names)}")


def _pixels(path: Path, x: np.ndarray) -> np.ndarray:
    """Single precision within [0, 1], a copy: each number by itself, as the type of the array says."""
    if x.dtype.kind not in "biuf":
        raise Refused(f"{path}: x holds {x.dtype}: give whole numbers from 0 to 255, or fractions within [0, 1]")
    most = 255 if x.dtype.kind in "iu" else 1
    scaled = np.empty(x.shape, np.float32)
    for first in range(0, len(x), PIECE):
        part = x[first : first + PIECE]
        if x.dtype.kind == "f":
            part = np.clip(np.nan_to_num(part, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
        elif x.dtype.kind in "iu":
            part = np.clip(part, 0, min(255, np.iinfo(x.dtype).max))
        scaled[first : first + PIECE] = part
    return np.divide(scaled, np.float32(255), out=scaled) if most == 255 else scaled


def _labels(path: Path, y: np.ndarray, records: int, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The places of the classes, and which labels are of a declared class; the others are 0.

    Where all names of classes are whole numbers, as in `--classes 1,2`, labels are compared with the names. Otherwise
    label k is the class at place k, counted from 0.
    """
    if y.shape != (records,):
        raise Refused(f"{path}: y has shape {y.shape} for {records} images: give one label for each")
    if y.dtype.kind not in "biu":
        raise Refused(f"{path}: y holds {y.dtype}: give labels as whole numbers, such as 0 to {len(classes) - 1}")
    numbered = all(re.fullmatch("-?[0-9]{1,9}", name) for name in classes)
    numbers = [int(name) for name in classes] if numbered else list(range(len(classes)))
    if len(set(numbers)) < len(numbers):  # 01 and 1
        numbers = list(range(len(classes)))
    places, known = np.zeros(records, np.float32), np.zeros(records, bool)
    for place, number in enumerate(numbers):
        places[y == number] = place
        known |= y == number
    return places, known


def _folder(path: Path, classes: tuple[str, ...] | None, shape: tuple[int, ...] | None, empty: bool) -> Read:
    files = list(_files(path, classes, declared=shape is not None))
    if not files and not (empty and shape):
        inside = "in sub-folders named as the classes" if classes else "in it, or in its sub-folders"
        known = "; without any, --shape must say what they would be" if empty else ""
        raise Refused(f"{path} holds no images: put {', '.join(SUFFIXES)} files {inside}{known}")
    if shape is None:
        _refuse_twins(files)
    own = _image(files[0][0]).shape if shape is None else shape
    x, present = np.zeros((len(files), *own), np.uint8), np.array([label is not None for _, label in files], bool)
    for i, (file, _) in enumerate(files):
        image = _image(file) if shape is None else _image_or_none(path, file)
        if shape is None and image is not None and image.shape != own:
            raise Refused(
                f"{file} has shape {image.shape} and {files[0][0]} has {own} (height, width, channels): give images of "
                "one shape, or declare it by --shape"
            )
        if image is None or image.shape != own:
            present[i] = False
        elif present[i]:
            x[i] = image
    y = np.array([label or 0 for _, label in files], np.float32) if classes else np.zeros(0, np.float32)
    y = np.where(present, y, np.float32(0)) if classes else y
    return Read(_pixels(path, x), y, present, [file.relative_to(path).as_posix() for file, _ in files], "file")


def _files(path: Path, classes: tuple[str, ...] | None, *, declared: bool) -> Iterator[tuple[Path, int | None]]:
    """Every image with the place of its class, in the order of names; what is hidden is passed over.

    One in a sub-folder that is no class has none. Where the shape is `declared`, whatever else there is in a sub-folder
    is in its place, to be found absent, and so is an image beside them.
    """
    for entry in _entries(path):
        if not entry.is_dir():
            if entry.suffix.lower() in SUFFIXES and classes is not None and not declared:
                raise Refused(f"{entry} is in no class: move it into a sub-folder that is named as its class")
            if entry.suffix.lower() in SUFFIXES:
                yield entry, 0 if classes is None else None
            continue
        for file in _entries(entry):
            if not declared and (file.suffix.lower() not in SUFFIXES or not file.is_file()):
                raise Refused(f"{file} is no image that can be read: move it away, or give {', '.join(SUFFIXES)}")
            named = 0 if classes is None else classes.index(entry.name) if entry.name in classes else None
            yield file, named


def _refuse_twins(files: list[tuple[Path, int | None]]) -> None:
    whole: dict[Path, Path] = {}
    for file, _ in files:
        try:
            real = file.resolve()
        except (OSError, RuntimeError):  # a link that leads to itself
            raise Refused(f"{file} is a link that leads nowhere: move it away") from None
        if real in whole:
            raise Refused(f"{file} is the same file as {whole[real]}: keep one, since one person may count once")
        whole[real] = file


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def _image_or_none(path: Path, file: Path) -> np.ndarray | None:
    """The image, or None where there is none: by this file alone, whatever the others are."""
    try:
        if file.suffix.lower() not in SUFFIXES or not file.is_file():  # to open a pipe would wait for ever
            return None
        home, real = path.resolve(), file.resolve()
        if real.is_relative_to(home) and real != home / file.relative_to(path):  # another's, which counts there
            return None
        return _image(file)
    except (Refused, OSError, RuntimeError):
        return None


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
