"""Audits on made-up tables: their tests are valid, sabotaged programs are refuted, and honest ones are not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import confide
import confide.mechanism.noise
import confide.privacy.pricing
import confide.samplers
from confide import accountants, events
from confide.audits import gathering, power, program, rebuilding, repeated
from confide.audits.priced import reveals_more
from confide.audits.program import Told
from confide.mechanism import exact_rounding
from confide.validation import Refused
from helpers import sabotage
from helpers.tiers import tiered

N, D, STEPS, Q = 200, 3, 40, 0.1
GENERATOR = np.random.default_rng(3)
X, Y = GENERATOR.normal(size=(N, D)).astype(np.float32), GENERATOR.integers(0, 2, N)


def fitted(model=None, neighbours="add-remove", data=(X, Y), **changes):
    budget = confide.Budget(epsilon=4.0, delta=1e-5, neighbours=neighbours)
    settings = {
        "sampler": confide.sgld(),
        "steps": STEPS,
        "batch_size": 20,
        "clip": 5.0,
        "key": 1,
        "verbose": False,
    } | changes
    return confide.fit(model or confide.models.logistic_regression(D), data, budget, **settings)


def audited(posterior, seed=0, **more):
    return confide.audit(posterior, made_up=True, seed=seed, **({"repetitions": 100} | more))


def simulated(generator, *, runs=60, chains=1, steps=STEPS, q=Q, multiplier=2.0, q_claimed=None) -> Told:
    """What an honest program tells, drawn from the mechanism as it is described."""
    shape = (runs, chains, steps)
    halves = (N // 2, N - N // 2)
    noise = generator.normal(size=(2, *shape))
    present = {name: (generator.random(shape) < q).astype(float) for name in ("somewhere", "first", "last")}

    def scores(sums):
        gains = (sums * multiplier - 0.5) / multiplier**2
        return np.logaddexp(np.log1p(-q), np.log(q) + gains).sum(axis=(1, 2))

    return Told(
        quiet=(quiet := generator.normal(size=(*shape, D))),
        units=np.rint(quiet.ravel() * exact_rounding.GRID),
        parts=(np.zeros(shape), np.zeros(shape)),
        lengths=present,
        counts=tuple(generator.binomial(size, q, shape) for size in halves),
        halves=halves,
        plain=np.ones(5),
        inside=scores(noise[0] + present["somewhere"] / multiplier),
        outside=scores(noise[1]),
        steady=frozenset(["somewhere", "first", "last", "half", "rest"]),
        sampling_probability=q if q_claimed is None else q_claimed,
        multiplier=multiplier,
    )


POINTS = accountants.profile(events.gaussian(2.0, Q, STEPS), "add-remove").points()


@pytest.mark.parametrize("chains", [1, pytest.param(3, marks=pytest.mark.long)])
def test_honest_programs_are_seldom_wronged(chains):
    """Each test says less than 5% at most 5% of the time, but for an error of 1 in 10,000; all together as well."""
    generator = np.random.default_rng(11)
    event = events.compose(events.gaussian(2.0, Q, STEPS), repeats=chains)
    points = accountants.profile(event, "add-remove").points()
    found = [program.p_values(simulated(generator, chains=chains), points) for _ in range(100)]
    assert set(found[0]) == set(program.MEANINGS) - {"priced"} - (set() if chains > 1 else {"chains"})
    for test in found[0]:
        for level in (0.05, 0.3):
            wrong = sum(p_values[test] <= level for p_values in found)
            assert wrong <= stats.binom.isf(1e-4, 100, level), (test, level)


def changed(told, how):
    """What a program that breaks its promise in one way tells."""
    runs, chains, steps, _ = told.quiet.shape
    quiet = told.quiet.copy()
    if how == "noise":
        quiet[..., 1] *= 0.9
    elif how == "every step":
        quiet[:, :, 5] *= 0.3
    elif how == "law":  # uniform, with the same variance
        quiet = np.sqrt(12) * (stats.norm.cdf(quiet) - 0.5)
    elif how == "grid":
        return replace(told, units=told.units + 0.01 * (np.arange(told.units.size) == 7))
    elif how == "repeats":
        return replace(told, units=np.concatenate([told.units, -told.units[:50]]))
    elif how == "whole":
        return replace(told, parts=(told.parts[0], told.parts[1] + 0.005 * (told.counts[1] > 15)))
    elif how == "directions":
        quiet[..., 0] = quiet[..., 1]
    elif how == "steps":
        quiet[:, :, 7::10] = quiet[:, :, 3::10]
    elif how == "runs":
        quiet[runs // 2 :] = quiet[: runs // 2]
    elif how == "clip":
        return replace(told, lengths=told.lengths | {"last": 1.01 * told.lengths["last"]})
    elif how == "records":
        return replace(told, plain=np.array([1.0, 1.01]))
    elif how == "presence":
        return replace(told, lengths=told.lengths | {"first": np.ones((runs, chains, steps))})
    elif how == "halves":
        return replace(told, counts=(told.counts[0] + 1, told.counts[1]))
    elif how == "batches":  # each record in one of ten batches
        once = np.arange(steps) % 10 == np.random.default_rng(0).integers(0, 10, (runs, chains, 1))
        return replace(told, lengths=told.lengths | {"somewhere": once.astype(float)})
    elif how == "sizes":
        return replace(told, counts=(np.full_like(told.counts[0], round(N // 2 * Q)), told.counts[1]))
    elif how in ("apart", "pairs"):
        return replace(told, inside=told.inside + 3.0)
    return replace(told, quiet=quiet)


RELATED = {
    "apart": ["pairs"],
    "pairs": ["apart"],
    "noise": ["directions", "law"],
    "runs": ["steps"],
    "every step": ["steps"],
}


@pytest.mark.parametrize("how", sorted(set(program.MEANINGS) - {"priced", "chains"}))
def test_every_test_finds_what_it_is_for(how):
    told = changed(simulated(np.random.default_rng(12)), how)
    p_values = program.p_values(told, POINTS)
    assert p_values[how] < 1e-4
    assert all(p > 1e-4 for test, p in p_values.items() if test not in {how, *RELATED.get(how, ())}), p_values


def test_chains_with_one_noise_are_found():
    told = simulated(np.random.default_rng(13), chains=2)
    told.quiet[:, 1] = told.quiet[:, 0]
    found = program.p_values(told, POINTS)
    assert found["chains"] < 1e-10 < min(found["noise"], found["steps"])


def test_the_smallest_violation_is_seen_as_often_as_it_is_said():
    """Noise that is multiplied by what is said, 400 times: seen in 95% of all cases, but for an error of 1 in 1,000."""
    generator, level = np.random.default_rng(14), 1e-3
    told = simulated(generator)
    said = power.smallest(told, POINTS, level, 0.95)
    everywhere, single = np.zeros(400, bool), np.zeros(400, bool)
    for i in range(400):
        quiet = generator.normal(size=told.quiet.shape)
        everywhere[i] = program.noise(said["noise"] * quiet) <= level
        single[i] = program.noise(quiet * np.array([said["one noise"], 1, 1])) <= level
    bound = stats.binom.ppf(1e-3, 400, 0.95)
    assert bound <= everywhere.sum() < 400
    assert bound <= single.sum() < 400
    often = stats.binom.isf(level / 3, told.lengths["first"].size, Q)
    assert stats.binom.sf(often, told.lengths["first"].size, said["presence"]) == pytest.approx(0.95, abs=1e-6)


@pytest.fixture(scope="module")
def honest():
    posterior = fitted()
    return posterior, audited(posterior)


def test_an_honest_program_is_not_refuted(honest, tmp_path):
    posterior, found = honest
    assert found.verdict == "not refuted"
    assert 0 <= found.general_bound <= found.bound < found.claimed
    assert found.smallest["noise"] > 0.9
    assert 1 < found.smallest["clip"] < 1.01
    assert Q < found.smallest["presence"] < 1.3 * Q
    assert found.seen > 30  # of 3 rows with a gradient, 16 runs each, 98% of which hold the row once
    assert found.tests.keys() == set(program.MEANINGS) - {"chains"}
    assert repeated.load(tmp_path, posterior) == []
    path = repeated.save(found, tmp_path)
    assert repeated.load(tmp_path, posterior)[0]["tests"] == found.tests
    assert repeated.combine(repeated.load(tmp_path, posterior))["sentences"] == list(found.sentences())
    assert "no real record was read" in str(found)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": "another"}))
    with pytest.raises(Refused, match="not an audit of this run"):
        repeated.load(tmp_path, posterior)


def test_the_same_seed_gives_the_same_result(honest):
    assert audited(honest[0]).tests == honest[1].tests


SABOTAGED = {
    "no noise": (lambda patch: sabotage.no_noise(patch, D), {}, "noise", True),
    "unclipped": (sabotage.unclipped, {}, "clip", True),
    "no weights": (sabotage.no_weights, {}, "clip", True),
    "far rows": (sabotage.far_rows_count_more, {}, "records", False),
    "shuffled": (sabotage.shuffled, {}, "batches", False),
    "always in": (lambda patch: sabotage.always_in(patch, 77), {}, "halves", False),
    "in instead": (lambda patch: sabotage.always_in(patch, N - 1, instead=True), {}, "halves", False),
    "half the noise": (sabotage.half_the_noise, {}, "noise", False),
    "one parameter": (sabotage.one_parameter, {}, "noise", False),
    "uniform noise": (sabotage.uniform_noise, {}, "law", False),
    "one step": (lambda patch: sabotage.one_step(patch, 600, 0.1), {"steps": 1000}, "every step", False),
    "shifted stream": (sabotage.shifted_stream, {}, "repeats", False),
    "lagging chains": (sabotage.lagging_chains, {"chains": 2}, "repeats", False),
    "equal blocks": (sabotage.equal_blocks, {"steps": 1000}, "repeats", False),
    "short keys": (lambda patch: sabotage.short_keys(patch, 2**11), {}, "repeats", False),
    "off the grid": (sabotage.off_the_grid, {}, "grid", False),
    "one counts more": (lambda patch: sabotage.counts_more(patch, 77, 1.02), {}, "whole", False),
    "realised batch": (lambda patch: sabotage.divided_by_the_batch(patch, Q * N), {}, "whole", False),
    "one label": (lambda patch: sabotage.label_counts_twice(patch, 1), {"clip": 1.0}, "records", False),
    "the other label": (
        lambda patch: sabotage.label_counts_twice(patch, 0),
        {"clip": 1.0, "clipping": "plain"},  # by weights, rows that long would count little
        "records",
        False,
    ),
    "missing two": (sabotage.missing_two, {"neighbours": "replace-one", "batch_size": N}, "pairs", True),
}
QUICK = ("missing two", "uniform noise", "one counts more", "no weights")


@pytest.mark.parametrize("name", tiered(SABOTAGED, QUICK))
def test_sabotaged_programs_are_refuted(name, monkeypatch):
    broken, settings, test, claim = SABOTAGED[name]
    broken(monkeypatch)
    found = audited(fitted(**settings), repetitions=60 if settings.get("steps") else 250)
    assert found.violated
    assert found.tests[test] * len(program.MEANINGS) < 1e-3
    assert found.claim_refuted or not claim
    said = "the claim is refuted" if found.claim_refuted else "not the mechanism that was priced"
    assert said in str(found)


def test_an_event_with_more_noise_than_the_program_has_is_a_violation(honest):
    posterior = honest[0]
    priced = confide.privacy.pricing.guarantee(events.gaussian(20.0, Q, STEPS), delta=1e-5)
    found = audited(replace(posterior, guarantee=priced), repetitions=24)
    assert found.tests["priced"] == 0
    assert found.violated


MORE = {
    "a smaller share": (lambda sigma: events.gaussian(sigma, 0.6 * Q, STEPS), True),
    "more steps, more noise": (lambda sigma: events.gaussian(1.7 * sigma, Q, STEPS + 1), True),
    "fewer steps, less noise": (lambda sigma: events.gaussian(0.7 * sigma, Q, STEPS - 1), True),
    "one step with more noise": (
        lambda sigma: events.compose(events.gaussian(sigma / 2, Q, STEPS - 1), events.gaussian(1.01 * sigma, Q, 1)),
        True,
    ),
    "the same": (lambda sigma: events.gaussian(sigma, Q, STEPS), False),
    "the same, in parts": (
        lambda sigma: events.compose(events.gaussian(sigma / 2, Q, 3), events.gaussian(sigma, 2 * Q, STEPS - 3)),
        False,
    ),
    "more steps": (lambda sigma: events.gaussian(sigma, Q, STEPS + 1), False),
}


@pytest.mark.parametrize("name", MORE)
def test_steps_are_priced_one_by_one(name):
    priced, more = MORE[name]
    assert reveals_more(events.gaussian(2.0, Q, STEPS), priced(2.0), "add-remove") == more


def test_plain_rows_have_labels_that_the_model_knows():
    for model, known in ((confide.models.logistic_regression(D), 2), (confide.models.softmax_regression(D, 5), 5)):
        told = tuple(rebuilding.Shape(shape, np.dtype(np.float32)) for shape in ((D,), ()))
        assert rebuilding.labels(model, told).tolist() == list(range(known))
        for seed in range(20):
            rows = rebuilding.ordinary(model, told, np.random.default_rng(seed), 1 + seed)
            assert np.all(model.admits(rows))
    assert rebuilding.labels(confide.models.linear_regression(D), told).size == 0


def linear(key=4):
    generator = np.random.default_rng(key)
    return generator.normal(size=(N, 2)).astype(np.float32), generator.normal(size=N).astype(np.float32)


OTHERS = {
    "psgld": {"sampler": confide.psgld()},
    "sghmc": {"sampler": confide.sghmc()},
    "baoab": {"sampler": confide.baoab(friction=0.3)},
    "sgnht": {"sampler": confide.sgnht(), "neighbours": "replace-one"},
    "sgfs": {"sampler": confide.sgfs(adapt=10)},
    "wang2015": {"sampler": confide.samplers.wang2015_sgld(), "clip": 1.0},
    "decreasing": {"sampler": confide.sgld(schedule="decreasing"), "chains": 2},
    "dp_sgd": {"sampler": confide.dp_sgd(momentum=0.5)},
    "subsets": {"sampler": confide.dp_sgd(updated=0.5)},
    "dp_adam": {"sampler": confide.dp_adam(), "batch_size": N},
    "dpvi": {"sampler": confide.dpvi()},
    "secure": {"noise": "secure", "key": None, "neighbours": "replace-one"},
    "secure chains": {"noise": "secure", "key": None, "chains": 2, "batch_size": N},
    "intercept": {"model": confide.models.softmax_regression(D, 3, intercept=True)},
    "canaries": {"canaries": 40},
    "mlp": {"model": confide.models.mlp((D, 4, 2))},
    "dropout": {"model": confide.models.mlp((D, 4, 2), dropout=0.3), "microbatch": 16},
    "functions": {
        "model": confide.models.from_functions(
            log_prior=lambda w: -0.5 * (w**2).sum(),
            log_likelihood=lambda w, x, y: -0.5 * (y - x @ w) ** 2,
            start=np.zeros(2),
        ),
        "data": linear(),
    },
    "indices": {
        "model": confide.models.from_functions(
            log_prior=lambda w: -0.5 * (w**2).sum(),
            log_likelihood=lambda w, place, y: -0.5 * (y - w[place]) ** 2,
            start=np.zeros(2),
        ),
        "data": (Y, Y),
    },
}


@pytest.mark.parametrize("name", tiered(OTHERS, thorough=("baoab", "sgnht", "wang2015", "indices", "secure chains")))
def test_other_runs(name):
    """Once in a thousand audits an honest program is refuted, where the operating system draws."""
    posterior = fitted(**OTHERS[name])
    found = audited(posterior, repetitions=60)
    assert not found.violated, found.tests
    assert found.tests["priced"] == 1
    assert found.general_bound < found.claimed
    assert ("chains" in found.tests) == (posterior.chains > 1)
    if posterior.plan["batch_size"] < N and name != "subsets":  # of three parameters, at times none is moved
        assert "halves" in found.tests, "marked records do not pull as hard as they can"


@pytest.mark.parametrize("name", tiered(["psgld", "dp_adam", "mlp", "functions"], thorough=["dp_adam", "functions"]))
def test_other_runs_with_less_noise_are_refuted(name, monkeypatch):
    sabotage.half_the_noise(monkeypatch)
    found = audited(fitted(**OTHERS[name]), repetitions=60)
    assert found.violated
    assert found.tests["noise"] < 1e-6


@pytest.mark.long
@pytest.mark.optimised
def test_long_runs_are_shortened_and_seconds_are_kept(monkeypatch):
    posterior = fitted(steps=1000, clip=1.0)
    monkeypatch.setattr(gathering, "WORK", 1e8)
    monkeypatch.setattr(gathering, "TOGETHER", 30)
    found = confide.audit(posterior, made_up=True, seed=0)
    assert (found.steps, found.whole) == (500, 1000)  # one block
    assert "first 500 of its 1,000 steps" in str(found)
    assert not found.violated
    short = confide.audit(posterior, made_up=True, seed=0, repetitions=1000, seconds=1e-6)
    assert short.repetitions == gathering.TOGETHER


REFUSED = {
    "langevin": (lambda: fitted(sampler=confide.langevin(), batch_size=None, steps=None, clip=None,
                                model=confide.models.logistic_regression(D, norm_bound=3.0)), "releases none"),
    "individual": (lambda: fitted(account="individual", steps=20), "'individual'"),
    "function": (lambda: fitted(sampler=confide.sgld(schedule=lambda t: 1.0 + 0 * t)), "schedule was a function"),
    "no guarantee": (lambda: replace(fitted(), guarantee=None), "no guarantee"),
    "no model": (lambda: replace(fitted(), model=None), "functions that are not saved"),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param("no guarantee"), *[
    pytest.param(name, marks=pytest.mark.long) for name in REFUSED if name != "no guarantee"]])  # fmt: skip
def test_refusals(name):
    make, said = REFUSED[name]
    with pytest.raises(Refused, match=said):
        audited(make())


def test_refused_arguments(honest):
    with pytest.raises(Refused, match="24 or more"):
        audited(honest[0], repetitions=5)
    with pytest.raises(Refused, match="goes with made_up"):
        confide.audit(honest[0], seed=3)
    with pytest.raises(Refused, match="give its posterior"):
        confide.audit(lambda: honest[0], made_up=True)


def test_marked_rows_are_silent_or_as_long_as_the_clip():
    posterior = fitted(steps=5)
    built = rebuilding.rebuild(posterior, confide.mechanism.noise.as_key(1), np.random.default_rng(0), 10**6)
    x, labels = built.marked.table(np.array([0.0, 1.0, -1.0]))
    assert x.shape == (3, D)
    assert len(set(labels.tolist())) == 3
    assert np.allclose(built.job.kernel.schedule.noise, built.plain.kernel.schedule.noise)
