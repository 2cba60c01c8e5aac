"""Finished parts of a long reproduction, kept beside its results, so that one that was stopped goes on where it was.

A part is a cell of a table or a point of a curve that does not depend on the others. It is kept as JSON under its name,
with a fingerprint of what it was measured with: the version, the source of all reproductions, whether the run is quick,
and the settings that the reproduction names. A part with another fingerprint is measured anew. What a reproduction goes
on with is always what JSON gives back, so that a run that was stopped and one that was not leave the same files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confide
from confide.data import atomic_files


@dataclass(frozen=True)
class Parts:
    """Kept in the folder; without one, every part is measured and none is kept."""

    folder: Path | None = None
    quick: bool = False
    begun: float = field(default_factory=time.time)

    def get(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """The value of a part: the one that is kept, if it was measured with these settings."""
        told = {"part": name, "version": confide.__version__, "source": _source(), "quick": self.quick}
        told["settings"] = settings
        fingerprint = _digest(json.dumps(told, sort_keys=True, default=repr))
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", name)  # alike for -1 and 1
        path = self.folder and self.folder / f"{readable}-{_digest(name)[:8]}.json"
        if path and path.exists():
            kept = json.loads(path.read_text())
            if kept["fingerprint"] == fingerprint:
                return kept["value"]
        start = time.process_time()
        value = json.loads(json.dumps(measure()))
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"fingerprint": fingerprint, "seconds": time.process_time() - start, "value": value}
            with atomic_files.write_text(path) as file:
                json.dump(kept, file)
        return value

    def earlier_seconds(self) -> float:
        """CPU seconds of the parts that an earlier process measured."""
        paths = self.folder.glob("*.json") if self.folder else ()
        return sum(json.loads(path.read_text())["seconds"] for path in paths if path.stat().st_mtime < self.begun)

    def clear(self) -> None:
        if self.folder and self.folder.exists():
            shutil.rmtree(self.folder)


@functools.cache
def _source() -> str:
    return _digest("".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


NOT_KEPT = Parts()
