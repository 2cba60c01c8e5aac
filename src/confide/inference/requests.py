"""What was asked of a run, as it is stored in its plan, so that anybody can plan the same run again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from confide import samplers
from confide.data.features import Feature
from confide.inference.options import Fit, Options
from confide.privacy.extra_accounts import Individual, accounts
from confide.samplers import Sampler
from confide.validation import Refused

STORED = (
    *("steps", "batch_size", "clip", "chains", "draws", "burn_in", "clipping"),
    *("canaries", "microbatch", "noise", "account"),
)
NAMES = {"ops": "one_posterior_sample"}  # samplers whose function has another name
FUNCTION = "function"  # stands for an argument that is a function or an object, which no file holds
ARGUMENTS = ("step_size", "learning_rate", "schedule", "guide")  # of samplers, in whose place it may stand
PARTS = ("first", "then")  # arguments that are samplers themselves
MAKERS = tuple(name for name in samplers.__all__ if name.islower() and name != "default_sampler")
RESTORE = "restore the folder as it was written"


def to_json(options: Fit) -> dict[str, Any]:
    """The options that were given, and the arguments of the sampler."""
    defaults = {option.name: option.default for option in fields(Options)} | {"account": ("dp",)}
    given = {name: getattr(options, name) for name in STORED} | {"account": _account_to_json(options.account)}
    stored = {name: _plain(value) for name, value in given.items() if value != defaults[name]}
    assert options.sampler is not None
    return stored | {"sampler": _sampler_to_json(options.sampler)}


def _account_to_json(account: Any) -> Any:
    """The names of the accounts, with the settings of an individual one in the place of its name."""
    kept = accounts(account)
    names: list[Any] = ["dp", *(["bayesian"] if kept.bayesian else [])]
    if kept.individual is not None:
        names.append({"stretch": kept.individual.stretch, "histogram": kept.individual.histogram})
    return tuple(names)


def _account_from_json(stored: Any) -> list[Any]:
    return [Individual(**entry) if isinstance(entry, Mapping) else entry for entry in stored]


def _sampler_to_json(sampler: Sampler) -> dict[str, Any]:
    known, make = sampler.to_json(), getattr(samplers, NAMES.get(sampler.name, sampler.name), None)
    if make is None or sampler.companion is not None:
        return {"name": FUNCTION}
    arguments = {}
    for name in inspect.signature(make).parameters:
        value = getattr(sampler, name, None)
        if value is None or (callable(value) and name in known):
            value = known.get(name)
        if value is not None:
            arguments[name] = _sampler_to_json(value) if isinstance(value, Sampler) else _plain(value)
    return {"name": make.__name__} | arguments


def _plain(value: Any) -> Any:
    """A value as JSON holds it; scalars of NumPy and JAX become numbers of Python."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Feature):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item") and np.ndim(value) == 0:
        return value.item()
    return FUNCTION


def options_from_json(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of `confide.fit` behind a stored request.

    None where one of them was a function or an object of the user's, which a run stores as `FUNCTION`. Whatever else no
    run stores is refused.
    """
    if not isinstance(request, Mapping) or "sampler" not in request:
        raise Refused(f"plan.json does not say what was requested (plan.request.sampler): {RESTORE}")
    if unknown := sorted(set(request) - {*STORED, "sampler"}):
        raise Refused(f"plan.request.{unknown[0]} is no option of a run: {RESTORE}")
    options = {name: request[name] for name in STORED if name in request}
    if marked := [name for name, value in options.items() if value == FUNCTION]:
        raise Refused(f"plan.request.{marked[0]} is {FUNCTION!r}, and no run stores that there: {RESTORE}")
    sampler = _sampler_from_json(request["sampler"])
    if sampler is None:
        return None
    if "account" in options:
        options["account"] = _account_from_json(options["account"])
    return options | {"sampler": sampler}


def _sampler_from_json(request: Any, path: str = "plan.request.sampler") -> Sampler | None:
    """The sampler of a stored request; None where it holds a function of the user's."""
    if request == {"name": FUNCTION}:
        return None
    name = request.get("name") if isinstance(request, Mapping) else None
    if name not in MAKERS:
        raise Refused(f"{path}.name is {name!r}, which is no sampler of confide: {RESTORE}")
    make = getattr(samplers, name)
    arguments = {key: value for key, value in request.items() if key != "name"}
    if unknown := sorted(set(arguments) - set(inspect.signature(make).parameters)):
        raise Refused(f"{path}.{unknown[0]} is no argument of {name}: {RESTORE}")
    marked = [key for key, value in arguments.items() if value == FUNCTION]
    if misplaced := [key for key in marked if key not in ARGUMENTS]:
        raise Refused(f"{path}.{misplaced[0]} is {FUNCTION!r}, and no run stores that there: {RESTORE}")
    for part in PARTS:
        if part in arguments:
            arguments[part] = _sampler_from_json(arguments[part], f"{path}.{part}")
    if marked or any(part in arguments and arguments[part] is None for part in PARTS):
        return None
    try:
        made = make(**arguments)
    except (Refused, TypeError, ValueError) as error:
        raise Refused(f"{path} cannot be made again ({' '.join(str(error).split())}): {RESTORE}") from None
    if _sampler_to_json(made) != request:
        raise Refused(f"{path} is not what a run with it stores: {RESTORE}")
    return made
