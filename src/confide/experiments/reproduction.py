"""What a reproduction leaves behind: a CSV, a PNG, and a table of claims against measurements."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confide.validation import Refused

# Okabe and Ito's colours: told apart by colour-blind readers and on a dark page.
COLOURS = {"wang2015": "#D55E00", "moments": "#56B4E9", "numerical": "#0072B2"}


class Claim(NamedTuple):
    """A number in a paper, what we measure, and why they differ."""

    quantity: str
    claimed: str
    measured: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    claims: tuple[Claim, ...]
    figure: Any  # a matplotlib figure

    def write(self, out: Path) -> list[Path]:
        """Write NAME.csv, NAME.png and NAME-claims.csv into the folder."""
        try:
            return self._write(out)
        except OSError as error:
            raise Refused(f"--out {str(out)!r} cannot be used: {error.strerror or error}") from None

    def _write(self, out: Path) -> list[Path]:
        paths = [out / f"{self.name}{suffix}" for suffix in (".csv", ".png", "-claims.csv")]
        for path, columns, rows in ((paths[0], self.columns, self.rows), (paths[2], Claim._fields, self.claims)):
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(rows)
        self.figure.savefig(paths[1], dpi=160)
        return paths


def make_folder(out: Path) -> None:
    """The folder for the results, made before they are computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"--out {str(out)!r} cannot be used: {error.strerror or error}") from None


def new_figure(columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure with a row of axes, drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns)
