"""Compiled once, with the data as an argument, and kept on disk without a record."""

import os
import stat
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

import confide
from confide.inference import loop, plans
from confide.inference.options import Options
from helpers.fits import MODEL, X, Y, fit


def test_compiled_once(monkeypatch):
    seen = []
    advance = loop.Job.advance.func

    def spy(self):
        seen.append(advance(self))
        return seen[-1]

    monkeypatch.setattr(loop.Job, "advance", loop.cached_property(spy))
    loop.Job.advance.__set_name__(loop.Job, "advance")
    fit(steps=1700)
    assert len(seen) == 1
    assert seen[0]._cache_size() == 1


def test_another_budget_needs_no_new_program():
    """Step sizes and noise are arguments: the lowered program is the same text."""
    texts = []
    for epsilon in (0.5, 1.0):
        asked = Options(steps=50, clip=0.5)
        job, _ = plans.private_job(
            MODEL, (X, Y), confide.Budget(epsilon=epsilon, delta=1e-5), confide.sgld(), asked, jax.random.key(0)
        )
        with jax.enable_x64(True):
            carry, key = job.begin(), job.randomness(jax.random.key(0), 0)
            schedule = jax.tree.map(jax.numpy.asarray, job.kernel.schedule)
            data = (jax.numpy.asarray(X), jax.numpy.asarray(Y))
            prepared = job.prepared(data)
            texts.append(job.advance.lower(carry, prepared, schedule, 0, key).as_text())
    assert texts[0] == texts[1]


PROGRAM = """
    import numpy as np, sys, time
    import confide
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = (rng.random(400) < 0.5).astype(np.float32)
    np.save(sys.argv[1], x)
    import jax.numpy as jnp
    own = confide.models.from_functions(
        log_prior=lambda w: -0.5 * jnp.sum(w**2),
        log_likelihood=lambda w, x, y: y * (x @ w) - jnp.logaddexp(x @ w, 0.0),
        start=np.zeros(6),
    )
    for model in (confide.models.logistic_regression(6), own):
        confide.fit(model, (x, y), confide.Budget(epsilon=1.0, delta=1e-5), confide.sgld(), steps=600, verbose=False)
"""


@pytest.mark.long
def test_the_compilation_cache_is_used_and_holds_no_record(tmp_path):
    """Every row of the data, as bytes of either precision, is searched for in every file of the cache."""
    cache = tmp_path / "cache"
    environment = os.environ | {"CONFIDE_CACHE": str(cache), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    written = []
    for _ in range(2):
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "x.npy")]
        subprocess.run(command, check=True, env=environment, timeout=300)
        written.append({path.name for path in cache.rglob("*-cache")})
    assert written[0]
    assert written[0] == written[1]  # the second process compiled nothing new
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    content = b"".join(path.read_bytes() for path in cache.rglob("*") if path.is_file())
    x = np.load(tmp_path / "x.npy")
    for row in x:
        assert row[:2].tobytes() not in content
        assert row[:2].astype(np.float64).tobytes() not in content
    assert np.zeros(2, np.float32).tobytes() in content or len(content) > 1000  # there was something to search
