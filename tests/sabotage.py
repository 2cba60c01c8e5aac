"""Ways to break a program that its own description does not show, for audits to find."""

import jax
import jax.numpy as jnp

from confide import batches, noise
from confide.events import event
from confide.gradients import ClippedSum
from confide.run import Job


def no_noise(patch, own: int = 5) -> None:
    """On the model's own parameters; those of canaries have all of it."""
    honest = noise.added
    patch.setattr(noise, "added", lambda total, scale, units: honest(total, scale, units.at[:own].set(0)))


def half_the_noise(patch) -> None:
    honest = noise.added
    patch.setattr(noise, "added", lambda total, scale, units: honest(total, scale / 2, units))


def one_parameter(patch) -> None:
    """One of them has a tenth less noise."""
    honest = noise.added

    def added(total, scale, units):
        return honest(total, scale, units.at[1].set(jnp.round(0.9 * units[1])))

    patch.setattr(noise, "added", added)


def unclipped(patch, factor: float = 100.0) -> None:
    """Records are not cut, and count a hundred times."""
    honest = ClippedSum._summed

    def reach(self, data, present=None):
        return None if present is None else jnp.where(present, jnp.finfo(jnp.float32).max, 0.0)

    patch.setattr(ClippedSum, "reach", reach)

    def summed(self, inputs, residual, batch):
        found = honest(self, inputs, residual, batch)
        return found._replace(total=factor * found.total)

    patch.setattr(ClippedSum, "_summed", summed)


def shuffled(patch) -> None:
    """Batches of fixed size, each record once in every pass over the data."""

    honest = Job._drawn

    def drawn(self, random, number):
        found, n = honest(self, random, number), self.setting.rows
        (steps, size), batch = found.rows.shape, round(n * self.setting.sampling_probability)
        passes = -(-steps * batch // n)
        orders = jax.vmap(lambda key: jax.random.permutation(key, n))(jax.random.split(found.key, passes))
        rows = orders.reshape(-1)[: steps * batch].reshape(steps, batch)
        empty = jnp.full((steps, size - batch), n)
        return found._replace(rows=jnp.concatenate([jnp.sort(rows, axis=1), empty], axis=1).astype(jnp.int32))

    patch.setattr(Job, "_drawn", drawn)


def always_in(patch, place: int, instead: bool = False) -> None:
    """One record is in every batch, beside the others or instead of the first of them."""
    honest = batches.from_gaps

    def drawn(gaps, n):
        rows = honest(gaps, n)
        steps, size = rows.shape
        there = jnp.any(rows == place, axis=1)
        at = jnp.zeros(steps, jnp.int32) if instead else jnp.minimum(jnp.sum(rows < n, axis=1), size - 1)
        put = rows.at[jnp.arange(steps), at].set(place)
        return jnp.sort(jnp.where(there[:, None], rows, put), axis=1)

    patch.setattr(batches, "from_gaps", drawn)


def missing_two(patch) -> None:
    """Replacing a record is priced as adding one."""
    patch.setitem(event.SENSITIVITY, "replace-one", 1.0)


__all__ = ["always_in", "half_the_noise", "missing_two", "no_noise", "one_parameter", "shuffled", "unclipped"]
