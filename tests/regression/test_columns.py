"""Where columns are: tails that are seen and tails that are noise, and columns that cost nothing."""

import math

import numpy as np
import pytest

from confide.data.features import Feature
from confide.inference.regression import columns, expectation
from confide.inference.regression.columns import _describe_tail, fit_falling
from confide.inference.regression.declared import make_design
from confide.inference.regression.priors import StandardisedPrior
from helpers import tables_of_people as people

NUMBER, NOISE, FAR = 3400.0, 100.0, 100.0


@pytest.mark.parametrize("counts", [[44, -180, 262, -110], [-236, -158, 228, 22], [0, 0, 0, 240], [-300, 240, 0, 0]])
def test_noise_far_out_is_no_tail(counts):
    assert _describe_tail(np.array(counts, float), NOISE, NUMBER, FAR)[0] == 1.0


def test_a_tail_raises_the_variance_and_says_how_far_it_reaches():
    """100 of 3,400 records lie at about six spreads: the variance rises by their share times 5.6^2."""
    square, reach = _describe_tail(np.array([100.0, 3.0, 1.0, 0.0]), 2.0, NUMBER, FAR)
    assert square == pytest.approx(1 + 96 / NUMBER * 5.6**2, rel=0.01)
    assert reach == 16.0


def test_a_tail_is_at_most_as_heavy_as_the_mean_absolute_deviation_allows():
    square, _ = _describe_tail(np.array([3000.0, 3000.0, 3000.0, 3000.0]), 2.0, NUMBER, FAR)
    starts = 5.6 * 2.0 ** np.arange(4)
    share = columns.HEAVIEST_TAIL / starts.sum()
    assert square == pytest.approx(1 + share * np.sum(starts**2), rel=0.01)


def test_a_falling_fit_is_the_nearest_sequence_that_does_not_rise():
    generator = np.random.default_rng(0)
    for _ in range(50):
        values = generator.normal(size=5)
        fitted, sizes = fit_falling(values)
        assert np.all(np.diff(fitted) <= 1e-12)
        assert math.isclose(fitted.sum(), values.sum(), abs_tol=1e-12)
        assert np.all(sizes >= 1)
        for other in np.sort(generator.normal(size=(200, 5)), axis=1)[:, ::-1]:
            assert np.sum((values - fitted) ** 2) <= np.sum((values - other) ** 2) + 1e-12


def queries_of_columns(known):
    """How many numbers each query about columns releases, by its name."""
    x, y = people.table("linear")
    sizes = {}

    def watch(name, query):
        if name.startswith(("columns", "tails")):
            sizes[name] = query.coordinates

    design = make_design("linear", tuple(known), (-1.0, 1.0), len(x))
    rows = x[:, : len(known)].astype(np.float64)
    generator = np.random.default_rng(0)
    expectation.simulate_run(design, StandardisedPrior(), rows, y.astype(np.float64), 1.0, generator, watch=watch)
    return sizes


def test_declared_ranges_and_indicators_are_not_bought_in_stages():
    """A number has a position and a spread in each of three stages, the outcome too; indicators have a rate once."""
    bought = queries_of_columns([Feature("numeric"), Feature("numeric")])
    declared = queries_of_columns([Feature("numeric"), Feature("numeric", typical=(-0.4, 0.4))])
    indicator = queries_of_columns([Feature("numeric"), Feature("indicator")])
    assert [bought[f"columns {stage}"] for stage in range(3)] == [6, 6, 6]
    assert [declared[f"columns {stage}"] for stage in range(3)] == [4, 4, 4]
    assert [indicator[f"columns {stage}"] for stage in range(3)] == [5, 4, 4]
