"""`confide account` and `confide plan`: what a run costs, and what a budget pays for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from confide.app.cli.printing import Delta, Epsilon, Json, Neighbours, Schedule, print_json, say, show_table
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
    """Turn a budget into settings of a Langevin run ('confide fit --sampler sgld'), before any data are touched.

    A run of scoring, the default of linear models, plans itself: it needs the budget alone, and spends all of it.
    """
    from confide.privacy import planning

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
        print_json(made.to_json())
        return
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
        ["temperature", f"{temperature:g}" + (" (the posterior)" if temperature == 1 else "")],
    ]
    show_table(
        f"A run of sgld that spends ({epsilon:g}, {delta:g}), {neighbours}, clip {clip:g}", ["setting", "value"], rows
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
