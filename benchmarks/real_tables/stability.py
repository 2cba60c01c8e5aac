"""Over the fits of all commands: coefficients far from the truth, and whether more budget ever hurts; whether fits that
say that they converged have intervals that hold."""

from __future__ import annotations

import itertools

import known_truth
import numpy as np
import real_outcomes
import tables
from judge import mark

FAR = 6.0  # posterior standard deviations
COVERAGE, SHARE = 0.87, 0.9  # of fits that say that they converged; of fits with a narrow ideal that say so


def truth_of(line: dict) -> tuple[np.ndarray, np.ndarray]:
    """The truth or the fit without privacy, and which coefficients are judged."""
    if "truth" in line:
        return np.array(line["truth"]), np.ones(len(line["truth"]), bool)
    if line["command"] == "known-truth":
        truth = known_truth.find_truth(line["table"])
        return truth.coefficients, ~truth.table.is_constant
    table, fitted = real_outcomes.load(line["table"])
    return fitted.coefficients, ~table.is_constant & ~table.is_rare


def distances(line: dict) -> np.ndarray:
    truth, judged = truth_of(line)
    summary = line["coefficients"]
    return (np.abs(np.array(summary["mean"]) - truth) / np.array(summary["sd"]))[judged]


def report(lines: list[dict]) -> list[str]:
    lines = sorted(lines, key=lambda line: (line["command"], line["table"]))
    far = [line for line in lines if distances(line).max() > FAR]
    texts = [f"{len(far)} of {len(lines)} fits have a coefficient beyond {FAR:g} posterior sds{mark(not far)}"]
    texts += [
        f"  {line['command']} {line['table']} eps {line['epsilon']:g} index {line['index']}: "
        f"{distances(line).max():.1f}, converged {line['converged']}"
        for line in far
    ]
    cells: dict[tuple[str, str], dict[float, float]] = {}
    for line in lines:
        cells.setdefault((line["command"], line["table"]), {}).setdefault(line["epsilon"], 0.0)
    for (command, table), epsilons in cells.items():
        for epsilon in epsilons:
            same = [one for one in lines if (one["command"], one["table"], one["epsilon"]) == (command, table, epsilon)]
            epsilons[epsilon] = float(np.median([relative_error(line) for line in same]))
        errors = [epsilons[epsilon] for epsilon in sorted(epsilons)]
        if any(after > 1.1 * before for before, after in itertools.pairwise(errors)):
            texts.append(f"  more budget hurts: {command} {table}: {errors} MISSED")
    return texts


def relative_error(line: dict) -> float:
    truth, judged = truth_of(line)
    return float(np.median(np.abs(np.array(line["coefficients"]["mean"]) - truth)[judged]))


def ideal_over_prior(line: dict) -> float:
    """The median ratio of the ideal's deviations over the prior's."""
    if "ideal" in line:
        return float(np.median(np.array(line["ideal"]) / np.array(line["prior"])))
    name, table = line["table"], tables.load(line["table"].removesuffix("-nb"))
    _, precision = known_truth.plain.prior_precision(table, table.y)
    prior = np.sqrt(np.diag(np.linalg.inv(precision)))
    return float(np.median(known_truth.ideal_deviations(name, line["epsilon"])[0] / prior))


def report_convergence(lines: list[dict]) -> list[str]:
    hits, narrow, missed = [], {}, 0
    for line in lines:
        truth, judged = truth_of(line)
        summary = line["coefficients"]
        inside = (np.array(summary["low"]) <= truth) & (truth <= np.array(summary["high"]))
        if line["converged"]:
            hits.append(inside[judged].mean())
        missed += bool(line["converged"] and distances(line).max() > FAR)
        key = line["command"], line["table"], line["epsilon"]
        narrow.setdefault(key, []).append(line["converged"])
    ratios = {
        key: ideal_over_prior(next(line for line in lines if (line["command"], line["table"], line["epsilon"]) == key))
        for key in narrow
    }
    said = [converged for key, values in narrow.items() if ratios[key] < 0.5 for converged in values]
    texts = [
        f"converged in {len(hits)} of {len(lines)} fits, with coverage {np.mean(hits):.3f}"
        f"{mark(np.mean(hits) >= COVERAGE)}; {missed} of them beyond {FAR:g} sds{mark(not missed)}; "
        f"converged in {np.mean(said):.3f} of {len(said)} fits whose ideal is below half the prior"
        f"{mark(np.mean(said) >= SHARE)}"
    ]
    texts += [f"  {key}: {np.mean(values):.2f}, ideal over prior {ratios[key]:.2f}" for key, values in narrow.items()
              if np.mean(values) < SHARE]  # fmt: skip
    return texts
