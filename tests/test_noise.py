"""The noise: its width, its keys, and the exact rounded Gaussian of the secure source."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from confide import Refused, noise

pytestmark = pytest.mark.optimised


def test_default_normals_have_double_precision():
    """Single-precision normals repeat after a few thousand draws and end at 5.4; these do neither."""
    with jax.enable_x64(True):
        z = np.asarray(noise.normals(jax.random.key(0), (2_000_000,)))
    assert z.dtype == np.float64
    assert np.unique(z).size == z.size
    assert stats.kstest(z[:200_000], "norm").pvalue > 1e-6
    single = np.asarray(jax.random.normal(jax.random.key(0), (2_000_000,), jnp.float32))
    assert np.unique(single).size < single.size  # the test would see it


def test_an_integer_key_counts_in_all_its_bits():
    low, high = noise.as_key(5), noise.as_key(2**40 + 5)
    assert not np.array_equal(jax.random.key_data(low), jax.random.key_data(high))
    assert np.array_equal(jax.random.key_data(noise.as_key(7)), jax.random.key_data(jax.random.key(7)))


def test_keys_come_from_the_operating_system_and_differ():
    keys = {tuple(np.asarray(jax.random.key_data(noise.as_key(None)))) for _ in range(50)}
    assert len(keys) == 50


@pytest.mark.parametrize("key", [-1, 2**64, 1.5, "secret", True, np.zeros(3, np.uint32), jax.random.key(0, impl="rbg")])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(Refused, match="key"):
        noise.as_key(key)


def exact(word, more):
    with mpmath.workdps(120):
        tail = (mpmath.mpf(((word & (2**63 - 1)) << 128) + more) + 0.5) / mpmath.mpf(2) ** 191
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - tail)
        magnitude = int(mpmath.floor(z * 2**24 + mpmath.mpf(1) / 2))
    return -magnitude if word >> 63 else magnitude


def boundary_words():
    """Words whose normal lies as close as 64 bits allow to where the rounding changes."""
    words = []
    with mpmath.workdps(60):
        for k in (0, 1, 5, 2**20, 2**24, 3 * 2**24, 6 * 2**24, 8 * 2**24):
            z = (mpmath.mpf(k) + mpmath.mpf(1) / 2) / 2**24
            rank = int(mpmath.floor(mpmath.erfc(z / mpmath.sqrt(2)) * 2**63))
            words += [max(0, rank + shift) for shift in (-2, -1, 0, 1, 2)]
    return words


def test_the_rounded_gaussian_is_exact():
    rng = np.random.default_rng(0)
    words = [*rng.integers(0, 2**64, 300, dtype=np.uint64).tolist(), *boundary_words(), 0, 1, 2, 2**63, 2**63 + 1]
    words += [2**63 - 1, 2**64 - 1]
    more = 12345678901234567890123456789
    found = noise.rounded_gaussian(np.array(words, np.uint64), lambda place: more)
    assert found.tolist() == [exact(word, more) for word in words]


def test_the_secure_source_is_gaussian_and_never_repeats():
    source = noise.SecureSource(b"k" * 32)
    units = source.units(0, 0, (200_000,)) / noise.GRID
    assert stats.kstest(units, "norm").pvalue > 1e-6
    assert abs(units.std() - 1) < 5 / np.sqrt(2 * units.size)
    again = noise.SecureSource(b"k" * 32)
    assert np.array_equal(again.units(0, 3, (5,)), source.units(0, 3, (5,)))
    streams = [source.words(p, c, b, 4).tobytes() for p in ("batches", "noise") for c in (0, 1, 11) for b in (0, 1, 11)]
    assert len(set(streams)) == len(streams)
    assert noise.SecureSource().key != noise.SecureSource().key
    uniform = source.uniform(0, 0, (100_000,))
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6


def test_secure_sums_are_whole_and_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    rows, units = rng.normal(size=(50, 7)).astype(np.float32), np.zeros(7, np.int64)
    with jax.enable_x64(True):
        forth = noise.added_securely(noise.whole(jnp.asarray(rows), 3.0), 3.0, jnp.asarray(units))
        back = noise.added_securely(noise.whole(jnp.asarray(rows[::-1]), 3.0), 3.0, jnp.asarray(units))
    assert np.array_equal(forth, back)
    grid = 3.0 / noise.GRID
    assert np.array_equal(np.round(np.asarray(forth) / grid) * grid, forth)
    np.testing.assert_allclose(forth, rows.sum(axis=0), atol=50 * grid)


def test_what_rounding_costs():
    """A record moves the rounded sum by at most clip + grid sqrt(d) / 2."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        d, scale = int(rng.integers(1, 40)), float(10 ** rng.uniform(-2, 8))
        row = rng.normal(size=d)
        row /= np.linalg.norm(row)
        grid = scale / noise.GRID
        moved = np.linalg.norm(np.round(row / grid) * grid)
        assert scale / moved >= noise.secure_multiplier(scale, d) * (1 - 1e-12) if moved else True
