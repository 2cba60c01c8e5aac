"""The only loop: blocks of steps on the device, progress and checkpoints between them.

A block draws the batches and the noise of up to 500 steps at once, which is half as dear as step by step, and then
steps through them in one compiled loop; what the next block is made of is drawn meanwhile. Data, schedule and keys are
arguments of the compiled function, never constants in it: it is compiled once, the compilation cache on disk holds no
record, and another budget reuses it.

Memory beyond the data: one block's draws (at most 16 MB), one batch, and the kept draws.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import checkpoints
from confide.inference.checkpoints import Checkpoint
from confide.mechanism import batches, gradient_distances, individual_filter, noise, oracle
from confide.mechanism.clipping import ClippedSum
from confide.mechanism.kernel import Kernel, MechanismParameters, Schedule
from confide.mechanism.layers import Draw, Observed, Prepared
from confide.mechanism.noise import KeyedSource, SecureSource
from confide.mechanism.oracle import Observations, Observers
from confide.mechanism.witness import Heard
from confide.models import programs
from confide.models.inputs import Records, as_records
from confide.validation import Refused

LONGEST_BLOCK = 500
BLOCK_NUMBERS = 2**20  # random numbers of one block, of each kind
CHECKPOINT_SECONDS = 20.0
FEWEST_ITERATES = 16  # that a correlation is told from
PICKING = 2**30 + 3  # folded into a block's key for the records whose distances are watched
MASKING = 2**30 + 5  # folded into a run's key for what is dropped of records


class Carry(NamedTuple):
    state: Any
    draws: jax.Array  # (kept + 1, positions): the last row takes what is not kept
    observed: Observed
    trail: jax.Array  # (wanted + 1, positions): the last iterates as they follow each other; the last row as above


class Random(NamedTuple):
    """What the steps of a block are drawn from; along a first axis where there are several chains."""

    key: jax.Array  # for all that is neither batch nor noise
    rows: jax.Array | None  # of the batches, (steps, places); None for full ones
    units: jax.Array  # noise, in grid steps
    fisher: jax.Array | None  # the same for a second sum, where one is asked for


class Drawn(NamedTuple):
    """What is drawn for the steps of a block."""

    rows: jax.Array | None  # of the batches
    units: jax.Array
    fisher: jax.Array | None
    key: jax.Array
    picked: jax.Array | None = None  # records whose distances are watched
    joined: jax.Array | None = None  # the same, spliced into the batches
    masks: jax.Array | None = None  # key of what is dropped of records

    def of(self, i: jax.Array, t: jax.Array, claimed: jax.Array) -> Draw:
        """What is drawn for step i of the block, number t of the run, which is priced for the noise that is claimed."""
        rows, units, fisher, picked, joined = (
            None if found is None else found[i]
            for found in (self.rows, self.units, self.fisher, self.picked, self.joined)
        )
        assert units is not None
        return Draw(
            t=t,
            key=jax.random.fold_in(self.key, i),
            rows=rows,
            units=units,
            claimed=claimed,
            fisher_units=fisher,
            masks=None if self.masks is None else jax.random.fold_in(self.masks, i),
            picked=picked,
            joined=joined,
        )


@dataclass(kw_only=True)
class Job:
    """A run, decided in every respect but its randomness and its data."""

    kernel: Kernel
    parameters: MechanismParameters
    gradient_sum: ClippedSum
    initial_positions: np.ndarray  # (chains, parameters)
    burn_in: int
    thin: int
    buffer: int | None  # None: full batches
    observers: Observers = field(default_factory=Observers)
    observations: Observations | None = None  # once it has run, where anything is observed; private

    @property
    def steps(self) -> int:
        return self.kernel.schedule.step_size.size

    trail: int = 0  # so many of the last iterates are looked at as they follow each other, where all are released
    traced: Any = field(default=None, repr=False)  # the program that runs, where it was traced for its digest
    lag_one: float | None = None  # once it has run: their least correlation with the next one, over all parameters

    @property
    def ran(self) -> Job:
        return self

    @property
    def diagnostics(self) -> None:
        """There are none but those of the released draws."""
        return None

    @property
    def kept(self) -> int:
        return (self.steps - self.burn_in) // self.thin

    @property
    def chains(self) -> int:
        return len(self.initial_positions)

    @cached_property
    def block(self) -> int:
        """Steps in a block: decided by the sizes alone, so that the same run has the same blocks."""
        largest = max(self.buffer or 1, self.parameters.coordinates, self.second) * self.chains
        return max(1, min(LONGEST_BLOCK, self.steps, BLOCK_NUMBERS // largest))

    @property
    def second(self) -> int:
        """Numbers in the second sum of a step: the upper triangle of a matrix, or none."""
        d = self.parameters.dimension
        return d * (d + 1) // 2 if np.any(self.kernel.schedule.fisher_noise > 0) else 0

    @property
    def blocks(self) -> int:
        return -(-self.steps // self.block)

    @cached_property
    def advance(self) -> Any:
        """(carry, prepared data, schedule, block number, randomness) -> carry, compiled once."""
        return jax.jit(self._over_chains, donate_argnums=0)

    @cached_property
    def advance_many(self) -> Any:
        """The same for many runs on the same data, each with its own carry and its own randomness."""
        return jax.jit(jax.vmap(self._over_chains, (0, None, None, None, 0)), donate_argnums=0)

    @property
    def _over_chains(self) -> Any:
        return self._advance if self.chains == 1 else jax.vmap(self._advance, (0, None, None, None, 0))

    def _advance(
        self, carry: Carry, prepared: Prepared, schedule: Schedule, number: jax.Array, random: Random
    ) -> Carry:
        drawn, first = self._drawn(random, number), number * self.block
        asked = oracle.build(self.gradient_sum, self.parameters.rounding, self.observers, prepared)
        write = jax.lax.dynamic_update_index_in_dim

        def step(i: jax.Array, carry: Carry) -> Carry:
            t = first + i
            control = jax.tree.map(lambda column: column[t], schedule)
            draw = drawn.of(i, t, control.noise)
            state, observed = oracle.step(self.kernel, asked, carry.state, control, draw, carry.observed)
            since = t + 1 - self.burn_in
            wanted = (since > 0) & (since % self.thin == 0) & (since // self.thin <= self.kept)
            slot = jnp.where(wanted, since // self.thin - 1, self.kept)
            position = state.position.astype(jnp.float32)
            trail = carry.trail
            if self.trail:
                place = t - (self.steps - self.trail)
                trail = write(trail, position, jnp.where(place < 0, self.trail, place), 0)
            return Carry(state, write(carry.draws, position, slot, 0), observed, trail)

        return jax.lax.fori_loop(0, jnp.minimum(self.block, self.steps - first), step, carry)

    def _drawn(self, random: Random, number: jax.Array) -> Drawn:
        own = jax.random.fold_in(random.key, number)
        picked = joined = None
        if self.observers.samples:
            shape = (self.block, self.observers.samples)
            bits = jax.random.bits(jax.random.fold_in(own, PICKING), shape, jnp.uint32)
            picked = (bits % np.uint32(self.parameters.n)).astype(jnp.int32)  # a bias of 2^-32 n is none here
            if not self.parameters.secure:
                joined = gradient_distances.join(self.gradient_sum, random.rows, picked)
        masks = None if not self.gradient_sum.dropout else self._masks(random, number)
        return Drawn(random.rows, random.units, random.fisher, own, picked, joined, masks)

    def _masks(self, random: Random, number: jax.Array) -> jax.Array:
        """The key of what is dropped of records, as secret as the noise.

        What is dropped goes by the place of a record. Without one record all later ones move up, and to whoever knew
        the key the whole sum would move, not by one record alone.
        """
        return jax.random.fold_in(jax.random.fold_in(random.key, MASKING), number)

    def prepared(
        self,
        data: tuple[jax.Array, ...],
        present: jax.Array | None = None,
        known: tuple[jax.Array, ...] | None = None,
    ) -> Prepared:
        """The data and what is computed once from them, the limits of the filter, and the made-up records that a
        witness knows: arguments of `advance`."""
        sums = self.gradient_sum
        threshold = jax.jit(sums.residual_threshold)(data, present, jnp.float32(sums.limit.norm))
        limits = None if self.observers.filter is None else individual_filter.limits(self.observers.filter)
        return Prepared(data, threshold, limits, sums.weighting, known)

    def begin(self) -> Carry:
        kernel, kept, chains = self.kernel, self.kept, self.chains
        states = [kernel.init(jnp.asarray(start, jnp.float64)) for start in self.initial_positions]
        size = states[0].position.size
        draws = jnp.zeros((chains, kept + 1, size), jnp.float32)
        trail = jnp.full((chains, self.trail + 1, size if self.trail else 0), jnp.nan, jnp.float32)
        carry = Carry(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), draws, self._unobserved(), trail)
        return jax.tree.map(lambda leaf: leaf[0], carry) if chains == 1 else carry

    def _unobserved(self) -> Observed:
        """What observers hold before the first step, of every chain."""
        chains, steps, wanted = self.chains, self.steps, self.observers
        heard, witness = None, wanted.witness
        if witness is not None:
            sums = jnp.zeros((chains, min(witness.observed, steps) + 1, self.parameters.dimension), jnp.float64)
            heard = Heard(jnp.zeros((chains, steps, 3), jnp.float64), sums)
        return Observed(
            distances=jnp.zeros((chains, steps, wanted.samples), jnp.float32) if wanted.samples else None,
            spent=None if wanted.filter is None else jnp.zeros((chains, self.parameters.rows), jnp.float64),
            statistics=None if wanted.canaries is None else jnp.zeros((chains, 4, wanted.canaries.count), jnp.float64),
            heard=heard,
            trace=None if wanted.trace is None else jnp.stack([wanted.trace.zeros()] * chains),
        )

    def execute(self, data: Records | tuple[np.ndarray, ...], key: Any, **how: Any) -> np.ndarray:
        return execute(self, data, key, **how)

    def canary_terms(self) -> tuple[np.ndarray, float]:
        """What canaries are told by: the noise of every step over the clip, and how likely each is in it."""
        return self.kernel.schedule.noise / self.parameters.clip, self.parameters.sampling_probability

    def digest(self) -> str:
        wanted, sums = self.observers, self.gradient_sum
        canaries = repr(wanted.canaries).replace("CanaryTest(", "Game(", 1)  # as it has always been told
        watched = f"({wanted.samples!r}, {wanted.filter!r}, {canaries})".encode()
        parts = repr(
            (sums.microbatch, sums.effective_clip)
        ).encode()  # records are cut to a limit that depends on these
        more = watched * bool(wanted) + parts * (sums.microbatch is not None)
        return hashlib.sha256(self.kernel.schedule.step_size.tobytes() + more).hexdigest()

    def trace_program(self, records: Records) -> str:
        """Trace the program that advances the run by a block, of records like these, and give its digest.

        What was traced is what runs, whatever becomes of functions of the user's that are in it: noise follows from the
        digest, and another program with the same noise would show sums of records without any.
        """
        with jax.enable_x64(True):
            arrays = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in records.arrays)
            present = jax.ShapeDtypeStruct(records.present.shape, records.present.dtype)
            prepared = jax.eval_shape(self.prepared, arrays, present)
            schedule = jax.tree.map(jnp.asarray, self.kernel.schedule)
            carry = jax.eval_shape(self.begin)
            self.traced = self.advance.trace(carry, prepared, schedule, 0, self._randomness_shapes())
        return programs.digest(self.traced.jaxpr)

    def _randomness_shapes(self) -> Random:
        """The shapes of `randomness`, of which nothing is drawn."""
        leading = () if self.chains == 1 else (self.chains,)

        def shape(kind: Any, *sizes: int | None) -> Any:
            return None if None in sizes else jax.ShapeDtypeStruct((*leading, *sizes), kind)

        return Random(
            key=shape(jax.random.key(0).dtype),
            rows=shape(jnp.int32, self.block, self.buffer),
            units=shape(jnp.float64, self.block, self.parameters.coordinates),
            fisher=shape(jnp.float64, self.block, self.second or None),
        )

    def first_state(self) -> list[np.ndarray]:
        """What a checkpoint of the run holds before its first step."""
        with jax.enable_x64(True):
            return _leaves(self.begin())

    def randomness(self, source: Any, number: int) -> Random:
        """What block `number` is drawn from."""
        every = [self._randomness(source, chain, number) for chain in range(self.chains)]
        return every[0] if self.chains == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *every)

    def _randomness(self, source: Any, chain: int, number: int) -> Random:
        rows = fisher = None
        if self.buffer is not None:
            shape, q = (self.block, self.buffer), self.parameters.sampling_probability
            rows = batches.draw_rows(source, chain, number, shape, q, self.parameters.rows)
        if self.second:
            shape, first = (self.block, self.second), number * self.block
            fisher = jnp.zeros(shape, jnp.float64)
            if np.any(self.kernel.schedule.fisher_noise[first : first + self.block] > 0):
                fisher = noise.draw_units(source, chain, number, shape, "fisher")
        units = noise.draw_units(source, chain, number, (self.block, self.parameters.coordinates))
        return Random(noise.key_of(source, chain), rows, units, fisher)


def execute(
    job: Job,
    data: Records | tuple[np.ndarray, ...],
    key: Any,
    *,
    checkpoint: Path | None = None,
    resumed: Checkpoint | None = None,
    every: float = CHECKPOINT_SECONDS,
    report: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Run the job; the kept draws, shape (chains, kept, parameters), in single precision.

    Where `checkpoint` names a file, the run is as in `resumed` and the file holds the whole run in the end: it is for
    the caller to delete, once the draws are safe.
    """
    use_compilation_cache()
    with jax.enable_x64(True):
        records = as_records(data)
        arrays = tuple(jax.device_put(array) for array in records.arrays)  # jnp.asarray copies twice
        prepared = job.prepared(arrays, jnp.asarray(records.present))
        schedule = jax.tree.map(jnp.asarray, job.kernel.schedule)
        carry, first = job.begin(), 0
        if resumed is not None:
            carry, first = _restore(carry, resumed.arrays), resumed.block
        source = key if isinstance(key, SecureSource) else KeyedSource(key)
        random = job.randomness(source, first) if first < job.blocks else None
        advance = job.advance if job.traced is None else job.traced.lower().compile()
        kept_at = reported_at = time.monotonic()
        for number in range(first, job.blocks):
            carry = advance(carry, prepared, schedule, number, random)
            random = job.randomness(source, number + 1) if number + 1 < job.blocks else None
            now = time.monotonic()
            if report is not None and now - reported_at > 0.1:
                jax.block_until_ready(carry)
                report(min(job.steps, (number + 1) * job.block))
                reported_at = now
            last = number + 1 == job.blocks
            if checkpoint is not None and resumed is not None and (last or now - kept_at >= every):
                checkpoints.write(checkpoint, resumed._replace(block=number + 1, arrays=_leaves(carry)))
                kept_at = now
        draws = np.asarray(carry.draws)
        job.lag_one = _lag_one(np.asarray(carry.trail))
        if job.observers:
            job.observations = _observations(carry.observed, job.chains, records.present)
    if report is not None:
        report(job.steps)
    draws = draws[None] if job.chains == 1 else draws
    draws = draws[:, :-1]
    if not np.all(np.isfinite(draws)):
        if checkpoint is not None:
            checkpoints.delete(checkpoint)
        raise Refused(
            "the chain diverged, and what it was charged stays charged: lower the step size or learning rate, or give "
            "more steps so that each is smaller"
        )
    return draws


def _lag_one(trail: np.ndarray) -> float | None:
    """The least correlation of an iterate with the next one, over parameters and chains; None of too few."""
    trail = trail[..., :-1, :].astype(np.float64)  # (chains?, iterates, parameters)
    known = np.all(np.isfinite(trail), axis=tuple(i for i in range(trail.ndim) if i != trail.ndim - 2))
    trail = trail[..., known, :]
    if trail.shape[-2] < FEWEST_ITERATES or not trail.shape[-1]:
        return None
    centred = trail - trail.mean(axis=-2, keepdims=True)
    spread = np.sum(np.square(centred), axis=-2)
    moved = spread > 1e-12 * np.sum(np.square(trail), axis=-2)
    if not np.any(moved):
        return None
    products = np.sum(centred[..., 1:, :] * centred[..., :-1, :], axis=-2)
    return float(np.min(products[moved] / spread[moved]))


def _observations(held: Observed, chains: int, present: np.ndarray) -> Observations:
    """Of the records that are there, along a first axis of chains."""
    found = [
        None if leaf is None else np.asarray(leaf) for leaf in (held.distances, held.spent, held.statistics, held.trace)
    ]
    found = [leaf[None] if chains == 1 and leaf is not None else leaf for leaf in found]
    distances, spent, statistics, trace = found
    return Observations(distances, None if spent is None else spent[:, present], statistics, trace)


def _restore(begin: Carry, stored: list[np.ndarray]) -> Carry:
    """The carry of a checkpoint. Once, chains carried the coordinates of canaries after all others, as the last entries
    of an array or, of `dpvi`, as an array of their own (an empty one without canaries): they are left out."""
    leaves, structure = jax.tree.flatten(begin)
    found, left = [], list(stored)
    for leaf in leaves:
        if not left:  # of before the last iterates were looked at
            found.append(leaf)
            continue
        array = left.pop(0)
        while left and array.ndim != leaf.ndim:
            array = left.pop(0)
        found.append(jnp.asarray(array[..., : leaf.shape[-1]] if leaf.ndim else array))
    return jax.tree.unflatten(structure, found)


def _leaves(carry: Carry) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(carry)]


def secret(key: Any) -> bytes:
    return key.key if isinstance(key, SecureSource) else np.asarray(jax.random.key_data(key)).tobytes()


def use_compilation_cache() -> None:
    """Keep compiled programs on disk for the next process, unless the user has decided about it."""
    given = os.environ.get("CONFIDE_CACHE")
    if given == "" or getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    home = Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confide")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(home))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
