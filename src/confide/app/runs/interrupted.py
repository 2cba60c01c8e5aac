"""Runs that have begun and have not ended: what `confide resume` needs.

An output folder may be published whole, so what a run needs while it lasts (what was asked, the checkpoint with the key
of the noise) lies elsewhere, in a folder that its owner alone can read, and is deleted when the output is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from confide.data import atomic_files
from confide.validation import Refused

REQUEST, CHECKPOINT = "request.json", "checkpoint"


def home() -> Path:
    """CONFIDE_STATE, or the folder that the system keeps for the state of programs."""
    chosen = os.environ.get("CONFIDE_STATE")
    return Path(chosen or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "confide")


def place(out: Path) -> Path:
    """Where a run that will write to `out` keeps its secrets."""
    whole = str(out.parent.resolve() / out.name)  # by whatever way the folder is reached
    return home() / "runs" / f"{out.name}-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def begin(out: Path, request: dict[str, Any]) -> Path:
    """A folder for a new run, with what was asked; refused where one waits already."""
    folder = place(out)
    if atomic_files.inside(folder / REQUEST, out) or atomic_files.inside(out, folder):
        raise Refused(f"CONFIDE_STATE and --out {str(out)!r} lie in one another: secrets and output must lie apart")
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        with alone(folder):  # refused where it is running
            raise Refused(
                f"a run for {str(out)!r} has begun and not ended: go on with 'confide resume {quote(str(out))}', "
                f"or give it up with 'confide resume {quote(str(out))} --discard'"
            ) from None
    except OSError as error:
        raise Refused(f"{str(folder)!r} cannot be made: {error.strerror}; set CONFIDE_STATE to a folder") from None
    draft = folder / f".{REQUEST}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(request, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / REQUEST)
    for path in (folder, folder.parent):
        atomic_files.flush_to_disk(path)
    return folder


def read_request(out: Path) -> dict[str, Any]:
    """What was asked of the run that waits for `out`."""
    folder = place(out)
    try:
        if folder.stat().st_mode & 0o077:
            raise Refused(
                f"{str(folder)!r} can be read by others, and so can its key: discard the run and start afresh"
            )
        return json.loads((folder / REQUEST).read_text())
    except FileNotFoundError:
        if not folder.exists():
            raise none_waits(out) from None
        raise Refused(
            f"the run for {str(out)!r} was killed before it had begun: "
            f"give it up with 'confide resume {quote(str(out))} --discard'"
        ) from None
    except (OSError, json.JSONDecodeError) as error:
        raise Refused(f"the run for {str(out)!r} cannot be resumed: {error}; discard it and start afresh") from None


def none_waits(out: Path) -> Refused:
    return Refused(f"no run for {str(out)!r} waits to be resumed: start one with 'confide fit'")


def end(out: Path) -> None:
    """Forget the run: its key and its iterates are gone."""
    folder = place(out)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise Refused(f"{str(folder)!r} holds the key of the noise and cannot be deleted: delete it by hand")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the run, so that no other process works on it at the same time; a killed process holds nothing."""
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another process is working on this run: wait for it, or stop it first") from None
        yield
    finally:
        os.close(descriptor)
