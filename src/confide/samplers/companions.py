r"""A companion: something that learns beside a model and is told nothing but the model, as the generator of a GAN.

In a generative adversarial network a discriminator learns to tell real records from made-up ones, and a generator to
make up records that pass for real. Here the discriminator is the model and the generator its companion. With theta the
parameters of the model, phi the state of the companion, and xi public randomness of the step, step t is

    G       = sum over the batch of clipped gradients at theta + N(0, s_t^2 I)              (the mechanism)
    h       = -grad log p(theta) / n + G / (q n) + grad_theta loss(phi, theta, xi)          (no record in the last term)
    theta'  = one step of any sampler with h as its noisy mean gradient
    phi'    = move(phi, theta, xi, t)

**What step t reveals.** G is the only thing in it that depends on a record: one noisy clipped sum, over labelled and
unlabelled records alike (`confide.models.semi_supervised`). `loss` and `move` are functions of phi, theta and xi. By
induction theta and phi of every step are functions of the noisy sums before it and of public randomness, so that both
are post-processing: every iterate of both may be released, at the price of the sampler without a companion. The public
term is neither clipped nor noisy, since nothing in it is to be hidden, and several losses have one price because they
are one sum.

**Why it cannot be otherwise.** A companion is a part of a kernel, and a kernel is handed noisy sums, never records
(`confide.mechanism.kernel`). What would not be post-processing is a term of `move` with real records, such as the
matching of their mean features (Salimans et al. 2016): it would be a second question about the records with a price of
its own, and cannot be asked from here. What the functions of a companion hold is public by declaration, and the
guarantee says so; an array as long as the data is refused.

The loss is on the scale of the mean: it counts as n records would whose mean loss it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, Query, Schedule
from confide.mechanism.per_example import see
from confide.models.inputs import capacity
from confide.models.model import Model
from confide.models.tracing import constants
from confide.samplers.sampler import Sampler
from confide.validation import Refused

NAME = "companion"  # of its draws, beside those of the model
PUBLIC = 2**30 + 7  # folded into the public key of a step, which the sampler may use as well
ASSUMPTION = "What the companion of the model holds is public: it was made without looking at the records."


@dataclass(frozen=True, kw_only=True)
class Companion:
    """What moves along with a model and sees no record.

    Attributes:
        model: whose parameters it is told; they are a dictionary.
        start: its state, any pytree.
        loss: (state, parameters of the model, key) -> a number, whose gradient moves the model.
        move: (state, parameters of the model, key, number of the step) -> the next state.
        keep: state -> what is kept of it beside each draw of the model, a pytree.
    """

    model: Model
    start: Any
    loss: Callable[[Any, Any, jax.Array], jax.Array]
    move: Callable[[Any, Any, jax.Array, jax.Array], Any]
    keep: Callable[[Any], Any] = lambda state: state

    @cached_property
    def example(self) -> Any:
        """Parameters of the model, for their shapes."""
        found = self.model.start(jax.random.key(0), ())
        if not isinstance(found, dict) or NAME in found:
            raise Refused(
                f"the parameters of {self.model.name} are no dictionary that has room for {NAME!r}: wrap them"
            )
        return found

    @cached_property
    def mark(self) -> str:
        """What tells it from any other: its programs, what they hold, and where it starts."""
        found = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self.start)))
        for program in self.programs:
            found.update(str(program).encode())
            for array in constants(program):
                found.update(_bytes(array))
        return found.hexdigest()[:16]

    @cached_property
    def programs(self) -> tuple[Any, Any]:
        key, t = jax.random.key(0), jnp.zeros((), jnp.int32)
        with jax.enable_x64(False):
            start = _single(self.start)
            loss = jax.make_jaxpr(self.loss)(start, self.example, key)
            moved = jax.eval_shape(self.move, start, self.example, key, t)
            if [value.shape for value in loss.out_avals] != [()]:
                raise Refused("companion: its loss is no single number: take the mean over what it makes up")
            if jax.tree.map(_shape, moved) != jax.tree.map(_shape, start):
                raise Refused("companion: move changes the shape of its state: return one like start")
            return loss, jax.make_jaxpr(self.move)(start, self.example, key, t)

    def check(self, records: int) -> None:
        """Refuse arrays that may be the records."""
        for shape in (np.shape(array) for program in self.programs for array in constants(program)):
            if records > 1 and {records, capacity(records)} & set(shape):
                raise Refused(
                    f"the companion holds an array of shape {shape}, as long as the data: it must not see records"
                )

    def arrange(self, kept: np.ndarray) -> dict[str, Any]:
        """What is kept beside draws, flat as (chains, draws, numbers), by its name."""
        _, unravel = ravel_pytree(self.keep(_single(self.start)))
        chains, draws, size = kept.shape
        every = jax.vmap(unravel)(jnp.asarray(kept.reshape(-1, size), jnp.float32))
        return {NAME: jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), every)}


def accompany(sampler: Sampler, companion: Companion) -> Sampler:
    """The sampler with a companion beside the model. For samplers that release every step, one noisy sum each."""
    validation.instance(Sampler, sampler=sampler)
    validation.instance(Companion, companion=companion)
    model = companion.model
    if sampler.kind != "steps" or (sampler.optimises and not sampler.point):
        raise Refused(f"a companion moves with every step, and {sampler.name} has no place for it: choose one as sghmc")
    if sampler.companion is not None:
        raise Refused("the sampler has a companion already: let one hold both")
    if model.linear is not None or model.gradient_bound is not None:
        raise Refused("a companion is for networks, or for functions without a gradient_bound: leave one of them out")
    _ = companion.programs
    return replace(sampler, build=partial(build, sampler.build), companion=companion)


def split(sampler: Sampler, job: Any, kept: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """What a run kept of its model, and of a companion by its name."""
    if sampler.companion is None:
        return kept, {}
    own = job.parameters.dimension
    return kept[..., :own], sampler.companion.arrange(kept[..., own:])


class State(NamedTuple):
    position: jax.Array  # of the model, and after it what is kept of the companion
    inner: Any  # of the sampler
    companion: Any


def build(
    inner_build: Callable[[Sampler, MechanismParameters, np.ndarray], Kernel],
    sampler: Sampler,
    parameters: MechanismParameters,
    step_sizes: np.ndarray,
) -> Kernel:
    """The sampler's own kernel, with the public term in its noisy sums; noise and event are the sampler's."""
    companion, inner = sampler.companion, inner_build(sampler, parameters, step_sizes)
    assert companion is not None
    companion.check(parameters.n)
    flat, unravel = ravel_pytree(companion.example)
    if inner.fisher is not None:
        raise Refused(f"{sampler.name} asks for a second sum, which no companion adds to: choose another, as sghmc")
    if flat.size != parameters.dimension:
        raise Refused("the companion is of another model than the one that is fitted: give it the same")

    def join(state: Any, beside: Any) -> State:
        with jax.enable_x64(False):
            kept = ravel_pytree(companion.keep(beside))[0]
        return State(jnp.concatenate([state.position, kept.astype(state.position.dtype)]), state, beside)

    def init(position: jax.Array) -> State:
        return join(inner.init(position), _single(companion.start))

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, Any]:
        asked, memo = inner.query(state.inner, control, t, key)
        assert isinstance(asked, Query)
        return asked, (asked, memo, jax.random.fold_in(key, PUBLIC))

    def update(state: State, memo: Any, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        asked, own, key = memo
        with jax.enable_x64(False):
            here, first, second = asked.position.astype(jnp.float32), *jax.random.split(key)
            pull = jax.grad(lambda position: companion.loss(state.companion, unravel(position), first))(here)
            beside = companion.move(state.companion, unravel(here), second, t.astype(jnp.int32))
        public = parameters.expected_batch * pull.astype(noisy.dtype)
        if asked.preconditioner_root is not None:
            public = see(public, asked.preconditioner_root)
        return join(inner.update(state.inner, own, noisy + public, control, t), beside)

    return Kernel(init, query, update, inner.schedule, inner.event)


def _single(tree: Any) -> Any:
    """In single precision, as a program is given it."""
    with jax.enable_x64(False):
        return jax.tree.map(jnp.asarray, tree)


def _bytes(array: Any) -> bytes:
    keyed = jnp.issubdtype(getattr(array, "dtype", np.float32), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if keyed else array).tobytes()


def _shape(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), leaf.dtype
