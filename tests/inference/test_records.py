"""Places for a declared number of records: what a record outside the domain is, and what nobody but its owner sees."""

import dataclasses
import os
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import confide
import confide.inference.checkpoints
import confide.inference.loop
import confide.mechanism.noise
import confide.privacy.budget
from confide import Refused
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.inference.plans.scaled_job import ScaledJob
from confide.mechanism.scale import Scale
from confide.models import inputs, tracing
from helpers.fits import BUDGET, MODEL, X, Y, fit, ledger_of

SQUARES = confide.models.from_functions(
    log_prior=lambda m: -0.5 * m**2, log_likelihood=lambda m, x: -0.5 * (x * x * 1e-6 - m) ** 2, start=0.0
)
WHOLE = dataclasses.replace(SQUARES, dtypes=("int32",))
GROUPS = confide.models.from_functions(
    log_prior=lambda m: -0.5 * jnp.sum(m**2),
    log_likelihood=lambda m, g, y: -0.5 * (y - m[g]) ** 2,
    start=jnp.zeros(4),
    dtypes=("int32", "float32"),
)


# Types follow declarations.


@pytest.mark.parametrize("value", [2**31, -(2**31), 2**53 + 1, 2**62])
def test_one_integer_does_not_decide_how_all_are_read(value):
    amounts = np.random.default_rng(0).integers(0, 40_000, 100)
    changed = amounts.copy()
    changed[7] = value
    one, other = (inputs.place_records(WHOLE, (column,)) for column in (amounts, changed))
    assert one.arrays[0].dtype == other.arrays[0].dtype == np.int32
    assert np.array_equal(np.delete(one.arrays[0], 7), np.delete(other.arrays[0], 7))
    assert other.arrays[0][7] == np.sign(value) * (2**31 - 1)
    assert np.array_equal(one.present, other.present)


def test_an_id_beyond_all_groups_is_no_reason_to_refuse():
    ids, y = np.arange(100) % 4, np.zeros(100)
    ids[3] = 2**40
    found = confide.fit(GROUPS, (ids, y), BUDGET, confide.sgld(), steps=20, verbose=False)
    assert found.plan["records"] == 100


@pytest.mark.parametrize("odd", [2.5, None, float("nan"), 2**60, -0.0, 1e-310, 10**400, -(10**400), Fraction(10**400)])
def test_one_entry_of_a_list_does_not_decide_how_all_are_read(odd):
    plain = [*range(50)]
    for lists in (plain, [*plain[:9], odd, *plain[10:]]):
        found = inputs.place_records(SQUARES, (lists,))
        assert found.arrays[0].dtype == np.float32
        assert np.array_equal(np.delete(found.arrays[0][:50], 9), np.delete(np.arange(50, dtype=np.float32), 9))


@pytest.mark.parametrize("kind", ["Int64", "boolean", "Float64", "int64[pyarrow]", "category", "object"])
def test_one_missing_value_does_not_decide_the_type_of_a_column_of_pandas(kind):
    values = [True, False, True] if kind == "boolean" else [1, 2, 3]
    columns = [
        pandas.Series(pandas.Categorical(given, categories=values) if kind == "category" else given, dtype=kind)
        for given in (values, [values[0], None, values[2]])
    ]
    one, other = (inputs.place_records(SQUARES, (column,)) for column in columns)
    assert one.arrays[0].dtype == other.arrays[0].dtype
    assert one.arrays[0][[0, 2]].tolist() == other.arrays[0][[0, 2]].tolist()
    assert other.present[:3].tolist() == [True, False, True]
    frames = (pandas.DataFrame({"a": column, "b": [0.5, 0.25, 0.125]}) for column in columns)
    found = [inputs.place_records(confide.models.logistic_regression(2), (frame, np.ones(3))) for frame in frames]
    assert found[0].arrays[0][[0, 2]].tolist() == found[1].arrays[0][[0, 2]].tolist()
    assert found[1].present[:3].tolist() == [True, False, True]


def test_the_model_declares_types():
    declared = confide.models.from_functions(
        log_prior=lambda m: -0.5 * jnp.sum(m**2),
        log_likelihood=lambda m, g, y: -0.5 * (y - m[g]) ** 2,
        start=jnp.zeros(4),
        dtypes=("int32", "float32"),
    )
    read = np.array([0.0, 1.4, np.nan, 1e300, -np.inf]), np.arange(5)
    found = inputs.place_records(declared, read)
    assert [array.dtype for array in found.arrays] == [np.int32, np.float32]
    assert found.arrays[0][:5].tolist() == [0, 1, 0, 2**31 - 1, -(2**31 - 1)]
    assert found.present[:5].tolist() == [True, True, False, True, True]
    with pytest.raises(Refused, match="dtypes for 2"):
        inputs.place_records(declared, read[:1])
    with pytest.raises(Refused, match="dtypes"):
        confide.models.from_functions(log_prior=lambda m: m, log_likelihood=lambda m, x: m, start=0.0, dtypes=["i8"])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.uint64, np.int64, bool])
def test_every_integer_type_is_cut_to_its_ends(dtype):
    ends = [0, 1] if dtype is bool else [np.iinfo(dtype).min, np.iinfo(dtype).max]
    found = inputs.place_records(WHOLE, (np.array(ends, dtype),)).arrays[0][:2]
    assert found.tolist() == [max(int(ends[0]), -(2**31 - 1)), min(int(ends[1]), 2**31 - 1)]


# What pandas makes of integers once one of them is missing changes nothing for the other records.

COUNTS = confide.models.from_functions(
    log_prior=lambda m: -0.5 * jnp.sum(m**2),
    log_likelihood=lambda m, x, y: y * (x @ m) - jnp.exp(x @ m),
    start=jnp.zeros(2),
)
FRAMES = {
    "logistic": confide.models.logistic_regression(2),
    "labels": confide.models.logistic_regression(2, classes=(3, 1)),
    "softmax": confide.models.softmax_regression(2, 4),
    "Poisson": confide.models.poisson_regression(2),
    "mlp": confide.models.mlp((2, 3, 4)),
    "functions": COUNTS,
    "index": confide.models.from_functions(
        log_prior=lambda m: -0.5 * jnp.sum(m**2),
        log_likelihood=lambda m, x, y: -0.5 * (y - m[x[0] % 4]) ** 2,
        start=jnp.zeros(4),
        dtypes=("int32", "float32"),
    ),
}


def program_on(model, table):
    """What is computed on one record, as text."""
    flat, unravel = tracing.unraveller(model, table.arrays, confide.mechanism.noise.as_key(0))
    return [str(traced) for traced in tracing.trace_model(model, table.arrays, flat, unravel)]


@pytest.mark.parametrize("name", FRAMES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_missing_value_in_a_column_of_integers_leaves_the_other_records_as_they_were(name, data):
    """The same program, and the same bits of all other records, whichever column and row it is."""
    model, rows = FRAMES[name], data.draw(st.integers(2, 12))
    whole = st.lists(st.integers(0, 2**24) | st.integers(0, 3), min_size=rows, max_size=rows)
    few = st.lists(st.integers(0, 3), min_size=rows, max_size=rows)
    frame = pandas.DataFrame({"a": data.draw(whole), "b": data.draw(whole), "y": data.draw(few)})
    column, row = data.draw(st.sampled_from(["a", "b", "y"])), data.draw(st.integers(0, rows - 1))
    kind = data.draw(
        st.sampled_from(["int64", "int32", "uint8", "Int64", "bool"] if column == "y" else ["int64", "Int64"])
    )
    frame[column] = frame[column].astype(kind)
    other = frame.copy()
    other[column] = other[column].astype(kind if kind[0] == "I" else "float64")
    other.loc[row, column] = None
    one, two = (inputs.place_records(model, (each[["a", "b"]], each["y"])) for each in (frame, other))
    assert not two.present[row]
    for before, after in zip((*one.arrays, one.present), (*two.arrays, two.present), strict=True):
        assert before.dtype == after.dtype
        assert np.delete(before, row, axis=0).tobytes() == np.delete(after, row, axis=0).tobytes()
    assert program_on(model, one) == program_on(model, two)


def test_a_model_that_looks_something_up_is_led_to_declaring_integers():
    undeclared = dataclasses.replace(GROUPS, dtypes=None)
    with pytest.raises(Refused, match=r"declare dtypes=\('float32', 'int32'\)") as caught:
        confide.fit(undeclared, (np.arange(100) % 4, np.zeros(100)), BUDGET, confide.sgld(), steps=20, verbose=False)
    assert "\n" not in str(caught.value)


def test_pixels_stay_integers_and_are_divided_by_255():
    """Images are no columns of a data frame: their type is that of the file."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    model = confide.models.cnn(classes=2)
    found = inputs.place_records(model, (pixels, np.arange(12) % 2))
    assert [array.dtype for array in found.arrays] == [np.int32, np.float32]
    start = model.start(jax.random.key(0), ())
    assert np.allclose(model.predict(start, found.arrays[0][:12]), model.predict(start, pixels / np.float32(255)))


# A record outside the domain counts as absent.

OUTSIDE = {
    "missing": (np.nan, 0),
    "infinite": (-np.inf, 0),
    "too large": (1e300, 0),
    "no label": (0.5, 2),
    "half a label": (0.5, 0.5),
    "missing label": (0.5, np.nan),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_record_outside_the_domain_is_absent_and_nothing_else_changes(case):
    x, y = X.astype(np.float64), Y.astype(np.float64)
    x[11, 1], y[11] = OUTSIDE[case]
    assert confide.outside(MODEL, (x, y)).tolist() == [11]
    found, usual = inputs.place_records(MODEL, (x, y)), inputs.place_records(MODEL, (X, Y))
    assert not found.present[11]
    assert not np.any(found.arrays[0][11])
    for one, other in zip((*found.arrays, found.present), (*usual.arrays, usual.present), strict=True):
        assert np.array_equal(np.delete(one, 11, axis=0), np.delete(other, 11, axis=0))


def test_masked_entries_are_missing():
    masked = np.ma.masked_array(X, X > 3.0)
    assert confide.outside(MODEL, (masked, Y)).tolist() == np.flatnonzero((X > 3.0).any(axis=1)).tolist() != []


@pytest.mark.parametrize("sampler", [confide.sgld(), confide.langevin(), confide.one_posterior_sample()])
def test_an_absent_record_contributes_nothing(sampler):
    """The same draws whatever stood in its place, and others than with it."""
    model = confide.models.logistic_regression(3, intercept=True, norm_bound=2.0)
    short = {} if sampler.name == "ops" else {"steps": 40}

    def draws(value, label):
        x, y = X[:40].copy(), Y[:40].copy()
        x[5], y[5] = value, label
        found = confide.fit(model, (x, y), BUDGET, sampler, key=3, verbose=False, progress=False, **short)
        return np.concatenate([leaf.ravel() for leaf in found.draws.values()])

    gone = draws(np.nan, 0.0)
    assert np.array_equal(gone, draws(1.0, 7.0))
    assert not np.array_equal(gone, draws(0.0, 1.0))


def test_a_table_without_any_record_in_the_domain_runs():
    found = fit((X * np.nan, Y), model=confide.models.logistic_regression(3, intercept=True))
    assert np.isfinite(found.draws["weights"]).all()
    assert found.plan["records"] == 500


def test_an_empty_table_runs_where_a_number_is_declared():
    found = fit((X[:0], Y[:0]), records=500)
    assert found.plan["records"] == 500
    assert np.isfinite(found.draws["weights"]).all()


# The declared number.


def facts(rows, key=None, **more):
    """All that is told of a run on so many rows of 500 that were declared, but for its draws, its key and what is
    computed from draws, or bought."""
    many = np.concatenate([X, X]), np.concatenate([Y, Y])
    found = fit((many[0][:rows], many[1][:rows]), records=500, **more)
    paid = {"lag_one", "scale", "clip", "row_bound", "step_size", "last_step_size", "diffusion_time"}
    plan = {name: value for name, value in found.plan.items() if name not in {"run", "ledger"} | paid}
    return plan, found.guarantee.to_json(), {name: leaf.shape for name, leaf in found.draws.items()}


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_what_is_told_follows_the_declared_number_alone(neighbours, capsys):
    budget = confide.Budget(epsilon=1.0, delta=1e-5, neighbours=neighbours)
    told = [(facts(rows, budget=budget, verbose=True), capsys.readouterr()) for rows in (499, 500, 501, 3)]
    assert all(other == told[0] for other in told)


def program(rows, model, chains=1, **asked):
    """The traced step of a run on so many rows, with its limits."""
    many = np.concatenate([X, X]), np.concatenate([Y, Y])
    table = inputs.place_records(model, (many[0][:rows], many[1][:rows]), 500)
    job = stochastic.make_plan(
        model, table, BUDGET, confide.sgld(), Options(steps=4, chains=chains, **asked), _key()
    ).job
    job = job.at(Scale(1.7)) if isinstance(job, ScaledJob) else job
    with jax.enable_x64(True):
        data = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in table.arrays)
        present = jax.ShapeDtypeStruct(table.present.shape, bool)
        prepared = jax.eval_shape(job.prepared, data, present)
        schedule = jax.tree.map(jnp.asarray, job.kernel.schedule)
        carry = jax.eval_shape(job.begin)
        traced = jax.make_jaxpr(job.advance)(carry, prepared, schedule, 0, job.randomness(_key(), 0))
    return str(traced), job.gradient_sum.effective_clip, job.buffer, job.digest()


def _key():
    return confide.mechanism.noise.as_key(1)


@pytest.mark.parametrize("batch_size", [60, 500])
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_the_same_program_runs_for_every_number_of_rows(name, chains, batch_size):
    model = MODEL if name == "logistic" else confide.models.mlp((3, 4, 2))
    found = [program(rows, model, chains, batch_size=batch_size) for rows in (499, 500, 501)]
    assert found[0] == found[1] == found[2]


EVERY = os.environ.get("CONFIDE_EVERYTHING")
SIZES = [1, 7, 8, 9, 63, 248, 249, 399, 400, 401, 511, 512, 1030] if EVERY else [1, 8, 249, 400, 401]
SUMS: dict = {}


def sums(name, n, chains):
    """(positions, arrays, present) -> the clipped sums of all chains over a table of n declared records."""
    if (name, n, chains) not in SUMS:
        model = {
            "linear": confide.models.linear_regression(3),
            "softmax": confide.models.softmax_regression(3, 3, intercept=True),
            "mlp": confide.models.mlp((3, 4, 2)),
            "functions": confide.models.from_functions(
                log_prior=lambda w: -jnp.sum(w**2),
                log_likelihood=lambda w, x, y: -jnp.abs(x @ w - y),
                start=np.zeros(3),
            ),
        }[name]
        table = inputs.place_records(model, (np.zeros((n, 3), np.float32), np.zeros(n, np.float32)))
        asked = Options(steps=2, clip=0.7, batch_size=n)
        job = stochastic.make_plan(model, table, BUDGET, confide.sgld(step_size=1e-9), asked, _key()).job
        total = job.gradient_sum

        def one(position, arrays, reach):
            return total.over(arrays, reach, None, lambda batch: total(position, batch).total)

        def every(positions, arrays, present):
            with jax.default_matmul_precision("highest"):
                return jax.vmap(one, (0, None, None))(positions, arrays, total.residual_threshold(arrays, present))

        SUMS[name, n, chains] = model, job.parameters.dimension, jax.jit(every)
    return SUMS[name, n, chains]


@pytest.mark.parametrize("name", ["linear", "softmax", "mlp", "functions"])
@pytest.mark.optimised
@settings(max_examples=60 if EVERY else 15, deadline=None, derandomize=True)
@given(
    n=st.sampled_from(SIZES),
    chains=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32 - 1),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e8, 1e18, 1e30]),
    cancelling=st.booleans(),
    replaced=st.booleans(),
)
def test_no_record_moves_the_sum_by_more_than_its_clip(name, n, chains, seed, magnitude, cancelling, replaced):
    """Real neighbours at one declared number, hostile magnitudes, features that cancel: one clip, or two to replace."""
    model, size, total = sums(name, n, chains)
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(n, 3)) * magnitude ** rng.random((n, 1))).astype(np.float32)
    if cancelling:  # scores are small differences of large numbers, which every program rounds otherwise
        x[:, 1] = -x[:, 0] * (1 + 1e-6 * rng.normal(size=n))
    y = (rng.integers(0, 2, n) * (1.0 if name in ("softmax", "mlp") else magnitude ** rng.random())).astype(np.float32)
    positions = rng.normal(size=(chains, size)).astype(np.float32)
    if cancelling:
        positions[:, : size // 2 * 2] = np.repeat(positions[:, : size // 2], 2, axis=1)
    who = int(rng.integers(n))
    if replaced:
        other = x.copy(), y.copy()
        other[0][who], other[1][who] = rng.normal(size=3) * magnitude, 1 - min(y[who], 1.0)
    else:
        other = np.delete(x, who, axis=0), np.delete(y, who)
    found = []
    with jax.enable_x64(True):
        for data in ((x, y), other):
            table = inputs.place_records(model, data, n)
            found.append(np.asarray(total(positions, table.arrays, table.present), np.float64))
    moved = np.linalg.norm(found[0] - found[1], axis=1).max()
    assert moved <= 0.7 * (2 if replaced else 1)


@pytest.mark.optimised
def test_shapes_that_followed_the_rows_would_move_the_sum_further():
    """399 rows of 399 declared are summed in single precision, 400 of 400 in double: more than one clip apart."""
    (model, _, larger), smaller = sums("linear", 400, 1), sums("linear", 399, 1)[2]
    together, apart = 0.0, 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = (rng.normal(size=(400, 3)) * 10.0 ** (rng.integers(3, 30) * rng.random((400, 1)))).astype(np.float32)
        x[:, 1] = -x[:, 0] * (1 + 1e-6 * rng.normal(size=400))
        positions, y = np.repeat(rng.normal(size=(1, 1)), 3, axis=1).astype(np.float32), np.zeros(400, np.float32)

        def total(summed, rows, number, x=x, y=y, positions=positions):
            table = inputs.place_records(model, (x[:rows], y[:rows]), number)
            with jax.enable_x64(True):
                return np.asarray(summed(positions, table.arrays, table.present), np.float64)

        whole = total(larger, 400, 400)
        together = max(together, np.linalg.norm(whole - total(larger, 399, 400)) / 0.7)
        apart = max(apart, np.linalg.norm(whole - total(smaller, 399, 399)) / 0.7)
    assert together <= 1
    assert apart > 1.5


# The version of the mechanism.


def test_plan_and_guarantee_say_by_which_mechanism():
    found = fit(steps=20)
    assert found.plan["mechanism"] == found.guarantee.mechanism == confide.privacy.budget.MECHANISM
    assert confide.Guarantee.from_json(found.guarantee.to_json()) == found.guarantee


def test_a_guarantee_of_before_there_were_versions_loads_and_verifies():
    record = fit(steps=20).guarantee.to_json()
    del record["mechanism"]
    old = confide.Guarantee.from_json(record)
    assert old.mechanism == 1
    assert confide.verify(old) <= 1.0


@pytest.mark.parametrize("charged", [True, False])
def test_a_checkpoint_of_another_mechanism_is_refused_with_what_was_charged(tmp_path, monkeypatch, charged):
    ledger, place = ledger_of(tmp_path), tmp_path / "checkpoint"

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(confide.inference.loop.Job, "execute", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(steps=20, ledger=ledger if charged else None, checkpoint=place)
    begun = confide.inference.checkpoints.read(place)
    confide.inference.checkpoints.write(place, begun._replace(mechanism=confide.privacy.budget.MECHANISM - 1))
    said = "share .* stays" if charged else "count the whole of its budget as spent"
    with pytest.raises(Refused, match=f"version 2 of the mechanism.*{said}") as caught:
        fit(steps=20, ledger=ledger if charged else None, checkpoint=place)
    assert "\n" not in str(caught.value)
    assert place.exists()
    assert len(ledger.history("patients")) == charged
