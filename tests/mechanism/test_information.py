"""No record moves the released information by more than its bound, whatever it and the others are like."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide import Refused
from confide.mechanism import noise
from confide.mechanism.clipping import clipped_sum
from confide.mechanism.information import InformationQuery, entries, release_information
from confide.mechanism.layers import Prepared
from confide.models import families
from confide.models.model import Weighting, from_family
from confide.privacy import events, pricing
from confide.privacy.events import InformationSums

FAMILIES = [
    families.Logistic(),
    families.Gaussian(0.3),
    families.Poisson(),
    families.NegativeBinomial(2.0),
]
D, ROWS = 3, 8
BOUND = 0.7


@functools.cache
def program(family, rounding, weight):
    """Compiled once for all examples; `weight` is the family's, which tests replace."""
    model = from_family(family, D, intercept=True)
    weighted = replace(model, linear=replace(model.linear, weighting=Weighting(2.0, 1.3)))
    sums = clipped_sum(weighted, 1.0, lambda flat: flat, ROWS)

    def release(x, present, query):
        data = (x, jnp.zeros(ROWS, jnp.float32))
        threshold = sums.residual_threshold(data, present, jnp.float32(sums.limit.norm))
        prepared = Prepared(data, threshold, None, sums.weighting)
        return release_information(sums, prepared, family, rounding, query, jnp.zeros(entries(D + 1)))

    return jax.jit(release)


def summed(family, x, present, *, position, root, rounding=noise.SUMS, bound=BOUND):
    """The sum without noise, by the program that a run has."""
    with jax.enable_x64(True):
        query = InformationQuery(*map(jnp.asarray, (position, root, bound, 1e-3)))
        release = program(family, rounding, type(family).information_weight)
        return np.asarray(release(jnp.asarray(x, jnp.float32), jnp.asarray(present), query))


numbers = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-3, 3, width=32)
rows = st.lists(st.lists(numbers, min_size=D, max_size=D), min_size=ROWS, max_size=ROWS)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.word)
@pytest.mark.parametrize("rounding", [noise.SUMS, noise.CONTRIBUTIONS], ids=["sums", "secure"])
@given(x=rows, position=st.lists(st.floats(-8, 8), min_size=D + 1, max_size=D + 1), seed=st.integers(0, 2**16))
def test_one_record_moves_the_sum_by_its_bound_at_most(family, rounding, x, position, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(D + 1, D + 1)) * 10.0 ** rng.integers(-3, 4)
    root = root + root.T
    present = np.ones(ROWS, bool)
    others = np.array(x, np.float32)
    with_it = summed(family, others, present, position=np.array(position), root=root, rounding=rounding)
    assert np.all(np.isfinite(with_it))
    without = summed(
        family, others, present & (np.arange(ROWS) != 0), position=np.array(position), root=root, rounding=rounding
    )
    slack = 2 * math.sqrt(entries(D + 1)) * 1e-3 / noise.GRID
    assert np.linalg.norm(with_it - without) <= BOUND + slack
    replaced = others.copy()
    replaced[0] = rng.normal(size=D) * 10.0 ** rng.integers(-2, 6)
    other = summed(family, replaced, present, position=np.array(position), root=root, rounding=rounding)
    assert np.linalg.norm(with_it - other) <= math.sqrt(2) * BOUND + slack


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.word)
def test_the_cut_holds_whatever_the_weight_is(family, monkeypatch):
    """The guarantee rests on the cut alone; and without it the bound would be passed."""
    monkeypatch.setattr(type(family), "information_weight", lambda self, s, threshold, typical=1.0: 1e6 + 0 * s)
    x, present = np.ones((ROWS, D), np.float32), np.ones(ROWS, bool)
    found = summed(family, x, present, position=np.zeros(D + 1), root=np.eye(D + 1))
    assert np.linalg.norm(found) == pytest.approx(ROWS * BOUND, rel=2e-3)
    assert np.linalg.norm(found) <= ROWS * BOUND
    loose = summed(family, x, present, position=np.zeros(D + 1), root=np.eye(D + 1), bound=1e9)
    assert np.linalg.norm(loose) > 100 * ROWS * BOUND


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.word)
def test_the_planned_bound_cuts_nothing_of_usual_rows(family):
    """A weight times the squared norm of a row within the bound is within `information_bound`."""
    s, reach, clip, typical = np.linspace(-8, 8, 401), 2.0, 0.4, 1.3
    for norm in np.linspace(0.05, reach, 40):
        weight = family.information_weight(s, np.asarray(clip / norm), typical)
        assert np.max(weight) * norm**2 <= family.information_bound(reach, clip, typical) * (1 + 1e-9)
        assert np.min(weight) >= 0


def test_an_event_is_priced_for_both_relations():
    event = InformationSums(noise_multipliers=(4.0, 5.0))
    for neighbours, change in (("add-remove", 1.0), ("replace-one", 2.0)):
        assert event.parts(neighbours).squared_mu == pytest.approx(change * (1 / 16 + 1 / 25))
    assert events.from_json(event.to_json()) == event
    mu = math.sqrt(1 / 16 + 1 / 25)
    assert pricing.certified_profile(event, "add-remove", "pld").epsilon(1e-5) == pytest.approx(
        pricing.gdp_epsilon(mu, 1e-5), rel=1e-3
    )
    assert "information" in event.summary()
    assert "information" in event.released()
    with pytest.raises(Refused):
        InformationSums(noise_multipliers=(0.0,))


def test_two_positive_matrices_are_no_further_apart_than_the_root_of_two():
    rng = np.random.default_rng(0)
    for _ in range(200):
        first, second = (rng.normal(size=5) for _ in range(2))
        one, other = (np.outer(each, each) / (each @ each) for each in (first, second))
        assert np.linalg.norm(one - other) <= math.sqrt(2) + 1e-12
