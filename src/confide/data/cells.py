"""What one cell of a table says: a number, a truth value, or one of a list of words.

Every cell is read by itself, so that how one record is written never decides how another is read.

- Blanks around a text do not count, and truth values may be in any case.
- A **plain decimal** is digits with at most one decimal mark and a sign: `1`, `1.0`, `-9.00`, and no `1e3`. Plain
  decimals are compared as numbers, since programs write the same code as `1` or as `1.0`: pandas writes every whole
  number of a column with `.0` once one of its values is missing. So `1.0` is the category `1`, the truth value `1`, or
  the missing value `1`, whichever the schema declares. A schema declares none above 2^53, whose digits would be lost.
- Where two categories of a column are equal as numbers (`01` and `1`), its cells are compared with them as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from confide.data.schema import FALSE, PLAIN, TRUE, Column, Schema, text

ABSENT = -1
UNREADABLE = (TypeError, ValueError, OverflowError)  # what Python makes of values that are no numbers, or too long
LONGEST = 100  # characters of a plain decimal; a longer text is compared as text
NAMELESS = ("nan", "<NA>")  # what pandas and NumPy write for a missing value


class Read(dict[Any, Any]):
    """Texts as they were read before: a column repeats itself more often than not.

    Texts alone: other values may be equal and yet be written differently (True and 1; an hour that occurs twice).
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def every(self, values: Iterable[Any]) -> list[Any]:
        """What the function makes of each value."""
        return [self[value] if type(value) is str else self.function(value) for value in values]

    def __missing__(self, value: Any) -> Any:
        self[value] = result = self.function(value)
        return result


def decimal(word: str, mark: str = ".") -> Decimal | None:
    """The number that a plain decimal writes; None for any other text.

    >>> decimal("1.0") == decimal("01") == 1
    True
    >>> decimal("1e3"), decimal("1,5"), decimal("1,5", mark=",")
    (None, None, Decimal('1.5'))
    """
    plain = word.replace(",", ".") if mark == "," else word
    return Decimal(plain) if len(plain) <= LONGEST and PLAIN.fullmatch(plain) else None


def reader_of_numbers(schema: Schema) -> Callable[[Any], float]:
    """From a cell to its number; not a number where it has none, is not finite, or is listed as missing."""
    missing = {float(number) for word in schema.missing_values if (number := decimal(word, schema.decimal)) is not None}

    def read(value: Any) -> float:
        try:
            number = to_number(value, schema)
        except UNREADABLE:
            return math.nan
        return number if math.isfinite(number) and number not in missing else math.nan

    return read


def to_number(value: Any, schema: Schema) -> float:
    """A value as it is written in the table; one of UNREADABLE where it is no number."""
    if value is None or text(value) in schema.missing_values:
        return math.nan
    if isinstance(value, str) and (not value.isascii() or "_" in value):  # Python reads digits of every script, 1_000
        raise ValueError(value)
    if isinstance(value, str) and schema.decimal == ",":
        value = value.replace(",", ".")
    return float(value)


def reader_of_places(column: Column, schema: Schema) -> Callable[[Any], int]:
    """From a cell to the place of its category, or 0 and 1 for false and true; ABSENT where it has none."""
    words = listed(column)
    elsewhere = len(column.categories) if column.other else ABSENT
    return _reader(column.kind == "boolean", words, _absent(schema), elsewhere, schema.decimal)


def listed(column: Column) -> dict[str, int]:
    """The words of a column that is not numeric, with their places."""
    if column.kind == "boolean":
        return _truths(column.true, column.false)
    return {category: place for place, category in enumerate(column.categories)}


def is_missing(value: Any, column: Column, schema: Schema) -> bool:
    """Whether a cell is written as the schema's missing values are; a listed category never is."""
    words = {} if column.kind == "numeric" else listed(column)
    return _reader(column.kind == "boolean", words, _absent(schema), 0, schema.decimal)(value) == ABSENT


def read_truth(value: Any) -> bool | None:
    """A truth value in any of its usual spellings; None for any other cell.

    >>> [read_truth(cell) for cell in ("Yes", " F ", "0.0", 1.0, "2", None)]
    [True, False, False, True, None, None]
    """
    place = _TRUTH(value)
    return None if place == ABSENT else bool(place)


def _truths(true: Iterable[str], false: Iterable[str]) -> dict[str, int]:
    return {word.lower(): 1 for word in true} | {word.lower(): 0 for word in false}


def _absent(schema: Schema) -> tuple[str, ...]:
    return (*NAMELESS, *schema.missing_values)


def _reader(
    boolean: bool, words: Mapping[str, int], missing: Iterable[str], elsewhere: int, mark: str
) -> Callable[[Any], int]:
    """Compare by text first, and then plain decimals as numbers; a listed word is never missing."""
    missing = [word.lower() if boolean else word for word in missing]
    known = dict.fromkeys(missing, ABSENT) | dict(words)
    numbers = _numbers(dict.fromkeys(missing, ABSENT), mark) | _numbers(words, mark)

    def read(value: Any) -> int:
        if value is None:
            return ABSENT
        try:
            word = text(value)
        except UNREADABLE:
            return elsewhere
        word = word.lower() if boolean else word
        if word in known:
            return known[word]
        number = decimal(word, mark) if numbers else None
        return elsewhere if number is None else numbers.get(number, elsewhere)

    return read


def _numbers(words: Mapping[str, int], mark: str) -> dict[Decimal, int]:
    """The places of those words that are plain decimals; none where two of them are one number in different places."""
    numbers: dict[Decimal, int] = {}
    for word, place in words.items():
        number = decimal(word, mark)
        if number is not None and numbers.setdefault(number, place) != place:
            return {}
    return numbers


_TRUTH = _reader(True, _truths(TRUE, FALSE), (), ABSENT, ".")
