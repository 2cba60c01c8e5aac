"""Neighbouring datasets through every way in: all that one record may move is its own row.

`observed` runs something up to the mechanism, the one place where records meet noise, and notes all that happens on the
way: what the mechanism is given, the traced program with its constants, the plan, the guarantee, the outcome, what is
printed, warned of and refused, and the files that are written. The mechanism itself gives zeros, and what is drawn from
the operating system is fixed, so that all of it is a function of the records; the code before and after is the real.

`differences` lists what two such observations do not share. The records are rows of what the mechanism is given, one
for each place, and of these one may differ: neighbours that differ in one record must differ in nothing else. Rows are
compared as a multiset, since the mechanism takes a random batch of places or a sum over all of them.
"""

import contextlib
import importlib
import io
import json
import math
import re
import shlex
import sqlite3
import sys
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from confide.app import cli
from confide.inference import loop as run
from confide.inference.plans.hidden_chains import SampleJob
from confide.inference.posterior import Posterior
from confide.inference.questions import NOTHING_TOLD, Answer, Questions
from confide.mechanism import noise, record_sums
from confide.mechanism.scale import ScaleRelease
from confide.models.inputs import as_records
from confide.models.model import Model
from confide.privacy import ledger

N = 37  # unlike any other size in these runs
OWN = 3  # the place of the record that is replaced or removed
FLOATS = {
    "2^31": 2.0**31,
    "2^53 + 2": 2.0**53 + 2,
    "1e39": 1e39,
    "1e308": 1e308,
    "nan": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "minus zero": -0.0,
    "denormal": 5e-324,
}
PATE = importlib.import_module("confide.baselines.pate")  # the package has the function under this name
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
TIME = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(?:Z|\+00:00)?")
TIMES = re.compile(r"\d+:\d\d(?::\d\d)?")


class Observed(NamedTuple):
    shown: dict[str, object]  # must be the same
    rows: dict[str, Counter]  # of each thing that the mechanism is given, one for each place; one of them may differ


def differences(one: Observed, other: Observed) -> list[str]:
    """What two observations of neighbours do not share, beside one row; none where all is well."""
    found = []
    refusals = [seen.shown.get("refused", "nothing") for seen in (one, other)]
    if refusals[0] != refusals[1]:  # all else follows from it
        return [f"refused: {_short(*refusals)}"]
    for name in sorted({*one.shown, *other.shown}):
        here, there = (seen.shown.get(name, "nothing") for seen in (one, other))
        if here != there:
            found.append(f"{name}: {_short(here, there)}")
    for name in {*one.rows, *other.rows}:
        here, there = (seen.rows.get(name, Counter()) for seen in (one, other))
        apart = max((here - there).total(), (there - here).total())
        if apart > 1:
            found.append(f"rows of {name}: {apart} of {here.total()} differ")
    return found


def _short(one: object, other: object) -> str:
    """Where two texts begin to differ."""
    here, there = str(one), str(other)
    first = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    start = max(0, first - 40)
    return f"{here[start : first + 160]!r} and {there[start : first + 160]!r}"


class Watch:
    """What is seen of one run; `patch` puts it in the place of the mechanisms."""

    def __init__(self) -> None:
        self.shown: dict[str, object] = {}
        self.rows: dict[str, Counter] = {}

    def given(self, name: str, tree: object, places: int) -> None:
        """Arrays that the mechanism gets: those as long as there are places, along some axis, hold the records."""
        mine: list[list[bytes]] = [[] for _ in range(places)]  # no place at all is -1
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            where = f"{name}{jax.tree_util.keystr(path)}"
            if not hasattr(leaf, "shape"):
                self.shown[where] = repr(leaf)
                continue
            array = np.asarray(leaf)
            self.shown[where] = (str(array.dtype), array.shape)
            if places in array.shape:
                along = np.moveaxis(array, array.shape.index(places), 0)
                for place in range(places):
                    mine[place].append(along[place].tobytes())
            else:
                self.shown[f"{where} bytes"] = array.tobytes()
        if places >= 0:
            self.rows[name] = Counter(tuple(row) for row in mine)

    def program(self, name: str, function: object, *arguments: object) -> None:
        """The traced program as text, and the constants in it."""
        closed = jax.make_jaxpr(function)(*arguments)
        self.shown[f"{name} program"] = ADDRESS.sub("", str(closed))
        self.shown[f"{name} constants"] = [
            (str(np.asarray(constant).dtype), np.shape(constant), np.asarray(constant).tobytes())
            for constant in _constants(closed.jaxpr, closed.consts)
        ]

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise.secrets, "randbits", lambda bits: 12345)
        monkeypatch.setattr(noise.os, "urandom", lambda count: bytes(range(count)))
        numbers = iter(range(10**6))
        monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
        monkeypatch.setattr(ledger, "_now", lambda: "now")
        self._patch_jobs(monkeypatch)
        self._patch_baselines(monkeypatch)

    def _patch_jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute, watch = run.execute, self

        def stepping(job, data, key, **how):
            """The real course of a run, with blocks of steps that move nothing."""
            name = f"job {sum(key.startswith('job ') and key.endswith(' digest') for key in watch.shown)}"
            watch.shown[f"{name} digest"] = job.digest()
            settings = {name: value for name, value in vars(job.parameters).items() if not callable(value)}
            watch.shown[f"{name} settings"] = repr((settings, job.burn_in, job.thin, job.buffer))
            watch.shown[f"{name} starts"] = job.initial_positions.tobytes()
            real = type(job).advance.func(job)

            def advance(carry, prepared, controls, number, random):
                if number == 0:
                    watch.given(f"{name} given", prepared, len(jax.tree.leaves(prepared)[0]))
                    watch.given(f"{name} controls", controls, -1)
                    watch.program(name, real, carry, prepared, controls, number, random)
                return carry

            job.__dict__["advance"] = advance
            job.traced = None  # so that the blocks above run, and not the program that was traced for its digest
            return execute(job, data, key, **how)

        def drawing(job, data, key, **how):
            """One posterior sample: the density that it is drawn from, and a draw of zeros."""
            watch.shown["sample digest"] = repr((job.digest(), job.chains, job.shape))
            records = as_records(data)
            watch.given("sample data", records, records.places)
            example = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in records.arrays)
            size = ravel_pytree(job.model.start(noise.as_key(0), example))[0].size
            with jax.enable_x64(True):
                arrays = job.target.arrays(records)
                watch.given("sample given", arrays, records.places)
                watch.program("sample", job.target.log_density, np.zeros(size), arrays)
            return np.zeros((*job.shape, size), np.float32)

        def histogram(counts, scale, source):
            """What single records spent, which is paid for."""
            watch.shown["histogram"] = (counts.shape, scale)
            return np.zeros(counts.shape)

        def asking(questions, table, asked, key, statistics=NOTHING_TOLD):
            """A question of private scoring, with an answer of zeros: what is asked next follows from the answers."""
            name = f"question {asked.kind} {asked.number}"
            watch.given(name, table.whole, len(jax.tree.leaves(table.whole)[0]))
            watch.given(f"{name} asked", asked._replace(kind=0), -1)
            size = len(asked.position) if asked.kind == "noise" else asked.root.shape
            return Answer(np.zeros(size), statistics)

        def finer(release, octaves, norm, source):
            """The sum within a bin of norms, which is paid for."""
            watch.shown["finer scale"] = (norm, release.drawn)
            return np.zeros(1)

        def summing(query, records, source, *more, **named):
            """A query of a regression, with an answer of zeros: what is asked next follows from the answers."""
            name = f"query {sum(key.startswith('query ') and key.endswith(' digest') for key in watch.shown)}"
            watch.given(name, records, records.places)
            watch.shown[f"{name} digest"] = (query.digest(), query.deviation)
            return np.zeros((query.size, query.size) if query.is_matrix else query.size)

        monkeypatch.setattr(record_sums, "answer", summing)
        monkeypatch.setattr(ScaleRelease, "sum_norms", finer)
        monkeypatch.setattr(Questions, "ask", asking)
        monkeypatch.setattr(noise, "noisy_counts", histogram)
        monkeypatch.setattr(run, "execute", stepping)
        monkeypatch.setattr(SampleJob, "execute", drawing)

    def _patch_baselines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch = self

        def minimised(objective, tolerance, size, *more, **named):
            watch.given("objective", (objective.data, objective.present), len(objective.data[0]))
            watch.shown["objective settings"] = repr((objective.clip, objective.regularisation, tolerance, size, named))
            watch.shown["objective model"] = (objective.model.name, repr(objective.model.settings))
            return np.zeros(size)

        def summed(x, y, norm_bound, outcome_bound, square, scale):
            watch.given("statistics", (x, y), len(x))
            watch.shown["statistics settings"] = (norm_bound, outcome_bound, square, scale)
            size = x.shape[-1] + 1
            return np.zeros(size * (size + 1) // 2 - (not square), np.int64)

        def votes(model, request, paid, event, lessons, rows):
            watch.given("teachers", (request.data, request.table.present), request.places)
            watch.shown["teachers settings"] = repr((paid.summary.teachers, event, lessons, request.records))
            watch.given("public", rows, -1)
            order = np.arange(len(rows))[: event.queries or event.answers]
            return PATE.Votes(order, np.zeros((len(order), PATE._label_count(model, request.data, rows)), np.int64))

        for module in ("output_perturbation", "objective_perturbation"):
            monkeypatch.setattr(importlib.import_module(f"confide.baselines.{module}"), "minimise", minimised)
        monkeypatch.setattr(
            importlib.import_module("confide.baselines.sufficient_statistics"), "whole_statistics", summed
        )
        monkeypatch.setattr(PATE, "_votes", votes)


def _constants(jaxpr: object, own: object) -> list:
    """Those of a program and of the programs in it."""
    found = list(own)
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(inner, "consts"):
                    found += _constants(inner.jaxpr, inner.consts)
                elif hasattr(inner, "eqns"):
                    found += _constants(inner, [])
    return found


def observed(work, home: Path | None = None) -> Observed:
    """All that `work()` does up to the mechanism and after it; the files are those in `home`."""
    watch, out, err = Watch(), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        watch.patch(monkeypatch)
        before = set() if home is None else {path.name for path in home.iterdir()}
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                watch.shown |= told(work())
            except (Exception, SystemExit) as refusal:
                watch.shown["refused"] = f"{type(refusal).__name__}: {refusal}"
    watch.shown["out"], watch.shown["err"] = TIMES.sub("", out.getvalue()), TIMES.sub("", err.getvalue())
    watch.shown["warnings"] = [f"{found.category.__name__}: {found.message}" for found in warned]
    if home is not None:
        for path in sorted(home.rglob("*")):
            name = path.relative_to(home)
            if path.is_file() and name.parts[0] not in before:
                watch.shown[f"file {name}"] = _content(path)
        for path in home.glob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as database:
                watch.shown[f"ledger {path.name}"] = TIME.sub(b"", "\n".join(database.iterdump()).encode())
    return Observed(watch.shown, watch.rows)


def _content(path: Path) -> bytes:
    return TIME.sub(b"", path.read_bytes())


def told(result: object) -> dict[str, object]:
    """What a result says: a posterior, or an estimator with one."""
    if isinstance(result, Posterior):
        guarantee = None if result.guarantee is None else json.dumps(result.guarantee.to_json(), sort_keys=True)
        canaries = None if result.canaries is None else json.dumps(result.canaries.to_json())
        leaves = jax.tree_util.tree_leaves_with_path(result.draws)
        return {
            "plan": json.dumps(result.plan, sort_keys=True, default=repr),
            "guarantee": guarantee,
            "canaries": canaries,
            "typical": None if result.guarantee is None else repr(result.guarantee.typical),
            "model": None if result.model is None else (result.model.name, repr(result.model.settings)),
            **{f"draws{jax.tree_util.keystr(path)}": (str(a.dtype), a.shape, a.tobytes()) for path, a in leaves},
        }
    if hasattr(result, "posterior_"):
        own = {name: value for name, value in vars(result).items() if name != "posterior_"}
        return told(result.posterior_) | {f"estimator {name}": _value(value) for name, value in own.items()}
    return {"result": repr(result)}


def _value(value: object) -> object:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return ADDRESS.sub("", repr(value)) if not isinstance(value, Model) else value.name


def called(command: str, home: Path) -> Observed:
    """A command of the terminal in a folder, with its exit code and whatever it leaves behind."""

    def work():
        with contextlib.chdir(home), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setenv("CONFIDE_STATE", str(home / "state"))
            monkeypatch.setenv("COLUMNS", "100")
            monkeypatch.setattr(sys, "argv", shlex.split(command))
            try:
                cli.main()
            except SystemExit as stopped:
                if stopped.code == 2:  # refused
                    raise
                return f"exit {stopped.code or 0}"
            return "no exit"

    return observed(work, home)


class Way(NamedTuple):
    """A way in: the records, the last of which is one more than there are; hostile ones; and what is done with them."""

    rows: list[Any]
    hostile: dict[str, Any]
    run: Callable[..., Observed]  # of rows; of the folder too, where it takes one

    def neighbour(self, name: str) -> list[Any]:
        rows = list(self.rows[:N])
        if name == "removed":
            return rows[:OWN] + rows[OWN + 1 :]
        if name == "added":
            return list(self.rows)
        rows[OWN] = self.hostile[name]
        return rows


def cases(ways: dict[str, Way], names: tuple[str, ...] | None = None, long: tuple[str, ...] = ()) -> list[Any]:
    """Every way with every neighbour that there is, or with those that are named; two of three take long together."""
    every = [
        (way, name)
        for way, found in ways.items()
        for name in (*found.hostile, "removed", "added")
        if names is None or name in names
    ]
    return [
        pytest.param(way, name, id=f"{way}-{name}", marks=[pytest.mark.long] * (way in long or place % 3 > 0))
        for place, (way, name) in enumerate(every)
    ]


def same(base: Observed, neighbour: Observed) -> None:
    assert "refused" not in base.shown, base.shown["refused"]
    assert base.rows, "no mechanism was reached"
    found = differences(base, neighbour)
    assert found == [], "\n".join(found)
