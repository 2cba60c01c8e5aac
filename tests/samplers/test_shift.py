"""What all classes of softmax regression share is drawn from its prior, exactly, since no record tells it."""

import jax
import numpy as np
import pytest

import confide
from confide import models
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.mechanism import noise
from confide.models import inputs

RNG = np.random.default_rng(3)
X = RNG.uniform(-1, 1, (400, 3)).astype(np.float32)
Y = RNG.integers(0, 4, 400).astype(np.float32)
BUDGET = confide.Budget(epsilon=2.0, delta=1e-5)


def plan(sampler, **asked):
    model = models.softmax_regression(3, 4, prior_scale=0.5, intercept=True)
    table = inputs.place_records(model, (X, Y))
    return stochastic.make_plan(model, table, BUDGET, sampler, Options(steps=600, **asked), noise.as_key(0))


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_shift_is_a_draw_from_the_prior_and_nothing_else_changes(temperature):
    """300 draws of 4 shifts: their mean square is off by a sixth with probability below 1e-4."""
    found = plan(confide.sgld(temperature=temperature))
    kept = RNG.normal(size=(1, 300, 16)).astype(np.float32)
    drawn = found.postprocess(kept, noise.as_key(5)).reshape(1, 300, 4, 4)
    shift, before = drawn.mean(axis=-1), kept.reshape(1, 300, 4, 4)
    assert np.mean(shift**2) == pytest.approx(0.25 * temperature / 4, rel=1 / 6)
    np.testing.assert_allclose(drawn - shift[..., None], before - before.mean(axis=-1, keepdims=True), atol=1e-5)
    assert np.array_equal(found.postprocess(kept, noise.as_key(5)).ravel(), drawn.ravel())
    assert not np.array_equal(found.postprocess(kept, noise.as_key(6)).ravel(), drawn.ravel())


def test_it_matches_the_likelihood():
    """Adding one number to all scores of a feature changes no probability."""
    model = models.softmax_regression(3, 4)
    weights = {"weights": jax.numpy.asarray(RNG.normal(size=(3, 4)))}
    moved = {"weights": weights["weights"] + RNG.normal(size=(3, 1))}
    np.testing.assert_allclose(model.predict(weights, X[:9]), model.predict(moved, X[:9]), atol=1e-6)


def test_a_point_has_none_and_other_priors_and_plain_clips_keep_theirs():
    point = plan(confide.dp_sgd())
    assert np.allclose(point.postprocess(np.ones((1, 1, 16), np.float32), noise.as_key(0)), 0.0)
    assert plan(confide.sgld(), clipping="plain").postprocess is None
    other = models.softmax_regression(3, 4, prior="laplace")
    table = inputs.place_records(other, (X, Y))
    found = stochastic.make_plan(other, table, BUDGET, confide.sgld(), Options(steps=600), noise.as_key(0))
    assert found.postprocess is None
