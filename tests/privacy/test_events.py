import json
import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide import events
from confide.privacy.events import (
    BoundedPosteriorSample,
    Composition,
    GaussianRelease,
    GaussianSchedule,
    GaussianSteps,
    LastIterates,
    PosteriorSample,
    Release,
)
from confide.validation import Refused

steps = st.builds(
    GaussianSteps,
    noise_multiplier=st.floats(0.1, 100),
    sampling_probability=st.floats(1e-6, 1),
    steps=st.integers(1, 10**6),
)
schedules = st.lists(st.tuples(st.floats(0.1, 100), st.floats(1e-6, 1)), min_size=1, max_size=5).map(
    lambda rows: GaussianSchedule(
        noise_multipliers=np.array([r[0] for r in rows]), sampling_probabilities=np.array([r[1] for r in rows])
    )
)
releases = st.builds(Release, epsilon=st.floats(1e-3, 5), delta=st.just(0.0) | st.floats(1e-30, 1e-3))
iterates = st.builds(
    lambda stretches, sizes, **more: LastIterates(
        releases=tuple(np.cumsum(stretches).tolist()),
        step_sizes=sizes[0] if len(sizes) == 1 else np.resize(sizes, sum(stretches)),
        **more,
    ),
    stretches=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    sizes=st.lists(st.floats(1e-6, 0.02), min_size=1, max_size=3),
    strong_convexity=st.floats(1e-3, 10),
    smoothness=st.floats(10, 90),
    gradient_bound=st.floats(0.1, 3),
    temperature=st.floats(0.1, 2),
)
samples = st.builds(
    PosteriorSample,
    gradient_bound=st.floats(0.01, 1),
    strong_convexity=st.floats(1, 10),
    likelihood_power=st.floats(0.01, 1),
    draws=st.integers(1, 3),
    total_variation=st.just(0.0) | st.floats(1e-12, 1e-6),
)
bounded = st.builds(
    BoundedPosteriorSample,
    log_likelihood_bound=st.floats(0.01, 1),
    power=st.floats(0.01, 1),
    draws=st.integers(1, 3),
    total_variation=st.just(0.0) | st.floats(1e-12, 1e-6),
)
leaves = st.one_of(
    steps, schedules, releases, st.builds(GaussianRelease, mu=st.floats(1e-3, 5)), iterates, samples, bounded
)
any_event = st.recursive(
    leaves,
    lambda inner: st.builds(
        Composition, events=st.lists(inner, min_size=1, max_size=3).map(tuple), repeats=st.integers(1, 5)
    ),
    max_leaves=6,
)


@given(any_event)
def test_json_round_trip_is_exact(event):
    assert events.from_json(json.loads(json.dumps(event.to_json()))) == event


@given(any_event, st.sampled_from(events.NEIGHBOURS))
def test_a_composition_adds_up(event, neighbours):
    once, thrice = event.parts(neighbours), Composition(events=(event,), repeats=3).parts(neighbours)
    assert math.isclose(thrice.steps, 3 * once.steps)
    assert math.isclose(thrice.squared_mu, 3 * once.squared_mu)
    assert math.isclose(thrice.epsilon_counts.sum(), 3 * once.epsilon_counts.sum())
    assert math.isclose(1 - thrice.failure, (1 - once.failure) ** 3, rel_tol=1e-12)


def test_equal_steps_merge_into_one_kind():
    schedule = GaussianSchedule(noise_multipliers=np.array([2.0, 3.0, 2.0]), sampling_probabilities=0.1)
    parts = events.compose(schedule, events.gaussian(2.0, 0.1, 10)).parts("add-remove")
    assert dict(zip(parts.noise_multipliers, parts.counts, strict=True)) == {2.0: 12, 3.0: 1}


def test_replacing_a_record_counts_as_removing_and_adding():
    assert GaussianRelease(mu=1.0).parts("replace-one").squared_mu == 4.0
    assert Release(epsilon=1.0).parts("replace-one").epsilons.tolist() == [2.0]
    assert math.isclose(Release(epsilon=1.0, delta=1e-6).parts("replace-one").failure, 1e-6 * (1 + math.e))
    assert events.gaussian(2.0).parts("replace-one").squared_mu == 1.0
    with pytest.raises(Refused, match="replace-one"):
        Release(epsilon=1.0, neighbours="replace-one").parts("add-remove")


def test_conversion_to_dp_accounting_prices_alike():
    event = events.compose(events.gaussian(2.0, 0.01, 100), events.gaussian([3.0, 4.0], 1.0), GaussianRelease(mu=0.1))
    accountant = dp_accounting.rdp.RdpAccountant().compose(event.to_dp_accounting())
    from confide.privacy.accountants import moments

    assert math.isclose(accountant.get_epsilon(1e-5), moments.epsilon(event, 1e-5), rel_tol=2e-3)


def test_a_pure_release_converts_to_the_worst_pure_mechanism():
    event = dp_accounting.ComposedDpEvent([Release(epsilon=0.5).to_dp_accounting()] * 3)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.pld.PLDAccountant(relation).compose(event)
    assert math.isclose(accountant.get_epsilon(1e-12), 1.5, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: events.gaussian(math.nan), "noise_multiplier = nan"),
        (lambda: events.gaussian(math.inf), "noise_multiplier = inf"),
        (lambda: events.gaussian(0.0), "noise_multiplier = 0"),
        (lambda: events.gaussian(True), "noise_multiplier = True"),
        (lambda: events.gaussian("2"), "noise_multiplier = '2'"),
        (lambda: events.gaussian(1.0, 1.5), "sampling_probability = 1.5"),
        (lambda: events.gaussian(1.0, 0.0), "sampling_probability = 0"),
        (lambda: events.gaussian(1.0, 0.5, 2.5), "steps = 2.5"),
        (lambda: events.gaussian(1.0, 0.5, 0), "steps = 0"),
        (lambda: events.gaussian([1.0, -1.0]), r"noise_multipliers\[1\] = -1"),
        (lambda: events.gaussian([1.0, 2.0], [0.1]), "2 steps and sampling_probabilities 1"),
        (lambda: events.gaussian([1.0, 2.0], steps=3), "steps = 3 but 2 values"),
        (lambda: events.gaussian([]), "shape"),
        (lambda: Release(epsilon=-1.0), "epsilon = -1"),
        (lambda: Release(epsilon=1.0, delta=1.0), "delta = 1"),
        (lambda: Release(epsilon=0.0), "reveal nothing"),
        (lambda: GaussianRelease(mu=1.0, neighbours="both"), "neighbours = 'both'"),  # type: ignore[arg-type]
        (lambda: Composition(events=()), "events is empty"),
        (lambda: Composition(events=(1,)), "not an event"),  # type: ignore[arg-type]
        (lambda: events.from_json({"event": "Laplace"}), "not an event"),
        (lambda: events.from_json({"event": "Release", "epsilon": 1.0, "b": 2}), "wrong fields"),
    ],
)
def test_nonsense_is_refused_in_one_line(build, names):
    with pytest.raises(Refused, match=names) as caught:
        build()
    assert "\n" not in str(caught.value)
