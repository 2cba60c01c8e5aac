"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer

from confide import __version__
from confide.checks import Refused

if TYPE_CHECKING:
    from confide.events import Event

app = typer.Typer(
    name="confide",
    help="Bayesian learning on sensitive data: plan a private run, price it, and keep a ledger of what was spent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ledger_app = typer.Typer(help="Keep a ledger of what has been spent on each dataset.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Epsilon = Annotated[float, typer.Option(help="Privacy loss, above 0.")]
Delta = Annotated[float, typer.Option(help="Probability that the bound fails, in (0, 1).")]
Neighbours = Annotated[str, typer.Option(help="add-remove or replace-one.")]
Schedule = Annotated[str, typer.Option(help="fixed, or decreasing: step sizes fall as t^(-1/3).")]
LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.", show_default=False)]
Dataset = Annotated[str, typer.Option(help="Name of the dataset in the ledger.")]


def _print_json(record: dict[str, Any]) -> None:
    print(json.dumps(_finite(record), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no infinity: a bound that does not exist is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A plain table: the last column wraps, the others do not, and nothing in it is taken for markup."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(title, style="bold"))
    lines = [columns, *rows] if any(columns) else rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) - 1)]
    indent = sum(widths) + 2 * len(widths)
    for line in lines:
        start = "".join(f"{cell:{width}}  " for cell, width in zip(line, widths, strict=False))
        wrapped = textwrap.wrap(line[-1], max(console.width - indent, 24)) or [""]
        print("\n".join((start if i == 0 else " " * indent) + part for i, part in enumerate(wrapped)).rstrip())
    print()


def _say(text: str) -> None:
    from rich.console import Console

    print("\n".join(textwrap.wrap(text, Console().width)))


def _rounded(value: float, digits: int, up: bool) -> str:
    """Shown with few digits, on the side that spends no more than the budget."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return f"{(math.ceil(value * scale) if up else math.floor(value * scale)) / scale:.{digits}g}"


def _priced(name: str, value: float, status: str) -> list[str]:
    """A row for one accountant."""
    if math.isinf(value):
        return [name, "none", "its conditions do not hold" if name == "advanced" else "beyond what it can bound"]
    return [name, f"{value:.6g}", "approximate, not a guarantee" if status == "approximate" else status]


def _gaussian(noise_multiplier: float, sampling_probability: float, steps: int, schedule: Any) -> Event:
    """Equal steps, or steps whose noise rises from the given one."""
    from confide import calibration, events

    event = events.gaussian(noise_multiplier, sampling_probability, steps)  # refuses what is out of range
    noise = noise_multiplier * calibration.relative_noise(schedule, steps)
    return event if schedule == "fixed" else events.gaussian(noise, sampling_probability)


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"confide {__version__}")
        raise typer.Exit


@app.command()
def account(
    noise_multiplier: Annotated[float, typer.Option(help="Standard deviation of the noise over the clip.")],
    delta: Annotated[Optional[float], typer.Option(help="Probability that the bound fails, in (0, 1).")] = None,
    epsilon: Annotated[Optional[float], typer.Option(help="Ask for delta at this epsilon instead.")] = None,
    sampling_probability: Annotated[
        float, typer.Option(help="Chance of a record to enter a batch; 1: full batch.")
    ] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 1,
    schedule: Schedule = "fixed",
    neighbours: Neighbours = "add-remove",
    as_json: Json = False,
) -> None:
    """Price a run of Gaussian steps, by every accountant.

    With --schedule decreasing the noise multiplier is that of the first step, and rises as t^(1/6).
    """
    from confide import accountants

    if (delta is None) == (epsilon is None):
        raise Refused("give either --delta, to learn epsilon, or --epsilon, to learn delta")
    event = _gaussian(noise_multiplier, sampling_probability, steps, schedule)
    profiles = {name: accountants.profile(event, neighbours, name) for name in accountants.NAMES}  # type: ignore[arg-type]
    found = {n: p.epsilon(delta) if delta is not None else p.delta(epsilon or 0.0) for n, p in profiles.items()}
    sought = "epsilon" if delta is not None else "delta"
    success = profiles["pld"].attack_success()
    record = {
        "noise_multiplier": noise_multiplier,
        "sampling_probability": sampling_probability,
        "steps": steps,
        "schedule": schedule,
        "neighbours": neighbours,
        "epsilon": epsilon,
        "delta": delta,
        sought: found,
        "status": {name: profile.status for name, profile in profiles.items()},
        "attack_success": success,
    }
    if as_json:
        _print_json(record)
        return
    rows = [_priced(name, value, profiles[name].status) for name, value in found.items()]
    fixed = f"delta = {delta:g}" if delta is not None else f"epsilon = {epsilon:g}"
    _table(f"{sought} at {fixed}, {neighbours}", ["accountant", sought, ""], rows)
    _say(f"The best attack on membership guesses right {success:.2%} of the time (50% is chance).")


@app.command()
def plan(
    n: Annotated[int, typer.Option(help="Number of records (public).")],
    epsilon: Epsilon,
    delta: Delta,
    clip: Annotated[float, typer.Option(help="Largest norm of one record's gradient.")] = 1.0,
    epochs: Annotated[Optional[float], typer.Option(help="Expected passes over the data; or give --steps.")] = None,
    steps: Annotated[Optional[int], typer.Option(help="Number of steps; or give --epochs.")] = None,
    batch_size: Annotated[
        Optional[int], typer.Option(help="Expected size of a Poisson batch; 256, or n if that is less.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="1 samples the posterior; 0.5 is the papers' algorithm.")] = 1.0,
    schedule: Schedule = "fixed",
    neighbours: Neighbours = "add-remove",
    as_json: Json = False,
) -> None:
    """Turn a budget into settings of a Langevin run, before any data are touched."""
    from confide import planning

    made = planning.plan(
        n=n,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        temperature=temperature,
        schedule=schedule,  # type: ignore[arg-type]
        neighbours=neighbours,  # type: ignore[arg-type]
    )
    if as_json:
        _print_json(made.to_json())
        return
    falls, rises = ("", "") if schedule == "fixed" else (" (the first; falls as t^(-1/3))", " (the first; rises)")
    noise = _rounded(made.noise_multiplier, 6, up=True)
    rows = [
        ["step size", _rounded(made.step_size, 4, up=False) + falls],
        ["noise multiplier", _rounded(made.noise_multiplier, 4, up=True) + rises],
        ["steps", f"{made.steps:,}"],
        [
            "batch",
            f"{made.batch_size:,} of {n:,} expected (each record with probability {made.sampling_probability:.4g})",
        ],
        ["temperature", f"{temperature:g}" + (" (the posterior)" if temperature == 1 else "")],
    ]
    _table(f"A run that spends ({epsilon:g}, {delta:g}), {neighbours}, clip {clip:g}", ["setting", "value"], rows)
    _table(
        "Step size allowed by each theory",
        ["theory", "step size", ""],
        [[r.theory, f"{r.step_size:.3g}", r.remark] for r in made.allowed],
    )
    _table(
        "What each accountant says of this run",
        ["accountant", "epsilon", ""],
        [_priced(name, value, made.status[name]) for name, value in made.epsilons.items()],
    )
    rates = ", ".join(f"{1 - miss:.3g} at {rate:g}" for rate, miss in made.trade_off.items())
    _say(
        f"The best attacker, told everything but whether one record was used, guesses right {made.attack_success:.2%} "
        f"of the time (50% is chance), and is brought to at most {made.belief:.1%} certainty from a coin flip, except "
        f"with probability {delta:g}. True positive rate at false positive rate: at most {rates}."
    )
    print()
    _say(made.utility)
    print()
    shape = "" if schedule == "fixed" else f" --schedule {schedule}"
    print("To charge it before it runs:")
    print(
        f"confide ledger charge LEDGER --dataset NAME --noise-multiplier {noise} "
        f"--sampling-probability {made.sampling_probability!r} --steps {made.steps}{shape}"
    )


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="li2019-figure1 or li2019-figure2.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the CSV, the PNG and the claims.")] = Path("reproductions"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points.")] = False,
    as_json: Json = False,
) -> None:
    """Recompute a figure of the papers: claimed, measured, and why they differ. Takes a minute or two."""
    from confide import experiments
    from confide.experiments.reproduction import make_folder

    module = experiments.load(name)
    make_folder(out)
    result = module.run(quick=quick)
    paths = result.write(out)
    if as_json:
        _print_json({"name": name, "files": [str(p) for p in paths], "claims": [c._asdict() for c in result.claims]})
        return
    for claim in result.claims:
        _table(claim.quantity, ["", ""], [["claimed", claim.claimed], ["measured", claim.measured], ["why", claim.why]])
    for path in paths:
        print(path)


@ledger_app.command("create")
def ledger_create(
    path: LedgerPath,
    dataset: Dataset,
    epsilon: Epsilon,
    delta: Annotated[float, typer.Option(help="Probability that the bound fails; 0 for a pure budget.")],
    neighbours: Neighbours = "add-remove",
    composition: Annotated[
        str, typer.Option(help="How charges add up: basic, renyi (many small ones) or gdp.")
    ] = "basic",
    as_json: Json = False,
) -> None:
    """Enter a dataset with its budget; the file is made if there is none."""
    from confide.budget import Budget
    from confide.ledger import Ledger
    from confide.shares import Account

    budget = Budget(epsilon=epsilon, delta=delta, neighbours=neighbours)  # type: ignore[arg-type]
    Account.checked(dataset, budget, composition)  # before a file is made
    ledger = Ledger(path) if path.exists() else Ledger.create(path)
    ledger.enter(dataset, budget, composition)
    record = {"ledger": str(path), "dataset": dataset, "budget": budget.to_json(), "composition": composition}
    if as_json:
        _print_json(record)
    else:
        _say(f"{path}: dataset {dataset!r} may spend ({epsilon:g}, {delta:g}), {neighbours}, {composition}.")


@ledger_app.command("charge")
def ledger_charge(
    path: LedgerPath,
    dataset: Dataset,
    noise_multiplier: Annotated[Optional[float], typer.Option(help="Gaussian steps: noise over the clip.")] = None,
    sampling_probability: Annotated[
        Optional[float], typer.Option(help="Gaussian steps: chance to enter a batch; 1 if not given.")
    ] = None,
    steps: Annotated[Optional[int], typer.Option(help="Gaussian steps: how many; 1 if not given.")] = None,
    schedule: Schedule = "fixed",
    pure_epsilon: Annotated[Optional[float], typer.Option(help="A pure-epsilon release instead.")] = None,
    mu: Annotated[Optional[float], typer.Option(help="A Gaussian-DP release instead.")] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: Json = False,
) -> None:
    """Charge a release to a dataset before it happens. Nothing is refunded.

    A release is a run of Gaussian steps, or one that is epsilon-DP (--pure-epsilon) or mu-Gaussian-DP (--mu).
    """
    from confide import events
    from confide.ledger import Ledger

    if sum(value is not None for value in (noise_multiplier, pure_epsilon, mu)) != 1:
        raise Refused("give exactly one of --noise-multiplier, --pure-epsilon and --mu")
    if noise_multiplier is None and (sampling_probability, steps, schedule) != (None, None, "fixed"):
        raise Refused("--sampling-probability, --steps and --schedule go with --noise-multiplier: charge twice for two")
    ledger = Ledger(path)
    neighbours = ledger.account(dataset).budget.neighbours
    if noise_multiplier is not None:
        q, count = 1.0 if sampling_probability is None else sampling_probability, 1 if steps is None else steps
        event = _gaussian(noise_multiplier, q, count, schedule)
    elif pure_epsilon is not None:
        event = events.Release(epsilon=pure_epsilon, neighbours=neighbours)
    else:
        event = events.GaussianRelease(mu=mu or 0.0, neighbours=neighbours)
    charge = ledger.charge(dataset, event, note)
    left = ledger.left(dataset)
    if as_json:
        _print_json({"receipt": charge.receipt, "dataset": dataset, "share": charge.share, "left": left._asdict()})
    else:
        print(f"Charged {charge.share:.4%} of the budget of {dataset!r}: {event.summary()}.")
        print(f"Receipt: {charge.receipt}")
        print(f"Left: {left.share:.4%}, epsilon {left.epsilon:.6g}, delta {left.delta:.3g}.")


@ledger_app.command("show")
def ledger_show(
    path: LedgerPath,
    dataset: Annotated[Optional[str], typer.Option(help="Only this dataset.")] = None,
    as_json: Json = False,
) -> None:
    """Show what has been spent and what is left; the JSON form holds every event."""
    from confide.ledger import Ledger

    ledger = Ledger(path)
    accounts = ledger.accounts() if dataset is None else [ledger.account(dataset)]
    records = []
    for account in accounts:
        left, history = ledger.left(account.name), ledger.history(account.name)
        charges = [c._asdict() | {"event": c.event.to_json(), "summary": c.event.summary()} for c in history]
        head = {"dataset": account.name, "budget": account.budget.to_json(), "composition": account.composition}
        records.append(head | {"left": left._asdict(), "charges": charges})
    if as_json:
        _print_json({"ledger": str(path), "datasets": records})
        return
    if not records:
        _say(f"{path}: no dataset has been entered yet.")
    for record in records:
        budget, left = record["budget"], record["left"]
        kept = f"({budget['epsilon']:g}, {budget['delta']:g}), {budget['neighbours']}, {record['composition']}"
        rows = [
            [c["time"][:19], f"{c['share']:.4%}", c["summary"] + (f" ({c['note']})" if c["note"] else "")]
            for c in record["charges"]
        ]
        _table(f"{record['dataset']}: {kept}", ["time (UTC)", "share", "event"], rows)
        print(f"Left: {left['share']:.4%}, epsilon {left['epsilon']:.6g}, delta {left['delta']:.3g}.\n")


# typer carries its own copy of click in some versions, so the class is found where both have it.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main() -> NoReturn:
    """Run the program; a refusal is one line on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except Refused as refusal:
        code = _refuse(str(refusal))
    except _ClickException as error:
        code = 2 if type(error).__name__ == "NoArgsIsHelpError" else _refuse(_explained(error))
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Any) -> str:
    """A parser's complaint, with the value that was given, which the parser leaves out."""
    option = getattr(getattr(error, "param", None), "opts", [""])[0]
    arguments = [part for argument in sys.argv for part in argument.split("=", 1)]
    value = dict(itertools.pairwise(arguments)).get(option)
    given = f" (given: {value!r})" if value is not None else ""
    command = getattr(getattr(error, "ctx", None), "command_path", "confide")
    return f"{error.format_message().rstrip('.')}{given}: see '{command} --help'"


def _refuse(message: str) -> int:
    print(f"confide: {' '.join(message.split())}", file=sys.stderr)
    return 2
