"""A finished run is attacked from outside: by what its posterior predicts for rows that were fitted and for others.

The attack that the verdict rests on is fixed beforehand: the loss of each row under the posterior predictive, which is
what the other attacks vary. Those are shown beside it and prove nothing, since the best of several attacks exceeds any
bound more often than it should.

What is found is a statistic of the rows themselves, unpaid: it never goes into the folder of the run.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from confide import validation
from confide.app.runs import run_folder, run_records
from confide.audits.losses import Data, among, losses, probabilities
from confide.audits.scores import WARNING, Scores
from confide.audits.threshold import threshold, threshold_attack
from confide.audits.verdicts import Audit, judge
from confide.audits.wording import CONFIDENCE
from confide.data import atomic_files
from confide.data.image_schema import Pictures
from confide.data.schema import Schema
from confide.inference.posterior import Posterior
from confide.models import inputs
from confide.validation import Refused

FORMAT = 2
OTHERS = ("confidence", "entropy", "modified entropy")  # attacks on classifiers that are shown beside that on the loss


@dataclass(frozen=True, kw_only=True, repr=False)
class Finished:
    """What attacks on a finished run found. NOT to be published: it depends on the rows, and no guarantee covers it.

    Attributes:
        audit: the claim against the attack on the loss, and the verdict.
        shown: the other attacks, which prove nothing beyond it.
        dropped: rows that were on both sides, and left out of both.
        run: which run it was, as its plan says.
    """

    audit: Audit
    shown: tuple[Scores, ...]
    dropped: int
    run: str

    def __repr__(self) -> str:
        return "<Finished: an audit of records, NOT TO BE PUBLISHED; print it to see it>"

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language."""
        scores = self.audit.scores
        left_out = ()
        if self.dropped:
            left_out = (f"{self.dropped:,} rows were among the members and the others, and were left out of both.",)
        return (
            *self.audit.sentences(),
            *left_out,
            f"Of {len(scores.members):,} members and {len(scores.nonmembers):,} others, the attack on the loss puts a "
            f"member above another row with a probability of {scores.auc:.3f} (AUC; guessing has 0.5).",
            "An attack that fails proves nothing: a better one may succeed.",
        )

    def table(self) -> list[list[str]]:
        """A row for each attack: AUC, F1, accuracy, and members found at three shares of false alarms."""
        rows = []
        for scores in (self.audit.scores, *self.shown):
            rates = [f"{scores.tpr_at_fpr(rate):.2%}" for rate in (0.001, 0.01, 0.1)]
            rows.append([scores.name, f"{scores.auc:.3f}", f"{scores.f1:.3f}", f"{scores.accuracy:.3f}", *rates])
        return rows

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "warning": WARNING,
            "run": self.run,
            "dropped": self.dropped,
            "audit": self.audit.to_json(),
            "attacks": [scores.to_json() for scores in self.shown],
        }


def attack_run(
    folder: str | os.PathLike[str],
    members: str | os.PathLike[str],
    nonmembers: str | os.PathLike[str],
    *,
    confidence: float = CONFIDENCE,
    drop_overlap: bool = False,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Finished:
    """Attack the run in `folder` with a table of rows that it was fitted to and one of rows that it was not.

    Args:
        folder: of a run that `confide fit` wrote.
        members: a CSV or Parquet file with the schema's columns; rows that were fitted.
        nonmembers: rows of the same population that were not.
        confidence: of the verdict and of the lower bound.
        drop_overlap: leave rows that are on both sides out; else they are refused.
    """
    confidence = validation.probability(confidence=confidence)
    posterior, schema = run_folder.load(folder)
    if posterior.guarantee is None:
        raise Refused(f"{str(folder)!r} has no guarantee, so there is no claim to audit: give a run of 'confide fit'")
    paths = (Path(members), Path(nonmembers))
    if paths[0].exists() and paths[1].exists() and paths[0].samefile(paths[1]):
        raise Refused(f"--members and --nonmembers are one file, {str(members)!r}: give rows that were not fitted")
    one, two = (_read(posterior, schema, path, delimiter, encoding) for path in paths)
    records = posterior.plan["records"]
    if len(one[0]) > inputs.capacity(records):
        raise Refused(
            f"{str(members)!r} has {len(one[0]):,} rows and the run is of {records:,} records: give members alone"
        )
    one, two, dropped = _apart(one, two, paths, drop_overlap)
    loss, *others = _attacks(posterior, one, two)
    audit = judge(posterior.guarantee, loss, confidence=confidence)
    return Finished(audit=audit, shown=tuple(others), dropped=dropped, run=posterior.plan.get("run", ""))


def _read(
    posterior: Posterior, schema: Schema | Pictures, path: Path, delimiter: str | None, text_encoding: str | None
) -> tuple[np.ndarray, np.ndarray]:
    x, y = run_records.records(posterior, schema, path, delimiter, text_encoding)
    target = schema.column(schema.target)
    if np.all(y == y[0]):
        said = repr(target.labels[int(y[0])]) if target.labels else "the same"
        raise Refused(f"{path}: column {target.name!r} is {said} in every row: give rows that differ in it")
    return x, y


def _apart(one: Data, two: Data, paths: tuple[Path, Path], drop: bool) -> tuple[Data, Data, int]:
    """Both sides without the rows that are on both, and how many those were; refused unless they may be dropped.

    They are left out of both: without the common rows on one side alone, the two would no longer be drawn alike.
    """
    shared = among(one, two), among(two, one)
    count, size = int(shared[1].sum()), len(two[0])
    if count == size or np.all(shared[0]):
        raise Refused(f"all rows of one of {paths[0]} and {paths[1]} are in the other: give rows that were not fitted")
    if count and not drop:
        raise Refused(
            f"{count:,} of {size:,} rows of {paths[1]} are in {paths[0]} too, as the model sees them: give rows that "
            "were not fitted, or --drop-overlap to leave those out"
        )
    one, two = ((x[~both], y[~both]) for (x, y), both in zip((one, two), shared, strict=True))
    return one, two, int(shared[0].sum() + shared[1].sum())


def _attacks(posterior: Posterior, one: Data, two: Data) -> list[Scores]:
    """The attack on the loss, then the others; everything is predicted once."""
    x, y = (np.concatenate(pair) for pair in zip(one, two, strict=True))
    if posterior.model is not None and posterior.model.kind != "classification":
        each = losses(posterior, x, y)
        return [threshold_attack(each[: len(one[0])], each[len(one[0]) :])]
    predicted, places = probabilities(posterior, x), np.arange(len(x))[:, None]
    sides = [(places[: len(one[0])], one[1]), (places[len(one[0]) :], two[1])]
    return [threshold(lambda rows: predicted[rows[:, 0]], *sides, score=score) for score in ("loss", *OTHERS)]


def place(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Where a result is to be written: beside the folder of the run; refused inside it."""
    run = Path(folder).resolve()
    path = run.with_name(f"{run.name}-audit.json") if out is None else Path(out)
    if run_folder.lies_in(path, run):
        raise Refused(f"--out {str(path)!r} lies in the run, which may be published: an audit of records may not")
    if out is not None and (path.exists() or not path.name):
        raise Refused(f"--out {str(path)!r} exists: give the name of a new file, or remove it")
    return path


def save(found: Finished, path: Path) -> None:
    """Write the result for its owner's eyes alone."""
    with atomic_files.write_text(path, private=True) as file:
        json.dump(found.to_json(), file, indent=2, allow_nan=False)
        file.write("\n")


def load(path: str | os.PathLike[str], posterior: Posterior) -> dict[str, Any]:
    """What `save` wrote, refused where it is of another run."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        known = record["format"] == FORMAT and {"run", "audit", "attacks"} <= set(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "it is no audit"
        raise Refused(f"--audit {str(path)!r} cannot be read: {reason}; give what 'confide audit' wrote") from None
    if not known:
        raise Refused(f"--audit {str(path)!r} is of another version: run 'confide audit' again")
    if record["run"] != posterior.plan.get("run", ""):
        raise Refused(f"--audit {str(path)!r} is of another run: run 'confide audit' on this one")
    return record
