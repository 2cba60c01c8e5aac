"""What is asked of a run on a table or on images, and the model and the sampler that go with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from confide import models, samplers, validation
from confide.data.image_schema import Pictures
from confide.data.schema import Column, Schema
from confide.inference import plans
from confide.inference.loop import CHECKPOINT_SECONDS
from confide.mechanism.noise import Noise
from confide.models import convexity
from confide.models.model import Model
from confide.privacy import pricing
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY, Neighbours
from confide.privacy.extra_accounts import Accounts, Individual, accounts
from confide.validation import Refused

ModelName = Literal["logistic", "softmax", "linear", "poisson", "mlp", "cnn"]
NETWORKS = ("mlp", "cnn")
CONVEX = ("langevin", "ops", "hybrid")
SAMPLERS = (*samplers.STEPPING, *samplers.DESCENTS, *CONVEX)
FEW = 10  # draws for which langevin is thought of
HIDDEN = (32,)
RICH = Budget(epsilon=1e4, delta=1e-5)  # for which nothing is cut short
NOISE_SHARE = 0.25  # of half the target's range: the standard deviation of a linear model's outcomes if none is given


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of a run; None is planned or taken from the schema."""

    data: str
    out: str
    epsilon: float
    delta: float
    schema: str | None = None  # of a table, as TOML text
    classes: tuple[str, ...] | None = None  # of images
    shape: tuple[int, ...] | None = None  # of images: height, width, channels
    records: int | None = None  # declared; the number of rows in the file by default
    neighbours: Neighbours = "add-remove"
    target: str | None = None
    model: ModelName | None = None
    prior_scale: float | None = None
    noise_scale: float | None = None  # in the unit of the target
    hidden: tuple[int, ...] | None = None
    dropout: float | None = None
    convolutions: int | None = None
    microbatch: int | None = None
    sampler: str | None = None
    temperature: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    clip: float | None = None
    chains: int = 1
    draws: int | None = None
    burn_in: int | None = None
    noise: Noise = "default"
    account: tuple[str, ...] = ("dp",)
    stretch: float | None = None
    histogram: float | None = None
    canaries: int | None = None
    ledger: str | None = None
    dataset: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    accept_learnt: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    key: int | None = None


def kept_accounts(request: Request) -> Accounts:
    """The accounts that are asked for, with the settings of individual ones."""
    kept = accounts(list(request.account))
    given = {"stretch": request.stretch, "histogram": request.histogram}
    settings = {name: value for name, value in given.items() if value is not None}
    if settings and kept.individual is None:
        raise Refused(f"--{next(iter(settings))} goes with --account individual: add that, or leave it out")
    return kept if not settings else replace(kept, individual=Individual(**settings))


def chosen_model(
    described: Schema | Pictures, request: Request, prior_scale: float = 1.0, bounded: bool = False
) -> Model:
    """The model that is asked for, or the one that goes with the target; `bounded` as the convex samplers need it."""
    if isinstance(described, Pictures):
        return _for_pictures(described, request, prior_scale, bounded)
    target, dimension = described.column(described.target), len(described.features)
    labels = len(target.labels)
    name = request.model or ("linear" if not labels else "logistic" if labels == 2 else "softmax")
    validation.one_of(get_args(ModelName), model=name)
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
    if name == "cnn":
        raise Refused("--model cnn needs images, an .npz file or a folder, and this is a table: choose mlp")
    _check_network(request, name)
    if request.noise_scale is not None and (labels or name == "poisson"):
        raise Refused(
            f"--noise-scale goes with a numeric target and a linear model or an mlp, not with {name}: leave it out"
        )
    scale = prior_scale if request.prior_scale is None else request.prior_scale
    bound = described.bound if bounded else None
    if name == "logistic":
        return models.logistic_regression(dimension, scale, norm_bound=bound)
    if name == "softmax":
        return models.softmax_regression(dimension, labels, scale, norm_bound=bound)
    if name == "poisson":
        most = target.high if bounded else None
        return models.poisson_regression(dimension, scale, norm_bound=bound, largest_mean=most)
    noise = NOISE_SHARE if labels else _noise(target, request.noise_scale)
    if name == "linear":
        return models.linear_regression(dimension, scale, noise, norm_bound=bound)
    sizes = (dimension, *(request.hidden or HIDDEN), labels or 1)
    return models.mlp(sizes, dropout=request.dropout or 0.0, prior_scale=scale, noise_scale=noise)


def picture_model(request: Request, shape: tuple[int, ...], classes: int) -> ModelName:
    """The name of the model for such images: as asked for, or a cnn, or for rows of numbers a linear one."""
    name = request.model or ("cnn" if len(shape) == 3 else "logistic" if classes == 2 else "softmax")
    validation.one_of(get_args(ModelName), model=name)
    if name in ("linear", "poisson"):
        raise Refused(f"--model {name} predicts numbers, and images have classes: choose cnn, mlp or softmax")
    if name == "logistic" and classes != 2:
        raise Refused(f"--model logistic needs two classes, and --classes has {classes}: choose softmax")
    if name == "cnn" and len(shape) != 3:
        raise Refused(f"--model cnn needs images, and x has {shape[0]} columns: store it as (n, height, width), or mlp")
    _check_network(request, name)
    return name


def _for_pictures(described: Pictures, request: Request, prior_scale: float, bounded: bool) -> Model:
    size, classes = described.numbers, len(described.classes)
    name = picture_model(request, described.shape, classes)
    scale, dropout = prior_scale if request.prior_scale is None else request.prior_scale, request.dropout or 0.0
    if name == "cnn":
        return models.cnn(described.shape, classes, request.convolutions, dropout, scale)
    if name == "mlp":
        return models.mlp((size, *(request.hidden or HIDDEN), classes), dropout=dropout, prior_scale=scale)
    bound = math.sqrt(size) if bounded else None
    if name == "logistic":
        return models.logistic_regression(size, scale, intercept=True, norm_bound=bound)
    return models.softmax_regression(size, classes, scale, intercept=True, norm_bound=bound)


def _check_network(request: Request, name: str) -> None:
    """Refuse what the model has no use for."""
    uses = {"hidden": ("mlp",), "convolutions": ("cnn",), "dropout": NETWORKS, "microbatch": NETWORKS}
    for option, those in uses.items():
        if getattr(request, option) is not None and name not in those:
            raise Refused(f"--{option} goes with --model {' or '.join(those)}, not with {name}: leave it out")


def _noise(target: Column, given: float | None) -> float:
    """The standard deviation of the outcomes on the scale of [-1, 1]."""
    if given is None:
        return NOISE_SHARE
    if target.scale == "log":
        raise Refused("--noise-scale has no unit where the target has scale = 'log': leave it out")
    assert target.low is not None
    assert target.high is not None
    return 2.0 * validation.positive(noise_scale=given) / (target.high - target.low)


class Choice(NamedTuple):
    """The model and the sampler of a run, its clip, and why the sampler was chosen where nobody asked for it."""

    model: Model
    sampler: samplers.Sampler
    clip: float | None
    why: str | None = None


def chosen(described: Schema | Pictures, request: Request, budget: Budget, records: int) -> Choice:
    """What goes with the request. Only sizes and the schema decide, never a value."""
    name, why = request.sampler, None
    if name is None:
        name, why = _by_itself(described, request, budget, records)
    validation.one_of(SAMPLERS, sampler=name)
    if name in CONVEX:
        mu = pricing.gdp_mu(budget.epsilon, budget.delta) if budget.delta else budget.epsilon / 4
        scale = affordable_scale(mu / SENSITIVITY[budget.neighbours], described.bound)
        return Choice(chosen_model(described, request, scale, bounded=True), _built(name, request), request.clip, why)
    model, clip = chosen_model(described, request), request.clip
    if clip is None:
        clip = plans.bounded_clip(model, budget, records, described.bound, request.chains)
    return Choice(model, _built(name, request), clip, why)


def affordable_scale(mu: float, bound: float) -> float:
    """The scale of the prior for one private draw, where none is given.

    A draw costs scale times clip times likelihood power, so that a wide prior is paid for with the likelihood. The
    scale is 1 for rows of norm 1 and so 1 / bound here; once the likelihood counts in full it grows up to 1 with the
    budget.
    """
    return min(1.0, max(1.0, 2 * mu) / bound)


def _by_itself(described: Schema | Pictures, request: Request, budget: Budget, records: int) -> tuple[str, str | None]:
    """sgld, or langevin where few draws are asked for, the model is convex, and sgld would have to cut deep.

    Within the budget, sgld settles with gradients cut at `bounded_clip`. Where that is below half the longest gradient,
    what it samples is bent, while langevin's last iterate pays for an uncut likelihood to a lower power.
    """
    draws = (request.draws or plans.DRAWS) * request.chains
    asked = (request.batch_size, request.burn_in, request.temperature, request.clip, request.canaries or None)
    if draws > FEW or any(value is not None for value in asked) or not budget.delta or set(request.account) != {"dp"}:
        return "sgld", None
    model = chosen_model(described, request, bounded=True)
    if convexity.refusal(model) is not None:
        return "sgld", None
    clip = plans.bounded_clip(model, budget, records, described.bound, request.chains)
    half = plans.bounded_clip(model, RICH, records, described.bound, 1)
    if clip is None or half is None or clip >= half:
        return "sgld", None
    return "langevin", (
        f"langevin, for {draws} draw{'s' if draws > 1 else ''}: to settle within this budget sgld would have to cut "
        f"gradients at {clip:.2g}, where {half:.2g} cuts few (--sampler decides otherwise)"
    )


def _built(name: str, request: Request) -> samplers.Sampler:
    heat: Any = {} if request.temperature is None else {"temperature": request.temperature}
    if name == "langevin":
        return samplers.langevin(request.draws or 1, **heat)
    if name in ("ops", "hybrid", "wang2015_sgld", *samplers.DESCENTS) and heat:
        raise Refused(f"--temperature does not go with --sampler {name}: leave it out")
    if name == "ops":
        return samplers.one_posterior_sample(draws=request.draws or 1)
    build: Any = getattr(samplers, name)
    return build(**heat)
