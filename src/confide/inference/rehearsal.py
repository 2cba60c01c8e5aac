r"""Rehearsals: the whole mechanism on made-up tables whose truth is known. No record is read, and nothing is spent.

Each made-up table has the declared number of records, and outcomes that the model draws at true coefficients. It is
fitted by `confide.fit` with the sampler and the budget that are asked about, and what the fit says is held against the
truth: how often 90% intervals hold it, how wide they are, how far the means are off, what outcomes of fresh rows cost.

**Of a run** (a parametric bootstrap): truths are draws of its posterior, and rows are normal with the moments that its
release tells. All of it is post-processing of what was released.

**Calibration.** Where intervals hold the made-up truths too seldom, draws are drawn away from their mean by the least
factor at which they would hold them as often as they say, over all coefficients and tables; never nearer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import samplers, validation
from confide.inference import canary_requests, release_check, requests, summaries
from confide.inference.linear.release import LinearRelease
from confide.inference.posterior import Posterior
from confide.inference.regression import row_samples
from confide.inference.regression.release import RegressionRelease
from confide.inference.release import Release
from confide.inference.summaries.runs import RunSummary
from confide.models.labels import to_labels
from confide.models.model import Model
from confide.privacy.budget import Budget
from confide.samplers import Sampler
from confide.samplers.scoring import Scoring
from confide.validation import Refused

SCORING = (Release, LinearRelease, RegressionRelease)
Fit = Callable[..., Posterior]  # `confide.fit`
DRAWS = 1000  # of each fit: their quantiles are the ends of intervals
FRESH = 500  # rows that outcomes are predicted for
PROBABILITY = 0.9


class MadeUpTable(NamedTuple):
    """Rows, the true parameters as the model reports them, and rows to predict for."""

    x: np.ndarray
    truth: Any
    fresh: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """What fits of made-up tables said, and what was true; arrays are (tables, coefficients)."""

    truths: np.ndarray
    means: np.ndarray
    low: np.ndarray
    high: np.ndarray
    log_losses: np.ndarray  # of fresh outcomes, one for each table
    known_losses: np.ndarray  # the same at the truth
    seconds: float

    @property
    def datasets(self) -> int:
        return len(self.truths)

    @property
    def inside(self) -> np.ndarray:
        return (self.low <= self.truths) & (self.truths <= self.high)

    @property
    def coverage(self) -> float:
        return float(np.mean(self.inside))

    @property
    def coverage_error(self) -> float:
        """Standard error, with tables as clusters."""
        each = np.mean(self.inside, axis=1)
        return float(np.std(each, ddof=1) / math.sqrt(len(each))) if len(each) > 1 else math.nan

    @property
    def width(self) -> np.ndarray:
        """The median width of each coefficient's interval."""
        return np.median(self.high - self.low, axis=0)

    @property
    def error(self) -> np.ndarray:
        """The mean |posterior mean - truth| of each coefficient."""
        return np.mean(np.abs(self.means - self.truths), axis=0)

    @property
    def inflation(self) -> float:
        """What draws are to be drawn away from their mean by, 1 or more."""
        reach = np.where(self.truths > self.means, self.high - self.means, self.means - self.low)
        needed = np.abs(self.truths - self.means) / np.maximum(reach, 1e-300)
        return max(1.0, float(np.quantile(needed, PROBABILITY)))

    def to_json(self) -> dict[str, Any]:
        return {
            "datasets": self.datasets,
            "probability": PROBABILITY,
            "coverage": self.coverage,
            "coverage_error": self.coverage_error,
            "inflation": self.inflation,
            "widths": self.width.tolist(),
            "errors": self.error.tolist(),
            "log_loss": float(np.mean(self.log_losses)),
            "log_loss_of_the_truth": float(np.mean(self.known_losses)),
            "seconds": self.seconds,
        }


def rehearse_run(fit: Fit, posterior: Posterior, datasets: int, key: int) -> Rehearsal:
    """On tables made up from the release of a run of scoring."""
    datasets, model = validation.count(datasets=datasets), posterior.model
    release, guarantee = posterior.release, posterior.guarantee
    if model is None or guarantee is None or not isinstance(release, SCORING):
        raise Refused("the posterior has no release of scoring, which tables are made up from: fit it with scoring()")
    summary = summaries.from_json(posterior.plan)
    assert isinstance(summary, RunSummary)
    own = summary.budget or {}
    budget = Budget(epsilon=own["epsilon"], delta=own["delta"], neighbours=guarantee.neighbours)
    asked = partial(fit, model, budget=budget, sampler=sampler_of(summary))
    return rehearse_tables(asked, model, _from_release(posterior, release, datasets, key), key)


def sampler_of(summary: RunSummary) -> Sampler:
    """The sampler of a run of scoring, with as many draws as a rehearsal needs."""
    request = summary.more.get("request")
    stored = None if request is None else requests.options_from_json(request)
    if stored is not None and isinstance(stored["sampler"], Scoring):
        return replace(stored["sampler"], draws=DRAWS, rehearsals=0)
    return samplers.scoring(DRAWS, getattr(summary, "constant", None), getattr(summary, "categories", ()))


def _from_release(posterior: Posterior, release: Any, datasets: int, key: int) -> Iterator[MadeUpTable]:
    """Truths are draws of the posterior, rows normal with the moments that were released."""
    model, generator = posterior.model, np.random.default_rng([key, 1])
    assert model is not None
    assert model.linear is not None
    flat = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), posterior.draws)
    count = posterior.chains * posterior.size
    rows = _row_sampler(release, model.linear.intercept, generator)

    for place in generator.choice(count, datasets, replace=datasets > count):
        truth = jax.tree.map(lambda leaf, place=place: leaf[place], flat)
        yield MadeUpTable(rows(int(posterior.plan["records"])), truth, rows(FRESH))


def _row_sampler(release: Any, intercept: bool, generator: np.random.Generator) -> Callable[[int], np.ndarray]:
    """Rows as the release describes them, without the constant where the model has an intercept."""
    if isinstance(release, RegressionRelease):
        rows = partial(row_samples.sample_rows, release.result, generator)
        if intercept:
            return rows
        return lambda number: np.insert(rows(number), release.constant, 1.0, axis=1)
    mean, covariance = release.row_moments()
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def normal_rows(number: int) -> np.ndarray:
        samples = mean + generator.standard_normal((number, len(mean))) @ root.T
        return samples[:, int(intercept) :].astype(np.float32)

    return normal_rows


def rehearse_tables(
    fit: Fit,
    model: Model,
    tables: Iterable[MadeUpTable],
    key: int = 0,
) -> Rehearsal:
    """On tables that are given, with outcomes that the model draws; `fit` is `confide.fit` of a model with a budget."""
    if model.simulate is None:
        raise Refused(f"{model.name} cannot simulate outcomes: give it a simulate function")
    start, found, losses = time.perf_counter(), [], []
    simulate, score = jax.jit(model.simulate), partial(_score, model.log_likelihood)
    for number, table in enumerate(tables):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(key), number), 3)
        y = np.asarray(simulate(keys[0], table.truth, table.x))
        with canary_requests.none():  # whoever audits a run does not audit its rehearsal
            fitted = fit(data=(table.x, to_labels(model.labels, y)), key=keys[2], verbose=False, progress=False)
        every, alone = fitted.flatten(), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], table.truth)
        draws, truth = coefficients(every), coefficients(alone)[0]
        ends = np.quantile(draws, [(1 - PROBABILITY) / 2, (1 + PROBABILITY) / 2], axis=0)
        found.append((truth, draws.mean(axis=0), *ends))
        fresh = simulate(keys[1], table.truth, table.fresh)
        losses.append([float(score(each, table.fresh, fresh)) for each in (every, alone)])
    truths, means, low, high = (np.stack(part) for part in zip(*found, strict=True))
    posterior_loss, known = np.array(losses).T
    return Rehearsal(
        truths=truths,
        means=means,
        low=low,
        high=high,
        log_losses=posterior_loss,
        known_losses=known,
        seconds=time.perf_counter() - start,
    )


def coefficients(draws: Any) -> np.ndarray:
    """Of every draw, in one row; without a noise scale."""
    kept = {name: leaf for name, leaf in draws.items() if name != "noise_scale"}
    return np.asarray(jax.vmap(lambda one: ravel_pytree(one)[0])(kept), np.float64)


@partial(jax.jit, static_argnames=("log_likelihood",))
def _score(log_likelihood: Callable[..., jax.Array], draws: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """-log of the mean probability of outcomes over draws, mean over rows."""

    def of_rows(one: Any) -> jax.Array:
        return jax.vmap(lambda row, outcome: log_likelihood(one, row, outcome))(x, y)

    every = jax.lax.map(of_rows, draws, batch_size=50)
    return -jnp.mean(jax.scipy.special.logsumexp(every, axis=0) - jnp.log(every.shape[0]))


def calibrate(fit: Fit, posterior: Posterior, datasets: int, key: int = 0) -> Posterior:
    """The posterior with draws as far from their mean as made-up truths of a rehearsal ask for."""
    seen, release = rehearse_run(fit, posterior, datasets, key), posterior.release
    assert isinstance(release, SCORING)
    wider = replace(posterior, release=replace(release, inflation=seen.inflation))
    told = {"calibration": seen.to_json() | {"key": key}}
    return replace(wider, draws=release_check.make_draws(wider), plan=posterior.plan | told)
