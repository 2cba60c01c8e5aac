"""Features on disk: a file of its owner's alone, under the name of what it was computed from.

Features of private images are private data. A file begins with a digest of its name and of all that follows, and one
that does not match, or that others could have written, is as good as none: it is computed again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from confide.data import atomic_files
from confide.validation import Refused

DIGEST = 32  # bytes


def cache() -> Path | None:
    """The user's folder for what can be computed again; it need not exist, and None where the user wants none."""
    given = os.environ.get("CONFIDE_CACHE")
    if given == "":
        return None
    return Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confide")


def folder() -> Path | None:
    """Where features are kept, made if need be; None where the user wants no cache."""
    home = cache()
    if home is None:
        return None
    place = home / "features"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        place.chmod(0o700)
    except OSError as error:
        raise Refused(
            f"{str(place)!r} cannot be used: {error.strerror}; set CONFIDE_CACHE, or leave cache out"
        ) from None
    return place


def read(place: Path, name: str, shape: tuple[int, int]) -> np.ndarray | None:
    """The rows kept under this name, or None."""
    rows = np.empty(shape, "<f4")
    try:
        with (place / name).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077 or status.st_uid != os.geteuid() or status.st_size != DIGEST + rows.nbytes:
                return None
            wanted = file.read(DIGEST)
            file.readinto(rows.data.cast("B"))
    except OSError:
        return None
    return rows if _digest(name, rows) == wanted else None


def write(place: Path, name: str, rows: np.ndarray) -> None:
    rows = np.ascontiguousarray(rows, "<f4")
    with atomic_files.write_bytes(place / name, private=True) as file:
        file.write(_digest(name, rows))
        file.write(rows.data)


def _digest(name: str, rows: np.ndarray) -> bytes:
    digest = hashlib.sha256(name.encode())
    digest.update(rows.data)
    return digest.digest()
