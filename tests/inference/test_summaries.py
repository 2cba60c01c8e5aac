"""Summaries: typed, of every kind of run, and stored as plans always were."""

import json
from pathlib import Path

import pytest

import confide
from confide.inference import summaries
from confide.inference.summaries import releases, runs, tempered
from helpers import golden_cases

GOLDEN = Path(__file__).parents[1] / "golden"
PLANS = sorted(GOLDEN.glob("**/plan.json"))
KINDS = {
    "langevin": tempered.LangevinSummary,
    "posterior-sample": tempered.PosteriorSampleSummary,
    "hybrid": tempered.HybridSummary,
    "dp_sgd": runs.OptimiserSummary,
    "dp_adam": runs.OptimiserSummary,
    "dpvi": runs.VariationalSummary,
}
RELEASES = {
    "output": releases.OutputSummary,
    "objective": releases.ObjectiveSummary,
    "statistics": releases.StatisticsSummary,
}


def stored(path):
    record = json.loads(path.read_text())
    return record.get("plan", record)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_stored_plans_of_every_version_are_read_and_written_alike(path):
    plan = stored(path)
    summary = summaries.from_json(plan)
    assert type(summary) is KINDS.get(path.parent.name, runs.SamplerSummary)
    assert json.loads(json.dumps(summary.to_json())) == plan
    assert summary.point == (plan.get("estimate") == "point")
    assert summary.lines()


@pytest.mark.parametrize("name", RELEASES)
def test_releases_have_summaries_of_their_own(name):
    posterior = golden_cases.RELEASES[name]()
    summary = summaries.from_json(posterior.plan)
    assert type(summary) is RELEASES[name]
    assert summary.to_json() == posterior.plan
    shown = summary.to_text(posterior.guarantee)
    assert f"by {posterior.plan['sampler'].replace('_', ' ')}" in shown
    assert f"of a budget of {golden_cases.BUDGET.epsilon:g}" in shown


def test_a_plan_that_no_run_wrote_says_nothing():
    for plan in ({}, {"clip": 0.5}, {"sampler": "ops"}, {"sampler": "sgld", "estimate": "point"}):
        summary = summaries.from_json(plan)
        assert type(summary) is summaries.Summary
        assert summary.to_json() == plan
        assert not summary.point
        assert [*summary.lines(), summary.warning(), *summary.remarks()] == [""]


def test_what_a_sampler_tells_of_itself_is_kept():
    plan = stored(GOLDEN / "version3" / "runs" / "sgfs" / "plan.json")
    assert summaries.from_json(plan | {"made_up": 3}).more["made_up"] == 3
    assert summaries.from_json(plan).more["fisher_noise"] == plan["fisher_noise"]


def test_a_run_without_a_guarantee_has_a_summary_too():
    with pytest.warns(confide.NotPrivateWarning):
        found = confide.sample(golden_cases.LOGISTIC, (golden_cases.X, golden_cases.Y), confide.dp_sgd(), 20, key=0)
    assert found.point
    assert "no clip" in " ".join(summaries.from_json(found.plan | {"noise_multiplier": 1.0}).lines())
