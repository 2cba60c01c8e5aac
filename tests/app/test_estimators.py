"""The estimators: scikit-learn's own checks, public bounds, units, folds that pay, and nothing kept of the records."""

import gc
import pickle
import weakref

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.estimator_checks import check_estimator

import confide
import confide.inference.fitting
from confide import PrivateLinearRegression, PrivateLogisticRegression, PrivateSoftmaxClassifier, Refused
from confide.app import estimators
from confide.app.estimators.linear import REPEATERS
from confide.data.bounds import check_bounds

RNG = np.random.default_rng(0)
N = 400
X = np.column_stack([RNG.uniform(0, 100, N), RNG.uniform(-1, 1, N)])
SCORE = (X[:, 0] - 50) / 10 + 2 * X[:, 1]
Y = np.where(SCORE > 0, "ill", "well")
THREE = np.digitize(SCORE, [-2, 2])
TARGET = 200 + 3 * X[:, 0] - 40 * X[:, 1] + RNG.normal(0, 20, N)
BOUNDS = ([0, -1], [100, 1])
SGLD = {"sampler": confide.sgld()}
SETTINGS = {"epsilon": 8.0, "bounds": BOUNDS, "steps": 1000, "batch_size": N, "random_state": 7} | SGLD


def logistic(**more):
    return PrivateLogisticRegression(**SETTINGS | {"classes": ["ill", "well"]} | more)


def softmax(**more):
    return PrivateSoftmaxClassifier(**SETTINGS | {"classes": [0, 1, 2, 9]} | more)


def linear(**more):
    return PrivateLinearRegression(**SETTINGS | {"target_bounds": (100, 600), "noise_scale": 20.0} | more)


@pytest.fixture(scope="module", autouse=True)
def little_optimised():
    """The tests compile programs for some twenty shapes, scikit-learn's for fifteen each, and run them for a moment."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def ill():
    return logistic().fit(X, Y)


@pytest.fixture(scope="module")
def three():
    return softmax().fit(X, THREE)


@pytest.fixture(scope="module")
def cost():
    return linear(steps=4000).fit(X, TARGET)


# scikit-learn's own checks, all but those that ask for a refusal at the sight of one record.

ABSENT = "in a fit, a record that holds what is no number counts as absent, and refuses nothing"
EXCUSED = {"check_estimators_nan_inf": ABSENT, "check_supervised_y_no_nan": ABSENT}
CHECKED = {"epsilon": 1000.0, "bounds": (-4, 4), "steps": 100} | SGLD


def conforms(estimator, legacy=True):
    results = check_estimator(estimator, expected_failed_checks=EXCUSED, legacy=legacy, on_skip=None)
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    others = {result["check_name"] for result in results} - passed
    assert others <= {"check_array_api_input", *EXCUSED}  # the first needs an environment variable of SciPy's
    return passed


@pytest.mark.long
def test_the_softmax_classifier_passes_every_check():
    assert len(conforms(PrivateSoftmaxClassifier(classes="from-data", **CHECKED))) > 45


@pytest.mark.long
def test_the_linear_regression_passes_every_check():
    assert len(conforms(PrivateLinearRegression(target_bounds=(-4, 4), **CHECKED))) > 45


@pytest.mark.long
def test_the_logistic_regression_passes_every_check():
    assert len(conforms(PrivateLogisticRegression(classes="from-data", **CHECKED))) > 45


@pytest.mark.long
def test_estimators_pass_the_checks_of_the_interface():
    conforms(PrivateLogisticRegression(classes="from-data", **CHECKED), legacy=False)
    conforms(PrivateLinearRegression(target_bounds=(-4, 4), **CHECKED), legacy=False)


# What is learnt, in the units of the data.


def test_classifiers_learn_within_the_budget(ill, three):
    assert ill.score(X, Y) > 0.85
    assert ill.guarantee_.epsilon <= 8.0
    assert confide.verify(ill.guarantee_) <= 8.0
    assert list(ill.classes_) == ["ill", "well"]
    assert ill.predict_proba(X).shape == (N, 2)
    assert three.score(X, THREE) > 0.7
    assert three.coef_.shape == (4, 2)
    assert three.intercept_.shape == (4,)


def test_probabilities_are_those_of_the_posterior(ill, three):
    rows = np.column_stack([X[:, 0] / 50 - 1, X[:, 1], np.ones(N)])
    assert np.allclose(ill.predict_proba(X), ill.posterior_.predict_proba(rows), atol=1e-5)
    assert np.allclose(three.predict_proba(X), three.posterior_.predict_proba(rows), atol=1e-5)


def test_coefficients_are_in_the_units_of_the_features(ill, cost):
    rows = np.column_stack([X[:, 0] / 50 - 1, X[:, 1], np.ones(N)])
    means = ill.posterior_.draws["weights"].mean(axis=(0, 1), dtype=np.float64)
    assert np.allclose(X @ ill.coef_.T + ill.intercept_, (rows @ means)[:, None], atol=1e-5)
    assert np.allclose(X @ cost.coef_ + cost.intercept_, cost.predict(X))
    assert np.allclose(cost.coef_, [3, -40], rtol=0.3)
    assert cost.score(X, TARGET) > 0.85


def test_intervals_hold_the_target_about_as_often_as_they_say(cost):
    low, high = cost.predict_interval(X, probability=0.8).T
    assert np.all(low < high)
    assert 0.75 < np.mean((low < TARGET) & (high > TARGET)) < 0.95


def test_the_noise_scale_is_in_the_unit_of_the_target(cost):
    assert cost.posterior_.model.settings["noise_scale"] == 20 / 250


def test_values_beyond_the_bounds_count_as_the_bounds(ill):
    beyond = [[1e9, 0.5], [-1e300, 0.5]]
    assert np.array_equal(ill.predict_proba(beyond), ill.predict_proba([[100, 0.5], [0, 0.5]]))


def test_the_names_of_columns_are_kept():
    table = pd.DataFrame(X, columns=["age", "marker"])
    fitted = logistic(noise="secure", random_state=None).fit(table, pd.Series(Y))
    assert list(fitted.feature_names_in_) == ["age", "marker"]


# Nothing is learnt unpaid.

BAD = {
    "no bounds": (logistic, {"bounds": None}, "bounds is missing: nothing is learnt from the data unpaid"),
    "no classes": (logistic, {"classes": None}, "classes is missing: nothing is learnt from the data unpaid"),
    "no bounds of the target": (linear, {"target_bounds": None}, "target_bounds is missing"),
    "low above high": (logistic, {"bounds": ([0, 1], [100, -1])}, "low = 1 and high = -1: give low < high"),
    "equal bounds": (linear, {"target_bounds": (3, 3)}, "give low < high"),
    "wrong length": (logistic, {"bounds": ([0, 0, 0], 1)}, "give one number, or one for each of 2"),
    "missing bound": (logistic, {"bounds": (0, [1, np.nan])}, "missing or not finite"),
    "no pair": (logistic, {"bounds": 3}, "not a pair"),
    "three ends": (logistic, {"bounds": (0, 1, 2)}, "not a pair"),
    "text": (logistic, {"bounds": ("low", "high")}, "not a pair"),
    "one class": (logistic, {"classes": ["ill"]}, "1 class"),
    "word": (logistic, {"classes": "from-afar"}, "classes = 'from-afar'"),
    "mixed classes": (logistic, {"classes": [["ill"], 1]}, "classes is not a list"),
    "three classes": (logistic, {"classes": ["ill", "well", "dead"]}, "Only binary classification"),
    "epsilon": (linear, {"epsilon": -1}, "epsilon = -1"),
    "delta": (linear, {"delta": 0.0}, "delta = 0"),
    "neighbours": (linear, {"neighbours": "next door"}, "neighbours"),
    "noise scale": (linear, {"noise_scale": -1.0}, "noise_scale"),
    "prior": (softmax, {"prior_scale": 0.0}, "prior_scale"),
    "secure and repeatable": (linear, {"noise": "secure"}, "leave random_state out"),
    "random state": (linear, {"random_state": "secret"}, "random_state is not a whole number"),
    "sampler": (linear, {"sampler": "sgld"}, "sampler"),
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    made = confide.Ledger.create(tmp_path_factory.mktemp("ledger") / "ledger.db")
    made.enter("patients", confide.Budget(epsilon=10.0, delta=1e-4))
    return made


@pytest.mark.parametrize("case", BAD)
def test_what_is_bad_is_refused_before_the_charge(case, ledger):
    build, more, message = BAD[case]
    target = TARGET if build is linear else THREE if build is softmax else Y
    spent = len(ledger.history("patients"))
    with pytest.raises(Refused, match=message) as caught:
        build(ledger=ledger, **more).fit(X, target)
    assert "\n" not in str(caught.value)
    assert len(ledger.history("patients")) == spent


def test_data_that_scikit_learn_refuses_is_not_charged(ledger):
    spent = len(ledger.history("patients"))
    for rows, labels in ((X[:, 0], Y), (X, Y[1:]), ([["young", 1]] * N, Y), (X, None)):
        with pytest.raises(ValueError, match=r"2D|inconsistent|not numeric|requires y"):
            logistic(ledger=ledger).fit(rows, labels)
    assert len(ledger.history("patients")) == spent


@pytest.mark.parametrize("build", [logistic, softmax, linear])
def test_what_no_record_can_be_counts_as_absent(build, monkeypatch):
    """Missing, infinite, of no class: the place stays, and nothing of the record is left in it."""
    seen = []

    def infer(options, present):
        seen.append((*options.data, present, options.records))
        raise Refused("enough")

    monkeypatch.setattr(confide.inference.fitting, "infer", infer)
    rows, target = X.copy(), (TARGET if build is linear else THREE if build is softmax else Y).astype(object)
    rows[3, 0], rows[5, 1], rows[8, 0] = np.nan, np.inf, 1e308
    target[11] = np.nan if build is linear else 10**400
    for given in (rows, rows.tolist()):
        with pytest.raises(Refused, match="enough"):
            build().fit(given, target)
        design, labels, present, records = seen[-1]
        assert np.flatnonzero(~present).tolist() == [3, 5, 11]
        assert not design[~present].any()
        assert not labels[~present].any()
        assert design[8].tolist() == [1.0, np.float32(rows[8, 1]), 1.0]
        assert records == N
    with pytest.raises(Refused, match="enough"):
        build(records=1000).fit(np.zeros((0, 2)), [])
    assert seen[-1][3] == 1000
    assert seen[-1][0].shape == (0, 3)


def seen_by(monkeypatch, model, rows, target):
    """What the learning is given: the design, the target, and which records are present."""
    seen = []

    def infer(options, present):
        seen.extend([*options.data, present])
        raise Refused("enough")

    with monkeypatch.context() as patched:
        patched.setattr(confide.inference.fitting, "infer", infer)
        with pytest.raises(Refused, match="enough"):
            model.fit(rows, target)
    return seen


OTHER_ROWS = {
    "frame of objects": lambda: pd.DataFrame({"age": [1, 2, 10**400, 4], "marker": [1.0] * 4}),
    "missing and huge": lambda: pd.DataFrame({"age": [1, None, 10**400, 4], "marker": [1.0, 0, 1, 1]}, dtype=object),
    "order of Fortran": lambda: np.array([[1, 1], [2, 1], [-(10**400), 1], [4, 1]], object, order="F"),
    "category": lambda: pd.DataFrame({"age": pd.Categorical([1, 2, None, 4]), "marker": [1] * 4}),
    "nullable": lambda: pd.DataFrame({"age": pd.array([1, 2, None, 4], "Int64"), "marker": [1] * 4}),
    "list with a missing value": lambda: [[1, 1], [2, 1], [pd.NA, 1], [4, 1]],
    "masked": lambda: np.ma.array([[1, 1], [2, 1], [3, 1], [4, 1]], mask=[[0, 0], [0, 0], [1, 0], [0, 0]]),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_missing_and_huge_features_are_absent_in_whatever_holds_them(name, monkeypatch):
    rows = OTHER_ROWS[name]()
    absent = [1, 2] if name == "missing and huge" else [2]
    design, target, present = seen_by(monkeypatch, logistic(), rows, ["ill", "well", "ill", "well"])
    plain = seen_by(monkeypatch, logistic(), [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]], ["ill", "well"] * 2)
    assert np.flatnonzero(~present).tolist() == absent
    assert np.array_equal(design[present], plain[0][present])
    assert np.array_equal(target[present], plain[1][present])
    assert not design[absent].any()


def test_names_of_columns_are_kept_of_a_frame_with_a_huge_number():
    table = pd.DataFrame({"age": X[:, 0], "marker": X[:, 1]}, dtype=object)
    table.iloc[3, 0] = 10**400
    assert list(logistic(steps=20).fit(table, Y).feature_names_in_) == ["age", "marker"]


OTHER_TARGETS = {
    "ragged": [[0], [1], [1, 0], [1]],
    "array in a list": [0, 1, np.array([1, 0]), 1],
    "tuple": [0, 1, (0, 1), 1],
    "nullable": pd.Series([0, 1, None, 1], dtype="Int64"),
    "category": pd.Series([0, 1, None, 1], dtype="category"),
    "masked": np.ma.array([0, 1, 0, 1], mask=[0, 0, 1, 0]),
    "huge": [0, 1, 10**400, 1],
}


@pytest.mark.parametrize("name", OTHER_TARGETS)
@pytest.mark.parametrize("build", [logistic, linear])
def test_a_target_that_is_none_is_absent_and_leaves_the_others(build, name, monkeypatch):
    more = {"target_bounds": (0, 1)} if build is linear else {"classes": [0, 1]}
    rows = X[:4]
    for given, absent in ((OTHER_TARGETS[name], [2]), ([[0], [1], [0], [1]], [])):
        design, target, present = seen_by(monkeypatch, build(**more), rows, given)
        assert np.flatnonzero(~present).tolist() == absent
        plain = seen_by(monkeypatch, build(**more), rows, np.array([0, 1, 0, 1]))
        assert np.array_equal(design[present], plain[0][present])
        assert np.array_equal(target[present], plain[1][present])


def test_a_word_among_numbers_is_refused_and_not_shown():
    table = pd.DataFrame({"age": [1, 2, "secret"], "marker": [1, 2, 3]})
    for rows in (table, table.to_numpy(object), table.to_numpy().tolist(), table.to_numpy(str)):
        with pytest.raises(Refused, match=r"^X is ragged or not numeric: [^\n]*$") as caught:
            logistic().fit(rows, Y[:3])
        assert "secret" not in str(caught.value)
    with pytest.raises(Refused, match="y is ragged or not numeric") as caught:
        linear().fit(X[:3], [1, 2, "secret"])
    assert "secret" not in str(caught.value)


def test_classes_from_the_data_are_said_in_the_guarantee(ill):
    taken = logistic(classes="from-data").fit(X, Y)
    assert any("list of classes was taken" in sentence for sentence in taken.guarantee_.sentences())
    assert not any("list of classes was taken" in sentence for sentence in ill.guarantee_.sentences())


def test_a_class_may_be_absent_from_the_records(three):
    assert 9 not in THREE
    assert list(three.classes_) == [0, 1, 2, 9]
    assert three.predict_proba(X)[:, 3].max() < 0.5


def _arrays(value, seen):
    """Every array that can be reached from a value."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (np.ndarray, jax.Array)):
        yield np.asarray(value)
    for referent in gc.get_referents(value):
        if not isinstance(referent, (type, type(gc))) and not (
            isinstance(referent, dict) and "__builtins__" in referent
        ):
            yield from _arrays(referent, seen)


@pytest.mark.parametrize("build", [logistic, linear])
def test_a_fitted_estimator_keeps_no_record(build):
    rows, target = X[:311].copy(), (TARGET if build is linear else Y)[:311].copy()
    fitted = build(batch_size=311, draws=50).fit(rows, target)
    fitted.predict(rows)
    held = [weakref.ref(rows), weakref.ref(target)]
    del rows, target
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    shapes = [array.shape for array in _arrays(vars(fitted), set())]
    assert (1, 50, 3) in shapes
    assert not any(311 in shape for shape in shapes)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(X), fitted.predict(X))
    assert again.guarantee_ == fitted.guarantee_


# Every fit spends.


@pytest.mark.long
def test_a_number_repeats_the_run_for_the_same_records_and_settings_alone(ill):
    """Clones in folds share random_state: were the noise the same too, differences of folds would be exact."""
    assert np.array_equal(logistic().fit(X, Y).coef_, ill.coef_)
    assert any("given by the caller" in sentence for sentence in ill.guarantee_.sentences())
    assert not np.allclose(logistic(random_state=8).fit(X, Y).coef_, ill.coef_, rtol=1e-3)
    assert not np.allclose(logistic(random_state=None).fit(X, Y).coef_, ill.coef_, rtol=1e-3)
    fold = np.arange(N) != 3  # all but one record: noise of its own
    settings = {"steps": 1, "draws": 1, "burn_in": 0, "clip": 1.0, "batch_size": N}
    whole, part = logistic(**settings).fit(X, Y), logistic(**settings | {"batch_size": N - 1}).fit(X[fold], Y[fold])
    step = whole.posterior_.plan["step_size"]
    moved = np.abs(whole.posterior_.draws["weights"] - part.posterior_.draws["weights"]).max()
    assert moved > 10 * step / N


@pytest.fixture
def patients(tmp_path):
    made = confide.Ledger.create(tmp_path / "ledger.db")
    made.enter("patients", confide.Budget(epsilon=3.5, delta=1e-4))
    return made


def test_a_refused_fit_changes_nothing(ill, patients):
    model = logistic(ledger=patients, dataset="patients", epsilon=3.0, delta=9e-5).fit(X, Y)
    before = model.predict_proba(X[:5])
    with pytest.raises(confide.BudgetExceeded):
        model.set_params(bounds=(-100, 100)).fit(np.column_stack([X, X[:, :1]]), Y)
    assert np.array_equal(model.predict_proba(X[:5]), before)


def test_every_fold_warns_and_is_charged_until_the_budget_is_spent(patients):
    model = make_pipeline(
        FunctionTransformer(), logistic(epsilon=1.0, batch_size=200, ledger=patients, random_state=None)
    )
    with pytest.warns(confide.SpendsBudgetWarning, match="K of them cost K times") as caught:
        scores = cross_val_score(model, X, Y, cv=2)
    assert sum(w.category is confide.SpendsBudgetWarning for w in caught) == 2
    assert np.all(np.isfinite(scores))
    assert len(patients.history("patients")) == 2
    with (
        pytest.warns(confide.SpendsBudgetWarning, match="charged to the ledger"),
        pytest.raises(confide.BudgetExceeded) as refused,
    ):
        cross_val_score(model, X, Y, cv=2, error_score="raise")
    assert pickle.loads(pickle.dumps(refused.value)).left == refused.value.left  # as folds in other processes need
    assert len(patients.history("patients")) == 3


@pytest.mark.long
def test_searches_and_ensembles_warn_too_and_a_single_fit_does_not():
    search = GridSearchCV(logistic(batch_size=200), {"epsilon": [1.0, 2.0]}, cv=2, refit=False)
    with pytest.warns(confide.SpendsBudgetWarning, match="no ledger counts"):
        search.fit(X, Y)
    with pytest.warns(confide.SpendsBudgetWarning):
        BaggingClassifier(logistic(classes=[0, 1]), n_estimators=2, random_state=0).fit(X, Y == "ill")
    make_pipeline(FunctionTransformer(), logistic()).fit(X, Y)  # warnings are errors here


def test_semi_supervision_and_imputation_warn():
    with pytest.warns(confide.SpendsBudgetWarning):
        SelfTrainingClassifier(logistic(classes=[0, 1], steps=20, batch_size=100), max_iter=1).fit(
            X, np.where(X[:, 0] > 90, -1, Y == "ill")
        )
    assert "sklearn.impute" in REPEATERS


def test_a_refused_fit_leaves_the_fitted_estimator_as_it_was(patients):
    model = logistic(draws=20).fit(X, Y)
    before = model.predict_proba(X)
    model.set_params(bounds=(-500, 500), classes=["ill", "well"][::-1], ledger=patients)
    with pytest.raises(confide.BudgetExceeded):
        model.fit(X, Y)
    assert np.array_equal(model.predict_proba(X), before)
    never = logistic(ledger=patients)
    with pytest.raises(confide.BudgetExceeded):
        never.fit(X, Y)
    with pytest.raises(NotFittedError):
        never.predict(X)


def test_clones_carry_every_setting_and_nothing_learnt(ill, patients):
    model = logistic(ledger=patients, dataset="patients", sampler=confide.sgld(temperature=0.5))
    copy = clone(model)
    assert {**copy.get_params(), "ledger": 0} == {**model.get_params(), "ledger": 0}
    assert copy.ledger.path == patients.path
    assert copy.set_params(epsilon=2.0).epsilon == 2.0
    assert model.epsilon == 8.0
    with pytest.raises(NotFittedError):
        clone(ill).predict(X)
    with pytest.raises(NotFittedError):
        linear().predict_interval(X)


def test_bounds_give_their_line_back():
    bounds = check_bounds(([0, -5], [10, 5]), "bounds", 2)
    x, weights = np.array([[2.0, -1.0], [9.0, 4.0]]), np.array([3.0, -2.0, 0.5])
    slopes, intercept = bounds.line(weights)
    assert np.allclose(x @ slopes + intercept, bounds.scale(x) @ weights[:2] + weights[2])


def test_documentation_of_fit_says_what_counts_as_absent_and_where_to_look():
    for name in estimators.__all__:
        if hasattr(kind := getattr(estimators, name), "fit"):
            said = " ".join(kind.fit.__doc__.split())
            assert "counts as absent" in said, name
            assert "`confide.outside`" in said, name
            assert not hasattr(kind, "predict_proba") or "another label" in said, name
