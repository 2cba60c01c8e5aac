"""`confide fit` and what follows it: resume, predict, report, verify; and the demonstration of them all."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from confide.app.cli import audits
from confide.app.cli.printing import Delimiter, Encoding, Json, print_json, say
from confide.app.runs.options import Request
from confide.inference.options import RunSettings, names
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.inference.posterior import Posterior

Run = Annotated[Path, typer.Argument(help="The folder that 'confide fit' wrote.", show_default=False)]
NewData = Annotated[
    Path,
    typer.Argument(
        help="A CSV or Parquet file with the schema's columns, or images: an .npz file or a folder.", show_default=False
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No plan and no progress bar.")]


KINDS = {"int": int, "float": float, "bool": bool}  # of options; what is none of these is text


def command(kind: type[Any]) -> Callable[[Callable[..., None]], Any]:
    """A function of options, and of further parameters by name, as a command that has a parameter for every option.

    What is said of data and model comes first in the help, and the settings that all runs share come last.
    """
    shared = names(RunSettings)
    offered = sorted((each for each in fields(kind) if each.metadata.get("command")), key=lambda f: f.name in shared)

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            asked = {}
            for each in offered:
                if (value := given.pop(each.name)) is not None:
                    asked[each.name] = each.metadata["read"](value) if "read" in each.metadata else value
            function(kind(**asked), **given)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [*map(_parameter, offered), *(each.replace(kind=each.KEYWORD_ONLY) for each in own)]
        made: Any = run
        del made.__wrapped__  # whose parameters are others
        made.__signature__ = inspect.Signature(parameters)
        made.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(each: Field[Any]) -> inspect.Parameter:
    words, required = each.metadata, each.default is MISSING
    listed = isinstance(each.default, tuple)
    kind = words.get("kind") or KINDS.get(str(each.type).removesuffix(" | None"), str)
    if words.get("argument"):
        shown: Any = typer.Argument(help=words["command"], show_default=False)
    else:
        shown = typer.Option(*([words["flag"]] if "flag" in words else []), help=words["command"])
    optional = not required and (each.default is None or listed)
    default = inspect.Parameter.empty if required else None if listed else each.default
    annotation = Annotated[Optional[kind] if optional else kind, shown]
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@command(Request)
def fit(request: Request, quiet: Quiet = False, as_json: Json = False) -> None:
    """Fit a model to a table or to images within a privacy budget, and write a folder that may be published.

    Everything is checked and priced before the ledger is charged and before anything is written. A run that is
    interrupted goes on with 'confide resume'. With --canaries the run is audited at its end, with exit code 3 where its
    claim is refuted.
    """
    from confide.app.runs import run_folder

    if "bayesian" in request.account and (quiet or as_json):
        raise Refused("--account bayesian prints an estimate for you alone: leave out --quiet and --json, or it")
    try:
        posterior = run_folder.fit(
            request, progress=False if quiet or as_json else None, verbose=not (quiet or as_json)
        )
    except KeyboardInterrupt:
        waits = run_folder.state_folder(Path(request.out)).exists()
        rest = f"'confide resume {quote(request.out)}' goes on with it" if waits else "nothing was charged"
        print(f"confide: interrupted: {rest}", file=sys.stderr)
        raise
    _print_files(posterior, Path(request.out), as_json)


def resume(
    run: Annotated[Path, typer.Argument(help="The --out folder of the interrupted run.", show_default=False)],
    discard: Annotated[bool, typer.Option("--discard", help="Give the run up instead. Its charge stays.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted: the same draws as without the interruption, and no second charge."""
    from confide.app.runs import interrupted

    if discard:
        interrupted.discard(run)
        say(f"The run for {run} is given up; what it was charged stays charged.")
        return
    posterior = interrupted.resume(run, progress=False if quiet or as_json else None, verbose=not (quiet or as_json))
    _print_files(posterior, run, as_json)


def _print_files(posterior: Posterior, out: Path, as_json: bool) -> None:
    from confide.privacy.budget import rounded_up

    guarantee = posterior.guarantee
    assert guarantee is not None
    files = sorted(str(path) for path in out.iterdir())
    audit = None if posterior.canaries is None else audits.of_canaries(posterior)
    if as_json:
        record = {"run": str(out), "files": files, "model": posterior.plan.get("model_reason")}
        record |= {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
        print_json(record | ({} if audit is None else {"audit": audits.summary(audit)}))
    else:
        print("\n".join(files))
        refuted = audit is not None and audit.violated
        claimed = "differentially private, it claims" if refuted else "differentially private"
        print(f"({rounded_up(guarantee.epsilon, 4)}, {rounded_up(guarantee.delta, 3)})-{claimed}.")
        for sentence in () if audit is None else audit.sentences():
            say(sentence)
        if not refuted:
            print(f"Next: confide report {quote(str(out))}")
    if audit is not None and audit.violated:
        raise typer.Exit(audits.VIOLATED)


def predict(
    run: Run,
    data: NewData,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")],
    probability: Annotated[float, typer.Option(help="Of the credible intervals.")] = 0.9,
    keep: Annotated[
        Optional[list[str]], typer.Option(help="A column to copy beside the predictions, such as an identifier.")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """Predict the target of new rows or the class of new images, with credible intervals. This costs no budget."""
    from confide.app.runs import predictions, run_folder

    written = predictions.predict(
        run, data, out, probability=probability, keep=keep or (), delimiter=delimiter, encoding=encoding
    )
    without = predictions.without_intervals(run_folder.load(run)[0])
    if as_json:
        print_json({"predictions": str(out), **written._asdict(), "intervals": not without})
    else:
        intervals = f"; {without}" if without else f" with {probability:.0%} intervals"
        print(f"{out}: {written.to_text(intervals)}.")


def report(
    run: Run,
    public: Annotated[
        Optional[Path],
        typer.Option(help="Public rows or images with outcomes, to show how predictions are calibrated."),
    ] = None,
    held_out: Annotated[
        Optional[Path], typer.Option(help="The same with confidential ones: the report is then NOT for publication.")
    ] = None,
    audit: Annotated[
        Optional[Path],
        typer.Option(help="What 'confide audit --members' wrote: the report is then NOT for publication."),
    ] = None,
    ledger: Annotated[Optional[Path], typer.Option(help="Show what is left now, not just after the run.")] = None,
    out: Annotated[Optional[Path], typer.Option(help="The HTML file; by default in the folder of the run.")] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page: posterior, guarantee, audit, diagnostics and what it all rests on.

    With --held-out or --audit the page shows statistics of confidential rows, which no guarantee covers: it says so at
    the top, and is written beside the folder of the run instead of into it.
    """
    from confide.app import report as reports

    if public is not None and held_out is not None:
        raise Refused("give either --public or --held-out")
    path = reports.write(
        run, out, public=public, held_out=held_out, audit=audit, ledger=ledger, delimiter=delimiter, encoding=encoding
    )
    if as_json:
        print_json({"report": str(path), "publishable": held_out is None and audit is None})
    else:
        print(path)


def verify(
    run: Annotated[Path, typer.Argument(help="A run's folder, or its guarantee.json.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Price a run again from its guarantee.json alone, and recompute all else in its folder that follows from options
    and noisy outcomes: the plan, what was asked of the records, and the draws where they follow."""
    from confide.app.runs import run_files

    guarantee, spent = run_files.verify_guarantee(run / "guarantee.json" if run.is_dir() else run)
    verified = run_files.verify(run) if run.is_dir() else None
    if as_json:
        record: dict[str, Any] = {"stated": guarantee.epsilon, "recomputed": spent, "delta": guarantee.delta}
        record |= {"holds": True} | ({} if verified is None else verified.to_json())
        print_json(record | {"neighbours": guarantee.neighbours, "assumptions": guarantee.assumptions})
        return
    print(f"Stated epsilon {guarantee.epsilon:.6g}, recomputed {spent:.6g} at delta {guarantee.delta:.3g}: it holds.")
    say(f"- The price is of this: {guarantee.event.released()}.")
    for sentence in guarantee.sentences()[1:]:
        say(f"- {sentence}")
    for sentence in () if verified is None else verified.sentences():
        say(f"- {sentence}")


def demo(
    out: Annotated[Path, typer.Option(help="A new folder for everything that is made.")] = Path("confide-demo"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """The whole way on a table that ships with scikit-learn: schema, ledger, fit, predictions and report."""
    from confide.app import demo as demonstration

    shown = demonstration.run(out, verbose=not (quiet or as_json))
    if as_json:
        print_json({"report": str(shown.report), "sentences": shown.sentences})
        return
    print(f"\nThe report: {shown.report}\n")
    for sentence in shown.sentences:
        say(sentence)
