r"""The semi-supervised GAN WITHOUT PRIVACY, with feature matching: what a hundred labels can reach on MNIST.

After Salimans et al. (2016), with smaller layers. A perceptron with weight normalisation and Gaussian noise before each
layer is the discriminator, whose K scores and a score of 0 for made-up images are K + 1 outcomes. Its loss is the cross
entropy of the labelled images plus the mean of that of real against made-up ones. The generator is a perceptron with
batch norm and moves the mean features of its images, the discriminator's last hidden layer, to those of real images.
Both move by Adam; what predicts is a running mean of the discriminator's weights.

**Why this is apart from the library.** The feature matching looks at real images in the generator's step, the scales of
the layers are fitted to real images before the first step, and batches of labelled and unlabelled images have no clip:
no kernel could ask for any of it. The private runs do without (`gan_generators`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from confide.models.semi_supervised import log_made_up, log_real

CLASSES, PIXELS = 10, 784
FIRST_NOISE, NOISE = 0.3, 0.5  # before the first layer, and before the others
TRACKED = 0.995  # of the running mean that is kept in a step
BLOCK = 200


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The settings."""

    hidden: tuple[int, ...] = (500, 250, 250)
    generator: tuple[int, ...] = (64, 300, 300)  # random numbers, and hidden layers
    batch: int = 100
    labelled_batch: int = 50
    rate: float = 0.003
    epochs: float = 12.0
    unlabelled_weight: float = 1.0  # 0 is the supervised baseline
    records: int = 60_000


class Nets(NamedTuple):
    discriminator: Any
    generator: Any


class Carry(NamedTuple):
    nets: Nets
    moments: Any
    mean: Any  # of the discriminator's weights


class Trained(NamedTuple):
    discriminator: Any
    generator: Any
    curve: list[tuple[int, float]]  # steps and accuracy, where a test set is given

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(jnp.argmax(_discriminate(self.discriminator, jnp.asarray(x), None)[0], axis=1))

    def images(self, key: jax.Array, count: int) -> np.ndarray:
        return np.asarray(_generate(self.generator, key, count))


def train(
    setting: Reference,
    x: np.ndarray,
    labelled: tuple[np.ndarray, np.ndarray],
    seed: int,
    test: tuple[np.ndarray, np.ndarray] | None = None,
) -> Trained:
    """Rows of pixels, of which `labelled` are the few with labels."""
    images, rows, labels = jnp.asarray(x), jnp.asarray(labelled[0]), jnp.asarray(labelled[1])
    steps = max(BLOCK, round(setting.epochs * setting.records / setting.batch) // BLOCK * BLOCK)
    few, many = min(setting.labelled_batch, len(rows)), setting.batch
    rule = optax.adam(lambda t: setting.rate * jnp.clip(2 * (1 - t / steps), 0.05, 1.0), b1=0.5)

    def loss(discriminator: Any, generator: Any, real: jax.Array, chosen: jax.Array, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        whole = jnp.concatenate([rows[chosen], real, _generate(generator, first, many)])
        scores, _ = _discriminate(discriminator, whole, second)
        of_labels, of_real, of_made_up = scores[:few], scores[few : few + many], scores[few + many :]
        told = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(of_labels, labels[chosen]))
        apart = -(jnp.mean(log_real(of_real)) + jnp.mean(log_made_up(of_made_up))) / 2
        return told + setting.unlabelled_weight * apart

    def match(generator: Any, discriminator: Any, real: jax.Array, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        _, features = _discriminate(discriminator, jnp.concatenate([real, _generate(generator, first, many)]), second)
        return jnp.mean(jnp.square(jnp.mean(features[:many], axis=0) - jnp.mean(features[many:], axis=0)))

    def step(carry: Carry, key: jax.Array) -> tuple[Carry, None]:
        keys, (nets, moments, mean) = jax.random.split(key, 5), carry
        real, other = (images[jax.random.randint(key, (many,), 0, len(images))] for key in keys[:2])
        chosen = jax.random.permutation(keys[2], len(rows))[:few]
        slope = _only_trained(jax.grad(loss)(nets.discriminator, nets.generator, real, chosen, keys[3]))
        change, first = rule.update(slope, moments[0])
        discriminator = optax.apply_updates(nets.discriminator, change)
        change, second = rule.update(jax.grad(match)(nets.generator, discriminator, other, keys[4]), moments[1])
        generator = optax.apply_updates(nets.generator, change)
        mean = jax.tree.map(lambda old, new: TRACKED * old + (1 - TRACKED) * new, mean, discriminator)
        return Carry(Nets(discriminator, generator), (first, second), mean), None

    nets, key = _start(setting, images[:500], seed), jax.random.key(seed + 100)
    carry = Carry(nets, (rule.init(nets.discriminator), rule.init(nets.generator)), nets.discriminator)
    run = jax.jit(lambda carry, key: jax.lax.scan(step, carry, jax.random.split(key, BLOCK))[0])
    curve = []
    for number in range(steps // BLOCK):
        carry = run(carry, jax.random.fold_in(key, number))
        if test is not None and (number + 1) % 10 == 0:
            found = Trained(carry.mean, None, []).predict(test[0])
            curve.append(((number + 1) * BLOCK, float(np.mean(found == test[1]))))
    return Trained(carry.mean, carry.nets.generator, curve)


def _discriminate(layers: Any, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Scores of the classes, and the features before them."""
    features = x
    for number, layer in enumerate(layers):
        features = x
        if key is not None:
            spread = NOISE if number else FIRST_NOISE
            x = x + spread * jax.random.normal(jax.random.fold_in(key, number), x.shape)
        x = x @ (layer["weights"] * _unit(layer)) + layer["bias"]
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return x, features


def _unit(layer: Any) -> jax.Array:
    """What makes the columns as long as `scale` says."""
    return layer["scale"] / jnp.sqrt(jnp.sum(jnp.square(layer["weights"]), axis=0) + 1e-8)


def _generate(layers: Any, key: jax.Array, count: int) -> jax.Array:
    x = jax.random.uniform(key, (count, layers[0]["weights"].shape[0]), minval=-1.0)
    for layer in layers[:-1]:
        x = x @ layer["weights"]
        x = (x - jnp.mean(x, axis=0)) * jax.lax.rsqrt(jnp.var(x, axis=0) + 1e-5)
        x = jax.nn.relu(x * layer["scale"] + layer["bias"])
    return jax.nn.sigmoid(x @ layers[-1]["weights"] + layers[-1]["bias"])


def _only_trained(slopes: Any) -> Any:
    """Scales of hidden layers stay as they began."""
    return [{**slope, "scale": 0 * slope["scale"]} for slope in slopes[:-1]] + slopes[-1:]


def _start(setting: Reference, images: jax.Array, seed: int) -> Nets:
    """Scores of mean 0 and variance 1 for some real images, in every layer of the discriminator."""
    first, second = jax.random.split(jax.random.key(seed))
    discriminator, x = _dense(first, (PIXELS, *setting.hidden, CLASSES)), images
    for layer in discriminator:
        found = x @ (layer["weights"] * _unit(layer))
        layer["scale"] = 1 / jnp.std(found, axis=0)
        layer["bias"] = -jnp.mean(found, axis=0) * layer["scale"]
        x = jax.nn.relu(found * layer["scale"] + layer["bias"])
    return Nets(discriminator, _dense(second, (*setting.generator, PIXELS)))


def _dense(key: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    return [
        {
            "weights": jax.random.normal(key, (before, after)) / math.sqrt(before),
            "bias": jnp.zeros(after),
            "scale": jnp.ones(after),
        }
        for key, before, after in zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False)
    ]
