"""What the reproductions share in fitting: records, fits that say nothing, and what several of them measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from confide.data.datasets import Split
from confide.inference import fitting
from confide.inference.posterior import ExactnessWarning, NotPrivateWarning, Posterior
from confide.models import Model
from confide.privacy.budget import Budget
from confide.samplers import Sampler

Records = tuple[np.ndarray, np.ndarray]


def limit(split: Split, train: int | None = None, test: int | None = None) -> Split:
    """The first so many records."""
    return Split(split.x[:train], split.y[:train], split.test_x[:test], split.test_y[:test])


def shuffle(n: int, train: int, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows to learn from and to test with, in one of many random splits."""
    order = np.random.default_rng((seed, number)).permutation(n)
    return order[:train], order[train:]


def fit(model: Model, records: Records, budget: Budget, sampler: Sampler, **settings: Any) -> Posterior:
    """A private fit that prints nothing. Gradients are cut as published; what is assumed is among the claims."""
    quiet: dict[str, Any] = {"verbose": False, "progress": False, "clipping": "plain"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExactnessWarning)
        return fitting.fit(model, records, budget, sampler, **quiet, **settings)


def fit_unprotected(model: Model, records: Records, *how: Any, **settings: Any) -> Posterior:
    """Without a guarantee: the records are public."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        return fitting.sample(model, records, *how, progress=False, **settings)


def accuracy(posterior: Posterior, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(posterior.predict(x) == y))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The deviation of a single value is unknown."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def spread(values: Sequence[float], digits: str = ".3f") -> str:
    """Mean and standard deviation in words."""
    mean, deviation = mean_and_deviation(values)
    return f"{mean:{digits}}" + ("" if math.isnan(deviation) else f" ± {deviation:{digits}}")
