"""Rehearsals of whole runs: on tables that a schema alone makes up, or that the release of a finished run does.

Rows of a schema are independent from column to column: numbers uniform between their bounds (on a logarithmic scale if
the column has one), categories, levels and words equally likely, nothing missing. Coefficients are from the prior.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from confide import validation
from confide.app.runs import choices
from confide.app.runs.options import Request
from confide.data import atomic_files
from confide.data import schema as schemas
from confide.data.encoding import encode, unscale
from confide.data.schema import Column, Schema
from confide.inference.fitting import fit
from confide.inference.posterior import Posterior
from confide.inference.power.planning import usual_delta
from confide.inference.rehearsal import DRAWS, FRESH, MadeUpTable, Rehearsal, rehearse_tables
from confide.models.model import Model
from confide.models.priors import WIDE
from confide.models.tracing import unraveller
from confide.privacy.budget import Budget
from confide.validation import Refused

FILE, FORMAT = "rehearsal.json", 1
REHEARSED = ("datasets", "probability", "coverage", "coverage_error", "inflation", "widths", "errors", "log_loss")
REHEARSED += ("log_loss_of_the_truth", "seconds")  # numbers of a rehearsal, or lists of them
INTERVALS = ("scoring", "statistics", "steps")  # kinds of samplers whose draws are many
ELSEWHERE = "\x00"  # what no schema lists


def rehearse_schema(asked: dict[str, Any], datasets: int, seed: int) -> tuple[Rehearsal, list[str]]:
    """Fits of made-up tables of a schema, and the names of its columns; `asked` is what `confide rehearse` takes."""
    described = schemas.load(asked["schema"]).with_target(asked.get("target") or None)
    n = validation.count(n=asked["n"])
    delta = usual_delta(n) if asked.get("delta") is None else asked["delta"]
    budget = Budget(epsilon=asked["epsilon"], delta=delta, neighbours=asked["neighbours"])
    wanted = {name: asked[name] for name in ("model", "prior_scale", "sampler") if asked.get(name) is not None}
    request = Request(data="", epsilon=budget.epsilon, delta=budget.delta, out="", **wanted)
    choice = choices.choose(described, request, budget, n)
    if choice.model.linear is None:
        raise Refused("rehearsals are for models that scoring fits: logistic, softmax, linear, poisson, ...")
    sampler = choice.sampler
    if sampler.point or sampler.kind not in INTERVALS:
        raise Refused(f"{sampler.name} releases a point or a single draw, which has no interval to rehearse")
    if sampler.kind == "scoring":
        sampler = replace(sampler, draws=DRAWS)  # type: ignore[call-arg]
    made = tables(described, choice.model, n, datasets, seed)
    fitted = partial(fit, choice.model, budget=budget, sampler=sampler, clip=choice.clip)
    return rehearse_tables(fitted, choice.model, made, seed), list(described.features)


def tables(schema: Schema, model: Model, n: int, datasets: int, key: int) -> Iterator[MadeUpTable]:
    """So many made-up tables of n records, with truths from the model's prior."""
    n, datasets = validation.count(n=n), validation.count(datasets=datasets)
    settings, generator = model.settings, np.random.default_rng([key, 2])
    if model.linear is None or settings is None or settings["prior"] == "laplace":
        raise Refused("rehearsals of a schema are for generalised linear models with a normal prior: choose one")
    example = (np.zeros((1, len(schema.features)), np.float32), np.zeros(1, np.float32))
    flat, unravel = unraveller(model, example, jax.random.key(0))

    def rows(number: int) -> np.ndarray:
        columns = {column.name: _values(column, number, generator) for column in schema.inputs}
        return encode(schema, columns).x

    for _ in range(datasets):
        truth = unravel(settings["prior_scale"] * generator.standard_normal(flat.size).astype(np.float32))
        if settings["prior"] == "wide_intercept":
            truth["intercept"] = WIDE * truth["intercept"]
        if model.family is not None and model.family.learns_noise:
            truth["noise_scale"] = np.float32(model.family.parameters.get("noise_scale", 1.0))
        yield MadeUpTable(rows(n), truth, rows(FRESH))


def _values(column: Column, number: int, generator: np.random.Generator) -> list[Any]:
    if column.kind == "numeric":
        return unscale(column, generator.uniform(-1, 1, number)).tolist()
    if column.kind == "boolean":
        words = [column.false[0], column.true[0]]
    else:
        words = [*column.categories, *([ELSEWHERE] if column.other else [])]
    return [words[place] for place in generator.integers(len(words), size=number)]


def save(found: Rehearsal, folder: str | os.PathLike[str], posterior: Posterior) -> Path:
    """Write what was seen into the folder of the run, in the place of an earlier one."""
    path = Path(folder) / FILE
    with atomic_files.write_text(path) as file:
        record = {"format": FORMAT, "run": posterior.plan.get("run", ""), **found.to_json()}
        json.dump(record, file, indent=2, allow_nan=False)
        file.write("\n")
    return path


def load(folder: str | os.PathLike[str], posterior: Posterior) -> dict[str, Any] | None:
    """What `save` wrote, None where it wrote nothing; refused where it is of another run."""
    path = Path(folder) / FILE
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] == FORMAT and record["run"] == posterior.plan.get("run", ""):
            describe(record)
            return record
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise Refused(f"{str(path)!r} is no rehearsal of this run: remove it, and run 'confide rehearse' again")


def check(record: dict[str, Any]) -> None:
    """Refused where what `save` wrote has other entries, or entries that are no numbers."""
    names = {"format", "run", *REHEARSED}
    if different := sorted(names ^ set(record)):
        raise Refused(f"{different[0]} in {FILE} is no entry of a rehearsal: run 'confide rehearse' again")
    for name in REHEARSED:
        values = record[name] if isinstance(record[name], list) else [record[name]]
        if not all(
            value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values
        ):
            raise Refused(f"{name} in {FILE} is no number: run 'confide rehearse' again")


def describe(record: dict[str, Any]) -> str:
    """A rehearsal of a run in a sentence, for its report."""
    error = record["coverage_error"]
    give = "" if error is None else f" (give or take {2 * error:.1%})"
    return (
        f"The whole mechanism was run again on {record['datasets']} made-up tables like the released ones, whose truth "
        f"is known: 90% intervals held it in {record['coverage']:.1%} of cases{give}. No record was read for it."
    )
