"""The sampler where none is named: scoring for linear families with one score, and what it does not take."""

import dataclasses

import numpy as np
import pytest

import confide
from confide import Refused, models, samplers
from confide.app.runs import interrupted, run_folder
from confide.app.runs.run_folder import Request
from confide.models import families
from helpers.fits import BUDGET, X, Y, ledger_of
from helpers.patients import SCHEMA, write

QUIET = {"verbose": False, "progress": False}


def own_model():
    return models.from_functions(
        log_prior=lambda slope: -0.5 * (slope**2).sum(),
        log_likelihood=lambda slope, x, y: -0.5 * (y - x @ slope) ** 2,
        start=np.zeros(3, np.float32),
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (models.logistic_regression(3), "scoring"),
        (models.linear_regression(3), "scoring"),
        (models.poisson_regression(3), "scoring"),
        (models.negative_binomial_regression(3), "scoring"),
        (models.logistic_regression(3, prior=lambda parameters: 0.0), "scoring"),
        (models.mlp((3, 4, 2)), "sgld"),
        (own_model(), "sgld"),
    ],
    ids=["logistic", "linear", "poisson", "negative binomial", "own prior", "mlp", "functions"],
)
def test_the_model_decides(model, name):
    assert samplers.default_sampler(model).name == name


def test_a_family_says_by_itself_whether_its_draws_can_know_of_the_noise():
    """Those that do have all that is asked of them for it."""
    known = [kind for kind in families.FAMILIES if kind.noise_aware]
    assert {kind.word for kind in known} >= {"logistic", "linear", "poisson", "negative-binomial"}
    for kind in known:
        family = kind(classes=3) if "classes" in {each.name for each in dataclasses.fields(kind)} else kind()
        assert samplers.default_sampler(models.model.from_family(family, 3)).name == "scoring"


def test_a_fit_without_a_sampler_is_by_scoring():
    found = confide.fit(models.logistic_regression(3), (X, Y), BUDGET, key=1, draws=300, **QUIET)
    named = confide.fit(models.logistic_regression(3), (X, Y), BUDGET, confide.scoring(300), key=1, **QUIET)
    assert found.plan["sampler"] == "scoring"
    assert np.array_equal(found.draws["weights"], named.draws["weights"])
    assert found.release is not None
    assert found.settled is True
    assert found.interval(X[:2]).shape == (2, 2, 2)
    table = found.summary()
    assert not {"ess_bulk", "r_hat"} & set(table.columns)
    assert "hdi_3%" in table.columns


REFUSED = {
    "steps": 50,
    "batch_size": 50,
    "clip": 1.0,
    "clipping": "plain",
    "burn_in": 5,
    "chains": 2,
}


@pytest.mark.parametrize("option", [*REFUSED, "account", "bayesian"])
def test_what_the_default_does_not_take_is_refused_with_the_remedy(option, tmp_path):
    given = {"account": "individual" if option == "account" else "bayesian"}
    if option in REFUSED:
        given = {option: REFUSED[option]}
    ledger = ledger_of(tmp_path)
    with pytest.raises(Refused, match=r"leave .* out, or choose .*sgld$") as refusal:
        confide.fit(models.logistic_regression(3), (X, Y), BUDGET, ledger=ledger, **given, **QUIET)
    assert "\n" not in str(refusal.value)
    assert option.replace("bayesian", "account") in str(refusal.value)
    assert "scoring" in str(refusal.value)
    assert ledger.history("patients") == []


@pytest.mark.parametrize("option", REFUSED)
def test_estimators_refuse_them_in_the_same_line(option):
    made = confide.PrivateLogisticRegression(bounds=(-5, 5), classes=[0.0, 1.0], **{option: REFUSED[option]})
    with pytest.raises(Refused, match=rf"^{option} = {REFUSED[option]} .*: leave it out, or choose .* sgld$"):
        made.fit(X, Y)


@pytest.mark.parametrize("option", [*REFUSED, "temperature", "account"])
def test_the_command_line_refuses_them_in_the_same_line(option, tmp_path, monkeypatch):
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    home = write(tmp_path / "home", 60)
    value = REFUSED.get(option, 0.5 if option == "temperature" else ("individual",))
    asked = Request(
        data=str(home / "patients.csv"), schema=SCHEMA, out=str(tmp_path / "run"), epsilon=1.0, delta=1e-5,
        **{option: value},
    )  # fmt: skip
    with pytest.raises(Refused, match=r"leave .* out, or choose .*sgld$") as refusal:
        run_folder.fit(asked, verbose=False)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
    assert not run_folder.state_folder(tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("build", "target"),
    [
        (confide.PrivateLogisticRegression, {"classes": [0.0, 1.0]}),
        (confide.PrivateLinearRegression, {"target_bounds": (0, 1)}),
        (confide.PrivatePoissonRegression, {"target_bounds": (0, 5)}),
        (confide.PrivateNegativeBinomialRegression, {"target_bounds": (0, 5)}),
    ],
)
def test_estimators_have_the_default_and_know_of_their_constant(build, target):
    made = build(bounds=(-5, 5), random_state=1, draws=200, **target).fit(X, Y)
    assert made.posterior_.plan["sampler"] == "scoring"
    assert made.posterior_.plan["constant"] == -1
    assert made.posterior_.size == 200
    assert np.all(np.isfinite(made.predict(X[:5]).astype(float)))


def stop(*arguments, **more):
    raise KeyboardInterrupt


def test_an_interrupted_run_keeps_the_sampler_that_it_began_with(tmp_path, monkeypatch):
    """Whatever the default is by then; where none is written down it was sgld, as of runs of before."""
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    home, out = write(tmp_path / "home", 60), tmp_path / "run"
    asked = Request(data=str(home / "patients.csv"), schema=SCHEMA, out=str(out), epsilon=1.0, delta=1e-5, key=1)
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            run_folder.fit(asked, verbose=False)
    assert interrupted._read_request(out).sampler == "scoring"
    run_folder.end(out)
    run_folder.begin(out, dataclasses.asdict(asked))
    assert interrupted._read_request(out).sampler == "sgld"
    run_folder.end(out)
