"""`confide schema`: the public domain of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from confide.checks import Refused
from confide.cli.printing import Delimiter, Encoding, Json, print_json, say, show_table

schema_app = typer.Typer(help="Describe the public domain of a table.", no_args_is_help=True)


@schema_app.command("init")
def schema_init(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The schema file to write.")] = Path("schema.toml"),
    target: Annotated[Optional[str], typer.Option(help="The column that is to be predicted.")] = None,
    from_data: Annotated[
        bool, typer.Option("--from-data", help="Fill in bounds and categories from the data, and mark them as learnt.")
    ] = False,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """Write a draft of a schema from the names and types of a table's columns, and say what is to be filled in.

    Types are guessed from the first 1,000 rows; no value of a record goes into the draft unless --from-data asks for
    it.
    """
    from confide import drafts, files, tables

    if out.exists():
        raise Refused(f"--out {str(out)!r} exists: give another name, or remove it")
    make = drafts.from_data if from_data else drafts.from_types
    draft = make(tables.open_table(data, delimiter, encoding), target or "")
    with files.written(out) as file:
        file.write(draft.toml)
    if as_json:
        print_json({"schema": str(out), "to_fill": draft.to_fill, "learnt": draft.learnt})
        return
    print(out)
    if draft.to_fill:
        print()
        rows = [line.split(": ", 1) for line in draft.to_fill]
        show_table("To fill in from public knowledge, not from the data", ["column", "what"], rows)
    if draft.learnt:
        say(
            f"Filled in from the data and marked learnt = true: {', '.join(draft.learnt)}. A fit refuses such a schema "
            "unless it is given --accept-learnt-schema, and its guarantee then says that these values are not counted."
        )


@schema_app.command("check")
def schema_check(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)],
    schema: Annotated[Path, typer.Option(help="Its schema.")],
    target: Annotated[Optional[str], typer.Option(help="The column that is to be predicted.")] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """Say what a schema makes of a table, without fitting anything."""
    from confide import encoding as encodings
    from confide import schema as schemas
    from confide import tables

    found = schemas.load(schema).aimed(target)
    rows = len(encodings.encode_table(found, tables.open_table(data, delimiter, encoding)).x)
    if as_json:
        record = {"target": found.target, "features": found.features, "norm_bound": found.bound, "records": rows}
        print_json(record | {"learnt": found.learnt})
        return
    shown = [
        [c.name, c.kind, str(len(c.features)) if c in found.inputs else "target" if c.name == found.target else ""]
        for c in found.columns
    ]
    show_table(
        f"{schema}: {len(found.features)} features, no row longer than {found.bound:.4g}",
        ["column", "kind", "features"],
        shown,
    )
    print(f"{data}: {rows:,} records, all as the schema says.")
    if found.learnt:
        say(f"Learnt from the data, and not counted by any epsilon: {', '.join(found.learnt)}.")
