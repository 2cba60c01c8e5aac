"""From the fields of options to the parameters of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Optional

import typer

from confide.inference.options import RunSettings, names

KINDS = {"int": int, "float": float, "bool": bool}  # what is none of these is text


def command(kind: type[Any], read: Callable[[dict[str, Any]], Any]) -> Callable[[Callable[..., None]], Any]:
    """A function of options, and of further parameters by name, as a command that has a parameter for every option.

    What is said of data and model comes first in the help, and the settings that all runs share come last.
    """
    shared = names(RunSettings)
    offered = sorted((each for each in fields(kind) if each.metadata.get("command")), key=lambda f: f.name in shared)

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            values = {each.name: given.pop(each.name) for each in offered}
            function(read(values), **given)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [*map(_parameter, offered), *(each.replace(kind=each.KEYWORD_ONLY) for each in own)]
        made: Any = run
        del made.__wrapped__  # whose parameters are others
        made.__signature__ = inspect.Signature(parameters)
        made.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(each: Field[Any]) -> inspect.Parameter:
    told, required = each.metadata, each.default is MISSING
    listed = isinstance(each.default, tuple)
    kind = told.get("kind") or KINDS.get(str(each.type).removesuffix(" | None"), str)
    if told.get("argument"):
        shown: Any = typer.Argument(help=told["command"], show_default=False)
    else:
        shown = typer.Option(*([told["flag"]] if "flag" in told else []), help=told["command"])
    optional = not required and (each.default is None or listed)
    default = inspect.Parameter.empty if required else None if listed else each.default
    annotation = Annotated[Optional[kind] if optional else kind, shown]
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
