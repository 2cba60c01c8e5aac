"""Rehearsals: made-up tables from a release, what is seen on them, and draws that are calibrated by it."""

from functools import cache

import numpy as np
import pytest

import confide
from confide import Refused, models
from confide.inference import rehearsal, release_check
from confide.inference.release import Release
from helpers.tiers import tiered

BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
LONG = pytest.mark.long
DRAWS = 400


def data(n=800, d=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d))
    truth = rng.normal(size=d + 1)
    y = rng.random(n) < 1 / (1 + np.exp(-(x @ truth[:-1] + truth[-1])))
    return (x.astype(np.float32), y.astype(np.float32)), truth


@pytest.fixture(scope="module", autouse=True)
def _few_draws():
    """Of every fit, as many as of those that are rehearsed: one program serves both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "DRAWS", DRAWS)
        yield


@cache
def logistic(d):
    return models.logistic_regression(d, intercept=True)


def fit(given=None, rehearsals=0, **more):
    given = data()[0] if given is None else given
    model = more.pop("model", None) or logistic(given[0].shape[1])
    sampler = confide.scoring(DRAWS, rehearsals=rehearsals)
    return confide.fit(model, given, more.pop("budget", BUDGET), sampler, verbose=False, progress=False, key=2, **more)


def calibrate(found, datasets):
    """What a calibration saw, and what it made of it."""
    seen = []

    def spy(*given):
        seen.append(rehearse_run(*given))
        return seen[0]

    rehearse_run = rehearsal.rehearse_run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "rehearse_run", spy)
        mended = rehearsal.calibrate(confide.fit, found, datasets)
    return seen[0], mended


@pytest.fixture(scope="module")
def plain():
    return fit()


@pytest.fixture(scope="module")
def honest(plain):
    """40 tables of a program that is right."""
    return plain, *calibrate(plain, 40)


@LONG
def test_a_rehearsal_holds_made_up_truths_as_often_as_it_says(plain, honest):
    """40 tables of 5 coefficients, about 90% of them: wrong less than once in 1,000 times."""
    _, seen, _ = honest
    assert 0.8 < seen.coverage < 0.98
    assert seen.truths.shape == seen.low.shape == (40, 5)
    assert np.mean(seen.log_losses) > np.mean(seen.known_losses)
    assert seen.to_json()["datasets"] == 40
    one, other = (confide.rehearse(plain, 2).to_json()["widths"] for _ in range(2))
    assert one == other


def test_made_up_rows_have_the_moments_that_were_released():
    (x, y), _ = data(4000)
    found = fit((x + 0.5, y), budget=confide.Budget(epsilon=50.0, delta=1e-5))
    mean, covariance = found.release.row_moments()
    assert mean == pytest.approx([1, *[0.5] * 4], abs=0.1)  # long rows count less
    assert np.diag(covariance)[1:] == pytest.approx(1 / 3, abs=0.05)
    (table,) = rehearsal._from_release(found, found.release, 1, 0)
    assert table.x.shape == (4000, 4)
    assert table.x.mean(axis=0) == pytest.approx(0.5, abs=0.08)


@LONG
@pytest.mark.parametrize("shrunk", [0.5, 1.0])
def test_intervals_that_are_too_short_are_found_and_mended(monkeypatch, request, shrunk):
    """Nested coverage: a program whose draws are half as far from their mean as they should be holds made-up truths in
    59 of 100 cases; its draws are then drawn away by about 2. A program that is right stays within 1.25 of itself:
    40 tables of 5 coefficients are off by more once in 1,000 times."""
    if shrunk == 1:
        found, seen, mended = request.getfixturevalue("honest")
    else:
        shorten(monkeypatch, shrunk)
        found = fit()
        seen, mended = calibrate(found, 40)
    assert mended.release.inflation == seen.inflation
    width = np.ptp(np.quantile(mended.draws["weights"][0], [0.05, 0.95], axis=0), axis=0)
    before = np.ptp(np.quantile(found.draws["weights"][0], [0.05, 0.95], axis=0), axis=0)
    assert width == pytest.approx(seen.inflation * before, rel=1e-4)
    if shrunk < 1:
        assert seen.coverage < 0.75
        assert 1.6 < seen.inflation < 2.6
    else:
        assert 1 <= seen.inflation < 1.25
    again = np.abs(seen.truths - seen.means) <= seen.inflation * np.where(
        seen.truths > seen.means, seen.high - seen.means, seen.means - seen.low
    )
    assert np.mean(again) >= 0.9


def shorten(monkeypatch, factor):
    """Draws so many times as far from their mean."""
    draw = Release._draw

    def short(self, draws, log_prior):
        found = draw(self, draws, log_prior)
        return found.mean(axis=0) + factor * (found - found.mean(axis=0))

    monkeypatch.setattr(Release, "_draw", short)


@LONG
@pytest.mark.optimised
def test_coverage_of_calibrated_draws_over_fresh_datasets(monkeypatch):
    """30 datasets with truths from the prior, draws sabotaged to 60% of their spread, each calibrated by 15 tables:
    coverage .85 to .97, by three standard errors; without calibration below .80."""
    shorten(monkeypatch, 0.6)
    inside = {True: [], False: []}
    for seed in range(30):
        given, truth = data(600, 3, seed)
        plain = fit(given)
        for calibrated, found in ((False, plain), (True, rehearsal.calibrate(confide.fit, plain, 15, seed))):
            every = np.column_stack([found.draws["weights"][0], found.draws["intercept"][0]])
            low, high = np.quantile(every, [0.05, 0.95], axis=0)
            inside[calibrated].append((low <= truth) & (truth <= high))
    assert np.mean(inside[False]) < 0.8
    assert 0.85 < np.mean(inside[True]) < 0.97


def test_calibrated_draws_are_made_again_bit_for_bit(tmp_path):
    found = fit(rehearsals=5)
    assert found.plan["calibration"]["datasets"] == 5
    assert found.release.inflation >= 1
    loaded = confide.Posterior.load(found.save(tmp_path / "run"))
    assert release_check.check(loaded) == release_check.EXACT
    assert loaded.release.inflation == found.release.inflation


@pytest.mark.parametrize("name", tiered(["linear", "poisson", "softmax"], ["poisson"]))
def test_other_families_are_rehearsed_too(name):
    (x, _), truth = data(600)
    rng, s = np.random.default_rng(1), x @ truth[:-1]
    y = {"linear": s + rng.normal(size=len(s)), "poisson": rng.poisson(np.exp(0.5 * s)), "softmax": (s > 0) + (s > 1)}
    model = {
        "linear": models.linear_regression(4, intercept=True),
        "poisson": models.poisson_regression(4, 0.5, intercept=True),
        "softmax": models.softmax_regression(4, 3, intercept=True),
    }[name]
    seen = confide.rehearse(fit((x, y[name].astype(np.float32)), model=model), 3)
    assert np.all(np.isfinite(seen.means))
    assert 0.3 < seen.coverage <= 1


def test_a_rehearsal_reads_no_record(plain):
    """The release is all that it has; records that were fitted are gone."""
    found = confide.Posterior(**plain.__dict__)
    given = []

    def spy(model, data, **more):
        given.append(data[0])
        return confide.fit(model, data, **more)

    rehearsal.rehearse_run(spy, found, 2, 0)
    known = {row.tobytes() for row in data()[0][0]}
    assert len(given) == 2
    assert not any(row.tobytes() in known for table in given for row in table)


def test_what_has_no_release_is_refused(plain):
    given = data()[0]
    model = models.logistic_regression(4)
    stepped = confide.fit(model, given, BUDGET, confide.sgld(), steps=3, verbose=False, progress=False)
    with pytest.raises(Refused, match="no release of scoring"):
        confide.rehearse(stepped, 2)
    with pytest.raises(Refused, match="datasets"):
        confide.rehearse(plain, 0)
    with pytest.raises(Refused, match="rehearsals"):
        confide.scoring(rehearsals=-1)
