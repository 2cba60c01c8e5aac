"""Programs have digests that differ wherever they do, and are refused where records could see each other in them."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import Primitive
from jax.interpreters import batching

import confide
from confide import Refused, models
from confide.inference import fitting, loop
from confide.models import programs, tracing
from confide.samplers import companions

RECORDS, COLUMNS = 40, 3
X = np.random.default_rng(0).random((RECORDS, COLUMNS)).astype(np.float32)
Y = (X[:, 0] > 0.5).astype(np.float32)
BUDGET = confide.Budget(epsilon=1.0, delta=1e-3)
PLAIN = {
    "forward": 1.0,
    "backward": 1.0,
    "tangent": 1.0,
    "array forward": 0.0,
    "array backward": 0.0,
    "array tangent": 0.0,
    "nested backward": 1.0,
    "prior backward": 1.0,
    "start": 0.0,
}


def build(numbers):
    """A model with derivative rules of its own, each with its own number or array."""

    def held(name):
        return jnp.asarray(np.arange(COLUMNS, dtype=np.float32) + numbers[name])

    @jax.custom_vjp
    def reversing(w):
        return w + held("array forward")

    reversing.defvjp(
        lambda w: (w + held("array forward"), None),
        lambda _, signal: (numbers["backward"] * signal + held("array backward"),),
    )

    @jax.custom_jvp
    def straight(w):
        return w

    @straight.defjvp
    def _(primals, tangents):
        return primals[0], numbers["tangent"] * tangents[0] + 0 * held("array tangent") @ tangents[0]

    @jax.custom_vjp
    def inner(w):
        return w

    inner.defvjp(lambda w: (w, None), lambda _, signal: (numbers["nested backward"] * signal,))

    @jax.custom_vjp
    def outer(w):
        return inner(w)

    outer.defvjp(lambda w: jax.vjp(inner, w), lambda pull, signal: pull(signal))

    @jax.custom_vjp
    def shrinking(w):
        return w

    shrinking.defvjp(lambda w: (w, None), lambda _, signal: (numbers["prior backward"] * signal,))

    @jax.jit
    def log_likelihood(w, x, y):
        score = numbers["forward"] * x @ straight(reversing(outer(w)))
        return -jax.nn.softplus((1 - 2 * y) * score)

    return models.from_functions(
        log_prior=lambda w: -0.5 * jnp.sum(shrinking(w) ** 2),
        log_likelihood=log_likelihood,
        start=np.full(COLUMNS, numbers["start"], np.float32),
    )


@jax.custom_batching.custom_vmap
def centred(x):
    return x


@centred.def_vmap
def _(size, batched, x):
    return x - x.mean(axis=0), True


def digest(model):
    return tracing.model_digest(model, (X, Y))


@given(place=st.sampled_from(list(PLAIN)), change=st.floats(0.125, 4.0, width=16))
def test_models_that_differ_in_one_place_have_other_digests(place, change):
    """In the function, in either derivative rule, in an array that one of them holds, in a rule inside another rule."""
    assert digest(build(PLAIN)) == digest(build(dict(PLAIN)))
    assert digest(build(PLAIN)) != digest(build(PLAIN | {place: PLAIN[place] + change}))


@pytest.mark.parametrize("place", ["backward", "tangent", "array backward", "nested backward", "prior backward"])
def test_another_derivative_rule_has_other_noise(place, monkeypatch):
    """The same forward program, key and records: what JAX prints of both models is the same but for names of rules."""
    drawn, draw_units = [], loop.noise.draw_units
    monkeypatch.setattr(loop.noise, "draw_units", lambda *given: drawn.append(draw_units(*given)) or drawn[-1])

    def first_noise(model):
        drawn.clear()
        confide.fit(model, (X, Y), BUDGET, confide.sgld(), steps=2, clip=1.0, key=7, verbose=False)
        return np.asarray(drawn[0])

    before = first_noise(build(PLAIN))
    assert np.array_equal(before, first_noise(build(PLAIN)))
    assert not np.any(before == first_noise(build(PLAIN | {place: 2.0})))


def test_a_checkpoint_is_not_resumed_under_another_derivative_rule(tmp_path):
    place = tmp_path / "checkpoint"
    given = {"budget": BUDGET, "sampler": confide.sgld(), "steps": 40, "clip": 1.0, "verbose": False}

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            confide.fit(build(PLAIN), (X, Y), checkpoint=place, **given)
    with pytest.raises(Refused, match="another run"):
        confide.fit(build(PLAIN | {"backward": -1.0}), (X, Y), checkpoint=place, **given)
    confide.fit(build(PLAIN), (X, Y), checkpoint=place, **given)


SAMPLERS = {
    "sgld": (confide.sgld(), {"steps": 3, "clip": 1.0}),
    "one draw": (
        confide.one_posterior_sample("published", log_likelihood_bound=1.0, warmup=20, samples=20),
        {"budget": confide.Budget(epsilon=1.0, delta=0.0)},
    ),
}


@pytest.mark.filterwarnings("ignore::confide.ExactnessWarning")
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_program_that_was_named_is_the_one_that_runs(name, monkeypatch):
    """Once the noise is bound to the run, no function of the user's is called: it might compute something else now."""
    calls, at_charge, spend = [], [], fitting.spend

    def log_likelihood(w, x, y):
        calls.append("likelihood")
        return -jax.nn.softplus((1 - 2 * y) * (x @ w))

    def log_prior(w):
        calls.append("prior")
        return -0.5 * w @ w

    def charging(*given):
        result = spend(*given)
        at_charge.append(len(calls))
        return result

    monkeypatch.setattr(fitting, "spend", charging)
    model = models.from_functions(log_prior=log_prior, log_likelihood=log_likelihood, start=np.zeros(COLUMNS))
    sampler, more = SAMPLERS[name]
    confide.fit(model, (X, Y), sampler=sampler, key=7, verbose=False, **{"budget": BUDGET} | more)
    assert at_charge == [len(calls)]


def test_a_prior_is_traced_for_the_last_time_before_the_noise_is_bound(monkeypatch):
    """Also where the run buys the scale of its records, and its last program is built after that: whether JAX still
    remembers how it traced the prior, does not matter."""
    traced, before_charge, spend = [], [], fitting.spend

    def log_prior(parameters):
        traced.append(None)
        return -0.5 * jnp.sum(jnp.square(parameters["weights"]))

    def charge(*given):
        result = spend(*given)
        before_charge.append(len(traced))
        jax.clear_caches()
        return result

    monkeypatch.setattr(fitting, "spend", charge)
    model = models.logistic_regression(COLUMNS, prior=log_prior)
    posterior = confide.fit(model, (X, Y), BUDGET, confide.sgld(), steps=3, key=7, verbose=False)
    assert "scale" in posterior.plan
    assert before_charge == [len(traced)]


@pytest.mark.filterwarnings("ignore::confide.ExactnessWarning")
@pytest.mark.parametrize("key", [None, 7])
@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_checked_is_what_runs(name, key):
    """A likelihood that mixes records from some call on is refused, wherever in the run that call is."""
    calls, first = [], [10**6]

    def log_likelihood(w, x, y):
        calls.append(None)
        score = x @ w
        return -jax.nn.softplus(score * (centred(x)[0] if len(calls) > first[0] else x[0]))

    sampler, more = SAMPLERS[name]
    model = models.from_functions(
        log_prior=lambda w: -0.5 * w @ w, log_likelihood=log_likelihood, start=np.zeros(COLUMNS)
    )

    def run():
        calls.clear()
        confide.fit(model, (X, Y), sampler=sampler, key=key, verbose=False, **{"budget": BUDGET} | more)

    run()
    for place in range(len(calls)):
        first[0] = place
        with pytest.raises(Refused, match="plain JAX"):
            run()


# What may be in a program.


def own_primitive(x):
    """A primitive of the user's with a rule for batches that mixes the records."""
    mixing = Primitive("mul")
    mixing.def_abstract_eval(lambda aval: aval)
    mixing.def_impl(lambda value: value)
    batching.primitive_batchers[mixing] = lambda values, axes: (values[0] - values[0].mean(axis=0), axes[0])
    return mixing.bind(x)


def printed(x):
    jax.debug.callback(lambda value: None, x)
    return x


def called(x, method="broadcast_all"):
    return jax.pure_callback(lambda rows: rows, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)


MIXING = {
    "a rule for batches": centred,
    "a callback": called,
    "a callback record by record": lambda x: called(x, "sequential"),
    "a printed value": printed,
    "a foreign function": lambda x: jax.ffi.ffi_call("anything", jax.ShapeDtypeStruct(x.shape, x.dtype))(x),
    "a primitive of its own": own_primitive,
    "keys that share one state": lambda x: x * jax.random.uniform(
        jax.random.wrap_key_data(jnp.broadcast_to(x[0], 4).astype(jnp.uint32), impl="rbg")
    ),
    "a table": lambda x: x + jnp.asarray(X)[0],
    "a flat table": lambda x: x + jnp.asarray(X.ravel())[:COLUMNS],
}  # fmt: skip


def in_forward(mix, w, x, y):
    return (x @ w) * jnp.sum(jax.lax.stop_gradient(mix(x)))


def in_backward(mix, w, x, y):
    @jax.custom_vjp
    def seen(w, x):
        return w

    seen.defvjp(lambda w, x: (w, x), lambda x, signal: (signal + mix(x), jnp.zeros_like(x)))
    return seen(w, x) @ x


def in_tangent(mix, w, x, y):
    @jax.custom_jvp
    def seen(w, x):
        return w

    seen.defjvp(lambda primals, tangents: (primals[0], tangents[0] * mix(primals[1])))
    return seen(w, x) @ x


def in_nested_backward(mix, w, x, y):
    return jax.jit(lambda w: jax.lax.cond(y > 0, lambda: in_backward(mix, w, x, y), lambda: x @ w))(w)


PLACES = {
    "forward": in_forward,
    "backward": in_backward,
    "tangent": in_tangent,
    "nested backward": in_nested_backward,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MIXING)
def test_records_cannot_see_each_other_anywhere(name, place):
    model = models.from_functions(
        log_prior=lambda w: -0.5 * w @ w,
        log_likelihood=lambda w, x, y: PLACES[place](MIXING[name], w, x, y),
        start=np.zeros(COLUMNS),
    )
    message = "as long as the data" if "table" in name else "plain JAX"
    with pytest.raises(Refused, match=message):
        confide.fit(model, (X, Y), BUDGET, confide.sgld(), steps=2, verbose=False)


def by_numpyro(mix):
    def model(x, y):
        w = numpyro.sample("w", numpyro.distributions.Normal(0, 1).expand([COLUMNS]).to_event(1))
        rows = jnp.full(len(x), in_backward(mix, w, x[0], 0.0))
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", numpyro.distributions.Bernoulli(logits=rows), obs=y)

    return models.from_numpyro(model)


def by_equinox(mix):
    class Mixing(eqx.Module):
        weights: jax.Array

        def __call__(self, x):
            return jnp.stack([in_backward(mix, self.weights, x, 0.0), 0.0])

    return models.from_equinox(Mixing(jnp.ones(COLUMNS)), shape=(COLUMNS,))


@pytest.mark.parametrize("name", [name for name in MIXING if name != "a rule for batches"])
@pytest.mark.parametrize("library", [by_numpyro, by_equinox])
def test_models_of_other_libraries_are_looked_through(library, name):
    with pytest.raises(Refused):
        confide.fit(library(MIXING[name]), (X, Y), BUDGET, confide.sgld(), steps=2, verbose=False)


def companion(mix=None, number=1.0):
    """A companion whose loss has a derivative rule of its own."""

    @jax.custom_vjp
    def seen(w):
        return w

    seen.defvjp(lambda w: (w, None), lambda _, signal: (number * (signal if mix is None else mix(signal)),))
    model = replace(
        models.from_functions(
            log_prior=lambda p: -0.5 * p["w"] @ p["w"],
            log_likelihood=lambda p, x, y: x @ p["w"],
            start={"w": np.zeros(COLUMNS)},
        )
    )
    return companions.Companion(
        model=model,
        start=jnp.zeros(2),
        loss=lambda state, p, key: jnp.sum(seen(p["w"])) + jnp.sum(state),
        move=lambda state, p, key, t: state + 1.0,
    )


@pytest.mark.parametrize("name", [name for name in MIXING if name != "a flat table"])
def test_derivative_rules_of_companions_are_looked_through(name):
    def run():
        sampler = confide.accompany(confide.sgld(), companion(MIXING[name]))
        confide.fit(companion().model, (X, Y), BUDGET, sampler, steps=2, verbose=False)

    with pytest.raises(Refused):
        run()


def test_companions_with_other_derivative_rules_have_other_digests():
    one, same, other = (companions.trace(companion(number=number)).digest for number in (1.0, 1.0, 2.0))
    assert one == same != other


def test_usual_programs_are_admitted():
    """Random numbers, loops, linear algebra and special functions of one record."""

    def log_likelihood(w, x, y):
        key = jax.random.fold_in(jax.random.key(0), 3)
        mask = jax.random.bernoulli(key, 0.9, (COLUMNS,))
        looped = jax.lax.scan(lambda total, item: (total + item, None), 0.0, x * w * mask)[0]
        grown = jax.lax.while_loop(lambda value: value < 1.0, lambda value: value + 1.0, jax.lax.stop_gradient(looped))
        matrix = jnp.outer(x, x) + jnp.eye(COLUMNS)
        solved = x @ jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), w)
        special = jax.scipy.special.gammaln(1.0 + y) + jax.scipy.special.betainc(1.0, 2.0, 0.3) + jax.nn.logsumexp(w)
        sorted_sum = jnp.sort(x)[0] + x.at[0].add(1.0)[0] + jnp.max(x) + jnp.argmax(x)
        return jax.checkpoint(jnp.sin)(solved) + special + sorted_sum + jnp.minimum(looped, grown)

    model = models.from_functions(log_prior=lambda w: -0.5 * w @ w, log_likelihood=log_likelihood, start=np.ones(3))
    flat, unravel = tracing.unraveller(model, (X, Y), jax.random.key(0))
    traced = tracing.trace_model(model, (X, Y), flat, unravel)
    programs.check(traced.likelihood, "log_likelihood")
    assert len(programs.digest(traced.likelihood)) == 64
