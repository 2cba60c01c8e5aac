"""Intervals of private regressions on real tables, against their bars. One command a line:

    python benchmarks/real_tables known-truth --out results.jsonl --datasets 100
    python benchmarks/real_tables real-outcomes --out results.jsonl --datasets 8
    python benchmarks/real_tables wrong-models --out results.jsonl
    python benchmarks/real_tables small --out results.jsonl
    python benchmarks/real_tables uniform --out results.jsonl
    python benchmarks/real_tables stability --out results.jsonl
    python benchmarks/real_tables settled --out results.jsonl

Each fit is one JSON line in the file; fits that are there are not repeated, so that a command goes on where it was
stopped. `--report` only prints the table of what is there. Tables lie in ../shared/data, or where CONFIDE_DATA says.
"""

import argparse
import os
import sys
import time
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import known_truth  # noqa: E402
import real_outcomes  # noqa: E402
import records  # noqa: E402
import simulated  # noqa: E402
import stability  # noqa: E402

COMMANDS = {
    "known-truth": known_truth, "real-outcomes": real_outcomes, "wrong-models": simulated.WRONG_MODELS,
    "small": simulated.SMALL, "uniform": simulated.UNIFORM,
}  # fmt: skip
JUDGED = {"stability": stability.report, "settled": stability.report_convergence}  # over the fits of all commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, *JUDGED])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", type=int, default=8)
    parser.add_argument("--tables", default="", help="all of the command by default")
    parser.add_argument("--epsilon", default="0.5,1,4")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.command in COMMANDS and not given.report:
        run(given.command, given)
    lines = records.read(given.out)
    if given.command in JUDGED:
        texts = JUDGED[given.command](lines)
    else:
        texts = COMMANDS[given.command].report([line for line in lines if line["command"] == given.command])
    print("\n".join(texts))


def run(command: str, given: argparse.Namespace) -> None:
    """All fits that are not there yet."""
    module = COMMANDS[command]
    names = given.tables.split(",") if given.tables else module.NAMES
    present = {records.key_of(line) for line in records.read(given.out)}
    started = time.time()
    for name in names:
        for index in range(given.datasets):
            for epsilon in (float(each) for each in given.epsilon.split(",")):
                line = {"command": command, "table": name, "epsilon": epsilon, "index": index}
                if records.key_of(line) not in present:
                    records.append(given.out, line | module.measure(name, epsilon, index))
        print(f"{name}: {time.time() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
