"""PATE: its price against exact distributions of votes, real neighbours, noise that is too little, and the order."""

import functools
import itertools
import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special, stats

import confide
from confide import events
from confide.inference.baselines import ensemble
from confide.inference.baselines.aggregation import answer, plan_votes
from confide.inference.baselines.ensemble import Lessons
from confide.mechanism import noise as noises
from confide.models import from_functions, linear_regression, logistic_regression, mlp, softmax_regression
from confide.privacy.accountants import gdp, pate
from confide.privacy.budget import Budget
from confide.privacy.events import NoisyVotes
from confide.validation import Refused
from helpers.fits import X, Y, ledger_of

MODEL = logistic_regression(3)
BUDGET = Budget(epsilon=8.0, delta=1e-5)
PUBLIC = np.random.default_rng(5).normal(size=(60, 3)).astype(np.float32)
LESSONS = Lessons(steps=40, batch_size=8, learning_rate=0.1)
SHORT = {"teachers": 25, "steps": 40, "batch_size": 8, "learning_rate": 0.1, "verbose": False}
GRID = np.linspace(-12, 12, 4001)
ORDERS = (2, 5, 20)


def run(data=(X, Y), budget=BUDGET, public=PUBLIC, model=MODEL, **more):
    return confide.baselines.pate(model, data, budget, public, **(SHORT | more))


def labelled(posterior):
    return posterior.plan["labelled"]


# What one vote reveals, by brute force over small ensembles.


@functools.cache
def chances(counts, noise):
    """The exact chance of every label: one integral each, by the trapezoidal rule."""
    found = []
    for label, own in enumerate(counts):
        others = [special.ndtr(GRID + (own - n) / noise) for k, n in enumerate(counts) if k != label]
        found.append(np.trapezoid(np.exp(-(GRID**2) / 2) / math.sqrt(2 * math.pi) * np.prod(others, axis=0), GRID))
    return np.array(found)


def histograms(teachers, labels):
    return [c for c in itertools.product(range(teachers + 1), repeat=labels) if sum(c) == teachers]


def neighbours(counts):
    for source, target in itertools.permutations(range(len(counts)), 2):
        if counts[source]:
            moved = list(counts)
            moved[source] -= 1
            moved[target] += 1
            yield tuple(moved)


def log_moment(p, q, order):
    return math.log(np.sum(p**order * q ** (1.0 - order)))


@pytest.mark.parametrize("noise", [0.7, 2.0, 6.0])
@pytest.mark.parametrize("labels", [2, 3])
def test_answer_costs_no_more_than_the_bound_at_every_histogram(noise, labels):
    tightest = dict.fromkeys(ORDERS, 0.0)
    for counts in histograms(6, labels):
        bound = pate.log_wrong(np.array([counts]), noise)
        assert 1 - max(chances(counts, noise)) <= math.exp(bound[0]) * (1 + 1e-9)
        for order, moved in itertools.product(ORDERS, neighbours(counts)):
            exact = log_moment(chances(counts, noise), chances(moved, noise), order)
            allowed = pate.answer_log_moment(bound, noise, order)[0]
            assert exact <= allowed + 1e-9
            tightest[order] = max(tightest[order], exact / allowed)
    assert min(tightest[2], tightest[5]) > 0.5  # the worst neighbours leave little to be gained


def test_agreement_makes_an_answer_cheap():
    event = NoisyVotes(answers=1, answer_noise=10.0)
    agreed, split = (pate.cost(np.array([counts]), event, 8) for counts in ([100, 0], [50, 50]))
    assert agreed < 1e-8
    assert split == pate.ceiling(event, 8) == pytest.approx(8 * 7 / 100)


@pytest.mark.parametrize("noise", [0.7, 2.5])
@pytest.mark.parametrize("order", ORDERS)
def test_check_and_answer_together_cost_no_more_than_the_bound(noise, order):
    threshold, check = 4.5, 1.5
    event = NoisyVotes(answers=1, answer_noise=noise, queries=1, check_noise=check)

    def joint(counts):
        passed = special.ndtr((max(counts) - threshold) / check)
        return np.concatenate([[1 - passed], passed * chances(counts, noise)])

    for counts in histograms(6, 3):
        allowed = order * (order - 1) / (2 * check**2) + pate.cost(np.array([counts]), event, order, threshold)
        for moved in neighbours(counts):
            assert log_moment(joint(counts), joint(moved), order) <= allowed + 1e-9


@pytest.mark.parametrize("threshold", [None, 9.5])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_smooth_cost_bounds_both_directions_and_moves_by_no_more_than_its_rate(threshold, rate):
    noise, order, check = 1.0, 2, None if threshold is None else 2.0
    event = NoisyVotes(answers=2, answer_noise=noise, queries=0 if check is None else 2, check_noise=check)
    fixed = 0.0 if check is None else 2 * order * (order - 1) / (2 * check**2)

    def smooth(rows):
        return pate.smooth_cost(np.array(rows), event, order, rate, threshold)

    furthest = 0.0
    for first in histograms(12, 2):
        rows = (first, (11, 1))
        found = smooth(rows)
        for moved in itertools.product(neighbours(first), neighbours((11, 1))):
            step = abs(math.log(found / smooth(moved)))
            assert step <= rate + 1e-9
            furthest = max(furthest, step)
            if check is None:
                pairs = [(chances(a, noise), chances(b, noise)) for a, b in zip(rows, moved, strict=True)]
                for sign in (1, -1):
                    assert sum(log_moment(*pair[::sign], order) for pair in pairs) <= found + fixed + 1e-9
    assert furthest > 0.5 * rate


def theorem6(log_q, noise, order):
    """As published (Papernot et al. 2018, Theorem 6 with Proposition 10); None outside its conditions."""
    q, mu2 = math.exp(log_q), noise * math.sqrt(-log_q)
    mu1 = mu2 + 1
    e1, e2 = mu1 / noise**2, mu2 / noise**2
    if not (mu1 >= order and mu2 > 1 and log_q + e2 < 0):
        return None
    if log_q > (mu2 - 1) * e2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1)):
        return None
    winner = math.log1p(-q) - math.log1p(-math.exp((log_q + e2) * (1 - 1 / mu2)))
    rest = e1 - log_q / (mu1 - 1)
    return float(np.logaddexp(math.log1p(-q) + (order - 1) * winner, log_q + (order - 1) * rest))


def test_bound_is_never_above_the_published_theorem():
    compared, gained = 0, []
    for noise, order, log_q in itertools.product((1.0, 5.0, 40.0, 150.0), (2, 8, 32), -np.geomspace(0.1, 200, 25)):
        published = theorem6(log_q, noise, order)
        if published is not None:
            ours = float(pate.answer_log_moment(log_q, noise, order))
            assert ours <= published * (1 + 1e-9) + 1e-15
            compared += 1
            gained.append(published / max(ours, 1e-300))
    assert compared > 100
    assert np.median(gained) > 1.1


@pytest.mark.parametrize(("noise", "order", "q"), [(3.0, 4, 1e-3), (0.8, 12, 0.2), (40.0, 30, 1e-9)])
def test_both_terms_are_the_integrals_they_stand_for(noise, order, q):
    with mpmath.workdps(40):
        shift = mpmath.sqrt(2) / noise
        z = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(q) - 1)
        tail = shift - z

        def density(x):
            return mpmath.npdf(x, shift, 1) ** order * mpmath.npdf(x, 0, 1) ** (1 - order)

        far = order * shift
        rest = mpmath.quad(density, [tail, max(tail, far) + 2, max(tail, far) + 20])
        winner = mpmath.ncdf(-z) ** order * mpmath.ncdf(-z - shift) ** (1 - order)
        expected = min(float(mpmath.log(rest + winner)), order * (order - 1) / noise**2)
    assert float(pate.answer_log_moment(math.log(q), noise, order)) == pytest.approx(expected, rel=1e-9, abs=1e-13)


# The event and its price.


def test_price_is_that_of_the_gaussians():
    event = NoisyVotes(answers=30, answer_noise=20.0, queries=100, check_noise=40.0, figure_noise=10.0)
    mu = math.sqrt(100 / 40**2 + 2 * 30 / 20**2 + 1 / 10**2)
    for relation in events.NEIGHBOURS:
        promised = confide.guarantee(event, delta=1e-5, neighbours=relation)
        assert promised.epsilon == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-6)
    assert events.from_json(json.loads(json.dumps(event.to_json()))) == event
    assert event.to_dp_accounting().noise_multiplier == pytest.approx(1 / mu)
    with pytest.raises(Refused, match="needs noise"):
        NoisyVotes(answers=1, answer_noise=1.0, queries=3)
    for changed in ({"answers": 0}, {"answer_noise": 0.0}, {"queries": 0}, {"figure_noise": -1.0}):
        with pytest.raises(Refused):
            replace(event, **changed)


@pytest.mark.parametrize("figure", [False, True])
@pytest.mark.parametrize(("threshold", "answers"), [(None, None), (None, 7), (0.7, None), (0.7, 7)])
def test_plans_spend_the_budget(threshold, answers, figure):
    event = plan_votes(0.3, 400, 500, answers, None, threshold, figure=figure)
    assert event.parts("add-remove").squared_mu == pytest.approx(0.3**2)
    assert event.answers == 7 if answers else 100 <= event.answers <= 500
    assert (event.check_noise is None) == (threshold is None)
    assert event.answers <= (event.queries or 500)


def test_more_labels_get_fewer_and_clearer_answers():
    few, many = (plan_votes(0.3, 400, 10_000, labels=labels) for labels in (2, 10))
    assert few.answers == int((0.75 * 400 * 0.3 / 2) ** 2)
    assert many.answers < few.answers / 4
    assert many.answer_noise < few.answer_noise / 2


# What is drawn, against what is claimed.


def least(members, others, trials, delta):
    """Clopper-Pearson: an epsilon that is refuted at level 1e-6."""
    low = stats.beta.ppf(5e-7, members, trials - members + 1)
    high = stats.beta.ppf(1 - 5e-7, others + 1, trials - others)
    return math.log(max(low - delta, 1e-300) / high)


TRIALS = 200_000
ANSWER = NoisyVotes(answers=TRIALS, answer_noise=3.0)
CHECK = NoisyVotes(answers=TRIALS, answer_noise=3.0, queries=TRIALS, check_noise=2.0)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["as claimed", "half the noise"])
@pytest.mark.parametrize("kind", ["answer", "check"])
def test_neighbours_are_as_hard_to_tell_apart_as_claimed_and_half_the_noise_is_caught(kind, share):
    """One teacher changes its vote in every row; each row is one mechanism of its own."""
    if kind == "answer":  # the label that loses
        event, threshold, pair, mu = ANSWER, None, ([29, 21], [28, 22]), math.sqrt(2) / 3.0
        event = replace(event, answer_noise=share * 3.0)
    else:  # whether the row is answered
        event, threshold, pair, mu = CHECK, 1.0, ([47, 3], [48, 2]), 1 / 2.0
        event = replace(event, check_noise=share * 2.0)
    found = [answer(np.tile(counts, (TRIALS, 1)), event, threshold, noises.as_key(7)) for counts in pair]
    others, members = (int(np.sum(labels == 1)) if kind == "answer" else len(rows) for rows, labels, _ in found)
    claim = gdp.epsilon_of_mu(mu, 1e-5)
    assert (least(members, others, TRIALS, 1e-5) < claim) == (share == 1.0)


def test_labels_follow_the_noise_that_is_priced():
    """With the exact chances, and with no noise to speak of the plurality of the rows that pass."""
    counts = np.array([9, 7, 4])
    event = NoisyVotes(answers=60_000, answer_noise=4.0)
    _, labels, _ = answer(np.tile(counts, (60_000, 1)), event, None, noises.as_key(3))
    found = np.bincount(labels, minlength=3)
    assert stats.chisquare(found, 60_000 * chances(tuple(counts), 4.0)).pvalue > 1e-6
    assert stats.chisquare(found, 60_000 * chances(tuple(counts), 3.7)).pvalue < 1e-6
    some = np.array([[10, 0], [6, 4], [1, 9], [0, 10], [10, 0]])
    sharp = NoisyVotes(answers=3, answer_noise=1e-6, queries=5, check_noise=1e-6)
    chosen, labels, _ = answer(some, sharp, 0.85, noises.as_key(4))
    assert chosen.tolist() == [0, 2, 3]  # and no fourth
    assert labels.tolist() == [0, 1, 1]


def test_same_key_is_other_noise_on_other_votes():
    event = NoisyVotes(answers=400, answer_noise=5.0)
    one, other = np.full((400, 2), 10), np.tile([11, 9], (400, 1))
    drawn = [answer(counts, event, None, noises.as_key(1))[1] for counts in (one, one, other)]
    assert np.array_equal(drawn[0], drawn[1])
    assert 0.4 < np.mean(drawn[0] != drawn[2]) < 0.6


# One record reaches one teacher.


@pytest.mark.parametrize("change", ["add", "replace"])
@pytest.mark.long
def test_record_moves_the_votes_of_its_own_teacher_alone(change):
    teachers, key = 12, noises.as_key(2)
    assignment = ensemble.assign(201, teachers, noises.as_key(1))

    def votes_of(x, y, assignment):
        parts = ensemble.partition(assignment, np.ones(len(assignment), bool), teachers)
        learnt = ensemble.teach(MODEL, (x, y), parts, LESSONS, key)
        return np.asarray(jax.vmap(MODEL.predict, (0, None))(learnt, PUBLIC))

    x, y = X[:201].copy(), Y[:201].copy()
    before = votes_of(x, y, assignment) if change == "replace" else votes_of(x[:-1], y[:-1], assignment[:-1])
    x[-1], y[-1] = [50.0, -50.0, 50.0], 0.0
    after = votes_of(x, y, assignment)
    moved = [t for t in range(teachers) if not np.array_equal(before[t], after[t])]
    assert moved == [assignment[-1]]
    tallies = [np.sum(np.argmax(each, axis=-1) == 1, axis=0) for each in (before, after)]
    assert 0 < np.abs(tallies[0] - tallies[1]).max() <= 1


def test_record_of_no_finite_gradient_does_not_reach_teachers_without_records():
    model = from_functions(
        log_prior=lambda m: -0.5 * (m - 1) ** 2, log_likelihood=lambda m, x: -0.5 * (jnp.sqrt(x) - m) ** 2, start=0.0
    )
    parts = ensemble.partition(np.zeros(20, int), np.ones(20, bool), 4)  # the first teacher has all
    whole, broken = np.full((2, 20), 4.0, np.float32)
    broken[0] = -1.0
    one, other = (
        np.asarray(ensemble.teach(model, (data,), parts, LESSONS, noises.as_key(2))) for data in (whole, broken)
    )
    assert np.isfinite(one).all()
    assert np.isnan(other[0])
    np.testing.assert_array_equal(one[1:], other[1:])


def test_every_record_has_one_teacher_drawn_uniformly():
    assignment = ensemble.assign(30_000, 10, noises.as_key(0))
    assert stats.chisquare(np.bincount(assignment, minlength=10)).pvalue > 1e-6
    present = np.arange(30_000) % 7 > 0
    parts = ensemble.partition(assignment, present, 10)
    for teacher, (rows, size) in enumerate(zip(*parts, strict=True)):
        assert np.array_equal(np.sort(rows[:size]), np.flatnonzero((assignment == teacher) & present))
    lonely = ensemble.partition(np.array([2, 2, 0]), np.array([True, True, False]), 4)
    assert lonely.sizes.tolist() == [0, 0, 2, 0]


# The whole of it.


def test_student_learns_and_the_guarantee_is_that_of_the_event():
    posterior = run(key=1, threshold=0.6, queries=50, answers=40)
    plan, promised = posterior.plan, posterior.guarantee
    assert promised.epsilon == pytest.approx(8.0, rel=1e-6)
    assert confide.verify(promised) == pytest.approx(promised.epsilon)
    assert "public" in " ".join(promised.assumptions)
    rows, labels = labelled(posterior)["rows"], labelled(posterior)["labels"]
    assert len(set(rows)) == len(rows) == len(labels) <= plan["answers"] == 40
    truth = X @ [2.0, -1.0, 0.5] > 0
    assert np.mean(posterior.predict(X) == truth) > 0.8
    assert np.mean((PUBLIC @ [2.0, -1.0, 0.5] > 0)[rows] == labels) > 0.75
    assert json.dumps(plan)


@pytest.mark.long
def test_key_repeats_the_run_and_the_folder_keeps_the_labels(tmp_path):
    first, again, other = run(key=3), run(key=3), run(key=4)
    np.testing.assert_array_equal(first.draws["weights"], again.draws["weights"])
    assert labelled(first) == labelled(again) != labelled(other)
    loaded = confide.Posterior.load(first.save(tmp_path / "run"))
    assert labelled(loaded) == labelled(first)
    np.testing.assert_array_equal(loaded.predict(X), first.predict(X))


def test_ledger_is_charged_before_the_records_are_used(tmp_path):
    ledger = ledger_of(tmp_path, epsilon=9.0)
    posterior = run(ledger=ledger)
    assert posterior.plan["ledger"]["dataset"] == "patients"
    assert ledger.history("patients")[0].event == posterior.guarantee.event
    with pytest.raises(confide.BudgetExceeded):
        run(ledger=ledger)
    assert len(ledger.history("patients")) == 1


@pytest.mark.long
def test_networks_teach_other_models():
    labels = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0)
    budget, student = Budget(epsilon=30.0, delta=1e-5), softmax_regression(3, 3)
    posterior = run((X, labels), budget, model=mlp((3, 4, 3)), student=student, answers=50, key=5)
    assert posterior.model.name == "softmax_regression"
    assert set(labelled(posterior)["labels"]) <= {0, 1, 2}
    assert np.mean(posterior.predict(X) == labels) > 0.6


def test_no_answer_at_all_leaves_the_student_at_its_prior():
    posterior = run(
        threshold=1.0, queries=1, answers=1, budget=Budget(epsilon=1e4, delta=1e-5), public=[[1.0, 2.0, 0.0]]
    )
    assert labelled(posterior) == {"rows": [], "labels": []}
    np.testing.assert_allclose(posterior.draws["weights"], 0.0, atol=1e-6)


@pytest.mark.long
def test_figure_is_paid_for_and_bounds_what_the_votes_cost():
    event = plan_votes(3.0, 400, 100, 50, 100, 0.5, figure=True)
    told, bar = pate.FigureRelease.planned(event, 1e-5), 200.0
    counts = np.repeat([[380, 20], [211, 189]], [90, 10], axis=0)
    squared = event.parts("add-remove").squared_mu - 2 * event.answers / event.answer_noise**2
    exact = told.order * (told.order - 1) / 2 * squared + pate.cost(counts, event, told.order, bar, 1)
    logarithm = told.logarithm(counts, bar)
    found = [told.figure(logarithm + told.scale * z) for z in np.random.default_rng(0).normal(size=2000)]
    assert min(figure.log_moment for figure in found) >= exact  # one in a million may be below
    assert told.figure(logarithm - 30 * told.scale).log_moment < exact
    assert np.median([figure.epsilon for figure in found]) < 0.9 * confide.guarantee(event, delta=1e-5).epsilon
    posterior = run(account="data-dependent", answers=20, key=1)
    assert posterior.guarantee.epsilon == pytest.approx(8.0, rel=1e-6)
    assert 0 < posterior.plan["figure"]["epsilon"] <= posterior.guarantee.epsilon
    assert "these very records" in posterior.plan["figure"]["sentence"]
    assert "what the votes cost" in posterior.guarantee.released
    assert "figure" not in run(answers=20, key=1).plan


NAMELESS = from_functions(
    log_prior=lambda m: -0.5 * m**2,
    log_likelihood=lambda m, x, y: -0.5 * (y - m) ** 2,
    start=0.0,
    predict=lambda m, x: x[:, :1] * m,
    kind="classification",
)
BROKEN = from_functions(
    log_prior=lambda m: -0.5 * m**2,
    log_likelihood=lambda m, x, y: x @ y * m,
    start=0.0,
    predict=lambda m, x: x[:, :2] * m,
    kind="classification",
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": BROKEN}, "cannot be evaluated on one record"),
        ({"student": BROKEN}, "cannot be evaluated on one record"),
        ({"model": replace(NAMELESS, predict=lambda m, x: x @ x)}, "cannot predict"),
        ({"teachers": 501}, "more than the 500 records"),
        ({"teachers": 0}, "teachers"),
        ({"model": linear_regression(3)}, "take a classifier"),
        ({"student": linear_regression(3)}, "take a classifier"),
        ({"student": softmax_regression(3, 3)}, "tells other labels apart"),
        ({"model": NAMELESS}, "two labels"),
        ({"public": PUBLIC[:, :2]}, "rows like those of X"),
        ({"public": PUBLIC[0]}, "rows like those of X"),
        ({"public": PUBLIC[:0]}, "rows like those of X"),
        ({"public": PUBLIC * np.nan}, "missing or infinite"),
        ({"budget": Budget(epsilon=0.05, delta=1e-5)}, "above the noise"),
        ({"budget": Budget(epsilon=1.0, delta=0.0)}, "delta = 0"),
        ({"answers": 61}, "more than the 60 public rows"),
        ({"queries": 61, "threshold": 0.5}, "more than the 60 public rows"),
        ({"queries": 10}, "give a threshold"),
        ({"queries": 10, "answers": 11, "threshold": 0.5}, "more than the 10 queries"),
        ({"threshold": 1.5}, "threshold"),
        ({"account": "bayesian"}, "account"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"data": (X[:3], Y)}, "different numbers of rows"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_in_one_line_before_any_charge(change, message, tmp_path):
    ledger = ledger_of(tmp_path, epsilon=20.0)
    with pytest.raises(Refused, match=message) as refused:
        run(ledger=ledger, **change)
    assert "\n" not in str(refused.value)
    assert ledger.history("patients") == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:delta 0.0001 is not below")
def test_adult_is_learnt_within_the_budget():
    split = confide.data.adult()
    public, data = split.x[:3000], (split.x[3000:], split.y[3000:])
    posterior = confide.baselines.pate(
        logistic_regression(split.x.shape[1]), data, Budget(epsilon=1.0, delta=1e-4), public, key=0, verbose=False
    )
    assert np.mean(posterior.predict(split.test_x) == split.test_y) > 0.8
