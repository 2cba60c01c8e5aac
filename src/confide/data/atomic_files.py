"""Files that appear whole or not at all, and that survive a power failure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from confide.validation import Refused


def cache() -> Path | None:
    """The user's folder for what can be computed again; it need not exist, and None where the user wants none."""
    given = os.environ.get("CONFIDE_CACHE")
    if given == "":
        return None
    return Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confide")


@contextmanager
def write_text(path: Path, private: bool = False) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when it is complete; refused where it cannot be written.

    A private one can be read by its owner alone, from the moment it exists.
    """
    with _draft(path, private, "w", newline="", encoding="utf-8") as file:
        yield file


@contextmanager
def write_bytes(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """The same for a file of bytes."""
    with _draft(path, private, "wb") as file:
        yield file


@contextmanager
def _draft(path: Path, private: bool, mode: str, **text: Any) -> Iterator[Any]:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(descriptor, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        remedy = "" if path.absolute().parent.is_dir() else ": make the folder first"
        raise Refused(f"{str(path)!r} cannot be written: {error.strerror}{remedy}") from None
    finally:
        draft.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # folders cannot be opened everywhere
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def inside(path: Path, folder: Path) -> bool:
    """Whether a file written under this name comes to lie in the folder, or where a link in its place points."""
    whole = folder.resolve()
    return any(whole == parent or whole in parent.parents for parent in (path.parent.resolve(), path.resolve().parent))
