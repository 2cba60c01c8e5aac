"""What is asked of a run on a table, and the model and the sampler that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from confide import checks, models, samplers
from confide.checks import Refused
from confide.events import Neighbours
from confide.models.model import Model
from confide.noise import Noise
from confide.run import CHECKPOINT_SECONDS
from confide.schema import Column, Schema

ModelName = Literal["logistic", "softmax", "linear", "poisson", "mlp"]
SAMPLERS = ("sgld", "psgld", "sghmc", "sgnht", "sgfs", "wang2015_sgld")
HIDDEN = 32
NOISE_SHARE = 0.25  # of half the target's range: the standard deviation of a linear model's outcomes if none is given


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of a run on a table; None is planned or taken from the schema."""

    data: str
    schema: str  # as TOML text
    out: str
    epsilon: float
    delta: float
    neighbours: Neighbours = "add-remove"
    target: str | None = None
    model: ModelName | None = None
    prior_scale: float = 1.0
    noise_scale: float | None = None  # in the unit of the target
    hidden: int | None = None
    sampler: str = "sgld"
    temperature: float = 1.0
    steps: int | None = None
    batch_size: int | None = None
    clip: float | None = None
    chains: int = 1
    draws: int | None = None
    burn_in: int | None = None
    noise: Noise = "default"
    ledger: str | None = None
    dataset: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    accept_learnt: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    key: int | None = None


def chosen_model(described: Schema, request: Request) -> Model:
    """The model that is asked for, or the one that goes with the target."""
    target, dimension = described.column(described.target), len(described.features)
    labels = len(target.labels)
    name = request.model or ("linear" if not labels else "logistic" if labels == 2 else "softmax")
    checks.one_of(get_args(ModelName), model=name)
    if name in ("linear", "poisson") and labels:
        raise Refused(f"--model {name} needs a numeric target, and {target.name!r} is {target.kind}: choose softmax")
    if name in ("logistic", "softmax") and not labels:
        raise Refused(f"--model {name} needs a target with labels, and {target.name!r} is numeric: choose linear")
    if name == "logistic" and labels != 2:
        raise Refused(f"--model logistic needs two labels, and {target.name!r} has {labels}: choose softmax")
    if name == "poisson" and not (float(target.low or 0).is_integer() and float(target.high or 0).is_integer()):
        raise Refused(f"--model poisson needs counts, and the bounds of {target.name!r} are not whole: make them so")
    if name == "poisson" and (target.low is None or target.low < 0):
        raise Refused(
            f"--model poisson needs counts, and {target.name!r} may be below 0: raise its bound, or choose linear"
        )
    if request.hidden is not None and name != "mlp":
        raise Refused(f"--hidden goes with --model mlp, not with {name}: leave it out")
    if request.noise_scale is not None and (labels or name == "poisson"):
        raise Refused(
            f"--noise-scale goes with a numeric target and a linear model or an mlp, not with {name}: leave it out"
        )
    scale = request.prior_scale
    if name == "logistic":
        return models.logistic_regression(dimension, scale)
    if name == "softmax":
        return models.softmax_regression(dimension, labels, scale)
    if name == "poisson":
        return models.poisson_regression(dimension, scale)
    noise = NOISE_SHARE if labels else _noise(target, request.noise_scale)
    if name == "linear":
        return models.linear_regression(dimension, scale, noise)
    return models.mlp(dimension, labels or None, request.hidden or HIDDEN, scale, noise)


def _noise(target: Column, given: float | None) -> float:
    """The standard deviation of the outcomes on the scale of [-1, 1]."""
    if given is None:
        return NOISE_SHARE
    if target.scale == "log":
        raise Refused("--noise-scale has no unit where the target has scale = 'log': leave it out")
    assert target.low is not None
    assert target.high is not None
    return 2.0 * checks.positive(noise_scale=given) / (target.high - target.low)


def chosen_sampler(request: Request) -> samplers.Sampler:
    name = checks.one_of(SAMPLERS, sampler=request.sampler)
    build: Any = getattr(samplers, name)
    return build() if name == "wang2015_sgld" else build(temperature=request.temperature)
