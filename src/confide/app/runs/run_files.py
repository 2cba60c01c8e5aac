"""The files of a run's folder, held against one another: what one of them repeats of another has to be the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confide.app.runs import run_folder
from confide.data import image_schema, schema
from confide.data.image_schema import PICTURES
from confide.inference import verification
from confide.inference.posterior import Posterior
from confide.inference.verification import Verification
from confide.privacy.budget import Guarantee
from confide.validation import Refused

VERSIONS = ("creation_library", "creation_library_version", "creation_library_language", "arviz_version")
VERSIONS += ("inference_library", "inference_library_version", "sample_dims")
TIME, TIMELESS = "created_at", 3  # from this version of the mechanism on no time of a run's end is stored


def verify(folder: Path) -> Verification:
    """Recompute what follows from something else in the folder; refused in one line where it is not what is stored."""
    posterior = Posterior.load(folder)
    record = json.loads((folder / "guarantee.json").read_text(encoding="utf-8"))
    expected = Guarantee.from_json(record).to_json()
    for name, value in json.loads(json.dumps(expected)).items():
        if record.get(name, value) != value:
            raise _changed("guarantee.json", name)
    if stray := sorted(set(record) - set(expected)):
        raise _changed("guarantee.json", stray[0])
    _check_schema(folder, posterior)
    _check_draws_file(folder, expected, posterior)
    return verification.verify(posterior)


def _check_schema(folder: Path, posterior: Posterior) -> None:
    """What the plan repeats of the schema."""
    if (folder / PICTURES).is_file():
        described: Any = image_schema.load(folder / PICTURES)
    elif (folder / run_folder.SCHEMA).is_file():
        described = schema.load(folder / run_folder.SCHEMA)
    else:
        return
    for name, value in run_folder.describe_data(described).items():
        if posterior.plan.get(name) != json.loads(json.dumps(value)):
            raise _changed("plan.json", name)


def _check_draws_file(folder: Path, guarantee: dict[str, Any], posterior: Posterior) -> None:
    """posterior.nc holds the draws, their names, and the guarantee again."""
    import xarray

    with xarray.open_dataset(folder / "posterior.nc", group="posterior", engine="h5netcdf") as file:
        attributes, names = dict(file.attrs), set(file.data_vars)
        coordinates = {str(name): file.coords[name].values.tolist() for name in file.coords}
    stored = attributes.pop("guarantee", None)
    if stored is None or json.loads(stored) != json.loads(json.dumps(guarantee)):
        raise _changed("posterior.nc", "guarantee")
    admitted = {*VERSIONS, TIME} if guarantee.get("mechanism", 1) < TIMELESS else {*VERSIONS}
    if stray := sorted(set(attributes) - admitted):
        raise _changed("posterior.nc", stray[0])
    listed = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["variables"]
    routes = {name.rstrip("_"): ".".join(map(str, route)).replace("/", ".") or "parameters" for name, route in listed}
    if names != {name for name, _ in listed} or any(name != route.rstrip("_") for name, route in routes.items()):
        raise _changed("plan.json", "variables")
    labels = {"feature": posterior.plan.get("features"), "label": posterior.plan.get("labels")}
    for name, values in coordinates.items():
        if values != list(range(len(values))) and values != labels.get(name):
            raise _changed("posterior.nc", name)


def _changed(file: str, name: str) -> Refused:
    return Refused(f"{name} in {file} is not what the rest of the folder says: restore the folder as it was written")
