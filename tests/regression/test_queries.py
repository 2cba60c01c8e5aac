"""What a record contributes is within its bound before the final cut, so that the cut changes nothing."""

import numpy as np
import pytest

from confide.inference.regression.columns import ColumnQuery, TailQuery
from confide.inference.regression.outcomes import Counts, Numbers, TwoLabels
from confide.inference.regression.queries import (
    MomentQuery,
    NormQuery,
    OutcomeTailQuery,
    ScoreQuery,
    SlopeQuery,
    VarianceQuery,
)  # fmt: skip
from confide.mechanism import record_sums
from confide.models.inputs import Records

FAMILIES = {
    "labels": TwoLabels(0.3),
    "numbers": Numbers(scale=0.6, furthest=8.0),
    "counts": Counts(mean=4.0, furthest=60, dispersion=0.5),
}
RNG = np.random.default_rng(0)
X = np.clip(RNG.standard_t(2, (500, 4)), -30, 30)
Y = {"labels": (X[:, 0] > 0).astype(float), "numbers": X[:, 1] - 1, "counts": np.floor(np.abs(2 * X[:, 2]))}
STANDARDISE = np.vstack([np.eye(4, 5) + 0.1 * RNG.standard_normal((4, 5)), [[0.1, 0, 0.2, 0, 1]]])


def lengths(query, name, matrix):
    vectors = query.vectors(X, Y[name])
    square = np.einsum("ij,ij->i", vectors, vectors)
    return square if matrix else np.sqrt(square)


def arguments(name, clip=2.5, slope_bound=1.7):
    return {
        "standardise": STANDARDISE, "family": FAMILIES[name], "position": np.array([0.4, -0.2, 0.1, 0.3, 0.2]),
        "clip": clip, "slope_bound": slope_bound, "outcome_center": 0.0, "outcome_spread": 1.0, "deviation": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_queries_about_scores(name):
    scale_bound, tight = 0.3 if FAMILIES[name].learns_scale else 0.0, 1 + 1e-9
    bound = float(np.hypot(2.5, scale_bound))
    query = ScoreQuery(bound=bound, scale_bound=scale_bound, **arguments(name))
    assert lengths(query, name, False).max() <= bound * tight
    if name != "counts":  # slopes of counts are cut without a weight
        assert lengths(SlopeQuery(bound=1.7, **arguments(name)), name, True).max() <= 1.7 * tight
    assert lengths(VarianceQuery(bound=2.5**2, **arguments(name)), name, True).max() <= 2.5**2 * tight
    if name != "labels":
        tail = OutcomeTailQuery(bound=2.0, wide_cut=3.0, near_cut=1.0, **arguments(name))
        assert lengths(tail, name, False).max() <= 2.0 * tight


def test_queries_about_columns():
    middle, half = np.zeros(5), np.full(5, 2.0)
    bound = np.sqrt(1.25 * 5)
    for squares in (True, False):
        query = ColumnQuery(
            bound=bound, deviation=1.0, numeric=np.arange(4), binary=np.array([], np.int64), middle=middle, half=half,
            squares=squares,
        )  # fmt: skip
        assert lengths(query, "numbers", False).max() <= bound * (1 + 1e-9)
    tails = TailQuery(bound=2.0, deviation=1.0, numeric=np.arange(4), center=np.zeros(4), spread=np.ones(4), bins=3)
    assert lengths(tails, "numbers", False).max() <= 2.0
    norm = NormQuery(bound=1.0, deviation=1.0, standardise=STANDARDISE, furthest=5.0)
    assert lengths(norm, "numbers", False).max() <= 1.0


def test_moments_are_cut_by_their_weight():
    query = MomentQuery(bound=3.0, deviation=1e-3, standardise=STANDARDISE)
    records = Records((X.astype(np.float32), Y["numbers"].astype(np.float32)), np.ones(500, bool), 500)
    steps = record_sums.sum_in_steps(query, records)
    z = X.astype(np.float32).astype(float) @ STANDARDISE[:-1] + STANDARDISE[-1]
    weights = np.minimum(1, 3.0 / np.einsum("ij,ij->i", z, z))
    expected = (z * weights[:, None]).T @ z
    got = record_sums.to_matrix(steps * 1e-3 / record_sums.GRID, 5)
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-3)
