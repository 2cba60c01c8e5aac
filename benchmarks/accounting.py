"""Accounting against peers, on one machine in one run: `make bench`, or `python benchmarks/accounting.py [--fast]`.

Bars that must hold are checked, and the exit code says whether they do. Times are the best of several interleaved
runs; use the ratios. dp-accounting comes with the package; opacus and prv-accountant are compared where installed
(`pip install torch opacus prv-accountant`, best in an environment of their own). `--fast` leaves out dp-accounting on
10,000 distinct noise multipliers, which takes minutes, and with it the bars that need it.
"""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

import confide
from confide import events

GOLDEN = [  # sampling probability, noise multiplier, steps, delta, certified lower bound
    (128 / 60000, 3.48, 7812, 1e-5, 0.1698),
    (0.01, 1.0, 10_000, 1e-5, 6.1774),
    (256 / 32561, 2.0, 2000, 1e-4, 0.5601),
    (1.0, 50.0, 1000, 1e-5, 2.59438),
]
SCHEDULE = np.arange(1, 10_001) ** (1 / 6)
failed: list[str] = []


def bar(name: str, value: float, least: float | None = None, most: float | None = None) -> None:
    holds = (least is None or value >= least) and (most is None or value <= most)
    wanted = " and ".join(f"{sign} {x:g}" for sign, x in ((">=", least), ("<=", most)) if x is not None)
    print(f"  {'ok  ' if holds else 'MISS'} {name}: {value:.7g} (bar: {wanted})")
    if not holds:
        failed.append(name)


def timed(call: Callable[[], float], runs: int) -> tuple[float, float]:
    best, value = math.inf, math.nan
    for _ in range(runs):
        start = time.perf_counter()
        value = call()
        best = min(best, time.perf_counter() - start)
    return value, best


def interleaved(calls: dict[str, Callable[[], float]], runs: int) -> dict[str, tuple[float, float]]:
    found = dict.fromkeys(calls, (math.nan, math.inf))
    for _ in range(runs):
        for name, call in calls.items():
            value, seconds = timed(call, 1)
            found[name] = (value, min(seconds, found[name][1]))
    return found


def peer_pld(q: float, sigma: float, steps: int, delta: float) -> float:
    pld = privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4, sampling_prob=q)
    return pld.self_compose(steps).get_epsilon_for_delta(delta)


def peer_rdp(event, delta: float) -> float:
    return RdpAccountant().compose(event.to_dp_accounting()).get_epsilon(delta)


def golden() -> None:
    for q, sigma, steps, delta, lower in GOLDEN:
        setting = {"noise_multiplier": sigma, "sampling_probability": q, "steps": steps, "delta": delta}
        event = events.gaussian(sigma, q, steps)
        calls: dict[str, Callable[[], float]] = {
            "confide pld": lambda s=setting: confide.epsilon(**s),
            "dp-accounting PLD": lambda a=(q, sigma, steps, delta): peer_pld(*a),
            "confide moments": lambda s=setting: confide.epsilon(accountant="moments", **s),
            "dp-accounting RDP": lambda e=event, d=delta: peer_rdp(e, d),
        }
        calls |= more_peers(q, sigma, steps, delta)
        found = interleaved(calls, 7)
        print(f"\nq = {q:.6g}, noise multiplier {sigma:g}, {steps} steps, delta {delta:g}")
        for name, (value, seconds) in found.items():
            print(f"    {name:20} epsilon {value:.6f}   {1000 * seconds:9.2f} ms")
        ours, peer = found["confide pld"], found["dp-accounting PLD"]
        bar("at least the certified lower bound", ours[0], least=lower * (1 - 1e-6))
        bar("over dp-accounting's PLD", ours[0] / peer[0], most=1.005)
        bar("times faster than dp-accounting's PLD", peer[1] / ours[1], least=1.0)


def more_peers(q: float, sigma: float, steps: int, delta: float) -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {}
    if importlib.util.find_spec("opacus"):
        from opacus.accountants import PRVAccountant

        def opacus_prv() -> float:
            accountant = PRVAccountant()
            accountant.history = [(sigma, q, steps)]
            return accountant.get_epsilon(delta)

        found["opacus PRV"] = opacus_prv
    if importlib.util.find_spec("prv_accountant") and q < 1:
        from prv_accountant.dpsgd import DPSGDAccountant

        def prv() -> float:
            accountant = DPSGDAccountant(
                noise_multiplier=sigma,
                sampling_probability=q,
                eps_error=0.01,
                delta_error=delta / 1000,
                max_steps=steps,
            )
            return accountant.compute_epsilon(delta=delta, num_steps=steps)[2]

        found["prv-accountant up"] = prv
    return found


def heterogeneous(fast: bool) -> None:
    event = events.gaussian(SCHEDULE, 1e-3)
    setting = {"noise_multiplier": SCHEDULE, "sampling_probability": 1e-3, "delta": 1e-5}
    print("\n10,000 distinct noise multipliers t^(1/6), q = 0.001, delta = 1e-5")
    moments = timed(lambda: confide.epsilon(accountant="moments", **setting), 7)
    pld = timed(lambda: confide.epsilon(**setting), 5)
    print(f"    confide moments      epsilon {moments[0]:.8f} {1000 * moments[1]:9.2f} ms")
    print(f"    confide pld          epsilon {pld[0]:.8f} {1000 * pld[1]:9.2f} ms")
    bar("moments: distance to 0.61386449", abs(moments[0] - 0.61386449), most=1e-5)
    bar("pld", pld[0], most=0.0835)
    if fast:
        return

    def composed() -> float:
        total = None
        for sigma in SCHEDULE:
            one = privacy_loss_distribution.from_gaussian_mechanism(
                sigma, value_discretization_interval=1e-4, sampling_prob=1e-3
            )
            total = one if total is None else total.compose(one)
        assert total is not None
        return total.get_epsilon_for_delta(1e-5)

    peer = timed(composed, 1)
    print(f"    dp-accounting PLD    epsilon {peer[0]:.8f} {1000 * peer[1]:9.2f} ms")
    rdp = timed(lambda: peer_rdp(event, 1e-5), 1)
    print(f"    dp-accounting RDP    epsilon {rdp[0]:.8f} {1000 * rdp[1]:9.2f} ms")
    bar("pld: times faster than dp-accounting's PLD", peer[1] / pld[1], least=20)
    bar("moments: times faster than dp-accounting's RDP", rdp[1] / moments[1], least=1000)


def calibration() -> None:
    setting = {"epsilon": 2.0, "delta": 1e-5, "sampling_probability": 0.01, "steps": 10_000}
    ours = timed(lambda: confide.calibrate_noise(**setting), 3)

    def build(sigma: float):
        return events.gaussian(sigma, 0.01, 10_000).to_dp_accounting()

    def peer() -> float:
        bracket = dp_accounting.ExplicitBracketInterval(0.5, 10.0)
        return dp_accounting.calibrate_dp_mechanism(
            lambda: dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4), build, 2.0, 1e-5, bracket
        )

    theirs = timed(peer, 1)
    print("\nnoise for (2, 1e-5), q = 0.01, 10,000 steps")
    print(f"    confide pld          sigma {ours[0]:.5f} {1000 * ours[1]:9.2f} ms")
    print(f"    dp-accounting PLD    sigma {theirs[0]:.5f} {1000 * theirs[1]:9.2f} ms")


def start_up() -> None:
    def run(*arguments: str) -> float:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return 0.0

    print("\nstart-up, seconds (python itself included)")
    bar("import confide", timed(lambda: run("-c", "import confide"), 5)[1], most=0.3)
    bar("confide --help", timed(lambda: run("-m", "confide", "--help"), 5)[1], most=0.5)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    golden()
    calibration()
    start_up()
    heterogeneous("--fast" in sys.argv)
    print(f"\n{len(failed)} bars missed" + (f": {'; '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))
