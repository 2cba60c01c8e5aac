"""No record moves any release of private scoring by more than was priced, on real neighbours, without its noise.

Every question goes through the functions of a run: rows through the whitening root, weights, cuts, sums, rounding to
the grid. Rows and outcomes are of any size, and of none: infinite and missing numbers never get here (`place_records`
counts them as absent), and would contribute nothing.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.inference import designs, frames, row_spaces
from confide.inference.questions import NOTHING_TOLD, Question, compile_questions
from confide.mechanism import canaries, noise, scale
from confide.mechanism.information import entries
from confide.mechanism.scale import Scale, ScaleRelease
from confide.models import families
from confide.models.inputs import Records
from confide.models.model import from_family
from confide.privacy.events import SENSITIVITY
from confide.privacy.events.individual import CHANGE

pytestmark = pytest.mark.optimised
D, PLACES = 3, 8
FAMILIES = {
    "logistic": families.Logistic(),
    "linear": families.Gaussian(0.3),
    "poisson": families.Poisson(),
    "negative binomial": families.NegativeBinomial(2.0),
    "softmax": families.Softmax(3),
}
ROUNDINGS = {"sums": noise.SUMS, "secure": noise.CONTRIBUTIONS}
KEY = noise.as_key(0)
QUIET = 1e-3  # deviation of the noise that is not drawn: its grid is far finer than what is looked at


@functools.cache
def compiled(name, rounding, planted=False):
    """Questions about eight places, of a usual norm of 2, and canaries among them where they are wanted."""
    family = FAMILIES[name]
    model = from_family(family, D, intercept=True)
    here = frames.frame(
        family, PLACES - 1, (D + 1, (D + 1) * math.prod(family.outputs)), 0, (1.0, False), Scale(2.0, 1.5), 0.3
    )
    records = Records((np.zeros((PLACES, D), np.float32), np.zeros(PLACES, np.float32)), np.ones(PLACES, bool), 7)
    test = canaries.plant(model, records, 30, D + 1, "add-remove") if planted else None
    with jax.enable_x64(True):
        return (
            here,
            compile_questions(model, lambda flat: flat, here, here.start.size, ROUNDINGS[rounding], records, test),
            test,
        )


def root_of(here, seed):
    """What whitens a matrix that is all noise, none, or of directions that are thousands of times apart; of every
    second one what rows are seen through that are thought to be levels of one category, which they are not."""
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.uniform(-4, 1, D + 1)
    basis = np.linalg.qr(rng.normal(size=(D + 1, D + 1)))[0]
    first = here.number * here.information_bound * (basis * spread) @ basis.T
    root = designs.geometry(here, first, float(rng.choice([1e-6, 1.0, 1e3]))).root
    space = row_spaces.row_space(D + 1, 0, (tuple(range(1, D + 1)),))
    return space.see(root[: space.size, : space.size]) if seed % 2 else root


def spread_over_scores(here, position):
    """A position for each score: the second as the first, the others as far on the other side."""
    several = math.prod(here.family.outputs)
    return np.repeat(np.array(position)[:, None], several, axis=1).ravel() * np.resize([1.0, -1.0], here.start.size)


@pytest.fixture(autouse=True)
def without_noise(monkeypatch):
    monkeypatch.setattr(noise, "draw_units", lambda source, chain, block, shape, *more: jnp.zeros(shape))
    monkeypatch.setattr(noise, "around", lambda point, *given, **more: point)
    monkeypatch.setattr(noise, "around_steps", lambda steps, scale, source: steps * (scale / noise.GRID))


hostile = st.one_of(
    st.floats(-3, 3, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, 1e-45, 1e-30, -1e-30, 1e-19, 1e19, 1e30, -1e30, 3.4e38, math.inf, -math.inf, math.nan]),
)
rows = st.lists(hostile, min_size=D, max_size=D)
positions = st.lists(st.floats(-8, 8), min_size=D + 1, max_size=D + 1)


def outcome_of(family, drawn):
    """Any number as an outcome of the family, up to the largest that there are."""
    finite = float(np.nan_to_num(np.float32(drawn)))
    if family.kind == "classification":
        return float(finite > 0)
    return abs(math.floor(finite)) if family.outcome == "count" else finite


def neighbours(family, one, other, seed):
    """A table of hostile and usual rows, without a record at its first place, with it, and with another one."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(PLACES, D)) * 10.0 ** rng.integers(-2, 3, (PLACES, 1))).astype(np.float32)
    y = np.array([outcome_of(family, value) for value in rng.normal(size=PLACES) * 3], np.float32)
    there = np.arange(PLACES) < PLACES - 1
    tables = []
    for (row, outcome), present in ((one, there & (np.arange(PLACES) > 0)), (one, there), (other, there)):
        changed, labels = x.copy(), y.copy()
        changed[0], labels[0] = row, outcome_of(family, outcome)
        tables.append(Records((changed, labels), present, PLACES - 1))
    return tables


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", FAMILIES)
@given(one=st.tuples(rows, hostile), other=st.tuples(rows, hostile), position=positions, seed=st.integers(0, 2**16))
def test_scores_and_information(name, rounding, one, other, position, seed):
    """Replacing a record moves a sum of scores by two clips, and one of information by sqrt(2) bounds at most."""
    here, questions, _ = compiled(name, rounding)
    root, position = root_of(here, seed), spread_over_scores(here, position)
    asked = {
        "noise": Question("noise", 0, position, root, 1.0, QUIET),
        "information": Question("information", 0, position, root, here.information_bound, QUIET),
    }
    tables = neighbours(FAMILIES[name], one, other, seed)
    with jax.enable_x64(True):
        prepared = [questions.prepare(table, table) for table in tables]
        for kind, change in (("noise", SENSITIVITY), ("information", CHANGE)):
            question = asked[kind]
            without, added, replaced = (questions.ask(table, question, KEY).noisy for table in prepared)
            count = here.start.size if kind == "noise" else entries(D + 1)
            room = ROUNDINGS[rounding].moved * math.sqrt(count) * QUIET / noise.GRID  # what the price allows for
            assert np.all(np.isfinite(added))
            assert np.linalg.norm(added - without) <= question.bound * change["add-remove"] + room
            assert np.linalg.norm(added - replaced) <= question.bound * change["replace-one"] + room


@pytest.mark.parametrize("name", FAMILIES)
def test_the_bounds_are_reached(name):
    """By a row that still counts whole, and an outcome that is far off: a test that looks elsewhere could not fail."""
    here, questions, _ = compiled(name, "sums")
    family = FAMILIES[name]
    most, far = here.row_bound * here.clip, 1.0 if family.kind == "classification" else 1e6
    row = np.zeros(D, np.float32)
    row[0] = math.sqrt(most**2 - 1) * (1 - 1e-6)
    silent, one = neighbours(family, (row, far), (row, far), 0)[:2]
    root, start = np.eye(D + 1) / here.clip, np.zeros(here.start.size)
    with jax.enable_x64(True):
        tables = [questions.prepare(table, table) for table in (silent, one)]
        for question, least in (
            (Question("noise", 0, start, root, 1.0, QUIET), 0.6),
            (Question("information", 0, start, root, here.information_bound, QUIET), 0.3),
        ):
            without, added = (questions.ask(table, question, KEY).noisy for table in tables)
            assert np.linalg.norm(added - without) > least * question.bound


@given(one=st.tuples(rows, hostile), position=positions, seed=st.integers(0, 2**16))
def test_records_do_not_move_what_is_told_of_canaries(one, position, seed):
    """And canaries without an outcome of the model's do not move its sums, but for one part in a million."""
    here, questions, planted = compiled("poisson", "sums", True)
    tables = neighbours(FAMILIES["poisson"], one, one, seed)[:2]
    question = Question("noise", 0, np.array(position), root_of(here, seed), 1.0, 1.0)
    told = []
    with jax.enable_x64(True):
        for records in tables:
            x, y = planted.data.arrays
            wide, labels = x.copy(), y.copy()
            own = np.delete(np.arange(len(wide)), planted.places)
            wide[own, :D], labels[own] = records.arrays[0], records.arrays[1]
            labels[planted.places[::2]] = canaries.UP
            present = np.ones(len(wide), bool)
            present[own] = records.present
            whole = Records((wide, labels), present, records.number)
            told.append(questions.ask(questions.prepare(records, whole), question, KEY, np.zeros((4, 30))))
    without, added = told
    assert np.array_equal(without.statistics, added.statistics)
    assert without.statistics[3] == pytest.approx((np.arange(30) % 2 == 0).astype(float), abs=0.01)
    assert np.linalg.norm(added.noisy - without.noisy) <= 1 + 2 * math.sqrt(D + 1) / noise.GRID
    assert NOTHING_TOLD.size == 0


@pytest.mark.parametrize("declared", [None, 3.0])
@given(
    one=st.tuples(rows, hostile), other=st.tuples(rows, hostile), norm=st.floats(-30, 30), seed=st.integers(0, 2**16)
)
def test_the_scale(declared, one, other, norm, seed):
    """Histograms of norms and of counts, and the sum within a bin, about any norm that the first one may have told."""
    release = ScaleRelease(noise=1.0, intercept=True, counts=True, norm_bound=declared, finer=True)
    assert release.event().histograms == 3
    asked = (
        lambda table: release.count_norms(release.octaves(table.arrays[0])[table.present], KEY),
        lambda table: release.sum_norms(release.octaves(table.arrays[0])[table.present], norm, KEY),
        lambda table: release.count_outcomes(table.arrays[1][table.present], KEY),
    )
    tables = neighbours(families.Poisson(), one, other, seed)
    for question in asked:
        without, added, replaced = map(question, tables)
        assert np.all(np.isfinite(added))
        assert np.linalg.norm(added - without) <= CHANGE["add-remove"] + 1e-12
        assert np.linalg.norm(added - replaced) <= CHANGE["replace-one"] + 1e-12


def test_the_finer_sum_is_as_far_as_it_may_be():
    """A row far above the usual norm instead of one far below: 1.4, of sqrt(2) that are paid for."""
    release = ScaleRelease(noise=1.0, intercept=False, counts=False, finer=True)
    found = [release.sum_norms(np.array([octaves]), 0.0, KEY) for octaves in (0.0, 60.0)]
    assert abs(found[0] - found[1]) == pytest.approx(2 * scale.CUT)
