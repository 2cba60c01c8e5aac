"""Checkpoints: what an interrupted run needs to go on, to the bit.

A checkpoint holds secrets: the key of the noise, and iterates that may not have been meant for release. It is a file
apart from any output, readable by its owner only, replaced in one move, and deleted when the run completes. Going on
with other data or other settings under the same key would void the guarantee, so a fingerprint of both is kept, and a
run that does not match it is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide import validation
from confide.data import atomic_files
from confide.validation import Refused


class Checkpoint(NamedTuple):
    fingerprint: str
    receipt: str  # of the charge in the ledger; empty without one
    key: bytes
    given: bool  # whether the caller chose the key
    block: int  # blocks of steps done
    arrays: list[np.ndarray]  # leaves of the state and the draws
    mechanism: int = 1  # of those who do not say


def fingerprint(settings: dict[str, Any], data: tuple[np.ndarray, ...]) -> str:
    """A digest of everything that the run depends on, but for its key."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for array in data:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in one move; the file is its owner's alone from the moment it exists."""
    draft = _draft(path)
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        head = checkpoint._asdict() | {"key": checkpoint.key.hex(), "arrays": len(checkpoint.arrays)}
        arrays: dict[str, Any] = {f"array{i}": array for i, array in enumerate(checkpoint.arrays)}
        np.savez(file, head=np.array(json.dumps(head)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    atomic_files.kept(path.parent)


def read(path: Path) -> Checkpoint | None:
    """The checkpoint, or None where there is none."""
    if not path.exists():
        return None
    if path.stat().st_mode & 0o077:
        raise Refused(f"checkpoint {str(path)!r} can be read by others, and so can its key: delete it and start afresh")
    try:
        with path.open("rb") as stored, np.load(stored, allow_pickle=False) as file:
            head = json.loads(str(file["head"]))
            arrays = [file[f"array{i}"] for i in range(head["arrays"])]
        return Checkpoint(**head | {"key": bytes.fromhex(head["key"]), "arrays": arrays})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Refused(f"checkpoint {str(path)!r} cannot be read: {error}; delete it to start afresh") from None


def delete(path: Path) -> None:
    """Remove the checkpoint and what an interrupted write may have left of it."""
    for file in (path, _draft(path)):
        file.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")


def checked_path(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    validation.instance(str | os.PathLike, checkpoint=path)
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise Refused(f"checkpoint {str(path)!r} is a folder or lies in none: give a file in a folder that exists")
    try:  # whether it can be written, before anything is paid for
        _draft(path).unlink(missing_ok=True)
        os.close(os.open(_draft(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _draft(path).unlink()
    except OSError as error:
        raise Refused(f"checkpoint {str(path)!r} cannot be written: {error.strerror}") from None
    return path
