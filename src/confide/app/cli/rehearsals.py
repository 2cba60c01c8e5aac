"""`confide rehearse`: the whole mechanism on made-up tables, before anything is spent or after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from confide.app.cli.printing import Json, Neighbours, print_json, say, show_table
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.inference.rehearsal import Rehearsal

NEEDED = ("schema", "n", "epsilon")


def rehearse(
    run: Annotated[
        Optional[Path], typer.Argument(help="A folder that 'confide fit' wrote; or give --schema.", show_default=False)
    ] = None,
    schema: Annotated[Optional[Path], typer.Option(help="Of tables that are made up; goes without a run.")] = None,
    n: Annotated[Optional[int], typer.Option(help="Number of records of each.")] = None,
    epsilon: Annotated[Optional[float], typer.Option(help="Privacy loss, above 0.")] = None,
    delta: Annotated[
        Optional[float], typer.Option(help="Probability that the bound fails, in (0, 1); 1/(10 n) by default.")
    ] = None,
    target: Annotated[Optional[str], typer.Option(help="The column to predict; the schema's by default.")] = None,
    model: Annotated[Optional[str], typer.Option(help="logistic, softmax, linear, poisson, ...")] = None,
    prior_scale: Annotated[Optional[float], typer.Option(help="Of coefficients, and of made-up truths.")] = None,
    sampler: Annotated[Optional[str], typer.Option(help="Another one than the default: sgld, dpvi, ...")] = None,
    neighbours: Neighbours = "add-remove",
    datasets: Annotated[int, typer.Option(help="Tables that are made up and fitted.")] = 50,
    seed: Annotated[int, typer.Option(help="Of whatever is made up.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit made-up tables whose truth is known, and see whether intervals hold it. Nothing is spent.

    With --schema tables have its shape and truths come from the prior: what a run of this size would be like. Of a
    finished run tables are made up from what it released, truths are draws of its posterior, and what is seen is
    written into its folder, where the report shows it as a simulation. No record is read.
    """
    given = {"schema": schema, "n": n, "epsilon": epsilon, "delta": delta}
    more = {"target": target, "model": model, "prior_scale": prior_scale, "sampler": sampler}
    if run is not None:
        if said := [name for name, value in (given | more).items() if value is not None]:
            raise Refused(f"--{said[0].replace('_', '-')} goes with --schema: leave it out, or leave the run out")
        _of_run(run, datasets, seed, as_json)
        return
    if missing := [name for name in NEEDED if given[name] is None]:
        raise Refused(f"--{missing[0]} is missing: give a run, or --schema with --n and --epsilon")
    from confide.app.runs.rehearsals import rehearse_schema

    found, names = rehearse_schema({**given, **more, "neighbours": neighbours}, datasets, seed)
    _show(found, names, as_json, {})


def _of_run(run: Path, datasets: int, seed: int, as_json: bool) -> None:
    from confide.app.runs import rehearsals, run_folder
    from confide.inference.bootstrap import rehearse

    posterior = run_folder.load(run)[0]
    found = rehearse(posterior, datasets, seed)
    path = rehearsals.save(found, run, posterior)
    names = posterior.plan.get("features") or []
    _show(found, list(names), as_json, {"rehearsal_file": str(path)})


def _show(found: Rehearsal, names: list[str], as_json: bool, more: dict[str, Any]) -> None:
    record = found.to_json()
    if as_json:
        print_json(record | {"features": names} | more)
        return
    say(
        f"Simulation, {found.datasets} made-up tables: 90% intervals held the truth in {found.coverage:.1%} of cases "
        f"(standard error {found.coverage_error:.1%}). Outcomes of fresh rows cost {record['log_loss']:.4f} nats each, "
        f"and {record['log_loss_of_the_truth']:.4f} with the truth. {found.seconds / found.datasets:.2f} s a fit."
    )
    print()
    if len(names) == found.truths.shape[1]:
        rows = [
            [name, f"{width:.3g}", f"{error:.3g}", f"{inside:.0%}"]
            for name, width, error, inside in zip(
                names, found.width, found.error, found.inside.mean(axis=0), strict=True
            )
        ]
        show_table("", ["column", "width of its interval", "error of its mean", "held the truth"], rows)
    if path := more.get("rehearsal_file"):
        print(path)
