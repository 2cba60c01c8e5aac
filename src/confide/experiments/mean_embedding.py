r"""A generator from one release: the mean embedding of labelled images in random features, after DP-MERF.

With phi(x) = (cos w_1 x, sin w_1 x, ...) / sqrt(D), w_j ~ N(0, I / width^2), every image has ||phi(x)|| = 1. So the
sums of phi over the images of each class, all together, move by 1 where a record is added or removed, and by 2 at the
most where one takes the place of another. They are released once with Gaussian noise, mu-GDP with mu = that / noise.
Pixels outside [0, 1] or unknown labels make a record count as absent. All else is post-processing: a generator that
takes a label and random numbers is moved until the mean embedding of its images is near the release, and a classifier
learns from them.
The release has all labels, and not a hundred of them: it is another task, and what the same budget buys where sums are
asked for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from confide.inference.spend import DOMAIN, GIVEN_KEY, Key, Purchase, spend
from confide.inference.summaries.runs import Priced
from confide.mechanism import noise
from confide.models.inputs import as_records
from confide.privacy.accountants.gdp import mu_of_epsilon
from confide.privacy.budget import Budget, Guarantee
from confide.privacy.events import GaussianRelease

CLASSES, PIXELS, LATENT, HIDDEN = 10, 784, 10, 200
WIDTH = 10.5  # of the kernel, about the distance of two digits
CHUNK = 2000
UNIT = "Every record contributes a vector of length 1 to the sum that was released."


class Embedding(NamedTuple):
    """What is released, and what it is of."""

    frequencies: np.ndarray  # (pixels, D), public
    means: np.ndarray  # (classes, 2 D): noisy sums over the declared number of records
    guarantee: Guarantee


def embed(x: Any, frequencies: Any) -> jax.Array:
    """Rows of norm 1."""
    angles = jnp.asarray(x) @ jnp.asarray(frequencies)
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1) / np.sqrt(angles.shape[-1])


def release(x: np.ndarray, y: np.ndarray, budget: Budget, seed: int, features: int = 1000) -> Embedding:
    """The noisy mean embedding of rows of pixels with labels; priced and paid for before it is computed."""
    generator = np.random.default_rng([seed, 7])
    frequencies = (generator.normal(size=(x.shape[1], features)) / WIDTH).astype(np.float32)
    size = CLASSES * 2 * features
    moved = (2 if budget.neighbours == "replace-one" else 1) * (1 + 1e-5)  # what single precision adds to a norm
    mu = mu_of_epsilon(budget.epsilon, budget.delta * (1 - 1e-3))
    scale = noise.wide(moved / mu, moved, size)
    settings = {"frequencies": frequencies.tobytes().hex()[:4096], "features": features, "scale": scale}
    summary = Priced(
        model="mean_embedding", sampler="mean_embedding", records=len(x), parameters=size, chains=1, draws=1
    )
    purchase = Purchase(
        event=GaussianRelease(mu=mu, neighbours=budget.neighbours),
        summary=summary,
        released="the noisy sums of random features of each class",
        assumptions=(UNIT, DOMAIN, GIVEN_KEY),
        data=as_records((x, y)),
        details=lambda: settings,
        remedy="give a larger delta",
        what="release",
        note="mean embedding",
    )
    paid = spend(purchase, budget, None, Key(noise.derive_key(noise.as_key(seed), "release"), True), verbose=False)
    noisy = noise.around(add_up(x, y, frequencies).ravel(), scale, paid.noise("embedding"))
    noisy = noisy.reshape(CLASSES, -1)
    return Embedding(frequencies, noisy / len(x), paid.guarantee)


def add_up(x: np.ndarray, y: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Sums over the records of each class; of what is no image with a label, nothing."""
    sums, found = np.zeros((CLASSES, 2 * frequencies.shape[1])), jax.jit(embed)
    for first in range(0, len(x), CHUNK):
        rows, labels = x[first : first + CHUNK], y[first : first + CHUNK]
        inside = np.all((rows >= 0) & (rows <= 1), axis=1)
        of_class = (labels == np.arange(CLASSES)[:, None]) & inside
        sums += of_class.astype(float) @ np.asarray(found(np.where(inside[:, None], rows, 0), frequencies), float)
    return sums


def generate(
    embedding: Embedding, seed: int, steps: int, count: int, batch: int = 200
) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels from a generator that was fitted to the release."""
    sizes = (LATENT + CLASSES, HIDDEN, HIDDEN, PIXELS)
    key = jax.random.key(seed)
    weights = _dense(key, sizes)
    target, frequencies = jnp.asarray(embedding.means, jnp.float32), jnp.asarray(embedding.frequencies)

    def images(weights: Any, key: jax.Array, labels: jax.Array) -> jax.Array:
        chosen = jax.nn.one_hot(labels, CLASSES)
        latent = jax.random.normal(key, (len(labels), LATENT))
        return jax.nn.sigmoid(_scores(weights, jnp.concatenate([chosen, latent], axis=1)))

    def loss(weights: Any, key: jax.Array) -> jax.Array:
        labels = jnp.arange(batch) % CLASSES
        found = embed(images(weights, key, labels), frequencies)
        means = jax.nn.one_hot(labels, CLASSES).T @ found / batch
        return jnp.sum(jnp.square(means - target))

    weights = _descend(loss, weights, jax.random.fold_in(key, 1), steps, 0.01)
    labels = np.arange(count) % CLASSES
    return np.asarray(jax.jit(images)(weights, jax.random.fold_in(key, 2), jnp.asarray(labels))), labels


def classify(x: np.ndarray, y: np.ndarray, seed: int, steps: int, batch: int = 200) -> Any:
    """A classifier, rows of pixels -> labels, of a perceptron that learns from generated images."""
    rows, labels = jnp.asarray(x), jnp.asarray(y)

    def loss(weights: Any, key: jax.Array) -> jax.Array:
        chosen = jax.random.randint(key, (batch,), 0, len(rows))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(_scores(weights, rows[chosen]), labels[chosen]))

    weights = _dense(jax.random.key(seed + 1), (PIXELS, 100, CLASSES))
    weights = _descend(loss, weights, jax.random.key(seed + 2), steps, 1e-3)
    return lambda x: np.asarray(jnp.argmax(_scores(weights, jnp.asarray(x)), axis=1))


def _dense(key: jax.Array, sizes: Sequence[int]) -> Any:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(key, (before, after)) * np.sqrt(2 / before), jnp.zeros(after))
        for key, before, after in zip(keys, sizes, sizes[1:], strict=False)
    ]


def _scores(weights: Any, x: jax.Array) -> jax.Array:
    for matrix, bias in weights[:-1]:
        x = jax.nn.relu(x @ matrix + bias)
    return x @ weights[-1][0] + weights[-1][1]


def _descend(loss: Any, weights: Any, key: jax.Array, steps: int, rate: float) -> Any:
    """Adam, with a rate that falls to a tenth."""
    rule = optax.adam(optax.cosine_decay_schedule(rate, steps, 0.1))

    def step(carry: Any, t: jax.Array) -> tuple[Any, None]:
        weights, state = carry
        change, state = rule.update(jax.grad(loss)(weights, jax.random.fold_in(key, t)), state)
        return (optax.apply_updates(weights, change), state), None

    run = jax.jit(lambda weights: jax.lax.scan(step, (weights, rule.init(weights)), jnp.arange(steps))[0][0])
    return run(weights)
