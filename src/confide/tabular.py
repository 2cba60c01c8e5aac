"""From a table and its schema to a folder that may be published, and from that folder to predictions.

`fit` checks, reads, encodes and plans before anything is charged or written; the folder appears whole at the end. What
a killed run needs to go on is kept by `confide.pending`.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from confide import checkpoints, checks, encoding, fitting, jobs, models, pending, samplers, schema, tables
from confide.budget import Budget
from confide.checks import Refused
from confide.events import Neighbours
from confide.jobs import Asked
from confide.models.model import Model
from confide.noise import Noise
from confide.posterior import Posterior
from confide.run import CHECKPOINT_SECONDS
from confide.schema import Column, Schema

ModelName = Literal["logistic", "softmax", "linear", "poisson", "mlp"]
SAMPLERS = ("sgld", "psgld", "sghmc", "sgnht", "sgfs", "wang2015_sgld")
SCHEMA = "schema.toml"
NOISE_SHARE = 0.25  # of half the target's range: the standard deviation of a linear model's outcomes if none is given


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of a run on a table; None is planned or taken from the schema."""

    data: str
    schema: str  # as TOML text
    out: str
    epsilon: float
    delta: float
    neighbours: Neighbours = "add-remove"
    target: str | None = None
    model: ModelName | None = None
    prior_scale: float = 1.0
    noise_scale: float | None = None  # in the unit of the target
    hidden: int = 32
    sampler: str = "sgld"
    temperature: float = 1.0
    steps: int | None = None
    batch_size: int | None = None
    clip: float | None = None
    chains: int = 1
    draws: int | None = None
    burn_in: int | None = None
    noise: Noise = "default"
    ledger: str | None = None
    dataset: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    accept_learnt: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    key: int | None = None


class Prepared(NamedTuple):
    schema: Schema
    model: Model
    data: tuple[np.ndarray, np.ndarray]


def fit(request: Request, *, progress: bool | None = None, verbose: bool = True) -> Posterior:
    """Run what is asked and write the folder; refused before anything is charged where it cannot be done."""
    out = Path(request.out)
    if out.exists() or out.is_symlink():
        raise Refused(f"--out {str(out)!r} exists: give the name of a new folder, or remove it")
    if not out.absolute().parent.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise Refused(f"--out {str(out)!r} cannot be written: its parent must be a folder that you may write to")
    prepared = _prepared(request)
    ledger = None if request.ledger is None else str(Path(request.ledger).absolute())
    whole = replace(request, data=str(Path(request.data).absolute()), ledger=ledger)
    folder = pending.begin(out, asdict(whole))
    with pending.alone(folder):
        return _run(request, prepared, folder, progress, verbose)


def resume(out: str | os.PathLike[str], *, progress: bool | None = None, verbose: bool = True) -> Posterior:
    """Go on with a run that was interrupted: the same draws as without the interruption, and one charge."""
    path = Path(out)
    request = Request(**pending.asked(path))
    folder = pending.place(path)
    with pending.alone(folder):
        draft = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}")  # of a folder that was being written
        for found in path.absolute().parent.iterdir():
            if draft.fullmatch(found.name):
                shutil.rmtree(found, ignore_errors=True)
        if path.exists():  # perhaps it was complete, and only the secrets were left
            return _completed(path, folder)
        return _run(replace(request, out=str(path)), _prepared(request), folder, progress, verbose)


def _completed(path: Path, folder: Path) -> Posterior:
    """The posterior of a run that was killed between writing it and forgetting its secrets."""
    begun = checkpoints.read(folder / pending.CHECKPOINT)
    posterior = load(path)[0]
    if begun is None or posterior.plan.get("run") != begun.receipt:
        raise Refused(f"{str(path)!r} is another run's: move it away, and resume again")
    pending.end(path)
    return posterior


def discard(out: str | os.PathLike[str]) -> None:
    """Give up an interrupted run. What it was charged stays charged."""
    path = Path(out)
    if not pending.place(path).exists():
        raise pending.none_waits(path)
    with pending.alone(pending.place(path)):
        pending.end(path)


def _prepared(request: Request) -> Prepared:
    described = schema.loads(request.schema, SCHEMA).aimed(request.target)
    if described.learnt and not request.accept_learnt:
        raise Refused(
            f"the schema was filled in from the data (learnt = true in {', '.join(described.learnt)}), and no epsilon "
            "counts that: replace the values by public ones and remove the mark, or give --accept-learnt-schema"
        )
    dropping = [column.name for column in described.used if column.missing == "drop"]
    if dropping and request.neighbours == "replace-one":
        raise Refused(
            f"missing = 'drop' in {dropping[0]!r} makes the number of records depend on single values, which "
            "--neighbours replace-one does not allow: use 'indicator', or add-remove"
        )
    model = chosen_model(described, request)
    table = tables.open_table(request.data, request.delimiter, request.encoding)
    x, y, _ = encoding.encode_table(described, table, count=model.name == "poisson_regression")
    if not len(x):
        raise Refused(f"{table.path}: every record has a missing value and is dropped: change the policy in the schema")
    if model.kind == "classification" and len(np.unique(y)) < 2:
        label = described.column(described.target).labels[int(y[0])]
        raise Refused(
            f"{table.path}: column {described.target!r} is {label!r} in every record: there is nothing to tell apart; "
            "check the target"
        )
    return Prepared(described, model, (x, y))


def _run(request: Request, prepared: Prepared, folder: Path, progress: bool | None, verbose: bool) -> Posterior:
    described, model, data = prepared
    checkpoint, saved = folder / pending.CHECKPOINT, False
    try:
        budget = Budget(epsilon=request.epsilon, delta=request.delta, neighbours=request.neighbours)
        clip = request.clip
        if clip is None:
            clip = jobs.bounded_clip(model, budget, len(data[0]), described.bound, request.chains)
        posterior = fitting.completed(
            model,
            data,
            budget,
            chosen_sampler(request),
            Asked(
                request.steps,
                request.batch_size,
                clip,
                request.chains,
                request.draws,
                request.burn_in,
                request.noise == "secure",
            ),
            key=request.key,
            ledger=request.ledger,
            dataset=request.dataset,
            noise=request.noise,
            checkpoint=checkpoint,
            checkpoint_seconds=request.checkpoint_seconds,
            progress=progress,
            verbose=verbose,
            assumptions=_assumptions(described),
        )
        posterior = replace(posterior, plan=posterior.plan | _described(described))
        posterior.save(request.out, {SCHEMA: described.to_toml()})
        saved = True
    finally:
        # What was refused before it was charged leaves nothing; what was interrupted waits for `resume`.
        if saved or not checkpoint.exists():
            pending.end(Path(request.out))
    return posterior


def chosen_model(described: Schema, request: Request) -> Model:
    """The model that is asked for, or the one that goes with the target."""
    target, dimension = described.column(described.target), len(described.features)
    labels = len(target.labels)
    name = request.model or ("linear" if not labels else "logistic" if labels == 2 else "softmax")
    checks.one_of(get_args(ModelName), model=name)
    if name in ("linear", "poisson") and labels:
        raise Refused(f"--model {name} needs a numeric target, and {target.name!r} is {target.kind}: choose softmax")
    if name in ("logistic", "softmax") and not labels:
        raise Refused(f"--model {name} needs a target with labels, and {target.name!r} is numeric: choose linear")
    if name == "logistic" and labels != 2:
        raise Refused(f"--model logistic needs two labels, and {target.name!r} has {labels}: choose softmax")
    if name == "poisson" and not (float(target.low or 0).is_integer() and float(target.high or 0).is_integer()):
        raise Refused(f"--model poisson needs counts, and the bounds of {target.name!r} are not whole: make them so")
    if name == "poisson" and (target.low is None or target.low < 0):
        raise Refused(
            f"--model poisson needs counts, and {target.name!r} may be below 0: raise its bound, or choose linear"
        )
    scale = request.prior_scale
    if name == "logistic":
        return models.logistic_regression(dimension, scale)
    if name == "softmax":
        return models.softmax_regression(dimension, labels, scale)
    if name == "poisson":
        return models.poisson_regression(dimension, scale)
    noise = NOISE_SHARE if labels else _noise(target, request.noise_scale)
    if name == "linear":
        return models.linear_regression(dimension, scale, noise)
    return models.mlp(dimension, labels or None, request.hidden, scale, noise)


def _noise(target: Column, given: float | None) -> float:
    """The standard deviation of the outcomes on the scale of [-1, 1]."""
    if given is None:
        return NOISE_SHARE
    if target.scale == "log":
        raise Refused("--noise-scale has no unit where the target has scale = 'log': leave it out")
    assert target.low is not None
    assert target.high is not None
    return 2.0 * checks.positive(noise_scale=given) / (target.high - target.low)


def chosen_sampler(request: Request) -> samplers.Sampler:
    name = checks.one_of(SAMPLERS, sampler=request.sampler)
    build: Any = getattr(samplers, name)
    return build() if name == "wang2015_sgld" else build(temperature=request.temperature)


def _assumptions(described: Schema) -> tuple[str, ...]:
    sentences = ["Each row of the table is one person's; whoever has several rows is protected for one of them alone."]
    if dropped := [column.name for column in described.used if column.missing == "drop"]:
        sentences.append(
            f"Records without a value in {', '.join(dropped)} were left out; the number of those that stayed is "
            "treated as public."
        )
    if described.learnt:
        sentences.append(
            "Bounds or categories of these columns were taken from the records themselves, and what they reveal is NOT "
            f"counted in epsilon: {', '.join(described.learnt)}."
        )
    return tuple(sentences)


def _described(described: Schema) -> dict[str, Any]:
    """What the plan says of the table: all of it is in the schema."""
    target = described.column(described.target)
    return {
        "target": described.target,
        "features": list(described.features),
        "labels": list(target.labels),
        "norm_bound": described.bound,
    }


def load(folder: str | os.PathLike[str]) -> tuple[Posterior, Schema]:
    """What `fit` wrote."""
    path = Path(folder)
    if not (path / SCHEMA).is_file():
        waits = pending.place(path).exists()
        remedy = f"it has not ended: 'confide resume {path}'" if waits else "give the --out folder of 'confide fit'"
        raise Refused(f"{str(path)!r} does not hold a run: {remedy}")
    return Posterior.load(path), schema.load(path / SCHEMA)
