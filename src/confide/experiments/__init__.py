"""The papers' figures and tables, one file each: `confide reproduce NAME`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from confide import validation

if TYPE_CHECKING:
    from confide.experiments.reproduction import Reproduction

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
    """The module behind `confide reproduce name`.

    It has `run(quick) -> Reproduction`, or `run(quick, parts)` if it is long and can go on where it was stopped.
    """
    validation.one_of(NAMES, name=name)
    return importlib.import_module(f"confide.experiments.{name.replace('-', '_')}")


def reproduce(name: str, out: Path, quick: bool = False) -> tuple[Reproduction, list[Path]]:
    """Run one and write its files into the folder; parts that an earlier process left there are not measured again."""
    from confide.experiments.parts import Parts
    from confide.experiments.reproduction import make_folder

    module = load(name)
    make_folder(out)
    parts, before = Parts(out / f"{name}-parts", quick), _cpu_seconds()
    resumable: dict[str, Any] = {"parts": parts} if "parts" in inspect.signature(module.run).parameters else {}
    with _compilation(quick):
        result = module.run(quick=quick, **resumable)
    paths = result.write(out, quick, (parts.earlier_seconds() + _cpu_seconds() - before) / 60)
    parts.clear()
    return result, paths


@contextlib.contextmanager
def _compilation(quick: bool) -> Iterator[None]:
    """Small programs take longer to optimise than to run."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", quick or before)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])
