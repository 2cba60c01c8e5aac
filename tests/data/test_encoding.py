"""Schemas and encoding: any row stays within the norm bound and depends on itself alone; refusals say what is wrong."""

import datetime
import math
import re
import zoneinfo

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide import Refused
from confide.app.runs import choices, run_folder
from confide.data import encoding, schema, schema_draft, tables
from confide.data.schema import Column, Schema
from helpers.patients import HEADER, SCHEMA, rows, write

PATIENTS = schema.loads(SCHEMA).with_target()
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).map(str.strip).filter(bool)
HOSTILE = ["", "NA", None, math.nan, math.inf, "-inf", "1e999", 10**400, 10**5000, b"x", [1], {}, "\0", -0.0, 5e-324]
NUMBERS = st.floats(-1e12, 1e12).filter(lambda number: number == 0 or abs(number) > 1e-50)


@st.composite
def columns(draw, name):
    kind = draw(st.sampled_from(["numeric", "categorical", "ordinal", "boolean"]))
    missing = draw(st.sampled_from(["drop", "indicator"]))
    if kind == "numeric":
        low, high = sorted(draw(st.lists(NUMBERS, min_size=2, max_size=2, unique=True)))
        scale = draw(st.sampled_from(["linear", "log"]))
        return Column(name=name, kind=kind, low=low, high=high, scale=scale, missing=missing)
    if kind == "boolean":
        return Column(name=name, kind=kind, missing=missing)
    words = tuple(draw(st.lists(NAMES, min_size=2, max_size=5, unique=True)))
    other = kind == "categorical" and draw(st.booleans())
    return Column(name=name, kind=kind, categories=words, other=other, missing=missing)


@st.composite
def tables_and_schemas(draw):
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    described = tuple(draw(columns(name)) for name in names)
    bound = draw(st.none() | st.floats(0.01, 3.0))
    made = Schema(columns=described, target=names[-1], norm_bound=bound)
    if made.column(made.target).missing == "indicator":
        return draw(tables_and_schemas())
    count = draw(st.integers(1, 6))
    return made, {column.name: [draw(values(column)) for _ in range(count)] for column in described}


@st.composite
def values(draw, column):
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(HOSTILE))
    if column.kind == "numeric":
        number = draw(NUMBERS)
        return draw(st.sampled_from([number, repr(number), f" {number!r} "]))
    if column.kind == "boolean":
        return draw(st.sampled_from(["yes", "No", "TRUE", "0", True, False, 1]))
    return draw(st.sampled_from(column.categories) | (NAMES if column.other else st.nothing()))


@given(tables_and_schemas())
def test_every_row_stays_within_the_norm_bound_and_depends_on_itself_alone(pair):
    made, table = pair
    encoded = encoding.encode(made.with_target(), table)
    assert encoded.x.shape == (len(encoded.present), len(made.features))
    assert not encoded.x[~encoded.present].any()
    assert not encoded.y[~encoded.present].any()
    norms = np.linalg.norm(encoded.x.astype(np.float64), axis=1)
    assert np.all(norms <= made.bound)
    assert np.all(np.isfinite(encoded.x))
    assert np.all(np.isfinite(encoded.y))
    for i in range(len(encoded.x)):
        alone = encoding.encode(made, {name: [column[i]] for name, column in table.items()})
        assert [part[0].tobytes() for part in alone] == [part[i].tobytes() for part in encoded]


@given(tables_and_schemas())
def test_a_schema_survives_its_file(pair):
    made, _ = pair
    assert schema.loads(made.to_toml()) == made


def test_what_each_kind_is_encoded_as():
    table = {
        "id": ["a", "b", "c"],
        "age": ["60", "NA", "1000"],
        "sex": ["male", "diverse", " female"],
        "smoker": ["YES", "no", "1"],
        "stage": ["I", "II", "IV"],
        "relapse": ["no", "yes", "true"],
    }
    assert PATIENTS.features == (
        "age", "age=(missing)", "sex=female", "sex=male", "sex=(other)", "smoker", "stage", "intercept",
    )  # fmt: skip
    x, y, present = encoding.encode(PATIENTS, table)
    expected = [[0, 0, 0, 1, 0, 1, -1, 1], [0, 1, 0, 0, 1, -1, -1 / 3, 1], [1, 0, 1, 0, 0, 1, 1, 1]]
    assert np.allclose(x, expected)
    assert y.tolist() == [0, 1, 1]
    assert present.all()
    assert math.isclose(PATIENTS.bound, math.sqrt(5))


def test_numbers_go_to_the_unit_interval_and_back():
    plain = Column(name="a", kind="numeric", low=-10, high=30)
    log = Column(name="b", kind="numeric", low=0, high=99_999, scale="log")
    for column, middle in ((plain, 10.0), (log, math.sqrt(100_000) - 1)):
        inside = np.linspace(column.low, column.high, 7)
        assert np.allclose(encoding.unscale(column, encoding.scale(column, inside)), inside)
        assert np.allclose(encoding.scale(column, np.array([middle])), 0)
        assert encoding.scale(column, np.array([-1e9, 1e9])).tolist() == [-1, 1]


def test_records_with_missing_values_can_be_left_out():
    text = SCHEMA.replace('missing = "indicator"', 'missing = "drop"')
    described = schema.loads(text).with_target()
    table = {name: list(column) for name, column in zip(HEADER, zip(*rows(100), strict=True), strict=True)}
    encoded = encoding.encode(described, table)
    assert encoded.present.tolist() == [i % 50 != 7 for i in range(100)]
    assert len(encoded.x) == len(encoded.y) == 100
    assert not encoded.x[[7, 57]].any()
    assert np.all(encoded.x[encoded.present][:, -1] == 1)


def test_a_listed_category_is_never_missing():
    column = Column(name="a", kind="categorical", categories=("NA", "EU"), missing="indicator")
    made = Schema(columns=(column, Column(name="y", kind="boolean")), target="y")
    x = encoding.encode(made, {"a": ["NA", "EU", ""], "y": ["yes"] * 3}).x
    assert x[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_equal_values_that_are_written_differently_do_not_stand_for_one_another():
    """One row must not decide how another is read: True and 1, and an hour that occurs twice."""
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    early, late = (datetime.datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    assert early == late
    for kind, values in (("1", [True, 1]), (str(early), [early, late])):
        column = Column(name="a", kind="categorical", categories=(kind, "x"), other=True)
        made = Schema(columns=(column, Column(name="y", kind="boolean")), target="y")
        there = encoding.encode(made, {"a": values, "y": ["yes", "no"]}).x
        back = encoding.encode(made, {"a": values[::-1], "y": ["yes", "no"]}).x
        assert np.array_equal(there, back[::-1])
        assert not np.array_equal(there[0], there[1])


def test_sentinels_are_missing_however_they_are_stored():
    column = Column(name="a", kind="numeric", low=0, high=10, missing="indicator")
    made = Schema(columns=(column, Column(name="y", kind="boolean")), target="y", missing_values=("-9",))
    x = encoding.encode(made, {"a": ["-9", " -9 ", -9, -9.0, 5], "y": ["yes"] * 5}).x
    assert x[:, 1].tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("value", ["1_000", "\u0663", "1e400", "0x10", "5 %", ""])
def test_only_plain_numbers_are_numbers(value):
    """Anything else counts as missing: it is absent, has its feature, or is refused, as the column says."""
    y = Column(name="y", kind="boolean")
    for policy in ("drop", "indicator", "refuse"):
        column = Column(name="a", kind="numeric", low=0, high=10, missing=policy)
        made = Schema(columns=(column, y), target="y", missing_values=())
        table = {"a": [value, "5"], "y": ["yes", "yes"]}
        if policy == "refuse":
            with pytest.raises(Refused, match="column 'a'"):
                encoding.encode(made, table)
            continue
        encoded = encoding.encode(made, table)
        assert encoded.present.tolist() == [policy == "indicator", True]
        assert encoded.x.tolist() == ([[0, 0], [0, 1]] if policy == "drop" else [[0, 1, 1], [0, 0, 1]])


def test_values_that_are_not_admitted_count_as_missing():
    """Words, levels and truths that the schema does not list; counts are rounded into their bounds."""
    kinds = (
        Column(name="c", kind="categorical", categories=("a", "b"), missing="indicator"),
        Column(name="o", kind="ordinal", categories=("I", "II"), missing="indicator"),
        Column(name="t", kind="boolean", missing="indicator"),
        Column(name="n", kind="numeric", low=1, high=5),
    )
    made = Schema(columns=kinds, target="n")
    table = {"c": ["a", "z"], "o": ["V", "II"], "t": ["maybe", "yes"], "n": ["2.5", "-7"]}
    encoded = encoding.encode(made, table, count=True)
    assert encoded.x.tolist() == [[1, 0, 0, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 0, 1]]
    assert encoded.y.tolist() == [2, 1]
    assert encoded.present.all()
    dropped = encoding.encode(made, {**table, "n": ["x", "3"]}, count=True)
    assert dropped.present.tolist() == [False, True]
    assert dropped.y.tolist() == [0, 3]


def test_an_empty_table_is_encoded_where_it_may_be_one(tmp_path):
    (tmp_path / "patients.csv").write_text(",".join(HEADER) + "\n")
    with pytest.raises(Refused, match="no records"):
        tables.open_table(tmp_path / "patients.csv")
    encoded = encoding.encode_table(PATIENTS, tables.open_table(tmp_path / "patients.csv", empty=True))
    assert [part.shape for part in encoded] == [(0, 8), (0,), (0,)]
    assert [part.dtype for part in encoded] == [np.float32, np.float32, bool]


def test_a_date_that_python_does_not_have_is_one_record_s_own(tmp_path):
    late = pyarrow.array([0, 10_000_000, 1], pyarrow.int32()).cast(pyarrow.date32())
    pyarrow.parquet.write_table(pyarrow.table({"d": late}), tmp_path / "d.parquet")
    (piece,) = tables.open_table(tmp_path / "d.parquet").pieces()
    assert piece.columns["d"] == [datetime.date(1970, 1, 1), None, datetime.date(1970, 1, 2)]


def test_csv_and_parquet_and_any_size_of_piece_give_the_same(tmp_path):
    write(tmp_path)
    csv_table = tables.open_table(tmp_path / "patients.csv")
    typed = pyarrow.table(
        {
            "id": [f"p{i}" for i in range(300)],
            "age": pyarrow.array([None if row[1] == "NA" else row[1] for row in rows()], pyarrow.float64()),
            "sex": [row[2] for row in rows()],
            "smoker": [row[3] == "yes" for row in rows()],
            "stage": [row[4] for row in rows()],
            "relapse": [int(row[5] == "yes") for row in rows()],
        }
    )
    pyarrow.parquet.write_table(typed, tmp_path / "patients.parquet", row_group_size=70)
    parquet_table = tables.open_table(tmp_path / "patients.parquet")
    whole = encoding.encode_table(PATIENTS, csv_table)
    assert whole.x.shape == (300, 8)
    again = encoding.encode_table(PATIENTS, parquet_table)
    for one, other in zip(whole, again, strict=True):
        assert np.array_equal(one, other)
    pieces = list(csv_table.pieces(7))
    assert [len(piece.lines) for piece in pieces] == [7] * 42 + [6]
    assert [line for piece in pieces for line in piece.lines] == list(range(2, 302))


def test_lines_are_those_of_the_file(tmp_path):
    """With empty lines, values over several lines, and a mark of the byte order."""
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffname,n\n\n"two\nlines",1\r\nx,2\r\n'.encode())
    table = tables.open_table(path)
    assert table.header == ("name", "n")
    (piece,) = table.pieces()
    assert piece.columns == {"name": ["two\nlines", "x"], "n": ["1", "2"]}
    assert piece.lines == [3, 5]


def test_drafts_hold_no_value_unless_asked(tmp_path):
    write(tmp_path)
    table = tables.open_table(tmp_path / "patients.csv")
    draft = schema_draft.from_types(table, "relapse")
    for value in ("female", "diverse", "III", "95", "p12"):
        assert value not in draft.toml
    assert [line.split(":")[0] for line in draft.to_fill] == ["id", "age", "sex", "smoker", "stage", "relapse"]
    with pytest.raises(Refused, match="line 6: column 'id': categories is still to be filled in"):
        schema.loads(draft.toml)
    learnt = schema.loads(schema_draft.from_data(table, "relapse").toml)
    assert learnt.column("sex").categories == ("diverse", "female", "male")
    assert learnt.column("age").missing == "indicator"
    assert (learnt.column("age").low, learnt.column("age").high) == (
        min(row[1] for row in rows() if row[1] != "NA"),
        max(row[1] for row in rows() if row[1] != "NA"),
    )
    assert learnt.learnt == ("id", "age", "sex", "smoker", "stage", "relapse")


def test_what_is_ignored_because_of_the_records_is_learnt_from_them(tmp_path):
    """One record with another value would have kept the column: that is no public fact."""
    for name, value in (("same", 1.0), ("other", 2.0)):
        lines = [f"{i},1.0,{i % 2}" for i in range(20)] + [f"20,{value},1"]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,site,ill", *lines]) + "\n")
    same, other = (
        schema_draft.from_data(tables.open_table(tmp_path / f"{name}.csv"), "ill") for name in ("same", "other")
    )
    found = schema.loads(same.toml)
    assert found.column("site").kind == "ignore"
    assert schema.loads(other.toml).column("site").categories == ("1", "2")  # few whole numbers are codes
    assert same.learnt == other.learnt == ["age", "site", "ill"]
    assert found.learnt == ("age", "site", "ill")
    public = re.sub(r"\[columns\.(age|ill)\]([^\[]*?)learnt = true", r"[columns.\1]\2", same.toml)
    asked = choices.Request(data=str(tmp_path / "same.csv"), schema=public, out="run", epsilon=1.0, delta=1e-5)
    with pytest.raises(Refused, match="learnt = true in site"):
        run_folder.prepare(asked)
    said = " ".join(run_folder._assumptions(schema.loads(public).with_target(), asked))
    assert "or that they are ignored, were taken from the records themselves" in said
    assert "NOT counted in epsilon: site." in said


WRONG_SCHEMAS = {
    "x": "not TOML",
    "": "no columns",
    "[columns.a]\nkind='ignore'\n[columns.a]\nkind='boolean'": "s.toml, line 3: column 'a' is named twice",
    "[columns.b]\nkind='ignore'\n[columns.a]\nkind='num'": "s.toml, line 3: column 'a': kind = 'num' is unknown",
    "[columns.a]\nlow=0": "s.toml, line 1: column 'a' has no kind",
    "[columns.a]\nkind='numeric'\nlow=0": "high is still to be filled in",
    "[columns.a]\nkind='numeric'\nlow=0\nhigh='FILL IN'": "high is still to be filled in",
    "[columns.a]\nkind='numeric'\nlow=5\nhigh=2": "not below",
    "[columns.a]\nkind='numeric'\nlow=nan\nhigh=2": "not finite",
    "[columns.a]\nkind='boolean'\nlow=3": "low does not go with",
    "[columns.a]\nkind='boolean'\ntrue=['x']\nfalse=['X']": "share a word",
    "[columns.a]\nkind='ordinal'\ncategories=['x']": "one value",
    "[columns.a]\nkind='ordinal'\ncategories=['x', 'x']": "twice",
    "[columns.a]\nkind='ordinal'\ncategories='xyz'": "not a list",
    "[columns.a]\nkind='ignore'\ntypo=1": "'typo' is not a setting",
    "[columns.a]\nkind='ignore'\nlearnt=1": "learnt",
    "typo=1\n[columns.a]\nkind='ignore'": "'typo' is not a setting",
    "target='b'\n[columns.a]\nkind='ignore'": "column 'b' is not in the schema",
    "target=3\n[columns.a]\nkind='ignore'": "target",
    "norm_bound=-1\n[columns.a]\nkind='ignore'": "norm_bound",
    "missing_values='NA'\n[columns.a]\nkind='ignore'": "not a list",
    "[columns.intercept]\nkind='boolean'": "two features would be called 'intercept'",
    "[columns.a]\nkind='categorical'\nother=true\ncategories=['(other)', 'b']": "two features would be called",
}


@pytest.mark.parametrize("text", WRONG_SCHEMAS)
def test_wrong_schemas_are_refused_in_one_line(text):
    with pytest.raises(Refused) as refused:
        schema.loads(text, "s.toml")
    assert WRONG_SCHEMAS[text] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    {
        "no target": (("target", "# target"), "names no target"),
        "ignored target": (('target = "relapse"', 'target = "id"'), "kind = 'ignore'"),
        "indicated target": (('target = "relapse"', 'target = "age"'), "missing = 'indicator'"),
    }.values(),
)
def test_a_target_must_be_one(change, said):
    with pytest.raises(Refused, match=said):
        schema.loads(SCHEMA.replace(*change)).with_target()


def small(tmp_path, content, name="small.csv"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_a_quotation_mark_within_a_value_is_refused(tmp_path):
    """Else it would end what another record opened, and the lines between were lost."""
    for lines in (b'1,5"\n', b'1,5" x\n', b'2,"x"\n4,5"\n', b'2,"x\ny",5"\n', b'a"b,1\n'):
        with pytest.raises(Refused, match=r"small.csv, line \d") as caught:
            list(tables.open_table(small(tmp_path, b"a,b\n" + lines)).pieces())
        assert "\n" not in str(caught.value)
    good = b'a,b\n1,"x, ""y"""\n2, "z\n""w"""\n"3",""\n4,\n'
    (piece,) = tables.open_table(small(tmp_path, good)).pieces()
    assert piece.columns == {"a": ["1", "2", "3", "4"], "b": ['x, "y"', 'z\n"w"', "", ""]}


def test_long_values_headers_like_zip_files_and_stateful_encodings(tmp_path):
    long = small(tmp_path, b"PK_id,b\n1," + b"x" * (2**24 + 1) + b"\n")
    assert sum(len(piece.lines) for piece in tables.open_table(long).pieces()) == 1
    with pytest.raises(Refused, match="zip file"):
        tables.open_table(small(tmp_path, b"PK\x03\x04,b\n1,2\n"))
    for name in ("iso2022_jp", "ISO-2022-KR", "hz", "utf-7", "UTF7"):
        with pytest.raises(Refused, match="is not taken"):
            tables.open_table(small(tmp_path, b"a,b\n1,2\n"), encoding=name)


def test_yes_or_no_by_the_first_rows_is_learnt_and_by_a_type_is_not(tmp_path):
    table = tables.open_table(small(tmp_path, b"smoker,ill\nyes,no\nno,yes\n"))
    draft = schema_draft.from_types(table, "ill")
    assert schema.loads(draft.toml).learnt == ("smoker", "ill")
    assert draft.learnt == ["smoker", "ill"]
    columns = {"smoker": [True, False], "ill": ["yes", "no"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "small.parquet")
    draft = schema_draft.from_types(tables.open_table(tmp_path / "small.parquet"), "ill")
    assert schema.loads(draft.toml).learnt == ("ill",)
