"""`confide schema`: the public domain of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from confide.app.cli.printing import Delimiter, Encoding, Json, print_json, say, show_table
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.data.schema import Column, Schema
    from confide.data.table_check import ColumnCheck, Problem, TableCheck

FIRST = 5  # names of images that are shown
FAULTS = 1  # exit code of `schema check --strict`
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
    strict: Annotated[
        bool, typer.Option("--strict", help="End with exit code 1 where anything is other than the schema says.")
    ] = False,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """List what a fit would count as missing or as absent, or replace by a bound, without fitting anything.

    What is listed is about the records themselves: not for publication, and not counted by any epsilon.
    """
    from confide.data import schema as schemas
    from confide.data import table_check, tables

    if not tables.is_table(data):
        absent = _check_images(data, classes, shape, as_json)
        if strict and absent:
            raise typer.Exit(FAULTS)
        return
    if schema is None:
        raise Refused("a table needs --schema: 'confide schema init' drafts one")
    if classes is not None or shape is not None:
        raise Refused(f"--{'shape' if classes is None else 'classes'} is for images, and this is a table: leave it out")
    described = schemas.load(schema).with_target(target)
    table = tables.open_table(data, delimiter, encoding)
    found = table_check.check(described, table)
    if as_json:
        print_json(_to_json(described, found) | {"place": table.place})
    else:
        _show_schema(schema, described)
        _show_check(data, described, found, table.place)
    if strict and found.faults:
        raise typer.Exit(FAULTS)


def _to_json(described: Schema, found: TableCheck) -> dict[str, Any]:
    columns = {
        each.column: {name: value for name, value in vars(each).items() if name not in ("column", "problems")}
        | {"sentinels": [{"value": number, "times": times} for number, times in each.sentinels.items()]}
        for each in found.columns
    }
    return {
        "target": described.target,
        "features": described.features,
        "norm_bound": described.bound,
        "learnt": described.learnt,
        "records": found.records,
        "left_out": found.left_out,
        "remaining": found.remaining,
        "scaled_down": found.shortened,
        "refused_for": found.refused,
        "as_the_schema_says": not found.faults,
        "columns": columns,
        "problems": [problem._asdict() for each in found.columns for problem in each.problems],  # of each column, a few
        "publishable": False,
    }


def _show_schema(path: Path, described: Schema) -> None:
    shown = [
        [
            c.name,
            c.kind,
            str(len(c.features)) if c in described.inputs else "target" if c.name == described.target else "",
        ]
        for c in described.columns
    ]
    title = f"{path}: {len(described.features)} features, no row longer than {described.bound:.4g}"
    show_table(title, ["column", "kind", "features"], shown)


def _show_check(data: Path, described: Schema, found: TableCheck, place: str) -> None:
    """A line for each column and one for all of them, and what a fit would do about it."""
    lines = [_sum_up(each, described.column(each.column), place) for each in found.columns]
    totals = [
        sum(getattr(each, name) for each in found.columns) for name in ("missing", "not_admitted", "below", "above")
    ]
    missing, not_admitted, below, above = totals
    lines.append(["in all", f"{missing:,}", f"{not_admitted:,}", f"{below + above:,}", "", ""])
    show_table(
        f"{data}: {found.records:,} records",
        ["column", "missing", "not admitted", "beyond bounds", "policy", "what the records hold"],
        lines,
    )
    if not found.faults:
        say("All as the schema says.")
    if found.refused:
        say(f"A fit refuses this table, since records lack a value in {', '.join(found.refused)} (missing = 'refuse').")
    say(
        f"A fit leaves out {found.left_out:,} of {found.records:,} records, which lack a value that the schema admits "
        f"in a column without an indicator; {found.remaining:,} remain."
    )
    if below + above:
        say(
            "A fit replaces numbers beyond their bounds by the bound: correct them, widen the bounds from public "
            "knowledge, or list them in missing_values."
        )
    if any(each.sentinels for each in found.columns):
        say("Numbers that look like a code for 'missing' are fitted as numbers unless missing_values lists them.")
    if found.shortened:
        longest = f"norm_bound = {described.norm_bound:g}"
        say(f"{found.shortened:,} records are longer than {longest} and are scaled down to it.")
    say(OWN)
    if described.learnt:
        say(f"Learnt from the data, and not counted by any epsilon: {', '.join(described.learnt)}.")


def _sum_up(found: ColumnCheck, column: Column, place: str) -> list[str]:
    """One column: how many values are missing, outside its domain and beyond its bounds, and which."""
    said = []
    if found.lowest is not None:
        bounds = f", of bounds {column.low:g} to {column.high:g}" if found.below + found.above else ""
        said.append(f"{found.lowest:g} to {found.highest:g}{bounds}")
    if found.below + found.above:
        said.append(f"{found.below:,} below and {found.above:,} above")
    said += [f"{number:g} occurs {_times(times)}: a code for 'missing'?" for number, times in found.sentinels.items()]
    said += ["one value in all records"] if found.constant else []
    said += [f"{found.other:,} in the category (other)"] if found.other else []
    said += [f"{problem.what} ({_where(problem, place)})" for problem in found.problems]
    rest = found.missing + found.not_admitted - sum(problem.times for problem in found.problems)
    said += [f"{rest:,} more values"] if rest else []
    counts = [f"{number:,}" for number in (found.missing, found.not_admitted)]
    beyond = f"{found.below + found.above:,}" if column.kind == "numeric" else ""
    return [found.column, *counts, beyond, found.policy, "; ".join(said)]


def _where(problem: Problem, place: str) -> str:
    where = f"{place} {problem.line}"
    return where if problem.times == 1 else f"{problem.times:,} times, first in {where}"


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times:,} times"


def _check_images(data: Path, classes: str | None, shape: str | None, as_json: bool) -> list[str]:
    """Show the images that a fit would count as absent: their names."""
    from confide.data import image_files, image_schema

    if classes is None:
        raise Refused("images need --classes, as 'confide fit' does")
    names = image_schema.parse_classes(classes)
    found = image_files.read(data, names, None if shape is None else image_schema.parse_shape(shape))
    absent = [name for name, present in zip(found.names, found.present, strict=True) if not present]
    if as_json:
        print_json({"shape": found.shape, "records": len(found.x), "absent": absent, "publishable": False})
        return absent
    print(f"{data}: {len(found.x):,} of shape {' x '.join(map(str, found.shape))}, {len(absent):,} of them absent.")
    if absent:
        more = f", and {len(absent) - FIRST:,} more" if len(absent) > FIRST else ""
        say(f"Of no declared class, or not to be read as such an image: {', '.join(absent[:FIRST])}{more}.")
    say(OWN)
    return absent
