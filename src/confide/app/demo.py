"""The whole way from a table to a published posterior, on records that ship with scikit-learn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from confide.app import report
from confide.app.runs import predictions, run_folder
from confide.app.runs.run_folder import Request
from confide.audits import planted
from confide.audits.wording import rounded_down
from confide.data import datasets
from confide.privacy import pricing
from confide.privacy.budget import Budget
from confide.privacy.ledger import Ledger
from confide.validation import Refused

EVERY = 5  # of so many rows one is kept apart
DATASET = "cell nuclei"


class Shown(NamedTuple):
    report: Path
    sentences: tuple[str, str, str]


def run(out: str | Path, verbose: bool = True) -> Shown:
    """Make everything in the new folder `out`, and say it in three sentences."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise Refused(f"--out {str(folder)!r} exists: give the name of a new folder, or remove it") from None
    except OSError as error:
        raise Refused(f"--out {str(folder)!r} cannot be made: {error.strerror}") from None
    records = datasets.table("breast_cancer")
    records._replace(rows=[row for i, row in enumerate(records.rows) if i % EVERY]).save(folder / "patients.csv")
    records._replace(rows=records.rows[::EVERY]).save(folder / "others.csv")
    schema = datasets.schema_path("breast_cancer").read_text(encoding="utf-8")
    (folder / "schema.toml").write_text(schema, encoding="utf-8")
    ledger = Ledger.create(folder / "ledger.db")
    ledger.enter(DATASET, Budget(epsilon=4.0, delta=1e-5))
    request = Request(
        data=str(folder / "patients.csv"),
        schema=schema,
        out=str(folder / "run"),
        epsilon=2.0,
        delta=5e-6,
        canaries=500,
        ledger=str(ledger.path),
        dataset=DATASET,
    )
    if verbose:
        print(
            f"confide fit {folder}/patients.csv --schema {folder}/schema.toml --epsilon 2 --delta 5e-6 \\\n"
            f"    --canaries 500 --ledger {folder}/ledger.db --dataset '{DATASET}' --out {folder}/run",
            file=sys.stderr,
        )
    posterior = run_folder.fit(request, verbose=verbose)
    predictions.predict(folder / "run", folder / "others.csv", folder / "predictions.csv")
    page = report.write(folder / "run", public=folder / "others.csv")
    described = run_folder.load(folder / "run")[1]
    judged = predictions.evaluate(posterior, described, folder / "others.csv")
    made = report.gather(posterior, described)
    assert posterior.guarantee is not None
    scores, (audited,) = judged.scores, made.evidence
    shown, said = planted.audit(posterior).bound, audited.verdict[0].lower() + audited.verdict[1:-1]
    unsettled = "; they give no intervals, and the report says why" if made.settled is False else ""
    return Shown(
        page,
        (
            f"Here is the posterior: {posterior.chains * posterior.size:,} draws that may be published; of "
            f"{judged.rows} other cases they tell {scores['accuracy']:.0%} right, where always saying the most common "
            f"would tell {scores['share of the most common label']:.0%}{unsettled}. {made.bought}".rstrip(),
            f"Here is what anyone could learn about a person from it: whether he or she was in the data is guessed "
            f"right at most {made.success:.1%} of the time, where a coin does 50%.",
            f"Here is how we checked: the best guess at which of {audited.members + audited.others} canaries were in "
            f"shows, with {audited.level} confidence, an epsilon of {rounded_down(shown)} "
            f"or more, where {posterior.guarantee.epsilon:.4g} is claimed ({said}); the "
            f"price was computed again from guarantee.json alone, epsilon {pricing.verify(posterior.guarantee):.4g} "
            f"at delta {posterior.guarantee.delta:.2g}; "
            f"and the ledger has epsilon {ledger.left(DATASET).epsilon:.3g} left for these people.",
        ),
    )
