"""From a table and its schema, or from images, to a folder that may be published; and what that folder describes.

`fit` checks, reads, encodes and plans before anything is charged or written; the folder appears whole at the end. What
a killed run needs to go on is kept by `confide.app.runs.interrupted`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Any

from confide.app.runs import interrupted
from confide.app.runs.choices import Choice, choose, extra_accounts
from confide.app.runs.options import Request
from confide.app.runs.run_records import SCHEMA, Prepared, prepare
from confide.data import image_schema, schema
from confide.data.image_schema import PICTURES, Pictures
from confide.data.schema import Schema
from confide.inference import checkpoints, fitting
from confide.inference.options import Fit, RunSettings, values
from confide.inference.posterior import Posterior
from confide.privacy import charges
from confide.privacy.budget import Budget
from confide.validation import Refused

CHECKED = (
    "values that the schema does not admit count as missing; 'confide schema check' lists those of a table, for "
    "whoever holds it"
)  # the same for every table


def fit(request: Request, *, progress: bool | None = None, verbose: bool = True) -> Posterior:
    """Run what is asked and write the folder; refused before anything is charged where it cannot be done."""
    out = Path(request.out)
    if out.exists() or out.is_symlink():
        raise Refused(f"--out {str(out)!r} exists: give the name of a new folder, or remove it")
    try:  # whether a folder can be made there, before anything is paid for
        Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent)).rmdir()
    except OSError:
        raise Refused(
            f"--out {str(out)!r} cannot be written: its parent must be a folder that you may write to"
        ) from None
    budget = _budget(request)
    charges.open_account(request.ledger, request.dataset, budget.neighbours)  # refused before the data are read
    made = prepare(request)
    choice = choose(made.described, request, budget, made.records)
    ledger = None if request.ledger is None else str(Path(request.ledger).absolute())
    whole = replace(request, data=str(Path(request.data).absolute()), ledger=ledger)
    folder = interrupted.begin(out, asdict(whole))
    with interrupted.alone(folder):
        return _run(request, made, choice, folder, progress, verbose)


def resume(out: str | os.PathLike[str], *, progress: bool | None = None, verbose: bool = True) -> Posterior:
    """Go on with a run that was interrupted: the same draws as without the interruption, and one charge."""
    path = Path(out)
    request = _read_request(path)
    folder = interrupted.place(path)
    with interrupted.alone(folder):
        draft = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}")  # of a folder that was being written
        for found in path.absolute().parent.iterdir():
            if draft.fullmatch(found.name):
                shutil.rmtree(found, ignore_errors=True)
        if path.exists():  # perhaps it was complete, and only the secrets were left
            return _complete(path, folder)
        request = replace(request, out=str(path))
        made = prepare(request)
        choice = choose(made.described, request, _budget(request), made.records)
        return _run(request, made, choice, folder, progress, verbose)


def _read_request(out: Path) -> Request:
    """What was asked; refused where what it needs is not where it was."""
    try:
        request = Request(**interrupted.read_request(out))
    except TypeError:
        raise Refused(
            f"the run for {str(out)!r} was begun by another version of confide: resume it with that"
        ) from None
    for name, path in (("data", request.data), ("ledger", request.ledger)):
        if path is not None and not Path(path).exists():
            raise Refused(
                f"the run's {name}, {path!r}, is not where it was: put it back, or give the run up (--discard)"
            )
    return request


def _complete(path: Path, folder: Path) -> Posterior:
    """The posterior of a run that was killed between writing it and forgetting its secrets."""
    begun = checkpoints.read(folder / interrupted.CHECKPOINT)
    posterior = load(path)[0]
    if begun is None or posterior.plan.get("run") != begun.receipt:
        raise Refused(f"{str(path)!r} is another run's: move it away, and resume again")
    interrupted.end(path)
    return posterior


def discard(out: str | os.PathLike[str]) -> None:
    """Give up an interrupted run. What it was charged stays charged."""
    path = Path(out)
    if not interrupted.place(path).exists():
        raise interrupted.none_waits(path)
    with interrupted.alone(interrupted.place(path)):
        interrupted.end(path)


def _budget(request: Request) -> Budget:
    return Budget(epsilon=request.epsilon, delta=request.delta, neighbours=request.neighbours)


def _run(
    request: Request, made: Prepared, choice: Choice, folder: Path, progress: bool | None, verbose: bool
) -> Posterior:
    described = made.described
    checkpoint, saved = folder / interrupted.CHECKPOINT, False
    try:
        if choice.why is not None and verbose:
            print(f"confide chooses {choice.why}", file=sys.stderr)
        if isinstance(described, Schema) and verbose:
            print(CHECKED, file=sys.stderr)
        options = Fit(
            choice.model,
            made.data,
            _budget(request),
            choice.sampler,
            key=request.key,
            ledger=request.ledger,
            account=extra_accounts(request),
            checkpoint=checkpoint,
            progress=progress,
            verbose=verbose,
            assumptions=_assumptions(described, request),
            **values(RunSettings, request) | {"clip": choice.clip, "records": made.records},
        )
        posterior = fitting.infer(options, made.present)
        chosen_by = {} if choice.why is None else {"chosen": choice.why}
        posterior = replace(posterior, plan=posterior.plan | _describe_data(described) | chosen_by)
        try:
            posterior.save(request.out, _public_file(described))
        except Refused as refusal:
            raise Refused(
                f"{refusal}; the draws are kept, and 'confide resume {quote(request.out)}' writes them"
            ) from None
        saved = True
    finally:
        # What was refused before it was charged leaves nothing; what was interrupted waits for `resume`.
        if saved or not checkpoint.exists():
            interrupted.end(Path(request.out))
    return posterior


def _public_file(described: Schema | Pictures) -> dict[str, str]:
    """The file that says what is public."""
    return {PICTURES: described.to_json()} if isinstance(described, Pictures) else {SCHEMA: described.to_toml()}


def _assumptions(described: Schema | Pictures, request: Request) -> tuple[str, ...]:
    """What the guarantee says of the data: which tables it is about, and what their owner declared."""
    counted = (
        "The number of records is that of the rows in the file, and is treated as public."
        if request.records is None
        else "The number of records was declared by whoever ran it, and not counted."
    )
    if isinstance(described, Pictures):
        return (*described.assumptions(request.shape is not None, Path(request.data).is_dir()), counted)
    sentences = [
        "Each row of the table is one person's; whoever has several rows is protected for one of them alone.",
        "The guarantee is about tables whose records lie in the schema's domain: files that can be read, with its "
        "columns. Values outside it count as missing.",
        counted,
    ]
    if dropping := [column.name for column in described.used if column.missing == "drop"]:
        sentences.append(
            f"A record without a value in {', '.join(dropping)} counts as absent; its place is kept, and the number of "
            "records includes it."
        )
    if described.refusing:
        sentences.append(
            f"A table in which a record lacks a value in {', '.join(described.refusing)} is refused: that a run exists "
            "tells that no record does, and that is NOT counted in epsilon."
        )
    if described.learnt:
        sentences.append(
            "Bounds or categories of these columns, or that they are ignored, were taken from the records themselves, "
            f"and what that reveals is NOT counted in epsilon: {', '.join(described.learnt)}."
        )
    return tuple(sentences)


def _describe_data(described: Schema | Pictures) -> dict[str, Any]:
    """What the plan says of the data: all of it is public."""
    if isinstance(described, Pictures):
        return described.describe()
    target = described.column(described.target)
    return {
        "target": described.target,
        "features": list(described.features),
        "labels": list(target.labels),
        "norm_bound": described.bound,
    }


def load(folder: str | os.PathLike[str]) -> tuple[Posterior, Any]:
    """What `fit` wrote: the posterior, and the Schema or the Pictures that describe its data."""
    path = Path(folder)
    if (path / PICTURES).is_file():
        return Posterior.load(path), image_schema.load(path / PICTURES)
    if not (path / SCHEMA).is_file():
        waits = interrupted.place(path).exists()
        remedy = (
            f"it has not ended: 'confide resume {quote(str(path))}'"
            if waits
            else "give the --out folder of 'confide fit'"
        )
        raise Refused(f"{str(path)!r} does not hold a run: {remedy}")
    return Posterior.load(path), schema.load(path / SCHEMA)
