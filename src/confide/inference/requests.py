"""What was asked of a run, as it is stored in its plan, so that anybody can plan the same run again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

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


def to_json(options: Fit) -> dict[str, Any]:
    """The options that were given, and the arguments of the sampler."""
    defaults = {each.name: each.default for each in fields(Options)} | {"account": ("dp",)}
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
    own = {}
    for name in inspect.signature(make).parameters:
        value = getattr(sampler, name, None)
        if value is None or (callable(value) and name in known):
            value = known.get(name)
        if value is not None:
            own[name] = _sampler_to_json(value) if isinstance(value, Sampler) else _plain(value)
    return {"name": make.__name__} | own


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Feature):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return FUNCTION


def options_from_json(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of `confide.fit` behind a stored request; None where one of them was a function or an object."""
    found = {name: request[name] for name in STORED if name in request}
    sampler = _sampler_from_json(request.get("sampler", {}))
    if sampler is None or FUNCTION in found.values():
        return None
    if "account" in found:
        found["account"] = _account_from_json(found["account"])
    return found | {"sampler": sampler}


def _sampler_from_json(request: Mapping[str, Any]) -> Sampler | None:
    name, arguments = request.get("name"), {key: value for key, value in request.items() if key != "name"}
    arguments = {
        key: _sampler_from_json(value) if isinstance(value, Mapping) else value for key, value in arguments.items()
    }
    if name not in samplers.__all__ or FUNCTION in arguments.values() or None in arguments.values():
        return None
    try:
        made = getattr(samplers, name)(**arguments)
    except Refused:
        return None
    return made if isinstance(made, Sampler) and _sampler_to_json(made) == request else None
