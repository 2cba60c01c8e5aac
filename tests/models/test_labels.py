"""Labels that are declared: which class each stands for, in whatever holds them, and what becomes of others."""

import math
import pickle

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import confide
from confide import Refused, models
from confide.models import inputs, labels

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2)).astype(np.float32)
Y = (RNG.random(400) < 1 / (1 + np.exp(-X @ [3.0, -1.0]))).astype(int)
BUDGET = confide.Budget(epsilon=4.0, delta=1e-4)
LABELS = [(0, 1), (1, 2), (2, 1), (-1, 1), ("no", "yes"), (False, True), (0.5, 1.5), ("1", 1)]


def weights(model, y, **more):
    found = confide.fit(model, (X, y), BUDGET, key=5, verbose=False, **more)
    return found, np.asarray(found.draws["weights"])


@pytest.mark.parametrize("declared", [(1, 2), ("no", "yes"), (2, 1)])
def test_declared_labels_lose_no_record(declared):
    """Before, labels 1 and 2 of a logistic model left out every 2."""
    y = np.array(declared, object)[Y] if isinstance(declared[0], str) else np.array(declared)[Y]
    model = models.logistic_regression(2, classes=declared)
    assert confide.outside(model, (X, y)).size == 0
    table, usual = inputs.place_records(model, (X, y)), inputs.place_records(models.logistic_regression(2), (X, Y))
    assert all(np.array_equal(one, other) for one, other in zip(table.arrays, usual.arrays, strict=True))
    found, drawn = weights(model, y)
    assert drawn.mean(axis=(0, 1))[0] > 1
    assert np.mean(found.predict(X) == y) > 0.8
    assert found.predict(X).dtype == np.array(declared).dtype
    again = pickle.loads(pickle.dumps(found))
    assert again.model.labels == declared
    assert np.array_equal(again.predict(X[:9]), found.predict(X[:9]))


def test_labels_that_are_not_declared_count_as_absent_and_are_shown():
    plain = models.logistic_regression(2)
    assert confide.outside(plain, (X, Y + 1)).tolist() == np.flatnonzero(Y == 1).tolist()
    declared = models.logistic_regression(2, classes=(1, 2))
    assert confide.outside(declared, (X, Y)).tolist() == np.flatnonzero(Y == 0).tolist()


HOLDERS = {
    "array": np.array,
    "objects": lambda values: np.array(values, object),
    "list": list,
    "series": pandas.Series,
    "masked": lambda values: np.ma.masked_array(values, np.zeros(len(values), bool)),
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LABELS),
    st.lists(st.sampled_from([0, 1, 2, -1, 1.0, 2.0, 0.5, 1.5, math.nan, True, False]), min_size=1, max_size=9),
    st.sampled_from(sorted(HOLDERS)),
)
def test_each_label_is_read_by_itself_whatever_holds_it(declared, values, holder):
    """A reference that compares one value at a time."""
    expected = [
        next((float(i) for i, label in enumerate(declared) if not isinstance(label, str) and label == value), math.nan)
        for value in values
    ]
    found = labels.to_numbers(declared, HOLDERS[holder](values))
    assert np.array_equal(found, expected, equal_nan=True)


def test_texts_and_missing_values_of_pandas():
    series = pandas.Series(["yes", None, "no", "maybe"])
    for given_ in (series, series.astype("string"), series.astype("category"), series.tolist()):
        assert labels.to_numbers(("no", "yes"), given_).tolist()[::2] == [1, 0]
        assert np.isnan(labels.to_numbers(("no", "yes"), given_)[[1, 3]]).all()


BUILDERS = {
    "logistic": lambda classes: models.logistic_regression(2, classes=classes),
    "softmax": lambda classes: models.softmax_regression(2, classes),
    "mlp": lambda classes: models.mlp((2, 3, len(classes)), classes=classes),
    "cnn": lambda classes: models.cnn((28, 28, 1), classes),
    "resnet18": lambda classes: models.resnet18(1, (8, 8, 1), classes),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_models_keep_their_labels_when_they_are_stored(name):
    model = BUILDERS[name](("b", "a"))
    assert models.rebuilt(model.name, model.settings).labels == model.labels == ("b", "a")
    usual = {"logistic": 2, "softmax": 2, "mlp": 2}.get(name)
    if usual:
        table = inputs.place_records(model, (X[:4], ["a", "b", "c", "a"]))
        assert table.arrays[1][:4].tolist() == [1, 0, 0, 1]
        assert table.present[:4].tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("build", "said"),
    {
        "one": (lambda: models.logistic_regression(2, classes=[1]), "1 label"),
        "three": (lambda: models.logistic_regression(2, classes=[1, 2, 3]), "softmax_regression"),
        "twice": (lambda: models.softmax_regression(2, [1, 1.0]), "twice"),
        "text": (lambda: models.softmax_regression(2, "ab"), "not a list"),
        "nan": (lambda: models.logistic_regression(2, classes=[0, math.nan]), "no label"),
        "outputs": (lambda: models.mlp((2, 3, 3), classes=["a", "b"]), "for 3 outputs"),
        "semi": (lambda: models.semi_supervised(models.mlp((2, 2), classes=[1, 2])), "leave classes out"),
    }.values(),
)
def test_labels_that_cannot_be_are_refused_in_one_line(build, said):
    with pytest.raises(Refused, match=said) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_rehearsal_makes_up_labels_that_are_declared():
    found, _ = weights(models.logistic_regression(2, classes=("no", "yes")), np.array(["no", "yes"])[Y])
    usual, _ = weights(models.logistic_regression(2), Y)
    assert np.allclose(
        confide.rehearse(found, datasets=2).truths.shape, confide.rehearse(usual, datasets=2).truths.shape
    )
    seen = confide.rehearse(found, datasets=2)
    assert np.abs(seen.means).max() > 0.5  # a table whose labels are none of the declared ones would teach nothing


@pytest.mark.parametrize("declared", [[1, 2], ["no", "yes"], [1.0, 2.0]])
def test_estimators_take_the_same_labels(declared):
    y = pandas.Series(np.array(declared)[Y])
    fitted = confide.PrivateLogisticRegression(
        epsilon=4.0, delta=1e-4, bounds=(-3, 3), classes=declared, random_state=1
    )
    assert fitted.fit(X, y).score(X, y) > 0.8
    y = y.astype(object)
    y[0] = np.nan
    if not isinstance(declared[0], str):
        y = y.astype(float)  # as pandas has it
    assert fitted.fit(X, y).score(X[1:], y[1:]) > 0.8
