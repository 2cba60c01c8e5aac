"""What `schema check` counts is what a fit does, for every column, and in all."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data import encoding, table_check, tables
from confide.data.schema import Column, Schema

TARGET = Column(name="y", kind="boolean")


def checked(tmp_path, text, *columns, **more):
    (tmp_path / "t.csv").write_text(text)
    made = Schema(columns=(*columns, TARGET), target="y", **more)
    found = table_check.check(made, tables.open_table(tmp_path / "t.csv"))
    return found, {column.column: column for column in found.columns}


def number(name="a", low=0.0, high=10.0, missing="drop"):
    return Column(name=name, kind="numeric", low=low, high=high, missing=missing)


def of(values, name="a"):
    return f"{name},y\n" + "".join(f"{value},{i % 2}\n" for i, value in enumerate(values))


def test_what_is_missing_and_what_is_not_admitted_is_listed_with_its_line(tmp_path):
    text = "a,y\n5,yes\nNA,no\nfive,perhaps\n99,no\ninf,no\n"
    found, columns = checked(tmp_path, text, number(missing="refuse"))
    assert [(p.line, p.missing, p.what) for p in columns["a"].problems] == [
        (4, False, "'five' is not a number"), (6, False, "'inf' is not finite"), (3, True, "'NA' is missing"),
    ]  # fmt: skip
    assert [(p.line, p.what) for p in columns["y"].problems] == [(4, "'perhaps' is neither true nor false")]
    assert (columns["a"].missing, columns["a"].not_admitted, columns["a"].above) == (1, 2, 1)
    assert (found.records, found.left_out, found.remaining) == (5, 3, 2)
    assert found.refused == ("a",)


def test_values_that_are_not_admitted_are_counted_apart(tmp_path):
    """One level that is spelt in another way is most of what is lost."""
    column = Column(name="a", kind="categorical", categories=("freepoor", "medlevy"))
    values = ["medlevy", "?", "freepor", "", "freepor", "FREEPOOR", "freepor", ""]
    _, columns = checked(tmp_path, of(values), column)
    assert [(each.what, each.times, each.line) for each in columns["a"].problems] == [
        ("'freepor' is not a category", 3, 4), ("'?' is not a category", 1, 3),
        ("'FREEPOOR' is not a category", 1, 7), ("'' is missing", 2, 5),
    ]  # fmt: skip


def test_values_beyond_the_bounds_are_counted_with_the_extremes(tmp_path):
    """Months where the bounds are of years."""
    found, columns = checked(tmp_path, of([0, 5, 10, 11, 240, -0.5]), number())
    assert (columns["a"].below, columns["a"].above) == (1, 2)
    assert (columns["a"].lowest, columns["a"].highest) == (-0.5, 240)
    assert found.left_out == 0
    assert found.faults


def test_a_column_with_one_value_is_a_fault(tmp_path):
    for values, constant in (([3, "3.0", "NA"], True), ([3, 4], False), (["NA", "NA"], False)):
        found, columns = checked(tmp_path, of(values), number(missing="indicator"))
        assert columns["a"].constant == constant
        assert found.faults == constant


def test_missing_values_with_an_indicator_are_no_fault_and_others_are(tmp_path):
    for policy in ("indicator", "drop"):
        found, _ = checked(tmp_path, of([1, 2, "NA"]), number(missing=policy))
        assert found.left_out == found.faults == (policy == "drop")


AGES = [*range(20, 90)]


@pytest.mark.parametrize(
    ("values", "expected"),
    {
        "negative": ([*AGES, -9], {-9: 1}),
        "several": ([*AGES, -99, -99, -9, 999], {-99: 2, -9: 1, 999: 1}),
        "within the bounds": ([*range(40), 99], {99: 1}),
        "often": ([*AGES, 99, 99, 99], {99: 3}),
        "an old person": ([*AGES, 99], {}),
        "beside others": ([*AGES, 98, 97.5, 99], {}),
        "temperatures": ([-20.5, -3, 4, -9], {}),
        "only sentinels": ([-9, 99], {}),
        "listed": ([*AGES, -1], {}),
    }.values(),
)
def test_codes_for_missing_are_seen_where_they_lie_apart(tmp_path, values, expected):
    _, columns = checked(tmp_path, of(values), number(low=-100, high=1000), missing_values=("-1",))
    assert columns["a"].sentinels == expected


def test_rows_longer_than_the_norm_bound_are_counted(tmp_path):
    found, _ = checked(tmp_path, of([0, 5, 10]), number(), norm_bound=1.2)
    assert found.shortened == 2  # 5 is encoded as 0, and the others as -1 and 1


def test_values_of_no_listed_category_are_counted_where_they_have_one(tmp_path):
    column = Column(name="a", kind="categorical", categories=("x", "z"), other=True)
    found, columns = checked(tmp_path, of(["x", "z", "X", "?"]), column)
    assert columns["a"].other == 2
    assert not found.faults


CELLS = st.sampled_from(["0", "1", "1.0", "5", "-9", "240", "", "NA", "x", "yes", "inf", " T ", "2.0", "1e1"])
KINDS = [
    number(),
    number(missing="indicator"),
    Column(name="a", kind="categorical", categories=("1", "x")),
    Column(name="a", kind="categorical", categories=("1", "x"), other=True),
    Column(name="a", kind="ordinal", categories=("0", "1", "5"), missing="indicator"),
    Column(name="a", kind="boolean"),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=30), st.integers(1, 7))
def test_counts_are_those_of_the_encoding(tmp_path_factory, column, rows, size):
    """Row by row: who is absent, and whose number a bound replaces; in pieces of any size."""
    path = tmp_path_factory.mktemp("check") / "t.csv"
    path.write_text("a,y\n" + "".join(f'"{a}","{y}"\n' for a, y in rows))
    made = Schema(columns=(column, TARGET), target="y")
    table = tables.open_table(path)
    encoded = encoding.encode_table(made, table)

    class Pieces:
        header, place = table.header, table.place

        def pieces(self):
            return table.pieces(size)

    found = table_check.check(made, Pieces())
    assert found == table_check.check(made, table)
    assert (found.records, found.left_out) == (len(rows), int(np.sum(~encoded.present)))
    (checked_column,) = [each for each in found.columns if each.column == "a"]
    alone = dataclasses.replace(made, columns=(dataclasses.replace(column, missing="drop"), TARGET))
    without = [not encoding.encode(alone, {"a": [a], "y": ["1"]}).present[0] for a, _ in rows]
    assert checked_column.missing + checked_column.not_admitted == sum(without)
    if column.kind == "numeric":
        kept = [float(a) for (a, _), lacking in zip(rows, without, strict=True) if not lacking]
        assert checked_column.below + checked_column.above == sum(not 0 <= value <= 10 for value in kept)
