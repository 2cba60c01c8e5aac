"""The parameters of estimators: the settings of a run, and what is public about features and targets."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from confide.inference.options import Settings, arguments, names, words
from confide.privacy.events import Neighbours
from confide.privacy.ledger import Ledger
from confide.samplers import Sampler

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Parameters(Settings):
    """Of every estimator."""

    epsilon: float = field(default=1.0, metadata=words("the most that one call of `fit` may reveal."))
    delta: float = field(default=1e-5, metadata=words("probability that this bound fails."))
    neighbours: Neighbours = field(default="add-remove", metadata=words('"add-remove" or "replace-one".'))
    bounds: Any = field(
        default=None,
        metadata=words("(low, high), each a number or one per feature, known without looking at the records."),
    )
    typical: Any = field(
        default=None,
        metadata=words(
            "(low, high), each a number or one per feature: where about nine in ten records lie, if that is known "
            "without looking at them. Private scoring buys it from the budget where it is left out."
        ),
    )
    prior: str = field(
        default="standardised",
        metadata=words(
            'of private scoring: "standardised", on coefficients of features with standard deviation 1; or "encoded", '
            "on those of features scaled to [-1, 1] by their bounds, as other samplers and softmax have it."
        ),
    )
    prior_scale: float | None = field(
        default=None,
        metadata=words("standard deviation of the prior; 2.5 where it is standardised, 1 where it is encoded."),
    )
    column_priors: Any = field(
        default=None,
        metadata=words(
            "of private scoring: standard deviations of single coefficients in the units of feature and target, one "
            "per feature; None for those that have the usual prior."
        ),
    )
    sampler: Sampler | None = field(default=None, metadata=words("see `confide.fit`."))
    ledger: Ledger | str | os.PathLike[str] | None = field(
        default=None, metadata=words("charged by every `fit`, before the records are used.")
    )
    random_state: int | None = field(
        default=None,
        metadata=words(
            "makes the run repeatable. Whoever knows or guesses it can undo the noise: leave it out to publish."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ClassifierParameters(Parameters):
    classes: Any = field(
        default=None,
        metadata=words(
            'the labels that may occur, and a record with another counts as absent; "from-data" reveals those that '
            "occur, and the guarantee says so."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class TargetParameters(Parameters):
    target_bounds: Any = field(
        default=None,
        metadata=words("(low, high) of the target, known without looking at the records; y is clipped to it."),
    )


@dataclass(frozen=True, kw_only=True)
class LinearParameters(TargetParameters):
    noise_scale: float | None = field(
        default=None,
        metadata=words(
            "standard deviation of the target about its mean, in its own units; where it is left out, it is learnt by "
            "`confide.scoring` and `confide.sufficient_statistics`, and elsewhere an eighth of the width of "
            "target_bounds."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class NegativeBinomialParameters(TargetParameters):
    dispersion: float = field(
        default=1.0,
        metadata=words("by how much counts vary more than a Poisson would; `alpha` in statsmodels, 1 / `theta` in R."),
    )


def takes(kind: Callable[P, Any]) -> Callable[[Callable[[Any, Any], None]], Callable[Concatenate[Any, P], None]]:
    """A constructor that takes parameters by name, one for each field, as scikit-learn looks them up."""

    def decorate(function: Callable[[Any, Any], None]) -> Callable[Concatenate[Any, P], None]:
        @functools.wraps(function)
        def init(self: Any, /, *given: P.args, **named: P.kwargs) -> None:
            if given:
                raise TypeError(f"{type(self).__name__} takes its parameters by name")
            function(self, kind(*given, **named))

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        rest = [each.replace(kind=each.KEYWORD_ONLY) for each in inspect.signature(kind).parameters.values()]
        rest.sort(key=lambda each: each.name in names(Settings))  # what is the estimator's own comes first
        made: Any = init
        made.__signature__ = inspect.Signature([first, *rest])
        return init

    return decorate


def document(kind: Any) -> Callable[[type[T]], type[T]]:
    """Add the parameters to the docstring of an estimator, before its attributes."""

    def decorate(estimator: type[T]) -> type[T]:
        text, mark, attributes = (inspect.getdoc(estimator) or "").partition("Attributes:\n")
        shared = f"    {', '.join(names(Settings))}: see `confide.fit`."
        estimator.__doc__ = (
            f"{text.rstrip()}\n\nArgs:\n{arguments(kind, names(Settings))}\n{shared}\n\n{mark}{attributes}"
        )
        return estimator

    return decorate
