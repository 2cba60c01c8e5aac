"""The papers' figures and tables, one file each: `confide reproduce NAME`."""

from __future__ import annotations

import importlib
from types import ModuleType

from confide import validation

NAMES = (
    "li2019-figure1",
    "li2019-figure2",
    "li2019-figure3",
    "li2019-gan",
    "li2019-table1",
    "triastcyn2020-figure1",
    "triastcyn2020-figure2",
    "triastcyn2020-figure3",
    "triastcyn2020-figure4",
    "triastcyn2020-figure5",
    "triastcyn2020-table1",
    "wang2015-figure1",
    "wu2020-table1",
    "wu2020-table2",
)


def load(name: str) -> ModuleType:
    """The module behind `confide reproduce name`; it has `run(quick) -> Reproduction`."""
    validation.one_of(NAMES, name=name)
    return importlib.import_module(f"confide.experiments.{name.replace('-', '_')}")
