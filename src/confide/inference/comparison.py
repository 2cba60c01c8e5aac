"""Values that were computed again, held against those that a folder stores."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from confide.validation import Refused

CLOSE = 1e-9  # relative: by more, no rounding of another processor moves a number of a plan


class Agreement(NamedTuple):
    """How many numbers and words agree, and whether all of them do bit for bit."""

    numbers: int
    exact: bool


def compare(recomputed: Any, stored: Any, path: str = "") -> Agreement:
    """Refused, naming the entry, where one does not agree, is missing, or is there beside those that are recomputed."""
    if isinstance(recomputed, dict) and isinstance(stored, dict):
        if different := sorted(set(recomputed) ^ set(stored)):
            name = different[0]
            raise changed(f"{path}{name}", stored.get(name, "nothing"), recomputed.get(name, "nothing"))
        parts = [compare(recomputed[name], stored[name], f"{path}{name}.") for name in recomputed]
    elif isinstance(recomputed, list) and isinstance(stored, list) and len(recomputed) == len(stored):
        pairs = enumerate(zip(recomputed, stored, strict=True))
        parts = [compare(one, other, f"{path}{place}.") for place, (one, other) in pairs]
    elif recomputed == stored and isinstance(recomputed, bool) == isinstance(stored, bool):
        return Agreement(1, True)
    elif _are_near(recomputed, stored):
        return Agreement(1, False)
    else:
        raise changed(path.removesuffix("."), stored, recomputed)
    return Agreement(sum(part.numbers for part in parts), all(part.exact for part in parts))


def _are_near(one: Any, other: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
    return numbers and math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=0.0)


def as_json(value: Any) -> Any:
    """A value as it reads once it was written to a file of JSON."""
    return json.loads(json.dumps(value, default=float))


def changed(name: str, stored: Any, recomputed: Any) -> Refused:
    short = [str(value) if len(str(value)) < 40 else f"{str(value)[:37]}..." for value in (stored, recomputed)]
    return Refused(
        f"{name} is {short[0]} in the folder, and recomputing gives {short[1]}: restore the folder as it was written"
    )
