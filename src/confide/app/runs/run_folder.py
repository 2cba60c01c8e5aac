"""From a table and its schema, or from images, to a folder that may be published; and what that folder describes.

`fit` checks, reads, encodes and plans before anything is charged or written; the folder appears whole at the end. What
a run needs while it lasts (what was asked, the checkpoint with the key of the noise) lies elsewhere, in a state folder
that its owner alone can read, and is deleted when the output is complete; `confide.app.runs.interrupted` goes on with
what a killed run left there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

from confide import validation
from confide.app.runs import choices, run_records
from confide.app.runs.choices import Choice
from confide.app.runs.options import Request
from confide.app.runs.run_records import Prepared
from confide.data import encoding, image_schema, schema, tables
from confide.data.image_schema import PICTURES, Pictures
from confide.data.schema import Schema
from confide.inference import fitting
from confide.inference.checkpoints import flush_to_disk
from confide.inference.options import Fit, RunSettings
from confide.inference.posterior import Posterior
from confide.models import families
from confide.privacy import charges
from confide.privacy.budget import Budget
from confide.validation import Refused

SCHEMA = "schema.toml"
REASON = "model_reason"  # the entry of a plan that says why its model was chosen
REQUEST, CHECKPOINT = "request.json", "checkpoint"  # in the state folder
CHECKED = (
    "values that the schema does not admit count as missing, and numbers beyond their bounds as the bound; "
    "'confide schema check' shows those of a table, to whoever holds it"
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
    charges.open_account(request.ledger, request.dataset, _budget(request).neighbours)  # before the data are read
    made = prepare(request)
    choice = choose(request, made)
    ledger = None if request.ledger is None else str(Path(request.ledger).absolute())
    named = request.sampler or choice.sampler.name  # a later version may choose another one
    whole = replace(request, data=str(Path(request.data).absolute()), ledger=ledger, sampler=named)
    folder = begin(out, asdict(whole))
    with hold(folder):
        return run(request, made, choice, folder, progress, verbose)


def _budget(request: Request) -> Budget:
    return Budget(epsilon=request.epsilon, delta=request.delta, neighbours=request.neighbours)


def prepare(request: Request) -> Prepared:
    """The records as the model will see them. What their values are refuses nothing, unless the schema says so."""
    declared = None if request.records is None else validation.count(records=request.records)
    made = _read_table(request) if tables.is_table(Path(request.data)) else run_records.read_images(request)
    return made if declared is None else made._replace(records=declared)


def _read_table(request: Request) -> Prepared:
    """A table's records, as its schema encodes them."""
    if request.schema is None:
        raise Refused("a table needs --schema: 'confide schema init' drafts one")
    if request.classes is not None:
        raise Refused("--classes is for images, and a table's are in its schema: leave it out")
    if request.shape is not None:
        raise Refused("--shape is for images, and this is a table: leave it out")
    described = schema.loads(request.schema, SCHEMA).with_target(request.target)
    if request.priors is not None:
        described = described.with_priors(choices.read_priors(request.priors))
    if described.learnt and not request.accept_learnt:
        raise Refused(
            f"the schema was filled in from the data (learnt = true in {', '.join(described.learnt)}), and no epsilon "
            "counts that: replace the values by public ones and remove the mark, or give --accept-learnt-schema"
        )
    family = families.BY_WORD.get(choices.model_word(described, request))
    table = tables.open_table(request.data, request.delimiter, request.encoding, empty=request.records is not None)
    x, y, present = encoding.encode_table(described, table, count=family is not None and family.outcome == "count")
    return Prepared(described, (x, y), present, len(x))


def choose(request: Request, made: Prepared) -> Choice:
    """The model, the sampler and the clip that the records are fitted with."""
    return choices.choose(made.described, request, _budget(request), made.records)


def run(
    request: Request, made: Prepared, choice: Choice, folder: Path, progress: bool | None, verbose: bool
) -> Posterior:
    """Fit, and write the folder of the run; what is interrupted waits in its state folder."""
    described = made.described
    checkpoint, saved = folder / CHECKPOINT, False
    try:
        if verbose:
            print(choice.reason, file=sys.stderr)
        if isinstance(described, Schema) and verbose:
            print(CHECKED, file=sys.stderr)
        settings = {each.name: getattr(request, each.name) for each in fields(RunSettings)}
        options = Fit(
            choice.model,
            made.data,
            _budget(request),
            choice.sampler,
            key=request.key,
            ledger=request.ledger,
            account=choices.extra_accounts(request),
            checkpoint=checkpoint,
            progress=progress,
            verbose=verbose,
            assumptions=_assumptions(described, request),
            **settings | {"clip": choice.clip, "records": made.records},
        )
        posterior = fitting.infer(options, made.present)
        posterior = replace(posterior, plan=posterior.plan | describe_data(described) | {REASON: choice.reason})
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
            end(Path(request.out))
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


def describe_data(described: Schema | Pictures) -> dict[str, Any]:
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
        waits = state_folder(path).exists()
        remedy = (
            f"it has not ended: 'confide resume {quote(str(path))}'"
            if waits
            else "give the --out folder of 'confide fit'"
        )
        raise Refused(f"{str(path)!r} does not hold a run: {remedy}")
    return Posterior.load(path), schema.load(path / SCHEMA)


def lies_in(path: Path, folder: Path) -> bool:
    """Whether a file of this name comes to lie in the folder, or does so where a link in its place points."""
    whole = folder.resolve()
    return any(whole == parent or whole in parent.parents for parent in (path.parent.resolve(), path.resolve().parent))


def _home() -> Path:
    """CONFIDE_STATE, or the folder that the system keeps for the state of programs."""
    chosen = os.environ.get("CONFIDE_STATE")
    return Path(chosen or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "confide")


def state_folder(out: Path) -> Path:
    """Where a run that will write to `out` keeps its secrets."""
    whole = str(out.parent.resolve() / out.name)  # by whatever way the folder is reached
    return _home() / "runs" / f"{out.name}-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def begin(out: Path, request: dict[str, Any]) -> Path:
    """A folder for a new run, with what was asked; refused where one waits already."""
    folder = state_folder(out)
    if lies_in(folder / REQUEST, out) or lies_in(out, folder):
        raise Refused(f"CONFIDE_STATE and --out {str(out)!r} lie in one another: secrets and output must lie apart")
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        with hold(folder):  # refused where it is running
            raise Refused(
                f"a run for {str(out)!r} has begun and not ended: go on with 'confide resume {quote(str(out))}', "
                f"or give it up with 'confide resume {quote(str(out))} --discard'"
            ) from None
    except OSError as error:
        raise Refused(f"{str(folder)!r} cannot be made: {error.strerror}; set CONFIDE_STATE to a folder") from None
    draft = folder / f".{REQUEST}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(request, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / REQUEST)
    for path in (folder, folder.parent):
        flush_to_disk(path)
    return folder


def end(out: Path) -> None:
    """Forget the run: its key and its iterates are gone."""
    folder = state_folder(out)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise Refused(f"{str(folder)!r} holds the key of the noise and cannot be deleted: delete it by hand")


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the run, so that no other process works on it at the same time; a killed process holds nothing."""
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another process is working on this run: wait for it, or stop it first") from None
        yield
    finally:
        os.close(descriptor)
