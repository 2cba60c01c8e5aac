"""The trace of a run by steps: what its noisy sums tell together, and draws that know of their noise.

Every iterate of such a run is released, and so is every noisy sum: noisy sums are what its event prices, and iterates
follow from them. A trace holds sums over them (`mechanism.trace`), and draws are made of it
(`inference.linear_gradients`) by whoever has it and the model's prior: no record is looked at, and nothing further is
paid.

It is kept for models of few parameters whose gradients are declared to be no longer than the clip (`gradient_bound`).
That a clip does not bite cannot be seen without looking at records: it is declared or it is not known. Privacy rests on
the clip all the same; under a wrong declaration gradients are cut, and intervals hold the truth less often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import linear_gradients, summaries
from confide.inference.linear_gradients import LogPrior, Parts
from confide.mechanism.kernel import FullBatchStep, Kernel, MechanismParameters
from confide.mechanism.oracle import Observations
from confide.mechanism.trace import Traced
from confide.models import families
from confide.models.model import Model
from confide.models.tracing import unraveller
from confide.validation import Refused

FORMAT = 1
MOST = 20  # parameters
APPROXIMATION = "linear gradient near the mode"
FARTHEST = 10.0  # deviations of the Gaussian in a prior's place that its mean may be away


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Sums of u u^T / s^2 over the steps of each part of each chain, u = (1, position, noisy sum / q)."""

    records: int  # as declared
    sampling_probability: float  # q
    gradient_bound: float
    lengths: np.ndarray  # steps of each part
    moments: np.ndarray  # (chains, parts, 1 + 2 parameters, 1 + 2 parameters)
    example: list[tuple[list[int], str]]  # shape and type of each array of a record

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **asdict(self),
            "lengths": self.lengths.tolist(),
            "moments": self.moments.tolist(),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trace:
        if record["format"] != FORMAT:
            raise ValueError(f"its trace has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name != "format"}
        lengths, moments = np.array(fields["lengths"], int), np.array(fields["moments"], np.float64)
        if moments.ndim != 4 or moments.shape[1] != lengths.size or moments.shape[2] != moments.shape[3]:
            raise ValueError("the arrays of its trace do not fit together")
        example = [(list(shape), str(dtype)) for shape, dtype in fields["example"]]
        return cls(**{**fields, "lengths": lengths, "moments": moments, "example": example})

    @property
    def parts(self) -> Parts:
        """Of all chains."""
        chains, parts, size, _ = self.moments.shape
        return linear_gradients.gather(self.moments.reshape(chains * parts, size, size), np.tile(self.lengths, chains))

    def draw(self, model: Model, draws: int, key: int) -> Any:
        """So many draws of the parameters, as the model reports them, along a first axis; the same for the same key."""
        log_prior, unravel = _flat(model, tuple((tuple(shape), dtype) for shape, dtype in self.example))
        flat = self._draw(log_prior, draws, key).astype(np.float32)
        every = jax.vmap(lambda position: model.constrain(unravel(position)))(flat)
        return jax.tree.map(np.asarray, every)

    def _draw(self, log_prior: LogPrior, draws: int, key: int) -> np.ndarray:
        with jax.enable_x64(True):
            parts = self.parts
            prior = _as_gaussian(log_prior, parts)
            told = linear_gradients.tell(parts, self.records, self.sampling_probability, self.gradient_bound, prior)
            return linear_gradients.draw(log_prior, told, draws, key)


@lru_cache(maxsize=8)
def _flat(model: Model, example: tuple[tuple[tuple[int, ...], str], ...]) -> tuple[LogPrior, Callable[[Any], Any]]:
    """The log prior of flat parameters, as the model's own functions see them, and the way back from them; the same one
    for the same model, so that its density is compiled once."""
    _, unravel = unraveller(model, tuple(np.zeros((1, *shape), dtype) for shape, dtype in example), jax.random.key(0))

    def log_prior(position: jax.Array) -> jax.Array:
        with jax.enable_x64(False):
            found = model.log_prior(unravel(position.astype(jnp.float32)))
        return found.astype(jnp.float64)

    return log_prior, unravel


def _as_gaussian(log_prior: LogPrior, parts: Parts) -> tuple[jax.Array, jax.Array]:
    """Mean and precision of a Gaussian in the prior's place: the prior itself where it is one; for coordinates only."""
    last = jnp.asarray(parts.position[-1])
    slope, curved = jax.grad(log_prior)(last), -jax.hessian(log_prior)(last)
    values, vectors = np.linalg.eigh(np.asarray(curved))
    within = np.trace(parts.positions, axis1=1, axis2=2) / parts.weight
    spread = float(np.sum(np.var(parts.position, axis=0)) + np.mean(within))
    values = np.maximum(values, 1e-2 / max(spread, 1e-12))
    away = np.clip((vectors.T @ np.asarray(slope)) / values, -FARTHEST / np.sqrt(values), FARTHEST / np.sqrt(values))
    return last + vectors @ away, jnp.asarray((vectors * values) @ vectors.T)


def observer(model: Model, parameters: MechanismParameters, kernel: Kernel) -> Traced | None:
    """What keeps the trace of a run; None where draws cannot be made of it."""
    bound = model.gradient_bound
    if bound is None or bound > parameters.clip * (1 + 1e-9) or parameters.dimension > MOST:
        return None
    if model.linear is not None or model.layered is not None or kernel.fisher is not None:
        return None
    steps, q = kernel.schedule.step_size.size, parameters.sampling_probability
    with jax.enable_x64(True):
        query, _ = jax.eval_shape(lambda key: _first_query(kernel, parameters, key), jax.random.key(0))
    if isinstance(query, FullBatchStep) or query.preconditioner_root is not None:
        return None
    return Traced(steps=steps, dimension=parameters.dimension, sampling_probability=q)


def _first_query(kernel: Kernel, parameters: MechanismParameters, key: jax.Array) -> Any:
    control = jax.tree.map(lambda column: jnp.asarray(column[0]), kernel.schedule)
    return kernel.query(kernel.init(jnp.zeros(parameters.dimension)), control, jnp.asarray(0), key)


class Ran(Protocol):
    """A job, once it has run."""

    @property
    def observers(self) -> Any: ...
    @property
    def observations(self) -> Observations | None: ...
    @property
    def parameters(self) -> MechanismParameters: ...


def of_run(job: Ran, bound: float | None, arrays: tuple[np.ndarray, ...]) -> Trace | None:
    """The trace that a run kept; of the arrays shapes and types alone."""
    kept, observations = job.observers.trace, job.observations
    if kept is None or observations is None or observations.trace is None or bound is None:
        return None
    return Trace(
        records=job.parameters.n,
        sampling_probability=kept.sampling_probability,
        gradient_bound=bound,
        lengths=kept.lengths(),
        moments=observations.trace,
        example=[(list(array.shape[1:]), array.dtype.name) for array in arrays],
    )


def check(plan: dict[str, Any], model: Model | None, trace: Trace | None) -> Trace:
    """The trace, where draws can be made of it; else what is missing."""
    name, clip, bound = plan.get("sampler", "the run"), plan.get("clip"), plan.get("gradient_bound")
    if plan.get("model") in families.BY_NAME:
        raise Refused("noise_aware: linear families have confide.scoring(), whose draws know of the noise: take that")
    if (model is not None and model.layered is not None) or plan.get("parameters", 0) > MOST:
        raise Refused(
            f"noise_aware: the model is a network, or has more than {MOST} parameters: it is for smooth models of few"
        )
    if "steps" in plan and clip is None:
        raise Refused("noise_aware: a run without a guarantee has no noise to know of: take confide.fit")
    if not summaries.from_json(plan).noisy_sums:
        raise Refused(f"noise_aware: {name} hides its steps: take a sampler that releases each, such as sgld")
    if bound is None:
        raise Refused(
            "noise_aware: nobody declared that the clip cuts nothing: give the model a gradient_bound, and fit again"
        )
    if clip < bound * (1 - 1e-9):
        raise Refused(
            f"noise_aware: clip = {clip:.6g} may cut gradients of up to {bound:.6g}: fit with the clip left out"
        )
    if plan.get("individual") is not None:
        raise Refused("noise_aware: an individual account leaves records out as the run goes on: fit without it")
    if trace is None:
        raise Refused(f"noise_aware: {name} kept no trace that draws can be made of: take sgld, sghmc or dpvi")
    return trace


def describe(plan: dict[str, Any], draws: int) -> dict[str, Any]:
    """The plan of draws that were made of the trace."""
    kept = {name: value for name, value in plan.items() if name not in ("lag_one", "drift")}  # of the chains' draws
    made = plan.get("noise_aware") or {"approximation": APPROXIMATION, "chains": plan["chains"]}
    return kept | {"chains": 1, "draws": draws, "noise_aware": made}
