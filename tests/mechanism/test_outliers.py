"""One record far from all others: no more than the clip, and no other record is drowned by it."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import confide
from confide.inference import checkpoints
from confide.inference.exact import targets
from confide.inference.plans import unraveller
from confide.mechanism import noise, oracle
from confide.mechanism.clipping import clipped_sum
from confide.models import linear_regression, logistic_regression, negative_binomial_regression, poisson_regression


@pytest.mark.parametrize("outcome", [14.0, 1e6, 2.0**60, 1e30, 3e38])
@pytest.mark.parametrize(
    ("model", "clip"),
    [
        (poisson_regression(1, norm_bound=1.0, largest_mean=10.0), 10.0**0.5),
        (linear_regression(1, norm_bound=1.0), 65.0),
        (negative_binomial_regression(1, dispersion=0.2, norm_bound=1.0), 2.0),
    ],
    ids=["poisson", "linear", "negative binomial"],
)
def test_an_outlier_moves_the_log_density_by_no_more_than_the_clip(model, clip, outcome):
    others = np.ones((50, 1), np.float32), np.full(50, 2.0, np.float32)
    more = np.ones((51, 1), np.float32), np.append(others[1], np.float32(outcome))
    places = np.array([-2.0, -0.5, 0.0, 1e-3, 0.1, 1.0, 2.5, 9.0])
    with jax.enable_x64(True):
        target = targets.convex(model, 1.0, clip)
        heights = [
            np.array([float(target.log_density(jnp.array([w]), target.arrays(data))) for w in places])
            for data in (others, more)
        ]
    slopes = (np.diff(heights[1]) - np.diff(heights[0])) / np.diff(places)
    assert np.all(np.abs(slopes) <= clip * (1 + 1e-9))


def test_a_tiny_row_with_a_huge_outcome_is_cut_even_to_a_huge_clip():
    data, clip = (np.full((8, 1), 1e-31, np.float32), np.full(8, 3e38, np.float32)), 1e9
    model = linear_regression(1, noise_scale=1e-5, norm_bound=1.0)
    _, unravel = unraveller(model, data, noise.as_key(0))
    total = clipped_sum(model, clip, unravel, 8)
    with jax.enable_x64(True):
        arrays = tuple(map(jnp.asarray, data))
        one = total.batch(arrays, total.residual_threshold(arrays), jnp.arange(8))._replace(real=jnp.arange(8) < 1)
        assert abs(float(oracle.sum_in_double(total, jnp.zeros(1), one)[0])) <= clip


@pytest.mark.long
def test_a_hybrid_run_that_begins_anew_begins_where_it_began(tmp_path, monkeypatch):
    """Other starts under the same noise would be a second release, for one charge."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2000, 2)).astype(np.float32)
    place, first, write = tmp_path / "run", tmp_path / "first", checkpoints.write

    def kept(path, checkpoint):
        write(path, checkpoint)
        if not first.exists():
            shutil.copy2(path, first)

    monkeypatch.setattr(checkpoints, "write", kept)

    def fitted():
        return confide.fit(
            logistic_regression(2, norm_bound=1.0),
            (x, (x[:, 0] > 0).astype(np.float32)),
            confide.Budget(epsilon=1.0, delta=1e-5),
            sampler=confide.hybrid(confide.sgld()),
            steps=40,
            batch_size=2000,
            chains=2,
            draws=4,
            checkpoint=place,
            verbose=False,
            progress=False,
        )

    whole = fitted()
    shutil.copy2(first, place)
    np.testing.assert_array_equal(whole.draws["weights"], fitted().draws["weights"])
