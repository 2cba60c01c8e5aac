import csv
import re

import numpy as np
import pytest

from confide import experiments
from confide.experiments import li2019_figure2
from confide.experiments.reproduction import Claim

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return {name: (experiments.load(name).run(quick=True), out) for name in experiments.NAMES}


@pytest.mark.parametrize("name", experiments.NAMES)
def test_a_reproduction_leaves_curves_a_picture_and_claims(written, name):
    result, out = written[name]
    paths = result.write(out)
    assert [path.name for path in paths] == [f"{name}.csv", f"{name}.png", f"{name}-claims.csv"]
    with paths[0].open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(float(row[result.columns[-1]]) > 0 for row in rows)
    assert paths[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with paths[2].open() as file:
        claims = list(csv.reader(file))
    assert claims[0] == list(Claim._fields)
    assert all(all(cell.strip() for cell in row) for row in claims)


def test_figure1_orders_the_theories(written):
    rows = written["li2019-figure1"][0].rows
    curve = {(m, s): np.array([v for a, b, _, v in rows if (a, b) == (m, s)]) for m, s, _, _ in rows}
    assert np.all(curve["wang2015", "fixed"] < curve["moments", "fixed"] / 100)
    for schedule in ("fixed", "decreasing"):
        assert np.all(curve["moments", schedule] < curve["numerical", schedule])
    assert np.all(curve["numerical", "fixed"] < curve["numerical", "decreasing"])
    assert all(np.all(np.diff(values) > 0) for values in curve.values())


def test_figure1_measures_what_it_says(written):
    claims = {claim.quantity: claim for claim in written["li2019-figure1"][0].claims}
    assert claims["wang2015's bound at epsilon 0.1"].measured == "1.479e-06"
    measured = claims["first step of the decreasing schedule at epsilon 0.1"].measured
    assert [float(number) for number in re.findall(r"[\d.]+", measured)] == pytest.approx([0.031, 0.0757], rel=0.02)


def test_figure2_scales_with_the_clip_exactly():
    base = li2019_figure2.step("moments", 1000, 1.0, 0.5)
    assert li2019_figure2.step("moments", 1000, 10.0, 0.5) == pytest.approx(base / 100, rel=1e-6)
