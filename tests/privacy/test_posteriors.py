"""Posterior samples against exact densities, samplers that are not exact, and all of these as events."""

import json
import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import confide
from confide import accountants, events
from confide.privacy.events import BoundedPosteriorSample, GaussianRelease, LastIterates, PosteriorSample
from confide.privacy.filters import COMPOSITIONS
from confide.validation import Refused
from helpers.densities import delta, gradient, normal, posterior

RECORDS = [(0.9, 1.0), (-0.4, 0.0), (0.7, 0.0), (-1.0, 1.0)]
FAINT = [(0.05, 1.0)]
CASES = {  # records, replaced by or None, convexity, power, clip
    "added": (RECORDS, None, 1.0, 1.0, math.inf),
    "weak prior": (RECORDS, None, 0.05, 1.0, math.inf),
    "hot": (RECORDS, None, 1.0, 0.1, math.inf),
    "alone": (FAINT, None, 4.0, 2.0, math.inf),
    "clipped": (FAINT, None, 9.0, 1.0, 0.1),
    "replaced": (RECORDS, (1.0, 0.0), 1.0, 1.0, math.inf),
    "replaced by its mirror": (RECORDS, (-1.0, 1.0), 0.3, 0.5, math.inf),
    "replaced, clipped": (FAINT, (1.0, 0.0), 9.0, 1.0, 0.1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_real_posteriors_are_never_told_apart_better_than_claimed(case):
    records, other, convex, power, clip = case
    grid = np.linspace(-12, 12, 20_001) / math.sqrt(convex)
    datasets = [[*records, (1.0, 1.0)], records if other is None else [*records, other]]
    p, q = (posterior(gradient(data, clip), convex, power, grid) for data in datasets)
    neighbours = "add-remove" if other is None else "replace-one"
    sample = PosteriorSample(gradient_bound=min(1.0, clip), strong_convexity=convex, likelihood_power=power)
    mu = math.sqrt(sample.parts(neighbours).squared_mu)
    profile = accountants.profile(sample, neighbours)
    ratios = [delta(p, q, k * mu, grid[1] - grid[0]) / profile.delta(k * mu) for k in (0, 0.5, 1, 2, 3, 4)]
    assert max(ratios) <= 1.0001
    if clip < 1:  # the clipped record pulls with all its might almost everywhere
        assert ratios[0] > 0.999
        assert min(ratios) > 0.97


def shifted(density, gamma, into, out_of):
    """gamma of the mass taken away, first where `out_of` is largest, and spread evenly over where `into` is true."""
    left = density.copy()
    order = np.argsort(-out_of, kind="stable")
    taken = np.minimum(density[order], np.maximum(0.0, gamma - (np.cumsum(density[order]) - density[order])))
    left[order] -= taken
    left[into] += gamma / into.sum()
    assert np.abs(left - density).sum() / 2 <= gamma * (1 + 1e-9)
    assert math.isclose(left.sum(), density.sum(), rel_tol=1e-9)
    return left


def adversaries(mu, gamma, points):
    """Masses on a grid of samplers within gamma of N(mu, 1) and N(0, 1) that make the most of it."""
    x = np.linspace(-7, 7 + mu, points)
    p, q = (normal(x, mean, 1.0) * (x[1] - x[0]) for mean in (mu, 0.0))
    far = x > -ndtri(gamma)  # where Q has gamma: take all of it away, and put P there
    yield "far", shifted(p, gamma, far, -x), shifted(q, gamma, x < -2, x)
    for threshold in (mu / 2, mu + 1, mu + 2):
        near, beside = (x > threshold) & (x < threshold + 1), -np.abs(x - threshold - 0.2)
        yield "near", shifted(p, gamma, near, -np.abs(x)), shifted(q, gamma, x < mu / 2 - 1, beside)
    yield "outside", shifted(p, gamma, x > 6 + mu, -x), q


@pytest.mark.parametrize(("mu", "gamma"), [(0.3, 1e-3), (1.0, 1e-6), (1.0, 0.02), (2.5, 1e-3), (0.05, 1e-2)])
def test_a_sampler_within_gamma_reveals_no_more_than_is_counted(mu, gamma):
    sample = PosteriorSample(gradient_bound=mu, strong_convexity=1.0, total_variation=gamma)
    profile, covered = accountants.profile(sample), []
    thresholds = np.linspace(-9, 9 + mu, 20_001)  # the most that any two such samplers can differ by, test by test
    caught, alarms = np.minimum(1, ndtr(mu - thresholds) + gamma), np.maximum(0, ndtr(-thresholds) - gamma)
    for epsilon in np.linspace(0, 12 * mu, 200):
        assert np.max(caught - math.exp(epsilon) * alarms) <= profile.delta(epsilon)
    for name, p, q in adversaries(mu, gamma, 6001):
        for epsilon in (0.0, 0.1 * mu, mu, 2 * mu, 4 * mu, 8 * mu, 20.0):
            true = delta(p, q, epsilon, 1.0)
            assert true <= profile.delta(epsilon) * (1 + 1e-4)
            covered.append((name, epsilon, true / profile.delta(epsilon)))
    overlap = 2 * ndtr(-mu / 2)
    far_out = max(ratio for name, epsilon, ratio in covered if name == "far" and epsilon == 20.0)
    assert far_out > 0.98 * overlap  # all of what is counted, but for the overlap
    plain = accountants.profile(GaussianRelease(mu=mu)).delta(8 * mu) + gamma
    assert any(delta(p, q, 8 * mu, 1.0) > plain for _, p, q in adversaries(mu, gamma, 6001))  # gamma is not enough


@pytest.mark.parametrize(("mu", "gamma"), [(0.8, 0.01), (0.3, 1e-3)])
def test_samplers_within_gamma_compose(mu, gamma):
    """With a Gaussian release, and with itself, on a grid over the plane."""
    other, y = 0.6, np.linspace(-7, 7.6, 501)
    second = [normal(y, mean, 1.0) * (y[1] - y[0]) for mean in (other, 0.0)]
    sample = PosteriorSample(gradient_bound=mu, strong_convexity=1.0, total_variation=gamma)
    twice = PosteriorSample(gradient_bound=mu, strong_convexity=1.0, total_variation=gamma, draws=2)
    mixed = accountants.profile(events.compose(sample, GaussianRelease(mu=other)))
    both = accountants.profile(twice)
    assert both.delta(1.0) == pytest.approx(accountants.profile(events.compose(sample, sample)).delta(1.0), rel=1e-9)
    for _, p, q in adversaries(mu, gamma, 501):
        for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0, 9.0):
            assert delta(np.outer(p, second[0]), np.outer(q, second[1]), epsilon, 1.0) <= mixed.delta(epsilon) * 1.001
            assert delta(np.outer(p, p), np.outer(q, q), epsilon, 1.0) <= both.delta(epsilon) * 1.001


def test_a_bounded_likelihood_to_a_power():
    """The published bound on a real pair: the log likelihood, cut to [-bound, 0], of records on an interval."""
    grid, bound, power = np.linspace(-3, 3, 4001), 1.5, 0.2
    losses = [np.minimum(np.logaddexp(0, -sign * grid), bound) for sign in (1, -1)]
    prior = -(grid**2) / 2
    claim = accountants.profile(BoundedPosteriorSample(log_likelihood_bound=bound, power=power), "replace-one")
    assert claim.epsilon(0.0) == pytest.approx(4 * bound * power)
    densities = [np.exp(power * (prior - 2 * losses[0] - last)) for last in losses]
    p, q = (density / density.sum() for density in densities)
    assert 0 < np.abs(np.log(p / q)).max() <= claim.epsilon(0.0) / 2  # the likelihood is one-sided
    near = BoundedPosteriorSample(log_likelihood_bound=bound, power=power, total_variation=1e-6, draws=3)
    parts = near.parts("add-remove")
    assert parts.failure == pytest.approx(3e-6 * (1 + math.exp(4 * bound * power)), rel=1e-4)
    assert parts.epsilon_counts.tolist() == [3.0]


RUN = LastIterates(
    step_sizes=0.5 / np.arange(1, 11), releases=(4, 7, 10), strong_convexity=0.5, smoothness=3.0, gradient_bound=0.1
)
SAMPLE = PosteriorSample(gradient_bound=0.1, strong_convexity=2.0, likelihood_power=0.7, draws=2)
EVENTS = {
    "iterates": RUN,
    "equal steps": LastIterates(
        step_sizes=0.01, releases=(300,), strong_convexity=0.5, smoothness=30.0, gradient_bound=0.1, temperature=2.0
    ),
    "sample": SAMPLE,
    "near sample": PosteriorSample(gradient_bound=0.1, strong_convexity=2.0, total_variation=1e-9),
    "bounded": BoundedPosteriorSample(log_likelihood_bound=2.0, power=0.02),
    "together": events.compose(RUN, SAMPLE, GaussianRelease(mu=0.02)),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
class TestEvents:
    def test_round_trip_and_equality(self, event):
        again = events.from_json(json.loads(json.dumps(event.to_json())))
        assert again == event
        assert hash(again) == hash(event)
        assert again.parts("replace-one").squared_mu == event.parts("replace-one").squared_mu
        assert all(event != other for other in EVENTS.values() if other is not event)
        assert "\n" not in event.summary()

    @pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
    def test_a_guarantee_is_verified_from_its_json(self, event, neighbours):
        stated = confide.guarantee(event, delta=1e-6, neighbours=neighbours)
        again = confide.Guarantee.from_json(json.dumps(stated.to_json()))
        assert confide.verify(again) == pytest.approx(stated.epsilon)
        assert "every iterate" not in stated.released  # of which most stay secret
        record = stated.to_json() | {"epsilon": stated.epsilon * 0.99}
        with pytest.raises(Refused, match="does not hold"):
            confide.verify(confide.Guarantee.from_json(record))
        dropped = stated.to_json() | {"assumptions": list(stated.assumptions[1:])}
        with pytest.raises(Refused, match="lack a sentence"):
            confide.verify(confide.Guarantee.from_json(dropped))

    @pytest.mark.parametrize("composition", COMPOSITIONS)
    def test_it_is_charged(self, event, composition, tmp_path):
        ledger = confide.Ledger.create(tmp_path / "ledger.db")
        ledger.enter("patients", confide.Budget(epsilon=2.0, delta=1e-5), composition)
        share = ledger.charge("patients", event).share
        assert 0.01 < share < 1
        if composition == "gdp" and not event.parts("add-remove").failure and event is not EVENTS["bounded"]:
            capacity = confide.gdp_mu(2.0, 0.99e-5) ** 2  # the rest of delta is for what may fail
            assert share == pytest.approx(event.parts("add-remove").squared_mu / capacity)
        assert ledger.left("patients").share == pytest.approx(1 - share)
        assert ledger.verify("patients") <= 1
        assert ledger.history("patients")[0].event == event


def test_a_run_that_ends_early():
    assert RUN.until(10) == RUN
    assert RUN.until(4).releases == (4,)
    assert RUN.until(5).releases == (4, 5)
    assert np.array_equal(RUN.until(5).step_sizes, RUN.step_sizes[:5])
    costs = [RUN.until(step).parts("add-remove").squared_mu for step in range(1, 11)]
    assert costs == sorted(costs)
    assert EVENTS["equal steps"].until(7).releases == (7,)
    with pytest.raises(Refused, match="releases"):
        RUN.until(0)
    with pytest.raises(Refused, match="10 steps, but the last release is after 11"):
        RUN.until(11)


def test_one_draw_after_another_costs_as_two_runs():
    """From a released iterate a run goes on as from a public start, and equal stretches cost the same."""
    once = EVENTS["equal steps"].parts("add-remove").squared_mu
    fields = {name: value for name, value in EVENTS["equal steps"].to_json().items() if name != "event"}
    twice = LastIterates(**(fields | {"releases": (300, 600)}))
    written_out = LastIterates(**(fields | {"releases": (300, 600), "step_sizes": [0.01] * 600}))
    assert twice.parts("add-remove").squared_mu == pytest.approx(2 * once, rel=1e-12)
    assert written_out.parts("add-remove").squared_mu == pytest.approx(2 * once, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (RUN, {"releases": ()}, "releases do not rise"),
        (RUN, {"releases": (4, 4, 10)}, "releases do not rise"),
        (RUN, {"releases": (7, 4, 10)}, "releases do not rise"),
        (RUN, {"releases": (0, 10)}, "releases = 0 is not a count"),
        (RUN, {"releases": 10}, "releases"),
        (RUN, {"releases": (4, 7, 9)}, "10 steps, but the last release is after 9"),
        (RUN, {"step_sizes": [0.5] * 9}, "9 steps, but the last release is after 10"),
        (RUN, {"step_sizes": [0.1] * 9 + [0.0]}, r"step_sizes\[9\] = 0"),
        (RUN, {"step_sizes": -0.1}, "step_sizes = -0.1"),
        (RUN, {"step_sizes": 0.572}, "no longer contract"),
        (RUN, {"smoothness": 0.4}, "smoothness = 0.4 is below strong_convexity = 0.5"),
        (RUN, {"strong_convexity": 0.0}, "strong_convexity = 0 is not positive"),
        (RUN, {"gradient_bound": math.inf}, "gradient_bound = inf"),
        (RUN, {"temperature": 0.0}, "temperature = 0"),
        (SAMPLE, {"total_variation": 1.0}, "total_variation = 1 is out of range"),
        (SAMPLE, {"total_variation": -1e-9}, "total_variation"),
        (SAMPLE, {"draws": 0}, "draws = 0"),
        (SAMPLE, {"strong_convexity": 0.0}, "strong_convexity = 0"),
        (SAMPLE, {"likelihood_power": math.nan}, "likelihood_power = nan"),
        (EVENTS["bounded"], {"log_likelihood_bound": 0.0}, "log_likelihood_bound = 0"),
        (EVENTS["bounded"], {"total_variation": 1.0}, "total_variation"),
        (EVENTS["bounded"], {"power": math.inf}, "power = inf"),
    ],
)
def test_nonsense_is_refused_in_one_line(kind, changed, message):
    with pytest.raises(Refused, match=message) as caught:
        events.from_json(kind.to_json() | changed)
    assert "\n" not in str(caught.value)


def test_what_may_fail_with_certainty_has_no_price():
    for event in (
        PosteriorSample(gradient_bound=5.0, strong_convexity=1.0, total_variation=0.4, draws=3),
        BoundedPosteriorSample(log_likelihood_bound=9.0, total_variation=0.1),
    ):
        assert event.parts("add-remove").failure == pytest.approx(1.0)
        assert accountants.profile(event).delta(30.0) == pytest.approx(1.0)
        with pytest.raises(Refused, match="does not cover the failure probability"):
            confide.guarantee(event, delta=1e-5)
