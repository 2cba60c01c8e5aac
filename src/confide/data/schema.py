"""The public domain of a table: what each column may hold, known without looking at a single record.

A schema is a TOML file. Bounds and categories are facts about the world (ages of people, codes of a form), so encoding
by them reveals nothing. What was filled in from the records is marked `learnt`, and a fit refuses it unless told
otherwise, because no accountant counts what it reveals.

A value that the schema does not admit counts as missing, and what becomes of a record without a value is the column's
`missing`: no record then decides whether there is a run, nor what it says of itself. Guarantees are about the tables of
this domain: files that can be read at all, with the schema's columns.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from confide import validation
from confide.validation import Refused

Kind = Literal["numeric", "categorical", "ordinal", "boolean", "ignore"]
Missing = Literal["refuse", "indicator", "drop"]
TRUE = ("true", "yes", "y", "t", "1")
FALSE = ("false", "no", "n", "f", "0")
MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
FILL_IN = "FILL IN"
PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")  # a plain decimal, see `confide.data.cells`
LARGEST_CODE = 2**53  # up to which floating point holds every whole number, and is written digit by digit
OTHER, MISSING = "(other)", "(missing)"


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one column may hold.

    Attributes:
        low, high: public bounds of a numeric column; values beyond them count as the bound.
        typical: the range [low, high] that about nine in ten records lie in, if that is publicly known.
        prior: the standard deviation of the column's coefficient in its own unit, before the records are seen: of a
            number per unit (of the logarithm, with scale = "log"), of an ordinal column per step, of a boolean between
            its values, of a category between its levels. Private scoring takes it for the usual one.
        scale: "log" for amounts: log(1 + value - low) is scaled instead of the value.
        categories: of a categorical column; of an ordinal one from lowest to highest.
        other: whether values that are not listed share a category of their own; otherwise they count as missing.
        true, false: the words of a boolean column, in any case.
        shares: of records with each label, if that is publicly known: for `confide plan`, which takes them as equal.
        missing: what becomes of a record without a value that the column admits. `drop`: it counts as absent, and its
            place stays empty. `indicator`: a feature says so. `refuse`: no run, so that a run tells that no record
            lacks a value.
        learnt: whether bounds or categories were taken from the records, or that it is ignored.
    """

    name: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    typical: tuple[float, float] | None = None
    prior: float | None = None
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    categories: tuple[str, ...] = ()
    other: bool = False
    true: tuple[str, ...] = TRUE
    false: tuple[str, ...] = FALSE
    shares: tuple[float, ...] = ()
    missing: Missing = "drop"
    learnt: bool = False

    def __post_init__(self) -> None:
        validation.one_of(get_args(Kind), kind=self.kind)
        validation.one_of(get_args(Missing), missing=self.missing)
        validation.one_of(("linear", "log"), scale=self.scale)
        for name in ("categories", "true", "false"):
            object.__setattr__(self, name, _words(name, getattr(self, name)))
        for name in ("other", "learnt"):
            validation.instance(bool, **{name: getattr(self, name)})
        validation.instance(str, unit=self.unit)
        allowed = {
            "numeric": {"low", "high", "typical", "prior", "unit", "scale"},
            "categorical": {"categories", "other", "shares", "prior"},
            "ordinal": {"categories", "shares", "prior"},
            "boolean": {"true", "false", "shares", "prior"},
            "ignore": set(),
        }[self.kind] | {"name", "kind", "missing", "learnt"}
        for extra in (f for f in fields(self) if f.name not in allowed and getattr(self, f.name) != f.default):
            raise Refused(f"{extra.name} does not go with kind = {self.kind!r}: remove it")
        if self.kind == "numeric":
            low, high = (
                validation.number("low", _fill("low", self.low)),
                validation.number("high", _fill("high", self.high)),
            )
            if low >= high:
                raise Refused(f"low = {low:g} is not below high = {high:g}: give public bounds")
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)
            if self.typical is not None:
                object.__setattr__(self, "typical", check_typical(self.typical, low, high))
        if self.prior is not None:
            object.__setattr__(self, "prior", validation.positive(prior=self.prior))
        if self.kind in ("categorical", "ordinal"):
            _fill("categories", self.categories or None)
            if len(self.categories) + self.other < 2:
                raise Refused("categories lists one value: list all, or set kind = 'ignore'")
        _check_codes((*self.categories, *self.true, *self.false))
        if self.kind == "boolean" and {w.lower() for w in self.true} & {w.lower() for w in self.false}:
            raise Refused("true and false share a word: give different ones")
        if self.shares:
            object.__setattr__(self, "shares", _shares(self.shares, self.labels))

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of this column as a target; none for a numeric one."""
        if self.kind == "boolean":
            return (self.false[0], self.true[0])
        return (*self.categories, OTHER) if self.other else self.categories

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that the column is encoded as."""
        if self.kind == "ignore":
            return ()
        own = tuple(f"{self.name}={label}" for label in self.labels) if self.kind == "categorical" else (self.name,)
        return (*own, f"{self.name}={MISSING}") if self.missing == "indicator" else own


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table in the order of the features, the target, and what counts as missing.

    `decimal` is the mark in numbers of a text file: a point, or a comma. `norm_bound` is the largest Euclidean norm of
    an encoded row; a longer one is scaled down to it. Without it the bound is the largest norm that any row can have.
    """

    columns: tuple[Column, ...]
    target: str = ""
    missing_values: tuple[str, ...] = MISSING_VALUES
    norm_bound: float | None = None
    decimal: Literal[".", ","] = "."

    @property
    def categories(self) -> tuple[tuple[int, ...], ...]:
        """The features of each categorical column, by their numbers: in every record one of them is 1."""
        found, first = [], 0
        for column in self.inputs:
            if column.kind == "categorical":
                found.append(tuple(range(first, first + len(column.features))))
            first += len(column.features)
        return tuple(found)

    def __post_init__(self) -> None:
        validation.one_of((".", ","), decimal=self.decimal)
        object.__setattr__(self, "missing_values", _words("missing_values", self.missing_values))
        _check_codes(self.missing_values)
        if self.norm_bound is not None:
            object.__setattr__(self, "norm_bound", validation.positive(norm_bound=self.norm_bound))
        names = [column.name for column in self.columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise Refused(f"column {twice!r} is named twice: keep one")
        if self.target:
            self.column(self.target)
        if twice := next((name for name in self.features if self.features.count(name) > 1), None):
            raise Refused(f"two features would be called {twice!r}: rename a column or a category")

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise Refused(f"column {name!r} is not in the schema: it has {_list([c.name for c in self.columns])}")

    def with_priors(self, given: Mapping[str, float]) -> Schema:
        """The same schema with other priors of some columns."""
        names = {column.name for column in self.inputs}
        if unknown := sorted(set(given) - names):
            raise Refused(f"{unknown[0]!r} has a prior and is no column of the model: these are {_list(names)}")
        columns = (replace(each, prior=given[each.name]) if each.name in given else each for each in self.columns)
        return replace(self, columns=tuple(columns))

    def with_target(self, target: str | None = None) -> Schema:
        """With a target that can be one: the given one, or the schema's own."""
        found = replace(self, target=target) if target else self
        if not found.target:
            raise Refused('the schema names no target: give --target, or write target = "..." into it')
        if found.column(found.target).kind == "ignore":
            raise Refused(f"the target {found.target!r} has kind = 'ignore': give it another kind")
        if found.column(found.target).missing == "indicator":
            raise Refused(f"the target {found.target!r} has missing = 'indicator': choose 'drop' for it")
        if not found.inputs:
            raise Refused("every column but the target is ignored: give at least one of them a kind")
        return found

    @property
    def inputs(self) -> tuple[Column, ...]:
        """The columns that features come from."""
        return tuple(column for column in self.columns if column.kind != "ignore" and column.name != self.target)

    @property
    def used(self) -> tuple[Column, ...]:
        """The target and the columns that features come from."""
        return (*self.inputs, self.column(self.target)) if self.target else self.inputs

    @property
    def features(self) -> tuple[str, ...]:
        return (*(name for column in self.inputs for name in column.features), "intercept")

    @property
    def bound(self) -> float:
        """No encoded row is longer: each column adds at most 1 to the square, and so does the intercept."""
        largest = math.sqrt(len(self.inputs) + 1)
        return largest if self.norm_bound is None else min(self.norm_bound, largest)

    @property
    def refusing(self) -> tuple[str, ...]:
        """The columns in use that let a record without a value decide whether there is a run."""
        return tuple(column.name for column in self.used if column.missing == "refuse")

    @property
    def learnt(self) -> tuple[str, ...]:
        """The columns that the records decided about: which are used at all, and bounds and categories of those."""
        return tuple(column.name for column in self.columns if column.learnt)

    def to_toml(self, comments: Mapping[str, str] | None = None) -> str:
        """The schema as a file; `comments` go above the columns that they name, and '' above everything."""
        comments = comments or {}
        lines = [f"# {line}" for line in comments.get("", "").splitlines()]
        lines += [f"target = {toml_value(self.target)}"] if self.target else []
        lines += [f"missing_values = {toml_value(self.missing_values)}"]
        lines += [f"decimal = {toml_value(self.decimal)}"] if self.decimal != "." else []
        lines += [f"norm_bound = {toml_value(self.norm_bound)}"] if self.norm_bound is not None else []
        for column in self.columns:
            lines += ["", *(f"# {line}" for line in comments.get(column.name, "").splitlines())]
            lines += [f"[columns.{toml_key(column.name)}]"]
            for entry in fields(column)[1:]:
                value = getattr(column, entry.name)
                said = entry.name == "kind" or (entry.name == "missing" and column.kind != "ignore")
                if said or value != entry.default:
                    lines.append(f"{entry.name} = {toml_value(value)}")
        return "\n".join(lines) + "\n"


def load(path: str | os.PathLike[str]) -> Schema:
    """The schema in a TOML file."""
    validation.instance(str | os.PathLike, path=path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"schema {str(path)!r} cannot be read: {error.strerror}; begin with 'confide schema init'"
        ) from None
    except UnicodeDecodeError:
        raise Refused(f"schema {str(path)!r} is not UTF-8 text: save it as UTF-8") from None
    return loads(text, str(path))


def normalise(path: str | os.PathLike[str]) -> str:
    """The schema in a TOML file, as `to_toml` writes it."""
    return load(path).to_toml()


def loads(text: str, where: str = "schema") -> Schema:
    """The schema in TOML text; refusals name the place and the line."""
    try:
        record = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refused(_syntax(str(error), where)) from None
    columns = record.pop("columns", None)
    if not isinstance(columns, dict) or not columns:
        raise Refused(f"{where} has no columns: describe each as [columns.NAME], or begin with 'confide schema init'")
    known = {entry.name for entry in fields(Schema)} - {"columns"}
    if unknown := set(record) - known:
        raise Refused(f"{where}: {min(unknown)!r} is not a setting of a schema: it has {_list(sorted(known))}")
    try:
        validation.instance(str, target=record.get("target", ""))
        described = tuple(_column(name, entry, f"{where}, line {_line(text, name)}") for name, entry in columns.items())
        return Schema(columns=described, **record)
    except Refused as refusal:
        raise Refused(str(refusal) if str(refusal).startswith(where) else f"{where}: {refusal}") from None


def _column(name: str, entry: Any, where: str) -> Column:
    known = [f.name for f in fields(Column)][1:]
    if not isinstance(entry, dict) or "kind" not in entry:
        raise Refused(f"{where}: column {name!r} has no kind: give one of {_list(get_args(Kind))}")
    if unknown := set(entry) - set(known):
        raise Refused(f"{where}: column {name!r}: {min(unknown)!r} is not a setting: it may have {_list(known)}")
    try:
        return Column(name=name, **entry)
    except Refused as refusal:
        raise Refused(f"{where}: column {name!r}: {refusal}") from None


def _syntax(error: str, where: str) -> str:
    place = re.search(r"\(at line (\d+)", error)
    at = f"{where}, line {place[1]}" if place else where
    if twice := re.search(r"Cannot declare \('columns', '(.*?)'\) twice", error):
        return f"{at}: column {twice[1]!r} is named twice: keep one"
    return f"{at} is not TOML: {error.split(' (at')[0]}"


def _line(text: str, name: str) -> int:
    """Where a column is described; 1 where it is written in another way than as a table."""
    heads = {f"[columns.{name}]", f"[columns.{toml_key(name)}]", f"[columns.'{name}']", f'[columns."{name}"]'}
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return next((i for i, line in enumerate(lines, 1) if line in heads), 1)


def _fill(name: str, value: Any) -> Any:
    if value is None or value == FILL_IN or value == (FILL_IN,):
        raise Refused(f"{name} is still to be filled in: from public knowledge, not from the data")
    return value


def check_typical(given: Any, low: float, high: float, where: str = "") -> tuple[float, float]:
    """The range that about nine in ten records lie in, within the bounds."""
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 2:
        raise Refused(
            f"{where}typical is no pair of numbers: write [low, high], the range of about nine in ten records"
        )
    first, last = (validation.number("typical", value) for value in given)
    if not low <= first < last <= high:
        raise Refused(f"{where}typical = [{first:g}, {last:g}] is no range within [{low:g}, {high:g}]")
    return first, last


def _shares(value: Any, labels: tuple[str, ...]) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != len(labels):
        raise Refused(f"shares is no list of {len(labels)} numbers: give one for each of {_list(labels)}")
    found = tuple(validation.nonnegative(shares=share) for share in value)
    if not math.isclose(sum(found), 1.0, abs_tol=0.01):
        raise Refused(f"shares add up to {sum(found):g}: give shares of 1, as [0.7, 0.3]")
    return found


def _words(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value == FILL_IN:
        return (FILL_IN,)
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise Refused(f'{name} = {value!r} is not a list: write ["...", "..."]')
    words = tuple(text(item) for item in value)
    if twice := next((word for word in words if words.count(word) > 1), None):
        raise Refused(f"{name} lists {twice!r} twice: keep one")
    return words


def _check_codes(words: tuple[str, ...]) -> None:
    """Refuse numbers beyond 2^53, which stand for something else once one value of their column is missing.

    Programs such as pandas then write the column as floating point: 9007199254740993 becomes 9007199254740992.0, and
    10000000000000000 becomes 1e+16, which is no plain decimal. One record would decide how all others are read.
    """
    for word in words:
        plain = word.replace(",", ".")
        if PLAIN.fullmatch(plain) and abs(Decimal(plain)) > LARGEST_CODE:
            raise Refused(
                f"{word!r} is a number beyond 2^53 = {LARGEST_CODE}, which loses digits where a value of its column is "
                "missing: write it as text with a letter (id-1234...) in the schema and in the table, or shorten it"
            )


def text(value: Any) -> str:
    """A value of a table as a category is written: whole numbers without a point, truth in lower case."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # of Python or of NumPy
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _list(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
