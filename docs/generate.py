"""Write the reference pages from the program itself: `python docs/generate.py`, or `make docs`.

The command line is read from the tree that typer builds, not from its help screens, which change with the width of
the terminal. The Python page is read from signatures and docstrings. A test compares both with the committed files.
The walks in the page on the architecture are written too (`walk`), and the page of results (`results_page`).
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

import confide
from confide.app.cli import app

FOLDER = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by docs/generate.py: run `make docs` after a change, do not edit. -->\n"
# The order of the Python page; what is not listed comes after, by name.
ORDER = [
    "estimators",
    "fitting",
    "posterior",
    "budget",
    "ledger",
    "planning",
    "accounting",
    "calibration",
    "step_sizes",
    "samplers",
]
EVENTS = (
    "GaussianSteps",
    "GaussianSchedule",
    "GaussianRelease",
    "Release",
    "LastIterates",
    "PosteriorSample",
    "BoundedPosteriorSample",
    "NoisyVotes",
    "gaussian",
    "compose",
    "from_json",
)
MORE = {
    "confide.audits": None,
    "confide.models": None,
    "confide.baselines": None,
    "confide.events": EVENTS,
    "confide.data": None,
    "confide.features": None,
}


def commands(command: Any, path: tuple[str, ...] = ("confide",)) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups included, in the order of the program."""
    yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def program() -> list[tuple[str, Any]]:
    return list(commands(typer.main.get_command(app)))


def cli() -> str:
    """The page of the command line."""
    parts = [
        NOTICE,
        "# Command line\n",
        "Every command, argument and option, read from the program by `docs/generate.py`. `confide COMMAND --help` "
        "shows the same in a terminal. A refusal is one line on standard error that says what was wrong and what to "
        "do, and exit code 2. An audit that refutes a run's claim has exit code 3.\n",
    ]
    found = program()
    rows = [[f"[`{name}`](#{name.replace(' ', '-')})", _first_line(c.help)] for name, c in found if not _group(c)]
    parts.append(_table(["command", ""], rows))
    for name, command in found:
        level = "##" if len(name.split()) <= 2 else "###"
        parts.append(f"{level} {name} {{ #{name.replace(' ', '-')} }}\n")
        parts.append(_paragraphs(command.help))
        parameters = [p for p in command.params if not getattr(p, "hidden", False)]
        if not _group(command):
            parts.append(f"```text\n{_usage(name, parameters)}\n```\n")
        if parameters:
            parts.append(_table(["", "value", "default", "meaning"], [_row(command, p) for p in parameters]))
    return "\n".join(parts)


def _group(command: Any) -> bool:
    return hasattr(command, "commands")


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _usage(name: str, parameters: list[Any]) -> str:
    """The shortest call: arguments, then what must be given."""
    shown = [name, *(p.name.upper() for p in parameters if _is_argument(p) and p.required)]
    shown += [f"{p.opts[0]} {p.name.upper()}" for p in parameters if not _is_argument(p) and p.required]
    return " ".join(shown) + (" [options]" if any(not _is_argument(p) and not p.required for p in parameters) else "")


def _row(command: Any, parameter: Any) -> list[str]:
    names = parameter.name.upper() if _is_argument(parameter) else ", ".join(parameter.opts)
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default in (None, False, ""):
        shown = ""
    else:
        shown = f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
    value = "" if getattr(parameter, "is_flag", False) else _kind(command, parameter)
    return [f"`{names}`", value, shown, " ".join((parameter.help or "").split())]


def _kind(command: Any, parameter: Any) -> str:
    """What a value is, in a word, from the annotation of the function behind the command."""
    annotation = str(typing.get_type_hints(inspect.unwrap(command.callback)).get(parameter.name, ""))
    words = {"int": "whole number", "float": "number", "Path": "path", "str": "text"}
    return next((word for kind, word in words.items() if re.search(rf"\b{kind}\b", annotation)), "")


def python() -> str:
    """The page of the library."""
    parts = [
        NOTICE,
        "# Python\n",
        "Every public name, read from signatures and docstrings by `docs/generate.py`; `help(confide.fit)` shows the "
        "whole docstring. What is wrong is refused with `confide.Refused`, a `ValueError` of one line.\n",
    ]
    homes: dict[str, list[str]] = {}
    for name in confide.__all__:
        homes.setdefault(_home(name), []).append(name)
    ranks = {f"confide.{name}": rank for rank, name in enumerate(ORDER)}
    for home in sorted(homes, key=lambda home: (ranks.get(home, len(ranks)), home)):
        parts += [_module(home), *(_entry("confide", name, getattr(confide, name)) for name in homes[home])]
        parts += _more(home, homes[home]) if home in MORE else []
    for home in MORE:
        parts += [] if home in homes else [_module(home), *_more(home, [])]
    return "\n".join(parts)


def _more(home: str, known: list[str]) -> list[str]:
    """What is public in a module, but not by the short name that is known already."""
    module = importlib.import_module(home)
    return [_entry(home, name, getattr(module, name)) for name in MORE[home] or module.__all__ if name not in known]


def _module(home: str) -> str:
    return f"## {home}\n\n" + _paragraphs(_first_paragraph(importlib.import_module(home)))


def _home(name: str) -> str:
    parts = getattr(confide, name).__module__.split(".")
    return ".".join(parts[:2])


def _entry(home: str, name: str, thing: Any) -> str:
    lines = [f"### {home}.{name} {{ #{home}.{name} }}\n", f"```text\n{_signature(f'{home}.{name}', thing)}\n```\n"]
    lines.append(_paragraphs(_first_paragraph(thing)))
    lines.append(_bullets(inspect.getdoc(thing) or ""))
    kinds = thing.__mro__ if inspect.isclass(thing) else ()
    ours = [kind for kind in kinds if kind.__module__.startswith("confide.")]
    own = [kind for kind in ours if kind is thing or kind.__name__.startswith("_")]
    methods = {key: value for kind in reversed(own) for key, value in vars(kind).items() if _method(key, value)}
    if methods:
        lines.append(_table(["", ""], [[f"`{key}`", _first_line(value.__doc__)] for key, value in methods.items()]))
    return "\n".join(line for line in lines if line)


def _method(key: str, value: Any) -> bool:
    kinds = isinstance(value, (property, classmethod)) or inspect.isfunction(value)
    return bool(not key.startswith("_") and kinds and value.__doc__)


def _signature(name: str, thing: Any) -> str:
    """Names and defaults; types are in the docstring where they are not plain."""
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return name
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return name
    shown, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        shown.append(f"{mark}{parameter.name}{default}")
    flat = f"{name}({', '.join(shown)})"
    if len(flat) <= 88:
        return flat
    return f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + ")"


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if " at 0x" in text or text.startswith("<") else text


def _first_paragraph(thing: Any) -> str:
    text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else text  # a dataclass without a docstring


def _first_line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _paragraphs(text: str | None) -> str:
    """Text of a docstring, up to its first section; words with stars or brackets stay what they are."""
    kept = [" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text or "").split("\n\n")]
    return "\n\n".join(_plain(paragraph) for paragraph in kept if paragraph) + "\n" if any(kept) else ""


def _bullets(text: str) -> str:
    """The entries under Args or Attributes, as a list."""
    found = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?)+)", text, flags=re.MULTILINE)
    if not found:
        return ""
    entries: list[str] = []
    for line in "".join(found).splitlines():
        if re.match(r"    \w[\w, ]*: ", line):
            entries.append(line.strip())
        elif entries:
            entries[-1] += " " + line.strip()
    rows = []
    for entry in entries:
        name, _, meaning = entry.partition(": ")
        rows.append(f"- `{name}`: {_plain(meaning)}")
    return "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """Markdown that shows the text as it stands, but for what stands in backticks."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_<\[\]|])", r"\\\1", p) for p in pieces)


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


PAGES = {"cli.md": cli, "python.md": python}


if __name__ == "__main__":
    import results_page
    import walk

    FOLDER.mkdir(exist_ok=True)
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page())
        print(FOLDER / file)
    architecture = FOLDER.parent / "architecture.md"
    architecture.write_text(walk.updated(architecture.read_text()))
    print(architecture)
    results_page.PAGE.write_text(results_page.page())
    print(results_page.PAGE)
