"""The scale of the records: what one of them changes in the histograms, what they cost, and what is made of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import confide
import confide.inference.loop
from confide import events, models
from confide.inference.options import Options
from confide.inference.plans import weights
from confide.mechanism import noise, scale
from confide.mechanism.scale import ScaleRelease
from confide.models.inputs import Records, as_records, place_records
from confide.privacy import pricing
from confide.privacy.budget import Budget

N, D = 600, 3
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(N, D)).astype(np.float32)
COUNTS = RANDOM.poisson(3.0, N).astype(np.float32)
BUDGET = Budget(epsilon=4.0, delta=1e-5)
RELEASE = ScaleRelease(noise=5.0, intercept=False, counts=True)


def planned(model, n=N, budget=BUDGET):
    """What is bought by default."""
    size = D + model.linear.intercept
    return weights.plan_weights(model, budget, confide.sgld(), Options(), n, size, buys=True).release


class Spy:
    """The counts that noise was added to, and the noisy ones."""

    def __init__(self, patch):
        self.counts, self.noisy, self.drawn = [], [], []
        honest = noise.noisy_counts

        def added(counts, drawn, source):
            found = honest(counts, drawn, source)
            self.counts.append(counts)
            self.noisy.append(found)
            self.drawn.append(drawn)
            return found

        patch.setattr(noise, "noisy_counts", added)


def histograms(release, records):
    with pytest.MonkeyPatch.context() as patch:
        spy = Spy(patch)
        release.release(records, noise.as_key(0))
    return spy.counts


hostile = st.one_of(
    st.floats(-1e4, 1e4, width=32),
    st.sampled_from([0.0, -0.0, 1e-38, 1e-30, 1.0, 2.0**0.5, 2.0**30, 2.0**31, 1e19, 1e38, -1e38, 3.4e38]),
)
rows = st.lists(hostile, min_size=D, max_size=D)
outcomes = st.one_of(st.integers(0, 100), st.sampled_from([0, 2**20, 2**31, 2**53, 10**30]))


@pytest.mark.parametrize("declared", [False, True])
@given(one=rows, other=rows, first=outcomes, second=outcomes, place=st.integers(0, 40), intercept=st.booleans())
def test_one_record_changes_one_count_by_one(declared, one, other, first, second, place, intercept):
    """Added among others, so that all after it move; replaced, two counts of each histogram change by one, or none."""
    model = models.poisson_regression(D, intercept=intercept, norm_bound=3.0 if declared else None)
    release = planned(model)
    assert release.norm_bound == (None if not declared else 3.0 if not intercept else math.sqrt(10))

    def counted(*added):
        x, y = X[:40], COUNTS[:40]
        for row, outcome in added:
            x, y = np.insert(x, place, np.float32(row), axis=0), np.insert(y, place, np.float32(outcome))
        return histograms(release, place_records(model, (x, y), 41))

    without, with_one, with_other = counted(), counted((one, first)), counted((other, second))
    assert len(without) == 2
    for before, after, instead in zip(without, with_one, with_other, strict=True):
        assert np.sum(before) == 40
        assert np.sum(after - before) == np.sum(np.abs(after - before)) == 1
        assert np.sum(after - instead) == 0
        assert np.sum(np.square(after - instead)) in (0, 2)  # what replacing is priced by


def test_a_row_is_in_the_same_bin_wherever_it_stands():
    """Norms on the very edge of a bin, in tables of several heights and at every place, of many columns too."""
    for columns in (1, 2, 31, 784, 9001):
        direction = np.random.default_rng(columns).normal(size=columns)
        drawn = direction / np.linalg.norm(direction) * math.sqrt(2)
        for row in (drawn, np.ones(columns), 2 * np.ones(columns)):
            found = set()
            for height in (1, 2, 7, 40):
                table = np.tile(row.astype(np.float32), (height + 1, 1))
                for part in (table, table[1:]):
                    found |= set(RELEASE._octaves(part, 2.0**30).tolist())
            assert len(found) == 1


def test_the_noise_is_what_is_priced_at_least(monkeypatch):
    """Its variance over 200 releases, 152 counts each: too small once in 10,000 times, and within 3% of it."""
    spy, table = Spy(monkeypatch), as_records((X, COUNTS))
    for key in range(100):
        RELEASE.release(table, noise.as_key(key))
        RELEASE.release(table, noise.SecureSource(key.to_bytes(32, "big")))
    errors = np.concatenate([noisy - counts for noisy, counts in zip(spy.noisy, spy.counts, strict=True)])
    assert errors.size == 200 * sum(RELEASE.bins)
    assert np.sum(np.square(errors / RELEASE.noise)) > stats.chi2.ppf(1e-4, errors.size)
    assert np.std(errors) < 1.03 * RELEASE.noise
    assert min(spy.drawn) > RELEASE.noise  # a little more is drawn, for the rounding of the counts
    ratio = 1 / spy.drawn[0] + 2 / noise.GRID  # what a count that changes by 1 moves in units of the noise
    assert ratio <= 1 / RELEASE.noise * (1 + 1e-15)


def test_the_two_histograms_share_no_noise(monkeypatch):
    spy = Spy(monkeypatch)
    none = Records((np.zeros((8, D), np.float32), np.zeros(8, np.float32)), np.zeros(8, bool), 8)
    replace(RELEASE, noise=1e6).release(none, noise.as_key(3))
    norms, counts = spy.noisy
    assert not np.any(np.isin(np.abs(counts), np.abs(norms)))


@pytest.mark.parametrize("histograms", [1, 2])
@pytest.mark.parametrize(("neighbours", "moved"), [("add-remove", 1.0), ("replace-one", math.sqrt(2))])
def test_the_price_is_that_of_a_gaussian_release(histograms, neighbours, moved):
    """Of as many coordinates as one record changes: sqrt(2) of them where it is replaced, in each histogram."""
    event = events.ScaleHistograms(noise=7.0, histograms=histograms)
    mu = moved * math.sqrt(histograms) / 7.0
    priced = pricing.guarantee(event, delta=1e-6, neighbours=neighbours)
    assert priced.epsilon == pytest.approx(pricing.gdp_epsilon(mu, 1e-6), rel=1e-6)
    both = events.compose(event, events.gaussian(3.0, 0.1, 10))
    more = pricing.guarantee(both, delta=1e-6, neighbours=neighbours).epsilon
    assert more > pricing.guarantee(events.gaussian(3.0, 0.1, 10), delta=1e-6, neighbours=neighbours).epsilon


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("model", [models.logistic_regression(D), models.poisson_regression(D)])
def test_what_is_bought_by_default_takes_a_hundredth_to_a_twentieth(model, neighbours):
    """Of the square of mu, and the histograms share it."""
    for n in (100, 10_000, 10**7):
        budget = replace(BUDGET, neighbours=neighbours)
        event = planned(model, n, budget).event()
        assert event.histograms == 1 + (model.name == "poisson_regression")
        share = event.parts(neighbours).squared_mu / pricing.gdp_mu(budget.epsilon, budget.delta) ** 2
        assert 0.01 * (1 - 1e-9) <= share <= 0.05 * (1 + 1e-9)


def test_the_event_is_read_again():
    event = events.ScaleHistograms(noise=6.25, histograms=2)
    again = confide.events.from_json(event.to_json())
    assert again == event
    assert (again.noise, again.histograms) == (6.25, 2)
    assert events.ScaleHistograms(noise=6.25, histograms=1) != event
    assert "standard deviation 6.25" in event.assumptions()[0]
    for wrong in ({"noise": 0.0}, {"noise": -1.0}, {"noise": math.nan}, {"noise": 1.0, "histograms": 0}):
        with pytest.raises(confide.Refused):
            events.ScaleHistograms(**wrong)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("columns", [2, 3, 40])
def test_the_scale_is_near_the_mean_norm(columns, intercept):
    """Within 30% in all of 100 releases of 1,000 records at epsilon 1; a far bin that stands out by chance did not do.

    With bins 120 and a threshold of 3 standard deviations, one release in 7 has such a bin.
    """
    generator = np.random.default_rng(columns)
    model = models.logistic_regression(columns, intercept=intercept)
    release = planned(model, 1000, Budget(epsilon=1.0, delta=1e-5))
    for key in range(100):
        x = (generator.normal(size=(1000, columns)) * 10.0 ** generator.uniform(-3, 3)).astype(np.float32)
        norms = np.sqrt(np.sum(np.square(x, dtype=np.float64), axis=1) + intercept)
        found = release.release(as_records((x, np.zeros(1000, np.float32))), noise.as_key(key))
        assert abs(math.log(found.norm / norms.mean())) < math.log(1.3)


@pytest.mark.parametrize("mean", [0.05, 1.0, 3.0, 200.0])
def test_the_scale_of_counts_is_near_their_mean(mean):
    """Within a factor of 2, in all of 100 releases of 1,000 records at epsilon 1."""
    generator = np.random.default_rng(4)
    release = planned(models.poisson_regression(D), 1000, Budget(epsilon=1.0, delta=1e-5))
    for key in range(100):
        x, y = generator.normal(size=(1000, D)), generator.poisson(mean, 1000).astype(np.float32)
        found = release.release(as_records((x.astype(np.float32), y)), noise.as_key(key))
        assert found.outcome <= 2 * max(mean, 0.1)
        assert found.outcome >= mean / 2 or mean < 0.2


def test_an_octave_is_two_bins():
    """Without a bound, and without an intercept: twice the rows are twice the scale, exactly."""
    release = replace(RELEASE, noise=1e-3)  # noise stays where it is, so there must be next to none
    one = release.release(as_records((X, COUNTS)), noise.as_key(1))
    for power in (-20, -1, 1, 7):
        moved = histograms(release, as_records((X * np.float32(2.0**power), COUNTS)))[0]
        assert np.array_equal(np.roll(moved, 2 * power), histograms(release, as_records((X, COUNTS)))[0])
        other = release.release(as_records((X * np.float32(2.0**power), COUNTS)), noise.as_key(1))
        assert other.norm == pytest.approx(2.0**power * one.norm, rel=1e-12)
        assert other.outcome == one.outcome


@pytest.mark.parametrize("factor", [1e-3, 0.7, 12.3])
def test_with_a_bound_any_unit_gives_the_same(factor):
    """Of rows and bound together; the very same noisy counts, so the same scale in that unit."""
    one, other = (
        replace(RELEASE, norm_bound=unit * 4.0).release(
            as_records(((X * unit).astype(np.float32), COUNTS)), noise.as_key(2)
        )
        for unit in (1.0, factor)
    )
    assert other.norm == pytest.approx(factor * one.norm, rel=1e-12)
    assert other.outcome == one.outcome


def test_the_same_key_and_records_give_the_same_scale():
    table = as_records((X, COUNTS))
    for source in (noise.as_key(5), noise.SecureSource(bytes(32))):
        assert RELEASE.release(table, source) == RELEASE.release(table, source)
    assert RELEASE.release(table, noise.as_key(5)) != RELEASE.release(table, noise.as_key(6))


@pytest.mark.parametrize("declared", [None, 2.0])
def test_an_empty_table_has_a_scale(declared):
    release = replace(RELEASE, norm_bound=declared)
    empty = Records((np.zeros((8, D), np.float32), np.zeros(8, np.float32)), np.zeros(8, bool), 8)
    for key in range(20):
        found = release.release(empty, noise.as_key(key))
        assert 0 < found.norm < math.inf
        assert 0 <= found.outcome < math.inf
    release = replace(release, noise=1e-9)  # and where no count is above 0
    assert 0 < release.release(empty, noise.as_key(0)).norm < math.inf


def test_few_records_far_out_count_for_nothing():
    """Ten of 600, at norms of 1e6, stand out of next to no noise and move the scale by less than a hundredth."""
    release, far = replace(RELEASE, noise=0.1), X.copy()
    far[:10] *= 1e6
    one, other = (release.release(as_records((x, COUNTS)), noise.as_key(1)) for x in (X, far))
    assert other.norm == pytest.approx(one.norm, rel=0.01)


def fitted(**changes):
    settings = {"sampler": confide.sgld(), "steps": 20, "batch_size": 60, "key": 1, "verbose": False} | changes
    return confide.fit(models.poisson_regression(D), settings.pop("data", (X, COUNTS)), BUDGET, **settings)


def test_neither_canaries_nor_absent_records_are_counted(monkeypatch):
    """Rows without a number or with an outcome that is no count are no records; rows of canaries are 2^20 long."""
    kept = as_records((np.delete(X, [3, 5, 7], axis=0), np.delete(COUNTS, [3, 5, 7])))
    known = histograms(planned(models.poisson_regression(D)), kept)
    spy = Spy(monkeypatch)
    x, y = X.copy(), COUNTS.copy()
    x[3, 1], y[5], y[7] = np.nan, -1.0, 0.5
    fitted(data=(x, y), canaries=40)
    assert [counts.sum() for counts in spy.counts] == [N - 3, N - 3]
    assert all(np.array_equal(*pair) for pair in zip(spy.counts, known, strict=True))


def test_the_run_follows_what_was_found(monkeypatch):
    """Clip, step sizes, and the norm from which on rows count less, are functions of the released scale alone."""
    plans = []
    for found in (scale.Scale(2.0, 3.0), scale.Scale(2.0, 3.0), scale.Scale(4.0, 3.0)):
        monkeypatch.setattr(ScaleRelease, "read", lambda self, answers, number, found=found: found)
        rows = X * np.float32(1 + len(plans))  # other records
        plans.append(fitted(data=(rows, COUNTS)).plan)
    sized = [{name: plan[name] for name in ("clip", "step_size", "row_bound", "information")} for plan in plans]
    assert sized[0] == sized[1]
    assert sized[2]["row_bound"] == 2 * sized[0]["row_bound"] == 5.0
    assert sized[2]["clip"] == pytest.approx(2 * sized[0]["clip"])


def test_a_resumed_run_has_the_same_scale(tmp_path, monkeypatch):
    """Interrupted after its first block, before anything was released: the noise is not drawn anew."""
    whole, place = fitted(steps=1200), tmp_path / "checkpoint"
    honest = confide.inference.loop.checkpoints.write

    class Stop(Exception):
        pass

    def write(path, checkpoint):
        honest(path, checkpoint)
        if checkpoint.block == 1:
            raise Stop

    monkeypatch.setattr(confide.inference.loop.checkpoints, "write", write)
    with pytest.raises(Stop):
        fitted(steps=1200, checkpoint=place, checkpoint_seconds=1e-9)
    monkeypatch.setattr(confide.inference.loop.checkpoints, "write", honest)
    resumed = fitted(steps=1200, checkpoint=place)
    assert resumed.plan["scale"] == whole.plan["scale"]
    assert resumed.plan["clip"] == whole.plan["clip"]
    assert np.array_equal(resumed.draws["weights"], whole.draws["weights"])


@pytest.mark.parametrize("norm", [0.9, 1.0, 1.3, 3.74, 1e-12, 1e12])
def test_the_norm_is_bought_within_its_bin(norm):
    """Rows of one norm, which half an octave would tell to 19% at best; by 2,000 records and noise of 20, to 2%."""
    x = np.zeros((2000, 3), np.float32)
    x[:, 1] = norm
    records = as_records((x, np.zeros(2000, np.float32)))
    release = ScaleRelease(noise=20.0, intercept=False, counts=False, finer=True)
    found = [release.release(records, noise.as_key(key)).norm for key in range(20)]
    if 1e-9 < norm < 1e9:
        assert found == pytest.approx([norm] * 20, rel=0.03)
    assert np.all(np.isfinite(found))
    assert release.event().histograms == 2


def test_one_record_moves_the_finer_norm_by_no_more_than_a_histogram(monkeypatch):
    """About the same bin, which the histogram has told."""
    heard = []
    added = lambda steps, scale, source: heard.append(steps * (scale / noise.GRID)) or heard[-1]  # noqa: E731
    monkeypatch.setattr(noise, "around_steps", added)
    monkeypatch.setattr(scale, "_mean", lambda *given: 0.3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    release = ScaleRelease(noise=1e-9, intercept=False, counts=False, finer=True)
    present = np.ones(50, bool)
    for length in (0.0, 1e-30, 1e-3, 1.0, 1e3, 1e30):
        heard.clear()
        other = x.copy()
        other[0] = length
        for rows, there in ((x, present), (other, present), (x, np.arange(50) > 0)):
            release.release(Records((rows, np.zeros(50, np.float32)), there, 50), noise.as_key(0))
        whole, replaced, without = (each for each in heard if each.size == 1)
        assert abs(whole - replaced) <= math.sqrt(2)
        assert abs(whole - without) <= 1
