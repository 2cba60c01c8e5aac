"""The noise: its keys, its width, the grid it lies on, and what rounding to it costs. What is drawn: test_rounded."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import confide
from confide import Refused
from confide.mechanism import exact_rounding, grid, noise

pytestmark = pytest.mark.optimised


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


@pytest.mark.parametrize("source", [jax.random.key(0), noise.SecureSource(b"k" * 32)], ids=["default", "secure"])
def test_units_are_gaussian_and_never_repeat(source):
    """Kolmogorov-Smirnov, wrong once in 1e6 by chance; a scale that is off by 4% is seen."""
    with jax.enable_x64(True):
        units = np.asarray(noise.draw_units(source, 0, 0, (400, 500))).ravel()
        streams = [
            np.asarray(noise.draw_units(source, chain, block, (4,), purpose)).tobytes()
            for purpose in ("noise", "fisher")
            for chain in (0, 1, 11)
            for block in (0, 1, 11)
        ]
        again = np.asarray(noise.draw_units(source, 0, 0, (400, 500))).ravel()
    assert np.array_equal(units, np.round(units))
    assert np.array_equal(units, again)
    assert stats.kstest(units / noise.GRID, "norm").pvalue > 1e-6
    assert stats.kstest(units / noise.GRID * 1.04, "norm").pvalue < 1e-6
    assert len(set(streams)) == len(streams)


def test_secure_keys_come_from_the_operating_system():
    assert len({noise.SecureSource().key for _ in range(50)}) == 50


def test_undecided_numbers_are_finished_where_they_are(monkeypatch):
    """All numbers drawn as if none had been decided at once: the same numbers, bit for bit, where 64 bits tell."""
    with jax.enable_x64(True):
        for draw in (
            lambda: noise.draw_units(jax.random.key(3), 0, 0, (20, 6)),
            lambda: noise.draw_gaps(jax.random.key(3), 0, 0, (20, 6), 0.01, 1000),
        ):
            honest = np.asarray(draw())
            with monkeypatch.context() as patch:
                for name in ("gaussian", "gap"):
                    rule = getattr(exact_rounding, name)
                    patch.setattr(
                        exact_rounding, name, lambda w, *s, rule=rule: (0 * rule(w, *s)[0], jnp.ones(w.shape, bool))
                    )
                found = np.asarray(draw())
            assert np.array_equal(found, honest)


def test_what_is_released_lies_on_the_grid():
    """Noisy sums and points are whole numbers of grid steps, and what was rounded is within a step of what it was."""
    rng = np.random.default_rng(0)
    total, scale = rng.normal(size=50) * 1e3, 0.37
    step = scale / noise.GRID
    with jax.enable_x64(True):
        units = noise.draw_units(jax.random.key(1), 0, 0, (50,))
        whole = grid.on_grid(jnp.asarray(total), scale)
        noisy = np.asarray(noise.add_noise(whole, scale, units))
        clean = np.asarray(noise.add_noise(whole, scale, 0 * units))
    assert np.array_equal(np.round(noisy / step) * step, noisy)
    assert np.max(np.abs(clean - total)) <= step
    found = noise.around(total, scale, jax.random.key(1))
    assert np.array_equal(np.round(found / step) * step, found)
    assert 0.5 < np.std(found - total) / scale < 1.5
    far = noise.around(np.array([1.0]), 1e-9, jax.random.key(1), spherical=True)  # 2^56 steps: counted in fractions
    assert abs(far[0] - 1) < 1e-7


def test_secure_sums_are_whole_and_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    rows, units = rng.normal(size=(50, 7)).astype(np.float32), np.zeros(7, np.int64)
    with jax.enable_x64(True):
        forth = noise.add_noise(grid.whole(jnp.asarray(rows), 3.0), 3.0, jnp.asarray(units))
        back = noise.add_noise(grid.whole(jnp.asarray(rows[::-1]), 3.0), 3.0, jnp.asarray(units))
    assert np.array_equal(forth, back)
    step = 3.0 / noise.GRID
    assert np.array_equal(np.round(np.asarray(forth) / step) * step, forth)
    np.testing.assert_allclose(forth, rows.sum(axis=0), atol=50 * step)


@pytest.mark.parametrize("secure", [False, True])
def test_what_rounding_costs(secure):
    """Sums that differ by one record of norm 1, in the worst places: by no more than is priced, and nearly by that."""
    rng, worst = np.random.default_rng(1), 0.0
    rounding = noise.CONTRIBUTIONS if secure else noise.SUMS
    with jax.enable_x64(True):
        for _ in range(300):
            d, scale = int(rng.choice([1, 3, 39])), float(10 ** rng.uniform(-2, 8))
            step = scale / noise.GRID
            row = rng.normal(size=d)
            row /= np.linalg.norm(row)
            if secure:
                moved = np.asarray(grid.whole(jnp.asarray(row)[None], scale), object)
            else:
                size = 10 ** rng.uniform(0, 16.5)
                rest = (np.round(rng.uniform(-size, size, d)) + 0.5 - 1e-3) * step  # most are about to be rounded up
                both = [np.asarray(grid.on_grid(jnp.asarray(total), scale), object) for total in (rest, rest + row)]
                moved = both[1] - both[0]
            length = math.sqrt(sum(int(m) ** 2 for m in moved)) * step
            assert scale / max(length, 1e-300) >= rounding.worth(scale, d) * (1 - 1e-12)
            worst = max(worst, (length - 1) / (scale * rounding.lost(d)))
    assert worst > 0.2  # the test can tell


def test_noise_that_its_own_grid_would_drown_is_refused():
    wanted = np.array([10.0, 2000.0])
    assert noise.SUMS.worth(noise.multiplier_needed(wanted, noise.SUMS.lost(100)), 100) == pytest.approx(
        wanted, rel=1e-12
    )
    scale = noise.wide(3.0, 0.1, 50)
    assert 0.1 / scale + noise.SUMS.lost(50) == pytest.approx(0.1 / 3.0, rel=1e-12)
    with pytest.raises(Refused, match=r"noise of 1e\+08 times what one record can move.*raise the budget"):
        noise.multiplier_needed(np.array([1e8]), noise.SUMS.lost(100))
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(300, 3)).astype(np.float32), np.ones(300, np.float32))
    with pytest.raises(Refused, match="its grid cannot count: raise the noise"):
        confide.fit(
            confide.models.logistic_regression(3),
            data,
            confide.Budget(epsilon=1e9, delta=1e-5),
            confide.dp_sgd(noise_multiplier=2e-6),
            steps=2,
            verbose=False,
        )
