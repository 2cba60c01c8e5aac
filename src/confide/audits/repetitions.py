"""One job on one made-up table, many times over: the blocks, the step loop and the randomness of `inference.loop`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.loop import Job, use_compilation_cache
from confide.mechanism.witness import Heard
from confide.models.inputs import Records
from confide.models.model import Data


def repeat(job: Job, data: Records, known: Data, sources: list[Any], blocks: int) -> Heard:
    """What a witness hears of the first blocks of a job, once for every source of randomness.

    `data` are made up and the same for all; `known` are the two records that the witness knows. The arrays that are
    found have two leading axes, run and chain.
    """
    use_compilation_cache()
    with jax.enable_x64(True):
        arrays, records = (tuple(jax.device_put(array) for array in found) for found in (data.arrays, known))
        prepared = job.prepared(arrays, jnp.asarray(data.present), records)
        schedule = jax.tree.map(jnp.asarray, job.kernel.schedule)
        carry = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], len(sources), axis=0), job.begin())
        for number in range(blocks):
            every = [job.randomness(source, number) for source in sources]
            random = jax.tree.map(lambda *leaves: jnp.stack(leaves), *every)
            carry = job.advance_many(carry, prepared, schedule, number, random)
        told, sums = jax.tree.map(np.asarray, tuple(carry.observed.heard))
    if job.chains == 1:
        told, sums = told[:, None], sums[:, None]
    return Heard(told[:, :, : blocks * job.block], sums[:, :, : min(sums.shape[2] - 1, blocks * job.block)])
