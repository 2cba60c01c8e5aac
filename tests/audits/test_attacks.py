"""Membership attacks: numbers by hand and by enumeration, a band that covers, and models that leak or do not."""

import itertools
import json
import math
import pickle
import time
import warnings
from collections import defaultdict
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import confide
from confide import Posterior, Refused, audits, data, models
from confide.audits import Scores, lira, losses, mpl, one_by_one, optimal, shadow, theorem1, threshold
from confide.audits.curves import grid
from confide.audits.lira import Law, offline, online
from confide.audits.losses import FLOOR, log_odds
from confide.audits.optimal import measure
from confide.audits.pools import halves, inside, trainer
from helpers.datasets import needs_data

CHANCE = 1e-4  # of a test that fails by chance, where it is statistical


def drawn(members=300, others=200, shift=0.5, seed=0, digits=None):
    rng = np.random.default_rng(seed)
    one, two = rng.normal(shift, 1, members), rng.normal(0, 1, others)
    return (one, two) if digits is None else (np.round(one, digits), np.round(two, digits))


def records(n, seed, labels=2):
    """Twelve columns, of which two say something of the label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 12))
    return x, (rng.random(n) < 1 / (1 + np.exp(-x[:, 0] - x[:, 1]))).astype(int) + (labels - 2) * (x[:, 2] > 1)


def forest():
    return RandomForestClassifier(20, min_samples_leaf=2)


MEMBERS, OTHERS, OWN = records(150, 0), records(150, 1), records(300, 2)
LEAKING = RandomForestClassifier(20, min_samples_leaf=2, random_state=0).fit(*MEMBERS)
INNOCENT = RandomForestClassifier(20, min_samples_leaf=2, random_state=0).fit(*records(150, 3))
NULL = math.sqrt((300 + 1) / (12 * 150 * 150))  # standard deviation of the AUC where scores are exchangeable


def network(x, y):
    """A network that can learn the labels by heart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        model = models.mlp((12, 32, 2), prior_scale=3.0)
        return confide.sample(model, (x, y), confide.sgld(0.5), steps=400, key=0, progress=False)


class TestScores:
    @pytest.mark.parametrize("digits", [None, 1, 0])
    def test_agree_with_scikit_learn(self, digits):
        one, two = drawn(digits=digits)
        scores = Scores(members=one, nonmembers=two, threshold=0.5, name="test")
        truth = np.repeat([1, 0], [len(one), len(two)])
        both = np.concatenate([one, two])
        called = both >= 0.5
        assert scores.auc == pytest.approx(metrics.roc_auc_score(truth, both), abs=1e-12)
        assert scores.f1 == pytest.approx(metrics.f1_score(truth, called), abs=1e-12)
        assert scores.accuracy == pytest.approx(metrics.accuracy_score(truth, called), abs=1e-12)
        assert scores.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(truth, called), abs=1e-12)
        assert scores.precision == pytest.approx(metrics.precision_score(truth, called), abs=1e-12)
        assert scores.recall == pytest.approx(metrics.recall_score(truth, called), abs=1e-12)
        fpr, tpr, _ = metrics.roc_curve(truth, both)
        assert scores.advantage == pytest.approx(np.max(tpr - fpr), abs=1e-12)

    @pytest.mark.parametrize("seed", range(5))
    def test_rate_at_a_false_positive_rate_is_the_best_of_all_thresholds(self, seed):
        rng = np.random.default_rng(seed)
        one, two = rng.integers(0, 6, 17), rng.integers(-1, 5, 10)
        scores = Scores(members=one, nonmembers=two)
        thresholds = [*range(-2, 8)]
        for fpr in (0.0, 0.05, 0.1, 0.3, 0.7, 0.99, 1.0):
            best = max(np.mean(one >= t) for t in thresholds if np.mean(two >= t) <= fpr)
            assert scores.tpr_at_fpr(fpr) == best

    def test_rates_that_rounding_would_miss(self):
        """0.29 * 100 is below 29."""
        scores = Scores(members=np.arange(100) - 0.5, nonmembers=np.arange(100))
        for k in range(101):
            assert scores.tpr_at_fpr(k / 100) == k / 100

    def test_ties_are_called_together(self):
        scores = Scores(members=[1, 1, 1, 2], nonmembers=[1, 0, 0, 0])
        assert scores.tpr_at_fpr(0.2) == 0.25
        assert scores.tpr_at_fpr(0.25) == 1
        assert Scores(members=[1, 1], nonmembers=[1]).auc == 0.5

    def test_infinite_scores_are_kept_in_order(self):
        scores = Scores(members=[math.inf, 0], nonmembers=[-math.inf, math.inf], threshold=math.inf)
        assert scores.auc == (0.5 + 1 + 0 + 1) / 4
        assert scores.f1 == 2 / 4
        json.dumps(scores.to_json(), allow_nan=False)
        assert sum(scores.to_json()["histogram"]["members"]) == 2

    def test_are_read_only_and_silent(self):
        scores = Scores(members=[1.234567], nonmembers=[0.0], name="mine")
        with pytest.raises(ValueError, match="read-only"):
            scores.members[0] = 0
        assert "1.23" not in repr(scores)
        assert "NOT TO BE PUBLISHED" in repr(scores)
        assert "no guarantee covers it" in str(scores)
        assert pickle.loads(pickle.dumps(scores)).auc == 1

    def test_say_what_they_show(self):
        scores = Scores(members=[3.0, 2.0, 1.0], nonmembers=[2.0, 0.0], threshold=2.0, name="by hand")
        text = str(scores)
        assert "probability of 0.750" in text
        assert "F1 0.667, accuracy 0.600" in text
        assert "33.33% at 0.0%" in text  # two others show no rate but 0
        found = scores.to_json()
        assert (found["auc"], found["accuracy"], found["members"]) == (0.75, 0.6, 3)
        assert sum(found["histogram"]["nonmembers"]) == 2
        assert len(found["roc"]["low"]) == len(found["roc"]["fpr"])
        json.dumps(found, allow_nan=False)

    def test_an_attack_that_only_ranks_has_no_accuracy(self):
        scores = Scores(members=[1.0], nonmembers=[0.0])
        for name in ("f1", "accuracy", "balanced_accuracy", "precision", "recall"):
            with pytest.raises(Refused, match="no threshold"):
                getattr(scores, name)
            assert name not in scores.to_json()

    def test_nobody_called(self):
        scores = Scores(members=[1.0], nonmembers=[0.0], threshold=5.0)
        assert (scores.precision, scores.recall, scores.f1, scores.accuracy) == (0, 0, 0, 0.5)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"members": [], "nonmembers": [1.0]}, "members is empty"),
            ({"members": [1.0], "nonmembers": []}, "nonmembers is empty"),
            ({"members": [1.0, math.nan, math.nan], "nonmembers": [1.0]}, "members is not a number for 2 of 3"),
            ({"members": [1.0], "nonmembers": [math.nan]}, "nonmembers is not a number for 1 of 1"),
            ({"members": [[1.0]], "nonmembers": [1.0]}, r"members has shape \(1, 1\)"),
            ({"members": 1.0, "nonmembers": [1.0]}, r"members has shape \(\)"),
            ({"members": ["a"], "nonmembers": [1.0]}, "members is not a vector of numbers"),
            ({"members": [[1.0], [1.0, 2.0]], "nonmembers": [1.0]}, "members is not a vector of numbers"),
            ({"members": [1.0], "nonmembers": [1.0], "threshold": math.nan}, "threshold = nan is not a number"),
            ({"members": [1.0], "nonmembers": [1.0], "threshold": "x"}, "threshold = 'x' is not a number"),
            ({"members": [1.0], "nonmembers": [1.0], "name": 3}, "name"),
        ],
    )
    def test_bad_input_is_refused_in_one_line(self, arguments, message):
        with pytest.raises(Refused, match=message) as refusal:
            Scores(**arguments)
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, "x", None])
    def test_bad_rates_are_refused(self, rate):
        with pytest.raises(Refused):
            Scores(members=[1.0], nonmembers=[0.0]).tpr_at_fpr(rate)

    @pytest.mark.long
    def test_a_million_scores_are_quick(self):
        scores = Scores(members=drawn(10**6)[0], nonmembers=drawn(1, 10**6)[1], threshold=0.5)
        begin = time.perf_counter()
        assert scores.to_json()["auc"] == pytest.approx(stats.norm.cdf(0.5 / math.sqrt(2)), abs=0.003)
        assert time.perf_counter() - begin < 5

    @pytest.mark.long
    def test_figure(self):
        scores = Scores(members=drawn()[0], nonmembers=drawn()[1], threshold=0.5, name="mine")
        left, right = scores.figure().axes
        assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
        assert [text.get_text() for text in right.get_legend().get_texts()] == [
            "members: 300",
            "others: 200",
            "threshold",
        ]
        Scores(members=[0.0], nonmembers=[0.0]).figure()


class TestBand:
    """Coverage at level 0.8 by simulation: with probability above 1 - CHANCE a valid band fails at most this often."""

    RUNS = 200
    ALLOWED = stats.binom.isf(CHANCE, RUNS, 0.2)

    @staticmethod
    def true(fpr, shift, digits):
        """R, for normal scores, as they are or rounded to whole numbers."""
        if digits is None:
            return stats.norm.sf(stats.norm.isf(fpr) - shift)
        edges = np.arange(-12, 13) - 0.5  # a rounded score is at least k where the normal is above k - 1/2
        rates, powers = stats.norm.sf(edges), stats.norm.sf(edges - shift)
        return np.array([np.max(powers[rates <= x], initial=0.0) if x < 1 else 1.0 for x in fpr])

    @pytest.mark.parametrize(("members", "others", "shift", "digits"), [(60, 40, 1.0, None), (40, 80, 1.5, 0)])
    def test_holds_the_whole_curve(self, members, others, shift, digits):
        fpr = grid(others)
        truth, misses = self.true(fpr, shift, digits), 0
        for seed in range(self.RUNS):
            one, two = drawn(members, others, shift, seed, digits)
            _, tpr, low, high = Scores(members=one, nonmembers=two).roc(confidence=0.8)
            assert np.all((low <= tpr) & (tpr <= high))
            misses += bool(np.any((truth < low - 1e-12) | (truth > high + 1e-12)))
        assert misses <= self.ALLOWED

    def test_is_what_the_derivation_says(self):
        """Order statistics and Clopper-Pearson bounds one rate at a time, by search."""
        one, two = drawn(50, 30, 1.0, digits=1)
        fpr, _, low, high = Scores(members=one, nonmembers=two).roc(confidence=0.9)
        error, largest = 0.1 / (4 * len(fpr)), np.sort(two)[::-1]
        lower, upper = [], []
        for x in fpr[:-1]:
            law = stats.binom(30, x)
            below = [s for j, s in enumerate(largest, 1) if law.sf(j - 1) <= error]
            above = [s for i, s in enumerate(largest, 1) if law.cdf(i - 1) <= error]
            counts = np.sum(one > above[-1]) if above else 0, np.sum(one >= below[0]) if below else 50
            bounds = [stats.binomtest(int(n), 50).proportion_ci(1 - 2 * error, "exact") for n in counts]
            lower.append(bounds[0].low)
            upper.append(bounds[1].high)
        np.testing.assert_allclose(low[:-1], np.maximum.accumulate(lower), atol=1e-12)
        np.testing.assert_allclose(high[:-1], np.minimum.accumulate(upper[::-1])[::-1], atol=1e-12)
        assert np.any(low[:-1] > 0.1)

    def test_is_not_wide_for_nothing(self):
        one, two = drawn(20_000, 20_000, 1.0)
        fpr, tpr, low, high = Scores(members=one, nonmembers=two).roc()
        middle = np.searchsorted(fpr, 0.1)
        assert high[middle] - low[middle] < 0.06
        assert low[middle] > fpr[middle]  # better than guessing, surely
        assert np.all(np.diff(low) >= 0)
        assert np.all(np.diff(high) >= 0)
        assert (tpr[-1], low[-1], high[-1]) == (1, 1, 1)

    def test_one_record_a_side(self):
        fpr, *rates = Scores(members=[1.0], nonmembers=[0.0]).roc()
        assert fpr.tolist() == [1.0]
        assert [rate.tolist() for rate in rates] == [[1.0]] * 3

    def test_confidence_is_checked(self):
        with pytest.raises(Refused, match="confidence"):
            Scores(members=[1.0], nonmembers=[0.0]).roc(confidence=1.0)


class Tensor:
    """What becomes an array only once it is detached, as a tensor that is part of a computation."""

    def __init__(self, values):
        self.values = values

    def detach(self):
        return jnp.asarray(self.values)


LOGISTIC = Posterior(
    draws={"weights": np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)},
    guarantee=None,
    model=models.logistic_regression(12, intercept=False),
)


class TestLosses:
    def test_of_every_kind_of_predictor(self):
        x, y = MEMBERS
        table = LEAKING.predict_proba(x)
        expected = -np.log(np.maximum(table[np.arange(len(y)), y], FLOOR))
        for predictor in (LEAKING, LEAKING.predict_proba, lambda x: Tensor(LEAKING.predict_proba(x))):
            np.testing.assert_allclose(losses(predictor, x, y), expected, rtol=1e-6, atol=1e-7)

    def test_labels_are_placed_by_classes(self):
        x, y = MEMBERS
        named = RandomForestClassifier(20, min_samples_leaf=2, random_state=0).fit(x, np.array(["no", "yes"])[y])
        np.testing.assert_array_equal(losses(named, x, np.array(["no", "yes"])[y]), losses(LEAKING, x, y))
        with pytest.raises(Refused, match="1 records have labels that the predictor does not know, 'perhaps'"):
            losses(named, x[:2], ["yes", "perhaps"])
        with pytest.raises(Refused, match="give both alike"):
            losses(named, x, y)

    def test_of_a_posterior_are_those_of_its_mean_prediction(self):
        x, y = MEMBERS
        each = audits.draw_losses(LOGISTIC, x, y)
        assert each.shape == (10, 150)
        scores = x @ LOGISTIC.draws["weights"].reshape(10, 12).T
        np.testing.assert_allclose(each, np.logaddexp(0, np.where(y, -1, 1)[:, None] * scores).T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(losses(LOGISTIC, x, y), -np.log(np.mean(np.exp(-each), axis=0)), rtol=1e-4)

    def test_more_records_than_are_evaluated_at_once(self):
        x, y = records(5000, 9)
        each = audits.draw_losses(LOGISTIC, x, y)
        np.testing.assert_allclose(each[:, -3:], audits.draw_losses(LOGISTIC, x[-3:], y[-3:]), rtol=1e-5, atol=1e-6)

    def test_of_a_regression_are_of_densities(self):
        weights = np.random.default_rng(1).normal(size=(1, 4, 2)).astype(np.float32)
        posterior = Posterior(
            draws={"weights": weights},
            guarantee=None,
            model=models.linear_regression(2, intercept=False, noise_scale=2.0),
        )
        x, y = np.eye(2), np.array([0.5, -1.0])
        density = np.mean(stats.norm.pdf(y, weights[0] @ x, 2.0), axis=0)
        np.testing.assert_allclose(losses(posterior, x, y), -np.log(density), rtol=1e-5)
        with pytest.raises(Refused, match="a regression has none"):
            threshold(posterior, (x, y), (x + 1, y), "entropy")

    def test_constrained_draws_go_back_to_where_they_were_sampled(self):
        model = models.from_functions(
            log_prior=lambda s: -s, log_likelihood=lambda s, x, y: -0.5 * (y / jnp.exp(s)) ** 2 - s, start=0.0
        )
        import dataclasses

        model = dataclasses.replace(model, constrain=jnp.exp, unconstrain=jnp.log)
        posterior = Posterior(draws=np.array([[2.0]], np.float32), guarantee=None, model=model)
        found = audits.draw_losses(posterior, np.ones((2, 1)), np.array([1.0, 3.0]))
        np.testing.assert_allclose(found, [[0.125 + math.log(2), 1.125 + math.log(2)]], rtol=1e-6)

    def test_probabilities_near_one_keep_their_digits(self):
        table = np.array([[1e-12, 1.0], [1.0, 0.0]], np.float32)
        odds = log_odds(table.astype(np.float64), np.array([1, 1]))
        np.testing.assert_allclose(odds, [-math.log(1e-12), math.log(FLOOR)], rtol=1e-6)
        np.testing.assert_allclose(losses(lambda x: table, table, [1, 1]), [1e-12, -math.log(FLOOR)], rtol=1e-6)

    @pytest.mark.parametrize(
        ("predictor", "message"),
        [
            (3, "kind int"),
            (lambda x: np.ones(2), r"shape \(2,\)"),
            (lambda x: np.ones((2, 1)), r"shape \(2, 1\)"),
            (lambda x: np.ones((3, 2)) / 2, r"shape \(3, 2\)"),
            (lambda x: [[0.5, math.nan], [0.5, 0.5]], "not finite for 1 records"),
            (lambda x: [[1.5, -0.5], [0.5, 0.5]], "probability of -0.5"),
            (lambda x: [[2.0, 3.0], [0.5, 0.5]], "sums to 5"),
            (lambda x: "no", "no array of numbers"),
        ],
    )
    def test_predictors_that_are_none(self, predictor, message):
        with pytest.raises(Refused, match=message):
            losses(predictor, np.zeros((2, 2)), [0, 1])

    def test_labels_that_fit_no_column(self):
        with pytest.raises(Refused, match=r"2 records have labels .* whole numbers from 0 to 1"):
            losses(lambda x: np.full((3, 2), 0.5), np.zeros((3, 1)), [0, 2, -1])
        with pytest.raises(Refused, match="3 rows and y 2"):
            losses(lambda x: np.full((3, 2), 0.5), np.zeros((3, 1)), [0, 1])

    def test_a_posterior_without_a_model(self):
        with pytest.raises(Refused, match="has no model"):
            losses(Posterior(draws=np.zeros((1, 1)), guarantee=None), *MEMBERS)


def test_an_estimator_or_its_class_is_a_trainer():
    from sklearn.linear_model import LogisticRegression

    for given in (LogisticRegression, LogisticRegression(C=0.5)):
        predict = trainer(given)(np.eye(4), np.array([0, 1, 0, 1]), np.array([[0, 1], [2, 3]]), 0)
        assert predict(np.eye(4)).shape == (2, 4, 2)
    with pytest.raises(Refused, match="no trainer"):
        trainer(3)


class TestDistinct:
    def test_records_on_both_sides_are_counted_and_dropped(self):
        x, y = OTHERS
        both = np.concatenate([x, MEMBERS[0][:7]]), np.concatenate([y, MEMBERS[1][:7]])
        with pytest.raises(Refused, match="7 of 157 nonmembers are members too"):
            audits.distinct(MEMBERS, both)
        with pytest.warns(audits.OverlapWarning, match="7 of 157"):
            own, kept = audits.distinct(MEMBERS, both, overlap="drop")
        assert np.array_equal(own[0], MEMBERS[0][7:])  # of both, or they would not be drawn alike
        assert np.array_equal(kept[0], x)
        assert np.array_equal(kept[1], y)

    def test_the_same_row_with_another_label_is_another_record(self):
        audits.distinct(MEMBERS, (MEMBERS[0], 1 - MEMBERS[1]))

    @pytest.mark.parametrize(
        ("members", "others", "message"),
        [
            (MEMBERS, MEMBERS, "all 150 nonmembers are members too"),
            (MEMBERS, (OTHERS[0], np.ones(150)), "all 150 nonmembers have the label 1.0"),
            ((MEMBERS[0], np.zeros(150, int)), OTHERS, "all 150 members have the label 0"),
            (MEMBERS, (OTHERS[0][:, :3], OTHERS[1]), r"\(12,\) and one of nonmembers \(3,\)"),
            (MEMBERS, (OTHERS[0][:0], OTHERS[1][:0]), "nonmembers has no records"),
            (MEMBERS, (OTHERS[0][:5], OTHERS[1][:4]), "5 rows in X"),
            (MEMBERS, OTHERS[0], r"give \(X, y\)"),
            (MEMBERS, (np.array([["a"], ["b"]]), [0, 1]), "one row of numbers"),
        ],
    )
    def test_sides_that_say_nothing(self, members, others, message):
        with pytest.raises(Refused, match=message):
            threshold(LEAKING, members, others)

    @pytest.mark.long
    @needs_data
    def test_adult_has_23_records_in_both_of_its_files(self):
        x, y, test_x, test_y = data.adult()
        begin = time.perf_counter()
        with pytest.raises(Refused, match="23 of 16281 nonmembers"):
            audits.distinct((x, y), (test_x, test_y))
        assert time.perf_counter() - begin < 2


class TestThreshold:
    def test_by_hand(self):
        scores = confide.threshold_attack([0.1, 0.2, 0.9], [0.3, 0.8, 1.5])
        assert scores.threshold == pytest.approx(-0.4)
        assert scores.auc == pytest.approx(7 / 9)
        assert (scores.recall, scores.precision) == (pytest.approx(2 / 3), pytest.approx(2 / 3))

    def test_dividing_losses_by_their_bound_changes_nothing(self):
        one, two = map(np.abs, drawn())
        plain, divided = confide.threshold_attack(one, two), confide.threshold_attack(one / 8, two / 8)
        for name in ("auc", "f1", "accuracy", "advantage"):
            assert getattr(plain, name) == getattr(divided, name)

    def test_an_infinite_loss_does_not_make_everyone_a_member(self):
        scores = confide.threshold_attack([0.0, math.inf], [1.0, math.inf])
        assert scores.threshold == pytest.approx(math.log(FLOOR) / 2)
        assert (scores.recall, scores.accuracy) == (0.5, 0.5)

    def test_losses_that_are_not_numbers(self):
        with pytest.raises(Refused, match="losses of nonmembers is not a number for 1 of 2"):
            confide.threshold_attack([1.0], [1.0, math.nan])

    def test_scores_of_a_prediction(self):
        p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0]])
        sides = ((np.arange(2.0)[:, None], [0, 2]), (np.arange(2.0, 4.0)[:, None], [1, 2]))

        def predictor(x):
            return p[x[:, 0].astype(int)]

        def found(score):
            scores = threshold(predictor, *sides, score)
            assert scores.threshold == pytest.approx(np.mean(scores.members))
            return np.concatenate([scores.members, scores.nonmembers])

        np.testing.assert_allclose(found("confidence"), [0.7, 0.8, 0.4, 1.0])
        entropies = [stats.entropy(row) for row in p]
        np.testing.assert_allclose(found("entropy"), -np.array(entropies), atol=1e-12)
        modified = [
            0.3 * math.log(0.7) + 0.2 * math.log(0.8) + 0.1 * math.log(0.9),
            0.9 * math.log(0.1) + 0.1 * math.log(0.9) + 0.8 * math.log(0.2),
            0.7 * math.log(0.3) + 0.3 * math.log(0.7) + 0.4 * math.log(0.6),
            0.0,
        ]
        np.testing.assert_allclose(found("modified entropy"), modified, atol=1e-12)

    @pytest.mark.parametrize("score", ["loss", "confidence", "entropy", "modified entropy"])
    def test_forests_leak_and_innocents_do_not(self, score):
        assert threshold(LEAKING, MEMBERS, OTHERS, score).auc > 0.5 + 4 * NULL
        assert abs(threshold(INNOCENT, MEMBERS, OTHERS, score).auc - 0.5) < stats.norm.isf(CHANCE / 2) * NULL

    def test_unknown_score(self):
        with pytest.raises(Refused, match="score = 'gain' is unknown"):
            threshold(LEAKING, MEMBERS, OTHERS, "gain")


class Coin:
    """A coin whose chance of heads is one of three; S are its known tosses, and a further toss z is heads."""

    CHANCES = (Fraction(1, 5), Fraction(1, 2), Fraction(4, 5))
    SEEN = (True, False)

    @classmethod
    def posterior(cls, tosses):
        weights = [math.prod(c if toss else 1 - c for toss in tosses) for c in cls.CHANCES]
        return [weight / sum(weights) for weight in weights]


class TestOptimal:
    ALONE, WITH = Coin.posterior(Coin.SEEN), Coin.posterior((*Coin.SEEN, True))
    LOSSES = -np.log([float(c) for c in Coin.CHANCES])

    def reference(self, records=1):
        """Draws of S's posterior in its very proportions."""
        counts = [int(weight * 57) for weight in self.ALONE]
        assert [Fraction(count, 57) for count in counts] == self.ALONE
        return np.repeat(self.LOSSES, counts)[:, None].repeat(records, 1)

    @pytest.mark.parametrize("prior", [0.5, 0.1, 0.9])
    def test_lemma_1_by_enumeration(self, prior):
        """P(m = 1 | theta) by Bayes' rule over the two worlds, in fractions."""
        share = Fraction(prior).limit_denominator(10)
        for k, loss in enumerate(self.LOSSES):
            truth = share * self.WITH[k] / (share * self.WITH[k] + (1 - share) * self.ALONE[k])
            found = mpl([loss], self.reference(), prior)
            assert found.probability[0] == pytest.approx(float(truth), abs=1e-12)
            assert found.loss[0] == pytest.approx(max(float(truth) - prior, 0), abs=1e-12)
            assert found.loss[0] <= found.bound[0] + 1e-12

    def test_several_draws_have_scores_that_add_up(self):
        score = measure(self.LOSSES, self.reference(3))
        for draws in itertools.product(range(3), repeat=3):
            one, two = (math.prod(law[k] for k in draws) for law in (self.WITH, self.ALONE))
            assert np.sum(score[list(draws)]) == pytest.approx(math.log(one / two), abs=1e-12)

    def leaks(self, draws):
        """The expected leakage of the average of so many predictions, by enumeration, and the right side of (9)."""
        laws: dict = defaultdict(lambda: [0.0, 0.0])
        for low in range(draws + 1):
            for middle in range(draws + 1 - low):
                counts = (low, middle, draws - low - middle)
                ways = math.factorial(draws) // math.prod(map(math.factorial, counts))
                average = sum(c * n for c, n in zip(Coin.CHANCES, counts, strict=True)) / draws
                for place, law in enumerate((self.ALONE, self.WITH)):
                    laws[average][place] += float(ways * math.prod(p**n for p, n in zip(law, counts, strict=True)))
        true = sum(two * max(two / (one + two) - 0.5, 0) for one, two in laws.values())
        bounds = mpl([[-math.log(average) for average in laws]], self.reference(len(laws))).bound
        return true, sum(two * bound for (_, two), bound in zip(laws.values(), bounds, strict=True))

    def test_what_an_ensemble_leaks_is_above_the_papers_bound(self):
        """wu2020, (9): it holds for one draw, and no more for two; the truth tends to 1/2."""
        one, two, many = (self.leaks(draws) for draws in (1, 2, 60))
        assert one[0] < one[1]
        assert two[0] == pytest.approx(0.0897, abs=1e-4)
        assert two[1] == pytest.approx(0.0774, abs=1e-4)
        assert many[0] > 0.44
        assert many[1] < 0.08

    def test_ensembles_and_their_weights(self):
        each, reference = np.array([[0.1, 2.0], [0.5, 1.0]]), np.array([[1.0, 1.0], [2.0, 0.5], [0.3, 0.7]])
        average = -np.log(0.25 * np.exp(-each[0]) + 0.75 * np.exp(-each[1]))
        found = mpl(each, reference, weights=[1.0, 3.0])
        np.testing.assert_allclose(found.bound, np.maximum((reference.mean(axis=0) - average) / 4, 0), rtol=1e-12)
        score = -np.log(np.mean(np.exp(-reference), axis=0)) - average
        np.testing.assert_allclose(found.probability, 1 / (1 + np.exp(-score)), rtol=1e-12)
        equal = mpl(each, reference, weights=[2.0, 2.0])
        np.testing.assert_allclose(equal.probability, mpl(each, reference).probability, rtol=1e-12)
        assert np.all(found.loss <= found.bound + 1e-12)

    def test_of_posteriors_by_their_densities(self):
        """The mean of normal outcomes: both posteriors are normal, and their log ratio is known."""
        rng = np.random.default_rng(0)
        known, z, count = rng.normal(size=20), 2.5, 4
        laws = [
            stats.norm(sum(values) / (len(values) + 1), (len(values) + 1) ** -0.5) for values in (known, [*known, z])
        ]
        points = laws[0].ppf((np.arange(4000) + 0.5) / 4000)
        model = models.linear_regression(1, intercept=False)

        def posterior(values):
            return Posterior(
                draws={"weights": np.asarray(values, np.float32)[None, :, None]}, guarantee=None, model=model
            )

        own = laws[1].rvs(count, random_state=rng)
        x = np.ones((2, 1))
        scores = optimal(posterior(own), posterior(points), (x, [z, 9.0]), (x, [-1.0, 0.0]), prior=0.2)
        expected = np.sum(laws[1].logpdf(own) - laws[0].logpdf(own)) + math.log(0.25)
        assert scores.members[0] == pytest.approx(expected, abs=2e-3)
        assert scores.threshold == 0

    def test_of_any_predictor(self):
        scores = optimal(LEAKING, LOGISTIC, MEMBERS, OTHERS)
        assert scores.auc > 0.5

    def test_theorem_1(self):
        assert theorem1(0) == 0
        assert theorem1(1) == pytest.approx((math.e**2 - 1) / 4)
        assert theorem1(0.68) < 0.5 < theorem1(0.69)
        assert theorem1(1000) == math.inf

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([1.0], [1.0]), r"reference_losses \(1,\)"),
            (([1.0], [[1.0, 2.0]]), r"reference_losses \(1, 2\)"),
            (([math.nan], [[1.0]]), "1 of 1 losses are not finite"),
            (([1.0], [[math.inf]]), "1 of 1 reference_losses are not finite"),
            ((["a"], [[1.0]]), "not arrays of numbers"),
            (([1.0], [[1.0]], 1.0), "prior = 1"),
            (([[1.0]], [[1.0]], 0.5, [1.0, 2.0]), "weights has length 2"),
        ],
    )
    def test_bad_input(self, arguments, message):
        with pytest.raises(Refused, match=message):
            mpl(*arguments)


class TestPools:
    @pytest.mark.parametrize(("count", "shadows"), [(10, 6), (11, 8), (3, 8)])
    def test_every_record_is_in_half_of_the_models(self, count, shadows):
        subsets = halves(count, shadows, np.random.default_rng(0))
        known = inside(subsets, count)
        assert subsets.shape == (shadows, count // 2)
        assert np.all(known.sum(axis=1) == count // 2)
        assert not np.any(known[::2] & known[1::2])
        times = known.sum(axis=0)
        assert np.all(times == shadows / 2) if count % 2 == 0 else np.all(times >= 1)

    def test_functions_and_classes_train_alike(self):
        x, y = OWN
        subsets = halves(300, 4, np.random.default_rng(0))
        one = one_by_one(LogisticRegression)(x, y, subsets, 0)(x[:5])
        two = one_by_one(lambda x, y: LogisticRegression().fit(x, y))(x, y, subsets, 0)(x[:5])
        assert one.shape == (4, 5, 2)
        assert np.array_equal(one, two)

    def test_a_label_that_a_model_has_not_seen(self):
        x, y = np.arange(6.0)[:, None], np.array([0, 0, 1, 2, 2, 0])
        found = one_by_one(LogisticRegression)(x, y, np.array([[0, 3], [1, 2]]), 0)(x)
        assert found.shape == (2, 6, 3)
        assert np.all(found[0, :, 1] == 0)
        assert np.all(found[1, :, 2] == 0)

    def test_bad_makers(self):
        for make in (3, lambda x: x):
            with pytest.raises(Refused, match="give"):
                one_by_one(make)


class TestShadow:
    def test_forests_leak_and_innocents_do_not(self):
        made = cached(one_by_one(forest))
        attack = [shadow(target, MEMBERS, OTHERS, OWN, made, shadows=4) for target in (LEAKING, INNOCENT)]
        assert attack[0].auc > 0.5 + 4 * NULL
        assert attack[0].accuracy > 0.6
        assert abs(attack[1].auc - 0.5) < stats.norm.isf(CHANCE / 2) * NULL

    def test_depends_on_the_key_alone(self):
        first, second, third = (
            lira(LEAKING, MEMBERS, OTHERS, one_by_one(forest), shadows=4, key=key).members for key in (1, 1, 2)
        )
        assert np.array_equal(first, second)
        assert not np.array_equal(first, third)

    def test_three_labels_with_names(self):
        names = np.array(["a", "b", "c"])
        one, two, own = ((x, names[y]) for x, y in (records(n, n, labels=3) for n in (150, 151, 300)))
        target = RandomForestClassifier(20, random_state=0).fit(*one)
        assert shadow(target, one, two, own, one_by_one(forest), shadows=2).auc > 0.6

    @pytest.mark.long
    def test_a_network_drawn_by_confide(self):
        target = network(*MEMBERS)
        assert threshold(target, MEMBERS, OTHERS).auc > 0.5 + 4 * NULL
        assert shadow(target, MEMBERS, OTHERS, OWN, one_by_one(forest), shadows=2).auc > 0.5 + 4 * NULL

    @pytest.mark.long
    def test_networks_drawn_by_confide_as_shadows(self):
        assert shadow(network(*MEMBERS), MEMBERS, OTHERS, OWN, one_by_one(network), shadows=2).auc > 0.5 + 4 * NULL


class TestLira:
    @pytest.mark.parametrize("mode", ["online", "offline"])
    def test_forests_leak_and_innocents_do_not(self, mode):
        own, made = OWN if mode == "offline" else None, cached(one_by_one(forest))
        attack = [lira(target, MEMBERS, OTHERS, made, shadows=8, mode=mode, data=own) for target in (LEAKING, INNOCENT)]
        assert attack[0].auc > (threshold(LEAKING, MEMBERS, OTHERS).auc if mode == "online" else 0.5 + 4 * NULL)
        assert abs(attack[1].auc - 0.5) < stats.norm.isf(CHANCE / 2) * NULL
        assert (attack[0].threshold is None) == (mode == "offline")

    @needs_data
    @pytest.mark.long
    def test_a_prior_for_the_variance_needs_fewer_models(self):
        """A forest that overfits German Credit, eight models: the means of two targets, seen with the same models."""
        x, y = data.german_credit()
        found = defaultdict(list)
        for seed in range(2):
            order = np.random.default_rng(seed).permutation(1000)[:600]
            one, two = ((x[rows], y[rows]) for rows in np.split(order, 2))
            target = RandomForestClassifier(20, min_samples_leaf=2, random_state=seed).fit(*one)
            made = cached(one_by_one(forest))
            for variance in ("each", "global", "prior"):
                scores = lira(target, one, two, made, shadows=8, variance=variance, key=seed)
                found[variance].append([scores.auc, scores.tpr_at_fpr(0.1)])
        auc, power = ({name: np.mean(rows, axis=0)[place] for name, rows in found.items()} for place in (0, 1))
        assert auc["prior"] > max(auc["each"], auc["global"])
        assert power["prior"] > max(power["each"], power["global"])

    def test_online_by_hand(self):
        """Two records, four models: normal densities with each record's own moments, or those of all together."""
        told = np.array([[1.0, 0.0], [2.0, -1.0], [5.0, 3.0], [7.0, 4.0]])
        known = np.array([[False, False], [False, False], [True, True], [True, True]])
        seen = np.array([4.0, 0.0])
        law = stats.norm
        each = law.logpdf(seen, [6, 3.5], np.sqrt([2, 0.5])) - law.logpdf(seen, [1.5, -0.5], np.sqrt([0.5, 0.5]))
        np.testing.assert_allclose(online(seen, told, known, "each"), each, rtol=1e-4)
        both = law.logpdf(seen, [6, 3.5], np.sqrt(1.25)) - law.logpdf(seen, [1.5, -0.5], np.sqrt(0.5))
        np.testing.assert_allclose(online(seen, told, known, "global"), both, rtol=1e-4)

    def test_prior_finds_the_law_that_made_the_records(self):
        """Where the model is true: the score is near the log likelihood ratio of those who know every record's law."""
        rng = np.random.default_rng(0)
        count, shadows = 4000, 16
        spread = np.sqrt(8 / rng.chisquare(8, count))
        level, shift = rng.normal(0, 3, count), 1 + 0.5 * spread * rng.normal(size=count)
        known = np.arange(shadows)[:, None] % 2 == np.zeros(count)
        told = level + shift * known + spread * rng.normal(size=(shadows, count))
        member = rng.random(count) < 0.5
        seen = level + shift * member + spread * rng.normal(size=count)
        truth = stats.norm.logpdf(seen, level + shift, spread) - stats.norm.logpdf(seen, level, spread)

        def auc(score):
            return metrics.roc_auc_score(member, score)

        found = {name: auc(online(seen, told, known, name)) for name in ("each", "global", "prior")}
        assert found["prior"] > max(found["each"], found["global"])
        assert auc(truth) - found["prior"] < 0.03
        # Student's density is calibrated: among scores near 0 members are half.
        near = np.abs(online(seen, told, known, "prior")) < 0.2
        assert abs(np.mean(member[near]) - 0.5) < stats.norm.isf(CHANCE / 2) * 0.5 / math.sqrt(near.sum())

    def test_prior_with_many_models_is_each(self):
        rng = np.random.default_rng(1)
        told = rng.normal(size=(4000, 5)) * [1, 2, 3, 4, 5]
        known = rng.random((4000, 5)) < 0.5
        seen = rng.normal(size=5)
        told = told + known
        np.testing.assert_allclose(online(seen, told, known, "prior"), online(seen, told, known, "each"), atol=0.1)

    def test_offline_is_how_far_the_target_is_above(self):
        told = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
        np.testing.assert_allclose(offline(np.array([4.0, 1.0]), told, "each"), [2.0, 0.0], atol=1e-12)
        np.testing.assert_allclose(offline(np.array([4.0, 1.0]), told, "global"), [2 / math.sqrt(2), 0.0], atol=1e-12)

    def test_models_that_agree_to_the_last_digit(self):
        for variance in ("each", "global", "prior"):
            scores = online(np.ones(3), np.ones((4, 3)), np.arange(4)[:, None] % 2 == np.zeros(3), variance)
            assert np.all(np.isfinite(scores))

    def test_densities(self):
        law = Law(np.array([1.0]), np.array([2.0]), 5.0)
        assert law.log_density(np.array([2.0]))[0] == pytest.approx(stats.t.logpdf(2.0, 5.0, 1.0, 2.0))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"mode": "offline"}, "give data"),
            ({"mode": "later"}, "mode = 'later' is unknown"),
            ({"variance": "none"}, "variance = 'none' is unknown"),
            ({"shadows": 5}, "shadows = 5"),
            ({"shadows": 2}, "shadows = 2"),
            ({"shadows": "many"}, "shadows = 'many'"),
            ({"key": -1}, "key = -1"),
            ({"data": MEMBERS}, "150 records of data are attacked too"),
            ({"data": (OWN[0][:, :2], OWN[1])}, "give both alike"),
            ({"train": lambda x, y, subsets, key: lambda x: np.ones((2, len(x), 2))}, r"shape \(2, 1, 2\)"),
        ],
    )
    def test_bad_input(self, arguments, message):
        with pytest.raises(Refused, match=message):
            lira(LEAKING, MEMBERS, OTHERS, **{"train": one_by_one(forest)} | arguments)


def cached(train):
    """The same models for every call."""
    kept = {}

    def again(x, y, subsets, key):
        if key not in kept:
            kept[key] = train(x, y, subsets, key)
        return kept[key]

    return again
