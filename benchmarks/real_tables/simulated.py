"""Uniform features on [-1, 1] with outcomes that the model does not describe, with few records, and with outcomes of
the model. Intervals are judged by the field's pseudo-true value: that of least squares or of the likelihood."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import engine
import numpy as np
import plain
from judge import NORMAL_ERROR, NORMAL_WIDTH, mark, show_coverage
from records import stack, summarise_draws
from scipy import special
from tables import RealTable

import ideal
from confide.inference.regression.design import Column, Design, OutcomeKind
from confide.models import families

LARGE = 200_000  # records by which a pseudo-true value is computed
WRONG = ("negbin-.1", "negbin-.3", "negbin-1", "negbin-3", "lognormal", "heteroscedastic", "t3", "interaction")


class Sample(NamedTuple):
    table: RealTable
    target: np.ndarray
    scale: float


def make_table(family: OutcomeKind, x: np.ndarray, y: np.ndarray, bounds: tuple[float, float]) -> RealTable:
    columns = tuple(Column("numeric") for _ in range(x.shape[1]))
    design = Design(outcome_kind=family, columns=columns, outcome=bounds, number=len(y))
    return RealTable("simulated", design, x, y, tuple(f"x{j}" for j in range(x.shape[1])))


def wrong_model(name: str, index: int, n: int = 10_000, d: int = 5) -> Sample:
    rng = np.random.default_rng([35, index])
    x, theta = rng.uniform(-1, 1, (n, d)), rng.standard_normal(d + 1)
    if name.startswith("negbin"):
        theta, dispersion = 0.5 * theta, float(name.removeprefix("negbin-"))
        eta = x @ theta[:-1] + theta[-1]
        y = plain.simulate("counts", eta, 1.0, dispersion, rng)
        bounds = plain.wide_bounds("counts", eta, 1.0, dispersion)
        return Sample(make_table("counts", x, y, bounds), theta, 1.0)
    eta = x @ theta[:-1] + theta[-1]
    if name == "interaction":
        return _left_out(rng, x, theta, d)
    errors = {
        "lognormal": lambda: np.exp(rng.standard_normal(n)) - np.exp(0.5),
        "heteroscedastic": lambda: (0.5 + np.abs(x[:, 0]) + (x[:, 1] > 0)) * rng.standard_normal(n),
        "t3": lambda: rng.standard_t(3, n),
    }[name]()
    y, reach = eta + errors, np.abs(theta).sum() + 60.0
    y = np.clip(y, -reach, reach)
    return Sample(make_table("numbers", x, y, (-reach, reach)), theta, float(errors.std()))


def _left_out(rng: np.random.Generator, x: np.ndarray, theta: np.ndarray, d: int) -> Sample:
    """Logistic regression whose truth has an interaction that is not fitted."""
    strength = 2 * rng.standard_normal()

    def chance(rows: np.ndarray) -> np.ndarray:
        return special.expit(rows @ theta[:-1] + theta[-1] + strength * rows[:, 0] * rows[:, 1])

    y = (rng.random(len(x)) < chance(x)).astype(float)
    many = rng.uniform(-1, 1, (LARGE, d))
    target = plain.fit_plain(make_table("labels", many, chance(many), (0.0, 1.0)), chance(many)).coefficients
    return Sample(make_table("labels", x, y, (0.0, 1.0)), target, 1.0)


def right_model(name: str, index: int) -> Sample:
    """`FAMILY-dD-nN`: coefficients from N(0, 1), half as large for counts."""
    match = re.fullmatch(r"(logistic|linear|counts)-d(\d+)-n(\d+)", name)
    assert match is not None
    kinds: dict[str, OutcomeKind] = {"logistic": "labels", "linear": "numbers", "counts": "counts"}
    family = kinds[match[1]]
    d, n = int(match[2]), int(match[3])
    rng = np.random.default_rng([36, index])
    x, theta = rng.uniform(-1, 1, (n, d)), rng.standard_normal(d + 1) * (0.5 if family == "counts" else 1.0)
    eta = x @ theta[:-1] + theta[-1]
    y = plain.simulate(family, eta, 1.0, 0.0, rng)
    return Sample(make_table(family, x, y, plain.wide_bounds(family, eta, 1.0, 0.0)), theta, 1.0)


@dataclass(frozen=True)
class Simulated:
    """A command over simulated tables."""

    NAMES: tuple[str, ...]
    coverage: float
    width: dict[str, float]  # over the ideal; "" stands for cells that are not named
    wrong: bool = False
    least_epsilon: float = 0.0

    def measure(self, name: str, epsilon: float, index: int) -> dict:
        sample = (wrong_model if self.wrong else right_model)(name, index)
        table = sample.table
        fitted = engine.fit(table, epsilon, 2000 + index)
        words = {"labels": "logistic", "numbers": "linear", "counts": "poisson"}
        family = families.with_known(families.BY_WORD[words[table.family]], {"noise_scale": sample.scale})
        _, precision = plain.prior_precision(table, table.y)
        covariance = ideal.whitened(
            family, table.rows, sample.target, engine.budget(epsilon), precision, y=table.y if self.wrong else None
        )
        return {
            "coefficients": summarise_draws(fitted.draws),
            "truth": sample.target.tolist(),
            "ideal": np.sqrt(np.diag(covariance)).tolist(),
            "prior": np.sqrt(np.diag(np.linalg.inv(precision))).tolist(),
            "converged": fitted.converged,
            "seconds": fitted.seconds,
        }

    def report(self, lines: list[dict]) -> list[str]:
        texts = []
        for name in self.NAMES:
            for epsilon in sorted({line["epsilon"] for line in lines if line["table"] == name}):
                chosen = [line for line in lines if line["table"] == name and line["epsilon"] == epsilon]
                truth, best = np.array([line["truth"] for line in chosen]), np.array([line["ideal"] for line in chosen])
                low, high, mean, sd = (stack(chosen, "coefficients", each) for each in ("low", "high", "mean", "sd"))
                hits = (low <= truth) & (truth <= high)
                width = float(np.median((high - low) / (NORMAL_WIDTH * best)))
                error = float(np.mean(np.abs(mean - truth)) / (NORMAL_ERROR * best.mean()))
                most = self.width.get(name, self.width[""]) if epsilon >= self.least_epsilon else np.inf
                low_bar = self.coverage if epsilon >= self.least_epsilon else 0.0
                texts.append(
                    f"{name:22s} eps {epsilon:<4g} fits {len(chosen):3d} | {show_coverage('held', hits, low_bar)} "
                    f"(intercept {hits[:, -1].mean():.2f}) | width {width:.2f}{mark(width <= most)} error {error:.2f} "
                    f"| z {np.max(np.abs(mean - truth) / sd):.1f} "
                    f"| converged {np.mean([line['converged'] for line in chosen]):.2f}"
                )
        return texts


WRONG_MODELS = Simulated(WRONG, 0.85, {"": 1.4}, wrong=True, least_epsilon=1.0)
SMALL = Simulated(
    ("logistic-d5-n200", "linear-d5-n500", "counts-d5-n500"), 0.85,
    {"": np.inf, "linear-d5-n500": 2.0}, least_epsilon=1.0,
)  # fmt: skip
UNIFORM = Simulated(
    ("logistic-d5-n10000", "logistic-d20-n10000", "logistic-d20-n2000", "linear-d5-n10000", "linear-d20-n10000",
     "counts-d5-n10000"),
    0.86, {"": np.inf, "logistic-d5-n10000": 1.12, "logistic-d20-n10000": 1.12},
)  # fmt: skip
