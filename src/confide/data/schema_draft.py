"""A first draft of a schema for a table: from the names and types of its columns, or, if so asked, from its values."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from confide.data.cells import decimal, read_truth
from confide.data.schema import FILL_IN, MISSING_VALUES, Column, Kind, Schema, text, toml_key, toml_value
from confide.data.tables import Table, booleans
from confide.validation import Refused

LOOKED_AT = 1000  # rows that types are guessed from
MOST_CATEGORIES = 1000  # so many are free text
MOST_CODES = 10  # so few different whole numbers, all above 0, are taken for the codes of a form


class Draft(NamedTuple):
    toml: str
    to_fill: list[str]  # what a person must fill in, one line each
    learnt: list[str]  # columns that were filled in, or are ignored, because of the data


def from_types(table: Table, target: str = "") -> Draft:
    """The kinds of the columns, guessed from the first rows; no value of a record is in it.

    That a column is yes or no is learnt from those rows, and marked so, unless the type of the file says it. So is that
    its numbers are codes.
    """
    kinds, codes = _kinds(table, target)
    lines = [
        "# The public domain of a table. Fill in what is marked from public knowledge (a code book, a law, a manual),",
        "# not from the data: what is taken from the data is revealed by it, and no epsilon counts that.",
        "# The kinds are guessed from the first rows: see whether they are right for any row that there can be.",
    ]
    lines += [f"target = {toml_value(target)}"] if target else ["# target = ..."]
    to_fill, learnt = [], []
    said = booleans(table)
    for name, kind in kinds.items():
        lines += ["", f"[columns.{toml_key(name)}]", f'kind = "{kind}"']
        if kind == "numeric":
            lines += [f'low = "{FILL_IN}"', f'high = "{FILL_IN}"', '# unit = "..."']
            to_fill.append(f"{name}: low and high, the bounds that such a number can have anywhere")
        elif kind == "categorical":
            lines += [f'categories = ["{FILL_IN}"]', "# other = true  # a category for whatever is not listed"]
            if name not in codes:
                to_fill.append(f'{name}: the list of categories that there can be, or kind = "ignore"')
            else:
                learnt.append(name)
                lines += [
                    "learnt = true  # from the first rows, which hold few whole numbers: remove it if these are codes",
                    '# kind = "numeric", with low and high, where they are amounts or counts',
                ]
                to_fill.append(
                    f'{name}: the list of its codes (1 stands for 1.0 too), or kind = "numeric" with low and high '
                    "where these are amounts or counts; then remove learnt = true"
                )
        elif name not in said:
            learnt.append(name)
            lines += ["learnt = true  # from the first rows: remove this where it is yes or no in any row there can be"]
            to_fill.append(
                f"{name}: whether it is yes or no everywhere, as in the first rows; then remove learnt = true"
            )
        lines += ['# missing = "indicator"  # a feature for it; by default a record without a value counts as absent']
    return Draft("\n".join(lines) + "\n", to_fill, learnt)


def from_data(table: Table, target: str = "") -> Draft:
    """Bounds, categories and what is ignored as the records have it, so that every column is marked as learnt."""
    kinds, columns, ignored = _kinds(table, target, everything=True)[0], [], []
    seen: dict[str, set[str]] = {name: set() for name in kinds}
    bounds: dict[str, tuple[float, float]] = dict.fromkeys(kinds, (math.inf, -math.inf))
    gaps = set()
    for piece in table.pieces():
        for name, values in piece.columns.items():
            known = [value for value in values if not _missing(value)]
            if len(known) < len(values):
                gaps.add(name)
            if kinds[name] == "numeric" and known:
                numbers = [float(value) for value in known]
                bounds[name] = (min(bounds[name][0], *numbers), max(bounds[name][1], *numbers))
            elif kinds[name] == "boolean":
                seen[name] |= {str(read_truth(value)) for value in known}
            elif kinds[name] == "categorical" and len(seen[name]) <= MOST_CATEGORIES:
                seen[name] |= {text(value) for value in known}
    for name, kind in kinds.items():
        missing: Any = "indicator" if name in gaps and name != target else "drop"
        if kind == "numeric" and bounds[name][0] < bounds[name][1]:
            low, high = bounds[name]
            columns.append(Column(name=name, kind=kind, low=low, high=high, missing=missing, learnt=True))
        elif kind == "categorical" and 2 <= len(seen[name]) < MOST_CATEGORIES:
            categories = _categories(seen[name])
            columns.append(Column(name=name, kind=kind, categories=categories, missing=missing, learnt=True))
        elif kind == "boolean" and len(seen[name]) == 2:
            columns.append(Column(name=name, kind=kind, missing=missing, learnt=True))
        elif name == target:
            raise Refused(f"{table.at(1)}: column {name!r} is the same everywhere, or free text: give another --target")
        else:
            ignored.append(
                f"{name}: it is the same everywhere or free text, and therefore ignored: whether that is right"
            )
            columns.append(Column(name=name, kind="ignore", learnt=True))  # that it is, the records said
    schema = Schema(columns=tuple(columns), target=target)
    learnt = [column.name for column in columns if column.learnt]
    comment = (
        "Filled in from the data: every column marked learnt = true reveals something that no epsilon counts.\n"
        "Replace its values by public ones and remove the mark."
    )
    return Draft(schema.to_toml({"": comment}), ignored, learnt)


def _kinds(table: Table, target: str, everything: bool = False) -> tuple[dict[str, Kind], set[str]]:
    """The kind of every column, and which of them are categories because their numbers look like codes."""
    if target and target not in table.header:
        raise Refused(f"{table.at(1)}: column {target!r} is not in the file: give a --target that is")
    possible: dict[str, list[Kind]] = {name: ["boolean", "numeric"] for name in table.header}
    numbers: dict[str, set[float]] = {name: set() for name in table.header}
    empty = set(table.header)
    for piece in table.pieces(LOOKED_AT):
        for name, values in piece.columns.items():
            present = [value for value in values if not _missing(value)]
            empty -= {name} if present else set()
            if "boolean" in possible[name] and any(read_truth(value) is None for value in present):
                possible[name].remove("boolean")
            if "numeric" in possible[name] and not all(_numeric(value) for value in present):
                possible[name].remove("numeric")
            if "numeric" in possible[name] and len(numbers[name]) <= MOST_CODES:
                numbers[name] |= {float(value) for value in present}
        if not everything:
            break
    kinds: dict[str, Kind] = {}
    codes, unknown = set(), empty - booleans(table)
    for name in table.header:
        kinds[name] = possible[name][0] if possible[name] and name not in unknown else "categorical"
        if kinds[name] == "numeric" and _are_codes(numbers[name]):
            kinds[name] = "categorical"
            codes.add(name)
    return kinds, codes


def _are_codes(numbers: set[float]) -> bool:
    """Few whole numbers above 0, however they are written: counts have a 0 more often than not, and codes have none."""
    return 2 <= len(numbers) <= MOST_CODES and all(number.is_integer() and number >= 1 for number in numbers)


def _categories(words: set[str]) -> tuple[str, ...]:
    """The categories in order, each whole number in its shortest spelling where that tells them apart."""
    short = {_shorten(word) for word in words}
    numbers = {word: decimal(word) for word in short}
    distinct = len({number for number in numbers.values() if number is not None})
    kept = short if distinct == sum(number is not None for number in numbers.values()) else words
    if all(decimal(word) is not None for word in kept):
        return tuple(sorted(kept, key=lambda word: (decimal(word), word)))
    return tuple(sorted(kept))


def _shorten(word: str) -> str:
    return re.sub(r"\.0*$", "", word) if decimal(word) is not None else word


def _missing(value: Any) -> bool:
    return value is None or text(value) in MISSING_VALUES


def _numeric(value: Any) -> bool:
    try:
        return math.isfinite(float(value)) and "_" not in str(value)
    except (TypeError, ValueError):
        return False
