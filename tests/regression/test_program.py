"""Private regressions as a whole: with hardly any noise they are the fit without privacy, with nothing but noise they
say so, and priors are equivalent in every unit."""

import numpy as np
import pytest

from confide.inference.regression import convergence, draws, priors, program
from confide.inference.regression.columns import Location
from confide.inference.regression.design import Column, Design, divide, noise_multipliers
from confide.mechanism import record_sums

COLUMNS = (Column("numeric"), Column("boolean"), Column("category", 0), Column("category", 0), Column("category", 0))


def table(outcome_kind, n, seed=0):
    rng = np.random.default_rng(seed)
    level = np.eye(3)[rng.choice(3, n, p=[0.5, 0.3, 0.2])]
    x = np.column_stack([0.2 * np.clip(rng.standard_normal(n), -4, 4), np.where(rng.random(n) < 0.3, 1.0, -1.0), level])
    eta = 2 * x[:, 0] - 0.4 * x[:, 1] + level @ [0.0, 0.5, -0.5] + 0.2
    if outcome_kind == "labels":
        return x, (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float), (0.0, 1.0)
    if outcome_kind == "counts":
        return x, rng.poisson(np.exp(eta)).astype(float), (0.0, 60.0)
    return x, 0.2 * eta + 0.1 * rng.standard_normal(n), (-3.0, 3.0)


def run(outcome_kind, n, mu, seed=0):
    x, y, bounds = table(outcome_kind, n)
    design = Design(outcome_kind=outcome_kind, columns=COLUMNS, outcome=bounds, number=n)
    rng = np.random.default_rng(seed)

    def ask(name, query):
        vectors = query.vectors(x, y)
        if query.is_matrix:
            h = record_sums.cut_lengths(vectors, np.sqrt(query.bound))
            noise = np.triu(rng.standard_normal((query.size, query.size)) / np.sqrt(2), 1)
            return h.T @ h + query.deviation * (noise + noise.T + np.diag(rng.standard_normal(query.size)))
        total = record_sums.cut_lengths(vectors, query.bound).sum(axis=0)
        return total + query.deviation * rng.standard_normal(query.size)

    return program.run(design, noise_multipliers(divide(design), mu), priors.StandardisedPrior(), ask), x, y


def plain(outcome_kind, x, y):
    rows = np.column_stack([x[:, [0, 1, 3, 4]], np.ones(len(y))])
    theta = np.zeros(5)
    for _ in range(50):
        eta = rows @ theta
        mean = {"labels": 1 / (1 + np.exp(-eta)), "counts": np.exp(eta), "numbers": eta}[outcome_kind]
        slope = {"labels": mean * (1 - mean), "counts": mean, "numbers": np.ones_like(eta)}[outcome_kind]
        theta += np.linalg.solve((rows * slope[:, None]).T @ rows, rows.T @ (y - mean))
    return theta, np.sqrt(
        np.diag(np.linalg.inv((rows * slope[:, None]).T @ rows)) * (0.01 if outcome_kind == "numbers" else 1)
    )


@pytest.mark.parametrize("outcome_kind", ["labels", "numbers", "counts"])
def test_with_hardly_any_noise_it_is_the_fit_without_privacy(outcome_kind):
    result, x, y = run(outcome_kind, 4000, 50.0)
    coefficients = draws.to_coefficients(result, draws.draw(result, 2000, np.random.default_rng(0)))
    target, deviations = plain(outcome_kind, x, y)
    kept = [0, 1, 3, 4, 5]
    assert np.all(np.abs(coefficients.mean(axis=0)[kept] - target) < 0.35 * deviations)
    assert np.allclose(coefficients.std(axis=0)[kept] / deviations, 1, atol=0.15)
    assert np.all(coefficients[:, 2] == 0)  # the commonest level
    assert convergence.assess(result).converged


@pytest.mark.parametrize("outcome_kind", ["labels", "numbers", "counts"])
def test_where_nothing_can_be_learnt_it_says_so(outcome_kind):
    result, _, _ = run(outcome_kind, 60, 0.03)
    judged = convergence.assess(result)
    assert not judged.converged
    assert judged.reasons
    assert np.isfinite(draws.draw(result, 100, np.random.default_rng(0))).all()


def test_few_records_of_many_declared():
    result, _, _ = run("labels", 4000, 5.0)
    fewer = result._replace(number=500.0, number_error=10.0)
    assert "declared" in convergence.assess(fewer).reasons[0]


def test_draws_have_the_posterior_mean_and_covariance_where_slopes_are_known():
    result, _, _ = run("numbers", 4000, 20.0)
    posterior = draws.normal_posterior(result)
    theta = draws.draw(result, 40_000, np.random.default_rng(1)) - result.shift
    assert np.allclose(theta.mean(axis=0), posterior.mean, atol=0.05 * np.sqrt(np.diag(posterior.covariance)).max())
    assert np.allclose(theta.std(axis=0) ** 2 / np.diag(posterior.covariance), 1, atol=0.15)


def test_raw_prior_is_the_same_in_standardised_coordinates():
    design = Design(outcome_kind="numbers", columns=COLUMNS, outcome=(-3.0, 3.0), number=1000)
    location = Location(
        np.array([0.3, -0.4, 0.5, 0.3, 0.2]), np.array([0.2, 0.9, 0.5, 0.45, 0.4]), 0.7, 1.6, np.ones(5), (2,)
    )
    prior = priors.RawPrior(1.5)(design, location, 0.0)
    rng = np.random.default_rng(2)
    standardised = rng.multivariate_normal(prior.mean, np.linalg.inv(prior.precision), 200_000)
    kept, unit = [0, 1, 3, 4], location.outcome_spread
    slopes = unit * standardised[:, :-1] / location.spread[kept]
    intercept = location.outcome_center + unit * standardised[:, -1] - slopes @ location.center[kept]
    assert np.allclose(slopes[:, :2].std(axis=0), 1.5, rtol=0.02)
    assert np.allclose(slopes[:, 2:].std(axis=0), 1.5 * np.sqrt(2), rtol=0.02)  # differences of two levels
    assert intercept.std() == pytest.approx(1.5 * np.sqrt(2), rel=0.02)
    assert intercept.mean() == pytest.approx(0, abs=0.03)


def test_shares_add_up_to_one_for_every_size():
    for d in (1, 30, 300):
        design = Design(outcome_kind="counts", columns=(Column("numeric"),) * d, outcome=(0.0, 9.0), number=1000)
        assert sum(share.share for share in divide(design)) == pytest.approx(1)
