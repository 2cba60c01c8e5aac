"""Individual accounting: the theory by simulation, the compiled filter against numpy, and what leaves a run."""

import dataclasses
import json
import math
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import confide
import confide.inference.fitting
from confide import events, models
from confide.app.runs import choices
from confide.inference import checkpoints, loop, plans
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.inference.plans.estimates import SAMPLES
from confide.mechanism import clipping, individual_filter, noise, oracle
from confide.mechanism.kernel import Query
from confide.mechanism.layers import Draw, Observed, Prepared
from confide.privacy import pricing
from confide.privacy.accountants import gdp, individual, moments
from confide.privacy.accountants.individual import Filter
from confide.privacy.budget import Budget, Guarantee
from confide.privacy.extra_accounts import Accounts, Individual, accounts
from confide.validation import Refused

N, D = 500, 4
BUDGET = Budget(epsilon=0.2, delta=1e-5)
RANDOM = np.random.default_rng(3)
X = RANDOM.uniform(-1, 1, (N, D)).astype(np.float32)
Y = (RANDOM.uniform(size=N) < special.expit(X @ [2.0, -1.0, 0.5, 0.0])).astype(np.float32)
MODEL = models.logistic_regression(D)
LONG = pytest.mark.long


def planned(sampler=None, budget=BUDGET, settings=None, model=MODEL, bayesian=False, secure=False, **asked):
    kept = Accounts(bayesian=bayesian, individual=Individual() if settings is None else settings)
    asked = {"steps": 40, "draws": 40, "burn_in": 0, "clip": 0.8, "clipping": "plain"} | asked
    asked["noise"] = "secure" if secure else "default"
    return stochastic.make_plan(
        model, (X, Y), budget, sampler or confide.sgld(), Options(account=kept, **asked), _key()
    )


def _key():
    return noise.as_key(0)


def test_a_filter_of_squares_is_gaussian_however_steps_are_chosen():
    """400,000 runs of an adversary who asks for more where the noise has helped: delta(epsilon) by simulation.

    A binomial share is off by more than 4.5 standard errors with probability below 1e-5.
    """
    random, mu, runs = np.random.default_rng(0), 0.8, 400_000
    loss, spent = np.zeros(runs), np.zeros(runs)
    for _ in range(12):
        wanted = np.where(loss > 0.2, 0.6, 0.15)
        ratio = np.where(spent + wanted**2 <= mu**2, wanted, 0.0)
        spent += ratio**2
        loss += ratio * random.normal(size=runs) + ratio**2 / 2
    assert spent.max() <= mu**2
    assert spent.std() > 0.05  # the runs do differ
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        terms = np.maximum(0.0, -np.expm1(epsilon - loss))
        assert terms.mean() <= gdp.delta_of_mu(mu, epsilon) + 4.5 * terms.std() / math.sqrt(runs)
    greedy = 0.6 * np.sqrt(12) * random.normal(size=runs) + 0.36 * 12 / 2  # nobody counts: far above
    assert np.maximum(0.0, -np.expm1(1 - greedy)).mean() > 2 * gdp.delta_of_mu(mu, 1.0)


def test_the_cost_table_is_never_too_low_and_hardly_too_high():
    filter = Filter(limit=1.0, order=17, sampling_probability=0.02, largest=1.3)
    ratios = np.random.default_rng(1).uniform(0.001, 1.3, 500)
    exact = moments.binomial_log_moment(17, 1 / ratios, np.full(500, 0.02))
    costs = filter.costs(ratios)
    assert np.all(costs >= exact * (1 - 1e-13))
    assert np.all(costs <= exact * (1 + 1e-3))
    with jax.enable_x64(True):
        assert individual_filter.limits(filter).costs(jnp.asarray(ratios)) == pytest.approx(costs, rel=1e-9)
        squares = individual_filter.limits(Filter(limit=1.0, largest=1.3)).costs(jnp.asarray(ratios))
    assert squares == pytest.approx(ratios**2, rel=1e-9)


@pytest.mark.parametrize(
    "kind",
    ["logistic", pytest.param("softmax", marks=LONG), "linear", pytest.param("mlp", marks=LONG), "diagonal", "matrix"],
)
def test_norms_are_those_of_the_contributions(kind):
    model = {
        "softmax": lambda: models.softmax_regression(D, 3),
        "linear": lambda: models.linear_regression(D),
        "mlp": lambda: models.mlp((D, 3, 2)),
    }.get(kind, lambda: MODEL)()
    flat, unravel = plans.unraveller(model, (X, Y), _key())
    position = jnp.asarray(np.random.default_rng(2).normal(size=flat.size), jnp.float32)
    factor = {"diagonal": jnp.linspace(0.5, 2, D), "matrix": jnp.eye(D) + 0.3}.get(kind)
    total = clipping.clipped_sum(model, 0.5, unravel, 48)
    data = (jnp.asarray(X[:45]), jnp.asarray(Y[:45]))
    batch = total.batch(data, total.residual_threshold(data), jnp.arange(48))
    rows = np.linalg.norm(total.contributions(position, batch, factor), axis=1)
    assert total.norms(position, batch, factor) == pytest.approx(rows, rel=1e-5, abs=1e-7)
    assert np.ptp(rows[:45]) > 0.01
    assert np.all(rows[45:] == 0)
    everyone = individual_filter.every_norm(total, position, Prepared(data, total.residual_threshold(data)), factor)
    assert everyone == pytest.approx(rows[:45], rel=1e-5, abs=1e-7)


def _recomputed(found, draws):
    """What every record spent, step by step, from the iterates alone: (steps, records), without any filter."""
    start = found.job.initial_positions[0].astype(np.float32)
    positions = np.concatenate([start[None], draws[0, :-1]])
    lengths = np.linalg.norm(X, axis=1)
    norms = np.minimum(np.abs(special.expit(positions @ X.T) - Y) * lengths, found.job.parameters.clip)
    return norms / found.job.kernel.schedule.noise[:, None]


@pytest.mark.parametrize("stretch", [1.0, 6.0])
def test_what_is_spent_follows_from_the_iterates(stretch):
    """Whoever forgets to charge, charges another record, or goes on after the limit is caught."""
    found = planned(settings=Individual(stretch=stretch))
    draws = found.job.execute((X, Y), jax.random.key(1))
    spent, limit = found.job.observations.spent[0], found.job.observers.filter.limit
    ratios = np.cumsum(_recomputed(found, draws) ** 2, axis=0)
    left = ratios[-1] > limit
    assert spent[~left] == pytest.approx(ratios[-1][~left], rel=1e-3)
    assert np.all(spent >= ratios[-1] * (1 - 1e-5), where=~left)  # nobody is charged too little
    assert spent[left] == pytest.approx(limit, rel=1e-6)
    assert np.all(spent <= limit)
    assert left.mean() > 0.3 if stretch > 1 else left.mean() < 0.01
    assert left.mean() < 0.999


def test_whoever_is_left_out_contributes_nothing():
    """One step's sum against numpy, with a fifth of the records at their limit."""
    found = planned(settings=Individual(stretch=3.0))
    job = found.job
    out = np.arange(N) % 5 == 0
    with jax.enable_x64(True):
        data = (jnp.asarray(X), jnp.asarray(Y))
        asked = oracle.build(job.gradient_sum, job.parameters.rounding, job.observers, job.prepared(data))
        before = Observed(spent=jnp.asarray(np.where(out, job.observers.filter.limit, 0.0)))
        scale = jnp.asarray(job.kernel.schedule.noise[0])
        zero = jnp.zeros(D, jnp.int64)
        draw = Draw(t=jnp.asarray(0), key=jax.random.key(0), rows=None, units=zero, claimed=scale)
        query = Query(jnp.asarray(np.linspace(-1, 1, D)), scale)
        total, after = asked.answer(query, draw, before)
    residual = special.expit(X @ np.linspace(-1, 1, D)) - Y
    scale = np.minimum(1, job.gradient_sum.effective_clip / np.abs(residual * np.linalg.norm(X, axis=1)))
    assert np.asarray(total) == pytest.approx((X * (residual * scale)[:, None])[~out].sum(axis=0), rel=1e-5)
    assert np.all(np.asarray(after.spent)[out] == job.observers.filter.limit)
    assert np.all(np.asarray(after.spent)[~out] > 0)


@pytest.mark.parametrize("kind", ["logistic", "softmax", pytest.param("mlp", marks=LONG), "diagonal"])
def test_what_is_added_up_is_cut_to_what_was_paid(kind):
    """Whatever another program makes of a record's gradient, it weighs no more than the norm that was charged."""
    model = {"softmax": lambda: models.softmax_regression(D, 3), "mlp": lambda: models.mlp((D, 3, 2))}.get(
        kind, lambda: MODEL
    )()
    flat, unravel = plans.unraveller(model, (X, Y), _key())
    position = jnp.asarray(np.random.default_rng(2).normal(size=flat.size), jnp.float32)
    factor = jnp.linspace(0.5, 2, D) if kind == "diagonal" else None
    total = clipping.clipped_sum(model, 0.5, unravel, 48)
    data = (jnp.asarray(X[:48]), jnp.asarray(Y[:48]))
    paid = jnp.asarray(np.where(np.arange(48) % 3, 0.5, 0.01 * np.arange(48)), jnp.float32)
    alone = [
        total.over(
            data,
            total.residual_threshold(data),
            jnp.where(jnp.arange(8) == 0, i, 48),
            lambda b: total(position, b, factor),
            paid,
        )
        for i in range(48)
    ]
    norms = np.array([np.linalg.norm(one.total) for one in alone])
    assert np.all(norms <= np.asarray(paid) * (1 + 2**-16))
    assert np.sum(norms > 0.9 * np.asarray(paid)) > 5  # some are cut


@pytest.mark.parametrize("rows", [40, pytest.param(600, marks=LONG)])
@pytest.mark.parametrize("kind", ["logistic", pytest.param("softmax", marks=LONG), "diagonal", "mlp"])
def test_whoever_has_left_is_as_good_as_an_empty_place(kind, rows):
    """A record of norm 0 in the sum, an empty place with its row, and one with none: the same bits."""
    model = {"softmax": lambda: models.softmax_regression(D, 3), "mlp": lambda: models.mlp((D, 3, 2))}.get(
        kind, lambda: MODEL
    )()
    random = np.random.default_rng(4)
    x, y = random.normal(size=(rows, D)).astype(np.float32), (random.uniform(size=rows) < 0.5).astype(np.float32)
    x[:, 1] = 0.0  # but for one record, so that nothing else hides the sign of its zero
    flat, unravel = plans.unraveller(model, (x, y), _key())
    position = jnp.asarray(random.normal(size=flat.size), jnp.float32)
    factor = jnp.linspace(0.5, 2, D) if kind == "diagonal" else None
    total = clipping.clipped_sum(model, 0.5, unravel, rows)

    def summed(x, y, allowed, real):
        def found(batch):
            there = batch.real & real[jnp.minimum(batch.places, rows - 1)]
            with jax.enable_x64(False), jax.default_matmul_precision("highest"):
                return total(position, batch._replace(real=there), factor).total

        return total.over((x, y), total.residual_threshold((x, y)), None, found, allowed)

    everyone, here = np.full(rows, 0.5, np.float32), np.ones(rows, bool)
    with jax.enable_x64(True):
        compiled = jax.jit(summed)
        for gone in (0, 3, 17, rows - 1):
            x[gone, 1], rest = -1.0, np.arange(rows) != gone
            left = compiled(x, y, np.where(rest, everyone, np.float32(0)), here)
            empty = compiled(x, y, everyone, rest)
            nothing = compiled(x * rest[:, None], y * rest, everyone, rest)
            inside = compiled(x, y, everyone, here)
            x[gone, 1] = 0.0
            assert np.asarray(left).tobytes() == np.asarray(empty).tobytes() == np.asarray(nothing).tobytes()
            assert np.linalg.norm(inside - left) > 0.01


def _charged(found, spent, data):
    """What every record may contribute to the first step, and what it has spent after."""
    job = found.job
    with jax.enable_x64(True):
        query = Query(jnp.zeros(D, jnp.float32), jnp.asarray(job.kernel.schedule.noise[0]))
        prepared, rounding = job.prepared(data), job.parameters.rounding
        norms, after = individual_filter.charge(query, jnp.asarray(spent), job.gradient_sum, prepared, rounding)
        return np.asarray(norms), np.asarray(after)


@pytest.mark.parametrize("batch_size", [300, 30])
def test_room_is_kept_for_how_others_are_rounded_after_one_has_left(batch_size):
    """300 rows are added up in single precision: what slack costs in all steps is never spent on taking part."""
    x, y = X[:300], Y[:300]
    asked = Options(
        account=Accounts(individual=Individual(stretch=3.0)),
        steps=40,
        draws=40,
        burn_in=0,
        clip=0.8,
        batch_size=batch_size,
    )
    found = stochastic.make_plan(MODEL, (x, y), BUDGET, confide.sgld(), asked, _key())
    filter, sums = found.job.observers.filter, found.job.gradient_sum
    after = math.fsum(filter.costs(sums.limit.slack / found.job.kernel.schedule.noise))
    assert filter.worst > 1.5 * filter.limit
    assert 1e-7 * filter.limit < after < 1e-2 * filter.limit
    data = (jnp.asarray(x), jnp.asarray(y))
    cost = _charged(found, np.zeros(300), data)[1]
    norms, spent = _charged(found, filter.limit - after * 0.9 - cost, data)
    assert np.all(norms == 0)
    assert np.all(spent == filter.limit)
    norms, spent = _charged(found, filter.limit - after * 2 - cost, data)
    assert np.all(norms > 0)
    assert np.all(spent + after <= filter.limit)


@pytest.mark.parametrize("name", ["sgld", "sghmc", "wang2015_sgld"])
@pytest.mark.parametrize("batch_size", [5, N])
def test_no_step_is_beyond_the_table(name, batch_size):
    """Where a rule of its own sets the noise, too."""
    settings = {"budget": Budget(epsilon=20.0, delta=1e-6), "batch_size": batch_size, "steps": 20, "draws": 20}
    found = planned(getattr(confide, name)(), clip=2.0, **settings)
    ratios = found.job.parameters.clip / found.job.kernel.schedule.noise
    filter = found.job.observers.filter
    assert ratios.max() <= filter.largest
    assert np.all(np.isfinite(filter.costs(ratios)))
    assert np.isinf(filter.costs(np.array([1.01 * filter.largest])))
    with jax.enable_x64(True):
        assert np.isinf(individual_filter.limits(filter).costs(jnp.asarray([1.01 * filter.largest])))


def test_given_step_sizes_are_kept_as_far_as_the_stretch_goes():
    found = planned(confide.sgld(step_size=0.05))
    assert np.all(found.job.kernel.schedule.step_size == 0.05)
    with pytest.raises(Refused, match="would spend 34 times the budget") as refusal:
        planned(confide.sgld(step_size=5.0))
    needed = float(re.search(r"spend ([\d.]+)", str(refusal.value))[1])
    planned(confide.sgld(step_size=5.0), settings=Individual(stretch=1.01 * needed))


def test_nobody_is_left_out_at_stretch_one():
    """A record that is always at the clip pays for all steps, however their sum is rounded."""
    for steps in (3, 300, 500, 5000):
        found = planned(steps=steps, draws=1)
        filter, ratios = found.job.observers.filter, found.job.parameters.clip / found.job.kernel.schedule.noise
        assert sum(ratios**2) < filter.limit


@pytest.mark.parametrize(
    "name", ["sgld", "psgld", "wang2015_sgld", pytest.param("sghmc", marks=LONG), pytest.param("sgnht", marks=LONG)]
)
def test_every_kernel_stays_within_the_limit(name):
    found = planned(getattr(confide, name)(), settings=Individual(stretch=4.0), steps=12, draws=12)
    epsilon = pricing.guarantee(found.event, delta=1e-5).epsilon
    # wang2015's own rule for step sizes knows nothing of a stretch, and nobody is said to spend what nobody can.
    assert epsilon < 0.01 if name == "wang2015_sgld" else epsilon == pytest.approx(0.2, rel=1e-6)
    found.job.execute((X, Y), jax.random.key(2))
    spent = found.job.observations.spent
    assert np.all(spent > 0)
    assert np.all(spent <= found.job.observers.filter.limit)
    if name != "wang2015_sgld":
        assert np.mean(spent == found.job.observers.filter.limit) > 0.02


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=LONG)])
def test_poisson_batches_charge_everyone(secure):
    settings = Individual(stretch=2.0)
    found = planned(batch_size=30, settings=settings, secure=secure, steps=20, draws=20)
    filter = found.job.observers.filter
    assert filter.order >= 2
    assert pricing.guarantee(found.event, delta=1e-5).epsilon <= 0.2
    source = noise.SecureSource(b"s" * 32) if secure else jax.random.key(1)
    draws = found.job.execute((X, Y), source)
    exact = np.zeros(N)
    for ratios in _recomputed(found, draws):
        exact += moments.binomial_log_moment(filter.order, 1 / ratios, np.full(N, 30 / N))
    spent, left = found.job.observations.spent[0], exact > filter.limit
    assert np.all(spent[~left] >= exact[~left] * (1 - 1e-5))
    assert spent[~left] == pytest.approx(exact[~left], rel=0.1)  # a batch of 30 allows 2% for the rounding of its sum
    assert np.all(spent <= filter.limit)


def test_replacing_a_record_costs_twice_its_own():
    one = planned(budget=Budget(epsilon=0.2, delta=1e-5, neighbours="replace-one"))
    two = planned()
    assert one.job.observers.filter.limit == pytest.approx(two.job.observers.filter.limit / 4, rel=1e-6)
    assert pricing.guarantee(one.event, delta=1e-5, neighbours="replace-one").epsilon == pytest.approx(0.2, rel=1e-6)


@pytest.mark.long
def test_several_chains_share_the_budget():
    found = planned(chains=2, settings=Individual(histogram=0.2))
    assert pricing.guarantee(found.event, delta=1e-5).epsilon == pytest.approx(0.2, rel=1e-6)
    found.job.execute((X, Y), jax.random.key(1))
    assert found.job.observations.spent.shape == (2, N)
    mu = pricing.gdp_mu(0.2, 1e-5)
    assert 2 * found.job.observers.filter.limit == pytest.approx(0.8 * mu**2, rel=1e-6)


def test_epsilons_of_single_records_are_those_of_their_mu():
    filter = Filter(limit=gdp.mu_of_epsilon(1.0, 1e-5) ** 2)
    mu = np.array([0.02, 0.1, 0.2, 0.25])
    exact = [gdp.epsilon_of_mu(m, 1e-5) for m in mu]
    assert filter.epsilons(mu**2, 1e-5) == pytest.approx(exact, rel=2e-3)
    counts = individual.count_records(mu**2, filter, Budget(epsilon=1.0, delta=1e-5), 1e-5)
    bins = np.minimum((np.array(exact) * individual.BINS).astype(int), individual.BINS - 1)
    assert np.flatnonzero(counts).tolist() == sorted(set(bins.tolist()))
    assert individual.Histogram((0.0, 0.5, 1.0), (3.0, 1.0), 1.0).quantile(0.5) == 0.5


@pytest.mark.parametrize("secure", [False, True])
def test_the_histogram_has_the_noise_that_is_priced(secure):
    """2,000 counts: their mean square is off by more than a sixth with probability below 1e-6."""
    source = noise.SecureSource(b"h" * 32) if secure else jax.random.key(5)
    noisy = noise.noisy_counts(np.full(2000, 70.0), 12.0, source)
    assert np.all(noisy == np.round(noisy))
    assert np.mean((noisy - 70) ** 2) == pytest.approx(144, rel=1 / 6)
    found = planned(settings=Individual(histogram=0.25), secure=secure)
    counted = found.event.events[-1]
    assert counted.noise == pytest.approx(2 / pricing.gdp_mu(0.2, 1e-5), rel=1e-9)
    drawn = found.histogram.noise
    assert counted.noise < drawn < counted.noise * (1 + 1e-4)  # more than is priced, for the rounding of counts


@pytest.mark.long
def test_an_interrupted_run_goes_on_with_what_was_spent(tmp_path):
    found = planned(settings=Individual(stretch=5.0), bayesian=True, steps=1100, draws=10)
    job, data = found.job, (X, Y)
    whole = job.execute(data, jax.random.key(8))
    seen = job.observations
    place = tmp_path / "run"
    first = checkpoints.Checkpoint("", "", loop.secret(jax.random.key(8)), True, 0, job.first_state(), b"")
    kept = []
    written = checkpoints.write

    def copy(path, checkpoint):
        written(path, checkpoint)
        kept.append(checkpoints.read(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "write", copy)
        job.execute(data, jax.random.key(8), checkpoint=place, resumed=first, every=0.0)
    middle = next(checkpoint for checkpoint in kept if 0 < checkpoint.block < job.blocks)
    job.observations = None
    assert np.array_equal(job.execute(data, jax.random.key(8), resumed=middle), whole)
    assert np.array_equal(job.observations.spent, seen.spent)
    assert np.array_equal(job.observations.distances, seen.distances)


@pytest.mark.long
def test_distances_are_norms_of_records_at_the_iterates():
    found = planned(bayesian=True, batch_size=60)
    draws = found.job.execute((X, Y), jax.random.key(1))
    norms = _recomputed(found, draws) * found.job.kernel.schedule.noise[:, None]
    distances = found.job.observations.distances[0]
    assert distances.shape == (40, SAMPLES)
    gaps = np.abs(distances[:, :, None] - norms[:, None, :]).min(axis=2)
    assert gaps.max() < 0.02 * found.job.parameters.clip
    assert len(np.unique(distances)) > 100  # of records picked anew at every step


@pytest.mark.parametrize("batch_size", [60, pytest.param(400, marks=LONG)])
@pytest.mark.long
def test_watching_changes_no_draw(batch_size):
    """Records that are looked at beside the batch are not in the sum. Large batches are added up by chunks."""
    settings = {"batch_size": batch_size, "steps": 30, "draws": 30, "burn_in": 0, "clip": 0.8, "clipping": "plain"}
    found = []
    for bayesian in (False, True):
        asked = Options(account=Accounts(bayesian=bayesian), **settings)
        job = stochastic.make_plan(MODEL, (X, Y), BUDGET, confide.sgld(), asked, _key()).job
        found.append(job.execute((X, Y), jax.random.key(1)))
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def fitted():
    """Every account at once, with the words that were printed."""
    return confide.fit(
        MODEL,
        (X, Y),
        BUDGET,
        confide.sgld(),
        steps=60,
        batch_size=N,
        clip=0.4,
        key=7,
        verbose=False,
        account=["dp", "bayesian", Individual(stretch=1.5, histogram=0.1)],
    )


def test_the_guarantee_shows_both_apart(fitted):
    guarantee = fitted.guarantee
    assert guarantee.epsilon == pytest.approx(0.2, rel=1e-6)
    typical = guarantee.typical
    assert min(typical.epsilon, typical.bounded) > 0
    assert max(typical.epsilon, typical.bounded) <= typical.worst_case
    text = str(guarantee)
    promise, estimate = text.split("An estimate for typical people: no guarantee, and not to be published")
    assert "(0.2, 1e-05)-differentially private" in promise
    assert f"{typical.epsilon:.4g}" in estimate
    assert "must not be published" in estimate
    assert "estimate" not in promise


def test_nothing_private_is_kept(fitted, tmp_path):
    """The estimate and what single records spent are nowhere in what is stored, copied or sent."""
    typical = fitted.guarantee.typical
    folder = fitted.save(tmp_path / "run")
    stored = b"".join(path.read_bytes() for path in folder.iterdir())
    assert typical is not None
    assert b"typical" not in stored
    assert b"estimator" not in stored
    loaded = confide.Posterior.load(folder)
    assert loaded.guarantee == fitted.guarantee
    assert loaded.guarantee.typical is None
    assert pickle.loads(pickle.dumps(fitted)).guarantee.typical is None
    assert Guarantee.from_json(json.dumps(fitted.guarantee.to_json())) == fitted.guarantee
    known = {"stretch", "histogram", "edges", "counts", "noise"}
    assert set(fitted.plan["individual"]) == known
    assert "seen" not in fitted.plan
    assert pricing.verify(loaded.guarantee) == pytest.approx(0.2, rel=1e-6)
    assert "histogram of what single records spent" in loaded.guarantee.released


def test_the_plan_says_who_pays(capsys):
    confide.fit(
        MODEL, (X, Y), BUDGET, confide.sgld(), steps=60, clip=0.4, key=7, batch_size=N, account=Individual(stretch=1.5)
    )
    assert "every record pays for its own gradients" in " ".join(capsys.readouterr().err.split())


def test_a_second_sum_is_refused_under_any_name():
    mine = dataclasses.replace(confide.sgfs(), name="mine")
    with pytest.raises(Refused, match="mine releases a second sum"):
        confide.fit(MODEL, (X, Y), BUDGET, mine, steps=20, verbose=False, account="individual")


def test_a_run_goes_on_with_the_accounts_that_it_began_with(tmp_path):
    settings = {"sampler": confide.sgld(), "steps": 1100, "clip": 0.8, "batch_size": N, "verbose": False}
    settings |= {"checkpoint": tmp_path / "run", "key": 3}

    def stop(*arguments, **settings):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "execute", stop)
        with pytest.raises(KeyboardInterrupt):
            confide.fit(MODEL, (X, Y), BUDGET, account="individual", **settings)
    for other in ("dp", ["individual", "bayesian"], Individual(stretch=2.0)):
        with pytest.raises(Refused, match="another run"):
            confide.fit(MODEL, (X, Y), BUDGET, account=other, **settings)


def test_another_start_is_another_noise():
    """One key given twice: the noise is derived from where the run starts as well."""

    def model(start):
        return models.from_functions(
            log_prior=lambda p: -jnp.sum(p**2),
            log_likelihood=lambda p, x, y: -jnp.sum((y - x @ p) ** 2),
            start=jnp.full(D, start),
        )

    digests = [confide.models.tracing.model_digest(model(start), (X, Y)) for start in (0.0, 1.0)]
    assert digests[0] != digests[1]


@pytest.mark.long
def test_an_estimate_that_cannot_be_had_does_not_lose_the_run(capsys):
    still = (np.zeros_like(X), Y)  # every gradient is zero: nothing is known of a spread
    posterior = confide.fit(
        MODEL, still, BUDGET, confide.sgld(), steps=40, clip=0.8, batch_size=60, key=1, account=["dp", "bayesian"]
    )
    assert posterior.guarantee.typical is None
    assert "no estimate for typical people" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("account", "settings", "words"),
    [
        (["dp", "moments"], {}, "account"),
        (["dp", "dp"], {}, "twice"),
        (["individual", Individual()], {}, "twice"),
        (7, {}, "no list of accounts"),
        (["bayesian"], {"budget": Budget(epsilon=0.2, delta=1e-5, neighbours="replace-one")}, "add-remove"),
        (["individual"], {"sampler": "sgfs"}, "second sum"),
        (["bayesian"], {"sampler": "langevin"}, "'dp' alone"),
        (["individual"], {"sampler": "hybrid"}, "'dp' alone"),
        (["individual"], {"batch_size": 30, "chains": 2}, "one chain"),
        ([Individual(histogram=0.1)], {"batch_size": 30}, "goes with full batches"),
        (["individual"], {"batch_size": 30, "budget": Budget(epsilon=0.001, delta=1e-5)}, "too little"),
        (
            ["individual"],
            {"batch_size": 30, "budget": Budget(epsilon=0.2, delta=1e-5, neighbours="replace-one")},
            "add-remove",
        ),
    ],
)
def test_bad_accounts_are_refused_in_one_line(account, settings, words):
    settings = {"budget": BUDGET, "steps": 20, "sampler": "sgld"} | settings
    settings["sampler"] = getattr(confide, settings["sampler"])()
    with pytest.raises(Refused, match=words) as refusal, warnings.catch_warnings():
        confide.fit(MODEL, (X, Y), verbose=False, account=account, **settings)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("bad", [{"stretch": 0.0}, {"stretch": math.nan}, {"histogram": 1.0}, {"histogram": -0.1}])
def test_bad_settings_of_individual_accounts(bad):
    with pytest.raises(Refused):
        Individual(**bad)
    with pytest.raises(Refused):
        accounts({"dp"})


def test_settings_of_individual_accounts_need_one():
    common = {"data": "d.csv", "schema": "", "out": "o", "epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(Refused, match="--stretch goes with --account individual"):
        choices.extra_accounts(choices.Request(stretch=2.0, **common))
    kept = choices.extra_accounts(choices.Request(account=("dp", "individual"), histogram=0.1, **common))
    assert kept == Accounts(individual=Individual(histogram=0.1))


def test_events_of_filters_go_through_json_and_ledgers():
    for event in (
        events.GaussianFilter(mu=0.3, steps=10),
        events.RenyiFilter(order=12, log_moment=0.5, delta=1e-6, sampling_probability=0.1, steps=10),
        events.SpendingHistogram(noise=20.0),
    ):
        assert events.from_json(json.loads(json.dumps(event.to_json()))) == event
        assert any("left out" in sentence or "counted" in sentence for sentence in event.assumptions())
        if isinstance(event, events.SpendingHistogram):
            assert event.parts("replace-one").squared_mu == pytest.approx(2 / 400)
        else:
            price = pricing.guarantee(event, delta=1e-5).epsilon
            assert individual.epsilon(event, 1e-5) == pytest.approx(price, rel=1e-3)
    with pytest.raises(Refused, match="no filtered run"):
        individual.profile(events.gaussian(1.0))
