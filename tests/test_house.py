"""The house has floors: a module imports only from the floors above it, and the privacy side never imports JAX.

And it reads well: files, functions and signatures are short, but for a table of exceptions, each with its reason.
"""

import ast
import graphlib
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import confide
from confide.app.cli import app

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


FILE, FUNCTION, PARAMETERS = 310, 60, 8  # lines, lines without the docstring, parameters below the public surface
TOGETHER = "one thing that is read together; not yet divided"
EXCEPTIONS = {  # what may be longer, by module and name (a signature with brackets), and why
    "app.cli.prices.plan": "half of it says what the options are",
    "data.schema": "what a schema may say, and how it is read and written: one page for who writes a schema",
    "inference.baselines.pate.pate": "a public signature of twenty lines",
    "inference.exact.targets": "a density, and the frame that its chains move in, are read together",
    "inference.loop": TOGETHER,
    "inference.settling": "a rule is read in one place, with the words in which it is told",
    "mechanism.clipping.clipped_sum()": "what a sum is made of, each of it independent of the others",
    "inference.fitting": "one way from the options to a posterior, in the order of the promise",
    "inference.posterior": "what a user does with a posterior, on one page",
    "models.programs": "a program is traced, named and checked by one list of what JAX has",
    "mechanism.clipping": "how a record is shortened, by its own length or by weights, is one way to read",
    "models.families": "all families in one place, so that they can be compared",
    "privacy.planning.plan()": "what `confide.plan` takes for a run by steps",
    "privacy.accountants.bayesian_costs.setting()": "the settings of bayesian_epsilon, each checked where it stands",
}


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function by its name within the module, as `__qualname__` has it but for <locals>."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            name = f"{prefix}{child.name}" if named else prefix.rstrip(".")
            if isinstance(child, ast.FunctionDef):
                yield name, child
            yield from inside(child, f"{name}." if name else "")

    return inside(tree, "")


def lines(function: ast.FunctionDef) -> int:
    """From `def` to the end. A docstring does not count: proofs stay beside the code."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return (function.end_lineno or 0) - function.lineno + 1 - documented * ((first.end_lineno or 0) - first.lineno + 1)


def parameters(function: ast.FunctionDef) -> int:
    """What a caller may give."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in given if argument.arg not in ("self", "cls")])


def surface() -> set[str]:
    """What people call: every public name, and the commands."""
    packages = [confide, *(getattr(confide, name) for name in PUBLIC)]
    things = [getattr(package, name) for package in packages for name in getattr(package, "__all__", ())]
    todo = [typer.main.get_command(app)]
    while todo:
        command = todo.pop()
        todo += getattr(command, "commands", {}).values()
        things.append(inspect.unwrap(command.callback) if command.callback else None)
    named = [thing for thing in things if inspect.isfunction(thing) or inspect.isclass(thing)]
    return {f"{thing.__module__}.{thing.__qualname__}".removeprefix("confide.") for thing in named}


def excess(name: str, source: str, public: set[str]) -> dict[str, str]:
    """What of a module is longer than the house allows, and by how much."""
    found = {}
    if (count := len(source.splitlines())) > FILE:
        found[name] = f"{count} lines in the file, of at most {FILE}"
    for inner, function in functions(ast.parse(source)):
        whole = f"{name}.{inner}"
        if (count := lines(function)) > FUNCTION:
            found[f"{whole}"] = f"{count} lines, of at most {FUNCTION}"
        if (count := parameters(function)) > PARAMETERS and whole.removesuffix(".__init__") not in public:
            found[f"{whole}()"] = f"{count} parameters, of at most {PARAMETERS}"
    return found


def test_files_functions_and_signatures_are_short_but_for_the_exceptions():
    public = surface()
    found = {
        key: said for name, path in MODULES.items() for key, said in excess(name, path.read_text(), public).items()
    }
    assert {key: said for key, said in found.items() if key not in EXCEPTIONS} == {}
    assert sorted(EXCEPTIONS.keys() - found.keys()) == [], "these exceptions are no longer needed"
    assert all(EXCEPTIONS.values())


def test_what_is_too_long_is_seen():
    names = ", ".join(f"a{i}" for i in range(9))
    body = "    x = 1\n" * 59
    short = f"def f(self, {names[4:]}):\n    '''One.\n\n    Two.\n    '''\n{body}"
    assert excess("m", short, set()) == {}
    assert list(excess("m", f"class C:\n  def f({names}): pass\n", set())) == ["m.C.f()"]
    assert excess("m", f"def f({names}): pass\n", {"m.f"}) == {}
    assert list(excess("m", short + "    y = 2\n", set())) == ["m.f"]
    assert list(excess("m", "x = 1\n" * 311, set())) == ["m"]
