"""What can be asked of a run: every option once, with its default and what it means.

| class | options of | offered by |
|-------|------------|------------|
| `Settings` | how the sampler runs, as plain values | `confide.fit`, the command line, the estimators |
| `RunSettings` | and of a run of its own | `confide.fit`, the command line |
| `Options` | and those that are objects in Python | `confide.fit` |

`confide.fit` takes the fields of `Fit`, in their order. The command line adds its own (`confide.app.runs.options`), and
so do the estimators (`confide.app.estimators`). Signatures, arguments in docstrings, typer's parameters, what is stored
of a request and `get_params` are all made from the fields: whoever adds an option adds a field here, with its words.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from confide.mechanism.noise import Noise
    from confide.models.model import Model
    from confide.privacy.budget import Budget
    from confide.privacy.ledger import Ledger
    from confide.samplers import Sampler

CHECKPOINT_SECONDS = 20.0
P = ParamSpec("P")
R = TypeVar("R")


def words(python: str = "", command: str = "", **more: Any) -> dict[str, Any]:
    """What an option means: in docstrings, and on the command line, which offers those that have words for it."""
    return {"python": python, "command": command, **more}


@dataclass(frozen=True)
class Settings:
    """Wherever something is fitted."""

    steps: int | None = field(
        default=None,
        metadata=words(
            "more steps cost time, not privacy: each is made smaller. Not with `scoring`.",
            "Steps of the sampler; more cost time, not privacy. Not with scoring.",
        ),
    )
    batch_size: int | None = field(
        default=None,
        metadata=words(
            "the expected size of a batch; the number of records for full batches. Not with `scoring`.",
            "Expected size of a Poisson batch. Not with scoring.",
        ),
    )
    clip: float | None = field(
        default=None,
        metadata=words(
            "the most that one record may contribute to a gradient sum. Not with `scoring`.",
            "Most that one record may add to a gradient. Not with scoring.",
        ),
    )
    chains: int = field(
        default=1,
        metadata=words(
            "K chains cost K times: each step is that much smaller. Not with `scoring`.",
            "Independent chains; K of them cost K times. Not with scoring.",
        ),
    )
    _: KW_ONLY
    dataset: str | None = field(
        default=None,
        metadata=words(
            "its name in the ledger, where that has several.",
            "Its name in the ledger, if that holds several.",
        ),
    )
    draws: int | None = field(
        default=None,
        metadata=words(
            "kept from each chain, evenly spaced after `burn_in` steps (half of the run); one point of an optimiser, "
            "and from the q of `dpvi` as many as are wanted; of `scoring` independent ones, 2,000 if not given.",
            "Draws to keep of each chain; of scoring independent ones, 2000 if not given.",
        ),
    )
    burn_in: int | None = field(
        default=None,
        metadata=words(
            "steps before the first draw. Not with `scoring`.",
            "Steps before the first draw; half if not given. Not with scoring.",
        ),
    )
    clipping: str | None = field(
        default=None,
        metadata=words(
            'how a score that is longer than the clip is shortened: "weighted", by a weight that its outcome does not '
            "decide, which bends nothing, and is for generalised linear models, where it is the default; or "
            '"plain", by its own length. Not with `scoring`, which always weights.',
            "weighted (default of linear models: bends nothing), or plain. Not with scoring.",
        ),
    )
    noise: Noise = field(
        default="default",
        metadata=words(
            '"secure" for a cryptographic generator, and sums of whole numbers.',
            "default, or secure: from a cryptographic generator.",
        ),
    )
    records: int | None = field(
        default=None,
        metadata=words(
            "how many there are, as declared: by default the number of rows. Everything that is planned, printed or "
            "stored follows it, and the data may hold somewhat fewer or more rows than that, as nobody is told.",
            "Declared number of records, which is public; by default the number of rows.",
        ),
    )


@dataclass(frozen=True)
class RunSettings(Settings):
    """Of a run that has a checkpoint of its own and can be audited."""

    _: KW_ONLY
    canaries: int | None = field(
        default=None,
        metadata=words(
            "so many are planted, each with probability 1/2, and `posterior.canaries` holds what the run tells of "
            "them, for `confide.audit`. The model's own posterior is what it would have been.",
            "Plant so many made-up records, and audit the run by what it tells of them; 1000 are usual.",
        ),
    )
    microbatch: int | None = field(
        default=None,
        metadata=words(
            "so many records of a batch are looked at together, where the model is none of the linear ones: less "
            "memory for fewer. It does not change the guarantee.",
            "Mlp and cnn: records looked at together; fewer take less memory.",
        ),
    )
    checkpoint_seconds: float = field(
        default=CHECKPOINT_SECONDS, metadata=words("time between checkpoints.", "Time between checkpoints.")
    )


@dataclass(frozen=True)
class Options(RunSettings):
    """Everything that may be asked of a run besides its model, data, budget and sampler."""

    key: Any = field(
        default=None,
        metadata=words(
            "a number that the noise is derived from, with the records and all settings; by default the operating "
            "system's. One that anyone knows or guesses voids the guarantee.",
        ),
    )
    ledger: Ledger | str | os.PathLike[str] | None = field(
        default=None, metadata=words("charged before the records are used.")
    )
    _: KW_ONLY
    account: Any = field(
        default="dp",
        metadata=words(
            '"dp"; beside it "bayesian" (an estimate for typical people, for your eyes alone, on the guarantee) and '
            '"individual" (every record pays for itself), or `confide.Individual(...)` with its settings.',
        ),
    )
    checkpoint: str | os.PathLike[str] | None = field(
        default=None,
        metadata=words("a file of secrets from which the same call goes on after an interruption."),
    )
    progress: bool | None = field(default=None, metadata=words("a bar on the terminal; by default where there is one."))
    verbose: bool = field(default=True, metadata=words("print the plan."))
    assumptions: tuple[str, ...] = field(
        default=(),
        metadata=words("sentences that the guarantee rests on besides its own, for whoever prepared the data."),
    )


@dataclass(frozen=True)
class Subject:
    """What is fitted to what, for how much, and by which sampler."""

    model: Model = field(metadata=words("from `confide.models`."))
    data: Any = field(metadata=words("(X, y), arrays with one row per record, scaled by public bounds."))
    budget: Budget = field(metadata=words("the most that may be revealed."))
    sampler: Sampler | None = field(
        default=None,
        metadata=words("by default `confide.scoring()` for linear models, else `confide.sgld()`."),
    )


@dataclass(frozen=True, eq=False)
class Fit(Options, Subject):
    """The arguments of `confide.fit`. The fields of `Subject` come first."""


def takes(kind: Callable[P, Any]) -> Callable[[Callable[[Any], R]], Callable[P, R]]:
    """A function of options is called with their fields as its arguments: one signature, for people and for checkers.

    The arguments are added to its docstring.
    """

    def decorate(function: Callable[[Any], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            return function(kind(*given, **named))

        own = inspect.signature(function)
        signature = inspect.signature(kind).replace(return_annotation=own.return_annotation)
        made: Any = call
        made.__signature__ = signature
        made.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        made.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{arguments(kind)}\n"
        return call

    return decorate


def arguments(kind: Any, without: Sequence[str] = ()) -> str:
    """Fields with their words, as the arguments of a docstring."""
    own = {each.name: each.metadata["python"] for each in fields(kind)}
    entries = [f"{name}: {own[name]}" for name in inspect.signature(kind).parameters if name not in without]
    return "\n".join(textwrap.fill(entry, 112, initial_indent=" " * 4, subsequent_indent=" " * 8) for entry in entries)


def names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def values(kind: type[Settings], options: Settings) -> dict[str, Any]:
    """What the options have for the fields of this kind, by name."""
    return {name: getattr(options, name) for name in names(kind)}
