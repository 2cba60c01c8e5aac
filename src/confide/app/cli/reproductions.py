"""`confide reproduce`: the figures and tables of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confide.app.cli.printing import Json, print_json, show_table


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="li2019-figure1, -figure2, -figure3, -gan, -table1, triastcyn2020-figure1, -figure2, -figure3, "
            "-figure4, -figure5, -table1, wang2015-figure1, wu2020-table1 or -table2.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the CSV, the PNG, the claims and how they were made.")] = Path(
        "reproductions"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Smaller everything, in two minutes.")] = False,
    as_json: Json = False,
) -> None:
    """Recompute a figure or a table of the papers: claimed, measured, and why they differ.

    Takes minutes, some of them hours; one that was stopped goes on where it was if it is called again. With --quick,
    at most two minutes, and its numbers are for a first look alone.
    """
    from confide import experiments

    result, paths = experiments.reproduce(name, out, quick)
    if as_json:
        print_json({"name": name, "files": [str(p) for p in paths], "claims": [c._asdict() for c in result.claims]})
        return
    for claim in result.claims:
        show_table(
            claim.quantity, ["", ""], [["claimed", claim.claimed], ["measured", claim.measured], ["why", claim.why]]
        )
    for path in paths:
        print(path)
