"""Records with and without labels: one likelihood, one clip, one sum."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import confide
from confide import models
from confide.mechanism.clipping import clipped_sum
from confide.mechanism.ghost_norms import GhostNorms
from confide.models import layers, networks
from confide.models.inputs import outside
from confide.models.semi_supervised import UNLABELLED, hide_labels, log_made_up, log_real
from confide.models.tapes import Tape


def group_norm():
    def weights(*shape, seed=0):
        return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0] * 2), jnp.float32)

    start = {
        "first": {"weights": weights(2, 2, 1, 4)},
        "norm": {"scale": weights(4, seed=1) + 1, "shift": weights(4, seed=2)},
        "last": {"weights": weights(100, 3), "bias": weights(3, seed=3)},
    }

    def scores(tape, parameters, x):
        x = layers.group_norm(layers.convolution(tape, x, parameters["first"]), parameters["norm"], 2)
        return layers.dense(tape, jnp.tanh(x).ravel(), parameters["last"])

    settings = {"prior_scale": 1.0, "prior": "gaussian"}
    return networks.network("tiny", scores, lambda key, example: start, settings, shape=(6, 6, 1), outputs=3)


NETWORKS = {"mlp": (lambda: models.mlp((4, 8, 3)), (4,)), "group norm": (group_norm, (6, 6, 1))}
CLIP, ROWS = 0.05, 16


@functools.cache
def built(kind, unlabelled_weight=1.0):
    make, shape = NETWORKS[kind]
    model = models.semi_supervised(make(), unlabelled_weight)
    flat, unravel = ravel_pytree(model.start(jax.random.key(1), ()))
    example = (jax.ShapeDtypeStruct(shape, np.float32), jax.ShapeDtypeStruct((), np.int32))
    told = clipped_sum(model, CLIP, unravel, ROWS, size=flat.size, example=example)
    x = np.random.default_rng(0).normal(size=(11, *shape)).astype(np.float32)
    y = hide_labels(np.arange(11) % 3, np.arange(11) % 2 == 0)
    return model, told, flat, unravel, (x, y)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_record_without_a_label_has_the_sum_of_all_labels(kind):
    model, _, flat, unravel, (x, _) = built(kind)
    parameters = unravel(flat)
    labelled = jnp.array([model.log_likelihood(parameters, x[0], jnp.int32(label)) for label in range(3)])
    unlabelled = model.log_likelihood(parameters, x[0], jnp.int32(UNLABELLED))
    scores = model.scores(Tape(), parameters, x[0])
    assert float(jax.nn.logsumexp(labelled)) == pytest.approx(float(unlabelled), abs=1e-5)
    assert float(jnp.exp(unlabelled) + jnp.exp(log_made_up(scores))) == pytest.approx(1, abs=1e-5)
    assert float(log_real(scores)) == pytest.approx(float(unlabelled), abs=1e-6)


def test_the_weight_leaves_what_a_label_tells_as_it_is():
    plain, _, flat, unravel, (x, _) = built("mlp")
    light = built("mlp", 0.2)[0]
    parameters, label = unravel(flat), jnp.int32(2)
    real = [float(model.log_likelihood(parameters, x[0], jnp.int32(UNLABELLED))) for model in (plain, light)]
    assert real[1] == pytest.approx(0.2 * real[0], rel=1e-5)
    told = [float(model.log_likelihood(parameters, x[0], label)) for model in (plain, light)]
    assert told[1] - real[1] == pytest.approx(told[0] - real[0], rel=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_layers_tell_both_kinds_of_records_as_autodiff_does(kind):
    model, told, flat, unravel, data = built(kind)
    assert isinstance(told.per_example, GhostNorms)
    rows = jnp.arange(ROWS)
    arrays = tuple(map(jnp.asarray, data))
    found = jax.jit(lambda at: told.over(arrays, None, rows, lambda batch: told(at, batch).total))(flat)
    own = jax.vmap(jax.grad(lambda at, x, y: -model.log_likelihood(unravel(at), x, y)), (None, 0, 0))(flat, *arrays)
    norms = np.linalg.norm(np.asarray(own, np.float64), axis=1)
    assert np.any(norms > CLIP)
    cut = np.asarray(own, np.float64) * np.minimum(1, told.effective_clip / norms)[:, None]
    assert np.allclose(found, cut.sum(axis=0), atol=1e-5)


@pytest.mark.parametrize("weight", [1.0, 1e-3, 1e4])
@pytest.mark.parametrize("kind", ["mlp", "group norm"])
def test_neighbours_move_the_sum_by_a_clip_at_most(kind, weight):
    """A record is added, loses its label, gets another one, or becomes any other: one clip, or two where it is
    replaced. A labelled one is felt in full, so that the bound is met."""
    _, told, flat, _, (x, y) = built(kind, weight)
    summed = jax.jit(
        lambda x, y, rows: told.over((x, y), None, rows, lambda batch: told(flat * jnp.float32(1), batch).total)
    )
    rows = np.array([*range(11), *[11] * 5], np.int32)
    without = np.where(rows == 10, 11, rows)
    sum_without = np.asarray(summed(x, y, without), np.float64)
    slack, moved = 1e-6, []
    rng = np.random.default_rng(3)
    for label in (UNLABELLED, 0, 2):
        for scale in (0.0, 1.0, 1e4, 1e30):
            other_x, other_y = x.copy(), y.copy()
            other_x[10], other_y[10] = scale * rng.normal(size=x.shape[1:]), label
            found = np.asarray(summed(other_x, other_y, rows), np.float64)
            assert np.linalg.norm(found - sum_without) <= CLIP + slack
            moved.append(found)
    apart = [np.linalg.norm(one - two) for one in moved for two in moved]
    assert max(apart) <= 2 * CLIP + slack
    assert max(np.linalg.norm(found - sum_without) for found in moved) > 0.99 * told.effective_clip


def test_labels_that_are_neither_known_nor_missing_are_outside():
    model, *_ = built("mlp")
    labels = np.array([-1, 0, 2, 3, -2, 1.5, np.nan])
    assert outside(model, (np.zeros((7, 4)), labels)).tolist() == [3, 4, 5, 6]


def test_a_posterior_is_saved_and_predicts_again(tmp_path):
    model, *_, data = built("mlp")
    x, y = (np.tile(array, (30, *[1] * (array.ndim - 1))) for array in data)
    budget = confide.Budget(epsilon=2.0, delta=1e-5)
    posterior = confide.fit(model, (x, y), budget, confide.sgld(), 20, 32, clip=1.0, key=1, draws=4, verbose=False)
    posterior.save(tmp_path / "run")
    loaded = confide.Posterior.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(x[:5]), posterior.predict_proba(x[:5]))
    assert loaded.model is not None
    assert loaded.model.settings == model.settings


@pytest.mark.parametrize("given", [models.logistic_regression(3), models.mlp((3, 4, 1))])
def test_what_is_no_network_of_classes_is_refused(given):
    with pytest.raises(confide.Refused, match="no scores of several classes"):
        models.semi_supervised(given)
