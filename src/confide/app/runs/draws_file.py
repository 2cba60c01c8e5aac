"""posterior.nc, held against the rest of a run's folder: it holds the draws, their names and the guarantee, and nothing
else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from confide.inference.comparison import as_json
from confide.inference.posterior import Posterior
from confide.validation import Refused

GROUP = "posterior"
VERSIONS = ("creation_library", "creation_library_version", "creation_library_language")
VERSIONS += ("arviz_version", "inference_library", "inference_library_version", "sample_dims")
LONGEST = 64  # characters of a version or a time
TIME, TIMELESS = "created_at", 3  # from this version of the mechanism on no time of a run's end is stored


def check(folder: Path, guarantee: dict[str, Any], posterior: Posterior) -> None:
    """Refused, naming it, where something is there that no run stores, or that the rest of the folder does not say."""
    import h5netcdf

    variables = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["variables"]
    routes = {
        name.rstrip("_"): ".".join(map(str, route)).replace("/", ".") or "parameters" for name, route in variables
    }
    if any(name != route.rstrip("_") for name, route in routes.items()):
        raise not_as_said("plan.json", "variables")
    with h5netcdf.File(folder / "posterior.nc", "r") as file:
        for stray in (*file.attrs, *file.variables, *file.dimensions, *(set(file.groups) - {GROUP})):
            raise not_as_said("posterior.nc", stray)
        group = file.groups[GROUP]
        for stray in group.groups:
            raise not_as_said("posterior.nc", stray)
        _check_attributes(dict(group.attrs), guarantee)
        _check_variables(group, {name for name, _ in variables}, posterior)


def _check_attributes(attributes: dict[str, Any], guarantee: dict[str, Any]) -> None:
    stored = attributes.pop("guarantee", None)
    if stored is None or json.loads(stored) != as_json(guarantee):
        raise not_as_said("posterior.nc", "guarantee")
    for name, value in attributes.items():
        words = value if name == "sample_dims" else [value]
        admitted = name in VERSIONS or (name == TIME and (guarantee.get("mechanism") or 1) < TIMELESS)
        if not admitted or not all(isinstance(word, str) and len(word) <= LONGEST for word in words):
            raise not_as_said("posterior.nc", name)


def _check_variables(group: Any, names: set[str], posterior: Posterior) -> None:
    """Draws, and beside them the places or names along their axes."""
    axes = {axis for name in names & set(group.variables) for axis in group.variables[name].dimensions}
    for stray in sorted((set(group.variables) ^ (names | axes)) | (set(group.dimensions) ^ axes)):
        raise not_as_said("posterior.nc", stray)
    labels = {"feature": posterior.plan.get("features"), "label": posterior.plan.get("labels")}
    for name, variable in group.variables.items():
        attributes = dict(variable.attrs)
        fill = attributes.pop("_FillValue", None)
        if attributes or (fill is not None and not math.isnan(fill)):
            raise not_as_said("posterior.nc", f"{name}.{next(iter(attributes), '_FillValue')}")
        if name in names:
            continue
        values = [value.decode() if isinstance(value, bytes) else value for value in variable[...].tolist()]
        if values != list(range(len(values))) and values != labels.get(name):
            raise not_as_said("posterior.nc", name)


def not_as_said(file: str, name: str) -> Refused:
    return Refused(f"{name} in {file} is not what the rest of the folder says: restore the folder as it was written")
