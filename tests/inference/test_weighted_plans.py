"""Runs whose scores are bounded by weights: units, stability, chains, budgets, interruptions, and how they are asked.

Plans look at shapes alone, so that most tests plan for rows of zeros. What is random is fixed: a test that states no
rate of failure has none.
"""

import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

import confide
from confide import Refused, models
from confide.app import cli
from confide.inference import checkpoints
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.inference.plans.scaled_job import ScaledJob
from confide.mechanism import noise
from confide.mechanism.scale import Scale, ScaleRelease
from confide.models import convexity, inputs
from confide.privacy import pricing
from helpers import patients
from helpers.fits import ledger_of
from helpers.tiers import tiered

LONG = pytest.mark.long
D = 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, D)).astype(np.float32)
SCORE = X @ np.array([1.0, -0.7, 0.4], np.float32)
FAMILIES = {  # constructor, parameters, outcomes
    "logistic": (models.logistic_regression, {}, (RNG.random(400) < 1 / (1 + np.exp(-SCORE))).astype(np.float32)),
    "softmax": (models.softmax_regression, {"classes": 3}, np.digitize(SCORE, [-0.7, 0.7]).astype(np.int32)),
    "linear": (models.linear_regression, {"noise_scale": 0.5}, (SCORE + RNG.normal(size=400) / 2).astype(np.float32)),
    "poisson": (models.poisson_regression, {}, RNG.poisson(np.exp(0.5 * SCORE + 1)).astype(np.float32)),
    "negative binomial": (
        models.negative_binomial_regression,
        {"dispersion": 0.5},
        RNG.poisson(np.exp(0.5 * SCORE + 1) * RNG.gamma(2.0, 0.5, 400)).astype(np.float32),
    ),
}
SAMPLERS = ("sgld", "sghmc", "sgnht", "baoab", "psgld", "sgfs", "dpvi", "dp_sgd", "dp_adam")
SCALES = (Scale(1.0, 1.0), Scale(0.003, 200.0), Scale(70.0, 0.01))


def built(family, bound=None, **more):
    make, own, _ = FAMILIES[family]
    return make(D, **own, **({} if bound is None else {"norm_bound": bound}), **more)


def planned(model, sampler, epsilon=1.0, n=400, **asked):
    """The plan for n rows that nobody has seen."""
    data = np.zeros((n, D), np.float32), np.zeros(n, np.float32)
    sampler = getattr(confide, sampler)() if isinstance(sampler, str) else sampler
    budget = confide.Budget(epsilon=epsilon, delta=1e-6)
    return stochastic.make_plan(
        model, inputs.place_records(model, data), budget, sampler, Options(**asked), jax.random.key(1)
    )


def jobs(plan, scales=SCALES):
    """What would run, at every scale that may be bought."""
    return [plan.job.at(scale) for scale in scales] if isinstance(plan.job, ScaledJob) else [plan.job]


def spent(plan):
    return pricing.certified_profile(plan.event, "add-remove", "pld").epsilon(1e-6)


# Units: rows, their bound and the prior may have any.


def draws(family, sampler, by=1.0, bound=None, **asked):
    """In units of the first rows, by noise that is the same for all of them."""
    model = built(family, None if bound is None else by * bound, prior_scale=1.5 / by)
    table = inputs.place_records(model, (X * np.float32(by), FAMILIES[family][2]))
    budget, source = confide.Budget(epsilon=8.0, delta=1e-5), noise.as_key(5)
    plan = stochastic.make_plan(
        model, table, budget, getattr(confide, sampler)(), Options(**{"steps": 200} | asked), jax.random.key(1)
    )
    kept = plan.job.execute(table, source)
    if isinstance(plan.job, ScaledJob):
        assert plan.job.scale.norm == pytest.approx(by * np.linalg.norm(X, axis=1).mean(), rel=0.5)
        assert plan.job.scale.outcome < 10
    return by * (kept if plan.postprocess is None else plan.postprocess(kept, source))


def same(found, expected):
    return np.max(np.abs(found - expected)) <= 1e-5 * (np.std(expected) + np.mean(np.abs(expected)))


QUICK = (("logistic", "sgld"), ("poisson", "sgld"), ("linear", "dp_sgd"), ("softmax", "baoab"))


def every_sampler(first=0):
    """A family for each, beginning with this one, and all families by turns: what differs between samplers is not what
    does between families."""
    names = list(FAMILIES)
    found = [(names[(i + first) % len(names)], name) for i, name in enumerate(SAMPLERS)]
    return [pytest.param(*pair, marks=LONG) for pair in found]


@pytest.mark.parametrize(("family", "sampler"), [*QUICK, *every_sampler(first=2)])
def test_rows_a_bound_and_a_prior_in_another_unit_give_the_draws_in_that_unit(family, sampler):
    expected = draws(family, sampler, bound=2.5)
    for by in (3.7, 1 / 37):
        assert same(draws(family, sampler, by, bound=2.5), expected)


@pytest.mark.parametrize(("family", "sampler"), [("negative binomial", "sgld"), *every_sampler()])
def test_so_do_rows_without_a_bound_in_octaves(family, sampler, monkeypatch):
    """The noise of a bin is its own, so that it is left out here."""
    monkeypatch.setattr(noise, "noisy_counts", lambda counts, scale, source: counts)
    expected = draws(family, sampler)
    for by in (4.0, 1 / 16):
        assert same(draws(family, sampler, by), expected)


def test_a_plain_clip_has_a_unit():
    """What the two tests above would miss if they compared nothing."""
    expected = draws("logistic", "sgld", bound=2.5, clipping="plain")
    assert not same(draws("logistic", "sgld", 3.7, bound=2.5, clipping="plain"), expected)
    assert not same(draws("logistic", "sgld", 3.7), draws("logistic", "sgld"))  # bins of half an octave


def test_rows_in_octaves_fall_into_bins_as_far_apart(monkeypatch):
    heard = []
    monkeypatch.setattr(noise, "noisy_counts", lambda counts, scale, source: heard.append(counts) or counts)
    release = ScaleRelease(noise=3.0, intercept=False, counts=False)
    y = FAMILIES["logistic"][2]
    found = [release.release(inputs.as_records((X * np.float32(by), y)), noise.as_key(0)) for by in (1.0, 8.0)]
    assert np.array_equal(heard[1][:-6], heard[0][6:])
    assert found[1].norm == pytest.approx(8 * found[0].norm, rel=1e-12)


@LONG
@pytest.mark.parametrize(("bound", "epsilon"), [(None, 0.5), (3.0, 0.5), (3.0, 5.0)])
def test_the_scale_is_seldom_far_off(bound, epsilon):
    """A run at a wrong scale has learnt nothing. By 1% of 400 releases at most; a binomial of that rate is above 12
    once in 1,400 times."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2000, D)).astype(np.float32), rng.poisson(3, 2000).astype(np.float32)
    release = planned(built("poisson", bound), "sgld", epsilon, 2000).job.release
    table, norm = inputs.as_records((x, y)), np.linalg.norm(x, axis=1).mean()
    found = [release.release(table, noise.as_key(key)) for key in range(400)]
    off = [not 0.4 < scale.norm / norm < 2.5 or not 1 < scale.outcome < 10 for scale in found]
    assert sum(off) <= 12


# Stability.


def stretch(plan, model, sampler):
    """The longest step over the longest stable one, by the family's own words, at the least favourable scale."""
    most = 0.0
    for job in jobs(plan):
        n, clip, weighting = job.parameters.n, job.parameters.clip, job.gradient_sum.per_example.linear.weighting
        prior = model.settings["prior_scale"] ** -2.0 / n
        if weighting is None:
            bend = model.family.smoothness(convexity.longest(model), clip)
        else:
            bend = model.family.weighted_smoothness(weighting.row_bound, clip, weighting.typical)
        most = max(most, float(np.max(job.kernel.schedule.step_size)) * (bend + prior) / sampler.stability)
    return most


GRID = list(itertools.product((0.05, 1.0, 30.0, 1000.0), (200, 20_000), (None, 700), (None, 3.0), (None, 0.8)))
STEPPING = tuple(name for name in SAMPLERS if name not in ("dpvi", "dp_adam"))  # Adam's steps are as long as its rate


PAIRS = list(itertools.product(FAMILIES, STEPPING))


@pytest.mark.parametrize(("family", "sampler"), tiered(PAIRS, (), [pair for i, pair in enumerate(PAIRS) if i % 3]))
def test_no_planned_step_is_beyond_what_is_stable(family, sampler):
    """Whatever is given: half of a grid of budgets, records, steps, bounds and clips, with a prior that is wide or so
    narrow that it curves as much as the records; and something is planned near the limit."""
    found = []
    for place, (epsilon, n, steps, bound, clip) in enumerate(GRID):
        if (place + len(family)) % 2:
            continue
        model = built(family, bound, prior_scale=0.03 if place % 3 == 0 else 1.0, intercept=place % 5 == 0)
        made = getattr(confide, sampler)()
        found.append(stretch(planned(model, made, epsilon, n, steps=steps, clip=clip), model, made))
    assert max(found) <= 1 + 1e-9
    assert max(found) > 0.1 / made.pace


@pytest.mark.parametrize(
    ("family", "sampler", "epsilon", "asked"),
    [
        ("logistic", "sgld", 0.05, {}),
        ("softmax", "sghmc", 30.0, {"steps": 300}),
        ("linear", "sgld", 100.0, {"steps": 40_000}),
        ("linear", "baoab", 1000.0, {"clip": 0.8}),
        ("poisson", "sgld", 1000.0, {"steps": 300}),
        ("negative binomial", "psgld", 30.0, {"clip": 5.0}),
    ],
)
def test_some_planned_steps_are_not(family, sampler, epsilon, asked):
    made = getattr(confide, sampler)()
    for bound in (None, 3.0):
        model = built(family, bound)
        assert stretch(planned(model, made, epsilon, 2000, **asked), model, made) <= 1 + 1e-9


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "poisson"])  # whose mean has no bound
def test_nor_is_one_of_a_plain_clip_within_a_declared_bound(family):
    for sampler, epsilon in (("sgld", 100.0), ("sghmc", 1000.0), ("dp_sgd", 1000.0)):
        model, made = built(family, 5.0), getattr(confide, sampler)()
        assert stretch(planned(model, made, epsilon, 2000, steps=300, clipping="plain"), model, made) <= 1 + 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_at_the_bound_curve_no_more_than_steps_are_planned_for(family):
    """Measured: the slope of the sum of records that all lie in one direction, at the norm from which on rows count
    less, and ten times further; of no plan is it above the bound, and somewhere it is above a third of it."""
    model, sharp = built(family), []
    for epsilon, scale in ((0.2, SCALES[0]), (1.0, Scale(5.0, 4.0)), (30.0, SCALES[0])):
        (job,) = jobs(planned(model, "sgld", epsilon, 2000, steps=500), [scale])
        bound = job.gradient_sum.per_example.linear.weighting.row_bound
        counts = (0, 1, 7) if model.family.outcome == "count" else (0, 1)
        found = steepest(job, bound * np.array([1.0, 10.0]), counts, model.family.outputs)
        assert np.max(found) <= job.parameters.curvature * (1 + 1e-3), epsilon
        sharp.append(np.max(found) / job.parameters.curvature)
    assert max(sharp) > 1 / 3


def steepest(job, norms, outcomes, outputs, step=0.02):
    """Of single records with rows of these norms, over their scores, by differences: they are of no point, but of none
    can they be above the steepest one."""
    sums, along = job.gradient_sum, np.array([1.0, -0.5, 0.3]) if outputs else np.ones(1)
    scores, shifts = np.linspace(-6, 6, 401)[:, None] * along, step * np.eye(along.size)
    ends = np.stack([scores + shift for shift in (*shifts, *-shifts)])

    def pull(score, norm, y):
        """Of a row along the first feature."""
        data = norm * jnp.eye(1, D, dtype=jnp.float32), y[None]
        flat = jnp.zeros((D, along.size), jnp.float32).at[0].set(score / norm)
        batch = sums.batch(data, sums.residual_threshold(data), jnp.arange(8))
        return sums(flat.ravel(), batch)[0].reshape(D, -1)[0]

    pulls, found = jax.jit(jax.vmap(jax.vmap(pull, (0, None, None)), (0, None, None))), []
    for norm, y in itertools.product(norms, outcomes):
        higher, lower = np.split(np.asarray(pulls(jnp.float32(ends), jnp.float32(norm), jnp.float32(y)), np.float64), 2)
        slopes = np.moveaxis(higher - lower, 0, -1) / (2 * step)
        found.append(norm * np.max(np.linalg.norm(slopes, ord=2, axis=(1, 2))))
    return found


def longest_stable(model, sampler, clip, clipping, n=2000):
    bound = convexity.longest(model)
    bend = (model.family.weighted_smoothness if clipping is None else model.family.smoothness)(bound, clip)
    return sampler.stability / (bend + 1 / n)


@pytest.mark.parametrize("clipping", [None, "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_given_step_is_refused_from_where_it_is_not_stable(family, clipping):
    """Within a declared bound, with and without an intercept, whatever the sampler calls it."""
    for name, intercept in (("sgld", True), ("sghmc", False), ("dp_sgd", True)):
        model, made = built(family, 2.0, intercept=intercept), getattr(confide, name)
        rate = made().rate
        limit = longest_stable(model, made(), 0.01, clipping)
        if math.isinf(limit) or limit == 0:
            assert (family, clipping) == ("poisson", "plain")  # which has no bound
            continue
        how = {"epsilon": 1000.0, "n": 2000, "steps": 20, "clip": 0.01, "clipping": clipping}
        assert float(planned(model, made(**{rate: 0.999 * limit}), **how).job.kernel.schedule.step_size[0]) > 0
        with pytest.raises(Refused, match=rf"^{rate} = .* is beyond .*fly apart.*: give a smaller one") as refused:
            planned(model, made(**{rate: 1.001 * limit}), **how)
        assert "\n" not in str(refused.value)


def test_so_is_the_longest_step_of_a_schedule():
    model = built("linear", 2.0)
    limit = longest_stable(model, confide.sgld(), 0.01, None)
    how = {"epsilon": 1000.0, "n": 2000, "steps": 20, "clip": 0.01}
    planned(model, confide.sgld(step_size=lambda step: 0.9 * limit / (1 + step)), **how)
    with pytest.raises(Refused, match="fly apart"):
        planned(model, confide.sgld(step_size=lambda step: limit * (0.9 + 0.02 * step)), **how)


def test_a_refused_step_is_charged_nothing(tmp_path):
    ledger, y = ledger_of(tmp_path), FAMILIES["linear"][2]
    with pytest.raises(Refused, match="fly apart"):
        confide.fit(
            built("linear", 2.0), (X, y), confide.Budget(epsilon=1.0, delta=1e-5), confide.sgld(step_size=1.0),
            steps=20, ledger=ledger, verbose=False,
        )  # fmt: skip
    assert ledger.history("patients") == []


@pytest.mark.parametrize("sampler", ["sgld", "sghmc", "dp_sgd"])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_bound_rows_count_less_from_where_a_given_step_would_not_be_stable(family, sampler):
    model, made = built(family), getattr(confide, sampler)
    bounds = []
    for step in (0.3, 3.0):
        plan = planned(model, made(step), n=2000, steps=20)
        assert not isinstance(plan.job, ScaledJob)
        assert stretch(plan, model, made()) <= 1 + 1e-6
        bounds.append(plan.job.gradient_sum.per_example.linear.weighting.row_bound)
    assert bounds[1] < bounds[0]


def test_a_given_step_is_not_refused_for_a_clip_that_nobody_gave():
    """With a smaller budget, or a shorter clip, it is accepted."""
    model, sampler = built("poisson", 2.0), confide.sgld(step_size=0.1)
    for epsilon, clip in ((0.3, None), (1.0, 1.0), (1.0, None)):
        planned(model, sampler, epsilon, 2000, steps=20, clip=clip)


def test_nothing_is_paid_for_a_clip_beyond_the_longest_gradient():
    """The noise is that of the step size: at this clip the same draws would cost epsilon .17."""
    plan = planned(built("logistic", 2.0), confide.sgld(step_size=0.1), 1.0, 2000, steps=20)
    assert plan.job.parameters.clip <= 2.0


@pytest.mark.parametrize(("family", "sampler"), every_sampler(first=1))
def test_no_draw_is_missing_whatever_the_rows_are_like(family, sampler):
    """With rows of all lengths, and counts that no mean explains; nothing is refused once it is charged."""
    rng = np.random.default_rng(2)
    x = (X * 10.0 ** rng.integers(-12, 13, (400, 1))).astype(np.float32)
    y = FAMILIES[family][2].copy()
    if family not in ("logistic", "softmax"):
        y[::7] *= 1e6
    for epsilon, bound in ((0.05, None), (1000.0, None), (1000.0, 2.0)):
        found = confide.fit(
            built(family, bound), (x, y), confide.Budget(epsilon=epsilon, delta=1e-5), getattr(confide, sampler)(),
            steps=100, key=4, verbose=False,
        )  # fmt: skip
        assert np.all(np.isfinite(found.draws["weights"]))
        assert np.ptp(found.draws["weights"]) > 0


# Chains share the budget, and not the clip.


@pytest.mark.parametrize("family", ["logistic", "linear", "poisson"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_chains_have_the_clip_of_one(family, epsilon):
    """Each has its share of the time, the price is the same."""
    model = built(family)
    one, four = (planned(model, "sgld", epsilon, 5000, chains=chains) for chains in (1, 4))
    alone, shared = jobs(one)[0], jobs(four)[0]
    assert shared.parameters.clip == pytest.approx(alone.parameters.clip, rel=1e-9)
    assert spent(four) == pytest.approx(spent(one), rel=1e-4)
    assert spent(four) == pytest.approx(epsilon, rel=1e-3)
    times = [float(job.kernel.schedule.step_size.sum()) for job in (alone, shared)]
    assert times[1] == pytest.approx(times[0] / 4, rel=0.05)


@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_many_chains_of_a_rich_budget_have_at_least_the_clip_of_one_at_a_usual_budget(family):
    """A rich budget lengthens the clip beyond what is needed, for one chain more than for each of several."""
    model = built(family)
    for n, chains in itertools.product((500, 5000), (2, 10)):
        usual = jobs(planned(model, "sgld", 1.0, n))[0].parameters.clip
        for epsilon in (4.0, 30.0):
            rich = jobs(planned(model, "sgld", epsilon, n, chains=chains))[0].parameters.clip
            assert rich >= usual * (1 - 1e-9)


# Budgets.


@pytest.mark.parametrize("family", FAMILIES)
def test_a_usual_budget_is_spent(family):
    for epsilon, n in ((0.1, 10_000), (1.0, 10_000), (5.0, 10_000), (10.0, 2000), (0.1, 500), (10.0, 500)):
        assert spent(planned(built(family), "sgld", epsilon, n)) >= 0.99 * epsilon, (epsilon, n)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_budget_gives_no_shorter_clip_and_takes_a_chain_no_less_far(family):
    """How far is time times clip, by which a mean whose scores are all cut moves: with little budget a longer clip is
    bought before more time is."""
    found = []
    for epsilon in (0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0):
        (job,) = jobs(planned(built(family), "sgld", epsilon, 2000), SCALES[:1])
        found.append((job.parameters.clip, job.parameters.clip * float(job.kernel.schedule.step_size.sum())))
    rising = np.diff(np.log(found), axis=0)
    assert np.all(rising >= -1e-9)
    assert np.all(np.max(rising, axis=0) > 0.1)


def text(capsys, sampler=None, epsilon=20.0, **asked):
    """What is printed of a run on 5,000 rows."""
    data = np.zeros((5000, D), np.float32), np.zeros(5000, np.float32)
    budget = confide.Budget(epsilon=epsilon, delta=1e-6)
    sampler = sampler or confide.sgld()
    found = confide.fit(built("logistic"), data, budget, sampler, **{"steps": 100, "key": 1, "progress": False} | asked)
    return capsys.readouterr().err, found


def test_what_is_left_of_a_rich_budget_is_explained(capsys):
    told, found = text(capsys)
    assert found.guarantee.epsilon < 0.9 * 20
    assert "of a budget of 20; hardly any score is cut, and no step may be longer" in told
    assert "more time, by more steps" in told
    told, found = text(capsys, steps=2000)
    assert found.guarantee.epsilon > 2 * 1.0  # the advice helps
    told, found = text(capsys, epsilon=0.5)
    assert found.guarantee.epsilon == pytest.approx(0.5, rel=1e-3)
    assert told.rstrip().endswith("of a budget of 0.5")


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ({"clip": 0.01}, "hardly any score is cut"),
        ({"clip": 0.5, "sampler": confide.sgld(step_size=0.01)}, "no step may be longer"),
    ],
)
def test_what_was_given_is_not_taken_for_planned(asked, wrong, capsys):
    told, found = text(capsys, **asked)
    assert found.guarantee.epsilon < 0.9 * 20
    assert wrong not in told


def test_the_plan_says_what_is_bought_and_the_posterior_what_was(capsys):
    told, found = text(capsys, epsilon=0.5)
    assert "x the scale of the records" in told
    assert "the clip bends nothing" in told
    assert "bought inside the budget, since no norm_bound was declared" in told
    assert found.plan["scale"]["norm"] < 2.0**-20  # the rows are zeros
    assert "scale of the records" in found.guarantee.released


# Interruptions.


class Stopped(Exception):
    """A run was interrupted."""


LOGISTIC = (X, FAMILIES["logistic"][2])


def go(path, ledger=None, **asked):
    how = {
        "sampler": confide.sgld(),
        "steps": 600,
        "draws": 20,
        "verbose": False,
        "progress": False,
        "checkpoint_seconds": 1e-9,
    } | asked
    return confide.fit(
        built("logistic"), LOGISTIC, confide.Budget(epsilon=0.9, delta=1e-6), ledger=ledger, checkpoint=path, **how
    )


def interrupt(path, at, **asked):
    """A run that is stopped once block `at` is stored."""
    write = checkpoints.write

    def stop(place, checkpoint):
        write(place, checkpoint)
        if checkpoint.block == at:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "write", stop)
        with pytest.raises(Stopped):
            go(path, **asked)
    return path.read_bytes()


def begin_again(path, content):
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


@pytest.mark.optimised
@pytest.mark.parametrize(
    "asked",
    [
        {"key": 9},
        {"noise": "secure"},
        pytest.param({"key": 9, "chains": 2, "sampler": confide.sghmc()}, marks=LONG),
        pytest.param({"key": 9, "sampler": confide.dpvi(), "draws": 50}, marks=LONG),
        pytest.param({"key": 9, "canaries": 40}, marks=LONG),
    ],
    ids=["keyed", "secure", "chains", "dpvi", "canaries"],
)
def test_a_run_that_buys_its_scale_is_resumed_to_the_same_draws(asked, tmp_path):
    """After its first block, or before any, with a key that the checkpoint alone knows where noise is secure: the same
    scale is found and no other is bought, the draws are the same to the bit, and there is one charge."""
    ledger = ledger_of(tmp_path)
    later = interrupt(tmp_path / "run", 1, ledger=ledger, **asked)
    resumed = go(tmp_path / "run", ledger=ledger, **asked)
    assert len(ledger.history("patients")) == 1
    assert resumed.plan["scale"]["norm"] > 0
    again = {name: value for name, value in asked.items() if name != "key"}  # it is in the checkpoint
    twice = go(begin_again(tmp_path / "second", later), **again)
    assert np.array_equal(twice.draws["weights"], resumed.draws["weights"])
    if "key" in asked:
        whole = go(tmp_path / "third", **asked)
        assert np.array_equal(whole.draws["weights"], resumed.draws["weights"])
        assert whole.plan["scale"] == resumed.plan["scale"]


@pytest.mark.optimised
def test_so_is_one_that_was_stopped_before_its_scale_was_bought(tmp_path):
    """The charge comes before the records are looked at, and pays for them once."""
    ledger, path = ledger_of(tmp_path), tmp_path / "run"

    def stop(*arguments):
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScaleRelease, "ask", stop)
        with pytest.raises(Stopped):
            go(path, key=9, ledger=ledger)
    assert len(ledger.history("patients")) == 1
    found = go(path, ledger=ledger)
    assert len(ledger.history("patients")) == 1
    assert np.array_equal(found.draws["weights"], go(tmp_path / "other", key=9).draws["weights"])


# Whatever else a run may be: scores are weighted by default.

OTHERS = {
    "individual": {"account": "individual"},
    "bayesian": {"account": "bayesian"},
    "hybrid": {"sampler": confide.hybrid(confide.sgld())},
    "canaries": {"canaries": 40},
}


@pytest.mark.parametrize("other", OTHERS)
def test_scores_are_weighted_whatever_else_is_asked_for(other):
    """The scale is bought where the account sees it, and where no draw came before; else nothing is."""
    for asked in ({}, {"clipping": "weighted"}):
        found = confide.fit(
            built("logistic"), LOGISTIC, confide.Budget(epsilon=2.0, delta=1e-5), steps=300, key=2, verbose=False,
            **{"sampler": confide.sgld()} | OTHERS[other], **asked,
        )  # fmt: skip
        assert found.plan["clipping"] == "weighted"
        assert ("scale" in found.plan) == (other == "canaries")
        assert found.guarantee.epsilon <= 2.0 * (1 + 1e-6)
        assert np.all(np.isfinite(found.draws["weights"]))
    plain = confide.fit(
        built("logistic"), LOGISTIC, confide.Budget(epsilon=2.0, delta=1e-5), steps=300, key=2, verbose=False,
        clipping="plain", **{"sampler": confide.sgld()} | OTHERS[other],
    )  # fmt: skip
    assert "clipping" not in plain.plan


def test_canaries_have_no_part_in_the_scale(monkeypatch):
    seen, ask = [], ScaleRelease.ask

    def look(self, records, source):
        seen.append((int(np.sum(records.present)), len(records.present), len(records.arrays[0])))
        return ask(self, records, source)

    monkeypatch.setattr(ScaleRelease, "ask", look)
    budget = confide.Budget(epsilon=2.0, delta=1e-5)
    found = confide.fit(
        built("logistic"), LOGISTIC, budget, confide.sgld(), steps=50, canaries=40, key=2, verbose=False
    )
    ((present, places, rows),) = seen
    assert present == 400
    assert 400 <= places == rows < 440  # some are empty
    assert found.canaries is not None
    assert np.any(found.canaries.inside)


def test_canaries_among_long_rows_are_refused_before_the_charge_or_not_at_all(tmp_path):
    ledger = ledger_of(tmp_path)
    try:
        confide.fit(
            built("logistic"), (X * np.float32(3000), LOGISTIC[1]), confide.Budget(epsilon=0.9, delta=1e-6),
            confide.sgld(), steps=50, canaries=40, key=2, ledger=ledger, verbose=False,
        )  # fmt: skip
    except Refused:
        assert ledger.history("patients") == []


# How it is asked for.


def test_weights_are_refused_where_no_score_is_linear():
    own = models.from_functions(
        log_prior=lambda slope: -0.5 * jnp.sum(slope**2),
        log_likelihood=lambda slope, x, y: -0.5 * (y - x @ slope) ** 2,
        start=np.zeros(D, np.float32),
    )
    for model in (own, models.mlp((D, 4, 2))):
        y = LOGISTIC[1] if model is own else LOGISTIC[1].astype(np.int32)
        how = {"sampler": confide.sgld(), "steps": 20, "verbose": False, "key": 1}
        with pytest.raises(Refused, match=rf"^clipping = 'weighted' .* this is {model.name}: leave it out$"):
            confide.fit(model, (X, y), confide.Budget(epsilon=1.0, delta=1e-5), clipping="weighted", **how)
        found = confide.fit(model, (X, y), confide.Budget(epsilon=1.0, delta=1e-5), **how)
        assert "clipping" not in found.plan
    with pytest.raises(Refused, match=r"^clipping = 'soft' is unknown: choose 'weighted' or 'plain', or leave it out$"):
        planned(built("logistic"), "sgld", clipping="soft")


@pytest.mark.parametrize("clipping", ["plain", "weighted", pytest.param(None, marks=LONG)])
def test_the_command_line_passes_it_on(clipping, tmp_path, monkeypatch, capsys):
    patients.write(tmp_path, 120)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    more = [] if clipping is None else ["--clipping", clipping]
    command = "confide fit patients.csv --schema schema.toml --out run --epsilon 1 --delta 1e-5 --steps 100 --quiet"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--sampler", "sgld", *more])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code, capsys.readouterr().err
    found = confide.Posterior.load(tmp_path / "run")
    assert found.plan.get("clipping") == (None if clipping == "plain" else "weighted")


def test_estimators_take_it():
    made = confide.PrivateLogisticRegression(
        epsilon=2.0,
        bounds=([-5] * D, [5] * D),
        classes=[0.0, 1.0],
        steps=100,
        random_state=1,
        clipping="plain",
        sampler=confide.sgld(),
    )
    assert made.get_params()["clipping"] == "plain"
    copy = clone(made).set_params(clipping="weighted")
    assert (made.clipping, copy.clipping) == ("plain", "weighted")
    assert confide.PrivateLogisticRegression().get_params()["clipping"] is None
    assert "clipping" not in made.fit(*LOGISTIC).posterior_.plan
    for asked in (copy, clone(copy).set_params(clipping=None)):
        assert asked.fit(*LOGISTIC).posterior_.plan["clipping"] == "weighted"
