"""What noisy sufficient statistics of a linear model released, and the draws that are made from it alone.

The statistics are those of `inference.linear.statistics`, whose likelihood they have, of rows that count
less beyond `REACH` usual norms, and outcomes that are cut at `OUTCOMES` times the size that most are within. A noise
scale that is not given is weighed over a grid, with the prior of `linear.likelihood`, and drawn from it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from confide.inference.linear import statistics
from confide.inference.linear.likelihood import DEGREES
from confide.inference.linear.statistics import Statistics
from confide.inference.release_terms import Drawn, Terms, draws_key
from confide.mechanism.linear_scale import LinearScale, LinearScaleRelease
from confide.mechanism.scale import ScaleAnswers, ScaleRelease
from confide.models.families import Gaussian
from confide.privacy import events

FORMAT = 2
REACH = 1.5  # usual norms
OUTCOMES = 2.5
BOUND = 2.0  # of a record's matrix in Frobenius norm
GRID, ROUNDS = 40, 2  # noise scales that are weighed at a time, and how often the grid is made finer
LEAST = 1e-7  # weight, over the largest, of what is left out then


def row_bound(scale: LinearScale, norm_bound: float | None) -> float:
    """The norm from which on rows count less."""
    found = REACH * scale.norm
    return found if norm_bound is None else min(found, norm_bound)


@dataclass(frozen=True, kw_only=True, eq=False)
class StatisticsRelease:
    """The noisy sum of v v^T, v = (z / row_bound, y / outcome_bound)."""

    records: int  # as declared
    prior_scale: float
    noise_scale: float | None  # None: learnt
    norm_bound: float | None  # of a row with its constant
    scale: ScaleRelease
    multiplier: float  # noise over the bound of a record
    answers: ScaleAnswers  # noisy counts, from which norm and bounds follow
    moments: np.ndarray  # noisy

    prior = "gaussian"

    @cached_property
    def bought(self) -> LinearScale:
        return LinearScaleRelease(rows=self.scale).read(self.answers, self.records)

    @property
    def norm(self) -> float:
        return self.bought.norm

    @property
    def seen(self) -> bool:
        """Whether the scale stands out of its noise."""
        return self.bought.seen

    @property
    def row_bound(self) -> float:
        return row_bound(self.bought, self.norm_bound)

    @property
    def outcome_bound(self) -> float:
        return OUTCOMES * self.bought.outcome

    @property
    def noise(self) -> float:
        """Standard deviation on the diagonal."""
        return BOUND * self.multiplier

    @property
    def key(self) -> int:
        """Of the draws: public."""
        return draws_key(self.answers)

    def terms(self) -> Terms:
        noise: dict[type[events.Event], Any] = {
            events.ScaleHistograms: np.array([self.scale.noise]),
            events.InformationSums: np.array([self.multiplier]),
        }
        plan = {
            "records": self.records,
            "model": Gaussian.name,
            "learnt": self.noise_scale is None,
            "noise_multiplier": self.multiplier,
        }
        settings = {"prior_scale": self.prior_scale, "prior": self.prior, "noise_scale": self.noise_scale}
        return Terms(plan | self.describe(self.scale.to_json()), settings, noise)

    def describe(self, scale: Mapping[str, Any]) -> dict[str, Any]:
        """What the plan says of the run once it is over."""
        return {"scale": {**scale, "norm": self.norm, "seen": self.seen}}

    def to_json(self) -> dict[str, Any]:
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        record |= {"moments": self.moments.tolist(), "scale": asdict(self.scale), "answers": self.answers.to_json()}
        return {"kind": "statistics", "format": FORMAT, **record}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> StatisticsRelease:
        if record["format"] != FORMAT:
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name not in ("kind", "format")}
        moments = np.array(fields["moments"], np.float64)
        if moments.ndim != 2 or moments.shape[0] != moments.shape[1]:
            raise ValueError("the moments of its release are no square")
        if not np.all(np.isfinite(moments)):
            raise ValueError("its release holds numbers that are not finite")
        scale, answers = ScaleRelease(**fields["scale"]), ScaleAnswers.from_json(fields["answers"])
        known: dict[str, Any] = {**fields, "moments": moments, "scale": scale, "answers": answers}
        made = cls(**known)
        made.bought  # noqa: B018
        return made

    @property
    def statistics(self) -> Statistics:
        """In the units of the data."""
        rows, outcomes, whole = self.row_bound, self.outcome_bound, self.moments
        return Statistics(
            whole[:-1, :-1] * rows**2,
            whole[:-1, -1] * rows * outcomes,
            np.asarray(whole[-1, -1] * outcomes**2),
            self.records,
            self.noise * rows**2,
            self.noise * rows * outcomes / math.sqrt(2.0),
            self.noise * outcomes**2,
        )

    def draw(self, draws: int, log_prior: Callable[..., Any] | None = None) -> np.ndarray:
        """So many draws of the coefficients and, last, the noise scale, and the same ones every time."""
        assert log_prior is None
        generator = np.random.default_rng(self.key)
        standard = generator.standard_normal((draws, len(self.moments) - 1))
        if not self.seen:
            scales = self.prior_scale * self.norm * np.abs(generator.standard_t(DEGREES, draws))
            scales = scales if self.noise_scale is None else np.full(draws, self.noise_scale)
            return np.column_stack([self.prior_scale * standard, scales])
        if self.noise_scale is not None:
            given = statistics.coefficients(self.statistics, self.noise_scale**2, self.prior_scale, wide=True)
            moved = standard @ _root(given.covariance)
            return np.column_stack([given.mean + moved, np.full(draws, self.noise_scale)])
        logs = np.linspace(math.log(1e-4 * self.outcome_bound), math.log(2 * self.outcome_bound), GRID)
        given, weights = self._weigh(logs)
        for _ in range(ROUNDS):
            kept, step = np.flatnonzero(weights > LEAST * weights.max()), logs[1] - logs[0]
            logs = np.linspace(logs[kept[0]] - step, logs[kept[-1]] + step, GRID)
            given, weights = self._weigh(logs)
        taken = generator.choice(GRID, size=draws, p=weights)
        scales = np.exp(logs[taken] + (logs[1] - logs[0]) * (generator.random(draws) - 0.5))
        moved = np.einsum("di,dij->dj", standard, _root(given.covariance)[taken])
        return np.column_stack([given.mean[taken] + moved, scales])

    def make(self, draws: int, log_prior: Callable[..., Any] | None = None) -> Drawn:
        """The same as they are stored."""
        drawn = self.draw(draws, log_prior).astype(np.float32)[None]
        return Drawn(drawn[..., :-1], drawn[..., -1] if self.noise_scale is None else None)

    def _weigh(self, logs: np.ndarray) -> tuple[statistics.Gaussian, np.ndarray]:
        given, heights = statistics.weigh_scales(self.statistics, self.prior_scale, np.exp(logs))
        away = 2 * (logs - math.log(self.prior_scale * self.norm))
        heights = heights + logs - (DEGREES + 1) / 2 * np.log1p(np.exp(away) / DEGREES)
        weights = np.exp(heights - heights.max())
        return given, weights / weights.sum()


def _root(covariance: np.ndarray) -> np.ndarray:
    """R with R^T R the covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.sqrt(np.maximum(values, 0.0))[..., :, None] * np.swapaxes(vectors, -1, -2)
