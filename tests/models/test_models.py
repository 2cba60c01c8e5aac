"""Models: densities against SciPy, the NumPyro adapter against NumPyro, and what it refuses."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import confide
from confide import Refused, models

X = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
Y = (X @ [1.0, -1.0] + np.random.default_rng(1).normal(size=60)).astype(np.float32)


@pytest.mark.long
def test_log_likelihoods_are_densities():
    x, w = jnp.array([1.0, 2.0]), {"weights": jnp.array([0.3, -0.2])}
    s = 0.3 - 0.4
    assert models.linear_regression(2, noise_scale=2.0).log_likelihood(w, x, 1.5) == pytest.approx(
        stats.norm.logpdf(1.5, s, 2.0), rel=1e-5
    )
    assert models.logistic_regression(2).log_likelihood(w, x, 1.0) == pytest.approx(
        np.log(1 / (1 + np.exp(-s))), rel=1e-5
    )
    assert models.poisson_regression(2).log_likelihood(w, x, jnp.array(3.0)) == pytest.approx(
        stats.poisson.logpmf(3, np.exp(s)), rel=1e-5
    )
    weights = {"weights": jnp.array([[0.3, 0.0, 1.0], [-0.2, 0.5, 0.0]])}
    scores = np.array([1.0, 2.0]) @ np.asarray(weights["weights"])
    assert models.softmax_regression(2, 3).log_likelihood(weights, x, jnp.array(1)) == pytest.approx(
        scores[1] - np.log(np.exp(scores).sum()), rel=1e-5
    )


def test_priors_are_densities():
    tree = {"a": jnp.array([0.5, -1.0]), "b": [jnp.array(2.0)]}
    values = np.array([0.5, -1.0, 2.0])
    assert models.gaussian(0.7)(tree) == pytest.approx(stats.norm.logpdf(values, 0, 0.7).sum(), rel=1e-5)
    assert models.laplace(0.7)(tree) == pytest.approx(stats.laplace.logpdf(values, 0, 0.7).sum(), rel=1e-5)
    own = models.logistic_regression(2, prior=lambda p: -jnp.sum(p["weights"] ** 4))
    assert own.log_prior({"weights": jnp.array([1.0, 2.0])}) == pytest.approx(-17)
    with pytest.raises(Refused, match="prior = 'cauchy'"):
        models.logistic_regression(2, prior="cauchy")
    with pytest.raises(Refused, match="prior_scale"):
        models.logistic_regression(2, prior_scale=-1.0)


@pytest.mark.optimised
@pytest.mark.parametrize("prior", [pytest.param("gaussian", marks=pytest.mark.long), "laplace"])
def test_every_prior_is_sampled_from(prior):
    """A likelihood that says nothing leaves the prior: its standard deviation within 10% (8 chains, long run)."""
    model = models.from_functions(
        log_prior=getattr(models, prior)(0.5), log_likelihood=lambda w, x: 0.0 * w[0] * x, start=np.zeros(4)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        found = confide.sample(model, (np.ones(2),), confide.sgld(0.02), steps=20_000, batch_size=2, chains=8, key=0)
    expected = 0.5 if prior == "gaussian" else 0.5 * np.sqrt(2)
    assert found.draws.std() == pytest.approx(expected, rel=0.1)


def numpyro_model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)


@pytest.mark.long
def test_the_numpyro_adapter_is_the_numpyro_density():
    """Prior plus the sum over records equals NumPyro's own potential, at random points of the unconstrained space."""
    model = models.from_numpyro(numpyro_model)
    start = model.start(jax.random.key(0), (X[:1] * 0, Y[:1] * 0))
    assert {name: np.shape(value) for name, value in start.items()} == {"w": (2,), "scale": ()}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        point = {"w": jnp.asarray(rng.normal(size=2), jnp.float32), "scale": jnp.float32(rng.normal())}
        mine = model.log_prior(point) + sum(model.log_likelihood(point, x, y) for x, y in zip(X, Y, strict=True))
        theirs = -numpyro.infer.util.potential_energy(numpyro_model, (X, Y), {}, point)
        assert float(mine) == pytest.approx(float(theirs), rel=1e-4)


def test_a_numpyro_model_is_fitted_and_reported_in_its_own_space():
    model = models.from_numpyro(numpyro_model, kind="regression")
    budget = confide.Budget(epsilon=100.0, delta=1e-3)
    found = confide.fit(
        model, (X, Y), budget, confide.sgld(), clip=20.0, steps=4000, batch_size=60, verbose=False, key=0
    )
    assert found.draws["w"].shape == (1, 1000, 2)
    assert np.all(found.draws["scale"] > 0)
    np.testing.assert_allclose(found.draws["w"].mean(axis=(0, 1)), [1, -1], atol=0.4)
    assert found.predict(X[:4]).shape == (4,)
    assert found.interval(X[:4]).shape == (4, 2)


@pytest.mark.long
def test_a_numpyro_classifier_predicts_probabilities():
    def logistic(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    budget = confide.Budget(epsilon=10.0, delta=1e-3)
    labels = (X[:, 0] > 0).astype(int)
    found = confide.fit(
        models.from_numpyro(logistic, kind="classification"),
        (X, labels),
        budget,
        confide.sgld(),
        steps=500,
        verbose=False,
    )
    np.testing.assert_allclose(found.predict_proba(X[:3]).sum(axis=1), 1, rtol=1e-5)


def _local(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(w + z, 1.0), obs=y)


def _outside(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("other", dist.Normal(w, 1.0), obs=y)


def _fixed_size(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("records", 60):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _no_plate(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _two_plates(x, y=None):
    with numpyro.plate("groups", 3):
        w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)


def _data_prior(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.mean(x), 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _discrete(x, y=None):
    w = numpyro.sample("w", dist.Bernoulli(0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _moving_support(x, y=None):
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def _param(x, y=None):
    w = numpyro.param("w", 0.0)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _nothing_observed(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.deterministic("y", w * x[:, 0])


def _broken(x, y=None):
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_local, "latent variable of one record"),
        (_outside, "outside the plate"),
        (_fixed_size, "size|does not run on one record"),
        (_no_plate, "0 plates"),
        (_two_plates, "2 plates"),
        (_data_prior, "depends on the data"),
        (_discrete, "discrete"),
        (_moving_support, "support of site 'b'"),
        (_param, "parameter without a prior"),
        (_nothing_observed, "observes nothing"),
        (_broken, "not today"),
        ("no function", "not a function"),
    ],
)
def test_numpyro_models_that_cannot_be_read_are_refused_in_one_line(function, message):
    with pytest.raises(Refused, match=message) as caught:
        confide.fit(
            models.from_numpyro(function), (X, Y), confide.Budget(epsilon=1.0, delta=1e-5), confide.sgld(), steps=10
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: models.logistic_regression(0),
        lambda: models.softmax_regression(3, 1),
        lambda: models.mlp((3,)),
        lambda: models.linear_regression(3, noise_scale=0.0),
        lambda: models.from_functions(log_prior=1, log_likelihood=lambda p, x: p, start=0.0),
        lambda: models.from_functions(log_prior=lambda p: p, log_likelihood=lambda p, x: p, start="x"),
        lambda: models.from_functions(log_prior=lambda p: p, log_likelihood=lambda p, x: p, start=np.nan),
        lambda: models.from_functions(log_prior=lambda p: p, log_likelihood=lambda p, x: p, start=()),
    ],
)
def test_bad_settings_are_refused(call):
    with pytest.raises(Refused) as caught:
        call()
    assert "\n" not in str(caught.value)
