"""Write the page of results from the files that are kept in docs/results: `make docs`.

`confide reproduce NAME --out docs/results` leaves four files of each figure or table of the papers there, and
`benchmarks/coverage_lines.py run` a folder of its own. A test compares the page with the committed one.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from confide import experiments

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
PAGE = DOCS / "results.md"
FIGURES = {"coverage": "coverage", "width_ratio": "width", "error_ratio": "error"}


def page(folder: Path = RESULTS) -> str:
    """One section for each paper, and for each of its figures and tables, then one for intervals of scoring."""
    parts = [
        "<!-- Written by docs/generate.py: run `make docs` after a change, do not edit. -->\n",
        "# Results\n",
        "The figures and tables of the papers, measured: what is claimed, what is found, and why they differ. Each is "
        "made by the command beside it, from the datasets that `CONFIDE_DATA` names; `make reproduce` makes all of "
        "them, and this page. Durations are of one core. What stands after ± is a standard deviation over splits or "
        "runs, unless something else is said; where neither is named there was one run. What has not been run in full "
        "yet is said to be so. The papers are named in [Notation](notation.md).\n",
        _overview(folder),
    ]
    paper = ""
    for name in experiments.NAMES:
        own = name.partition("-")[0]
        if own != paper:
            paper = own
            parts.append(f"## {paper}\n")
        parts.append(_section(name, folder))
    parts.append(_coverage(folder / "coverage"))
    return "\n".join(parts)


def made(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """How the kept files came to be; None if they are not of a full run."""
    path = folder / f"{name}.json"
    told = json.loads(path.read_text()) if path.exists() else {"quick": True}
    return None if told["quick"] else told


def _overview(folder: Path) -> str:
    rows = []
    for name in experiments.NAMES:
        told = made(name, folder)
        when = ["not run in full yet", "", ""] if told is None else [told["date"], _duration(told), told["version"]]
        rows.append([f"[{_title(name)}](#{name})", *when])
    return _table(["", "date", "duration", "version"], rows)


def _section(name: str, folder: Path) -> str:
    heading = f"### {_title(name)} {{ #{name} }}\n"
    told = made(name, folder)
    if told is None:
        return f"{heading}\nNot run in full yet: `confide reproduce {name} --out docs/results` makes it.\n"
    with (folder / f"{name}-claims.csv").open(newline="") as file:
        columns, *claims = csv.reader(file)
    return "\n".join(
        [
            heading,
            f"`{told['command']}`, {_duration(told)}, {told['date']}, version {told['version']}; "
            f"[the numbers](results/{name}.csv).\n",
            f"![{_title(name)}, measured](results/{name}.png)\n",
            _table(columns, claims),
        ]
    )


def _title(name: str) -> str:
    paper, _, what = name.partition("-")
    words = re.sub(r"([a-z])([0-9])", r"\1 \2", what)
    return f"{paper}, {words}"


def _duration(told: dict[str, Any]) -> str:
    minutes = told["cpu_minutes"]
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    return f"{minutes:.2g} minutes" if minutes < 100 else f"{minutes / 60:.2g} hours"


def _coverage(folder: Path) -> str:
    """Intervals of scoring against their bars, line by line."""
    lines = _benchmark()
    kept = lines.pool([json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))])
    asked = [line for line, _ in lines.cells()]
    rows = []
    for line, bar in lines.BARS.items():
        cells = [cell for one in kept if one["line"] == line for cell in one["cells"]]
        count = f"{len(cells)} of {asked.count(line) * len(lines.EPSILONS)}"
        if not cells:
            rows.append([line, count, "", *["not run yet"] * len(FIGURES), ""])
            continue
        ends = {"coverage": (bar.low, bar.high), "width_ratio": (None, bar.width), "error_ratio": (None, bar.error)}
        told = [_range([cell[figure] for cell in cells], *ends[figure], lines.holds) for figure in FIGURES]
        rows.append(
            [line, count, str(sum(cell["datasets"] for cell in cells)), *told, _further(cells, bar, lines.holds)]
        )
    return "\n".join(
        [
            "## Intervals of scoring { #coverage }\n",
            "How often intervals of 90% by `confide.scoring` hold the truth of made-up datasets, and their width and "
            "the error of their middles, over what one release of a full batch allows (`benchmarks/ideal.py`): the "
            "least and the largest of the cells of a line, their mean, and the bar in brackets. A cell is a family, a "
            "design, a size and an epsilon; it falls short if it is more than two standard errors beyond its bar, a "
            "line if its mean is beyond it at all. `python benchmarks/coverage_lines.py run` measures what is missing; "
            "with `table` it shows every cell.\n",
            _table(["line", "cells", "fits", *FIGURES.values(), ""], rows),
        ]
    )


def _further(cells: list[dict[str, Any]], bar: Any, holds: Any) -> str:
    """What a line is asked for besides."""
    if bar.prior:
        larger = sum(cell["error"][0] > cell["prior_error"][0] for cell in cells)
        return f"error above that of the prior mean in {larger} of {len(cells)} cells (none)"
    apart = [cell["contrasts"]["coverage"] for cell in cells if cell["contrasts"]]
    if apart:
        return f"coverage of what classes differ by {_range(apart, bar.low, None, holds)}"
    scales = [cell["scale"]["coverage"] for cell in cells if cell["scale"]]
    return f"coverage of noise scales {_range(scales, bar.scale, None, holds)}" if scales else ""


def _range(pairs: list[list[float]], low: float | None, high: float | None, holds: Any) -> str:
    values = [value for value, _ in pairs]
    short = sum(not holds(value, error, low, high) for value, error in pairs)
    bar = " to ".join(f"{end:g}" for end in (low, high) if end is not None)
    asked = f" ({'at most ' if low is None else ''}{bar})" if bar else ""
    mean = sum(values) / len(values)
    told = f"{min(values):.3f} to {max(values):.3f}, mean {mean:.3f}{asked}"
    told += f"; {short} of {len(values)} cells fall short" if short else ""
    return told + ("" if holds(mean, 0.0, low, high) else "; the mean falls short")


def _benchmark() -> Any:
    path = DOCS.parent / "benchmarks" / "coverage_lines.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(re.sub(r"([*_<|])", r"\\\1", cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
