"""Audits of private scoring on made-up tables: valid, honest programs are not refuted, broken ones are.

An honest program is called a violation once in a thousand audits at most, and seeds are fixed.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

import confide
from confide import Refused, accountants, events, models
from confide.app.cli import app
from confide.audits import (
    made_up_scoring,
    repeated,
    scoring_publication,
    scoring_questions,
    scoring_tables,
    scoring_tests,
)
from confide.audits.scoring_tests import Told
from confide.mechanism import exact_rounding
from helpers import sabotage
from helpers.tiers import tiered

N, D = 120, 3
GENERATOR = np.random.default_rng(6)
X = GENERATOR.normal(size=(N, D)).astype(np.float32)
OUTCOMES = {
    "two": GENERATOR.integers(0, 2, N),
    "numbers": GENERATOR.normal(size=N).astype(np.float32),
    "counts": GENERATOR.poisson(2.0, N),
}
RUNS = {
    "logistic": (models.logistic_regression(D), "two", {}),
    "declared": (models.logistic_regression(D, intercept=True, norm_bound=3.0), "two", {"neighbours": "replace-one"}),
    "linear": (models.linear_regression(D, noise_scale=1.0, intercept=True), "numbers", {}),
    "learnt noise": (models.linear_regression(D, intercept=True), "numbers", {}),
    "learnt noise, secure": (
        models.linear_regression(D),
        "numbers",
        {"noise": "secure", "key": None, "neighbours": "replace-one", "canaries": 40},
    ),
    "learnt noise of long columns": (
        models.linear_regression(D, norm_bound=200.0, prior_scale=0.1),
        "numbers",
        {"data": (X * np.array([100.0, 1.0, 0.01], np.float32) + 3, OUTCOMES["numbers"]), "epsilon": 20.0},
    ),
    "learnt noise, hardly a budget": (models.linear_regression(D), "numbers", {"epsilon": 0.01}),
    "poisson": (models.poisson_regression(D), "counts", {"neighbours": "replace-one"}),
    "negative binomial": (models.negative_binomial_regression(D, intercept=True), "counts", {}),
    "secure": (models.logistic_regression(D), "two", {"noise": "secure", "key": None}),
    "canaries": (models.logistic_regression(D), "two", {"canaries": 40}),
    "constant": (models.poisson_regression(D), "counts", {"sampler": confide.scoring(50, constant=-1)}),
    "one column": (models.logistic_regression(1), "two", {"data": (X[:, :1], OUTCOMES["two"])}),
    "hardly a budget": (models.logistic_regression(D), "two", {"epsilon": 0.01}),
    "large budget": (models.linear_regression(D, noise_scale=1.0), "numbers", {"epsilon": 100.0}),
}
QUICK = ("logistic", "learnt noise, secure")
THOROUGH = ("one column", "hardly a budget", "large budget", "constant", "learnt noise, hardly a budget")


def fitted(name="logistic", **changes):
    model, outcome, own = RUNS[name]
    settings = {"key": 1, "verbose": False, "sampler": confide.scoring(50), "epsilon": 4.0} | own | changes
    neighbours = settings.pop("neighbours", "add-remove")
    budget = confide.Budget(epsilon=settings.pop("epsilon"), delta=1e-5, neighbours=neighbours)
    return confide.fit(model, settings.pop("data", (X, OUTCOMES[outcome])), budget, **settings)


def audited(posterior, seed=0, **more):
    return confide.audit(posterior, made_up=True, seed=seed, **({"repetitions": 60} | more))


@pytest.mark.parametrize("name", tiered(RUNS, QUICK, THOROUGH))
def test_an_honest_program_is_not_refuted(name, monkeypatch):
    """And its tables are near the worst case: some record moves each kind of release by most of what was priced."""
    seen, honest = [], made_up_scoring.gather
    monkeypatch.setattr(made_up_scoring, "gather", lambda *given: seen.append(honest(*given)) or seen[-1])
    posterior = fitted(name)
    found = audited(posterior)
    assert not found.violated, found.tests
    assert found.tests.keys() == made_up_scoring.MEANINGS.keys()
    assert found.tests["priced"] == 1
    assert found.general_bound <= found.bound < found.claimed
    assert found.steps == posterior.plan["steps"] + 2 + posterior.guarantee.event.events[0].histograms
    for kind in scoring_tables.KINDS:
        assert 0.7 < np.max(seen[0].moved[kind]) <= 1
    assert np.max(seen[0].quiet[-2]) > 1  # a table without records is not silent


@pytest.mark.long
def test_a_run_that_learnt_its_noise_scale_is_asked_where_it_asked(monkeypatch):
    heard, honest = [], scoring_questions.hear_linear
    monkeypatch.setattr(scoring_questions, "hear_linear", lambda *given: heard.append(honest(*given)) or heard[-1])
    posterior = fitted("learnt noise")
    scoring_tables.rebuild(posterior, 0, np.random.default_rng(0))
    places = np.array([each.position for each in heard[0].asked if each.kind == "noise"])
    assert np.array_equal(places, posterior.release.places)


@pytest.mark.long
def test_what_is_told_of_it(tmp_path):
    posterior = fitted()
    found = audited(posterior)
    assert audited(posterior).tests == found.tests
    repeated.save(found, tmp_path)
    assert repeated.load(tmp_path, posterior)[0]["kind"] == "made-up scoring"
    assert "no real record was read" in str(found)
    assert f"{found.smallest['information']:.3g} (information)" in str(found)
    assert json.loads(json.dumps(found.to_json()))["tests"] == found.tests
    with pytest.raises(Refused, match="show next to nothing"):
        audited(posterior, repetitions=5)
    with pytest.raises(Refused, match="restore it"):
        audited(replace(posterior, release=None))


SABOTAGED = {
    "half the noise of sums": (lambda patch: sabotage.half_the_noise_of(patch, "noise"), "every release"),
    "half the noise of one sum": (lambda patch: sabotage.half_the_noise_of(patch, "noise", 3), "every release"),
    "half the noise of the first matrix": (
        lambda patch: sabotage.half_the_noise_of(patch, "information", 0),
        "every release",
    ),
    "half the noise of the last matrix": (
        lambda patch: sabotage.half_the_noise_of(patch, "information", 1),
        "every release",
    ),
    "half the noise of the scale": (sabotage.half_the_noise_of_the_scale, "every release"),
    "scores that are not cut": (sabotage.no_weights, "scores"),
    "matrices that are not cut": (sabotage.uncut_information, "information"),
    "a scale that counts twice": (sabotage.scale_counts_twice, "scale"),
    "less noise where a record is": (sabotage.less_noise_of_records, "dependence"),
    "one sum more": (sabotage.one_sum_more, "priced"),
    "an unpriced sum": (lambda patch: sabotage.unpriced(patch, events.GaussianSchedule), "priced"),
    "unpriced matrices": (lambda patch: sabotage.unpriced(patch, events.InformationSums), "priced"),
    "an unpriced scale": (lambda patch: sabotage.unpriced(patch, events.ScaleHistograms), "priced"),
    "uniform noise": (sabotage.uniform_noise, "law"),
    "off the grid": (sabotage.off_the_grid, "grid"),
    "short keys": (lambda patch: sabotage.short_keys(patch, 2**8), "repeats"),
}
LEARNT = {how: each for how, each in SABOTAGED.items() if how not in ("uniform noise", "short keys")} | {
    "outcomes that count twice": (sabotage.outcomes_count_twice, "scale"),
}
OWN = ("outcomes that count twice", "scores that are not cut", "matrices that are not cut", "an unpriced sum")
SHOWN = [("logistic", how) for how in ("half the noise of sums", "matrices that are not cut", "an unpriced sum")]
SHOWN += [("logistic", "less noise where a record is"), ("learnt noise", "scores that are not cut")]
CASES = [("logistic", how) for how in SABOTAGED] + [("learnt noise", how) for how in LEARNT]
AGAIN = [("learnt noise", how) for how in LEARNT if how not in OWN]  # by the code that is broken in the other runs


@pytest.mark.parametrize(("name", "how"), tiered(CASES, SHOWN, AGAIN))
def test_broken_programs_are_refuted(name, how, monkeypatch):
    """By noise with 60 repetitions: half of it is not seen less than once in a million times; else always."""
    broken, test = (SABOTAGED | LEARNT)[how]
    broken(monkeypatch)
    found = audited(fitted(name))
    assert found.violated
    assert found.tests[test] * len(made_up_scoring.MEANINGS) < 1e-3
    others = [p for name, p in found.tests.items() if name in scoring_tables.KINDS and test not in (name, "dependence")]
    assert min(others, default=1) == 1
    assert "not the mechanism that was priced" in str(found) or found.claim_refuted


PUBLISHED = {
    "the sum of a column in positions": (sabotage.exact_sum_in_positions, "functions"),
    "the exact norm": (sabotage.exact_norm, "functions"),
    "an exact count": (sabotage.exact_counts, "outcomes"),
    "an exact option": (sabotage.exact_option, "options"),
}
PUBLISHERS = [(name, how) for name in ("logistic", "learnt noise") for how in PUBLISHED]


@pytest.mark.parametrize(("name", "how"), tiered(PUBLISHERS, PUBLISHERS[:2]))
def test_programs_that_publish_numbers_without_noise_are_refuted(name, how, monkeypatch):
    """Always, and by nothing but what they publish: their noisy answers are those of an honest program."""
    broken, test = PUBLISHED[how]
    broken(monkeypatch)
    found = audited(fitted(name), repetitions=24)
    assert found.verdict == "not as priced"
    assert found.tests[test] == 0
    assert "not the mechanism that was priced" in str(found)
    others = {other: p for other, p in found.tests.items() if other not in scoring_publication.MEANINGS}
    assert min(others.values()) > 1e-4, others


@pytest.mark.long
@pytest.mark.parametrize("name", ["logistic", "learnt noise"])
@pytest.mark.parametrize("how", ["an unpriced sum", "unpriced matrices"])
def test_a_run_whose_event_lacks_a_part_is_refuted_by_an_honest_program(how, name, monkeypatch):
    """The event was written by a broken program that is mended since."""
    with monkeypatch.context() as patch:
        SABOTAGED[how][0](patch)
        posterior = fitted(name)
    assert audited(posterior, repetitions=24).tests["priced"] == 0


@pytest.mark.parametrize("neighbours", tiered(events.NEIGHBOURS, events.NEIGHBOURS[:1]))
def test_neighbours_are_told_apart_where_the_claim_is_false(neighbours):
    """A run at epsilon 20 whose guarantee says 1: not seen less than once in a million times."""
    posterior = fitted(epsilon=20.0, neighbours=neighbours)
    claimed = fitted(epsilon=1.0, neighbours=neighbours).guarantee
    found = audited(replace(posterior, guarantee=claimed))
    assert found.claim_refuted
    assert found.bound > 3 * found.claimed
    assert "the claim is refuted" in str(found)


# The tests by themselves.

SIZES = {"scale": (20, 1), "information": (6, 6), "scores": (3,) * 9}
MULTIPLIER = 6.0


def simulated(generator, runs=60) -> Told:
    """What an honest program tells, drawn from the mechanism as it is described."""
    kinds = tuple(kind for kind, sizes in SIZES.items() for _ in sizes)
    quiet = tuple(generator.normal(size=(runs, size)) for sizes in SIZES.values() for size in sizes)
    mu = np.sqrt(len(kinds)) / MULTIPLIER
    inside, outside = (mu * generator.normal(size=runs) + sign * mu**2 / 2 for sign in (1, -1))
    units = np.concatenate([z.ravel() for kind, z in zip(kinds, quiet, strict=True) if kind != "scale"])
    return Told(
        kinds=kinds,
        quiet=quiet,
        units=np.rint(units * exact_rounding.GRID),
        moved={kind: np.array([0.3, 1.0]) for kind in SIZES},
        dependence=dict.fromkeys(SIZES, 0.0),
        room=1.00001,
        inside=inside,
        outside=outside,
    )


POINTS = accountants.profile(events.gaussian(MULTIPLIER, 1.0, 13), "add-remove").points()


def test_honest_programs_are_seldom_wronged():
    """Each test says less than 5% at most 5% of the time, but for an error of 1 in 10,000; and 30% likewise."""
    generator = np.random.default_rng(31)
    found = [scoring_tests.p_values(simulated(generator), POINTS) for _ in range(100)]
    assert set(found[0]) == set(scoring_tests.MEANINGS) - {"priced"}
    for test in found[0]:
        for level in (0.05, 0.3):
            wrong = sum(p_values[test] <= level for p_values in found)
            assert wrong <= stats.binom.isf(1e-4, 100, level), (test, level)


def changed(told, how):
    """What a program that breaks its promise in one way tells."""
    quiet = [z.copy() for z in told.quiet]
    if how in scoring_tables.KINDS:
        return replace(told, moved=told.moved | {how: np.array([1.0, 1.001])})
    if how == "dependence":
        return replace(told, dependence=told.dependence | {"scale": 3.0})
    if how == "noise":
        quiet[5][:, 1] *= 0.5
    elif how == "every release":
        quiet[3] *= 0.7
    elif how == "law":  # uniform, with the same variance
        quiet = [np.sqrt(12) * (stats.norm.cdf(z) - 0.5) for z in quiet]
    elif how == "grid":
        return replace(told, units=told.units + 0.01 * (np.arange(told.units.size) == 7))
    elif how == "repeats":
        return replace(told, units=np.concatenate([told.units, -told.units[:50]]))
    elif how == "directions":
        quiet[2][:, 0] = quiet[2][:, 1]
        quiet[3][:, 0] = quiet[3][:, 1]
    elif how == "sums":
        quiet[7] = quiet[6]
    elif how == "runs":
        half = len(quiet[0]) // 2
        for z in quiet:
            z[half:] = z[:half]
    else:
        return replace(told, inside=told.inside + 5.0)
    return replace(told, quiet=tuple(quiet))


RELATED = {"apart": ["pairs"], "pairs": ["apart"], "noise": ["every release", "directions"], "every release": ["noise"]}


@pytest.mark.parametrize("how", sorted(set(scoring_tests.MEANINGS) - {"priced"}))
def test_every_test_finds_what_it_is_for(how):
    told = changed(simulated(np.random.default_rng(32)), how)
    p_values = scoring_tests.p_values(told, POINTS)
    assert p_values[how] < 1e-4
    assert all(p > 1e-4 for test, p in p_values.items() if test not in {how, *RELATED.get(how, ())}), p_values


def test_the_smallest_violation_is_seen_as_often_as_it_is_said():
    """Noise that is multiplied by what is said, 400 times: seen in 95% of all cases, but for an error of 1 in 1,000."""
    generator, level = np.random.default_rng(33), 1e-3
    told = simulated(generator)
    said = scoring_tests.smallest(told, POINTS, level, 0.95)
    places = {"scale": 1, "information": 3, "scores": 9}
    for kind, place in places.items():
        seen = 0
        for _ in range(400):
            z = said[kind] * generator.normal(size=told.quiet[place].shape)
            seen += stats.chi2.cdf(np.sum(z**2), z.size) * len(told.kinds) <= level
        assert stats.binom.ppf(1e-3, 400, 0.95) <= seen < 400


@pytest.mark.long
def test_the_command_line_and_the_report(tmp_path):
    """Both audits of one run, from its folder alone."""
    lines = [
        "a,b,ill",
        *(f"{row[0]:.3f},{row[1]:.3f},{'yes' if y else 'no'}" for row, y in zip(X, OUTCOMES["two"], strict=True)),
    ]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    columns = "".join(f'[columns.{name}]\nkind = "numeric"\nlow = -2\nhigh = 2\n' for name in "ab")
    (tmp_path / "schema.toml").write_text(f'target = "ill"\n{columns}[columns.ill]\nkind = "boolean"\n')
    run = str(tmp_path / "run")
    fit = ["fit", str(tmp_path / "table.csv"), "--schema", str(tmp_path / "schema.toml"), "--out", run]
    settings = ["--epsilon", "2", "--delta", "1e-5", "--sampler", "scoring", "--canaries", "60"]
    said = []
    for command in (
        [*fit, *settings],
        ["audit", run],
        ["audit", run, "--made-up", "--seed", "3", "--repetitions", "30"],
        ["report", run],
        ["verify", run],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        said.append(" ".join(done.output.split()))
    assert "in the sums of scores alone" in said[1]
    assert "asked its 26 questions of a made-up table" in said[2]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "By made-up tables" in page
    assert "some sum, matrix or histogram has less noise than was priced" in page
    assert "judged by that" in page
