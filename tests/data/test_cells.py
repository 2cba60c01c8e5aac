"""Cells are read one by one, whatever program wrote them: spellings of truth values, codes, numbers and missing values.

The reference reader below is written for these tests alone, in another way than the library's.
"""

import datetime
import decimal
import fractions
import math
import re

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.data import cells, encoding, schema_draft, tables
from confide.data.schema import Column, Schema, loads
from confide.validation import Refused

BLANKS = st.sampled_from(["", " ", "  ", "\t"])
CASES = st.sampled_from([str, str.lower, str.upper, str.title, str.swapcase])
TRUTHS = dict.fromkeys(("1", "1.0", "1.", "1.00", "+1", "01", "true", "t", "yes", "y"), True) | dict.fromkeys(
    ("0", "0.0", "0.", "-0", "00", "false", "f", "no", "n"), False
)
NEITHER = ("2", "0.5", "1e0", "0x1", "1,0", "on", "ja", "1.0.0", "", "NA", "nan", "<NA>", "\u0661", "1_0")


def described(column, **more):
    """A schema of one column and a target."""
    return Schema(columns=(column, Column(name="y", kind="boolean")), target="y", **more)


def places(column, values, **more):
    """The place of each value among the categories of the column, or for false and true; None where it has none."""
    made = described(column, **more)
    found = encoding.encode(made, {column.name: values, "y": ["1"] * len(values)})
    if column.kind == "boolean":
        return [int(x[0] > 0) if there else None for x, there in zip(found.x, found.present, strict=True)]
    return [int(np.argmax(x[:-1])) if there else None for x, there in zip(found.x, found.present, strict=True)]


@given(st.lists(st.tuples(BLANKS, st.sampled_from([*TRUTHS, *NEITHER]), CASES, BLANKS), min_size=1, max_size=8))
def test_truth_values_are_read_in_every_usual_spelling(parts):
    cells_ = [before + case(word) + after for before, word, case, after in parts]
    expected = [None if word not in TRUTHS else int(TRUTHS[word]) for _, word, _, _ in parts]
    assert places(Column(name="a", kind="boolean"), cells_) == expected
    assert [None if (truth := cells.read_truth(cell)) is None else int(truth) for cell in cells_] == expected


TYPED = [
    (True, 1), (False, 0), (np.True_, 1), (np.False_, 0), (1, 1), (0, 0), (1.0, 1), (0.0, 0), (-0.0, 0),
    (np.float32(1.0), 1), (np.float64(0.0), 0), (np.int8(1), 1), (np.uint64(0), 0), (np.float16(1.0), 1),
    (decimal.Decimal("1.00"), 1), (decimal.Decimal("0"), 0), (pandas.NA, None), (None, None), (math.nan, None),
    (pandas.NaT, None), (2, None), (0.5, None), (10**5000, None), (datetime.date(2020, 1, 1), None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), TYPED, ids=range(len(TYPED)))
def test_truth_values_of_other_types(value, expected):
    assert places(Column(name="a", kind="boolean"), [value]) == [expected]


def test_booleans_of_pandas_and_pyarrow_are_read(tmp_path):
    columns = {
        "bool": pandas.array([True, False, True]),
        "boolean": pandas.array([True, None, False], "boolean"),
        "Int8": pandas.array([1, None, 0], "Int8"),
        "float": [1.0, math.nan, 0.0],
        "text": ["T", None, "f"],
    }
    pandas.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    pandas.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    for name in ("t.parquet", "t.csv"):
        (piece,) = tables.open_table(tmp_path / name).pieces()
        read = {name: places(Column(name=name, kind="boolean"), values) for name, values in piece.columns.items()}
        assert read.pop("bool") == [1, 0, 1]
        assert all(found == [1, None, 0] for found in read.values()), read


# Categories.

WHOLE = st.integers(-20, 120)


@st.composite
def spelled(draw, number):
    """A way in which a whole number is written."""
    sign = "-" if number < 0 else draw(st.sampled_from(["", "+"]))
    zeros, digits = draw(st.sampled_from(["", "0", "00"])), str(abs(number))
    rest = draw(st.sampled_from(["", ".", ".0", ".00"]))
    return draw(BLANKS) + sign + zeros + digits + rest + draw(BLANKS)


def reference(cell, categories, missing, other, mark="."):
    """By fractions, one cell at a time; None where the cell has no category."""

    def number(word):
        word = word.replace(",", ".") if mark == "," else word
        if not word.isascii() or not re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)", word):
            return None
        return fractions.Fraction(word if word[-1] != "." else word[:-1])

    word = cell.strip()
    if word in categories:
        return categories.index(word)
    if word in (*missing, "nan", "<NA>"):
        return None
    numbers = [number(category) for category in categories]
    known = [each for each in numbers if each is not None]
    if number(word) is not None:
        if len(set(known)) == len(known) and number(word) in known:
            return numbers.index(number(word))
        if number(word) in [number(each) for each in missing]:
            return None
    return len(categories) if other else None


@given(st.data())
def test_categories_are_compared_as_a_reference_compares_them(data):
    numbers = data.draw(st.lists(WHOLE, min_size=2, max_size=4))
    words = data.draw(st.lists(st.sampled_from(["A", "1e1", "b", "1,0", "10 000"]), max_size=2, unique=True))
    categories = list(dict.fromkeys([data.draw(spelled(number)).strip() for number in numbers] + words))
    if len(categories) < 2:
        categories += ["A", "c"]
    missing = data.draw(st.sampled_from([(), ("NA", "-9"), ("-9.0", "99", "")]))
    other, mark = data.draw(st.booleans()), data.draw(st.sampled_from([".", ","]))
    column = Column(name="a", kind="categorical", categories=tuple(categories), other=other)
    written = [data.draw(spelled(data.draw(WHOLE | st.sampled_from(numbers)))) for _ in range(4)]
    written += data.draw(st.lists(st.sampled_from(["A", "NA", "", "-9.00", "99", "1e1", "1,0", "x"]), max_size=3))
    if mark == ",":
        written = [cell.replace(".", ",") for cell in written]
    expected = [reference(cell, categories, missing, other, mark) for cell in written]
    assert places(column, written, missing_values=missing, decimal=mark) == expected


@given(st.lists(st.sampled_from(["1", "2.0", " 03 ", "x", "", "4,0", "nan"]), min_size=2, max_size=6))
def test_a_cell_is_read_the_same_whatever_the_others_are(written):
    column = Column(name="a", kind="categorical", categories=("1", "2", "3"))
    assert places(column, written) == [places(column, [cell])[0] for cell in written]


def test_codes_of_pandas_are_categories():
    column = Column(name="a", kind="categorical", categories=("1", "2", "3"))
    assert places(column, ["1.0", "2.0", "3", " 02 ", 1.0, 2, np.float32(3)]) == [0, 1, 2, 1, 0, 1, 2]
    assert places(column, ["1.5", "4.0", "1e0", "I"]) == [None] * 4


def test_categories_that_are_one_number_are_compared_as_text():
    column = Column(name="a", kind="categorical", categories=("01", "1", "2"))
    assert places(column, ["01", "1", "2", "1.0", "2.0"]) == [0, 1, 2, None, None]


def test_scientific_notation_is_no_code():
    """1E2 is a code of diseases, and 100 is another one."""
    column = Column(name="a", kind="categorical", categories=("1E2", "100"))
    assert places(column, ["1E2", "100.0", "1e2"]) == [0, 1, None]


# Missing values.


@pytest.mark.parametrize("written", ["-9", "-9.0", " -9.00 ", "-09", -9, -9.0, np.float32(-9), decimal.Decimal("-9.0")])
@pytest.mark.parametrize("kind", ["numeric", "categorical", "ordinal", "boolean"])
def test_a_code_for_missing_is_one_however_it_is_written(kind, written):
    more = {"numeric": {"low": -10, "high": 10}, "boolean": {}}.get(kind, {"categories": ("1", "2")})
    column = Column(name="a", kind=kind, missing="indicator", **more)
    made = described(column, missing_values=("-9",))
    assert encoding.encode(made, {"a": [written, 1], "y": ["1", "1"]}).x[:, -2].tolist() == [1, 0]
    assert cells.is_missing(written, column, made)
    assert not cells.is_missing("9.5", column, made)


# Drafts.


def draft(tmp_path, text, target="y", make=schema_draft.from_types):
    (tmp_path / "t.csv").write_text(text)
    return make(tables.open_table(tmp_path / "t.csv"), target)


def kinds(found):
    """The kinds in a draft that is not filled in yet."""
    return dict(re.findall(r'\[columns\.(\w+)\]\nkind = "(\w+)"', found.toml))


CODED = "a,b,c,d,e,y\n" + "".join(
    f"{i % 3 + 1}.0,{i % 2 + 1},{i % 4},{['T', 'f', ''][i % 3]},,{['0.0', '1.0', ''][i % 3]}\n" for i in range(24)
)


def test_a_draft_knows_the_spellings_of_pandas(tmp_path):
    found = draft(tmp_path, CODED)
    assert kinds(found) == {
        "a": "categorical", "b": "categorical", "c": "numeric", "d": "boolean", "e": "categorical", "y": "boolean",
    }  # fmt: skip
    assert found.learnt == ["a", "b", "d", "y"]  # by the first rows; nothing is said of the empty column
    assert "1.0" not in found.toml.split("[columns.a]")[1]  # no value of a record
    (said,) = [line for line in found.to_fill if line.startswith("a:")]
    assert 'kind = "numeric"' in said


def test_a_draft_from_the_data_writes_codes_in_one_spelling(tmp_path):
    found = loads(draft(tmp_path, CODED.replace("1.0,", "1,", 1), make=schema_draft.from_data).toml)
    assert found.column("a").categories == ("1", "2", "3")
    assert found.column("b").categories == ("1", "2")
    assert found.column("y").kind == "boolean"
    table = tables.open_table(tmp_path / "t.csv")
    assert encoding.encode_table(found.with_target(), table).present.tolist() == [i % 3 != 2 for i in range(24)]


def test_a_draft_from_the_data_keeps_codes_that_only_text_tells_apart(tmp_path):
    text = "a,y\n" + "01,0\n1,1\nx,0\n1.0,1\n" * 3
    found = loads(draft(tmp_path, text, make=schema_draft.from_data).toml)
    assert encoding.encode_table(found.with_target(), tables.open_table(tmp_path / "t.csv")).present.all()


BEYOND = ["10000000000000000", "9007199254740993", "-10000000000000001.0", "1" * 99, 2**53 + 1, 1e17]


@pytest.mark.parametrize("code", BEYOND, ids=str)
def test_codes_that_floating_point_does_not_hold_are_refused(code):
    """pandas writes a column as floating point once one value is missing, and all other records would be read anew."""
    for wrong in (
        lambda: Column(name="a", kind="categorical", categories=("1", code)),
        lambda: Column(name="a", kind="ordinal", categories=(code, "b")),
        lambda: Column(name="a", kind="boolean", true=("1", code)),
        lambda: described(Column(name="a", kind="boolean"), missing_values=("", code)),
    ):
        with pytest.raises(Refused, match=r"beyond 2\^53.*with a letter") as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_the_largest_codes_are_read_alike_where_a_value_is_missing():
    codes = [2**53, 2**53 - 1, 10**15]
    column = Column(name="a", kind="categorical", categories=tuple(map(str, codes)))
    for series in (pandas.Series(codes), pandas.Series([*codes, None])):
        written = series.to_csv(index=False, header=False).split("\n")
        assert places(column, written[:3]) == places(column, list(series)[:3]) == [0, 1, 2]
    assert places(Column(name="a", kind="categorical", categories=("a", "id-10000000000000000")), ["a"]) == [0]
