"""Priors of regressions: usual ones on standardised columns, and those of single columns in their own units.

Standard deviations of 2,000 draws are compared, whose relative standard error is 1.6%; seeds are fixed.
"""

import numpy as np
import pytest

import confide
from confide import models
from confide.app.report import priors as report
from confide.app.runs import run_folder
from confide.app.runs.options import Request
from confide.data import features, schema
from confide.data.features import read_features
from confide.inference.regression import expectation
from confide.inference.regression.declared import make_design
from confide.inference.regression.priors import StandardisedPrior, prior_from_json
from confide.validation import Refused
from helpers import tables_of_people as people

SCHEMA = """target = "cost"
[columns.age]
kind = "numeric"
low = 0
high = 120
unit = "year"
[columns.income]
kind = "numeric"
low = 0
high = 1000000
scale = "log"
[columns.smoker]
kind = "boolean"
[columns.stage]
kind = "ordinal"
categories = ["I", "II", "III"]
[columns.cost]
kind = "numeric"
low = 0
high = 5000
"""


def priors_in(text):
    return [feature.prior for feature in features.features_of(schema.loads(text))]


def test_a_prior_in_a_schema_is_per_unit_of_the_column():
    text = SCHEMA.replace('unit = "year"', 'unit = "year"\nprior = 0.5')
    text = text.replace('scale = "log"', 'scale = "log"\nprior = 0.5')
    text = text.replace('kind = "boolean"', 'kind = "boolean"\nprior = 3').replace('"III"]', '"III"]\nprior = 2')
    assert priors_in(SCHEMA) == [None] * 4
    # From -1 to 1 are 120 years, log(1 + 1,000,000) of income, no to yes, and two steps.
    np.testing.assert_allclose(priors_in(text), [0.5 * 60, 0.25 * np.log1p(1e6), 1.5, 2.0])


def test_priors_are_positive_and_no_prior_is_of_what_is_ignored():
    with pytest.raises(Refused, match="prior = 0 is not positive"):
        schema.loads(SCHEMA.replace('unit = "year"', "prior = 0"))
    with pytest.raises(Refused, match="prior does not go with kind = 'ignore'"):
        schema.loads(SCHEMA.replace("[columns.cost]", '[columns.id]\nkind = "ignore"\nprior = 1\n[columns.cost]'))


def test_units_of_a_column_change_nothing_but_the_unit_of_its_prior():
    x, y = people.table("linear")
    rows, unit = x[:, :-1].astype(np.float64), np.array([1024.0, 1, 1, 1, 1, 1])
    widened = [dict(feature) for feature in people.FEATURES]
    widened[0] |= {"low": -1024.0, "high": 1024.0}
    covariances = []
    for scaled, known, prior in ((rows, people.FEATURES, 0.5), (rows * unit, widened, 0.5 / 1024)):
        design = make_design("linear", read_features(known), (-1.0, 1.0), len(rows))
        rule, generator = StandardisedPrior(columns={0: prior}), np.random.default_rng(0)
        result = expectation.simulate_run(design, rule, scaled, y.astype(np.float64), 1.0, generator)
        covariances.append(expectation.covariance_of_coefficients(result))
    units = np.append(unit, 1.0)
    np.testing.assert_allclose(covariances[1] * np.outer(units, units), covariances[0], rtol=1e-6, atol=1e-12)


@pytest.mark.filterwarnings("ignore::confide.FewRecordsWarning")
@pytest.mark.parametrize("family", people.MODELS)
def test_where_nothing_is_learnt_a_coefficient_has_its_own_prior(family):
    x, y = people.table(family)
    x[:] = np.nan
    known = [dict(feature) for feature in people.FEATURES]
    known[1]["prior"], known[2]["prior"] = 0.02, 0.05
    sampler = confide.scoring(2000, constant=-1, features=known, outcome=people.OUTCOMES[family])
    budget = confide.Budget(epsilon=2.0, delta=1e-5)
    posterior = confide.fit(people.MODELS[family](x.shape[1]), (x, y), budget, sampler, key=5, verbose=False)
    drawn = posterior.draws["weights"][0]
    np.testing.assert_allclose(np.std(drawn[:, 1:3], axis=0), [0.02, 0.05], rtol=0.15)


def run(tmp_path, name, text=SCHEMA, **options):
    generator = np.random.default_rng(4)
    age = generator.normal(50, 10, 300)
    rows = [
        f"{a:.1f},{generator.lognormal(10, 1):.0f},{'yes' if generator.random() < 0.3 else 'no'},"
        f"{['I', 'II', 'III'][generator.integers(3)]},{20 * a + generator.normal(0, 100):.0f}"
        for a in age
    ]
    (tmp_path / "table.csv").write_text("\n".join(["age,income,smoker,stage,cost", *rows]) + "\n")
    request = Request(
        data=str(tmp_path / "table.csv"), schema=text, out=str(tmp_path / name), epsilon=3.0, delta=1e-5, key=1,
        **options,
    )  # fmt: skip
    return run_folder.fit(request, verbose=False)


def test_the_command_line_the_schema_and_the_report_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    with_prior = SCHEMA.replace('unit = "year"', 'unit = "year"\nprior = 0.5').replace('"III"]', '"III"]\nprior = 2')
    one = run(tmp_path, "one", with_prior)
    other = run(tmp_path, "other", priors="age=0.5,stage=2")
    assert one.release.to_json() == other.release.to_json()
    columns = one.plan["prior"]["columns"]
    assert columns[1:3] == [None, None]
    np.testing.assert_allclose([columns[0], columns[3]], [0.5 * 60 / 2500, 2 / 2500])
    usual = run(tmp_path, "usual")
    assert usual.release.to_json() != one.release.to_json()
    assert "columns" not in usual.plan["prior"]
    sentence = report.describe(one, schema.loads(SCHEMA))
    assert "age 0.5 per year" in sentence
    assert "stage 2 per step" in sentence
    assert "smoker" in sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priors": "height=1"}, "'height' has a prior and is no column of the model"),
        ({"priors": "cost=1"}, "'cost' has a prior and is no column of the model"),
        ({"priors": "age"}, "--priors 'age' is no prior of a column"),
        ({"priors": "age=-1"}, "--priors 'age=-1' is no prior"),
        ({"priors": "age=1", "prior": "encoded"}, "go with prior = 'standardised'"),
        ({"priors": "age=1", "sampler": "sgld"}, "go with scoring of a table"),
    ],
)
def test_priors_that_go_with_nothing_are_refused(options, message, tmp_path, monkeypatch):
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    with pytest.raises(Refused, match=message):
        run(tmp_path, "refused", **options)


def test_a_prior_is_read_back_from_a_release():
    stored = {"kind": "standardised", "slope": 2.5, "intercept": 5.0, "columns": [None, 0.25]}
    assert prior_from_json(stored) == StandardisedPrior(2.5, 5.0, {1: 0.25})


def test_estimators_take_priors_and_typical_ranges_in_the_units_of_features():
    generator = np.random.default_rng(0)
    x = np.column_stack([generator.normal(50, 10, 400), generator.gamma(2, 1000, 400)])
    y = 3 * x[:, 0] + generator.normal(0, 20, 400)
    known = {"epsilon": 1.0, "bounds": ([0, 0], [120, 1e6]), "target_bounds": (0, 2000), "random_state": 1}
    tight = confide.PrivateLinearRegression(**known, column_priors=[0.001, None]).fit(x, y)
    ranged = confide.PrivateLinearRegression(**known, typical=([34, 100], [66, 6000])).fit(x, y)
    stored = tight.posterior_.plan["prior"]["columns"]
    np.testing.assert_allclose(stored[0], 0.001 * 60 / 1000)
    assert stored[1] is None
    assert abs(tight.coef_[0]) < 0.005
    np.testing.assert_allclose(ranged.posterior_.plan["features"][0]["typical"], [34 / 60 - 1, 66 / 60 - 1])
    for wrong, message in (
        ({"column_priors": [1.0]}, "column_priors is no list of 2 numbers"),
        ({"column_priors": [1.0, -1.0]}, "not positive"),
        ({"typical": (0, 200)}, "typical has a range beyond the bounds"),
        ({"typical": (10, 20), "sampler": confide.sgld()}, "typical and column_priors go with private scoring"),
        ({"prior": "flat"}, "prior = 'flat' is unknown"),
    ):
        with pytest.raises(Refused, match=message):
            confide.PrivateLinearRegression(**known, **wrong).fit(x, y)


def test_models_of_arrays_take_priors_too():
    x, y = people.table("logistic")
    known = [dict(feature) for feature in people.FEATURES]
    known[0]["prior"] = 1e-4
    sampler = confide.scoring(100, constant=-1, features=known)
    budget = confide.Budget(epsilon=8.0, delta=1e-5)
    model = models.logistic_regression(x.shape[1])
    posterior = confide.fit(model, (x, y), budget, sampler, key=1, verbose=False)
    assert np.abs(posterior.draws["weights"][0][:, 0]).max() < 1e-3
