"""Clipped sums: against autodiff, at their limits, and against real neighbours."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from confide import models
from confide.mechanism.clipping import ClippedSum, clipped_sum
from confide.mechanism.per_example import Autodiff, Limit
from confide.privacy.events import SENSITIVITY

D = 3
MODELS = {
    "linear": models.linear_regression(D, noise_scale=0.5),
    "logistic": models.logistic_regression(D),
    "logistic with intercept": models.logistic_regression(D, intercept=True),
    "softmax": models.softmax_regression(D, 4),
    "softmax with intercept": models.softmax_regression(D, 4, intercept=True),
    "poisson": models.poisson_regression(D),
    "negative binomial": models.negative_binomial_regression(D, dispersion=0.5),
    "mlp": models.mlp((D, 5, 3)),
    "mlp regression": models.mlp((D, 4, 3, 1)),
}


def arrays(model, n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)).astype(np.float32) * 3
    if model.kind == "classification":
        labels = 2 if model.name == "logistic_regression" else 3
        return x, rng.integers(0, labels, n).astype(np.float32)
    return x, rng.poisson(2.0, n).astype(np.float32)


def built(model, clip, seed=0, rows=50):
    flat, unravel = ravel_pytree(model.start(jax.random.key(seed), (np.zeros((1, D)), np.zeros(1))))
    position = flat + jnp.asarray(np.random.default_rng(seed).normal(size=flat.shape), jnp.float32) * 0.3
    example = (jax.ShapeDtypeStruct((D,), np.float32), jax.ShapeDtypeStruct((), np.float32))
    return clipped_sum(model, clip, unravel, rows, size=flat.size, example=example), position


def likelihood_of(model):
    """Of one record, by flat parameters."""
    unravel = ravel_pytree(model.start(jax.random.key(0), (np.zeros((1, D)), np.zeros(1))))[1]
    return lambda flat, *row: model.log_likelihood(unravel(flat), *row)


def whole(total, data, position, factor=None, rows=None):
    @jax.jit
    def summed(data):
        reach = total.residual_threshold(data)
        return total.over(data, reach, rows, lambda batch: total(position, batch, factor))

    return summed(tuple(jnp.asarray(array) for array in data))


@functools.cache
def compiled(name, kind, clip):
    """(x, y, rows) -> the clipped sum of these rows."""
    total, position = built(MODELS[name], clip)
    factor = factors(position.size)[kind]
    return total, jax.jit(lambda x, y, rows: whole(total, (x, y), position, factor, rows).total)


def factors(size, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "none": None,
        "diagonal": jnp.asarray(rng.uniform(0.2, 3, size), jnp.float32),
        "matrix": jnp.asarray(rng.normal(size=(size, size)) / np.sqrt(size), jnp.float32),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name == "mlp regression" else []) for name in MODELS]
)
def test_without_clipping_it_is_the_plain_gradient(name):
    model = MODELS[name]
    data = arrays(model, 20)
    total, position = built(model, np.inf)
    likelihood = jax.vmap(likelihood_of(model), (None, 0, 0))
    expected = -jax.jit(jax.grad(lambda p: jnp.sum(likelihood(p, *map(jnp.asarray, data)))))(position)
    np.testing.assert_allclose(whole(total, data, position).total, expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("kind", ["none", "diagonal", "matrix"])
@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_is_the_sum_of_clipped_gradients(name, kind):
    """Closed form, vmap and record by record agree, in every metric."""
    model, clip = MODELS[name], 0.7
    data = arrays(model, 25)
    total, position = built(model, clip)
    factor = factors(position.size)[kind]
    gradients = -jax.jit(jax.vmap(jax.grad(likelihood_of(model)), (None, 0, 0)))(position, *map(jnp.asarray, data))
    seen = gradients if factor is None else gradients * factor if factor.ndim == 1 else gradients @ factor
    norms = np.linalg.norm(seen, axis=1)
    assert np.sum(norms > clip) > 3
    expected = np.sum(seen * np.minimum(1, clip / norms)[:, None], axis=0)
    found = whole(total, data, position, factor)
    np.testing.assert_allclose(found.total, expected, rtol=1e-3, atol=1e-3)
    batch = total.batch(tuple(map(jnp.asarray, data)), None, jnp.arange(32))
    rows = jax.jit(total.contributions)(position, batch, factor)
    assert np.max(np.linalg.norm(np.asarray(rows, np.float64), axis=1)) <= clip
    np.testing.assert_allclose(np.sum(rows, axis=0), expected, rtol=1e-3, atol=1e-3)


finite = st.floats(-1e4, 1e4, width=32)
extreme = st.one_of(finite, st.sampled_from([0.0, 1e-40, 1e-30, 1e-20, 1e-10, 1e10, 1e19, 3e38, -3e38]))


@pytest.mark.optimised
@settings(max_examples=50)
@given(
    name=st.sampled_from(
        ["linear", "logistic with intercept", "softmax", "poisson", "negative binomial", "mlp regression"]
    ),
    kind=st.sampled_from(["none", "diagonal", "matrix"]),
    clip=st.sampled_from([1e-3, 0.5, 10.0]),
    x=st.lists(extreme, min_size=D, max_size=D),
    label=st.integers(0, 2),
    value=extreme,
    other=st.lists(extreme, min_size=D, max_size=D),
)
def test_sensitivity_on_real_neighbours(name, kind, clip, x, label, value, other):
    """One record more moves the sum by at most the clip, one replaced by at most twice that, whatever the record."""
    model = MODELS[name]
    label = min(label, 1) if model.name == "logistic_regression" else label
    label = label if model.kind == "classification" else value
    inputs, labels = arrays(model, 6)
    total, sum_of = compiled(name, kind, clip)

    def summed(row, y, last=6):
        data = np.concatenate([inputs, np.array([row], np.float32)]), np.append(labels, np.float32(y))
        return np.asarray(sum_of(*data, np.array([*range(6), last, 7])), np.float64)

    base = summed(x, label, last=7)  # its place stays empty
    with_record, replaced = summed(x, label), summed(other, 0)
    rounding = 1e-6 * (clip * 7 + np.abs(base).max())
    assert np.all(np.isfinite(with_record))
    assert np.linalg.norm(with_record - base) <= total.clip * SENSITIVITY["add-remove"] + rounding
    assert np.linalg.norm(with_record - replaced) <= total.clip * SENSITIVITY["replace-one"] + rounding


@pytest.mark.parametrize("name", ["linear", "softmax", "mlp"])
def test_a_full_batch_one_row_shorter_moves_the_sum_by_at_most_the_clip(name):
    x, y = arrays(MODELS[name], 7)
    total, position = built(MODELS[name], 0.05)
    longer, shorter = (np.asarray(whole(total, (x[:n], y[:n]), position).total, np.float64) for n in (7, 6))
    assert 0.5 * 0.05 < np.linalg.norm(longer - shorter) <= total.clip * SENSITIVITY["add-remove"] + 1e-6


def borderline(n, d=2):
    """Rows whose running sum in single precision sits just above a power of two, where the spacing doubles."""
    k = n // 4
    unit = k * 2.0**-23
    step = 1 - max(2.0**-10, unit)
    m = int((k + 0.75) // step)
    x = np.full((n, d), 1e-4, np.float32)
    x[:, 0] = 1
    y = np.full(n, 0.3 * unit, np.float32)
    y[:m] = -step
    y[m] = -round((k + 0.75 - m * step) / unit) * unit
    return x, y


@pytest.mark.optimised
@pytest.mark.parametrize("n", [256, 400, 512, 4096, 131_072])
@pytest.mark.parametrize("own", [False, True])
def test_rounding_cannot_carry_the_sum_further_than_the_clip(n, own):
    """One record that tips the running sum over a power of two changes the rounding of all that follow."""
    x, y = borderline(n)
    model = models.linear_regression(2)
    if own:
        model = models.from_functions(
            log_prior=model.log_prior, log_likelihood=model.log_likelihood, start={"weights": np.zeros(2)}
        )
    total = clipped_sum(model, 1.0, ravel_pytree({"weights": jnp.zeros(2)})[1], n)
    less = y.copy()
    less[0] = 0
    position = jnp.zeros(2)
    sums = [np.asarray(whole(total, (x, labels), position).total, np.float64) for labels in (y, less)]
    assert np.linalg.norm(sums[0] - sums[1]) <= 1.0


@pytest.mark.optimised
@pytest.mark.parametrize("rows", [8, 40, 352, 400, 512])
@pytest.mark.parametrize("d", [3, 109])
def test_a_record_contributes_the_same_bits_wherever_it_stands(rows, d):
    """Scores at the size of 1e5, where a different rounding would flip a residual."""
    rng = np.random.default_rng(0)
    x = np.tile(rng.normal(size=d).astype(np.float32) * 1e5, (rows, 1))
    model = models.linear_regression(d)
    total = clipped_sum(model, 1.0, ravel_pytree({"weights": jnp.zeros(d)})[1], rows)
    data = (jnp.asarray(x), jnp.zeros(rows, jnp.float32))
    position = jnp.asarray(rng.normal(size=d), jnp.float32)
    found = jax.jit(
        lambda data: total.per_example.residuals(position, total.batch(data, None, jnp.arange(rows)), total.limit)[1]
    )(data)
    assert np.unique(np.asarray(found)).size == 1


@pytest.mark.optimised
@pytest.mark.parametrize("kind", ["logistic", "softmax", "network"])
def test_nor_does_it_matter_how_full_the_batch_is(kind):
    """Whoever is at the end of the places that are always looked at moves behind it when a record comes before."""
    rng = np.random.default_rng(0)
    d = 784 if kind == "network" else 3000
    network = models.mlp((d, 128, 3), "relu")
    model = {"logistic": models.logistic_regression(d), "softmax": models.softmax_regression(d, 10)}.get(kind, network)
    x, y = rng.normal(size=(2, d)).astype(np.float32), np.ones(2, np.float32)
    flat, unravel = ravel_pytree(model.start(jax.random.key(0), (x, y)))
    example = (jax.ShapeDtypeStruct((d,), np.float32), jax.ShapeDtypeStruct((), np.float32))
    total = clipped_sum(model, 1.0, unravel, 104, 88, size=flat.size, example=example)
    position = jnp.asarray(rng.normal(size=flat.size) * 0.03, jnp.float32)

    @jax.jit
    def summed(x, y, rows):
        with jax.default_matmul_precision("highest"):
            return total.over(
                (x, y), total.residual_threshold((x, y)), rows, lambda batch: total(position, batch).total
            )

    places = [np.where(np.arange(104) == place, 1, 2) for place in (87, 88)]
    np.testing.assert_array_equal(*(np.asarray(summed(x, y, rows)) for rows in places))


@pytest.mark.parametrize("n", [300, 700, 1500])
def test_a_large_batch_goes_through_in_chunks(n):
    model = MODELS["logistic"]
    data = arrays(model, n)
    total, position = built(model, 0.5, rows=n)
    likelihood = jax.jit(jax.vmap(jax.grad(likelihood_of(model)), (None, 0, 0)))
    gradients = -np.asarray(likelihood(position, *map(jnp.asarray, data)), np.float64)
    expected = np.sum(gradients * np.minimum(1, 0.5 / np.linalg.norm(gradients, axis=1))[:, None], axis=0)
    np.testing.assert_allclose(whole(total, data, position).total, expected, rtol=1.5e-2, atol=0.05)
    places = jnp.asarray(np.append(np.arange(n), np.full(-n % 512, n)) if n > 400 else np.append(np.arange(n), [n] * 4))
    chosen = whole(total, data, position, rows=places)
    np.testing.assert_allclose(chosen.total, whole(total, data, position).total, rtol=1e-5, atol=1e-4)


def test_the_sensitivity_is_reached():
    """Not only a bound: a record with a long gradient moves the sum by the clip."""
    total, position = built(MODELS["logistic"], 0.5)
    data = (np.full((1, D), 100, np.float32), np.ones(1, np.float32))
    assert np.linalg.norm(whole(total, data, -position * 100).total) == pytest.approx(0.5, rel=1e-3)


def test_empty_places_count_for_nothing_and_an_empty_batch_is_zero():
    total, position = built(MODELS["softmax"], 1.0)
    data = arrays(MODELS["softmax"], 9)
    some = whole(total, data, position, rows=jnp.array([1, 4, 9, 9, 9, 9, 9, 9]))
    alone = whole(total, tuple(array[[1, 4]] for array in data), position)
    np.testing.assert_allclose(some.total, alone.total, rtol=1e-5, atol=1e-6)
    for name, model in MODELS.items():
        total, position = built(model, 1.0)
        empty = whole(total, arrays(model, 9), position, rows=jnp.full(8, 9))
        assert np.all(np.asarray(empty.total) == 0), name
        assert int(empty.ignored) == 0


@pytest.mark.parametrize("n", [20, 700])
@pytest.mark.parametrize("kind", ["diagonal", "matrix"])
def test_without_clipping_the_factor_is_applied_to_the_sum(kind, n):
    model = MODELS["logistic"]
    total, position = built(model, np.inf, rows=n)
    factor = factors(position.size)[kind]
    plain = np.asarray(whole(total, arrays(model, n), position).total)
    expected = plain * factor if kind == "diagonal" else plain @ factor
    np.testing.assert_allclose(whole(total, arrays(model, n), position, factor).total, expected, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_zero_stays_zero():
    total, position = built(MODELS["linear"], 1.0)
    data = (np.zeros((4, D), np.float32), np.ones(4, np.float32))
    assert np.all(np.asarray(whole(total, data, position).total) == 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_contributes_nothing_and_is_counted(bad):
    def log_likelihood(p, x):
        return jnp.where(x > 5, bad, 0.1) * p[0] * x

    total = ClippedSum(per_example=Autodiff(log_likelihood=log_likelihood), clip=10.0, limit=Limit.of(10.0, 8))
    data = (jnp.array([1.0, 7.0, 2.0, 9.0]),)
    found = total(jnp.zeros(1), total.batch(data, None, jnp.arange(8)))
    assert int(found.ignored) == 2
    np.testing.assert_allclose(found.total, [-0.3], rtol=1e-6)


def test_an_infinite_residual_contributes_nothing_and_is_counted():
    total, _ = built(MODELS["poisson"], 1.0)
    data = (np.array([[1, 0, 0], [100, 0, 0]], np.float32), np.zeros(2, np.float32))
    found = whole(total, data, jnp.array([2.0, 0.0, 0.0]))
    assert int(found.ignored) == 1
    np.testing.assert_allclose(found.total, [1.0, 0, 0], rtol=1e-3)


def test_local_sums_add_up_over_shards():
    """Two shards sum their own rows, and one psum joins them."""
    model = MODELS["logistic"]
    data = arrays(model, 10)
    total, position = built(model, 0.5)
    shards = tuple(jnp.asarray(array).reshape(2, 5, *array.shape[1:]) for array in data)

    def local(*shard):
        part = total.over(shard, total.residual_threshold(shard), None, lambda batch: total(position, batch)).total
        return jax.lax.psum(part, "shards")

    joined = jax.vmap(local, axis_name="shards")(*shards)
    np.testing.assert_allclose(joined[0], whole(total, data, position).total, rtol=1e-5, atol=1e-6)


@pytest.mark.optimised
def test_the_gradient_that_is_summed_is_the_one_that_was_measured():
    """Gradients that are all rounding: computed twice, with and without fused products, they were 29,304 clips long."""
    size, rows, rng = 20, 16, np.random.default_rng(3)

    def log_likelihood(w, x):
        s, u = x[0], x[1:]
        return jnp.sum(w * (s * s - u * u - (s - u) * (s + u)))

    prior = lambda w: -jnp.sum(w**2)  # noqa: E731
    model = models.from_functions(log_prior=prior, log_likelihood=log_likelihood, start=jnp.zeros(size))
    flat, unravel = ravel_pytree(jnp.zeros(size))
    example = (jax.ShapeDtypeStruct((1 + size,), np.float32),)
    total = clipped_sum(model, 1.0, unravel, rows, size=size, example=example)

    @jax.jit
    def summed(position, data, present):  # the position is no constant of the program, nor is it in a run
        def one(batch):
            with jax.enable_x64(False), jax.default_matmul_precision("highest"):
                return total(position, batch).total

        return total.over(data, total.residual_threshold(data, present), None, one)

    longest = 0.0
    for k in range(1000):
        x, s = np.zeros((rows, 1 + size), np.float32), rng.uniform(1e5, 1e6)
        x[3, 0], x[3, 1:] = s, s * rng.uniform(0.5, 1.5) if k % 2 else s + rng.integers(-50, 50)
        with jax.enable_x64(True):
            found = np.asarray(summed(flat, (jnp.asarray(x),), jnp.asarray(np.arange(rows) == 3)), np.float64)
        longest = max(longest, float(np.linalg.norm(found)))
    assert 0.5 < longest <= 1
