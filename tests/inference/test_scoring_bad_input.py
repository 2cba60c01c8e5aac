"""Private scoring on tables that hold nothing to learn from: the same program, and a wide and finite posterior.

To refuse one, to warn, or to do something else would tell that it is such a table.
"""

import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import confide
from confide import Refused, models
from confide.app.runs import run_folder
from confide.app.runs.run_folder import Request
from helpers.fits import ledger_of

N, D, PRIOR = 24, 3, 0.5
BUDGET = confide.Budget(epsilon=8.0, delta=1e-5)  # rich, so that much is believed of what is seen
FAMILIES = {
    "logistic": models.logistic_regression(D, PRIOR, intercept=True),
    "linear": models.linear_regression(D, PRIOR, noise_scale=0.5, intercept=True),
    "poisson": models.poisson_regression(D, PRIOR, intercept=True),
    "negative binomial": models.negative_binomial_regression(D, PRIOR, dispersion=0.5, intercept=True),
}
RNG = np.random.default_rng(8)
ROWS = RNG.uniform(-1, 1, (N, D)).astype(np.float32)
OUTCOMES = {
    "logistic": RNG.integers(0, 2, N),
    "linear": RNG.normal(size=N),
    "poisson": RNG.poisson(1.0, N),
    "negative binomial": RNG.poisson(2.0, N),
}
COLUMNS = ("own", "constant", "zeros", "of the first", "minus the first", "huge", "tiny", "infinite", "missing")
TARGETS = ("own", "least", "most", "beyond", "missing")


def column(kind, place):
    own, first = ROWS[:, place], ROWS[:, 0]
    made = {
        "own": own,
        "constant": np.ones(N),
        "zeros": np.zeros(N),
        "of the first": first,
        "minus the first": -2 * first,
        "huge": np.full(N, 3e38),
        "tiny": 1e-42 * own,
        "infinite": np.where(np.arange(N) % 2, np.inf, own),
        "missing": np.full(N, np.nan),
    }
    return np.asarray(made[kind], np.float64).astype(np.float32)


def target(name, kind):
    own, most = np.asarray(OUTCOMES[name], np.float64), {"logistic": 1.0, "linear": 1e30}.get(name, 1e6)
    made = {
        "own": own,
        "least": np.full(N, -most if name == "linear" else 0.0),
        "most": np.full(N, most),
        "beyond": np.full(N, -7.5),
        "missing": np.full(N, np.nan),
    }
    return made[kind].astype(np.float32)


def fit(name, x, y, records=N, **more):
    how = {"draws": 80, "key": 1, "verbose": False, "progress": False, "records": records} | more
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = confide.fit(FAMILIES[name], (x, y), BUDGET, **how)
    assert found.plan["sampler"] == "scoring"
    return np.concatenate([found.draws["weights"][0], found.draws["intercept"][0][:, None]], axis=1)


def is_wide_and_finite(drawn):
    assert np.all(np.isfinite(drawn))
    spread = np.std(drawn, axis=0)
    assert np.all(spread > 0.02 * PRIOR)
    assert np.all(np.abs(drawn.mean(axis=0)) < 20 * PRIOR)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=4)
@given(
    columns=st.tuples(*[st.sampled_from(COLUMNS)] * D),
    kind=st.sampled_from(TARGETS),
    zeros=st.integers(0, N),
    rows=st.integers(0, N),
)
@example(columns=("constant", "constant", "of the first"), kind="least", zeros=0, rows=N)
@example(columns=("own", "of the first", "minus the first"), kind="most", zeros=0, rows=N)
@example(columns=("own", "own", "own"), kind="beyond", zeros=0, rows=0)
def test_any_table_has_a_wide_and_finite_posterior(name, columns, kind, zeros, rows):
    """Columns that are constant, twice the same or absent, one outcome, outcomes at their ends, rows of zeros, fewer
    rows than declared."""
    x = np.column_stack([column(each, place) for place, each in enumerate(columns)])
    x[:zeros] = 0
    is_wide_and_finite(fit(name, x[:rows], target(name, kind)[:rows]))


@pytest.mark.parametrize("name", FAMILIES)
def test_one_record_is_enough_to_run(name):
    is_wide_and_finite(fit(name, ROWS[:1], target(name, "own")[:1], records=1))


@pytest.mark.parametrize("name", FAMILIES)
def test_where_nothing_is_told_the_draws_are_the_prior(name):
    """All records are absent, or none: standard deviations of 2,000 draws of four coefficients, to 15%."""
    for rows in (np.full_like(ROWS, np.nan), ROWS[:0]):
        found = fit(name, rows, target(name, "own")[: len(rows)], draws=2000)
        assert np.std(found, axis=0) == pytest.approx(PRIOR, rel=0.15)
        assert np.abs(found.mean(axis=0)).max() < 0.15 * PRIOR


SCHEMA = """target = "ill"
[columns.a]
kind = "numeric"
low = 0
high = 10
[columns.b]
kind = "numeric"
low = 0
high = 10
[columns.c]
kind = "categorical"
categories = ["x", "y"]
[columns.ill]
kind = "boolean"
"""
TABLES = {
    "one class": lambda i: (i % 11, (3 * i) % 11, "xy"[i % 2], "yes"),
    "constant": lambda i: (5, 5, "x", "no"),
    "at the bounds": lambda i: (0, 10, "y", ["no", "yes"][i % 2]),
    "twice the same": lambda i: (i % 11, i % 11, "xy"[i % 2], ["no", "yes"][i % 2]),
    "all absent": lambda i: (i % 11, "NA", "z", "perhaps"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_any_csv_file_has_a_run(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    rows = [",".join(map(str, TABLES[kind](i))) for i in range(N)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,ill", *rows]) + "\n")
    asked = Request(
        data=str(tmp_path / "table.csv"), schema=SCHEMA, out=str(tmp_path / "run"), epsilon=8.0, delta=1e-5, key=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", confide.FewRecordsWarning)  # which follows from the noisy number of records
        found = run_folder.fit(asked, verbose=False)
    assert found.plan["sampler"] == "scoring"
    drawn = found.draws["weights"][0]
    assert np.all(np.isfinite(drawn))
    spread = np.std(drawn, axis=0)
    assert np.all((spread > 0.02) | (spread == 0))
    assert np.sum(spread == 0) == 1  # the level of c that the others are compared with


@pytest.mark.parametrize(
    ("columns", "noise", "said"),
    [(2000, "default", "2000 x 2000: choose the sampler sgld above 1000"), (300, "secure", "above 200 parameters")],
)
def test_shapes_alone_refuse_and_before_any_charge(columns, noise, said, tmp_path):
    """Zeros, and numbers, alike."""
    ledger, model = ledger_of(tmp_path, 20.0), models.logistic_regression(columns)
    for rows in (np.zeros((30, columns), np.float32), RNG.normal(size=(30, columns)).astype(np.float32)):
        with pytest.raises(Refused, match=said) as refusal:
            confide.fit(model, (rows, np.zeros(30)), BUDGET, noise=noise, ledger=ledger, verbose=False)
        assert "\n" not in str(refusal.value)
    assert ledger.history("patients") == []


def test_fewer_records_than_columns_are_no_reason_to_refuse():
    model = models.logistic_regression(40, intercept=True)
    x = RNG.normal(size=(10, 40)).astype(np.float32)
    found = confide.fit(model, (x, np.arange(10) % 2), BUDGET, draws=80, key=1, verbose=False)
    assert np.all(np.isfinite(found.draws["weights"]))
    assert np.all(np.std(found.draws["weights"][0], axis=0) > 0.1)
