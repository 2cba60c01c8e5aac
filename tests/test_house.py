"""The house has floors: a module imports only from the floors above it, and the privacy side never imports JAX."""

import ast
import graphlib
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import confide

SOURCE = Path(confide.__file__).parent
FLOORS = list(confide.FLOORS)
OUTSIDE = {  # what a floor may import besides Python's own library; any package where it is not named
    "validation": {"numpy"},
    "privacy": {"numpy", "scipy", "dp_accounting"},
    "data": {"numpy", "pyarrow", "PIL", "sklearn", "scipy"},
}
PUBLIC = ("accountants", "events", "baselines", "features", "data", "audits", "models", "calibration")


def modules() -> dict[str, Path]:
    """Every module by its name below `confide`; a folder is its `__init__`."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in ("", "__main__"):
            found[name] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if name.removeprefix("confide.") in MODULES}
            found |= modules | ({node.module or ""} if names - modules else set())
    return found


def ours(path: Path) -> set[str]:
    return {name.removeprefix("confide.") for name in imports(path) if name.startswith("confide.")}


def upward(name: str, path: Path, floors: list[str]) -> list[str]:
    """What a module imports from floors below its own."""
    own = floors.index(name.split(".")[0])
    return sorted(found for found in ours(path) if floors.index(found.split(".")[0]) > own)


def test_the_floors_are_what_the_folder_holds():
    entries = {path.stem for path in SOURCE.iterdir() if path.name[0] not in "._" and path.suffix in ("", ".py")}
    assert entries == set(FLOORS)


@pytest.mark.parametrize("name", MODULES)
def test_imports_only_from_floors_above(name):
    assert upward(name, MODULES[name], FLOORS) == []


def test_an_import_that_points_upward_is_seen(tmp_path):
    (tmp_path / "ledger.py").write_text("from confide.inference import loop\n")
    assert upward("privacy.ledger", tmp_path / "ledger.py", FLOORS) == ["inference.loop"]


@pytest.mark.parametrize("floor", FLOORS)
def test_no_modules_of_a_floor_import_one_another_in_a_circle(floor):
    own = {name: path for name, path in MODULES.items() if name.split(".")[0] == floor}
    graph = {name: {found for found in ours(path) if found in own and found != name} for name, path in own.items()}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] in OUTSIDE])
def test_a_promise_rests_on_few_packages(name):
    outside = {found.split(".")[0] for found in imports(MODULES[name])} - {"confide", ""} - set(sys.stdlib_module_names)
    assert outside <= OUTSIDE[name.split(".")[0]]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_paths_work_after_a_bare_import(name):
    """By attribute, with all of their modules, and by import statements, to the same module."""
    package = getattr(confide, name)
    inner = [found.name for found in pkgutil.iter_modules(getattr(package, "__path__", []))]
    statements = [f"confide.{name}", *(f"confide.{name}.{module}" for module in inner)]
    program = "import confide\n" + "\n".join(statements) + f"\nimport confide.{name} as again\n"
    program += f"assert again is confide.{name}\nfrom confide.{name} import *\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    for module in inner:
        found = importlib.import_module(f"confide.{name}.{module}")
        assert found is importlib.import_module(f"{package.__name__}.{module}")


def test_every_public_name_is_there():
    for name in confide.__all__:
        assert getattr(confide, name) is not None
