"""Canaries of a regression run: they are in the queries about scores alone, are judged by the price of these, and show
where these are broken.

An honest run is called a violation in one of 1,000 audits at most, and seeds are fixed.
"""

import math

import numpy as np
import pytest

import confide
from confide import events
from confide.inference import checkpoints, verification
from confide.mechanism import noise, record_sums
from confide.privacy import pricing
from helpers import sabotage
from helpers import tables_of_people as people

SCORE_QUERIES = 16


def fit(family, epsilon=4.0, neighbours="add-remove", **options):
    x, y = people.table(family)
    sampler = confide.scoring(50, constant=-1, features=people.FEATURES, outcome=people.OUTCOMES[family])
    budget = confide.Budget(epsilon=epsilon, delta=1e-5, neighbours=neighbours)
    settings = {"key": 3, "canaries": 200, "verbose": False, "progress": False} | options
    return confide.fit(people.MODELS[family](x.shape[1]), (x, y), budget, sampler, **settings)


def check_mean_pulls(canaries):
    """A canary that is in adds a bound to every sum, and one that is out adds none, but for four standard errors."""
    pulls, spread = canaries.pulls[0] / canaries.steps, math.sqrt(canaries.spread) / canaries.steps
    outside = -1.0 if canaries.replaced else 0.0
    for chosen, expected in ((canaries.inside, 1.0), (~canaries.inside, outside)):
        assert abs(pulls[chosen].mean() - expected) < 4 * spread / math.sqrt(chosen.sum()) + 1e-4


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("family", people.MODELS)
def test_an_honest_run_is_not_refuted_and_is_judged_by_its_scores(family, neighbours, tmp_path):
    posterior = fit(family, neighbours=neighbours)
    canaries, audit = posterior.canaries, confide.audit(posterior)
    assert not audit.violated, audit.tests
    assert canaries.steps == SCORE_QUERIES
    check_mean_pulls(canaries)
    mean_square = canaries.spread / canaries.steps  # of the multipliers; the mean of 1 / m^2 is at least 1 over it
    mu = events.SENSITIVITY[neighbours] * math.sqrt(canaries.steps / mean_square)
    assert audit.part >= pricing.gdp_epsilon(mu, 1e-5)  # other vectors are summed in the same part of the event
    assert audit.part < 0.95 * audit.claimed
    assert verification.verify(confide.Posterior.load(posterior.save(tmp_path / "run"))).exact


@pytest.mark.parametrize("family", people.MODELS)
def test_the_release_is_the_same_whoever_is_in(family, monkeypatch):
    runs = []
    for share in (0, 1):
        monkeypatch.setattr(noise, "coins", lambda source, count, share=share: np.arange(count) % 2 == share)
        runs.append(fit(family))
    one, other = runs
    assert one.release.to_json() == other.release.to_json()
    assert np.array_equal(one.draws["weights"], other.draws["weights"])
    assert not np.array_equal(one.canaries.scores, other.canaries.scores)
    for posterior in runs:
        check_mean_pulls(posterior.canaries)


def test_a_run_that_was_killed_shows_the_same_of_canaries(tmp_path, monkeypatch):
    expected = fit("linear", checkpoint=tmp_path / "whole")
    write, written = checkpoints.write, []

    def stop(path, checkpoint):
        write(path, checkpoint)
        written.append(checkpoint.block)
        if len(written) == 14:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        fit("linear", checkpoint=tmp_path / "killed")
    resumed = fit("linear", checkpoint=tmp_path / "killed")
    assert np.array_equal(resumed.draws["weights"], expected.draws["weights"])
    for field in ("inside", "scores", "sums", "squares", "pulls"):
        assert np.array_equal(getattr(resumed.canaries, field), getattr(expected.canaries, field))


def uncut_canaries(patch):
    """Canaries pull by eight times the bound."""
    honest = record_sums.cut_lengths

    def cut(vectors, longest):
        return honest(vectors, 8 * longest if vectors.shape[1] == 1 else longest)

    patch.setattr(record_sums, "cut_lengths", cut)


@pytest.mark.parametrize("family", people.MODELS)
@pytest.mark.parametrize(
    "break_program", [sabotage.half_the_noise, lambda patch: sabotage.less_noise(patch, 0.9), uncut_canaries]
)
def test_broken_sums_are_a_violation(family, break_program, monkeypatch):
    break_program(monkeypatch)
    audit = confide.audit(fit(family, epsilon=1.0, canaries=400))
    assert audit.violated
    assert min(audit.tests.values()) < 1e-6
