"""How fast shadow networks are trained together: against PyTorch on the same work, in turns in one run.

    python benchmarks/shadows.py [--peers PYTHON]

64 networks of the shape of German Credit, 24-64-64-2, each on 400 of 1,000 records, SGD, 30 epochs, batches of 32. The
best of several rounds; what compiling takes is told apart. `--peers` names the interpreter of another environment that
has torch, which is given to benchmarks/shadow_peers.py.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import jax
import numpy as np

from confide.audits.training import networks

NETWORKS, ROUNDS = 64, 3


def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 24)).astype(np.float32)
    y = (rng.random(1000) < 0.3).astype(int)
    return x, y, np.stack([rng.permutation(1000)[:400] for _ in range(NETWORKS)])


def seconds(train, key):
    start = time.perf_counter()
    jax.block_until_ready(train(*problem(), key).weights)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", help="interpreter of an environment with torch")
    peers = parser.parse_args().peers
    contestants = {
        "confide, SGD": networks(halve_every=5),
        "confide, SGD with dropout": networks(halve_every=5, dropout=0.5),
        "confide, SGLD": networks(halve_every=5, optimiser="sgld", prior_scale=1.0),
    }
    first = {name: seconds(train, 0) for name, train in contestants.items()}
    best = dict.fromkeys(contestants, float("inf"))
    for number in range(ROUNDS):
        for name, train in contestants.items():
            best[name] = min(best[name], *(seconds(train, number) for _ in range(3)))
        if peers:
            program = [peers, str(Path(__file__).with_name("shadow_peers.py"))]
            done = subprocess.run(program, capture_output=True, text=True, timeout=900)
            if done.returncode:
                print(f"{peers}: {done.stderr.strip().splitlines()[-1]}")
                peers = None
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            best |= {name: min(best.get(name, float("inf")), value) for name, value in found.items()}
    ours = best["confide, SGD"]
    print(f"{f'{NETWORKS} networks':44s} {'seconds':>8s} {'over ours':>10s} {'compiling':>10s}")
    for name, value in best.items():
        compiling = f"{first[name] - value:10.1f}" if name in first else ""
        print(f"{name:44s} {value:8.2f} {value / ours:10.1f} {compiling}")


if __name__ == "__main__":
    main()
