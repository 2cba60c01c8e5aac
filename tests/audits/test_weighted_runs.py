"""Audits of runs whose scores are bounded by weights: the program is built again as it ran, and a missing weight shows.

An honest run is called a violation once in a thousand audits at most, and seeds are fixed.
"""

import math

import numpy as np
import pytest

import confide
from confide.audits import gathering, rebuilding
from confide.audits.priced import reveals_more
from confide.inference.loop import Job
from confide.mechanism import noise
from confide.mechanism.clipping import GLM
from helpers import sabotage
from helpers.tiers import tiered

N, D = 600, 3
BUDGET = confide.Budget(epsilon=4.0, delta=1e-5)
GENERATOR = np.random.default_rng(8)
X = (2 * GENERATOR.normal(size=(N, D))).astype(np.float32)
OUTCOMES = {
    "two": GENERATOR.integers(0, 2, N),
    "three": GENERATOR.integers(0, 3, N),
    "counts": GENERATOR.poisson(3.0, N),
    "rare": GENERATOR.poisson(0.05, N),
    "numbers": GENERATOR.normal(size=N).astype(np.float32),
}
MODELS = confide.models
LOGISTIC = MODELS.logistic_regression(D)
RUNS = {
    "logistic": (LOGISTIC, "two", {}),
    "declared": (MODELS.logistic_regression(D, intercept=True, norm_bound=3.0), "two", {}),
    "softmax": (MODELS.softmax_regression(D, 3), "three", {}),
    "poisson": (MODELS.poisson_regression(D), "counts", {}),
    "rare": (MODELS.poisson_regression(D), "rare", {"steps": 500}),
    "negative binomial": (MODELS.negative_binomial_regression(D), "counts", {}),
    "linear": (MODELS.linear_regression(D, intercept=True), "numbers", {"chains": 2}),
    "clip": (LOGISTIC, "two", {"clip": 1.0, "neighbours": "replace-one"}),
    "step size": (LOGISTIC, "two", {"sampler": confide.sgld(step_size=0.05)}),
    "decreasing": (LOGISTIC, "two", {"sampler": confide.sgld(schedule="decreasing")}),
    "sghmc": (LOGISTIC, "two", {"sampler": confide.sghmc()}),
    "psgld": (LOGISTIC, "two", {"sampler": confide.psgld()}),
    "dp_sgd": (LOGISTIC, "two", {"sampler": confide.dp_sgd()}),
    "dpvi": (LOGISTIC, "two", {"sampler": confide.dpvi()}),
    "secure": (LOGISTIC, "two", {"noise": "secure", "key": None}),
    "plain": (LOGISTIC, "two", {"clipping": "plain"}),
    "plain softmax": (MODELS.softmax_regression(D, 3), "three", {"clipping": "plain", "batch_size": N}),
}
QUICK = ("logistic", "declared", "poisson", "rare", "dpvi", "plain")


def fitted(name, **changes):
    model, outcome, own = RUNS[name]
    settings = {"sampler": confide.sgld(), "steps": 40, "batch_size": 60, "key": 1, "verbose": False} | own | changes
    budget = confide.Budget(epsilon=4.0, delta=1e-5, neighbours=settings.pop("neighbours", "add-remove"))
    return confide.fit(model, (X, OUTCOMES[outcome]), budget, **settings)


@pytest.mark.parametrize("name", tiered(RUNS, QUICK))
def test_the_program_is_weighted_as_the_run_was(name, monkeypatch):
    """The very clip, bound, information and step sizes; what is bought is in the plan, and not bought again."""
    ran = []
    honest = Job.execute
    monkeypatch.setattr(Job, "execute", lambda job, *given, **how: ran.append(job) or honest(job, *given, **how))
    posterior = fitted(name)
    program = rebuilding.rebuild(posterior, noise.as_key(1), np.random.default_rng(0), 10**6)
    (run,) = ran
    for job in (program.job, program.plain):
        assert isinstance(job.gradient_sum.per_example, GLM)
        known, found = run.gradient_sum.per_example.linear.weighting, job.gradient_sum.per_example.linear.weighting
        assert found == known
        assert (found is None) == (posterior.plan.get("clipping") is None) == name.startswith("plain")
        assert job.gradient_sum.limit == run.gradient_sum.limit
        assert job.parameters.clip == run.parameters.clip == posterior.plan["clip"]
        np.testing.assert_allclose(job.kernel.schedule.step_size, run.kernel.schedule.step_size, rtol=1e-12)
        np.testing.assert_allclose(job.kernel.schedule.noise, run.kernel.schedule.noise, rtol=1e-9)
    event = posterior.guarantee.event
    assert not reveals_more(program.planned.event, event, posterior.guarantee.neighbours)


DEFAULT = {"steps": None, "batch_size": None}


@pytest.mark.optimised
@pytest.mark.parametrize(
    "name", tiered(["logistic", "declared", "softmax", "poisson"], thorough=["declared", "softmax"])
)
def test_default_runs_are_not_refuted(name, monkeypatch):
    """Clip, steps and batches as planned: by 100 canaries, and, the first of its steps, on made-up tables."""
    monkeypatch.setattr(gathering, "WORK", 2.0**29)
    posterior = fitted(name, **DEFAULT, canaries=100)
    found = confide.audit(posterior)
    assert not found.violated, found.tests
    assert 0 <= found.bound < found.claimed <= 4
    found = confide.audit(posterior, made_up=True, seed=1)
    assert not found.violated, found.tests
    assert found.tests["priced"] == found.tests["records"] == found.tests["clip"] == 1


def test_a_default_run_is_not_refuted_on_made_up_tables():
    """And its tables hold rows that pull as hard as the clip allows."""
    found = confide.audit(fitted("poisson"), made_up=True, seed=0, repetitions=60)
    assert not found.violated, found.tests
    assert found.tests["priced"] == 1
    assert found.seen > 16
    assert "halves" in found.tests


BROKEN = {"no weights": sabotage.no_weights, "far rows": sabotage.far_rows_count_more}
SHOWN = [("no weights", "logistic"), ("far rows", "poisson")]


CASES = [("no weights", name) for name in ("logistic", "declared", "softmax", "poisson", "psgld", "secure")]
CASES += [("far rows", name) for name in ("logistic", "declared", "softmax", "poisson")]  # others are summed elsewhere


@pytest.mark.parametrize(("how", "name"), tiered(CASES, SHOWN))
def test_canaries_show_a_missing_weight(how, name, monkeypatch):
    """A canary's row is a million times longer than those that count whole, and it adds the clip all the same."""
    BROKEN[how](monkeypatch)
    found = confide.audit(fitted(name, steps=200, canaries=200))
    assert found.violated
    assert found.tests["pull"] < 1e-6


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", tiered(["logistic", "softmax", "poisson", "linear"], thorough=["softmax", "linear"]))
def test_made_up_tables_show_a_missing_weight(how, name, monkeypatch):
    BROKEN[how](monkeypatch)
    found = confide.audit(fitted(name), made_up=True, seed=0, repetitions=60)
    assert found.violated
    assert found.tests["records"] == 0


def test_a_canary_in_a_weighted_run_pulls_by_the_clip():
    """Its mean pull over all steps is the share of batches that it is in: within 4 standard deviations."""
    check_pulls(fitted("logistic", steps=400, canaries=200).canaries)


def check_pulls(told):
    pulls = told.pulls.sum(axis=0) / told.steps
    spread = math.sqrt(told.spread) / told.steps
    q, inside = told.sampling_probability, told.inside
    assert abs(pulls[inside].mean() - q) < 4 * math.hypot(spread, math.sqrt(q / told.steps)) / math.sqrt(inside.sum())
    assert abs(pulls[~inside].mean()) < 4 * spread / math.sqrt((~inside).sum())


@pytest.mark.parametrize("unit", [1e-4, 1e4, 1e6])
def test_canaries_are_for_records_of_any_unit(unit):
    """The clip follows the scale of the records, which is known once it is paid for: too late to refuse."""
    model, outcome, _ = RUNS["logistic"]
    settings = {"sampler": confide.sgld(), "steps": 200, "batch_size": 60, "key": 1, "verbose": False, "canaries": 60}
    posterior = confide.fit(model, (X * np.float32(unit), OUTCOMES[outcome]), BUDGET, **settings)
    assert (posterior.plan["clip"] > 1000) == (unit > 1)
    assert not confide.audit(posterior).violated
    if unit < 1e6:  # from there on canaries are shorter than the clip, and felt as less than they are
        check_pulls(posterior.canaries)
