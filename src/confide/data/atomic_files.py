"""Files that appear whole or not at all, and that survive a power failure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from confide.validation import Refused


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
