"""Networks trained together learn what each would alone, and their samplers have the law that they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from confide.audits.optimisers import Rule
from confide.audits.training import networks
from confide.validation import Refused

KEY = jax.random.key(2020)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = (x[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(int)
    subsets = np.stack([rng.permutation(60)[:22] for _ in range(3)])
    return x, y, subsets


def small(**settings):
    """Everything at once: dropout, noise, an ensemble, and 22 records in batches of 8, the last of an epoch being 6."""
    usual = {"hidden": (6,), "optimiser": "psgld", "prior_scale": 1.0, "learning_rate": 0.01}
    return networks(**(usual | {"epochs": 4, "batch_size": 8, "dropout": 0.4, "ensemble": 2} | settings))


def regression(**settings):
    return networks(**({"hidden": (), "epochs": 2, "batch_size": 22, "learning_rate": 0.3} | settings))


@pytest.fixture(scope="module")
def together(table):
    return small()(*table, jax.random.split(KEY, 3))


@pytest.mark.long
def test_networks_learn_together_what_each_learns_alone(table, together):
    x, y, subsets = table
    predicted = together(x)
    assert predicted.shape == (3, 60, 2)
    np.testing.assert_allclose(predicted.sum(axis=-1), 1, atol=1e-6)
    for number, key in enumerate(jax.random.split(KEY, 3)):
        alone = small()(x, y, subsets[[number]], key[None])(x)[0]
        np.testing.assert_allclose(predicted[number], alone, atol=1e-5)
    assert np.abs(predicted[0] - predicted[1]).max() > 0.05


@pytest.mark.long
def test_a_network_learns_from_its_subset_alone(table, together):
    x, y, subsets = table
    key = jax.random.split(KEY, 3)[:1]
    changed = y.copy()
    changed[np.setdiff1d(np.arange(60), subsets[0])] += 1
    changed = changed % 2
    np.testing.assert_allclose(small()(x, changed, subsets[:1], key)(x)[0], together(x)[0], atol=1e-5)
    changed[subsets[0, -1]] = 1 - changed[subsets[0, -1]]
    assert np.abs(small()(x, changed, subsets[:1], key)(x)[0] - together(x)[0]).max() > 1e-3


@pytest.mark.long
def test_an_ensemble_predicts_with_its_mean(table, together):
    x = table[0]
    first, last = (
        together._replace(weights=jax.tree.map(lambda w, n=n: w[:, n : n + 1], together.weights)) for n in (0, 1)
    )
    first, last = np.exp(first.log_probabilities(x, 1)), np.exp(last.log_probabilities(x, 1))
    assert np.abs(first - last).max() > 1e-3
    np.testing.assert_allclose(together(x), (first + last) / 2, atol=1e-6)
    np.testing.assert_allclose(np.exp(together.log_probabilities(x, 1)), last, atol=1e-6)


@pytest.mark.long
def test_softmax_regression_by_hand(table):
    """One batch holds all records, so that their order does not matter: the second of two steps, at half the rate."""
    x, y, subsets = table
    trained = regression(halve_every=1, prior_scale=2.0, ensemble=2)(x, y, subsets[:1], KEY)
    first, second = ({k: np.asarray(v)[0, place] for k, v in trained.weights[0].items()} for place in (0, 1))
    inputs, labels = x[subsets[0]], np.eye(2)[y[subsets[0]]]
    scores = inputs @ first["weights"] + first["bias"]
    residual = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) - labels
    for name, mean in (("weights", inputs.T @ residual / 22), ("bias", residual.mean(axis=0))):
        slope = mean + first[name] / (22 * 2.0**2)
        np.testing.assert_allclose(second[name], first[name] - 0.15 * slope, atol=1e-6)


@pytest.mark.long
def test_an_ensemble_is_of_epochs_or_of_steps(table):
    """Two batches to an epoch: the last iterate but two at the ends of steps is the last but one of epochs."""
    x, y, subsets = table
    epochs, steps = (
        regression(batch_size=11, ensemble=size, ensemble_of=often)(x, y, subsets[:1], KEY).weights[0]["weights"][0]
        for often, size in (("epochs", 2), ("steps", 3))
    )
    np.testing.assert_allclose(steps[jnp.array([0, 2])], epochs, atol=1e-6)
    assert np.abs(steps[1] - steps[2]).max() > 1e-3


@pytest.mark.parametrize("optimiser", ["sgd", "rmsprop"])
@pytest.mark.long
def test_rules_are_those_of_optax(optimiser):
    weights = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
    theirs = {"sgd": optax.sgd(0.1), "rmsprop": optax.rmsprop(0.1, decay=0.99, eps=1e-5, eps_in_sqrt=False)}[optimiser]
    rule = Rule(optimiser=optimiser)
    state, expected, memory = rule.init(weights), weights, theirs.init(weights)
    for number in range(3):
        gradient = jax.tree.map(lambda leaf, number=number: jnp.sin(3 * leaf) + number, state.weights)
        state = rule.step(state, gradient, 0.1, 10, KEY)
        updates, memory = theirs.update(gradient, memory)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state.weights, expected)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.long
def test_sgld_has_its_stationary_law(temperature):
    """A mean of 50 normals with a prior of scale 0.5: precision 54, mean 50/54 of theirs.

    20,000 chains: the standard error of their mean is 0.7% of a posterior deviation and of their variance 1%, five of
    which are allowed. The step's own bias in the variance, eta precision / (2 n) to first order, is 1.1%.
    """
    n, scale, eta = 50, 0.5, 0.02
    precision = n + 1 / scale**2
    rule = Rule(optimiser="sgld", prior_scale=scale, temperature=temperature)

    def step(state, key):
        return rule.step(state, state.weights - 1.0, eta, n, key), None

    state, _ = jax.lax.scan(step, rule.init(jnp.zeros(20_000)), jax.random.split(KEY, 400))
    draws = np.asarray(state.weights, np.float64)
    deviation = np.sqrt(temperature / precision)
    assert draws.mean() == pytest.approx(n / precision, abs=5 * 0.007 * deviation)
    assert draws.var() == pytest.approx(temperature / precision * (1 + eta * precision / (2 * n)), rel=0.05)


@pytest.mark.long
def test_psgld_is_rmsprop_and_noise_in_its_metric():
    weights, gradient = jnp.zeros(20_000), jnp.where(jnp.arange(20_000) < 10_000, 1.0, 0.01)
    plain, noisy = (Rule(optimiser=name, prior_scale=1.0) for name in ("rmsprop", "psgld"))
    center = plain.step(plain.init(weights), gradient, 0.1, 40, KEY).weights
    noise = np.asarray(noisy.step(noisy.init(weights), gradient, 0.1, 40, KEY).weights - center)
    variance = 2 * 0.1 / (1e-5 + 0.1 * np.array([1.0, 0.01])) / 40
    np.testing.assert_allclose(noise.reshape(2, -1).var(axis=1), variance, rtol=0.07)  # five standard errors


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"optimiser": "adam"}, "optimiser"),
        ({"prior_scale": None}, "prior_scale"),
        ({"ensemble": 5}, "4 epochs"),
        ({"dropout": 1.0}, "dropout"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_settings_are_refused(change, match):
    with pytest.raises(Refused, match=match):
        small(**change)


@pytest.mark.long
def test_data_are_refused(table, together):
    x, y, subsets = table
    train = small()
    for arguments, match in (
        ((x[:, 0], y, subsets), "x has shape"),
        ((np.where(x > 1, np.nan, x), y, subsets), "not finite"),
        ((x, y + 0.5, subsets), "y has shape"),
        ((x, y[:-1], subsets), "y has shape"),
        ((x, y, subsets + 40), "rows that x does not have"),
        ((x, y, subsets[0]), "subsets has shape"),
        ((x, y, subsets * 1.0), "subsets has shape"),
    ):
        with pytest.raises(Refused, match=match):
            train(*arguments, KEY)
    with pytest.raises(Refused, match="one for each"):
        train(x, y, subsets, jax.random.split(KEY, 2))
    with pytest.raises(Refused, match="5"):
        together(x[:, :3])
