"""li2019, section 4.3: a Bayesian GAN by SGHMC and one by DP-SGD, semi-supervised MNIST with 100 labels.

The paper says in one sentence that under the same (0.2, 1e-5) the first reaches 98.3% and the second 90.8%, and gives
no setting. Here the discriminator has K + 1 outcomes (`confide.models.semi_supervised`) and is sampled by SGHMC, or
moved by DP-SGD, through `confide.fit`; an ensemble of generators is its companion, and post-processing
(`gan_generators`).

**What is private.** Gradients of the discriminator on real images, labelled and unlabelled, are the only access to
records: one clipped sum and one noise a step, hence one budget for both losses. With `public` labels the hundred
labelled images are public and the others private; with `private` ones all are, and so is which have a label. The
hundred are chosen, ten of each class, before images are records, and no guarantee covers that. Nor is in a price how
settings were found. Step size, weight and number of steps with private labels were chosen at epsilon 10, by one run
each, on training images without labels, with labels of no run below. Those with public labels were set by hand with
test accuracies in sight; on such images others were no better by more than a point.

**SGHMC is DP-SGD with momentum.** With friction a and step size eta, SGHMC moves as DP-SGD of momentum 1 - a and rate
eta does, and the same budget pays for the same noise (a test compares them): what differs is what is kept, draws of
which predictions are averaged or one averaged point, and the generators, of which SGHMC samples several. The
temperature of SGHMC follows from the noise that the budget asks for, and is told in a column.

Every private run has canaries planted, by which it is audited: the noise and the cut of its sums, and not its
generators. Accuracies are of 5 runs, each with labels of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from confide import models
from confide.audits import planted
from confide.data import datasets
from confide.experiments import fits, gan_claims, gan_reference, image_settings, mean_embedding
from confide.experiments.gan_claims import DELTA, EPSILONS, Cell
from confide.experiments.gan_generators import Generators, draw_images, generators
from confide.experiments.gan_reference import Reference
from confide.experiments.parts import NOT_KEPT, Parts
from confide.experiments.reproduction import Claim, Reproduction
from confide.inference import fitting
from confide.inference.posterior import Posterior
from confide.models.semi_supervised import UNLABELLED, hide_labels
from confide.privacy import calibration
from confide.privacy.budget import Budget
from confide.samplers import Sampler, dp_sgd, sghmc
from confide.samplers.companions import accompany
from confide.validation import Refused

CLASSES, EACH, PICTURES = 10, 10, 10
FRICTION, CLIP, GROUPS = 0.1, 1.0, 4
STEPS = {"public": 0.05, "private": 0.3}  # step sizes: private labels are one record in 600, and need longer ones
LONGER = {"public": 1, "private": 3}  # as many times the steps
WEIGHTS = {"public": 1.0, "private": 0.0001}  # of real and made-up images beside labels
CONSTANTS = (FRICTION, CLIP, GROUPS, STEPS, LONGER, WEIGHTS, PICTURES, Generators())  # by which kept parts are known
Labelled = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done; sizes that a reader may shrink."""

    records: int | None
    tests: int | None
    runs: int
    epsilons: tuple[float, ...]
    hidden: int
    steps: int
    batch: int
    canaries: int
    reference: Reference
    supervised: Reference
    embedding: tuple[int, int]  # random features, and steps of the generator


FULL = Effort(
    records=None,
    tests=None,
    runs=5,
    epsilons=EPSILONS,
    hidden=100,
    steps=400,
    batch=1024,
    canaries=1000,
    reference=Reference(),
    supervised=Reference(epochs=3, unlabelled_weight=0.0, temperature=0.0),
    embedding=(1000, 2000),
)
SMALL = Reference(hidden=(32, 32), generator=(16, 32, 32), batch=20, labelled_batch=20, epochs=1, records=4000)
QUICK = Effort(
    records=1200,
    tests=300,
    runs=1,
    epsilons=EPSILONS[:1],
    hidden=16,
    steps=12,
    batch=100,
    canaries=30,
    reference=SMALL,
    supervised=replace(SMALL, unlabelled_weight=0.0, temperature=0.0),
    embedding=(60, 100),
)


class Task(NamedTuple):
    """Images as rows of pixels in [0, 1], and which have labels."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    effort: Effort

    def shown(self, seed: int) -> np.ndarray:
        """Which images of the task with this seed have a label: ten of each class."""
        rng, shown = np.random.default_rng([seed, 19]), np.zeros(len(self.y), bool)
        for label in range(CLASSES):
            shown[rng.choice(np.flatnonzero(self.y == label), EACH, replace=False)] = True
        return shown

    def labelled(self, seed: int) -> Labelled:
        shown = self.shown(seed)
        return self.x[shown], self.y[shown]

    def accuracy(self, predicted: np.ndarray) -> float:
        return float(np.mean(predicted == self.test_y))


def run(quick: bool = False, parts: Parts = NOT_KEPT) -> Reproduction:
    effort = QUICK if quick else FULL
    try:
        task = _task(effort)
    except Refused as reason:
        return gan_claims.reproduction([], {}, (Claim("section 4.3", "shown", "left out", str(reason)),))
    rows, pictures = [], {}
    for cell in gan_claims.cells(effort.epsilons):
        found = [
            parts.get(
                f"{cell.name}, run {seed}",
                {"effort": effort, "constants": CONSTANTS},
                partial(measure, cell, seed, task),
            )
            for seed in range(effort.runs)
        ]
        rows.append(gan_claims.summarise(cell, found))
        if found[0].get("images"):
            pictures[cell] = np.asarray(found[0]["images"], np.uint8)
    return gan_claims.reproduction(rows, pictures)


def measure(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    """What one run finds; a function of the cell, the seed and the effort alone, in numbers that JSON can hold."""
    return MEASURES[cell.method](cell, seed, task)


def _task(effort: Effort) -> Task:
    split = datasets.mnist()

    def rows(images: np.ndarray, most: int | None) -> np.ndarray:
        return (np.asarray(images[:most], np.float32) / 255).reshape(len(images[:most]), -1)

    train, test = effort.records, effort.tests
    return Task(rows(split.x, train), split.y[:train], rows(split.test_x, test), split.test_y[:test], effort)


def _supervised(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    """The perceptron of the GAN with feature matching, on the labelled images alone."""
    labelled = task.labelled(seed)
    trained = gan_reference.train(task.effort.supervised, labelled[0], labelled, seed)
    return {"accuracy": task.accuracy(trained.predict(task.test_x))}


def _same(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    labelled, how = task.labelled(seed), dp_sgd(STEPS["public"], momentum=1 - FRICTION)
    posterior = fits.fit_unprotected(_network(task), labelled, how, task.effort.steps, len(labelled[1]), key=seed)
    return {"accuracy": task.accuracy(posterior.predict(task.test_x))}


def _network(task: Task) -> models.Model:
    return models.mlp((task.x.shape[1], task.effort.hidden, CLASSES), "relu", groups=GROUPS)


def _reference(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    setting = task.effort.reference
    trained = gan_reference.train(setting, task.x, task.labelled(seed), seed)
    images = _as_bytes(trained.images(jax.random.key(seed), PICTURES))
    accuracy = task.accuracy(trained.predict(task.test_x))
    return {"accuracy": accuracy, "images": images, "temperature": setting.temperature}


def _scattering(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    """Softmax regression on scattering features of the labelled images, which are all of its records, by DP-SGD."""
    setting, (x, y) = image_settings.SETTINGS["mnist"], task.labelled(seed)
    both = [image_settings.rows(setting, rows.reshape(-1, 28, 28), cache=False) for rows in (x, task.test_x)]
    scale = np.float32(16 / setting.scale)
    records, tests = both[0] * scale, both[1] * scale
    model = models.softmax_regression(records.shape[1], CLASSES)
    if cell.epsilon is None:
        posterior = fits.fit_unprotected(model, (records, y), dp_sgd(0.5, momentum=0.9), 300, len(y), key=seed)
        return {"accuracy": task.accuracy(posterior.predict(tests))}
    budget = Budget(epsilon=cell.epsilon, delta=DELTA)
    posterior = fits.fit(model, (records, y), budget, dp_sgd(), steps=30, batch_size=len(y), clip=1.0, key=seed)
    return {"accuracy": task.accuracy(posterior.predict(tests)), "epsilon": _price(posterior)}


def _embedding(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    assert cell.epsilon is not None
    features, steps = task.effort.embedding
    found = mean_embedding.release(task.x, task.y, Budget(epsilon=cell.epsilon, delta=DELTA), seed, features)
    x, y = mean_embedding.generate(found, seed, steps, 50 * task.effort.batch)
    predict = mean_embedding.classify(x, y, seed, steps)
    accuracy = task.accuracy(predict(task.test_x))
    return {"accuracy": accuracy, "epsilon": found.guarantee.epsilon, "images": _as_bytes(x[:PICTURES])}


def _gan(cell: Cell, seed: int, task: Task) -> dict[str, Any]:
    """The discriminator by SGHMC or DP-SGD through the public calls; without a budget, with nothing cut."""
    effort, shown, bayesian = task.effort, task.shown(seed), cell.method.startswith("SGHMC")
    public = cell.labels == "public"
    x = task.x[~shown] if public else task.x
    y = np.full(len(x), UNLABELLED, np.int32) if public else hide_labels(task.y, shown)
    steps, weight = LONGER[cell.labels] * effort.steps, WEIGHTS[cell.labels]
    batch = min(effort.batch, len(x) // 8)
    model = models.semi_supervised(_network(task), weight)
    setting = Generators(ensemble=2 if bayesian else 1, temperature=float(bayesian), records=len(x), weight=weight)
    companion = generators(model, setting, jax.random.key(seed), task.labelled(seed) if public else None)
    sampler, temperature = _sampler(cell, bayesian, len(x), batch, steps)
    beside, kept = accompany(sampler, companion), min(10, steps // 4) if bayesian else 1
    how: Any = {"steps": steps, "batch_size": batch, "draws": kept, "key": seed}
    if cell.epsilon is None:
        posterior, audit = fits.fit_unprotected(model, (x, y), beside, **how), None
    else:
        budget = Budget(epsilon=cell.epsilon, delta=DELTA)
        quiet: Any = {"verbose": False, "progress": False, "canaries": effort.canaries}
        posterior = fitting.fit(model, (x, y), budget, beside, clip=CLIP, **how, **quiet)
        audit = planted.audit(posterior, confidence=0.95)  # many runs are judged together, in the claims
    weights = jax.tree.map(lambda leaf: leaf[0, -1], posterior.draws["companion"])
    each = [jax.tree.map(lambda leaf, j=j: leaf[j], weights) for j in range(setting.ensemble)]
    drawn = [draw_images(one, jax.random.key(seed), PICTURES // setting.ensemble) for one in each]
    found = {
        "accuracy": task.accuracy(posterior.predict(task.test_x)),
        "images": _as_bytes(np.concatenate([np.asarray(images) for images in drawn])),
        "temperature": temperature,
    }
    if audit is None:
        return found
    told = {"bound": audit.bound, "reach": audit.reach, "p_value": audit.p_value}
    return found | {"epsilon": _price(posterior)} | told


def _sampler(cell: Cell, bayesian: bool, n: int, batch: int, steps: int) -> tuple[Sampler, float | None]:
    """SGHMC at the temperature whose noise the budget asks for at the given step size, or its sibling."""
    eta = STEPS[cell.labels]
    if not bayesian:
        return dp_sgd(learning_rate=eta, momentum=1 - FRICTION), None
    if cell.epsilon is None:
        return sghmc(step_size=eta, temperature=1.0, friction=FRICTION), 1.0
    q = batch / n
    needed = calibration.calibrate_noise(epsilon=cell.epsilon, delta=DELTA, sampling_probability=q, steps=steps)
    temperature = eta * (needed * CLIP / q) ** 2 / (2 * FRICTION * n)
    return sghmc(temperature=temperature, friction=FRICTION), temperature


def _price(posterior: Posterior) -> float:
    assert posterior.guarantee is not None
    return posterior.guarantee.epsilon


def _as_bytes(images: np.ndarray) -> list[list[int]]:
    return np.round(255 * np.asarray(images)).astype(int).tolist()


MEASURES: dict[str, Callable[[Cell, int, Task], dict[str, Any]]] = {
    gan_claims.SUPERVISED: _supervised,
    gan_claims.SAME: _same,
    gan_claims.SCATTERING: _scattering,
    gan_claims.REFERENCE: _reference,
    gan_claims.SGHMC: _gan,
    gan_claims.DP_SGD: _gan,
    gan_claims.EMBEDDING: _embedding,
}
