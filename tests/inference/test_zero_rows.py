"""A row of zeros is a record like any other: nothing hangs, is refused, or loses its gradient because one is there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import confide
from confide import models
from confide.inference.options import Options
from confide.inference.plans import posterior_sample
from confide.mechanism import noise
from confide.models.inputs import place_records

BUDGET = confide.Budget(epsilon=1.0, delta=1e-6)
GENERATOR = np.random.default_rng(0)
X = (0.7 * GENERATOR.uniform(-1, 1, (60, 2))).astype(np.float32)
LABELS = (X[:, 0] > X[:, 1]).astype(np.float32)
FAMILIES = {
    "logistic": (models.logistic_regression(2), LABELS),
    "linear": (models.linear_regression(2, noise_scale=0.3), 0.5 * LABELS),
    "poisson": (models.poisson_regression(2, largest_mean=20.0), 3 * LABELS),
    "negative binomial": (models.negative_binomial_regression(2), 3 * LABELS),
}


@pytest.mark.parametrize("clipping", [None, "plain"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_density_of_one_draw_and_its_gradient_are_finite(name, clipping):
    """With a row of zeros, and with places that hold no record, which are rows of zeros as well."""
    model, outcomes = FAMILIES[name]
    rows = X.copy()
    rows[7] = 0.0
    for present in (rows, X):
        records = place_records(model, (present, outcomes), 70)
        options = Options(clip=0.2, clipping=clipping)
        plan = posterior_sample.make_plan(
            model, records, BUDGET, confide.one_posterior_sample(), options, noise.as_key(0)
        )
        with jax.enable_x64(True):
            target = plan.job.target
            given = jax.tree.map(jnp.asarray, target.arrays(plan.data))
            density, gradient = jax.value_and_grad(target.log_density)(jnp.array([0.3, -0.2]), given)
        assert np.isfinite(density)
        assert np.all(np.isfinite(gradient))
        assert np.linalg.norm(gradient) > 0


@pytest.mark.filterwarnings("ignore::confide.ExactnessWarning")
@pytest.mark.parametrize("algorithm", [None, "nuts"])
def test_one_draw_of_a_table_with_a_row_of_zeros(algorithm):
    """It was still running after 45 seconds, with the budget charged, or was refused after the charge."""
    rows = X.copy()
    rows[0] = 0.0
    sampler = confide.one_posterior_sample(algorithm=algorithm, warmup=60, samples=100)
    found = confide.fit(models.logistic_regression(2), (rows, LABELS), BUDGET, sampler, verbose=False)
    assert np.all(np.isfinite(found.draws["weights"]))
