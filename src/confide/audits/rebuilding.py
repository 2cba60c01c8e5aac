r"""The program of a finished run, built again from what its folder says, for tables that are made up.

The plan names the sampler with its settings, the sizes, the clip, how scores are bounded, and the step sizes; the model
is the posterior's own. `inference.plans.stochastic` makes the job of them, as it did for the run, so that nothing is
computed here that the run computed elsewhere; the scale of the records, where it was bought, is in the plan, and not
bought again. What is not the same: one draw is kept, since what is looked at are the noisy sums, of which all draws are
functions; canaries are left out; a witness listens (`confide.mechanism.witness`).

**Marked rows.** A worst-case record pulls as hard as the clip allows whatever the parameters are, and one that is not
there contributes nothing. Of a generalised linear model such rows have labels that no record has, for which the
residual is far too long, or zero. All other models get one further number a record, which the log likelihood is
multiplied by: zero, or far too long, of either sign. Gradients, norms, clips, sums, batches, noise and steps are the
run's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import samplers
from confide.inference import summaries
from confide.inference.loop import Job
from confide.inference.options import Options
from confide.inference.plans import Plan, stochastic, weights
from confide.inference.posterior import Posterior
from confide.inference.summaries.runs import RunSummary, Steps
from confide.mechanism import noise
from confide.mechanism.canaries import DOWN, LENGTH, OUT, UP
from confide.mechanism.oracle import Observers
from confide.mechanism.witness import Witness
from confide.models import inputs
from confide.models.inputs import Records
from confide.models.model import Data, Linear, Model
from confide.models.tapes import Layered, Tape
from confide.privacy.budget import Budget
from confide.samplers import Sampler
from confide.validation import Refused

MOST_LABELS = 256


class Shape(NamedTuple):
    """One array of a record."""

    shape: tuple[int, ...]
    kind: np.dtype


def shapes(summary: RunSummary, model: Model) -> tuple[tuple[int, ...], ...]:
    """Of the arrays of a record, as the plan has them, or as a generalised linear model does."""
    if summary.arrays is not None:
        return tuple(map(tuple, summary.arrays))
    if model.linear is not None and model.settings is not None:
        return (model.settings["dimension"],), ()
    raise Refused("the run was written before plans held the shapes of records: fit it again to audit it so")


def kinds(model: Model, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[Shape, ...]]:
    """What the arrays may hold, likeliest first. Which of them it was is not told, since that can depend on records."""
    single, whole = np.dtype(np.float32), np.dtype(np.int32)
    usual = tuple(Shape(shape, single) for shape in shapes)
    if model.linear is not None:
        return [usual]
    return [usual, (*usual[:-1], Shape(shapes[-1], whole)), tuple(Shape(shape, whole) for shape in shapes)]


def check_model(posterior: Posterior) -> Model:
    """The model of a run whose program can be built again; refused in one line where it cannot."""
    plan, model, summary = posterior.plan, posterior.model, summaries.from_json(posterior.plan)
    if posterior.guarantee is None:
        raise Refused("the posterior has no guarantee, so there is no claim to audit: fit it with confide.fit")
    if model is None:
        raise Refused("the model was built from functions that are not saved: give it to Posterior.load(path, model=)")
    name = plan.get("sampler")
    if not summary.noisy_sums and getattr(summary, "independent", False):
        raise Refused(
            f"made-up audits do not know the sums that {name} releases of a linear model: audit a run of scoring"
        )
    if not summary.noisy_sums or name not in samplers.__all__:
        raise Refused(
            f"made-up audits look at noisy sums, and {name or 'this release'} releases none: they are for samplers "
            "that release every step, such as sgld"
        )
    if "individual" in plan:
        raise Refused("made-up audits are for the account of 'dp' alone: audit a run without the account 'individual'")
    if "guide" in plan:
        raise Refused("the run's guide is not stored: audit a run with a family of its own, such as 'mean-field'")
    if "companion" in plan:
        raise Refused(
            "the run's companion is not stored: audit it by canaries, as confide.audit(lambda: fit(...)) does"
        )
    if "function" in (plan.get("schedule"), plan.get("learning_rate")):
        raise Refused("the run's schedule was a function, which is not stored: audit one with a schedule by name")
    return model


def sampler_of(summary: Steps) -> Sampler:
    """The sampler with its step sizes or its noise as they were planned."""
    make: Any = getattr(samplers, summary.sampler)
    usual, settings = make(), summary.settings()
    settings |= {option: summary.more[option] for option in usual.options}
    falling = summary.last_step_size != summary.step_size
    if usual.prescribe is not None and settings["schedule"] == "fixed" and falling:  # by the paper's own rule
        settings["step_size"] = None
    return make(**settings)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A run's job on tables of marked rows (`table`), and on rows as the model has them."""

    job: Job
    planned: Plan
    plain: Job
    records: int
    marked: Marked
    shapes: tuple[Shape, ...]
    model: Model

    def table(self, weights: np.ndarray) -> Records:
        """A row for each weight: 0 contributes nothing, 1 and -1 as much as the clip allows, opposite to each other."""
        return in_places(self.marked.table(weights), self.records)


def rebuild(posterior: Posterior, key: jax.Array, generator: np.random.Generator, observed: int) -> Program:
    """The program of the run. `observed` numbers of noisy sums of one run and chain are kept at most."""
    model, summary = check_model(posterior), summaries.from_json(posterior.plan)
    assert isinstance(summary, Steps)
    assert posterior.guarantee is not None
    own = summary.budget or {}
    budget = Budget(epsilon=own["epsilon"], delta=own["delta"], neighbours=posterior.guarantee.neighbours)
    *others, last = kinds(model, shapes(summary, model))
    for each in others:
        try:
            return _rebuild(summary, budget, model, each, key, generator, observed)
        except Refused:  # the model cannot be evaluated on such arrays
            continue
    return _rebuild(summary, budget, model, last, key, generator, observed)


def _rebuild(
    summary: Steps,
    budget: Budget,
    model: Model,
    shapes: tuple[Shape, ...],
    key: jax.Array,
    generator: np.random.Generator,
    observed: int,
) -> Program:
    n, names = int(summary.records), ("steps", "batch_size", "clip", "chains", "noise", "microbatch")
    options = Options(**{name: getattr(summary, name) for name in names}, draws=1, clipping=summary.clipping or "plain")
    if summary.clipping is not None:
        model = weights.weigh(model, summary.row_bound or math.inf, summary.information or 1.0)

    def make_plan(model: Model, data: Data) -> Plan:
        return stochastic.make_plan(model, in_places(data, n), budget, sampler_of(summary), options, key)

    rows = ordinary(model, shapes, generator, 16)
    plain = make_plan(model, tuple(np.repeat(array[:1], n, axis=0) for array in rows)).job
    assert isinstance(plain, Job)
    marks = mark(model, tuple(array[_longest(plain, rows)][None] for array in rows), generator)
    found = make_plan(marks.model, marks.table(np.zeros(n)))
    job = found.job
    assert isinstance(job, Job)
    witness = Witness(
        sampling_probability=job.parameters.sampling_probability,
        clip=job.parameters.clip,
        replaced=budget.neighbours == "replace-one",
        observed=max(1, min(job.steps, observed // job.parameters.dimension)),
    )
    return Program(
        job=replace(job, observers=Observers(witness=witness)),
        planned=found,
        plain=replace(plain, observers=Observers(witness=witness)),
        records=n,
        marked=marks,
        shapes=shapes,
        model=model,
    )


def _longest(job: Job, rows: Data) -> int:
    """Which of the rows pulls hardest at the start: one that pulls not at all cannot be marked."""
    sums, data = job.gradient_sum, tuple(map(jnp.asarray, rows))
    batch = sums.batch(data, sums.residual_threshold(data), jnp.arange(len(rows[0])))
    return int(np.argmax(np.asarray(sums.norms(jnp.asarray(job.initial_positions[0], jnp.float32), batch))))


def in_places(rows: Data, number: int) -> Records:
    """Rows in the places of a declared number of records: the shapes of the run."""
    return inputs.spread(rows, np.ones(len(rows[0]), bool), number)


def ordinary(model: Model, shapes: tuple[Shape, ...], generator: np.random.Generator, count: int) -> Data:
    """Rows that the model can be fitted to, as far as it says: numbers of order one, and labels 0 and 1."""
    *features, last = [_numbers(each, generator, count) for each in shapes]
    labels = generator.integers(0, 2, last.shape)
    for outcome in (last, np.abs(np.round(last)), labels):
        rows = (*features, outcome.astype(shapes[-1].kind))
        try:
            model.check(rows)
        except Refused:
            continue
        if model.admits is None or np.all(model.admits(rows)):
            return rows
    return (*features, labels.astype(shapes[-1].kind))


def labels(model: Model, shapes: tuple[Shape, ...]) -> np.ndarray:
    """All that a classifier knows, up to `MOST_LABELS`; none of other models, or where the model does not say."""
    if model.kind != "classification" or model.admits is None:
        return np.zeros(0, int)
    candidates = np.arange(MOST_LABELS)
    rows = [np.zeros((MOST_LABELS, *each.shape), each.kind) for each in shapes[:-1]]
    outcomes = np.broadcast_to(candidates.reshape(-1, *[1] * len(shapes[-1].shape)), (MOST_LABELS, *shapes[-1].shape))
    known = np.asarray(model.admits((*rows, outcomes.astype(shapes[-1].kind))))
    return candidates[known.reshape(MOST_LABELS, -1).all(axis=1)]


def _numbers(each: Shape, generator: np.random.Generator, count: int) -> np.ndarray:
    if each.kind.kind in "iu":
        return generator.integers(0, 2, (count, *each.shape)).astype(each.kind)
    return generator.normal(size=(count, *each.shape)).astype(each.kind)


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A model that knows marked rows, and the row that all of them are copies of."""

    model: Model
    row: Data
    linear: bool

    def table(self, weights: np.ndarray) -> Data:
        copies = tuple(np.repeat(array, len(weights), axis=0) for array in self.row)
        if self.linear:
            labels = np.where(weights > 0, UP, np.where(weights < 0, DOWN, OUT))
            return (*copies[:-1], labels.astype(np.float32))
        return (*copies, (-LENGTH * weights).astype(np.float32))  # away from its label: a row that fits pulls no more


def mark(model: Model, rows: Data, generator: np.random.Generator) -> Marked:
    if model.linear is None:
        return Marked(model=_weigh(model), row=tuple(array[:1] for array in rows), linear=False)
    direction = generator.normal(size=rows[0][:1].shape)
    bound = model.linear.norm_bound or 1.0
    unit = (direction * (0.99 * min(1.0, bound) / np.linalg.norm(direction))).astype(np.float32)
    return Marked(model=_label(model, model.linear), row=(unit, rows[1][:1]), linear=True)


def _weigh(model: Model) -> Model:
    layered = model.layered

    def log_likelihood(parameters: Any, *row: Any) -> jax.Array:
        *own, weight = row
        return weight * model.log_likelihood(parameters, *own)

    def layer_by_layer(tape: Tape, parameters: Any, *row: Any) -> jax.Array:
        assert layered is not None
        *own, weight = row
        return weight * layered.log_likelihood(tape, parameters, *own)

    followed = None if layered is None else Layered(log_likelihood=layer_by_layer, dropout=layered.dropout)
    start = model.start
    return replace(
        model, start=lambda key, example: start(key, example[:-1]), log_likelihood=log_likelihood, layered=followed
    )


def _label(model: Model, linear: Linear) -> Model:
    def pull(labels: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(labels) == UP, LENGTH * jnp.sign(labels), 0.0)

    return replace(model, linear=linear.mark(pull, UP))


def source(seed: int, label: str, number: int, secure: bool) -> Any:
    """What one of the runs draws from: as good as the operating system's to whoever does not know the seed."""
    key = noise.derive_key(noise.as_key(seed), "made up", label, number)
    if not secure:
        return key
    words = [np.asarray(jax.random.key_data(noise.derive_key(key, part))).tobytes() for part in range(4)]
    return noise.SecureSource(b"".join(words))
