"""Canaries of private scoring: in the sums of scores alone, judged by their price, and seen where these are broken.

An honest run is called a violation once in a thousand audits at most, and seeds are fixed.
"""

import math

import numpy as np
import pytest

import confide
from confide import events, models
from confide.audits import verdicts
from confide.inference import checkpoints
from confide.inference.plans import scoring as plans
from confide.mechanism import noise
from confide.privacy import pricing
from helpers import sabotage
from helpers.tiers import tiered

N, D = 250, 3
GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(N, D)).astype(np.float32)
OUTCOMES = {
    "logistic": GENERATOR.integers(0, 2, N),
    "linear": (NORMAL := GENERATOR.normal(size=N).astype(np.float32)),
    "learnt noise": NORMAL,
    "poisson": GENERATOR.poisson(2.0, N),
    "negative binomial": GENERATOR.poisson(2.0, N),
}
MODELS = {
    "logistic": models.logistic_regression(D),
    "linear": models.linear_regression(D, noise_scale=1.0, intercept=True),
    "learnt noise": models.linear_regression(D, intercept=True),
    "poisson": models.poisson_regression(D),
    "negative binomial": models.negative_binomial_regression(D, intercept=True),
}
STEPS = {"learnt noise": 8}


def fitted(name="logistic", epsilon=4.0, neighbours="add-remove", **changes):
    budget = confide.Budget(epsilon=epsilon, delta=1e-5, neighbours=neighbours)
    settings = {"key": 1, "verbose": False, "canaries": 200} | changes
    data = settings.pop("data", (X, OUTCOMES[name]))
    return confide.fit(MODELS[name], data, budget, confide.scoring(50), **settings)


def check_pulls(told):
    """In the mean by a clip in every sum, or by none, or by one the other way; but for four standard deviations."""
    pulls, spread = told.pulls[0] / told.steps, math.sqrt(told.spread) / told.steps
    outside = -1.0 if told.replaced else 0.0
    for these, expected in ((told.inside, 1.0), (~told.inside, outside)):
        assert abs(pulls[these].mean() - expected) < 4 * spread / math.sqrt(these.sum()) + 1e-4


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize("name", MODELS)
def test_an_honest_run_is_not_refuted_and_judged_by_its_sums(name, neighbours):
    posterior = fitted(name, neighbours=neighbours)
    told, found = posterior.canaries, confide.audit(posterior)
    assert not found.violated, found.tests
    assert told.sampling_probability == 1
    assert told.steps == len(posterior.plan["noise_multipliers"]) == STEPS.get(name, 12)
    check_pulls(told)
    mu = math.sqrt(np.sum((events.SENSITIVITY[neighbours] / np.array(posterior.plan["noise_multipliers"])) ** 2))
    assert found.part == pytest.approx(pricing.gdp_epsilon(mu, 1e-5), rel=1e-3)
    assert 0 <= found.bound < found.part < 0.95 * found.claimed  # of 200 canaries, 99.9% confidence may show none
    assert f"epsilon {found.part:.4g}, and judged by that" in str(found)
    assert found.to_json()["part"] == found.part


def test_what_canaries_are_in():
    scale = events.ScaleHistograms(noise=5.0)
    matrices, sums = events.InformationSums(noise_multipliers=(4.0,)), events.gaussian(2.0, 1.0, 3)
    assert verdicts.canary_part(events.compose(scale, matrices, sums)) == sums
    for whole in (sums, matrices, events.compose(scale, sums)):  # canaries of steps are judged by the whole, as ever
        assert verdicts.canary_part(whole) is whole


@pytest.mark.parametrize("kind", noise.NOISES)
@pytest.mark.parametrize("name", tiered(["poisson", "learnt noise"], ["poisson"]))
def test_draws_are_the_same_whoever_is_in(name, kind, monkeypatch):
    """To the last bit: neither scale, nor information, nor the model's own coordinates know of canaries."""
    monkeypatch.setattr(noise.os, "urandom", lambda count: bytes(range(count)))  # the key of secure noise
    found = []
    for share in (0, 1):
        monkeypatch.setattr(noise, "coins", lambda source, count, share=share: np.arange(count) % 2 == share)
        found.append(fitted(name, noise=kind, key=1 if kind == "default" else None))
    one, other = found
    assert one.release.to_json() == other.release.to_json()
    assert np.array_equal(one.draws["weights"], other.draws["weights"])
    assert one.draws["weights"].shape == (1, 50, D)
    assert not np.array_equal(one.canaries.scores, other.canaries.scores)
    for posterior in found:
        check_pulls(posterior.canaries)


def test_the_scale_and_the_information_are_those_of_the_records(monkeypatch):
    """Without noise, the same as of a run without canaries; sums by what adding up more rows rounds."""
    monkeypatch.setattr(noise, "around", lambda point, *given, **more: point)
    draw = noise.draw_units
    monkeypatch.setattr(noise, "draw_units", lambda *given, **more: 0 * draw(*given, **more))
    one, other = (fitted("linear", canaries=canaries).release for canaries in (None, 200))
    assert (one.frame.norm, one.frame.clip) == (other.frame.norm, other.frame.clip)
    assert np.array_equal(one.first_information, other.first_information)
    np.testing.assert_allclose(one.sums[0], other.sums[0], rtol=0.01, atol=0.02)  # of 400 rows and fewer in single


@pytest.mark.long
def test_a_run_that_learns_its_noise_scale_is_the_same_without_canaries(monkeypatch):
    """To the last bit, where the key is the same: the noise of further coordinates comes behind that of the others."""
    monkeypatch.setattr(noise.os, "urandom", lambda count: bytes(range(count)))
    one, other = (fitted("learnt noise", noise="secure", key=None, canaries=canaries) for canaries in (None, 200))
    assert one.release.to_json() == other.release.to_json()
    assert one.guarantee.to_json() == other.guarantee.to_json()
    for leaf in ("weights", "intercept", "noise_scale"):
        assert np.array_equal(one.draws[leaf], other.draws[leaf])


@pytest.mark.parametrize("name", tiered(["logistic", "learnt noise"], ["logistic"]))
def test_a_run_that_was_killed_tells_the_same_of_canaries(name, tmp_path, monkeypatch):
    whole = fitted(name, checkpoint=tmp_path / "whole")
    write, written = checkpoints.write, []

    def stop(path, checkpoint):
        write(path, checkpoint)
        written.append(checkpoint.block)
        if len(written) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted(name, checkpoint=tmp_path / "killed")
    found = fitted(name, checkpoint=tmp_path / "killed")
    assert np.array_equal(found.draws["weights"], whole.draws["weights"])
    for field in ("inside", "scores", "sums", "squares", "pulls"):
        assert np.array_equal(getattr(found.canaries, field), getattr(whole.canaries, field))


@pytest.mark.parametrize("name", tiered(["logistic", "learnt noise"], ["logistic"]))
def test_canaries_are_saved_and_audited_again(name, tmp_path):
    posterior = fitted(name)
    again = confide.Posterior.load(posterior.save(tmp_path / "run"))
    assert again.plan["canaries"] == 200
    assert confide.audit(again).tests == confide.audit(posterior).tests


BROKEN = {
    "half the noise": (sabotage.half_the_noise, "noise"),
    "a tenth less noise": (lambda patch: sabotage.less_noise(patch, 0.9), "noise"),
    "no weights": (sabotage.no_weights, "pull"),
}


@pytest.mark.parametrize("name", tiered(["logistic", "learnt noise"], ["logistic"]))
@pytest.mark.parametrize("how", BROKEN)
def test_broken_sums_are_a_violation(how, name, monkeypatch):
    """At a small epsilon, too; the noise of sums is a tenth less and not seen once in 10,000 times."""
    broken, test = BROKEN[how]
    broken(monkeypatch)
    found = confide.audit(fitted(name, epsilon=1.0, canaries=400))
    assert found.violated
    assert found.tests[test] < 1e-6


UNPRICED = [("logistic", "add-remove"), ("logistic", "replace-one"), ("learnt noise", "add-remove")]


@pytest.mark.parametrize(("name", "neighbours"), tiered(UNPRICED, UNPRICED[:1]))
def test_a_sum_that_was_not_priced_is_a_violation(name, neighbours, monkeypatch):
    """The last two, more than half of what is revealed; the pairs of 1,500 canaries do not show it once in a
    million times."""
    gaussian = events.gaussian
    monkeypatch.setattr(plans.events, "gaussian", lambda multipliers: gaussian(multipliers[:-2]))
    found = confide.audit(fitted(name, epsilon=8.0, canaries=1500, neighbours=neighbours))
    assert found.violated
    assert found.tests["pairs"] < 1e-4
