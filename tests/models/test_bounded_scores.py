"""Scores that are bounded by weights: they bend nothing, they are as short as they are to be, and no steeper.

That nothing bends is checked twice: exactly, by summing over all outcomes, and on simulated records.
"""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from confide.models.families import Gaussian, Logistic, NegativeBinomial, Poisson, Softmax
from helpers.tiers import tiered

CLIPS = (0.05, 0.2, 1.0, 5.0)  # in usual norms of a row
CASES = {
    "logistic": Logistic(),
    "softmax 3": Softmax(3),
    "softmax 5": Softmax(5),
    "linear": Gaussian(0.7),
    "poisson": Poisson(),
    "poisson up to 5": Poisson(5.0),
    "negative binomial .1": NegativeBinomial(0.1),
    "negative binomial 1": NegativeBinomial(1.0),
    "negative binomial 5": NegativeBinomial(5.0),
}
COUNTS = [name for name, family in CASES.items() if family.outcome == "count"]
SINGLE = [name for name, family in CASES.items() if not family.outputs]
TYPICAL = (0.05, 1.0, 30.0)


def length(family, values):
    return np.linalg.norm(values, axis=-1) if family.outputs else np.abs(values)


def law(family, scores):
    """All outcomes, or as many as matter, and their probabilities at every score: (outcomes, (scores, outcomes))."""
    if family.outcome == "two labels":
        return np.arange(2.0), family.predict(scores)
    if family.outcome == "labels":
        return np.arange(float(family.classes)), family.mean(scores)
    mean = family.mean(scores)[:, None]
    if isinstance(family, Poisson):
        found = stats.poisson(mean)
    else:
        found = stats.nbinom(1 / family.dispersion, 1 / (1 + family.dispersion * mean))
    y = np.arange(0.0, np.max(found.isf(1e-14)) + 2)
    return y, found.pmf(y)


def points(family):
    """Scores of several sizes."""
    if family.outputs:
        generator = np.random.default_rng(0)
        return np.concatenate([size * generator.normal(size=(20, *family.outputs)) for size in (0.5, 2.0, 6.0)])
    ends = (-6.0, 5.0) if family.outcome == "count" else (-12.0, 12.0)
    return np.linspace(*ends, 23)


@pytest.mark.parametrize("name", [name for name in CASES if name != "linear"])
def test_the_mean_given_the_scores_is_zero(name):
    """Exactly, in double precision, at every threshold: outcomes are summed over. Plain cutting misses by 0.01."""
    family = CASES[name]
    scores = points(family)
    y, chance = law(family, scores)
    assert chance.sum(axis=1) == pytest.approx(1, abs=1e-12)
    every = np.repeat(scores[:, None], len(y), axis=1)
    outcomes = np.broadcast_to(y, every.shape[:2])
    for threshold in (0.01, *CLIPS):
        for typical in TYPICAL if family.unknown_information else (1.0,):
            found = family.bounded(every, outcomes, np.full(outcomes.shape, threshold), typical)
            assert length(family, np.einsum("ij,ij...->i...", chance, found)) == pytest.approx(0, abs=1e-9)
    plain = family.residual(every, outcomes)
    cut = plain * np.minimum(1, 0.2 / np.maximum(length(family, plain), 1e-300))[(..., *[None] * len(family.outputs))]
    assert np.max(length(family, np.einsum("ij,ij...->i...", chance, cut))) > 0.01


def test_the_mean_of_a_linear_residual_is_zero_by_symmetry():
    family, errors = CASES["linear"], np.linspace(-9, 9, 2001)
    for s in (-3.0, 0.0, 20.0):
        found = family.bounded(np.full(errors.shape, s), s + errors, np.full(errors.shape, 0.3))
        np.testing.assert_allclose(found, -found[::-1], atol=1e-12)


def drawn(family, scores, generator):
    """Outcomes by the law that the family names, from another generator than its own."""
    mean = family.mean(scores)
    if family.outcome == "two labels":
        return (generator.random(mean.shape) < mean).astype(np.float64)
    if family.outcome == "labels":
        return np.argmax(scores + generator.gumbel(size=scores.shape), axis=1).astype(np.float64)
    if family.outcome == "number":
        return generator.normal(mean, family.noise_scale)
    if isinstance(family, Poisson):
        return generator.poisson(mean).astype(np.float64)
    return generator.negative_binomial(1 / family.dispersion, 1 / (1 + family.dispersion * mean)).astype(np.float64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("clip", tiered(CLIPS, (0.2,)))
def test_the_mean_over_records_is_zero_at_the_truth(name, clip):
    """Scores times rows, over a million records of three features, within 4 standard errors in every coordinate.

    With 3 to 15 coordinates that is wrong once in 1,000 cases at most, and seeds are fixed.
    """
    family, number = CASES[name], 10**6
    generator = np.random.default_rng(7)
    x = generator.normal(size=(number, 3))
    truth = 0.7 * generator.normal(size=(3, *family.outputs))
    norms = np.linalg.norm(x, axis=1)
    found = family.bounded(x @ truth, drawn(family, x @ truth, generator), clip * norms.mean() / norms, 1.0)
    each = (x[:, :, None] * found.reshape(number, 1, -1)).reshape(number, -1)
    assert np.all(np.abs(each.mean(axis=0)) <= 4 * each.std(axis=0) / math.sqrt(number))


sizes = st.one_of(st.floats(-100, 100), st.sampled_from([-1e30, -1e10, -1e4, -90.0, -1e-30, 0.0, 1e-30, 1e4, 1e30]))


@settings(max_examples=500)
@given(
    name=st.sampled_from(list(CASES)),
    scores=st.lists(sizes, min_size=5, max_size=5),
    value=st.one_of(st.floats(0, 1e3), st.floats(0, 1e30), st.sampled_from([0.0, 1.0, 1e15, 1e16, 1e30])),
    negative=st.booleans(),
    threshold=st.floats(-6, 6).map(lambda power: 10.0**power),
    typical=st.sampled_from([1e-4, 1.0, 1e4]),
    single=st.booleans(),
)
def test_no_score_is_longer_than_the_threshold(name, scores, value, negative, threshold, typical, single):
    """Whatever scores and outcomes are, in single and in double precision, and never without a number."""
    family = CASES[name]
    if family.kind == "classification":
        value = float(int(value) % (2 if family.outcome == "two labels" else family.classes))
    elif family.outcome == "count":
        value = float(np.floor(value))
    else:
        value = -value if negative else value
    s = np.array(scores[: family.outputs[0]])[None] if family.outputs else np.array(scores[:1])
    y, t, slack = np.array([value]), np.array([threshold]), 1e-9
    if single:
        s, y, t = (jnp.asarray(array, jnp.float32) for array in (s, y, t))
        slack = 2e-6  # of several sums and roots in single precision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # squares that overflow
        found = np.asarray(family.bounded(s, y, t, typical), np.float64)
    assert np.all(np.isfinite(found))
    assert length(family, found)[0] <= float(t[0]) * (1 + slack)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_in_single_precision_are_those_in_double(name):
    """To 1e-5 of the threshold, at means of up to 1e8 and at counts about them: large numbers must not cancel."""
    family = CASES[name]
    for s in np.float32([-8.0, 0.0, 3.0, 7.0, 11.0, 14.0, 18.0]):
        mean = float(np.exp(np.float64(s)))
        around = mean + math.sqrt(mean) * np.linspace(-5, 5, 41)
        y = np.unique(np.float32(np.floor([*around, *(mean * np.geomspace(0.01, 100, 41)), *range(20)])))
        y = y[y >= 0]
        for threshold in np.float32([1e-3, 0.1, 1.0, 30.0]):
            narrow = family.bounded(jnp.full(y.shape, s), jnp.asarray(y), jnp.full(y.shape, threshold), 1.0)
            wide = family.bounded(np.full(y.shape, float(s)), y.astype(float), np.full(y.shape, float(threshold)), 1.0)
            assert np.max(np.abs(np.asarray(narrow, np.float64) - wide)) <= 1e-5 * threshold, (s, threshold)


@pytest.mark.parametrize("name", COUNTS)
def test_the_bound_of_counts_is_nearly_met(name):
    """The search that its constants are from: over means, thresholds and counts the longest is 85 to 100%."""
    family, most = CASES[name], 0.0
    for s in np.linspace(-6, 9, 61):
        y = np.unique(np.floor(np.append(np.arange(200), math.exp(s) * np.geomspace(0.01, 100, 200))))
        for threshold in (1e-4, 0.01, 0.1, 1.0, 10.0):
            found = family.bounded(np.full(y.shape, s), y, np.full(y.shape, threshold), 1e9)
            most = max(most, float(np.max(np.abs(found))) / threshold)
    assert 0.85 < most <= 1 + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_without_a_threshold_it_is_the_residual(name):
    family = CASES[name]
    scores = points(family)
    for y in (0.0, 1.0, 4.0 if family.kind == "regression" else 1.0):
        outcomes = np.full(len(scores), y)
        found = family.bounded(scores, outcomes, np.full(len(scores), 1e9), 1e9)
        np.testing.assert_allclose(found, family.residual(scores, outcomes), rtol=1e-9, atol=1e-6)


def test_the_logistic_score_rises():
    """Its integral is convex, whatever the threshold: Langevin's last iterate is priced by this."""
    s = np.linspace(-30, 30, 60_001)
    for threshold in (1e-3, 0.2, 0.4999, 0.5, 0.6, 0.75, 0.99, 1.0, 3.0):
        for y in (0.0, 1.0):
            found = CASES["logistic"].bounded(s, np.full(s.shape, y), np.full(s.shape, threshold))
            assert np.min(np.diff(found)) >= -1e-15 * threshold


def test_the_bounded_score_is_the_derivative_of_its_loss():
    family, s = CASES["logistic"], np.linspace(-7.003, 7, 400)
    with jax.enable_x64(True):
        for threshold in (0.01, 0.4, 0.6, 0.9, 2.0):
            for y in (0.0, 1.0):
                slope = jax.vmap(jax.grad(lambda s, y=y, t=threshold: family.bounded_loss(s, jnp.float64(y), t)))
                found = family.bounded(s, np.full(s.shape, y), np.full(s.shape, threshold))
                np.testing.assert_allclose(slope(jnp.asarray(s)), found, atol=1e-9)


def test_symmetric_errors_are_bounded_by_cutting_the_residual():
    family, s = CASES["linear"], np.linspace(-7.003, 7, 400)
    assert [name for name, case in CASES.items() if case.symmetric_errors] == ["linear"]
    for threshold in (0.01, 0.4, 2.0):
        cut = np.clip(family.residual(s, 1.0), -threshold, threshold)
        assert np.array_equal(family.bounded(s, 1.0, np.full(s.shape, threshold)), cut)


def steepest(family, threshold, typical):
    """The largest slope by the score that is found, over outcomes of all sizes."""
    outcomes, s = np.array([0.0, 1.0]), np.linspace(-8, 8, 3001)
    if family.outcome == "count":
        outcomes = np.unique(np.floor([*range(12), *np.geomspace(12, 1e5, 25)]))
        s = np.linspace(-6, 12, 4501)
    y = np.repeat(outcomes[:, None], s.size, axis=1)
    found = family.bounded(np.broadcast_to(s, y.shape), y, np.full(y.shape, threshold), typical)
    return float(np.max(np.abs(np.diff(found, axis=1)))) / (s[1] - s[0])


@pytest.mark.parametrize("name", SINGLE)
def test_no_record_is_steeper_than_is_said(name):
    """Rows of all norms within the bound; where it is closest, the slope is at least a third of it."""
    family, bound, closest = CASES[name], 2.0, 0.0
    usual = (0.01, *TYPICAL, min(1.0, 1 / getattr(family, "dispersion", 1.0))) if family.unknown_information else (1.0,)
    for clip in (0.02, *CLIPS, 1.3, 2.6):
        for typical in usual:
            said = family.weighted_smoothness(bound, clip, typical)
            for norm in (0.6, 1.3, 1.7, bound):
                found = norm**2 * steepest(family, clip / norm, typical)
                assert found <= said * (1 + 1e-3), (clip, typical, norm)
                closest = max(closest, found / said)
    assert closest > 1 / 3


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_nor_one_of_several_scores(classes):
    """The spectral norm of the derivative by the scores, which is no symmetric matrix; 80% of the bound at best."""
    family, generator = Softmax(classes), np.random.default_rng(1)
    spread = [size * generator.normal(size=(300, classes)) for size in (0.3, 1.0, 2.0, 5.0)]
    levels = [level * np.eye(classes)[:1] + 1e-6 * np.arange(classes) for level in np.linspace(-6, 6, 241)]
    closest, scores = 0.0, jnp.asarray(np.concatenate([*spread, *levels]))

    with jax.enable_x64(True):

        def slope(s, y, threshold):
            return jnp.linalg.norm(jax.jacfwd(lambda s: family.bounded(s[None], y[None], threshold)[0])(s), 2)

        every, scores = jax.jit(jax.vmap(slope, (0, None, None))), jnp.asarray(scores, jnp.float64)
        for threshold in (0.02, 0.2, 0.6, 0.7, 0.71, 0.8, 1.0, 1.2, 1.4, 1.5, 5.0):
            said = family.weighted_smoothness(1.0, threshold)
            for y in range(2):
                found = float(jnp.max(every(scores, jnp.asarray(y), threshold)))
                assert found <= said * (1 + 1e-6), (threshold, y)
                closest = max(closest, found / said)
    assert closest > 0.8
