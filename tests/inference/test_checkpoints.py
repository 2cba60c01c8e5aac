"""Checkpoints: a run that was killed goes on to the same draws, and only that run."""

import signal
import stat
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest

import confide
import confide.mechanism.noise
from confide import Refused
from confide.inference import fitting, loop, plans
from confide.inference.options import Options
from confide.models import inputs, logistic_regression
from helpers.fits import BUDGET, MODEL, X, Y, fit, ledger_of

INTERRUPTED = """
    import sys, time
    import numpy as np
    import confide
    from confide.inference import checkpoints
    folder, sampler, noise, chains = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32)
    y = (rng.random(500) < 0.5).astype(np.float32)
    if sys.argv[5] == "slow":  # long enough between blocks to be killed in
        write = checkpoints.write
        def slower(path, checkpoint):
            write(path, checkpoint)
            print(checkpoint.block, flush=True)
            time.sleep(0.2)
        checkpoints.write = slower
    found = confide.fit(
        confide.models.logistic_regression(3), (x, y), confide.Budget(epsilon=1.0, delta=1e-5),
        getattr(confide, sampler)(), steps=3000, chains=chains, noise=noise, key=None if noise == "secure" else 9,
        ledger=folder + "/ledger.db", checkpoint=folder + "/secret", checkpoint_seconds=1e-9, verbose=False)
    np.save(folder + "/draws.npy", found.draws["weights"])
"""


@pytest.mark.long
@pytest.mark.optimised
@pytest.mark.parametrize(
    ("sampler", "noise", "chains"),
    [("sghmc", "default", 2), ("dpvi", "default", 2), ("sgld", "secure", 1)],
)
def test_killed_and_resumed_equals_uninterrupted(sampler, noise, chains, tmp_path):
    """A process is killed between blocks and started again: the same draws to the bit, and one charge."""
    ledger = ledger_of(tmp_path)
    checkpoint = tmp_path / "secret"
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path), sampler, noise, str(chains)]
    with subprocess.Popen([*command, "slow"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 2:
                break
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert checkpoint.exists()
    assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o600
    before = checkpoint.read_bytes()
    subprocess.run([*command, "fast"], check=True, timeout=300)
    assert not checkpoint.exists()
    assert len(ledger.history("patients")) == 1
    resumed = np.load(tmp_path / "draws.npy")
    # A secure key is in the checkpoint alone: from its beginning again.
    whole = _uninterrupted(sampler, chains) if noise == "default" else _replayed(before, tmp_path)
    assert np.array_equal(resumed, whole)


def _data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32)
    return x, (rng.random(500) < 0.5).astype(np.float32)


def _uninterrupted(sampler, chains):
    found = confide.fit(
        MODEL, _data(), BUDGET, getattr(confide, sampler)(), steps=3000, chains=chains, key=9, verbose=False
    )
    return found.draws["weights"]


def _replayed(content, folder):
    path = folder / "copy"
    path.touch(mode=0o600)
    path.write_bytes(content)
    kept = fitting.checkpoints.read(path)
    source = confide.mechanism.noise.SecureSource(kept.key)
    asked = Options(steps=3000, noise="secure")
    table = inputs.place_records(MODEL, _data())
    job = plans.PLANNERS["steps"](MODEL, table, BUDGET, confide.sgld(), asked, jax.random.key(0)).job
    return job.execute(table, source)


def test_a_checkpoint_of_other_data_or_settings_is_refused(tmp_path):
    """Under the same key, other data would void the guarantee."""
    path = tmp_path / "secret"

    class Stop(Exception):
        pass

    def stop(*arguments):
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Job, "randomness", stop)
        with pytest.raises(Stop):
            fit(checkpoint=path, key=3)
    assert path.exists()
    path.chmod(0o644)
    with pytest.raises(Refused, match="read by others"):
        fit(checkpoint=path)
    path.chmod(0o600)
    changed = X.copy()
    changed[0, 0] += 1
    other = logistic_regression(3, prior_scale=2.0)
    for arguments in (
        {"data": (changed, Y)},
        {"steps": 201},
        {"clip": 0.3},
        {"model": other},
        {"budget": confide.Budget(epsilon=0.9, delta=1e-5)},
    ):
        with pytest.raises(Refused, match="another run"):
            fit(checkpoint=path, **arguments)
    resumed = fit(checkpoint=path)
    assert np.array_equal(resumed.draws["weights"], fit(key=3).draws["weights"])
    assert "given by the caller" in " ".join(resumed.guarantee.sentences())
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"not a checkpoint")
    path.chmod(0o600)
    with pytest.raises(Refused, match="cannot be read"):
        fit(checkpoint=path)


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_charge(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    ledger = ledger_of(tmp_path)
    monkeypatch.setattr(fitting.checkpoints, "write", full)
    with pytest.raises(Refused, match=r"cannot be written: No space left on device; nothing was charged now$"):
        fit(ledger=ledger, checkpoint=tmp_path / "run.ckpt")
    assert ledger.history("patients") == []
