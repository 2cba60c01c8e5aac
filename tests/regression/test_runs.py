"""Runs of private regression through `confide.fit`: what they store follows from their answers, and nothing is lost."""

import json

import numpy as np
import pytest

import confide
from confide import models
from confide.data.features import read_features
from confide.inference import checkpoints, verification
from confide.inference.regression import expectation
from confide.inference.regression.declared import make_design
from confide.inference.regression.priors import StandardisedPrior
from confide.validation import Refused
from helpers import tables_of_people as people

BUDGET = confide.Budget(epsilon=2.0, delta=1e-5)
QUIET = {"verbose": False, "progress": False}


def fit(family, epsilon=2.0, key=3, neighbours="add-remove", **options):
    x, y = people.table(family)
    sampler = confide.scoring(50, constant=-1, features=people.FEATURES, outcome=people.OUTCOMES[family])
    budget = confide.Budget(epsilon=epsilon, delta=1e-5, neighbours=neighbours)
    return confide.fit(people.MODELS[family](x.shape[1]), (x, y), budget, sampler, key=key, **QUIET, **options)


@pytest.mark.parametrize("family", people.MODELS)
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_a_run_spends_its_budget_and_is_verified(family, neighbours, tmp_path):
    posterior = fit(family, neighbours=neighbours)
    assert 1.99 < posterior.guarantee.epsilon <= 2.0
    loaded = confide.Posterior.load(posterior.save(tmp_path / "run"))
    verified = verification.verify(loaded)
    assert verified.draws == "bit for bit"
    assert verified.plan > 50
    assert verified.exact


@pytest.mark.parametrize("family", people.MODELS)
def test_draws_follow_from_the_release_alone(family):
    posterior = fit(family)
    stored = json.loads(json.dumps(posterior.release.to_json()))
    release = type(posterior.release).from_json(stored)
    again = release.make(50)
    assert np.array_equal(again.parameters, np.asarray(posterior.draws["weights"]))
    assert (again.noise_scales is not None) == (family == "linear")


@pytest.mark.parametrize("name", ["count", "columns 1", "moments", "scores 5", "slope"])
def test_a_changed_answer_is_refused(name, tmp_path):
    path = fit("linear").save(tmp_path / "run")
    record = json.loads((path / "release.json").read_text())
    record["answers"][name][0] += 0.01 * abs(record["answers"][name][0]) + 1.0
    (path / "release.json").write_text(json.dumps(record))
    with pytest.raises(Refused, match=r"release\.json|recomputing"):
        verification.verify(confide.Posterior.load(path))


@pytest.mark.parametrize("change", [lambda answers: answers.pop("slope"), lambda answers: answers.update(extra=[1.0])])
def test_answers_that_no_query_has_are_refused(change, tmp_path):
    path = fit("logistic").save(tmp_path / "run")
    record = json.loads((path / "release.json").read_text())
    change(record["answers"])
    (path / "release.json").write_text(json.dumps(record))
    with pytest.raises(Refused, match=r"release\.json"):
        verification.verify(confide.Posterior.load(path))


@pytest.mark.parametrize("family", people.MODELS)
def test_a_run_that_was_killed_goes_on_to_the_same_draws(family, tmp_path, monkeypatch):
    expected = fit(family, checkpoint=tmp_path / "whole")
    write, blocks = checkpoints.write, []

    def stop(path, checkpoint):
        write(path, checkpoint)
        blocks.append(checkpoint.block)
        if len(blocks) in (3, 9, 14):
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write", stop)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            fit(family, checkpoint=tmp_path / "killed")
    resumed = fit(family, checkpoint=tmp_path / "killed")
    assert np.array_equal(resumed.draws["weights"], expected.draws["weights"])
    assert resumed.release.to_json() == expected.release.to_json()


def test_secure_noise_has_another_price_and_the_same_meaning():
    posterior = fit("logistic", key=None, noise="secure")
    assert 1.9 < posterior.guarantee.epsilon <= 2.0


def test_another_feature_or_prior_has_other_noise():
    x, y = people.table("logistic")
    answers = []
    for options in ({}, {"prior_scale": 2.0}, {"prior": "encoded"}):
        sampler = confide.scoring(10, constant=-1, features=people.FEATURES, **options)
        model = models.logistic_regression(x.shape[1])
        answers.append(confide.fit(model, (x, y), BUDGET, sampler, key=1, **QUIET).release.answers["count"][0])
    assert len(set(answers)) == 3


def test_the_count_of_records_is_released_and_few_records_are_a_warning():
    x, y = people.table("logistic")
    x[: len(x) // 2] = np.nan
    sampler = confide.scoring(10, constant=-1, features=people.FEATURES)
    model = models.logistic_regression(x.shape[1])
    with pytest.warns(confide.FewRecordsWarning, match="of 300 declared records counted"):
        posterior = confide.fit(model, (x, y), confide.Budget(epsilon=8.0, delta=1e-5), sampler, key=1, **QUIET)
    counted = posterior.plan["counted"]
    assert abs(counted["number"] - len(x) / 2) < 4 * counted["error"]
    summary = confide.inference.summaries.from_json(posterior.plan)
    assert "declared records counted" in summary.warning()
    with pytest.warns(confide.FewRecordsWarning):
        posterior.summary()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": people.FEATURES[:-1]}, "features describes"),
        ({"features": [{"kind": "number"}]}, "kind = 'number' is unknown"),
        ({"features": [{"low": 1}]}, "has no kind"),
        ({"features": [{"kind": "numeric", "low": 2, "high": 1}]}, "low = 2 is not below"),
        ({"features": [{"kind": "numeric", "typical": [0, 3]}]}, "no range within"),
        ({"features": people.FEATURES, "prior": "flat"}, "prior = 'flat' is unknown"),
    ],
)
def test_what_is_wrong_with_features_is_said_in_one_line(options, message):
    x, y = people.table("logistic")
    model = models.logistic_regression(x.shape[1])
    with pytest.raises(Refused, match=message):
        confide.fit(model, (x, y), BUDGET, confide.scoring(10, constant=-1, **options), **QUIET)


def test_numbers_and_counts_need_bounds_of_the_outcome():
    x, y = people.table("linear")
    sampler = confide.scoring(10, constant=-1, features=people.FEATURES)
    with pytest.raises(Refused, match="outcome=\\(low, high\\)"):
        confide.fit(models.linear_regression(x.shape[1]), (x, y), BUDGET, sampler, **QUIET)


@pytest.mark.parametrize("family", people.MODELS)
def test_units_of_a_column_change_nothing_but_its_coefficient(family):
    """A column in another unit, with bounds in that unit and the same noise, has the coefficient in that unit."""
    x, y = people.table(family)
    rows, unit = x[:, :-1].astype(np.float64), np.array([1024.0, 1, 1, 1, 1, 1])
    features = [dict(feature) for feature in people.FEATURES]
    features[0] |= {"low": -1024.0, "high": 1024.0}
    covariances = []
    for scaled, known in ((rows, people.FEATURES), (rows * unit, features)):
        outcome = people.OUTCOMES[family] or (0.0, 1.0)
        design = make_design(family, read_features(known), outcome, len(rows))
        generator = np.random.default_rng(0)
        result = expectation.simulate_run(design, StandardisedPrior(), scaled, y.astype(np.float64), 1.0, generator)
        covariances.append(expectation.covariance_of_coefficients(result))
    one, other = covariances
    units = np.append(unit, 1.0)
    np.testing.assert_allclose(other * np.outer(units, units), one, rtol=1e-6, atol=1e-12)


@pytest.mark.filterwarnings("ignore::confide.FewRecordsWarning")
@pytest.mark.parametrize("family", people.MODELS)
@pytest.mark.parametrize("bad", ["constant columns", "no records", "one label", "far outcomes", "one record"])
def test_bad_tables_never_refuse_and_never_give_a_nan(family, bad):
    x, y = people.table(family)
    if bad == "constant columns":
        x[:, :-1] = 0.0
    elif bad == "no records":
        x[:] = np.nan
    elif bad == "one label":
        y[:] = 0.0
    elif bad == "far outcomes":
        y = np.where(np.arange(len(y)) % 2, 3e38, 0.0).astype(np.float32)
    else:
        x[1:] = np.nan
    sampler = confide.scoring(20, constant=-1, features=people.FEATURES, outcome=people.OUTCOMES[family])
    posterior = confide.fit(people.MODELS[family](x.shape[1]), (x, y), BUDGET, sampler, key=5, **QUIET)
    assert all(np.all(np.isfinite(draws)) for draws in posterior.draws.values())
