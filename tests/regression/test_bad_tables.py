"""No table refuses a run or gives a number that is not finite."""

import itertools

import jax
import numpy as np
import pytest

from confide.inference.regression import convergence, draws, priors, program
from confide.inference.regression.design import Column, Design, divide, noise_multipliers
from confide.mechanism import record_sums
from confide.models.inputs import Records

BOUNDS = {"labels": (0.0, 1.0), "numbers": (-1.0, 1.0), "counts": (0.0, 40.0)}
COLUMNS = (Column("numeric"), Column("numeric"), Column("boolean"), Column("category", 0), Column("category", 0))


def bad_table(outcome_kind, shape, n=60):
    rng = np.random.default_rng(0)
    level = np.eye(2)[rng.integers(0, 2, n)]
    x = np.column_stack([rng.uniform(-1, 1, (n, 2)), np.where(rng.random(n) < 0.5, 1, -1), level])
    y = {"labels": rng.integers(0, 2, n), "numbers": 0.3 * rng.standard_normal(n), "counts": rng.poisson(1.0, n)}[
        outcome_kind
    ]
    y, present = y.astype(np.float32), np.ones(n, bool)
    if shape == "absent":
        x, y, present = np.zeros_like(x), np.zeros_like(y), np.zeros(n, bool)
    elif shape == "constant":
        x, y = np.tile([1.0, 1, 1, 1, 0], (n, 1)), np.zeros_like(y)
    elif shape == "huge":
        x[:, 0], x[0, 1], y = 1e30, np.nan, np.full_like(y, 50.0)
    return Records((x.astype(np.float32), y), present, n)


@pytest.mark.parametrize(("outcome_kind", "shape"), list(itertools.product(BOUNDS, ["absent", "constant", "huge"])))
@pytest.mark.parametrize("mu", [0.01, 3.0])
def test_every_table_gives_finite_draws(outcome_kind, shape, mu):
    records, key = bad_table(outcome_kind, shape), jax.random.key(0)
    design = Design(outcome_kind=outcome_kind, columns=COLUMNS, outcome=BOUNDS[outcome_kind], number=60)
    multipliers = noise_multipliers(divide(design), mu)
    result = program.run(
        design, multipliers, priors.StandardisedPrior(), lambda name, query: record_sums.answer(query, records, key)
    )
    coefficients = draws.to_coefficients(result, draws.draw(result, 50, np.random.default_rng(0)))
    assert np.isfinite(coefficients).all()
    assert not convergence.assess(result).converged or shape == "huge" or mu == 3.0
