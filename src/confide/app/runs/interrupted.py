"""Runs that have begun and have not ended: `confide resume`.

What such a run left in its state folder is what it needs to go on (`confide.app.runs.run_folder`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from confide.app.runs import run_folder
from confide.app.runs.options import Request
from confide.inference import checkpoints
from confide.inference.posterior import Posterior
from confide.validation import Refused


def resume(out: str | os.PathLike[str], *, progress: bool | None = None, verbose: bool = True) -> Posterior:
    """Go on with a run that was interrupted: the same draws as without the interruption, and one charge."""
    path = Path(out)
    request = _read_request(path)
    folder = run_folder.state_folder(path)
    with run_folder.hold(folder):
        draft = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}")  # of a folder that was being written
        for found in path.absolute().parent.iterdir():
            if draft.fullmatch(found.name):
                shutil.rmtree(found, ignore_errors=True)
        if path.exists():  # perhaps it was complete, and only the secrets were left
            return _complete(path, folder)
        made = run_folder.prepare(request)
        choice = run_folder.choose(request, made)
        return run_folder.run(replace(request, out=str(path)), made, choice, folder, progress, verbose)


def _read_request(out: Path) -> Request:
    """What was asked; refused where what it needs is not where it was."""
    try:
        request = Request(**_load_request(out))
    except TypeError:
        raise Refused(
            f"the run for {str(out)!r} was begun by another version of confide: resume it with that"
        ) from None
    for name, path in (("data", request.data), ("ledger", request.ledger)):
        if path is not None and not Path(path).exists():
            raise Refused(
                f"the run's {name}, {path!r}, is not where it was: put it back, or give the run up (--discard)"
            )
    return request


def _complete(path: Path, folder: Path) -> Posterior:
    """The posterior of a run that was killed between writing it and forgetting its secrets."""
    begun = checkpoints.read(folder / run_folder.CHECKPOINT)
    posterior = run_folder.load(path)[0]
    if begun is None or posterior.plan.get("run") != begun.receipt:
        raise Refused(f"{str(path)!r} is another run's: move it away, and resume again")
    run_folder.end(path)
    return posterior


def discard(out: str | os.PathLike[str]) -> None:
    """Give up an interrupted run. What it was charged stays charged."""
    path = Path(out)
    if not run_folder.state_folder(path).exists():
        raise _none_waits(path)
    with run_folder.hold(run_folder.state_folder(path)):
        run_folder.end(path)


def _load_request(out: Path) -> dict[str, Any]:
    """What was asked of the run that waits for `out`."""
    folder = run_folder.state_folder(out)
    try:
        if folder.stat().st_mode & 0o077:
            raise Refused(
                f"{str(folder)!r} can be read by others, and so can its key: discard the run and start afresh"
            )
        asked = json.loads((folder / run_folder.REQUEST).read_text())
        old = {"clipping": "plain"}  # as all runs of before there was another one
        return old | asked | {"sampler": asked.get("sampler") or "sgld"}  # which was not written down where not named
    except FileNotFoundError:
        if not folder.exists():
            raise _none_waits(out) from None
        raise Refused(
            f"the run for {str(out)!r} was killed before it had begun: "
            f"give it up with 'confide resume {quote(str(out))} --discard'"
        ) from None
    except (OSError, json.JSONDecodeError) as error:
        raise Refused(f"the run for {str(out)!r} cannot be resumed: {error}; discard it and start afresh") from None


def _none_waits(out: Path) -> Refused:
    return Refused(f"no run for {str(out)!r} waits to be resumed: start one with 'confide fit'")
