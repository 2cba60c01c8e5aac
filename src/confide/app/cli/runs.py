"""`confide fit` and what follows it: resume, predict, report, verify; and the demonstration of them all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from confide.app.cli import audits
from confide.app.cli.printing import Delimiter, Delta, Encoding, Epsilon, Json, Neighbours, print_json, say
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


def fit(
    data: Annotated[
        Path,
        typer.Argument(
            help="A CSV or Parquet file, one row per person; or images: an .npz file (x, y), or a folder of folders.",
            show_default=False,
        ),
    ],
    epsilon: Epsilon,
    delta: Delta,
    out: Annotated[Path, typer.Option(help="A new folder; everything in it may be published.")],
    schema: Annotated[Optional[Path], typer.Option(help="Of a table; see 'confide schema init'.")] = None,
    classes: Annotated[
        Optional[str],
        typer.Option(help="Of images: how many classes, or their names (cat,dog). They are public, and not looked up."),
    ] = None,
    shape: Annotated[
        Optional[str],
        typer.Option(help="Of images in a folder: 32x32x3. By default the first file's, and others are refused."),
    ] = None,
    records: Annotated[
        Optional[int],
        typer.Option(help="Declared number of records, which is public; by default the number of rows."),
    ] = None,
    target: Annotated[Optional[str], typer.Option(help="The column to predict, if the schema does not say.")] = None,
    model: Annotated[
        Optional[str],
        typer.Option(
            help="logistic, softmax, linear, poisson, mlp, or cnn for images; by default as the data ask for."
        ),
    ] = None,
    sampler: Annotated[
        Optional[str],
        typer.Option(
            help="langevin, ops or hybrid for convex models; sgld, psgld, sghmc, baoab, sgnht, sgfs or wang2015_sgld; "
            "dpvi for an approximation, dp_sgd or dp_adam for a point. By default sgld, or langevin where few draws "
            "are asked for and it is the better use of the budget."
        ),
    ] = None,
    ledger: Annotated[Optional[Path], typer.Option(help="The ledger to charge before the data are used.")] = None,
    dataset: Annotated[Optional[str], typer.Option(help="Its name in the ledger, if that holds several.")] = None,
    neighbours: Neighbours = "add-remove",
    clip: Annotated[Optional[float], typer.Option(help="Most that one record may add to a gradient.")] = None,
    steps: Annotated[Optional[int], typer.Option(help="Steps of the sampler; more cost time, not privacy.")] = None,
    batch_size: Annotated[Optional[int], typer.Option(help="Expected size of a Poisson batch.")] = None,
    chains: Annotated[int, typer.Option(help="Independent chains; K of them cost K times.")] = 1,
    draws: Annotated[Optional[int], typer.Option(help="Draws to keep of each chain.")] = None,
    burn_in: Annotated[Optional[int], typer.Option(help="Steps before the first draw; half if not given.")] = None,
    temperature: Annotated[
        Optional[float], typer.Option(help="1 samples the posterior; langevin plans its own.")
    ] = None,
    prior_scale: Annotated[
        Optional[float],
        typer.Option(help="Standard deviation of every weight a priori; 1 by default, less for one private draw."),
    ] = None,
    noise_scale: Annotated[
        Optional[float],
        typer.Option(help="Linear: sd of the outcome in its unit; 1/8 of its range by default."),
    ] = None,
    hidden: Annotated[
        Optional[str], typer.Option(help="Mlp: hidden units of each layer, as 64,32; 32 if not given.")
    ] = None,
    dropout: Annotated[
        Optional[float], typer.Option(help="Mlp and cnn: share of units that every step leaves out.")
    ] = None,
    convolutions: Annotated[
        Optional[int], typer.Option(help="Cnn: 2 or 4; by default 2 for grey images, 4 for others.")
    ] = None,
    microbatch: Annotated[
        Optional[int], typer.Option(help="Mlp and cnn: records looked at together; fewer take less memory.")
    ] = None,
    noise: Annotated[str, typer.Option(help="default, or secure: from a cryptographic generator.")] = "default",
    account: Annotated[
        Optional[list[str]],
        typer.Option(
            help="dp; beside it bayesian, an estimate for typical people that is printed for you alone, or individual: "
            "every record pays for itself. Give it once for each.",
        ),
    ] = None,
    stretch: Annotated[
        Optional[float],
        typer.Option(help="Individual: budgets that the longest gradients would spend; who has spent one is left out."),
    ] = None,
    histogram: Annotated[
        Optional[float],
        typer.Option(help="Individual: share of the budget for a histogram of what single records spent."),
    ] = None,
    canaries: Annotated[
        Optional[int],
        typer.Option(help="Plant so many made-up records, and audit the run by what it tells of them; 1000 are usual."),
    ] = None,
    accept_learnt_schema: Annotated[
        bool, typer.Option("--accept-learnt-schema", help="Take a schema that was filled in from the data.")
    ] = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 20.0,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fit a model to a table or to images within a privacy budget, and write a folder that may be published.

    Everything is checked and priced before the ledger is charged and before anything is written. A run that is
    interrupted goes on with 'confide resume'. With --canaries the run is audited at its end, with exit code 3 where its
    claim is refuted.
    """
    from confide.app.runs import run_folder
    from confide.data import image_schema
    from confide.data import schema as schemas

    if "bayesian" in (account or []) and (quiet or as_json):
        raise Refused("--account bayesian prints an estimate for you alone: leave out --quiet and --json, or it")
    request = run_folder.Request(
        data=str(data),
        schema=None if schema is None else schemas.load(schema).to_toml(),
        classes=None if classes is None else image_schema.declared(classes),
        shape=None if shape is None else image_schema.shaped(shape),
        records=records,
        out=str(out),
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,  # type: ignore[arg-type]
        target=target,
        model=model,  # type: ignore[arg-type]
        prior_scale=prior_scale,
        noise_scale=noise_scale,
        hidden=None if hidden is None else _layers(hidden),
        dropout=dropout,
        convolutions=convolutions,
        microbatch=microbatch,
        sampler=sampler,
        temperature=temperature,
        steps=steps,
        batch_size=batch_size,
        clip=clip,
        chains=chains,
        draws=draws,
        burn_in=burn_in,
        noise=noise,  # type: ignore[arg-type]
        account=tuple(account or ["dp"]),
        stretch=stretch,
        histogram=histogram,
        canaries=canaries,
        ledger=None if ledger is None else str(ledger),
        dataset=dataset,
        delimiter=delimiter,
        encoding=encoding,
        accept_learnt=accept_learnt_schema,
        checkpoint_seconds=checkpoint_seconds,
    )
    try:
        posterior = run_folder.fit(
            request, progress=False if quiet or as_json else None, verbose=not (quiet or as_json)
        )
    except KeyboardInterrupt:
        from confide.app.runs import interrupted

        waits = interrupted.place(out).exists()
        rest = f"'confide resume {quote(str(out))}' goes on with it" if waits else "nothing was charged"
        print(f"confide: interrupted: {rest}", file=sys.stderr)
        raise
    _written(posterior, out, as_json)


def _layers(text: str) -> tuple[int, ...]:
    units = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in units):
        raise Refused(f"--hidden {text!r} is no list of layers: give the units of each, such as 64,32")
    return tuple(map(int, units))


def resume(
    run: Annotated[Path, typer.Argument(help="The --out folder of the interrupted run.", show_default=False)],
    discard: Annotated[bool, typer.Option("--discard", help="Give the run up instead. Its charge stays.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted: the same draws as without the interruption, and no second charge."""
    from confide.app.runs import run_folder

    if discard:
        run_folder.discard(run)
        say(f"The run for {run} is given up; what it was charged stays charged.")
        return
    posterior = run_folder.resume(run, progress=False if quiet or as_json else None, verbose=not (quiet or as_json))
    _written(posterior, run, as_json)


def _written(posterior: Posterior, out: Path, as_json: bool) -> None:
    from confide.privacy.budget import rounded_up

    guarantee = posterior.guarantee
    assert guarantee is not None
    files = sorted(str(path) for path in out.iterdir())
    audit = None if posterior.canaries is None else audits.of_canaries(posterior, 0.95)
    if as_json:
        record = {"run": str(out), "files": files, "epsilon": guarantee.epsilon, "delta": guarantee.delta}
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
    from confide.app.runs import predictions

    rows = predictions.predict(
        run, data, out, probability=probability, keep=keep or (), delimiter=delimiter, encoding=encoding
    )
    if as_json:
        print_json({"predictions": str(out), "rows": rows})
    else:
        plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))["plan"]
        one = plan["chains"] * plan["draws"] == 1 or plan.get("estimate") == "point"
        without = "points have" if plan.get("estimate") == "point" else "one draw gives"
        with_them = f"; {without} no intervals" if one else f" with {probability:.0%} intervals"
        print(f"{out}: {rows:,} predictions{with_them}.")


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
    """Price a run again from its guarantee.json alone."""
    from confide.privacy import pricing
    from confide.privacy.budget import Guarantee

    path = run / "guarantee.json" if run.is_dir() else run
    try:
        guarantee = Guarantee.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, Refused):
        raise Refused(
            f"{str(path)!r} is no guarantee that can be read: give the folder of a finished run, or its guarantee.json"
        ) from None
    spent = pricing.verify(guarantee)
    if as_json:
        record = {"stated": guarantee.epsilon, "recomputed": spent, "delta": guarantee.delta, "holds": True}
        print_json(record | {"neighbours": guarantee.neighbours, "assumptions": guarantee.assumptions})
        return
    print(f"Stated epsilon {guarantee.epsilon:.6g}, recomputed {spent:.6g} at delta {guarantee.delta:.3g}: it holds.")
    say(f"- The price is of this: {guarantee.event.released()}.")
    for sentence in guarantee.sentences()[1:]:
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
