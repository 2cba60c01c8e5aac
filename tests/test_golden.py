"""Stored files: those of version 1 load and verify as they were, those of version 3 go on to the same draws as well."""

import hashlib
import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

import confide
from confide import Refused
from helpers import golden_cases

pytestmark = pytest.mark.processor

GOLDEN = Path(__file__).parent / "golden" / "version1"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = (RNG.random(60) < 0.5).astype(np.float32)
LEFT = {"patients": 0.20610299607543758, "others": 0.8389392798728288}  # of each budget, as version 1 said


@pytest.fixture
def files(tmp_path):
    """Copies: a ledger that is written to, and a checkpoint that its owner alone can read."""
    found = tmp_path / "version1"
    shutil.copytree(GOLDEN, found)
    (found / "checkpoint").chmod(stat.S_IRUSR | stat.S_IWUSR)
    return found


@pytest.mark.parametrize("name", ["run/guarantee.json", "langevin.json"])
def test_guarantees_verify_as_they_were(name):
    record = json.loads((GOLDEN / name).read_text())
    guarantee = confide.Guarantee.from_json(record)
    assert guarantee.mechanism == 1
    assert guarantee.epsilon == record["epsilon"]
    assert confide.verify(guarantee) == pytest.approx(record["epsilon"], rel=1e-9)


def test_a_run_is_read_as_it_was():
    posterior = confide.Posterior.load(GOLDEN / "run")
    assert posterior.draws["weights"].shape == (1, 20, 3)
    assert posterior.plan["records"] == 60
    assert np.isfinite(posterior.predict_proba(X)).all()


def test_a_ledger_keeps_what_was_spent_and_goes_on(files):
    ledger = confide.Ledger(files / "ledger.db")
    assert {name: ledger.left(name).share for name in LEFT} == pytest.approx(LEFT, rel=1e-9)
    before = [(charge.receipt, charge.share) for charge in ledger.history("patients")]
    budget = confide.Budget(epsilon=0.1, delta=1e-6)
    model = confide.models.logistic_regression(3)
    confide.fit(model, (X, Y), budget, confide.sgld(), steps=20, verbose=False, ledger=ledger, dataset="patients")
    assert [(charge.receipt, charge.share) for charge in ledger.history("patients")][:2] == before
    assert ledger.left("patients").share < LEFT["patients"]


def test_a_checkpoint_is_refused_with_what_it_was_charged(files):
    ledger, budget = confide.Ledger(files / "ledger.db"), confide.Budget(epsilon=0.5, delta=1e-5)
    model = confide.models.logistic_regression(3)
    how = {"steps": 40, "verbose": False, "burn_in": 20, "ledger": ledger, "dataset": "patients"}
    with pytest.raises(Refused, match=r"version 1 of the mechanism.*charge to 'patients' .*stays") as caught:
        confide.fit(model, (X, Y), budget, confide.sgld(), checkpoint=files / "checkpoint", **how)
    assert "\n" not in str(caught.value)
    assert len(ledger.history("patients")) == 2


# What the code of version 3 wrote.

HOME = golden_cases.HOME
PRICE = 0.0 if (HOME / "processor").read_text() == golden_cases.processor() else 1e-9  # relative


def same(found, stored, exact=True):
    """Bit for bit on the processor that wrote them, else to 1e-5."""
    assert sorted(found) == sorted(name for name in stored if name != "processor")
    alike = exact and str(stored["processor"]) == golden_cases.processor()
    for name, value in found.items():
        if alike:
            assert np.array_equal(value, stored[name]), name
        else:
            assert np.allclose(value, stored[name], rtol=1e-5, atol=1e-5), name


def same_settings(found, stored):
    """Equal, but for prices and what is read off the draws, which are compared as numbers of another processor.

    Prices differ by up to 1e-13 of themselves between processors (Fourier transforms and sums of products); everything
    that is drawn by is rounded before it is used, and so is equal to the last bit.
    """
    found, stored = json.loads(json.dumps(found)), json.loads(json.dumps(stored))
    for name, rel in (("epsilon", PRICE), ("lag_one", 1e-5)):
        one, other = found.pop(name, None), stored.pop(name, None)
        assert one == other or one == pytest.approx(other, rel=rel, abs=0)
    assert found == stored


def ours(path, to):
    """A copy that its owner alone can read."""
    shutil.copy(path, to)
    to.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return to


NETWORK = "mlp"  # the products of its layers are divided among threads, and may be rounded otherwise on a busy machine
QUICK = ("sgld", "sgld-secure", "sghmc-chains", "poisson", "hybrid", "dpvi", "intercept")


@pytest.mark.optimised
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in golden_cases.RUNS]
)
def test_interrupted_runs_go_on_to_the_same_draws(name, tmp_path):
    place = HOME / "runs" / name
    posterior = golden_cases.run(name, checkpoint=ours(place / "checkpoint", tmp_path / "checkpoint"))
    same(golden_cases.flat(posterior), np.load(place / "draws.npz"), exact=name != NETWORK)
    plan = json.loads((place / "plan.json").read_text())
    same_settings({key: posterior.plan[key] for key in plan}, plan)
    same_settings(posterior.guarantee.to_json(), json.loads((place / "guarantee.json").read_text()))


KEYED = [name for name, case in golden_cases.RUNS.items() if case[-1]["key"] is not None]


@pytest.mark.long
@pytest.mark.optimised
@pytest.mark.parametrize("name", KEYED)
def test_the_same_key_gives_the_same_draws(name):
    same(golden_cases.flat(golden_cases.run(name)), np.load(HOME / "runs" / name / "draws.npz"), exact=name != NETWORK)


@pytest.mark.optimised
@pytest.mark.parametrize("name", golden_cases.RELEASES)
def test_baselines_release_the_same(name):
    posterior = golden_cases.RELEASES[name]()
    same(golden_cases.flat(posterior), np.load(HOME / "releases" / name / "draws.npz"))
    same_settings(posterior.guarantee.to_json(), json.loads((HOME / "releases" / name / "guarantee.json").read_text()))


@pytest.mark.parametrize("path", sorted(HOME.glob("*/*/guarantee.json")), ids=lambda path: path.parent.name)
def test_guarantees_of_version_3_load_and_verify(path):
    record = json.loads(path.read_text())
    guarantee = confide.Guarantee.from_json(record)
    assert json.loads(json.dumps(guarantee.to_json())) == record
    assert confide.verify(guarantee) == pytest.approx(record["epsilon"], rel=PRICE, abs=0)


def test_prices_are_what_they_were():
    assert golden_cases.priced() == pytest.approx(json.loads((HOME / "epsilons.json").read_text()), rel=PRICE, abs=0)


def test_a_ledger_of_version_3_verifies_and_goes_on(tmp_path):
    ledger = confide.Ledger(ours(HOME / "ledger" / "ledger.db", tmp_path / "ledger.db"))
    left = json.loads((HOME / "ledger" / "left.json").read_text())
    assert {account.name: ledger.left(account.name).share for account in ledger.accounts()} == pytest.approx(
        left, rel=PRICE, abs=0
    )
    for name, share in left.items():
        ledger.verify(name)
        ledger.charge(name, confide.events.gaussian(30.0))
        assert ledger.left(name).share < share


@pytest.mark.optimised
def test_a_table_goes_on_to_the_same_draws(tmp_path):
    stored = HOME / "table"
    for name in ("patients.csv", "schema.toml"):
        shutil.copy(stored / name, tmp_path)
    digest = hashlib.sha256(str(tmp_path.resolve() / "run").encode()).hexdigest()[:16]
    waiting = tmp_path / "state" / "runs" / f"run-{digest}"
    waiting.mkdir(parents=True, mode=0o700)
    ours(stored / "checkpoint", waiting / "checkpoint")
    request = ours(stored / "request.json", waiting / "request.json")
    request.write_text(request.read_text().replace("FOLDER", str(tmp_path)))
    found = golden_cases.command(tmp_path, "resume", "run", "--quiet")
    assert found.returncode == 0, found.stderr
    draws, written = (confide.Posterior.load(home / "run").draws for home in (tmp_path, stored))
    same(draws, written | {"processor": (stored / "processor").read_text()})
    for name in ("plan.json", "guarantee.json"):
        found = json.loads((tmp_path / "run" / name).read_text())
        written = json.loads((stored / "run" / name).read_text())
        later = {"request", "model_reason"}  # what a plan says of the request, in words of the day
        one, other = (
            {key: value for key, value in record.get("plan", record).items() if key not in later}
            for record in (found, written)
        )
        same_settings(one, other)
    for home in (tmp_path, stored):
        assert golden_cases.command(tmp_path, "verify", str(home / "run")).returncode == 0
