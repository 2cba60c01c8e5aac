"""The posterior: predictions, ArviZ, and that what is saved holds nothing that was not paid for."""

import functools
import json

import arviz
import jax
import numpy as np
import pytest

import confide
from confide import Posterior, Refused, models

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)).astype(np.float32)
W = np.array([1.0, -2.0, 0.5])
KEY = 0x1234_5678_9ABC_DEF0
BUDGET = confide.Budget(epsilon=3.0, delta=1e-5)
OUTCOMES = {
    "linear_regression": (models.linear_regression(3), X @ W + RNG.normal(size=300)),
    "logistic_regression": (models.logistic_regression(3), (X @ W > 0).astype(float)),
    "softmax_regression": (models.softmax_regression(3, 3, intercept=True), np.digitize(X @ W, [-1, 1])),
    "poisson_regression": (models.poisson_regression(3), RNG.poisson(np.exp(0.3 * X[:, 0]))),
    "mlp": (models.mlp((3, 4, 2)), (X @ W > 0).astype(int)),
    "mlp regression": (models.mlp((3, 4, 1)), X @ W),
}


@functools.cache
def fitted_to(name):
    model, y = OUTCOMES[name]
    return confide.fit(model, (X, y), BUDGET, confide.sgld(), steps=300, chains=2, key=KEY, verbose=False)


@pytest.fixture(
    params=[
        pytest.param(
            name, marks=[pytest.mark.long] if name not in ("logistic_regression", "softmax_regression") else []
        )
        for name in OUTCOMES
    ]
)
def fitted(request):
    return fitted_to(request.param)


def test_predictions_have_their_shapes_and_meaning(fitted):
    rows = X[:7]
    if fitted.model.kind == "classification":
        probabilities = fitted.predict_proba(rows)
        assert probabilities.shape[0] == 7
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert np.array_equal(fitted.predict(rows), probabilities.argmax(axis=1))
        intervals = fitted.interval(rows)
        assert intervals.shape == (*probabilities.shape, 2)
        inside = (intervals[..., 0] <= probabilities) & (probabilities <= intervals[..., 1])
        assert inside.mean() > 0.9
    else:
        with pytest.raises(Refused, match="no labels"):
            fitted.predict_proba(rows)
        mean = fitted.predict(rows)
        intervals = fitted.interval(rows, probability=0.99)
        assert intervals.shape == (7, 2)
        assert np.all(intervals[:, 0] <= mean + 1e-3)
        assert np.all(mean <= intervals[:, 1] + 1e-3)


def test_the_mean_is_the_mean_over_draws():
    found = fitted_to("logistic_regression")
    scores = np.einsum("cdi,ni->cdn", found.draws["weights"], X[:5])
    expected = (1 / (1 + np.exp(-scores))).mean(axis=(0, 1))
    np.testing.assert_allclose(found.predict_proba(X[:5])[:, 1], expected, rtol=1e-4)


@pytest.mark.long
def test_predictive_intervals_cover():
    model = models.linear_regression(3, noise_scale=1.0)
    y = X @ W + RNG.normal(size=300)
    found = confide.fit(
        model,
        (X, y),
        confide.Budget(epsilon=50.0, delta=1e-3),
        confide.sgld(),
        clip=5.0,
        steps=3000,
        key=2,
        verbose=False,
    )
    low, high = found.interval(X, 0.9).T
    assert 0.8 < np.mean((low <= y) & (y <= high)) < 0.98


def test_arviz_takes_it(fitted):
    data = fitted.to_arviz()
    assert isinstance(data, arviz.InferenceData)
    assert dict(data.posterior.sizes)["chain"] == 2
    assert json.loads(data.posterior.attrs["guarantee"])["epsilon"] == fitted.guarantee.epsilon
    table = fitted.summary()
    assert {"mean", "sd", "ess_bulk", "r_hat"} <= set(table.columns)


def test_saved_and_loaded_it_is_the_same(fitted, tmp_path):
    path = fitted.save(tmp_path / "run")
    loaded = Posterior.load(path)
    assert jax.tree.structure(loaded.draws) == jax.tree.structure(fitted.draws)
    for one, two in zip(jax.tree.leaves(loaded.draws), jax.tree.leaves(fitted.draws), strict=True):
        assert np.array_equal(one, two)
    assert loaded.guarantee == fitted.guarantee
    assert loaded.plan == fitted.plan
    assert np.array_equal(loaded.predict(X[:5]), fitted.predict(X[:5]))
    assert confide.verify(loaded.guarantee) <= BUDGET.epsilon
    with pytest.raises(Refused, match="exists"):
        fitted.save(path)


def test_a_saved_posterior_holds_no_record_no_key_and_nothing_unpaid(fitted, tmp_path):
    """Rows, columns and labels in either precision, their sums and means, and the key, searched for in every byte."""
    path = fitted.save(tmp_path / "run")
    content = b"".join(file.read_bytes() for file in sorted(path.iterdir()))
    assert len(content) > 1000
    y = (
        OUTCOMES[
            {"mlp": "mlp" if fitted.model.settings["sizes"][-1] > 1 else "mlp regression"}.get(
                fitted.model.name, fitted.model.name
            )
        ][1]
        if fitted.model.name == "mlp"
        else OUTCOMES[fitted.model.name][1]
    )
    for kind in (np.float32, np.float64):
        for row in X.astype(kind):
            assert row[:2].tobytes() not in content
        for column in X.T.astype(kind):
            assert np.ascontiguousarray(column[:3]).tobytes() not in content
        assert np.ascontiguousarray(y[:16]).astype(kind).tobytes() not in content
    text = (path / "plan.json").read_text()
    assert str(float(X.mean())) not in text
    assert str(KEY) not in text
    words = np.array([KEY >> 32, KEY & 0xFFFFFFFF], np.uint32)
    for secret in (KEY.to_bytes(8, "little"), KEY.to_bytes(8, "big"), words.tobytes()):
        assert secret not in content
        assert secret.hex().encode() not in content
    record = json.loads(text)
    assert set(record) == {"format", "plan", "model", "variables"}
    public = {
        "model", "sampler", "step_size", "schedule", "temperature", "records", "parameters", "steps", "chains",
        "batch_size", "clip", "last_step_size", "diffusion_time", "burn_in", "thin", "draws", "noise", "mechanism",
        "budget", "epsilon", "request", "prior_scale", "arrays", "clipping", "row_bound", "information",
        "scale", "lag_one",  # the scale is paid for, and the other is a function of what is released
    }  # fmt: skip
    assert set(record["plan"]) <= public


def test_the_object_holds_no_reference_to_the_data():
    """What the garbage collector can reach from a posterior contains no array as long as the data."""
    import gc

    x = np.random.default_rng(5).normal(size=(777, 3)).astype(np.float32)
    found = confide.fit(
        models.logistic_regression(3), (x, (x[:, 0] > 0) * 1.0), BUDGET, confide.sgld(), steps=100, verbose=False
    )
    seen, queue = set(), [found]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type) or type(item).__name__ in ("module", "frame"):
            continue
        seen.add(id(item))
        assert 777 not in (getattr(item, "shape", None) or ()), type(item)
        queue += [
            child for child in gc.get_referents(item) if not isinstance(child, dict) or "__builtins__" not in child
        ]
    assert len(seen) > 50


def test_models_of_the_users_own_must_be_given_again(tmp_path):
    model = models.from_functions(
        log_prior=lambda p: -0.5 * (p["a"] ** 2 + p["b"][0] ** 2),
        log_likelihood=lambda p, x: -0.5 * (x - p["a"] - p["b"][0]) ** 2,
        start={"a": 0.0, "b": [np.zeros(())]},
        predict=lambda p, x: x * 0 + p["a"],
        kind="regression",
    )
    found = confide.fit(model, (X[:, 0],), BUDGET, confide.sgld(), steps=100, verbose=False)
    path = found.save(tmp_path / "own")
    loaded = Posterior.load(path)
    assert np.array_equal(loaded.draws["b"][0], found.draws["b"][0])
    with pytest.raises(Refused, match="model="):
        loaded.predict(X[:, 0])
    assert Posterior.load(path, model=model).predict(X[:4, 0]).shape == (4,)
    with pytest.raises(Refused, match="simulate"):
        found.interval(X[:4, 0])


def test_awkward_names_and_numbers_survive_a_file(tmp_path):
    """Names that collide, or that the file's format does not allow, and settings given as NumPy scalars."""
    start = {"a.b": 0.0, "a": {"b": 0.0}, "net/w": 0.0, "draw": 0.0, "list": [0.0, 0.0]}
    model = models.from_functions(
        log_prior=lambda p: -0.5 * sum(leaf**2 for leaf in jax.tree.leaves(p)),
        log_likelihood=lambda p, x: -0.5 * (x - p["draw"]) ** 2,
        start=start,
    )
    settings = {"clip": np.float32(1.0), "sampler": confide.sgld(temperature=np.float32(1.0))}
    found = confide.fit(model, (X[:, 0],), BUDGET, steps=50, verbose=False, **settings)
    assert len(found.summary()) == 6
    loaded = Posterior.load(found.save(tmp_path / "names"))
    assert jax.tree.structure(loaded.draws) == jax.tree.structure(found.draws)
    assert np.array_equal(loaded.draws["a"]["b"], found.draws["a"]["b"])


def test_what_is_not_a_posterior_is_refused(tmp_path):
    with pytest.raises(Refused, match="does not hold a posterior"):
        Posterior.load(tmp_path)
    (tmp_path / "file").write_text("")
    found = fitted_to("logistic_regression")
    with pytest.raises(Refused, match="exists"):
        found.save(tmp_path / "file")
    for bad in (X[:, :2], X[0], np.full((2, 3), np.nan), "text"):
        with pytest.raises(Refused, match="X"):
            found.predict(bad)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing half written
