r"""DP variational inference (Jaelkoe, Dikmen and Honkela 2017): a Gaussian near the posterior, by noisy gradients.

With theta = theta(phi, z) a draw from q by public randomness z, and phi the variational parameters, the negative
evidence lower bound has the gradient

    grad_phi E[ log q(theta) - log p(theta) - sum_i log p(d_i | theta) ]
        = E[ (d theta / d phi)^T ( sum_i g_i(theta) - grad log p(theta) ) + grad_phi log q(theta(phi, z)) ].

Records enter by sum_i g_i(theta) alone, so a step asks for that sum with noise, as every kernel does, and the rest is
post-processing: by the mean it is h, by the logarithm of a scale h z s, by a factor lower(h z^T). The paper clips and
perturbs the gradient by all of phi; here noise is drawn in as many dimensions as theta has, half of those of a
mean-field phi, and clip and noise mean what they mean for `sgld` and `dp_sgd`.

log q(theta(phi, z)) is differentiated with its own phi held (Roeder, Wu and Duvenaud 2017): what it adds vanishes on
average, and where q is the posterior all noise but that of batches and of privacy cancels. Steps are those of Adam, and
phi is averaged over the second half of the run.

Formal guarantee: as `dp_sgd`. Every phi may be released, and with it any number of draws from q.

What q does not know: the noise that was added for privacy. Its spread is that of the posterior, as far as the
family can follow, around a mean that the noise has moved. Several chains show by how much.

| family      | theta                                          | phi                 |
|-------------|------------------------------------------------|---------------------|
| mean-field  | mean + s z, s = exp(log scale)                 | twice as many       |
| full-rank   | mean + s (I + U) z, U strictly lower triangular | as many again as U has |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.mechanism import noise
from confide.mechanism.kernel import Kernel, MechanismParameters, Query, Schedule, gaussian_event
from confide.mechanism.noise import SecureSource
from confide.models.model import Data, Model
from confide.samplers import guides
from confide.samplers.descent import DRIFT, Descent, Moments, keep_iterate
from confide.samplers.sampler import Decay, Sampler, schedule_of
from confide.samplers.variational_families import Family, gaussian
from confide.validation import Refused

FamilyName = Literal["mean-field", "full-rank"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)
DRAWS = 1000  # from a q, which cost nothing
FIRST, SECOND = 0.9, 0.999  # moments of Adam


@dataclass(frozen=True, kw_only=True)
class Variational(Descent):
    """The settings of `confide.dpvi`."""

    wanted: str
    guide: Any = None
    family: Family | None = None  # once it has met a model

    point = False

    def planned_rate(self, parameters: MechanismParameters, steps: int) -> float | None:
        return DRIFT * parameters.unit / math.sqrt(steps)

    def keep(self, draws: int | None, burn_in: int | None) -> int | None:
        """The q that it ends with."""
        if burn_in is not None:
            raise Refused("burn_in: dpvi keeps the q that it ends with, and draws from that: leave it out")
        return 1

    def snapshots(self, steps: int) -> int | None:
        """The mean of the third quarter of the run, and of its second half."""
        return 2 if self.average and steps >= 4 else None

    def drift(self, kept: np.ndarray) -> float | None:
        """The most that a mean of q moved from the third quarter to the last, in standard deviations of q."""
        assert self.family is not None
        if kept.shape[1] < 2 or self.guide is not None:
            return None
        size, third, last = kept.shape[-1] // 2, kept[:, 0], kept[:, -1]
        if self.family.name == "full-rank":
            size = (math.isqrt(9 + 8 * kept.shape[-1]) - 3) // 2  # 2 size + size (size - 1) / 2 numbers
        spread = np.exp(last[:, size : 2 * size])
        if self.family.name == "full-rank":
            below = np.zeros((len(kept), size, size))
            below[:, *np.tril_indices(size, -1)] = last[:, 2 * size :]
            spread = spread * np.sqrt(1 + np.sum(np.square(below), axis=2))
        return float(np.max(2 * np.abs(last - third)[:, :size] / spread))

    def bind(self, model: Model, data: Data, n: int, start: np.ndarray, unit: float = 1.0) -> Variational:
        """With the family of its q."""
        if self.guide is None:
            return replace(self, family=gaussian(self.wanted, start, n, unit))
        return replace(self, family=guides.family(self.guide, model, data, n))

    def describe(self, draws: int | None) -> dict[str, Any]:
        return {"draws": _draws(draws)}

    def postprocess(self, draws: int | None) -> Callable[[np.ndarray, Any], np.ndarray]:
        """Draws from the q that was released."""

        def drawn(kept: np.ndarray, source: Any) -> np.ndarray:
            own = noise.separate(source, "draws")
            if isinstance(own, SecureSource):
                own = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(own.key[:8], np.uint32)), impl="threefry2x32")
            return self.drawn(kept, _draws(draws), own)

        return drawn

    def drawn(self, released: np.ndarray, draws: int, key: jax.Array) -> np.ndarray:
        """Draws from q, (chains, draws, parameters): post-processing of what was released, (chains, 1, phi)."""
        assert self.family is not None
        draw, chains = self.family.draw, len(released)

        @jax.jit
        def several(phi: jax.Array, keys: jax.Array) -> jax.Array:
            return jax.vmap(lambda phi, keys: jax.vmap(lambda key: draw(phi, key)[0])(keys))(phi, keys)

        return np.asarray(several(jnp.asarray(released[:, -1]), jax.random.split(key, (chains, draws))))

    def to_json(self) -> dict[str, Any]:
        family = self.wanted if self.family is None else self.family.name
        marked = {"guide": self.family.mark} if self.family is not None and self.family.mark else {}
        return super().to_json() | {"family": family, **marked}


def dpvi(
    family: FamilyName = "mean-field",
    learning_rate: float | Callable[[int], Any] | None = None,
    guide: Any = None,
    schedule: Decay = "fixed",
    noise_multiplier: float | None = None,
    average: bool = True,
) -> Sampler:
    """Variational inference with differential privacy; `draws` of the posterior are from the q that was found.

    Args:
        family: "mean-field" or "full-rank", of Gaussians over the parameters on the whole real line.
        learning_rate: of Adam; a number, a function of the step, or planned.
        guide: a NumPyro guide in the place of a family, such as `AutoNormal(model)`, for a model of
            `confide.models.from_numpyro`; it must not look at records.
        schedule, noise_multiplier, average: as for `dp_sgd`.

    >>> dpvi("full-rank").to_json()["family"]
    'full-rank'
    """
    validation.one_of(FAMILIES, family=family)
    if guide is not None and not callable(guide):
        raise Refused(f"guide = {str(guide)[:60]!r} is not a function: give a NumPyro guide, such as AutoNormal(model)")
    if guide is not None and family != FAMILIES[0]:
        raise Refused(f"a guide is a family of its own: leave family = {family!r} or the guide out")
    return Variational(
        name="dpvi",
        build=build,
        step_size=learning_rate,
        schedule=schedule,
        noise_multiplier=noise_multiplier,
        average=bool(average),
        draws=None,
        stability=math.inf,
        wanted=family if guide is None else "guide",
        guide=guide,
    )


def _draws(wanted: int | None) -> int:
    return DRAWS if wanted is None else validation.count(draws=wanted)


class State(NamedTuple):
    position: jax.Array  # phi as it is released: the last, or the mean of the second half
    iterate: jax.Array
    moments: Moments


def build(sampler: Sampler, parameters: MechanismParameters, rates: np.ndarray) -> Kernel:
    assert isinstance(sampler, Variational)
    family, average, steps, size = sampler.family, sampler.average, rates.size, parameters.dimension
    assert family is not None
    schedule = schedule_of(rates, sampler.noise(parameters, steps))
    draw = family.draw

    def init(position: jax.Array) -> State:
        """Chains that start apart have their means apart."""
        phi = jnp.asarray(family.start, position.dtype)
        if sampler.guide is None:
            phi = phi.at[:size].set(position)
        zero = jnp.zeros_like(phi)
        return State(phi, phi, Moments(zero, zero))

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, Any]:
        with jax.enable_x64(False):
            (theta, log_q), pull = jax.vjp(lambda phi: draw(phi, key), state.iterate.astype(jnp.float32))
        theta = theta.astype(state.position.dtype)
        return Query(theta, control.noise), (theta, log_q, pull)

    def update(state: State, memo: Any, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        theta, log_q, pull = memo
        by_theta = noisy / parameters.sampling_probability + parameters.prior(theta)
        with jax.enable_x64(False):
            (gradient,) = pull((by_theta.astype(jnp.float32), jnp.ones_like(log_q)))
        gradient = gradient.astype(state.iterate.dtype) / parameters.n
        moments, direction = state.moments.after(gradient, t, FIRST, SECOND)
        iterate = state.iterate - control.step_size * family.rates * direction
        return State(keep_iterate(state.position, iterate, t, steps, average), iterate, moments)

    return Kernel(init, query, update, schedule, lambda: gaussian_event(parameters, schedule))
