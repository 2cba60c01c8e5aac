"""The datasets and the methods of wang2015, Figure 1: from a split and an epsilon to test accuracies.

Replace-one neighbours, as the paper defines them, and delta = 1e-5, which it does not print. Rows are within the unit
ball, the prior is N(0, I). The labels depend on the sign of a score alone, so scaling rows changes none.

A draw of a posterior or of Langevin dynamics is as good as what one costs at epsilon, and several are measured from one
run: k draws of mu-Gaussian-DP each are bought with sqrt(k) mu, and k pure ones with k epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from confide import models, samplers
from confide.data import datasets
from confide.data.datasets import Split
from confide.experiments import fits
from confide.inference import baselines
from confide.inference.posterior import Posterior
from confide.models import convexity
from confide.models.inputs import as_records
from confide.privacy import pricing
from confide.privacy.budget import Budget

DELTA = 1e-5
PRIOR_SCALE = 1.0
SEED = 2015
DISTANCE = 0.55  # of each normal's mean from the origin: the best accuracy is Phi(0.55) = 0.709
FEATURES, RECORDS, FRESH = 10, 1000, 10_000  # of the synthetic records; to train on, and to test on
BOUND = 4.0  # standard deviations that a feature is cut at
TRAINED = 0.8  # share of Abalone
KEPT = 200  # draws of a sampler that takes steps, which predict together
WARMUP = 100  # transitions of a hidden chain, and as many for the start of the hybrid

Method = Literal[
    "Non-private",
    "One-Posterior sample, published",
    "One-Posterior sample, tight",
    "Langevin",
    "Objective perturbation",
    "Output perturbation",
    "Hybrid+DP-SGNHT",
    "DP-SGNHT alone",
]


class Effort(NamedTuple):
    """How much is measured."""

    logarithms: tuple[float, ...]  # of epsilon
    splits: int = 1
    draws: int = 4  # measured on each split
    samples: int = 16  # of those that hidden chains end, which come from one run
    runs: int = 1  # on each split, of a sampler that takes steps
    records: int | None = None  # to train on, at most
    langevin_steps: int = 1000
    transitions: int = 400  # of each hidden chain after its warm-up


WIDE = tuple(float(logarithm) for logarithm in range(-5, 4))
NARROW = (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)
FULL = {  # the longest first
    "adult": Effort(WIDE, runs=3),
    "abalone": Effort(WIDE, splits=5, runs=2),
    "synthetic": Effort(NARROW, splits=5, runs=2),
}
SMALL = {"records": 800, "langevin_steps": 200, "transitions": 200, "samples": 12}
QUICK = {  # the last two have the same shapes, so that one program serves both
    "adult": Effort((-5.0, -1.0, 2.0), **SMALL),
    "abalone": Effort((-5.0, -1.0, 2.0), **SMALL),
    "synthetic": Effort((-2.5, -0.5, 1.5), **SMALL),
}


class Trial(NamedTuple):
    """One epsilon on one split."""

    split: Split
    epsilon: float
    effort: Effort
    number: int  # of the split: it seeds the noise

    @property
    def model(self) -> models.Model:
        return models.logistic_regression(self.split.x.shape[1], prior_scale=PRIOR_SCALE)

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        return self.split.x, self.split.y

    def budget(self, draws: int = 1, delta: float = DELTA) -> Budget:
        """That pays for so many draws, each as good as one at epsilon."""
        if delta == 0:
            epsilon = draws * self.epsilon
        elif draws == 1:
            epsilon = self.epsilon
        else:
            epsilon = pricing.gdp_epsilon(math.sqrt(draws) * pricing.gdp_mu(self.epsilon, delta), delta)
        return Budget(epsilon=epsilon, delta=delta, neighbours="replace-one")

    def fit(self, budget: Budget, sampler: samplers.Sampler, repeat: int = 0, **settings: Any) -> Posterior:
        return fits.fit(self.model, self.train, budget, sampler, key=self._key(repeat), **settings)

    def minima(self, release: Callable[..., Posterior], **settings: Any) -> list[Posterior]:
        return [
            release(self.model, self.train, self.budget(), key=self._key(repeat), verbose=False, **settings)
            for repeat in range(self.effort.draws)
        ]

    def steps(self, sampler: samplers.Sampler) -> list[Posterior]:
        """Batches of sqrt(n) records and sqrt(n) passes, as in the paper: n steps."""
        n = len(self.split.x)
        plan = {"steps": n, "batch_size": math.isqrt(n), "draws": min(n, KEPT)}
        return [self.fit(self.budget(), sampler, repeat, **plan) for repeat in range(self.effort.runs)]

    def _key(self, repeat: int) -> int:
        return SEED + 1000 * self.number + repeat


class Measured(NamedTuple):
    accuracies: list[float]
    posteriors: list[Posterior]


def synthetic(number: int) -> Split:
    """Two normals, new ones for every number; the paper prints neither their dimension nor how many records."""
    generator = np.random.default_rng([SEED, number])
    y = generator.integers(0, 2, RECORDS + FRESH)
    middle = np.outer(2 * y - 1, np.full(FEATURES, DISTANCE / math.sqrt(FEATURES)))
    x = np.clip((middle + generator.normal(size=middle.shape)) / BOUND, -1, 1)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float32)
    y = y.astype(np.float32)
    return Split(x[:RECORDS], y[:RECORDS], x[RECORDS:], y[RECORDS:])


def abalone(number: int) -> Split:
    """More rings than the middle of the schema's range? A new split for every number.

    The paper does not say where it cuts. Few shells are above, which fits its axis: where classes are equally large, no
    mean accuracy goes down to 0.1.
    """
    x, y = datasets.abalone()
    train, test = fits.shuffle(len(x), round(TRAINED * len(x)), SEED, number)
    label = (y > 0).astype(np.float32)
    return Split(x[train], label[train], x[test], label[test])


def adult(number: int) -> Split:
    """Its authors' split, in the same random order for every number."""
    split = datasets.adult()
    order = np.random.default_rng(SEED).permutation(len(split.x))
    return split._replace(x=split.x[order], y=split.y[order])


def measured(trial: Trial, method: Method) -> Measured:
    posteriors = METHODS[method](trial)
    if method in ("Hybrid+DP-SGNHT", "DP-SGNHT alone"):
        return Measured([_share(p.predict(trial.split.test_x), trial) for p in posteriors], posteriors)
    weights = np.concatenate([p.draws["weights"].reshape(-1, trial.split.x.shape[1]) for p in posteriors])
    return Measured([_share(trial.split.test_x @ one > 0, trial) for one in weights], posteriors)


def unprotected(split: Split) -> float:
    """Accuracy of the mode of the posterior, without any privacy."""
    from sklearn.linear_model import LogisticRegression

    model = models.logistic_regression(split.x.shape[1], prior_scale=PRIOR_SCALE)
    x, y = convexity.prepare_convex(model, as_records((split.x, split.y)))[1].arrays
    fitted = LogisticRegression(C=PRIOR_SCALE**2, fit_intercept=False, max_iter=1000).fit(x, y)
    return float(fitted.score(split.test_x, split.test_y))


def _share(labels: np.ndarray, trial: Trial) -> float:
    return float(np.mean(labels == trial.split.test_y))


def _published(trial: Trial) -> list[Posterior]:
    draws, transitions = trial.effort.samples, trial.effort.transitions
    sampler = samplers.one_posterior_sample("published", draws=draws, warmup=WARMUP, samples=transitions)
    return [trial.fit(trial.budget(draws, delta=0.0), sampler)]


def _tight(trial: Trial) -> list[Posterior]:
    draws, transitions = trial.effort.samples, trial.effort.transitions
    sampler = samplers.one_posterior_sample(draws=draws, warmup=WARMUP, samples=transitions)
    return [trial.fit(trial.budget(draws), sampler)]


def _langevin(trial: Trial) -> list[Posterior]:
    draws = trial.effort.draws
    budget = trial.budget(draws)
    return [trial.fit(budget, samplers.langevin(), steps=trial.effort.langevin_steps, chains=draws)]


def _hybrid(trial: Trial) -> list[Posterior]:
    start = samplers.one_posterior_sample(warmup=WARMUP, samples=WARMUP)
    return trial.steps(samplers.hybrid(samplers.sgnht(), start))


METHODS: dict[Method, Callable[[Trial], list[Posterior]]] = {
    "One-Posterior sample, published": _published,
    "One-Posterior sample, tight": _tight,
    "Langevin": _langevin,
    "Objective perturbation": lambda trial: trial.minima(baselines.objective_perturbation, method="kifer2012"),
    "Output perturbation": lambda trial: trial.minima(baselines.output_perturbation),
    "Hybrid+DP-SGNHT": _hybrid,
    "DP-SGNHT alone": lambda trial: trial.steps(samplers.sgnht()),
}
