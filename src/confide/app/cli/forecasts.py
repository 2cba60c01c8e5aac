"""`confide plan --schema`: what a budget is expected to buy, as tables, JSON, or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.app.cli.printing import print_json, say, show_table
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.inference.power.forecast import Forecast

CURVE = 33  # epsilons of a picture
BEYOND = 2.0  # how far a picture reaches below and above the epsilons that were asked about


def answer(asked: dict[str, Any], picture: Path | None, as_json: bool, beside: tuple[str, int] | None = None) -> None:
    """`beside` is another sampler, whose figures are seen on so many made-up tables at each epsilon."""
    from confide.inference.power.planning import plan

    if beside is not None:
        _check_beside(asked)
    found = plan(**asked)
    if picture is not None:
        _save(found, asked, picture)
    others = None if beside is None else _rehearse(found, asked, *beside)
    why = None if asked["schema"] is None else _explain_model(found, asked)
    if as_json:
        record = found.to_json() | ({} if why is None else {"why": why})
        print_json(record | ({} if others is None else {"beside": others}))
        return
    if why is not None:
        say(why)
    _show(found, others)
    if picture is not None:
        print(f"\n{picture}")


def _explain_model(found: Forecast, asked: dict[str, Any]) -> str:
    from confide.data import schema
    from confide.data.model_words import OtherWords, explain_word
    from confide.inference.power.families import COUNTS, LOGISTIC

    described = schema.load(asked["schema"]).with_target(asked["target"])
    return explain_word(
        found.model, described.column(described.target), asked["model"] is not None, OtherWords(LOGISTIC, COUNTS)
    )


def _save(found: Forecast, asked: dict[str, Any], path: Path) -> None:
    from confide.inference.power import picture
    from confide.inference.power.planning import plan

    low, high = found.epsilons[0] / BEYOND, found.epsilons[-1] * BEYOND
    every = sorted({*np.geomspace(low, high, CURVE).tolist(), *found.epsilons})
    question = {**asked, "n": found.n, "epsilon": every, "delta": found.delta, "width": None, "column": None}
    drawn = picture.draw(plan(**question), found.epsilons)
    try:
        drawn.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise Refused(f"--picture {str(path)!r} cannot be written: {error}") from None


def _show(found: Forecast, others: dict[str, Any] | None) -> None:
    if found.answer is not None:
        say(found.answer)
        print()
    at = [f"eps {epsilon:g}" for epsilon in found.epsilons]
    apart = [f"{name}: two levels" for name in found.differences]
    noise = "" if found.noise_scale is None else f", noise scale {found.noise_scale:g}"
    show_table(
        f"Expected width of 90% intervals: {found.model}, {found.n:,} records, delta {found.delta:.2g}, "
        f"{found.neighbours}{noise}",
        ["coefficient", "prior", "no privacy", *at],
        _widths(found.columns, found.prior_widths or [found.prior_width] * len(found.columns), found)
        + _difference_widths(apart, found),
    )
    show_table(
        "Smallest effect told from none: its interval excludes 0 with probability 0.8",
        ["coefficient", *at],
        _effects(found, found.columns, found.effects) + _effects(found, apart, found.difference_effects),
    )
    show_table("At each epsilon", ["", *at], _summary(found))
    if others is not None:
        _show_beside(found, others)
    taken = "; ".join(found.assumptions)
    prior = "" if found.ranges else f"; coefficients from the prior, N(0, {found.prior_scale:g}^2)"
    say(f"Taken for granted: {taken}{prior}.")
    if found.accuracy is not None:
        say(
            f"Accuracy is for true scores that spread by {found.signal:.2g}: the true coefficients have "
            f"{found.best_accuracy:.1%}, and without privacy {found.accuracy_without_privacy:.1%} are expected."
        )
    if found.differences:
        say(
            "Levels of a category hold what they have in common with the constant, which no data tell; what two of "
            "them differ by is told, and has a line of its own."
        )
    say(found.caution)
    if min(found.seen) < 0.99:
        say(
            "Where a run does not see the scale of its records in the noise, its draws are the prior's. Widths are "
            "those of a median run: the prior's where that happens more often than not."
        )
    if others is None:
        say(found.others)


def _check_beside(asked: dict[str, Any]) -> None:
    """Made-up tables are of a schema, and know nothing of what formulas may be told."""
    if asked["schema"] is None:
        raise Refused("--sampler is rehearsed on tables of a schema: give --schema, or leave it out")
    for name in ("width", "noise_scale", "dispersion", "signal", "spread", "correlation"):
        if asked[name] is not None:
            raise Refused(f"--{name.replace('_', '-')} is for scoring, and --sampler is another one: leave one out")


def _rehearse(found: Forecast, asked: dict[str, Any], sampler: str, datasets: int) -> dict[str, Any]:
    from confide.app.runs.rehearsals import rehearse_schema

    every = [rehearse_schema({**asked, "epsilon": each, "sampler": sampler}, datasets, 0) for each in found.epsilons]
    return {
        "sampler": sampler,
        "datasets": datasets,
        "columns": every[0][1] if len(every[0][1]) == every[0][0].truths.shape[1] else list(found.columns),
        "widths": [each.width.tolist() for each, _ in every],
        "errors": [each.error.tolist() for each, _ in every],
        "coverage": [each.coverage for each, _ in every],
    }


def _show_beside(found: Forecast, others: dict[str, Any]) -> None:
    at = [f"eps {epsilon:g}" for epsilon in found.epsilons]
    both = list(zip(others["widths"], others["errors"], strict=True))
    rows = [
        [name, *(f"{widths[i]:.3g} ({errors[i]:.2g})" for widths, errors in both)]
        for i, name in enumerate(others["columns"])
    ]
    held = ["intervals held the truth", *(f"{each:.0%}" for each in others["coverage"])]
    title = f"{others['sampler']}, seen on {others['datasets']} made-up tables: median width, and mean error"
    show_table(title, ["coefficient", *at], [*rows, held])


def _widths(names: Sequence[str], priors: Sequence[float], found: Forecast) -> list[list[str]]:
    """A row for each coefficient: its width under the prior, without privacy, and at each epsilon."""
    free, ranges = found.ranges_without_privacy, found.ranges
    return [
        [
            name,
            f"{priors[i]:.3g}",
            _width(found.widths_without_privacy[i], free[i] if free else None),
            *(_width(widths[i], ranges[k][i] if ranges else None) for k, widths in enumerate(found.widths)),
        ]
        for i, name in enumerate(names)
    ]


def _difference_widths(names: Sequence[str], found: Forecast) -> list[list[str]]:
    """A row for what two levels of each category differ by."""
    prior, free = found.prior_width * 2**0.5, found.difference_widths_without_privacy
    return [
        [name, f"{prior:.3g}", _width(free[i]), *(_width(widths[i]) for widths in found.difference_widths)]
        for i, name in enumerate(names)
    ]


def _width(width: float, ends: tuple[float, float] | None = None) -> str:
    """A width, or the range that it is expected in. The reference level of a category has no interval."""
    if width == 0:
        return "reference"
    if ends is None or ends[0] == ends[1]:
        return f"{width:.3g}"
    return f"{ends[0]:.2g} to {ends[1]:.2g}"


def _effects(found: Forecast, names: Sequence[str], effects: Any) -> list[list[str]]:
    return [[name, *(_effect(found, each[i]) for each in effects)] for i, name in enumerate(names)]


def _effect(found: Forecast, effect: float | None) -> str:
    """Effects that the prior all but excludes are none."""
    return "none" if effect is None or effect > 3 * found.prior_scale else f"{effect:.3g}"


def _summary(found: Forecast) -> list[list[str]]:
    rows = [["median width", *(f"{each:.3g}" for each in found.median_widths)]]
    rows += [["best attack right", *(f"{each:.1%}" for each in found.attack_success)]]
    if found.accuracy is not None:
        rows += [["expected accuracy", *(f"{each:.1%}" for each in found.accuracy)]]
    if min(found.seen) < 0.99:
        rows += [["scale is seen", *(f"{each:.0%}" for each in found.seen)]]
    return rows
