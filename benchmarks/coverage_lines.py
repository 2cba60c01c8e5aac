"""Every line of cells that intervals of scoring are judged by, in parts that are kept once they are measured.

    python benchmarks/coverage_lines.py run --jobs 2            # goes on where it was stopped
    python benchmarks/coverage_lines.py table                   # what there is, against the bars

A cell is a family, a design, d and n, at four epsilons; `benchmarks/coverage.py` says what is measured in it and
`benchmarks/ideal.py` what it is measured by. It is measured in parts of 100 datasets, the first part of all cells
before the second of any; figures of a cell are means over its parts (of widths, of their medians). A cell holds if its
estimate is in range or within two standard errors of it, clustered by dataset; the mean over the cells of a line has to
be in range outright. Processes have one core each.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

EPSILONS = (0.5, 1.0, 2.0, 8.0)
DATASETS, FEW = 400, 100  # the latter for d = 50 and for softmax, whose fits are long
PART = 100  # datasets
SEED, DELTA, BINS = 20, 1e-5, 20
FIGURES = ("coverage", "width_ratio", "error", "error_ratio", "prior_error")
KEPT = Path(__file__).parents[1] / "docs" / "results" / "coverage"


@dataclass(frozen=True)
class Bar:
    """What a line has to reach; None: not asked for."""

    low: float
    high: float = 1.0
    width: float | None = None
    error: float | None = None
    scale: float | None = None  # coverage of a linear model's noise scale
    prior: bool = False  # whether the error may be no larger than the prior mean's


BARS = {
    "logistic": Bar(0.87, 0.93, 1.2, 1.2),
    "logistic, 50 features": Bar(0.86, error=1.2),
    "harder designs": Bar(0.85, width=1.5, error=1.3),
    "little information": Bar(0.85, width=1.6, prior=True),
    "counts and numbers": Bar(0.85, error=1.3, scale=0.85),
    "softmax, 5 features": Bar(0.86),
    "softmax, 20 features": Bar(0.84),
}


def cells():
    """(line, options of a cell), those that take long last."""
    few = {"datasets": FEW}
    logistic = [{"d": d, "n": n} for n in (2_000, 10_000, 50_000) for d in (20, 5)]
    harder = [{"d": 20, "n": n, "design": design} for n in (10_000, 50_000) for design in ("onehot", "ar", "rare")]
    little = [{"d": 20, "n": 500}, {"d": 20, "n": 2_000, "design": "rare"}]
    little += [{"d": 50, "n": 2_000} | few, {"d": 50, "n": 500} | few]
    numbers = [
        {"family": family, "d": 8, "n": n}
        for n in (2_000, 10_000)
        for family in ("poisson", "negative-binomial", "linear")
    ]
    found = [("logistic", each) for each in logistic]
    found += [("harder designs", each) for each in harder]
    found += [("little information", each) for each in little]
    found += [("counts and numbers", each) for each in numbers]
    found += [("logistic, 50 features", {"d": 50, "n": n} | few) for n in (10_000, 50_000)]
    for classes in (3, 4):
        labels = {"family": "softmax", "classes": classes} | few
        found += [("softmax, 5 features", labels | {"d": 5, "n": n}) for n in (2_000, 10_000)]
        found += [("softmax, 20 features", labels | {"d": 20, "n": 10_000})]
    return found


def name(options):
    told = {"family": "logistic", "design": "uniform"} | options
    classes = f"-{told['classes']}" if "classes" in told else ""
    return f"{told['family']}{classes}-{told['design']}-d{told['d']}-n{told['n']}"


def measure(line, options, indices, path):
    """One part of a cell, in this process."""
    warnings.simplefilter("ignore")
    import numpy as np

    import coverage
    import ideal

    counts = options.get("family") in ("poisson", "negative-binomial")
    own = {key: value for key, value in options.items() if key != "datasets"}
    cell = ideal.Cell(**{"family": "logistic", "prior_scale": 0.5 if counts else 1.0} | own)
    given = SimpleNamespace(
        seed=SEED, delta=DELTA, neighbours="add-remove", sampler="default", options="{}", chains=None
    )
    given.noise_known = given.undeclared = False
    runs = {epsilon: [] for epsilon in EPSILONS}
    start = time.time()
    for index in indices:
        here = cell.of(SEED, index)
        x, _, truth = here.dataset(SEED, index)
        sums = ideal.sums(here.kind, ideal.with_constant(x), truth)
        for epsilon in EPSILONS:
            runs[epsilon].append(coverage.run(here, given, epsilon, index, sums))
    found = {"line": line, "options": options, "seed": SEED, "first": indices[0], "delta": DELTA}
    found["minutes"] = (time.time() - start) / 60
    found["cells"] = []
    for epsilon, each in runs.items():
        told = coverage.summary(each)
        ranks = np.concatenate([np.array(one["rank"]) for one in each])
        told["prior_error"] = coverage.jackknife(np.mean, np.abs([one["truth"] for one in each]))
        told["ranks"] = np.histogram(ranks, BINS, (0.0, 1.0))[0].tolist()
        found["cells"].append({"epsilon": epsilon} | told)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(round_all(found)) + "\n")


def round_all(value):
    if isinstance(value, dict):
        return {key: round_all(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_all(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def run(given):
    """All parts that are not kept yet, so many at a time."""
    waiting, running = [], {}
    for first in range(0, DATASETS, PART):
        for line, options in cells():
            path = given.folder / f"{name(options)}-{first}.json"
            last = min(first + PART, given.datasets or options.get("datasets", DATASETS))
            if given.only in name(options) and last > first and not _kept(given.folder, options, first):
                asked = {"line": line, "options": options, "first": first, "last": last}
                waiting.append((asked, path))
    while waiting or running:
        for core in range(given.first_core, given.first_core + given.jobs):
            if core not in running and waiting:
                asked, path = waiting.pop(0)
                print(time.strftime("%H:%M"), path.stem, flush=True)
                where = ["--folder", str(path), "--core", str(core)]
                command = [sys.executable, __file__, "cell", "--asked", json.dumps(asked), *where]
                running[core] = subprocess.Popen(command)
        time.sleep(1)
        running = {core: process for core, process in running.items() if process.poll() is None}


def _kept(folder, options, first):
    """Whether a file of the cell holds these datasets."""
    for path in folder.glob(f"{name(options)}-*.json"):
        part = json.loads(path.read_text())
        if part.get("first", 0) <= first < part.get("first", 0) + part["cells"][0]["datasets"]:
            return True
    return False


def holds(value, error, low=None, high=None, slack=2.0):
    return (low is None or value >= low - slack * error) and (high is None or value <= high + slack * error)


def pool(parts):
    """Parts of the same cell as one."""
    found = {}
    for part in parts:
        found.setdefault(name(part["options"]), []).append(part)
    return [each[0] | {"cells": [_pool(cells) for cells in zip(*(p["cells"] for p in each), strict=True)]}
            for each in found.values()]  # fmt: skip


def _pool(cells):
    sizes = [each["datasets"] for each in cells]
    whole = sum(sizes)

    def join(pairs):
        mean = sum(n * value for n, (value, _) in zip(sizes, pairs, strict=True)) / whole
        return mean, math.sqrt(sum((n * error) ** 2 for n, (_, error) in zip(sizes, pairs, strict=True))) / whole

    joined = {key: join([each[key] for each in cells]) for key in FIGURES}
    scales = [each["scale"] for each in cells]
    scale = {key: join([each[key] for each in scales]) for key in scales[0]} if scales[0] else None
    apart = [each.get("contrasts") for each in cells]
    contrasts = {key: join([each[key] for each in apart]) for key in apart[0]} if all(apart) else None
    return {"epsilon": cells[0]["epsilon"], "datasets": whole, "scale": scale, "contrasts": contrasts} | joined


def table(given):
    """Every cell and every line against its bar; what falls short is marked."""
    kept = pool([json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))])
    short = []
    for line, bar in BARS.items():
        print(f"\n{line}: coverage {bar.low:g} to {bar.high:g}, width {bar.width or '-'}, error {bar.error or '-'}")
        means = {"coverage": [], "width_ratio": [], "error_ratio": []}
        for found in (each for each in kept if each["line"] == line):
            for cell in found["cells"]:
                ranges = {"coverage": (bar.low, bar.high), "width_ratio": (None, bar.width)}
                ranges["error_ratio"] = (None, bar.error)
                wrong = [key for key, ends in ranges.items() if not holds(*cell[key], *ends)]
                if bar.prior and cell["error"][0] > cell["prior_error"][0]:
                    wrong.append("error against the prior's")
                scale = cell["scale"] and cell["scale"]["coverage"]
                if scale and bar.scale and not holds(*scale, bar.scale):
                    wrong.append("coverage of the noise scale")
                contrasts = cell["contrasts"] and cell["contrasts"]["coverage"]
                if contrasts and not holds(*contrasts, bar.low):
                    wrong.append("coverage of what classes differ by")
                for key, values in means.items():
                    values.append(cell[key][0])
                label = f"{name(found['options'])} {cell['epsilon']:g}"
                told = "  ".join(f"{cell[key][0]:.3f} ± {cell[key][1]:.3f}" for key in means)
                told += f"  scale {scale[0]:.3f} ± {scale[1]:.3f}" if scale else ""
                told += f"  contrasts {contrasts[0]:.3f} ± {contrasts[1]:.3f}" if contrasts else ""
                print(f"{label:44} {cell['datasets']:4}  {told}  {', '.join(wrong)}")
                short += [f"{label}: {each}" for each in wrong]
        if not means["coverage"]:
            continue
        mean = {key: sum(values) / len(values) for key, values in means.items()}
        ends = {"coverage": (bar.low, bar.high), "width_ratio": (None, bar.width), "error_ratio": (None, bar.error)}
        wrong = [key for key, value in mean.items() if not holds(value, 0.0, *ends[key])]
        print(f"{'mean':50}" + "          ".join(f"{value:.3f}" for value in mean.values()), ", ".join(wrong))
        short += [f"mean of {line}: {each}" for each in wrong]
    print("\nfalls short:", *(short or ["nothing"]), sep="\n")


def main():
    parser = argparse.ArgumentParser(description="Coverage, width and error of scoring in all lines")
    parser.add_argument("what", choices=["run", "table", "cell"])
    parser.add_argument("--asked", type=json.loads, help="of a cell")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--core", type=int)
    parser.add_argument("--first-core", type=int, default=0)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--datasets", type=int, help="fewer than usual, for a first look")
    parser.add_argument("--folder", type=Path, default=KEPT)
    given = parser.parse_args()
    if given.what == "cell":
        os.sched_setaffinity(0, {given.core})
        indices = range(given.asked["first"], given.asked["last"])
        measure(given.asked["line"], given.asked["options"], indices, given.folder)
    else:
        {"run": run, "table": table}[given.what](given)


if __name__ == "__main__":
    main()
