"""The ways through the modules are short: counted while `confide fit` runs and while a step is traced."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("walk", ROOT / "docs" / "walk.py")
assert SPEC is not None
assert SPEC.loader is not None
WALK = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = WALK
SPEC.loader.exec_module(WALK)


@pytest.fixture(scope="module")
def walks() -> dict[str, str]:
    """What `make walk` prints, in a process of its own: what is compiled or cached is not entered again."""
    done = subprocess.run([sys.executable, ROOT / "docs" / "walk.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    parts = re.split(r"\n(?=\S.*:\n\n)", done.stdout)
    return dict(zip(WALK.WALKS, parts, strict=True))


def modules(text: str) -> list[str]:
    return re.findall(r"^ +\d+  [ ^] (\S+ +\S+)$", text, re.MULTILINE)


@pytest.mark.long
@pytest.mark.xfail(strict=True, reason="30 modules: at 300 lines a file, what runs takes more than 20 files")
def test_a_row_passes_few_modules(walks):
    assert 0 < len(modules(walks["row"])) <= 20


@pytest.mark.long
def test_a_row_never_goes_back_up(walks):
    assert "never back up" in walks["row"]


@pytest.mark.long
def test_a_table_passes_few_modules_before_its_model_and_no_image_code(walks):
    found = [tuple(line.split()) for line in modules(walks["row"])]
    assert [module for floor, module in found if floor == "data"] == [
        "schema",
        "tables",
        "encoding",
        "cells",
        "model_words",
        "features",
    ]
    assert sum(floor == "app" for floor, _ in found) <= 4


@pytest.mark.long
def test_one_noisy_gradient_is_in_few_files(walks):
    assert 0 < len(modules(walks["step"])) <= 7


@pytest.mark.long
def test_the_walks_are_of_a_run_and_of_a_step(walks):
    row, step = (" ".join(modules(walks[name])) for name in ("row", "step"))
    for floor in ("data", "models", "mechanism", "samplers", "inference", "app"):
        assert f"{floor} " in row
    assert re.search(r"mechanism +noise", step)
    assert re.search(r"samplers +sgld", step)
    assert "app" not in step


@pytest.mark.long
@pytest.mark.parametrize("name", list(WALK.WALKS))
def test_the_page_shows_the_walks_as_they_are(name, walks):
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert WALK.block(name, walks[name]) in page, "docs/architecture.md is out of date: run 'make docs'"


def walked(*calls: tuple[str, int], within: tuple[str, str] | None = None):
    walk = WALK.Walk(within)
    for module, change in calls:
        walk.note(module, "function", change)
    return walk


def test_who_waits_for_an_answer_has_not_gone_on():
    walk = walked(("app.cli", 1), ("data.tables", 1), ("data.tables", -1), ("inference.fit", 1), ("models.glm", 1))
    assert [entry.module for entry in walk.path] == ["app.cli", "data.tables", "inference.fit", "models.glm"]
    assert walk.back == []


def test_a_stage_that_was_left_makes_a_way_back():
    walk = walked(("app.cli", 1), ("models.glm", 1), ("models.glm", -1), ("data.tables", 1))
    assert [entry.module for entry in walk.back] == ["data.tables"]


def test_a_second_entry_and_a_price_are_no_way_back():
    walk = walked(("data.schema", 1), ("data.schema", -1), ("inference.fit", 1), ("inference.fit", -1))
    for module in ("data.schema", "privacy.ledger"):
        walk.note(module, "function", 1)
    assert walk.back == []
    assert [entry.module for entry in walk.apart] == ["privacy.ledger"]


def test_only_what_runs_within_a_function_counts_where_one_is_named():
    calls = [("models.glm", 1), ("models.glm", -1), ("inference.loop", 1), ("mechanism.noise", 1)]
    walk = walked(*calls, within=("inference.loop", "function"))
    assert [entry.module for entry in walk.path] == ["inference.loop", "mechanism.noise"]
    walk = walked(
        *calls[:2], ("inference.loop", 1), ("inference.loop", -1), calls[3], within=("inference.loop", "function")
    )
    assert [entry.module for entry in walk.path] == ["inference.loop"]


def test_functions_count_and_imports_do_not():
    with WALK.recorded(WALK.Walk()) as walk:
        from confide.data import schema

        schema.toml_key("age")
    assert [entry.module for entry in walk.path] == ["data.schema"]
