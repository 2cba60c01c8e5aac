"""A family of one entry goes the whole way: fitted, priced, predicted, reported and audited like any other."""

import csv
import json
import shlex
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

import confide
from confide import baselines, models
from confide.app import cli
from confide.app.runs import run_folder
from confide.mechanism.clipping import clipped_sum
from confide.models.families import NegativeBinomial

RNG = np.random.default_rng(3)
N, DISPERSION = 4000, 0.5
AGE = RNG.integers(20, 81, N)
MEAN = np.exp(0.4 + (AGE - 50) / 30)
VISITS = np.minimum(RNG.negative_binomial(1 / DISPERSION, 1 / (1 + DISPERSION * MEAN)), 60)
X = np.column_stack([(AGE - 50) / 30, np.ones(N)]).astype(np.float32)
SCHEMA = """target = "visits"

[columns.age]
kind = "numeric"
low = 20
high = 80

[columns.visits]
kind = "numeric"
low = 0
high = 60
"""
BUDGET = confide.Budget(epsilon=8.0, delta=1e-5)
MODEL = models.negative_binomial_regression(2, dispersion=DISPERSION)
BOUNDED = models.negative_binomial_regression(2, dispersion=DISPERSION, norm_bound=1.5)
SGLD = confide.sgld()


def fit(model=MODEL, sampler=SGLD, **more):
    settings = {"verbose": False, "progress": False, "key": 5} | more
    return confide.fit(model, (X, VISITS.astype(np.float32)), BUDGET, sampler, **settings)


def weights(posterior):
    return np.asarray(posterior.draws["weights"], np.float64).reshape(-1, 2)


@pytest.fixture(scope="module")
def posterior():
    return fit(steps=2000, batch_size=500, clip=4.0)


def test_arrays(posterior, tmp_path):
    assert confide.verify(posterior.guarantee) <= BUDGET.epsilon
    np.testing.assert_allclose(weights(posterior).mean(axis=0), [1.0, 0.4], atol=0.2)
    again = confide.Posterior.load(posterior.save(tmp_path / "kept"))
    assert again.model is not None
    assert again.model.family == NegativeBinomial(DISPERSION)
    np.testing.assert_array_equal(again.predict(X[:5]), posterior.predict(X[:5]))


def test_predictions_are_those_of_the_formula(posterior):
    rows = np.array([[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
    each = np.exp(rows @ weights(posterior).T)
    np.testing.assert_allclose(posterior.predict(rows), each.mean(axis=1), rtol=1e-4)
    chances = stats.nbinom(1 / DISPERSION, 1 / (1 + DISPERSION * each))
    low, high = posterior.interval(rows, 0.9).T
    below, within = (chances.cdf(end[:, None]).mean(axis=1) for end in (low - 1, high))
    assert np.all(below <= 0.05 + 0.02)
    assert np.all(within >= 0.95 - 0.02)


@pytest.mark.long
@pytest.mark.parametrize("sampler", [confide.langevin(), confide.one_posterior_sample(), confide.dpvi()])
def test_samplers(sampler):
    """One private draw, or a whole approximation: near the truth within what the budget allows."""
    found = fit(BOUNDED, sampler)
    assert confide.verify(found.guarantee) <= BUDGET.epsilon * (1 + 1e-9)
    np.testing.assert_allclose(weights(found).mean(axis=0), [1.0, 0.4], atol=0.3)


@pytest.mark.long
@pytest.mark.parametrize("minimiser", [baselines.objective_perturbation, baselines.output_perturbation])
def test_baselines(minimiser):
    data = (X, VISITS.astype(np.float32))
    found = minimiser(BOUNDED, data, BUDGET, clip=4.0, key=5, verbose=False)
    np.testing.assert_allclose(weights(found).mean(axis=0), [1.0, 0.4], atol=0.3)


@pytest.mark.optimised
@pytest.mark.parametrize("clip", [0.1, 2.0])
def test_no_record_moves_the_sum_by_more_than_the_clip(clip):
    """Simulated neighbours: one record more, drawn from the model or as hostile as they come, at drawn parameters."""
    rng = np.random.default_rng(8)
    rows = np.concatenate([X[:20], rng.normal(size=(20, 2)) * 30]).astype(np.float32)
    outcomes = np.concatenate([VISITS[:20], rng.choice([0.0, 1.0, 1e6, 1e30], 20)]).astype(np.float32)
    total = clipped_sum(MODEL, clip, lambda flat: {"weights": flat}, 40)

    @jax.jit
    def summed(place, x, y):
        data = (x, y)
        return total.over(data, total.residual_threshold(data), None, lambda batch: total(place, batch)).total

    moved = []
    for place in rng.normal(size=(5, 2)).astype(np.float32):
        whole = np.asarray(summed(place, rows, outcomes), np.float64)
        for i in range(40):
            fewer = summed(place, np.delete(rows, i, axis=0), np.delete(outcomes, i))
            moved.append(np.linalg.norm(whole - np.asarray(fewer, np.float64)))
    assert 0.99 * clip < max(moved) <= clip * (1 + 1e-4)  # sums of 40 in single precision


# On the command line.


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    Path("schema.toml").write_text(SCHEMA)
    with Path("visits.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["age", "visits"], *zip(AGE[:1000], VISITS[:1000], strict=True)])

    def called(command):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit):
            cli.main()
        captured = capsys.readouterr()
        return captured.out + captured.err

    return called


FIT = (
    "confide fit visits.csv --schema schema.toml --epsilon 8 --delta 1e-5 --out run --quiet --sampler sgld --steps 600 "
    "--draws 50"
)


@pytest.mark.long
def test_a_run_from_table_to_report(call):
    assert "run/posterior.nc" in call(f"{FIT} --model negative-binomial --dispersion 0.5")
    plan = json.loads(Path("run/plan.json").read_text())
    assert plan["model"]["name"] == "negative_binomial_regression"
    assert plan["model"]["settings"]["dispersion"] == DISPERSION
    assert call("confide predict run visits.csv --out said.csv").startswith("said.csv: 1,000")
    with Path("said.csv").open() as file:
        made = list(csv.DictReader(file))
    found = run_folder.load("run")[0]
    at = np.column_stack([(AGE[:1000] - 50) / 30, np.ones(1000)])
    expected = np.exp(at @ weights(found).T).mean(axis=1)
    np.testing.assert_allclose([float(row["predicted visits"]) for row in made], expected, rtol=1e-4)
    ends = {row["low visits"] for row in made}
    assert ends == {""} if found.settled is False else all(float(low) >= 0 for low in ends)
    assert call("confide report run --public visits.csv") == "run/report.html\n"
    page = Path("run/report.html").read_text()
    assert "the difference that one column can make to the log mean of <em>visits</em>, all else" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model poisson --dispersion 0.5", "--dispersion goes with --model negative-binomial, not with poisson"),
        ("--dispersion 0.5", "--dispersion goes with --model negative-binomial, not with linear"),
        ("--model negative-binomial --dispersion 0", "dispersion = 0 is not positive"),
        ("--model negative-binomial --noise-scale 2", "not with negative-binomial: leave it out"),
        ("--model negative-binomial --target age --dispersion x", "dispersion"),
        ("--model binomial", "choose one of 'logistic', 'softmax', 'linear', 'poisson', 'negative-binomial'"),
    ],
)
def test_refusals(options, words, call):
    assert words in " ".join(call(f"{FIT} {options}").split())
    assert not Path("run").exists()


def test_a_target_that_is_no_count_is_refused(call):
    Path("schema.toml").write_text(SCHEMA.replace("low = 0\n", "low = -1\n"))
    assert "needs counts, and 'visits' may be below 0" in " ".join(call(f"{FIT} --model negative-binomial").split())
