"""Clipped sums whose scores are bounded by weights: against a slow reference, at their limits, on real neighbours."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import confide
from confide import models
from confide.inference.options import Options
from confide.inference.plans import langevin
from confide.inference.plans.weights import weigh
from confide.mechanism import canaries, grid, noise, oracle
from confide.mechanism.canary_scores import _wide_root
from confide.mechanism.clipping import GLM, clipped_sum, single_precision, whole_chunks
from confide.models.inputs import as_records, place_records
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY
from helpers.tiers import tiered

D = 3
MAKE = {
    "logistic": models.logistic_regression,
    "softmax": lambda d, **more: models.softmax_regression(d, 3, **more),
    "linear": lambda d, **more: models.linear_regression(d, noise_scale=0.7, **more),
    "poisson": models.poisson_regression,
    "poisson up to 5": lambda d, **more: models.poisson_regression(d, largest_mean=5.0, **more),
    "negative binomial": lambda d, **more: models.negative_binomial_regression(d, dispersion=0.5, **more),
}
KINDS = ("none", "diagonal", "matrix")


@functools.cache
def model_of(name, intercept, row_bound, typical=1.0):
    return weigh(MAKE[name](D, intercept=intercept), row_bound, typical)


def table(model, n, seed=0):
    generator = np.random.default_rng(seed)
    x = (generator.normal(size=(n, D)) * 10.0 ** generator.uniform(-1, 1, (n, 1))).astype(np.float32)
    if model.kind == "classification":
        y = generator.integers(0, 3 if model.family.outputs else 2, n)
    else:
        y = np.floor(generator.exponential(4.0, n)) if model.family.outcome == "count" else generator.normal(size=n) * 3
    return x, y.astype(np.float32)


def built(model, clip, rows=50, seed=0):
    """The clipped sum, and a position."""
    flat, unravel = ravel_pytree(model.start(jax.random.key(0), (np.zeros((1, D)), np.zeros(1))))
    position = 0.4 * np.random.default_rng(seed).normal(size=flat.size)
    return clipped_sum(model, clip, unravel, rows), jnp.asarray(position, jnp.float32)


def root_of(kind, size):
    generator = np.random.default_rng(1)
    if kind == "none":
        return None
    shape = (size,) if kind == "diagonal" else (size, size)
    drawn = generator.uniform(0.2, 3, shape) if kind == "diagonal" else generator.normal(size=shape) / math.sqrt(size)
    return jnp.asarray(drawn, jnp.float32)


def plain_residual(family, s, y):
    """Of one record, in double precision."""
    if family.outcome == "labels":
        shares = np.exp(s - np.max(s))
        return shares / shares.sum() - np.eye(family.classes)[int(y)]
    if family.outcome == "number":
        return (s - y) / family.noise_scale**2
    return 1 / (1 + math.exp(-s)) - y


def reference(model, x, y, position, clip, root=None, counts=True):
    """What one record contributes, from the definition: by the longest score that any label would have had."""
    family, weighting = model.family, model.linear.weighting
    z = np.concatenate([[1.0], x]) if model.linear.intercept else np.array(x, np.float64)
    outputs = family.outputs[0] if family.outputs else 1
    scores = z @ np.asarray(position, np.float64).reshape(z.size, outputs)
    s = scores if family.outputs else float(scores[0])

    def seen(residual):
        flat = np.outer(z, residual).ravel()
        return flat if root is None else flat * root if root.ndim == 1 else flat @ root

    if family.kind == "classification":
        labels = range(outputs if family.outputs else 2)
        every = [plain_residual(family, s, label) for label in labels]
        most = max(np.linalg.norm(seen(each)) for each in every)
        norm = most / max(np.linalg.norm(each) for each in every)
        found = plain_residual(family, s, y) * min(1.0, clip / most)
    else:
        norm = np.linalg.norm(seen(1.0))
        threshold = clip / norm
        if family.outcome == "number":
            found = np.clip(plain_residual(family, s, y), -threshold, threshold)
        else:
            found = counted(family, s, y, threshold, weighting.typical)
    return seen(found * min(1.0, (weighting.row_bound / norm) ** 2 if counts else 1.0))


def counted(family, s, y, threshold, typical):
    """By the identity of Chen and Stein, as the top of `families` has it."""
    mean = min(math.exp(s), getattr(family, "largest_mean", None) or math.inf)
    a = getattr(family, "dispersion", 0.0)
    p, information = a * mean / (1 + a * mean), mean / (1 + a * mean)
    b = threshold * min(1, math.sqrt(typical / information)) / (1 - p) / (1.05 + 0.31 * math.sqrt(a))
    wide = max(b, math.sqrt(1.5 * (mean + a * mean**2)))

    def falls(count):
        return wide / math.hypot(wide, count - mean)

    above = mean if a == 0 else p * (1 / a + y)
    return b / wide * (above * falls(y + 1) - y * falls(y))


def some(quick, *choices):
    """All combinations; those that are not `quick` take long together."""
    return tiered(itertools.product(*choices), quick)


def asked(total, root):
    """(position, rows) -> sum, contributions and norms of a small batch, compiled."""

    def ask(position, rows):
        batch = total.batch(rows, total.residual_threshold(rows), jnp.arange(whole_chunks(len(rows[0]))))
        return (
            total(position, batch, root).total,
            total.contributions(position, batch, root),
            total.norms(position, batch, root),
        )

    return jax.jit(ask)


QUICK = {(name, "none") for name in MAKE} | {("softmax", "matrix"), ("poisson", "matrix"), ("logistic", "diagonal")}


@pytest.mark.parametrize(("name", "kind"), some(QUICK, MAKE, KINDS))
def test_the_weighted_sum_is_that_of_a_slow_reference(name, kind):
    """Row by row in double precision; with an intercept and without, rows beyond the bound or no bound."""
    for intercept, row_bound in ((True, 1.5), *([(False, 1.5), (True, math.inf)] if kind == "none" else [])):
        model = model_of(name, intercept, row_bound, 0.6)
        total, position = built(model, 0.7)
        data, root, limit = table(model, 25), root_of(kind, position.size), total.effective_clip
        wide = None if root is None else np.asarray(root, np.float64)
        each = np.array([reference(model, *row, position, limit, wide) for row in zip(*data, strict=True)])
        assert np.sum(np.linalg.norm(each, axis=1) > 0.1 * limit) > 3
        found, contributions, norms = (np.asarray(part, np.float64) for part in asked(total, root)(position, data))
        np.testing.assert_allclose(found, each.sum(axis=0), atol=5e-5)
        np.testing.assert_allclose(contributions[:25], each, atol=5e-6)
        assert np.all(contributions[25:] == 0)
        np.testing.assert_allclose(norms, np.linalg.norm(contributions, axis=1), rtol=2e-5, atol=1e-6)


extreme = st.one_of(
    st.floats(-1e4, 1e4, width=32),
    st.sampled_from([0.0, 1e-40, 1e-30, 1e-20, 1e-10, 1e10, 1e19, 1e29, 3e38, -3e38]),
)
CLIP = 0.5
WAYS = {  # each with and without an intercept, and a bound, in some way
    "logistic": (True, 1.5),
    "softmax": (False, 1.5),
    "linear": (True, math.inf),
    "poisson": (True, 1.5),
    "poisson up to 5": (False, 1.5),
    "negative binomial": (False, math.inf),
}


@functools.cache
def compiled(name, kind, places):
    """(x, y, present, rows, position, allowed) -> the sum over these rows, and that of contributions in grid steps."""
    model = model_of(name, *WAYS[name])
    total, position = built(model, CLIP, places)
    root = root_of(kind, position.size)

    def summing(x, y, present, rows, position, allowed):
        def both(batch):
            with single_precision():
                found, each = total(position, batch, root).total, total.contributions(position, batch, root)
            return found, grid.whole(each, CLIP)

        with jax.enable_x64(True):
            return total.over((x, y), total.residual_threshold((x, y), present), rows, both, allowed)

    return model, total, np.asarray(position), jax.jit(summing)


def check_neighbours(name, kind, places, records, x, other, outcome, far, share, full=False):
    """The last row is the one that is added, or replaced by another; it is allowed a share of the clip, or all.

    In a full batch its place stays, and in others it is not chosen.
    """
    model, total, position, sum_of = compiled(name, kind, places)
    inputs, labels = table(model, records)
    if model.kind == "classification":
        outcome = abs(int(outcome)) % (3 if model.family.outputs else 2)
    elif model.family.outcome == "count":
        outcome = np.floor(abs(outcome))
    allowed = np.full(records + 1, total.effective_clip, np.float32)
    allowed[-1] = share * total.effective_clip

    def found(row, y, there=True):
        data = np.concatenate([inputs, np.float32([row])]), np.append(labels, np.float32(y))
        present, chosen = np.arange(records + 1) < records + there, np.minimum(np.arange(places), records + there)
        chosen[chosen == records + there] = records + 1
        with jax.enable_x64(True):
            return sum_of(*data, present, None if full else chosen, position * np.float32(far), allowed)

    rounding = 0.0 if share == 1 else total.limit.slack  # of all others, for which the clip leaves room
    sums = found(x, outcome, there=False), found(x, outcome), found(other, 0)
    for part, step in ((0, 1.0), (1, CLIP / noise.GRID)):
        without, added, replaced = (step * np.asarray(each[part], np.float64) for each in sums)
        assert np.all(np.isfinite(added))
        most = share * CLIP + (rounding if part == 0 else 2 * math.sqrt(position.size) * step)
        assert np.linalg.norm(added - without) <= most * SENSITIVITY["add-remove"]
        assert np.linalg.norm(added - replaced) <= most * SENSITIVITY["replace-one"]


HOSTILE = {("logistic", "none"), ("softmax", "matrix"), ("poisson", "none"), ("negative binomial", "diagonal")}


@pytest.mark.optimised
@pytest.mark.parametrize(("name", "kind"), some(HOSTILE, MAKE, KINDS))
@given(
    x=st.lists(extreme, min_size=D, max_size=D),
    other=st.lists(extreme, min_size=D, max_size=D),
    outcome=extreme,
    far=st.sampled_from([1.0, 1e3, 1e20]),
    share=st.sampled_from([1.0, 0.3, 0.0]),
)
def test_sensitivity_on_real_neighbours(name, kind, x, other, outcome, far, share):
    """One record more moves the sum by at most the clip, or what it is allowed; one replaced by twice that at most.

    Rows, outcomes and positions of any size; sums, and contributions that are rounded to the grid by themselves.
    """
    check_neighbours(name, kind, 8, 6, x, other, outcome, far, share)


@pytest.mark.optimised
@pytest.mark.parametrize(("name", "kind"), some({("logistic", "none"), ("softmax", "none")}, MAKE, ("none", "matrix")))
def test_sensitivity_in_a_batch_of_more_than_400_rows(name, kind):
    """Which are summed in double precision, chunk by chunk: batches that are drawn, and full ones."""
    for x in ([1.0, 2.0, -1.0], [0.0, 1e-30, 0.0], [1e29, 1e19, 0.0], [3e38, 0.0, 0.0]):
        for outcome in (0.0, 1e4, 3e38):
            for far, share in ((1.0, 1.0), (1e20, 1.0), (1.0, 0.3)):
                for full in (False, True):
                    check_neighbours(name, kind, 1024, 700, x, [-5.0, 1e3, 0.1], outcome, far, share, full)


@pytest.mark.parametrize(("name", "kind"), some(QUICK, MAKE, KINDS))
def test_the_cut_behind_the_weights_holds_whatever_they_are(name, kind, monkeypatch):
    """Scores that are bounded to a hundred thresholds: the guarantee does not rest on a family's formula."""
    honest = GLM.shorten

    def longer(self, scores, batch, threshold, limit):
        return honest(self, scores, batch, threshold, limit) * 100.0

    monkeypatch.setattr(GLM, "shorten", longer)
    model = model_of(name, True, 1.5)
    total, position = built(model, 0.7)
    x, y = table(model, 8)
    ask = asked(total, root_of(kind, position.size))
    for found in zip(*[ask(position, (x[i : i + 1], y[i : i + 1])) for i in range(8)], strict=True):
        lengths = [np.linalg.norm(np.asarray(part, np.float64)) for part in found]  # of one record alone
        assert 0.69 < max(lengths) <= 0.7


@pytest.mark.parametrize("name", ["logistic", "softmax", "poisson"])
def test_rows_beyond_the_bound_count_by_the_square(name):
    """A row ten bounds long contributes a hundredth of what it would without one; a row within it, all."""
    sums = [built(model_of(name, False, bound), 0.7) for bound in (1.5, math.inf)]
    rows = np.float32([[15.0, 0, 0], [0, 3.0, 0], [0, 0, 1.4], [0.1, 0.1, 0]]), np.ones(4, np.float32)
    short, long = (asked(total, None)(position, rows)[2][:4] for total, position in sums)
    np.testing.assert_allclose(short / long, [0.01, 0.25, 1.0, 1.0], rtol=1e-5)


PLANTED = {
    ("logistic", "none", "add-remove"),
    ("logistic", "none", "replace-one"),
    ("softmax", "matrix", "add-remove"),
    ("poisson", "diagonal", "replace-one"),
}


@pytest.mark.parametrize(
    ("name", "kind", "neighbours"),
    some(PLANTED, ("logistic", "softmax", "poisson", "linear"), KINDS, ("add-remove", "replace-one")),
)
def test_canaries_contribute_the_clip_however_long_they_are(name, kind, neighbours):
    """Their rows are 2^20 long, and a million times the bound: 1e-12 of the clip, if they counted as records do."""
    model = model_of(name, True, 1.5)
    own = built(model, 0.7)[1]
    planted = canaries.plant(model, as_records(table(model, 20)), 30, own.size, neighbours)
    inside = np.arange(30) % 3 == 0
    rows = planted.with_members(inside).arrays
    flat, unravel = ravel_pytree(planted.model.start(jax.random.key(0), (np.zeros((1, D)), np.zeros(1))))
    total, others = clipped_sum(planted.model, 0.7, unravel, 56), flat.size - own.size
    root = _wide_root(root_of(kind, own.size), others)
    whole, each, _ = asked(total, root)(jnp.concatenate([own, jnp.zeros(others)]), rows)
    columns = planted.first + planted.apart * np.arange(30)
    along = np.asarray(each)[planted.places, columns]
    limit, out = total.effective_clip, -1.0 if neighbours == "replace-one" else 0.0
    np.testing.assert_allclose(along, np.where(inside, limit, out * limit), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.asarray(whole)[columns], along, rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(np.asarray(each, np.float64), axis=1).max() <= 0.7


@pytest.mark.parametrize(
    ("name", "kind"),
    some({("negative binomial", "none"), ("softmax", "matrix")}, ("logistic", "softmax", "negative binomial"), KINDS),
)
def test_numbers_as_arguments_are_those_of_the_program(name, kind):
    """A program that was built for another scale, and is given this one's numbers and thresholds, sums the same."""
    here, there = model_of(name, True, 1.5, 0.6), model_of(name, True, 40.0, 7.0)
    (total, position), (other, _) = built(here, 0.7), built(there, 5.0)
    rows, root = table(here, 25), root_of(kind, position.size)
    np.testing.assert_allclose(total.weighting, [total.limit.norm, 1.5 / total.limit.norm, 0.6], rtol=1e-6)

    @jax.jit
    def one(rows, numbers):
        sums = other.weighted_by(numbers)
        reach = sums.residual_threshold(rows, None, numbers[0])
        batch = sums.batch(rows, reach, jnp.arange(32))
        return sums(position, batch, root).total, sums.contributions(position, batch, root)

    for same, known in zip(one(rows, total.weighting), asked(total, root)(position, rows), strict=False):
        np.testing.assert_allclose(same, known, rtol=1e-6, atol=1e-6)
    assert not np.allclose(one(rows, other.weighting)[0], one(rows, total.weighting)[0], rtol=1e-2)
    assert total.weighted_by(None) is total
    assert clipped_sum(here, math.inf, None, 32).weighting is None


@pytest.mark.parametrize("name", MAKE)
def test_a_score_that_is_no_number_contributes_nothing(name):
    """A position that is far beyond single precision, or a row: neither moves the others."""
    model = model_of(name, True, 1.5)
    total, position = built(model, 0.7)
    x, y = table(model, 8)
    ask = asked(total, None)
    for row, far in (([3e38, -3e38, 3e38], 3e4), ([1e30, 1.0, 1.0], 1.0), ([1e19, 1e19, -1e19], 1e30)):
        there = np.concatenate([x[:7], np.float32([row])])
        one, other = (ask(position * far, (rows, y)) for rows in (there, np.concatenate([x[:7], np.zeros((1, D))])))
        assert np.all(np.isfinite(one[0]))
        assert np.linalg.norm(one[1][7]) <= 0.7
        np.testing.assert_array_equal(one[1][:7], other[1][:7])


@pytest.mark.parametrize("clip", [0.3, 0.5, 0.6, 0.74, 0.9])
def test_langevin_is_priced_for_the_slope_that_it_has(clip):
    """Records are cut to less than the clip, for rounding, and scores that are cut deeper may be steeper."""
    model, n = models.logistic_regression(1, norm_bound=1.0), 391  # as many as are allowed for in single precision
    records = place_records(model, (np.ones((n, 1), np.float32), np.zeros(n)))
    plan = langevin.make_plan(
        model, records, Budget(epsilon=1.0, delta=1e-5), confide.langevin(), Options(clip=clip), noise.as_key(0)
    )
    sums = plan.job.gradient_sum
    with jax.enable_x64(True):
        prepared = plan.job.prepared(tuple(map(jnp.asarray, records.arrays)), jnp.asarray(records.present))

        def gradient(weight):
            def one(batch):
                return oracle.sum_in_double(sums, weight[None], batch)

            return sums.over(prepared.data, prepared.residual_threshold, None, one)[0]

        weights = jnp.linspace(-4, 4, 1601)
        found = np.diff(np.asarray(jax.jit(jax.vmap(gradient))(weights))) / 0.005
    assert np.min(found) >= -1e-9
    said = (plan.event.smoothness - plan.event.strong_convexity) / records.places
    assert 0.9 * said < np.max(found) / n <= said * (1 + 1e-9)
