"""Audits: how strong and how fast lower bounds are, and what canaries and made-up tables say of honest and of sabotaged
runs.

    python benchmarks/audits.py bounds [--peers PYTHON]   # Gaussian mechanisms of known epsilon, delta = 1e-5, 95%
    python benchmarks/audits.py canaries                  # DP-SGLD at epsilon 4, 1,000 canaries, ten runs each
    python benchmarks/audits.py made-up                   # DP-SGLD at epsilon 4, sabotaged, 20 audits each; 40 honest

`bounds` prints the mean bound and the mean time of one. PYTHON is an interpreter with jax-privacy, which is given the
same scores: thresholds on a random half, guesses of "in" alone, which is all it has. `canaries` fits the first 4,000
records of Adult, so that all of
epsilon 4 is spent (with 32,561 the largest sensible step costs less). `made-up` audits runs of 1,000 records and five
parameters, 200 steps, batches of 50 or of all records, with a quarter of the repetitions that are usual.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import confide
from confide import data, models
from confide.mechanism.clipping import ClippedSum
from confide.privacy import pricing

DELTA = 1e-5
CASES = ((1000, 4.0, 40), (1000, 8.0, 40), (10_000, 4.0, 20), (10_000, 8.0, 20))
PEER = """
import sys, time, numpy as np
from jax_privacy import auditing
file = np.load(sys.argv[1])
for name in ("epsilon_one_run", "epsilon_one_run_fdp"):
    found, start = [], time.perf_counter()
    for scores, inside in zip(file["scores"], file["inside"]):
        auditor = auditing.CanaryScoreAuditor(scores[inside], scores[~inside])
        how = auditing.Split(threshold_estimation_frac=0.5, seed=0)
        found.append(getattr(auditor, name)(0.05, delta=1e-5, threshold_strategy=how))
    seconds = (time.perf_counter() - start) / len(found)
    print(f"{'jax-privacy ' + name[8:] + ', of 5':30}{np.mean(found):8.2f}{seconds:10.3f} s", flush=True)
"""


def bounds(peers):
    for m, epsilon, repeats in CASES:
        print(f"\n{m:,} canaries, epsilon {epsilon:g}: mean of {repeats}")
        generator = np.random.default_rng(0)
        inside = generator.random((repeats, m)) < 0.5
        scores = generator.normal(size=(repeats, m)) + pricing.gdp_mu(epsilon, DELTA) * inside
        for method in ("one-run", "one-run-fdp", "clopper-pearson"):
            for thresholds in ("fixed", "split") if method != "clopper-pearson" else ("fixed",):
                start = time.perf_counter()
                found = [
                    confide.audit_epsilon(row[who], row[~who], delta=DELTA, method=method, thresholds=thresholds)
                    for row, who in zip(scores, inside, strict=True)
                ]
                seconds = (time.perf_counter() - start) / repeats
                print(f"{method + ', ' + thresholds:30}{np.mean(found):8.2f}{seconds:10.3f} s", flush=True)
        if peers:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "scores.npz"
                np.savez(path, scores=scores[:5], inside=inside[:5])
                subprocess.run([peers, "-c", PEER, str(path)], check=True, stderr=subprocess.DEVNULL)


def weakened(factor):
    """SGLD that draws a part of the noise it is priced for."""
    honest = confide.sgld()

    def build(sampler, setting, sizes):
        kernel = honest.build(sampler, setting, sizes)
        return kernel._replace(
            query=lambda state, control, t, key: kernel.query(
                state, control._replace(noise=factor * control.noise), t, key
            )
        )

    return replace(honest, build=build)


def canaries():
    split = data.adult()
    rows = split.x[:4000], split.y[:4000]
    model, budget = models.logistic_regression(split.x.shape[1]), confide.Budget(epsilon=4.0, delta=DELTA)
    cut = ClippedSum.residual_threshold
    print(f"{'run':16}{'claimed':>9}{'bound, least':>14}{'mean':>8}{'largest p':>12}  verdicts")
    for name, sampler, reach in (
        ("honest", confide.sgld(), cut),
        ("half the noise", weakened(0.5), cut),
        ("no clipping", confide.sgld(), lambda self, rows: None),
    ):
        ClippedSum.residual_threshold = reach
        found = []
        for key in range(10):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(
                    confide.audit(
                        lambda key=key, sampler=sampler: confide.fit(
                            model, rows, budget, sampler, 4000, key=key, verbose=False, progress=False
                        )
                    )
                )
        ClippedSum.residual_threshold = cut
        lows, verdicts = [audit.bound for audit in found], [audit.verdict for audit in found]
        told = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
        largest = max(audit.p_value for audit in found)
        claimed = found[0].claimed
        print(
            f"{name:16}{claimed:9.2f}{min(lows):14.2f}{np.mean(lows):8.2f}{largest:12.2g}  {told}",
            flush=True,
        )


def made_up(audits, only):
    """(refuted, of) for every sabotage, which of them refute the claim itself, and seconds of one audit."""
    import pytest

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from helpers import sabotage

    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1000, 5)).astype(np.float32), generator.integers(0, 2, 1000)
    model = models.logistic_regression(5)
    places = [0, 999, 500, *generator.integers(0, 1000, audits).tolist()][:audits]
    cases = {
        "honest, Poisson": (50, "add-remove", lambda patch, i: None),
        "honest, full batch": (1000, "replace-one", lambda patch, i: None),
        "no noise": (50, "add-remove", lambda patch, i: sabotage.no_noise(patch)),
        "unclipped, times 100": (50, "add-remove", lambda patch, i: sabotage.unclipped(patch)),
        "shuffled batches": (50, "add-remove", lambda patch, i: sabotage.shuffled(patch)),
        "one always in": (50, "add-remove", lambda patch, i: sabotage.always_in(patch, places[i])),
        "one in, another out": (50, "add-remove", lambda patch, i: sabotage.always_in(patch, places[i], True)),
        "half the noise": (50, "add-remove", lambda patch, i: sabotage.half_the_noise(patch)),
        "no 2 for replace-one": (1000, "replace-one", lambda patch, i: sabotage.missing_two(patch)),
    }
    print(
        f"{'run':24}{'refuted':>10}{'the claim itself':>18}{'suspect':>9}{'largest p':>11}{'seconds':>9}  by",
        flush=True,
    )
    for name, (batch, neighbours, broken) in cases.items():
        if only is not None and only not in name:
            continue
        found, start = [], time.perf_counter()
        for i in range(audits):
            with pytest.MonkeyPatch.context() as patch:
                broken(patch, i)
                budget = confide.Budget(epsilon=4.0, delta=DELTA, neighbours=neighbours)
                settings = {"sampler": confide.sgld(), "steps": 200, "batch_size": batch, "clip": 10.0, "key": 1}
                posterior = confide.fit(model, rows, budget, verbose=False, **settings)
                found.append(confide.audit(posterior, made_up=True, seed=i, repetitions=250))
        seconds = (time.perf_counter() - start) / audits
        refuted, claim = (sum(getattr(audit, what) for audit in found) for what in ("violated", "claim_refuted"))
        suspect = sum(audit.verdict == "suspect" for audit in found)
        by = {test for audit in found for test, p in audit.tests.items() if p * len(audit.tests) <= 1e-3}
        counts = f"{refuted:>7}/{audits:<2}{claim:>15}/{audits:<2}{suspect:>9}"
        print(
            f"{name:24}{counts}{max(audit.p_value for audit in found):11.2g}{seconds:9.1f}  {', '.join(sorted(by))}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bounds", "canaries", "made-up"])
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--only", metavar="WORDS", help="made-up: runs whose name holds these")
    given = parser.parse_args()
    if given.what == "made-up":
        sys.exit(made_up(20, given.only))
    sys.exit(bounds(given.peers) if given.what == "bounds" else canaries())
