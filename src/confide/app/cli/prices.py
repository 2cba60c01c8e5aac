"""`confide account` and `confide plan`: what a run costs, and what a budget pays for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from confide.app.cli.printing import Json, Neighbours, Schedule, print_json, say, show_table
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.privacy.events import Event


def _round_safely(value: float, digits: int, up: bool) -> str:
    """Shown with few digits, on the side that spends no more than the budget."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return f"{(math.ceil(value * scale) if up else math.floor(value * scale)) / scale:.{digits}g}"


def _price_row(name: str, value: float, status: str) -> list[str]:
    """A row for one accountant."""
    if math.isinf(value):
        return [name, "none", "its conditions do not hold" if name == "advanced" else "beyond what it can bound"]
    return [name, f"{value:.6g}", "approximate, not a guarantee" if status == "approximate" else status]


def gaussian_event(noise_multiplier: float, sampling_probability: float, steps: int, schedule: Any) -> Event:
    """Equal steps, or steps whose noise rises from the given one."""
    from confide.privacy import calibration, events

    event = events.gaussian(noise_multiplier, sampling_probability, steps)  # refuses what is out of range
    noise = noise_multiplier * calibration.relative_noise(schedule, steps)
    return event if schedule == "fixed" else events.gaussian(noise, sampling_probability)


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
    """Price a run of Gaussian steps, such as one of sgld, by every accountant.

    With --schedule decreasing the noise multiplier is that of the first step, and rises as t^(1/6). A run of scoring,
    the default of linear models, spends its whole budget: there is nothing to price beforehand.
    """
    from confide.privacy import accountants

    if (delta is None) == (epsilon is None):
        raise Refused("give either --delta, to learn epsilon, or --epsilon, to learn delta")
    event = gaussian_event(noise_multiplier, sampling_probability, steps, schedule)
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
        print_json(record)
        return
    rows = [_price_row(name, value, profiles[name].status) for name, value in found.items()]
    fixed = f"delta = {delta:g}" if delta is not None else f"epsilon = {epsilon:g}"
    show_table(f"{sought} at {fixed}, {neighbours}", ["accountant", sought, ""], rows)
    say(f"The best attack on membership guesses right {success:.2%} of the time (50% is chance).")


def plan(
    n: Annotated[Optional[int], typer.Option(help="Number of records (public).")] = None,
    epsilon: Annotated[
        Optional[str], typer.Option(help="Privacy loss, above 0; with --schema also several, as 0.5,1,2.")
    ] = None,
    delta: Annotated[
        Optional[float],
        typer.Option(help="Probability that the bound fails, in (0, 1); with --schema 1/(10 n) by default."),
    ] = None,
    schema: Annotated[
        Optional[Path], typer.Option(help="Of a table: ask what a budget buys of its linear model.")
    ] = None,
    features: Annotated[
        Optional[int], typer.Option(help="The same for an array with so many features in [-1, 1].")
    ] = None,
    width: Annotated[
        Optional[float],
        typer.Option(help="Of a 90% interval: ask which epsilon (give --n) or how many people (give --epsilon)."),
    ] = None,
    column: Annotated[
        Optional[str], typer.Option(help="The coefficient that --width is about; the median by default.")
    ] = None,
    target: Annotated[Optional[str], typer.Option(help="The column to predict, if the schema does not say.")] = None,
    model: Annotated[
        Optional[str],
        typer.Option(help="logistic, softmax, linear, poisson or negative-binomial; by default the target's."),
    ] = None,
    classes: Annotated[Optional[int], typer.Option(help="Of softmax with --features.")] = None,
    prior_scale: Annotated[
        Optional[float], typer.Option(help="Standard deviation of every weight a priori; 1 by default.")
    ] = None,
    noise_scale: Annotated[
        Optional[float],
        typer.Option(help="Linear: a guess of the sd of the outcome in its unit; 1/8 of its range by default."),
    ] = None,
    dispersion: Annotated[Optional[float], typer.Option(help="Negative-binomial: as for a fit; 1 by default.")] = None,
    signal: Annotated[
        Optional[float], typer.Option(help="By how much true scores of records spread; by default as the prior says.")
    ] = None,
    spread: Annotated[
        Optional[float], typer.Option(help="Sd of numeric columns scaled to [-1, 1]; uniform ones by default.")
    ] = None,
    correlation: Annotated[
        Optional[float], typer.Option(help="Of each column with the next one; 0 by default.")
    ] = None,
    picture: Annotated[
        Optional[Path], typer.Option(help="With --schema: also draw it, as a .png or .svg file.")
    ] = None,
    sampler: Annotated[
        Optional[str], typer.Option(help="With --schema: show another beside scoring, as made-up tables tell.")
    ] = None,
    datasets: Annotated[Optional[int], typer.Option(help="With --sampler: made-up tables at each epsilon; 10.")] = None,
    clip: Annotated[Optional[float], typer.Option(help="Largest norm of one record's gradient; 1 by default.")] = None,
    epochs: Annotated[Optional[float], typer.Option(help="Expected passes over the data; or give --steps.")] = None,
    steps: Annotated[Optional[int], typer.Option(help="Number of steps; or give --epochs.")] = None,
    batch_size: Annotated[
        Optional[int], typer.Option(help="Expected size of a Poisson batch; 256, or n if that is less.")
    ] = None,
    temperature: Annotated[
        Optional[float], typer.Option(help="1 samples the posterior, and is the default; 0.5 is the papers' algorithm.")
    ] = None,
    schedule: Annotated[
        Optional[str], typer.Option(help="fixed, the default, or decreasing: step sizes fall as t^(-1/3).")
    ] = None,
    neighbours: Neighbours = "add-remove",
    as_json: Json = False,
) -> None:
    """Say what a budget buys, before any data are touched and anything is spent.

    With --schema (or --features): how wide the 90% intervals of a linear model are expected to be at each epsilon,
    which effects would be told from none, and how accurate it would be, for a run of scoring, the default of these
    models; with --width the other way round. With --sampler another one beside it: it has no formula, and is run on
    made-up tables, which takes a while.

    With neither: the settings of a Langevin run ('confide fit --sampler sgld') that spends the budget; --clip,
    --epochs, --steps, --batch-size, --temperature and --schedule are for that alone.
    """
    from confide.app.cli import forecasts
    from confide.inference.power.questions import parse_epsilons

    asked: dict[str, Any] = {
        "n": n, "epsilon": None if epsilon is None else parse_epsilons(epsilon), "delta": delta, "schema": schema,
        "features": features, "width": width, "column": column, "target": target, "model": model, "classes": classes,
        "prior_scale": prior_scale, "noise_scale": noise_scale, "dispersion": dispersion, "signal": signal,
        "spread": spread, "correlation": correlation, "neighbours": neighbours, "clip": clip, "epochs": epochs,
        "steps": steps, "batch_size": batch_size, "temperature": temperature, "schedule": schedule,
    }  # fmt: skip
    if datasets is not None and sampler is None:
        raise Refused("--datasets are for a --sampler that is seen on made-up tables: give both, or neither")
    if schema is not None or features is not None:
        forecasts.answer(
            asked, picture, as_json, None if sampler is None else (sampler, 10 if datasets is None else datasets)
        )
        return
    if sampler is not None:
        raise Refused("--sampler is rehearsed on tables of a schema: give --schema, or leave it out")
    if picture is not None:
        raise Refused("--picture draws what a budget buys, which needs --schema or --features: leave it out")
    if n is None or epsilon is None or delta is None:
        raise Refused("a run by steps needs --n, --epsilon and --delta; with --schema ask what a budget buys")
    if asked["epsilon"] is not None and len(asked["epsilon"]) == 1:
        asked["epsilon"] = asked["epsilon"][0]
    _print_settings(asked, as_json)


def _print_settings(asked: dict[str, Any], as_json: bool) -> None:
    """Of a Langevin run."""
    from confide.inference.power.planning import plan as find

    made = find(**asked)
    if as_json:
        print_json(made.to_json())
        return
    n, epsilon, delta, schedule = made.n, made.budget.epsilon, made.budget.delta, made.schedule
    falls, rises = ("", "") if schedule == "fixed" else (" (the first; falls as t^(-1/3))", " (the first; rises)")
    noise = _round_safely(made.noise_multiplier, 6, up=True)
    rows = [
        ["step size", _round_safely(made.step_size, 4, up=False) + falls],
        ["noise multiplier", _round_safely(made.noise_multiplier, 4, up=True) + rises],
        ["steps", f"{made.steps:,}"],
        [
            "batch",
            f"{made.batch_size:,} of {n:,} expected (each record with probability {made.sampling_probability:.4g})",
        ],
        ["temperature", f"{made.temperature:g}" + (" (the posterior)" if made.temperature == 1 else "")],
    ]
    show_table(
        f"A run of sgld that spends ({epsilon:g}, {delta:g}), {made.budget.neighbours}, clip {made.clip:g}",
        ["setting", "value"],
        rows,
    )
    show_table(
        "Step size allowed by each theory",
        ["theory", "step size", ""],
        [[r.theory, f"{r.step_size:.3g}", r.remark] for r in made.allowed],
    )
    show_table(
        "What each accountant says of this run",
        ["accountant", "epsilon", ""],
        [_price_row(name, value, made.status[name]) for name, value in made.epsilons.items()],
    )
    rates = ", ".join(f"{1 - miss:.3g} at {rate:g}" for rate, miss in made.trade_off.items())
    say(
        f"The best attacker, told everything but whether one record was used, guesses right {made.attack_success:.2%} "
        f"of the time (50% is chance), and is brought to at most {made.belief:.1%} certainty from a coin flip, except "
        f"with probability {delta:g}. True positive rate at false positive rate: at most {rates}."
    )
    print()
    say(made.utility)
    print()
    shape = "" if schedule == "fixed" else f" --schedule {schedule}"
    print("To charge it before it runs:")
    print(
        f"confide ledger charge LEDGER --dataset NAME --noise-multiplier {noise} "
        f"--sampling-probability {made.sampling_probability!r} --steps {made.steps}{shape}"
    )
