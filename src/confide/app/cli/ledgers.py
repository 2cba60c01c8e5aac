"""`confide ledger`: what has been spent on each dataset, and what is left."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from confide.app.cli.prices import gaussian_event
from confide.app.cli.printing import (
    Dataset,
    Epsilon,
    Json,
    LedgerPath,
    Neighbours,
    Schedule,
    print_json,
    say,
    show_table,
)
from confide.validation import Refused

ledger_app = typer.Typer(help="Keep a ledger of what has been spent on each dataset.", no_args_is_help=True)


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
    from confide.privacy.budget import Budget
    from confide.privacy.filters import Account
    from confide.privacy.ledger import Ledger

    budget = Budget(epsilon=epsilon, delta=delta, neighbours=neighbours)  # type: ignore[arg-type]
    Account.checked(dataset, budget, composition)  # before a file is made
    ledger = Ledger(path) if path.exists() else Ledger.create(path)
    ledger.enter(dataset, budget, composition)
    record = {"ledger": str(path), "dataset": dataset, "budget": budget.to_json(), "composition": composition}
    if as_json:
        print_json(record)
    else:
        say(f"{path}: dataset {dataset!r} may spend ({epsilon:g}, {delta:g}), {neighbours}, {composition}.")


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
    neighbours: Annotated[
        Optional[str], typer.Option(help="What --pure-epsilon or --mu is for; the dataset's relation if not given.")
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: Json = False,
) -> None:
    """Charge a release to a dataset before it happens. Nothing is refunded.

    A release is a run of Gaussian steps, or one that is epsilon-DP (--pure-epsilon) or mu-Gaussian-DP (--mu).
    """
    from confide.privacy import events
    from confide.privacy.ledger import Ledger

    if sum(value is not None for value in (noise_multiplier, pure_epsilon, mu)) != 1:
        raise Refused("give exactly one of --noise-multiplier, --pure-epsilon and --mu")
    if noise_multiplier is None and (sampling_probability, steps, schedule) != (None, None, "fixed"):
        raise Refused("--sampling-probability, --steps and --schedule go with --noise-multiplier: charge twice for two")
    if noise_multiplier is not None and neighbours is not None:
        raise Refused("--neighbours goes with --pure-epsilon and --mu: Gaussian steps are priced for the dataset's")
    ledger = Ledger(path)
    relation = ledger.account(dataset).budget.neighbours
    declared: Any = neighbours or relation
    if noise_multiplier is not None:
        q, count = 1.0 if sampling_probability is None else sampling_probability, 1 if steps is None else steps
        event = gaussian_event(noise_multiplier, q, count, schedule)
    elif pure_epsilon is not None:
        event = events.Release(epsilon=pure_epsilon, neighbours=declared)
    else:
        event = events.GaussianRelease(mu=mu or 0.0, neighbours=declared)
    charge = ledger.charge(dataset, event, note)
    left = ledger.left(dataset)
    if as_json:
        record = {"receipt": charge.receipt, "dataset": dataset, "share": charge.share, "left": left._asdict()}
        print_json(record | {"neighbours": relation, "seal": charge.seal})
    else:
        print(f"Charged {charge.share:.4%} of the budget of {dataset!r} ({relation}): {event.summary()}.")
        print(f"Receipt: {charge.receipt}, seal {charge.seal[:16]}")
        print(f"Left: {left.share:.4%}, epsilon {left.epsilon:.6g}, delta {left.delta:.3g}.")


@ledger_app.command("show")
def ledger_show(
    path: LedgerPath,
    dataset: Annotated[Optional[str], typer.Option(help="Only this dataset.")] = None,
    as_json: Json = False,
) -> None:
    """Show what has been spent and what is left; the JSON form holds every event."""
    from confide.privacy.ledger import Ledger

    book = Ledger(path).book()
    accounts = book.accounts if dataset is None else [book.account(dataset)]
    records = []
    for account in accounts:
        left, history = book.left(account.name), book.history(account.name)
        charges = [c._asdict() | {"event": c.event.to_json(), "summary": c.event.summary()} for c in history]
        head = {"dataset": account.name, "budget": account.budget.to_json(), "composition": account.composition}
        records.append(head | {"left": left._asdict(), "charges": charges})
    if as_json:
        print_json({"ledger": str(path), "seal": book.head, "datasets": records})
        return
    if not records:
        say(f"{path}: no dataset has been entered yet.")
    for record in records:
        budget, left = record["budget"], record["left"]
        kept = f"({budget['epsilon']:g}, {budget['delta']:g}), {budget['neighbours']}, {record['composition']}"
        rows = [
            [c["time"][:19], f"{c['share']:.4%}", c["summary"] + (f" ({c['note']})" if c["note"] else "")]
            for c in record["charges"]
        ]
        show_table(f"{record['dataset']}: {kept}", ["time (UTC)", "share", "event"], rows)
        print(f"Left: {left['share']:.4%}, epsilon {left['epsilon']:.6g}, delta {left['delta']:.3g}.\n")
    if book.head:
        say(
            f"Seal {book.head[:16]}: kept elsewhere, it shows whether rows are cut off or written anew (ledger verify)."
        )


@ledger_app.command("verify")
def ledger_verify(
    path: LedgerPath,
    dataset: Annotated[Optional[str], typer.Option(help="Only this dataset.")] = None,
    seal: Annotated[Optional[str], typer.Option(help="One that was kept elsewhere: it must still be there.")] = None,
    as_json: Json = False,
) -> None:
    """Price every charge again from its event; refused where a row says less, or a seal is gone."""
    from confide.privacy.ledger import Ledger

    ledger = Ledger(path)
    names = [account.name for account in ledger.accounts()] if dataset is None else [dataset]
    if seal is not None:
        ledger.find(seal)
    spent = {name: ledger.verify(name) for name in names}
    if as_json:
        print_json({"ledger": str(path), "seal": ledger.book().head, "spent": spent})
        return
    for name, share in spent.items():
        say(f"{name}: its charges take {share:.4%} of the budget, as entered or less.")
