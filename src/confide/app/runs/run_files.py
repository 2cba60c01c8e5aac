"""The files of a run's folder, held against one another: what one of them repeats of another has to be the same, and
none holds anything that no run writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confide.app.runs import choices, draws_file, rehearsals, run_folder
from confide.app.runs.draws_file import not_as_said
from confide.audits import repeated, stored_audits
from confide.data import features, image_schema, schema
from confide.data.image_schema import PICTURES, Pictures
from confide.data.schema import Schema
from confide.inference import posterior_files, verification
from confide.inference.comparison import as_json
from confide.inference.posterior import Posterior
from confide.inference.requests import RESTORE
from confide.inference.verification import Verification
from confide.models import families
from confide.privacy import pricing
from confide.privacy.budget import Guarantee
from confide.validation import Refused

NEEDED = (posterior_files.POSTERIOR, posterior_files.GUARANTEE, posterior_files.PLAN)
PARTS = {  # files that some runs have, and what of the posterior they hold
    posterior_files.RELEASE: "release",
    posterior_files.CANARIES: "canaries",
    posterior_files.TRACE: "trace",
}
DESCRIPTIONS = (run_folder.SCHEMA, PICTURES)
REPORT = "report.html"
PLAN_NAMES, MODEL_NAMES = {"format", "plan", "model", "variables"}, {"name", "settings"}


@contextmanager
def in_one_line(path: Path) -> Iterator[None]:
    """Whatever goes wrong while files are read and recomputed becomes a refusal in one line.

    Files may hold anything, and recomputing runs much of the library on it: every error means that they are not as a
    run wrote them."""
    try:
        yield
    except Refused as refusal:
        raise Refused(" ".join(str(refusal).split())) from None
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Refused(f"{str(path)!r} cannot be recomputed ({reason}): {RESTORE}") from None


def verify_guarantee(path: Path) -> tuple[Guarantee, float]:
    """A stored guarantee, and the epsilon that its event costs; refused where it states less."""
    try:
        guarantee = Guarantee.from_json(path.read_text(encoding="utf-8"))
    except Exception:
        raise Refused(
            f"{str(path)!r} is no guarantee that can be read: give the folder of a finished run, or its guarantee.json"
        ) from None
    with in_one_line(path):
        return guarantee, pricing.verify(guarantee)


def verify(folder: Path) -> Verification:
    """Recompute what follows from something else in the folder; refused in one line where it is not what is stored."""
    with in_one_line(folder):
        _check_files(folder)
        posterior = Posterior.load(folder)
        guarantee = _check_guarantee(folder)
        described = _read_description(folder)
        _check_plan_file(folder, posterior)
        _check_parts(folder, posterior)
        draws_file.check(folder, guarantee, posterior)
        entries = {} if described is None else _describe(described, posterior)
        verified = verification.verify(posterior, entries)
        if described is not None:
            _check_description(described, posterior)
        written = _check_later_files(folder, posterior)
        return verified._replace(not_recomputed=(*verified.not_recomputed, *written))


def _check_files(folder: Path) -> None:
    """A folder holds what a run and the commands after it write there, and nothing else."""
    names = {path.name for path in folder.iterdir()}
    if missing := [name for name in NEEDED if name not in names]:
        raise Refused(f"{str(folder)!r} lacks {missing[0]}: {RESTORE}")
    known = {*NEEDED, *PARTS, *DESCRIPTIONS, REPORT, rehearsals.FILE}
    known |= {repeated.PATTERN.format(number + 1) for number in range(len(names))}
    strays = sorted(path.name for path in folder.iterdir() if path.name not in known or not path.is_file())
    if strays:
        raise Refused(f"{str(folder)!r} holds {strays[0]}, which no command of confide writes there: move it elsewhere")
    if names.issuperset(DESCRIPTIONS):
        raise Refused(f"{str(folder)!r} holds {' and '.join(DESCRIPTIONS)}, and a run has one of them: {RESTORE}")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _check_guarantee(folder: Path) -> dict[str, Any]:
    """The guarantee, whose sentences follow from the rest of it."""
    record = _read(folder / posterior_files.GUARANTEE)
    expected = as_json(Guarantee.from_json(record).to_json())
    _check_same(expected, record, posterior_files.GUARANTEE)
    return expected


def _check_same(expected: Any, record: Any, file: str) -> None:
    """What was read from a file is all that is in it."""
    if not isinstance(record, dict):
        raise not_as_said(file, "what it holds")
    for name in sorted(set(expected) | set(record)):
        if name not in record or name not in expected or expected[name] != record[name]:
            raise not_as_said(file, name)


def _check_plan_file(folder: Path, posterior: Posterior) -> None:
    """The names beside the plan, and a model that has no other settings than those that make it again."""
    record = _read(folder / posterior_files.PLAN)
    for name in sorted(PLAN_NAMES ^ set(record)):
        raise not_as_said(posterior_files.PLAN, name)
    model = record["model"]
    if model is None:
        return
    for name in sorted(MODEL_NAMES ^ set(model)):
        raise not_as_said(posterior_files.PLAN, f"model.{name}")
    if model["name"] != posterior.plan.get("model"):
        raise not_as_said(posterior_files.PLAN, "model.name")
    if posterior.model is not None and as_json(posterior.model.settings) != model["settings"]:
        raise not_as_said(posterior_files.PLAN, "model.settings")


def _check_parts(folder: Path, posterior: Posterior) -> None:
    """The files beside the plan that some runs have hold what was read from them, and nothing else."""
    for file, part in PARTS.items():
        held = getattr(posterior, part)
        if held is not None:
            _check_same(as_json(held.to_json()), _read(folder / file), file)


def _read_description(folder: Path) -> Schema | Pictures | None:
    """The file that says what is public about the data, as a run writes it."""
    if (folder / PICTURES).is_file():
        pictures = image_schema.load(folder / PICTURES)
        _check_same(as_json(json.loads(pictures.to_json())), _read(folder / PICTURES), PICTURES)
        return pictures
    if not (folder / run_folder.SCHEMA).is_file():
        return None
    table = schema.load(folder / run_folder.SCHEMA)
    if table.to_toml() != (folder / run_folder.SCHEMA).read_text(encoding="utf-8"):
        raise Refused(f"{run_folder.SCHEMA} is not written as a run writes it: {RESTORE}")
    return table


def _describe(described: Schema | Pictures, posterior: Posterior) -> dict[str, Any]:
    """What the plan says of the data, and why the run fits its model."""
    possible = choices.model_reasons(described, posterior.plan["model"])
    stored = posterior.plan.get(run_folder.REASON)
    return run_folder.describe_data(described) | {run_folder.REASON: stored if stored in possible else possible[0]}


def _check_description(described: Schema | Pictures, posterior: Posterior) -> None:
    """What else of the run follows from the schema or from the images."""
    plan = posterior.plan
    if isinstance(described, Pictures):
        rows = [described.numbers] if described.flattened else list(described.shape)
        if plan["arrays"][0] != rows:
            raise not_as_said(PICTURES, "flattened")
        return
    if plan["arrays"][0] != [len(described.features)]:
        raise not_as_said(run_folder.SCHEMA, "columns")
    columns = plan["request"]["sampler"].get("features")
    described_columns = features.features_of(described, scaled_outcome=families.outcome(plan["model"]) == "number")
    if columns is not None and columns != as_json([feature._asdict() for feature in described_columns]):
        raise not_as_said(run_folder.SCHEMA, "columns")


def _check_later_files(folder: Path, posterior: Posterior) -> list[str]:
    """What other commands wrote into the folder; the names of what of it is not recomputed."""
    names = []
    if audits := repeated.load(folder, posterior):
        for number, record in enumerate(audits, start=1):
            stored_audits.check(record, posterior, number)
        names.append("made_up")
    if rehearsals.load(folder, posterior) is not None:
        rehearsals.check(_read(folder / rehearsals.FILE))
        names.append("rehearsal")
    return [*names, *(["report"] if (folder / REPORT).exists() else [])]
