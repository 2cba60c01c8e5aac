"""Accountants against independent derivations: mpmath integrals, dp-accounting, and real neighbours."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from confide import accountants, events
from confide.privacy.accountants import gdp, moments, pld, schedule_compression
from confide.privacy.accountants.dominating_pairs import GaussianPair, PurePair

SINGLE = [(0.01, 1.0), (0.3, 0.5), (1e-4, 0.3), (0.5, 5.0), (0.9, 20.0), (0.999, 2.0)]


def hockey_stick(p, q, epsilon, breaks):
    """H_{e^epsilon}(p || q) by an mpmath integral of the positive part."""
    factor = mpmath.exp(epsilon)
    return mpmath.quad(lambda z: max(mpmath.mpf(0), p(z) - factor * q(z)), breaks)


def mixture(q, mean):
    return lambda z: (1 - q) * mpmath.npdf(z) + q * mpmath.npdf(z, mean)


def exact_delta(q, sigma, epsilon, neighbours):
    """One step, by integration; where densities cross is found first, so that the integrand is smooth."""
    m, breaks = 1 / sigma, {}
    pairs = {
        "remove": (mixture(q, m), mpmath.npdf),
        "add": (mpmath.npdf, mixture(q, m)),
        "replace": (mixture(q, m), mixture(q, -m)),
    }
    wanted = ("remove", "add") if neighbours == "add-remove" else ("replace",)
    best = mpmath.mpf(0)
    for name in wanted:
        p, r = pairs[name]
        grid = np.linspace(-14 - m, 14 + m, 4001)
        sign = np.array([float(mpmath.sign(p(z) - mpmath.exp(epsilon) * r(z))) for z in grid[::20]])
        coarse = grid[::20]
        crossings = [
            mpmath.findroot(lambda z, p=p, r=r: mpmath.log(p(z) / r(z)) - epsilon, (a, b), solver="anderson", tol=1e-25)
            for a, b, left, right in zip(coarse, coarse[1:], sign, sign[1:], strict=False)
            if left * right < 0
        ]
        breaks[name] = [-40 - m, *crossings, 40 + m]
        best = max(best, hockey_stick(p, r, epsilon, breaks[name]))
    return float(best)


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize(("q", "sigma"), SINGLE)
def test_one_step_against_an_integral(q, sigma, neighbours):
    mpmath.mp.dps = 30
    profile = accountants.profile(events.gaussian(sigma, q, 1), neighbours)
    for epsilon in (0.01, 0.5):
        exact = exact_delta(q, sigma, epsilon, neighbours)
        if exact > 1e-30:
            assert exact * (1 - 1e-9) <= profile.delta(epsilon) <= exact * 1.01


def test_one_step_down_to_tiny_delta():
    """The remove direction in closed form: q times the Gaussian profile at log(1 + (e^epsilon - 1) / q)."""
    from confide.privacy.accountants import gdp

    for q, sigma in SINGLE:
        profile = accountants.profile(events.gaussian(sigma, q, 1))
        for epsilon in (1e-3, 0.1, 1.0, 4.0):
            exact = q * gdp.delta_of_mu(1 / sigma, math.log1p(math.expm1(epsilon) / q))
            if exact > 1e-290:
                assert exact <= profile.delta(epsilon) <= exact * 1.02


@pytest.mark.long
@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
def test_log_moments_against_an_integral(neighbours):
    mpmath.mp.dps = 30
    for q, sigma, order in [(0.01, 1.0, 8), (0.05, 4.0, 64), (0.6, 0.4, 5)]:
        m = 1 / sigma
        p, r = mixture(q, m), mpmath.npdf if neighbours == "add-remove" else mixture(q, -m)
        breaks = [-40, *np.linspace(-10, order * m + 10, 20), order * m + 40]
        exact = mpmath.quad(lambda z, p=p, r=r, a=order: p(z) ** a * r(z) ** (1 - a), breaks)
        found = moments.profile(events.gaussian(sigma, q, 1), neighbours).log_moment(order)
        assert math.isclose(found, float(mpmath.log(exact)), rel_tol=1e-9)


def peer(q, sigma, steps, neighbours, pessimistic, width):
    relation = dp_accounting.NeighboringRelation
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=width,
        sampling_prob=q,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
        neighboring_relation=relation.ADD_OR_REMOVE_ONE if neighbours == "add-remove" else relation.REPLACE_ONE,
    ).self_compose(steps)


@pytest.mark.long
@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        (0.01, 1.0, 100, 1e-5),
        (0.2, 2.0, 50, 1e-6),
        (0.05, 10.0, 500, 1e-8),
        (0.6, 8.0, 20, 1e-5),
        (1e-3, 0.8, 300, 1e-7),
    ],
)
def test_between_the_peer_s_bounds(q, sigma, steps, delta, neighbours):
    found = accountants.profile(events.gaussian(sigma, q, steps), neighbours).epsilon(delta)
    assert found >= peer(q, sigma, steps, neighbours, False, 1e-4).get_epsilon_for_delta(delta)
    assert found <= peer(q, sigma, steps, neighbours, True, 1e-4).get_epsilon_for_delta(delta) * 1.005


@pytest.mark.long
def test_mixed_composition_between_the_peer_s_bounds():
    event = events.compose(events.gaussian([1.0, 1.5, 2.0, 3.0], [0.1, 0.2, 0.05, 0.4]), events.gaussian(5.0, 1.0, 4))
    bounds = []
    for pessimistic in (False, True):
        total = peer(1.0, 5.0, 4, "add-remove", pessimistic, 1e-4)
        for sigma, q in zip([1.0, 1.5, 2.0, 3.0], [0.1, 0.2, 0.05, 0.4], strict=True):
            total = total.compose(peer(q, sigma, 1, "add-remove", pessimistic, 1e-4))
        bounds.append(total.get_epsilon_for_delta(1e-6))
    assert bounds[0] <= accountants.profile(event).epsilon(1e-6) <= bounds[1] * 1.005


@pytest.mark.parametrize("level", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("points", [64, 256])
def test_a_crude_grid_is_loose_but_never_wrong(monkeypatch, level, points):
    """Windows that cut off most of the mass and grids of a few points: every error must be on the safe side."""
    lower = {s: peer(0.05, 2.0, s, "add-remove", False, 1e-3) for s in (3, 40)}
    monkeypatch.setattr(pld, "LEVEL", level)
    monkeypatch.setattr(pld, "LARGEST_GRID", points)
    monkeypatch.setattr(pld, "SMALLEST_GRID", points)
    for steps, truth in lower.items():
        profile = accountants.profile(events.gaussian(2.0, 0.05, steps))
        for epsilon in (0.0, 0.05, 0.3, 1.0, 3.0):
            # The peer's own truncation leaves 1e-15.
            assert profile.delta(epsilon) >= truth.get_delta_for_epsilon(epsilon) * (1 - 1e-6) - 1e-14


def test_a_wrong_discretisation_would_be_caught(monkeypatch):
    """The test above can fail: mass moved to the lower end of each cell is seen as an underestimate."""
    honest = GaussianPair.discretise

    def careless(self, width, log_tail, floor):
        atoms = honest(self, width, log_tail, floor)
        return atoms._replace(first=atoms.first - 1)

    lower = peer(0.05, 2.0, 40, "add-remove", False, 1e-4).get_epsilon_for_delta(1e-5)
    assert accountants.profile(events.gaussian(2.0, 0.05, 40)).epsilon(1e-5) >= lower
    monkeypatch.setattr(GaussianPair, "discretise", careless)
    assert accountants.profile(events.gaussian(2.0, 0.05, 40)).epsilon(1e-5) < lower


@pytest.mark.parametrize("order", ["remove", "add", "replace"])
def test_discretised_mass_is_complete_and_dominates(order):
    pair = GaussianPair(0.1, 0.7, order)
    atoms = pair.discretise(0.01, -40.0)
    mass, losses = np.exp(atoms.log_mass), 0.01 * (atoms.first + np.arange(atoms.log_mass.size))
    assert 1 - 1e-9 <= mass.sum() + atoms.infinite <= 1 + 1e-9
    assert (mass * np.exp(-losses)).sum() <= 1 + 1e-9
    p, r = pair.components
    z = np.linspace(-12, 12, 200_001)
    density = [sum(w * norm.pdf(z, mean) for w, mean in c) for c in (p, r)]
    for epsilon in (-0.03, 0.0, 0.05, 0.2):
        exact = np.trapezoid(np.maximum(0, density[0] - math.exp(epsilon) * density[1]), z)
        grid = (mass * np.maximum(0, 1 - np.exp(epsilon - losses))).sum() + atoms.infinite
        assert exact <= grid + 1e-7
        assert grid <= exact + 1e-4


def test_pure_pair_keeps_its_mass():
    atoms = PurePair(0.333).discretise(0.01, -40.0)
    losses = 0.01 * (atoms.first + np.arange(atoms.log_mass.size))
    assert math.isclose(np.exp(atoms.log_mass).sum(), 1.0, rel_tol=1e-12)
    assert math.isclose((np.exp(atoms.log_mass) * np.exp(-losses)).sum(), 1.0, rel_tol=1e-9)


def test_replace_one_holds_for_real_neighbours():
    """Records in the plane, clipped to norm 1, replaced by others: never easier to tell apart than the claim.

    The hockey-stick divergence of the two mixtures is integrated on a grid over the plane. The proof is in pairs.py;
    this would catch a wrong sensitivity, such as 1 in place of 2, at once (the last pair attains the claim).
    """
    rng = np.random.default_rng(7)
    q, sigma = 0.3, 0.8
    axis = np.linspace(-7, 7, 561) * sigma
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(centre):
        return np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)

    profile = accountants.profile(events.gaussian(sigma, q, 1), "replace-one")
    records = rng.normal(size=(8, 2, 2))
    records /= np.maximum(1, np.linalg.norm(records, axis=2, keepdims=True))
    records = np.concatenate([records, [[[1.0, 0.0], [-1.0, 0.0]]]])
    for epsilon in (0.05, 0.4, 1.0):
        claim, attained = profile.delta(epsilon), 0.0
        for record, other in records:
            p = (1 - q) * density((0, 0)) + q * density(record)
            r = (1 - q) * density((0, 0)) + q * density(other)
            attained = float(np.maximum(0, p - math.exp(epsilon) * r).sum() * cell)
            assert attained <= claim * (1 + 2e-4)  # the grid over the plane is good to 1e-4
        assert attained >= claim * 0.999


def test_heterogeneous_equals_one_by_one():
    """A schedule of few kinds is composed exactly: the same as composing equal steps of each kind."""
    sigma = np.repeat([2.0, 3.0, 5.0], [5, 7, 11])
    together = accountants.profile(events.gaussian(sigma, 0.1)).epsilon(1e-6)
    parts = [events.gaussian(s, 0.1, c) for s, c in ((2.0, 5), (3.0, 7), (5.0, 11))]
    assert math.isclose(together, accountants.profile(events.compose(*parts)).epsilon(1e-6), rel_tol=1e-12)


@pytest.mark.long
def test_rounding_to_kinds_only_raises_the_price(monkeypatch):
    event = events.gaussian(np.linspace(1.5, 6.0, 300), np.linspace(0.01, 0.05, 300))
    monkeypatch.setattr(schedule_compression, "COARSE", 300)
    exact = accountants.profile(event).epsilon(1e-6)
    for most in (10, 50, 200):
        monkeypatch.setattr(schedule_compression, "COARSE", most)
        assert exact * (1 - 1e-4) <= accountants.profile(event).epsilon(1e-6) <= exact * (1 + 8 / most)


@pytest.mark.parametrize("neighbours", events.NEIGHBOURS)
def test_chords_only_raise_the_price(monkeypatch, neighbours):
    """Second order in the spacing: knots ten times wider cost about a hundred times more, and never less."""
    event = events.gaussian(np.linspace(1.5, 6.0, 200), 0.02)
    prices = {}
    for spacing in (1e-9, 0.05, 0.5):
        monkeypatch.setattr(schedule_compression, "SPACING", spacing)
        prices[spacing] = accountants.profile(event, neighbours).epsilon(1e-6)
    exact = prices[1e-9]  # every step is its own knot
    assert exact * (1 - 1e-4) <= prices[0.05] <= exact * 1.002
    assert exact * 1.001 <= prices[0.5] <= exact * 1.1


def test_the_profile_is_convex_in_the_total_variation_distance():
    """What chords rest on; the proof is in kinds.py. Second differences over a grid of distances, for many epsilons."""
    from scipy.special import log_ndtr

    def gauss(m, epsilon):
        return np.exp(log_ndtr(-epsilon / m + m / 2)) - np.exp(epsilon + log_ndtr(-epsilon / m - m / 2))

    def replace(m, q, epsilon):
        a = math.exp(epsilon)
        t = (epsilon / 2 + np.arcsinh((1 - q) * math.sinh(epsilon / 2) / (q * np.exp(-(m**2) / 2)))) / m
        return q * norm.sf(t - m) - (a - 1) * (1 - q) * norm.sf(t) - a * q * norm.sf(t + m)

    v = np.linspace(0.01, 0.98, 300)
    for q in (1e-3, 0.1, 0.5, 0.999):
        for epsilon in np.linspace(0.0, 3.0, 40):
            inner = math.log1p(math.expm1(epsilon) / q)
            for values in (q * gauss(2 * norm.ppf((1 + v) / 2), inner), replace(norm.ppf((1 + v) / 2), q, epsilon)):
                assert np.diff(values, 2).min() >= -1e-13


def test_chords_in_the_moments_only_raise_the_price(monkeypatch):
    event = events.gaussian(np.linspace(1.5, 6.0, 300), 0.02)
    exact = math.fsum(
        moments.binomial_log_moment(9, np.array([s]), np.array([0.02]))[0] for s in np.linspace(1.5, 6.0, 300)
    )
    for knots in (4, 16, 64):
        monkeypatch.setattr(moments, "KNOTS", knots)
        chorded = moments.profile(event).log_moment(9)
        assert exact <= chorded * (1 + 1e-12)
        assert chorded <= exact * (1 + 20 / knots**2)


def test_the_gaussian_profile_is_never_rounded_down():
    mpmath.mp.dps = 50
    rng = np.random.default_rng(11)
    for mu, epsilon in zip(10 ** rng.uniform(-5, 1.3, 300), 10 ** rng.uniform(-6, 2, 300), strict=True):
        first, second = (mpmath.ncdf(-mpmath.mpf(epsilon) / mu + sign * mpmath.mpf(mu) / 2) for sign in (1, -1))
        exact = first - mpmath.exp(epsilon) * second
        if exact > mpmath.mpf(10) ** -290:
            assert exact <= gdp.delta_of_mu(mu, epsilon) <= exact * (1 + 1e-5)


def test_extreme_orders_of_replace_one_are_not_cut_short():
    """Near q = 1 the mass of the moment lies near (2 order - 1) m, and it is almost 2 order (order - 1) m^2."""
    found = moments.integrated_log_moment(200, 5.0, 1 - 1e-9, True)
    assert found == pytest.approx(2 * 200 * 199 / 25, rel=1e-3)


def test_pure_releases_of_any_size_have_a_price():
    for epsilon, repeats, delta in ((6.0, 1, 1e-5), (8.0, 2, 1e-6), (0.1, 10, 1e-9), (30.0, 3, 1e-12)):
        event = events.Composition(events=(events.Release(epsilon=epsilon),), repeats=repeats)
        found = accountants.profile(event).epsilon(delta)
        assert 0.9 * epsilon <= found <= repeats * epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "most"),
    [(2.3352e-5, 0.7207, 358_932, 1.3167e-9, 0.35), (1e-5, 0.7, 10**6, 1e-12, 1.0), (1e-6, 0.5, 10**5, 1e-8, 0.2)],
)
def test_rare_large_losses_stay_tight(q, sigma, steps, delta, most):
    assert accountants.profile(events.gaussian(sigma, q, steps)).epsilon(delta) <= most


def test_the_advantage_of_a_rarely_sampled_loud_step():
    assert accountants.profile(events.gaussian(0.04, 0.1, 1)).advantage() == pytest.approx(0.1, rel=1e-3)


def test_small_moments_keep_their_digits():
    """Order 3, q = 1e-8: 1 + 3 q^2 (e^(1/sigma^2) - 1) to first order, far below the rounding of 1."""
    found = moments.binomial_log_moment(3, np.array([5.0]), np.array([1e-8]))[0]
    assert found == pytest.approx(3e-16 * math.expm1(1 / 25), rel=1e-6)


def test_the_mu_of_a_large_pure_release():
    mpmath.mp.dps = 50
    mu = gdp.profile(events.Release(epsilon=36.69)).mu
    exact = 1 / (1 + mpmath.exp(mpmath.mpf("36.69")))  # the smaller tail, Phi(-mu / 2)
    assert float(mpmath.ncdf(-mpmath.mpf(mu) / 2) / exact) == pytest.approx(1.0, rel=1e-6)
