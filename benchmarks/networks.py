"""How fast a private step of a network is: examples per second against peers, interleaved in one run.

    python benchmarks/networks.py [--peers PYTHON]

The network for MNIST (two convolutions, 26,010 parameters), batches of 256. The best of several rounds. `--peers` names
the interpreter of another environment that has torch and opacus, or jax-privacy; it may be given twice. It is given to
benchmarks/network_peers.py, whose rounds alternate with ours.
"""

import argparse
import json
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np

import confide
from confide.inference import loop, plans
from confide.inference.options import Options

BATCH, STEPS, ROUNDS, ETA, CLIP = 256, 24, 12, 0.05, 1.0
N = 60_000


def problem():
    rng = np.random.default_rng(0)
    return rng.random((N, 28, 28), np.float32), rng.integers(0, 10, N).astype(np.int32)


def library(data, private, record_by_record=False):
    """run.execute with everything that fit does in it: Poisson batches, double noise, clipping, kept draws."""
    model, sampler = confide.models.cnn(), confide.sgld(step_size=ETA)
    if record_by_record:
        from dataclasses import replace

        model = replace(model, layered=None)
    asked = Options(steps=STEPS, batch_size=BATCH, clip=CLIP, draws=1)
    if private:
        budget = confide.Budget(epsilon=50.0, delta=1e-5)
        job, _ = plans.private_job(model, data, budget, sampler, asked, jax.random.key(0))
    else:
        job = plans.plain_job(model, data, sampler, asked, jax.random.key(0))
    with jax.enable_x64(True):
        arrays = tuple(jax.device_put(array) for array in data)
    return lambda: loop.execute(job, arrays, jax.random.key(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", action="append", default=[], help="interpreter of an environment with the peers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    data = problem()
    ours, plain = "confide, private SGLD", "confide, the same without clipping"
    contestants = {
        ours: library(data, True),
        plain: library(data, False),
        "confide, private, record by record (vmap)": library(data, True, record_by_record=True),
    }
    for go in contestants.values():
        go()  # compiled
    best = {}
    with ExitStack() as stack:
        peers = []
        for interpreter in arguments.peers:
            command = [interpreter, str(Path(__file__).with_name("network_peers.py"))]
            peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            peers.append(stack.enter_context(peer))
            if not peer.stdout.readline():
                raise SystemExit(f"{interpreter}: the peers did not start")
        for _ in range(arguments.rounds):
            found = {}
            for name, go in contestants.items():
                start = time.perf_counter()
                go()
                found[name] = (time.perf_counter() - start) / STEPS
            for peer in peers:
                peer.stdin.write("\n")
                peer.stdin.flush()
                found |= json.loads(peer.stdout.readline())
            best = {name: min(seconds, best.get(name, seconds)) for name, seconds in found.items()}
        for peer in peers:
            peer.stdin.close()
    print(f"{'':52s} {'examples/s':>11s} {'time over ours':>15s}")
    for name, seconds in best.items():
        print(f"{name:52s} {BATCH / seconds:11,.0f} {seconds / best[ours]:15.2f}")
    print(f"private over non-private, our own code: {best[ours] / best[plain]:.2f}")


if __name__ == "__main__":
    main()
