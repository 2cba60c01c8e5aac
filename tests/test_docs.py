"""The documents are true: every command and every example in the README runs, and the changelog keeps its form."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line.startswith("confide ")
]


def test_there_are_examples():
    assert COMMANDS
    assert any(kind == "python" for kind, _ in BLOCKS)


def test_commands_in_the_readme_run_in_order(tmp_path):
    for command in COMMANDS:
        arguments = shlex.split(command, comments=True)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "confide", *arguments], capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("block", [block for kind, block in BLOCKS if kind == "python"])
def test_python_in_the_readme_gives_what_it_says(block, tmp_path, monkeypatch):
    """A comment after an expression is the value that it shows, to the digits given."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for line in block.strip().splitlines():
        statement, _, said = line.partition("  # ")
        if said and re.fullmatch(r"-?[\d.]+(e-?\d+)?", said):
            value = eval(statement, names)
            digits = len(said.split("e")[0].replace("-", "").replace(".", "").lstrip("0"))
            assert f"{value:.{digits}g}" == f"{float(said):.{digits}g}", line
        else:
            exec(statement, names)


def test_the_example_runs(tmp_path):
    example = ROOT / "examples" / "patients.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verified at epsilon" in done.stdout


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
        "dist",
        "reproductions",
        ".hypothesis",
        ".ruff_cache",
        ".jax_cache",
        "__pycache__",
    }
    files = [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not skipped & set(path.relative_to(ROOT).parts) and ".egg-info" not in str(path)
    ]
    assert len(files) > 40
    hosts = "|".join(name + dot for name, dot in (("pypi", r"\."), ("pythonhosted", r"\."), ("npmjs", r"\.")))
    homes = "|".join(("work", "root", "home", "Users"))
    forbidden = re.compile(rf"({hosts})|(?<![\w./])/({homes})/")
    for path in files:
        assert not forbidden.search(path.read_text()), path
