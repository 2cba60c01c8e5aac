"""The documents are true: every command and every example in them runs, the reference is current, the site builds."""

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from confide import experiments
from confide.app import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
STATELESS = ("confide plan", "confide account")  # once is enough
ELSEWHERE = ("confide reproduce", "confide demo")  # run by tests of their own
SEEN: set[str] = set()


def loaded(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = loaded(DOCS / "generate.py")
RESULTS = loaded(DOCS / "results_page.py")


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(language, title, text) of every fenced block."""
    found = re.findall(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [(kind, title, text) for kind, title, text in found]


def commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("confide ")]


def evaluated(block: str, names: dict) -> None:
    """Run a block; a comment after an expression is the value that it shows, a number to the digits given."""
    lines = block.splitlines()
    for node in ast.parse(block).body:
        said = lines[(node.end_lineno or 1) - 1].partition("  # ")[2].strip()
        value_said = re.fullmatch(r"-?[\d.]+(e-?\d+)?|True|False|'.*'", said) if isinstance(node, ast.Expr) else None
        if value_said is None:
            exec(compile(ast.Module([node], []), "<docs>", "exec"), names)
            continue
        assert isinstance(node, ast.Expr)
        value = eval(compile(ast.Expression(node.value), "<docs>", "eval"), names)
        if said[0] in "TF'":
            assert value == ast.literal_eval(said), f"{lines[node.lineno - 1]} gives {value!r}"
            continue
        digits = len(said.split("e")[0].replace("-", "").replace(".", "").lstrip("0"))
        assert f"{value:.{digits}g}" == f"{float(said):.{digits}g}", f"{lines[node.lineno - 1]} gives {value!r}"


def called(command: str, monkeypatch) -> None:
    """Run a command in this process; '# refused' after it says that it must be."""
    monkeypatch.setattr(sys, "argv", ["confide", *shlex.split(command, comments=True)[1:]])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    expected = 2 if command.partition(" # ")[2].startswith("refused") else 0
    assert (stopped.value.code or 0) == expected, command


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page.stem in ("how-to", "errata", "tutorial") else [])
        for page in PAGES
    ],
    ids=lambda page: page.stem,
)
def test_examples_run_in_order(page, tmp_path, monkeypatch):
    """Blocks of a page continue one another; a block with a title is the file of that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    names: dict = {}
    for kind, title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text)
        elif kind == "python":
            evaluated(text, names)
        elif kind == "sh":
            for command in commands(text):
                if not command.startswith(ELSEWHERE) and command not in SEEN:
                    called(command, monkeypatch)
                    SEEN.update([command] if command.startswith(STATELESS) else [])


def test_there_are_examples():
    kinds = [kind for page in PAGES for kind, _, _ in blocks(page)]
    assert kinds.count("python") > 5
    assert kinds.count("sh") > 5


def test_every_command_in_the_documents_parses():
    known = dict(GENERATE.program())
    found = [command for page in PAGES for kind, _, text in blocks(page) if kind == "sh" for command in commands(text)]
    assert len(found) > 10
    for command in found:
        words = shlex.split(command, comments=True)
        size = max(size for size in range(1, len(words) + 1) if " ".join(words[:size]) in known)
        name = " ".join(words[:size])
        assert not hasattr(known[name], "commands"), command
        known[name].make_context(name, words[size:])  # refuses what it does not know


def test_a_block_that_says_the_wrong_value_is_caught():
    evaluated("x = 2\nx * 1.5  # 3.0\n", {})
    with pytest.raises(AssertionError):
        evaluated("x = 2\nx * 1.5  # 3.1\n", {})


def exists(name: str) -> bool:
    """Whether a file, or a name of Python's, is there."""
    if "/" in name:
        return (ROOT / name).exists()
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[size:])
    return False


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "src").rglob("*.py"))], ids=lambda path: path.name)
def test_every_file_and_every_name_that_is_mentioned_is_there(path):
    text = path.read_text()
    files = re.findall(r"\b(?:src|tests|benchmarks|docs)/[\w/-]+(?:\.\w+)?", text)
    names = re.findall(r"`(confide(?:\.\w+)+)[`(]", text)
    assert [name for name in files + names if not exists(name.rstrip("/"))] == []


def test_what_is_not_there_is_noticed():
    assert exists("src/confide/validation.py")
    assert not exists("src/confide/checks.py")
    assert exists("confide.privacy.budget.belief")
    assert not exists("confide.budget.belief")


@pytest.mark.parametrize("file", list(GENERATE.PAGES))
def test_the_reference_is_current(file):
    committed = (DOCS / "reference" / file).read_text()
    assert committed == GENERATE.PAGES[file](), f"docs/reference/{file} is out of date: run 'make docs'"


def test_the_results_are_current():
    assert RESULTS.PAGE.read_text() == RESULTS.page(), "docs/results.md is out of date: run 'make docs'"


def test_every_figure_and_table_of_the_papers_was_run_in_full():
    assert [name for name in experiments.NAMES if RESULTS.made(name) is None] == []


def test_the_results_have_a_section_for_every_reproduction_and_say_what_was_not_run(tmp_path):
    kept, empty = RESULTS.page(), RESULTS.page(tmp_path)
    for name in experiments.NAMES:
        for page in (kept, empty):
            assert page.count(f" {{ #{name} }}\n") == 1
        command = f"Not run in full yet: `confide reproduce {name} --out docs/results`"
        assert command in empty
        assert (command in kept) == (RESULTS.made(name) is None)
    quick = {"quick": True, "command": "", "cpu_minutes": 1.0, "date": "", "version": ""}
    (tmp_path / f"{experiments.NAMES[0]}.json").write_text(json.dumps(quick))
    assert RESULTS.page(tmp_path) == empty


def test_every_command_is_in_the_reference_and_has_help():
    text = (DOCS / "reference" / "cli.md").read_text()
    for name, command in GENERATE.program():
        assert f" {name} {{" in text
        assert command.help or name == "confide"
        assert all(parameter.help for parameter in command.params), name


@pytest.mark.long
def test_the_site_builds_without_warnings_and_without_the_network(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES) - 2
    for page in pages:
        fetched = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^\s>]+", page.read_text())
        assert not fetched, page


def test_the_changelog_puts_privacy_first():
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        headings = re.findall(r"^### (.+)$", release, flags=re.MULTILINE)
        assert headings[0] == "Privacy"


def test_the_project_speaks_of_itself_alone():
    """No absolute path of a machine, and no host of a package registry, in any file of the project."""
    skipped = {
        ".git",
        ".venv",
        "build",
        "confide-demo",
        "dist",
        "reproductions",
        "site",
        ".hypothesis",
        ".ruff_cache",
        ".jax_cache",
        "__pycache__",
        "golden",  # databases and arrays
    }
    files = [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not skipped & set(path.relative_to(ROOT).parts) and ".egg-info" not in str(path)
    ]
    files = [path for path in files if not path.relative_to(ROOT).parts[0].startswith(".jax_cache")]
    files = [path for path in files if path.suffix != ".png"]
    assert len(files) > 40
    hosts = "|".join(name + dot for name, dot in (("pypi", r"\."), ("pythonhosted", r"\."), ("npmjs", r"\.")))
    homes = "|".join(("work", "root", "home", "Users"))
    forbidden = re.compile(rf"({hosts})|(?<![\w./])/({homes})/")
    for path in files:
        assert not forbidden.search(path.read_text()), path
