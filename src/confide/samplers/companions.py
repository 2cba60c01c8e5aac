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
its own, and cannot be asked from here. What a companion holds is public by declaration, and the guarantee says so. An
array as long as the data is refused wherever it is, in derivative rules too, and so is a callback, in which anything
could be held; part of the records would not be noticed.

**One program is named and run.** The noise of a key that is given is derived from the companion too, because two runs
with the same noise and another loss would tell the difference of two sums of records exactly. So the functions, and the
gradient of the loss with the derivative rules that are in it, become programs when a sampler is accompanied. These are
named and these run, whatever becomes of the functions and of what they refer to.

The loss is on the scale of the mean: it counts as n records would whose mean loss it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters, Query, Schedule
from confide.mechanism.per_example import see
from confide.models import programs
from confide.models.inputs import capacity
from confide.models.model import Model
from confide.models.programs import Program
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


class Traced(NamedTuple):
    """A companion as programs, and the parameters of its model, for their shapes."""

    start: Any
    loss: Program
    loss_gradient: Program  # by the parameters of the model
    move: Program
    keep: Program
    example: Any

    @property
    def programs(self) -> tuple[Program, ...]:
        return self.loss, self.loss_gradient, self.move, self.keep

    @property
    def digest(self) -> str:
        """What tells it from any other: its programs, derivatives included, and where it starts."""
        leaves, structure = jax.tree.flatten(self.start)
        structures = [str(structure), *(str(program.structure) for program in self.programs)]
        return programs.digest(*self.programs, leaves, structures)[:16]

    def check(self, records: int) -> None:
        """Refuse arrays that may be the records."""
        lengths = {records, capacity(records)} - {1}
        shapes = [programs.holds_table(program.traced, lengths) for program in self.programs]
        shapes += [np.shape(leaf) for leaf in jax.tree.leaves(self.start) if lengths & set(np.shape(leaf))]
        for shape in filter(None, shapes):
            raise Refused(
                f"the companion holds an array of shape {shape}, as long as the data: it must not see records"
            )

    def arrange(self, kept: np.ndarray) -> dict[str, Any]:
        """What is kept beside draws, flat as (chains, draws, numbers), by its name."""
        with jax.enable_x64(False):
            _, unravel = ravel_pytree(self.keep(self.start))
        chains, draws, size = kept.shape
        every = jax.vmap(unravel)(jnp.asarray(kept.reshape(-1, size), jnp.float32))
        return {NAME: jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), every)}


def trace(companion: Companion) -> Traced:
    """Its functions as they are now."""
    example = companion.model.start(jax.random.key(0), ())
    if not isinstance(example, dict) or NAME in example:
        raise Refused(
            f"the parameters of {companion.model.name} are no dictionary that has room for {NAME!r}: wrap them"
        )
    key, t = jax.random.key(0), jnp.zeros((), jnp.int32)
    with jax.enable_x64(False):
        start = jax.tree.map(jnp.array, companion.start)  # copies
        loss = programs.trace(companion.loss, start, example, key)
        if [value.shape for value in loss.traced.out_avals] != [()]:
            raise Refused("companion: its loss is no single number: take the mean over what it makes up")
        gradient = jax.grad(lambda parameters, *given: companion.loss(given[0], parameters, given[1]))
        found = Traced(
            start,
            loss,
            programs.trace(gradient, example, start, key),
            programs.trace(companion.move, start, example, key, t),
            programs.trace(companion.keep, start),
            example,
        )
    for program in found.programs:
        programs.check(program.traced, "the companion")
    leaves, structure = jax.tree.flatten(start)
    moved = [_shape(value) for value in found.move.traced.out_avals]
    if found.move.structure != structure or moved != [_shape(leaf) for leaf in leaves]:
        raise Refused("companion: move changes the shape of its state: return one like start")
    return found


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
    return replace(sampler, build=partial(build, sampler.build), companion=trace(companion))


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
        return join(inner.init(position), companion.start)

    def query(state: State, control: Schedule, t: jax.Array, key: jax.Array) -> tuple[Query, Any]:
        asked, memo = inner.query(state.inner, control, t, key)
        assert isinstance(asked, Query)
        return asked, (asked, memo, jax.random.fold_in(key, PUBLIC))

    def update(state: State, memo: Any, noisy: jax.Array, control: Schedule, t: jax.Array) -> State:
        asked, own, key = memo
        with jax.enable_x64(False):
            model, (first, second) = unravel(asked.position.astype(jnp.float32)), jax.random.split(key)
            pull = ravel_pytree(companion.loss_gradient(model, state.companion, first))[0]
            beside = companion.move(state.companion, model, second, t.astype(jnp.int32))
        public = parameters.expected_batch * pull.astype(noisy.dtype)
        if asked.preconditioner_root is not None:
            public = see(public, asked.preconditioner_root)
        return join(inner.update(state.inner, own, noisy + public, control, t), beside)

    return Kernel(init, query, update, inner.schedule, inner.event)


def _shape(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), leaf.dtype
