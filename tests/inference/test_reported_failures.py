"""What a user reported, once each: it fails with the plain clip, as it did then, and does not any more.

Every dataset, key and run is fixed. What other seeds would do is told where a bar is near what is found.
"""

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor, Ridge

import confide
from confide import models

pytestmark = [pytest.mark.long, pytest.mark.optimised]


def fit(model, data, epsilon, seed, **asked):
    how = {"sampler": confide.sgld(), "key": seed, "verbose": False, "progress": False} | asked
    return confide.fit(model, data, confide.Budget(epsilon=epsilon, delta=1e-5), **how)


def skewed(rng, n, features, power=6):
    """Features scaled to [-1, 1] by bounds that few values come near: most of a row is one direction, that of all
    ones, along which a mean log likelihood curves by as much as there are features."""
    return (2 * rng.beta(1, power, (n, features)) - 1).astype(np.float32)


# Intervals that did not hold the truth.


def intervals(seed, n, epsilon, **asked):
    """Whether 90% intervals hold the truth, drawn from the prior, and how far off the means are."""
    rng = np.random.default_rng(seed)
    x, truth = rng.uniform(-1, 1, (n, 5)).astype(np.float32), rng.normal(size=6)
    y = (rng.random(n) < 1 / (1 + np.exp(-(truth[0] + x @ truth[1:])))).astype(np.float32)
    found = fit(models.logistic_regression(5, intercept=True), (x, y), epsilon, seed, **asked).draws
    draws = np.concatenate([found["intercept"][..., None], found["weights"]], axis=-1).reshape(-1, 6)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return np.mean((low <= truth) & (truth <= high)), np.mean(np.abs(draws.mean(axis=0) - truth))


@pytest.mark.parametrize(
    ("n", "epsilon", "chains", "error"),
    [(10_000, 0.5, 1, 0.06), (5000, 1.0, 4, 0.08)],  # what the budget allows: .037 and .045
)
def test_intervals_of_logistic_regression_hold_the_truth(n, epsilon, chains, error):
    """12% of them did, and 4% with four chains, about means that were off by .73. Fewer than 70% of 48 intervals hold
    the truth once in 20,000 times, were they independent; the mean error of 8 datasets is 4 deviations below its
    bar."""
    coverage, off = np.mean([intervals(seed, n, epsilon, chains=chains) for seed in range(8)], axis=0)
    assert coverage >= 0.7
    assert off <= error
    bent = np.mean([intervals(seed, n, epsilon, chains=chains, clipping="plain") for seed in range(3)], axis=0)
    assert bent[0] < 0.4
    assert bent[1] > 3 * off


# Steps that were too long, and the longer the more there was to spend.


def linear(seed, epsilon, **asked):
    """R^2 of 3,987 records on others, that of a fit without privacy, and the run."""
    rng = np.random.default_rng(seed)
    x, slopes = skewed(rng, 5987, 20), 0.3 * rng.normal(size=20)
    score = x @ slopes
    y = (score - score.mean() + rng.normal(scale=0.25, size=len(x))).astype(np.float32)
    here, there = slice(0, 3987), slice(3987, None)
    posterior = fit(
        models.linear_regression(20, noise_scale=0.25, intercept=True), (x[here], y[here]), epsilon, seed, **asked
    )
    free = Ridge(alpha=0.25**2).fit(x[here], y[here])

    def explained(predicted):
        return 1 - np.mean((y[there] - predicted) ** 2) / np.var(y[there])

    return explained(np.ravel(posterior.predict(x[there]))), explained(free.predict(x[there])), posterior


def test_many_steps_of_a_rich_budget_are_short_enough():
    """R^2 was -4.5 at epsilon 100 with 40,000 steps: they were beyond 2 over the largest curvature."""
    found, free, posterior = linear(0, 100.0, steps=40_000)
    assert free > 0.3
    assert found == pytest.approx(free, abs=0.01)
    assert posterior.plan["lag_one"] > 0
    old, _, jumps = linear(0, 100.0, steps=40_000, clipping="plain")
    assert old < 0
    assert jumps.plan["lag_one"] < -0.5
    assert jumps.settled is False


def test_more_budget_does_not_hurt(capsys):
    """R^2 was .289, .293 and .23 at epsilon 1, 10 and 100."""
    found = [linear(0, epsilon)[0] for epsilon in (1.0, 10.0)]
    capsys.readouterr()
    last, free, posterior = linear(0, 100.0, verbose=True)
    assert np.all(np.diff([*found, last]) >= -0.005)
    assert last == pytest.approx(free, abs=0.005)
    assert posterior.guarantee.epsilon < 90
    assert "of a budget of 100; hardly any score is cut, and no step may be longer" in capsys.readouterr().err
    old = [linear(0, epsilon, clipping="plain")[0] for epsilon in (10.0, 100.0)]
    assert old[1] < old[0] - 0.02


@pytest.mark.xfail(strict=True, reason="clips are planned for rows that spread alike in all directions")
def test_a_small_budget_is_not_lost_on_skewed_columns():
    """Not reported, but found here: R^2 is .47 at epsilon 1, of .68 with a plain clip and .69 without privacy."""
    for seed in (0, 3):
        assert linear(seed, 1.0)[0] > linear(seed, 1.0, clipping="plain")[0] - 0.05


# Counts.


def counts(seed, **asked):
    """The deviance explained of 20,000 counts of mean 3 on others, and that of a fit without privacy."""
    rng = np.random.default_rng(seed)
    x, slopes = skewed(rng, 25_000, 14), 0.5 * rng.normal(size=14)
    mean = np.exp(x @ slopes)
    y = rng.poisson(3 * mean / mean.mean()).astype(np.float32)
    here, there = slice(0, 20_000), slice(20_000, None)
    posterior = fit(models.poisson_regression(14, intercept=True), (x[here], y[here]), 5.0, seed, **asked)
    free = PoissonRegressor(alpha=0, max_iter=1000, tol=1e-8).fit(x[here], y[here])

    def deviance(predicted):
        known = y[there]
        return np.mean(known * np.log(np.maximum(known, 1) / predicted) - known + predicted)

    none = deviance(y[here].mean())
    return [1 - deviance(rate) / none for rate in (np.ravel(posterior.predict(x[there])), free.predict(x[there]))]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_counts_are_explained_as_well_as_without_privacy(seed):
    """To a point; of six seeds the worst is at .6, and with a plain clip at 4."""
    found, free = counts(seed)
    assert free - found <= 0.01
    assert free - counts(seed, clipping="plain")[0] > 0.02


# Rows in another unit.


def accuracy(seed, epsilon, by, **asked):
    """Of 20,000 rows of four categories and seven numbers, 30 features in all, multiplied by a number."""
    rng = np.random.default_rng(seed)
    columns = [np.eye(k)[rng.choice(k, 30_000, p=rng.dirichlet(2 * np.ones(k)))] for k in (4, 6, 8, 5)]
    x = np.concatenate([*columns, rng.uniform(-1, 1, (30_000, 7))], axis=1).astype(np.float32)
    score = x @ rng.normal(size=30)
    y = (rng.random(30_000) < 1 / (1 + np.exp(1 - 1.2 * (score - score.mean())))).astype(np.float32)
    x, model = x * np.float32(by), models.logistic_regression(30, prior_scale=1 / by)
    found = fit(model, (x[:20_000], y[:20_000]), epsilon, seed, **asked)
    return np.mean((found.predict_proba(x[20_000:])[:, 1] > 0.5) == y[20_000:])


@pytest.mark.parametrize(("epsilon", "apart"), [(0.05, 0.03), (0.1, 0.007)])
def test_the_unit_of_the_rows_does_not_matter(epsilon, apart):
    """On Adult the same rows over sqrt(14) were six points apart; here they were four and one, over four datasets, and
    are a tenth of one."""
    units = (1.0, 14**-0.5)
    found = [np.mean([accuracy(seed, epsilon, by) for seed in range(4)]) for by in units]
    assert abs(found[0] - found[1]) <= 0.005
    assert min(found) > 0.8  # of .63 that the more frequent label has
    old = [np.mean([accuracy(seed, epsilon, by, clipping="plain") for seed in range(4)]) for by in units]
    assert old[0] - old[1] > apart
