"""What is public about images: their shape and their classes, in the place of a table's schema.

The classes are declared and never read from the labels: that somebody has a rare one is about that person.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from confide.data.schema import Column
from confide.validation import Refused

PICTURES = "images.json"
TARGET = "class"


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What is public about images, in the place of a table's schema.

    Attributes:
        shape: (height, width, channels), or (columns,) of rows that are no images.
        classes: their names; the label k is the class at place k.
        flattened: whether the model sees an image as a row of numbers.
    """

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    flattened: bool
    target: ClassVar[str] = TARGET
    learnt: ClassVar[tuple[str, ...]] = ()

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bound(self) -> float:
        """The largest norm of a row, with the constant of the intercept."""
        return math.sqrt(self.numbers + 1)

    @property
    def columns(self) -> tuple[Column, ...]:
        what = "pixels" if len(self.shape) == 3 else "numbers"
        pixels = Column(name=f"{' x '.join(map(str, self.shape))} {what}", kind="numeric", low=0.0, high=1.0)
        return (pixels, Column(name=TARGET, kind="categorical", categories=self.classes))

    def column(self, name: str) -> Column:
        """The classes as a column to predict: the one that is asked for."""
        return self.columns[-1]

    def describe(self) -> dict[str, Any]:
        """What the plan says of the images."""
        listed = {"labels": list(self.classes), "shape": list(self.shape)}
        return {"target": TARGET, **listed, "norm_bound": self.bound}

    def assumptions(self, declared: bool, folder: bool) -> tuple[str, ...]:
        """Which images the guarantee is about; their shape may have been declared, or is that of what was read."""
        what = "image" if len(self.shape) == 3 else "row of numbers"
        where = "was declared too" if declared else "is that of the first file" if folder else "is the file's"
        others = (
            "whatever else a sub-folder holds counts as absent, and so does a link to another image of the folder"
            if declared
            else "files that cannot be read, or of another shape, are refused"
        )
        refused = f" ({others})" if folder else ""
        return (
            f"Each {what} is one person's; whoever has several is protected for one of them alone.",
            f"The shape of the {what}s and the list of classes are public: the classes were declared by whoever ran "
            f"it, from other knowledge than these labels, and the shape {where}.",
            f"The guarantee is about {what}s of that shape{refused}. Numbers beyond their bounds count as the bounds, "
            f"one that is missing counts as 0, and what belongs to no declared class counts as absent.",
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def load(path: Path) -> Pictures:
    """What `Pictures.to_json` wrote."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Pictures(**record | {name: tuple(record[name]) for name in ("shape", "classes")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{str(path)!r} cannot be read: {error}; restore it") from None


def parse_shape(text: str) -> tuple[int, ...]:
    """The shape in `--shape`: height, width and channels.

    >>> parse_shape("28x28"), parse_shape("32x32x3")
    ((28, 28, 1), (32, 32, 3))
    """
    sides = text.lower().split("x")
    if len(sides) not in (2, 3) or not all(
        side.isascii() and side.isdigit() and 0 < int(side) < 10**6 for side in sides
    ):
        raise Refused(f"--shape {text!r} is no shape of an image: give height x width x channels, such as 32x32x3")
    return (*map(int, sides), *([1] if len(sides) == 2 else []))


def parse_classes(text: str) -> tuple[str, ...]:
    """The names in `--classes`: 'cat,dog', or how many there are, which then have their numbers as names.

    >>> parse_classes("3"), parse_classes("cat, dog")
    (('0', '1', '2'), ('cat', 'dog'))
    """
    names = tuple(name.strip() for name in text.split(","))
    if len(names) == 1 and names[0].isascii() and names[0].isdigit() and int(names[0]) <= 10**6:
        names = tuple(map(str, range(int(names[0]))))
    if len(names) < 2 or "" in names:
        raise Refused(f"--classes {text!r} names no two classes: give how many there are, or names such as cat,dog")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"--classes names {twice!r} twice: keep one")
    return names
