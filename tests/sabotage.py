"""Ways to break a program that its own description does not show, for audits to find."""

import jax
import jax.numpy as jnp

from confide import batches, noise
from confide.events import event
from confide.gradients import ClippedSum


def no_noise(patch, own: int = 5) -> None:
    """On the model's own parameters; those of canaries have all of it."""
    honest = noise.added
    patch.setattr(
        noise, "added", lambda total, scale, standard: honest(total, scale, standard.at[:own].set(jnp.zeros((), float)))
    )


def half_the_noise(patch) -> None:
    honest = noise.added
    patch.setattr(noise, "added", lambda total, scale, standard: honest(total, scale / 2, standard))


def one_parameter(patch) -> None:
    """One of them has a tenth less noise."""
    honest = noise.added
    patch.setattr(noise, "added", lambda total, scale, standard: honest(total, scale, standard.at[1].multiply(0.9)))


def unclipped(patch, factor: float = 100.0) -> None:
    """Records are not cut, and count a hundred times."""
    honest = ClippedSum._summed
    patch.setattr(ClippedSum, "reach", lambda self, data: None)

    def summed(self, inputs, residual, batch):
        found = honest(self, inputs, residual, batch)
        return found._replace(total=factor * found.total)

    patch.setattr(ClippedSum, "_summed", summed)


def shuffled(patch) -> None:
    """Batches of fixed size, each record once in every pass over the data."""

    def drawn(key, *, n, q, size, steps):
        batch = round(n * q)
        passes = -(-steps * batch // n)
        orders = jax.vmap(lambda key: jax.random.permutation(key, n))(jax.random.split(key, passes))
        rows = orders.reshape(-1)[: steps * batch].reshape(steps, batch)
        empty = jnp.full((steps, size - batch), n)
        return jnp.concatenate([jnp.sort(rows, axis=1), empty], axis=1).astype(jnp.int32)

    patch.setattr(batches, "poisson", drawn)


def always_in(patch, place: int, instead: bool = False) -> None:
    """One record is in every batch, beside the others or instead of the first of them."""
    honest = batches.poisson

    def drawn(key, *, n, q, size, steps):
        rows = honest(key, n=n, q=q, size=size, steps=steps)
        there = jnp.any(rows == place, axis=1)
        at = jnp.zeros(steps, jnp.int32) if instead else jnp.minimum(jnp.sum(rows < n, axis=1), size - 1)
        put = rows.at[jnp.arange(steps), at].set(place)
        return jnp.sort(jnp.where(there[:, None], rows, put), axis=1)

    patch.setattr(batches, "poisson", drawn)


def missing_two(patch) -> None:
    """Replacing a record is priced as adding one."""
    patch.setitem(event.SENSITIVITY, "replace-one", 1.0)


__all__ = ["always_in", "half_the_noise", "missing_two", "no_noise", "one_parameter", "shuffled", "unclipped"]
