"""What is special about one generalised linear family, in one place: everything else asks, and never looks at a name.

A family is a frozen value, with its given parameters as fields: `NegativeBinomial(dispersion=0.5)`. Scores are
s = x w, m is the mean of the outcome given s, and the residual r is the gradient of the negative log likelihood by s.

| family            | log likelihood of one record          | r                        |
|-------------------|---------------------------------------|--------------------------|
| logistic          | y s - log(1 + e^s)                    | sigmoid(s) - y           |
| softmax           | s_y - log sum_k e^(s_k)               | softmax(s) - onehot(y)   |
| linear            | -(y - s)^2 / (2 noise_scale^2)        | (s - y) / noise_scale^2  |
| Poisson           | y s - e^s                             | e^s - y                  |
| negative binomial | y s - (y + 1/a) log(1 + a e^s)        | (m - y) / (1 + a m)      |

The negative binomial has mean m = e^s and variance m + a m^2, known as NB2; a is its dispersion, which is `alpha` in
statsmodels and Stata, and 1 / a is `size` or `theta` in R and the concentration in NumPyro. As a falls to 0 it becomes
the Poisson.

**Bounded scores that bend nothing.** Cutting a residual by its own length shortens wrong labels more than right ones,
so that its mean given the features is no longer zero at the truth, and weights run away. `bounded` has two ways out,
both conditionally unbiased (Kuensch, Stefanski and Carroll 1989), with t the threshold.

- Labels are finitely many: r is multiplied by t over the longest residual that *any* label would have, where that is
  above t. The factor does not depend on y. Logistic: max(m, 1 - m). Softmax: sqrt(1 + ||m||^2 - 2 min m).
- Symmetric errors (linear): r cut to +-t has mean zero as it is.
- Counts: by the identity of Chen and Stein, m f(y + 1) - y f(y) has mean zero under the Poisson for **every** f, and
  p (k + y) f(y + 1) - y f(y) under the negative binomial (k = 1 / dispersion, p = m / (m + k)), because
  (y + 1) P(y + 1) = p (k + y) P(y). f = 1 is the residual. With f(y) = S / sqrt(S^2 + (y - m)^2), S the larger of
  1.22 standard deviations and the b that belongs to t, it falls off so that it is never above about S; it is then
  scaled down by b / S. The bound holds with b = t / (1 - p) / (1.05 + .31 / sqrt k), and the slope by s is at most
  (1.4 + .5 / k) t sqrt(information), both by a search over all counts and means that a test repeats; on the guarantee
  they have no bearing, since records are cut to the clip behind it all.

What is lost where t is far below a standard deviation: 11% of the information of a Poisson, 19% of a negative binomial
of dispersion 1. Where counts are large, t falls further by sqrt(typical / information): the slope by s would grow with
the mean otherwise, and no step would be small enough.

To add a family, write its class here, put it into `FAMILIES`, and give it a constructor in `confide.models.glm`:
samplers, baselines, files, reports and predictions follow. One of counts gets an estimator in two lines as well
(`confide.app.estimators.regression`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from confide import validation
from confide.models.family import Array, Family, Outcome
from confide.validation import Refused

FURTHEST = 40.0  # score of a count: further ones count as this
STEEPNESS = 1.4  # of a bounded score by the linear one, over its bound and the root of the information
MIXED_RATES = np.array([0.32063188, 0.47377018, 0.69609701, 1.01940113])  # fitted to the logistic function
MIXED_SHARES = np.array([0.06011085, 0.37026876, 0.46013263, 0.10948776])
COUNT_SLOPE = 0.9  # of a bounded count by s, over its bound and the root of the information
LARGE_COUNT, COUNTED = 20.0, 400  # a mean, and counts that are summed over
NOISE_SHARE = 0.25  # standard deviation of outcomes scaled to [-1, 1], where none is given


@dataclass(frozen=True)
class Logistic(Family):
    name, word, outcome, effect = "logistic_regression", "logistic", "two labels", "log odds"
    residual_bound, noise_aware = 1.0, True

    def admits(self, y: np.ndarray) -> np.ndarray:
        return known_labels(y, 2)

    def mean(self, s: Array) -> Array:
        return _sigmoid(s)

    def variance(self, s: Array) -> Array:
        mean = self.mean(s)
        return mean * (1 - mean)

    def log_likelihood(self, s: jax.Array, y: jax.Array) -> jax.Array:
        return y * s - jnp.logaddexp(s, 0.0)

    def simulate(self, key: jax.Array, s: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, self.mean(s)).astype(jnp.int32)

    def predict(self, s: Array) -> Array:
        return _library(s).stack([_sigmoid(-s), _sigmoid(s)], axis=-1)

    def residual(self, s: Array, y: Array) -> Array:
        return self.mean(s) - y

    def smoothness(self, bound: float, clip: float) -> float:
        return bound * bound / 4

    longest_clip = 2.5

    @property
    def usual_residual(self) -> float:
        return 0.5

    def bounded(self, s: Array, y: Array, threshold: Array, typical: float = 1.0) -> Array:
        """Rises with s: where it is cut it is -t or t for a wrong label, and +-t e^-|s| for a right one."""
        mean, library = self.mean(s), _library(s)
        return (mean - y) * library.minimum(1.0, threshold / library.maximum(mean, 1 - mean))

    convex_weights = True

    def bounded_loss(self, s: Array, y: Array, threshold: Array) -> Array:
        """With u = s for the label 0 and -s for 1, and a the logit of t held to at least 0: log(1 + e^u) for |u| <= a,
        beyond it t e^u below and a straight line of slope t above, joined so that nothing jumps."""
        library = _library(s)
        u = library.where(y > 0.5, -s, s)
        t = library.minimum(threshold, 1.0 - 1e-15)
        a = library.maximum(library.log(t) - library.log1p(-t), 0.0)
        middle = library.logaddexp(library.clip(u, -a, a), 0.0) - library.logaddexp(-a, 0.0)
        below = t * (library.exp(library.minimum(u, -a)) - library.exp(-a))
        cut = below + middle + t * library.maximum(u - a, 0.0)
        return library.where(threshold < 1, cut, library.logaddexp(u, 0.0) - math.log(2.0))

    def weighted_smoothness(self, bound: float, clip: float, typical: float = 1.0) -> float:
        """The slope by s is min(t, max(1/4, 1 - t)) at most: t e^-|s| where cut, for |s| >= |logit t|."""
        threshold = clip / bound
        return bound * bound * min(threshold, 0.5 if threshold < 0.5 else max(0.25, 1 - threshold))

    def information_weight(self, s: Array, threshold: Array, typical: float = 1.0) -> Array:
        mean, library = self.mean(s), _library(s)
        return mean * (1 - mean) * library.minimum(1.0, threshold / library.maximum(mean, 1 - mean))

    def information_bound(self, bound: float, clip: float, typical: float = 1.0) -> float:
        return min(bound * clip / 2, bound**2 / 4)

    def score_moments(self, s: np.ndarray, threshold: float, typical: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        slope = self.information_weight(s, np.asarray(threshold), typical)
        return slope, slope**2 / np.maximum(self.variance(s), 1e-300)

    def mean_over(self, centre: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """By normal distribution functions whose mixture is the logistic one to 6e-6 (Monahan and Stefanski 1992).
        Single precision tells as much, and is faster."""
        rates = MIXED_RATES / jnp.sqrt(1 + MIXED_RATES**2 * jnp.asarray(variance)[..., None])
        at, shares = (centre[..., None] * rates).astype(jnp.float32), MIXED_SHARES.astype(np.float32)
        mean = jax.scipy.special.ndtr(at) @ shares
        slope = (jax.scipy.stats.norm.pdf(at) * rates.astype(jnp.float32)) @ shares
        return mean.astype(centre.dtype), slope.astype(centre.dtype)

    @property
    def start_loss(self) -> float:
        return math.log(2)

    def log_likelihood_bound(self, score: float) -> float:
        return float(np.logaddexp(0.0, score))

    def loss_increment(self, start: Array, end: Array, y: Array) -> Array:
        return (1 - y) * _softplus_increment(start, end - start) + y * _softplus_increment(-start, start - end)

    def uncut_scores(self, y: np.ndarray, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        odds = np.log(threshold) - np.log1p(-np.minimum(threshold, 1.0))
        end = np.where(threshold < 1, odds, np.inf)
        return np.where(y > 0.5, -end, -np.inf), np.where(y > 0.5, np.inf, end)


@dataclass(frozen=True)
class Softmax(Family):
    classes: int

    name, word, outcome, effect = "softmax_regression", "softmax", "labels", "score"
    residual_bound, noise_aware = math.sqrt(2), True

    def __post_init__(self) -> None:
        _set(self, classes=validation.count(classes=self.classes))
        if self.classes < 2:
            raise Refused(f"classes = {self.classes} leaves nothing to tell apart: give at least 2")

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.classes,)

    def admits(self, y: np.ndarray) -> np.ndarray:
        return known_labels(y, self.classes)

    def mean(self, s: Array) -> Array:
        return special.softmax(s, axis=-1) if isinstance(s, np.ndarray) else jax.nn.softmax(s)

    def variance(self, s: Array) -> Array:
        mean = self.mean(s)
        return mean * (1 - mean)

    def log_likelihood(self, s: jax.Array, y: jax.Array) -> jax.Array:
        return s[..., y.astype(jnp.int32)] - jax.nn.logsumexp(s, axis=-1)

    def simulate(self, key: jax.Array, s: jax.Array) -> jax.Array:
        return jax.random.categorical(key, s)

    def residual(self, s: Array, y: Array) -> Array:
        if isinstance(s, np.ndarray):
            return self.mean(s) - np.eye(self.classes)[y.astype(np.int64)]
        return self.mean(s) - jax.nn.one_hot(y.astype(jnp.int32), self.classes, dtype=s.dtype)

    def information(self, s: Array) -> Array:
        return self.mean(s)

    def smoothness(self, bound: float, clip: float) -> float:
        return bound * bound / 2

    longest_clip, shared_shift = 1.8, True

    @property
    def usual_residual(self) -> float:
        return math.sqrt(1 - 1 / self.classes)

    def longest_residual(self, s: Array) -> Array:
        """Of any label."""
        mean, library = self.mean(s), _library(s)
        return library.sqrt(1 + library.sum(mean**2, axis=-1) - 2 * library.min(mean, axis=-1))

    def bounded(self, s: Array, y: Array, threshold: Array, typical: float = 1.0) -> Array:
        return self.residual(s, y) * self.label_weight(s, threshold)[..., None]

    def label_weight(self, s: Array, threshold: Array) -> Array:
        return _library(s).minimum(1.0, threshold / self.longest_residual(s))

    def information_weight(self, s: Array, threshold: Array, typical: float = 1.0) -> Array:
        """Of all scores together, over what it is without a weight where labels are equally likely."""
        spread = 1 - _library(s).sum(self.mean(s) ** 2, axis=-1)
        return self.label_weight(s, threshold) * spread / (1 - 1 / self.classes)

    def information_bound(self, bound: float, clip: float, typical: float = 1.0) -> float:
        return min(bound * clip / math.sqrt(1 - 1 / self.classes), bound**2)

    def weighted_smoothness(self, bound: float, clip: float, typical: float = 1.0) -> float:
        """The slope by the scores has norm min(sqrt(2) t, max(.51, 2 - sqrt(2) t)) at most: that of two classes, which
        is twice the logistic one at t / sqrt(2), or a little above it (searched over; a test repeats it)."""
        threshold = math.sqrt(2) * clip / bound
        return bound * bound * min(threshold, max(0.51, 2 - threshold))

    @property
    def start_loss(self) -> float:
        return math.log(self.classes)

    def log_likelihood_bound(self, score: float) -> float:
        """Two scores differ by sqrt(2) times their norm at most."""
        return float(np.logaddexp(0.0, math.log(self.classes - 1) + math.sqrt(2) * score))


@dataclass(frozen=True)
class Gaussian(Family):
    """With `learnt`, the noise scale is one of the parameters of whatever can learn it, and `noise_scale` is what it is
    taken as elsewhere (`with_given_noise`)."""

    noise_scale: float = 1.0
    learnt: bool = False

    name, word, outcome, effect = "linear_regression", "linear", "number", "outcome"
    linear_moments, noise_aware = True, True

    def __post_init__(self) -> None:
        _set(self, noise_scale=validation.positive(noise_scale=self.noise_scale))

    @property
    def parameters(self) -> dict[str, Any]:
        return {} if self.learnt else {"noise_scale": self.noise_scale}

    @property
    def learns_noise(self) -> bool:
        return self.learnt

    def with_given_noise(self) -> Family:
        return Gaussian(self.noise_scale)

    def with_drawn(self, parameters: Any) -> Family:
        if "noise_scale" not in parameters:
            return self
        drawn = object.__new__(type(self))
        _set(drawn, noise_scale=parameters["noise_scale"], learnt=True)
        return drawn

    def mean(self, s: Array) -> Array:
        return s

    def variance(self, s: Array) -> Array:
        return _library(s).full_like(s, self.noise_scale**2)

    def log_likelihood(self, s: jax.Array, y: jax.Array) -> jax.Array:
        variance = self.noise_scale**2
        return -0.5 * (y - s) ** 2 / variance - 0.5 * jnp.log(2 * jnp.pi * variance)

    def simulate(self, key: jax.Array, s: jax.Array) -> jax.Array:
        return s + self.noise_scale * jax.random.normal(key, s.shape, s.dtype)

    def residual(self, s: Array, y: Array) -> Array:
        return (s - y) / self.noise_scale**2

    def information(self, s: Array) -> Array:
        return _library(s).full_like(s, self.noise_scale**-2.0)

    def smoothness(self, bound: float, clip: float) -> float:
        return (bound / self.noise_scale) * (bound / self.noise_scale)

    balance, deep_clip = (1.6, 3.0), False

    @property
    def usual_residual(self) -> float:
        return 1 / self.noise_scale

    def bounded(self, s: Array, y: Array, threshold: Array, typical: float = 1.0) -> Array:
        return _library(s).clip(self.residual(s, y), -threshold, threshold)

    convex_weights, symmetric_errors = True, True

    def weighted_smoothness(self, bound: float, clip: float, typical: float = 1.0) -> float:
        return self.smoothness(bound, clip)

    def slope_of_mean(self, s: Array) -> Array:
        return _library(s).ones_like(s)

    def information_weight(self, s: Array, threshold: Array, typical: float = 1.0) -> Array:
        within = special.erf if isinstance(s, np.ndarray) else jax.scipy.special.erf
        return within(threshold * self.noise_scale / math.sqrt(2)) / self.noise_scale**2 + 0 * s

    def information_bound(self, bound: float, clip: float, typical: float = 1.0) -> float:
        """Rises with the norm of a row."""
        return bound**2 * math.erf(clip / bound * self.noise_scale / math.sqrt(2)) / self.noise_scale**2

    def score_moments(self, s: np.ndarray, threshold: float, typical: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        cut, slope = threshold * self.noise_scale, self.information_weight(s, np.asarray(threshold))
        density = math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
        beyond = cut**2 * math.erfc(cut / math.sqrt(2))
        return slope, slope + (beyond - 2 * cut * density) / self.noise_scale**2

    def mean_over(self, centre: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        return centre, jnp.ones_like(centre)

    @property
    def residual_scale(self) -> float:
        return 1 / self.noise_scale

    @property
    def planned_residual(self) -> float:
        """Two standard deviations."""
        return 2.0 / self.noise_scale

    def loss_increment(self, start: Array, end: Array, y: Array) -> Array:
        return (end - start) * ((end + start) / 2 - y) / self.noise_scale**2

    def uncut_scores(self, y: np.ndarray, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half = threshold * self.noise_scale**2
        return y - half, y + half


class Counts(Family):
    """What families of counts with mean e^s share where noisy sums of their bounded scores are read."""

    outcome, noise_aware = "count", True

    @property
    def overdispersion(self) -> float:
        return 0.0

    def slope_of_mean(self, s: Array) -> Array:
        return self.mean(s)

    def information_weight(self, s: Array, threshold: Array, typical: float = 1.0) -> Array:
        return count_weight(self.information(s), threshold, typical)

    def information_bound(self, bound: float, clip: float, typical: float = 1.0) -> float:
        return COUNT_SLOPE * bound * clip * math.sqrt(typical)

    def score_moments(self, s: np.ndarray, threshold: float, typical: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        return count_moments(self, s, threshold, typical, self.overdispersion)

    def mean_over(self, centre: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = jnp.exp(jnp.minimum(centre + variance / 2, FURTHEST))
        return mean, mean


@dataclass(frozen=True)
class Poisson(Counts):
    """With a `largest_mean` the mean rises no further, and the log likelihood goes on as a straight line."""

    largest_mean: float | None = None

    name, word, outcome, effect = "poisson_regression", "poisson", "count", "log rate"

    def __post_init__(self) -> None:
        if self.largest_mean is not None:
            validation.positive(largest_mean=self.largest_mean)

    @property
    def _largest(self) -> float:
        return math.inf if self.largest_mean is None else self.largest_mean

    @property
    def _ceiling(self) -> float:
        """Of the score."""
        return math.log(self._largest)

    def admits(self, y: np.ndarray) -> np.ndarray:
        return whole_numbers(y)

    def mean(self, s: Array) -> Array:
        library = _library(s)
        return library.exp(s if self.largest_mean is None else library.minimum(s, self._ceiling))

    def variance(self, s: Array) -> Array:
        return self.mean(s)

    def log_likelihood(self, s: jax.Array, y: jax.Array) -> jax.Array:
        beyond = 0.0 if self.largest_mean is None else jnp.maximum(s - self._ceiling, 0.0)
        return y * s - self.mean(s) * (1.0 + beyond) - jax.scipy.special.gammaln(y + 1.0)

    def simulate(self, key: jax.Array, s: jax.Array) -> jax.Array:
        return jax.random.poisson(key, self.mean(s))

    def residual(self, s: Array, y: Array) -> Array:
        return self.mean(s) - y

    def information(self, s: Array) -> Array:
        return _library(s).where(s < self._ceiling, self.mean(s), 0.0)

    @property
    def refusal(self) -> str | None:
        if self.largest_mean is not None:
            return None
        return "the mean of a Poisson regression is unbounded: give it a largest_mean, a public bound"

    def smoothness(self, bound: float, clip: float) -> float:
        return self._largest * bound * bound

    balance, unknown_information = (1.3, 2.0), True

    @property
    def usual_residual(self) -> float:
        return 1.0

    def bounded(self, s: Array, y: Array, threshold: Array, typical: float = 1.0) -> Array:
        return bounded_count(self.mean(_library(s).minimum(s, FURTHEST)), y, threshold, typical, 0.0)

    def weighted_smoothness(self, bound: float, clip: float, typical: float = 1.0) -> float:
        return bound * clip * (STEEPNESS * math.sqrt(typical) + 0.5)

    @property
    def residual_scale(self) -> float:
        return math.sqrt(self._largest)

    def loss_increment(self, start: Array, end: Array, y: Array) -> Array:
        """For scores up to that of the largest mean."""
        library = _library(start)
        return library.exp(start) * library.expm1(end - start) - y * (end - start)

    def uncut_scores(self, y: np.ndarray, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean rises no further than to the largest one, which may be before the residual is cut."""
        low = np.where(y > threshold, np.log(np.minimum(y - threshold, self._largest)), -np.inf)
        return low, np.log(np.minimum(y + threshold, self._largest))

    def upper_residual(self, y: np.ndarray, threshold: np.ndarray) -> np.ndarray:
        return np.clip(self._largest - y, -threshold, threshold)


@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """With k = 1 / dispersion and p = m / (m + k) the residual is k p - y (1 - p), and the curvature (k - r) p.

    So where gradients are cut to c, r ||x|| >= -c, the curvature of a record by the weights is at most
    (k + c / ||x||) ||x||^2, whatever its count.
    """

    dispersion: float = 1.0

    name, word, outcome, effect = "negative_binomial_regression", "negative-binomial", "count", "log mean"

    def __post_init__(self) -> None:
        _set(self, dispersion=validation.positive(dispersion=self.dispersion))

    @property
    def overdispersion(self) -> float:
        return self.dispersion

    @property
    def _size(self) -> float:
        return 1 / self.dispersion

    def _shares(self, s: Array) -> tuple[Array, Array]:
        """p and 1 - p."""
        odds = s + math.log(self.dispersion)
        return _sigmoid(odds), _sigmoid(-odds)

    def admits(self, y: np.ndarray) -> np.ndarray:
        return whole_numbers(y)

    def mean(self, s: Array) -> Array:
        return _library(s).exp(s)

    def variance(self, s: Array) -> Array:
        mean = self.mean(s)
        return mean + self.dispersion * mean**2

    def log_likelihood(self, s: jax.Array, y: jax.Array) -> jax.Array:
        odds = s + math.log(self.dispersion)
        ways = -jnp.log(y + self._size) - jax.scipy.special.betaln(self._size, y + 1.0)
        return ways + y * jax.nn.log_sigmoid(odds) + self._size * jax.nn.log_sigmoid(-odds)

    def simulate(self, key: jax.Array, s: jax.Array) -> jax.Array:
        """A Poisson whose rate is Gamma about the mean."""
        rates, counts = jax.random.split(key)
        spread = self.dispersion * jax.random.gamma(rates, self._size, s.shape, s.dtype)
        return jax.random.poisson(counts, spread * self.mean(s))

    def residual(self, s: Array, y: Array) -> Array:
        share, rest = self._shares(s)
        return self._size * share - y * rest

    def information(self, s: Array) -> Array:
        return self._size * self._shares(s)[0]

    def curvature(self, s: Array, y: Array) -> Array:
        share, rest = self._shares(s)
        return (y + self._size) * share * rest

    def smoothness(self, bound: float, clip: float) -> float:
        return self._size * bound * bound + clip * bound

    balance, unknown_information = (1.3, 2.0), True

    @property
    def usual_residual(self) -> float:
        return 1.0

    def bounded(self, s: Array, y: Array, threshold: Array, typical: float = 1.0) -> Array:
        return bounded_count(self.mean(_library(s).minimum(s, FURTHEST)), y, threshold, typical, self.dispersion)

    def weighted_smoothness(self, bound: float, clip: float, typical: float = 1.0) -> float:
        return bound * clip * ((STEEPNESS + 0.5 * self.dispersion) * math.sqrt(typical) + 0.5)

    @property
    def residual_scale(self) -> float:
        return math.sqrt(self._size)

    def loss_increment(self, start: Array, end: Array, y: Array) -> Array:
        odds, rise = start + math.log(self.dispersion), end - start
        return self._size * _softplus_increment(odds, rise) + y * _softplus_increment(-odds, -rise)

    def uncut_scores(self, y: np.ndarray, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        share = threshold / self._size
        low = np.where(y > threshold, np.log(y - threshold) - np.log1p(share), -np.inf)
        return low, np.where(share < 1, np.log(y + threshold) - np.log1p(-share), np.inf)


FAMILIES: tuple[type[Family], ...] = (Logistic, Softmax, Gaussian, Poisson, NegativeBinomial)
BY_NAME = {family.name: family for family in FAMILIES}
BY_WORD = {family.word: family for family in FAMILIES}


def outcome(name: str) -> Outcome | None:
    """What the model of this name predicts; None where it is of no family."""
    return BY_NAME[name].outcome if name in BY_NAME else None


def with_known(family: type[Family], known: dict[str, Any]) -> Family:
    """The family with those of its parameters that are known; its own defaults for the others."""
    own = {field.name: known.get(field.name) for field in fields(family)}
    return family(**{name: value for name, value in own.items() if value is not None})


def known_labels(y: np.ndarray, classes: int) -> np.ndarray:
    """Which outcomes are labels 0 to classes - 1."""
    return (y >= 0) & (y < classes) & (y == np.floor(y))


def whole_numbers(y: np.ndarray) -> np.ndarray:
    """Which outcomes are counts."""
    return (y >= 0) & (y == np.floor(y))


def bounded_count(mean: Array, y: Array, threshold: Array, typical: float, dispersion: float) -> Array:
    """The bounded residual of a count: see the top of this file. A dispersion of 0 is the Poisson."""
    library = _library(mean)
    y = library.minimum(y, 1e15)
    rest = 1 / (1 + dispersion * mean)  # 1 - p
    information = mean * rest
    threshold = threshold * library.minimum(1.0, library.sqrt(typical / information))
    limit = threshold / rest / (1.05 + 0.31 * math.sqrt(dispersion))
    width = library.maximum(limit, library.sqrt(1.5 * mean / rest))

    away = y - mean
    here, further = library.sqrt(width**2 + away**2), library.sqrt(width**2 + (away + 1) ** 2)
    rise = -width * (2 * away + 1) / here / further / (here + further)  # f(y + 1) - f(y), without cancellation
    above = information * (1 + dispersion * y)  # p (k + y), or the mean
    found = limit / width * (rest * -away * (width / here) + above * rise)
    return library.clip(found, -threshold, threshold)


def count_weight(information: Array, threshold: Array, typical: float) -> Array:
    """About the slope of a bounded count where it is cut deep, and its information where it is not."""
    library = _library(information)
    return library.minimum(COUNT_SLOPE * threshold * library.sqrt(library.minimum(information, typical)), information)


def count_moments(
    family: Family, s: np.ndarray, threshold: float, typical: float, dispersion: float
) -> tuple[np.ndarray, np.ndarray]:
    """E psi r and E psi^2 by sums over counts. From `LARGE_COUNT` on neither changes any more: counts are weighted down
    as their information grows, and bounded by their standard deviation."""
    s = np.minimum(np.asarray(s, np.float64), math.log(LARGE_COUNT))[..., None]
    y = np.arange(COUNTED)
    if dispersion:
        chances = stats.nbinom.pmf(y, 1 / dispersion, 1 / (1 + dispersion * np.exp(s)))
    else:
        chances = stats.poisson.pmf(y, np.exp(s))
    psi = family.bounded(s, y, np.asarray(threshold), typical)
    return np.sum(chances * psi * family.residual(s, y), axis=-1), np.sum(chances * psi**2, axis=-1)


def _set(family: Family, **checked: Any) -> None:
    """A parameter as it was checked, in place of what was given."""
    for name, value in checked.items():
        object.__setattr__(family, name, value)


def _library(s: Array) -> Any:
    return np if isinstance(s, np.ndarray) else jnp


def _softplus_increment(start: Array, rise: Array) -> Array:
    """log(1 + e^(start + rise)) - log(1 + e^start), for a small rise without the difference of the two."""
    library = _library(start)
    near = library.log1p(_sigmoid(start) * library.expm1(library.clip(rise, -1.0, 1.0)))
    far = library.logaddexp(start + rise, 0.0) - library.logaddexp(start, 0.0)
    return library.where(library.abs(rise) < 1, near, far)


def _sigmoid(s: Array) -> Array:
    return special.expit(s) if isinstance(s, np.ndarray) else jax.nn.sigmoid(s)
