"""What draws are: judged from releases alone, over a grid of causes, with advice that goes the right way."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import confide
from confide import models
from confide.inference import settling
from confide.inference.posterior import Posterior
from confide.inference.settling import Judgement, judge
from confide.inference.summaries.runs import OptimiserSummary
from helpers.fits import X, fit

FEATURES = ["age", "sex=female", "sex=male", "sex=(missing)", "intercept"]
FAMILIES = ("logistic_regression", "softmax_regression", "linear_regression", "poisson_regression")
SPENT = {"epsilon": 1.0, "budget": {"epsilon": 1.0}}
UNSPENT = {"epsilon": 0.5, "budget": {"epsilon": 1.0}}
WEIGHTED = {"clipping": "weighted", "clip": 0.5, "row_bound": 2.0}
PLAIN = {"clipping": "plain", "clip": 0.5, "norm_bound": 2.0}
NEVER = ("smaller clip", "shorter clip", "fewer records", "smaller budget", "more chains")  # in no advice


def steady(chains=1, draws=400, columns=3, seed=0):
    return np.random.default_rng(seed).normal(size=(chains, draws, columns))


def slow(chains=1, draws=400, columns=3, seed=0):
    """A random walk: neighbouring draws are nearly the same."""
    return 0.05 * np.cumsum(steady(chains, draws, columns, seed), axis=1)


def made(draws, model=None, /, **plan):
    """A posterior of a logistic regression by sgld, with scores bounded by weights and the budget spent."""
    told = {"model": "logistic_regression", "sampler": "sgld", "prior_scale": 1.0} | SPENT | WEIGHTED | plan
    return Posterior(draws={"weights": draws}, guarantee=None, plan=told, model=model)


def kinds(judgement: Judgement) -> list[str]:
    return [reason.kind for reason in judgement.reasons]


def advice(judgement: Judgement, kind: str) -> str:
    (found,) = [reason.advice for reason in judgement.reasons if reason.kind == kind]
    return found.lower()


def test_what_is_in_order_passes():
    for chains in (1, 4):
        posterior = made(steady(chains), lag_one=0.4, drift=0.1)
        assert judge(posterior) == Judgement(True)
        assert posterior.settled is True
        assert judge(posterior).intervals
        assert judge(posterior).draws == ""


CAUSES = {  # draws, what the plan says, the reason, and words that its advice must and must not have
    "jumps": (steady(), {"lag_one": -0.5}, "oscillation", ("smaller step_size", "more steps"), ("budget", "clip")),
    "walks": (slow(), {}, "exploration", ("larger budget", "more records"), ("more steps", "step_size", "longer clip")),
    "one walks": (
        np.concatenate([steady(columns=2), slow(columns=1)], axis=-1),
        {},
        "exploration",
        ("larger budget", "more records"),
        ("more steps", "step_size"),
    ),
    "walks, unspent": (slow(), UNSPENT, "exploration", ("more steps",), ("larger budget", "step_size", "clip")),
    "stands still": (np.zeros((1, 400, 3)), {}, "exploration", ("larger budget", "more records"), ("more steps",)),
    "few draws": (steady(draws=10), {}, "exploration", ("more draws", "costs nothing"), ("budget", "steps")),
    "few that are paid": (
        steady(draws=10),
        {"sampler": "langevin"},
        "exploration",
        ("more draws", "at its price"),
        ("costs nothing", "steps"),
    ),
    "chains apart": (
        steady(chains=4) + np.arange(4)[:, None, None],
        {},
        "disagreement",
        ("larger budget", "more records", "chains share the budget"),
        ("more steps", "step_size"),
    ),
    "chains apart, unspent": (
        steady(chains=4) + np.arange(4)[:, None, None],
        UNSPENT,
        "disagreement",
        ("more steps",),
        ("larger budget",),
    ),
    "far away": (steady() + 9.0, {}, "runaway", ("wider prior", "rescaled features"), ("weighted", "budget", "steps")),
    "far away by a clip": (steady() + 9.0, PLAIN, "runaway", ("clipping='weighted'",), ("wider prior", "budget")),
    "not finite": (steady() * [1.0, np.inf, 1.0], {}, "runaway", ("rescaled features",), ("budget", "steps")),
    "a short clip": (steady(), PLAIN, "bends", ("clipping='weighted'",), ("longer clip", "budget", "steps")),
    "a short clip, one draw": (
        steady(draws=1),
        PLAIN | {"sampler": "langevin"},
        "bends",
        ("longer clip",),
        ("weighted", "steps"),
    ),
    "q moves": (steady(), {"sampler": "dpvi", "drift": 1.6}, "drift", ("larger budget", "more records"), ("steps",)),
    "q moves, unspent": (steady(), UNSPENT | {"drift": 1.6}, "drift", ("more steps",), ("larger budget",)),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_seen_and_the_advice_goes_the_right_way(cause):
    draws, plan, kind, must, must_not = CAUSES[cause]
    with np.errstate(invalid="ignore"):
        found = judge(made(draws, **plan))
    assert found.settled is False
    assert kind in kinds(found)
    assert found.draws == settling.DRAWS[kinds(found)[0]]
    words = advice(found, kind)
    assert all(word in words for word in must), words
    assert not any(word in words for word in (*must_not, *NEVER)), words
    beside = {
        "far away by a clip": ["bends"],
        "chains apart": ["exploration"],
        "chains apart, unspent": ["exploration"],
    }
    assert kinds(found) == [kind, *beside.get(cause, [])]


@pytest.mark.parametrize(
    ("clip", "spent", "swings", "draws"),
    list(itertools.product((WEIGHTED, PLAIN), (SPENT, UNSPENT), (-0.5, 0.5), (steady, slow))),
)
def test_causes_together(clip, spent, swings, draws):
    """Every cause is told of, and no advice speaks against another: where steps are too long, none buys longer ones."""
    found = judge(made(draws(), lag_one=swings, **clip, **spent))
    expected = {
        "oscillation": swings < 0,
        "bends": clip is PLAIN,
        "exploration": draws is slow,
    }
    assert kinds(found) == [kind for kind, there in expected.items() if there]
    assert found.settled == (not any(expected.values()))
    told = " ".join(reason.advice for reason in found.reasons).lower()
    assert not any(word in told for word in NEVER)
    assert ("larger budget" in told) == (draws is slow and swings > 0 and spent is SPENT)
    assert ("smaller step_size" in told) == (swings < 0)
    assert ("more steps" in told) == (swings < 0 or (draws is slow and spent is UNSPENT))
    assert ("clipping='weighted'" in told) == (clip is PLAIN)


@pytest.mark.parametrize(
    ("kind", "passes", "fails"),
    [
        ("oscillation", {"lag_one": -0.19}, {"lag_one": -0.21}),
        ("oscillation", {"lag_one": None}, {"lag_one": float("nan")}),
        ("drift", {"drift": 0.99}, {"drift": 1.01}),
        ("drift", {}, {"drift": float("nan")}),
        ("runaway", {"prior_scale": 0.21}, {"prior_scale": 0.19}),
        ("runaway", {"prior_scale": None}, {"prior_scale": 0.01}),
        ("bends", PLAIN | {"clip": 2.0}, PLAIN | {"clip": 1.99}),
        ("bends", PLAIN | {"clip": None}, PLAIN | {"norm_bound": None, "clip": 1e9}),
        ("bends", WEIGHTED | {"clip": 1e-3}, PLAIN | {"clip": 1e-3}),
    ],
)
def test_where_the_rule_turns(kind, passes, fails):
    draws = steady()
    draws = draws - draws.mean(axis=1) + 1.0
    assert judge(made(draws, **passes)) == Judgement(True)
    assert kinds(judge(made(draws, **fails))) == [kind]


def test_how_many_draws_are_enough():
    """The diagnostics are ArviZ's, and the limits are where they say."""
    rng, kept = np.random.default_rng(3), {}
    for correlation in (0.0, 0.5, 0.8, 0.9, 0.95):
        walk = [np.zeros(3)]
        for _ in range(399):
            walk.append(correlation * walk[-1] + np.sqrt(1 - correlation**2) * rng.normal(size=3))
        draws = np.array(walk)[None]
        effective, ratios = settling.diagnose(draws)
        assert ratios == [None] * 3
        kept[correlation] = judge(made(draws)).settled
        assert kept[correlation] == (effective.min() >= 20)
    assert kept[0.0] is True
    assert kept[0.95] is False


def test_r_hat_is_of_single_coefficients():
    for shift, apart in ((0.3, False), (2.0, True)):
        draws = steady(chains=4)
        draws[0, :, 1] += shift
        _, ratios = settling.diagnose(draws)
        found = judge(made(draws))
        assert (ratios[1] > 1.1) == apart
        assert found.settled == (not apart)
        assert found.intervals
    assert kinds(found) == ["disagreement", "exploration"]  # chains that lie apart are worth few draws
    assert {reason.concerns for reason in found.reasons} == {("weights[1]",)}


def test_reasons_about_some_coefficients_leave_others_alone():
    draws = np.concatenate([steady(columns=4), slow(columns=1)], axis=-1)
    found = judge(made(draws, features=[*FEATURES[:1], "b", "c", "d", "e"]))
    assert [reason.concerns for reason in found.reasons] == [("e",)]
    assert found.settled is False
    assert found.intervals
    assert not judge(made(draws, lag_one=-0.9)).intervals
    assert not judge(made(draws, **PLAIN)).intervals


def test_categories_are_judged_against_their_mean():
    """What they share, only the prior and the intercept know; what tells them apart has settled."""
    draws = steady(columns=5)
    shared = 20 * slow(columns=1)
    draws[..., 1:3] += shared
    draws[..., 4:] -= shared
    assert kinds(judge(made(draws))) == ["exploration"]
    draws[..., 3:4] += shared  # a missing one counts against the same mean
    assert judge(made(draws, features=FEATURES)) == Judgement(True)
    draws[..., 0:1] += shared
    (reason,) = judge(made(draws, features=FEATURES)).reasons
    assert reason.concerns == ("age",)


def test_several_labels_have_names():
    draws = steady(columns=10).reshape(1, 400, 5, 2)
    draws[..., 0, 1] += 9.0
    (reason,) = judge(made(draws, features=FEATURES, labels=["no", "yes"])).reasons
    assert "age (yes)" in reason.sentence


@pytest.mark.parametrize("name", FAMILIES)
def test_a_plain_clip_bends_every_family(name):
    found = judge(made(steady(), **PLAIN | {"model": name}))
    assert kinds(found) == ["bends"]
    bounded = name in ("logistic_regression", "softmax_regression")
    assert ("wrong labels" in found.reasons[0].sentence) == bounded
    long = judge(made(steady(), **PLAIN | {"model": name, "clip": 2.0 * np.sqrt(2)}))
    assert long.settled == bounded  # of unbounded outcomes no clip is long enough


def test_a_bound_that_the_model_knows_counts():
    model = models.logistic_regression(3, norm_bound=1.0)
    known = made(steady(), model, clip=1.0, clipping="plain")
    assert judge(known) == Judgement(True)
    assert judge(replace(known, plan=known.plan | {"norm_bound": 3.0})) == Judgement(True)  # the smaller of both holds
    with_intercept = models.logistic_regression(3, norm_bound=1.0, intercept=True)
    assert kinds(judge(replace(known, model=with_intercept))) == ["bends"]


def test_points_and_single_draws_have_no_verdict():
    needed = dict.fromkeys(OptimiserSummary.needs(), 1)
    named = {"model": "logistic_regression", "sampler": "dp_sgd", "estimate": "point"} | WEIGHTED
    points = made(steady(draws=1), **needed | named)
    assert points.point
    assert judge(points) == Judgement(None)
    bent = judge(replace(points, plan=points.plan | PLAIN))
    assert (bent.settled, kinds(bent)) == (None, ["bends"])
    for chains, draws in ((1, 1), (4, 1), (4, 3)):
        few = judge(made(steady(chains, draws)))
        assert few == Judgement(None)
        assert not few.intervals


def network(width, model):
    return made(steady(columns=width), None, **PLAIN | {"model": model, "lag_one": -0.9})


def test_networks_are_not_judged_and_own_models_are_if_they_are_small():
    for posterior in (network(9, "mlp"), network(101, "from_functions"), network(101, "from_numpyro")):
        found = judge(posterior)
        assert (found.settled, kinds(found)) == (None, ["bends"])
        assert not found.intervals
        assert "the clip bends" in found.reasons[0].sentence.lower()
        assert "longer clip" in advice(found, "bends")
        assert "larger budget" in advice(found, "bends")
    small = network(100, "from_functions")
    assert judge(replace(small, plan=small.plan | {"lag_one": 0.5})).settled is False
    assert judge(replace(small, plan=small.plan | {"lag_one": 0.5, "clip": None})) == Judgement(True)


def test_single_pixels_are_not_judged_one_by_one():
    assert judge(made(slow(), shape=[8, 8, 1])) == Judgement(None)
    assert judge(made(steady(), shape=[8, 8, 1], **PLAIN)).settled is False


def test_the_summary_has_an_interval_only_where_there_is_one():
    for posterior, there in ((made(steady()), True), (made(slow()), False), (made(steady(), **PLAIN), False)):
        columns = posterior.summary().columns
        assert any("hdi" in name for name in columns) == there
        assert {"mean", "sd", "ess_bulk"} <= set(columns)


def test_quantiles_of_what_has_not_settled_come_with_a_warning():
    found = fit(steps=200, budget=confide.Budget(epsilon=0.1, delta=1e-5), key=3)
    assert found.settled is False
    with pytest.warns(confide.UnsettledWarning, match="quantiles of draws, and no intervals"):
        found.interval(X[:3])
