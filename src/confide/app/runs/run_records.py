"""What the records of a run are; those of images, and those that a finished run is looked at with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide.app.runs import choices
from confide.app.runs.options import Request
from confide.data import encoding, image_files, tables
from confide.data.image_schema import Pictures
from confide.data.schema import Schema
from confide.inference.posterior import Posterior
from confide.models import families
from confide.validation import Refused


class Prepared(NamedTuple):
    """What a run is fitted to. All that is decided before the mechanism comes from `described` and `records`."""

    described: Schema | Pictures
    data: tuple[np.ndarray, np.ndarray]  # a row for each row of the file
    present: np.ndarray  # (rows,): False where a record counts as absent
    records: int  # declared, or how many rows the file has


def read_images(request: Request) -> Prepared:
    """Images, and what is public about them."""
    given = {
        "--schema": request.schema,
        "--target": request.target,
        "--noise-scale": request.noise_scale,
        "--dispersion": request.dispersion,
        "--prior": request.prior,
        "--priors": request.priors,
        "--delimiter": request.delimiter,
        "--encoding": request.encoding,
        "--accept-learnt-schema": request.accept_learnt or None,
    }
    if stray := next((option for option, value in given.items() if value is not None), None):
        raise Refused(f"{stray} is for tables, and {request.data!r} is read as images: leave it out")
    if request.classes is None:
        raise Refused(
            "images need --classes, how many there are or their names (cat,dog): they are public, and not read from "
            "the labels"
        )
    classes = tuple(request.classes)
    shape = None if request.shape is None else tuple(request.shape)
    found = image_files.read(Path(request.data), classes, shape, empty=request.records is not None)
    flattened = choices.word_for_images(found.shape, len(classes), request) != "cnn"
    described = Pictures(shape=found.shape, classes=classes, flattened=flattened)
    choices.build_model(described, request)  # refused where the images are too small for it
    return Prepared(described, (image_files.as_model_input(described, found.x), found.y), found.present, len(found.x))


def records(
    posterior: Posterior,
    described: Any,
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    text_encoding: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The records of a file with their outcomes, as the model of a run sees them, without those that are absent."""
    if isinstance(described, Pictures):
        tables_alone(delimiter, text_encoding)
        found = image_files.encode(described, Path(path))
        x, y, present = found.x, found.y, found.present
    else:
        table = tables.open_table(path, delimiter, text_encoding)
        count = families.outcome(posterior.plan["model"]) == "count"
        x, y, present = encoding.encode_table(described, table, count=count)
    if not present.any():
        raise Refused(f"{path}: every row has a missing value and counts as absent: there is nothing to look at")
    return x[present], y[present]


def tables_alone(delimiter: str | None, text_encoding: str | None, keep: Sequence[str] = ()) -> None:
    """Refuse, for images, what is about tables."""
    for option, value in (("--delimiter", delimiter), ("--encoding", text_encoding), ("--keep", keep or None)):
        if value is not None:
            raise Refused(f"{option} is for tables, and this run is of images: leave it out")
