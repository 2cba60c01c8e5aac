"""`confide.plan`: the settings of a Langevin run, or what a budget is expected to buy of a linear model."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from confide import validation
from confide.data.schema import Schema
from confide.inference.power.figures import WIDTH, best_accuracy, figures, signal
from confide.inference.power.forecast import Forecast
from confide.inference.power.guesses import Belief
from confide.inference.power.questions import Question, check_epsilons, expect
from confide.inference.power.regression_widths import ExpectedRegression
from confide.inference.power.seeking import Seeker
from confide.inference.power.strength import mu_of
from confide.inference.power.widths import Expected
from confide.privacy.events import Neighbours
from confide.privacy.large_delta import warn_of_large_delta
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.privacy.calibration import Schedule
    from confide.privacy.planning import Plan

UNLIKE = Belief(spread=1 / 3, correlation=0.7)  # records that are harder to learn from than those of the guess


def plan(
    *,
    n: int | None = None,
    epsilon: float | Sequence[float] | None = None,
    delta: float | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    features: int | None = None,
    width: float | None = None,
    column: str | None = None,
    target: str | None = None,
    model: str | None = None,
    classes: int | None = None,
    prior_scale: float | None = None,
    noise_scale: float | None = None,
    dispersion: float | None = None,
    signal: float | None = None,
    spread: float | None = None,
    correlation: float | None = None,
    neighbours: Neighbours = "add-remove",
    clip: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    temperature: float | None = None,
    schedule: Schedule | None = None,
) -> Any:
    """What a budget buys, before it is spent. Nothing is looked at, and it costs nothing.

    **With a schema, or a number of features:** a `Forecast` of a linear model that is fitted by `confide.scoring`, its
    default: how wide the 90% interval of every coefficient is expected to be at each epsilon, beside the one without
    privacy and the prior's; the least effect that is told from none; the accuracy. The other way round, with a `width`:
    the epsilon at which intervals are that narrow, or, with an epsilon and without n, how many people it takes.

    **With neither:** a `Plan`, the largest step size of a Langevin run (`confide.sgld`) that the budget pays for, and
    what the papers would have allowed; clip, epochs, steps, batch_size, temperature and schedule are for that alone.

    Args:
        n: number of records, public.
        epsilon, delta: the budget; several epsilons for a forecast. Without delta a forecast has 1 / (10 n).
        schema: of a table, a `Schema` or its file; or
        features: how many numbers in [-1, 1] a row of an array has.
        width: that intervals are to have: the median over features (of a category, of what two levels differ by), or
            that of the `column` that is named.
        target, model, classes: as for a fit; by default the target's family, and logistic for arrays.
        prior_scale, dispersion: as for a fit.
        noise_scale: what the noise of a linear model is guessed to be; the run learns it.
        signal: by how much the true scores of records spread; by default as coefficients from the prior make them.
        spread: standard deviation of numeric features, scaled to [-1, 1]; uniform ones by default.
        correlation: of each column with the next one; none by default.

    >>> round(plan(n=5000, features=5, epsilon=1.0, delta=1e-5).width("feature 1", 1.0), 2)
    0.22
    >>> round(plan(n=5000, epsilon=1.0, delta=1e-5, epochs=20).noise_multiplier, 1)
    3.9
    """
    steps_alone = {
        "clip": clip, "epochs": epochs, "steps": steps, "batch_size": batch_size, "temperature": temperature,
        "schedule": schedule,
    }  # fmt: skip
    asked: dict[str, Any] = {
        "target": target, "model": model, "classes": classes, "prior_scale": prior_scale, "noise_scale": noise_scale,
        "dispersion": dispersion, "signal": signal, "spread": spread, "correlation": correlation,
    }  # fmt: skip
    if schema is None and features is None:
        return _settings(n, epsilon, delta, neighbours, steps_alone, asked | {"width": width, "column": column})
    if schema is not None and features is not None:
        raise Refused("give schema or features, and not both: a table, or the width of an array")
    _refuse(steps_alone, "is of a run by steps, and a schema or features ask what scoring buys")
    question = Question(schema=schema, features=features, neighbours=neighbours, **asked)
    return forecast(question, n, epsilon, delta, width, column)


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise Refused(f"{name} {why}: leave it out")


def _settings(n: Any, epsilon: Any, delta: Any, neighbours: Neighbours, own: dict[str, Any], others: Any) -> Plan:
    """Of a run by steps."""
    from confide.privacy import planning  # a forecast is not to wait for it

    _refuse(others, "asks what a budget buys, which needs a schema, or features")
    if epsilon is not None and np.ndim(epsilon) > 0:
        raise Refused("a run by steps is planned for one epsilon: give one, or a schema or features")
    given = {name: value for name, value in own.items() if value is not None}
    budget: dict[str, Any] = {"n": n, "epsilon": epsilon, "delta": delta}
    return planning.plan(neighbours=neighbours, **budget, **given)


def forecast(question: Question, n: Any, epsilon: Any, delta: Any, width: Any, column: str | None) -> Forecast:
    """What a budget buys; or the budget, or the number of people, that a width takes."""
    given = None if epsilon is None else check_epsilons(epsilon)
    number = None if n is None else validation.count(n=n)
    if number == 1:
        raise Refused("n = 1 tells nothing of anybody but one: give the number of records")
    fixed = None if delta is None else validation.probability(delta=delta)
    if width is None:
        if given is None or number is None:
            raise Refused("n and epsilon say what is bought: give both, or a width and one of them")
        if column is not None:
            raise Refused("column names the interval that a width is asked of: give width, or leave it out")
        return _forecast(question, expect(question), number, given, fixed)
    seeker = Seeker(expect(question), validation.positive(width=width), column, fixed)
    if given is not None and len(given) > 1:
        raise Refused("width goes with one epsilon, or with none: a list of them asks for widths")
    if (given is None) == (number is None):
        raise Refused("width asks for what is left out of n and epsilon: give one of them, and not both")
    if number is not None:
        sought = seeker.epsilon(number)
        found = _forecast(question, seeker.expected, number, (sought,), fixed)
        return replace(found, answer=seeker.say_epsilon(number, sought), sought={"epsilon": sought})
    assert given is not None
    one = max(given)
    people = seeker.number(one)
    found = _forecast(question, seeker.expected, people, given, fixed)
    return replace(found, answer=seeker.say_number(people, one), sought={"n": float(people)})


def usual_delta(n: float) -> float:
    return 1 / (10 * n)


def _forecast(
    question: Question,
    expected: Expected | ExpectedRegression,
    n: int,
    epsilons: tuple[float, ...],
    delta: float | None,
) -> Forecast:
    setting, chosen = expected.setting, usual_delta(n) if delta is None else delta
    warn_of_large_delta(chosen, n)
    strengths = [mu_of(epsilon, chosen) for epsilon in epsilons]
    found, free = [figures(expected, n, mu) for mu in strengths], figures(expected, n, math.inf)
    labels = setting.outcomes.labels
    return Forecast(
        model=setting.outcomes.word,
        n=n,
        delta=chosen,
        neighbours=question.neighbours,
        prior_scale=setting.prior_scale,
        noise_scale=setting.noise_scale if expected.linear else None,
        columns=setting.guess.names,
        epsilons=epsilons,
        prior_width=WIDTH * setting.prior_scale,
        widths_without_privacy=tuple(map(float, free.widths)),
        widths=tuple(tuple(map(float, each.widths)) for each in found),
        median_width_without_privacy=free.median,
        median_widths=tuple(each.median for each in found),
        effects=tuple(tuple(_finite(effect) for effect in each.effects) for each in found),
        seen=tuple(each.seen for each in found),
        attack_success=tuple(float(special.ndtr(mu / 2)) for mu in strengths),
        accuracy=tuple(each.accuracy or 0.0 for each in found) if labels else None,
        accuracy_without_privacy=free.accuracy,
        best_accuracy=best_accuracy(expected) if labels else None,
        signal=signal(expected),
        assumptions=setting.guess.said if isinstance(expected, Expected) else expected.table.assumptions,
        differences=_differences(expected),
        ranges=() if isinstance(expected, Expected) else tuple(expected.ranges(each.widths) for each in found),
        ranges_without_privacy=() if isinstance(expected, Expected) else expected.ranges(free.widths),
        prior_widths=() if isinstance(expected, Expected) else expected.prior_widths(),
        difference_widths_without_privacy=tuple(map(float, free.difference_widths)),
        difference_widths=tuple(tuple(map(float, each.difference_widths)) for each in found),
        difference_effects=tuple(tuple(_finite(effect) for effect in each.difference_effects) for each in found),
        caution=_caution(question, expected, n, strengths[len(strengths) // 2]),
    )


def _differences(expected: Expected | ExpectedRegression) -> tuple[str, ...]:
    """Categories that have a line for what two levels differ by. In a regression each level has one itself."""
    if not isinstance(expected, Expected) or expected.setting.outcomes.classes > 1:
        return ()
    return tuple(name for name, _ in expected.setting.guess.levels)


def _finite(effect: float) -> float | None:
    return float(effect) if math.isfinite(effect) else None


def _caution(question: Question, expected: Expected | ExpectedRegression, n: int, mu: float) -> str:
    """By how much intervals are wider where records are not as they were guessed."""
    if not isinstance(expected, Expected):
        if expected.table.declared.all():
            return "Where columns are correlated, intervals are wider than these: give correlation if it is known."
        return (
            "Widths are given as a range for columns whose distribution is not declared. Declare typical = [low, high] "
            "for numbers and shares for booleans and categories in the schema to get one figure."
        )
    said = "Where columns are correlated, or values lie close together within their bounds, intervals are wider"
    if question.belief() != Belief():
        return f"{said} than with what was taken for granted here if there is more of either."
    few = [(each, len(each.truths) // 2) for each in (expected.setting, question.setting(UNLIKE))]
    settings = [each._replace(truths=each.truths[::apart]) for each, apart in few]
    easier, harder = (figures(Expected(each), n, mu).widths for each in settings)
    ratio = float(np.max(harder / easier))
    return (
        f"{said}: if each column correlates by {UNLIKE.correlation:g} with the next and numeric ones spread by a third "
        f"of the way to their bounds, up to {ratio:.1f} times as wide (in the middle of these budgets). These figures "
        "then err on the narrow side. What is known of it may be given as correlation and spread."
    )
