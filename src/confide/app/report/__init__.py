"""One self-contained HTML page about a run: for reading, for printing, and for whoever has to decide."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from confide.app.report.content import Report, gather
from confide.app.report.page import render
from confide.app.runs import attack, predictions, rehearsals, run_folder
from confide.audits import repeated
from confide.data import atomic_files
from confide.privacy.ledger import Ledger
from confide.validation import Refused

__all__ = ["Report", "gather", "render", "write"]


def write(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    public: str | os.PathLike[str] | None = None,
    held_out: str | os.PathLike[str] | None = None,
    audit: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Path:
    """Write the report of a run: into its folder, or beside it where it shows statistics of confidential rows.

    Those are `held_out` rows, and an `audit` by rows that were fitted, as `confide audit --members` writes it.
    What `confide audit --made-up` and `confide rehearse` wrote into the folder may be published, and is shown.
    """
    run = Path(folder)
    posterior, schema = run_folder.load(run)
    rows, evaluation = public or held_out, None
    if rows is not None:
        evaluation = predictions.evaluate(posterior, schema, rows, delimiter, encoding)
    now = _now(ledger, posterior.plan) if ledger is not None else None
    kind = "public" if public is not None else "held-out" if held_out is not None else ""
    attacked = None if audit is None else attack.load(audit, posterior)
    found = repeated.combine(repeated.load(run, posterior)), rehearsals.load(run, posterior)
    made = gather(posterior, schema, evaluation, kind, now, attacked, *found)
    name = "held-out" if held_out is not None else "audit"
    path = Path(out) if out is not None else _beside(run, name) if made.confidential else run / "report.html"
    if made.confidential and run_folder.lies_in(path, run):
        raise Refused(f"--out {str(path)!r} lies in the run, which may be published: this report may not")
    if not path.name:
        raise Refused(f"--out {str(path)!r} is not a file: give the name of a new one")
    if out is not None and path.exists():
        raise Refused(f"--out {str(path)!r} exists: give the name of a new file, or remove it")
    page = render(made)
    with atomic_files.write_text(path, private=made.confidential) as file:
        file.write(page)
    return path


def _beside(run: Path, name: str) -> Path:
    whole = run.resolve()
    return whole.with_name(f"{whole.name}-{name}-report.html")


def _now(path: str | os.PathLike[str], plan: dict[str, Any]) -> dict[str, Any]:
    """The run's entry in the ledger with what is left at this moment."""
    entry = plan.get("ledger")
    if entry is None:
        raise Refused("the run was not charged to a ledger: leave --ledger out")
    book = Ledger(path).book()
    left, seal = book.left(entry["dataset"]), entry.get("seal")
    charge = next((c for c in book.history(entry["dataset"]) if c.receipt == entry["receipt"]), None)
    if charge is None or (seal and charge.seal != seal):
        raise Refused(
            f"the charge of the run, receipt {entry['receipt']!r}, is not in ledger {str(path)!r} as it was made: rows "
            "were cut off or written anew, or it is of another ledger"
        )
    return entry | {"left": left._asdict(), "now": True}
