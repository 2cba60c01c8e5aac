"""Sums over all records: places decide where a record is summed, chunks are added as whole numbers, and the room for
rounding does not grow with the number of records."""

import math
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import confide
from confide import Refused, models
from confide.inference import designs, frames
from confide.inference.linear.expectations import choose_cuts
from confide.inference.options import Options
from confide.inference.plans import scoring as plans
from confide.inference.questions import Question, compile_questions
from confide.mechanism import grid, information, linear_sums, noise
from confide.mechanism.clipping import clipped_sum, single_precision
from confide.mechanism.information import InformationQuery
from confide.mechanism.layers import Prepared
from confide.mechanism.linear_sums import Cuts, Place
from confide.mechanism.per_example import CHUNK, Limit
from confide.mechanism.scale import Scale, ScaleRelease
from confide.models import families
from confide.models.inputs import Records
from confide.models.model import Weighting, from_family
from confide.privacy.events import SENSITIVITY
from confide.privacy.events.individual import CHANGE

D = 5
CUTS = Cuts(1.2, 1.4)
KERNELS = ["Haswell", pytest.param("Zen", marks=pytest.mark.long), pytest.param("SkylakeX", marks=pytest.mark.long)]
KEY = noise.as_key(0)
QUIET = 1e-3  # standard deviation of the noise that is not drawn


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(noise, "draw_units", lambda source, chain, block, shape, *more, **_: jnp.zeros(shape))


def hostile(n, seed=0, width=D):
    """Usual rows, and rows and outcomes of any size; a tenth of the places hold no record."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)) * 10.0 ** rng.choice([-30, -3, 0, 0, 0, 0, 3, 15, 30], (n, 1))
    y = rng.normal(size=n) * 10.0 ** rng.choice([-3, 0, 0, 3, 30], n)
    return Records((x.astype(np.float32), y.astype(np.float32)), rng.random(n) < 0.9, n - 1)


def without(records, place):
    present = records.present.copy()
    present[place] = False
    return records._replace(present=present)


def replaced(records, place, row, outcome):
    x, y = (array.copy() for array in records.arrays)
    x[place], y[place] = row, outcome
    return records._replace(arrays=(x, y))


def shard(records, first, last):
    part = slice(first, last)
    return Records(tuple(array[part] for array in records.arrays), records.present[part], records.number)


# Places, never presence.

ALONE = """
    import numpy as np
    from confide.mechanism import linear_sums, noise
    from confide.models.inputs import Records

    rng, d, n = np.random.default_rng(0), 7, 700
    noise.around = lambda point, *given, **more: point
    cuts, key = linear_sums.Cuts(1.2, 1.4), noise.as_key(0)
    for power in range(17):
        x = rng.normal(size=(n, d)).astype(np.float32)
        coefficients = rng.normal(size=d + 1) * 10.0 ** power
        y = (np.concatenate([np.ones((n, 1)), x], 1) @ coefficients + rng.normal(size=n)).astype(np.float32)
        root = rng.normal(size=(d + 1, d + 1)) / 3
        place = linear_sums.Place(root, coefficients, 1.0)

        def sums(present):
            records = Records((x, y), present, n)
            return (
                linear_sums.sum_scores(records, True, place, cuts, 2.0**-24, key) / 2.0**-50,
                linear_sums.sum_information(records, True, root, cuts, 2.0**-18, False, key) / 2.0**-44,
            )

        few = np.isin(np.arange(n), rng.choice(n, 20, False))
        for one in np.flatnonzero(few)[:5]:
            alone = np.arange(n) == one
            for whole, rest, single, room in zip(sums(few), sums(few & ~alone), sums(alone), (0, 3), strict=True):
                off = np.max(np.abs(whole - rest - single))
                assert off <= room, (power, one, off)
    print("same")
"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_removing_a_record_leaves_what_others_add(kernel):
    """Sums of few records less those without one of them are exactly what it adds by itself, in steps of 2^-50.

    Residuals cancel from 1 to 1e16 times their size, and what is left of them is rounding by the kernels of OpenBLAS.
    Information is rounded once more, to the grid of its noise; entries beside the diagonal are divided by sqrt(2).
    """
    environment = os.environ | {"OPENBLAS_CORETYPE": kernel}
    program = [sys.executable, "-c", textwrap.dedent(ALONE)]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "same", found.stderr[-2000:]


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["logistic", "linear", "softmax"])
def test_a_row_has_the_same_bits_whether_others_are_there_or_not(name):
    """What compiled programs make of each record of a chunk, plain and seen through a root, at scores up to 1e16."""
    family = {"logistic": families.Logistic(), "linear": families.Gaussian(0.3), "softmax": families.Softmax(3)}[name]
    size = D * math.prod(family.outputs)
    total = clipped_sum(from_family(family, D), 1.0, lambda flat: flat, CHUNK, None)
    rng = np.random.default_rng(0)
    records, root = hostile(CHUNK), jnp.asarray(rng.normal(size=(size, size)), jnp.float32)
    y = (records.arrays[1] > 0).astype(np.float32) if family.kind == "classification" else records.arrays[1]
    data = (jnp.asarray(records.arrays[0]), jnp.asarray(y))

    @jax.jit
    def rows(position, present):
        batch = total.batch(data, total.residual_threshold(data, present), jnp.arange(CHUNK))
        with single_precision():
            return total.contributions(position, batch), total.contributions(position, batch, root)

    for power in range(0, 17, 4):
        position = jnp.asarray(rng.normal(size=size) * 10.0**power, jnp.float32)
        few = np.isin(np.arange(CHUNK), rng.choice(CHUNK, 30, False))
        for all_there, some in zip(rows(position, np.ones(CHUNK, bool)), rows(position, few), strict=True):
            assert np.array_equal(np.asarray(all_there)[few], np.asarray(some)[few])
            assert not np.any(np.asarray(some)[~few])


# Any order of the chunks, and shards of whole chunks, give the same whole numbers.


def groupings(chunk, places):
    """Pairs of first and last place: chunks one by one, in reverse, and in shards of two and three of them."""
    ends = [*range(0, places, chunk), places]
    one_by_one = list(pairwise(ends))
    shards = [ends[0], ends[2], ends[5], ends[-1]]
    return [one_by_one, one_by_one[::-1], list(pairwise(shards))]


@pytest.mark.parametrize("secure", [False, True])
def test_linear_sums_do_not_depend_on_how_chunks_are_grouped(secure):
    records = hostile(6 * linear_sums.CHUNK + 77)
    rng = np.random.default_rng(1)
    root = rng.normal(size=(D + 1, D + 1))
    kinds = (
        lambda part: linear_sums.add_scores(part, True, Place(root, rng.normal(size=D + 1) * 0 + 0.3, 0.7), CUTS, 0.01),
        lambda part: linear_sums.add_information(part, True, root, CUTS, 0.01, secure),
        lambda part: linear_sums.add_moments(part, True, 2.0, 3.0, 0.01, secure),
    )
    for add in kinds:
        total = add(records)
        assert total.dtype == np.int64
        assert np.any(total)
        for grouping in groupings(linear_sums.CHUNK, records.places):
            assert np.array_equal(sum(add(shard(records, *part)) for part in grouping), total)


def test_histograms_do_not_depend_on_how_records_are_grouped():
    records = hostile(6 * 1000 + 77)
    release = ScaleRelease(noise=3.0, intercept=True, counts=True, finer=True)
    x, y = records.arrays
    octaves, counts = release.octaves(x)[records.present], np.abs(y)[records.present]
    kinds = (
        lambda part: release.add_norms(octaves[part]),
        lambda part: release.add_octaves(octaves[part], 0.3),
        lambda part: release.add_outcomes(counts[part]),
    )
    for add in kinds:
        total = add(slice(None))
        assert total.dtype == np.int64
        for grouping in groupings(1000, len(octaves)):
            assert np.array_equal(sum(add(slice(*part)) for part in grouping), total)


@pytest.mark.optimised
@pytest.mark.parametrize("kind", ["plain", "root", "information", "network"])
def test_compiled_sums_do_not_depend_on_how_chunks_are_grouped(kind):
    """Each shard is summed by a program of its own; the last chunk is filled up with empty places in all of them."""
    records, rng = hostile(6 * CHUNK + 77, width=3), np.random.default_rng(2)
    data = (records.arrays[0], (records.arrays[1] > 0).astype(np.float32))
    if kind == "network":
        model = models.mlp((3, 4, 2))
        flat, unravel = jax.flatten_util.ravel_pytree(model.start(jax.random.key(0), (data[0][:1], data[1][:1])))
        example = (jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.float32))
        total = clipped_sum(model, 1.0, unravel, len(data[0]), None, size=flat.size, example=example, at_a_time=CHUNK)
        position = flat + 0.3
    else:
        total = clipped_sum(models.logistic_regression(3), 1.0, lambda flat: {"weights": flat}, 3149, None)
        position = jnp.asarray(rng.normal(size=3), jnp.float32)
    root = jnp.asarray(rng.normal(size=(3, 3)), jnp.float32) if kind == "root" else None

    def summed(batch):
        with single_precision():
            rows = total.contributions(position, batch, root)
            if kind != "information":
                return total(position, batch, root).total
        steps = jnp.round(rows.astype(jnp.float64) * 2.0**20)
        return steps.T @ steps

    @jax.jit
    def add(data, threshold):
        return total.over_chunks(data, threshold, summed, None, lambda part: grid.on_grid(part, 0.01))

    with jax.enable_x64(True):
        threshold = np.asarray(total.residual_threshold(data, records.present))  # computed once, of all rows together
        whole = np.asarray(add(data, threshold))
        assert whole.dtype == np.int64
        assert np.any(whole)
        for grouping in groupings(CHUNK, records.places):
            parts = [add(tuple(array[a:b] for array in data), threshold[a:b]) for a, b in grouping]
            assert np.array_equal(np.sum(parts, axis=0), whole)


# What is kept free for rounding does not grow with the number of records.


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", ["information", "moments"])
def test_the_bound_of_linear_matrices_is_the_same_for_any_number(kind, monkeypatch):
    bounds = []

    def stops(*given):
        bounds.append(given[-1])
        raise Stop

    monkeypatch.setattr(linear_sums, "bound_halves", stops)
    monkeypatch.setattr(linear_sums, "bound_moments", stops)
    for places in (10**4, 10**10):
        arrays = (np.broadcast_to(np.float32(0), (places, D)), np.broadcast_to(np.float32(0), places))
        records = Records(arrays, np.broadcast_to(True, places), places)
        asked = {
            "information": (linear_sums.sum_information, np.eye(D + 1), CUTS),
            "moments": (linear_sums.sum_moments, 1.0, 1.0),
        }
        add, *terms = asked[kind]
        with pytest.raises(Stop):
            add(records, True, *terms, 1.0, False, KEY)
    longest = CUTS.information_bound if kind == "information" else 2.0
    assert bounds[0] == bounds[1] > 0.9999 * math.sqrt(longest)


def test_the_bound_of_information_is_the_same_for_any_number(monkeypatch):
    """Traced for shapes alone, of which none is held."""
    family, bounds = families.Logistic(), []
    honest = information.halves

    def noted(sums, family, position, root, bound, batch):
        bounds.append(float(bound))
        return honest(sums, family, position, root, bound, batch)

    monkeypatch.setattr(information, "halves", noted)
    linear = replace(models.logistic_regression(D).linear, weighting=Weighting(1.0, 1.0))
    model = replace(models.logistic_regression(D), linear=linear)
    for places in (10**4, 10**9):
        with jax.enable_x64(True):
            sums = clipped_sum(model, 1.0, lambda flat: flat, places, None)
            query = InformationQuery(jnp.zeros(D), jnp.eye(D), np.float64(1.0), jnp.asarray(1.0))

            def release(x, y, threshold, sums=sums, query=query):
                prepared = Prepared((x, y), threshold, None, jnp.asarray([1.0, 1.0, 1.0], jnp.float32), None)
                return information.release_information(sums, prepared, family, noise.SUMS, query, jnp.zeros(15))

            shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((places, D), (places,), (places,))]
            jax.eval_shape(release, *shapes)
    assert len(set(bounds)) == 1
    assert bounds[0] > 0.999


def test_limits_of_all_records_depend_on_the_chunk_alone():
    few, many = (Limit.of(1.0, places, all_places=True) for places in (10**4, 10**10))
    assert few == many
    assert few.slack < 1e-10
    assert Limit.of(1.0, 10**10, 64, all_places=True) == Limit.of(1.0, 10**4, 64, all_places=True)
    total = clipped_sum(models.logistic_regression(D), 1.0, lambda flat: flat, 10**10, None)
    assert total.limit == few


def test_a_random_batch_keeps_free_what_all_of_its_chunks_may_be_off_by():
    """By at most 1e-6 of the clip for a million rows, where it was 2e-4; and as before where it is summed at once."""
    assert 1e-8 < Limit.of(1.0, 10**6).slack < 1e-6
    assert Limit.of(1.0, 400).slack == pytest.approx(2 * 2.0**-24 * 400**2)
    assert Limit.of(1.0, 256, 64).slack == pytest.approx(2 * 2.0**-24 * 256 * 64)


# What does not fit 64 bits is refused.


def test_sums_that_might_not_fit_64_bits_are_refused():
    grid.check_grid(10**10, CHUNK, 1.0)
    with pytest.raises(Refused, match=r"its grid cannot count: raise the noise") as caught:
        grid.check_grid(10**11, CHUNK, 1.0)
    assert "\n" not in str(caught.value)
    grid.check_grid(10**11, CHUNK, 2.0)
    with pytest.raises(Refused, match="cannot count"):
        grid.check_grid(CHUNK, CHUNK, 1e-6)


@pytest.mark.parametrize("family", [families.Logistic(), None])
def test_a_plan_of_scoring_is_refused_where_its_sums_might_not_fit(family):
    """Before anything is charged: of so many records that no table holds them, but for one of a single number."""
    model = models.logistic_regression(D) if family else models.linear_regression(D)
    budget, options = confide.Budget(epsilon=8.0, delta=1e-15), Options()

    def plan(places):
        arrays = (np.broadcast_to(np.float32(0), (places, D)), np.broadcast_to(np.float32(0), places))
        records = Records(arrays, np.broadcast_to(True, places), places - 1)
        return plans.make_plan(model, records, budget, confide.scoring(10), options, KEY)

    assert plan(10**10).data.places == 10**10
    with pytest.raises(Refused, match="cannot count"):
        plan(10**13)


# Hostile neighbours of many chunks, in whole numbers.


def distance(one, other, step):
    """In exact arithmetic, rounded up."""
    squares = sum((int(a) - int(b)) ** 2 for a, b in zip(one.ravel(), other.ravel(), strict=True))
    return step * math.sqrt(squares) * (1 + 1e-12)


@pytest.mark.parametrize("secure", [False, True])
def test_linear_neighbours_of_many_chunks_stay_within_what_is_priced(secure):
    rng, furthest = np.random.default_rng(5), 0.0
    rounding = noise.CONTRIBUTIONS if secure else noise.SUMS
    for trial in range(6):
        records = hostile(3 * linear_sums.CHUNK + 9, trial)
        root = rng.normal(size=(D + 1, D + 1)) * 10.0 ** rng.uniform(-3, 3)
        place = Place(root, rng.normal(size=D + 1) * 10.0 ** rng.uniform(0, 16), 10.0 ** rng.uniform(-3, 3))
        deviation = 10.0 ** rng.uniform(-3, 3)
        kinds = (
            (linear_sums.add_scores, (place, CUTS, deviation), CUTS.bound, SENSITIVITY),
            (linear_sums.add_information, (root, CUTS, deviation, secure), CUTS.information_bound, CHANGE),
            (linear_sums.add_moments, (2.0, 3.0, deviation, secure), 2.0, CHANGE),
        )
        for add, terms, bound, change in kinds:
            whole = add(records, True, *terms)
            room = rounding.lost(whole.size) * deviation
            for at in rng.choice(np.flatnonzero(records.present), 3, False):
                row, outcome = rng.normal(size=D) * 10.0 ** rng.choice([0, 30]), rng.normal() * 1e20
                other = add(replaced(records, at, row, outcome), True, *terms)
                step = deviation / noise.GRID
                moved = distance(whole, add(without(records, at), True, *terms), step)
                assert moved <= bound * change["add-remove"] + room
                assert distance(whole, other, step) <= bound * change["replace-one"] + room
                furthest = max(furthest, moved / (bound + room))
    assert furthest > 0.99  # the test can tell


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["logistic", "linear"])
def test_neighbours_of_many_chunks_stay_within_what_is_priced(name, without_noise):
    family = {"logistic": families.Logistic(), "linear": families.Gaussian(0.3)}[name]
    rng, model = np.random.default_rng(6), from_family(family, D)
    first = hostile(2 * CHUNK + 100)
    here = frames.frame(family, first.number, (D, D), None, (1.0, False), Scale(2.0, 1.5), 0.3)
    spread = np.diag(10.0 ** rng.uniform(-4, 1, D))
    root = designs.geometry(here, here.number * here.information_bound * spread, 1.0).root
    with jax.enable_x64(True):
        questions = compile_questions(model, lambda flat: flat, here, D, noise.SUMS, first)
        for trial in range(4):
            records = hostile(first.places, trial)
            if family.kind == "classification":
                records = records._replace(arrays=(records.arrays[0], (records.arrays[1] > 0).astype(np.float32)))
            at = int(rng.choice(np.flatnonzero(records.present)))
            row = rng.normal(size=D) * 10.0 ** rng.choice([-3, 0, 3, 30])
            other = replaced(records, at, row.astype(np.float32), 1 - records.arrays[1][at])
            tables = [questions.prepare(table, table) for table in (records, without(records, at), other)]
            position = rng.normal(size=D) * 10.0 ** rng.uniform(0, 8)
            for question, change, size in (
                (Question("noise", 0, position, root, 1.0, QUIET), SENSITIVITY, D),
                (Question("information", 0, position, root, here.information_bound, QUIET), CHANGE, D * (D + 1) // 2),
            ):
                found = [np.asarray(questions.ask(table, question, KEY).noisy) for table in tables]
                room = noise.SUMS.lost(size) * QUIET
                step = QUIET / noise.GRID
                if question.kind == "noise":
                    steps = [np.rint(answer / step) for answer in found]
                    assert all(np.array_equal(whole * step, answer) for whole, answer in zip(steps, found, strict=True))
                    moved = [distance(steps[0], each, step) for each in steps[1:]]
                else:
                    moved = [float(np.linalg.norm(found[0] - each)) for each in found[1:]]
                assert moved[0] <= question.bound * change["add-remove"] + room
                assert moved[1] <= question.bound * change["replace-one"] + room


def test_cuts_of_the_linear_plans_are_those_of_the_bounds():
    """The bounds that these tests hold sums to are those that are priced."""
    cuts = choose_cuts(1000, D, 0.5)
    assert cuts.bound == cuts.score * math.hypot(1.0, linear_sums.SHARE_OF_SCALE)
