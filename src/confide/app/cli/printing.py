"""What all commands share: their common options, and how results are printed."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Epsilon = Annotated[float, typer.Option(help="Privacy loss, above 0.")]
Delta = Annotated[float, typer.Option(help="Probability that the bound fails, in (0, 1).")]
Neighbours = Annotated[str, typer.Option(help="add-remove or replace-one.")]
Schedule = Annotated[str, typer.Option(help="fixed, or decreasing: step sizes fall as t^(-1/3).")]
LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.", show_default=False)]
Delimiter = Annotated[Optional[str], typer.Option(help="Of a CSV file; a comma by default.")]
Encoding = Annotated[Optional[str], typer.Option(help="Of a CSV file; UTF-8 by default.")]
Dataset = Annotated[str, typer.Option(help="Name of the dataset in the ledger.")]


def print_json(record: dict[str, Any]) -> None:
    print(json.dumps(_finite(record), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no infinity: a bound that does not exist is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A plain table: the last column wraps, the others do not, and nothing in it is taken for markup."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(title, style="bold"))
    lines = [columns, *rows] if any(columns) else rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) - 1)]
    indent = sum(widths) + 2 * len(widths)
    for line in lines:
        start = "".join(f"{cell:{width}}  " for cell, width in zip(line, widths, strict=False))
        wrapped = textwrap.wrap(line[-1], max(console.width - indent, 24)) or [""]
        print("\n".join((start if i == 0 else " " * indent) + part for i, part in enumerate(wrapped)).rstrip())
    print()


def say(text: str) -> None:
    from rich.console import Console

    print("\n".join(textwrap.wrap(text, Console().width)))
