"""No record moves any sum of a private regression by more than was priced, on real neighbours, without its noise.

The queries are those of a run. Rows and outcomes are of any size. What a record adds is the difference of two exact
integer sums; the price allows one bound for a vector or matrix of one record that comes or goes, two for a vector and
sqrt(2) for a matrix of one that is replaced, and what rounding to the grid may add (`mechanism.grid`).
"""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.audits import regression_queries
from confide.data.features import read_features
from confide.inference.regression import expectation
from confide.inference.regression.declared import make_design
from confide.inference.regression.priors import StandardisedPrior
from confide.mechanism import record_sums
from confide.mechanism.exact_rounding import GRID
from confide.models.inputs import Records
from helpers import tables_of_people as people

PLACES = 2500  # more than two chunks
hostile = st.one_of(
    st.floats(-3, 3, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, 1e-45, 1e-30, -1e-30, 1e-19, 1e19, 1e30, -1e30, 3.4e38]),
)
records = st.tuples(st.lists(hostile, min_size=6, max_size=6), hostile)


@functools.cache
def queries(family):
    """All queries of a run on ordinary rows."""
    x, y = people.table(family, rows=400)
    design = make_design(family, read_features(people.FEATURES), people.OUTCOMES[family] or (0.0, 1.0), 400)
    seen = []

    class Watch:
        def __call__(self, name, query):
            seen.append(regression_queries.NamedQuery(name, query))

    watch = Watch()
    expectation.simulate_run(
        design, StandardisedPrior(), x[:, :-1].astype(float), y.astype(float), 0.5, np.random.default_rng(1),
        watch=watch,
    )  # fmt: skip
    assert {query.name for query in seen} >= {"count", "columns 0", "moments", "scores 0", "slope", "variance"}
    return seen


def as_outcome(family, number):
    number = float(np.float32(number))
    if family == "logistic":
        return float(number > 0)
    return abs(math.floor(number)) if family == "poisson" else number


def neighbours(family, one, other, place):
    """A table without a record at a place, with it, and with another one in its place."""
    x, y = (np.resize(array, (PLACES, *array.shape[1:])).copy() for array in people.table(family, rows=400))
    x = x[:, :-1]
    tables = []
    for record, present in ((one, False), (one, True), (other, True)):
        rows, outcomes, mask = x.copy(), y.copy(), np.ones(PLACES, bool)
        mask[place] = present
        rows[place], outcomes[place] = np.array(record[0], np.float32), as_outcome(family, record[1])
        if not present:
            rows[place], outcomes[place] = 0.0, 0.0
        tables.append(Records((rows, outcomes.astype(np.float32)), mask, PLACES))
    return tables


@pytest.mark.optimised
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("family", people.MODELS)
@given(one=records, other=records, place=st.sampled_from([0, 1023, 1024, PLACES - 1]), data=st.data())
def test_no_record_moves_a_sum_by_more_than_was_priced(family, secure, one, other, place, data):
    asked = data.draw(st.sampled_from(queries(family)))
    query = asked.query
    without, with_one, with_other = (
        record_sums.sum_in_steps(query, table, secure=secure).astype(np.float64) * query.deviation / GRID
        for table in neighbours(family, one, other, place)
    )
    steps = 1.0 if secure or not query.is_matrix else 2.0
    room = query.bound + steps * math.sqrt(query.coordinates) * query.deviation / GRID
    assert np.linalg.norm(with_one - without) <= room
    assert np.linalg.norm(with_other - without) <= room
    change = math.sqrt(2) if query.is_matrix else 2.0
    moved = change * query.bound + steps * math.sqrt(query.coordinates) * query.deviation / GRID
    assert np.linalg.norm(with_one - with_other) <= moved


@pytest.mark.parametrize("family", people.MODELS)
def test_a_cut_that_is_left_out_is_seen(family, monkeypatch):
    """The test above can fail: without the cut a far record moves sums by many bounds."""
    monkeypatch.setattr(record_sums, "cut_lengths", lambda rows, bound: rows)
    far = ([1e19, -1e19, 1e19, 1e19, 0.0, 0.0], 1e19)
    without, with_one, _ = neighbours(family, far, far, 5)
    query = next(each.query for each in queries(family) if each.name == "moments")
    moved = record_sums.sum_in_steps(query, with_one) - record_sums.sum_in_steps(query, without)
    assert np.linalg.norm(moved.astype(np.float64)) * query.deviation / GRID > 2 * query.bound


@pytest.mark.parametrize("family", people.MODELS)
@pytest.mark.parametrize("secure", [False, True])
def test_shards_of_complete_chunks_add_up_to_the_same_integers(family, secure):
    table = neighbours(family, ([1.0] * 6, 1.0), ([0.0] * 6, 0.0), 7)[1]
    for asked in queries(family):
        expected = record_sums.sum_in_steps(asked.query, table, secure=secure)
        parts = [
            Records(tuple(array[first:last] for array in table.arrays), table.present[first:last], last - first)
            for first, last in ((0, 1024), (1024, 2048), (2048, PLACES))
        ]
        total = sum(record_sums.sum_in_steps(asked.query, part, secure=secure) for part in reversed(parts))
        assert np.array_equal(total, expected)


@pytest.mark.parametrize("family", people.MODELS)
def test_an_absent_record_changes_no_other_one(family):
    """The contributions of all other records are the same numbers, bit for bit."""
    far = ([1e30, 1.0, -1.0, 1.0, 0.0, 0.0], 1e30)
    absent, present, _ = neighbours(family, far, far, 11)
    for asked in queries(family):
        query = asked.query
        for one, other in zip(record_sums.iterate_chunks(absent), record_sums.iterate_chunks(present), strict=True):
            with np.errstate(all="ignore"):
                first, second = query.vectors(one.x, one.y), query.vectors(other.x, other.y)
            same = one.present & other.present
            assert np.array_equal(first[same], second[same], equal_nan=True)
