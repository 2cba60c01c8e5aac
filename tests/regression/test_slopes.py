"""Slopes of every draw, which are no matrices: products and solutions are those of the matrices."""

import numpy as np
import pytest

from confide.inference.regression import slopes
from confide.inference.regression.slopes import Bend, Slopes

DRAWS, SIZE = 7, 5


def system(seed):
    """Slopes with a bend, weights, a precision and right sides."""
    generator = np.random.default_rng(seed)

    def positive():
        root = generator.normal(size=(SIZE, 2 * SIZE))
        return root @ root.T

    drawn = Slopes(positive(), generator.uniform(0.5, 1.5, (DRAWS, SIZE)))
    level = generator.uniform(0.5, 2.0, DRAWS)
    old = generator.normal(size=SIZE)
    bend = Bend(generator.normal(size=DRAWS), generator.normal(size=(DRAWS, SIZE)), 30.0 * level, old, np.ones(DRAWS))
    share = slopes._largest_share(drawn, level, bend)
    changed = Slopes(drawn.matrix, drawn.scales, level, bend._replace(share=share))
    return drawn, changed, positive(), positive(), generator.normal(size=(DRAWS, SIZE))


@pytest.mark.parametrize("seed", range(5))
def test_a_slope_is_a_matrix_of_at_least_its_least_share(seed):
    drawn, changed, _, _, vectors = system(seed)
    products, cut = changed.times(vectors), 0
    for place in range(DRAWS):
        matrix, first = changed.one(place), np.asarray(changed.level)[place] * drawn.one(place)
        np.testing.assert_allclose(products[place], matrix @ vectors[place], rtol=1e-9, atol=1e-9)
        least = np.linalg.eigvals(np.linalg.solve(first, matrix)).real.min()
        assert least > slopes.LEAST - 1e-6
        cut += changed.bend.share[place] < 1
    assert cut > 0  # the bend was too large for some


@pytest.mark.parametrize("tolerance", [slopes.TOLERANCE, 0.0])
@pytest.mark.parametrize("seed", range(5))
def test_systems_are_solved_together_or_one_by_one(seed, tolerance, monkeypatch):
    monkeypatch.setattr(slopes, "TOLERANCE", tolerance)
    for slope in system(seed)[:2]:
        _, _, weights, precision, right = system(seed)
        solved = slopes.solve(slope, weights, precision, right, np.linalg.inv(precision), np.zeros((DRAWS, SIZE)))
        for place in range(DRAWS):
            matrix = slope.one(place)
            expected = np.linalg.solve(matrix @ weights @ matrix + precision, right[place])
            np.testing.assert_allclose(solved[place], expected, rtol=1e-5, atol=1e-7)
