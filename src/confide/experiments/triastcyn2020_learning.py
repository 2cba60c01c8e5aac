"""What Table 1 and Figure 2 of triastcyn2020 share: their four datasets, and fits with noise that a budget pays for.

- MNIST: two convolutions (`models.cnn`), 60,000 digits, batches of 1,024.
- CIFAR-10: the paper retrains the last layer of a VGG-16 that others had trained on ImageNet. No such network is here:
  softmax regression on scattering features (`confide.features`), which are learnt from nobody. Batches of 512.
- Abalone: has a shell more than 9 rings, the median? Four shells in five are fitted.
- Adult: is the income above 50,000 dollars?

Clip 1 everywhere. A fit takes the noise that (epsilon, 1e-5) pays for, and is asked for a guarantee at delta_mu =
1e-10, so that its estimate for typical people is at that delta too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import confide
from confide import data
from confide.experiments.triastcyn2020_curves import DELTA, STRICT
from confide.posterior import NotPrivateWarning, Posterior

SEED = 2020
CLIP = 1.0
MEDIAN = 9  # rings
PRIOR_SCALE = 10.0  # of weights on features whose rows have norms of at most 1
ALL = 10**9  # records: as many as there are
Records = tuple[np.ndarray, np.ndarray]


class Task(NamedTuple):
    model: confide.Model
    train: Records
    test: Records


class Effort(NamedTuple):
    """Of one run: `records` are the most that are fitted."""

    records: int
    batch_size: int
    steps: int


def digits(records: int) -> Task:
    split = data.mnist()
    return Task(confide.models.cnn(), (split.x[:records], split.y[:records]), (split.test_x, split.test_y))


def objects(records: int) -> Task:
    """As many for the test as are fitted, if there are. What is cached is of public images."""
    split = data.cifar10()
    kept = len(split.y) <= records
    x, test_x = (confide.features.scattering(images[:records], cache=kept) for images in (split.x, split.test_x))
    model = confide.models.softmax_regression(x.shape[1], 10, prior_scale=PRIOR_SCALE)
    return Task(model, (x, split.y[:records]), (test_x, split.test_y[:records]))


def shells(records: int) -> Task:
    table = data.abalone(count=True)
    y = (table.y > MEDIAN).astype(np.float32)
    train, test = np.split(np.random.default_rng(SEED).permutation(len(y)), [len(y) * 4 // 5])
    train = train[:records]
    model = confide.models.logistic_regression(table.x.shape[1])
    return Task(model, (table.x[train], y[train]), (table.x[test], y[test]))


def incomes(records: int) -> Task:
    split = data.adult()
    model = confide.models.logistic_regression(split.x.shape[1])
    return Task(model, (split.x[:records], split.y[:records]), (split.test_x, split.test_y))


class Plan(NamedTuple):
    task: Callable[[int], Task]
    effort: Effort
    sampler: Callable[[float], Any]  # of a noise multiplier
    baseline: Any
    longer: Effort  # of the baseline


def plans(quick: bool) -> dict[str, Plan]:
    def effort(records: int, batch_size: int, steps: int, few: int) -> Effort:
        return Effort(min(records, 2000), 256, few) if quick else Effort(records, batch_size, steps)

    return {
        "MNIST": Plan(
            digits,
            effort(ALL, 1024, 590, 30),
            lambda noise: confide.dp_sgd(1.0, noise_multiplier=noise),
            confide.dp_sgd(0.05, momentum=0.9),
            effort(ALL, 256, 700, 60),
        ),
        "CIFAR10": Plan(
            objects,
            effort(ALL, 512, 600, 60),
            lambda noise: confide.dp_sgd(1.0, momentum=0.9, noise_multiplier=noise),
            confide.dp_adam(0.02),
            effort(ALL, 512, 600, 60),
        ),
        "Abalone": Plan(
            shells,
            effort(ALL, 256, 1000, 200),
            lambda noise: confide.dpvi(noise_multiplier=noise),
            confide.dpvi(),
            effort(ALL, 256, 2000, 200),
        ),
        "Adult": Plan(
            incomes,
            effort(ALL, 256, 2000, 200),
            lambda noise: confide.dpvi(noise_multiplier=noise),
            confide.dpvi(),
            effort(ALL, 256, 2000, 200),
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A private fit on public data, and what it reveals."""

    posterior: Posterior
    accuracy: float
    multiplier: float  # noise over clip
    epsilon: float  # for everybody at DELTA
    strict: float  # for everybody at STRICT
    typical: Any  # at STRICT


def fitted(task: Task, sampler: Any, effort: Effort, epsilon: float) -> Fitted:
    """`sampler(noise_multiplier)` with the noise that (epsilon, DELTA) pays for."""
    steps, batch_size = effort.steps, effort.batch_size
    setting = {"sampling_probability": batch_size / len(task.train[1]), "steps": steps}
    multiplier = confide.calibrate_noise(epsilon=epsilon, delta=DELTA, **setting)
    strict = confide.epsilon(noise_multiplier=multiplier, delta=STRICT, **setting)
    posterior = confide.fit(
        task.model,
        task.train,
        confide.Budget(epsilon=1.01 * strict, delta=STRICT),  # a part of delta is for batches beyond their buffer
        sampler(multiplier),
        steps=steps,
        batch_size=batch_size,
        clip=CLIP,
        key=SEED,
        account=("dp", "bayesian"),
        progress=False,
        verbose=False,
    )
    return Fitted(
        posterior=posterior,
        accuracy=accuracy(posterior, task.test),
        multiplier=multiplier,
        epsilon=confide.epsilon(noise_multiplier=multiplier, delta=DELTA, **setting),
        strict=strict,
        typical=posterior.guarantee and posterior.guarantee.typical,
    )


def unprotected(task: Task, sampler: Any, effort: Effort) -> Posterior:
    """The same model without a guarantee."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)  # the records are public
        return confide.sample(
            task.model,
            task.train,
            sampler,
            steps=effort.steps,
            batch_size=effort.batch_size,
            key=SEED,
            progress=False,
        )


def accuracy(posterior: Posterior, test: Records) -> float:
    x, y = test
    return float(np.mean(posterior.predict(x) == y))
