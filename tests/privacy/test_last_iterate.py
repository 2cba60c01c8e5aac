"""The theory of the last iterate: identities, goldens, and the general form against exact rational arithmetic."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import confide
from confide.privacy.accountants import gdp, last_iterate
from confide.privacy.events import LastIterates
from confide.privacy.last_iterate import hull_mu, last_iterate_mu
from confide.validation import Refused
from helpers.densities import delta, last_density

N = 32_561  # records of Adult
SCHEDULES = {
    "equal": np.full(60, 0.05),
    "falling": 0.3 / np.arange(1, 61) ** (1 / 3),
    "rising": np.linspace(1e-4, 0.4, 60),
    "random": np.random.default_rng(0).uniform(0, 0.4, 60),
    "one forgets all": np.array([0.1, 0.5, 0.02, 0.3]),
}


def adult(steps):
    return LastIterates(
        step_sizes=1 / (1 + N / 4), releases=(steps,), strong_convexity=1.0, smoothness=1 + N / 4, gradient_bound=1.0
    )


class TestIdentities:
    def test_one_step_is_the_gaussian_mechanism(self):
        assert hull_mu(0.3, 2.0, 8.0) == 0.25
        assert last_iterate_mu(0.02, 3.0, 5.0, 2.0) == pytest.approx(5 * 0.02 / math.sqrt(2 * 0.02 * 2))

    @pytest.mark.parametrize("sizes", SCHEDULES.values(), ids=SCHEDULES)
    def test_the_closed_form_is_the_hull_and_below_composition(self, sizes):
        closed = last_iterate_mu(sizes, 2.0, 3.0, 0.7)
        assert closed == pytest.approx(hull_mu(1 - 2 * sizes, 3 * sizes, np.sqrt(1.4 * sizes)), rel=1e-11)
        composed = math.sqrt(math.fsum((3 * sizes) ** 2 / (1.4 * sizes)))
        assert closed < composed
        assert closed < 3 / math.sqrt(2.0 * 0.7) * math.sqrt(1 / (1 - sizes.max()))  # an exact sample, steps -> 0
        assert last_iterate_mu(sizes, 0.0, 3.0, 0.7) == pytest.approx(composed)
        assert last_iterate_mu(sizes, 1e-9, 3.0, 0.7) == pytest.approx(composed, rel=1e-7)

    @pytest.mark.parametrize("time", [1e-3, 0.1, 1.0, 3.0, 40.0])
    def test_small_steps_spend_diffusion_time_until_an_exact_sample(self, time):
        expected = 3 / math.sqrt(1.5 * 0.4) * math.sqrt(math.tanh(1.5 * time / 2))
        assert last_iterate_mu(np.full(20_000, time / 20_000), 1.5, 3.0, 0.4) == pytest.approx(expected, rel=2e-3)
        assert expected <= 3 / math.sqrt(1.5 * 0.4)

    @pytest.mark.parametrize(("c", "steps"), [(0.9, 1), (0.9, 7), (0.5, 300), (0.999, 50)])
    def test_noisy_gradient_descent(self, c, steps):
        clip, n, sigma, size = 2.0, 50, 0.3, 0.1
        expected = clip / (n * sigma) * math.sqrt((1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c))
        found = hull_mu(c, [size * clip / n] * steps, [size * sigma] * steps)
        assert found == pytest.approx(expected, rel=1e-10)

    @pytest.mark.parametrize(("steps", "epsilon", "composed"), [(10_000, 3.10, 3.31), (100_000, 4.377, 13.06)])
    def test_goldens_on_adult(self, steps, epsilon, composed):
        assert last_iterate.epsilon(adult(steps), 1e-5) == pytest.approx(epsilon, abs=0.006)
        every = last_iterate_mu(np.full(steps, 1 / (1 + N / 4)), 0.0, 1.0)
        assert confide.gdp_epsilon(every, 1e-5) == pytest.approx(composed, abs=0.006)

    @pytest.mark.parametrize(
        ("epsilon", "mu"), [(0.05, 0.01731), (0.1, 0.03252), (0.5, 0.14221), (1.0, 0.26805), (2.0, 0.50155)]
    )
    def test_goldens_of_mu(self, epsilon, mu):
        assert confide.gdp_mu(epsilon, 1e-5) == pytest.approx(mu, abs=6e-6)
        assert confide.gdp_epsilon(confide.gdp_mu(epsilon, 1e-5), 1e-5) == pytest.approx(epsilon, rel=1e-9)
        assert gdp.delta_of_mu(confide.gdp_mu(epsilon, 1e-5), epsilon) <= 1e-5

    def test_further_draws_add_their_own_diffusion_time(self):
        size, convexity, temperature = 1e-4, 2.0, 0.5
        releases = (4000, 4500, 12_000)
        run = LastIterates(
            step_sizes=size,
            releases=releases,
            strong_convexity=convexity,
            smoothness=50.0,
            gradient_bound=1.5,
            temperature=temperature,
        )
        times = np.diff((0, *releases)) * size
        expected = 1.5**2 / (convexity * temperature) * np.tanh(convexity * times / 2).sum()
        assert run.parts("add-remove").squared_mu == pytest.approx(expected, rel=1e-3)
        assert run.parts("replace-one").squared_mu == pytest.approx(4 * expected, rel=1e-3)

    def test_rounding_is_never_in_the_attacker_s_favour(self):
        mpmath.mp.dps = 40
        for seed in range(20):
            sizes = 10 ** np.random.default_rng(seed).uniform(-6, 0, 200) / 3
            later, spread = mpmath.mpf(1), mpmath.mpf(0)
            for size in map(mpmath.mpf, sizes[::-1].tolist()):
                spread += later**2 * size
                later *= 1 - size * mpmath.mpf(1.7)
            exact = (1 - later) / (mpmath.mpf(1.7) * mpmath.sqrt(2 * spread))
            assert exact <= last_iterate_mu(sizes, 1.7, 1.0) <= exact * (1 + 1e-12)


def cheapest(contractions, shifts, noises):
    """mu^2 by trying every set of steps after which nothing is left to hide, in rational numbers.

    Minimise sum (a_k / nu_k)^2 over z_k = c_k z_(k-1) + s_k - a_k >= 0 with z_t = 0. Between two zeros of z the best
    a_k is proportional to nu_k^2 times the contractions still to come. Of the sets that keep z_k >= 0, the cheapest.
    """
    c, s, nu = ([Fraction(float(value)) for value in column] for column in (contractions, shifts, noises))
    best = None
    for ends in itertools.product((False, True), repeat=len(c) - 1):
        cost, first, feasible = Fraction(0), 0, True
        for end in [*(k + 1 for k, ended in enumerate(ends) if ended), len(c)]:
            still = [Fraction(1)]
            for factor in c[end - 1 : first : -1]:
                still.insert(0, still[0] * factor)
            height = sum(d * m for d, m in zip(still, s[first:end], strict=True))
            width = sum((d * n) ** 2 for d, n in zip(still, nu[first:end], strict=True))
            cost, left = cost + height**2 / width, Fraction(0)
            for k in range(first, end):
                left = c[k] * left + s[k] - height / width * still[k - first] * nu[k] ** 2
                feasible &= left >= 0
            first = end
        if feasible and (best is None or cost < best):
            best = cost
    assert best is not None
    return best


def is_the_cheapest(contractions, shifts, noises, slack=1e-10):
    mpmath.mp.dps = 40
    exact = cheapest(contractions, shifts, noises)
    mu = float(mpmath.sqrt(mpmath.mpf(exact.numerator) / exact.denominator))
    return mu * (1 - 3e-16) <= hull_mu(contractions, shifts, noises) <= mu * (1 + slack)


steps = st.tuples(
    st.sampled_from([0.0, 1.0]) | st.floats(0.01, 2.5),
    st.just(0.0) | st.floats(1e-3, 10),
    st.floats(-3, 3).map(lambda power: 10.0**power),
)


class TestHull:
    @settings(max_examples=50)
    @given(st.lists(steps, min_size=1, max_size=6))
    def test_no_choice_of_what_to_hide_is_cheaper(self, rows):
        assert is_the_cheapest(*zip(*rows, strict=True))

    @pytest.mark.parametrize(
        ("contractions", "shifts", "noises"),
        [
            ([1, 1], [1e-115, 1e-110], [1e-110, 1e-110]),  # products of the two underflow
            ([1e-60] * 5, [1e-90, 1e-60, 1e-30, 1.0, 1.0], [1e-60, 1.0, 1e-60, 1.0, 1e30]),
            ([1e60] * 7, [1.0] * 7, [1.0] * 7),
            ([1e60] * 7, [1.0, *[0.0] * 6], [1.0] * 7),
            ([1, *[1e-99] * 4, *[1e99] * 3], [1.0, *[0.0] * 6, 1e-9], [1.0] * 8),
            ([1e-200] * 4, [1.0] * 4, [1e-100, 1e100, 1e-100, 1.0]),
        ],
    )
    def test_products_that_vanish_or_overflow(self, contractions, shifts, noises):
        assert is_the_cheapest(contractions, shifts, noises)

    @pytest.mark.parametrize("seed", range(4))
    def test_a_general_solver_finds_nothing_cheaper(self, seed):
        rng = np.random.default_rng(seed)
        c, s, nu = rng.uniform(0.2, 1.2, 12), rng.uniform(0, 1, 12), 10 ** rng.uniform(-0.5, 0.5, 12)

        def left(a):
            z = [0.0]
            for k in range(12):
                z.append(c[k] * z[-1] + s[k] - a[k])
            return np.array(z[1:])

        solved = minimize(
            lambda a: ((a / nu) ** 2).sum(),
            s,
            jac=lambda a: 2 * a / nu**2,
            constraints=[
                {"type": "ineq", "fun": lambda a: left(a)[:-1]},
                {"type": "eq", "fun": lambda a: left(a)[-1:]},
            ],
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert math.sqrt(solved.fun) == pytest.approx(hull_mu(c, s, nu), rel=1e-5)

    @settings(max_examples=30)
    @given(st.lists(steps, min_size=2, max_size=30), st.data())
    def test_more_noise_never_costs_more_and_more_shift_never_less(self, rows, data):
        k = data.draw(st.integers(0, len(rows) - 1))
        factor = data.draw(st.floats(1.0, 10))
        c, s, nu = (np.array(column) for column in zip(*rows, strict=True))
        mu, larger = hull_mu(c, s, nu), np.where(np.arange(len(c)) == k, factor, 1.0)
        assert hull_mu(c, s, nu * larger) <= mu * (1 + 1e-11)
        assert hull_mu(c, s * larger, nu) >= mu * (1 - 1e-11)
        assert hull_mu(c * larger, s, nu) >= mu * (1 - 1e-11)
        assert mu <= math.sqrt(((s / nu) ** 2).sum()) * (1 + 1e-11)
        assert hull_mu(c, 7 * s, 7 * nu) == pytest.approx(mu, rel=1e-11)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([0.5], [1.0], [0.0]), "noises has a zero"),
            (([0.5, 0.5], [1.0] * 3, 1.0), "differ in length"),
            (([-0.5], [1.0], [1.0]), "contractions has a value that is negative"),
            (([0.5], [math.inf], [1.0]), "shifts has a value that is negative or not finite"),
            (([[0.5]], [1.0], [1.0]), "shape"),
            ((["a"], [1.0], [1.0]), "contractions are not numbers"),
        ],
    )
    def test_nonsense_is_refused(self, arguments, message):
        with pytest.raises(Refused, match=message):
            hull_mu(*arguments)

    @pytest.mark.parametrize("arguments", [((0.6,), 2.0, 1.0), ((0.1, 0.0), 2.0, 1.0), ((0.1,), 2.0, 1.0, 0.0)])
    def test_steps_that_do_not_contract_are_refused(self, arguments):
        with pytest.raises(Refused):
            last_iterate_mu(*arguments)


def crooked(rng, contraction, edges):
    """A random function of that Lipschitz constant, up and down."""
    slopes = contraction * rng.choice([-1.0, -0.5, 0.0, 1.0, 1.0, 1.0], edges.size - 1)
    values = np.concatenate([[0.0], np.cumsum(slopes * np.diff(edges))])
    values -= np.interp(0.0, edges, values)
    return lambda x: np.interp(x, edges, values)


def worst_ratio(seed):
    """True over claimed delta of a random chain of crooked maps and a neighbour that jumps as it likes."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, 6))
    c, s, nu = rng.uniform(0.2, 1.3, steps), rng.uniform(0, 1, steps), rng.uniform(0.4, 1.5, steps)
    edges, end = np.linspace(-8, 8, 13), np.linspace(-14, 14, 2001)
    maps, broken = [], []
    for k in range(steps):
        smooth = crooked(rng, c[k], edges)
        signs = s[k] * rng.choice([-1.0, 1.0, 1.0], edges.size + 1)
        maps.append(smooth)
        broken.append(lambda x, smooth=smooth, signs=signs: smooth(x) + signs[np.searchsorted(edges, x)])
    p, q = (last_density(chain, nu, 0.0, end) for chain in (maps, broken))
    mu, cell = hull_mu(c, s, nu), end[1] - end[0]
    return max(delta(p, q, k * mu, cell) / gdp.delta_of_mu(mu, k * mu) for k in (0.0, 0.5, 1.0, 2.0, 3.0))


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.long)])
def test_crooked_maps_and_broken_neighbours_stay_below_the_hull(seeds):
    """Any Lipschitz map, and a neighbour that is none, within the shift of it: one Lipschitz map is enough."""
    ratios = [worst_ratio(seed) for seed in seeds]
    assert max(ratios) <= 1.001
    assert max(ratios) > 0.5  # some come near
