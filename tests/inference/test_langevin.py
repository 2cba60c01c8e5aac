"""Langevin's last iterate and the hybrid: what is drawn is what is priced, and what cannot be priced is refused."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import confide
import confide.inference.checkpoints
import confide.models.convexity
from confide import Refused, events
from confide.inference.options import Options
from confide.inference.plans import PLANNERS
from confide.inference.plans import langevin as planning
from confide.mechanism import noise, oracle
from confide.mechanism.kernel import FullBatchStep
from confide.mechanism.layers import Draw, Observed, Prepared
from confide.models import (
    from_functions,
    linear_regression,
    logistic_regression,
    mlp,
    negative_binomial_regression,
    poisson_regression,
    softmax_regression,
)
from confide.models.inputs import as_records
from confide.privacy.accountants import profile
from helpers.fits import BUDGET, ledger_of

RNG = np.random.default_rng(0)
N, D = 600, 4
X = RNG.uniform(-1, 1, size=(N, D)).astype(np.float32) / 2
SCORES = X @ np.array([4.0, -3.0, 2.0, 0.0])
Y = (RNG.random(N) < 1 / (1 + np.exp(-SCORES))).astype(np.float32)
CLASSES = RNG.integers(0, 3, N).astype(np.float32)
COUNTS = RNG.poisson(np.exp(SCORES / 4)).astype(np.float32)
MODELS = {
    "logistic": (logistic_regression(D, norm_bound=1.0), Y),
    "logistic with intercept": (logistic_regression(D, norm_bound=1.0, intercept=True), Y),
    "softmax": (softmax_regression(D, 3, norm_bound=1.0), CLASSES),
    "linear": (linear_regression(D, noise_scale=0.5, norm_bound=1.0), SCORES.astype(np.float32)),
    "poisson": (poisson_regression(D, norm_bound=1.0, largest_mean=5.0), COUNTS),
    "negative binomial": (negative_binomial_regression(D, dispersion=0.5, norm_bound=1.0), COUNTS),
}


def fit(model=MODELS["logistic"][0], y=Y, sampler=None, x=X, **more):
    settings = {"steps": 60, "verbose": False, "progress": False} | more
    return confide.fit(model, (x, y), BUDGET, sampler or confide.langevin(), **settings)


def planned(name, budget=BUDGET, sampler=None, **asked):
    model, y = MODELS[name]
    asked = Options(**({"steps": 60} | asked))
    sampler = sampler or confide.langevin()
    return PLANNERS[sampler.kind](model, as_records((X, y)), budget, sampler, asked, jax.random.key(0))


def drawn(units, claimed):
    return Draw(t=jnp.asarray(0), key=jax.random.key(0), rows=None, units=units, claimed=claimed)


def stepper(found):
    """position -> where one step without noise leads, by the real kernel and oracle."""
    job = found.job

    @jax.jit
    def step(position, data):
        prepared = Prepared(data, job.gradient_sum.residual_threshold(data))
        asked = oracle.build(job.gradient_sum, job.parameters.rounding, job.observers, prepared)
        control = jax.tree.map(lambda column: jnp.asarray(column[0]), job.kernel.schedule)
        draw = drawn(jnp.zeros(position.shape, jnp.int64), control.noise)
        return oracle.step(job.kernel, asked, job.kernel.init(position), control, draw, Observed())[0].position

    def stepped(position):
        with jax.enable_x64(True):
            return np.asarray(step(jnp.asarray(position), tuple(map(jnp.asarray, found.data.arrays))))

    return stepped


@pytest.mark.parametrize("name", MODELS)
def test_a_step_contracts_as_declared(name):
    """Real data, real kernel, no noise: two points come closer by 1 - h lambda at least, and not by much more."""
    found, rng = planned(name), np.random.default_rng(1)
    event = found.event
    size, step = found.summary.parameters, stepper(found)
    rate = 1 - float(event.step_sizes) * event.strong_convexity
    ratios = []
    for scale in (0.1, 1.0, 10.0, 100.0):
        for _ in range(6):
            a, b = scale * rng.normal(size=(2, size))
            ratios.append(np.linalg.norm(step(a) - step(b)) / np.linalg.norm(a - b))
    assert max(ratios) <= rate * (1 + 1e-12)
    assert min(ratios) > 0.3  # the step is not so small that anything would contract, nor so large that it overshoots


@pytest.mark.parametrize("name", MODELS)
def test_no_record_moves_the_gradient_by_more_than_is_priced(name):
    """Every record left out in turn, at points near and far."""
    found, rng = planned(name), np.random.default_rng(2)
    bound, sums = found.event.gradient_bound, found.job.gradient_sum
    with jax.enable_x64(True):
        data = tuple(map(jnp.asarray, found.data.arrays))
        reach = sums.residual_threshold(data)

        @jax.jit
        def each(position):
            def one(i):
                batch = sums.batch(data, reach, jnp.asarray([i]))
                return jnp.linalg.norm(oracle.sum_in_double(sums, position, batch))

            return jax.lax.map(one, jnp.arange(N))

        for scale in (0.0, 1.0, 30.0):
            assert float(jnp.max(each(scale * rng.normal(size=found.summary.parameters)))) <= bound


def test_rounding_is_within_what_is_priced():
    """The computed sum against the same sum in extended precision."""
    found = planned("logistic", clip=0.6)
    event, rng = found.event, np.random.default_rng(3)
    terms = planning.Terms(N, N, D, confide.models.convexity.shape(found.model, 0.6), 1.0, 1.0)
    allowed = planning.rounding(terms, float(event.step_sizes))
    reach = np.asarray(jax.jit(found.job.gradient_sum.residual_threshold)(found.data.arrays[:1]), np.longdouble)
    sums = found.job.gradient_sum
    for scale in (1.0, 300.0):
        position = scale * rng.normal(size=D)
        score = X.astype(np.longdouble) @ position.astype(np.longdouble)
        mean = 1 / (1 + np.exp(-score))
        residual = (mean - Y) * np.minimum(1, reach / np.maximum(mean, 1 - mean))
        exact = X.astype(np.longdouble).T @ residual
        with jax.enable_x64(True):
            data = tuple(map(jnp.asarray, found.data.arrays))
            at = functools.partial(oracle.sum_in_double, sums, jnp.asarray(position))
            total = sums.over(data, sums.residual_threshold(data), None, at)
        error = np.linalg.norm(np.asarray(total, np.longdouble) - exact)
        assert error < allowed
    assert allowed < 1e-6 * event.gradient_bound


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_that_is_drawn_is_the_noise_that_is_priced(secure):
    """Measured through the real oracle; a sampler that draws half its noise would be at a quarter of the variance.

    800 normals: their mean square is off by more than a quarter with probability below 1e-6.
    """
    found = planned("logistic", steps=200, noise="secure" if secure else "default")
    job, event = found.job, found.event
    source = noise.SecureSource(b"s" * 32) if secure else jax.random.key(7)
    with jax.enable_x64(True):
        data = tuple(map(jnp.asarray, found.data.arrays))
        random = job.randomness(source, 0)
        units = random.units

        @jax.jit
        def added(data, scale, units):
            sums = job.gradient_sum
            prepared = Prepared(data, sums.residual_threshold(data))
            asked = oracle.build(sums, job.parameters.rounding, job.observers, prepared)
            position = jnp.full(D, 0.3)
            clean = sums.over(
                data, prepared.residual_threshold, None, lambda batch: oracle.sum_in_double(sums, position, batch)
            )
            query = FullBatchStep(position, -position, jnp.asarray(-1.0), scale)  # the sum itself
            return asked.answer(query, drawn(units, scale), Observed())[0] - clean

        found = [np.asarray(added(data, job.kernel.schedule.noise[t], units[t])) for t in range(200)]
    priced = math.sqrt(2 * event.temperature / float(event.step_sizes))
    assert np.mean(np.square(found)) / priced**2 == pytest.approx(1.0, abs=0.25)


@pytest.mark.long
@pytest.mark.processor
def test_moments_are_those_of_the_recursion():
    """A linear model whose clip never cuts: mean and covariance of 500 chains against the exact recursion.

    Each of the 6 numbers is within 4.5 standard errors; all are with probability above 0.9999.
    """
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, size=(50, 2)).astype(np.float32)
    y = (x @ [0.5, -0.2] + 0.1 * rng.normal(size=50)).astype(np.float32)
    sampler = confide.langevin(temperature=2.0)
    budget = confide.Budget(epsilon=1e9, delta=1e-5)
    found = confide.fit(
        linear_regression(2, 0.7, norm_bound=1.5), (x, y), budget, sampler, steps=15, clip=1e3, chains=500, key=5,
        verbose=False,
    )  # fmt: skip
    # Several chains start at draws from the prior: mean zero, variance 0.49.
    n, step, temperature = 50, found.plan["step_size"] / 50, 2.0
    hessian = x.astype(float).T @ x.astype(float) + temperature / 0.49 * np.eye(2)
    pull = x.astype(float).T @ y.astype(float)
    mean, covariance = np.zeros(2), 0.49 * np.eye(2)
    for _ in range(15):
        once = np.eye(2) - step * hessian
        mean = once @ mean + step * pull
        covariance = once @ covariance @ once.T + 2 * step * temperature * np.eye(2)
    draws = found.draws["weights"][:, 0]
    assert found.plan["temperature"] == 2.0
    assert n == found.plan["records"]
    error = np.sqrt(np.diag(covariance) / 500)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 4.5 * error)
    spread = np.cov(draws.T)
    wide = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / 500)
    assert np.all(np.abs(spread - covariance) < 4.5 * wide)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("draws", [1, 3])
def test_the_price_follows_from_the_plan(neighbours, draws):
    """Derived again from what the plan says, by the closed form for each stretch."""
    budget = confide.Budget(epsilon=0.7, delta=1e-6, neighbours=neighbours)
    found = confide.fit(
        MODELS["logistic"][0], (X, Y), budget, confide.langevin(draws), chains=2, steps=300, verbose=False
    )
    plan, guarantee = found.plan, found.guarantee
    assert guarantee.epsilon == pytest.approx(0.7, rel=1e-6)
    assert guarantee.epsilon <= 0.7 * (1 + 1e-9)
    assert (found.chains, found.size) == (2, draws)
    gap = plan["thin"]
    first = plan["steps"] - (draws - 1) * gap
    size, hot = plan["step_size"] / N, plan["temperature"]
    moved = plan["clip"] * {"add-remove": 1, "replace-one": 2}[neighbours]
    squares = [
        confide.last_iterate_mu([size] * length, hot, moved, hot) ** 2 for length in [first, *[gap] * (draws - 1)]
    ]
    epsilon = confide.gdp_epsilon(math.sqrt(2 * sum(squares)), 1e-6)
    assert epsilon == pytest.approx(guarantee.epsilon, rel=3e-5)  # but for rounding, which is priced as well
    assert confide.verify(guarantee) == pytest.approx(guarantee.epsilon)
    assert any("stayed secret" in sentence for sentence in guarantee.assumptions)


def test_default_temperature_is_that_of_an_exact_draw():
    """A run long enough to settle: strong convexity and temperature are both about Delta / mu."""
    found = fit(steps=None)
    mu = confide.gdp_mu(1.0, 1e-5)
    assert found.plan["clip"] == 0.5
    assert found.plan["temperature"] == pytest.approx(0.5 / mu, rel=0.06)
    assert found.guarantee.event.strong_convexity == found.guarantee.event.temperature


def test_a_rich_budget_is_not_spent_below_temperature_one():
    found = confide.fit(
        MODELS["logistic"][0], (X, Y), confide.Budget(epsilon=50.0, delta=1e-5), confide.langevin(), verbose=False
    )
    assert found.plan["temperature"] == 1.0
    assert found.plan["clip"] == 1.0  # and nothing is cut
    assert found.guarantee.epsilon < 10


def test_decreasing_and_own_schedules_are_priced():
    for sampler in (confide.langevin(schedule="decreasing"), confide.langevin(schedule=lambda t: 1 / (1 + t / 30))):
        found = fit(
            sampler=sampler, steps=600, clipping="plain"
        )  # by weights it would be the posterior itself, for less
        assert found.plan["last_step_size"] < found.plan["step_size"]
        assert found.guarantee.epsilon == pytest.approx(1.0, rel=1e-6)
        assert confide.verify(found.guarantee) == pytest.approx(1.0, rel=1e-6)


def test_never_dearer_than_every_iterate():
    found = planned("logistic", steps=500)
    event = found.event
    every = events.gaussian(math.sqrt(2 * event.temperature / event.step_sizes) / event.gradient_bound, 1.0, 500)
    assert profile(event).epsilon(1e-5) < 0.8 * profile(every).epsilon(1e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "logistic" else [pytest.mark.long]) for name in MODELS]
)
def test_every_convex_model_fits_and_predicts(name, tmp_path):
    model, y = MODELS[name]
    found = confide.fit(
        model, (X, y), confide.Budget(epsilon=3.0, delta=1e-5), confide.langevin(), steps=400, key=1, verbose=False
    )
    back = confide.Posterior.load(found.save(tmp_path / "run"))
    assert np.array_equal(back.predict(X), found.predict(X))
    if name.startswith("logistic"):
        assert np.mean(found.predict(X) == Y) > 0.62
    if name == "linear":
        assert np.corrcoef(found.predict(X), SCORES)[0, 1] > 0.7


def test_rows_are_bounded_in_the_likelihood_and_in_predictions():
    """A model without a bound gets norm 1 for a classifier; long rows count as if they had it."""
    x = np.clip(3 * X, -1, 1)
    found = confide.fit(logistic_regression(D), (x, Y), BUDGET, confide.langevin(), steps=60, key=2, verbose=False)
    assert found.plan["norm_bound"] == 1.0
    unit = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    again = confide.fit(
        logistic_regression(D, norm_bound=1.0), (unit, Y), BUDGET, confide.langevin(), steps=60, verbose=False
    )
    assert again.plan["clip"] == found.plan["clip"]
    assert np.allclose(found.predict_proba(x), found.predict_proba(unit), atol=1e-6)


@pytest.mark.long
def test_a_resumed_run_is_the_same_run(tmp_path):
    class Stop(Exception):
        pass

    for sampler in (confide.langevin(), confide.hybrid()):
        ledger = ledger_of(tmp_path / sampler.name) if (tmp_path / sampler.name).mkdir() is None else None
        secret = tmp_path / sampler.name / "secret"
        whole = fit(sampler=sampler, steps=1200, key=3)
        done = []

        def interrupted(write, done=done):
            def slower(path, checkpoint):
                write(path, checkpoint)
                done.append(checkpoint.block)
                if checkpoint.block == 1:
                    raise Stop

            return slower

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confide.inference.checkpoints, "write", interrupted(confide.inference.checkpoints.write))
            with pytest.raises(Stop):
                fit(sampler=sampler, steps=1200, key=3, ledger=ledger, checkpoint=secret, checkpoint_seconds=1e-9)
        assert done == [0, 1]
        resumed = fit(sampler=sampler, steps=1200, key=3, ledger=ledger, checkpoint=secret)
        assert np.array_equal(resumed.draws["weights"], whole.draws["weights"])
        assert len(ledger.history("patients")) == 1


@pytest.mark.long
def test_hybrid_spends_the_budget_on_both_parts():
    found = fit(sampler=confide.hybrid(confide.sgld()), steps=300, batch_size=100, chains=2)
    guarantee = found.guarantee
    assert guarantee.epsilon == pytest.approx(1.0, rel=1e-5)
    start = guarantee.event.events[0]
    parts = profile(start, "add-remove").epsilon(1e-5), profile(guarantee.event.events[1]).epsilon(1e-5 * 0.99)
    half = confide.gdp_epsilon(confide.gdp_mu(1.0, 1e-5) / math.sqrt(2), 1e-5)
    assert parts[0] == pytest.approx(half, rel=1e-5)
    assert parts[0] + parts[1] > 1.2  # priced together, each part is more than half an epsilon
    assert found.size == 300
    assert found.plan["first"]["sampler"] == "langevin"


@pytest.mark.long
def test_hybrid_starts_where_its_draw_is():
    """With hardly any steps, the first kept draw is the released one, moved by one small step."""
    relay = planned("logistic", sampler=confide.hybrid(), steps=2).job
    key = jax.random.key(3)
    starts = relay.first.execute((X, Y), noise.separate(key, "first"))
    first = relay.execute((X, Y), key)[:, 0]
    assert np.linalg.norm(starts[:, -1]) > 0.1
    assert np.allclose(first, starts[:, -1], atol=0.1)


NETWORK = mlp((D, 3, 2))
OWN = from_functions(
    log_prior=lambda w: -jnp.sum(w**2), log_likelihood=lambda w, x, y: -((x @ w - y) ** 2), start=[0.0] * D
)
REFUSALS = {
    "a network": (NETWORK, {}, "not known to be convex"),
    "functions": (OWN, {}, "not known to be convex"),
    "laplace prior": (logistic_regression(D, prior="laplace"), {}, "not strongly convex"),
    "own prior": (logistic_regression(D, prior=lambda w: -jnp.sum(w["weights"] ** 4)), {}, "your own function"),
    "unbounded mean": (poisson_regression(D), {}, "unbounded"),
    "softmax with a clip": (softmax_regression(D, 2), {"clip": 0.1}, "breaks its convexity"),
    "batches": (logistic_regression(D), {"batch_size": 100}, "not all 600 records"),
    "too many draws": (logistic_regression(D), {"draws": 100}, "too few"),
    "a large step": (logistic_regression(D), {"sampler": confide.langevin(step_size=100.0)}, "no longer contract"),
    "a dear step": (
        logistic_regression(D),
        {"sampler": confide.langevin(step_size=1.0, temperature=1.0), "steps": 2000},
        "costs epsilon",
    ),
    "schedule of the state": (
        logistic_regression(D),
        {"sampler": confide.langevin(schedule=lambda t, state: 1.0)},
        "function of the step",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_qualify_is_refused_before_any_charge(case, tmp_path):
    model, more, words = REFUSALS[case]
    ledger = ledger_of(tmp_path)
    with pytest.raises(Refused, match=words) as refused:
        fit(model, ledger=ledger, **more)
    assert "\n" not in str(refused.value)
    assert not ledger.history("patients")


def test_features_beyond_the_convention_are_scaled_down_row_by_row():
    """To refuse them would tell that some record has one."""
    bound = logistic_regression(D, norm_bound=1.0)
    found, declared = (fit(model, key=3, x=50 * X) for model in (logistic_regression(D), bound))
    assert np.array_equal(found.draws["weights"], declared.draws["weights"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: confide.langevin(schedule="adaptive"), "adaptive one has no guarantee"),
        (lambda: confide.langevin(draws=0), "draws"),
        (lambda: confide.langevin(temperature=0.0), "temperature"),
        (lambda: confide.hybrid(confide.langevin()), "takes steps"),
        (lambda: confide.hybrid(first=confide.sgld()), "not one private draw"),
        (lambda: confide.hybrid(share=1.0), "share"),
        (lambda: confide.sample(MODELS["logistic"][0], (X, Y), confide.langevin()), "planned from a budget"),
    ],
)
@pytest.mark.filterwarnings("ignore::confide.NotPrivateWarning")
def test_settings_that_make_no_sense_are_refused(make, words):
    with pytest.raises(Refused, match=words):
        make()


@pytest.mark.long
def test_the_plan_reads_well(capsys):
    fit(sampler=confide.hybrid(), verbose=True)
    printed = capsys.readouterr().err
    assert "starts at a draw by langevin, then sgnht" in printed
    assert "the last iterate alone is released" in printed
    assert "the clip bends nothing" in printed
    assert "of a budget of 1" in printed
