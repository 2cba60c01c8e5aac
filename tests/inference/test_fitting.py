"""fit and sample: what is planned, charged and refused."""

import json

import jax
import numpy as np
import pytest

import confide
import confide.mechanism.noise
from confide import Refused, models
from confide.inference import loop, plans
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.models import inputs, linear_regression
from helpers.fits import BUDGET, MODEL, X, Y, fit, ledger_of


@pytest.fixture(scope="module")
def posterior():
    return fit(chains=2, key=5)


def test_a_fit_gives_draws_and_a_guarantee_that_verifies(posterior):
    assert posterior.draws["weights"].shape == (2, 100, 3)
    assert posterior.guarantee.epsilon <= 1.0
    assert posterior.guarantee.delta == 1e-5
    assert confide.verify(posterior.guarantee) <= 1.0
    again = confide.Guarantee.from_json(json.dumps(posterior.guarantee.to_json()))
    assert confide.verify(again) == confide.verify(posterior.guarantee)
    said = " ".join(posterior.guarantee.sentences())
    for word in ("Poisson", "clip", "every iterate", "key", "threefry"):
        assert word in said


def test_chains_differ_and_a_key_gives_the_same_draws_again(posterior):
    draws = posterior.draws["weights"]
    assert not np.allclose(draws[0], draws[1])
    assert np.array_equal(fit(chains=2, key=5).draws["weights"], draws)
    assert not np.array_equal(fit(chains=2).draws["weights"], draws)


def test_the_plan_is_printed_and_stored(capsys):
    found = fit(verbose=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "confide plan" in printed.err
    assert f"epsilon {found.guarantee.epsilon:.4g}" in printed.err
    assert found.plan["steps"] == 200
    assert found.plan["budget"]["epsilon"] == 1.0
    assert found.plan["step_size"] > 0
    json.dumps(found.plan, allow_nan=False)


def test_what_is_left_out_is_planned():
    found = confide.fit(MODEL, (X, Y), BUDGET, confide.sgld(), verbose=False)
    assert 200 <= found.plan["steps"] <= 20_000
    assert found.plan["clipping"] == "weighted"
    assert found.plan["scale"]["norm"] == pytest.approx(np.linalg.norm(X, axis=1).mean(), rel=0.3)
    usual = 0.5 * found.plan["scale"]["norm"]
    assert 0.5 * usual < found.plan["clip"] <= 2.5 * usual
    assert found.guarantee.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-3)
    plain = confide.fit(MODEL, (X, Y), BUDGET, confide.sgld(), verbose=False, clipping="plain")
    assert plain.plan["steps"] == plans.STEPS
    assert plain.plan["batch_size"] == 256
    assert 0.5 < plain.plan["clip"] < 1
    assert plain.draws["weights"].shape == (1, 1000, 3)


def test_a_short_run_learns_the_sign_of_every_weight():
    found = fit(budget=confide.Budget(epsilon=4.0, delta=1e-5), steps=2000, key=1)
    assert np.array_equal(np.sign(found.draws["weights"].mean(axis=(0, 1))), [1, -1, 1])


def test_secure_noise_needs_no_key_and_takes_none():
    found = fit(noise="secure", steps=50)
    assert "threefry" not in " ".join(found.guarantee.sentences())
    assert found.guarantee.epsilon <= 1.0
    with pytest.raises(Refused, match="leave key out"):
        fit(noise="secure", key=1)


# The ledger.


def test_the_ledger_is_charged_once_and_refuses_what_is_too_much(tmp_path):
    ledger = ledger_of(tmp_path)
    found = fit(ledger=ledger, budget=confide.Budget(epsilon=0.6, delta=5e-6))
    (charge,) = ledger.history("patients")
    assert charge.event == found.guarantee.event
    with pytest.raises(confide.BudgetExceeded):
        fit(ledger=ledger, dataset="patients", budget=confide.Budget(epsilon=0.6, delta=5e-6))
    assert len(ledger.history("patients")) == 1


def test_several_datasets_need_a_name(tmp_path):
    ledger = ledger_of(tmp_path)
    ledger.enter("controls", BUDGET)
    with pytest.raises(Refused, match="2 datasets"):
        fit(ledger=ledger)
    with pytest.raises(Refused, match="without a ledger"):
        fit(dataset="patients")
    fit(ledger=str(tmp_path / "ledger.db"), dataset="controls", budget=confide.Budget(epsilon=0.5, delta=1e-6))
    assert len(ledger.history("controls")) == 1


# Bad input: one line, before the ledger is charged.

BAD = {
    "ragged X": ({"data": ([[1.0, 2.0, 3.0], [1.0]], [0, 1])}, "X is ragged"),
    "empty": ({"data": (np.zeros((0, 3)), np.zeros(0))}, "at least one record"),
    "columns": ({"data": (X[:, :2], Y)}, "2 columns but the model has dimension = 3"),
    "rows": ({"data": (X, Y[:-1])}, "different numbers of rows"),
    "text": ({"data": (X, np.array(["a"] * 500))}, "y is ragged or not numeric"),
    "complex": ({"data": (X * 1j, Y)}, "not numeric"),
    "more rows than places": ({"records": 490}, "more rows than the 496 places"),
    "no records declared": ({"records": 0}, "records"),
    "forgotten call": ({"sampler": confide.sgld}, "when called"),
    "unwritable checkpoint": ({"checkpoint": "x" * 252}, "cannot be written"),
    "integer prior": (
        {
            "model": confide.models.from_functions(
                log_prior=lambda w: 0, log_likelihood=lambda w, x, y: w @ x, start=np.zeros(3)
            )
        },
        "cannot be evaluated",
    ),
    "no tuple": ({"data": X}, r"give \(X, y\)"),
    "three arrays": ({"data": (X, Y, Y)}, r"give \(X, y\)"),
    "matrix y": ({"data": (X, np.stack([Y, Y], 1))}, "one number per record"),
    "no budget": ({"budget": 1.0}, "budget"),
    "pure budget": ({"budget": confide.Budget(epsilon=1.0, delta=0.0)}, "delta = 0"),
    "too dear": ({"sampler": confide.sgld(step_size=5.0), "clip": 1.0}, "the budget is 1"),
    "clipping": ({"clipping": "soft"}, "clipping = 'soft'"),
    "temperature": ({"sampler": confide.sgld(temperature=0.0)}, "temperature = 0"),
    "batch": ({"batch_size": 501}, "batch_size = 501"),
    "steps": ({"steps": 0}, "steps"),
    "clip": ({"clip": -1.0}, "clip = -1"),
    "chains": ({"chains": 0}, "chains"),
    "draws": ({"draws": 500}, "draws = 500"),
    "burn-in": ({"burn_in": 200}, "burn_in = 200"),
    "key": ({"key": "secret"}, "key"),
    "noise": ({"noise": "quiet"}, "noise = 'quiet'"),
    "model": ({"model": "logistic"}, "model"),
    "sampler": ({"sampler": "sgld"}, "sampler"),
    "negative schedule": ({"sampler": confide.sgld(step_size=lambda t: 0.01 - 0.001 * t)}, "step_size is"),
    "two schedules": ({"sampler": confide.sgld(step_size=lambda t: 0.01, schedule="decreasing")}, "already"),
    "checkpoint": ({"checkpoint": "/nowhere/at/all"}, "checkpoint"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line_before_the_charge(case, tmp_path):
    arguments, message = BAD[case]
    ledger = ledger_of(tmp_path)
    with pytest.raises(Refused, match=message) as caught:
        fit(ledger=ledger, **arguments)
    assert "\n" not in str(caught.value)
    assert ledger.history("patients") == []


def test_a_budget_that_no_step_size_can_meet_is_refused():
    with pytest.raises(Refused, match="nothing is learnt"):
        fit(budget=confide.Budget(epsilon=1e-6, delta=1e-6), clip=1.0)


@pytest.mark.parametrize("where", ["likelihood", "jitted likelihood", "prior"])
def test_a_model_that_hides_records_is_refused(where):
    def peek(w):
        return jax.numpy.sum(jax.numpy.asarray(X) @ w)

    plain = where != "prior"
    likelihood = (lambda w, x, y: peek(w) * y) if plain else (lambda w, x, y: w @ x * y)
    model = confide.models.from_functions(
        log_prior=(lambda w: -0.5 * jax.numpy.sum(w**2)) if plain else peek,
        log_likelihood=jax.jit(likelihood) if "jitted" in where else likelihood,
        start=np.zeros(3),
    )
    with pytest.raises(Refused, match="as long as the data"):
        fit(model=model)


@pytest.mark.parametrize("log_prior", [jax.numpy.sqrt, jax.numpy.log])
@pytest.mark.parametrize("chains", [1, 2])
def test_a_prior_without_a_gradient_where_chains_start_is_refused_before_it_is_charged(tmp_path, log_prior, chains):
    model = confide.models.from_functions(
        log_prior=lambda w: jax.numpy.sum(log_prior(w)),
        log_likelihood=lambda w, x, y: -0.5 * (y - x @ w) ** 2,
        start=np.array([1.0, 1.0, 0.0]),
    )
    ledger = ledger_of(tmp_path)
    with pytest.raises(Refused, match="gradient of log_prior is not finite where a chain starts: give a start"):
        fit(model=model, chains=chains, ledger=ledger, dataset="patients")
    assert ledger.history("patients") == []


@pytest.mark.parametrize("clip", [1e-30, 1e20])
def test_a_clip_beyond_single_precision_is_refused(clip):
    with pytest.raises(Refused, match="single precision"):
        fit(clip=clip)


@pytest.mark.optimised
@pytest.mark.parametrize(("size", "label"), [(1e-20, 1e38), (1e-20, 1e22), (1e20, 1.0)])
def test_no_record_carries_the_chain_away(size, label):
    """A record of extreme size moves no draw further than its clip allows, full batch and same noise."""
    x, y = X.copy(), (X @ [1.0, 2.0, 3.0]).astype(np.float32)
    asked = Options(steps=50, batch_size=500)
    job, _ = plans.private_job(linear_regression(3), (x, y), BUDGET, confide.sgld(), asked, jax.random.key(0))
    ordinary = loop.execute(job, (x, y), jax.random.key(4))
    x, y = x.copy(), y.copy()
    x[0], y[0] = size, label
    moved = np.linalg.norm(ordinary - loop.execute(job, (x, y), jax.random.key(4)), axis=-1).max()
    assert moved <= 50 * job.kernel.schedule.step_size[0] * 2 * job.parameters.clip / 500


@pytest.mark.long
def test_a_number_given_twice_is_other_noise_for_other_records_or_settings():
    """With the same noise two releases of neighbours would differ by one clipped gradient, and show it bare."""
    changed = X.copy()
    changed[0] += 1.0
    first = {"steps": 1, "burn_in": 0, "batch_size": 500, "key": 4, "clip": 1.0}
    ordinary = fit(**first)
    bare = 2 * ordinary.plan["clip"] * ordinary.plan["step_size"] / 500
    for more in ({"data": (changed, Y)}, {"budget": confide.Budget(epsilon=1.0, delta=1.0001e-5)}):
        moved = np.linalg.norm(ordinary.draws["weights"] - fit(**first | more).draws["weights"])
        assert moved > 5 * bare
    assert np.array_equal(ordinary.draws["weights"], fit(**first).draws["weights"])
    labels = (X[:, 0] > 0).astype(np.float32)
    two, three = (
        fit(data=(X, labels), model=confide.models.softmax_regression(3, classes), **first).draws["weights"].ravel()
        for classes in (2, 3)
    )
    assert np.abs(two - three[:6]).max() > 5 * bare


@pytest.mark.parametrize("how", ["custom_vmap", "callback"])
def test_a_likelihood_that_sees_a_whole_batch_is_refused(how):
    """Records less the mean of their batch: replacing one would move all others."""

    @jax.custom_batching.custom_vmap
    def centred(x):
        return x

    @centred.def_vmap
    def _(size, batched, x):
        return x - x.mean(axis=0), True

    def called(x):
        return jax.pure_callback(lambda rows: rows - rows.mean(axis=0), x, x, vmap_method="expand_dims")

    seen = jax.jit(centred if how == "custom_vmap" else called)
    model = confide.models.from_functions(
        log_prior=lambda w: 0.0 * w[0],
        log_likelihood=lambda w, x, y: w @ jax.lax.stop_gradient(seen(x)),
        start=np.zeros(3),
    )
    with pytest.raises(Refused, match="see each other"):
        fit(model=model)


def test_a_likelihood_of_many_numbers_is_refused():
    model = confide.models.from_functions(
        log_prior=lambda w: 0.0 * w[0], log_likelihood=lambda w, x, y: x * w, start=np.zeros(3)
    )
    with pytest.raises(Refused, match="one number"):
        fit(model=model)


# Without a guarantee.


def test_sample_says_loudly_that_it_is_not_private():
    with pytest.warns(confide.NotPrivateWarning, match="NO privacy"):
        found = confide.sample(MODEL, (X, Y), confide.sgld(0.1), steps=100, key=0)
    assert found.guarantee is None
    assert "NOT PRIVATE" in repr(found)
    assert found.draws["weights"].shape == (1, 50, 3)


@pytest.mark.long
def test_sample_finds_a_step_size_of_its_own():
    with pytest.warns(confide.NotPrivateWarning):
        found = confide.sample(MODEL, (X, Y), steps=4000, key=0)
    assert 0.01 < found.plan["step_size"] < 1
    assert np.array_equal(np.sign(found.draws["weights"].mean(axis=(0, 1))), [1, -1, 1])


def test_a_chain_that_diverges_is_refused():
    with pytest.warns(confide.NotPrivateWarning), pytest.raises(Refused, match="diverged"):
        confide.sample(linear_regression(3), (X * 100, Y), confide.sgld(10.0), steps=500, key=0)


def test_a_rich_budget_is_not_wasted_on_a_long_clip():
    """The planned clip stays where the largest steps still cover the time that it buys."""
    found = fit(budget=confide.Budget(epsilon=1000.0, delta=1e-5), steps=2000, key=0)
    assert found.plan["step_size"] * found.plan["steps"] >= 0.99 * 2 * 500 / 9
    assert np.array_equal(np.sign(found.draws["weights"].mean(axis=(0, 1))), [1, -1, 1])


@pytest.mark.parametrize("chains", [1, pytest.param(3, marks=pytest.mark.long)])
def test_the_progress_bar_shows_speed_and_epsilon(capsys, chains):
    fit(progress=True, steps=1000, chains=chains)
    shown = capsys.readouterr().err
    assert "steps/s" in shown
    assert "epsilon 1" in shown


@pytest.mark.parametrize("batch_size", [400, 500])
def test_batches_that_hardly_ever_overflow_are_priced(batch_size):
    """Buffers of whole chunks leave a chance of overflow that is smaller than any delta."""
    x = np.zeros((2500, 2), np.float32)
    budget = confide.Budget(epsilon=1.0, delta=1e-5)
    model = confide.models.logistic_regression(2)
    asked = Options(steps=50, batch_size=batch_size)
    planned = stochastic.make_plan(
        model, (x, x[:, 0]), budget, confide.sgld(), asked, confide.mechanism.noise.as_key(0)
    )
    assert confide.guarantee(planned.event, delta=1e-5).epsilon <= 1.0 + 1e-6


LABELLED = {
    "numbers": (models.logistic_regression(3), "labels 0 and 1; "),
    "declared": (models.logistic_regression(3, classes=("no", "yes")), "labels no and yes; "),
    "softmax": (models.softmax_regression(3, 4), "labels 0, 1, 2 and 3; "),
    "network": (models.mlp((3, 4, 12)), "labels 0, 1, 2, 3, 4, 5, ... and 11; "),
}


@pytest.mark.parametrize("name", LABELLED)
def test_the_printed_plan_says_which_labels_count(name):
    model, expected = LABELLED[name]
    rest = "any other label counts as absent: declare them by classes=, look with confide.outside"
    assert inputs.describe_labels(model) == (expected + rest,)


def test_labels_are_printed_for_arrays_and_for_models_with_labels_alone(capsys):
    fit(steps=20, verbose=True)
    assert "\n  labels 0 and 1; any other label counts as absent: " in capsys.readouterr().err
    fit(model=models.linear_regression(3), steps=20, verbose=True)
    assert "labels" not in capsys.readouterr().err
