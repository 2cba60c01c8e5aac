"""The records of a run, from a table or from images, as its model sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide import encoding, picture_files, pictures, schema, tables
from confide.checks import Refused
from confide.pictures import Pictures
from confide.posterior import Posterior
from confide.request import Request, chosen_model, picture_model
from confide.schema import Schema

SCHEMA = "schema.toml"


class Prepared(NamedTuple):
    described: Schema | Pictures
    data: tuple[np.ndarray, np.ndarray]


def prepared(request: Request) -> Prepared:
    """The records as the model will see them; refused where it could not learn from them."""
    images = pictures.recognised(Path(request.data))
    described, (x, y) = _pictures(request) if images else _table(request)
    target = described.column(described.target)
    if not len(x):
        raise Refused(f"{request.data}: every record has a missing value and is dropped: change the schema's policy")
    if target.labels and len(np.unique(y)) < 2:
        label = target.labels[int(y[0])]
        what, where = ("the class", "image") if images else (f"column {target.name!r}", "record")
        raise Refused(
            f"{request.data}: {what} is {label!r} in every {where}: there is nothing to tell apart; check the target"
        )
    return Prepared(described, (x, y))


def _pictures(request: Request) -> Prepared:
    """Images, and what is public about them."""
    given = {
        "--schema": request.schema,
        "--target": request.target,
        "--noise-scale": request.noise_scale,
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
    found = picture_files.read(Path(request.data), classes)
    flattened = picture_model(request, found.shape, len(classes)) != "cnn"
    described = Pictures(shape=found.shape, classes=classes, flattened=flattened)
    chosen_model(described, request)  # refused where the images are too small for it
    return Prepared(described, (picture_files.seen(described, found.x), found.y))


def _table(request: Request) -> Prepared:
    """A table's records, as its schema encodes them."""
    if request.schema is None:
        raise Refused("a table needs --schema: 'confide schema init' drafts one")
    if request.classes is not None:
        raise Refused("--classes is for images, and a table's are in its schema: leave it out")
    described = schema.loads(request.schema, SCHEMA).aimed(request.target)
    if described.learnt and not request.accept_learnt:
        raise Refused(
            f"the schema was filled in from the data (learnt = true in {', '.join(described.learnt)}), and no epsilon "
            "counts that: replace the values by public ones and remove the mark, or give --accept-learnt-schema"
        )
    dropping = [column.name for column in described.used if column.missing == "drop"]
    if dropping and request.neighbours == "replace-one":
        raise Refused(
            f"missing = 'drop' in {dropping[0]!r} makes the number of records depend on single values, which "
            "--neighbours replace-one does not allow: use 'indicator', or add-remove"
        )
    model = chosen_model(described, request)
    table = tables.open_table(request.data, request.delimiter, request.encoding)
    x, y, _ = encoding.encode_table(described, table, count=model.name == "poisson_regression")
    return Prepared(described, (x, y))


def records(
    posterior: Posterior,
    described: Any,
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    text_encoding: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The records of a file with their outcomes, as the model of a run sees them."""
    if isinstance(described, Pictures):
        tables_alone(delimiter, text_encoding)
        return picture_files.encoded(described, Path(path))[:2]
    table = tables.open_table(path, delimiter, text_encoding)
    x, y, _ = encoding.encode_table(described, table, count=posterior.plan["model"] == "poisson_regression")
    if not len(x):
        raise Refused(f"{table.path}: every row has a missing value and is dropped: there is nothing to look at")
    return x, y


def tables_alone(delimiter: str | None, text_encoding: str | None, keep: Sequence[str] = ()) -> None:
    """Refuse, for images, what is about tables."""
    for option, value in (("--delimiter", delimiter), ("--encoding", text_encoding), ("--keep", keep or None)):
        if value is not None:
            raise Refused(f"{option} is for tables, and this run is of images: leave it out")
