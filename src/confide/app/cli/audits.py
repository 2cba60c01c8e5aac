"""`confide audit`: a run's claim against what attacks tell of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from confide.app.cli.printing import Delimiter, Encoding, Json, print_json, say, show_table
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.audits.verdicts import Audit
    from confide.inference.posterior import Posterior

VIOLATED = 3  # exit code
NOT_PRIVATE = "confide: what follows is computed from the rows, unpaid, and no guarantee covers it: do not publish it"


def audit(
    run: Annotated[Path, typer.Argument(help="The folder that 'confide fit' wrote.", show_default=False)],
    members: Annotated[
        Optional[Path], typer.Option(help="Rows that were fitted: attack the run with them. NOT for publication.")
    ] = None,
    nonmembers: Annotated[
        Optional[Path], typer.Option(help="Rows of the same population that were not fitted; goes with --members.")
    ] = None,
    made_up: Annotated[
        bool,
        typer.Option("--made-up", help="Run the run's program on made-up tables, and test its noisy sums."),
    ] = False,
    repetitions: Annotated[
        Optional[int], typer.Option(help="With --made-up: runs on each table; planned from the sizes if not given.")
    ] = None,
    seconds: Annotated[
        Optional[float], typer.Option(help="With --made-up: no further runs are begun after so many.")
    ] = None,
    seed: Annotated[
        Optional[int], typer.Option(help="With --made-up: what it is drawn from; the operating system's if not given.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the verdict and of the lower bound, in (0, 1).")] = 0.999,
    drop_overlap: Annotated[
        bool, typer.Option("--drop-overlap", help="Leave out rows that are on both sides.")
    ] = False,
    out: Annotated[
        Optional[Path], typer.Option(help="With --members: the JSON file; by default RUN-audit.json beside the run.")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """Try to refute a run's guarantee, by its canaries, on made-up tables, or by rows that were fitted and others.

    Canaries are planted by 'confide fit --canaries'; what they tell may be published. With --made-up the program of the
    run is built again and run on tables that are made up; no record is read, nothing is spent, and the result is
    written into the folder of the run, where all such audits are kept and judged together. With --members and
    --nonmembers a finished run is attacked by what it predicts for them, which may not: the result is written beside
    the run. The exit code is 3 where the claim is refuted, or the run is not the one that was priced. An audit that
    refutes nothing proves nothing.
    """
    if (members is None) != (nonmembers is None):
        raise Refused("--members and --nonmembers go together: give both, or neither to audit by canaries")
    for name, given in {"--repetitions": repetitions, "--seconds": seconds, "--seed": seed}.items():
        if given is not None and not made_up:
            raise Refused(f"{name} goes with --made-up: add that, or leave it out")
    if made_up and members is not None:
        raise Refused("--made-up reads no rows: leave --members and --nonmembers out, or audit twice")
    if made_up:
        violated = _by_made_up(run, confidence, out, drop_overlap, repetitions, seconds, seed, as_json)
    elif members is None or nonmembers is None:
        violated = _by_canaries(run, confidence, out, drop_overlap, as_json).violated
    else:
        how = {"confidence": confidence, "drop_overlap": drop_overlap, "delimiter": delimiter, "encoding": encoding}
        violated = _by_rows(run, members, nonmembers, out, how, as_json).violated
    if violated:
        raise typer.Exit(VIOLATED)


def _by_canaries(run: Path, confidence: float, out: Path | None, drop_overlap: bool, as_json: bool) -> Audit:
    from confide.app.runs import run_folder

    _without_rows(out, drop_overlap)
    posterior = run_folder.load(run)[0]
    if posterior.canaries is None:
        raise Refused(
            f"{str(run)!r} has no canaries: plant some in the next run with 'confide fit --canaries 1000', or audit "
            "this one with --made-up, or with --members and --nonmembers"
        )
    found = of_canaries(posterior, confidence)
    if as_json:
        print_json(found.to_json())
    else:
        for sentence in found.sentences():
            say(sentence)
    return found


def _by_made_up(
    run: Path,
    confidence: float,
    out: Path | None,
    drop_overlap: bool,
    repetitions: int | None,
    seconds: float | None,
    seed: int | None,
    as_json: bool,
) -> bool:
    """Whether all audits of the run on made-up tables, this one and earlier ones, refute it together."""
    from confide.app.runs import run_folder
    from confide.audits import made_up, repeated
    from confide.audits.wording import VIOLATIONS

    _without_rows(out, drop_overlap)
    posterior = run_folder.load(run)[0]
    earlier = repeated.load(run, posterior)
    repeated.check_confidence(earlier, confidence)
    found = made_up.audit_program(
        posterior,
        confidence=confidence,
        repetitions=repetitions,
        seconds=seconds,
        seed=seed,
        earlier=len(earlier),
    )
    same = repeated.same_result(earlier, found)
    records = earlier if same is not None else [*earlier, found.to_json()]
    path = Path(run) / repeated.PATTERN.format(same) if same is not None else repeated.save(found, run)
    together = repeated.combine(records)
    assert together is not None
    if as_json:
        print_json(together | {"audit_file": str(path), "added": same is None})
    else:
        if same is not None:
            say(f"Audit {same} of this run had this seed and the same result: this one adds nothing, and is not kept.")
        for sentence in together["sentences"]:
            say(sentence)
        print(path)
    return together["verdict"] in VIOLATIONS


def _without_rows(out: Path | None, drop_overlap: bool) -> None:
    if out is not None or drop_overlap:
        raise Refused(f"{'--out' if out is not None else '--drop-overlap'} goes with --members and --nonmembers")


def _by_rows(
    run: Path,
    members: Path,
    nonmembers: Path,
    out: Path | None,
    how: dict[str, Any],
    as_json: bool,
) -> Audit:
    """`how` are the further arguments of the attack."""
    from confide.app.runs import attack

    path = attack.place(run, out)
    found = attack.attack_run(run, members, nonmembers, **how)
    attack.save(found, path)
    print(NOT_PRIVATE, file=sys.stderr)
    if as_json:
        print_json(found.to_json() | {"audit_file": str(path)})
        return found.audit
    for sentence in found.sentences():
        say(sentence)
    print()
    columns = ["attack", "AUC", "F1", "accuracy", "found at 0.1%", "at 1%", "at 10% false alarms"]
    show_table("Attacks; the verdict rests on the first alone", columns, found.table())
    print(path)
    return found.audit


def of_canaries(posterior: Posterior, confidence: float | None = None) -> Audit:
    """The audit of a run that has them."""
    from confide.audits import planted

    return planted.audit(posterior) if confidence is None else planted.audit(posterior, confidence=confidence)


def summary(audit: Audit) -> dict[str, Any]:
    """The audit without its curves."""
    return {name: value for name, value in audit.to_json().items() if name != "scores"}
