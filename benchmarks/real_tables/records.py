"""Results of fits as JSON lines: what is there is not measured again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

KEY = ("command", "table", "epsilon", "index")


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def key_of(line: dict) -> tuple:
    return tuple(line[name] for name in KEY)


def append(path: Path, line: dict) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def summarise_draws(draws: np.ndarray) -> dict[str, list[float]]:
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    every = {"mean": draws.mean(axis=0), "sd": draws.std(axis=0), "low": low, "high": high}
    return {name: [float(f"{value:.7g}") for value in values] for name, values in every.items()}


def stack(lines: list[dict], group: str, name: str) -> np.ndarray:
    """One row a fit."""
    return np.array([line[group][name] for line in lines])
