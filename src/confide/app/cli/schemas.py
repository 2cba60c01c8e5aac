"""`confide schema`: the public domain of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from confide.app.cli.printing import Delimiter, Encoding, Json, print_json, say, show_table
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.data.encoding import Problem

FIRST = 5  # problems of a column that are shown
OWN = "This is about the records themselves: not for publication, and not counted by any epsilon."
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
    from confide.data import atomic_files, schema_draft, tables

    if out.exists():
        raise Refused(f"--out {str(out)!r} exists: give another name, or remove it")
    make = schema_draft.from_data if from_data else schema_draft.from_types
    draft = make(tables.open_table(data, delimiter, encoding), target or "")
    with atomic_files.write_text(out) as file:
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
            f"Taken from the data and marked learnt = true: {', '.join(draft.learnt)}. A fit refuses such a schema "
            "unless it is given --accept-learnt-schema, and its guarantee then says that these values are not counted."
        )


@schema_app.command("check")
def schema_check(
    data: Annotated[
        Path, typer.Argument(help="A CSV or Parquet file, or images: an .npz file or a folder.", show_default=False)
    ],
    schema: Annotated[Optional[Path], typer.Option(help="Of a table: its schema.")] = None,
    classes: Annotated[Optional[str], typer.Option(help="Of images: as for 'confide fit'.")] = None,
    shape: Annotated[Optional[str], typer.Option(help="Of images: as for 'confide fit'.")] = None,
    target: Annotated[Optional[str], typer.Option(help="The column that is to be predicted.")] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """List what a fit would count as missing, or as absent, without fitting anything.

    What is listed is about the records themselves: not for publication, and not counted by any epsilon.
    """
    from confide.data import encoding as encodings
    from confide.data import schema as schemas
    from confide.data import tables

    if not tables.is_table(data):
        _check_images(data, classes, shape, as_json)
        return
    if schema is None:
        raise Refused("a table needs --schema: 'confide schema init' drafts one")
    if classes is not None or shape is not None:
        raise Refused(f"--{'shape' if classes is None else 'classes'} is for images, and this is a table: leave it out")
    found = schemas.load(schema).with_target(target)
    table = tables.open_table(data, delimiter, encoding)
    problems = list(encodings.problems(found, table))
    rows = sum(len(piece.lines) for piece in table.pieces())
    if as_json:
        record = {"target": found.target, "features": found.features, "norm_bound": found.bound, "records": rows}
        listed = [problem._asdict() for problem in problems]
        print_json(record | {"learnt": found.learnt, "problems": listed, "place": table.place, "publishable": False})
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
    by_column = [[problem for problem in problems if problem.column == column.name] for column in found.used]
    lines = [_sum_up(own, found.column(own[0].column).missing, table.place) for own in by_column if own]
    if lines:
        show_table(f"{data}: {rows:,} records", ["column", "missing", "not admitted", "policy", "where"], lines)
    else:
        print(f"{data}: {rows:,} records, all as the schema says.")
    say(OWN)
    if found.learnt:
        say(f"Learnt from the data, and not counted by any epsilon: {', '.join(found.learnt)}.")


def _sum_up(problems: list[Problem], policy: str, place: str) -> list[str]:
    """The problems of one column: how many values are missing, how many are outside its domain, and the first ones."""
    missing = sum(problem.missing for problem in problems)
    first = [*(p for p in problems if not p.missing), *(p for p in problems if p.missing)][:FIRST]
    where = ", ".join(f"{place} {problem.line}: {problem.what}" for problem in first)
    more = f", and {len(problems) - len(first):,} more" if len(problems) > len(first) else ""
    return [problems[0].column, f"{missing:,}", f"{len(problems) - missing:,}", policy, where + more]


def _check_images(data: Path, classes: str | None, shape: str | None, as_json: bool) -> None:
    from confide.data import image_files, image_schema

    if classes is None:
        raise Refused("images need --classes, as 'confide fit' does")
    names = image_schema.parse_classes(classes)
    found = image_files.read(data, names, None if shape is None else image_schema.parse_shape(shape))
    absent = [name for name, present in zip(found.names, found.present, strict=True) if not present]
    if as_json:
        print_json({"shape": found.shape, "records": len(found.x), "absent": absent, "publishable": False})
        return
    print(f"{data}: {len(found.x):,} of shape {' x '.join(map(str, found.shape))}, {len(absent):,} of them absent.")
    if absent:
        more = f", and {len(absent) - FIRST:,} more" if len(absent) > FIRST else ""
        say(f"Of no declared class, or not to be read as such an image: {', '.join(absent[:FIRST])}{more}.")
    say(OWN)
