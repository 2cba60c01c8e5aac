"""What a reproduction leaves behind: a CSV, a PNG, a table of claims against measurements, and how it was made."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import confide
from confide.validation import Refused

SUFFIXES = (".csv", ".png", "-claims.csv", ".json")
DOTS, SHADES = 100, 64  # per inch, and of colour: a picture is well below 100 kB


class Claim(NamedTuple):
    """A number in a paper, what we measure, and why they differ."""

    quantity: str
    claimed: str
    measured: str
    why: str


def left_out(what: str, reason: Refused) -> Claim:
    """Of something that the paper shows, and that cannot be made here."""
    return Claim(what, "shown", "left out", str(reason))


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    claims: tuple[Claim, ...]
    figure: Any  # a matplotlib figure

    def write(self, out: Path, quick: bool, cpu_minutes: float) -> list[Path]:
        """Write NAME.csv, NAME.png, NAME-claims.csv and NAME.json into the folder."""
        try:
            return self._write(out, quick, cpu_minutes)
        except OSError as error:
            raise Refused(f"--out {str(out)!r} cannot be used: {error.strerror or error}") from None

    def _write(self, out: Path, quick: bool, cpu_minutes: float) -> list[Path]:
        paths = [out / f"{self.name}{suffix}" for suffix in SUFFIXES]
        for path, columns, rows in ((paths[0], self.columns, self.rows), (paths[2], Claim._fields, self.claims)):
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(rows)
        _write_picture(self.figure, paths[1])
        made = {
            "command": f"confide reproduce {self.name}" + (" --quick" if quick else ""),
            "quick": quick,
            "cpu_minutes": float(f"{cpu_minutes:.2g}"),
            "date": datetime.date.today().isoformat(),
            "version": confide.__version__,
        }
        paths[3].write_text(json.dumps(made, indent=2) + "\n")
        return paths


def _write_picture(figure: Any, path: Path) -> None:
    from PIL import Image

    figure.set_dpi(DOTS)
    figure.canvas.draw()
    drawn = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    by_range = Image.Quantize.MAXCOVERAGE  # else colours of a few dots are lost
    drawn.quantize(SHADES, by_range, dither=Image.Dither.NONE).save(path, optimize=True)


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


def finish_axes(axes: Any, xlabel: str, ylabel: str, title: str = "", **settings: Any) -> None:
    """Labels, a small title and a grid; logarithmic axes unless the settings say otherwise."""
    axes.set(**{"xscale": "log", "yscale": "log", "xlabel": xlabel, "ylabel": ylabel, "title": title} | settings)
    axes.title.set_fontsize(9.5)
    axes.grid(True, which="major", alpha=0.3)
