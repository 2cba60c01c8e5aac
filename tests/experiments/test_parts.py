"""A reproduction that was stopped goes on where it was, and leaves what it would have left."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from confide import experiments
from confide.experiments.parts import Parts

ROOT = Path(__file__).parents[2]
PROGRAM = """
import random, sys, time
from pathlib import Path
from types import SimpleNamespace
from confide import experiments
from confide.experiments.reproduction import Claim, Reproduction, new_figure

out, hang = Path(sys.argv[1]), sys.argv[2] == "hang"

def measure(n):
    if hang and n == 3:
        (out / "hanging").touch()
        time.sleep(600)
    print(n)
    return n, random.Random(n).gauss(0.0, 1.0)

def run(quick, parts):
    rows = [tuple(parts.get(f"row {n}", {"rows": 6}, lambda n=n: measure(n))) for n in range(6)]
    claim = Claim("sum", "0", repr(sum(value for _, value in rows)), "chance")
    return Reproduction(
        name="li2019-table1", columns=("n", "value"), rows=rows, claims=(claim,), figure=new_figure(1, 3, 2)[0]
    )

experiments.load = lambda name: SimpleNamespace(run=run)
experiments.reproduce("li2019-table1", out)
"""


def started(out, how):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, out, how], stdout=subprocess.PIPE, text=True)


def test_a_killed_process_that_is_resumed_leaves_the_same_files(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert started(whole, "go").communicate(timeout=120)[0].split() == list("012345")
    with started(killed, "hang") as process:
        while not (killed / "hanging").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "li2019-table1.csv").exists()
    assert len(list((killed / "li2019-table1-parts").iterdir())) == 3
    assert started(killed, "go").communicate(timeout=120)[0].split() == list("345")
    for suffix in (".csv", "-claims.csv", ".png"):
        file = f"li2019-table1{suffix}"
        assert (killed / file).read_bytes() == (whole / file).read_bytes()
    assert sorted(path.name for path in killed.iterdir() if path.is_dir()) == []


def test_a_part_of_other_settings_is_measured_anew(tmp_path):
    count = iter(range(10))
    parts = Parts(tmp_path / "parts")

    def get(parts, steps):
        return parts.get("cell", {"steps": steps}, lambda: next(count))

    assert [get(parts, 5), get(parts, 5), get(parts, 6), get(parts, 5)] == [0, 0, 1, 2]
    assert get(Parts(parts.folder, quick=True), 5) == 3
    assert get(Parts(), 5) == 4


def test_a_part_is_what_json_gives_back_whether_or_not_it_is_kept(tmp_path):
    value = (0.1 + 0.2, float("inf"), None)
    for parts in (Parts(), Parts(tmp_path), Parts(tmp_path)):
        assert parts.get("cell", {}, lambda: value) == list(value)


def test_time_of_earlier_processes_counts(tmp_path):
    first = Parts(tmp_path)
    first.get("cell", {}, lambda: sum(range(1_000_000)))
    (path,) = tmp_path.iterdir()
    assert first.earlier_seconds() == 0
    assert Parts(tmp_path, begun=time.time() + 1).earlier_seconds() == json.loads(path.read_text())["seconds"] > 0
    first.clear()
    assert not tmp_path.exists()


@pytest.mark.parametrize("name", experiments.NAMES)
def test_make_reproduce_makes_everything(name):
    assert f"confide reproduce {name} --out docs/results\n" in (ROOT / "Makefile").read_text()
