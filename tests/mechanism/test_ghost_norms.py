"""Networks: told layer by layer they are what autodiff says record by record, whatever the layers are."""

import functools
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import confide
from confide import models
from confide.inference import plans
from confide.inference.options import Options
from confide.mechanism import ghost_norms
from confide.mechanism.clipping import clipped_sum
from confide.mechanism.noise import SecureSource
from confide.mechanism.per_example import Autodiff
from confide.models import layers, networks
from confide.models.tapes import Layered, Tape, discover
from confide.validation import Refused

BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
SHAPE, CLASSES = (6, 6, 2), 3
LONG = pytest.mark.long


def arrays_like(shape, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, CLASSES, n).astype(np.int32)


def weights(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32)


def tiny(scores, parameters, shape=SHAPE):
    """A model of the scores of one record, with the given parameters to start from."""
    settings = {"prior_scale": 1.0, "prior": "gaussian"}
    return networks.network("tiny", scores, lambda key, example: parameters, settings, shape=shape, outputs=CLASSES)


def head(tape, x, layer):
    return layers.dense(tape, x.ravel(), layer)


def one_convolution(stride=1, padding=0, bias=True):
    first = {"weights": weights(3, 3, 2, 4)} | ({"bias": weights(4, seed=1)} if bias else {})
    size = layers.max_pool(layers.convolution(Tape(), jnp.zeros(SHAPE), first, stride, padding)).size
    parameters = {"first": first, "last": {"weights": weights(size, CLASSES, seed=2), "bias": weights(CLASSES, seed=3)}}

    def scores(tape, parameters, x):
        x = layers.max_pool(jax.nn.relu(layers.convolution(tape, x, parameters["first"], stride, padding)))
        return head(tape, x, parameters["last"])

    return tiny(scores, parameters)


def group_norm():
    parameters = {
        "first": {"weights": weights(1, 1, 2, 4)},
        "norm": {"scale": weights(4) + 1, "shift": weights(4, seed=1)},
        "last": {"weights": weights(144, CLASSES), "bias": weights(CLASSES)},
    }

    def scores(tape, parameters, x):
        x = layers.group_norm(layers.convolution(tape, x, parameters["first"]), parameters["norm"], 2)
        return head(tape, jnp.tanh(x), parameters["last"])

    return tiny(scores, parameters)


def tokens():
    """A dense layer on several rows of a record, as on the words of a text."""
    parameters = {"first": {"weights": weights(2, 5), "bias": weights(5)}, "last": {"weights": weights(5, CLASSES)}}

    def scores(tape, parameters, x):
        x = jnp.tanh(layers.dense(tape, x.reshape(36, 2), parameters["first"]))
        return layers.dense(tape, jnp.mean(x, axis=0), parameters["last"])

    return tiny(scores, parameters)


def shared(elsewhere):
    """Weights that two layers share, or that something else reads too."""
    parameters = {"first": {"weights": weights(6, 6)}, "last": {"weights": weights(6, CLASSES, seed=1)}}

    def scores(tape, parameters, x):
        x = jnp.tanh(layers.dense(tape, x[:, 0, 0], parameters["first"]))
        x = x * jnp.sum(parameters["first"]["weights"]) if elsewhere else layers.dense(tape, x, parameters["first"])
        return layers.dense(tape, x, parameters["last"])

    return tiny(scores, parameters)


def inside_a_loop():
    parameters = {"first": {"weights": weights(2, 2)}, "last": {"weights": weights(72, CLASSES, seed=1)}}

    def scores(tape, parameters, x):
        x = jax.vmap(lambda row: jnp.tanh(layers.dense(tape, row, parameters["first"])))(x.reshape(36, 2))
        return head(tape, x, parameters["last"])

    return tiny(scores, parameters)


class Module(eqx.Module):
    first: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Conv2d(2, 4, 3, stride=2, padding=1, key=first)
        self.norm = eqx.nn.GroupNorm(2, 4)
        self.last = eqx.nn.Linear(36, CLASSES, key=last)

    def __call__(self, x):
        return self.last(jax.nn.relu(self.norm(self.first(x))).ravel())


KINDS = {
    "dense": (lambda: models.mlp((4, 5, CLASSES)), (4,), 4),
    "dense with group norm": (lambda: models.mlp((4, 6, CLASSES), groups=2), (4,), 4),
    "regression": (lambda: models.mlp((4, 5, 1), "relu"), (4,), 4),
    "convolution": (one_convolution, SHAPE, 4),
    "convolution with stride and padding": (lambda: one_convolution(2, 2), SHAPE, 4),
    "convolution without bias": (lambda: one_convolution(bias=False), SHAPE, 3),
    "group norm": (group_norm, SHAPE, 3),
    "several rows": (tokens, SHAPE, 3),
    "shared weights": (lambda: shared(False), SHAPE, 1),
    "weights read elsewhere": (lambda: shared(True), SHAPE, 1),
    "inside a loop": (inside_a_loop, SHAPE, 1),
    "equinox": (lambda: models.from_equinox(Module(jax.random.key(0)), shape=(2, 6, 6)), (2, 6, 6), 3),
}
LARGE_ONES = {
    "cnn for digits": (models.cnn, (28, 28), 8),
    "cnn for colours": (lambda: models.cnn((8, 8, 3), CLASSES), (8, 8, 3), 12),
    "resnet18": (lambda: models.resnet18(2, (8, 8, 1), CLASSES), (8, 8, 1), 22),
}


@functools.cache
def built(kind, clip=0.5, rows=16, microbatch=None, large=ghost_norms.LARGE):
    make, shape, _ = (KINDS | LARGE_ONES)[kind]
    model = make()
    data = arrays_like(shape, 11)
    data = data if model.kind == "classification" else (data[0], data[1].astype(np.float32))
    flat, unravel = ravel_pytree(model.start(jax.random.key(1), ()))
    noise = np.random.default_rng(2).normal(size=flat.size) * 0.1
    example = tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in data)
    told = clipped_sum(model, clip, unravel, rows, size=flat.size, example=example, at_a_time=microbatch)
    return model, data, told, flat + jnp.asarray(noise, jnp.float32)


def both(kind, **how):
    """The clipped sum and the norms as layers tell them, and record by record."""
    _, data, told, position = built(kind, **how)
    rows = jnp.arange(16)

    @jax.jit
    def found(position, data):
        batch = told.batch(data, None, rows)
        whole = told.over(data, None, rows, lambda batch: told(position, batch).total)
        apart = replace(told, per_example=autodiff(told))
        each = apart.contributions(position, batch)
        return whole, told.norms(position, batch), each

    return told, *(np.asarray(result, np.float64) for result in found(position, tuple(map(jnp.asarray, data))))


def autodiff(told):
    """The same log likelihood, differentiated record by record."""
    return Autodiff(log_likelihood=told.per_example.log_likelihood, dropped=told.per_example.dropped)


def known(told):
    """Leaves that layers tell of."""
    return len(told.per_example.known)


SELDOM = (*LARGE_ONES, "regression", "convolution without bias", "convolution with stride and padding", "several rows")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[LONG] if kind in SELDOM else []) for kind in KINDS | LARGE_ONES]
)
def test_layers_tell_what_autodiff_says_record_by_record(kind):
    told, whole, norms, each = both(kind)
    assert known(told) == (KINDS | LARGE_ONES)[kind][2]
    expected = np.linalg.norm(each, axis=1)
    assert np.sum(expected > 0.49) >= 3  # some are clipped
    np.testing.assert_allclose(norms, expected, rtol=2e-4)
    np.testing.assert_allclose(whole, np.sum(each, axis=0), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("kind", ["convolution", "several rows"])
def test_large_layers_are_measured_by_their_traces(kind, monkeypatch):
    """Never shorter than they are, and hardly longer; the sum is taken in double precision."""
    monkeypatch.setattr(ghost_norms, "_large", lambda each: each.rows > 1)
    _told, whole, norms, each = both(kind, rows=15)  # of its own in the cache
    expected = np.linalg.norm(each, axis=1)
    assert np.all(norms >= expected * (1 - 1e-6))
    np.testing.assert_allclose(norms, expected, rtol=5e-3)
    np.testing.assert_allclose(whole, np.sum(each, axis=0), rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("kind", ["dense", *[pytest.param(kind, marks=LONG) for kind in ("convolution", "group norm")]])
def test_microbatches_do_not_change_the_sum(kind):
    _, at_once, _, _ = both(kind)
    told, in_parts, _, _ = both(kind, microbatch=8)
    assert told.microbatch == 8
    np.testing.assert_allclose(in_parts, at_once, rtol=1e-4, atol=1e-5)  # less room for rounding is needed


def test_microbatches_are_added_up_in_double_precision():
    """Their clip counts the rounding of one microbatch, not that of all of them in a row."""
    _, data, told, position = built("dense", microbatch=8)
    assert not told.limit.double

    def summed(batch):
        with jax.enable_x64(False):
            return told(position, batch).total

    with jax.enable_x64(True):
        found = jax.eval_shape(lambda data: told.over(data, None, jnp.arange(16), summed), data)
    assert found.dtype == np.float64


extreme = st.sampled_from([0.0, 1e-40, 1e-30, 1e-20, 1e-10, 0.3, 10.0, 1e10, 1e19, 1e30, 3e38, -3e38])


@pytest.mark.optimised
@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["dense", "regression", "convolution", "group norm"]),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e3, 1e20]),
    pixels=st.lists(extreme, min_size=4, max_size=4),
    label=st.integers(0, 2),
)
def test_whatever_the_record_it_moves_the_sum_by_at_most_the_clip(kind, scale, pixels, label):
    """Parameters and pixels from vanishing to overflowing: a tiny activation must not hide a huge signal."""
    _, data, _told, position = built(kind)
    summed = compiled(kind)
    x, y = data[0].copy(), data[1].copy()
    x[7].flat[:] = np.resize(np.asarray(pixels, np.float32), x[7].size)
    y[7] = label
    rows = np.array([*range(7), 7, 11, 11, 11, 11, 11, 11, 11, 11], np.int32)
    without = np.where(rows == 7, 11, rows)
    with np.errstate(over="ignore"):
        theta = np.asarray(position) * np.float32(scale)
    more, less = (np.asarray(summed(theta, x, y, which), np.float64) for which in (rows, without))
    assert np.all(np.isfinite(more))
    assert np.linalg.norm(more - less) <= 0.5 + 1e-6 * (8 * 0.5)


@functools.cache
def compiled(kind):
    _, _, told, _ = built(kind)

    def summed(position, x, y, rows):
        return told.over((x, y), None, rows, lambda batch: told(position, batch).total)

    return jax.jit(summed)


@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_a_record_contributes_the_same_wherever_it_stands(kind):
    _, data, _told, position = built(kind)
    alone = np.full(16, 11, np.int32)
    found = []
    for place in (0, 3, 8, 13):
        rows = np.array(alone)
        rows[place] = 5
        found.append(np.asarray(compiled(kind)(position, *data, rows)))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_dropout_is_drawn_for_each_record_and_step_and_not_when_predicting():
    model = models.mlp((4, 64, CLASSES), dropout=0.5)
    x, y = arrays_like((4,), 16)
    flat, unravel = ravel_pytree(model.start(jax.random.key(0), ()))
    example = tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in (x, y))
    told = clipped_sum(model, 10.0, unravel, 16, size=flat.size, example=example)
    x[1:], y[1:] = x[0], y[0]  # the same record again and again

    @jax.jit
    def found(key, data):
        batch = told.batch(data, None, jnp.arange(16))
        apart = replace(told, per_example=autodiff(told))
        return apart.contributions(flat, batch, None, key), told(flat, batch, None, key).total

    first, total = (np.asarray(part) for part in found(jax.random.key(0), (x, y)))
    np.testing.assert_allclose(total, first.sum(axis=0), rtol=1e-4, atol=1e-5)
    assert len(np.unique(first.round(5), axis=0)) == 16
    second, _ = found(jax.random.key(1), (x, y))
    assert not np.allclose(first, second)
    again, _ = found(jax.random.key(0), (x, y))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(*(model.predict(unravel(flat), x) for _ in range(2)))
    with pytest.raises(Refused, match="keeps the account of 'dp' alone"):
        confide.fit(model, (x, y), BUDGET, confide.sgld(), steps=10, account=("dp", "bayesian"), verbose=False)


def test_what_secure_noise_drops_is_as_secret_as_the_noise():
    """What is dropped goes by the place of a record: by a known key, one record less would move all sums by many."""
    model, data = models.mlp((4, 5, CLASSES), dropout=0.5), arrays_like((4,), 16)
    asked = Options(steps=4, batch_size=8, chains=2, noise="secure")
    job, _ = plans.private_job(model, data, BUDGET, confide.sgld(), asked, jax.random.key(0))
    with jax.enable_x64(True):
        found = [
            np.asarray(jax.random.key_data(job._masks(drawn._replace(key=drawn.key[chain]), block)))
            for source in (SecureSource(b"a" * 32), SecureSource(b"b" * 32))
            for block in (0, 1)
            for drawn in [job.randomness(source, block)]
            for chain in (0, 1)
        ]
    assert len(np.unique(found, axis=0)) == 8


@pytest.mark.long
def test_a_number_given_twice_is_other_noise_for_other_dropout_or_microbatches():
    """Neither is in the program of the likelihood, and with the same noise two sums would differ by records alone."""
    data = arrays_like((4,), 16)

    def moved(dropout, **how):
        model = models.mlp((4, 5, CLASSES), dropout=dropout, prior=lambda parameters: 0.0)  # of no settings
        sampler = confide.dp_sgd(1.0, noise_multiplier=80.0, average=False)
        fitted = confide.fit(model, data, BUDGET, sampler, 1, 16, 1.0, key=5, verbose=False, **how)
        return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(fitted.draws)])

    first = moved(0.1)
    np.testing.assert_array_equal(moved(0.1), first)
    for other in (moved(0.6), moved(0.1, microbatch=8)):
        assert np.std(other - first) > 80 / 16


@LONG
def test_a_network_is_fitted_saved_and_loaded(tmp_path):
    x, y = arrays_like((12, 12), 300)
    x = (255 * np.abs(np.tanh(x))).astype(np.uint8)
    model = models.cnn((16, 16), CLASSES, dropout=0.1)
    with pytest.raises(Refused, match=r"give \(X, y\) with images of shape \(16, 16, 1\)"):
        confide.fit(model, (x, y), BUDGET, verbose=False)
    model = models.cnn((12, 12, 1), CLASSES, convolutions=4, dropout=0.1)
    fitted = confide.fit(model, (x, y), BUDGET, confide.sgld(), steps=30, batch_size=32, key=1, verbose=False)
    fitted.save(tmp_path / "run")
    loaded = confide.Posterior.load(tmp_path / "run")
    predicted = loaded.predict_proba(x[:5])
    assert predicted.shape == (5, CLASSES)
    np.testing.assert_allclose(predicted, fitted.predict_proba(x[:5]), rtol=1e-5)
    secure = confide.fit(model, (x, y), BUDGET, confide.sgld(), steps=3, batch_size=32, noise="secure", verbose=False)
    assert secure.guarantee.epsilon <= 1


class Doubled(eqx.nn.Linear):
    def __call__(self, x, *, key=None):
        return 2 * super().__call__(x)


class Inside(eqx.Module):
    """Looks at the weights of its layer, and calls it with no vector."""

    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x[:, None])[:, 0] + self.layer.weight @ x


@pytest.mark.parametrize(
    "make", [lambda key: Doubled(2, 3, key=key), lambda key: Inside(eqx.nn.Linear(2, 3, False, key=key))]
)
def test_a_module_is_what_it_computes_whatever_its_layers_look_like(make):
    module, x = make(jax.random.key(0)), jnp.array([0.3, -2.0])
    model = models.from_equinox(module, shape=(2,))
    begin = model.start(jax.random.key(0), ())
    expected = jax.nn.log_softmax(module(x))
    found = [model.log_likelihood(begin, x, jnp.int32(label)) for label in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "model", [models.mlp((4, 5, CLASSES)), models.from_equinox(eqx.nn.Linear(4, 3, key=jax.random.key(0)), shape=(4,))]
)
def test_rows_of_another_shape_are_not_predicted(model):
    draws = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], model.start(jax.random.key(0), ()))
    posterior = confide.Posterior(draws=draws, guarantee=None, plan={}, model=model)
    with pytest.raises(Refused, match="4 columns in X"):
        posterior.predict(np.zeros((2, 5)))


class Statistics(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch")

    def __call__(self, x):
        return x


class Whole(eqx.Module):
    table: jax.Array
    linear: eqx.nn.Linear

    def __call__(self, x):
        return self.linear(x)


class Keyless(eqx.Module):
    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __call__(self, x):
        return self.linear(x)


class Still(eqx.Module):
    def __call__(self, x):
        return x


LINEAR = eqx.nn.Linear(2, 3, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: models.from_equinox(Statistics(), shape=(2, 6, 6)), "batch statistics"),
        (lambda: models.from_equinox(Whole(jnp.arange(3), LINEAR), shape=(2,)), "parameters of whole numbers"),
        (lambda: models.from_equinox(Whole(jnp.ones(3, complex), LINEAR), shape=(2,)), "complex parameters"),
        (lambda: models.from_equinox(LINEAR, shape=(2,), noise_scale=0.0), "noise_scale"),
        (lambda: models.from_equinox(Still(), shape=(2,)), "no parameters"),
        (lambda: models.from_equinox(Keyless(LINEAR, eqx.nn.Dropout(0.5)), shape=(2,)), "dropout but takes no key"),
        (lambda: models.from_equinox(LINEAR, shape=(5,)), "cannot be called with one record"),
        (lambda: models.from_equinox(lambda x: x, shape=(5,)), "give an equinox.Module"),
        (lambda: models.from_equinox(eqx.nn.Identity(), shape=(5,)), "no parameters"),
        (lambda: models.mlp(5), "is no network"),
        (lambda: models.mlp((5, 0, 2)), "sizes"),
        (lambda: models.mlp((5, 2), "sine"), "activation"),
        (lambda: models.mlp((5, 4, 2), dropout=1.0), "dropout"),
        (lambda: models.mlp((5, 4, 2), groups=3), "groups = 3: 4 hidden units"),
        (lambda: models.mlp((5, 4, 2), groups=4), "groups = 4: 4 hidden units"),
        (lambda: models.mlp((5, 4, 2), groups=0), "groups"),
        (lambda: models.cnn((4, 4, 1)), "too small"),
        (lambda: models.cnn(convolutions=3), "choose 2 or 4"),
        (lambda: models.cnn(classes=1), "nothing to tell apart"),
        (lambda: models.cnn((28,)), "no image"),
        (lambda: models.resnet18(12), "groups"),
    ],
)
def test_networks_that_cannot_be(make, what):
    with pytest.raises(Refused, match=what) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (([np.zeros((6, 6, 2)), np.zeros((5, 6, 2))], [0, 1]), "ragged"),
        ((np.zeros((2, 6, 6)), [0, 1]), "images of shape"),
        ((np.zeros((2, 6, 6, 2)), [[0], [1]]), "one number per y"),
    ],
)
def test_images_that_do_not_fit_are_refused_before_any_charge(data, what, tmp_path):
    ledger = confide.Ledger.create(tmp_path / "ledger.db")
    ledger.enter("images", BUDGET)
    with pytest.raises(Refused, match=what) as caught:
        confide.fit(
            one_convolution(), data, BUDGET, confide.sgld(), steps=10, ledger=ledger, dataset="images", verbose=False
        )
    assert "\n" not in str(caught.value)
    assert ledger.history("images") == []


def test_what_no_tape_can_follow_is_differentiated_as_a_whole():
    def likelihood(tape, parameters, x, y):
        kept = []
        jax.lax.fori_loop(0, 2, lambda i, total: kept.append(tape.product(x, parameters)) or total, 0.0)
        return jnp.sum(x @ parameters)

    example = (jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.float32))
    assert discover(Layered(log_likelihood=likelihood), jax.ShapeDtypeStruct((3, 2), np.float32), example) == ()
