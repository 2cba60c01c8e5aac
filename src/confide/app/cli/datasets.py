"""`confide data`: a named dataset as files that `confide fit` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from confide.app.cli.printing import Json, print_json
from confide.validation import Refused


def data(
    name: Annotated[str, typer.Argument(help="adult, abalone, german_credit or breast_cancer.", show_default=False)],
    out: Annotated[Path, typer.Option(help="A new folder for the tables and their schema.")],
    data_dir: Annotated[
        Optional[Path], typer.Option(help="Where datasets lie; else $CONFIDE_DATA, the cache, or a download.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a public dataset as CSV, with its schema: something to try the other commands on."""
    from confide.data import datasets

    if out.exists():
        raise Refused(f"--out {str(out)!r} exists: give the name of a new folder, or remove it")
    tables = {f"{name}.csv": datasets.table(name, data_dir)}
    if name == "adult":
        tables["adult-test.csv"] = datasets.table(name, data_dir, test=True)
    schema = datasets.schema_path(name).read_text(encoding="utf-8")
    try:
        out.mkdir(parents=True)
        (out / "schema.toml").write_text(schema, encoding="utf-8")
    except OSError as error:
        raise Refused(f"--out {str(out)!r} cannot be written: {error.strerror}") from None
    for file, records in tables.items():
        records.save(out / file)
    files = {str(out / file): len(records.rows) for file, records in tables.items()}
    if as_json:
        print_json({"schema": str(out / "schema.toml"), "tables": files})
        return
    print(out / "schema.toml")
    for file, rows in files.items():
        print(f"{file}: {rows:,} rows")
