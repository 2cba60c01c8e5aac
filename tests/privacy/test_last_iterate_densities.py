"""Langevin's last iterate against exact densities: real neighbours in one dimension are never told apart any better."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from confide import accountants
from confide.mechanism.clipping import clipped_sum
from confide.models import (
    convexity,
    linear_regression,
    logistic_regression,
    negative_binomial_regression,
    poisson_regression,
    softmax_regression,
)
from confide.privacy.accountants import last_iterate
from confide.privacy.events import GaussianRelease, LastIterates
from confide.privacy.last_iterate import last_iterate_mu
from confide.validation import Refused
from helpers.densities import delta, gradient, kernel, langevin, last_density

RNG = np.random.default_rng(5)
MIXED = [(x, float(label)) for x, label in zip(RNG.uniform(-1, 1, 6), RNG.integers(0, 2, 6), strict=True)]
ONE_SIDED = [(1.0, 0.0)] * 12  # the extra record contradicts all others
FAINT = [(0.05, 1.0)]  # leaves all to the extra record
MULTIPLES = (0.0, 0.3, 1.0, 2.0, 3.0, 4.0)  # of mu: epsilons from the middle to far out


def run_of(records, sizes, convex, temperature, clip, releases=None):
    """What is claimed: smoothness from the records of one of the neighbours alone."""
    return LastIterates(
        step_sizes=sizes,
        releases=releases or (len(sizes),),
        strong_convexity=convex,
        smoothness=convex + sum(x * x for x, _ in records) / 4,
        gradient_bound=min(1.0, clip),
        temperature=temperature,
    )


def attained(run, neighbours, p, q, cell):
    """The true delta over the claimed one, at epsilons from the middle to far out."""
    profile = accountants.profile(run, neighbours)
    epsilons = [multiple * math.sqrt(run.parts(neighbours).squared_mu) for multiple in MULTIPLES]
    return np.array([delta(p, q, epsilon, cell) / profile.delta(epsilon) for epsilon in epsilons])


def densities_of(datasets, sizes, convex, temperature, clip, start=0.0):
    spread = math.sqrt(2 * temperature * max(1 / convex, sizes.max()))
    end = np.linspace(-1, 1, 2401) * (7 * spread + max(abs(start), 1.0))
    noises = np.sqrt(2 * sizes * temperature)
    chains = [langevin(gradient(records, clip), convex, sizes) for records in datasets]
    return [last_density(chain, noises, start, end) for chain in chains], end[1] - end[0]


def falling(first, steps):
    return first / np.arange(1, steps + 1) ** (1 / 3)


def longest(records, convex):
    return 2 / (2 * convex + sum(x * x for x, _ in records) / 4)


LOUD = (1.0, 1.0)
CASES = {  # records, replaced by or None, sizes, convexity, temperature, clip, start
    "longest steps": (MIXED, None, np.full(12, longest(MIXED, 1.0)), 1.0, 1.0, math.inf, 0.0),
    "one step": (MIXED, None, np.array([0.5]), 1.0, 1.0, math.inf, 0.0),
    "falling steps": (MIXED, None, falling(0.6, 15), 1.0, 1.0, math.inf, 0.0),
    "weak prior": (MIXED, None, falling(1.0, 20), 0.1, 1.0, math.inf, -4.0),
    "cold": (MIXED, None, np.full(15, 0.2), 2.0, 0.05, math.inf, 0.0),
    "against all others": (ONE_SIDED, None, np.full(20, longest(ONE_SIDED, 1.0)), 1.0, 1.0, math.inf, 0.0),
    "from afar": (ONE_SIDED, None, np.full(4, longest(ONE_SIDED, 1.0)), 1.0, 1.0, math.inf, -9.0),
    "clipped": (FAINT, None, np.full(12, 0.3), 1.0, 0.1, 0.1, 0.0),
    "clipped, falling": (FAINT, None, falling(0.9, 12), 1.0, 0.1, 0.1, 0.0),
    "clipped, many": (MIXED, None, np.full(12, 0.5), 1.0, 0.3, 0.2, 0.0),
    "replaced": (MIXED, (1.0, 0.0), np.full(12, 0.5), 1.0, 1.0, math.inf, 0.0),
    "replaced, weak prior": (MIXED, (-0.3, 1.0), falling(0.8, 12), 0.2, 1.0, math.inf, 3.0),
    "replaced, clipped": (FAINT, (1.0, 0.0), np.full(12, 0.3), 1.0, 0.1, 0.1, 0.0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_real_neighbours_are_never_told_apart_better_than_claimed(case):
    records, other, sizes, convex, temperature, clip, start = case
    neighbours = "add-remove" if other is None else "replace-one"
    datasets = [[*records, LOUD], records if other is None else [*records, other]]
    densities, cell = densities_of(datasets, sizes, convex, temperature, clip, start)
    for density in densities:
        assert density.sum() * cell == pytest.approx(1.0, abs=1e-6)
    smaller = datasets[1]
    ratios = attained(run_of(smaller, sizes, convex, temperature, clip), neighbours, *densities, cell)
    assert np.all(ratios <= 1.0005)
    if records is FAINT:  # the residual stays at the clip where the parameter is: nearly the worst case
        assert ratios[0] > 0.99
    halved = LastIterates(**(vars(run_of(smaller, sizes, convex, temperature, clip)) | {"gradient_bound": 0.05}))
    if records is FAINT:  # and half of the claim would be refuted
        assert np.all(attained(halved, neighbours, *densities, cell) > 1.5)


@pytest.mark.parametrize("sizes", [np.full(9, 0.4), falling(1.0, 10), np.linspace(0.05, 0.8, 8)])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_a_record_that_always_pulls_attains_the_claim(sizes, neighbours):
    """A quadratic potential and a record of constant gradient: no bound on the last iterate can be smaller."""
    pull, convex, temperature = 0.7, 1.0, 0.5
    other = 0.0 if neighbours == "add-remove" else -pull
    slopes = [lambda theta, value=value: np.full_like(theta, value) for value in (pull, other)]
    end, noises = np.linspace(-9, 9, 4001), np.sqrt(2 * sizes * temperature)
    densities = [last_density(langevin(slope, convex, sizes), noises, 0.0, end) for slope in slopes]
    run = LastIterates(
        step_sizes=sizes,
        releases=(len(sizes),),
        strong_convexity=convex,
        smoothness=convex,
        gradient_bound=pull,
        temperature=temperature,
    )
    ratios = attained(run, neighbours, *densities, end[1] - end[0])
    assert np.all(np.abs(ratios - 1) < 1e-3)


@pytest.mark.parametrize("clip", [0.15, math.inf])
def test_two_released_draws(clip):
    """The joint density of both, in the plane; the second stretch starts where the first draw says."""
    sizes, convex, temperature = falling(0.7, 9), 1.0, 0.1
    first, end = 4, np.linspace(-2.6, 2.6, 401)
    noises, joint = np.sqrt(2 * sizes * temperature), []
    for records in ([*FAINT, LOUD], FAINT):
        maps = langevin(gradient(records, clip), convex, sizes)
        opening = last_density(maps[:first], noises[:first], 0.0, end)
        joint.append(kernel(maps[first:], noises[first:], end, end) * opening)
    cell = (end[1] - end[0]) ** 2
    run = run_of(FAINT, sizes, convex, temperature, clip, (first, len(sizes)))
    ratios = attained(run, "add-remove", *joint, cell)
    assert joint[0].sum() * cell == pytest.approx(1.0, abs=1e-6)
    assert np.all(ratios <= 1.002)
    if clip < 1:
        assert ratios[0] > 0.97
        assert np.all(attained(run_of(FAINT, sizes, convex, temperature, clip), "add-remove", *joint, cell) > 1.1)


POINTS = np.random.default_rng(2).normal(size=(400, 2, 3)) * np.geomspace(0.03, 20, 400)[:, None, None]
MODELS = {
    "logistic": (logistic_regression(3, norm_bound=1.0), None, [0.0, 1.0]),
    "logistic clipped": (logistic_regression(3, norm_bound=2.0), 0.3, [0.0, 1.0]),
    "linear": (linear_regression(3, norm_bound=1.5, noise_scale=0.5), 0.7, [-3.0, 0.4]),
    "poisson": (poisson_regression(3, norm_bound=1.0, largest_mean=6.0), 2.0, [0.0, 4.0]),
    "negative binomial": (negative_binomial_regression(3, dispersion=0.5, norm_bound=1.0), 2.0, [0.0, 4.0]),
    "softmax": (softmax_regression(1, 3, norm_bound=1.3), None, [0.0, 2.0]),
}


def gradients(model, clip, label, points=POINTS):
    """The library's own gradient sum of one record of the largest norm, at both ends of every pair of points."""
    dimension, bound = model.settings["dimension"], model.linear.norm_bound
    x = np.full((8, dimension), bound / math.sqrt(dimension) * (1 - 1e-7), np.float32)
    y = np.full(8, label, np.float32)
    _, unravel = ravel_pytree(model.start(jax.random.key(0), (x[0], y[0])))
    summed = clipped_sum(model, math.inf if clip is None else clip, unravel, 8)

    @jax.jit
    def at(points):
        data = (jnp.asarray(x), jnp.asarray(y))
        batch = summed.batch(
            data, summed.residual_threshold(data), jnp.array([0, *[9] * 7])
        )  # one record, and empty places
        return jax.vmap(lambda point: summed(point, batch).total)(points)

    return np.asarray(at(jnp.asarray(points.reshape(-1, 3), jnp.float32)), float).reshape(-1, 2, 3)


@pytest.mark.parametrize(("model", "clip", "labels"), MODELS.values(), ids=MODELS)
def test_the_shape_of_a_model_holds_for_its_gradients(model, clip, labels):
    """Bounded, and for any two points (g(a) - g(b)) (a - b) >= |g(a) - g(b)|^2 / smoothness: convex and smooth."""
    shape = convexity.shape(model, clip)
    apart = (POINTS[:, 0] - POINTS[:, 1]).astype(np.float32)
    steepest, most = 0.0, 0.0
    for label in labels:
        found = gradients(model, clip, label)
        steepest = max(steepest, np.linalg.norm(found, axis=-1).max())
        difference = found[:, 0] - found[:, 1]
        along, squared = (difference * apart).sum(-1), (difference**2).sum(-1)
        rounding = 2e-6 * shape.gradient_bound * np.linalg.norm(apart, axis=-1)
        assert np.all(along >= squared / shape.smoothness - rounding)
        most = max(most, np.max(squared / np.maximum(along, 1e-2 * shape.gradient_bound**2 / shape.smoothness)))
    assert 0.9 * shape.gradient_bound < steepest <= shape.gradient_bound
    assert most > 0.3 * shape.smoothness  # neither bound is loose by much


def test_clipped_softmax_moves_points_apart():
    """Why it is refused: its clipped gradient is not monotone, and no step, however small, contracts these points."""
    model, clip = softmax_regression(1, 3, norm_bound=1.0), 0.9
    centre, direction = np.array([-4.0, 0.0, 1.6]), np.array([0.803, -0.273, -0.530])
    points = np.array([[centre - 0.4 * direction, centre + 0.4 * direction]])
    apart = points[0, 0] - points[0, 1]
    for bound in (clip, None):
        found = gradients(model, bound, 0.0, points)[0]
        difference = found[0] - found[1]
        monotone = apart @ difference / (apart @ apart)
        assert monotone < -4e-3 if bound == clip else monotone > 0
        for size in (1e-3, 1e-2, 0.1):
            stretched = np.linalg.norm(apart - size * difference) / np.linalg.norm(apart)
            assert (stretched > 1) == (bound == clip)
    with pytest.raises(Refused, match="breaks its convexity"):
        convexity.shape(model, clip)


def test_a_step_that_is_too_long_expands_and_is_refused():
    slope, convex, smooth = gradient(ONE_SIDED), 1.0, 1.0 + len(ONE_SIDED) / 4
    ends = np.array([-0.01, 0.01])
    for factor in (1.0, 1.1):
        size = factor * 2 / (convex + smooth)
        (step,) = langevin(slope, convex, [size])
        contraction = abs(np.diff(step(ends))[0]) / 0.02
        assert (contraction <= 1 - size * convex + 1e-5) == (factor == 1.0)
    with pytest.raises(Refused, match="no longer contract"):
        run_of(ONE_SIDED, np.array([size]), convex, 1.0, math.inf)


def test_a_step_too_long_by_a_rounding_error_is_priced_as_less_convex():
    smooth, convex, steps = 2e5, 1.0, 200_000
    size = 2 / (smooth + convex) * (1 + 9e-13)
    run = LastIterates(
        step_sizes=size, releases=(steps,), strong_convexity=convex, smoothness=smooth, gradient_bound=1.0
    )
    contraction = size * smooth - 1  # the larger of |1 - h lambda| and |1 - h M|
    claimed = math.sqrt(run.parts("add-remove").squared_mu)
    sizes = np.full(steps, size)
    assert claimed == pytest.approx(last_iterate_mu(sizes, (1 - contraction) / size, 1.0), rel=1e-9)
    assert claimed > last_iterate_mu(sizes, convex, 1.0) * (1 + 1e-8)


def test_the_accountant_of_last_iterates_takes_nothing_else():
    run = run_of(MIXED, np.full(5, 0.1), 1.0, 1.0, math.inf)
    assert last_iterate.epsilon(run, 1e-5) == accountants.profile(run).epsilon(1e-5)
    assert last_iterate.profile(run).status == "exact"
    with pytest.raises(Refused, match="no release of last iterates"):
        last_iterate.profile(GaussianRelease(mu=1.0))
