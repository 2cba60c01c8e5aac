"""The ways through the modules, recorded while they are walked: `make walk`, or `python docs/walk.py`.

- The way of a row: every module of which a function runs in `confide fit` on a table of ten rows.
- One noisy gradient: every module of which a function runs while JAX traces one step of the run.

Modules come in the order in which they are entered first. The body of a module is its import, not a step on the way:
what runs there does not count, nor does `confide/__init__.py`, which does nothing but import. `validation` and
`privacy` are listed apart, because no row comes there: they refuse and price by sizes and settings.

A row is read (`data`), described (`models`), learnt from (`mechanism`, `samplers` and `inference`, which take turns at
each step) and written (`app`). Its way goes back up where a module of an earlier stage is entered for the first time
after a later stage was entered and left. A stage is left when none of its functions runs any more, in any thread: who
waits for an answer, as `app` does for a table and `inference` for a noisy sum, has not gone on.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest import mock

import confide

SOURCE = Path(confide.__file__).parent
APART = ("validation", "privacy")  # floors where no row comes
STAGES = (("data",), ("models",), ("mechanism", "samplers", "inference"), ("audits", "experiments", "app"))
STAGE = {floor: stage for stage, floors in enumerate(STAGES) for floor in floors}
LONGEST = 20  # modules on a row's way
WIDEST = 7  # files of one noisy gradient
STEP = ("inference.loop", "_advance")  # the function that is traced
TABLE = "age,smoker,ill\n" + "".join(
    f"{age},{smoker},{ill}\n"
    for age, smoker, ill in zip(range(25, 75, 5), ["yes", "no"] * 5, ["no", "no", "yes", "no", "yes"] * 2, strict=True)
)
SCHEMA = """\
target = "ill"

[columns.age]
kind = "numeric"
low = 18
high = 90

[columns.smoker]
kind = "boolean"

[columns.ill]
kind = "boolean"
"""


class Entry(NamedTuple):
    """A module that was entered, and whether the walk went back up to it."""

    module: str  # below confide
    back: bool

    @property
    def floor(self) -> str:
        return self.module.partition(".")[0]


class Walk:
    """What is entered, in order; while a function of a module runs, where `within` names one."""

    def __init__(self, within: tuple[str, str] | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.within = within
        self._inside = 0  # calls of `within` that run
        self._running: Counter[int] = Counter()  # functions, by stage
        self._imports = threading.local()

    @property
    def path(self) -> list[Entry]:
        """Without the floors where no row comes."""
        return [entry for entry in self.entries.values() if entry.floor not in APART]

    @property
    def apart(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.floor in APART]

    @property
    def back(self) -> list[Entry]:
        return [entry for entry in self.path if entry.back]

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """What `sys.setprofile` calls."""
        module = _module(frame.f_code.co_filename) if event in ("call", "return") else None
        if module is None:
            return
        change = 1 if event == "call" else -1
        if frame.f_code.co_qualname in ("<module>", "__getattr__"):  # the latter imports what a package names
            self._imports.depth = getattr(self._imports, "depth", 0) + change
        elif not getattr(self._imports, "depth", 0):
            self.note(module, frame.f_code.co_name, change)

    def note(self, module: str, function: str, change: int) -> None:
        """A function of the module begins (1) or ends (-1)."""
        if self.within == (module, function):
            self._inside += change
        own = STAGE.get(module.partition(".")[0])
        if change == 1 and module not in self.entries and (self.within is None or self._inside):
            left = [stage for stage, running in self._running.items() if not running]
            self.entries[module] = Entry(module, own is not None and any(stage > own for stage in left))
        if own is not None:
            self._running[own] += change


_KNOWN: dict[str, str | None] = {}


def _module(file: str) -> str | None:
    """The module below confide whose file this is."""
    if file not in _KNOWN:
        path = Path(file)
        inside = path.suffix == ".py" and path.is_relative_to(SOURCE)
        parts = path.relative_to(SOURCE).with_suffix("").parts if inside else ()
        _KNOWN[file] = ".".join(part for part in parts if part != "__init__") or None
    return _KNOWN[file]


@contextlib.contextmanager
def recorded(walk: Walk) -> Iterator[Walk]:
    """All that runs meanwhile, in this thread and in those that it starts."""
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def row() -> Walk:
    """`confide fit` on ten rows."""
    from confide.app import cli

    with tempfile.TemporaryDirectory() as folder:
        data, schema, out = (Path(folder) / name for name in ("table.csv", "schema.toml", "run"))
        data.write_text(TABLE)
        schema.write_text(SCHEMA)
        words = ["fit", str(data), "--schema", str(schema), "--epsilon", "1", "--delta", "1e-5", "--out", str(out)]
        said = io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["confide", *words]),
            mock.patch.dict(os.environ, CONFIDE_STATE=str(Path(folder) / "state")),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            contextlib.suppress(SystemExit),
            recorded(Walk()) as walk,
        ):
            cli.main()
        assert (out / "posterior.nc").is_file(), said.getvalue()
    return walk


def step() -> Walk:
    """The trace of a step of sgld on batches of a logistic regression."""
    import numpy as np

    x = np.linspace(-1, 1, 200).reshape(100, 2)
    y = (np.arange(100) % 3 == 0).astype(int)
    model, budget = confide.models.logistic_regression(2), confide.Budget(epsilon=1.0, delta=1e-5)
    with recorded(Walk(within=STEP)) as walk:
        confide.fit(
            model, (x, y), budget=budget, sampler=confide.sgld(), steps=20, batch_size=20, progress=False, verbose=False
        )
    return walk


def text(title: str, walk: Walk, bar: int) -> str:
    """The walk as text; ^ is where it goes back up."""
    lines = [f"{title}:", ""]
    for place, entry in enumerate(walk.path, 1):
        inner = entry.module.partition(".")[2] or "__init__"
        lines.append(f"{place:4}  {'^' if entry.back else ' '} {entry.floor:12} {inner}")
    back = f"{len(walk.back)} times back up (^)" if walk.back else "never back up"
    lines += ["", f"{len(walk.path)} modules, of at most {bar}; {back}."]
    if walk.apart:
        found = ", ".join(entry.module for entry in walk.apart)
        count = f"{len(walk.apart)} where no row comes, {len(walk.entries)} in all"
        lines += textwrap.wrap(f"Beside it {count}: {found}.", 88)
    return "\n".join(lines) + "\n"


WALKS: dict[str, Callable[[], str]] = {
    "row": lambda: text("confide fit on a table of ten rows", row(), LONGEST),
    "step": lambda: text("One noisy gradient, as a step is traced", step(), WIDEST),
}


def block(name: str, walk: str) -> str:
    """The walk as a page shows it."""
    return f"<!-- walk: {name} -->\n```text\n{walk}```\n<!-- /walk -->\n"


def updated(page: str) -> str:
    """The page, with its walks as they are now."""
    for name, walk in WALKS.items():
        page = re.sub(rf"<!-- walk: {name} -->\n.*?<!-- /walk -->\n", block(name, walk()), page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    print("\n".join(walk() for walk in WALKS.values()), end="")
