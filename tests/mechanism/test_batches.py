"""Poisson batches: every record with probability q, independently; and what an overflowing buffer costs."""

import jax
import mpmath
import numpy as np
import pytest
from scipy import stats

from confide import Refused
from confide.mechanism import batches

pytestmark = [pytest.mark.optimised, pytest.mark.processor]


def drawn(n, q, steps, size=None, seed=0):
    with jax.enable_x64(True):
        return np.asarray(batches.draw_rows(jax.random.key(seed), 0, 0, (steps, size or n), q, n))


@pytest.mark.parametrize(("n", "q"), [(1, 0.3), (40, 0.05), (40, 0.9), (500, 0.01)])
def test_marginals_pairs_and_sizes_are_those_of_poisson_sampling(n, q):
    """Chi-square tests, each failing by chance once in 1e6."""
    steps = 20_000 if n <= 40 else 4_000
    rows = drawn(n, q, steps)
    chosen = np.zeros((steps, n + 1), bool)
    np.put_along_axis(chosen, rows, True, axis=1)
    chosen = chosen[:, :n]
    counts = chosen.sum(axis=0)
    statistic = np.sum((counts - steps * q) ** 2 / (steps * q * (1 - q)))
    assert stats.chi2.sf(statistic, n) > 1e-6
    assert stats.chi2.cdf(statistic, n) > 1e-6
    both = (chosen[:, : n - 1] & chosen[:, 1:]).sum(axis=0)
    if n > 1:
        spread = np.sqrt(steps * q**2 * (1 - q**2))
        assert np.max(np.abs(both - steps * q**2)) < 6.5 * spread + 6
    sizes = chosen.sum(axis=1)
    assert abs(sizes.mean() - n * q) < 5 * np.sqrt(n * q * (1 - q) / steps)
    assert abs(sizes.var() / (n * q * (1 - q)) - 1) < 0.2


def test_rows_rise_and_end_in_empty_places():
    rows = drawn(100, 0.1, 50, size=40)
    assert rows.shape == (50, 40)
    real = rows < 100
    assert np.all(np.diff(rows, axis=1)[real[:, 1:]] > 0)
    assert np.all(rows[~real] == 100)


def test_a_huge_table_does_not_overflow_the_integers():
    rows = drawn(1_000_000_000, 1e-7, 2000, size=200)
    assert rows.min() >= 0
    assert rows.max() == 1_000_000_000
    sizes = (rows < 1_000_000_000).sum(axis=1)
    assert abs(sizes.mean() - 100) < 5 * np.sqrt(100 / 2000)


@pytest.mark.parametrize(("n", "q", "size"), [(32_561, 256 / 32_561, 352), (50, 0.3, 30), (1000, 0.001, 12)])
def test_the_tail_against_an_exact_sum(n, q, size):
    with mpmath.workdps(40):
        exact = mpmath.fsum(
            mpmath.binomial(n, k) * mpmath.mpf(q) ** k * (1 - mpmath.mpf(q)) ** (n - k)
            for k in range(size + 1, min(n, size + 400) + 1)
        )
    assert batches.tail(n, q, size) == pytest.approx(float(exact), rel=1e-8)


def test_the_buffer_is_the_smallest_that_will_do():
    size = batches.buffer_size(32_561, 256 / 32_561, 1e-10)
    assert batches.tail(32_561, 256 / 32_561, size) <= 1e-10 < batches.tail(32_561, 256 / 32_561, size - 1)
    assert batches.buffer_size(10, 0.5, 1e-30) == 10
    assert batches.overflow(10, 0.5, 11, 1000) == 0.0
    assert batches.overflow(10, 0.5, 10, 1) == pytest.approx(0.5**10)  # no place free for one record more
    with pytest.raises(Refused, match="full batch"):
        batches.buffer_size(10, 1.0, 0.1)


def test_overflow_takes_a_small_share_of_delta():
    n, q, steps, delta = 32_561, 256 / 32_561, 10_000, 1e-5
    size = batches.fitting_buffer(n, q, steps, delta)
    assert 0 < batches.overflow(n, q, size, steps) <= batches.OVERFLOW_SHARE * delta
