r"""Hidden Markov chains for a target whose draws are to be exact, by BlackJAX; and whether they seem to have met.

- `elliptical`: elliptical slice sampling (Murray, Adams and MacKay 2010) around the Gaussian of the frame: nothing to
  tune, no gradients, and where the target is near that Gaussian almost independent draws for two evaluations each.
- `nuts`, `mala`: with window adaptation of step size and diagonal mass matrix.

The records are arguments of what is compiled, never constants in it. The chains begin apart. Nothing is chosen by
looking at them: the release is where the first chains end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.exact.targets import Frame, Target, place
from confide.inference.loop import use_compilation_cache
from confide.inference.posterior import Diagnostics, load_arviz
from confide.mechanism import noise
from confide.samplers.posterior_sample import Algorithm

LENGTHS: dict[Algorithm, tuple[int, int]] = {"elliptical": (200, 400), "nuts": (500, 500), "mala": (2000, 4000)}
BLOCK = 100  # transitions between two reports
ACCEPTED = {"nuts": 0.8, "mala": 0.574}  # what the step size is tuned to: Stan's, and Roberts and Rosenthal's


class Chains(NamedTuple):
    """How they are run."""

    algorithm: Algorithm
    number: int
    warmup: int
    samples: int


def run(
    target: Target,
    arrays: dict[str, Any],
    frame: Frame | None,
    starts: np.ndarray,
    chains: Chains,
    key: jax.Array,
    report: Callable[[int], None] | None = None,
) -> np.ndarray:
    """All states after the warm-up, (chains, samples, parameters); private, but for those that are paid for.

    `starts` are in the coordinates of the frame.
    """
    use_compilation_cache()
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (arrays, frame))
        keys = jnp.stack([noise.derive_key(key, "chain", chain) for chain in range(chains.number)])
        state, tuned = _begin(target, chains, given, jnp.asarray(starts, jnp.float64), keys)
        advance, kept = jax.jit(_advance(target, chains.algorithm)), []
        done = chains.warmup if chains.algorithm != "elliptical" else 0
        for first in range(done, chains.warmup + chains.samples, BLOCK):
            if report is not None:
                report(first)
            state, positions = advance(given, state, tuned, keys, first)
            kept.append(np.asarray(positions))
    if report is not None:
        report(chains.warmup + chains.samples)
    return np.concatenate(kept, axis=1)[:, chains.warmup - done :][:, : chains.samples]


def _begin(target: Target, chains: Chains, given: Any, starts: jax.Array, keys: jax.Array) -> tuple[Any, Any]:
    """States to go on from, and what was tuned on the way there."""
    import blackjax

    if chains.algorithm == "elliptical":

        def begun(start: jax.Array, given: Any) -> Any:
            return _kernel(target, "elliptical", given, {}).init(start)

        return jax.jit(jax.vmap(begun, (0, None)))(starts, given), {}

    def warmed(given: Any, start: jax.Array, key: jax.Array) -> Any:
        adaptation = blackjax.window_adaptation(
            blackjax.nuts if chains.algorithm == "nuts" else blackjax.hmc,
            _density_in_frame(target, given),
            target_acceptance_rate=ACCEPTED[chains.algorithm],
            adaptation_info_fn=lambda *told: None,
            **_fixed_settings(chains.algorithm),
        )
        run: Any = adaptation.run
        (state, tuned), _ = run(jax.random.fold_in(key, 0), start, chains.warmup)
        return state, {name: tuned[name] for name in ("step_size", "inverse_mass_matrix")}

    return jax.jit(jax.vmap(warmed, (None, 0, 0)))(given, starts, keys)


def _advance(target: Target, algorithm: Algorithm) -> Callable[..., Any]:
    """(given, states, tuned, keys, number of the first transition) -> (states, positions), a block at a time."""

    def one(given: Any, state: Any, tuned: Any, key: jax.Array, first: jax.Array) -> Any:
        kernel = _kernel(target, algorithm, given, tuned)

        def step(state: Any, number: jax.Array) -> Any:
            state, _ = kernel.step(jax.random.fold_in(key, 1 + first + number), state)
            return state, target.parameters(place(given[1], state.position), given[0])

        return jax.lax.scan(step, state, jnp.arange(BLOCK))

    return jax.vmap(one, (None, 0, 0, 0, None))


def _kernel(target: Target, algorithm: Algorithm, given: Any, tuned: dict[str, Any]) -> Any:
    import blackjax

    density = _density_in_frame(target, given)
    if algorithm == "elliptical":
        size = given[1].centre.size

        def beyond(z: jax.Array) -> jax.Array:
            """The target over the Gaussian of the frame."""
            return density(z) + jnp.sum(jnp.square(z)) / 2

        return blackjax.elliptical_slice(beyond, mean=jnp.zeros(size), cov=jnp.ones(size))
    return (blackjax.nuts if algorithm == "nuts" else blackjax.hmc)(density, **tuned, **_fixed_settings(algorithm))


def _fixed_settings(algorithm: Algorithm) -> dict[str, Any]:
    """MALA is Hamiltonian Monte Carlo of one leap, which the adaptation of the mass matrix knows."""
    return {"num_integration_steps": 1} if algorithm == "mala" else {}


def _density_in_frame(target: Target, given: Any) -> Callable[[jax.Array], jax.Array]:
    """The density in the frame's coordinates. What is not a number is outside, and a gradient that is none is zero:
    any field may drive the leaps, since they are accepted by the density alone."""
    arrays, frame = given

    def density(z: jax.Array) -> jax.Array:
        found = target.log_density(place(frame, z), arrays)
        return jnp.where(jnp.isnan(found), -jnp.inf, found)

    @jax.custom_jvp
    def seen(z: jax.Array) -> jax.Array:
        return density(z)

    @seen.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        value, gradient = jax.value_and_grad(density)(*primals)
        return value, jnp.dot(jnp.where(jnp.isfinite(gradient), gradient, 0.0), tangents[0])

    return seen


def diagnose(draws: np.ndarray) -> Diagnostics:
    """The worst R-hat and effective sample size of all parameters."""
    arviz = load_arviz()
    with np.errstate(all="ignore"):  # chains that never moved
        return _diagnose(arviz, draws)


def _diagnose(arviz: Any, draws: np.ndarray) -> Diagnostics:
    data = arviz.convert_to_dataset({"x": draws})
    found = np.atleast_1d(arviz.rhat(data)["x"].values), np.atleast_1d(arviz.ess(data)["x"].values)
    return Diagnostics(r_hat=float(np.max(found[0])), effective=float(np.min(found[1])))


def ends(draws: np.ndarray, wanted: int) -> np.ndarray:
    """The last states of the first chains; beyond one of each, also states before them, evenly spaced."""
    chains, samples, _ = draws.shape
    rounds = -(-wanted // chains)
    places = samples - 1 - (samples // rounds) * np.arange(rounds)
    return np.swapaxes(draws[:, places], 0, 1).reshape(rounds * chains, -1)[:wanted]
