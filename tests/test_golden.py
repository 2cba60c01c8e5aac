"""Files of version 1 of the mechanism: guarantees and ledgers load and verify as they were; a run is not continued."""

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

import confide
from confide import Refused

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
    confide.fit(model, (X, Y), budget, steps=20, verbose=False, ledger=ledger, dataset="patients")
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
