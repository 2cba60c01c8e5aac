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
    out: Annotated[Path, typer.Option(help="Folder for the CSV, the PNG and the claims.")] = Path("reproductions"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points.")] = False,
    as_json: Json = False,
) -> None:
    """Recompute a figure or a table of the papers: claimed, measured, and why they differ. Takes minutes."""
    from confide import experiments
    from confide.experiments.reproduction import make_folder

    module = experiments.load(name)
    make_folder(out)
    result = module.run(quick=quick)
    paths = result.write(out)
    if as_json:
        print_json({"name": name, "files": [str(p) for p in paths], "claims": [c._asdict() for c in result.claims]})
        return
    for claim in result.claims:
        show_table(
            claim.quantity, ["", ""], [["claimed", claim.claimed], ["measured", claim.measured], ["why", claim.why]]
        )
    for path in paths:
        print(path)
