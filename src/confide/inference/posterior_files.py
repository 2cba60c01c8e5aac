"""The files of a posterior: NetCDF for the draws, JSON for the rest. A folder appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from confide import models, validation
from confide.inference.checkpoints import flush_to_disk
from confide.inference.linear.release import KIND as LINEAR
from confide.inference.linear.release import LinearRelease
from confide.inference.linear.statistics_release import StatisticsRelease
from confide.inference.regression.release import KIND as REGRESSION
from confide.inference.regression.release import RegressionRelease
from confide.inference.release import Release
from confide.inference.traces import Trace
from confide.models.model import Model
from confide.privacy.budget import Guarantee
from confide.validation import Refused

FORMAT = 1
POSTERIOR, GUARANTEE, PLAN, CANARIES = "posterior.nc", "guarantee.json", "plan.json", "canaries.json"
RELEASE, TRACE = "release.json", "trace.json"
RELEASING = ("scoring", "sufficient_statistics")  # samplers that have a release


AnyRelease = Release | LinearRelease | RegressionRelease | StatisticsRelease
RELEASES: dict[str, type[AnyRelease]] = {
    LINEAR: LinearRelease,
    REGRESSION: RegressionRelease,
    "statistics": StatisticsRelease,
}


class Canaries(NamedTuple):
    """Whether each canary was in, and what the noisy sums of the run told of it.

    With s the noise that a step is priced for, c the clip, and x the coordinate of a canary in a noisy sum:
    """

    inside: np.ndarray
    scores: np.ndarray  # the higher, the more it looks like being in
    sums: np.ndarray  # (chains, canaries), sum of x / s over the steps
    squares: np.ndarray  # (chains, canaries), sum of (x / s)^2
    pulls: np.ndarray  # (chains, canaries), sum of x / c
    steps: int
    spread: float  # sum of (s / c)^2
    sampling_probability: float
    replaced: bool  # those that are out pull the other way

    @classmethod
    def of(cls, job: Any, inside: np.ndarray, replaced: bool) -> Canaries:
        """What a run told of its canaries, and by what it is to be judged: the noise that it was priced for."""
        job = job.ran
        scores, sums, squares, pulls = np.moveaxis(job.observations.statistics, 1, 0)
        multipliers, share = job.canary_terms()
        return cls(
            inside=inside,
            scores=scores.sum(axis=0),
            sums=sums,
            squares=squares,
            pulls=pulls,
            steps=len(multipliers),
            spread=float(np.sum(np.square(multipliers))),
            sampling_probability=share,
            replaced=replaced,
        )

    def to_json(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("scores", "sums", "squares", "pulls")}
        return {**self._asdict(), **arrays, "inside": self.inside.astype(int).tolist()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Canaries:
        arrays = {name: np.array(record[name], np.float64) for name in ("scores", "sums", "squares", "pulls")}
        inside = np.array(record["inside"], bool)
        shapes = {name: array.shape[-1:] for name, array in arrays.items()} | {"inside": inside.shape}
        numbers = (record["steps"], record["spread"], record["sampling_probability"])
        if set(shapes.values()) != {(inside.size,)} or not all(isinstance(number, (int, float)) for number in numbers):
            raise ValueError("its canaries do not fit together")
        return cls(**{**record, **arrays, "inside": inside})


class Stored(NamedTuple):
    """What is kept of a posterior."""

    draws: Any
    guarantee: Guarantee | None
    plan: dict[str, Any]
    model: Model | None
    canaries: Canaries | None
    release: AnyRelease | None = None
    trace: Trace | None = None

    def records(self) -> dict[str, Any]:
        """What the files of JSON hold, by their names."""
        known = None if self.model is None else {"name": self.model.name, "settings": self.model.settings}
        return {
            GUARANTEE: None if self.guarantee is None else self.guarantee.to_json(),
            PLAN: {
                "format": FORMAT,
                "plan": self.plan,
                "model": known,
                "variables": [[name, route] for name, route, _ in name_leaves(self.draws)],
            },
        }


def write(path: str | os.PathLike[str], stored: Stored, draws: Callable[[], Any], files: Mapping[str, str]) -> Path:
    """Write the new folder; `draws` makes them an ArviZ InferenceData, and `files` go beside them."""
    validation.instance(str | os.PathLike, path=path)
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{str(folder)!r} exists: give the name of a new folder")
    records = stored.records()
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        draws().to_netcdf(str(draft / POSTERIOR), engine="h5netcdf")
        for name, record in records.items():
            (draft / name).write_text(json.dumps(record, indent=2, allow_nan=False, default=float) + "\n")
        if stored.canaries is not None:
            (draft / CANARIES).write_text(json.dumps(stored.canaries.to_json(), allow_nan=False) + "\n")
        if stored.release is not None:
            (draft / RELEASE).write_text(json.dumps(stored.release.to_json(), allow_nan=False) + "\n")
        if stored.trace is not None:
            (draft / TRACE).write_text(json.dumps(stored.trace.to_json(), allow_nan=False) + "\n")
        for name, text in files.items():
            (draft / name).write_text(text, encoding="utf-8")
        for each in (*draft.iterdir(), draft):
            flush_to_disk(each)
        draft.replace(folder)
        flush_to_disk(folder.parent)
    except OSError as error:
        raise Refused(f"{str(folder)!r} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def has_release(folder: Path) -> bool:
    """Whether the run stores what its draws were made from, or should."""
    if (folder / RELEASE).exists():
        return True
    try:
        return json.loads((folder / PLAN).read_text())["plan"].get("sampler") in RELEASING
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read(path: str | os.PathLike[str], model: Model | None = None) -> Stored:
    """What `write` wrote; the model is given again where it was built from functions of the user's."""
    import xarray

    validation.instance(str | os.PathLike, path=path)
    folder = Path(path)
    try:
        record = json.loads((folder / PLAN).read_text())
        if record["format"] != FORMAT:
            raise Refused(f"{str(folder)!r} has format {record['format']}, this version reads {FORMAT}")
        with xarray.open_dataset(folder / POSTERIOR, group="posterior", engine="h5netcdf") as file:
            arrays = [(route, np.asarray(file[name].values)) for name, route in record["variables"]]
        guarantee = json.loads((folder / GUARANTEE).read_text())
        kept, told, kept_release, kept_trace = record["model"], folder / CANARIES, folder / RELEASE, folder / TRACE
        canaries = Canaries.from_json(json.loads(told.read_text())) if told.exists() else None
        if record["plan"].get("canaries", 0) != (0 if canaries is None else canaries.inside.size):
            raise Refused(f"{str(folder)!r} has another number of canaries than its plan: restore {CANARIES}")
        if record["plan"].get("sampler") in RELEASING and not kept_release.exists():
            raise Refused(f"{str(folder)!r} has draws without what they were made from: restore {RELEASE}")
        return Stored(
            draws=_nest(arrays),
            guarantee=None if guarantee is None else Guarantee.from_json(guarantee),
            plan=record["plan"],
            model=model or (models.rebuilt(kept["name"], kept["settings"]) if kept else None),
            canaries=canaries,
            release=_read_release(json.loads(kept_release.read_text())) if kept_release.exists() else None,
            trace=Trace.from_json(json.loads(kept_trace.read_text())) if kept_trace.exists() else None,
        )
    except Refused:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{str(folder)!r} does not hold a posterior that confide saved: {error}") from None


def _read_release(record: dict[str, Any]) -> AnyRelease:
    """Those of scoring have no kind."""
    return RELEASES.get(record.get("kind", ""), Release).from_json(record)


def name_leaves(tree: Any) -> list[tuple[str, list[str | int], Any]]:
    """(name, route, array) of every leaf."""
    rows = []
    for keys, array in jax.tree_util.tree_flatten_with_path(tree)[0]:
        route = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", str(key)))) for key in keys]
        listed = [isinstance(key, jax.tree_util.SequenceKey) for key in keys]
        route = [part if in_list else str(part) for part, in_list in zip(route, listed, strict=True)]
        name = ".".join(map(str, route)).replace("/", ".") or "parameters"
        taken = {"chain", "draw", *(row[0] for row in rows)}
        while name in taken:
            name += "_"
        rows.append((name, route, array))
    return rows


def _nest(arrays: list[tuple[list[str | int], np.ndarray]]) -> Any:
    """Dicts and lists along the routes; a tuple comes back as a list, a named tuple as a dict."""
    if len(arrays) == 1 and not arrays[0][0]:
        return arrays[0][1]
    heads: list[str | int] = list(dict.fromkeys(route[0] for route, _ in arrays))
    branches = {head: _nest([(route[1:], array) for route, array in arrays if route[0] == head]) for head in heads}
    return list(branches.values()) if all(isinstance(head, int) for head in heads) else branches
