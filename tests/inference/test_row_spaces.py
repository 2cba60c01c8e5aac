"""Relations of rows that are public: what is known of their moments, and draws where no record tells anything."""

import json

import numpy as np
import pytest

import confide
from confide import Refused, models
from confide.inference import release_check
from confide.inference.release import Release
from confide.inference.row_spaces import row_space

BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
LEVELS = ((1, 2, 3), (4, 5, 6, 7))
CATEGORIES = [[0, 1, 2], [3, 4, 5, 6]]  # the same as columns


def table(n=1500, seed=0, numbers=1):
    """Two categories with unequal shares and a number, in columns, and outcomes."""
    rng = np.random.default_rng(seed)
    blocks = [np.eye(len(each))[rng.choice(len(each), n, p=share(len(each)))] for each in LEVELS]
    x = np.concatenate([*blocks, rng.uniform(-1, 1, (n, numbers))], axis=1)
    s = x @ np.linspace(-1, 1, x.shape[1]) - 0.3
    return x.astype(np.float32), (rng.random(n) < 1 / (1 + np.exp(-s))).astype(np.float32)


def share(levels):
    shares = 1 / np.arange(1.0, levels + 1)
    return shares / shares.sum()


def fit(data=None, **more):
    data = table() if data is None else data
    model = more.pop("model", None) or models.logistic_regression(data[0].shape[1], intercept=True)
    sampler = confide.scoring(more.pop("draws", 4000), categories=more.pop("categories", CATEGORIES))
    return confide.fit(model, data, BUDGET, sampler, key=1, verbose=False, progress=False, **more)


@pytest.mark.parametrize("constant", [0, None])
def test_rows_are_told_by_the_coordinates_of_their_space(constant):
    x, _ = table()
    z, categories = np.column_stack([np.ones(len(x)), x]), LEVELS if constant == 0 else ((0,), *LEVELS)
    space = row_space(z.shape[1], constant, categories)
    inside = z @ space.inward
    assert space.size == z.shape[1] - 2
    assert inside @ space.outward.T == pytest.approx(z, abs=1e-12)
    assert z @ space.nothing == pytest.approx(0, abs=1e-12)
    assert space.outward.T @ space.inward == pytest.approx(np.eye(space.size), abs=1e-12)
    assert space.embedding.T @ space.embedding == pytest.approx(np.eye(space.size), abs=1e-12)
    assert np.sum(z**2, axis=1) - np.sum(inside**2, axis=1) == pytest.approx(space.shortened, abs=1e-9)
    if constant == 0:
        assert inside[:, 0] == pytest.approx(1)
    assert row_space(5, 0, ()) is None
    assert row_space(5, None, ((1, 2),)) is None  # one category by itself is in no relation


def test_moments_of_categories_are_kept_and_others_are_brought_near():
    x, _ = table()
    z, rng = np.column_stack([np.ones(len(x)), x]), np.random.default_rng(1)
    space, second = row_space(z.shape[1], 0, LEVELS), z.T @ z / len(z)
    assert space.keep_structure(second) == pytest.approx(second, abs=1e-12)
    noise = rng.normal(size=second.shape)
    noisy = second + (noise + noise.T) / 2
    found = space.keep_structure(noisy)
    assert space.keep_structure(found) == pytest.approx(found, abs=1e-6)
    away = noisy - found  # at right angles to what can be, among which is the truth
    assert np.sum(away * (found - second)) == pytest.approx(0, abs=1e-5)
    assert np.linalg.norm(found - second) < 0.8 * np.linalg.norm(noisy - second)
    assert found[1, 2] == pytest.approx(0, abs=1e-6)
    assert found[1, 1] == pytest.approx(found[0, 1], abs=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_draws_are_the_priors_where_no_record_tells_anything(scale):
    """Means and standard deviations of 4,000 draws along what all levels of a category have apart from the constant,
    within 6%: more than five standard errors of the latter."""
    data = table()
    model = models.logistic_regression(data[0].shape[1], scale, intercept=True)
    nothing = row_space(data[0].shape[1] + 1, 0, LEVELS).nothing

    found = fit(data, model=model)
    along = np.column_stack([found.draws["intercept"][0], found.draws["weights"][0]]) @ nothing
    assert along.std(axis=0) / scale == pytest.approx(1, abs=0.06)
    assert along.mean(axis=0) / scale == pytest.approx(0, abs=0.06)


@pytest.mark.long
def test_softmax_and_other_priors_have_spaces_too():
    x, y = table()
    laplace = fit(model=models.logistic_regression(x.shape[1], 0.5, prior="laplace", intercept=True), draws=200)
    assert release_check.check(laplace) == release_check.EXACT
    model = models.softmax_regression(x.shape[1], 3, intercept=True)
    found = fit((x, np.minimum(y + (x[:, 0] > 0), 2)), model=model, draws=200)
    assert found.draws["weights"].shape == (1, 200, x.shape[1], 3)
    assert release_check.check(found) == release_check.EXACT
    wide = fit(model=models.logistic_regression(x.shape[1], intercept=True, prior="wide_intercept"))
    nothing = row_space(x.shape[1] + 1, 0, LEVELS).nothing
    flat = np.column_stack([wide.draws["intercept"][0], wide.draws["weights"][0]])
    prior = np.diag([25.0, *[1.0] * x.shape[1]])
    assert np.all((flat @ nothing).std(axis=0) < np.sqrt(np.diag(nothing.T @ prior @ nothing)))


def test_a_release_with_categories_makes_its_draws_again(tmp_path):
    found = fit(draws=300)
    again = Release.from_json(json.loads(json.dumps(found.release.to_json())))
    assert again.draw(300).tolist() == found.release.draw(300).tolist()
    loaded = confide.Posterior.load(found.save(tmp_path / "run"))
    assert release_check.check(loaded) == release_check.EXACT
    assert loaded.plan["categories"] == CATEGORIES


def test_canaries_and_secure_noise_go_with_categories():
    found = fit(canaries=200, draws=200)
    assert not confide.audit(found).violated
    x, y = table(300)
    secure = confide.fit(
        models.logistic_regression(x.shape[1], intercept=True),
        (x, y),
        BUDGET,
        confide.scoring(200, categories=CATEGORIES),
        noise="secure",
        verbose=False,
        progress=False,
    )
    assert release_check.check(secure) == release_check.EXACT


def test_a_record_outside_of_its_category_changes_no_shape_and_no_refusal():
    x, y = table(300)
    x[7, :7] = 0.0
    x[8, :7] = 5.0
    found = fit((x, y), draws=100)
    assert np.all(np.isfinite(found.draws["weights"]))


@pytest.mark.parametrize(
    ("categories", "said"),
    [
        ([[0, 1], [1, 2]], "twice"),
        ([0, 1], "list of lists"),
        ([[0, 1.5]], "no column"),
        ([[]], "no column"),
        ([[0, 99]], "count from 0"),
        ([[-1, 0]], "count from 0"),
    ],
)
def test_categories_that_are_none_are_refused_before_the_charge(categories, said):
    with pytest.raises(Refused, match=said):
        fit(categories=categories, draws=50)


def test_the_constant_is_no_level():
    x, y = table(200)
    x = np.column_stack([x, np.ones(len(x))])
    with pytest.raises(Refused, match="holds the constant"):
        confide.fit(
            models.logistic_regression(x.shape[1]),
            (x, y),
            BUDGET,
            confide.scoring(constant=-1, categories=[[0, 1, 2, 8]]),
            verbose=False,
        )
