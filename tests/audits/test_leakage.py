"""The leakage test: its distances by hand, its p-values by simulation, and what it must and must not notice."""

import math
import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from matplotlib.patches import Rectangle
from scipy import stats

import confide
from confide import Posterior, Refused, leakage_test, models
from confide.audits import leakage
from confide.mechanism import noise

WEIGHTS = np.array([2.0, -1.0, 0.5], np.float32)
LOGISTIC = Posterior(
    draws={"weights": np.stack([np.zeros(3, np.float32), WEIGHTS])[None]},
    guarantee=None,
    plan={"clip": 0.5},
    model=models.logistic_regression(3),
)
MEAN = Posterior(
    draws=np.zeros((1, 1), np.float32),
    guarantee=None,
    model=models.from_functions(
        log_prior=lambda m: -0.5 * m**2, log_likelihood=lambda m, x: -0.5 * (x - m) ** 2, start=0.0
    ),
)


def records(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ WEIGHTS))).astype(np.float32)


def values(n, seed):
    return (np.random.default_rng(seed).normal(size=n).astype(np.float32),)


TRAIN, TEST = records(100, 0), records(80, 1)


def found(*arguments, key=0, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        return leakage_test(*arguments, key=key, **more)


def check_distances(gradients, distances, side="train"):
    """They are between these gradients (key 0), of which each is looked at once."""
    pairs = leakage.disjoint(noise.derive_key(noise.as_key(0), side), len(gradients), 2000, side)
    assert np.array_equal(np.sort(pairs, axis=None), np.arange(len(gradients)))
    expected = np.linalg.norm(gradients[pairs[:, 0]] - gradients[pairs[:, 1]], axis=1)
    np.testing.assert_allclose(distances, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clip", "draw", "weights", "cut"), [(None, -1, WEIGHTS, 0.5), (math.inf, 0, 0 * WEIGHTS, 9)])
def test_distances_are_those_of_disjoint_pairs_of_gradients(clip, draw, weights, cut):
    """The clip is the run's unless one is given, and the draw is the last."""
    result = found(LOGISTIC, TRAIN, TEST, clip=clip, draw=draw)
    assert result.clip == (None if clip else cut)
    for name, (x, y) in (("train", TRAIN), ("test", TEST)):
        gradients = x * (1 / (1 + np.exp(-x @ weights)) - y)[:, None]
        gradients /= np.maximum(1, np.linalg.norm(gradients, axis=1) / cut)[:, None]
        check_distances(gradients, getattr(result, f"{name}_distances"), name)
    assert found(LOGISTIC, TRAIN, TEST, clip=clip, draw=draw) == result
    assert found(LOGISTIC, TRAIN, TEST, clip=clip, draw=draw, key=1) != result


def test_gradients_are_by_the_parameters_that_are_sampled():
    """A scale is sampled as its logarithm: d/dlog(s) of log N(x; 0, s) is x^2 / s^2 - 1."""

    def scale(x):
        s = numpyro.sample("s", dist.HalfNormal(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(0, s), obs=x)

    draws = {"s": np.full((1, 1), 1.7, np.float32)}
    posterior = Posterior(draws=draws, guarantee=None, model=models.from_numpyro(scale))
    (x,), other = values(40, 0), values(40, 1)
    result = found(posterior, (x,), other)
    check_distances((x**2 / 1.7**2 - 1)[:, None], result.train_distances)


def test_a_loaded_draw_finds_its_parameters_by_name():
    """Files keep a named tuple as a dict, in which the leaves stand in another order."""

    class Line(NamedTuple):
        slope: float
        level: float

    model = models.from_functions(
        log_prior=lambda p: 0.0 * p.slope,
        log_likelihood=lambda p, x: -0.5 * jnp.square(1.0 - p.level - p.slope * x),
        start=Line(0.0, 0.0),
    )
    as_fitted = Line(np.full((1, 1), 2.0, np.float32), np.full((1, 1), -1.0, np.float32))
    kept, loaded = (
        Posterior(draws=draws, guarantee=None, model=model) for draws in (as_fitted, dict(as_fitted._asdict()))
    )
    (x,), other = values(40, 0), values(40, 1)
    result = found(loaded, (x,), other)
    assert result == found(kept, (x,), other)
    residual = 2.0 * x - 2.0
    check_distances(np.column_stack([residual * x, residual]), result.train_distances)


@pytest.mark.long
def test_a_large_network_is_looked_at_in_pieces(monkeypatch):
    model = models.mlp((3, 4, 2))
    rng = np.random.default_rng(0)
    layers = [{"weights": rng.normal(size=(1, 1, *s)), "bias": np.zeros((1, 1, s[1]))} for s in ((3, 4), (4, 2))]
    posterior = Posterior(draws=layers, guarantee=None, model=model)
    whole = found(posterior, TRAIN, TEST)
    monkeypatch.setattr(leakage, "NUMBERS", 26 * 13)  # 26 parameters: 13 pairs at a time, of 50 and of 40
    pieces = found(posterior, TRAIN, TEST)
    np.testing.assert_allclose(pieces.train_distances, whole.train_distances, rtol=1e-5)
    np.testing.assert_allclose(pieces.test_distances, whole.test_distances, rtol=1e-5)
    assert (len(pieces.train_distances), len(pieces.test_distances)) == (50, 40)


def test_p_values_are_uniform_where_nothing_was_learnt():
    """300 comparisons of 60 pairs with 60; each assertion fails for one seed in a thousand."""
    result = found(LOGISTIC, records(36_000, 2), records(36_000, 3), pairs=18_000)
    blocks = [side.reshape(300, 60) for side in (result.train_distances, result.test_distances)]
    tests = [leakage.compare(one, two) for one, two in zip(*blocks, strict=True)]
    low, high = stats.binom.ppf([0.0005, 0.9995], 300, 0.05)
    for p in ([test.mean_p for test in tests], [test.spread_p for test in tests]):
        assert stats.kstest(p, "uniform").pvalue > 1e-3
        assert low <= np.sum(np.array(p) < 0.05) <= high


def test_pairs_that_share_records_would_make_it_cry_wolf():
    """Why pairs are disjoint: all pairs of 40 records pretend to be 780, and 5% become two thirds."""
    i, j = np.triu_indices(40, 1)
    alarms, rng = 0, np.random.default_rng(0)
    for _ in range(100):
        one, two = (np.abs(side[i] - side[j]) for side in rng.normal(size=(2, 40)))
        alarms += leakage.compare(one, two).mean_p < 0.05
    assert alarms > 45


def test_an_overfitted_model_is_caught():
    """As many weights as records, labels of pure noise, next to no temperature: what was fitted is known by heart."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 50)) / 5, rng.normal(size=200)
    model = models.linear_regression(50, prior_scale=30.0)
    sampler = confide.sgld(step_size=0.5, temperature=1e-6)
    with pytest.warns(confide.NotPrivateWarning):
        posterior = confide.sample(model, (x[:50], y[:50]), sampler, steps=2000, batch_size=50, draws=1, key=0)
    result = found(posterior, (x[:50], y[:50]), (x[50:], y[50:]))
    assert result.mean_p < 1e-6
    assert result.spread_p < 1e-3
    assert result.train_mean < result.test_mean / 2
    assert any("differ" in sentence for sentence in result.sentences())


def test_a_shift_that_all_gradients_share_is_not_seen():
    """A limit of distances: those of gradients m - x do not depend on m, nor on a shift of all x."""
    train, (x,) = values(100, 0), values(80, 1)
    shifted = Posterior(draws=MEAN.draws + 8.0, guarantee=None, model=MEAN.model)
    near, far = found(MEAN, train, (x,)), found(shifted, train, (x + 8.0,))
    np.testing.assert_allclose(far.train_distances, near.train_distances, atol=1e-5)
    assert far.mean_p == pytest.approx(near.mean_p, rel=1e-3)


def test_the_smallest_difference_that_is_noticed():
    """At `detectable` four alarms in five; the band fails for one seed in a thousand."""
    noticed, rng = 0, np.random.default_rng(0)
    for _ in range(200):
        one, two = rng.normal(5.0, 1.0, 50), rng.normal(5.0, 2.0, 80)
        gap = math.sqrt(1.0 / 50 + 4.0 / 80) / math.sqrt(one.var(ddof=1) / 50 + two.var(ddof=1) / 80)
        difference = leakage.compare(one, two).detectable * gap  # with the true spreads in place of the measured
        noticed += leakage.compare(one + difference, two).mean_p < 0.05
    low, high = stats.binom.ppf([0.0005, 0.9995], 200, 0.8)
    assert low <= noticed <= high


def test_both_tests_against_scipy():
    rng = np.random.default_rng(0)
    one, two = rng.gamma(2.0, size=50), rng.gamma(3.0, size=70)
    result = leakage.compare(one, two)
    assert result.mean_p == pytest.approx(stats.ttest_ind(one, two, equal_var=False).pvalue, rel=1e-9)
    assert result.spread_p == pytest.approx(stats.levene(one, two).pvalue, rel=1e-9)
    flat = leakage.compare(np.tile([0.0, 1.0], 20), np.tile([1.0, 2.0], 20))  # deviations that do not vary
    assert flat.spread_p == 1.0
    assert flat.mean_p < 1e-6


def test_it_warns_and_says_what_it_does_not_say(capsys, tmp_path):
    with pytest.warns(confide.NotPrivateWarning, match="must not be published"):
        result = leakage_test(LOGISTIC, TRAIN, TEST, key=1)
    assert capsys.readouterr() == ("", "")
    text = str(result)
    assert text.startswith("Not to be published")
    for words in ("unpaid", "clipped to 0.5", "50 pairs", "does not prove", "80%", "blind", "No record is in two"):
        assert words in text
    assert "NOT TO BE PUBLISHED" in repr(result)
    assert f"{result.mean_p:.2g}" not in repr(result)
    figure = result.figure()
    figure.savefig(tmp_path / "distances.png")
    (axes,) = figure.axes
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1.0, rel=1e-6)  # a density
    assert "NOT TO BE PUBLISHED" in axes.get_title()


X, Y = TRAIN
REFUSED = {
    "too few records": ((LOGISTIC, TRAIN, records(39, 2)), {}, "39 records of test and pairs = 2000 give 19 pairs"),
    "too few pairs": ((LOGISTIC, TRAIN, TEST), {"pairs": 19}, "at least 20 are needed"),
    "no pairs": ((LOGISTIC, TRAIN, TEST), {"pairs": 0}, "pairs = 0 is not a count"),
    "another width": ((LOGISTIC, TRAIN, (X[:, :2], Y)), {}, "X has 2 columns"),
    "another shape": ((MEAN, values(50, 0), (X[:50],)), {}, "give records of one kind"),
    "another kind": (
        (MEAN, (np.zeros((50, 2, 2)),), (np.zeros((50, 2, 2), int),)),
        {},
        "float32 \\(2, 2\\) and one of test int32",
    ),
    "two numbers a record": ((MEAN, TRAIN, TEST), {}, "cannot be evaluated on one record"),
    "the same records": ((LOGISTIC, TRAIN, TRAIN), {}, "same records"),
    "missing": ((LOGISTIC, TRAIN, (np.full((50, 3), np.nan), Y[:50])), {}, "missing or infinite"),
    "no model": ((Posterior(draws=MEAN.draws, guarantee=None), TRAIN, TEST), {}, "has no model"),
    "no posterior": ((None, TRAIN, TEST), {}, "posterior = 'None'"),
    "no draw": ((LOGISTIC, TRAIN, TEST), {"draw": 2}, "from -2 to 1"),
    "half a draw": ((LOGISTIC, TRAIN, TEST), {"draw": 0.5}, "draw = 0.5"),
    "a clip of 0": ((LOGISTIC, TRAIN, TEST), {"clip": 0}, "clip = 0 is not positive"),
    "no clip at all": ((LOGISTIC, TRAIN, TEST), {"clip": math.nan}, "clip = nan"),
    "a key in words": ((LOGISTIC, TRAIN, TEST), {"key": "seed"}, "key is neither"),
    "no spread": ((MEAN, (np.ones(50),), (np.zeros(50),)), {}, "no spread"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_in_one_line(name):
    arguments, more, message = REFUSED[name]
    with pytest.raises(Refused, match=message) as refused:
        found(*arguments, **more)
    assert "\n" not in str(refused.value)


def test_draws_of_another_model_are_refused():
    other = Posterior(draws=LOGISTIC.draws, guarantee=None, model=models.logistic_regression(3, intercept=True))
    with pytest.raises(Refused, match="not parameters of the posterior's model"):
        found(other, TRAIN, TEST)


def test_gradients_that_are_not_finite_are_counted():
    """The mean e^s of a count overflows at s = 90: three records, in two or three pairs."""
    draws = {"weights": np.full((1, 1, 1), 90.0, np.float32)}
    posterior = Posterior(draws=draws, guarantee=None, model=models.poisson_regression(1))
    x = np.zeros((40, 1), np.float32)
    x[:3] = 1.0
    with pytest.raises(Refused, match=r"[23] of 20 pairs of train have gradients that are not finite"):
        found(posterior, (x, np.zeros(40)), (x[3:].repeat(2, axis=0), np.zeros(74)))
