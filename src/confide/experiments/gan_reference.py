r"""The semi-supervised Bayesian GAN WITHOUT PRIVACY, with feature matching: what a hundred labels can reach on MNIST.

Networks and losses are after Salimans et al. (2016), with smaller layers; ensemble and sampler after Saatchi and
Wilson (2017). A perceptron with weight normalisation and Gaussian noise before each layer is the discriminator,
whose K scores and a score of 0 for made-up images are K + 1 outcomes. Its loss is the cross entropy of the labelled
images plus the mean of that of real against made-up ones. Each generator of the ensemble is a perceptron with batch
norm, and moves the mean features of its images, the discriminator's last hidden layer, to those of real images.

All networks burn in by Adam, and are then sampled by SGHMC whose masses are what Adam found: with M the root of a
gradient's mean square, friction a and temperature T,

    v' = (1 - a) v - eta M^-1 ( slope of the loss + theta / (records prior^2) ) + N(0, 2 a eta T M^-1 / records)
    theta' = theta + v'

so that draws have the density exp(-records loss / T), with N(0, prior^2) on the weights of a generator's last layer,
as wide as it starts. Elsewhere only the direction of a unit's weights matters, because its output is normalised, and
all directions are alike (a prior that shortens such weights makes the steps of their directions ever longer, at any
temperature). A hundred labels count as often as all images. Predictions are means over draws. The chain is short: when
it ends, single draws are still getting worse.

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
SMALLEST_MASS = 1e-4  # of a gradient's root mean square: pixels that are always black have none
BLOCK = 200  # steps from one draw to the next


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The settings."""

    hidden: tuple[int, ...] = (500, 250, 250)
    generator: tuple[int, ...] = (64, 300, 300)  # random numbers, and hidden layers
    ensemble: int = 2  # generators
    batch: int = 100
    labelled_batch: int = 50
    rate: float = 0.003
    friction: float = 0.1
    temperature: float = 1.0
    epochs: float = 30.0
    sampled: float = 0.25  # share of the steps that are by SGHMC
    unlabelled_weight: float = 1.0  # 0 is the supervised baseline
    records: int = 60_000


class Nets(NamedTuple):
    discriminator: Any
    generators: Any  # with an axis for the ensemble


class Trained(NamedTuple):
    draws: list[Any]  # of the discriminator
    generators: Any

    def predict(self, x: np.ndarray) -> np.ndarray:
        rows = jnp.asarray(x)
        mean = sum(jax.nn.softmax(_discriminate(one, rows, None)[0]) for one in self.draws)
        return np.asarray(jnp.argmax(mean, axis=1))

    def images(self, key: jax.Array, count: int) -> np.ndarray:
        return np.asarray(_generate(self.generators, key, count))


def train(setting: Reference, x: np.ndarray, labelled: tuple[np.ndarray, np.ndarray], seed: int) -> Trained:
    """Rows of pixels, of which `labelled` are the few with labels."""
    blocks = max(4, round(setting.epochs * setting.records / setting.batch) // BLOCK)
    last = max(1, round(setting.sampled * blocks))  # that are sampled
    slopes, key = _slopes(setting, x, labelled), jax.random.key(seed + 100)
    nets = _start(setting, jnp.asarray(x[:500]), seed)
    rule = optax.adam(_falling(setting.rate, BLOCK * (blocks - last)), b1=0.5)

    def adapt(carry: Any, key: jax.Array) -> tuple[Any, None]:
        nets, moments = carry
        change, moments = rule.update(slopes(nets, key), moments)
        return (optax.apply_updates(nets, change), moments), None

    carry = _repeat(adapt, (nets, rule.init(nets)), key, range(blocks - last))[-1]
    masses = jax.tree.map(lambda square: jnp.sqrt(square) + SMALLEST_MASS, carry[1][0].nu)
    sample = _sghmc(setting, slopes, masses, nets)
    still = jax.tree.map(jnp.zeros_like, nets)
    kept = [nets for nets, _ in _repeat(sample, (carry[0], still), key, range(blocks - last, blocks))]
    return Trained([one.discriminator for one in kept], kept[-1].generators)


def _falling(rate: float, steps: int) -> Any:
    return lambda t: rate * jnp.clip(2 * (1 - t / steps), 0.05, 1.0)


def _repeat(step: Any, carry: Any, key: jax.Array, blocks: range) -> list[Any]:
    """What there is after each block of steps."""
    run, found = jax.jit(lambda carry, key: jax.lax.scan(step, carry, jax.random.split(key, BLOCK))[0]), []
    for number in blocks:
        carry = run(carry, jax.random.fold_in(key, number))
        found.append(carry)
    return found


def _slopes(setting: Reference, x: np.ndarray, labelled: tuple[np.ndarray, np.ndarray]) -> Any:
    """Gradients of the losses of all networks, at batches of their own."""
    images, rows, labels = jnp.asarray(x), jnp.asarray(labelled[0]), jnp.asarray(labelled[1])
    few, many = min(setting.labelled_batch, len(rows)), setting.batch

    def tell(discriminator: Any, generators: Any, real: jax.Array, chosen: jax.Array, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        whole = jnp.concatenate([rows[chosen], real, _generate(generators, first, many)])
        scores, _ = _discriminate(discriminator, whole, second)
        of_labels, of_real, of_made_up = scores[:few], scores[few : few + many], scores[few + many :]
        told = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(of_labels, labels[chosen]))
        apart = -(jnp.mean(log_real(of_real)) + jnp.mean(log_made_up(of_made_up))) / 2
        return told + setting.unlabelled_weight * apart

    def match(generators: Any, discriminator: Any, real: jax.Array, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        made_up = _generate(generators, first, many)
        _, features = _discriminate(discriminator, jnp.concatenate([real, made_up]), second)
        of_each = features[many:].reshape(setting.ensemble, -1, features.shape[1])
        apart = jnp.mean(features[:many], axis=0) - jnp.mean(of_each, axis=1)
        return jnp.sum(jnp.mean(jnp.square(apart), axis=1))

    def slopes(nets: Nets, key: jax.Array) -> Nets:
        keys = jax.random.split(key, 5)
        real, other = (images[jax.random.randint(key, (many,), 0, len(images))] for key in keys[:2])
        chosen = jax.random.permutation(keys[2], len(rows))[:few]
        discriminator = jax.grad(tell)(nets.discriminator, nets.generators, real, chosen, keys[3])
        generators = jax.grad(match)(nets.generators, nets.discriminator, other, keys[4])
        return Nets(_only_trained(discriminator), generators)

    return slopes


def _sghmc(setting: Reference, slopes: Any, masses: Nets, start: Nets) -> Any:
    """One step; the prior is as wide as weights start, and what is normalised has none, nor have biases and scales."""
    friction = setting.friction
    eta = friction * 0.05 * setting.rate  # as far as Adam's last step
    spread = math.sqrt(2 * friction * eta * setting.temperature / setting.records)
    priors = jax.tree.map(lambda leaf: 0.0, start)
    priors.generators[-1]["weights"] = start.generators[-1]["weights"].shape[-2] / setting.records

    def move(v: jax.Array, theta: jax.Array, slope: jax.Array, mass: jax.Array, prior: float, xi: jax.Array) -> Any:
        return (1 - friction) * v - eta * (slope + prior * theta) / mass + spread * xi / jnp.sqrt(mass)

    def step(carry: tuple[Nets, Nets], key: jax.Array) -> tuple[tuple[Nets, Nets], None]:
        (nets, velocity), (first, second) = carry, jax.random.split(key)
        leaves, structure = jax.tree.flatten(nets)
        drawn = [jax.random.normal(jax.random.fold_in(second, i), leaf.shape) for i, leaf in enumerate(leaves)]
        xi = jax.tree.unflatten(structure, drawn)
        xi = xi._replace(discriminator=_only_trained(xi.discriminator))
        velocity = jax.tree.map(move, velocity, nets, slopes(nets, first), masses, priors, xi)
        return (jax.tree.map(jnp.add, nets, velocity), velocity), None

    return step


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


def _generate(generators: Any, key: jax.Array, count: int) -> jax.Array:
    """Images of all generators of an ensemble, as many of each."""
    ensemble = len(generators[0]["bias"])
    keys = jax.random.split(key, ensemble)
    found = jax.vmap(lambda layers, key: _generate_by_one(layers, key, count // ensemble))(generators, keys)
    return found.reshape(-1, PIXELS)


def _generate_by_one(layers: Any, key: jax.Array, count: int) -> jax.Array:
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
    sizes = (*setting.generator, PIXELS)
    return Nets(discriminator, jax.vmap(lambda key: _dense(key, sizes))(jax.random.split(second, setting.ensemble)))


def _dense(key: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    return [
        {
            "weights": jax.random.normal(key, (before, after)) / math.sqrt(before),
            "bias": jnp.zeros(after),
            "scale": jnp.ones(after),
        }
        for key, before, after in zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False)
    ]
