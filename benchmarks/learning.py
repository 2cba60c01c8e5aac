"""How fast a private step is: ratios against peers on the same work, interleaved in one run.

    python benchmarks/learning.py [--peers PYTHON]

Bayesian logistic regression, 32,561 records, 109 features, batches of 256. Steps per second, the best of several
rounds. `--peers` names the interpreter of another environment that has torch and opacus, or jax-privacy, or both; it
is given to benchmarks/peers.py, and what it lacks is left out.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import confide
from confide.inference import loop, plans
from confide.inference.options import Options
from confide.mechanism import batches

N, D, BATCH, CLIP, BLOCK = 32_561, 109, 256, 1.0, 500
STEPS, ROUNDS = 20_000, 12
Q = BATCH / N
ETA = 0.1
COMMON = 288  # places that are always looked at; the rest only if taken


def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)).astype(np.float32)
    y = (rng.random(N) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.float32)
    return x, y


def library(data, private):
    """run.execute with everything that fit does in it: blocks, noise, clipping, kept draws."""
    model, sampler = confide.models.logistic_regression(D), confide.sgld(step_size=ETA)
    asked = Options(steps=STEPS, batch_size=BATCH, clip=CLIP)
    if private:
        job, _ = plans.private_job(
            model, data, confide.Budget(epsilon=50.0, delta=1e-5), sampler, asked, jax.random.key(0)
        )
    else:
        job = plans.plain_job(model, data, sampler, asked, jax.random.key(0))
    return lambda: loop.execute(job, data, jax.random.key(1)), job.buffer


def bare_scan(data, size, double):
    """The fastest hand-written scan of the same arithmetic: batches and noise of 500 steps drawn at once."""
    kind = jnp.float64 if double else jnp.float32

    def block(theta, key, x, y, reach):
        batch_key, noise_key = jax.random.split(key)
        if double:
            uniform = jax.random.uniform(batch_key, (size, BLOCK), jnp.float64, minval=1e-300)
            gaps = jnp.minimum(jnp.log(uniform) / np.log1p(-Q), N).astype(jnp.int32)
            rows = batches.from_gaps(gaps, N)
        else:
            rows = jax.random.randint(batch_key, (BLOCK, size), 0, N, jnp.int32)
        noise = jax.random.normal(noise_key, (BLOCK, D), kind)

        def summed(theta, row):
            places = jnp.minimum(row, N - 1)
            inputs, labels, limit = x[places], y[places], jnp.where(row < N, reach[places], jnp.float32(0))
            residual = jax.nn.sigmoid(inputs @ theta) - labels
            return jnp.clip(residual, -limit, limit) @ inputs

        def step(theta, drawn):
            row, xi = drawn
            total = summed(theta.astype(jnp.float32), row[:COMMON])
            if double:
                total = jax.lax.cond(
                    row[COMMON] < N,
                    lambda: total + summed(theta.astype(jnp.float32), row[COMMON:]),
                    lambda: total,
                )
            total = total.astype(kind)
            theta = theta - kind(ETA) * (theta / N + total / BATCH) + kind(np.sqrt(2 * ETA / N)) * xi
            return theta, theta.astype(jnp.float32)

        return jax.lax.scan(step, theta, (rows, noise))

    compiled = jax.jit(block)

    def go():
        with jax.enable_x64(double):
            x, y = map(jnp.asarray, data)
            reach = CLIP / jnp.linalg.norm(x, axis=1)
            theta, key = jnp.zeros(D, kind), jax.random.key(1)
            for number in range(STEPS // BLOCK):
                theta, _ = compiled(theta, jax.random.fold_in(key, number), x, y, reach)
            return np.asarray(theta)

    return go


def blackjax_sgld(data):
    """BlackJAX's SGLD in a scan, not private, rows drawn with replacement."""

    def log_density(theta, batch):
        inputs, labels = batch
        scores = inputs @ theta
        return -0.5 * jnp.sum(theta**2) + N / BATCH * jnp.sum(labels * scores - jnp.logaddexp(scores, 0.0))

    algorithm = blackjax.sgld(jax.grad(log_density))

    @jax.jit
    def scan(theta, key, x, y):
        def step(theta, key):
            batch_key, noise_key = jax.random.split(key)
            rows = jax.random.randint(batch_key, (BATCH,), 0, N)
            theta = algorithm.step(noise_key, theta, (x[rows], y[rows]), ETA / N)
            return theta, theta

        return jax.lax.scan(step, theta, jax.random.split(key, BLOCK))

    def go():
        x, y = map(jnp.asarray, data)
        theta, key = jnp.zeros(D), jax.random.key(1)
        for number in range(STEPS // BLOCK):
            theta, _ = scan(theta, jax.random.fold_in(key, number), x, y)
        return np.asarray(theta)

    return go


def first_result(data):
    """Seconds from the call of fit to a posterior, in a process that has compiled nothing."""
    program = """
import sys, time, numpy as np
data = np.load(sys.argv[1])
data = data["x"], data["y"]
import confide
start = time.perf_counter()
budget = confide.Budget(epsilon=1.0, delta=1e-5)
confide.fit(confide.models.logistic_regression(109), data, budget, confide.sgld(), verbose=False)
print(time.perf_counter() - start)
"""
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "data.npz", x=data[0], y=data[1])
        command = [sys.executable, "-c", program, str(Path(folder) / "data.npz")]
        environment = os.environ | {"CONFIDE_CACHE": str(Path(folder) / "cache")}
        return [
            float(subprocess.run(command, check=True, capture_output=True, env=environment).stdout) for _ in range(2)
        ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", action="append", default=[], help="interpreter of an environment with the peers")
    arguments = parser.parse_args()
    data = problem()
    private, size = library(data, private=True)
    plain, _ = library(data, private=False)
    contestants = {
        "confide, private SGLD": private,
        "confide, the same without clipping": plain,
        f"bare scan, same arithmetic (Poisson in {size} places, double noise)": bare_scan(data, size, True),
        "bare scan, 256 rows with replacement, single noise": bare_scan(data, BATCH, False),
        "BlackJAX SGLD, not private": blackjax_sgld(data),
    }
    best = dict.fromkeys(contestants, float("inf"))
    for go in contestants.values():
        go()  # compiled
    for _ in range(ROUNDS):
        for name, go in contestants.items():
            start = time.perf_counter()
            go()
            best[name] = min(best[name], (time.perf_counter() - start) / STEPS)
    for interpreter in arguments.peers:
        done = subprocess.run(
            [interpreter, str(Path(__file__).with_name("peers.py"))], capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            print(f"{interpreter}: {done.stderr.strip().splitlines()[-1]}")
            continue
        best |= json.loads(done.stdout.splitlines()[-1])
    ours = best["confide, private SGLD"]
    print(f"{'':72s} {'steps/s':>9s} {'us':>8s} {'time over ours':>15s}")
    for name, seconds in best.items():
        print(f"{name:72s} {1 / seconds:9,.0f} {seconds * 1e6:8.1f} {seconds / ours:15.2f}")
    cold, warm = first_result(data)
    print(f"first result of fit with default settings: {cold:.2f} s, in a second process {warm:.2f} s")


if __name__ == "__main__":
    main()
